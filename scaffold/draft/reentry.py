"""The common parts of drafts of a cut and of rows: the entry, the inputs of an item, and the embeddings' width.

An entry is looked for as the generator will, by `scaffold.cut`, so that a draft is one that can be planned.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable
from typing import TypeGuard

from scaffold.cut import find_way
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.draft.inputs import SAME_SIZES, beyond, strip
from scaffold.draft.locate import Located
from scaffold.draft.modules import assigned
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import PartCall, constant
from scaffold.draft.subject import Subject
from scaffold.draft.tokens import entries_of_tokens
from scaffold.draft.values import BatchInputs, FieldConfig, Input, Made, Op, Plain, SourceLine, Term, walk_value
from scaffold.syntax import assigned_to, last_name, parents_of, self_attribute
from scaffold.tower.source import Program

#: The whole model as an entry.
ALL = "self.embed_multimodal(**inputs)"
NOWHERE = Span("<draft>", 1, 1, 1, 1)
_LEAVES = (ast.Break, ast.Continue, ast.Return)
#: Bases of every model, whose text says nothing of one.
_INTERFACES = ("/interfaces.py", "/interfaces_base.py")
#: Around a list of embeddings they change nothing of it.
_AS_LIST = {"tuple", "list", "extend"}


def entry_step(steps: list[PartCall]) -> PartCall | None:
    """The call of `embed_multimodal` that leads to all these calls of the encoder, if it is one and none of them."""
    ways = [list(step.up()) for step in steps]
    below = {id(way[-2].node): way[-2] for way in ways if len(way) > 2}
    return next(iter(below.values())) if len(below) == 1 and all(len(way) > 2 for way in ways) else None


def entries_of(root: PartCall, steps: list[PartCall]) -> list[str]:
    """Calls that give the embeddings of what these calls of the encoder encode, the one to prefer first."""
    step = entry_step(steps)
    entry = _entry_text(root, step) if step is not None else None
    if step is None or entry is None or not handed_on(step.node, step.caller.node):
        return [ALL]
    return [entry, ALL] if unconditional(step.node, step.caller.node) else [ALL, entry]


def _entry_text(root: PartCall, step: PartCall) -> str | None:
    """A call with the inputs of the batch in the place of what `embed_multimodal` parses them into."""
    return _call_text(step, lambda value: _plain(value) or _parsed(root, step, value))


def _parsed(root: PartCall, entry: PartCall, value: Term) -> str | None:
    """The call on the whole batch that made a value."""
    makers = (step for step in root.walk() if step.result is value and step not in (entry, root))
    return next(filter(None, (_call_text(step, _plain) for step in makers)), None)


def _plain(value: Term) -> str | None:
    return "**inputs" if isinstance(value, BatchInputs) else constant(value)


def _call_text(step: PartCall, text_of: Callable[[Term], str | None]) -> str | None:
    parts = []
    for key, value in step.given.items():
        text = text_of(value)
        if text is None:
            return None
        parts.append(text if isinstance(key, int) or key == "**" else f"{key}={text}")
    return f"{step.path}({', '.join(parts)})"


def handed_on(call: ast.AST, function: ast.AST) -> bool:
    """Whether the result of a call is what the function gives, as a list or in a list of all modalities."""
    parents = parents_of(function)
    return all(_in_list(node, parents) for node in _uses(call, function, parents))


def _uses(call: ast.AST, function: ast.AST, parents: dict[int, ast.AST]) -> list[ast.AST]:
    """The call itself, or where the name stands that it is assigned to."""
    above = parents.get(id(call))
    names = {target.id for target in assigned_to(above) if isinstance(target, ast.Name)} if above is not None else set()
    if not names:
        return [call]
    inside = ast.walk(function)
    return [
        node for node in inside if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]


def _in_list(node: ast.AST, parents: dict[int, ast.AST]) -> bool:
    above = parents.get(id(node))
    if isinstance(above, ast.Call) and node in above.args:
        name = ast.unparse(above.func).rpartition(".")[2]
        return name in _AS_LIST and (name == "extend" or _in_list(above, parents))
    return isinstance(above, (ast.Return, ast.AugAssign))


def unconditional(call: ast.AST, function: ast.AST) -> bool:
    """Whether only modalities and missing inputs decide on a call: around it, and on a return before it."""
    parents = parents_of(function)
    node: ast.AST | None = call
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


def entry_place(subject: Subject, entry: str, steps: list[PartCall]) -> SourceLine:
    """Where the model calls an entry to these calls."""
    step = entry_step(steps) if entry != ALL else None
    return (step or subject.root).place


def problems_of_way(
    subject: Subject,
    entries: Iterable[str],
    encoder: Call | str,
    loop: str | None = None,
    through: str | None = None,
    per_item: bool = False,
) -> list[Diagnostic]:
    """The problems that keep the generator from the way of these entries to the encoder, or to one call of it."""
    tree, model = subject.tree, subject.model
    spans = {parse_call(entry).path: NOWHERE for entry in entries}
    try:
        find_way(tree, model.file, model.class_name, spans, encoder, NOWHERE, loop, through, per_item)
    except DiagnosticError as error:
        return list(error.diagnostics)
    return []


def as_reason(problem: Diagnostic) -> Diagnostic:
    """A problem that keeps the generator from a way, as a reason against the model."""
    span = problem.span if problem.span != NOWHERE else None
    return Diagnostic("VCG483", f"the model is beyond the layouts: {problem.message}", span, problem.help)


# --- inputs and output ----------------------------------------------------------------------------------------------


def put_fields(
    subject: Subject,
    sheet: Sheet,
    fields: dict[str, FieldConfig],
    modalities: set[str],
    *,
    grids: bool = False,
    read: Collection[str] | None = None,
) -> None:
    """Fill in how each input of the modalities lies in a batch. A way that no descriptor expresses is an obstacle, if
    the input is one of those that the model is known to `read`.

    Sizes that the model does not get are those of the grid that the processor computes them from. With `grids` the
    rows of an item may be the product of what is in another input for it, and precomputed embeddings a row for each
    token of that.
    """
    for key, found in fields.items():
        if found.modality is not None and found.modality not in modalities:
            continue
        if found.kind == "shared" or (key.endswith("_embeds") and key in subject.trace.refused):
            continue  # A batch keeps it as it is, or the model refuses it.
        if found.kind == "batched":
            sheet.put(f"fields.{key}", "batched", found.place)
            continue
        sizes = strip(found.sizes, {*SAME_SIZES, "torch.as_tensor", ".flatten"}) if found.sizes is not None else None
        if grids and key.endswith("_embeds"):
            sizes = _undivided(sizes)
        if grids and isinstance(sizes, Op) and sizes.name == ".prod":
            sizes = strip(sizes.args[0], SAME_SIZES)
        name = sizes.key if isinstance(sizes, Input) else ""
        counted = _counted(subject.program, subject.model, name) if name and name not in fields and not grids else None
        if found.kind == "flat_from_sizes" and name in fields and fields[name].kind == "batched":
            sheet.put(f"fields.{key}.sizes", name, found.place)
        elif counted is not None and counted[0] in fields and fields[counted[0]].kind == "batched":
            grid, extra, place = counted
            sheet.put(f"fields.{key}.sizes", grid, found.place)
            sheet.put(f"fields.{key}.extra", extra, place, why=f"`{name}`: the product of `{grid}`, and so many more")
        elif grids and (tokens := entries_of_tokens(subject.program, subject.model, key, found)) is not None:
            sheet.put(f"fields.{key}.sizes", tokens.grid, found.place)
        elif read is not None and key not in read:
            continue  # It reaches the model whole, which leaves it alone.
        elif name:
            what = f"items of `{key}` are told apart by `{name}`, which the model does not get"
            sheet.obstacles += beyond(subject.tree, found.place, what).diagnostics
        else:
            what = f"the sizes of `{key}` are computed where the processor describes its inputs"
            sheet.obstacles += beyond(subject.tree, found.place, what).diagnostics


def _counted(program: Program, model: Located, key: str) -> tuple[str, int, SourceLine] | None:
    """The grid whose product, with a number of more, the processor stores under a key for its own use."""
    for module, cls in program.lineage(model.processor):
        for node in ast.walk(cls):
            if not isinstance(node, ast.Assign) or [_subscript(target) for target in node.targets] != [key]:
                continue
            product, extra = node.value, 0
            if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Add):
                more = product.right
                extra = more.value if isinstance(more, ast.Constant) and type(more.value) is int else -1
                product = product.left
            called = product.func if isinstance(product, ast.Call) else None
            grid = _subscript(called.value) if isinstance(called, ast.Attribute) and called.attr == "prod" else None
            if grid is None or extra < 0:
                return None
            return grid, extra, SourceLine(module.file, node.lineno)
    return None


def _subscript(node: ast.expr) -> str | None:
    """`key` of `anything["key"]`."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    return index.value if isinstance(index, ast.Constant) and isinstance(index.value, str) else None


def put_hidden_size(subject: Subject, sheet: Sheet, step: PartCall) -> None:
    """The width of the embeddings: that of the language model, or one that text and images are projected to."""
    program, model, objects = subject.program, subject.model, subject.objects
    key = "output.hidden_size"
    if projected := _shared_projection(program, model):
        sheet.put(key, *projected, why="text and images are projected to it")
        return
    name, place = _language_model(model, program)
    value = objects.value(f"self.{name}") if name else None
    given = _language_config(value)
    text = objects.text(given) if given is not None else None
    if text is not None and step.layers:
        what = "columns of the embeddings, which the model may make of several layers side by side"
        levels = joined_results(program, model)
        wide = Candidate(f"{text}.hidden_size", "the language model's width", place)
        if levels is not None:
            count, joined = levels
            wide = Candidate(f"{text}.hidden_size * ({count})", "so many results beside each other", joined)
        sheet.ask(Question(key, what, (wide,), (str(step.place),)))
        return
    if text is not None and place is not None:
        sheet.put(key, f"{text}.hidden_size", place, why="embeddings are as wide as the language model")
        return
    own = f"self.{name}.config"
    if name and objects.value(own) is not None:
        if objects.text(objects.value(own)) == "self.config":
            sheet.put(
                key, "self.config.hidden_size", place, why="the language model gets the model's own configuration"
            )
            return
        read = (objects.text(value) or "" for value in objects.part_reads("self"))
        if _is_text(objects.value(own)) and any(text.startswith("self.config.text_config.") for text in read):
            width = "self.config.text_config.hidden_size"
            sheet.put(key, width, place, why="the language model gets the text's configuration")
            return
        kept = objects.text(objects.value(own)) or ""
        where = kept if kept.count(".") == 1 else own  # an attribute of the model itself, where it keeps the same
        sheet.put(key, f"{where}.hidden_size", place, why="the language model's own configuration")
        return
    first = value.args[0] if isinstance(value, Made) and value.args else None
    part = objects.text(first) if isinstance(first, Op) else None
    if part is not None and part.startswith("self.config."):
        sheet.put(key, f"{part}.hidden_size", place, why="what the language model gets first")
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
    files = {module.file: module.text for module, _ in program.lineage(model.owner)}
    if any("text_config" in text for file, text in files.items() if not file.endswith(_INTERFACES)):
        candidates.reverse()
    sheet.ask(Question(key, "columns of the embeddings", tuple(candidates), (str(place or step.place),)))


def _is_text(value: Term | None) -> bool:
    """Whether it is what vLLM takes for the configuration of the text, such as the model's `text_config`."""
    return isinstance(value, Op) and value.name == ".hf_text_config"


def _shared_projection(program: Program, model: Located) -> tuple[str, SourceLine] | None:
    """The columns that two linear layers of a pooling model end in, such as CLIP's, where text has another width."""
    for module, cls in program.lineage(model.owner):
        if "is_pooling_model" not in {ast.unparse(target) for node in cls.body for target in assigned_to(node)}:
            continue
        ends: dict[str, set[str]] = {}
        for node in ast.walk(cls):
            layer = node.value if isinstance(node, ast.Assign) else None
            if isinstance(layer, ast.Call) and last_name(layer.func) == "Linear" and len(layer.args) > 1:
                columns = ast.unparse(layer.args[1])
                ends.setdefault(columns, set()).update(map(ast.unparse, assigned_to(node)))
                if columns.startswith("self.") and len(ends[columns]) > 1:
                    return columns, SourceLine(module.file, layer.lineno)
    return None


def joined_results(program: Program, model: Located) -> tuple[str, SourceLine] | None:
    """How many results the model joins along the columns: as many as loops over its own lists have appended."""
    for module, cls in program.lineage(model.owner):
        for function in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
            for node in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                lists = _appended_in(function, _joined_list(node))
                if lists:
                    return " + ".join(f"len({name})" for name in lists), SourceLine(module.file, node.lineno)
    return None


def _joined_list(node: ast.Call) -> str:
    """`parts` of `torch.cat([... for i in range(len(parts))], dim=-1)`, else empty."""
    if ast.unparse(node.func) != "torch.cat" or not node.args:
        return ""
    last = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "dim"] == ["-1"]
    made = node.args[0]
    if not (last and isinstance(made, (ast.ListComp, ast.GeneratorExp)) and len(made.generators) == 1):
        return ""
    over = made.generators[0].iter
    for name in ("range", "len"):
        over = over.args[0] if isinstance(over, ast.Call) and ast.unparse(over.func) == name else over
    return over.id if isinstance(over, ast.Name) and not made.generators[0].ifs else ""


def _appended_in(function: ast.FunctionDef, name: str) -> tuple[str, ...]:
    """The attributes that the loops around `name.append(...)` go over; none where a loop may append another number."""
    found = []
    loops = {id(inner): node for node in function.body if isinstance(node, ast.For) for inner in node.body}
    for node in ast.walk(function):
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == name:
            loop = loops.get(id(node))
            if loop is None or called.attr != "append" or any(isinstance(part, _LEAVES) for part in ast.walk(loop)):
                return ()
            over = ast.unparse(loop.iter).removeprefix("enumerate(").removesuffix(")")
            if not re.fullmatch(r"self(\.\w+)+", over):
                return ()
            found.append(over)
    return tuple(found)


def _undivided(sizes: Term | None) -> Term | None:
    """The sizes before a division by the same merge size, twice or by its square."""
    if not isinstance(sizes, Op) or sizes.name != "//":
        return sizes
    inner, divisor = strip(sizes.args[0], SAME_SIZES), sizes.args[1]
    if isinstance(inner, Op) and inner.name == "//" and inner.args[1] == divisor:
        return strip(inner.args[0], SAME_SIZES)
    square = isinstance(divisor, Op) and divisor.name in ("**", "*") and divisor.args[1] in (Plain(2), divisor.args[0])
    return inner if square else sizes


def language_width(subject: Subject) -> tuple[str, SourceLine] | None:
    """The width of the configuration that the language model is made with, where the model keeps that."""
    name, place = _language_model(subject.model, subject.program)
    given = _language_config(subject.objects.value(f"self.{name}")) if name else None
    text = subject.objects.text(given) if given is not None else None
    return (f"{text}.hidden_size", place) if text is not None and place is not None else None


def _language_model(model: Located, program: Program) -> tuple[str, SourceLine | None]:
    """The attribute that is made where the model marks its language model."""
    for module, cls in program.lineage(model.owner):
        for node in ast.walk(cls):
            if isinstance(node, ast.With) and "_mark_language_model" in ast.unparse(node.items[0]):
                for statement in node.body:
                    for target in (target for part in ast.walk(statement) for target in assigned_to(part)):
                        if (name := self_attribute(target)) is not None:
                            return name, SourceLine(module.file, target.lineno)
    found = assigned(program, model.owner, "language_model")
    return ("language_model", found[1]) if found is not None else ("", None)


def _language_config(value: Term | None) -> Term | None:
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
