"""Which generations a descriptor can be spoken in without a tree, and why not in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec
    from scaffold.protocol import Generation


def refusal(spec: AdapterSpec, generation: Generation) -> str | None:
    """The reason why there is no stand-alone adapter, None when there is one."""
    if spec.paths:
        return "models with several paths are ported into a tree only (--vllm)"
    if spec.layout != "tiles":
        return "the tower has to be split, which only a port into a tree can do (--vllm)"
    return None
