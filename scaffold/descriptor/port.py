"""A port as its descriptor describes it: one closed type for each layout, with everything that follows from it.

`PackedPort`, `TilesPort` and their like have exactly the sections of their layout. The key `layout` chooses the type. A
missing section is an error at its place, and so is a section of another layout. Properties here derive the values that
later stages need and a descriptor need not give, so that no stage guesses them again. Only `plan` decides values that
depend on the target's protocol or tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from scaffold.descriptor.expressions import (
    Binary,
    Call,
    Expression,
    Name,
    expression_of,
    parse_expression,
    walk,
)
from scaffold.descriptor.schema import (
    Choice,
    Formula,
    Listing,
    Reader,
    Record,
    Section,
    Table,
    Use,
    Version,
    attach,
    declare,
    nearest,
    section_schema,
)
from scaffold.descriptor.schema import Name as NameType
from scaffold.descriptor.sections import (
    ADDITIVE,
    FIELD,
    After,
    Assembly,
    Budget,
    Capture,
    ChainForward,
    Crops,
    CutForward,
    CutModality,
    DataParallel,
    Eager,
    Explicit,
    ExplicitRows,
    Forward,
    FramesInfo,
    Gates,
    Helper,
    Inputs,
    Integration,
    Item,
    Modality,
    ModalityKeys,
    Model,
    Output,
    PackedBudget,
    PackedCapture,
    PackedForward,
    PackedItem,
    PackedModel,
    PackedPixels,
    PatchItem,
    Path,
    Pixels,
    PoolingTest,
    Processor,
    RowsForward,
    Sequences,
    SizedField,
    Sizes,
    TestEntry,
    Tokens,
    Tower,
    UnitInput,
    UnitItem,
    UnitModality,
    UnitPixels,
    Verify,
    WholePixels,
)
from scaffold.descriptor.source import MappingNode, Node, ScalarNode
from scaffold.diagnostics import Diagnostic, Span

if TYPE_CHECKING:
    from typing_extensions import Self

VISUAL = {"image": "still images", "video": "videos: an item is several frames"}
#: A cut needs to know nothing of what its units are.
MODALITIES = VISUAL | {"audio": "sound: an item is one or several chunks of its spectrum"}

#: vLLM's attention of encoders, which takes cumulative offsets.
ATTENTION = "MMEncoderAttention"

#: One modality for both, in models whose processor makes no difference between them.
CHUNK = "vision_chunk"

LAYOUTS = {
    "packed": "patch rows of all items behind each other, sizes as a grid",
    "tiles": "tiles of one shape, a number of tiles for each item",
    "paths": "tiles of two shapes, each captured on a path of its own",
    "cut": "units of one shape for the encoder alone; the model's own code makes embeddings of their features",
    "crops": "whole images of one shape and their crops of another for the encoders alone; the model's own code makes "
    "embeddings of their features",
    "rows": "patch rows of all items for the encoder alone, with whatever the model's own code hands it beside them",
}

#: The keys of a descriptor in the order in which they are documented and drafted.
ORDER = (
    "schema", "model", "layout", "modalities", "fields", "sizes", "let", "processor", "helpers", "item", "pixels",
    "crops", "attention", "capture", "buffers", "budget", "paths", "forward", "explicit", "eager", "post", "gates",
    "data_parallel", "output", "tower", "integration", "verify",
)  # fmt: skip

#: A cut needs one more parameter than the public method may have: its body moves.
PUBLIC_ENTRY, PRIVATE_ENTRY = "embed_multimodal", "_embed_multimodal"

#: The loop over the layers of an encoder, where a method of its own is called instead.
LOOP_METHOD = "forward_layers"

#: The statements from a model's first encoder through the last one, where a method of their own is called instead.
CHAIN_METHOD = "_encode_pixels"


def unit_word(modality: str, *, single: bool, side: str = "") -> str:
    """The word for one unit: an item where it is `single`, else what a configuration calls its `side`, if it does."""
    said = re.search(r"\b(crop|tile)_size$", side)
    parts = {"audio": "chunk", "video": "frame"} | ({"image": said[1]} if said else {})
    return modality if single else parts.get(modality, "patch")


#: The names of the offsets and of the longest sequence in vLLM's attention of encoders, and in layers that take them.
OFFSETS, LONGEST = "cu_seqlens", "max_seqlen"


def _inputs_of(section: type[Inputs], names: Mapping[str, str] = VISUAL) -> Table:
    """The type of `modalities`, with this section for each."""
    return Table(Section(section), "a modality", names, minimum=1)


class Port(Record):
    """The common parts of every port, whatever its layout."""

    #: The columns that the size key may have; none where the layout has no such key.
    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = ()
    #: Whether the model's own code runs again, around the encoder.
    reenters: ClassVar[bool] = False
    #: Whether a graph of the encoder alone holds the rows of several items.
    packs_rows: ClassVar[bool] = False

    schema: int = declare(Version((1,)), "version of this format", examples=[1])
    model: Model = declare(Section(Model), "which class is ported")
    layout: str = declare(Choice("a layout", LAYOUTS), "how pixels of several items lie in memory")
    modalities: Mapping[str, Inputs] = declare(_inputs_of(Inputs), "inputs of each modality")
    let: Mapping[str, Expression] = declare(
        Table(Formula("let"), "a name"), "names for expressions; a line may use the ones above it", default={}
    )
    processor: Processor | None = declare(Section(Processor), "constants of the image processor", default=None)
    gates: Gates | None = declare(Section(Gates), "conditions under which the feature is on", default=None)
    output: Output = declare(Section(Output), "the encoder's output")
    integration: Integration | None = declare(Section(Integration), "test, documentation and example", default=None)
    verify: Verify | None = declare(Section(Verify), "how the numerical proof builds the model", default=None)

    #: Not part of the YAML: the place of every value, notes on the text, and every expression with its place.
    file: str = attach(default="")
    shipped: bool = attach(default=False)
    spans: Mapping[str, Span] = attach(default={})
    warnings: tuple[Diagnostic, ...] = attach(default=())
    uses: tuple[Use, ...] = attach(default=())

    #: Sections of some layouts.
    explicit: Explicit | ExplicitRows | None = attach(default=None)
    data_parallel: DataParallel | None = attach(default=None)
    #: Whether whole images alone have graphs.
    whole: bool = attach(default=False)
    #: The port for a tree whose tower has a method for its metadata already; adapters are of this one.
    in_tree: Port | None = attach(default=None)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.by_key = {key: cls.by_key[key] for key in ORDER if key in cls.by_key}

    def span(self, path: str) -> Span:
        """The place of a value by its dotted path (`model.class`); that of the nearest parent if it is not written."""
        while path and path not in self.spans:
            path = path.rpartition(".")[0]
        return self.spans.get(path) or Span(self.file or "<descriptor>", 1, 1, 1, 1)

    # --- the model

    @property
    def name(self) -> str:
        """The descriptor file's stem, else the model's module: what files that are made of it are called."""
        stem = PurePath(self.file).stem if self.file.endswith((".yaml", ".yml")) else ""
        return stem or self.model.module.rpartition(".")[2]

    @property
    def reference(self) -> str:
        """The word by which commands take this descriptor: the name of a shipped one, else the file."""
        return self.name if self.shipped else self.file

    @property
    def module(self) -> str:
        """Dotted path of the model's module."""
        return _dotted(self.model.module, "vllm.model_executor.models")

    @property
    def class_name(self) -> str:
        return self.model.class_

    @property
    def architecture(self) -> str:
        """The name of the class in vLLM's registry."""
        return self.model.architecture or self.class_name

    # --- inputs and names

    @property
    def has_video(self) -> bool:
        return "video" in self.modalities

    @property
    def has_paths(self) -> bool:
        """Whether there are graphs of several paths, where the protocol has such."""
        return False

    def without_paths(self) -> Self:
        """The part of a port that has graphs where no path has a name."""
        return self

    @property
    def path_names(self) -> tuple[str, ...]:
        """The names of paths that the descriptor names."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that sizes of items have in expressions."""
        return ()

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """The inputs that tell a modality, each with its place."""
        return tuple(
            (f"modalities.{name}.{role}", key)
            for name, modality in (self.modalities or {}).items()
            for role in ("pixels", "sizes", "embeds")
            if (key := getattr(modality, role, None))
        )

    @property
    def further_keys(self) -> tuple[tuple[str, str], ...]:
        """Inputs that the descriptor names besides `keys`."""
        return ()

    @property
    def functions(self) -> Mapping[str, Helper]:
        """Functions for the tokens of paths."""
        return {}

    @property
    def unit_arguments(self) -> tuple[str, ...]:
        """The encoder's arguments for each unit, besides the pixels."""
        return ()

    @property
    def mask(self) -> str | None:
        """The argument that hides the padding of units which are shorter than the others."""
        return None

    @property
    def tokens_made(self) -> Tokens | None:
        """The input whose entries a function of the tree makes."""
        return None

    @property
    def tokens_module(self) -> str:
        """Dotted path of the module that makes the entries of `item.tokens`, "" where no input has them."""
        return _dotted(self.tokens_made.module, "vllm.model_executor.models") if self.tokens_made else ""

    @property
    def tower(self) -> str:
        """Attribute of the model that holds the vision tower, "" where no tower is split."""
        return ""

    @property
    def frames_info(self) -> str | None:
        """Method of the processing info that tells the frames of the largest video."""
        return None

    @property
    def after(self) -> After | None:
        """The call that follows a replay."""
        return None

    @property
    def asks(self) -> tuple[Any, ...]:
        """The facts of the tower, or of the way to the encoder, that the port depends on."""
        return ()

    @property
    def long_calls(self) -> str:
        """Why a call of this port may be a long one, from its items; empty where one item is one unit.

        Empty for `crops`, too: whole encoders item after item had launches to save in every call that we timed.
        """
        return ""

    @property
    def holds(self) -> tuple[str, ...]:
        """Sentences on the code that a graph holds."""
        raise NotImplementedError

    @property
    def tested_modalities(self) -> tuple[str, ...]:
        """The names of the modalities in vLLM's tests and docs, which know no sound: a chunk may be an image."""
        return tuple("image" if name == CHUNK else name for name in self.modalities if name in (*VISUAL, CHUNK))

    @property
    def embeds(self) -> str | None:
        """Key of precomputed embeddings of the first modality that takes some."""
        return None

    @property
    def processor_module(self) -> str:
        """Dotted path of the image processor's module, "" where no processor is read."""
        return _dotted(self.processor.module, "vllm.transformers_utils.processors") if self.processor else ""

    @property
    def lets(self) -> tuple[tuple[str, Expression], ...]:
        """All names of expressions: values of the processor, which generated code reads as properties, and `let`."""
        constants = self.processor.values if self.processor else {}
        return (*((name, parse_expression(f"self.{property_of(name)}")) for name in constants), *self.let.items())

    @property
    def gate(self) -> Expression | None:
        return self.gates.modalities if self.gates else None

    @property
    def encoder_gate(self) -> Expression | None:
        return self.gates.encoder if self.gates else None

    @property
    def switches(self) -> tuple[str, ...]:
        """Attributes of the model's own data parallelism that are off inside of recorded calls."""
        return self.data_parallel.switches if self.data_parallel else ()

    @property
    def flashinfer(self) -> bool:
        """Whether attention may run on FlashInfer, whose offsets come in two sections."""
        return False

    # --- integration

    @property
    def tests(self) -> tuple[TestEntry, ...]:
        return self.integration.test if self.integration else ()

    @property
    def pooling(self) -> PoolingTest | None:
        return self.integration.pooling if self.integration else None

    @property
    def docs_models(self) -> tuple[str, ...]:
        return self.integration.docs.models if self.integration and self.integration.docs else ()

    @property
    def examples(self) -> tuple[str, ...]:
        return self.integration.example if self.integration else ()


def _dotted(module: str, package: str) -> str:
    """A module, which a descriptor may name without vLLM's own package."""
    return module if "." in module else f"{package}.{module}"


def property_of(name: str) -> str:
    """The generated property behind a name of `processor.values`."""
    return f"_encoder_cudagraph_{name}"


class ReentryPort(Port):
    """The encoder alone is recorded. The model's own code runs again with the features in its place."""

    reenters = True

    modalities: Mapping[str, CutModality] = declare(_inputs_of(CutModality), "inputs of each modality")
    fields: Mapping[str, str | SizedField] = declare(
        Table(FIELD, "an input name", minimum=1),
        "every input that items do not share, and how they lie in it",
        examples=[{"pixel_values": "batched", "image_sizes": "batched"}],
    )

    @property
    def encoder(self) -> Call | str:
        """The encoder's call, or the encoder alone where all arguments are recorded."""
        raise NotImplementedError

    @property
    def encoder_key(self) -> str:
        """The key that names the encoder."""
        return "forward.call"

    @property
    def loop(self) -> str | None:
        """The layers that the encoder loops over, if a graph records that loop instead of a call."""
        return None

    @property
    def through(self) -> str | None:
        """The last part that is called, if a graph records the statements from the encoder's call to that one's."""
        return None

    @property
    def per_item(self) -> bool:
        """Whether the model calls its encoder once for each item."""
        return False

    @property
    def embeds(self) -> str | None:
        return next((key for key in self.fields if key.endswith("_embeds")), None)

    @property
    def further_keys(self) -> tuple[tuple[str, str], ...]:
        return tuple((f"fields.{key}", key) for key in self.fields)

    @property
    def returns(self) -> str:
        """The type of the encoder's result."""
        return "torch.Tensor"

    @property
    def batched(self) -> tuple[str, ...]:
        """Inputs with an entry for each item."""
        return tuple(key for key, field in self.fields.items() if field == "batched")

    @property
    def sized(self) -> dict[str, str]:
        """Inputs whose items follow each other, and the key of their sizes."""
        return {key: field.sizes for key, field in self.fields.items() if isinstance(field, SizedField)}

    @property
    def grids(self) -> dict[str, SizedField]:
        """Inputs whose sizes are a grid with another number of rows than its product, for some items at least."""
        sized = {key: field for key, field in self.fields.items() if isinstance(field, SizedField)}
        return {key: field for key, field in sized.items() if field.extra is not None or field.least is not None}


class CutPort(ReentryPort):
    """Units of one shape, or of one for each modality.

    The descriptor need not say anything about tokens: the port asks the encoder how many features a unit has, and the
    model's own code assembles them. The model also serves every item without units of this shape. With `explicit` a
    port in a tree runs no code of the model again.
    """

    modalities: Mapping[str, UnitModality] = declare(_inputs_of(UnitModality, MODALITIES), "inputs of each modality")
    item: UnitItem | None = declare(
        Section(UnitItem), "how features become tokens, where units have paths: budgets count tokens", default=None
    )
    pixels: UnitPixels = declare(Section(UnitPixels), "one unit as it enters the encoder")
    forward: CutForward = declare(Section(CutForward), "call that is recorded")
    explicit: Explicit | None = declare(
        Section(Explicit), "a port in a tree that runs nothing twice; adapters do not read it", default=None
    )

    @property
    def has_paths(self) -> bool:
        """Whether units of each modality have a shape, and so a path, of their own."""
        return any(modality.let for modality in self.modalities.values())

    def without_paths(self) -> Self:
        port = self.replace(explicit=None)
        first = dict([next(iter(self.modalities.items()))])
        return port.replace(modalities=first, item=None) if port.has_paths else port

    @property
    def unit_arguments(self) -> tuple[str, ...]:
        return tuple((self.forward.with_ if self.forward else None) or ())

    @property
    def unit(self) -> str:
        """The word for one unit of an explicit port: an item, or what models call a part of it."""
        side = self.pixels.shape[-1].text
        side = self.let[side].text if side in self.let else side
        single = self.explicit is not None and self.explicit.single
        return unit_word(next(iter(self.modalities)), single=single, side=side)

    @property
    def beside(self) -> dict[str, UnitInput]:
        """The encoder's arguments with an entry for each unit, in the order of its call, beside the pixels."""
        given = (self.forward.with_ if self.forward else None) or {}
        call = self.forward.call if given else None
        passed = [*call.args, *(keyword.value for keyword in call.keywords)] if call else []
        entries = {one.name: given.get(one.name) for one in passed if isinstance(one, Name)}
        return {name: entry for name, entry in entries.items() if isinstance(entry, UnitInput)}

    @property
    def long_calls(self) -> str:
        if self.pixels.padded:
            return "the model pads all items of a batch to the most units of one"
        pixels = [modality.pixels for modality in self.modalities.values()]
        further = {*self.batched} - {*pixels, *(key for key in self.fields if key.endswith("_embeds"))}
        sized = any(key in self.sized for key in pixels)
        return "an item may have several units" if sized or (further and not self.forward.with_) else ""

    @property
    def holds(self) -> tuple[str, ...]:
        return (
            f"The graph holds `{self.forward.call.text}` alone; the model's own code assembles its features.",
            "An item that holds no units of the captured shape is left to the model's own code.",
        )

    def lets_of(self, modality: UnitModality) -> tuple[tuple[str, Expression], ...]:
        """`lets` with the values that they have for a modality."""
        return tuple((name, modality.let.get(name, value)) for name, value in self.lets)

    @property
    def returns(self) -> str:
        if self.forward.layers:
            return "dict[int, torch.Tensor]"
        if isinstance(self.forward.result, str):
            return "Any"
        return "tuple[torch.Tensor | None, ...]" if self.forward.result else "torch.Tensor"

    @property
    def encoder(self) -> Call:
        return self.forward.call

    @property
    def loop(self) -> str | None:
        return self.forward.loop

    @property
    def mask(self) -> str | None:
        return next((name for name, entry in self.forward.with_.items() if entry == ADDITIVE), None)


class CropsPort(ReentryPort):
    """A whole image for each item, and any number of crops of another shape.

    Both go through the same statements. As in a cut, the port asks the encoders how many features there are, the
    model's own code assembles them, and serves every item of other shapes.
    """

    modalities: Mapping[str, CutModality] = declare(
        _inputs_of(CutModality, {"image": VISUAL["image"]}), "inputs of the modality"
    )
    pixels: WholePixels = declare(Section(WholePixels), "one whole image as it enters the encoders")
    crops: Crops = declare(Section(Crops), "crops as they enter the encoders")
    forward: ChainForward = declare(Section(ChainForward), "statements that are recorded")

    @property
    def has_paths(self) -> bool:
        return not self.whole

    def without_paths(self) -> Self:
        return self.replace(whole=True)

    @property
    def further_keys(self) -> tuple[tuple[str, str], ...]:
        return (("crops.pixels", self.crops.pixels), *super().further_keys)

    @property
    def asks(self) -> tuple[Any, ...]:
        return (self.encoder, self.through)

    @property
    def holds(self) -> tuple[str, ...]:
        units = "whole images or on crops" if self.has_paths else "whole images alone"
        call, moved = self.forward.call.text, ""
        if self.through is not None:
            moved = f"`{CHAIN_METHOD}` is the statements from `{call}` through `{self.through}`, moved as they were. "
        return (
            f"{moved}A graph holds {'it' if moved else f'`{call}` alone'}, on {units}; the model's own code assembles "
            "its features.",
            "An item of another shape is left to the model's own code.",
        )

    @property
    def encoder(self) -> Call:
        return self.forward.call

    @property
    def through(self) -> str | None:
        return self.forward.through


class RowsPort(ReentryPort):
    """The patch rows of all items, one after another, in one call of the encoder.

    The descriptor says nothing about the encoder's arguments: the port records a call on items of zeros, and finds
    rows, offsets and the longest sequence by the numbers that it knows. The model serves every call with anything else.
    """

    COLUMNS = (("h", "w"),)
    packs_rows = True

    modalities: Mapping[str, CutModality] = declare(
        _inputs_of(
            CutModality,
            {"image": VISUAL["image"], CHUNK: "images and chunks of videos alike", "audio": "sounds as frames"},
        ),
        "inputs of the modality",
    )
    item: PatchItem = declare(Section(PatchItem), "what an item of h x w patches looks like")
    forward: RowsForward = declare(Section(RowsForward), "what is recorded")
    explicit: ExplicitRows | None = declare(
        Section(ExplicitRows), "a port in a tree that runs nothing twice; adapters do not read it", default=None
    )

    def without_paths(self) -> Self:
        return self.replace(explicit=None)

    @property
    def flashinfer(self) -> bool:
        return self.explicit is not None and self.explicit.lengths is not None

    @property
    def units(self) -> str | None:
        """The input with a grid for each unit of an item, such as a tile, where it may be several: the number of units
        cuts it into items."""
        values = self.item.values or {}
        return next((key for key in values if self.sized.get(key, key) not in values), None)

    @property
    def grid(self) -> str | None:
        """The input that says how many patches a unit has, or an item that is padded; None where its pixels do."""
        return next(iter(self.item.values or {}), None) if self.item.mask else self.units

    @property
    def columns(self) -> tuple[str, ...]:
        return self.COLUMNS[0]

    @property
    def tokens_made(self) -> Tokens | None:
        return self.item.tokens if self.item else None

    @property
    def asks(self) -> tuple[Any, ...]:
        return (self.encoder, self.loop, *(["per item"] if self.per_item else []))

    @property
    def long_calls(self) -> str:
        return "an item has as many rows as its size asks for"

    @property
    def holds(self) -> tuple[str, ...]:
        loop = [f"`{LOOP_METHOD}` is the loop over `{self.loop}`, moved as it was."] if self.loop else []
        return (
            f"The graph holds `{self.recorded}` alone; the model's own code assembles its features.",
            *loop,
            "What the encoder takes is recorded at start-up. A call that has anything else in it runs eagerly.",
        )

    @property
    def encoder(self) -> str:
        return self.forward.encoder

    @property
    def encoder_key(self) -> str:
        return "forward.loop" if self.loop else "forward.encoder"

    @property
    def loop(self) -> str | None:
        return self.forward.loop

    @property
    def per_item(self) -> bool:
        return self.forward.per_item

    @property
    def returns(self) -> str:
        return "Any" if self.forward.several else super().returns

    @property
    def recorded(self) -> str:
        """The function that a graph records: the encoder, or the method that its loop becomes."""
        return f"{self.encoder}.{LOOP_METHOD}" if self.loop else self.encoder


class SizedPort(Port):
    """The common parts of ports whose items have a size key."""

    modalities: Mapping[str, ModalityKeys] = declare(
        _inputs_of(ModalityKeys), "inputs of each modality beside its pixels"
    )
    sizes: Sizes = declare(Section(Sizes), "meaning of the size key")

    @property
    def inputs(self) -> tuple[Modality, ...]:
        """Names of each modality's inputs. The first one's pixels are the recorded buffer."""
        return tuple(entry for entry in self.modalities.values() if isinstance(entry, Modality))

    @property
    def embeds(self) -> str | None:
        return next((modality.embeds for modality in self.inputs if modality.embeds), None)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.sizes.columns if self.sizes else None) or ()


class TilesPort(SizedPort):
    """Tiles of one shape, dense attention inside each: the pixels are the only buffer."""

    COLUMNS = (("n",), ("tw", "th"))

    modalities: Mapping[str, Modality] = declare(_inputs_of(Modality), "inputs of each modality")
    item: Item = declare(Section(Item), "rows and tokens of an item")
    pixels: Pixels = declare(Section(Pixels), "one tile of the pixel tensor")
    capture: Capture = declare(Section(Capture), "inputs while a graph is recorded")
    budget: Budget = declare(Section(Budget), "range of token budgets")
    forward: Forward = declare(Section(Forward), "call that is recorded")
    data_parallel: DataParallel | None = declare(
        Section(DataParallel), "switches of the model's own data parallelism", default=None
    )

    @property
    def long_calls(self) -> str:
        return "an item has several tiles"

    @property
    def holds(self) -> tuple[str, ...]:
        return _counted(self.item)


class PackedPort(SizedPort):
    """The patch rows of all items, one after another, and metadata that the tower computes from their grids."""

    COLUMNS = (("t", "h", "w"), ("h", "w"))

    model: PackedModel = declare(Section(PackedModel), "which class is ported")
    modalities: Mapping[str, Modality] = declare(_inputs_of(Modality), "inputs of each modality")
    item: PackedItem = declare(Section(PackedItem), "rows and tokens of an item")
    pixels: PackedPixels = declare(Section(PackedPixels), "one row of the pixel tensor")
    attention: Mapping[str, Sequences] = declare(
        Table(Section(Sequences), "a name for the sequences", minimum=1),
        "sets of attention sequences, the one of whole frames or items first",
        examples=[{"full": {"unit": "frame", "offsets": "cu_seqlens", "max": "max_seqlen"}}],
    )
    capture: PackedCapture | None = declare(
        Section(PackedCapture), "inputs while a graph is recorded; left out where positions are computed", default=None
    )
    buffers: tuple[str, ...] = declare(
        Listing(NameType("a buffer name")),
        "metadata besides that of `attention`, one entry for each row or token; padded with zeros",
        default=(),
        examples=[["rotary_pos_emb_cos", "rotary_pos_emb_sin"]],
    )
    budget: PackedBudget = declare(Section(PackedBudget), "range of token budgets")
    forward: PackedForward = declare(Section(PackedForward), "call that is recorded")
    eager: Eager = declare(Section(Eager), "call for items that no graph fits")
    post: After | None = declare(Section(After), "what runs after a replay", default=None)
    split: Tower = declare(Section(Tower), "what the splitting of the tower needs", key="tower")

    @property
    def tower(self) -> str:
        return self.model.tower

    @property
    def after(self) -> After | None:
        return self.post

    @property
    def asks(self) -> tuple[Any, ...]:
        attention = {name: entry.replace(why=None) for name, entry in self.attention.items()}
        return (self.tower, self.split, attention, self.buffers, self.pixels.dtype, self.frames_info)

    @property
    def holds(self) -> tuple[str, ...]:
        return _counted(self.item)

    @property
    def merge(self) -> tuple[Expression, Expression]:
        """Height and width of the rows that become one token."""
        found = derived_merge(self)
        assert found is not None, "rule `merge_is_known`"
        return found

    @property
    def sequences(self) -> tuple[Sequences, ...]:
        """The sets of sequences, complete. The first is the main one, whose sequences are frames or items."""
        return tuple(self._complete(entry) for entry in self.attention.values())

    def _complete(self, entry: Sequences) -> Sequences:
        count, longest = entry.count, entry.longest
        if count is None:
            # A frame has at least one token, so a budget of b tokens holds at most b frames, whatever F is.
            count = parse_expression("max(B, min(F, b))" if entry.unit == "frame" else "B")
        if longest is None:
            # One item may take the whole budget; lengths count rows, not tokens.
            height, width = self.merge
            text = "b * height ** 2" if height == width else "b * height * width"
            longest = parse_expression(text).substitute({"height": height, "width": width})
        return entry.replace(count=count, longest=longest)

    @property
    def metadata(self) -> tuple[str, ...]:
        """Names of all recorded metadata, as the tower's method gives them."""
        roles = [getattr(entry, role) for role in ("offsets", "max", "lengths") for entry in self.attention.values()]
        return (*self.buffers, *(name for name in roles if name is not None))

    @property
    def lengths(self) -> frozenset[str]:
        """Names of metadata that only some attention backends use."""
        return frozenset(entry.lengths for entry in self.attention.values() if entry.lengths is not None)

    @property
    def tower_keys(self) -> list[str]:
        """The metadata that the tower must have. Not the lengths: only some backends use them."""
        return [name for name in self.metadata if name not in self.lengths]

    @property
    def tower_parameters(self) -> tuple[tuple[str, str], ...]:
        """Parameters of the tower's metadata method for each set: the number of its sequences, and their bound.

        The names are those of vLLM's own towers, which a split tower gets too.
        """
        main, *others = self.attention.values()
        return (
            ("max_batch_size" if main.unit == "item" else "max_frames_per_batch", "max_seqlen_override"),
            *((f"max_{set_.name}_seqs_per_batch", f"max_seqlen_{set_.name}_override") for set_ in others),
        )

    @property
    def flashinfer(self) -> bool:
        return bool(self.lengths)

    @property
    def frames_info(self) -> str | None:
        return self.budget.frames.info if isinstance(self.budget.frames, FramesInfo) else None

    @property
    def counts_frames(self) -> bool:
        """Whether the main set has a sequence for each frame of an item."""
        return next(iter(self.attention.values())).unit == "frame" and "t" in self.columns


class PathsPort(SizedPort):
    """Tiles of two shapes, each encoded on its own, put together item by item.

    Every item has one tile on the first path (the whole image, small) and any number of tiles on the second one (its
    parts, perhaps none).
    """

    COLUMNS = (("n",),)

    helpers: Mapping[str, Helper] = declare(
        Table(Section(Helper), "a helper name"), "functions for the tokens of a path", default={}
    )
    paths: Mapping[str, Path] = declare(
        Table(Section(Path), "a path name", word=True), "the path with one tile for each item, then that of its parts"
    )
    forward: Forward = declare(Section(Forward), "call that is recorded, on the tiles of one path")
    post: Assembly = declare(Section(Assembly), "how outputs become items")
    data_parallel: DataParallel | None = declare(
        Section(DataParallel), "switches of the model's own data parallelism", default=None
    )

    @property
    def inputs(self) -> tuple[Modality, ...]:
        return tuple(
            Modality(name=entry.name, pixels=self.single.pixels, sizes=entry.sizes, embeds=entry.embeds, why=entry.why)
            for entry in self.modalities.values()
        )

    @property
    def has_paths(self) -> bool:
        return True

    @property
    def functions(self) -> Mapping[str, Helper]:
        return self.helpers or {}

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(self.paths)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        paths = (self.paths or {}).items()
        return (*super().keys, *((f"paths.{name}.pixels", path.pixels) for name, path in paths if path and path.pixels))

    @property
    def holds(self) -> tuple[str, ...]:
        return tuple(
            f"Path `{path.name}`: `{path.count.text}` tiles an item, `{path.tokens.text}` tokens each."
            for path in (self.single, self.many)
        )

    @property
    def single(self) -> Path:
        """The path with one tile for each item."""
        return next(iter(self.paths.values()))

    @property
    def many(self) -> Path:
        """The path with any number of tiles for each item."""
        return list(self.paths.values())[1]

    @property
    def assembled(self) -> tuple[Path, ...]:
        """The paths in the order of an item's parts."""
        return tuple(self.paths[name] for name in self.post.assemble)


AnyPort: TypeAlias = PackedPort | TilesPort | PathsPort | CutPort | CropsPort | RowsPort

PORTS: dict[str, type[AnyPort]] = {
    "packed": PackedPort,
    "tiles": TilesPort,
    "paths": PathsPort,
    "cut": CutPort,
    "crops": CropsPort,
    "rows": RowsPort,
}


def _counted(item: Item | PackedItem) -> tuple[str, ...]:
    return (f"An item has `{item.rows.text}` input rows and `{item.tokens.text}` output tokens.",)


def derived_merge(port: PackedPort) -> tuple[Expression, Expression] | None:
    """Height and width of the rows that become one token: as given, or the divisors of `h` and `w` in `item.tokens`."""
    item = port.item
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


def read_port(root: Node, reader: Reader) -> Any:
    """The port that a document describes, of the type that its `layout` names; None if it is no mapping.

    A document whose layout is missing or unknown is read as one of the layout with a similar name, else of the one that
    knows most of its keys. No section is missed then, nor is the tower: which ones belong to it depends on the layout.
    """
    node = root.get("layout") if isinstance(root, MappingNode) else None
    layout = node.value if isinstance(node, ScalarNode) else ""
    if layout in PORTS:
        return Section(PORTS[layout], dict(_elsewhere(layout))).read(root, "", reader)
    keys = {entry.key.value for entry in root.entries} if isinstance(root, MappingNode) else set()
    layout = nearest(layout, PORTS) or max(PORTS, key=lambda name: len(keys & PORTS[name].by_key.keys()))
    port = Section(PORTS[layout], dict(_elsewhere(layout))).read(root, "", reader)
    missed = ("the descriptor lacks", "`model` lacks the key `tower`")
    reader.problems[:] = [
        one
        for one in reader.problems
        if one.code != "VCG202" or "`layout`" in one.message or not one.message.startswith(missed)
    ]
    return port


def _elsewhere(layout: str) -> Iterator[tuple[str, str]]:
    """Keys that ports of other layouts have."""
    for key in ORDER:
        owners = [name for name, cls in PORTS.items() if key in cls.by_key]
        if layout not in owners:
            yield key, f"belongs to the layout {' and '.join(f'`{name}`' for name in owners)}, not to `{layout}`"


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a descriptor, for an editor's YAML server and for documentation."""
    definitions: dict[str, Any] = {}
    branches = []
    for layout, cls in PORTS.items():
        schema = section_schema(cls, definitions)
        schema["properties"]["layout"] = {"const": layout, "description": LAYOUTS[layout]}
        branches.append(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vitcg-scaffold descriptor",
        "description": "Everything that the port of one vision-language model to encoder CUDA graphs needs and that "
        "cannot be derived.",
        "oneOf": branches,
        "$defs": dict(sorted(definitions.items())),
    }
