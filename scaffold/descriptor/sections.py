"""The sections of a descriptor: one frozen record each.

Declarations only. `schema.py` reads them and prints them as JSON Schema, `port.py` says which sections a port of each
layout has and what follows from them, `rules.py` how they fit together. Expressions are parsed already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaffold.descriptor.expressions import Call, Expression
from scaffold.descriptor.schema import (
    AttributePath,
    CallText,
    Choice,
    Flag,
    FlagOrText,
    Formula,
    Free,
    Integer,
    Listing,
    Module,
    Name,
    Pattern,
    Record,
    Remark,
    Section,
    Shape,
    Table,
    Text,
    attach,
    declare,
)

#: Names of expressions by place. `let`: only `let` names; `item`: also size columns; `batch`: also b, B, F.
_LET, _ITEM, _BATCH = Formula("let"), Formula("item"), Formula("batch")

#: How the items of an input lie in a batch, as the processor's field config says it.
FIELDS = {"batched": "an entry for each item"}

_BUDGET_INFO = Pattern(
    "the name of a method", "[A-Za-z_][A-Za-z0-9_]*", "name a method of the processing info class, without `()`"
)
_EXAMPLE = Pattern(
    "an example name", r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "name a key of the offline example, such as internvl_chat"
)
_MODEL_ID = Pattern("a model name", r"[\w.-]+/[\w.-]+", "write it as on the model hub: organisation/name")


class Reasoned(Record):
    """A section whose formula or bound has a reason that the code does not show."""

    why: str | None = declare(
        Remark("a reason", 300),
        "reason, which becomes a comment of the generated code",
        default=None,
        examples=["pruning edits embeddings after the encoder"],
    )


class Model(Record):
    """Which class is ported."""

    module: str = declare(Module(), "module below vllm.model_executor.models, or a dotted path", examples=["internvl"])
    class_: str = declare(Name("a class name"), "class that gets the protocol", examples=["InternVLChatModel"])
    architecture: str | None = declare(
        Name("an architecture"),
        "name under which vLLM's registry has the class, where that is another one",
        default=None,
        examples=["Lfm2VlForConditionalGeneration"],
    )
    mixin: str | None = declare(
        Module(),
        "MODULE.CLASS of the tree that becomes a base: the port has the methods that it leaves",
        default=None,
        examples=["encoder_cudagraph_utils.Qwen2VLEncoderCudaGraphMixin"],
    )
    optout: tuple[str, ...] = declare(
        Listing(Name("a class name")), "subclasses with another tower: they run eagerly", default=()
    )


class PackedModel(Model):
    """Which class is ported, and where it keeps the tower that computes metadata."""

    tower: str = declare(
        Name("an attribute name"), "attribute of the class that holds the vision tower", examples=["visual"]
    )


class Inputs(Reasoned):
    """One modality's inputs."""

    name: str = attach(default="")


class ModalityKeys(Inputs):
    """Names of one modality's inputs beside its pixels, in the keyword arguments of embed_multimodal."""

    sizes: str = declare(Name("an input name"), "key of the sizes of items", examples=["image_grid_thw"])
    embeds: str | None = declare(
        Name("an input name"), "key under which precomputed embeddings arrive instead of pixels", default=None
    )


class Modality(ModalityKeys):
    """Names of one modality's inputs in the keyword arguments of embed_multimodal."""

    pixels: str = declare(Name("an input name"), "key of the pixel tensor", examples=["pixel_values"])


class CutModality(Inputs):
    """One modality's pixels, and the model's own way from them to embeddings."""

    pixels: str = declare(Name("an input name"), "key of the pixel tensor", examples=["pixel_values"])
    entry: Call = declare(
        CallText("entry"),
        "call that makes embeddings of a batch (`**inputs`), as embed_multimodal makes them",
        examples=["self._process_image_input(self._parse_and_validate_image_input(**inputs))"],
    )


class UnitModality(CutModality):
    """One modality of a cut, whose units may have another shape."""

    let: Mapping[str, Expression] = declare(
        Table(_LET, "a name"),
        "names of `let` that have other values for this modality: its units have a path of their own",
        default={},
        examples=[{"side": 224}],
    )


class SizedField(Record):
    """An input whose items lie behind each other."""

    sizes: str = declare(Name("an input name"), "key of the number of rows of each item", examples=["num_patches"])
    extra: int | None = declare(
        Integer(0, 8),
        "rows of an item beside the product of its entries in `sizes`, where those are a grid",
        default=None,
        examples=[1],
    )
    least: int | None = declare(
        Integer(2, 8),
        "smallest grid in `sizes` with rows, by the product of its entries: an item of a smaller one has none",
        default=None,
        examples=[2],
    )


class Sizes(Record):
    """Meaning of one row of the size key."""

    columns: tuple[str, ...] = declare(
        Listing(Name("a column name"), 1, 3), "[n], [h, w], [t, h, w] or [tw, th]", examples=[["n"], ["t", "h", "w"]]
    )


class Helper(Reasoned):
    """A function for expressions, itself one expression."""

    args: tuple[str, ...] = declare(Listing(Name("an argument name"), 1, 6), "names of the arguments")
    value: Expression = declare(Formula("helper", calls_helpers=True), "expression over the arguments and `let` names")


class Count(Record):
    """A count that a static method computes, such as one of the processing info."""

    method: str = declare(Name("a method name"), "static method of one argument", examples=["get_patch_per_chunk"])
    of: str = declare(AttributePath(), "what it is asked about", examples=["self.config.vision_config"])


class Processor(Record):
    """Constants that only the tree's processor knows, such as the side of the tiles that it cuts."""

    module: str = declare(
        Module(), "module below vllm.transformers_utils.processors, or a dotted path", examples=["step3_vl"]
    )
    class_: str = declare(
        Name("a class name"),
        "class that is made without arguments, or has static methods",
        examples=["Step3VLImageProcessor", "Mllama4ProcessingInfo"],
    )
    values: Mapping[str, str | Count] = declare(
        Table(
            Shape("an attribute name or {method: NAME, of: PATH}", Name("an attribute name"), mapping=Section(Count)),
            "a name",
            minimum=1,
        ),
        "names for expressions, and the attribute or static method behind each",
    )


#: One input of a batch: a word, or the key of the sizes that it is cut by. An input that all items share is not listed.
FIELD = Shape("batched or {sizes: KEY}", scalar=Choice("a way to lie", FIELDS), mapping=Section(SizedField))


class Item(Reasoned):
    """How many input rows and output tokens one item has."""

    rows: Expression = declare(_ITEM, "rows of the pixel tensor", examples=["n"])
    tokens: Expression = declare(_ITEM, "rows of the encoder's output", examples=["n * k"])


class PackedItem(Record):
    """How many input rows and output tokens one item has, and how many rows become one token."""

    rows: Expression = declare(_ITEM, "rows of the pixel tensor", examples=["t * h * w"])
    tokens: Expression = declare(_ITEM, "rows of the encoder's output", examples=["t * (h // m) * (w // m)"])
    merge: tuple[Expression, ...] | None = declare(
        Listing(_LET, 1, 2, single=True),
        "side (or [height, width]) of the rows merged into a token, where `tokens` does not show it",
        default=None,
    )


class Tokens(Record):
    """The input with an entry for each token of an item, whose values the model reads.

    Its sizes in `fields` are a grid of tokens for each item.
    """

    input: str = declare(Name("an input name"), "key of the input, which has `sizes`", examples=["types"])
    count: Expression = declare(
        _ITEM, "tokens of an item whose entries in `sizes` are h and w", examples=["h * (w + 1) + 2"]
    )
    module: str = declare(
        Module(),
        "module below vllm.model_executor.models, or a dotted path",
        examples=["vllm.models.deepseek_v41.common.mm_preprocess"],
    )
    function: str = declare(
        Name("a function name"),
        "function of `module` that makes an item's entries of h and w; a port starts with these",
        examples=["image_token_types"],
    )


class Frames(Record):
    """How the frames of a sound become rows: its sizes in `fields` are a number of frames for each item."""

    rows: Expression = declare(
        _ITEM, "rows of an item of h frames", examples=["h // chunk * ((chunk + 7) // 8) + (h % chunk + 7) // 8"]
    )
    window: Expression = declare(
        _LET, "rows that attend to each other: an item of more is several sequences", examples=["13 * windows"]
    )


class PatchItem(Record):
    """An item of h x w patches, each of which is a row of the encoder."""

    shape: tuple[Expression, ...] = declare(
        Listing(_ITEM, 1, 5), "shape of its pixels", examples=[["3", "h * p", "w * p"], ["h * w", "3 * p**2"]]
    )
    values: Mapping[str, tuple[Expression, ...] | tuple[tuple[Expression, ...]]] = declare(
        Table(Listing(_ITEM, 1, 4, nested=True), "an input name"),
        "its entries in the other inputs that the model reads with the pixels (in two pairs of brackets where an item "
        "has a table of one row there); in an input with `sizes` those of a unit, such as a tile",
        default={},
        examples=[{"image_grid_thw": ["1", "h", "w"]}],
    )
    zeros: Mapping[str, tuple[Expression, ...]] = declare(
        Table(Listing(_ITEM, 1, 4), "an input name"),
        "shape of its integers in the other inputs, such as positions: a port starts with zeros there",
        default={},
        examples=[{"patch_positions": ["h * w", "3"]}],
    )
    mask: str | None = declare(
        Name("an input name"),
        "input that says which rows of an item are patches, where the processor pads all items to one length",
        default=None,
        examples=["pixel_attention_mask"],
    )
    moved: tuple[str, ...] = declare(
        Listing(Name("an input name")),
        "those of `values` that vLLM moves to the GPU: the processor does not mark them with `keep_on_cpu`",
        default=(),
        examples=[["image_grid_thw"]],
    )
    tokens: Tokens | None = declare(
        Section(Tokens),
        "input with an entry for each token, where patches do not say how many an item has",
        default=None,
    )
    frames: Frames | None = declare(
        Section(Frames), "rows and attention of a sound, whose patches are those of its frames", default=None
    )
    merge: Expression = declare(_LET, "side of the squares of patches that become one token", examples=["m"])


_INPUT_DTYPE = "attribute that holds the input dtype, where it may differ from the model's"


class Pixels(Record):
    """One tile of the pixel tensor."""

    shape: tuple[Expression, ...] = declare(Listing(_LET, 1, 5), "shape of one tile", examples=[["3", "side", "side"]])


class UnitPixels(Record):
    """One unit of the pixel tensor."""

    shape: tuple[Expression, ...] = declare(Listing(_LET, 1, 5), "shape of one unit", examples=[["3", "side", "side"]])
    padded: bool = declare(
        Flag(), "whether the model pads all items of a batch to the most units of one", default=False
    )
    dtype: str | None = declare(AttributePath(), _INPUT_DTYPE, default=None)


class UnitItem(Record):
    """The tokens of a unit."""

    merge: Expression = declare(_LET, "side of the squares of features that become one token", examples=["m"])


class WholePixels(Record):
    """One whole image."""

    shape: tuple[Expression, ...] = declare(
        Listing(_LET, 1, 5), "shape of one whole image", examples=[["3", "side", "side"]]
    )


class Crops(Record):
    """The crops of an image, in a tensor of their own."""

    pixels: str = declare(Name("an input name"), "key of the tensor of crops", examples=["images_crop"])
    shape: tuple[Expression, ...] = declare(Listing(_LET, 1, 5), "shape of one crop", examples=[["3", "crop", "crop"]])


class PackedPixels(Record):
    """One row of the pixel tensor."""

    shape: tuple[Expression, ...] = declare(Listing(_LET, 1, 5), "shape of one row", examples=[["channels * side**2"]])
    dtype: str | None = declare(AttributePath(), _INPUT_DTYPE, default=None)


class Sequences(Reasoned):
    """One set of attention sequences and the buffers that describe it.

    The buffers' padding follows from what they are: offsets repeat their last value, so that the sequences that a
    batch lacks are empty; lengths are filled with zeros; the bound is a host value that is as large as any replay
    needs.
    """

    name: str = attach(default="")
    unit: str = declare(
        Choice(
            "a unit",
            {"frame": "a frame is a sequence", "item": "an item is one", "window": "a window is one"},
        ),
        "what one sequence covers",
    )
    offsets: str = declare(Name("a buffer name"), "buffer of cumulative offsets", examples=["cu_seqlens"])
    max: str | None = declare(Name("a buffer name"), "host scalar with the longest sequence, in rows", default=None)
    lengths: str | None = declare(
        Name("a buffer name"),
        "buffer of lengths, which FlashInfer's attention needs; its offsets then come in two sections",
        default=None,
    )
    count: Expression | None = declare(_BATCH, "largest number of sequences of a batch", default=None)
    longest: Expression | None = declare(_BATCH, "rows of the longest sequence of a batch", default=None)


class Capture(Reasoned):
    """The inputs while vLLM captures a graph."""

    rows: Expression = declare(_BATCH, "tiles captured for a budget of b tokens", examples=["b // k"])


class PackedCapture(Reasoned):
    """The inputs while vLLM captures a graph: strips of one token's height."""

    side_limit: Expression = declare(
        _LET, "longest side of a grid, in rows, such as the entries of a rotary table", examples=[8192]
    )


class FramesInfo(Record):
    """The number of frames of the largest video, from the processing info."""

    info: str = declare(_BUDGET_INFO, "method of the processing info", examples=["get_num_frames_with_most_features"])


class Budget(Reasoned):
    """Range of token budgets."""

    min: Expression = declare(_LET, "smallest budget that makes sense", examples=["k"])


class PackedBudget(Reasoned):
    """Range of token budgets, and the frames of a video."""

    min: Expression = declare(_LET, "smallest budget that makes sense", examples=[64])
    frames: Expression | FramesInfo | None = declare(
        Shape("an expression or {info: METHOD}", scalar=_LET, mapping=Section(FramesInfo)),
        "largest number of frames of a video, which vLLM multiplies by the items of a batch",
        default=None,
    )
    frames_why: str | None = declare(
        Remark("a reason", 300),
        "reason of that number, which becomes a comment of the generated code",
        default=None,
        examples=["As many as a video has at most."],
    )


class Forward(Record):
    """A call of the model, of which `flatten` makes rows of tokens."""

    call: Call = declare(CallText(), "call with `pixels`", examples=["self.extract_feature(pixels)"])
    flatten: bool = declare(Flag(), "whether the output is reshaped to [tokens, hidden]", default=False)


#: Arguments of the encoder that some batches have. One that is `absent` from graphs sends its batches to the model's
#: own code; an `additive` mask is one of zeros where there is none.
ABSENT, ADDITIVE = "absent", "additive"
#: The dtype of an argument that is computed with the units, such as a mask that attention adds.
WEIGHTS = "weights"
OPTIONAL = {
    ABSENT: "None, where a graph is replayed",
    ADDITIVE: "None or a mask `[n, 1, 1, rows]` that attention adds, lowest in rows of padding: units may be shorter "
    "than those of `unit`, and graphs pad them",
}


class UnitInput(Record):
    """An argument of the encoder for each unit besides the pixels, such as a mask of its patches."""

    shape: tuple[Expression, ...] = declare(
        Listing(_LET, 1, 5), "shape for one unit", examples=[["side // patch", "side // patch"]]
    )
    dtype: str = declare(
        Choice("a dtype", {**dict.fromkeys(("bool", "int32", "int64", "float32"), ""), WEIGHTS: "that of the weights"}),
        "dtype in which it is handed over",
    )


class LayerColumn(Record):
    """Layers that a table of the model lists."""

    table: str = declare(AttributePath(), "attribute with a table", examples=["self.config.deepstack_layer_map"])
    column: int = declare(Integer(0), "column of the table that has the layers", examples=[0])


class CutForward(Record):
    """The model's call of its encoder, on units of one shape."""

    call: Call = declare(
        CallText("cut"),
        "call with `pixels`, whose other arguments are those of `with`, or constants of the model",
        examples=["self.vision_tower(pixels)", "self.vision_tower(pixels, patch_attention_mask=mask)"],
    )
    loop: str | None = declare(
        AttributePath(called=True),
        "layers, seen from the owner of a method that loops over them, or over a slice of them: the last such loop "
        "becomes a method `forward_layers`, of which `call` is the call, with what the loop reads in its order",
        default=None,
        examples=["self.vpm.encoder.layers"],
    )
    with_: Mapping[str, str | UnitInput] = declare(
        Table(
            Shape(
                "absent, additive or {shape: [...], dtype: DTYPE}",
                scalar=Choice("an argument", OPTIONAL),
                mapping=Section(UnitInput),
            ),
            "an argument name",
        ),
        "further arguments that have an entry for each unit, that hide padding, or that no graph holds",
        default={},
        examples=[{"mask": {"shape": ["side // patch", "side // patch"], "dtype": "bool"}}],
    )
    unit: tuple[Expression, ...] = declare(
        Listing(_LET, 1, 5),
        "shape of one unit as the call gets it, where the model has made it of the pixels",
        default=(),
        examples=[["(side // patch) ** 2", "width"]],
    )
    axis: int = declare(
        Integer(0, 1), "axis of the units in the argument and the result; a batch axis of 1 comes before 1", default=0
    )
    channels: int = declare(
        Integer(1, 3),
        "axis of the channels in the result, where it is a map of features and they are not last; budgets count the "
        "other axes",
        default=0,
        examples=[1],
    )
    result: tuple[str, ...] | str = declare(
        Shape("an attribute or [_, features]", scalar=Name("an attribute name"), sequence=Listing(Name("a name"))),
        "names of the parts where the result is a tuple, of which `features` is used; of an object the attribute that "
        "is used",
        default=(),
        examples=[["_", "features"], "last_hidden_state"],
    )
    layers: tuple[Expression | LayerColumn, ...] = declare(
        Listing(Shape("a layer or {table: ATTRIBUTE, column: N}", scalar=_LET, mapping=Section(LayerColumn))),
        "layers that the model uses where the result is a list of them",
        default=(),
        examples=[[{"table": "self.config.deepstack_layer_map", "column": 0}, "self.config.vision_feature_layer"]],
    )


class Explicit(Record):
    """A port in a tree that runs the model's code once: a graph holds one method, which eager code calls, too."""

    call: Call = declare(
        CallText("cut"),
        "what a graph holds of units: the encoder, and whatever follows it unit by unit, such as a projector; names of "
        "`forward.with` are inputs of a batch, whose items have as many entries as units",
        examples=["self.multi_modal_projector(self.vision_tower(pixels))"],
    )
    tokens: Expression = declare(
        _LET,
        "rows that a graph gives of a unit, by which budgets count units; `verify` refuses another number",
        examples=["(side // patch) ** 2"],
    )
    after: str | None = declare(
        Name("a method name"),
        "name for the method that makes embeddings of these rows: the model's statements after its encoder's call; "
        "a graph holds it, too, where an item is one unit and it reads nothing else; without it rows are embeddings",
        default=None,
        examples=["_merge_patch_embeddings"],
    )
    items: str | None = declare(
        Name("a method name"),
        "name for the method of what follows it in a loop over items, where the model encodes one after another: "
        "`after` then makes the embeddings of one item",
        default=None,
        examples=["_finish_image_embeddings"],
    )
    most: Expression | None = declare(
        _LET,
        "units of the largest item, where it may have more than the tokens that a server batches: the largest budget "
        "holds one such item",
        default=None,
        examples=["self.config.vision_config.max_crops + 1"],
    )
    single: bool = declare(Flag(), "whether an item is one unit, without an axis for several", default=False)


class ExplicitRows(Reasoned):
    """A port in a tree that runs the model's code once: a graph holds the encoder's call, and eager code has methods
    for what is in front of it and behind it. Names are those of the tower's variables that the call reads.

    Where the layers run in a loop, a graph holds that, and a port calls what is around it as `layers`, `held` and
    `post` say.
    """

    before: str = declare(
        Name("a method name"),
        "name for the statements in front of the encoder's call, or of the loop over its layers",
        examples=["prepare_layers"],
    )
    after: str | None = declare(
        Name("a method name"),
        "name for the model's statements after its tower's call",
        default=None,
        examples=["_project_image_features"],
    )
    layers: Call | None = declare(
        CallText("layers"),
        "the encoder's call, whose method has the loop, seen from the model; `offsets` are where the patches of each "
        "image end",
        default=None,
        examples=["self.vision.encoder(self.vision.embeddings(pixels, sizes), cu_seqlens=offsets)"],
    )
    held: Call | None = declare(
        CallText("held"),
        "what a graph holds behind the layers, patch by patch",
        default=None,
        examples=["self.vision.post_layernorm(features)"],
    )
    post: Call | None = declare(
        CallText("items"),
        "what makes the embeddings of the items, whose patches are in a list",
        default=None,
        examples=["self.projector(items, sizes)"],
    )
    rows: Mapping[str, int] = declare(
        Table(Integer(0, 3), "a variable", minimum=1),
        "variables with an entry for each patch, and the axis of it; padded with zeros",
        examples=[{"patch_embeds": 1}],
    )
    rotary: str | None = declare(
        Name("a variable"),
        "variable with a pair of rotary embeddings for each patch, cosine and sine",
        default=None,
        examples=["position_embedding"],
    )
    offsets: str = declare(
        Name("a variable"), "offsets of attention sequences; padded with their last value", examples=["cu_seqlens"]
    )
    longest: str = declare(
        Name("a variable"),
        "longest sequence, read on the host: a capture freezes all rows of the graph",
        examples=["max_seqlen"],
    )
    lengths: str | None = declare(
        Name("a variable"),
        "lengths of sequences, which FlashInfer's attention alone needs; padded with zeros",
        default=None,
        examples=["sequence_lengths"],
    )


class ChainForward(Record):
    """The model's calls of its encoders, one after the other, on whole images and on crops; or one call on each."""

    call: Call = declare(CallText("cut"), "first call, with `pixels` alone", examples=["self.sam_model(pixels)"])
    through: str | None = declare(
        AttributePath(called=True),
        "part of the model whose call is the last one; the statements from `call` to it become a method, which is "
        "recorded; without it that is the call alone",
        default=None,
        examples=["self.projector"],
    )


class RowsForward(Record):
    """The encoder, which the model calls once for all items of a batch, or once for each."""

    encoder: str = declare(
        AttributePath(called=True),
        "module or method of the model; all arguments of its call are recorded",
        examples=["self.vision_tower.transformer"],
    )
    loop: str | None = declare(
        AttributePath(called=True),
        "layers of the encoder, seen from it, where the loop over them is recorded and not the call of the encoder: it "
        "becomes a method, and everything that it reads is recorded",
        default=None,
        examples=["self.layers"],
    )
    per_item: bool = declare(
        Flag(),
        "whether the model calls the encoder once for each item, where attention needs no offsets: the layers get them "
        "as parameters, and a graph holds the rows of all items",
        default=False,
    )
    unread: tuple[str, ...] = declare(
        Listing(Name("an argument name"), 1, 8),
        "what the loop takes and no layer reads, such as the windows of a model whose layers attend to all patches; a "
        "model with a layer that does has no graphs",
        default=(),
        examples=[["cu_window_seqlens"]],
    )
    several: bool = declare(
        Flag(),
        "whether the result has several tensors of rows, such as those of all layers: a graph holds those that the "
        "model reads, side by side",
        default=False,
    )


class PackedForward(Record):
    """The call that is recorded."""

    call: Call = declare(
        CallText("packed"),
        "call with `pixels` and `metadata`",
        examples=["self.visual(pixels, None, encoder_metadata=metadata)"],
    )
    flatten: bool = declare(Flag(), "whether the output is reshaped to [tokens, hidden]", default=False)


class Eager(Record):
    """The call for items that no graph fits."""

    call: Call = declare(
        CallText("eager"),
        "call with `pixels`, and `sizes` or the `metadata` that the tower makes of them",
        examples=["self.visual(pixels, sizes)"],
    )
    flatten: bool = declare(Flag(), "whether the output is reshaped to [tokens, hidden]", default=False)


class Path(Record):
    """One independently captured path of a model with several."""

    name: str = attach(default="")
    count: Expression = declare(_ITEM, "tiles of an item on this path", examples=["1", "n"])
    tokens: Expression = declare(Formula("let", calls_helpers=True), "output tokens of one tile")
    pixels: str = declare(Name("an input name"), "key of this path's pixel tensor")
    shape: tuple[Expression, ...] = declare(Listing(_LET, 1, 5), "shape of one tile")
    rows: Expression | None = declare(_LET, "cost of one tile in input rows, for balancing", default=None)


class After(Reasoned):
    """Code that runs on the rows of a batch outside of the graph."""

    call: Call = declare(
        CallText("post"),
        "call that makes embeddings of a batch's rows (`output`), for a module that needs `sizes` on the host",
        examples=["self.resampler_model(output, sizes)"],
    )


class Assembly(Record):
    """How the outputs of the paths become an item."""

    assemble: tuple[str, ...] = declare(
        Listing(Name("a path name", word=True)), "paths in the order of an item's parts", examples=[["local", "global"]]
    )


class Gates(Reasoned):
    """Conditions under which the feature is on."""

    some_of = ("modalities", "encoder")

    modalities: Expression | None = declare(
        Formula("let", wants="bool"),
        "condition for graphs of any modality; a port that is off captures them",
        default=None,
    )
    encoder: Expression | None = declare(
        Formula("let", wants="bool"),
        "whether a graph can hold the encoder of this model: if not, nothing is captured",
        default=None,
        examples=['self.config.vision_config.model_type != "pixtral"'],
    )


class DataParallel(Record):
    """How the model's own data parallelism is kept out of captured code."""

    switches: tuple[str, ...] = declare(
        Listing(AttributePath(called=True)), "attributes that must be False inside forwards called by the manager"
    )


class Output(Record):
    """The encoder's output."""

    hidden_size: Expression = declare(_LET, "columns of the output", examples=["self.visual.out_hidden_size"])


class Tower(Record):
    """Facts that the split of the tower needs."""

    class_: str | None = declare(Name("a class name"), "class of the tower, where it cannot be found", default=None)
    entry: str = declare(Name("a method name"), "method that is split", default="forward")
    data: str = declare(Name("a parameter name"), "parameter that holds pixels", examples=["x"])
    metadata: tuple[str, ...] = declare(
        Listing(Name("a parameter name")), "parameters that describe sizes", examples=[["grid_thw"]]
    )
    grid: str = declare(
        Choice("a form", {"list": "a list of lists", "tensor": "a CPU tensor"}),
        "form in which the metadata method takes the sizes",
        default="list",
    )
    names: Mapping[str, str] = declare(
        Table(Name("a buffer name"), "a variable"),
        "variables of a tower that is split, and the buffers that they are, where the names differ",
        default={},
        examples=[{"adapted_pos_embed": "pos_embeds"}],
    )


class Template(Record):
    """A chat template of the generation test."""

    name: str = declare(Name("a function name"), "name of the module function", examples=["internvl_chat_template"])
    text: str = declare(Text("a template", lines=True), "template with {content} where the prompt goes")


class TestEntry(Record):
    """The model's entry in vLLM's ViT-cudagraph generation test."""

    __test__ = False  # pytest must not collect it

    key: str = declare(Name("a key"), "key of the entry", examples=["internvl"])
    model: str = declare(_MODEL_ID, "checkpoint", examples=["OpenGVLab/InternVL3-1B"])
    image_prompt: str | None = declare(
        Text("a prompt", lines=True), "prompt of the image test, the template's content if there is one", default=None
    )
    video_prompt: str | None = declare(Text("a prompt", lines=True), "prompt of the video test", default=None)
    template: Template | None = declare(Section(Template), "chat template around the prompts", default=None)
    dtype: str | None = declare(
        Choice("a dtype", {"bfloat16": "", "float16": "", "float32": "", "auto": ""}),
        "dtype of the model",
        default=None,
    )
    max_model_len: int | None = declare(Integer(), "length of the model's context", default=None)
    max_tokens: int | None = declare(Integer(), "tokens to generate", default=None)
    max_num_seqs: int | None = declare(Integer(), "sequences at a time", default=None)
    num_video_frames: int | None = declare(Integer(), "frames of the test video", default=None)
    needs_video_metadata: bool | None = declare(Flag(), "whether the processor takes video metadata", default=None)
    runner_kwargs: Mapping[str, Any] = declare(
        Table(Free(), "an argument name"), "further arguments of the test's runner", default={}
    )
    dummy_arch: str | None = declare(
        Name("an architecture"), "architecture shrunk to random weights by dummy_hf_overrides", default=None
    )
    dummy_overrides: Mapping[str, Any] = declare(
        Table(Free(), "a configuration key"), "configuration overrides of the shrunk model", default={}
    )
    compilation_overrides: Mapping[str, Any] = declare(
        Table(Free(), "a configuration key"), "overrides of the compilation configuration", default={}
    )
    core_model: bool = declare(Flag(), "whether the test carries the core_model mark", default=False)
    skip: bool | str = declare(FlagOrText(), "whether the test is skipped, and why", default=False)


class PoolingTest(Record):
    """The entry of a model that only pools, in a test of its own: vLLM's generation test asks for text."""

    key: str = declare(Name("a key"), "key of the entry", examples=["clip"])
    model: str = declare(_MODEL_ID, "checkpoint", examples=["openai/clip-vit-base-patch32"])
    task: str = declare(
        Choice("a task", {"embed": "", "classify": "", "token_embed": "", "token_classify": ""}),
        "pooling task that the model serves",
    )
    image_prompt: str | None = declare(
        Text("a prompt", lines=True), "prompt with what is there for an image, empty without", default=None
    )
    max_model_len: int | None = declare(Integer(), "length of the model's context", default=None)
    runner_kwargs: Mapping[str, Any] = declare(
        Table(Free(), "an argument name"), "further arguments of the test's runner", default={}
    )
    dummy_arch: str | None = declare(
        Name("an architecture"), "architecture shrunk to random weights by dummy_hf_overrides", default=None
    )


class Docs(Record):
    """The model's row in vLLM's table of supported models."""

    models: tuple[str, ...] = declare(
        Listing(Text("a model name", 80)), "families to list", examples=[["InternVL3.5", "InternVL3"]]
    )


class Integration(Record):
    """The other three places that a port touches."""

    test: tuple[TestEntry, ...] = declare(
        Listing(Section(TestEntry), 1, 8, single=True), "entry of the generation test, or several", default=()
    )
    pooling: PoolingTest | None = declare(Section(PoolingTest), "entry of the test of pooling models", default=None)
    docs: Docs | None = declare(Section(Docs), "row of the documentation table", default=None)
    example: tuple[str, ...] = declare(
        Listing(_EXAMPLE, 1, 8, single=True), "key in the offline example's support list", default=()
    )


class Verify(Record):
    """Facts that the numerical proof cannot find out. With this section it builds the model by itself."""

    config: str | None = declare(
        Text("a file", 200), "the checkpoint's config.json: a path, from the descriptor's folder", default=None
    )
    set: Mapping[str, Any] = declare(
        Table(Free(), "a configuration key"),
        "values of the small configuration; a mapping adds to the part of its name",
        default={},
        examples=[{"vision_config": {"window_size": 112}}],
    )
    keep: tuple[str, ...] = declare(
        Listing(Text("a path", 200)),
        "values that are not made smaller",
        default=(),
        examples=[["vision_config.hidden_size"]],
    )
    images: tuple[tuple[int, ...], ...] = declare(
        Listing(Listing(Integer(1, 4096), 2, 2)),
        "more images, by width and height",
        default=(),
        examples=[[[1500, 60]]],
    )
