"""How the sections of a descriptor fit together (`VCG3xx`).

Each rule is a generator of diagnostics over a port that may be a draft. Unreadable values are None there, and a rule
skips them. Rules are independent of each other, so one run reports the findings of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaffold.descriptor.expressions import (
    FUNCTIONS,
    Attribute,
    Binary,
    Call,
    EvaluationError,
    Expression,
    Function,
    Int,
    Name,
    walk,
)
from scaffold.descriptor.inherited import why_not_called, why_not_passed
from scaffold.descriptor.port import (
    CHUNK,
    LOOP_METHOD,
    PORTS,
    CropsPort,
    CutPort,
    PackedPort,
    PathsPort,
    Port,
    ReentryPort,
    RowsPort,
    TilesPort,
    derived_merge,
)
from scaffold.descriptor.schema import Reader, Use, suggest
from scaffold.descriptor.sections import ADDITIVE, Count, CutModality, PoolingTest, Sequences, SizedField, TestEntry
from scaffold.diagnostics import Diagnostic, Severity, Span

#: Names that every expression about a batch may use.
BATCH_NAMES: dict[str, str] = {
    "b": "the token budget of the graph",
    "B": "the largest number of items of a batch",
    "F": "the largest number of video frames of a batch",
}

#: The arguments that a call may pass, by the place of the call.
_CALL_NAMES = {
    "call": {"pixels": "the pixel tensor"},
    "cut": {"pixels": "the units"},
    "packed": {"pixels": "the pixel tensor", "metadata": "the metadata buffers"},
    "eager": {
        "pixels": "the pixel tensor",
        "sizes": "the sizes of the items",
        "metadata": "the metadata of these sizes",
    },
    "post": {"output": "the rows of the batch", "sizes": "the sizes of the items"},
    "layers": {
        "pixels": "the patches of the batch",
        "sizes": "the sizes of the items",
        "grid": "the same as the tensor of the inputs",
        "offsets": "where the patches of each item end",
    },
    "held": {"features": "the patches behind the layers"},
    "items": {
        "items": "the patches of each item",
        "sizes": "the sizes of the items",
        "grid": "the same as the tensor of the inputs",
    },
    "entry": {"**inputs": "the inputs of the batch"},
}


@dataclass(frozen=True, slots=True)
class Context:
    """A port, perhaps a draft, and the places of its parts."""

    port: Port
    reader: Reader

    def problem(self, code: str, message: str, at: str | Span, help: str | None = None) -> Diagnostic:
        """A diagnostic at the value of a dotted path, at its key or its parent if it is not written, or at a span."""
        if isinstance(at, str):
            at = self.reader.spans.get(at) or self.reader.place(at)
        return Diagnostic(code, message, at, help)

    def at_key(self, code: str, message: str, at: str, help: str | None = None) -> Diagnostic:
        return Diagnostic(code, message, self.reader.place(at), help)

    def written(self, at: str) -> bool:
        """Whether a key is there, or was meant to be there and is misspelt, which is reported as such."""
        return at in self.reader.keys or at in self.reader.meant

    @property
    def video(self) -> bool:
        return self.has_modality("video")

    def has_modality(self, name: str) -> bool:
        return self.written(f"modalities.{name}") or (name == "image" and self.written(f"modalities.{CHUNK}"))


Problems = Iterator[Diagnostic]


def check_rules(port: Port, reader: Reader) -> list[Diagnostic]:
    """Everything that is wrong with the meaning of a port, rule by rule."""
    context = Context(port, reader)
    return [problem for rule in RULES for problem in rule(context)]


# --- names ------------------------------------------------------------------------------------------------------


def _constants(port: Port) -> dict[str, str | Count]:
    """Names that stand for values of the processor."""
    return dict(port.processor.values or {}) if port.processor else {}


def _defined_names(port: Port) -> dict[str, Mapping[str, object]]:
    """The names that a descriptor defines, by section."""
    return {"let": port.let or {}, "helpers": port.functions, "processor.values": _constants(port)}


def names_are_known(context: Context) -> Problems:
    """Names of expressions have a value where they stand, calls pass what they must: VCG301, VCG302, VCG304, VCG331."""
    port = context.port
    lets = tuple(port.let or {})
    doubtful = _doubtful_columns(context)
    for use in context.reader.uses:
        if isinstance(use.value, Call):
            yield from _call_names(context, use, use.value)
            continue
        known = dict.fromkeys(lets, "a `let` name")
        defined = _defined(use, lets)
        if defined is not None:
            known = dict.fromkeys(lets[: lets.index(defined)], "a `let` name")
        known |= dict.fromkeys(_constants(port), "a value of the processor")
        if use.scope == "item":
            known |= dict.fromkeys(port.columns, "a size column")
        if use.scope == "batch":
            known |= BATCH_NAMES
        if use.scope == "helper":
            helper = port.functions.get(use.at.split(".")[1])
            known |= dict.fromkeys((helper.args if helper else None) or (), "an argument")
        for node in walk(use.value.root):
            if isinstance(node, Name) and node.name not in known and node.name not in doubtful:
                yield _unknown_name(context, use, node, known)
            if isinstance(node, Function) and node.name not in FUNCTIONS and not use.calls_helpers:
                yield context.problem(
                    "VCG304",
                    f"the helper `{node.name}` cannot be called here",
                    use.node.span_of(node.start, node.end),
                    "helpers are for the `tokens` of paths: write the value here, or a line of `let`",
                )


def _defined(use: Use, lets: tuple[str, ...]) -> str | None:
    """The name of `let` that an expression defines, for a modality perhaps. It may use the names above it."""
    section, _, name = use.at.rpartition(".")
    return name if section.rpartition(".")[2] == "let" and name in lets else None


def _doubtful_columns(context: Context) -> set[str]:
    """Column names that are not reported as unknown, because the columns themselves are wrong and reported."""
    if any(columns_fit(context)) or not context.port.columns:
        return {name for cls in PORTS.values() for row in cls.COLUMNS for name in row}
    return set()


def _unknown_name(context: Context, use: Use, node: Name, known: dict[str, str]) -> Diagnostic:
    lets, columns = tuple(context.port.let or {}), context.port.columns
    span = use.node.span_of(node.start, node.end)
    defined = _defined(use, lets)
    if defined is not None and node.name in lets:
        if node.name == defined:
            return context.problem(
                "VCG302", f"`{node.name}` is defined by itself", span, "compute it from something else"
            )
        where = context.reader.place(f"let.{node.name}")
        return context.problem(
            "VCG302",
            f"`{node.name}` is defined below, in line {where.line}",
            span,
            "a line of `let` may use the lines above it: change their order, or break the circle",
        )
    if node.name in columns:
        help = {
            "let": "a size column has a value for each item; only `item` and a path's `count` can use it",
            "batch": "a captured batch has no sizes of items; use b, B, F and `let` names",
        }.get(use.scope, "use the helper's arguments")
        return context.problem("VCG304", f"the size column `{node.name}` has no value here", span, help)
    if node.name in BATCH_NAMES:
        help = "b, B and F describe a batch at capture; only `capture`, `count` and `longest` use them"
        return context.problem("VCG304", f"`{node.name}` ({BATCH_NAMES[node.name]}) has no value here", span, help)
    if node.name in ("true", "false"):
        return context.problem(
            "VCG301", f"`{node.name}` is not a name", span, "write a condition, such as not self.enabled"
        )
    help = suggest(node.name, known) if known else "define it under `let`"
    return context.problem("VCG301", f"the name `{node.name}` is not defined", span, help)


def _call_names(context: Context, use: Use, call: Call) -> Problems:
    further = context.port.unit_arguments if use.scope == "cut" else ()
    allowed = _CALL_NAMES[use.scope] | dict.fromkeys(further, "a further argument of each unit")
    for node in call.name_nodes():
        if node.name not in allowed:
            yield context.problem(
                "VCG301",
                f"a call cannot pass `{node.name}`",
                use.node.span_of(node.start, node.end),
                suggest(node.name, allowed),
            )
    needed = next(iter(allowed))
    for name in further:
        if name not in call.names:
            yield context.at_key(
                "VCG331",
                f"the call does not pass `{name}`",
                f"forward.with.{name}",
                f"pass `{name}`, or delete the line",
            )
    if needed not in call.names:
        yield context.problem(
            "VCG331", f"the call does not pass `{needed}`", use.node.span, f"write {call.path}({needed})"
        )
    if use.scope == "packed" and "metadata" not in call.names:
        yield context.problem(
            "VCG332",
            "the call does not pass `metadata`, so the graph would compute it while it is recorded",
            use.at,
            f"write {call.path}(pixels, None, encoder_metadata=metadata)",
        )


def calls_stay_in_the_model(context: Context) -> Problems:
    """Calls lead through parts of the model and carry its data: VCG309. `plan` looks their names up in a tree."""
    for use in context.reader.uses:
        if isinstance(use.value, Call):
            for call in use.value.calls():
                yield from _stays(context, use, call)
        elif use.scope in ("part", "value"):
            asked = why_not_called if use.scope == "part" else why_not_passed
            for path in use.value.attributes:
                if reason := asked(path):
                    yield context.problem("VCG309", f"`{path}` leads out of the model: {reason}", use.node.span, _PARTS)
    yield from _modules_are_models(context)


_PARTS = "name a part of the model, or a method that its own class defines"


def _stays(context: Context, use: Use, call: Call) -> Problems:
    def problem(node: Call | Attribute, path: str, reason: str) -> Diagnostic:
        span = use.node.span_of(node.start, node.start + len(path))
        return context.problem("VCG309", f"`{path}` leads out of the model: {reason}", span, _PARTS)

    needed = next(iter(_CALL_NAMES[use.scope]))
    if reason := why_not_called(call.path):
        yield problem(call, call.path, reason)
    elif isinstance(use.value, Call) and needed in use.value.names - call.names:
        yield problem(call, call.path, f"the call does not get `{needed}`")
    for value in call.values():
        if isinstance(value, Attribute) and (reason := why_not_passed(value.path)):
            yield problem(value, value.path, reason)


#: Packages whose modules hold models and their processors.
_MODEL_PACKAGES = ("vllm.model_executor.models.", "vllm.models.", "vllm.transformers_utils.")


def _modules_are_models(context: Context) -> Problems:
    """Ports import nothing but vLLM's models and processors, and those of the package that has the model."""
    port = context.port
    if port.model is None or port.model.module is None:
        return  # Unreadable, and reported as such.
    own = port.module.partition(".")[0]
    packages = _MODEL_PACKAGES if own == "vllm" else (f"{own}.", *_MODEL_PACKAGES)
    for at, section in (("processor.module", port.processor), ("item.tokens.module", port.tokens_made)):
        module = section.module if section is not None else None
        if module is not None and "." in module and not module.startswith(packages):
            yield context.problem(
                "VCG309",
                f"`{module}` is no module of vLLM's models",
                at,
                f"name a module below {' or '.join(package.rstrip('.') for package in packages)}",
            )


def names_are_free(context: Context) -> Problems:
    """No name has two meanings: VCG303."""
    port = context.port
    taken = dict(BATCH_NAMES)
    taken |= dict.fromkeys(FUNCTIONS, "a function")
    taken |= {"pixels": "the pixel tensor", "sizes": "the sizes", "metadata": "the metadata"}
    columns = dict.fromkeys(port.columns, "a size column")
    owners: dict[str, str] = {}
    for group, names in _defined_names(port).items():
        for name in names:
            meaning = taken.get(name) or columns.get(name) or owners.get(name)
            if meaning:
                yield context.at_key(
                    "VCG303", f"the name `{name}` is taken: it is {meaning}", f"{group}.{name}", "choose another name"
                )
        owners |= dict.fromkeys(names, f"a name of `{group}`")
    pixels = {modality.pixels for modality in (port.modalities or {}).values() if isinstance(modality, CutModality)}
    for name in port.unit_arguments:
        if name in pixels | {"pixels", "self"}:
            yield context.at_key(
                "VCG303",
                f"the name `{name}` is taken: it is that of the pixels",
                f"forward.with.{name}",
                "choose another name",
            )
    seen: set[str] = set()
    for index, name in enumerate(port.columns):
        if name in seen or name in taken:
            yield context.problem(
                "VCG303",
                f"the name `{name}` is taken: it is {taken.get(name, 'another size column')}",
                f"sizes.columns.{index}",
                "choose another name",
            )
        seen.add(name)


def names_are_used(context: Context) -> Problems:
    """Each name that is defined is used: VCG305, a warning."""
    used: set[str] = set()
    for use in context.reader.uses:
        if isinstance(use.value, Expression):
            used |= use.value.names | use.value.functions
    for group, names in _defined_names(context.port).items():
        for name in names:
            if name not in used:
                place = context.reader.place(f"{group}.{name}")
                help = "use it in an expression, or delete the line"
                yield Diagnostic("VCG305", f"`{name}` is never used", place, help, Severity.WARNING)


def helpers_end(context: Context) -> Problems:
    """A helper calls helpers above it only, and names its arguments once: VCG303, VCG308."""
    helpers = context.port.functions
    order = list(helpers)
    for index, (name, helper) in enumerate(helpers.items()):
        if helper is None or helper.value is None:
            continue
        for called in helper.value.functions & set(order[index:]):
            yield context.problem(
                "VCG308",
                f"the helper `{name}` calls {'itself' if called == name else f'`{called}`, which is defined below'}",
                f"helpers.{name}.value",
                "a helper may call the helpers above it",
            )
        if helper.args is not None and len(set(helper.args)) < len(helper.args):
            yield context.problem("VCG303", "an argument is named twice", f"helpers.{name}.args", "rename one")


#: The most characters of an expression whose names are spelled out. The longest that is known has some 150.
_SPELLED = 2_000


def formulas_stay_short(context: Context) -> Problems:
    """Expressions are short also with each `let` name and helper spelled out: VCG318, once for a chain of them."""
    lets, helpers = tuple(context.port.let or {}), tuple(context.port.functions)
    lengths: dict[str, int] = {}
    reported: set[str | None] = set()

    def defined(use: Use) -> str | None:
        return use.at.split(".")[1] if use.scope == "helper" else _defined(use, lets)

    def order(use: Use) -> int:
        name = defined(use)
        return (*lets, *helpers, name).index(name)

    for use in sorted(context.reader.uses, key=order):
        if not isinstance(use.value, Expression):
            continue
        used = [node.name for node in walk(use.value.root) if isinstance(node, (Name, Function))]
        length = len(use.value.text) + sum(lengths.get(name, 0) for name in used)
        name = defined(use)
        if reported & {*used}:
            reported.add(name)
        elif length > _SPELLED:
            yield context.problem(
                "VCG318",
                f"with all names of `let` and helpers spelled out it has {length} characters, more than {_SPELLED}",
                use.node.span,
                "use each name once instead of several times: a line that has the line above it twice doubles it",
            )
            reported.add(name)
        elif name is not None:
            lengths[name] = max(length, lengths.get(name, 0))


# --- values -----------------------------------------------------------------------------------------------------


def kinds_match(context: Context) -> Problems:
    """Conditions stand where conditions belong, numbers where numbers do: VCG306."""
    for use in context.reader.uses:
        if not isinstance(use.value, Expression):
            continue
        kind = use.value.kind
        if use.wants == "bool" and kind == "int":
            yield context.problem(
                "VCG306",
                "a condition is needed here, not a number",
                use.node.span,
                "write a comparison such as `n > 1`, or a flag such as not self.use_pruning",
            )
        elif use.wants == "int" and kind == "bool" and not use.at.startswith("let."):
            yield context.problem(
                "VCG306",
                "a number is needed here, not a condition",
                use.node.span,
                "write the number, without a comparison",
            )


#: Fields whose value is an amount of something: a literal below 1 is a mistake.
_AMOUNTS = ("rows", "tokens", "merge", "shape", "side_limit", "min", "hidden_size", "longest", "frames", "count")


def values_make_sense(context: Context) -> Problems:
    """Literal amounts are at least 1, and nothing is divided by zero: VCG307."""
    for use in context.reader.uses:
        if not isinstance(use.value, Expression):
            continue
        for node in walk(use.value.root):
            divisor = None
            if isinstance(node, Binary) and node.op in ("//", "%"):
                divisor = node.right
            elif isinstance(node, Function) and node.name == "ceil_div":
                divisor = node.args[1]
            if isinstance(divisor, Int) and divisor.value == 0:
                yield context.problem(
                    "VCG307",
                    "division by zero",
                    use.node.span_of(divisor.start, divisor.end),
                    "divide by something that is 1 or more",
                )
        value = use.value.constant
        if value is not None and value < 1 and any(part in _AMOUNTS for part in use.at.split(".")[1:]):
            yield context.problem("VCG307", f"{value} is not an amount", use.node.span, "write a value of 1 or more")


# --- inputs -----------------------------------------------------------------------------------------------------


def columns_fit(context: Context) -> Problems:
    """The size columns go with the layout: VCG310."""
    columns, known = context.port.columns, type(context.port).COLUMNS
    if columns and columns not in known and context.port.layout is not None:
        rows = [f"[{', '.join(row)}]" for row in known]
        yield context.problem(
            "VCG310",
            f"the layout `{context.port.layout}` does not cut items by [{', '.join(columns)}]",
            "sizes.columns",
            f"write {' or '.join(rows)}",
        )


def inputs_are_distinct(context: Context) -> Problems:
    """The keys of a modality identify it, so no other modality has them: VCG314."""
    seen: dict[str, str] = {}
    for at, key in context.port.keys:
        if key in seen:
            yield context.problem(
                "VCG314",
                f"the input `{key}` is also `{seen[key]}`",
                at,
                "give each input its own key: the keys of a request tell its modality",
            )
        seen.setdefault(key, at)


def _readable(port: Port) -> dict[str, Any]:
    """The modalities that could be read."""
    return {name: modality for name, modality in (port.modalities or {}).items() if modality is not None}


def embeddings_are_of_one_modality(context: Context, port: TilesPort | PathsPort) -> Problems:
    """A port that is not packed looks for precomputed embeddings under one key: VCG317."""
    given = [name for name, modality in _readable(port).items() if modality.embeds]
    for name in given[1:]:
        yield context.at_key(
            "VCG317",
            f"the port takes precomputed embeddings of one modality, which is `{given[0]}`",
            f"modalities.{name}.embeds",
            "delete it: the tool generates nothing for a second modality yet",
        )


def video_is_consistent(context: Context, port: PackedPort) -> Problems:
    """Frames are limited where there are videos, and only there: VCG315, VCG316."""
    if not port.modalities:
        return
    if not context.video and context.written("budget.frames"):
        yield context.at_key(
            "VCG315",
            "`budget.frames` is given, but there is no video",
            "budget.frames",
            "add `modalities.video` or delete it",
        )
    frames = [name for name, entry in (port.attention or {}).items() if entry and entry.unit == "frame"]
    if context.video and frames and not context.written("budget.frames"):
        yield context.at_key(
            "VCG316",
            "every frame of a video is a sequence, but no key says how many frames a video may have",
            "budget" if context.written("budget") else f"attention.{frames[0]}",
            "add `budget: {frames: {info: get_num_frames_with_most_features}}`",
        )


# --- attention and buffers --------------------------------------------------------------------------------------


def sequences_are_consistent(context: Context, port: PackedPort) -> Problems:
    """The first set is of frames or items, further ones of windows, whose bounds are given: VCG324, VCG325."""
    for index, (name, entry) in enumerate((port.attention or {}).items()):
        if entry is None or entry.unit is None:
            continue
        at = f"attention.{name}"
        if index == 0 and entry.unit == "window":
            yield context.problem(
                "VCG324",
                "the first set of sequences must cover whole frames or items, not windows",
                f"{at}.unit",
                "put the set of frames or items first: padding and eager execution follow it",
            )
        elif index > 0 and entry.unit != "window":
            yield context.problem(
                "VCG324",
                f"a further set of sequences cuts those of the first into windows, not into {entry.unit}s",
                f"{at}.unit",
                "write unit: window, with its `count` and `longest`",
            )
        elif index > 0:
            for field in ("count", "longest"):
                if not context.written(f"{at}.{field}"):
                    yield context.at_key(
                        "VCG325",
                        f"`{name}` needs `{field}`: the tool cannot derive the number and size of windows",
                        at,
                        f"add `{field}:` with an expression over b, B, F and `let` names",
                    )


def _sequence_buffers(port: PackedPort) -> Iterator[tuple[str, str, Sequences]]:
    """Dotted path, buffer name and set of each buffer that `attention` names."""
    for name, entry in (port.attention or {}).items():
        for role in ("offsets", "max", "lengths"):
            buffer = getattr(entry, role) if entry is not None else None
            if buffer is not None:
                yield f"attention.{name}.{role}", buffer, entry


def buffers_are_distinct(context: Context, port: PackedPort) -> Problems:
    """Each buffer has a name of its own: VCG323."""
    seen: dict[str, str] = {}
    for name, modality in _readable(port).items():
        if modality.pixels is not None:
            seen.setdefault(modality.pixels, f"modalities.{name}.pixels")
    own = [(at, buffer) for at, buffer, _ in _sequence_buffers(port)]
    own += [(f"buffers.{index}", buffer) for index, buffer in enumerate(port.buffers or ())]
    for at, buffer in own:
        if buffer in seen:
            yield context.problem(
                "VCG323", f"the buffer `{buffer}` is also `{seen[buffer]}`", at, "give each buffer once"
            )
        seen.setdefault(buffer, at)


def tower_names_are_buffers(context: Context, port: PackedPort) -> Problems:
    """`tower.names` maps variables to buffers, one each: VCG329."""
    known = [*(port.buffers or ()), *(buffer for _, buffer, _ in _sequence_buffers(port))]
    seen: dict[str, str] = {}
    for variable, buffer in ((port.split.names if port.split else None) or {}).items():
        if buffer is None:
            continue
        at = f"tower.names.{variable}"
        if buffer not in known:
            yield context.problem("VCG329", f"there is no buffer `{buffer}`", at, suggest(buffer, known))
        if buffer in seen:
            yield context.problem(
                "VCG329", f"the buffer `{buffer}` is the variable `{seen[buffer]}` already", at, "delete one of the two"
            )
        seen.setdefault(buffer, variable)


def merge_is_known(context: Context, port: PackedPort) -> Problems:
    """The merge size is known, and the tokens agree with it: VCG333."""
    if port.item is None or port.item.tokens is None:
        return
    if context.written("item.merge") and not port.item.merge:
        return
    merge = derived_merge(port)
    if merge is None:
        yield context.problem(
            "VCG333",
            "`tokens` does not show how many rows a token merges",
            "item.tokens",
            "add `merge:` with the side of the merged square, such as self.visual.spatial_merge_size",
        )
        return
    values: dict[str, int] = {"t": 1}
    every = {name for use in context.reader.uses if isinstance(use.value, Expression) for name in use.value.attributes}
    values |= dict.fromkeys(every, 2)
    try:
        for name, expression in (port.let or {}).items():
            if expression is not None:
                values[name] = int(expression.evaluate(values))
        values |= {"h": 3 * int(merge[0].evaluate(values)), "w": 5 * int(merge[1].evaluate(values))}
        tokens = port.item.tokens.evaluate(values)
        of_frames = port.item.tokens.evaluate(values | {"t": 4})
    except EvaluationError:
        return  # unknown names are reported elsewhere
    if tokens != 15:
        yield context.problem(
            "VCG333",
            f"`tokens` and the merge size disagree: a grid of 3 x 5 merged squares gives {tokens} tokens, not 15",
            "item.merge" if port.item.merge else "item.tokens",
            "correct `tokens` or the merge size",
        )
    elif context.video and of_frames < 60:
        yield context.problem(
            "VCG333",
            f"4 frames of 3 x 5 merged squares give {of_frames} tokens, not 60: a graph has rows for its tokens only",
            "item.tokens",
            "leave the video out: it runs eagerly",
        )


# --- the cut ----------------------------------------------------------------------------------------------------


def row_width_is_read(context: Context, port: PackedPort) -> Problems:
    """The width of a packed row comes from the model, whatever checkpoint it is: VCG334."""
    shape = port.pixels.shape if port.pixels else None
    pending = [width for width in shape or () if width is not None]
    if not pending:
        return
    lets, seen = dict(port.let or {}), set[str]()
    while pending:
        width = pending.pop()
        of = [lets.get(name) for name in width.names - seen]
        if width.attributes or None in of:  # a value of the processor, or a name that is reported elsewhere
            return
        pending += [value for value in of if value is not None]
        seen |= width.names
    yield context.problem(
        "VCG334",
        "the width of a row is a fixed number, but the checkpoint's patches decide it",
        "pixels.shape",
        "read it from the tower, such as self.visual.patch_embed.proj.in_features",
    )


def fields_are_complete(context: Context, port: ReentryPort) -> Problems:
    """Pixels and sizes are inputs that are cut into items: VCG343."""
    if port.fields is None:
        return
    for name, modality in _readable(port).items():
        if modality.pixels is not None and modality.pixels not in port.fields:
            yield context.problem(
                "VCG343",
                f"`{modality.pixels}` cannot be cut into items",
                f"modalities.{name}.pixels",
                f"add `{modality.pixels}: batched` to `fields`, or `{modality.pixels}: {{sizes: KEY}}`",
            )
    for key, sizes in port.sized.items():
        if sizes is not None and port.fields.get(sizes, "") not in ("batched", None):
            yield context.problem(
                "VCG343",
                f"`{sizes}`, the sizes of `{key}`, is no input with an entry for each item",
                f"fields.{key}.sizes",
                suggest(sizes, port.batched),
            )


def crops_are_cut(context: Context, port: CropsPort) -> Problems:
    """Crops are inputs of a known number for each item: VCG343."""
    crops = port.crops.pixels if port.crops else None
    if crops is not None and port.fields is not None and crops not in port.sized:
        yield context.problem(
            "VCG343",
            f"`{crops}` cannot be cut into the crops of each item",
            "crops.pixels",
            f"add `{crops}: {{sizes: KEY}}` to `fields`",
        )


def result_has_features(context: Context, port: CutPort) -> Problems:
    """A result of several parts has features: VCG344."""
    if not port.forward:
        return
    parts = port.forward.result or ()
    if parts and not isinstance(parts, str) and parts.count("features") != 1:
        yield context.problem(
            "VCG344",
            "one part of the result is `features`",
            "forward.result",
            "write [_, features] for a result of two parts, the second of which is used",
        )
    if parts and port.forward.layers:
        yield context.at_key(
            "VCG344",
            f"the result is {'an object' if isinstance(parts, str) else 'a tuple'} or a list of layers, not both",
            "forward.layers",
            "delete one of `result` and `layers`",
        )
    if port.forward.channels and port.forward.layers:
        yield context.at_key(
            "VCG344",
            "layers have their channels last: a graph holds them side by side",
            "forward.channels",
            "delete it",
        )


def loop_is_called(context: Context, port: CutPort) -> Problems:
    """The call of a loop is that of the method which it becomes, with values of the batch and of the model: VCG347."""
    if not port.forward or port.forward.call is None:
        return
    if (port.forward.loop is not None) != port.forward.call.path.endswith(f".{LOOP_METHOD}"):
        yield context.problem(
            "VCG347",
            f"`{LOOP_METHOD}` is what the loop over the layers becomes, and nothing else is",
            "forward.loop" if port.forward.loop is not None else "forward.call",
            f"write `call: self.{LOOP_METHOD}(pixels)` and the layers as `loop`, or none of them",
        )
    elif port.forward.loop and (port.forward.call.keywords or not _plain(port.forward.call)):
        yield context.problem(
            "VCG347",
            "a loop takes `pixels` first, then arguments of `with` and attributes of the model",
            "forward.call",
            f"write what the loop reads in its order, such as self.{LOOP_METHOD}(pixels, self.config.first_layer)",
        )


def _plain(call: Call) -> bool:
    """Whether a call has the pixels first, and else names and attributes alone."""
    first, *others = call.args or (None,)
    return first == Name("pixels") and all(isinstance(value, Name | Attribute) for value in others)


def padding_can_be_hidden(context: Context, port: CutPort) -> Problems:
    """A mask hides the rows that pad the units which the encoder gets, on their first axis: VCG346."""
    if not port.forward:
        return
    masks = [name for name, entry in (port.forward.with_ or {}).items() if entry == ADDITIVE]
    for name in masks[1:]:
        yield context.at_key(
            "VCG346", "one mask hides the padding of units", f"forward.with.{name}", "say `absent`, or its shape"
        )
    unit, axis = port.forward.unit or (), port.forward.axis
    if masks and (len(unit) != 2 or axis):
        key = "axis" if axis else "unit" if unit else f"with.{masks[0]}"
        yield context.at_key(
            "VCG346",
            f"`{masks[0]}` hides rows of padding, and the units of this call have none",
            f"forward.{key}",
            "say what the call gets of a unit, as `unit: [rows, width]`, with the units on axis 0",
        )


def units_have_paths(context: Context, port: CutPort) -> Problems:
    """A modality with units of another shape gives names of `let` other values: VCG301, VCG348."""
    several = {name: entry for name, entry in _readable(port).items() if entry.let}
    for name, entry in several.items():
        at = f"modalities.{name}.let"
        if name == next(iter(port.modalities)):
            yield context.at_key("VCG348", "`let` has the values of the first modality", at, "write them there")
        for key in entry.let:
            if key not in (port.let or {}):
                yield context.at_key(
                    "VCG301", f"the name `{key}` is not defined", f"{at}.{key}", suggest(key, port.let or {})
                )
    if not several:
        if port.item is not None:
            yield context.at_key(
                "VCG348",
                "budgets count features where units have one shape",
                "item",
                "delete this section, or give the modality with other units its `let`",
            )
        return
    at = f"modalities.{next(iter(several))}.let"
    if port.pixels is not None and port.pixels.padded:
        yield context.at_key(
            "VCG348", "units with paths are not padded to a batch's longest item", "pixels.padded", "delete this line"
        )
    if port.forward and (mask := port.mask):
        yield context.at_key(
            "VCG348",
            f"`{mask}` lets one shape hold all units, so none has a path of its own",
            at,
            "delete these values, and give `let` those of the longer units",
        )


def explicit_units_are_pixels(context: Context, port: CutPort) -> Problems:
    """An explicit port cuts the pixels of one modality into items, and all other inputs as these: VCG340, VCG349."""
    if port.explicit is None:
        return
    yield from _one_modality(context, "an explicit port serves one modality")
    if port.explicit.items is not None and (port.explicit.after is None or port.explicit.single):
        places = [context.reader.place(f"explicit.{key}") for key in ("items", "single")]
        yield context.problem(
            "VCG349",
            "`items` follows what `after` makes of the units of each item in a loop",
            max(places, key=lambda place: (place.line, place.column)),
            "name `after`, and leave out `single`, or delete `items`",
        )
    if port.explicit.most is not None and port.explicit.single:
        reason = "an item is one unit, so that the largest has no more"
        yield context.at_key("VCG349", reason, "explicit.most", "delete this line")
    fields = port.fields or {}
    for modality in _readable(port).values():
        units = modality.pixels or ""
        pixels = fields.get(units)
        for name in port.unit_arguments:
            if name not in port.beside or fields.get(name) != pixels:
                yield context.at_key(
                    "VCG349",
                    f"`{name}` is no input whose items have an entry for each unit, as those of the pixels have",
                    "explicit",
                    "delete this section: the port then runs the model's own code",
                )
        own = pixels.sizes if isinstance(pixels, SizedField) else None
        for name, field in fields.items():
            if isinstance(field, SizedField) and field != pixels:
                keys = [f"fields.{key}.{part}" for key in (name, units) for part in ("extra", "least")]
                yield context.at_key(
                    "VCG349",
                    f"an item has other rows in `{name}` than in its pixels"
                    if own
                    else f"items of `{name}` lie behind each other, and those of the pixels do not",
                    next((key for key in keys if context.written(key)), "explicit"),
                    "delete this section: the port then runs the model's own code",
                )


#: Keys of an explicit port of rows, needed and of no use: where the encoder is called, and where its layers are.
_EXPLICIT_ROWS = {
    False: ("whose encoder is called", ("after", "rotary", "lengths"), ("held", "post", "why")),
    True: ("of layers in a loop", ("post",), ("after", "lengths")),
}


def _explicit_rows(context: Context, port: RowsPort) -> Problems:
    """Refuse keys that an explicit port of rows has no code for."""
    if port.explicit is None:
        return
    sides = [
        {node.name for node in walk(side.root) if isinstance(node, Name)} & {"h", "w"} if side else set()
        for side in port.item.shape or ()
    ]
    looped = context.written("explicit.layers")
    others = {f"item.{key}": getattr(port.item, key) for key in ("zeros", "mask", "tokens", "frames")}
    if port.forward is not None:
        others |= {f"forward.{key}": getattr(port.forward, key) for key in ("per_item", "several", "unread")}
        others["explicit.layers" if looped else "forward.loop"] = looped != (port.forward.loop is not None)
    if looped:
        text = "an explicit port of layers in a loop takes images as rows of patches, with one grid for each"
        pixels = [entry.pixels for entry in _readable(port).values()]
        grids = [port.sized.get(key) for key in pixels] if port.fields else []
        others |= {"item.values": grids != [*(port.item.values or {})]}
        others |= {"item.shape": sides[:1] != [{"h", "w"}] or any(sides[1:])}
    else:
        text = "an explicit port of rows calls its encoder once, on images alone whose sides tell their patches"
        others |= {"item.values": port.item.values, "item.shape": sides[-2:] != [{"h"}, {"w"}]}
    fix = "delete `explicit` from the descriptor, which then is for the plugin's adapter alone"
    for key in [key for key, value in others.items() if value]:
        yield context.at_key("VCG349", text, key, fix)
    kind, needed, useless = _EXPLICIT_ROWS[looped]
    for key in needed:
        if not context.written(f"explicit.{key}"):
            yield context.at_key("VCG349", f"an explicit port {kind} needs `{key}`", "explicit", f"add `{key}`")
    for key in useless:
        if context.written(f"explicit.{key}"):
            reason = f"an explicit port {kind} has no use for `{key}`"
            yield context.at_key("VCG349", reason, f"explicit.{key}", "delete this line")


def items_can_be_made(context: Context, port: RowsPort) -> Problems:
    """An item of h x w patches has pixels for each of them, and entries in the inputs beside them: VCG340 to VCG345."""
    if port.item is None:
        return
    yield from _one_modality(context, "rows serve one modality: an item of h x w patches is made for it")
    yield from _explicit_rows(context, port)
    names = [
        node.name
        for side in port.item.shape or ()
        if side is not None
        for node in walk(side.root)
        if isinstance(node, Name)
    ]
    if port.item.shape and (names.count("h"), names.count("w")) != (1, 1):
        yield context.problem(
            "VCG345",
            "`shape` must grow with the patches of an item: it has `h` and `w` once each",
            "item.shape",
            "write [3, h * p, w * p] for images, or [h * w, 3 * p**2] for rows of patches",
        )
    for key, field in port.grids.items() if port.fields else ():
        yield context.at_key(
            "VCG343",
            f"an item of `{key}` has no rows beside the patches of its grid, nor fewer",
            f"fields.{key}.{'least' if field.extra is None else 'extra'}",
            "delete this line: the rows of a grid are its product",
        )
    if port.forward and port.forward.unread and port.forward.loop is None:
        yield context.at_key(
            "VCG345",
            "all arguments of the encoder are read: only a loop takes more than its layers read",
            "forward.unread",
            "delete this line, or name the layers as `loop`",
        )
    both = port.forward is not None and port.forward.several and port.forward.per_item
    for key in ("several", "per_item") if both else ():
        yield context.at_key(
            "VCG345",
            "an encoder with several results is called once for a batch, not once for each item",
            f"forward.{key}",
            "delete one of `several` and `per_item`",
        )
    yield from _tokens_can_be_made(context, port)
    yield from _frames_can_be_made(context, port)
    yield from _padded_can_be_made(context, port)
    units = port.units if port.fields else None
    if port.forward and port.forward.per_item and (port.forward.loop is None or units):
        reason = "an item of several units has several sequences" if units else "only layers get offsets"
        yield context.at_key(
            "VCG345",
            f"the encoder cannot be called once for each item: {reason}",
            "forward.per_item",
            "delete this line" if units else "delete this line, or name the layers as `loop`",
        )
    values, fields = port.item.values or {}, port.fields or {}
    for index, name in enumerate(port.item.moved or ()):
        if name not in values:
            yield context.problem("VCG343", f"`{name}` has no values", f"item.moved.{index}", suggest(name, values))
    counts = port.sized[units] if units else None
    if counts is not None:
        yield from _units_can_be_made(context, port, counts)
        return
    for name in values:
        if fields and fields.get(name, "") not in ("batched", None):
            yield context.at_key(
                "VCG343",
                f"`{name}` is no input with an entry for each item",
                f"item.values.{name}",
                suggest(name, port.batched),
            )
    for name in (port.item.zeros or ()) if fields else ():
        pixels = {entry.pixels for entry in _readable(port).values()}
        known = {*port.sized, *port.batched} - {*values} - pixels
        if name not in known:
            yield context.at_key(
                "VCG343",
                f"`{name}` is no input with rows or entries of its own",
                f"item.zeros.{name}",
                suggest(name, known),
            )
    for key, sizes in port.sized.items() if fields else ():
        if sizes is not None and sizes not in values:
            yield context.at_key(
                "VCG343",
                f"`{sizes}` has no values for an item of h x w patches",
                f"fields.{key}.sizes",
                f"add `values: {{{sizes}: [1, h, w]}}` to `item`",
            )


def _padded_can_be_made(context: Context, port: RowsPort) -> Problems:
    """Items that are padded have a mask, and one grid on the host that says how many of their rows are patches: VCG343,
    VCG345.
    """
    mask, values = port.item.mask, port.item.values or {}
    if mask is None or not port.fields:
        return
    taken = {*values, *(port.item.zeros or {})} | {one.pixels for one in _readable(port).values()}
    if mask not in port.batched or mask in taken:
        known = sorted({*port.batched} - taken)
        yield context.problem(
            "VCG343", f"`{mask}` is no mask with an entry for each item", "item.mask", suggest(mask, known)
        )
    nested = [f"item.values.{name}" for name, entry in values.items() if isinstance(entry[0], tuple)]
    moved = ["item.moved"] if port.item.moved else []
    alone = [] if len(values) == 1 and not port.sized else ["item.mask"]
    for at in (*nested, *moved, *alone):
        yield context.at_key(
            "VCG345",
            "the rows of a padded item are counted by one grid, which stays on the host; all inputs are batched",
            at,
            "write `values: {GRID: [h, w]}` and `GRID: batched`, or delete `mask`",
        )
    yield from _first_side_counts_rows(context, port)


def _first_side_counts_rows(context: Context, port: RowsPort) -> Problems:
    first = port.item.shape[0] if port.item.shape else None
    if first is not None and not {"h", "w"} <= first.names:
        yield context.problem(
            "VCG345",
            "units lie side by side as rows of patches: the first side of `shape` is their number",
            "item.shape",
            "write [h * w, 3 * p**2]",
        )


def _tokens_can_be_made(context: Context, port: RowsPort) -> Problems:
    """A grid of an item's tokens cuts the input with an entry for each of them: VCG343, VCG345."""
    name = port.item.tokens.input if port.item.tokens else None
    if name is None or not port.fields:
        return
    taken = {*(port.item.values or {}), *(port.item.zeros or {})}
    taken |= {entry.pixels for entry in _readable(port).values()}
    if port.units or port.embeds:
        what = "of several units" if port.units else "with precomputed embeddings"
        yield context.at_key(
            "VCG345", f"the tokens of an item {what} are those of its patches", "item.tokens", "delete this section"
        )
    elif name not in port.sized or name in taken:
        yield context.problem(
            "VCG343",
            f"`{name}` has no entries for tokens alone, which `sizes` cut into items",
            "item.tokens.input",
            suggest(name, sorted(port.sized.keys() - taken)),
        )
    else:
        sizes = port.sized[name]
        grid = (port.item.values or {}).get(sizes)
        if grid is not None and len(grid) != 2:
            yield context.at_key(
                "VCG345",
                f"`{sizes}` has {len(grid)} columns, and the grid of an item's tokens has two: h and w",
                f"item.values.{sizes}",
                "write rows and columns of tokens, such as [h // m, w // m]",
            )


def _frames_can_be_made(context: Context, port: RowsPort) -> Problems:
    """A sound has a number of frames on the host, by which its spectrum is cut: VCG345."""
    sound = (port.modalities or {}).get("audio")
    if (sound is None) != (port.item.frames is None):
        yield context.at_key(
            "VCG345",
            "the rows of a sound are those of its frames, and nothing else has frames",
            "item" if port.item.frames is None else "item.frames",
            "write `frames: {rows: ROWS, window: WINDOW}` for the modality `audio` alone",
        )
    elif sound is not None and port.fields and sound.pixels not in port.sized:
        yield context.at_key(
            "VCG345",
            f"no input says how many frames of `{sound.pixels}` an item has",
            f"fields.{sound.pixels}" if sound.pixels in port.fields else "fields",
            f"write `{sound.pixels}: {{sizes: KEY}}`",
        )
    elif sound is not None:
        others = {f"item.{key}": getattr(port.item, key) for key in ("mask", "tokens")}
        others["forward.per_item"] = port.forward and port.forward.per_item
        others[f"fields.{port.embeds}"] = port.fields and port.embeds
        for key in [key for key, value in others.items() if value]:
            yield context.at_key(
                "VCG345", "a sound has the rows of its frames alone, in one call", key, "delete this key"
            )


def _units_can_be_made(context: Context, port: RowsPort, counts: str) -> Problems:
    """All that the model gets of an item of several units has an entry for each of them: VCG343, VCG345."""
    pixels = {f"modalities.{name}.pixels": entry.pixels for name, entry in _readable(port).items()}
    entries = {f"item.{key}.{name}": name for key in ("values", "zeros") for name in getattr(port.item, key) or ()}
    for at, name in (pixels | entries).items():
        if name is not None and port.sized.get(name) != counts:
            yield context.at_key(
                "VCG343",
                f"`{name}` has no entry for each unit of an item: it is not cut by `{counts}`, as `{port.units}` is",
                at,
                f"write `{name}: {{sizes: {counts}}}` in `fields`",
            )
    yield from _first_side_counts_rows(context, port)


# --- paths ------------------------------------------------------------------------------------------------------


def _one_modality(context: Context, message: str) -> Problems:
    if len(context.port.modalities or {}) > 1:
        second = f"modalities.{list(context.port.modalities)[1]}"
        yield context.at_key("VCG340", message, second, "delete this modality; it runs eagerly, as before")


def paths_are_consistent(context: Context, port: PathsPort) -> Problems:
    """One path has one tile per item, the other one any number, and each is assembled once: VCG340 to VCG342."""
    if port.paths is None:
        return
    yield from _one_modality(context, "paths serve one modality: each path has one key for its pixels")
    if len(port.paths) != 2:
        yield context.at_key(
            "VCG341", f"there are two paths, not {len(port.paths)}", "paths", "describe one path by the layout `tiles`"
        )
        return
    columns = port.columns
    for (name, path), wanted in zip(port.paths.items(), ("1", columns[0] if columns else ""), strict=True):
        if path is not None and path.count is not None and wanted and path.count.text.strip() != wanted:
            which = "first path has one tile" if wanted == "1" else f"second path has `{wanted}` tiles"
            yield context.problem("VCG341", f"the {which} an item", f"paths.{name}.count", f"write count: {wanted}")
    known, parts = tuple(port.paths), (port.post.assemble if port.post else None) or ()
    for index, name in enumerate(parts):
        at = f"post.assemble.{index}"
        if name not in known:
            yield context.problem("VCG342", f"there is no path `{name}`", at, suggest(name, known))
        elif name in parts[:index]:
            yield context.problem("VCG342", f"the path `{name}` is assembled twice", at, "delete one")
    missing = [name for name in known if name not in parts]
    if parts and missing and set(parts) <= set(known):
        yield context.problem(
            "VCG342", f"the output of the path `{missing[0]}` is not used", "post.assemble", f"add `{missing[0]}`"
        )


# --- model and integration --------------------------------------------------------------------------------------


def model_is_consistent(context: Context) -> Problems:
    """The ported class does not opt out of its own port: VCG371."""
    model = context.port.model
    for index, name in enumerate((model.optout if model else None) or ()):
        if name == model.class_:
            yield context.problem(
                "VCG371", f"`{name}` is the ported class itself", f"model.optout.{index}", "delete it"
            )


def gates_have_a_condition(context: Context) -> Problems:
    """A section `gates` says what is on under which condition: VCG202."""
    gates = context.port.gates
    if gates is not None and not any(context.written(f"gates.{key}") for key in gates.some_of):
        names = " or ".join(f"`{key}`" for key in gates.some_of)
        yield context.at_key("VCG202", "`gates` has no condition", "gates", f"add {names}, or delete it")


def tests_are_consistent(context: Context) -> Problems:
    """Test entries have their prompts, templates and settings, and no others: VCG360 to VCG363."""
    integration = context.port.integration
    if context.port.modalities and not (context.video or context.has_modality("image")) and integration is not None:
        yield context.at_key(
            "VCG361",
            "vLLM's tests, docs and examples of encoder graphs have no place for sound alone",
            "integration",
            "delete it",
        )
        return
    if integration is not None and integration.pooling is not None:
        yield from _given_twice(context, integration.pooling, "integration.pooling")
    keys: set[str] = set()
    tests = (integration.test if integration else None) or ()
    for index, test in enumerate(tests):
        if test is None:
            continue
        at = f"integration.test.{index}" if f"integration.test.{index}" in context.reader.spans else "integration.test"
        if test.key is not None and test.key in keys:
            yield context.problem("VCG363", f"the test key `{test.key}` is given twice", f"{at}.key", "rename one")
        keys.add(test.key)
        yield from _prompts(context, test, at)
        yield from _template(context, test, at)
        if test.dummy_overrides and test.dummy_arch is None and not context.written(f"{at}.dummy_arch"):
            yield context.at_key(
                "VCG363",
                "`dummy_overrides` needs `dummy_arch`",
                f"{at}.dummy_overrides",
                "add `dummy_arch:` with the architecture",
            )
        yield from _settings(context, test, at)


#: The name of the one setting of the compilation that ports compute with, and its largest value.
_BUDGETS, _LARGEST = "encoder_cudagraph_token_budgets", 2**31 - 1


def _given_twice(context: Context, test: TestEntry | PoolingTest, at: str) -> Problems:
    """No setting is given twice: VCG363."""
    taken = {"runner_kwargs": ("hf_overrides", "load_format"), "dummy_overrides": ("model_arch", "hf_config")}
    for section, names in taken.items() if test.dummy_arch is not None else ():
        for name in names:
            if name in (getattr(test, section, None) or {}):
                yield context.at_key(
                    "VCG363",
                    f"`dummy_arch` sets {name} already",
                    f"{at}.{section}.{name}",
                    "delete one of the two",
                )


def _settings(context: Context, test: TestEntry, at: str) -> Problems:
    """No setting is given twice, and token budgets are numbers, which ports compute with: VCG363, VCG364."""
    yield from _given_twice(context, test, at)
    budgets = (test.compilation_overrides or {}).get(_BUDGETS, [1])
    if not (isinstance(budgets, list) and budgets and all(type(one) is int and 0 < one <= _LARGEST for one in budgets)):
        yield context.problem(
            "VCG364",
            f"`{_BUDGETS}` is no list of numbers of tokens",
            f"{at}.compilation_overrides.{_BUDGETS}",
            "write whole numbers of 1 or more in brackets: [512]",
        )


def _prompts(context: Context, test: TestEntry, at: str) -> Problems:
    if not context.port.modalities:
        return
    for name in ("image", "video"):
        given = context.written(f"{at}.{name}_prompt")
        if context.has_modality(name) and not given:
            yield context.at_key(
                "VCG360", f"the model takes {name}s, but the test has no {name} prompt", at, f"add `{name}_prompt:`"
            )
        if given and not context.has_modality(name):
            yield context.at_key(
                "VCG361", f"there is a {name} prompt, but no modality `{name}`", f"{at}.{name}_prompt", "delete it"
            )
    if not context.video:
        for name in ("num_video_frames", "needs_video_metadata"):
            if context.written(f"{at}.{name}"):
                yield context.at_key("VCG361", f"`{name}` is given, but there is no video", f"{at}.{name}", "delete it")


def _template(context: Context, test: TestEntry, at: str) -> Problems:
    text = test.template.text if test.template else None
    if text is None:
        return
    slots = text.count("{content}")
    rest = text.replace("{content}", "")
    if slots != 1:
        yield context.problem(
            "VCG362", f"the template has {slots} places for the prompt", f"{at}.template.text", "write {content} once"
        )
    elif "{" in rest or "}" in rest:
        yield context.problem(
            "VCG362",
            "the template has braces besides {content}",
            f"{at}.template.text",
            "remove them",
        )


def rules_of_the_layout(context: Context) -> Problems:
    """Rules of single layouts."""
    for layout, rules in _OWN:
        if isinstance(context.port, layout):
            for rule in rules:
                yield from rule(context, context.port)


RULES: tuple[Callable[[Context], Problems], ...] = (
    names_are_known,
    calls_stay_in_the_model,
    names_are_free,
    names_are_used,
    helpers_end,
    formulas_stay_short,
    kinds_match,
    values_make_sense,
    columns_fit,
    inputs_are_distinct,
    rules_of_the_layout,
    model_is_consistent,
    gates_have_a_condition,
    tests_are_consistent,
)

#: Rules of each layout, in the order in which they run; a rule gets the port as it is.
_OWN: tuple[tuple[type[Port] | tuple[type[Port], ...], tuple[Callable[[Context, Any], Problems], ...]], ...] = (
    ((TilesPort, PathsPort), (embeddings_are_of_one_modality,)),
    (PackedPort, (video_is_consistent, sequences_are_consistent, buffers_are_distinct, tower_names_are_buffers)),
    (PackedPort, (merge_is_known, row_width_is_read)),
    (ReentryPort, (fields_are_complete,)),
    (CropsPort, (crops_are_cut,)),
    (CutPort, (result_has_features, loop_is_called, padding_can_be_hidden, units_have_paths)),
    (CutPort, (explicit_units_are_pixels,)),
    (RowsPort, (items_can_be_made,)),
    (PathsPort, (paths_are_consistent,)),
)
