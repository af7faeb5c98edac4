"""Facts about the towers in the releases of each generation, so that adapters need no tree.

An adapter carries none of vLLM's statements. If some release of the generation has a pristine tower, the adapter splits
it when a model is adapted (`scaffold.tower.split_at_load`). It also keeps a configuration then that the class does not
keep. Other facts about a tree that the generated methods need are recorded where all releases agree.

`python -m scaffold.adapters.towers`, a command for maintainers that reads every stable release, makes `towers.json`.
The file holds facts about shipped descriptors only: one that asks something else of its tower has another hash and gets
no answer. Its adapter reads the tower when a model is adapted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaffold.adapters.header import spec_hash

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.plan.views import TreeFacts
    from scaffold.protocol import Generation, SourceTree

_NOWHERE = "its releases have nothing of the model that a graph could hold"
_FILE = Path(__file__).with_name("towers.json")


@dataclass(frozen=True)
class TowerAnswer:
    """The answer for one descriptor and generation: facts, or the reason why there is no adapter.

    `splits`: some release has a pristine tower. `keeps_model_config`: some release's class does not. `unread`: nothing
    is recorded, so that the adapter reads the tower when a model is adapted, and its methods are right for any answer.
    """

    facts: TreeFacts | None
    reason: str | None = None
    splits: bool = False
    keeps_model_config: bool = False
    unread: bool = False


def no_adapter(port: AnyPort, generation: Generation) -> str | None:
    """The reason why a descriptor cannot be spoken in a generation without a tree, None when there is an adapter."""
    from scaffold.plan.methods import refusal
    from scaffold.protocol import known_profile

    if refusal(port, known_profile(generation).dialect) is not None:
        return "its layout has no form in this protocol"
    return known_tower(port, generation).reason


def known_tower(port: AnyPort, generation: Generation) -> TowerAnswer:
    """The recorded answer for the descriptor. Only a gate needs one: releases may lack what it asks about."""
    from scaffold.plan.views import TreeFacts

    if not port.tower and port.gate is None:
        nowhere = {generation.first, generation.last} <= set(unfit_releases(port, generation))
        return TowerAnswer(None, _NOWHERE) if nowhere else TowerAnswer(TreeFacts())
    record = _records().get(port.name)
    if record is None or record["asks"] != demands(port):
        if port.gate is not None:
            return TowerAnswer(
                None, "an adapter is made without a tree, and what `gates` asks about is known of shipped models only"
            )
        return TowerAnswer(TreeFacts(), splits=True, keeps_model_config=port.frames_info is not None, unread=True)
    answer = record["generations"].get(generation.name)
    if answer is None:
        return TowerAnswer(None, "nothing is recorded of its tower in this generation")
    if isinstance(answer, str):
        return TowerAnswer(None, answer)
    return TowerAnswer(TreeFacts(**answer["facts"]), None, answer["splits"], answer["keeps_model_config"])


def unfit_releases(port: AnyPort, generation: Generation) -> tuple[str, ...]:
    """Releases of a generation with nothing for a graph: an encoder that takes no offsets, or one that waits."""
    record = _records().get(port.name)
    if record is None or record["asks"] != demands(port):
        return ()
    return tuple(record.get("unfit", {}).get(generation.name, ()))


def demands(port: AnyPort) -> str:
    """A hash of what a descriptor asks of its tower and model class; the rest of it may change."""
    return spec_hash([port.module, port.class_name, port.gate, *port.asks])


def record_towers(ports: Sequence[AnyPort], trees: Mapping[str, SourceTree]) -> dict[str, Any]:
    """The content of `towers.json` from these releases (version to tree), which must cover each served generation."""
    from scaffold.plan.methods import refusal
    from scaffold.protocol import SERVED, known_profile, read_protocol

    generations = {version: read_protocol(tree).generation for version, tree in trees.items()}
    records: dict[str, Any] = {}
    for port in sorted(ports, key=lambda port: port.name):
        if port.asks and not port.tower and port.gate is None:
            unfit: dict[str, list[str]] = {}
            for version, generation in generations.items():
                if refusal(port, known_profile(generation).dialect) is None and not _fits(port, trees[version]):
                    unfit.setdefault(generation.name, []).append(version)
            records[port.name] = {"asks": demands(port), "unfit": unfit}
        if not port.tower and port.gate is None:
            continue
        answers: dict[str, Any] = {}
        for generation in SERVED:
            releases = {version: trees[version] for version, owner in generations.items() if owner == generation}
            if releases:
                answers[generation.name] = _agree({version: _look(port, tree) for version, tree in releases.items()})
        records[port.name] = {"asks": demands(port), "generations": answers}
    return records


def encode_records(records: Mapping[str, Any]) -> str:
    return json.dumps(records, indent=1) + "\n"


def _fits(port: AnyPort, tree: SourceTree) -> bool:
    """Whether the model's code of one release has what a port of rows or crops captures."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.plan.towers import plan_tower
    from scaffold.protocol import find_model

    try:
        plan_tower(port, tree, find_model(tree, port.module, port.class_name))
    except DiagnosticError:
        return False
    return True


def _look(port: AnyPort, tree: SourceTree) -> TowerAnswer:
    """The answer of one release."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.edit import AddImport, ReplaceMethod
    from scaffold.plan.towers import plan_tower
    from scaffold.protocol import find_model

    try:
        plan = plan_tower(port, tree, find_model(tree, port.module, port.class_name))
    except DiagnosticError as error:
        codes = ", ".join(sorted({item.code for item in error.diagnostics}))
        return TowerAnswer(None, f"the release does not fit ({codes})")
    if plan.way is not None and plan.way.heirs:
        return TowerAnswer(None, "its methods go into a class whose subclasses vLLM makes")
    split = {(edit.class_name, edit.replaces) for edit in plan.split.edits} if plan.split else set()
    # An adapter finds the way to a cut's encoder when the model is made.
    every = [edit for edits in plan.edits.values() for edit in edits] if plan.way is None else []
    edits = [edit for edit in every if not isinstance(edit, AddImport)]  # a split at load gets its names itself
    other = {(edit.class_name, edit.name) for edit in edits if isinstance(edit, ReplaceMethod)} - split
    known = len(edits) == len(split) + len(other) and other <= {(port.class_name, "__init__")}
    assert known, "an edit of the tree that an adapter knows nothing of"
    return TowerAnswer(plan.facts, splits=bool(split), keeps_model_config=bool(other))


def _agree(found: Mapping[str, TowerAnswer]) -> dict[str, Any] | str:
    """The record that holds in all releases of a generation, or the reason why there is none."""
    refused = {version: answer.reason for version, answer in found.items() if answer.reason is not None}
    if refused:
        reasons = " and ".join(sorted(set(refused.values())))
        where = "" if len(refused) == len(found) else f" in {', '.join(refused)}"
        return f"{reasons}{where}, which only a port into a tree can do (--vllm)"
    facts = [answer.facts for answer in found.values() if answer.facts is not None]
    if len({fact.has_gate for fact in facts}) > 1:
        return "its releases differ in what the gate asks about"
    if len({fact.has_vllm_config for fact in facts}) > 1:
        return "its releases differ in where the class keeps its configuration"
    return {
        "facts": {
            # None and False are the answers that are right for either: ask at run time, and do not rely on it.
            "has_input_dtype": None if any(fact.has_input_dtype for fact in facts) else False,
            "has_gate": facts[0].has_gate,
            "has_vllm_config": facts[0].has_vllm_config,
            "attention_fills_zeros": all(fact.attention_fills_zeros for fact in facts),
            "has_lengths": None if any(fact.has_lengths for fact in facts) else False,
            "normalised": _either({fact.normalised for fact in facts}),
        },
        "splits": any(answer.splits for answer in found.values()),
        "keeps_model_config": any(answer.keeps_model_config for answer in found.values()),
    }


def _either(made: set[str]) -> str:
    """An expression for the pixels that is right in all releases; where they differ, it asks for the module."""
    calls = made - {"{pixels}"}
    assert len(calls) < 2, "releases of one generation normalise pixels in several ways"
    if len(made) == 1:
        return next(iter(made))
    (call,) = calls
    name = call.partition("(")[0].removeprefix("self.")
    return f'({call} if hasattr(self, "{name}") else {{pixels}})'


@cache
def _records() -> dict[str, Any]:
    records: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return records


def _main(releases: list[str]) -> int:
    from packaging.version import Version

    from scaffold.descriptor.load import shipped_names
    from scaffold.protocol import SERVED, resolve_target, stable_releases
    from scaffold.workflow import load_port

    first, last = Version(SERVED[0].first), Version(SERVED[-1].last)
    wanted = releases or [version for version in stable_releases() if first <= Version(version) <= last]
    trees = {version: resolve_target(version).tree for version in wanted}
    text = encode_records(record_towers([load_port(name) for name in shipped_names()], trees))
    _FILE.write_text(text, "utf-8")
    print(_FILE)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
