"""Inputs of a model and what becomes of them: keys, sizes, layout family, and the calls that make embeddings.

Reads `_get_mm_fields_config` of the processor, which says how each input is cut into items, and `embed_multimodal` of
the model, which says what the encoder is called with.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scaffold.descriptor.port import MODALITIES
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.draft.evaluate import Evaluator, History
from scaffold.draft.locate import Located
from scaffold.draft.modules import parameters
from scaffold.draft.values import (
    BatchInputs,
    FieldConfig,
    Input,
    Mapped,
    Op,
    Plain,
    Ref,
    SourceLine,
    Term,
    inputs_of,
    walk_value,
)
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import call_name
from scaffold.tower.source import Module, Owner, Program

#: Changes of a tensor that keep what it holds and how it is laid out.
_SAME = {".to", ".type", ".contiguous", ".cuda", ".float", ".bfloat16", ".half", ".type_as"}
SAME_SIZES = {*_SAME, ".tolist", ".cpu", "tuple", "list", "int"}

_COLUMNS = {3: ("t", "h", "w"), 2: ("h", "w"), 0: ("n",)}

#: Columns of a grid whose key spells them, where no line of the model counts them: `image_grid_thw`.
_NAMED = {"thw": 3, "hw": 2}


@dataclass(frozen=True, slots=True)
class Encoded:
    """One outermost call that makes embeddings of pixels. `pixels` are its keys that are no sizes."""

    call: Op
    pixels: tuple[str, ...]
    sizes: tuple[str, ...]

    @property
    def place(self) -> SourceLine:
        assert self.call.place is not None, "every evaluated call has one"
        return self.call.place


@dataclass(frozen=True, slots=True)
class ModalityInputs:
    """One modality. `layout` is packed, tiles or paths; `columns` those of a row of sizes."""

    name: str
    pixels: str
    sizes: str
    embeds: Input | None
    layout: str
    columns: tuple[str, ...]
    encoded: tuple[Encoded, ...]
    field: FieldConfig
    sizes_field: FieldConfig | None
    #: The key of a second pixel tensor, cut by the same sizes.
    more: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """`result` is what `embed_multimodal` returns."""

    modalities: tuple[ModalityInputs, ...]
    fields: dict[str, FieldConfig]
    trace: History
    result: Term
    #: Each note names a modality that is left out, and why.
    notes: tuple[Diagnostic, ...] = ()


def left_out(tree: SourceTree, place: SourceLine, name: str, reason: str) -> Diagnostic:
    """That a modality is not drafted (VCG484)."""
    return Diagnostic(
        "VCG484",
        f"the modality `{name}` is left out: {reason}",
        tree.span(place.file, place.line),
        "nothing to do: the port is complete without it, and the modality runs eagerly, as before",
        Severity.WARNING,
    )


class Beyond(DiagnosticError):
    """A model does what no layout expresses (VCG483)."""


def beyond(tree: SourceTree, place: SourceLine | None, reason: str) -> Beyond:
    """The refusal of a model that no layout expresses."""
    return Beyond(
        Diagnostic(
            "VCG483",
            f"the model is beyond the layouts: {reason}",
            tree.span(place.file, place.line) if place else None,
            "change this statement if the model is yours; `vitcg-scaffold explain VCG483` names the other ways",
        )
    )


def strip(value: Term, names: set[str] = _SAME) -> Term:
    """The value without changes of type, device or form."""
    while isinstance(value, Op) and value.name in names and value.args:
        value = value.args[0]
    return value


def read_fields(tree: SourceTree, program: Program, model: Located) -> dict[str, FieldConfig]:
    """How the processor cuts each input of the modalities that it offers into items. Raises VCG483."""
    evaluator = Evaluator(program, model.processor, deep=True)
    config = evaluator.method("_get_mm_fields_config", hf_inputs=BatchInputs())
    if isinstance(config, Ref):
        config = evaluator.of_module(config)
    fields = (
        {key: value for key, value in config.entries.items() if isinstance(value, FieldConfig)}
        if isinstance(config, Mapped)
        else {}
    )
    if not fields:
        raise beyond(tree, model.processor_place, "its processor does not list the inputs in a form that can be read")
    if all("audio" in (field.modality or "") for field in fields.values()):
        raise DiagnosticError(
            Diagnostic(
                "VCG486",
                f"`{model.class_name}` encodes no images and no videos, only audio",
                tree.span(model.file, model.place.line),
                "encoder graphs are for images and videos",
            )
        )
    # Parts of an item may have a modality that nobody asks for, such as the sound of a video of MiMo.
    left_out = {"image", "video"} - (_offered(program, model) or {"image", "video"})
    return {key: field for key, field in fields.items() if field.modality not in left_out}


def other_way(program: Program, model: Located, pixels: str) -> tuple[FieldConfig, FieldConfig] | None:
    """How the processor cuts an input into items under a condition that the draft leaves out, and under the other."""
    evaluator = Evaluator(program, model.processor, deep=True)
    config = evaluator.method("_get_mm_fields_config", hf_inputs=BatchInputs())
    taken = config.entries.get(pixels) if isinstance(config, Mapped) else None
    return next((ways for ways in evaluator.trace.replaced if ways[1] is taken), None)


def _offered(program: Program, model: Located) -> set[str] | None:
    """The modalities that requests may have; None where the source does not list them in one place.

    A model may inherit the code and the inputs of a modality that it does not offer.
    """
    limits = program.method(model.info, "get_supported_mm_limits") if model.info else None
    returned = [node.value for node in ast.walk(limits[2]) if isinstance(node, ast.Return)] if limits else []
    if len(returned) != 1 or not isinstance(returned[0], ast.Dict):
        return None
    names = {str(key.value) for key in returned[0].keys if isinstance(key, ast.Constant)}
    return names if len(names) == len(returned[0].keys) else None


def read_inputs(tree: SourceTree, program: Program, model: Located) -> ModelInputs:
    """Keys, layouts and encoder calls of every modality. Raises VCG483."""
    fields = read_fields(tree, program, model)
    sizes = {key: _size_input(field.sizes, key) for field in fields.values() for key in inputs_of_sizes(field)}
    evaluator = Evaluator(program, model.owner, sizes=frozenset(sizes))
    result = evaluator.method("embed_multimodal", **{"**": BatchInputs()}) or Plain(None)
    trace = evaluator.trace
    roots = _outermost(trace, frozenset(sizes))
    groups: dict[str, list[Encoded]] = {}
    for root in roots:
        groups.setdefault(_modality_of(root, fields), []).append(root)
    notes = []
    for name, group in list(groups.items()):
        if name not in MODALITIES:
            reason = "encoder graphs are for images and videos"
        elif any(root.pixels[0] not in fields for root in group):
            reason = f"its processor never gives `{group[0].pixels[0]}`"
        else:
            continue
        notes.append(left_out(tree, group[0].place, name, reason))
        del groups[name]
    modalities, refused = [], []
    for name, group in groups.items():
        try:
            modalities.append(_modality(tree, program, model, name, group, fields, trace, result))
        except Beyond as found:
            refused.append((name, group[0].place, found.diagnostics))
    if refused and not modalities:
        raise DiagnosticError([problem for _, _, problems in refused for problem in problems])
    for name, place, problems in refused:
        reason = "; ".join(problem.message.partition(": ")[2] for problem in problems)
        notes.append(left_out(tree, place, name, reason))
    if not modalities:
        what = "no call of a part of the model on images or videos was found in `embed_multimodal`"
        raise DiagnosticError([*beyond(tree, model.place, what).diagnostics, *notes])
    kept, others = _alike(tree, _own_embeds(tuple(modalities)))
    return ModelInputs(kept, fields, trace, result, (*notes, *others))


def inputs_of_sizes(field: FieldConfig) -> tuple[str, ...]:
    return inputs_of(field.sizes) if field.sizes is not None else ()


def _size_input(sizes: Term | None, key: str) -> Input | None:
    found = [part for part in walk_value(sizes) if isinstance(part, Input)] if sizes is not None else []
    return next((part for part in found if part.key == key), None)


def _outermost(trace: History, sizes: frozenset[str]) -> list[Encoded]:
    inner = {id(part) for call in trace.calls for value in call.operands for part in walk_value(value)}
    found = []
    for call in trace.calls:
        keys = inputs_of(call)
        pixels = tuple(key for key in keys if key not in sizes)
        if id(call) not in inner and pixels:
            found.append(Encoded(call, pixels, tuple(key for key in keys if key in sizes)))
    return found


def _modality_of(root: Encoded, fields: dict[str, FieldConfig]) -> str:
    field = fields.get(root.pixels[0])
    return (field.modality if field else None) or ("video" if "video" in root.pixels[0] else "image")


def _modality(
    tree: SourceTree,
    program: Program,
    model: Located,
    name: str,
    roots: list[Encoded],
    fields: dict[str, FieldConfig],
    trace: History,
    result: Term,
) -> ModalityInputs:
    """One modality. Raises `Beyond` with everything that no layout has words for."""
    first = roots[0]
    met: list[Beyond] = []
    mains = [_main_input(root.pixels, fields) for root in roots]
    extra = next((root for root in roots if len(root.pixels) > 1), None)
    if extra is not None:
        main = _main_input(extra.pixels, fields)
        others = "`, `".join(key for key in extra.pixels if key != main)
        what = f"`{extra.call.name}` also depends on `{others}`, which is no size of `{main}`"
        if not main:
            what = f"`{extra.call.name}` depends on `{others}` together"
        met.append(beyond(tree, extra.place, what))
    keys = list(dict.fromkeys(main or root.pixels[0] for main, root in zip(mains, roots, strict=True)))
    by_kind = {key: fields[key] for key in keys}
    flat = [key for key, field in by_kind.items() if field.kind.startswith("flat")]
    whole = [key for key, field in by_kind.items() if field.kind == "batched"]
    if len(keys) > 2:
        met.append(beyond(tree, first.place, f"an item has {len(keys)} pixel tensors"))
    elif len(keys) == 1 and not flat:
        met.append(beyond(tree, by_kind[keys[0]].place, f"`{keys[0]}` arrives as one tensor an item, of any shape"))
    elif len(keys) == 2 and (len(flat), len(whole)) != (1, 1):
        met.append(beyond(tree, first.place, f"`{keys[0]}` and `{keys[1]}` are not one tile and further tiles"))
    elif len(roots) > len(keys):
        met.append(beyond(tree, roots[-1].place, f"`{keys[0]}` goes through the encoder more than once"))
    size, packed, columns = None, False, None
    try:
        size, packed = sizes_of(tree, program, model, by_kind[flat[0]], fields, trace) if flat else (None, False)
    except Beyond as found:
        met.append(found)
    if size is not None:
        columns = _COLUMNS.get(size.columns if size.columns is not None else -1)
        if columns is None or packed == (columns == ("n",)):
            what = f"{size.columns} columns" if size.columns is not None else "an unknown number of columns"
            met.append(beyond(tree, by_kind[flat[0]].place, f"a row of `{size.key}` has {what}"))
    if met or size is None or columns is None:
        raise Beyond([problem for found in met for problem in found.diagnostics])
    two = bool(whole and flat)
    changed = [] if two else list(_changed_results(tree, trace, roots))
    changed += [] if two or packed else _changed_items(tree, trace, result)
    if changed:
        raise Beyond(changed)
    pixels = whole[0] if two else flat[0]
    return ModalityInputs(
        name,
        pixels,
        size.key,
        _embeds(name, fields, trace, {*keys, size.key}),
        "paths" if two else "packed" if packed else "tiles",
        columns,
        tuple(roots),
        by_kind[pixels],
        fields.get(size.key),
        flat[0] if two else None,
    )


def _main_input(keys: tuple[str, ...], fields: dict[str, FieldConfig]) -> str:
    """The input of an encoder call that is the pixels: the only one, or the only one that is named so."""
    named = [key for key in keys if "pixel_values" in key and key in fields] if len(keys) > 1 else list(keys)
    return named[0] if len(named) == 1 else ""


def sizes_of(
    tree: SourceTree,
    program: Program,
    model: Located,
    field: FieldConfig,
    fields: dict[str, FieldConfig],
    trace: History,
) -> tuple[Input, bool]:
    """The input that says how many rows each item has, and whether it is a grid whose product does."""
    sizes = strip(field.sizes, SAME_SIZES) if field.sizes is not None else None
    if isinstance(sizes, Op) and sizes.name == ".prod" and isinstance(strip(sizes.args[0]), Input):
        grid = strip(sizes.args[0])
        assert isinstance(grid, Input)
        if grid.columns is None:
            columns = schema_columns(program, model.owner[0], trace, grid.key)
            columns = unpacked_columns(program, model, grid.key) if columns is None else columns
            grid = replace(grid, columns=_NAMED.get(grid.key.rpartition("_")[2]) if columns is None else columns)
        return grid, True
    if isinstance(sizes, Input):
        return replace(sizes, columns=0), False
    raise beyond(
        tree,
        field.place,
        "the rows of an item are neither a count nor the product of a grid",
    )


def unpacked_columns(program: Program, model: Located, key: str) -> int | None:
    """How many names a loop of the model gives what a row of an input holds: 2 of `for h, w in grid.tolist()`."""
    for _, cls in program.lineage(model.owner):
        for node in ast.walk(cls):
            if not isinstance(node, (ast.For, ast.comprehension)):
                continue
            zipped = isinstance(node.iter, ast.Call) and call_name(node.iter) == "zip"
            overs = node.iter.args if zipped and isinstance(node.iter, ast.Call) else [node.iter]
            targets = node.target.elts if zipped and isinstance(node.target, ast.Tuple) else [node.target]
            for over, target in zip(overs, targets, strict=False):
                if ast.unparse(over) == f"{key}.tolist()" and isinstance(target, ast.Tuple):
                    return len(target.elts)
    return None


def _embeds(name: str, fields: dict[str, FieldConfig], trace: History, taken: set[str]) -> Input | None:
    for key, value in trace.inputs.items():
        field = fields.get(key)
        modality = (field.modality if field else None) or key.partition("_")[0]
        if key.endswith("_embeds") and key not in taken | trace.refused and modality == name:
            return value
    return None


def _own_embeds(modalities: tuple[ModalityInputs, ...]) -> tuple[ModalityInputs, ...]:
    """Each key of precomputed embeddings for the first modality that reads it."""
    seen: set[str] = set()
    found = []
    for modality in modalities:
        key = modality.embeds.key if modality.embeds else None
        found.append(replace(modality, embeds=None) if key in seen else modality)
        seen |= {key} if key else set()
    return tuple(found)


def _alike(
    tree: SourceTree, modalities: tuple[ModalityInputs, ...]
) -> tuple[tuple[ModalityInputs, ...], tuple[Diagnostic, ...]]:
    """The modalities that one descriptor describes together, and what is left out of the others."""
    first = modalities[0]
    kept, notes = [first], []
    ready = first.embeds is not None
    for modality in modalities[1:]:
        place = modality.encoded[0].place
        if (modality.layout, modality.columns) != (first.layout, first.columns):
            reason = f"its inputs lie otherwise in memory than those of `{first.name}`"
            notes.append(left_out(tree, place, modality.name, reason))
        elif first.layout == "paths":
            notes.append(left_out(tree, place, modality.name, f"the paths serve `{first.name}`"))
        elif _parts(modality) != _parts(first):
            reason = f"it goes through other parts of the model than `{first.name}`"
            notes.append(left_out(tree, place, modality.name, reason))
        elif first.layout == "tiles" and modality.embeds is not None and ready:
            notes.append(
                Diagnostic(
                    "VCG484",
                    f"precomputed embeddings of `{modality.name}` are left out: a port of tiles takes those of one "
                    "modality",
                    tree.span(modality.embeds.place.file, modality.embeds.place.line)
                    if modality.embeds.place
                    else None,
                    f"the port does not cover requests that bring `{modality.embeds.key}`",
                    Severity.WARNING,
                )
            )
            kept.append(replace(modality, embeds=None))
        else:
            ready = ready or modality.embeds is not None
            kept.append(modality)
    return tuple(kept), tuple(notes)


def _parts(modality: ModalityInputs) -> set[str]:
    """The parts of the model that make embeddings of a modality."""
    parts = (part for root in modality.encoded for part in walk_value(root.call))
    return {part.name for part in parts if isinstance(part, Op) and part.name.startswith("self.")}


def _changed_results(tree: SourceTree, trace: History, roots: list[Encoded]) -> Iterator[Diagnostic]:
    """Changes of an encoder's result beside joining its first axes and splitting it into items, once.

    A port hands out the rows of the result as they are: an index, a join or a second split would be lost.
    """
    for root in roots:
        for split in trace.splits:
            value = split.args[0]
            if not any(part is root.call for part in walk_value(value)):
                continue
            while isinstance(value, Op) and value is not root.call and _joins_axes(value):
                value = value.args[0]
            if value is root.call or not isinstance(value, Op):
                continue
            again = any(isinstance(part, Op) and part.name == ".split" for part in walk_value(value))
            word = "indexed" if value.name == "[]" else f"given to `{value.name.lstrip('.')}`"
            word = "split again after it was" if again else f"{word} before it is"
            what = f"the result of `{root.call.name}` is {word} split into items"
            yield from beyond(tree, value.place or split.place, what).diagnostics


def _joins_axes(step: Op) -> bool:
    """Whether a step leaves [tiles, tokens, hidden] as it is, or makes it [tiles * tokens, hidden]."""
    if step.name in (".view", ".reshape"):
        return len(step.args) == 3 and step.args[1] == Plain(-1)
    return step.name in _SAME or (step.name == ".flatten" and step.args[1:] == (Plain(0), Plain(1)))


def _changed_items(tree: SourceTree, trace: History, result: Term) -> Iterator[Diagnostic]:
    """Changes of each item of a split result beside joining its first two axes."""
    for part in walk_value(result):
        of = part.args[0] if isinstance(part, Op) and part.args else None
        piece = isinstance(of, Op) and of.name == "each" and any(of.args[0] is split for split in trace.splits)
        if piece and isinstance(part, Op) and not _joins_axes(part):
            shown = ", ".join(str(value.value) for value in part.args[1:] if isinstance(value, Plain))
            what = f"each item goes through `{part.name.lstrip('.')}({shown})`, so it is no [tiles, tokens, hidden]"
            yield from beyond(tree, part.place, what).diagnostics


def schema_of(
    program: Program, home: Module, trace: History, key: str
) -> tuple[tuple[object, ...], SourceLine, Mapped] | None:
    """The annotated shape of an input (`TensorShape("n", 3, "h", "w")`), its place, and the values at construction."""
    return next(shapes_of(program, home, trace, key), None)


def shapes_of(
    program: Program, home: Module, trace: History, key: str, *, made: bool = False
) -> Iterator[tuple[tuple[object, ...], SourceLine, Mapped]]:
    """Annotated shapes of an input, or (`made`) of values that are made of it alone."""
    for table, name, value in [(t, name, value) for t in trace.tables for name, value in t.entries.items()]:
        if not (inputs_of(value) == (key,) if made else _is(value, key)):
            continue
        where = (program.module(table.place.file) if table.place else None) or home
        found = program.resolve(where, table.made_by or "")
        for statement in found[1].body if found is not None and isinstance(found[1], ast.ClassDef) else ():
            if found is not None and isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
                for node in ast.walk(statement.annotation):
                    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("TensorShape"):
                        parts = tuple(part.value for part in node.args if isinstance(part, ast.Constant))
                        yield parts, SourceLine(found[0].file, node.lineno), table


def _is(value: Term, key: str) -> bool:
    bare = strip(value)
    return isinstance(bare, Input) and bare.key == key


def schema_columns(program: Program, home: Module, trace: History, key: str) -> int | None:
    """The number of columns that the annotation of an input gives: 3 of `TensorShape("n", 3)`, 0 of one axis."""
    found = schema_of(program, home, trace, key)
    if found is None:
        return None
    shape = found[0]
    if len(shape) == 1:
        return 0
    return shape[1] if len(shape) == 2 and isinstance(shape[1], int) else None


# --- calls of a descriptor ------------------------------------------------------------------------------------------


class NotACall(Exception):
    """A value is not what a descriptor's `call` can say; `part` is what is not."""

    def __init__(self, part: Op | None, reason: str) -> None:
        super().__init__(reason)
        self.part, self.reason = part, reason


def call_text(value: Term, names: dict[str, str]) -> str:
    """A value as the text of a descriptor's call. `names` gives what stands for each input. Raises NotACall."""
    value = strip(value)
    if isinstance(value, Input):
        return names[value.key]
    value = strip(value, SAME_SIZES)
    if isinstance(value, Input):
        return names[value.key]
    if isinstance(value, Plain):
        return repr(value.value)
    if isinstance(value, Ref) and value.path.startswith("self."):
        # A graph runs on one device: what asks whether to shard is told no.
        return "False" if "data_parallel" in value.path else value.path
    if isinstance(value, Op) and value.name.startswith("self."):
        parts = [call_text(argument, names) for argument in value.args]
        parts += [f"{name}={call_text(argument, names)}" for name, argument in value.keywords]
        return f"{value.name}({', '.join(parts)})"
    what = value.name if isinstance(value, Op) else type(value).__name__
    raise NotACall(value if isinstance(value, Op) else None, f"`{what.lstrip('.')}` stands between parts of the model")


def innermost(program: Program, owner: Owner, call: Op) -> Op:
    """The call that gets the pixels themselves: of a module, looking into methods of the class."""
    current = call
    for _ in range(8):
        nested = next(filter(None, (_first_call(value) for value in current.operands)), None)
        if nested is not None:
            current = nested
            continue
        name = current.name.removeprefix("self.")
        if "." in name or program.method(owner, name) is None:
            return current
        evaluator = Evaluator(program, owner)
        evaluator.method(name, **by_parameter(parameters(program, owner, name), current))
        if not evaluator.trace.calls:
            return current
        current = evaluator.trace.calls[0]
    return current


def _first_call(value: Term) -> Op | None:
    """The outermost call of a part of the model on inputs that a value was made by, past what normalises them."""
    for part in walk_value(value):
        if isinstance(part, Op) and part.name.startswith("self.") and inputs_of(part) and not normalises(part):
            return part
    return None


def normalises(call: Op) -> bool:
    """Whether a call is of the module with which a model normalises raw pixels (from 0.28 on)."""
    return call.name.endswith(".input_norm")


def by_parameter(names: list[str], call: Op) -> dict[str, Term]:
    """The arguments of a call by the names of the parameters that they fill."""
    return dict(zip(names, call.args, strict=False)) | dict(call.keywords)
