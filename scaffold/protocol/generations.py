"""The known generations of the protocol, and the match of a tree's protocol with them.

Each generation is one JSON file in `known/`. It has names, kinds, annotations and defaults, the modules to import them
from, and the facts that only the manager's code tells; nothing else. `scaffold.protocol.record` makes these files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.dialect import ManagerFacts
from scaffold.protocol.signatures import ProtocolShape, compare_shapes
from scaffold.protocol.tree import SourceTree

#: The folder of the recorded generations.
KNOWN = Path(__file__).parent / "known"


@dataclass(frozen=True, slots=True)
class Generation:
    """One form of the protocol. The recorded stable releases from `first` to `last`, both included, have it."""

    name: str
    first: str
    last: str
    fingerprint: str

    @property
    def shape(self) -> ProtocolShape:
        """Its recorded signatures."""
        return ProtocolShape.from_canonical(_load(self.name)["shape"])

    @property
    def manager(self) -> ManagerFacts:
        """The facts from the manager's code in the newest recorded release."""
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

    def __str__(self) -> str:
        return self.name


@cache
def _load(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((KNOWN / f"{name}.json").read_text("utf-8"))
    return facts


def _read_known() -> tuple[Generation, ...]:
    names = sorted((path.stem for path in KNOWN.glob("v*.json")), key=_order)
    return tuple(
        Generation(facts["name"], facts["first"], facts["last"], facts["fingerprint"]) for facts in map(_load, names)
    )


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.removeprefix("v").split("_"))


#: Oldest first.
GENERATIONS: tuple[Generation, ...] = _read_known()

#: Those that have adapters: the plugin serves their releases. Ports are for all of them.
SERVED: tuple[Generation, ...] = tuple(one for one in GENERATIONS if _order(one.name) >= (0, 23))


def match_generation(shape: ProtocolShape, fingerprint: str, tree: SourceTree, relpath: str, line: int) -> Generation:
    """The generation with this fingerprint. Raises VCG415 with the difference to the nearest one."""
    for generation in GENERATIONS:
        if generation.fingerprint == fingerprint:
            return generation
    nearest, difference = nearest_generation(shape)
    raise DiagnosticError.of(
        "VCG415",
        f"the protocol in this tree (fingerprint {fingerprint}) is none of the known ones; "
        f"the nearest is {nearest.name} ({nearest.first} to {nearest.last}), with {len(difference)} "
        f"difference{'' if len(difference) == 1 else 's'}",
        span=tree.span(relpath, line),
        help=f"use a release from 0.20.0 to {GENERATIONS[-1].last}, or a version of this tool that knows this protocol",
        notes=difference,
    )


def nearest_generation(shape: ProtocolShape) -> tuple[Generation, tuple[str, ...]]:
    """The generation with the fewest differences to `shape` (the newer one of equals), and those differences."""
    compared = [(generation, compare_shapes(generation.shape, shape)) for generation in reversed(GENERATIONS)]
    return min(compared, key=lambda pair: len(pair[1]))
