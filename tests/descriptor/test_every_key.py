"""Every key of a descriptor takes effect: another value changes what is made, or is refused at that key.

The walk follows the schema's own types, so that a key that is added tomorrow is asked for tomorrow. What is looked at
is the text of all protocol methods for every generation, and where that stays the same, the plan for real trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Any

import pytest
from changed_ports import UNSHIPPED, document_of, port_of, put, text_of

from scaffold.descriptor import AnyPort, load_descriptor_text, shipped_names
from scaffold.descriptor import schema as types
from scaffold.descriptor.port import PORTS, TilesPort
from scaffold.descriptor.source import MappingNode, SequenceNode, parse_source
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.plan import plan_changes
from scaffold.plan.entries import plan_docs, plan_examples, plan_tests
from scaffold.plan.methods import refusal, render_methods
from scaffold.plan.views import TreeFacts
from scaffold.protocol import (
    GENERATIONS,
    SourceTree,
    find_docs_table,
    find_example_list,
    find_test_registry,
    known_profile,
    read_protocol,
)
from scaffold.workflow import choose_recipe

pytestmark = pytest.mark.trees

#: A release with the pristine tower or class, for what only a plan shows.
PRISTINE = {"ernie45_vl": "0.22.0"}
FACTS = (TreeFacts(), TreeFacts(has_input_dtype=True, attention_fills_zeros=True))
#: Tables whose names only tell entries apart. (A pull request's description shows those of `attention`.)
LABELS = (("attention",),)
#: Sections that declare names: what is wrong about another name may stand where the old one is used.
DECLARING = ("helpers", "buffers")
Path = tuple[str | int, ...]


# --- other values -----------------------------------------------------------------------------------------------------


def others(kind: Any, value: Any, where: Path) -> Iterator[tuple[Path, Any]]:
    """Other values of a type than `value`, each with the place at which to put it."""
    if isinstance(kind, types.Section):
        yield from _others_of_section(kind.cls, value, where)
    elif isinstance(kind, types.Table):
        for name in value:
            yield from others(kind.value, value[name], (*where, name))
            rest = {key: item for key, item in value.items() if key != name}
            if len(rest) >= kind.minimum:
                yield where, rest
            if kind.options is None and where not in LABELS:
                yield where, {f"{key}_x" if key == name else key: item for key, item in value.items()}
        if kind.options is None:
            yield where, {**value, "added_x": sample(kind.value)}
    elif isinstance(kind, types.Listing):
        if not isinstance(value, list):
            yield from others(kind.item, value, where)
            return
        if kind.nested and [type(item) for item in value] == [list]:
            yield from others(kind, value[0], (*where, 0))
            yield where, value[0]
            return
        if kind.nested:
            yield where, [value]
        for index, item in enumerate(value):
            yield from others(kind.item, item, (*where, index))
        if len(value) > kind.minimum:
            yield where, value[:-1]
        if len(value) < kind.maximum:
            yield where, [*value, sample(kind.item)]
    elif isinstance(kind, types.Shape):
        shape = kind.mapping if isinstance(value, dict) else kind.sequence if isinstance(value, list) else kind.scalar
        yield from others(shape, value, where)
    elif isinstance(kind, types.Choice):
        yield from ((where, option) for option in kind.options if option != value)
    elif isinstance(kind, types.Formula):
        yield where, f"not ({value})" if kind.wants == "bool" else f"({value}) + 1"
    elif isinstance(kind, (types.CallText, types.AttributePath)):
        yield where, value.replace("self.", "self.other.", 1)
    elif isinstance(kind, types.Flag):
        yield where, not value
    elif isinstance(kind, types.FlagOrText):
        yield from ((where, other) for other in (True, False, "another reason") if other != value)
    elif isinstance(kind, (types.Integer, types.Version)):
        yield where, value + 1
    elif isinstance(kind, types.Free):
        yield where, _other_data(value)
    else:  # names, modules, text and patterns
        yield where, f"{value}x"


def _others_of_section(cls: type[types.Record], value: dict[str, Any], where: Path) -> Iterator[tuple[Path, Any]]:
    for key, declared in cls.by_key.items():
        if key in value:
            yield from others(declared.type, value[key], (*where, key))
        else:
            yield (*where, key), sample(declared.type)


def _other_data(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return [*value, 1]
    return {**value, "added_x": 1} if isinstance(value, dict) else f"{value}x"


def sample(kind: Any) -> Any:
    """Some value of a type, for a key that a descriptor leaves out."""
    if isinstance(kind, types.Section):
        keys = kind.cls.by_key.items()
        # A section that needs no key says nothing without one.
        given = {key: declared for key, declared in keys if declared.required} or dict(list(keys)[:1])
        return {key: sample(declared.type) for key, declared in given.items()}
    if isinstance(kind, types.Table):
        name = next(iter(kind.options)) if kind.options else "added_x"
        return {name: sample(kind.value)}
    if isinstance(kind, types.Listing):
        return [sample(kind.item)] * max(kind.minimum, 1)
    if isinstance(kind, types.Shape):
        return sample(kind.scalar or kind.sequence or kind.mapping)
    if isinstance(kind, types.Choice):
        return list(kind.options)[-1]
    if isinstance(kind, types.Formula):
        return "not self.added_x" if kind.wants == "bool" else "17"
    if isinstance(kind, types.CallText):
        names = {"packed": "pixels, metadata", "eager": "pixels, sizes", "post": "output, sizes"}
        return f"self.added_x({names.get(kind.scope, 'pixels')})"
    if isinstance(kind, types.AttributePath):
        return "self.added_x.y"
    if isinstance(kind, types.Pattern):
        return "org/name" if "model" in kind.what else "added_x"
    plain = {types.Flag: True, types.FlagOrText: True, types.Integer: 7, types.Version: 1, types.Free: 7}
    return plain.get(type(kind), "added_x")


# --- what they change -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    model: str
    where: Path
    document: str

    @property
    def port(self) -> AnyPort:
        return load_descriptor_text(self.document, f"{self.model}.yaml")


def cases(model: str) -> Iterator[Case]:
    data = document_of(model)
    cls = PORTS[data["layout"]]
    for where, value in others(types.Section(cls), data, ()):
        yield Case(model, where, text_of(put(data, where, value)))


def rendered(port: AnyPort, trees: list[SourceTree]) -> Iterator[object]:
    """What every generation's templates make of a port, the newest's first, its entries in trees that have none of its
    model, and how the numerical proof builds it."""
    yield choose_recipe(port)
    for generation in reversed(GENERATIONS):
        profile = known_profile(generation)
        problem = refusal(port, profile.dialect)
        yield from [problem.code] if problem else (render_methods(port, profile, facts) for facts in FACTS)
    for tree in trees:
        registry, table, examples = find_test_registry(tree), find_docs_table(tree), find_example_list(tree)
        yield plan_tests(port, replace(registry, entries=(), functions={})) if registry else None
        yield plan_docs(port, replace(table, rows=())) if table else None
        yield plan_examples(port, examples) if examples else None


def planned(port: AnyPort, tree: SourceTree) -> object:
    """The edits of a plan and what it says; of a refused one its codes and places."""
    try:
        plan = plan_changes(port, tree, read_protocol(tree), replace=True)
    except DiagnosticError as error:
        return [(problem.code, problem.message) for problem in error.diagnostics]
    return [
        [(file.path, file.edits, file.source) for file in plan.files],
        [note.message for note in plan.notes],
        plan.facts,
    ]


def complains_at(case: Case, problems: Iterable[Diagnostic]) -> bool:
    """Whether a diagnostic stands at the key that was changed or at what it holds.

    Where an entry of a table was added, renamed or taken away, it may stand where that entry is used or missing; of
    another layout, at what does not belong to it.
    """
    node: Any = parse_source(case.document, f"{case.model}.yaml")[0]
    first, last = 1, case.document.count("\n") + 1
    for step in case.where:
        if isinstance(node, SequenceNode):
            break  # a list is judged as a whole
        entry = next(entry for entry in node.entries if entry.key.value == str(step))
        first, last, node = entry.key.span.line, entry.value.span.end_line, entry.value
    if isinstance(node, MappingNode) or case.where[0] in ("layout", *DECLARING):
        first, last = 1, case.document.count("\n") + 1
    return any(problem.span is not None and first <= problem.span.line <= last for problem in problems)


MODELS = (*shipped_names(), *UNSHIPPED)
#: Each key of each layout is in one of these.
COVER = (
    "qwen2_5_vl", "gemma4_mm", "step3_vl", "mllama4", "deepseek_ocr", "deepseek_v41", "paligemma",
    "internvl", "minicpmv4_6", "ernie45_vl", "cohere_compass", "kimi_k25", "minimax_m3", "mistral3", "qwen3_asr",
    "keye", "moondream3",
)  # fmt: skip


def declared(cls: Any = types.Record) -> set[str]:
    """The keys of all sections, without the names that tables hold."""
    return set(getattr(cls, "by_key", ())).union(*(declared(one) for one in cls.__subclasses__()))


def keys_of(model: str) -> set[Path]:
    data, known = document_of(model), declared()
    found = others(types.Section(PORTS[data["layout"]]), data, ())
    return {(data["layout"], *(step for step in where if step in known)) for where, _ in found}


def test_the_sample_has_each_key_of_each_layout():
    sample = set().union(*map(keys_of, COVER))
    assert {model: keys_of(model) - sample for model in MODELS if keys_of(model) - sample} == {}
    assert len(sample) > 300


@pytest.mark.parametrize(
    "model", [model if model in COVER else pytest.param(model, marks=pytest.mark.slow) for model in MODELS]
)
def test_every_key_takes_effect_or_is_refused(model, release_tree):
    port = load_descriptor_text(text_of(document_of(model)), f"{model}.yaml")
    trees = [release_tree(PRISTINE.get(model, "0.20.0")), release_tree("0.33.0")]
    before = list(rendered(port, trees))
    plans = [cache(lambda tree=tree: planned(port, tree)) for tree in trees]
    silent = []
    number = 0
    for case in cases(model):
        number += 1
        try:
            changed = case.port
        except DiagnosticError as error:
            if not complains_at(case, error.diagnostics):
                silent.append((case.where, [problem.message for problem in error.diagnostics]))
            continue
        # The first difference is enough.
        differs = any(now != then for now, then in zip_longest(rendered(changed, trees), before))
        if differs or complains_at(case, changed.warnings):
            continue
        if all(planned(changed, tree) == plan() for tree, plan in zip(trees, plans, strict=True)):
            silent.append((case.where, "nothing changes and nothing is said"))
    assert not silent, "\n".join(f"{'.'.join(map(str, where))}: {what}" for where, what in silent)
    assert number > 50


def test_a_key_that_no_template_reads_is_found(monkeypatch):
    """The gate itself can fail: a key that the schema accepts and nothing reads is reported."""

    class Deaf(TilesPort):
        unheard: str = types.declare(types.Name(), "what nothing reads", default="x")

    Deaf.by_key["unheard"] = Deaf.by_name["unheard"]
    data = document_of("internvl")
    found = [(where, value) for where, value in others(types.Section(Deaf), data, ()) if "unheard" in where]

    assert found == [(("unheard",), "added_x")]
    monkeypatch.setitem(PORTS, "tiles", Deaf)
    case = Case("internvl", ("unheard",), text_of({**data, "unheard": "added_x"}))
    assert [*rendered(case.port, [])] == [*rendered(port_of("internvl"), [])]
