"""Measurements on a GPU: where a tower's time goes (`profile`), and managers side by side (`bench`).

A profile compares kernels by class with the floor that the tower's arithmetic and bytes set. `installed` puts the port
of a descriptor into the installed vLLM, and `subject` builds the model's real vision classes at real sizes with random
weights. `runs` runs them under torch's profiler, and `bench` under the managers; both need a GPU. `trace` reads the
profiler's events. `analyse` and `report` need no GPU and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

#: Items of a call: images in pixels, `(width, height)`, or videos, `(width, height, frames)`.
Items = Sequence[tuple[int, ...]]
#: Images alone, of one size, and mixed.
WORKLOADS: Mapping[str, Items] = {
    "224x224": [(224, 224)],
    "448x448": [(448, 448)],
    "1288x728": [(1288, 728)],
    "1932x1092": [(1932, 1092)],
    "8 x 336x336": [(336, 336)] * 8,
    "4 mixed": [(224, 224), (448, 448), (504, 336), (1288, 728)],
}


def missing() -> str:
    """The missing requirement of a measurement, in words; empty if a GPU, torch and vLLM are there.

    It looks for the packages before it imports any.
    """
    if find_spec("torch") is None:
        return "torch is not installed here"
    import torch

    if not torch.cuda.is_available():
        return "torch finds none here"
    return "" if find_spec("vllm") else "the installed vLLM that it would run is not there"
