"""YAML text -> positions -> a port: typed, frozen, complete, one closed type for each layout.

`load_descriptor` reports everything that is wrong at once. Nothing here imports pydantic, libcst or torch: `validate`
has to feel instant.
"""

from scaffold.descriptor.load import (
    EDITOR_LINE,
    load_descriptor,
    load_descriptor_text,
    schema_file,
    shipped_names,
)
from scaffold.descriptor.port import (
    AnyPort,
    CropsPort,
    CutPort,
    PackedPort,
    PathsPort,
    Port,
    ReentryPort,
    RowsPort,
    SizedPort,
    TilesPort,
    json_schema,
)

__all__ = [
    "EDITOR_LINE",
    "AnyPort",
    "CropsPort",
    "CutPort",
    "PackedPort",
    "PathsPort",
    "Port",
    "ReentryPort",
    "RowsPort",
    "SizedPort",
    "TilesPort",
    "json_schema",
    "load_descriptor",
    "load_descriptor_text",
    "schema_file",
    "shipped_names",
]
