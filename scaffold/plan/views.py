"""The names that a template sees: one frozen view for each layout, made of (port, dialect, facts of the tree).

A template holds the words of the code, this module the decisions. Every field and property of a view is a name in its
templates, and nothing else is; values are source code (`Code`) or data that a filter turns into code.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scaffold.descriptor import CropsPort, CutPort, PackedPort, PathsPort, ReentryPort, RowsPort, SizedPort, TilesPort
from scaffold.descriptor.expressions import (
    Attribute,
    Call,
    Expression,
    Function,
    Name,
    parse_expression,
    path_names,
)
from scaffold.descriptor.port import CHAIN_METHOD, PRIVATE_ENTRY, PUBLIC_ENTRY, property_of
from scaffold.descriptor.sections import ABSENT, WEIGHTS, Count, SizedField, UnitInput
from scaffold.plan.code import CAPACITIES, Lets, Names
from scaffold.render import Code, Signatures, pyrepr

if TYPE_CHECKING:
    from scaffold.cut import Extraction, Sharding
    from scaffold.cut.extract import Prepared
    from scaffold.descriptor import AnyPort
    from scaffold.descriptor.sections import CutModality, Explicit, ExplicitRows, Modality, Path, Sequences
    from scaffold.protocol import Dialect, ProtocolProfile

#: A `let` that is longer than this, spelled out, gets lines of its own in the methods of the tiles layout.
_LONGEST = 60

#: The gate of a port that has no graphs where ranks share the items of a batch.
DATA_PARALLEL = "not self.use_data_parallel"

#: Why precomputed embeddings turn graphs off under data parallelism in a release without a hook for results.
_NO_GATHER = (
    "Under data parallelism this release's manager gathers results by the tokens that items declare, and precomputed "
    "embeddings declare more than they have."
)

#: Smallest budget of a graph of packed rows, in tokens, as vLLM's own ports have it.
_ROWS_BUDGET = 64

#: Smallest budget of a graph of units with fewer tokens: images of a batch.
_LEAST_BATCH = 8

#: The buffers of rotary embeddings, by vLLM's words.
_ROTARY = "rotary_pos_emb"

#: The features of an item in a loop over items.
_ENCODED = "encoded"

#: No code at all.
_NONE = Code("")


@dataclass(frozen=True)
class TreeFacts:
    """Facts about the tree that the generated code needs beyond its protocol; None means that it cannot be known.

    `has_input_dtype`: the model has the attribute of `pixels.dtype`. `has_gate`: the class has what the gate reads.
    `has_multimodal_config`: it keeps that of its inputs.
    `has_vllm_config`: the class keeps vLLM's configuration; subclasses with an `__init__` of their own keep what it
    keeps, and not what a port adds to it. `attention_fills_zeros`: attention's output is zero-filled while a graph is
    captured (0.31 on), so that rows of no sequence hold no NaN. `has_lengths`: the tower makes the lengths that
    FlashInfer's attention needs. `checks_types`: the tree's own checks read the types of model files. `info_class`: the
    class that defines what `budget.frames` asks the model's processing info for, as `(module, name)`. `input_classes`:
    by modality, the class of parsed inputs that its entry takes, where a batch may be parsed into another one.
    `optional`: the attributes that a model may be without, as their annotations say. `extraction`: what an explicit
    port makes of the model's methods; None for an adapter, which makes nothing of them. `in_tree`: it is a port in a
    tree, whose first question reads what the model says. `normalised`: the expression for the pixels that the model
    hands to the tower, which it normalises itself on 0.28 and 0.29. `converted`: what it does to tiles before their
    call gets them, such as `.to(self.dtype)`. `sharding`: the parameter that keeps the model's
    own data parallelism off; None where the code of the tree has no place for one, and for an adapter.
    `counters`: the tower's own methods that say how many sequences of a set a graph may have. `device_bounds`: longest
    sequences that the tower computes on its device. `constants`: attributes that the constructor of the descriptor's
    processor sets to a default, by the descriptor's names for them. `sync_guard`: the module of `gpu_sync_allowed`,
    where the tree has it and the port splits the tower; `waits`: what moved statements wait for the GPU for, where
    vLLM's own tests on a GPU fail without.
    `shares_items`: ranks may share the items of a batch, so that one of them may get none. `padding`: vLLM's own
    functions that pad offsets, as `(module, name)`, that of FlashInfer's last where the port needs it.
    `keeps_offsets`: each `__init__` of the model and of its subclasses makes a place for captured offsets.
    `cross_attends`: the decoder reads the encoder's features beside its own tokens, so its context holds none of them.
    `embeds_nothing`: by its annotation, the model's `embed_multimodal` may return None.
    `embeds_are_cast`: the model gives precomputed embeddings its own type. `copies`: what an explicit port's model
    makes of the features of a graph may be a view of them. `manager_bounds`: the tree's manager runs a batch eagerly
    that has more frames than its graph. `on_host`: inputs with an entry for each item that are tensors on the host.
    """

    has_input_dtype: bool | None = None
    has_gate: bool = True
    has_vllm_config: bool = False
    has_multimodal_config: bool = True
    attention_fills_zeros: bool = False
    has_lengths: bool | None = None
    checks_types: bool = False
    info_class: tuple[str, str] | None = None
    input_classes: tuple[tuple[str, str], ...] = ()
    optional: frozenset[str] = frozenset()
    extraction: Extraction | None = None
    in_tree: bool = False
    normalised: str = "{pixels}"
    converted: str = ""
    sharding: Sharding | None = None
    counters: frozenset[str] = frozenset()
    device_bounds: tuple[str, ...] = ()
    sync_guard: str | None = None
    waits: tuple[str, ...] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    shares_items: bool = True
    padding: tuple[tuple[str, str], ...] = ()
    keeps_offsets: bool = False
    cross_attends: bool = False
    embeds_nothing: bool = False
    embeds_are_cast: bool = False
    copies: bool = True
    manager_bounds: bool = False
    on_host: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Constant:
    """A property of the generated class, `name`: an attribute of the processor, or what its static method computes.

    `known`: `value` is a number, since the tree has it.
    """

    name: str
    attribute: str
    owner: Code
    value: Code
    known: bool = False


@dataclass(frozen=True)
class Entry:
    """The way into the model's own code for one modality: the statements that return its embeddings."""

    pixels: str
    statements: tuple[Code, ...]


@dataclass(frozen=True, kw_only=True)
class View:
    """The names that the templates of every layout see."""

    dialect: Dialect
    signature: Signatures
    modalities: tuple[Modality, ...] | tuple[CutModality, ...]
    has_video: bool
    constants: tuple[Constant, ...]
    gate: Code | None
    encoder_gate: Code | None
    gate_why: str | None
    hidden_size: Code
    buffer_keys: list[str]
    #: The smallest budget. A class that ports share may know it.
    budget_min: Code = _NONE
    budget_why: str | None = None
    budget_lets: Lets = ()
    #: Units of the largest item, where the largest budget holds one such item in any case.
    most: Code | None = None
    forward: Code
    checks_types: bool
    #: Whether a batch may be without items, as one of a rank where ranks share the items and there are graphs.
    may_be_empty: bool
    #: Whether the port gives precomputed embeddings the model's type: ranks gather them, and one type.
    casts_embeds: bool
    #: Whether the rows that a graph gives of an item take as many tokens of the model's context.
    takes_context: bool

    @property
    def context_why(self) -> str:
        """Why they take none."""
        return (
            "The decoder reads the features by cross-attention: they take no room in its context, whose length "
            "therefore bounds nothing."
        )

    @property
    def budget_head(self) -> Code | None:
        """A statement before the range of budgets, which makes what its minimum reads."""
        return None

    @property
    def has_modality(self) -> bool:
        """Whether `get_input_modality` is written: the protocol's own says `image` of every batch."""
        return self.has_video or self.dialect.modality_called

    @property
    def modality_names(self) -> list[str]:
        return [modality.name for modality in self.modalities]

    @property
    def served(self) -> Code:
        """The modalities that have graphs: all, or none where the gate is closed."""
        names = pyrepr(self.modality_names)
        if self.gate is None:
            return names
        closed = _closed(self.gate)
        return Code(f"[] if {closed} else {names}" if closed else f"{names} if {self.gate} else []")

    @property
    def pixel_keys(self) -> dict[str, str]:
        return {modality.name: modality.pixels for modality in self.modalities}

    @property
    def pixels_buffer(self) -> str:
        """The recorded buffer that holds the pixels of every modality."""
        return self.modalities[0].pixels

    @property
    def container(self) -> Code:
        """The name of the recorded buffers in the manager's records."""
        return Code("values" if self.dialect.values else "buffers")

    @property
    def path_names(self) -> list[str]:
        """Names of the paths, none where everything runs on the default one."""
        return []

    @property
    def no_path_tokens(self) -> dict[str, int]:
        """No tokens on any path."""
        return dict.fromkeys(self.path_names or ["default"], 0)

    @property
    def padding_logics(self) -> dict[str, str]:
        """Buffers that the generated class pads itself, and by what."""
        return {}

    @property
    def config_head(self) -> Code | None:
        """A statement in front of the configuration, for a variable that it reads."""
        return None

    @property
    def budget_unit(self) -> Code | None:
        """The tokens of a unit, where budgets are for whole ones."""
        return None

    @property
    def pads_offsets(self) -> bool:
        """Whether there are offsets to pad whose buffers are known only when a model starts."""
        return False

    @property
    def counts_video(self) -> bool:
        """Whether the frames of a video decide any size."""
        return False

    @property
    def has_paths(self) -> bool:
        """Whether units of each modality have a path of their own."""
        return False


@dataclass(frozen=True)
class UnitBuffer:
    """A recorded buffer with an entry of `shape` for each unit."""

    name: str
    shape: Code
    dtype: Code


@dataclass(frozen=True)
class EagerCrops:
    """The input `name` with crops of `shape`, and what encodes them."""

    name: str
    shape: Code
    encoded: Code


@dataclass(frozen=True)
class ReentryView(View):
    """The encoder alone; the model's own code does the rest."""

    modalities: tuple[CutModality, ...]
    batched: list[str]
    sized: dict[str, str]
    #: The inputs whose sizes are a grid, but not its product for all items.
    grids: dict[str, SizedField]
    entries: tuple[Entry, ...]

    @property
    def row_counts(self) -> dict[str, Code]:
        """The number of rows of an item in each input whose items lie behind each other, by an entry `size`."""
        return {key: _row_count(self.grids[key]) if key in self.grids else Code("int(size)") for key in self.sized}

    @property
    def frames_axis(self) -> int:
        """The axis along which the items of an input lie behind each other."""
        return 0


@dataclass(frozen=True)
class CutView(ReentryView):
    """Units of one shape, or of one for each path."""

    #: The units, and the arguments of the encoder beside them that have an entry for each.
    buffers: tuple[UnitBuffer, ...]
    #: Whether the encoder takes or gives something else than units and their features.
    wraps: bool
    #: The shape of one unit of the pixels, where the encoder gets what other parts have made of it.
    pixel_shape: Code | None = None
    padded: bool = False
    #: Arguments of the encoder that no graph holds.
    absent: tuple[str, ...] = ()
    #: Arguments that are values of the model itself, and these values: a graph holds no other.
    fixed: tuple[tuple[str, Code], ...] = ()
    #: The argument that hides the padding of shorter units.
    mask: str | None = None
    #: Parameters of what stands in for the encoder, and those of them that a graph reads.
    unit_parameters: Code = _NONE
    units: Code = _NONE
    axis: int = 0
    channels: int = 0
    #: The index or attribute of the encoder's result that has the features; empty for a tensor.
    result_of: Code = _NONE
    #: The layers that the model uses of the encoder's list, as elements of a set; empty where it gives no list.
    layers: Code = _NONE
    #: `features` in the form of the encoder's own result, where that is another.
    features: Code | None = None
    #: Units of another shape that no graph holds.
    crops: EagerCrops | None = None
    #: The shape of one unit of the pixels on each path, by its input; empty where all units have one shape.
    pixel_shapes: tuple[tuple[str, Code], ...] = ()
    #: Names in the shapes of `buffers` that have a value for each path.
    path_lets: tuple[tuple[str, tuple[tuple[str, Code], ...]], ...] = ()
    #: How many features become one token, where that is more than one.
    rows_per_token: Code | None = None

    @property
    def has_paths(self) -> bool:
        return bool(self.pixel_shapes)

    @property
    def input_key(self) -> str:
        """The input that a manager reads by itself (to 0.22). Its pixels need not be units: it gets none."""
        return "no_pixels"

    @property
    def pixel_keys(self) -> dict[str, str]:
        return dict.fromkeys(self.modality_names, self.input_key)


@dataclass(frozen=True)
class UnitsView(View):
    """A cut whose units are the pixels themselves, and whose port runs no code of the model twice."""

    modalities: tuple[CutModality, ...]
    embeds: str | None
    batched: list[str]
    #: The inputs with an entry for each item that are always a tensor: of one shape, or counts of rows.
    tensors: list[str]
    on_host: frozenset[str]
    #: The inputs whose items lie behind each other, each with as many rows as `counts` has.
    sized: list[str]
    counts: Code
    single: bool
    #: The word for one unit.
    unit: Code
    #: The pixels of a batch, and what the encoder gets with them.
    joined: dict[str, Code]
    tokens: Code
    token_lets: Lets
    #: The tokens of a unit, by which budgets count: a property, where they are more than an attribute or a number.
    unit_tokens: Code
    has_property: bool
    #: Whether a unit claims more tokens than it has. Else each graph would be as large as a batch can be.
    claims: bool
    pixel_shape: Code
    pixel_lets: Lets
    pixel_dtype: Code
    #: The encoder's arguments with an entry for each unit.
    beside: tuple[UnitBuffer, ...]
    #: A variable with what the model parses the inputs into, and its value.
    parsed: tuple[str, Code] | None
    #: Variables with what a method of the model gives of that, and its call.
    unpacked: tuple[Code, Code] | None
    #: The embeddings of a batch, made of its `features`; None where a graph gives their rows.
    embeddings: Code | None
    #: Whether these may be views of the features, which the next replay overwrites.
    copies: bool
    #: Whether what runs on a graph's features may read any of the inputs.
    parses: bool
    #: Whether the graph makes a tensor for each item, and whether it may do so by its type alone.
    makes_items: bool
    may_be_items: bool
    #: Whether it may be None by its type.
    may_be_none: bool
    #: Whether parsed inputs may be None by their type.
    may_be_nothing: bool
    #: Whether the model makes the embeddings of one item after another.
    finishes_apart: bool

    @property
    def context_why(self) -> str:
        if not self.finishes_apart:
            return super().context_why
        return f"An item may take fewer tokens of the context than its {self.units} have in a graph."

    @property
    def budget_unit(self) -> Code | None:
        return self.unit_tokens if self.budget_min == self.unit_tokens else None

    @property
    def budget_units(self) -> Code:
        """The units that a budget has room for."""
        if self.claims:
            return Code(f"token_budget // self._encoder_cudagraph_{self.unit}_tokens")
        return Code("token_budget" if self.tokens == "1" else f"token_budget // {self.unit_tokens}")

    @property
    def units(self) -> Code:
        return Code("patches" if self.unit == "patch" else f"{self.unit}s")

    @property
    def selected(self) -> dict[str, Code]:
        """The inputs with an entry for each item that are tensors, or lists of units, with the chosen ones.

        An index of numbers on the host waits for the GPU where the tensor is there: views do not.
        """
        known = {*self.joined, *self.tensors, *self.on_host} - {self.embeds}
        return {key: self._chosen(key) for key in self.batched if key in known}

    def _chosen(self, key: str) -> Code:
        items = f"mm_kwargs[{pyrepr(key)}]"
        if key not in self.joined or (self.single and self.may_be_empty):
            return Code(f"{items}[indices]")
        return Code(f"torch.stack([{items}[i] for i in indices])" if self.single else f"[{items}[i] for i in indices]")

    @property
    def captured(self) -> dict[str, Code]:
        """The tensors of a capture, by the key of their buffer."""
        return {name: Code(name) for name in (self.pixels_buffer, *(one.name for one in self.beside))}

    @property
    def reads_inputs(self) -> bool:
        """Whether the buffers of a graph are inputs of a batch as they are, under their keys."""
        return all(value == f"mm_kwargs[{pyrepr(key)}]" for key, value in self.joined.items())

    @property
    def others(self) -> list[str]:
        """The other inputs with an entry for each item; they may be tensors or lists."""
        return [key for key in self.batched if key != self.embeds and key not in self.selected]

    @property
    def total(self) -> Code:
        """The number of units of a batch. The shape of joined pixels says it without a look at the device."""
        if self.single:
            return Code("len(indices)")
        return Code(f" len(batch_mm_kwargs[{pyrepr(self.pixels_buffer)}])" if self.sized else f" sum(num_{self.units})")

    @property
    def reads_counts(self) -> bool:
        """Whether the code behind a replay needs the number of units of each item."""
        return f"num_{self.units}" in self.total + (self.embeddings or "")


@dataclass(frozen=True)
class PreparedView(View):
    """Rows whose layers run once, on what a method of the tower prepares; the port runs no code twice."""

    modalities: tuple[CutModality, ...]
    embeds: str | None
    pixels_key: str
    rows_per_token: Code
    item_lets: Lets
    prepare: Code
    #: The variables that it gives, with `_` for those that are no buffer.
    made: Code
    rotary: str | None
    pair: Code | None
    #: The buffers of rows, with what they are filled with.
    rows_values: tuple[tuple[str, Code], ...]
    offsets: str
    longest: str
    embeddings: Code
    #: Whether these may be views of the features, which the next replay overwrites.
    copies: bool
    #: vLLM's own functions that pad offsets, as a packed port has them.
    padding: tuple[str, ...]

    #: An explicit port is for releases whose attention leaves no row unwritten.
    cover_rows = False

    @property
    def rows_keys(self) -> list[str]:
        return [name for name, _ in self.rows_values]

    @property
    def padding_logics(self) -> dict[str, str]:
        return {self.offsets: _padded_by(self.padding)}


@dataclass(frozen=True)
class LayersView(PreparedView):
    """Layers whose encoder has a call of its own."""

    batched: list[str]
    #: The rows of an item, by the sides `h` and `w` of its pixels.
    rows: Code
    side_lets: Lets
    item_shape: Code
    parsed: tuple[str, Code] | None
    parsed_batch: Code
    whole: Code
    lengths: str
    #: Attention's backend.
    backend: Code

    flashinfer = True

    @property
    def config_head(self) -> Code | None:
        return _chosen_padding(self.padding, self.backend)


@dataclass(frozen=True)
class LoopView(PreparedView):
    """Layers in a loop, on what the port makes of pixels and a method prepares."""

    #: The input with a grid for each item, its columns, and the variable of the grids of a batch.
    sizes_key: str
    size_names: Code
    sizes: Code
    sizes_type: Code
    num_patches: Code
    patch_shape: Code
    #: The grid of the smallest item, of one token.
    least: Code
    layers: Code
    #: All that is prepared, and the layers on it.
    every: Code
    eager: Code
    #: Whether the longest sequence is among it.
    makes_longest: bool
    #: Whether the statements in front of the layers copy offsets to the device.
    uploads: bool
    why: str | None

    flashinfer = False


@dataclass(frozen=True)
class TokenEntries:
    """The input `name`: how many entries an item has, by its grid `size`, and the call that makes them."""

    name: str
    count: Code
    made: Code


@dataclass(frozen=True)
class FramesOf:
    """The input `key` with the frames of each sound, the rows of one of `n` frames, and those of an attention window.

    `axis` is that of the frames in the spectrum. Each of the two methods has its variables.
    """

    key: str
    rows: Code
    lets: Lets
    window: Code
    window_lets: Lets
    axis: int


@dataclass(frozen=True)
class RowsView(ReentryView):
    """Patch rows of all items. The encoder's arguments are found when a model starts; `values` are those of an item of
    h x w patches, by input."""

    item_shape: Code
    #: The input with a grid for each unit of an item, where it may be several.
    units: str | None
    #: The input that says which rows of a padded item are patches.
    mask: str | None
    #: The input with the grids of units or items that are padded.
    grid: str | None
    values: tuple[tuple[str, Code], ...]
    zeros: tuple[tuple[str, Code], ...]
    #: Those of `values` that vLLM moves to the GPU.
    moved: tuple[str, ...]
    #: The input with an entry for each token of an item, where patches do not say how many it has.
    tokens: TokenEntries | None
    #: How the frames of a sound become rows.
    frames: FramesOf | None
    #: Arguments of the loop that no layer reads.
    unread: tuple[str, ...]
    #: Whether the encoder gives several tensors of rows.
    several: bool
    #: Whether the model calls the encoder once for each item.
    per_item: bool
    merge: Code
    rows_per_token: Code
    embeds: str | None
    cover_rows: bool
    filler_rows: Code
    filler_why: str
    filler_lets: Lets = ()

    @property
    def pads_offsets(self) -> bool:
        return True

    @property
    def frames_axis(self) -> int:
        return self.frames.axis if self.frames else 0

    @property
    def counts(self) -> str | None:
        """The input that counts the units of an item, where it may be several."""
        return self.sized[self.units] if self.units else None

    @property
    def row_counts(self) -> dict[str, Code]:
        """The number of rows of an item in each input whose items lie behind each other, by an entry `size`: a grid of
        patches has as many as its product, precomputed embeddings have one for each token, and units one for each.

        An input of tokens has a count of its own."""
        if self.units or self.frames:
            return dict.fromkeys(self.sized, Code("int(size)"))
        patches, tokens = "int(size.prod())", f"int(size.prod()) // {self.rows_per_token}"
        counts = {key: Code(tokens if key == self.embeds else patches) for key in self.sized}
        return counts | ({self.tokens.name: self.tokens.count} if self.tokens is not None else {})


@dataclass(frozen=True)
class SizedView(View):
    """The view of a model that has a size key for its items."""

    modalities: tuple[Modality, ...]
    size_names: Code
    sizes: Code
    sizes_type: Code
    sizes_doc: Code
    #: Context managers that turn the model's own data parallelism off.
    switches: tuple[Code, ...]
    #: Whether an argument of `forward` turns it off.
    passes_switch: bool
    embeds: str | None

    @property
    def several(self) -> bool:
        """Whether there are modalities, each with keys of its own."""
        return len(self.modalities) > 1

    @property
    def sizes_method(self) -> Code:
        return Code(f"_get_encoder_cudagraph_{self.sizes}")

    @property
    def pixels_key(self) -> Code:
        """The key of a batch's pixels: a variable where modalities differ."""
        return Code("pixels_key") if self.several else pyrepr(self.modalities[0].pixels)

    @property
    def sizes_key(self) -> Code:
        return Code(f"{self.given}_key") if self.several else pyrepr(self.modalities[0].sizes)

    @property
    def given(self) -> Code:
        """The sizes as the manager hands them over, a tensor or a list."""
        return Code("grid" if self.sizes.startswith("grid_") else "tiles")


@dataclass(frozen=True)
class TilesView(SizedView):
    """Fixed-size tiles, dense attention inside each: the pixels are the only buffer."""

    rows: Code
    rows_of_items: Code
    tokens: Code
    item_why: str | None
    token_lets: Lets
    capture_rows: Code
    capture_why: str | None
    row_lets: Lets
    pixel_shape: Code
    pixel_lets: Lets

    @property
    def units(self) -> Code:
        return Code("tiles")

    @property
    def budget_unit(self) -> Code | None:
        """The tokens of a tile, where budgets are whole tiles."""
        return self.budget_min if self.tokens == f"{self.rows} * {self.budget_min}" else None

    @property
    def shape_lets(self) -> Lets:
        """Variables of the pixels' shape in a method that has `row_lets` above."""
        above = {name for name, _ in self.row_lets}
        return tuple(let for let in self.pixel_lets if let[0] not in above)

    @property
    def replay_pixels(self) -> Code:
        # Where a batch of precomputed embeddings is replayed (and the result dropped), it has no pixels to copy.
        without_pixels = self.embeds is not None and not self.dialect.zero_path_tokens
        return Code(f"mm_kwargs.get({self.pixels_key})" if without_pixels else f"mm_kwargs[{self.pixels_key}]")


@dataclass(frozen=True)
class SequenceView:
    """A set of attention sequences in the capture method: its local variable, and the metadata method's parameters.

    `spare` is how many sequences more cover the rows behind a batch. `counted`: its count is that of frames.
    """

    variable: str
    capacity: str
    override: str
    offsets: str
    count: Code
    longest: Code
    spare: Code
    why: str | None
    counted: bool


@dataclass(frozen=True)
class PackedView(SizedView):
    """Rows of all items behind each other; metadata that the tower computes from the grids.

    `claims_frames`: a video can claim more tokens than it has, so that no graph gets more frames than sequences.
    `manager_bounds`: the manager sees to that.
    """

    rows: Code
    rows_spelled: Code
    tokens: Code
    item_lets: Lets
    pixel_shape: Code
    pixel_dtype: Code
    sets: tuple[SequenceView, ...]
    capture_lets: Lets
    side_limit: Code | None
    capture_why: str | None
    merge_h: Code
    merge_w: Code
    has_time: bool
    tower: Code
    #: The sizes in the form that its metadata method takes.
    tower_sizes: Code
    eager: Code
    after: Code | None
    after_why: str | None
    frames: Code | None
    frames_why: str | None
    frames_info: str | None
    info_class: str | None
    model_config: Code
    multimodal_config: Code
    counts_frames: bool
    claims_frames: bool
    manager_bounds: bool
    frame_names: Code
    flashinfer: bool
    cover_rows: bool
    filler_rows: Code
    filler_why: str
    filler_lets: Lets
    device_bounds: tuple[str, ...]
    guarded: tuple[str, ...]
    padding: tuple[str, ...]
    keeps_offsets: bool
    #: Whether the tree's checks ask that the result of `embed_multimodal` is not None.
    asserts_embeddings: bool

    @property
    def offset_keys(self) -> list[str]:
        return [set_.offsets for set_ in self.sets]

    @property
    def padding_logics(self) -> dict[str, str]:
        return dict.fromkeys(self.offset_keys, _padded_by(self.padding))

    @property
    def backend(self) -> Code:
        """The backend of the tower's attention."""
        return Code(f"{self.tower}.attn_backend")

    @property
    def config_head(self) -> Code | None:
        return _chosen_padding(self.padding, self.backend)

    @property
    def counts_video(self) -> bool:
        return self.has_video and self.counts_frames

    @property
    def has_hook(self) -> bool:
        """Whether the release hands results to the model before they are embeddings."""
        return self.dialect.postprocess.value != "none"

    @property
    def bounds_frames(self) -> bool:
        """Whether a graph has a sequence for each token, since nothing else bounds the frames of its batches."""
        return self.counts_frames and self.has_video and not self.has_hook

    @property
    def declares_frames(self) -> bool:
        """Whether an item can say that it has more frames than a graph has sequences."""
        return self.counts_frames and not (self.bounds_frames or self.manager_bounds)

    @property
    def may_go_eager(self) -> bool:
        """Whether there are batches that no graph serves: precomputed embeddings, more frames than sequences."""
        return self.declares_frames or self.embeds is not None

    @property
    def video_sizes(self) -> str | None:
        """The key of videos' grids."""
        return next((modality.sizes for modality in self.modalities if modality.name == "video"), None)

    @property
    def above_why(self) -> str:
        """Why such an item declares so, as a comment."""
        told_alone = self.dialect.item_specs and not self.dialect.zero_path_tokens
        several = "items of several frames" if self.dialect.zero_path_tokens else "items of too many frames"
        frames = [several] if self.declares_frames and not told_alone else []
        items = " and ".join([*(["precomputed embeddings"] if self.embeds else []), *frames])
        if self.dialect.zero_path_tokens:
            return f"Claim more tokens than any budget: the manager runs {items} eagerly."
        return f"To run eagerly, {items} declare more tokens than any graph holds."

    @property
    def goes_eager(self) -> Code:
        """Whether an item declares so."""
        frames = ["t > 1"] if self.declares_frames else []
        return Code(" or ".join([*(["has_embeds"] if self.embeds else []), *frames]))

    @property
    def drops(self) -> Code:
        """Whether a replay's result is dropped."""
        embeds = [f"{self.embeds_key} in mm_kwargs"] if self.drops_embeds else []
        frames = ["num_frames > max_frames"] if self.counts_frames else []
        return Code(" or ".join([*embeds, *frames]))

    @property
    def drops_why(self) -> str:
        """Why, as a comment."""
        if not self.drops_embeds:
            return "No graph holds frames that are too many together."
        return f"No graph holds precomputed embeddings{' or so many frames' * self.counts_frames}."

    @property
    def embeds_key(self) -> Code:
        return Code("embeds_key") if self.several else pyrepr(self.modalities[0].embeds)

    @property
    def embeds_given(self) -> Code:
        """Whether a batch is precomputed embeddings."""
        key = "self._get_encoder_cudagraph_keys(mm_kwargs)[1]" if self.several else pyrepr(self.modalities[0].embeds)
        return Code(f"{key} in mm_kwargs")

    @property
    def drops_replays(self) -> bool:
        """Whether the manager replays some of them all the same.

        An item has one number of tokens there: the manager sizes results by it, so it cannot say that frames together
        are too many (nor, under data parallelism, that there are embeddings).
        """
        return self.drops_embeds or (self.has_hook and self.counts_frames and not self.dialect.zero_path_tokens)

    @property
    def drops_embeds(self) -> bool:
        """Whether precomputed embeddings are among them."""
        return self.embeds is not None and self.has_hook and not self.dialect.zero_path_tokens

    @property
    def keys(self) -> list[tuple[str | None, ...]]:
        """Keys of each modality's inputs. A modality that takes no precomputed embeddings has no key for them."""
        if self.embeds is None:
            return [(modality.pixels, modality.sizes) for modality in self.modalities]
        return [(modality.pixels, modality.embeds, modality.sizes) for modality in self.modalities]

    @property
    def rows_of_items(self) -> Code:
        return Code(f"[{self.rows_spelled} for {self.size_names} in {self.sizes}]")

    @property
    def keys_type(self) -> Code:
        if self.embeds is None:
            return Code("tuple[str, str]")
        every = all(modality.embeds for modality in self.modalities)
        return Code(f"tuple[str, {'str' if every else 'str | None'}, str]")

    @property
    def rows_per_token(self) -> Code:
        return Code(f"{self.merge_h}**2" if self.merge_h == self.merge_w else f"{self.merge_h} * {self.merge_w}")

    @property
    def num_seqs(self) -> Code:
        """Number of frames of a batch, from its sizes."""
        return Code(f"sum(t for {self.frame_names} in {self.sizes})")


@dataclass(frozen=True)
class PathView:
    """One path in the words of the generated code; `tokens` and `rows` are local variables of its methods."""

    name: str
    pixels: str
    count: Code
    shape: Code
    tokens: Code
    rows: Code

    @property
    def word(self) -> Code:
        """The name as a part of identifiers and of comments; the descriptor's rules make it a plain word."""
        return Code(self.name)


@dataclass(frozen=True)
class PathsView(SizedView):
    """Tiles of two shapes. Where the protocol has paths, each kind is captured by itself. Where it has none, one graph
    encodes both kinds and puts the rows in order, through an index that is a buffer of its own."""

    single: PathView
    many: PathView
    ordered: tuple[PathView, ...]
    token_lets: Lets
    row_lets: Lets
    shape_lets: Lets
    helpers: tuple[tuple[str, Code, Code, str | None], ...]

    @property
    def path_names(self) -> list[str]:
        return [self.single.name, self.many.name]

    @property
    def config_head(self) -> Code | None:
        first = {"dual": f"{self.single.word}_tokens", "named": "_"}.get(self.dialect.paths.value)
        if first is None:
            return None
        return Code(f"{first}, {self.many.word}_tokens = self._get_encoder_cudagraph_tile_tokens()")

    @property
    def budget_head(self) -> Code:
        return Code(f"{self.single.word}_tokens, _ = self._get_encoder_cudagraph_tile_tokens()")

    @property
    def tiles_of_item(self) -> Code:
        """The tiles of item `i` in order, cut from lists of both kinds."""
        return _joined(
            f"{path.word}_tiles[i]" if path is self.single else f"*{path.word}_tiles[start : start + {path.count}]"
            for path in self.ordered
        )


def make_view(port: AnyPort, profile: ProtocolProfile, facts: TreeFacts) -> View:
    """The view of a port that `profile`'s protocol can express."""
    view: View = _VIEWS[port.layout](port, profile, facts)
    return view


def _shared(port: AnyPort, profile: ProtocolProfile, facts: TreeFacts) -> dict[str, Any]:
    """The fields of `View` that mean the same in every layout."""
    names = Names.of(port)
    given = port.processor
    said = port.gate if facts.has_gate else None
    gate = names.code(said) if said is not None else None
    lacking = _may_lack(port, facts)
    encoder = _all_of(
        names.code(port.encoder_gate) if port.encoder_gate else None,
        *(Code(f"self.{one} is not None") for one in lacking),
    )
    whys = [port.gates.why] if port.gates and facts.has_gate else []
    if lacking:
        whys.append(f"A configuration may leave `{'` and `'.join(lacking)}` out.")
    if isinstance(port, SizedPort) and port.embeds is not None and profile.dialect.postprocess.value == "none":
        gate = _all_of(gate, Code("not (self.use_data_parallel and self.multimodal_config.enable_mm_embeds)"))
        whys.append(_NO_GATHER)
    shares = facts.shares_items and (said is None or said.text != DATA_PARALLEL)
    return {
        "dialect": profile.dialect,
        "signature": Signatures(profile),
        "has_video": port.has_video,
        "constants": tuple(_constant(name, given.class_, entry, facts) for name, entry in given.values.items())
        if given
        else (),
        # vLLM asks the model about its encoder before anything else; in an adapter's release it asks the class alone.
        "gate": _all_of(gate, None if facts.in_tree else encoder),
        "encoder_gate": encoder if facts.in_tree else None,
        "gate_why": " ".join(filter(None, whys)) or None,
        "hidden_size": names.code(port.output.hidden_size),
        "checks_types": facts.checks_types,
        "may_be_empty": shares,
        "casts_embeds": shares and not facts.embeds_are_cast,
        "takes_context": not facts.cross_attends,
    }


def _may_lack(port: AnyPort, facts: TreeFacts) -> list[str]:
    """The attributes of the captured call that are None where a configuration leaves the encoder out."""
    if not isinstance(port, PackedPort | TilesPort | PathsPort):
        return []
    return sorted({call.path.split(".")[1] for call in port.forward.call.calls()} & facts.optional)


def _all_of(*gates: Code | None) -> Code | None:
    return Code(" and ".join(filter(None, gates))) or None


def _constant(name: str, class_name: str, given: str | Count, facts: TreeFacts) -> Constant:
    if isinstance(given, Count):
        call = Code(f"{class_name}.{given.method}({given.of})")
        return Constant(property_of(name), given.method, Code("processing info"), call)
    known = facts.constants.get(name)
    value = Code(f"{class_name}().{given}" if known is None else str(known))
    return Constant(property_of(name), given, Code("image processor"), value, known is not None)


def _sized(port: SizedPort, profile: ProtocolProfile, facts: TreeFacts) -> dict[str, Any]:
    """The fields of `SizedView` that mean the same in every layout."""
    return {
        "modalities": port.inputs,
        "size_names": Code(", ".join(port.columns)),
        "sizes": _sizes_name(port.columns),
        "sizes_type": Code("list[int]" if len(port.columns) == 1 else "list[list[int]]"),
        "embeds": port.embeds,
        "switches": () if facts.sharding else tuple(map(_switch, port.switches)),
        "passes_switch": facts.sharding is not None,
    }


def _reentry(port: ReentryPort, facts: TreeFacts, encode: str) -> dict[str, Any]:
    """The fields of `ReentryView`; `encode` is handed to the model's own code in the place of its encoder."""
    modalities = tuple(port.modalities.values())
    return {
        "modalities": modalities,
        "batched": list(port.batched),
        "sized": port.sized,
        "grids": port.grids,
        "entries": tuple(_entry(modality, encode, facts) for modality in modalities),
    }


def _entry(modality: CutModality, encode: str, facts: TreeFacts) -> Entry:
    """The way in takes what stands for the encoder as one more argument.

    Parsed inputs may be None by their type, or of another class. They are not for the batches that get here, which a
    type checker is told.
    """
    bindings = {"**inputs": "**mm_kwargs", f"self.{PUBLIC_ENTRY}": f"self.{PRIVATE_ENTRY}"}
    call, above = modality.entry, []
    if facts.checks_types and call.args and isinstance(call.args[0], Call):
        parsed, class_ = f"{modality.name}_input", dict(facts.input_classes).get(modality.name)
        known = f"isinstance({parsed}, {class_})" if class_ else f"{parsed} is not None"
        above = [Code(f"{parsed} = {_bound(call.args[0], bindings)}"), Code(f"assert {known}")]
        call = replace(call, args=(Name(parsed), *call.args[1:]))
    return Entry(modality.pixels, (*above, Code(f"return {_bound(call, bindings)[:-1]}, encode={encode})")))


def _cut(port: CutPort, profile: ProtocolProfile, facts: TreeFacts) -> CutView | UnitsView:
    if port.explicit is not None and facts.extraction is not None:
        return _units(port, port.explicit, facts.extraction, facts, _shared(port, profile, facts))
    names = sided = Names.of(port)
    shapes: dict[str, Any] = {}
    if port.has_paths:
        each = {modality.pixels: Names.of(port, port.lets_of(modality)) for modality in port.modalities.values()}
        differing = {name for name in names.bindings if len({one.bindings[name] for one in each.values()}) > 1}
        sided = Names(names.lets, {**names.bindings, **{name: name for name in differing}})
        sides = [*(port.forward.unit or port.pixels.shape)]
        sides += [side for entry in port.forward.with_.values() if isinstance(entry, UnitInput) for side in entry.shape]
        used = set().union(*(side.names for side in sides))
        shapes = {
            "pixel_shapes": tuple((key, _joined(map(one.code, port.pixels.shape))) for key, one in each.items()),
            "path_lets": tuple(
                (name, tuple((key, Code(one.bindings[name])) for key, one in each.items()))
                for name, _ in port.lets
                if name in differing & used
            ),
        }
        if port.item is not None:
            shapes["rows_per_token"] = names.code(_squared(port.item.merge))
    pixels = next(iter(port.modalities.values())).pixels
    unit = [sided.code(side) for side in port.forward.unit or port.pixels.shape]
    absent = tuple(name for name, entry in port.forward.with_.items() if entry == ABSENT)
    mask = port.mask
    given = {
        name: _buffer(name, entry, sided)
        if isinstance(entry, UnitInput)
        else UnitBuffer(name, Code(f"1, 1, {unit[0]}"), Code("dtype"))
        for name, entry in port.forward.with_.items()
        if entry != ABSENT
    }
    keys = {"pixels": pixels} | {name: name for name in given}
    parameters = ["units", *port.forward.with_]
    fixed: dict[str, Code] = {}
    if port.loop:  # all that it reads is handed over
        others = [one for one in port.forward.call.args[1:] if isinstance(one, Name | Attribute)]
        fixed = {path_names(one.path)[-1]: Code(one.path) for one in others if isinstance(one, Attribute)}
        parameters = ["units", *(one.name if isinstance(one, Name) else path_names(one.path)[-1] for one in others)]
    features = _features(port)
    wraps = bool(absent or mask or fixed or features)
    return CutView(
        **_shared(port, profile, facts),
        **_reentry(port, facts, "encode_units" if wraps else "encode"),
        wraps=wraps,
        buffer_keys=list(keys.values()),
        forward=_bound(
            port.forward.call,
            {name: f"inputs[{pyrepr(key)}]{'.unsqueeze(0)' if port.forward.axis else ''}" for name, key in keys.items()}
            | dict.fromkeys(absent, "None"),
        ),
        buffers=(UnitBuffer(pixels, _joined(unit), _pixel_dtype(port.pixels.dtype, facts)), *given.values()),
        absent=absent,
        mask=mask,
        fixed=tuple(fixed.items()),
        unit_parameters=_joined(
            f"{name}: Any" if name in fixed else f"{name}: torch.Tensor{' | None' * (name in absent or name == mask)}"
            for name in parameters
        ),
        units=_joined([f"units{'.squeeze(0)' if port.forward.axis else ''}", *given]),
        layers=_joined(
            names.code(layer)
            if isinstance(layer, Expression)
            else Code(f"*(row[{layer.column}] for row in {layer.table})")
            for layer in port.forward.layers
        ),
        features=features,
        result_of=_result_of(port.forward.result),
        axis=port.forward.axis,
        channels=port.forward.channels,
        padded=port.pixels.padded,
        pixel_shape=_joined(names.code(side) for side in port.pixels.shape) if port.forward.unit else None,
        **shapes,
    )


def _units(
    port: CutPort, explicit: Explicit, extraction: Extraction, facts: TreeFacts, shared: dict[str, Any]
) -> UnitsView:
    """The view of an explicit port."""
    names = Names.of(port)
    [modality] = port.modalities.values()
    token_names, token_lets = names.localised(explicit.tokens, longest=_LONGEST)
    sides = [side for entry in port.beside.values() for side in entry.shape]
    shape_names, pixel_lets = names.localised(*port.pixels.shape, *sides)
    most_names, budget_lets = names.localised(*([explicit.most] if explicit.most else []))
    counted = "num_patches" if port.unit == "patch" else f"num_{port.unit}s"
    parts = "features" if explicit.single else f"features.split({counted})"
    pixels = port.fields.get(modality.pixels)
    size = pixels if isinstance(pixels, SizedField) else None
    # The port has counted the units of each item.
    counts = size is None and not explicit.single
    values = [counted if counts and _counts_units(one, modality.pixels) else one for one in extraction.arguments]
    loop = extraction.loop
    values.insert(extraction.place, _ENCODED if loop else parts if extraction.split else "features")
    embeddings = f"self.{extraction.after}({', '.join(values)})"
    tokens, unit = token_names.code(explicit.tokens), port.unit
    has_property = bool(token_lets) or not (_is_path(tokens) or tokens.isdigit())
    unit_tokens = Code(f"self._encoder_cudagraph_{unit}_tokens") if has_property else tokens
    least, why = unit_tokens, f"One {unit}."
    few = tokens.isdigit() and int(tokens) < _LEAST_BATCH
    if few:
        least = Code(str(_LEAST_BATCH))
        why = "vLLM batches at most as many items as the smallest budget has tokens."
    shapes = {modality.pixels: port.pixels.shape} | {name: entry.shape for name, entry in port.beside.items()}
    joined = {key: f"mm_kwargs[{pyrepr(key)}]" for key in shapes}
    if explicit.single and extraction.regroups:
        joined = {key: f"{value}.flatten(0, -{len(shapes[key]) + 1})" for key, value in joined.items()}
    elif not explicit.single and not port.sized:
        joined = {key: f"torch.cat(list({value}))" for key, value in joined.items()}
    # Without anything else to read, what follows the encoder is a part of the graph.
    follows = explicit.single and extraction.after is not None and not extraction.arguments
    returned = extraction.returns.split(" | ")
    # Parsed inputs may be any of the batch. A graph that gives embeddings reads its buffers alone.
    finishes = extraction.after is not None and not follows
    parses = finishes and extraction.parsed is not None
    nodes = itertools.chain.from_iterable(ast.walk(ast.parse(text)) for text in extraction.arguments)
    said = {node.value for node in nodes if isinstance(node, ast.Constant)}
    read = {*joined, *port.sized.values(), port.embeds, *said}

    def encoded(values: Mapping[str, str]) -> Code:
        pixels, *others = values.values()
        beside = dict(zip(port.beside, others, strict=True))
        call = _replaced(extraction.held, {"pixel_values": pixels, **beside})
        return Code(f"self.{extraction.after}({call})" if follows else call)

    buffers = shared["signature"].parameter("encoder_cudagraph_forward", 0)
    shared = {**shared, "takes_context": shared["takes_context"] and loop is None}
    return UnitsView(
        **shared,
        finishes_apart=loop is not None,
        modalities=(modality,),
        embeds=port.embeds,
        buffer_keys=[*joined],
        budget_min=least,
        budget_why=why,
        budget_lets=budget_lets,
        most=most_names.code(explicit.most) if explicit.most else None,
        forward=encoded({key: f"{buffers}[{pyrepr(key)}]" for key in joined}),
        makes_items=follows and "torch.Tensor" not in returned,
        may_be_items=follows and shared["checks_types"] and returned[1:] != [],
        may_be_nothing=extraction.may_be_nothing and shared["checks_types"],
        may_be_none=extraction.optional and not follows and shared["checks_types"],
        batched=[key for key in port.batched if parses or key in read],
        tensors=[*joined] if explicit.single else list(dict.fromkeys(port.sized.values())),
        sized=[key for key in port.sized if parses or key in read],
        on_host=facts.on_host,
        copies=facts.copies,
        parses=parses,
        counts=_row_counts(size, modality.pixels in port.grids) if size else Code(""),
        beside=tuple(_buffer(name, entry, shape_names) for name, entry in port.beside.items()),
        parsed=(extraction.parsed[0], Code(extraction.parsed[1])) if extraction.parsed else None,
        unpacked=(Code(extraction.unpacked[0]), Code(extraction.unpacked[1])) if extraction.unpacked else None,
        single=explicit.single,
        unit=Code(port.unit),
        joined={key: Code(value) for key, value in joined.items()},
        tokens=tokens,
        token_lets=token_lets,
        unit_tokens=unit_tokens,
        has_property=has_property,
        claims=explicit.single and few,
        pixel_shape=_joined(shape_names.code(side) for side in port.pixels.shape),
        pixel_lets=pixel_lets,
        pixel_dtype=_pixel_dtype(port.pixels.dtype, facts),
        embeddings=Code(loop.over(embeddings, _ENCODED, parts) if loop else embeddings) if finishes else None,
    )


def _buffer(name: str, given: UnitInput, names: Names) -> UnitBuffer:
    dtype = Code("dtype" if given.dtype == WEIGHTS else f"torch.{given.dtype}")
    return UnitBuffer(name, _joined(map(names.code, given.shape)), dtype)


def _counts_units(code: str, pixels: str) -> bool:
    """Whether an expression is the number of units of each item, as the shapes of its pixels say it."""
    match ast.parse(code, mode="eval").body:
        case ast.ListComp(
            elt=ast.Subscript(ast.Attribute(ast.Name(item), "shape"), ast.Constant(0)),
            generators=[ast.comprehension(target=ast.Name(each), iter=units, ifs=[])],
        ):
            return item == each and ast.unparse(units) == f"batch_mm_kwargs[{pixels!r}]"
    return False


def _is_path(code: Code) -> bool:
    """Whether code is an attribute of the model or of a part of it."""
    return all(part.isidentifier() for part in code.split("."))


def _row_count(field: SizedField) -> Code:
    """The rows of an item whose entry `size` is a grid."""
    count = f"int(size.prod()){f' + {field.extra}' * bool(field.extra)}"
    return Code(count if field.least is None else f"{count} if size.prod() >= {field.least} else 0")


def _row_counts(field: SizedField, is_grid: bool) -> Code:
    """The rows of each item of a batch. The sizes may be on the device, so that they are read at once."""
    sizes = f"mm_kwargs[{pyrepr(field.sizes)}]"
    if not is_grid:
        return Code(f"{sizes}.tolist()")
    count = f"n{f' + {field.extra}' * bool(field.extra)}"
    count += f" if n >= {field.least} else 0" if field.least is not None else ""
    return Code(f"[{count} for n in {sizes}.prod(-1).tolist()]")


def _crops(port: CropsPort, profile: ProtocolProfile, facts: TreeFacts) -> CutView:
    """A cut with a path for whole images and one for crops, whose graphs read the same buffer; or one for whole images
    alone, in whose graphs' place crops run eagerly."""
    names = Names.of(port)
    [modality] = port.modalities.values()
    key, call = modality.pixels, port.forward.call

    def encoded(units: str) -> Code:
        return Code(f"self.{CHAIN_METHOD}({units})") if port.through else _bound(call, {"pixels": units})

    whole, crops = (_joined(map(names.code, shape)) for shape in (port.pixels.shape, port.crops.shape))
    return CutView(
        **_shared(port, profile, facts),
        **_reentry(port, facts, "encode_units" if port.whole else "encode"),
        wraps=port.whole,
        buffer_keys=[key],
        forward=encoded(f"inputs[{pyrepr(key)}]"),
        buffers=(
            UnitBuffer(key, whole if port.whole else Code("*self._encoder_cudagraph_pixels[path]"), Code("dtype")),
        ),
        unit_parameters=Code("units: torch.Tensor"),
        units=Code("units"),
        crops=EagerCrops(port.crops.pixels, crops, encoded("units")) if port.whole else None,
        pixel_shapes=() if port.whole else ((key, whole), (port.crops.pixels, crops)),
    )


def _prepared(
    port: RowsPort, explicit: ExplicitRows, layers: Prepared, facts: TreeFacts, shared: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of `PreparedView` that mean the same in both forms, and the buffers in the place of variables."""
    names = Names.of(port)
    [modality] = port.modalities.values()
    buffers = shared["signature"].parameter("encoder_cudagraph_forward", 0)
    pair = [f"{_ROTARY}_{name}" for name in ("cos", "sin")] if explicit.rotary is not None else []
    # A batch of one is in front of the rows: buffers, and what the graph gives, are without it.
    values = {name: f"{name}{'.squeeze(0)' * axis}" for name, axis in explicit.rows.items()}
    given = {name: f"{buffers}[{pyrepr(name)}]{'.unsqueeze(0)' * axis}" for name, axis in explicit.rows.items()}
    given[explicit.offsets] = f"{buffers}[{pyrepr(explicit.offsets)}]"
    if explicit.rotary is not None:
        given[explicit.rotary] = f"({', '.join(f'{buffers}[{pyrepr(name)}]' for name in pair)})"
    if explicit.lengths is not None:
        given[explicit.lengths] = f"{buffers}.get({pyrepr(explicit.lengths)})"
    last = max(place for place, name in enumerate(layers.made) if name in given)
    made = [name if name in given else "_" for name in layers.made[: last + 1]]
    fields = {
        **shared,
        "modalities": (modality,),
        "embeds": port.embeds,
        "buffer_keys": [*values, *pair, explicit.offsets, *filter(None, [explicit.lengths])],
        "budget_min": Code(str(_ROWS_BUDGET)),
        "budget_why": "The smallest budget of Qwen2.5-VL's graphs, and of others.",
        "pixels_key": modality.pixels,
        "rows_per_token": names.code(_squared(port.item.merge)),
        "made": Code(", ".join(made) + (", *_" if last + 1 < len(layers.made) else "")),
        "rotary": explicit.rotary,
        "pair": Code(", ".join(pair)) or None,
        "rows_values": tuple((name, Code(value)) for name, value in [*values.items(), *((one, one) for one in pair)]),
        "offsets": explicit.offsets,
        "longest": explicit.longest,
        "copies": facts.copies,
        "padding": tuple(name for _, name in facts.padding),
    }
    return fields, given


def _layers(
    port: RowsPort, explicit: ExplicitRows, extraction: Extraction, facts: TreeFacts, shared: dict[str, Any]
) -> LayersView:
    """The view of an explicit port of rows."""
    from scaffold.cut import PreparedCall

    layers, names = extraction.prepared, Names.of(port)
    assert isinstance(layers, PreparedCall)
    assert explicit.lengths is not None
    fields, given = _prepared(port, explicit, layers, facts, shared)
    sides = [
        side.substitute({name: parse_expression("1")})
        for side, name in zip(port.item.shape[-2:], ("h", "w"), strict=True)
    ]
    side_names, side_lets = names.localised(*sides)
    merge = port.item.merge
    least = [side.substitute({"h": merge, "w": merge}) for side in port.item.shape]
    item_names, item_lets = names.localised(*least)
    batch = {"batch_mm_kwargs": "mm_kwargs"}
    axis = next(iter(explicit.rows.values()))
    parsed = extraction.parsed
    return LayersView(
        **fields,
        batched=list(port.batched),
        forward=Code(f"{_replaced(layers.encode, given)}{'.squeeze(0)' * axis}"),
        rows=Code(" * ".join(f"({one} // {_one(side_names.code(s))})" for one, s in zip("hw", sides, strict=True))),
        side_lets=side_lets,
        item_shape=_joined(map(item_names.code, least)),
        item_lets=item_lets,
        parsed=(parsed[0], Code(_replaced(parsed[1], batch))) if parsed else None,
        parsed_batch=Code(parsed[1] if parsed else ""),
        prepare=Code(_replaced(layers.prepare, batch)),
        whole=Code(_replaced(layers.whole, batch)),
        lengths=explicit.lengths,
        backend=Code(layers.backend),
        embeddings=Code(
            f"self.{extraction.after}({', '.join([*extraction.arguments, 'features.split(num_patches)'])})"
        ),
    )


#: The variable with the side of the squares of patches that become one token.
_MERGE = "merge"


def _loop(
    port: RowsPort, explicit: ExplicitRows, extraction: Extraction, facts: TreeFacts, shared: dict[str, Any]
) -> LoopView:
    """The view of an explicit port of layers in a loop."""
    from scaffold.cut import PreparedLoop

    layers, names = extraction.prepared, Names.of(port)
    assert isinstance(layers, PreparedLoop)
    assert explicit.post is not None
    fields, given = _prepared(port, explicit, layers, facts, shared)
    [(key, grid)] = port.item.values.items()
    columns = ("t", "h", "w")[-len(grid) :]
    sizes = _sizes_name(columns)
    side = parse_expression(_MERGE)
    least = [one.substitute({"h": side, "w": side}) for one in (*grid, *port.item.shape[1:])]
    item_names, item_lets = names.localised(*least)
    item_names = Names(item_names.lets, {**item_names.bindings, _MERGE: _MERGE})
    axis = next(iter(explicit.rows.values()))
    bound = {"pixels": "pixel_values", "sizes": sizes, "grid": f"mm_kwargs[{pyrepr(key)}]", "offsets": "cu_seqlens"}
    given_back = {"items": "features", "sizes": sizes, "grid": f"batch_mm_kwargs[{pyrepr(key)}]"}
    held = explicit.held.python() if explicit.held is not None else "features"
    return LoopView(
        **fields,
        forward=Code(f"{held}{'.squeeze(0)' * axis}"),
        sizes_key=key,
        size_names=Code(", ".join(columns)),
        sizes=Code(sizes),
        sizes_type=Code("list[Any]" if layers.invariant else f"list[tuple[{', '.join(['int'] * len(columns))}]]"),
        num_patches=Code(" * ".join(columns)),
        patch_shape=_joined(map(item_names.code, least[len(grid) :])),
        least=_joined(map(item_names.code, least[: len(grid)])),
        item_lets=((_MERGE, names.code(port.item.merge)), *(one for one in item_lets if one[0] != _MERGE)),
        prepare=Code(_replaced(layers.prepare, bound)),
        layers=Code(_replaced(layers.encode, given)),
        every=Code(", ".join(layers.made)),
        eager=Code(_replaced(layers.encode, {})),
        makes_longest=explicit.longest in layers.made,
        uploads=layers.uploads,
        why=explicit.why,
        embeddings=Code(_replaced(explicit.post.python(), given_back)),
    )


def _squared(side: Expression) -> Expression:
    """How many patches or features of a square become one token."""
    return parse_expression("side ** 2").substitute({"side": side})


def _one(code: Code) -> str:
    """`1 * x` as `x`, in parentheses where it is more than a name."""
    node = ast.parse(code.removeprefix("1 * "), mode="eval").body
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else f"({ast.unparse(node)})"


def _replaced(code: str | ast.expr, values: Mapping[str, str]) -> str:
    """Code with expressions in the place of variables."""
    node = ast.parse(code if isinstance(code, str) else ast.unparse(code), mode="eval").body
    return ast.unparse(_Put(values).visit(node))


class _Put(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(self.values[node.id], mode="eval").body if node.id in self.values else node


def _rows(port: RowsPort, profile: ProtocolProfile, facts: TreeFacts) -> RowsView | LayersView | LoopView:
    names = Names.of(port)
    shared = _shared(port, profile, facts)
    if port.explicit is not None and facts.extraction is not None:
        form = _layers if port.explicit.layers is None else _loop
        return form(port, port.explicit, facts.extraction, facts, shared)
    called = "self._encoder_cudagraph_call is not None"
    return RowsView(
        **shared | {"gate": Code(f"{shared['gate']} and {called}" if shared["gate"] else called)},
        **_reentry(port, facts, "encode_layers" if port.forward.unread else "encode"),
        # Their names are known when the model starts.
        buffer_keys=[],
        budget_min=Code(str(_ROWS_BUDGET)),
        forward=Code(port.recorded),
        item_shape=_joined(names.code(side) for side in port.item.shape),
        units=port.units,
        mask=port.item.mask,
        grid=port.grid,
        values=tuple((key, _nested(names, entry)) for key, entry in port.item.values.items()),
        zeros=tuple((key, _joined(map(names.code, entry))) for key, entry in port.item.zeros.items()),
        moved=port.item.moved,
        tokens=_tokens(port, names),
        frames=_frames(port, names),
        unread=port.forward.unread,
        several=port.forward.several,
        per_item=port.per_item,
        merge=names.code(port.item.merge),
        rows_per_token=names.code(_squared(port.item.merge)),
        embeds=port.embeds,
        cover_rows=not facts.attention_fills_zeros,
        filler_rows=Code(_TILE_ROWS.python()),
        filler_why=_FILLER_WHY[False],
    )


def _tokens(port: RowsPort, names: Names) -> TokenEntries | None:
    """Entries of tokens, counted by the columns of their grid and made of those of an item of h x w patches."""
    tokens = port.item.tokens
    if tokens is None:
        return None
    grid = port.item.values[port.sized[tokens.input]]
    count = tokens.count.python({**names.bindings, "h": "int(size[0])", "w": "int(size[1])"})
    return TokenEntries(tokens.input, Code(count), Code(f"{tokens.function}({_nested(names, grid)})"))


def _frames(port: RowsPort, names: Names) -> FramesOf | None:
    frames = port.item.frames
    if frames is None:
        return None
    key = port.sized[port.modalities["audio"].pixels]
    row_names, lets = names.localised(frames.rows)
    window_names, window_lets = names.localised(frames.window)
    rows = Code(frames.rows.python({**row_names.bindings, "h": "n"}))
    axis = next(index for index, side in enumerate(port.item.shape) if "h" in side.names)
    return FramesOf(key, rows, lets, window_names.code(frames.window), window_lets, axis)


def _nested(names: Names, entry: tuple[Any, ...]) -> Code:
    """The elements of a list; of a list in a list, that one."""
    return Code(f"[{_nested(names, entry[0])}]") if isinstance(entry[0], tuple) else _joined(map(names.code, entry))


def _result_of(result: tuple[str, ...] | str) -> Code:
    if isinstance(result, str):
        return Code(f".{result}")
    return Code(f"[{result.index('features')}]" if result else "")


def _features(port: CutPort) -> Code | None:
    """The result of the callable that replaces the encoder: `features` in the form of the encoder's result, if that is
    another."""
    features = f"features.movedim(-1, {port.forward.channels})" if port.forward.channels else "features"
    features += ".unsqueeze(0)" * bool(port.forward.axis)
    if port.forward.layers:
        return Code(f"dict(zip(layers, {features}.chunk(len(layers), dim=-1)))")
    if isinstance(port.forward.result, str):
        return Code(f"SimpleNamespace({port.forward.result}={features})")
    parts = [features if part == "features" else "None" for part in port.forward.result]
    if parts:
        return Code(f"({', '.join(parts)},)")
    return Code(features) if features != "features" else None


def _tiles(port: TilesPort, profile: ProtocolProfile, facts: TreeFacts) -> TilesView:
    names = Names.of(port)
    rows = names.code(port.item.rows)
    budget_names, budget_lets = names.localised(port.budget.min, longest=_LONGEST)
    token_names, token_lets = names.localised(port.item.tokens, longest=_LONGEST)
    row_names, row_lets = names.localised(port.capture.rows, longest=_LONGEST)
    shape_names, pixel_lets = names.localised(*port.pixels.shape)
    one_each, sizes = rows == port.columns[0], _sizes_name(port.columns)
    return TilesView(
        **_shared(port, profile, facts),
        **_sized(port, profile, facts),
        sizes_doc=Code("Tiles of each item, as Python integers."),
        buffer_keys=[port.inputs[0].pixels] if profile.dialect.values else [],
        budget_min=budget_names.code(port.budget.min),
        budget_why=port.budget.why,
        budget_lets=budget_lets,
        forward=_encoded(port, facts),
        rows=rows,
        rows_of_items=sizes if one_each else Code(f"[{rows} for {', '.join(port.columns)} in {sizes}]"),
        tokens=token_names.code(port.item.tokens),
        item_why=port.item.why,
        token_lets=token_lets,
        capture_rows=row_names.code(port.capture.rows),
        capture_why=port.capture.why,
        row_lets=row_lets,
        pixel_shape=_joined(shape_names.code(side) for side in port.pixels.shape),
        pixel_lets=pixel_lets,
    )


def claims_frames(port: AnyPort, dialect: Dialect) -> bool:
    """Whether a video can claim more tokens than it has, so that no graph gets more frames than sequences."""
    return isinstance(port, PackedPort) and port.counts_frames and port.has_video and dialect.zero_path_tokens


def _packed(port: PackedPort, profile: ProtocolProfile, facts: TreeFacts) -> PackedView:
    names, dialect = Names.of(port), profile.dialect
    height, width = port.merge
    item_names, item_lets = names.localised(port.item.tokens)
    sets = port.sequences
    capture_names, capture_lets = names.localised(
        height, width, *(set_.longest for set_ in sets), *(set_.count for set_ in sets), *port.pixels.shape
    )
    pixels = port.inputs[0].pixels
    pixels_key = "pixels_key" if len(port.inputs) > 1 else pyrepr(pixels)
    inputs = f'inputs["{pixels}"]' if dialect.values else f'mm_kwargs["{pixels}"]'
    grid = _sizes_name(port.columns)
    sizes = Code(f"torch.tensor({grid})") if port.split.grid == "tensor" else grid
    flashinfer = port.flashinfer and facts.has_lengths is not False
    metadata = [name for name in port.metadata if flashinfer or name not in port.lengths]
    filler_rows, filler_lets = _filler(port)
    frames = port.budget.frames
    model_config = Code("self.vllm_config.model_config" if facts.has_vllm_config else "self.model_config")
    claimed = claims_frames(port, dialect) and not facts.manager_bounds
    return PackedView(
        **_shared(port, profile, facts),
        **_sized(port, profile, facts),
        sizes_doc=Code(f"`{grid}` of each item, in patches, as Python integers."),
        buffer_keys=[pixels, *metadata] if dialect.values else metadata,
        budget_min=names.code(port.budget.min),
        budget_why=port.budget.why,
        forward=_bound(
            port.forward.call,
            {"pixels": facts.normalised.format(pixels=inputs), "metadata": "inputs" if dialect.values else "buffers"},
            flatten=port.forward.flatten,
        ),
        rows=item_names.code(port.item.rows),
        rows_spelled=names.code(port.item.rows),
        tokens=item_names.code(port.item.tokens),
        item_lets=item_lets,
        pixel_shape=_joined(capture_names.code(side) for side in port.pixels.shape),
        pixel_dtype=_pixel_dtype(port.pixels.dtype, facts),
        sets=tuple(
            _set(
                port,
                set_,
                capture_names,
                parameters,
                facts,
                in_budget=claimed or facts.manager_bounds or (port.has_video and dialect.postprocess.value == "none"),
                main=set_ is sets[0],
            )
            for set_, parameters in zip(sets, port.tower_parameters, strict=True)
        ),
        capture_lets=capture_lets,
        side_limit=capture_names.code(port.capture.side_limit) if port.capture else None,
        capture_why=port.capture.why if port.capture else None,
        merge_h=capture_names.code(height),
        merge_w=capture_names.code(width),
        has_time="t" in port.columns,
        tower=Code(f"self.{port.tower}"),
        tower_sizes=sizes,
        eager=_bound(
            port.eager.call,
            {
                "pixels": facts.normalised.format(pixels=f"mm_kwargs[{pixels_key}]"),
                "sizes": sizes,
                "metadata": f"self.{port.tower}.prepare_encoder_metadata({sizes})",
            },
            flatten=port.eager.flatten,
        ),
        after=_bound(port.post.call, {"output": "output[:num_patches]", "sizes": sizes}) if port.post else None,
        after_why=port.post.why if port.post else None,
        frames=names.code(frames) if isinstance(frames, Expression) else None,
        frames_why=port.budget.frames_why,
        frames_info=port.frames_info,
        info_class=facts.info_class[1] if facts.info_class else None,
        model_config=model_config,
        multimodal_config=Code("self.multimodal_config")
        if facts.has_multimodal_config
        else Code(f"{model_config}.get_multimodal_config()"),
        counts_frames=port.counts_frames,
        claims_frames=claimed,
        manager_bounds=facts.manager_bounds,
        frame_names=_joined(name if name == "t" else "_" for name in port.columns),
        flashinfer=flashinfer,
        cover_rows=not facts.attention_fills_zeros,
        filler_rows=filler_rows,
        filler_lets=filler_lets,
        filler_why=_FILLER_WHY[any(map(_has_own_bound, port.sequences))],
        device_bounds=facts.device_bounds,
        guarded=facts.waits if facts.sync_guard is not None else (),
        padding=tuple(name for _, name in facts.padding),
        keeps_offsets=facts.keeps_offsets,
        asserts_embeddings=facts.checks_types and facts.embeds_nothing,
    )


def _padded_by(padding: tuple[str, ...]) -> str:
    """The function that pads offsets: of vLLM, perhaps chosen for a backend, or the port's own method."""
    return padding[0] if len(padding) == 1 else "pad_cu_seqlens" if padding else "self._pad_cu_seqlens"


def _chosen_padding(padding: tuple[str, ...], backend: Code) -> Code | None:
    """The statement that chooses one of vLLM's two functions."""
    if len(padding) < 2:
        return None
    plain, flashinfer = padding
    return Code(f"pad_cu_seqlens = {flashinfer} if {backend} == AttentionBackendEnum.FLASHINFER else {plain}")


def _set(
    port: PackedPort,
    set_: Sequences,
    names: Names,
    parameters: tuple[str, str],
    facts: TreeFacts,
    *,
    in_budget: bool,
    main: bool,
) -> SequenceView:
    assert set_.count is not None, "`PackedPort.sequences` are complete"
    assert set_.longest is not None, "`PackedPort.sequences` are complete"
    variable = "num_seqs" if main else f"num_{set_.name}_seqs"
    counted = set_.unit == "frame" and not port.attention[set_.name].count
    count, why = set_.count, set_.why
    if in_budget:  # the budget bounds the frames
        names = replace(names, bindings={**names.bindings, "F": "max_frames"})
        count = _CLAIMED if counted else count
    strips = _sizes_name(port.columns) if main and port.capture else None
    code = _count(count, names, strips)
    if (counter := counter_of(set_.name)) in facts.counters:  # it says why itself
        code, why = Code(f"self.{port.tower}.{counter}({', '.join(names.bindings[key] for key in CAPACITIES)})"), None
    if facts.attention_fills_zeros and code.isidentifier():
        variable = code  # a parameter, which nothing is added to
    return SequenceView(
        variable,
        *parameters,
        offsets=set_.offsets,
        count=code,
        longest=names.code(set_.longest),
        spare=names.code(_spare(port, set_, variable)),
        why=why,
        counted=counted,
    )


def counter_of(name: str) -> str:
    """The method by which a tower of vLLM's says, from `CAPACITIES`, how many sequences of a set a graph may have."""
    return f"get_encoder_cudagraph_max_{name}_seqs"


#: The captured number of frames where the budget bounds it.
_CLAIMED = parse_expression("max(B, F)")


#: Rows of one tile of FlashAttention's kernels.
_TILE_ROWS = parse_expression("128")


def _spare(port: PackedPort, set_: Sequences, captured: str) -> Expression:
    """How many sequences cover the rows behind any batch, beside its own, at most `captured`.

    Each of its own has a token or more, so the more of them there are, the fewer rows are left.
    """
    height, width = port.merge
    per_token = "height ** 2" if height == width else "height * width"
    filler = set_.longest if _has_own_bound(set_) and set_.longest else _TILE_ROWS
    return parse_expression(f"max(b - {captured}, 0) * {per_token} // filler + 1").substitute(
        {"height": height, "width": width, "filler": filler}
    )


def _has_own_bound(set_: Sequences) -> bool:
    """Whether the longest sequence of a set (a window) does not depend on the budget.

    A kernel computes no more rows of a sequence than the bound that was captured with it, so this is also the most that
    a sequence behind the batch may have; elsewhere it is one kernel tile, which costs next to nothing.
    """
    return set_.longest is not None and not set_.longest.names & CAPACITIES.keys()


#: Why the sequences behind a batch are no shorter, by whether a set of sequences has a bound of its own.
_FILLER_WHY = (
    "At least a tile of FlashAttention's kernels each: less costs as much.",
    "At least a window each: the kernel computes no more rows of a sequence.",
)


def _filler(port: PackedPort) -> tuple[Code, Lets]:
    """The least length of the sequences that cover the rows behind a batch; the captured number of them is the rest."""
    bounded = [set_.longest for set_ in port.sequences if _has_own_bound(set_)]
    if not bounded:
        return Code(_TILE_ROWS.python()), ()
    names, lets = Names.of(port).localised(*bounded, *bounded)
    assert bounded[0] is not None, "it has a bound"
    return names.code(bounded[0]), lets


def _count(count: Expression, names: Names, strips: Code | None) -> Code:
    """Captured number of sequences. The captured grid itself has a sequence for each of its `strips`."""
    code = names.code(count)
    if strips:
        is_max = isinstance(count.root, Function) and count.root.name == "max"
        among = code.removeprefix("max(").removesuffix(")") if is_max else code
        code = Code(f"max({among}, len({strips}))")
    return code


def _pixel_dtype(path: str | None, facts: TreeFacts) -> Code:
    """Since 0.32 a model or its tower may take uint8 pixels; whether this tree's does is a fact of the tree."""
    if path is None or facts.has_input_dtype is False:
        return Code("dtype")
    if facts.has_input_dtype:
        return Code(f"{path} or dtype")
    owner, _, name = path.rpartition(".")
    grand, _, attribute = owner.rpartition(".")
    return Code(f'getattr(getattr({grand}, "{attribute}", None), "{name}", None) or dtype')


def _paths(port: PathsPort, profile: ProtocolProfile, facts: TreeFacts) -> PathsView:
    single, many = port.single, port.many
    # A helper is a function inside of the method that uses it, and reads there as in the descriptor.
    formulas = [helper.value for helper in port.helpers.values()]
    names = Names.of(port)
    tokens, token_lets = names.localised(*formulas, *formulas, single.tokens, many.tokens)
    rows, row_lets = names.localised(*(path.rows for path in (single, many) if path.rows))
    shapes, shape_lets = names.localised(*single.shape, *many.shape)

    def view(path: Path) -> PathView:
        return PathView(
            name=path.name,
            pixels=path.pixels,
            count=names.code(path.count),
            shape=_joined(shapes.code(side) for side in path.shape),
            tokens=tokens.code(path.tokens),
            rows=rows.code(path.rows) if path.rows else Code("1"),
        )

    views = {path.name: view(path) for path in (single, many)}
    keys = [path.pixels for path in (single, many) if profile.dialect.values or path is many]
    return PathsView(
        **_shared(port, profile, facts),
        **_sized(port, profile, facts),
        sizes_doc=Code(f"{many.name.capitalize()} tiles of each item."),
        # Pixels that `input_key_by_modality` names are no recorded buffer, the rest of the inputs are.
        buffer_keys=[*keys, "token_index"] if profile.dialect.paths.value == "none" else keys,
        budget_min=Code(f"{single.name}_tokens"),
        budget_why=f"One {single.name} tile.",
        forward=_encoded(port, facts),
        single=views[single.name],
        many=views[many.name],
        ordered=tuple(views[path.name] for path in port.assembled),
        token_lets=token_lets,
        row_lets=row_lets,
        shape_lets=shape_lets,
        helpers=tuple(
            (name, _joined(f"{arg}: int" for arg in helper.args), tokens.code(helper.value), helper.why)
            for name, helper in port.helpers.items()
        ),
    )


def _closed(gate: Code) -> str | None:
    """The opposite of a gate that says when it is closed, in negations alone; None for another one."""
    root = ast.parse(gate, mode="eval").body
    conditions = root.values if isinstance(root, ast.BoolOp) and isinstance(root.op, ast.And) else [root]
    opposites = [node.operand for node in conditions if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)]
    if len(opposites) < len(conditions):
        return None
    return ast.unparse(ast.BoolOp(ast.Or(), opposites) if len(opposites) > 1 else opposites[0])


def _sizes_name(columns: tuple[str, ...]) -> Code:
    """vLLM's name for the sizes of items: a grid by its columns, or a number of tiles."""
    return Code(f"grid_{''.join(columns)}" if len(columns) > 1 else "num_tiles")


def _switch(path: str) -> Code:
    """Turns a switch off for a block of statements. A subclass may have a tower without it, which `create` allows."""
    owner, _, name = path.rpartition(".")
    create = "" if owner == "self" else ", create=True"
    return Code(f'patch.object({owner}, "{name}", False{create})')


def _encoded(port: TilesPort | PathsPort, facts: TreeFacts) -> Code:
    """The call that encodes tiles, on this rank alone."""
    code = _bound(port.forward.call, {"pixels": f"pixel_values{facts.converted}"}, flatten=port.forward.flatten)
    return Code(facts.sharding.off(code)) if facts.sharding else code


def _bound(call: Call, bindings: Mapping[str, str], *, flatten: bool = False) -> Code:
    code = call.python(bindings)
    return Code(f"{code}.flatten(0, 1)" if flatten else code)


def _joined(parts: Iterable[str]) -> Code:
    return Code(", ".join(parts))


_VIEWS: dict[str, Any] = {
    "tiles": _tiles,
    "packed": _packed,
    "paths": _paths,
    "rows": _rows,
    "crops": _crops,
    "cut": _cut,
}
