"""`MANIFEST.json`: what a folder is generated from. The folder's files follow from that.

The file travels with the folder, so that nothing in it is trusted: anything that this tool would not write makes the
whole file useless (VCG534).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from scaffold.diagnostics import DiagnosticError, Span
from scaffold.files import read_regular

NAME = "MANIFEST.json"
SCHEMA = 2
#: Stands for every descriptor that comes with the tool, now and later.
SHIPPED = "shipped"
_MAX_BYTES = 4_000_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ADAPTER = re.compile(r"vitcg_adapters/\w+/\w+\.py", re.ASCII)


@dataclass(frozen=True, slots=True)
class Manifest:
    """`descriptors` is what the folder is generated from: shipped names, paths relative to it, or `shipped` for all.

    `built` has the SHA-256 of each file of an older generation, by path, where those are not kept but built from the
    descriptors. None where the folder keeps them, which is so unless somebody writes `"built": {}` into the manifest.
    """

    descriptors: tuple[str, ...] = ()
    built: Mapping[str, str] | None = None

    def encode(self) -> bytes:
        descriptors = json.dumps(sorted(self.descriptors), ensure_ascii=True)
        built = "" if self.built is None else f',\n"built": {json.dumps(self.built, indent=0, sort_keys=True)}'
        return f'{{\n"schema": {SCHEMA},\n"descriptors": {descriptors}{built}\n}}\n'.encode()


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of `folder`, None when there is none. Raises VCG534 when it cannot be trusted."""
    path = folder / NAME
    if path.is_symlink():
        raise _untrusted(path, "it is a symbolic link")
    try:
        data = read_regular(path, limit=_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _untrusted(path, error.strerror or str(error)) from None
    try:
        return _decode(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise _untrusted(path, str(error) or type(error).__name__) from None


def _decode(data: bytes) -> Manifest:
    facts = json.loads(data)
    if not isinstance(facts, dict) or "schema" not in facts:
        raise ValueError("it must be an object with schema and descriptors")
    if facts["schema"] != SCHEMA:
        raise ValueError(f"its schema is {facts['schema']!r}, this version reads {SCHEMA}")
    if set(facts) - {"built"} != {"schema", "descriptors"}:
        raise ValueError("it must be an object with schema and descriptors")
    descriptors = facts["descriptors"]
    if not isinstance(descriptors, list) or not all(_is_reference(item) for item in descriptors):
        raise ValueError("descriptors must be shipped names or relative paths of YAML files")
    built = facts.get("built")
    if "built" in facts and not (isinstance(built, dict) and all(map(_is_built, built.items()))):
        raise ValueError("built must have the SHA-256 of each adapter, by path")
    return Manifest(tuple(descriptors), built)


def _is_built(item: tuple[str, Any]) -> bool:
    path, digest = item
    return bool(_ADAPTER.fullmatch(path) and isinstance(digest, str) and _DIGEST.fullmatch(digest))


def _is_reference(value: Any) -> bool:
    """A shipped name or a relative path of a YAML file. It may lead out of the folder: descriptors live elsewhere."""
    if not isinstance(value, str) or not value.isprintable():
        return False
    return value.isidentifier() or (
        value.endswith((".yaml", ".yml")) and not PurePosixPath(value).is_absolute() and "\\" not in value
    )


def _untrusted(path: Path, why: str) -> DiagnosticError:
    return DiagnosticError.of(
        "VCG534",
        f"{path} cannot be trusted: {why}",
        span=Span(path.as_posix(), 1, 1, 1, 1),
        help=f"restore it (git checkout -- {path.as_posix()}), or delete it and run "
        "`vitcg-scaffold new` with the names of all its descriptors",
    )
