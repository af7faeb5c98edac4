"""YAML text -> positions -> a typed, frozen descriptor -> `AdapterSpec`.

`load_descriptor` reports everything that is wrong at once; `build_spec` derives what a descriptor need not say. Nothing
here imports pydantic, libcst or torch: `validate` has to feel instant.
"""

from scaffold.descriptor.load import json_schema, load_descriptor, load_descriptor_text, shipped_names
from scaffold.descriptor.model import Descriptor
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
