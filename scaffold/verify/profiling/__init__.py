"""Where a tower's GPU time goes: kernels by class, against the floor that its arithmetic and its bytes set.

`towers` builds a shipped model's real vision classes at real sizes with random weights, `measure` runs them under
torch's profiler (needs a GPU), `trace` reads what the profiler wrote, `analyse` and `report` need neither.
"""

from __future__ import annotations

#: Models with a preset of real sizes.
MODELS = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "internvl", "step3_vl")
