"""Tells whether this machine can profile. It looks for the packages before it imports any."""

from __future__ import annotations

from importlib.util import find_spec


def missing() -> str | None:
    """The missing requirement of a profile, in words; None if a GPU, torch and vLLM are there."""
    if find_spec("torch") is None:
        return "torch is not installed here"
    import torch

    if not torch.cuda.is_available():
        return "torch finds none here"
    if find_spec("vllm") is None:
        return "the installed vLLM that it would run is not there"
    return None
