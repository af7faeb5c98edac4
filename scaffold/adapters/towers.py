"""What is known of the towers in the releases of each generation, so that adapters of packed models need no tree.

An adapter cannot change the release's tower. It can use one that is split already, in every release of the generation;
what else the generated methods have to know of a tree is recorded where all releases agree. `towers.json` is made by
`python -m scaffold.adapters.towers`, a command for maintainers that reads every stable release, and holds facts about
shipped descriptors only: one that asks something else of its tower has another hash and gets no answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaffold.adapters.header import spec_hash

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec
    from scaffold.plan.methods import TreeFacts
    from scaffold.protocol import Generation, SourceTree

_FILE = Path(__file__).with_name("towers.json")


@dataclass(frozen=True)
class TowerAnswer:
    """What is known for one descriptor and generation: facts, or the reason why there is no adapter."""

    facts: TreeFacts | None
    reason: str | None


def known_tower(spec: AdapterSpec, generation: Generation) -> TowerAnswer:
    """What was recorded for the descriptor. A model without a tower to split needs nothing recorded."""
    from scaffold.plan.methods import TreeFacts

    if spec.split is None and spec.gate is None:
        return TowerAnswer(TreeFacts(), None)
    record = _records().get(spec.name)
    if record is None or record["asks"] != demands(spec):
        return TowerAnswer(None, "whether its tower is split is known of a tree only")
    answer = record["generations"].get(generation.name)
    if answer is None:
        return TowerAnswer(None, "whether its tower is split was not recorded")
    return TowerAnswer(None, answer) if isinstance(answer, str) else TowerAnswer(TreeFacts(**answer), None)


def demands(spec: AdapterSpec) -> str:
    """A hash of what a descriptor asks of its tower and model class; the rest of it may change."""
    return spec_hash(
        (
            spec.module,
            spec.class_name,
            spec.tower,
            spec.split,
            spec.metadata,
            spec.attention,
            spec.buffers,
            spec.gate,
            spec.pixels,
            spec.budget.frames_info,
        )
    )


def record_towers(specs: Sequence[AdapterSpec], trees: Mapping[str, SourceTree]) -> dict[str, Any]:
    """The content of `towers.json` from these releases (version to tree), which must cover each generation."""
    from scaffold.protocol import GENERATIONS, read_protocol

    generations = {version: read_protocol(tree).generation for version, tree in trees.items()}
    records: dict[str, Any] = {}
    for spec in sorted(specs, key=lambda spec: spec.name):
        if spec.split is None and spec.gate is None:
            continue
        answers: dict[str, Any] = {}
        for generation in GENERATIONS:
            releases = {version: trees[version] for version, owner in generations.items() if owner == generation}
            if releases:
                answers[generation.name] = _agree({version: _look(spec, tree) for version, tree in releases.items()})
        records[spec.name] = {"asks": demands(spec), "generations": answers}
    return records


def encode_records(records: Mapping[str, Any]) -> str:
    return json.dumps(records, indent=1) + "\n"


def _look(spec: AdapterSpec, tree: SourceTree) -> TreeFacts | str:
    """The facts of one release, or why its tower cannot be used as it is."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.plan.towers import plan_tower
    from scaffold.protocol import find_model

    try:
        plan = plan_tower(spec, tree, find_model(tree, spec.module, spec.class_name))
    except DiagnosticError as error:
        return f"the release does not fit ({', '.join(sorted({item.code for item in error.diagnostics}))})"
    if plan.split is not None:
        return "the tower has to be split first"
    return "the model class has to be changed first" if plan.edits else plan.facts


def _agree(found: Mapping[str, TreeFacts | str]) -> dict[str, Any] | str:
    """What holds in all releases of a generation."""
    refused = {version: answer for version, answer in found.items() if isinstance(answer, str)}
    if refused:
        reasons = sorted(set(refused.values()))
        where = "" if len(refused) == len(found) else f" in {', '.join(refused)}"
        return f"{' and '.join(reasons)}{where}, which only a port into a tree can do (--vllm)"
    facts = [asdict(answer) for answer in found.values() if not isinstance(answer, str)]
    if len({fact["has_gate"] for fact in facts}) > 1:
        return "its releases differ in what the gate asks about"
    return {
        # None and False are the answers that are right for either: ask at run time, and do not rely on it.
        "has_input_dtype": None if any(fact["has_input_dtype"] for fact in facts) else False,
        "has_gate": facts[0]["has_gate"],
        "attention_fills_zeros": all(fact["attention_fills_zeros"] for fact in facts),
    }


@cache
def _records() -> dict[str, Any]:
    records: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return records


def _main(releases: list[str]) -> int:
    from packaging.version import Version

    from scaffold.descriptor.load import shipped_names
    from scaffold.protocol import GENERATIONS, resolve_target, stable_releases
    from scaffold.workflow import load_spec

    first, last = Version(GENERATIONS[0].first), Version(GENERATIONS[-1].last)
    wanted = releases or [version for version in stable_releases() if first <= Version(version) <= last]
    trees = {version: resolve_target(version).tree for version in wanted}
    text = encode_records(record_towers([load_spec(name) for name in shipped_names()], trees))
    _FILE.write_text(text, "utf-8")
    print(_FILE)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
