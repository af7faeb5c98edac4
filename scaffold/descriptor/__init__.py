"""YAML text -> positions -> a typed, frozen descriptor -> `AdapterSpec`.

`load_descriptor` reports everything that is wrong at once; `build_spec` derives what a descriptor need not say. Nothing
here imports pydantic, libcst or torch, and `spec` is imported on first use: `validate` has to feel instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scaffold.descriptor.load import json_schema, load_descriptor, load_descriptor_text, shipped_names
from scaffold.descriptor.model import Descriptor

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec, build_spec

__all__ = [
    "AdapterSpec",
    "Descriptor",
    "build_spec",
    "json_schema",
    "load_descriptor",
    "load_descriptor_text",
    "shipped_names",
]


def __getattr__(name: str) -> Any:
    if name in ("AdapterSpec", "build_spec"):
        from scaffold.descriptor import spec

        return getattr(spec, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
