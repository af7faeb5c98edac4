"""Measurements on a GPU: where a tower's time goes (`profile`), and managers side by side (`bench`).

A profile compares kernels by class with the floor that the tower's arithmetic and bytes set. `towers` builds a shipped
model's real vision classes at real sizes with random weights. `runs` runs them under torch's profiler, and `bench`
under the managers; both need a GPU. `trace` reads the profiler's events. `analyse` and `report` need no GPU and no
torch.
"""

from __future__ import annotations

#: Models with a preset of real sizes.
MODELS = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "internvl", "step3_vl")
