"""How the sections of a descriptor fit together (`VCG3xx`).

Each rule is a generator of diagnostics over a descriptor that may be a draft: what could not be read is None there, and
a rule says nothing about it. Rules are independent of each other, so all of them speak in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scaffold.descriptor import kinds
from scaffold.descriptor.expressions import (
    FUNCTIONS,
    Binary,
    Call,
    EvaluationError,
    Expression,
    Function,
    Int,
    Name,
    expression_of,
    walk,
)
from scaffold.descriptor.model import Buffer, Descriptor, Pad, Sequences, TestEntry
from scaffold.descriptor.schema import Reader, Use, suggest
from scaffold.diagnostics import Diagnostic, Severity, Span

_CALL_NAMES = {
    "call": {"pixels": "the pixel tensor", "metadata": "the metadata buffers"},
    "eager": {"pixels": "the pixel tensor", "sizes": "the sizes of the items"},
    "post": {"output": "the rows of the batch", "sizes": "the sizes of the items"},
}


@dataclass(frozen=True, slots=True)
class Context:
    """A descriptor, perhaps a draft, and the places of its parts."""

    descriptor: Descriptor
    reader: Reader

    def problem(
        self, code: str, message: str, at: str | Span, help: str | None = None, severity: Severity = Severity.ERROR
    ) -> Diagnostic:
        """A diagnostic at the value of a dotted path, at its key or its parent if it is not written, or at a span."""
        if isinstance(at, str):
            at = self.reader.spans.get(at) or self.reader.place(at)
        return Diagnostic(code, message, at, help, severity)

    def at_key(self, code: str, message: str, at: str, help: str | None = None) -> Diagnostic:
        return Diagnostic(code, message, self.reader.place(at), help)

    def written(self, at: str) -> bool:
        """Whether a key is there, or was meant to be there and is misspelt, which is reported as such."""
        return at in self.reader.keys or at in self.reader.meant

    @property
    def video(self) -> bool:
        return self.has_modality("video") or self.has_modality("vision_chunk")

    def has_modality(self, name: str) -> bool:
        return self.written(f"modalities.{name}")

    def has_hook(self, *names: str) -> bool:
        return any(self.written(f"hooks.{name}") for name in names)


Problems = Iterator[Diagnostic]


def check_rules(descriptor: Descriptor, reader: Reader) -> list[Diagnostic]:
    """Everything that is wrong with the meaning of a descriptor, in the order of the text."""
    context = Context(descriptor, reader)
    return [problem for rule in RULES for problem in rule(context)]


# --- names ------------------------------------------------------------------------------------------------------


def _columns(descriptor: Descriptor) -> tuple[str, ...]:
    return tuple(name for _, names in _size_rows(descriptor) for name in names)


def names_are_known(context: Context) -> Problems:
    """Names of expressions have a value where they stand, calls pass what they must: VCG301, VCG302, VCG304, VCG331."""
    descriptor = context.descriptor
    lets = tuple(descriptor.let or {})
    doubtful = _doubtful_columns(context)
    for use in context.reader.uses:
        if isinstance(use.value, Call):
            yield from _call_names(context, use, use.value)
            continue
        known = dict.fromkeys(lets, "a `let` name")
        if use.scope == "let" and use.at.startswith("let."):
            known = dict.fromkeys(lets[: lets.index(use.at.removeprefix("let."))], "a `let` name")
        known |= dict.fromkeys(_constants(descriptor), "a value of the processor")
        if use.scope == "item":
            known |= dict.fromkeys(_columns(descriptor), "a size column")
        if use.scope == "batch":
            known |= kinds.BATCH_NAMES
        if use.scope == "helper":
            helper = (descriptor.helpers or {}).get(use.at.split(".")[1])
            known |= dict.fromkeys((helper.args if helper else None) or (), "an argument")
        for node in walk(use.value.root):
            if isinstance(node, Name) and node.name not in known and node.name not in doubtful:
                yield _unknown_name(context, use, node, known)


def _doubtful_columns(context: Context) -> set[str]:
    """Column names that are not reported as unknown, because the columns themselves are wrong and reported."""
    if any(columns_fit(context)) or not _columns(context.descriptor):
        return {name for row in kinds.COLUMNS for name in row}
    return set()


def _unknown_name(context: Context, use: Use, node: Name, known: dict[str, str]) -> Diagnostic:
    lets, columns = tuple(context.descriptor.let or {}), _columns(context.descriptor)
    span = use.node.span_of(node.start, node.end)
    if use.at.startswith("let.") and node.name in lets:
        if node.name == use.at.removeprefix("let."):
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
            "let": "a size column has a value for each item; only `item`, `aux` and a path's `count` can use it",
            "batch": "a captured batch has no sizes of items; use b, B, F and `let` names",
        }.get(use.scope, "use the helper's arguments")
        return context.problem("VCG304", f"the size column `{node.name}` has no value here", span, help)
    if node.name in kinds.BATCH_NAMES:
        help = "b, B and F describe a batch at capture; only `capture`, `count`, `longest` and buffer values use them"
        return context.problem(
            "VCG304", f"`{node.name}` ({kinds.BATCH_NAMES[node.name]}) has no value here", span, help
        )
    if node.name in ("true", "false"):
        return context.problem(
            "VCG301", f"`{node.name}` is not a name", span, "write a condition, such as not self.enabled"
        )
    help = suggest(node.name, known) if known else "define it under `let`"
    return context.problem("VCG301", f"the name `{node.name}` is not defined", span, help)


def _call_names(context: Context, use: Use, call: Call) -> Problems:
    allowed = _CALL_NAMES[use.scope]
    for node in call.name_nodes():
        if node.name not in allowed:
            yield context.problem(
                "VCG301",
                f"a call cannot pass `{node.name}`",
                use.node.span_of(node.start, node.end),
                suggest(node.name, allowed),
            )
    needed = next(iter(allowed))
    if needed not in call.names:
        yield context.problem(
            "VCG331", f"the call does not pass `{needed}`", use.node.span, f"write {call.path}({needed})"
        )


def names_are_free(context: Context) -> Problems:
    """No name has two meanings: VCG303."""
    descriptor = context.descriptor
    taken = dict(kinds.BATCH_NAMES)
    taken |= dict.fromkeys(FUNCTIONS, "a function")
    taken |= {"pixels": "the pixel tensor", "sizes": "the sizes", "metadata": "the metadata"}
    columns = dict.fromkeys(_columns(descriptor), "a size column")
    constants = _constants(descriptor)
    for group, names in (
        ("let", descriptor.let),
        ("helpers", descriptor.helpers),
        ("processor.values", constants),
    ):
        for name in names or {}:
            meaning = taken.get(name) or columns.get(name)
            if meaning:
                yield context.at_key(
                    "VCG303", f"the name `{name}` is taken: it is {meaning}", f"{group}.{name}", "choose another name"
                )
    for name in descriptor.helpers or {}:
        if name in (descriptor.let or {}):
            yield context.at_key(
                "VCG303", f"`{name}` is a `let` name already", f"helpers.{name}", "choose another name"
            )
    for name in constants:
        if name in (descriptor.let or {}) or name in (descriptor.helpers or {}):
            yield context.at_key(
                "VCG303",
                f"`{name}` is a {'`let`' if name in (descriptor.let or {}) else 'helper'} name already",
                f"processor.values.{name}",
                "choose another name",
            )
    seen: set[str] = set()
    for key, columns_of_key in _size_rows(descriptor):
        for index, name in enumerate(columns_of_key):
            if name in seen or name in taken:
                meaning = taken.get(name, "another size column")
                yield context.problem(
                    "VCG303",
                    f"the name `{name}` is taken: it is {meaning}",
                    f"sizes.{key}.{index}",
                    "choose another name",
                )
            seen.add(name)


def _constants(descriptor: Descriptor) -> dict[str, str]:
    """Names that stand for values of the image processor."""
    return dict(descriptor.processor.values or {}) if descriptor.processor else {}


def _size_rows(descriptor: Descriptor) -> list[tuple[str, tuple[str, ...]]]:
    """Path below `sizes` and column names of each size key."""
    if descriptor.sizes is None:
        return []
    rows = [("columns", descriptor.sizes.columns or ())]
    return rows + [(f"also.{name}", names or ()) for name, names in (descriptor.sizes.also or {}).items()]


def names_are_used(context: Context) -> Problems:
    """Each name that is defined is used: VCG305, a warning."""
    used: set[str] = set()
    for use in context.reader.uses:
        if isinstance(use.value, Expression):
            used |= use.value.names | use.value.functions
    descriptor = context.descriptor
    for group, names in (
        ("let", descriptor.let),
        ("helpers", descriptor.helpers),
        ("processor.values", _constants(descriptor)),
    ):
        for name in names or {}:
            if name not in used:
                yield Diagnostic(
                    "VCG305",
                    f"`{name}` is never used",
                    context.reader.place(f"{group}.{name}"),
                    "delete the line",
                    Severity.WARNING,
                )


def helpers_end(context: Context) -> Problems:
    """A helper calls helpers above it only, and names its arguments once: VCG303, VCG308."""
    helpers = context.descriptor.helpers or {}
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
                "compare it, or read a flag of the model",
            )
        elif use.wants == "int" and kind == "bool" and not use.at.startswith("let."):
            yield context.problem(
                "VCG306", "a number is needed here, not a condition", use.node.span, "write an amount"
            )


#: Fields whose value is an amount of something: a literal below 1 is a mistake.
_AMOUNTS = ("rows", "tokens", "merge", "shape", "side_limit", "min", "max", "hidden_size", "longest", "frames", "count")


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
                    "divide by something else",
                )
        value = use.value.constant
        if value is not None and value < 1 and any(part in _AMOUNTS for part in use.at.split(".")[1:]):
            yield context.problem("VCG307", f"{value} is not an amount", use.node.span, "give at least 1")


def budgets_make_sense(context: Context) -> Problems:
    """The range of budgets holds one: VCG370."""
    budget = context.descriptor.budget
    if budget is None or budget.min is None or budget.max is None:
        return
    low, high = budget.min.constant, budget.max.constant
    if low is not None and high is not None and low > high:
        yield context.problem(
            "VCG370",
            f"the smallest budget, {low}, is above the largest, {high}",
            "budget.min",
            "exchange the two values",
        )


# --- layout -----------------------------------------------------------------------------------------------------


def columns_fit(context: Context) -> Problems:
    """The size columns are known and go with the layout: VCG310, VCG311."""
    descriptor = context.descriptor
    columns = descriptor.sizes and descriptor.sizes.columns
    if not columns:
        return
    known = ", ".join(f"[{', '.join(row)}]" for row in kinds.COLUMNS)
    if columns not in kinds.COLUMNS:
        yield context.problem(
            "VCG310", f"[{', '.join(columns)}] is not a known row of sizes", "sizes.columns", f"known rows: {known}"
        )
    elif descriptor.layout is not None and descriptor.layout not in kinds.COLUMNS[columns]:
        fitting = [f"[{', '.join(row)}]" for row, layouts in kinds.COLUMNS.items() if descriptor.layout in layouts]
        yield context.problem(
            "VCG311",
            f"sizes [{', '.join(columns)}] contradict the layout `{descriptor.layout}`",
            "sizes.columns",
            f"{descriptor.layout} goes with {' or '.join(fitting)}; [{', '.join(columns)}] goes with "
            + " or ".join(kinds.COLUMNS[columns]),
        )


def layout_is_complete(context: Context) -> Problems:
    """The layout has the sections that it needs: VCG312."""
    descriptor, layout = context.descriptor, context.descriptor.layout
    if layout is None:
        return
    needed: list[tuple[str, str]] = []
    if not context.written("paths"):
        needed.append(("item", "add `item: {rows: ..., tokens: ...}`"))
        if not context.has_hook("replay", "axis_capture"):
            needed.append(("pixels", "add `pixels: {shape: [...]}`, the shape of one row of the pixel tensor"))
    if layout == "packed":
        needed += [
            ("attention", "add `attention: {kind: varlen, sequences: {full: {unit: frame, offsets: cu_seqlens}}}`"),
            ("tower", "add `tower: {data: x, metadata: [grid_thw]}`, the parameters of the tower's forward"),
        ]
    for name, help in needed:
        if not context.written(name):
            yield context.at_key("VCG312", f"the layout `{layout}` needs the section `{name}`", "layout", help)
    capture = descriptor.capture
    wanted = {"packed": "grid", "tiles": "rows"}.get(layout)
    if wanted and not context.written("paths") and not context.written(f"capture.{wanted}"):
        example = "grid: strip" if wanted == "grid" else "rows: b // k"
        place = "capture" if context.written("capture") else "layout"
        if capture is not None or not context.written("capture"):
            yield context.at_key(
                "VCG312", f"the layout `{layout}` needs `capture.{wanted}`", place, f"add `capture: {{{example}}}`"
            )
    if layout == "packed" and context.written("capture.grid") and not context.written("capture.side_limit"):
        yield context.at_key(
            "VCG312",
            "a captured grid needs `capture.side_limit`",
            "capture.grid",
            "give the longest side, in rows, that the tower's position table has: `side_limit: 8192`",
        )


def layout_has_nothing_else(context: Context) -> Problems:
    """The layout has no section that it would ignore: VCG313."""
    layout = context.descriptor.layout
    foreign: list[tuple[str, str]] = []
    if layout == "tiles":
        foreign = [
            ("capture.grid", "tiles have a fixed shape: give `capture.rows`"),
            ("capture.side_limit", "tiles have a fixed shape"),
            ("item.merge", "tiles are not merged: state the tokens of an item"),
            ("tower", "the tower of tiles is called as it is"),
            ("metadata", "tiles need no metadata"),
            ("post.call", "tiles need no sizes: put the call around that of `forward`"),
        ]
    elif layout == "packed":
        foreign = [
            ("capture.rows", "rows follow from the budget and `capture.grid`"),
            ("paths", "paths belong to tiles"),
            ("axes", "capture axes belong to padded and ragged layouts"),
        ]
    elif layout is not None:
        foreign = [("paths", "paths belong to tiles")]
    if layout == "tiles":
        foreign.append(("axes", "capture axes belong to padded and ragged layouts"))
    for at, help in foreign:
        if context.written(at) and not (at == "axes" and context.written("paths")):
            yield context.at_key("VCG313", f"`{at}` contradicts the layout `{layout}`", at, help)


def inputs_are_distinct(context: Context) -> Problems:
    """A modality is told by its keys, which no other has: VCG314."""
    seen: dict[str, str] = {}
    for name, modality in (context.descriptor.modalities or {}).items():
        if modality is None:
            continue
        own = {f"{name}.{field}": getattr(modality, field) for field in ("pixels", "sizes", "embeds")}
        own |= {f"{name}.aux.{key}": key for key in modality.aux or {}}
        for at, key in own.items():
            if key is None:
                continue
            if key in seen:
                yield context.problem(
                    "VCG314",
                    f"the input `{key}` is also `{seen[key]}`",
                    f"modalities.{at}",
                    "the modality of a request is told by its keys: give each its own",
                )
            seen.setdefault(key, f"modalities.{at}")


def video_is_consistent(context: Context) -> Problems:
    """Frames are limited where there are videos, and only there: VCG315, VCG316."""
    descriptor = context.descriptor
    if not descriptor.modalities:
        return
    if not context.video and context.written("budget.frames"):
        yield context.at_key(
            "VCG315",
            "`budget.frames` is given, but there is no video",
            "budget.frames",
            "add `modalities.video` or delete it",
        )
    sequences = (descriptor.attention.sequences if descriptor.attention else None) or {}
    frames = [name for name, entry in sequences.items() if entry and entry.unit == "frame"]
    if context.has_modality("video") and frames and not context.written("budget.frames"):
        yield context.at_key(
            "VCG316",
            "with videos and one sequence per frame, the largest number of frames must be known",
            "budget" if context.written("budget") else f"attention.sequences.{frames[0]}",
            "add `budget: {frames: {info: get_num_frames_with_most_features}}`",
        )


# --- attention and buffers --------------------------------------------------------------------------------------


def attention_is_consistent(context: Context) -> Problems:
    """Sequences and backends go with the kind of attention; windows have bounds: VCG324, VCG325."""
    attention = context.descriptor.attention
    if attention is None or attention.kind is None:
        return
    if attention.kind == "varlen":
        if not context.written("attention.sequences"):
            yield context.at_key(
                "VCG324",
                "varlen attention needs sequences",
                "attention.kind",
                "add `sequences: {full: {unit: ..., offsets: ...}}`",
            )
        if not context.written("attention.backends"):
            yield context.at_key(
                "VCG324",
                "varlen attention needs the backends that can be captured",
                "attention.kind",
                "add `backends: [FLASH_ATTN]`",
            )
    elif context.written("attention.sequences"):
        yield context.at_key(
            "VCG324",
            f"{attention.kind} attention has no sequences",
            "attention.sequences",
            "delete them, or use kind: varlen",
        )
    for name, entry in (attention.sequences or {}).items():
        if entry is not None and entry.unit == "window":
            for field in ("count", "longest"):
                if not context.written(f"attention.sequences.{name}.{field}"):
                    yield context.at_key(
                        "VCG325",
                        f"the number and size of windows cannot be derived: `{name}` needs `{field}`",
                        f"attention.sequences.{name}",
                        f"add `{field}:` with an expression over b, B, F and `let` names",
                    )


_ROLES = {"offsets": ("cumulative", "two_section"), "max": ("host_bound",), "lengths": ("lengths",)}


def _sequence_buffers(descriptor: Descriptor) -> Iterator[tuple[str, str, str, Sequences]]:
    """Set name, role, buffer name and set of each buffer that `attention` names."""
    for name, entry in ((descriptor.attention.sequences if descriptor.attention else None) or {}).items():
        for role in _ROLES:
            buffer = getattr(entry, role) if entry is not None else None
            if buffer is not None:
                yield name, role, buffer, entry


def buffers_are_distinct(context: Context) -> Problems:
    """Each buffer has a name of its own: VCG323."""
    descriptor = context.descriptor
    seen: dict[str, str] = {}
    for name, modality in (descriptor.modalities or {}).items():
        if modality is not None and modality.pixels is not None:
            seen.setdefault(modality.pixels, f"modalities.{name}.pixels")
    for name, role, buffer, _ in _sequence_buffers(descriptor):
        at = f"attention.sequences.{name}.{role}"
        if buffer in seen:
            yield context.problem(
                "VCG323", f"the buffer `{buffer}` is also `{seen[buffer]}`", at, "give it its own name"
            )
        seen.setdefault(buffer, at)
    for name in descriptor.buffers or {}:
        if seen.get(name, "").startswith("modalities"):
            yield context.at_key(
                "VCG323",
                f"the buffer `{name}` is also `{seen[name]}`",
                f"buffers.{name}",
                "pixel buffers are derived: delete it",
            )


def buffers_are_consistent(context: Context) -> Problems:
    """A buffer's kind, padding, residency and value at capture agree: VCG320 to VCG322, VCG326 to VCG328."""
    descriptor = context.descriptor
    roles = {buffer: (name, role) for name, role, buffer, _ in _sequence_buffers(descriptor)}
    backends = (descriptor.attention.backends if descriptor.attention else None) or ()
    for name, buffer in (descriptor.buffers or {}).items():
        if buffer is None or buffer.kind is None:
            continue
        at = f"buffers.{name}"
        kind = kinds.KINDS[buffer.kind]
        if name in roles and buffer.kind not in _ROLES[roles[name][1]]:
            sequences, role = roles[name]
            yield context.problem(
                "VCG322",
                f"`{name}` is the `{role}` of the sequences `{sequences}`, so its kind is not {buffer.kind}",
                f"{at}.kind",
                f"write kind: {_ROLES[role][0]}",
            )
        if buffer.kind == "two_section" and "FLASHINFER" not in backends:
            yield context.problem(
                "VCG326",
                "two-section offsets belong to FLASHINFER, which is not among the backends",
                f"{at}.kind",
                "add FLASHINFER to attention.backends, or write kind: cumulative",
            )
        yield from _padding(context, name, buffer, kind)
        if buffer.residency is not None and buffer.residency not in kind.residencies:
            yield context.problem(
                "VCG321",
                f"a {kind.name} buffer cannot live on the {buffer.residency}",
                f"{at}.residency",
                f"write residency: {kind.residencies[0]}, or leave it out",
            )
        if (
            buffer.kind == "host_bound"
            and buffer.capture is None
            and name not in roles
            and not context.written(f"{at}.capture")
        ):
            yield context.at_key(
                "VCG327",
                f"the host bound `{name}` needs its value at capture",
                at,
                "add `capture:` with the largest value that any replay of a budget can need, in rows",
            )


def _padding(context: Context, name: str, buffer: Buffer, kind: kinds.BufferKind) -> Problems:
    pad, at = buffer.pad, f"buffers.{name}.pad"
    if pad is None:
        return
    if isinstance(pad, Pad):
        given = [field for field in ("fill", "axis") if getattr(pad, field) is not None]
        if len(given) != 1:
            yield context.problem(
                "VCG328", "a padding has one of `fill` and `axis`", at, "write {fill: -1} or {axis: 1}"
            )
            return
        pad = given[0]
    if pad not in kind.pads:
        help = f"delete `pad`: its own padding is {kind.pads[0]} ({kinds.PADS[kind.pads[0]]})"
        span = context.reader.spans.get(at) or context.reader.place(at)
        message = f"the padding `{pad}` contradicts the kind `{kind.name}`"
        yield Diagnostic("VCG320", message, span, help, notes=(kind.reason,))


def tower_names_are_buffers(context: Context) -> Problems:
    """`tower.names` maps variables to buffers, one each: VCG329."""
    descriptor = context.descriptor
    known = [*(descriptor.buffers or {}), *(buffer for _, _, buffer, _ in _sequence_buffers(descriptor))]
    seen: dict[str, str] = {}
    for variable, buffer in ((descriptor.tower.names if descriptor.tower else None) or {}).items():
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


# --- forward ----------------------------------------------------------------------------------------------------


def forward_is_given_once(context: Context) -> Problems:
    """Exactly one thing says what is recorded: VCG330, VCG353."""
    descriptor = context.descriptor
    hooks = [name for name in ("forward", "model_forward") if name in (descriptor.hooks or {})]
    paths = descriptor.paths or {}
    called = context.written("forward.call")
    if called and hooks:
        yield context.at_key(
            "VCG353",
            f"the forward is given twice: as a call and as the hook `{hooks[0]}`",
            "forward.call",
            "delete one",
        )
    missing = [name for name, path in paths.items() if path is not None and not context.written(f"paths.{name}.call")]
    if not called and not hooks and (missing or not paths):
        place = f"paths.{missing[0]}" if missing else "forward" if context.written("forward") else "model"
        yield context.at_key(
            "VCG330", "nothing says what is recorded", place, "add `forward: {call: self.extract_feature(pixels)}`"
        )


def metadata_is_passed(context: Context) -> Problems:
    """A packed call takes the metadata, and an eager call is given: VCG330, VCG332."""
    descriptor = context.descriptor
    call = descriptor.forward.call if descriptor.forward else None
    if call is None or descriptor.layout is None:
        return
    passes = "metadata" in call.names
    if descriptor.layout == "packed" and not passes:
        yield context.problem(
            "VCG332",
            "the call does not pass `metadata`, so the graph would compute it while it is recorded",
            "forward.call",
            f"write {call.path}(pixels, None, encoder_metadata=metadata)",
        )
    if descriptor.layout == "tiles" and passes and not descriptor.buffers:
        yield context.problem(
            "VCG332", "the call passes `metadata`, but there is none", "forward.call", "pass pixels only"
        )
    if descriptor.layout == "packed" and not context.written("eager"):
        yield context.at_key(
            "VCG330",
            "nothing says how an item runs that no graph fits",
            "forward",
            f"add `eager: {{call: {call.path}(pixels, sizes)}}`",
        )


def derived_merge(descriptor: Descriptor) -> tuple[Expression, Expression] | None:
    """Height and width of the rows that become one token: as given, or the divisors of `h` and `w` in `item.tokens`."""
    item = descriptor.item
    if item is None or item.tokens is None:
        return None
    if item.merge:
        return item.merge[0], item.merge[-1]
    found: dict[str, Expression] = {}
    for node in walk(item.tokens.root):
        if (
            isinstance(node, Binary)
            and node.op == "//"
            and isinstance(node.left, Name)
            and node.left.name in ("h", "w")
        ):
            found[node.left.name] = expression_of(node.right)
    return (found["h"], found["w"]) if len(found) == 2 else None


def merge_is_known(context: Context) -> Problems:
    """The merge size is known, and the tokens agree with it: VCG333."""
    descriptor = context.descriptor
    if descriptor.layout != "packed" or descriptor.item is None or descriptor.item.tokens is None:
        return
    if context.written("item.merge") and not descriptor.item.merge:
        return
    merge = derived_merge(descriptor)
    if merge is None:
        yield context.problem(
            "VCG333",
            "the rows that are merged into a token cannot be told from `tokens`",
            "item.tokens",
            "add `merge:` with the side of the merged square, such as self.visual.spatial_merge_size",
        )
        return
    values: dict[str, int] = {"t": 1}
    every = {name for use in context.reader.uses if isinstance(use.value, Expression) for name in use.value.attributes}
    values |= dict.fromkeys(every, 2)
    try:
        for name, expression in (descriptor.let or {}).items():
            if expression is not None:
                values[name] = int(expression.evaluate(values))
        values |= {"h": 3 * int(merge[0].evaluate(values)), "w": 5 * int(merge[1].evaluate(values))}
        tokens = descriptor.item.tokens.evaluate(values)
        of_frames = descriptor.item.tokens.evaluate(values | {"t": 4})
    except EvaluationError:
        return  # unknown names are reported elsewhere; helpers are not evaluated here
    if tokens != 15:
        yield context.problem(
            "VCG333",
            f"`tokens` and the merge size disagree: a grid of 3 x 5 merged squares gives {tokens} tokens, not 15",
            "item.merge" if descriptor.item.merge else "item.tokens",
            "correct one of the two",
        )
    elif context.video and of_frames < 60 and not context.written("item.eager_if"):
        yield context.problem(
            "VCG333",
            f"4 frames of 3 x 5 merged squares give {of_frames} tokens, not 60: a graph has rows for its tokens only",
            "item.tokens",
            "leave the video out: it runs eagerly",
        )


# --- paths, axes, hooks -----------------------------------------------------------------------------------------


def paths_are_consistent(context: Context) -> Problems:
    """Paths stand for an item, and their outputs are put together: VCG340, VCG341, VCG343 to VCG345."""
    descriptor = context.descriptor
    if not context.written("paths") or descriptor.paths is None:
        return
    paths = descriptor.paths
    if context.written("axes"):
        yield context.at_key(
            "VCG340", "paths and capture axes cannot be combined", "axes", "vLLM captures one or the other"
        )
    if len(paths) < 2:
        yield context.at_key("VCG345", "one path is no choice of paths", "paths", "describe it by `item` and `pixels`")
    elif all(path is not None and path.zero_ok for path in paths.values()):
        yield context.at_key(
            "VCG345",
            "every path may be empty, so an item may have no tokens",
            "paths",
            "one path needs `zero_ok: false`",
        )
    for section in ("item", "pixels", "capture"):
        if context.written(section):
            yield context.at_key(
                "VCG344", f"`{section}` describes a model with one path, but there are paths", section, "delete it"
            )
    if not context.written("post") and not context.has_hook("assemble"):
        yield context.at_key(
            "VCG341",
            "nothing says how the outputs of the paths become an item",
            "paths",
            f"add `post: {{assemble: [{', '.join(paths)}]}}`",
        )
    for modality_name, modality in (descriptor.modalities or {}).items():
        if modality is None:
            continue
        inputs = (modality.pixels, *(modality.aux or {}))
        for name, path in paths.items():
            if path is not None and path.pixels is not None and path.pixels not in inputs:
                yield context.problem(
                    "VCG343",
                    f"`{path.pixels}` is not an input of the modality `{modality_name}`",
                    f"paths.{name}.pixels",
                    suggest(path.pixels, [key for key in inputs if key]) + " Further inputs belong under `aux`.",
                )


def post_is_consistent(context: Context) -> Problems:
    """Every path is assembled once, by parts that make sense: VCG342, VCG353."""
    descriptor = context.descriptor
    called, assembled = context.written("post.call"), context.written("post.assemble")
    if context.written("post") and descriptor.post is not None and not called and not assembled:
        yield context.at_key("VCG342", "nothing is done in `post`", "post", "add `assemble:` or `call:`, or delete it")
    if called and context.has_hook("after_replay"):
        yield context.at_key(
            "VCG353", "what runs after a replay is given twice: by `post.call` and by a hook", "post.call", "delete one"
        )
    parts = (descriptor.post.assemble if descriptor.post else None) or ()
    if len(descriptor.paths or {}) == 1:
        return
    known = tuple(descriptor.paths or {}) or ("default",)
    if context.written("post") and "assemble" in (descriptor.hooks or {}):
        yield context.at_key("VCG353", "the assembly is given twice: by `post` and by a hook", "post", "delete one")
    used: set[str] = set()
    for index, part in enumerate(parts):
        at = f"post.assemble.{index}"
        name = part if isinstance(part, str) else part.path
        if not isinstance(part, str):
            if (part.path is None) == (part.token is None):
                yield context.problem(
                    "VCG342", "a part has either `path` or `token`", at, "write {path: local} or {token: self.x}"
                )
                continue
            if part.token is not None and (part.grid is not None or part.newline is not None):
                yield context.problem("VCG342", "a single token has no grid", at, "delete `grid` and `newline`")
            if (part.grid is None) != (part.newline is None):
                yield context.problem("VCG342", "`grid` and `newline` belong together", at, "give both or none")
        if name is None:
            continue
        if name not in known:
            yield context.problem("VCG342", f"there is no path `{name}`", at, suggest(name, known))
        elif name in used:
            yield context.problem("VCG342", f"the path `{name}` is assembled twice", at, "delete one")
        used.add(name)
    missing = [name for name in known if name not in used]
    if parts and missing and used <= set(known):
        yield context.problem(
            "VCG342", f"the output of the path `{missing[0]}` is not used", "post.assemble", f"add `{missing[0]}`"
        )


def axes_are_consistent(context: Context) -> Problems:
    """Each capture axis has its own name and its two hooks: VCG303, VCG351."""
    descriptor = context.descriptor
    names: set[str] = set()
    for index, axis in enumerate(descriptor.axes or ()):
        if axis is None:
            continue
        if axis.name in names:
            yield context.problem(
                "VCG303", f"the axis `{axis.name}` is given twice", f"axes.{index}.name", "rename one"
            )
        names.add(axis.name)
        for field, wanted in (("resolve", "axis_resolve"), ("capture", "axis_capture")):
            hook = getattr(axis, field)
            if hook is None:
                continue
            if hook != wanted:
                yield context.problem(
                    "VCG351", f"the hook `{hook}` does not fit here", f"axes.{index}.{field}", f"write {wanted}"
                )
            elif not context.has_hook(hook):
                yield context.problem(
                    "VCG351",
                    f"the hook `{hook}` is not given",
                    f"axes.{index}.{field}",
                    f"add `hooks: {{{hook}: {{file: {hook}.py}}}}`",
                )


#: Hooks that make sense only beside another section.
_HOOK_NEEDS = {"axis_resolve": "axes", "axis_capture": "axes", "metadata_region": "tower", "tower_region": "tower",
               "position_embeddings": "tower", "pad": "buffers", "gather_indices": "buffers"}  # fmt: skip


def hooks_are_used(context: Context) -> Problems:
    """Each hook is called, and what a buffer comes from is there: VCG343, VCG351, VCG352."""
    descriptor = context.descriptor
    for name in descriptor.hooks or {}:
        needs = _HOOK_NEEDS.get(name)
        if needs is not None and not context.written(needs):
            yield context.at_key(
                "VCG352",
                f"the hook `{name}` is never called",
                f"hooks.{name}",
                f"it belongs to `{needs}`, which is not given",
            )
    for name, buffer in (descriptor.buffers or {}).items():
        if buffer is not None and buffer.from_ == "hook" and not context.has_hook("gather_indices", "replay"):
            yield context.problem(
                "VCG351",
                f"the buffer `{name}` comes from a hook that is not given",
                f"buffers.{name}.from",
                "add the hook `replay`",
            )
        if buffer is not None and buffer.from_ == "inputs":
            for modality_name, modality in (descriptor.modalities or {}).items():
                if modality is not None and name not in (modality.aux or {}):
                    yield context.problem(
                        "VCG343",
                        f"`{name}` is not an input of the modality `{modality_name}`",
                        f"buffers.{name}.from",
                        f"add it under `modalities.{modality_name}.aux`",
                    )


# --- model and integration --------------------------------------------------------------------------------------


def model_is_consistent(context: Context) -> Problems:
    """The ported class does not opt out of its own port: VCG371."""
    model = context.descriptor.model
    for index, name in enumerate((model.optout if model else None) or ()):
        if name == model.class_:
            yield context.problem(
                "VCG371", f"`{name}` is the ported class itself", f"model.optout.{index}", "delete it"
            )


def tests_are_consistent(context: Context) -> Problems:
    """Test entries have their prompts, templates and settings, and no others: VCG360 to VCG363."""
    integration = context.descriptor.integration
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
        if test.dummy_arch is not None and "hf_overrides" in (test.runner_kwargs or {}):
            yield context.at_key(
                "VCG363",
                "`dummy_arch` sets hf_overrides already",
                f"{at}.runner_kwargs.hf_overrides",
                "delete one of the two",
            )


def _prompts(context: Context, test: TestEntry, at: str) -> Problems:
    if not context.descriptor.modalities:
        return
    for name in ("image", "video"):
        given = context.written(f"{at}.{name}_prompt")
        if context.has_modality(name) and not given:
            yield context.at_key(
                "VCG360", f"the model takes {name}s, but the test has no {name} prompt", at, f"add `{name}_prompt:`"
            )
        if given and not context.has_modality(name) and not context.has_modality("vision_chunk"):
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


RULES: tuple[Callable[[Context], Problems], ...] = (
    names_are_known,
    names_are_free,
    names_are_used,
    helpers_end,
    kinds_match,
    values_make_sense,
    budgets_make_sense,
    columns_fit,
    layout_is_complete,
    layout_has_nothing_else,
    inputs_are_distinct,
    video_is_consistent,
    attention_is_consistent,
    buffers_are_distinct,
    buffers_are_consistent,
    tower_names_are_buffers,
    forward_is_given_once,
    metadata_is_passed,
    merge_is_known,
    paths_are_consistent,
    post_is_consistent,
    axes_are_consistent,
    hooks_are_used,
    model_is_consistent,
    tests_are_consistent,
)
