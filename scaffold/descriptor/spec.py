"""`AdapterSpec`: a descriptor with everything derived that needs no vLLM tree. What all later stages read.

Frozen, standard library only, in the field's terms. Defaults of buffer kinds, numbers of sequences, the eager call, the
rows and tokens of multi-path items and the rows captured for each path are filled in here, so that no later stage has a
"not given" of its own. `span` gives the place in the YAML of any field that a later stage may have to complain about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from scaffold.descriptor import kinds
from scaffold.descriptor.expressions import Call, Expression, Int, parse_expression
from scaffold.descriptor.model import Buffer, Descriptor, FramesInfo, Pad, Part, Path, Sequences, TestEntry
from scaffold.descriptor.rules import derived_merge
from scaffold.diagnostics import Span


@dataclass(frozen=True, slots=True)
class ModalitySpec:
    """`aux` pairs each further input with its rows per item. `only_if` None means always."""

    name: str
    pixels: str
    sizes: str
    embeds: str | None
    aux: tuple[tuple[str, Expression], ...]
    only_if: Expression | None

    @property
    def inputs(self) -> tuple[str, ...]:
        """All keys of the modality, pixels first."""
        keys = (self.pixels, self.sizes, *(name for name, _ in self.aux))
        return (*keys, self.embeds) if self.embeds is not None else keys


@dataclass(frozen=True, slots=True)
class HelperSpec:
    name: str
    args: tuple[str, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class ProcessorSpec:
    """Class `class_name` of `module`, made without arguments. `values` pairs a `let` name with an attribute of it; the
    generated class reads it as `self.PROPERTY`, see `property_of`."""

    module: str
    class_name: str
    values: tuple[tuple[str, str], ...]

    @staticmethod
    def property_of(name: str) -> str:
        """The generated property behind a name."""
        return f"_encoder_cudagraph_{name}"


@dataclass(frozen=True, slots=True)
class ItemSpec:
    """Input rows and output tokens of an item, over size columns. `merge` is (height, width) of a token in rows, for
    packed layouts. Tokens are the final length of the item's embedding."""

    rows: Expression
    tokens: Expression
    merge: tuple[Expression, Expression] | None
    eager_if: Expression | None


@dataclass(frozen=True, slots=True)
class PixelSpec:
    """Shape of one row (or tile); `dtype` is the attribute path of an input dtype that may be None at run time."""

    shape: tuple[Expression, ...]
    dtype: str | None


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A set of attention sequences: `count` at most per batch, none longer than `longest` rows."""

    name: str
    unit: str
    offsets: str
    max: str | None
    lengths: str | None
    count: Expression
    longest: Expression


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    kind: str
    backends: tuple[str, ...]
    sequences: tuple[SequenceSpec, ...]


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """`rows` for tiles, `grid` (strip, square, tiles) and `side_limit` for packed rows."""

    rows: Expression | None
    grid: str | None
    side_limit: Expression | None


@dataclass(frozen=True, slots=True)
class MetadataSpec:
    """Method `method` of the tower or the model, which takes the grid as a list or a tensor."""

    method: str
    on: str
    grid: str


@dataclass(frozen=True, slots=True)
class PadSpec:
    """A rule of `kinds.PADS`; `value` is the value of `fill` and the axis of `axis`."""

    rule: str
    value: int | None = None


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """A recorded buffer, complete.

    `capture` is `grid` (computed from the captured grid), `bound` or `ones`; `capture_value` is the expression of a
    bound or of an override. `source` is `pixels`, `metadata`, `inputs` or `hook`. `sequences` names the set that the
    buffer describes. `flashinfer_sections` says that the FLASHINFER backend holds two-section offsets in it, which
    then are padded by section.
    """

    name: str
    kind: str
    pad: PadSpec
    residency: str
    capture: str
    capture_value: Expression | None
    source: str
    sequences: str | None = None
    flashinfer_sections: bool = False


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """`max` None: as many as the scheduler and the model's length allow. `frames_info` is a method of the processing
    info; at most one of it and `frames` is given, none without video."""

    min: Expression
    max: Expression | None
    frames: Expression | None
    frames_info: str | None


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """A call, or the name of the hook that holds the code."""

    call: Call | None
    flatten: bool
    hook: str | None = None


@dataclass(frozen=True, slots=True)
class PathSpec:
    """One path of a multi-path model. `count` is over size columns, the rest over `let` names; `capture` is the number
    of units captured for a budget. `pixels` is the key of its input and the name of the recorded buffer."""

    name: str
    count: Expression
    tokens: Expression
    pixels: str
    shape: tuple[Expression, ...]
    rows: Expression
    capture: Expression
    zero_ok: bool
    call: Call | None

    @property
    def one_per_item(self) -> bool:
        return self.count.constant == 1


@dataclass(frozen=True, slots=True)
class PartSpec:
    """A part of an assembled item: a path's output, perhaps with a newline token after each grid row, or one token."""

    path: str | None
    grid: tuple[Expression, Expression] | None = None
    newline: str | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class AxisSpec:
    """A capture axis; `keys` is an expression for the list of keys or the keys themselves."""

    name: str
    keys: Expression | tuple[Any, ...]
    resolve: str
    capture: str


@dataclass(frozen=True, slots=True)
class HookSpec:
    """A hand-written method: its catalogue number, file and source ("" if the descriptor was not read from a file)."""

    name: str
    catalogue: str
    file: str
    source: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RequirementSpec:
    unless: Expression
    message: str


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """What the split needs: class (None: found in the tree), method, data parameter, metadata parameters.

    `names` pairs variables with the buffers that they are, where the names differ.
    """

    class_name: str | None
    entry: str
    data: str
    metadata: tuple[str, ...]
    names: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TestSpec:
    """An entry of the ViT-cudagraph generation test. None means: the test's own default.

    `modalities` are those of the descriptor that the test knows (image, video). With a template the prompts are its
    contents. `skip` is False, True or the reason.
    """

    __test__ = False

    key: str
    model: str
    modalities: tuple[str, ...]
    image_prompt: str | None
    video_prompt: str | None
    template_name: str | None
    template_text: str | None
    dtype: str | None
    max_model_len: int | None
    max_tokens: int | None
    max_num_seqs: int | None
    num_video_frames: int | None
    needs_video_metadata: bool | None
    runner_kwargs: Mapping[str, Any]
    dummy_arch: str | None
    dummy_overrides: Mapping[str, Any]
    compilation_overrides: Mapping[str, Any]
    core_model: bool
    skip: bool | str


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """One model's port, complete but for what the target tree decides."""

    name: str
    module: str
    class_name: str
    tower: str
    optout: tuple[str, ...]
    layout: str
    modalities: tuple[ModalitySpec, ...]
    columns: tuple[str, ...]
    more_columns: tuple[tuple[str, tuple[str, ...]], ...]
    lets: tuple[tuple[str, Expression], ...]
    helpers: tuple[HelperSpec, ...]
    processor: ProcessorSpec | None
    item: ItemSpec
    pixels: PixelSpec | None
    attention: AttentionSpec
    capture: CaptureSpec
    metadata: MetadataSpec | None
    buffers: tuple[BufferSpec, ...]
    budget: BudgetSpec
    forward: ForwardSpec
    eager: ForwardSpec
    paths: tuple[PathSpec, ...]
    assemble: tuple[PartSpec, ...]
    axes: tuple[AxisSpec, ...]
    hooks: tuple[HookSpec, ...]
    gate: Expression | None
    requires: tuple[RequirementSpec, ...]
    data_parallel_switches: tuple[str, ...]
    hidden_size: Expression
    split: TowerSpec | None
    tests: tuple[TestSpec, ...]
    docs_models: tuple[str, ...]
    examples: tuple[str, ...]
    #: What runs on the rows of a batch outside of the graph, as a call with `output` and `sizes`.
    after: ForwardSpec | None = None
    file: str = field(default="", compare=False)
    spans: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)

    def span(self, path: str) -> Span:
        """The place in the YAML of a field by its dotted path (`model.class`), or of its nearest written parent."""
        while path and path not in self.spans:
            path = path.rpartition(".")[0]
        return self.spans.get(path) or Span(self.file or "<descriptor>", 1, 1, 1, 1)

    @property
    def has_video(self) -> bool:
        return any(modality.name in ("video", "vision_chunk") for modality in self.modalities)

    def modality(self, name: str) -> ModalitySpec:
        return next(modality for modality in self.modalities if modality.name == name)

    def buffer(self, name: str) -> BufferSpec:
        return next(buffer for buffer in self.buffers if buffer.name == name)

    def hook(self, name: str) -> HookSpec | None:
        return next((hook for hook in self.hooks if hook.name == name), None)

    def lets_for(self, *expressions: Expression | None) -> tuple[tuple[str, Expression], ...]:
        """The `let` lines that expressions need, directly or through others, in order of definition."""
        table = dict(self.lets)
        helpers = {helper.name: helper for helper in self.helpers}
        needed: set[str] = set()
        pending = [expression for expression in expressions if expression is not None]
        while pending:
            expression = pending.pop()
            pending += [helpers[name].value for name in expression.functions if name in helpers]
            for name in expression.names & table.keys() - needed:
                needed.add(name)
                pending.append(table[name])
        return tuple((name, value) for name, value in self.lets if name in needed)

    def inline(self, expression: Expression) -> Expression:
        """The expression with `let` names replaced by what they stand for."""
        table: dict[str, Expression] = {}
        for name, value in self.lets:
            table[name] = value.substitute(table)
        return expression.substitute(table)


def build_spec(descriptor: Descriptor) -> AdapterSpec:
    """Derive the spec of a descriptor that `load_descriptor` has accepted."""
    model, modalities = descriptor.model, tuple(_modalities(descriptor))
    merge = derived_merge(descriptor) if descriptor.layout == "packed" else None
    paths = tuple(_path(name, path) for name, path in descriptor.paths.items())
    attention = _attention(descriptor, merge)
    forward = _forward(descriptor)
    tower = descriptor.tower
    metadata = descriptor.metadata
    processor = _processor(descriptor)
    name = PurePath(descriptor.file).stem if descriptor.file.endswith((".yaml", ".yml")) else ""
    capture = descriptor.capture
    return AdapterSpec(
        name=name or model.module.rpartition(".")[2],
        module=model.module if "." in model.module else f"vllm.model_executor.models.{model.module}",
        class_name=model.class_,
        tower=model.tower,
        optout=model.optout,
        layout=descriptor.layout,
        modalities=modalities,
        columns=descriptor.sizes.columns,
        more_columns=tuple(descriptor.sizes.also.items()),
        lets=(*_constants(processor), *descriptor.let.items()),
        helpers=tuple(HelperSpec(key, helper.args, helper.value) for key, helper in descriptor.helpers.items()),
        processor=processor,
        item=_item(descriptor, paths, merge),
        pixels=PixelSpec(descriptor.pixels.shape, descriptor.pixels.dtype) if descriptor.pixels else None,
        attention=attention,
        capture=CaptureSpec(capture.rows, capture.grid, capture.side_limit)
        if capture
        else CaptureSpec(None, None, None),
        metadata=(
            MetadataSpec(metadata.method, metadata.on, metadata.grid)
            if metadata
            else MetadataSpec("prepare_encoder_metadata", "tower", "list")
            if descriptor.layout == "packed"
            else None
        ),
        buffers=tuple(_buffers(descriptor, modalities, paths, attention)),
        budget=_budget(descriptor, paths),
        forward=forward,
        eager=ForwardSpec(descriptor.eager.call, descriptor.eager.flatten) if descriptor.eager else forward,
        paths=paths,
        assemble=tuple(_part(part) for part in descriptor.post.assemble) if descriptor.post else (),
        axes=tuple(AxisSpec(axis.name, axis.keys, axis.resolve, axis.capture) for axis in descriptor.axes),
        hooks=tuple(
            HookSpec(key, kinds.HOOKS[key].catalogue, hook.file, descriptor.hook_sources.get(key, ""))
            for key, hook in descriptor.hooks.items()
        ),
        gate=descriptor.gates.modalities if descriptor.gates else None,
        requires=tuple(RequirementSpec(entry.unless, entry.message) for entry in descriptor.requires),
        data_parallel_switches=descriptor.data_parallel.switches if descriptor.data_parallel else (),
        hidden_size=descriptor.output.hidden_size,
        split=TowerSpec(tower.class_, tower.entry, tower.data, tower.metadata, tuple(tower.names.items()))
        if tower
        else None,
        tests=tuple(_test(test, modalities) for test in descriptor.integration.test) if descriptor.integration else (),
        docs_models=(
            descriptor.integration.docs.models if descriptor.integration and descriptor.integration.docs else ()
        ),
        examples=descriptor.integration.example if descriptor.integration else (),
        after=ForwardSpec(descriptor.post.call, False) if descriptor.post and descriptor.post.call else None,
        file=descriptor.file,
        spans=descriptor.spans,
    )


def _processor(descriptor: Descriptor) -> ProcessorSpec | None:
    given = descriptor.processor
    if given is None:
        return None
    module = given.module if "." in given.module else f"vllm.transformers_utils.processors.{given.module}"
    return ProcessorSpec(module, given.class_, tuple(given.values.items()))


def _constants(processor: ProcessorSpec | None) -> Iterator[tuple[str, Expression]]:
    """The processor's values as `let` lines, so that no later stage has to tell them apart."""
    for name, _ in processor.values if processor else ():
        yield name, parse_expression(f"self.{ProcessorSpec.property_of(name)}")


def _modalities(descriptor: Descriptor) -> Iterator[ModalitySpec]:
    for name, entry in descriptor.modalities.items():
        yield ModalitySpec(name, entry.pixels, entry.sizes, entry.embeds, tuple(entry.aux.items()), entry.only_if)


def derived_capture(count: Expression, tokens: Expression) -> Expression:
    """The captured units of a path that gives none, from its units for each item and the tokens of a unit.

    A path with one unit for each item never needs more units than a batch has items.
    """
    text = "min(B, b // tokens)" if count.constant == 1 else "b // tokens"
    return parse_expression(text).substitute({"tokens": tokens})


def _path(name: str, path: Path) -> PathSpec:
    capture = path.capture or derived_capture(path.count, path.tokens)
    rows = path.rows or Expression(Int(1), "1")
    return PathSpec(name, path.count, path.tokens, path.pixels, path.shape, rows, capture, path.zero_ok, path.call)


def _item(descriptor: Descriptor, paths: tuple[PathSpec, ...], merge: tuple[Expression, Expression] | None) -> ItemSpec:
    if descriptor.item is not None:
        return ItemSpec(descriptor.item.rows, descriptor.item.tokens, merge, descriptor.item.eager_if)
    return ItemSpec(
        _sum([_product(path.count, path.rows) for path in paths]),
        _sum([_product(path.count, path.tokens) for path in paths]),
        None,
        None,
    )


def _product(left: Expression, right: Expression) -> Expression:
    if left.constant == 1 or right.constant == 1:
        return right if left.constant == 1 else left
    return parse_expression("a * b").substitute({"a": left, "b": right})


def _sum(terms: list[Expression]) -> Expression:
    total = terms[0]
    for term in terms[1:]:
        total = parse_expression("a + b").substitute({"a": total, "b": term})
    return total


def _attention(descriptor: Descriptor, merge: tuple[Expression, Expression] | None) -> AttentionSpec:
    attention = descriptor.attention
    if attention is None:
        return AttentionSpec("dense", (), ())
    return AttentionSpec(
        attention.kind,
        attention.backends,
        tuple(_sequences(name, entry, merge) for name, entry in attention.sequences.items()),
    )


def _sequences(name: str, entry: Sequences, merge: tuple[Expression, Expression] | None) -> SequenceSpec:
    count, longest = entry.count, entry.longest
    if count is None:
        # A frame has at least one token, so a budget of b tokens holds at most b frames, whatever F is.
        count = parse_expression("max(B, min(F, b))" if entry.unit == "frame" else "B")
    if longest is None:
        # One item may take the whole budget; lengths count rows, not tokens.
        height, width = merge or (Expression(Int(1), "1"),) * 2
        text = "b * height ** 2" if height == width else "b * height * width"
        longest = parse_expression(text).substitute({"height": height, "width": width})
    return SequenceSpec(name, entry.unit, entry.offsets, entry.max, entry.lengths, count, longest)


def _buffers(
    descriptor: Descriptor,
    modalities: tuple[ModalitySpec, ...],
    paths: tuple[PathSpec, ...],
    attention: AttentionSpec,
) -> Iterator[BufferSpec]:
    pixels = [path.pixels for path in paths] or [modalities[0].pixels]
    for name in dict.fromkeys(pixels):
        yield _buffer(name, Buffer(kind="rows"), "pixels")
    in_sets = {
        name: (entry, role)
        for role in ("offsets", "max", "lengths")
        for entry in attention.sequences
        if (name := getattr(entry, role)) is not None
    }
    for name, buffer in descriptor.buffers.items():
        if name not in in_sets:
            yield _buffer(name, buffer, buffer.from_)
    kind_of = {"offsets": "cumulative", "max": "host_bound", "lengths": "lengths"}
    for name, (entry, role) in in_sets.items():
        buffer = descriptor.buffers.get(name) or Buffer(kind=kind_of[role])
        sections = buffer.kind == "cumulative" and "FLASHINFER" in attention.backends
        bound = entry.longest if role == "max" else None
        yield _buffer(name, buffer, buffer.from_, bound=bound, sequences=entry.name, sections=sections)


def _buffer(
    name: str,
    buffer: Buffer,
    source: str,
    *,
    bound: Expression | None = None,
    sequences: str | None = None,
    sections: bool = False,
) -> BufferSpec:
    kind = kinds.KINDS[buffer.kind]
    pad = PadSpec(kind.pads[0])
    if isinstance(buffer.pad, Pad):
        pad = PadSpec("fill", buffer.pad.fill) if buffer.pad.fill is not None else PadSpec("axis", buffer.pad.axis)
    elif buffer.pad is not None:
        pad = PadSpec(buffer.pad)
    return BufferSpec(
        name=name,
        kind=kind.name,
        pad=pad,
        residency=buffer.residency or kind.residencies[0],
        capture=kind.capture,
        capture_value=buffer.capture or bound,
        source=source,
        sequences=sequences,
        flashinfer_sections=sections,
    )


def _budget(descriptor: Descriptor, paths: tuple[PathSpec, ...]) -> BudgetSpec:
    budget = descriptor.budget
    low = budget.min if budget else None
    if low is None:
        # The smallest item of a multi-path model is one unit on each path that is never empty.
        never_empty = [path.tokens for path in paths if not path.zero_ok]
        low = _sum(never_empty) if never_empty else Expression(Int(1), "1")
    frames = budget.frames if budget else None
    info = frames.info if isinstance(frames, FramesInfo) else None
    return BudgetSpec(low, budget.max if budget else None, None if isinstance(frames, FramesInfo) else frames, info)


def _forward(descriptor: Descriptor) -> ForwardSpec:
    hook = next((name for name in ("forward", "model_forward") if name in descriptor.hooks), None)
    forward = descriptor.forward
    return ForwardSpec(forward.call if forward else None, forward.flatten if forward else False, hook)


def _part(part: str | Part) -> PartSpec:
    if isinstance(part, str):
        return PartSpec(part)
    grid = (part.grid[0], part.grid[1]) if part.grid else None
    return PartSpec(part.path, grid, part.newline, part.token)


def _test(test: TestEntry, modalities: tuple[ModalitySpec, ...]) -> TestSpec:
    template = test.template
    return TestSpec(
        key=test.key,
        model=test.model,
        modalities=tuple(modality.name for modality in modalities if modality.name in ("image", "video")),
        image_prompt=test.image_prompt,
        video_prompt=test.video_prompt,
        template_name=template.name if template else None,
        template_text=template.text if template else None,
        dtype=test.dtype,
        max_model_len=test.max_model_len,
        max_tokens=test.max_tokens,
        max_num_seqs=test.max_num_seqs,
        num_video_frames=test.num_video_frames,
        needs_video_metadata=test.needs_video_metadata,
        runner_kwargs=test.runner_kwargs,
        dummy_arch=test.dummy_arch,
        dummy_overrides=test.dummy_overrides,
        compilation_overrides=test.compilation_overrides,
        core_model=test.core_model,
        skip=test.skip,
    )
