"""The generations of the protocol that are known, and how a tree's protocol is matched with them.

Each generation is one JSON file in `known/`: names, kinds, annotations and defaults, where they are imported from, and
what only the manager's code tells; nothing else. They are made by
`python -m scaffold.protocol.generations record TREE [OLD=NEW ...]`, a command for maintainers, run on a release's tree:

* its protocol is already known: the generation's range of releases is widened to include the tree's release;
* it is new: a file named after the release is written, and a generator for its dialect has to be checked. A method that
  it has under another name is named as OLD=NEW; later generations inherit that. See `docs/new-generation.md`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.protocol.dialect import ManagerFacts, inspect_manager
from scaffold.protocol.signatures import ProtocolShape, compare_shapes
from scaffold.protocol.tree import SourceTree

_KNOWN = Path(__file__).parent / "known"


@dataclass(frozen=True, slots=True)
class Generation:
    """One form of the protocol. `first` and `last` are the stable releases, both included, that were seen with it."""

    name: str
    first: str
    last: str
    fingerprint: str

    @property
    def shape(self) -> ProtocolShape:
        """Its signatures, as they were recorded."""
        return ProtocolShape.from_canonical(_load(self.name)["shape"])

    @property
    def manager(self) -> ManagerFacts:
        """What the manager's code told in the newest recorded release."""
        facts = _load(self.name)["manager"]
        return ManagerFacts(frozenset(facts["calls"]), facts["slices_eager"])

    @property
    def renamed(self) -> dict[str, str]:
        """Methods that had another name in earlier generations: the oldest name -> the name in this one."""
        return dict(_load(self.name).get("renamed", {}))

    @property
    def modules(self) -> dict[str, str]:
        """Dotted import names of the modules of the `protocol`, of its `definitions` and of the `manager`."""
        return dict(_load(self.name)["modules"])

    @property
    def constants(self) -> tuple[str, ...]:
        """The names that the definitions module assigns at top level."""
        return tuple(_load(self.name)["constants"])

    def __str__(self) -> str:
        return self.name


@cache
def _load(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((_KNOWN / f"{name}.json").read_text("utf-8"))
    return facts


def _read_known() -> tuple[Generation, ...]:
    names = sorted((path.stem for path in _KNOWN.glob("v*.json")), key=_order)
    return tuple(
        Generation(facts["name"], facts["first"], facts["last"], facts["fingerprint"]) for facts in map(_load, names)
    )


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.removeprefix("v").split("_"))


#: Oldest first.
GENERATIONS: tuple[Generation, ...] = _read_known()


def generation_by_name(name: str) -> Generation:
    """The generation of that name. Raises KeyError."""
    return {generation.name: generation for generation in GENERATIONS}[name]


def match_generation(shape: ProtocolShape, fingerprint: str, tree: SourceTree, relpath: str, line: int) -> Generation:
    """The generation with this fingerprint. Raises VCG415 with the difference to the nearest one."""
    for generation in GENERATIONS:
        if generation.fingerprint == fingerprint:
            return generation
    nearest, difference = nearest_generation(shape)
    raise DiagnosticError(
        Diagnostic(
            "VCG415",
            f"the protocol in this tree (fingerprint {fingerprint}) is none of the known ones; "
            f"the nearest is {nearest.name} ({nearest.first} to {nearest.last}), with {len(difference)} "
            f"difference{'' if len(difference) == 1 else 's'}",
            span=tree.span(relpath, line),
            help="use a release from 0.20.0 to "
            f"{GENERATIONS[-1].last}, or a version of this tool that knows this protocol",
            notes=difference,
        )
    )


def nearest_generation(shape: ProtocolShape) -> tuple[Generation, tuple[str, ...]]:
    """The generation with the fewest differences to `shape` (the newer one of equals), and those differences."""
    compared = [(generation, compare_shapes(generation.shape, shape)) for generation in reversed(GENERATIONS)]
    return min(compared, key=lambda pair: len(pair[1]))


def record_generation(tree: SourceTree, known: Path = _KNOWN, *, renamed: Mapping[str, str] | None = None) -> Path:
    """Write or widen the JSON file for the protocol of `tree`; returns its path. The tree must say its release.

    `renamed` maps the name that a method had so far to the one in this tree. Raises ValueError when it names methods
    that are not there, or one that is still there.
    """
    from packaging.version import Version

    from scaffold.protocol.profile import dotted, read_source

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
        facts["constants"] = list(source.constants)
        facts["manager"] = {"calls": sorted(manager.calls), "slices_eager": manager.slices_eager}
    path.write_text(json.dumps(facts, indent=1, sort_keys=False) + "\n", "utf-8")
    return path


def _renamed(shape: ProtocolShape, asked: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """`renamed` of a new generation: names of the nearest one that still hold, and those that were asked for."""
    nearest, _ = nearest_generation(shape)
    names = {old: new for old, new in nearest.renamed.items() if shape.method(new) is not None}
    oldest = {new: old for old, new in nearest.renamed.items()}
    for old, new in asked.items():
        if nearest.shape.method(old) is None or shape.method(old) is not None or shape.method(new) is None:
            raise ValueError(f"{old}={new}: {nearest.name} must have the first one, the tree only the second one")
        names[oldest.get(old, old)] = new
    return {"renamed": names} if names else {}


def _main(arguments: list[str]) -> int:
    from scaffold.protocol.target import resolve_target

    renamed = dict(pair.split("=", 1) for pair in arguments[2:] if pair.count("=") == 1)
    if len(arguments) < 2 or arguments[0] != "record" or len(renamed) != len(arguments) - 2:
        print("usage: python -m scaffold.protocol.generations record TREE_OR_RELEASE [OLD=NEW ...]", file=sys.stderr)
        return 2
    try:
        print(record_generation(resolve_target(arguments[1]).tree, renamed=renamed))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except DiagnosticError as error:
        print(error, file=sys.stderr)
        return int(error.exit)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
