"""Records a tree's protocol among the known generations: `python -m scaffold.protocol.record TREE [OLD=NEW ...]`.

A command for maintainers, run on a release's tree:

* If its protocol is known, the command widens the generation's range of releases to include the tree's release.
* If it is new, the command writes a file named after the release, and you must check a generator for its dialect. Name
a
  method that got another name as OLD=NEW; later generations inherit that. See `docs/new-generation.md`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.dialect import inspect_manager
from scaffold.protocol.generations import KNOWN, nearest_generation
from scaffold.protocol.profile import read_source
from scaffold.protocol.signatures import ProtocolShape
from scaffold.protocol.target import resolve_target
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import dotted

#: The facts that the file has on several lines.
_BROKEN = {"", "shape", "methods", "dataclasses", "dataclasses[]", "fields"}


def record_generation(tree: SourceTree, known: Path = KNOWN, *, renamed: Mapping[str, str] | None = None) -> Path:
    """Write or widen the JSON file for the protocol of `tree`. Returns its path. The tree must tell its release.

    `renamed` maps a method's previous name to the one in this tree. Raises ValueError when a new name is not there, or
    an old one still is.
    """
    assert tree.release is not None, "a generation is named after a release; this tree does not say its version"
    source = read_source(tree)
    shape = source.shape
    fingerprint = shape.fingerprint()
    release = Version(tree.release)
    for path in sorted(known.glob("v*.json")):
        facts = json.loads(path.read_text("utf-8"))
        if facts["fingerprint"] == fingerprint:
            facts["first"] = min(facts["first"], tree.release, key=Version)
            facts["last"] = max(facts["last"], tree.release, key=Version)
            break
    else:
        name = f"v{release.major}_{release.minor}"
        path = known / f"{name}.json"
        if path.exists():
            path = known / f"{name}_{release.micro}.json"
        facts = {
            "name": path.stem,
            "first": tree.release,
            "last": tree.release,
            "fingerprint": fingerprint,
            **_renamed(shape, renamed or {}),
            "shape": shape.canonical(),
        }
    if facts["last"] == tree.release or "manager" not in facts:  # the newest release speaks for its generation
        manager = inspect_manager(tree.parse(source.manager), facts.get("renamed", {}))
        facts["modules"] = {
            "protocol": dotted(source.interfaces),
            "definitions": dotted(source.defs),
            "manager": dotted(source.manager),
        }
        facts["manager"] = {"calls": sorted(manager.calls), "slices_eager": manager.slices_eager}
    path.write_text(encode_facts(facts), "utf-8")
    return path


def encode_facts(facts: Mapping[str, Any]) -> str:
    """The JSON of one generation, with one method or field per line, so that a review sees the changes."""
    return _encode(facts, "", "") + "\n"


def _encode(value: Any, key: str, indent: str) -> str:
    if key not in _BROKEN or not value:
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name)}: {_encode(item, name, inner)}" for name, item in value.items()]
    else:
        parts = [f"{inner}{_encode(item, f'{key}[]', inner)}" for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, ",\n".join(parts), indent + closing])


def _renamed(shape: ProtocolShape, asked: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """`renamed` of a new generation: the names of the nearest one that still hold, and the user's."""
    nearest, _ = nearest_generation(shape)
    names = {old: new for old, new in nearest.renamed.items() if shape.method(new) is not None}
    oldest = {new: old for old, new in nearest.renamed.items()}
    for old, new in asked.items():
        if nearest.shape.method(old) is None or shape.method(old) is not None or shape.method(new) is None:
            raise ValueError(f"{old}={new}: {nearest.name} must have the first one, the tree only the second one")
        names[oldest.get(old, old)] = new
    return {"renamed": names} if names else {}


def _main(arguments: list[str]) -> int:
    renamed = dict(pair.split("=", 1) for pair in arguments[1:] if pair.count("=") == 1)
    if not arguments or len(renamed) != len(arguments) - 1:
        print("usage: python -m scaffold.protocol.record TREE_OR_RELEASE [OLD=NEW ...]", file=sys.stderr)
        return 2
    try:
        print(record_generation(resolve_target(arguments[0]).tree, renamed=renamed))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except DiagnosticError as error:
        print(error, file=sys.stderr)
        return int(error.exit)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
