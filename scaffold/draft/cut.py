"""Drafts the layout `cut`: the encoder's call on units of one shape, and the model's own way to it.

The captured call is the largest one that gets raw pixels and constants of the model, runs an encoder and gives one
tensor. Its way is looked for by `scaffold.cut` as the generator will, so that a draft is one that can be planned.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from scaffold.cut import find_way
from scaffold.descriptor.expressions import parse_call
from scaffold.descriptor.port import MODALITIES
from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.draft.inputs import SAME_SIZES, Beyond, beyond, left_out, read_fields, strip
from scaffold.draft.locate import Located
from scaffold.draft.modules import assigned
from scaffold.draft.objects import Objects
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import Step, Walker, against, constant, is_pixels, parents_of
from scaffold.draft.units import draft_unit
from scaffold.draft.values import Field, Input, Inputs, Made, Op, Place, Value, inputs_of, walk_value
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import assigned_to
from scaffold.tower.source import Program

_ALL = "self.embed_multimodal(**inputs)"
_SHARDS = "supports_encoder_tp_data"
_NOWHERE = Span("<draft>", 1, 1, 1, 1)
#: Around a list of embeddings they change nothing of it.
_AS_LIST = {"tuple", "list", "extend"}
_NOTHING = "no call that runs an encoder on raw pixels was found on the way from `embed_multimodal`"


class NoEncoder(Beyond):
    """Nothing was found that a cut could capture, and nothing that hinders it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The modalities that are served, and what is left out of the model."""

    modalities: tuple[str, ...]
    notes: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class _Modality:
    """`sites` are the calls that may be captured, the largest ones, each with those inside of it."""

    name: str
    pixels: str
    sites: tuple[tuple[Step, ...], ...]

    def has(self, text: str) -> bool:
        return bool(self.steps(text))

    def alike(self, text: str) -> bool:
        """Whether all calls of a text take their units and give their result in the same form."""
        return len({(step.axis, step.parts, step.layers) for step in self.steps(text)}) < 2

    def steps(self, text: str) -> list[Step]:
        return [step for site in self.sites for step in site if step.text == text]


def draft_cut(tree: SourceTree, program: Program, model: Located, sheet: Sheet) -> Cut:
    """Fill in the sections of a cut but `model`, `layout` and `integration`. Raises VCG483 with every reason."""
    fields = read_fields(tree, program, model)
    objects = Objects(program, model.owner)
    walker = Walker(program, model.owner, objects)
    modalities, notes = _modalities(tree, model, walker.root, fields)
    kept, call, more = _captured(tree, model, walker.root, modalities)
    notes += more
    step = kept[0][0].steps(call)[0]
    for modality, entry, place in kept:
        at = f"modalities.{modality.name}"
        sheet.put(f"{at}.pixels", modality.pixels, fields[modality.pixels].place)
        sheet.put(f"{at}.entry", entry, place)
    _fields(tree, sheet, fields, {modality.name for modality, _, _ in kept})
    encoder = next(inner for inner in step.walk() if inner.encoder)
    keys = tuple(modality.pixels for modality, _, _ in kept)
    draft_unit(program, model, objects, walker.trace, keys, encoder, sheet)
    sites = [site.place for modality, _, _ in kept for site in modality.steps(call)]
    sheet.put("forward.call", call, *sites, why=_runs(objects, encoder))
    if step.axis:
        sheet.put("forward.axis", step.axis, step.place, why="a batch axis of 1 before the units")
    if step.parts:
        sheet.put("forward.result", step.parts, step.place, why="what the model uses of the result")
    if step.layers:
        sheet.put("forward.layers", step.layers, step.place, why="what the model takes of the list")
    _hidden_size(program, model, objects, sheet, step)
    _gate(program, model, sheet)
    return Cut(tuple(modality.name for modality, _, _ in kept), tuple(notes))


# --- what is captured -----------------------------------------------------------------------------------------------


def _modalities(
    tree: SourceTree, model: Located, root: Step, fields: dict[str, Field]
) -> tuple[list[_Modality], list[Diagnostic]]:
    """Modalities with calls that may be captured, images first. Raises VCG483 if there is none."""
    sites: dict[str, dict[str, list[tuple[Step, ...]]]] = {}
    for site in _sites(root):
        key = _pixels(site[0], fields)
        name = (fields[key].modality if key in fields else None) or ""
        if name in MODALITIES:
            sites.setdefault(name, {}).setdefault(key, []).append(site)
    found: list[_Modality] = []
    notes: list[Diagnostic] = []
    reasons: list[Diagnostic] = []
    for name in [name for name in MODALITIES if name in sites]:
        by_key = sites[name]
        if len(by_key) > 1:
            reason = f"`{'` and `'.join(by_key)}` go through the encoder, and a cut captures units of one input"
            place = list(by_key.values())[-1][0][0].place
            notes.append(left_out(tree, place, name, reason))
            reasons += beyond(tree, place, reason).diagnostics
        else:
            [(key, group)] = by_key.items()
            found.append(_Modality(name, key, tuple(group)))
    if found:
        return found, notes
    if reasons:
        raise Beyond(reasons)
    raise _refusal(tree, model, root, fields)


def _refusal(tree: SourceTree, model: Located, root: Step, fields: dict[str, Field]) -> Beyond:
    """Why nothing can be captured: of calls that get pixels alone the largest ones, else of the others the smallest."""
    refused = [step for step in root.walk() if step.encodes and against(step)]
    visual = [step for step in refused if any(_is_visual(key, fields) for key in _raw_keys(step))]
    steps = [step for step in visual if any(is_pixels(key) for key in _raw_keys(step))] or visual
    alone = [step for step in steps if step.raw]
    shown = [step for step in alone if not any(upper in alone for upper in list(step.up())[1:])]
    shown = shown or [step for step in steps if not any(inner in steps for inner in list(step.walk())[1:])]
    found = [
        problem
        for step in {(step.path, step.place): step for step in shown}.values()
        for problem in beyond(tree, step.place, f"`{step.path}`, which runs the encoder, {against(step)}").diagnostics
    ]
    return Beyond(found) if found else NoEncoder(beyond(tree, model.place, _NOTHING).diagnostics)


def _sites(step: Step) -> Iterator[tuple[Step, ...]]:
    """The largest calls that can be captured, each with the ones inside of it."""
    if _fits(step):
        yield tuple(inner for inner in step.walk() if _fits(inner))
    else:
        for child in step.children:
            yield from _sites(child)


def _fits(step: Step) -> bool:
    return step.parent is not None and step.raw and step.encodes and against(step) is None


def _raw_keys(step: Step) -> list[str]:
    """Inputs of the arguments of a call that nothing has computed on."""
    return [key for value in step.given.values() if Step.is_raw(value) for key in inputs_of(value)]


def _is_visual(key: str, fields: dict[str, Field]) -> bool:
    return key in fields and fields[key].modality in MODALITIES


def _pixels(step: Step, fields: dict[str, Field]) -> str:
    """The input whose tensors are the units."""
    keys = [key for key in inputs_of(step.units) if _is_visual(key, fields)] if step.units is not None else []
    return next((key for key in keys if is_pixels(key)), (*keys, "")[0])


def _captured(
    tree: SourceTree, model: Located, root: Step, modalities: list[_Modality]
) -> tuple[list[tuple[_Modality, str, Place]], str, list[Diagnostic]]:
    """The modalities with their entries, the captured call, and what is left out.

    The call is that of most modalities, of those the largest one. Each is tried as the generator will look for it.
    """
    texts: dict[str, int] = {}
    for modality in modalities:
        for site in modality.sites:
            for depth, step in enumerate(site):
                if step.text is not None:
                    texts[step.text] = min(depth, texts.get(step.text, depth))
    ranked = sorted(texts, key=lambda text: (-sum(modality.has(text) for modality in modalities), texts[text]))
    refused: dict[str, list[Diagnostic]] = {}
    best: tuple[list[tuple[_Modality, str, Place]], str] = ([], "")
    for text in ranked:
        kept: list[tuple[_Modality, str, Place]] = []
        for modality in modalities:
            entries = _entries(root, modality, text) if modality.has(text) and modality.alike(text) else []
            tried = [(entry, _problems(tree, model, [*(one for _, one, _ in kept), entry], text)) for entry in entries]
            entry = next((entry for entry, problems in tried if not problems), None)
            if entry is not None:
                made_by = _entry_step(modality, text) if entry != _ALL else None
                kept.append((modality, entry, (made_by or root).place))
            elif tried:
                refused.setdefault(modality.name, tried[-1][1])
        if len(kept) > len(best[0]):
            best = kept, text
        if len(kept) == len(modalities):
            break
    kept, call = best
    if not kept:
        raise DiagnosticError([_as_reason(problem) for problems in refused.values() for problem in problems])
    notes = []
    for modality in modalities:
        if modality not in [one for one, _, _ in kept]:
            problems = refused.get(modality.name)
            reason = problems[0].message if problems else f"`{call}` is not on its way"
            notes.append(left_out(tree, modality.sites[0][0].place, modality.name, reason))
    return kept, call, notes


def _problems(tree: SourceTree, model: Located, entries: Iterable[str], text: str) -> list[Diagnostic]:
    """What keeps the generator from the way of these entries to the call."""
    spans = {parse_call(entry).path: _NOWHERE for entry in entries}
    try:
        find_way(tree, model.file, model.class_name, spans, parse_call(text), _NOWHERE)
    except DiagnosticError as error:
        return list(error.diagnostics)
    return []


def _as_reason(problem: Diagnostic) -> Diagnostic:
    """What keeps the generator from a way, as a reason against the model."""
    span = problem.span if problem.span != _NOWHERE else None
    return Diagnostic("VCG483", f"the model is beyond the layouts: {problem.message}", span, problem.help)


def _runs(objects: Objects, encoder: Step) -> str:
    cls = objects.cls(encoder.path)
    return f"runs {cls[1].name}" if cls is not None else f"runs `{encoder.path}`, which is not in the tree"


# --- entries --------------------------------------------------------------------------------------------------------


def _entry_step(modality: _Modality, text: str) -> Step | None:
    """The call of `embed_multimodal` that leads to all captured calls of a modality, if it is one and none of them."""
    steps = modality.steps(text)
    ways = [list(step.up()) for step in steps]
    below = {id(way[-2].node): way[-2] for way in ways if len(way) > 2}
    return next(iter(below.values())) if len(below) == 1 and all(len(way) > 2 for way in ways) else None


def _entries(root: Step, modality: _Modality, text: str) -> list[str]:
    """Calls that give the embeddings of a modality, the one to prefer first."""
    step = _entry_step(modality, text)
    entry = _entry_text(root, step) if step is not None else None
    if step is None or entry is None or not _handed_on(step):
        return [_ALL]
    return [entry, _ALL] if _unconditional(step) else [_ALL, entry]


def _entry_text(root: Step, step: Step) -> str | None:
    """A call with the inputs of the batch in the place of what `embed_multimodal` parses them into."""
    return _call_text(step, lambda value: _plain(value) or _parsed(root, step, value))


def _parsed(root: Step, entry: Step, value: Value) -> str | None:
    """The call on the whole batch that made a value."""
    makers = (step for step in root.walk() if step.result is value and step not in (entry, root))
    return next(filter(None, (_call_text(step, _plain) for step in makers)), None)


def _plain(value: Value) -> str | None:
    return "**inputs" if isinstance(value, Inputs) else constant(value)


def _call_text(step: Step, text_of: Callable[[Value], str | None]) -> str | None:
    parts = []
    for key, value in step.given.items():
        text = text_of(value)
        if text is None:
            return None
        parts.append(text if isinstance(key, int) or key == "**" else f"{key}={text}")
    return f"{step.path}({', '.join(parts)})"


def _handed_on(step: Step) -> bool:
    """Whether the result of a call is what the function gives, as a list or in a list of all modalities."""
    parents = parents_of(step.caller.node)
    return all(_in_list(node, parents) for node in _uses(step, parents))


def _uses(step: Step, parents: dict[int, ast.AST]) -> list[ast.AST]:
    """The call itself, or where the name stands that it is assigned to."""
    above = parents.get(id(step.node))
    names = {target.id for target in assigned_to(above) if isinstance(target, ast.Name)} if above is not None else set()
    if not names:
        return [step.node]
    inside = ast.walk(step.caller.node)
    return [
        node for node in inside if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]


def _in_list(node: ast.AST, parents: dict[int, ast.AST]) -> bool:
    above = parents.get(id(node))
    if isinstance(above, ast.Call) and node in above.args:
        name = ast.unparse(above.func).rpartition(".")[2]
        return name in _AS_LIST and (name == "extend" or _in_list(above, parents))
    return isinstance(above, (ast.Return, ast.AugAssign))


def _unconditional(step: Step) -> bool:
    """Whether only modalities and missing inputs decide on a call: around it, and on a return before it."""
    parents = parents_of(step.caller.node)
    node: ast.AST | None = step.node
    while node is not None:
        above = parents.get(id(node))
        tests = [above.test] if isinstance(above, (ast.If, ast.IfExp)) else []
        for block in (getattr(above, name, None) for name in ("body", "orelse")):
            if isinstance(block, list) and node in block:
                tests += [other.test for other in block[: block.index(node)] if _may_return(other)]
        if not all(_of_modality(test) for test in tests):
            return False
        node = above
    return True


def _may_return(node: ast.AST) -> TypeGuard[ast.If]:
    leaves = (ast.Return, ast.Continue, ast.Break)
    return isinstance(node, ast.If) and any(isinstance(inner, leaves) for inner in ast.walk(node))


def _of_modality(test: ast.expr) -> bool:
    """Whether a condition asks for a modality, or whether something is there."""
    bare = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(bare, ast.Compare):
        return not isinstance(bare.left, ast.Call) and all(
            isinstance(value, (ast.Constant, ast.Name, ast.Tuple)) for value in bare.comparators
        )
    return isinstance(bare, ast.Name)


# --- inputs, output, gate -------------------------------------------------------------------------------------------


def _fields(tree: SourceTree, sheet: Sheet, fields: dict[str, Field], modalities: set[str]) -> None:
    """How each input of the modalities lies in a batch. What no descriptor says becomes an obstacle."""
    for key, found in fields.items():
        if found.modality is not None and found.modality not in modalities:
            continue
        if found.kind == "shared":
            continue  # A batch keeps it as it is.
        if found.kind == "batched":
            sheet.put(f"fields.{key}", "batched", found.place)
            continue
        sizes = strip(found.sizes, {*SAME_SIZES, "torch.as_tensor", ".flatten"}) if found.sizes is not None else None
        name = sizes.key if isinstance(sizes, Input) else ""
        if found.kind == "flat_from_sizes" and name in fields and fields[name].kind == "batched":
            sheet.put(f"fields.{key}.sizes", name, found.place)
        elif name:
            what = f"items of `{key}` are told apart by `{name}`, which the model does not get"
            sheet.obstacles += beyond(tree, found.place, what).diagnostics
        else:
            what = f"the sizes of `{key}` are computed where the processor describes its inputs"
            sheet.obstacles += beyond(tree, found.place, what).diagnostics


def _hidden_size(program: Program, model: Located, objects: Objects, sheet: Sheet, step: Step) -> None:
    """The width of the embeddings, which is that of the language model."""
    key = "output.hidden_size"
    name, place = _language_model(model, program)
    value = objects.value(f"self.{name}") if name else None
    given = _language_config(value)
    text = objects.text(given) if given is not None else None
    if text is not None and step.layers:
        what = "columns of the embeddings, which the model may make of several layers side by side"
        wide = Candidate(f"{text}.hidden_size", "the language model's width", place)
        sheet.ask(Question(key, what, (wide,), (str(step.place),)))
        return
    if text is not None and place is not None:
        sheet.put(key, f"{text}.hidden_size", place, why="embeddings are as wide as the language model")
        return
    own = f"self.{name}.config"
    if name and objects.value(own) is not None:
        sheet.put(key, f"{own}.hidden_size", place, why="the language model's own configuration")
        return
    config = "self.config" if objects.value("self.config") is not None or name else ""
    if isinstance(value, Op) and given is None and config:
        sheet.put(key, f"{config}.hidden_size", place, why="the language model gets the model's own configuration")
        return
    candidates = [
        Candidate("self.config.hidden_size", "the language model's width, with a flat configuration"),
        Candidate("self.config.text_config.hidden_size", "the language model's width, with a nested configuration"),
    ]
    if name:
        candidates.append(Candidate(f"{own}.hidden_size", "the language model's own configuration"))
    if "text_config" in model.owner[0].text:
        candidates.reverse()
    sheet.ask(Question(key, "columns of the embeddings", tuple(candidates), (str(place or step.place),)))


def _language_model(model: Located, program: Program) -> tuple[str, Place | None]:
    """The attribute that is made where the model marks its language model."""
    for module, cls in program.lineage(model.owner):
        for node in ast.walk(cls):
            if isinstance(node, ast.With) and "_mark_language_model" in ast.unparse(node.items[0]):
                for statement in node.body:
                    for target in assigned_to(statement):
                        if isinstance(target, ast.Attribute):
                            return target.attr, Place(module.file, statement.lineno)
    found = assigned(program, model.owner, "language_model")
    return ("language_model", found[1]) if found is not None else ("", None)


def _language_config(value: Value | None) -> Value | None:
    """The configuration that a language model is made with; None if it is that of the whole model."""
    parts = [value, *((*value.args, *(v for _, v in value.keywords)) if isinstance(value, (Made, Op)) else ())]
    keywords = dict(value.keywords) if isinstance(value, (Made, Op)) else {}
    for name in ("hf_config", "config", "text_config"):
        if name in keywords:
            return keywords[name]
    for part in parts:
        for inner in walk_value(part) if part is not None else ():
            if isinstance(inner, Op) and inner.name == ".with_hf_config" and len(inner.args) > 1:
                return inner.args[1]
    return None


def _class_variable(program: Program, model: Located, name: str) -> tuple[ast.expr, Place] | None:
    """The value of a class variable where the class or the nearest of its bases sets it."""
    for module, cls in program.lineage(model.owner):
        for node in cls.body:
            value = getattr(node, "value", None)
            if value is not None and any(isinstance(to, ast.Name) and to.id == name for to in assigned_to(node)):
                return value, Place(module.file, node.lineno)
    return None


def _gate(program: Program, model: Located, sheet: Sheet) -> None:
    """Graphs are off where each rank encodes items of its own: their embeddings are gathered by a number of tokens."""
    said = _class_variable(program, model, _SHARDS)
    if said is None or ast.unparse(said[0]) != "True":
        return
    shards = said[1]
    for module, cls in program.lineage(model.owner):
        for node in ast.walk(cls):
            value = getattr(node, "value", None)
            for target in assigned_to(node):
                if (
                    isinstance(target, ast.Attribute)
                    and value is not None
                    and "mm_encoder_tp_mode" in ast.unparse(value)
                ):
                    place = Place(module.file, target.lineno)
                    sheet.put(
                        "gates.modalities", f"not {ast.unparse(target)}", shards, place, why="data-parallel encoder"
                    )
                    return
    question = "the condition under which the encoder is not data-parallel"
    candidate = Candidate("not self.use_data_parallel", "what most models call it")
    sheet.ask(Question("gates.modalities", question, (candidate,), (f"{shards}: the class supports it",)))
