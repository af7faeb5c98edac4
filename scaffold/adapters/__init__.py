"""Stand-alone adapters: what `generated/` holds, whether it still is what the descriptors say, and how it is repaired.

One adapter is a subclass of a release's own model class that implements the encoder CUDA graph protocol of one known
generation. Nothing here needs a vLLM tree. Planning reads the folder; only `publish_regeneration` writes into it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffold.adapters.manifest import Manifest, read_manifest
    from scaffold.adapters.outputs import GeneratedFile, Source, render_outputs
    from scaffold.adapters.proof import prove_adapter
    from scaffold.adapters.regenerate import Regeneration, plan_regeneration, publish_regeneration

_HOMES = {
    "manifest": ("Manifest", "read_manifest"),
    "outputs": ("GeneratedFile", "Source", "render_outputs"),
    "proof": ("prove_adapter",),
    "regenerate": ("Regeneration", "plan_regeneration", "publish_regeneration"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "GeneratedFile",
    "Manifest",
    "Regeneration",
    "Source",
    "plan_regeneration",
    "prove_adapter",
    "publish_regeneration",
    "read_manifest",
    "render_outputs",
]


def __getattr__(name: str) -> Any:
    try:
        module = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)
