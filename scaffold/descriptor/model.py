"""What a descriptor may say: one frozen record for each section, in the order of the YAML.

Declarations only. `schema.py` reads them and prints them as JSON Schema, `rules.py` says how they fit together, and
`spec.py` turns them into what the later stages use. Expressions are parsed already; nothing is derived yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaffold.descriptor import kinds
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
    Section,
    Shape,
    Table,
    Text,
    Use,
    Version,
    attach,
    declare,
)
from scaffold.diagnostics import Diagnostic, Span

#: Names of expressions by place. `let`: only `let` names; `item`: also size columns; `batch`: also b, B, F.
_LET, _ITEM, _BATCH = Formula("let"), Formula("item"), Formula("batch")
_CONDITION = Formula("let", wants="bool")

_BUDGET_INFO = Pattern(
    "the name of a method", "[A-Za-z_][A-Za-z0-9_]*", "name a method of the processing info class, without `()`"
)
_FILE = Pattern(
    "a file name", r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.py", "name a Python file that lies beside the descriptor: name.py"
)
_EXAMPLE = Pattern(
    "an example name", r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "name a key of the offline example, such as internvl_chat"
)
_MODEL_ID = Pattern("a model name", r"[\w.-]+/[\w.-]+", "write it as on the model hub: organisation/name")


class Model(Record):
    """Which class is ported."""

    module: str = declare(Module(), "module below vllm.model_executor.models, or a dotted path", examples=["internvl"])
    class_: str = declare(Name("a class name"), "class that gets the protocol", examples=["InternVLChatModel"])
    tower: str = declare(
        Name("an attribute name"), "attribute of the class that holds the vision tower", examples=["visual"]
    )
    optout: tuple[str, ...] = declare(
        Listing(Name("a class name")), "subclasses with another tower: they say no when asked for graphs", default=()
    )


class Modality(Record):
    """Names of one modality's inputs in the keyword arguments of embed_multimodal."""

    pixels: str = declare(Name("an input name"), "key of the pixel tensor", examples=["pixel_values"])
    sizes: str = declare(Name("an input name"), "key of the sizes of items", examples=["image_grid_thw"])
    embeds: str | None = declare(
        Name("an input name"), "key under which ready embeddings arrive instead of pixels", default=None
    )
    aux: Mapping[str, Expression] = declare(
        Table(_ITEM, "an input name"), "further inputs, with the rows that each has for an item", default={}
    )
    only_if: Expression | None = declare(_CONDITION, "condition for graphs of this modality", default=None)


class Sizes(Record):
    """Meaning of one row of the size key."""

    columns: tuple[str, ...] = declare(
        Listing(Name("a column name"), 1, 3), "[n], [h, w], [t, h, w] or [tw, th]", examples=[["n"], ["t", "h", "w"]]
    )
    also: Mapping[str, tuple[str, ...]] = declare(
        Table(Listing(Name("a column name"), 1, 4), "an input name"), "further size keys and their columns", default={}
    )


class Helper(Record):
    """A function for expressions, itself one expression."""

    args: tuple[str, ...] = declare(Listing(Name("an argument name"), 1, 6), "names of the arguments")
    value: Expression = declare(Formula("helper"), "expression over the arguments and `let` names")


class Processor(Record):
    """Constants that only the tree's image processor knows, such as the side of the tiles that it cuts."""

    module: str = declare(
        Module(), "module below vllm.transformers_utils.processors, or a dotted path", examples=["step3_vl"]
    )
    class_: str = declare(
        Name("a class name"), "class that is made without arguments", examples=["Step3VLImageProcessor"]
    )
    values: Mapping[str, str] = declare(
        Table(Name("an attribute name"), "a name", minimum=1), "names for expressions, and the attribute behind each"
    )


class Item(Record):
    """How many input rows and output tokens one item has."""

    rows: Expression = declare(_ITEM, "rows of the pixel tensor", examples=["t * h * w"])
    tokens: Expression = declare(_ITEM, "rows of the encoder's output", examples=["t * (h // m) * (w // m)"])
    merge: tuple[Expression, ...] | None = declare(
        Listing(_LET, 1, 2, single=True), "side (or [height, width]) of the rows merged into a token", default=None
    )
    eager_if: Expression | None = declare(
        Formula("item", "bool"), "condition under which an item runs eagerly", default=None
    )


class Pixels(Record):
    """One row of the pixel tensor."""

    shape: tuple[Expression, ...] = declare(Listing(_LET, 1, 5), "shape of one row", examples=[["3", "side", "side"]])
    dtype: str | None = declare(
        AttributePath(), "attribute that holds the input dtype, where it may differ from the model's", default=None
    )


class Sequences(Record):
    """One set of attention sequences and the buffers that describe it."""

    unit: str = declare(
        Choice(
            "a unit",
            {
                "frame": "a frame is a sequence",
                "item": "an item is one",
                "tile": "a tile is one",
                "window": "a window is one",
            },
        ),
        "what one sequence covers",
    )
    offsets: str = declare(Name("a buffer name"), "buffer of cumulative offsets", examples=["cu_seqlens"])
    max: str | None = declare(Name("a buffer name"), "host scalar with the longest sequence, in rows", default=None)
    lengths: str | None = declare(Name("a buffer name"), "buffer of lengths, for backends that need it", default=None)
    count: Expression | None = declare(_BATCH, "largest number of sequences of a batch", default=None)
    longest: Expression | None = declare(_BATCH, "rows of the longest sequence of a batch", default=None)


class Attention(Record):
    """How the tower attends, and which backends can be captured."""

    kind: str = declare(
        Choice(
            "a kind of attention",
            {"varlen": "offsets of sequences", "dense": "within a tile or row", "mask": "with an explicit mask"},
        ),
        "how the tower attends",
    )
    backends: tuple[str, ...] = declare(
        Listing(Choice("an attention backend", kinds.BACKENDS)), "backends for which graphs are captured", default=()
    )
    sequences: Mapping[str, Sequences] = declare(
        Table(Section(Sequences), "a name for the sequences"), "sets of sequences, such as full and window", default={}
    )


class Capture(Record):
    """What the inputs look like while a graph is recorded."""

    rows: Expression | None = declare(
        _BATCH, "rows captured for a budget of b tokens", default=None, examples=["b // k"]
    )
    grid: str | None = declare(
        Choice(
            "a capture grid",
            {"strip": "one merged row after the other", "square": "about as high as wide", "tiles": "whole tiles"},
        ),
        "shape of the grid that is captured",
        default=None,
    )
    side_limit: Expression | None = declare(
        _LET, "largest side of a grid, such as that of a rotary table", default=None
    )


class Metadata(Record):
    """The method that computes everything that does not depend on pixels."""

    method: str = declare(Name("a method name"), "name of the method", default="prepare_encoder_metadata")
    on: str = declare(
        Choice("an owner", {"tower": "the vision tower", "model": "the model"}), "class it belongs to", default="tower"
    )
    grid: str = declare(
        Choice("a form", {"list": "a list of lists", "tensor": "a CPU tensor"}),
        "form in which it takes the sizes",
        default="list",
    )


class Pad(Record):
    """How the unused tail of a buffer is filled."""

    fill: int | None = declare(Integer(-(2**31)), "value of the tail", default=None)
    axis: int | None = declare(Integer(0, 4), "axis along which rows lie", default=None)


class Buffer(Record):
    """A recorded buffer. Its kind decides padding, capture value and residency."""

    kind: str = declare(
        Choice("a buffer kind", {kind.name: kind.meaning for kind in kinds.KINDS.values()}), "kind of the buffer"
    )
    pad: str | Pad | None = declare(
        Shape(
            "a padding",
            scalar=Choice(
                "a padding", {name: kinds.PADS[name] for name in ("zero", "repeat_last", "sections", "rows_total")}
            ),
            mapping=Section(Pad),
        ),
        "padding, where the kind's own does not fit",
        default=None,
    )
    residency: str | None = declare(
        Choice("a residency", {"device": "GPU memory", "host": "CPU memory"}), "where it lives", default=None
    )
    capture: Expression | None = declare(_BATCH, "value while the graph is recorded", default=None)
    from_: str = declare(
        Choice(
            "a source", {"metadata": "the metadata method", "inputs": "an input of the same name", "hook": "a hook"}
        ),
        "where its values come from",
        default="metadata",
    )


class FramesInfo(Record):
    """The number of frames of the largest video, asked from the processing info."""

    info: str = declare(_BUDGET_INFO, "method of the processing info", examples=["get_num_frames_with_most_features"])


class Budget(Record):
    """Range of token budgets."""

    min: Expression | None = declare(_LET, "smallest budget that makes sense", default=None)
    max: Expression | None = declare(
        _LET, "largest budget, where it is less than the scheduler's and the model's length", default=None
    )
    frames: Expression | FramesInfo | None = declare(
        Shape("an expression or {info: METHOD}", scalar=_LET, mapping=Section(FramesInfo)),
        "largest number of frames of a video",
        default=None,
    )


class Forward(Record):
    """The call that is recorded."""

    call: Call | None = declare(
        CallText(), "call with `pixels`, and `metadata` where there is some", default=None,
        examples=["self.extract_feature(pixels)"],
    )  # fmt: skip
    flatten: bool = declare(Flag(), "whether the output is reshaped to [tokens, hidden]", default=False)


class Eager(Record):
    """The call for items that no graph fits, where it differs from the recorded one."""

    call: Call = declare(CallText("eager"), "call with `pixels` and `sizes`", examples=["self.visual(pixels, sizes)"])
    flatten: bool = declare(Flag(), "whether the output is reshaped to [tokens, hidden]", default=False)


class Path(Record):
    """One independently captured path of a model with several."""

    count: Expression = declare(_ITEM, "units of an item on this path", examples=["1", "n"])
    tokens: Expression = declare(_LET, "output tokens of one unit")
    pixels: str = declare(Name("an input name"), "key of this path's pixel tensor: `pixels` or `aux` of the modality")
    shape: tuple[Expression, ...] = declare(Listing(_LET, 1, 5), "shape of one unit")
    rows: Expression | None = declare(_LET, "cost of one unit in input rows, for balancing", default=None)
    capture: Expression | None = declare(_BATCH, "units captured for a budget of b tokens", default=None)
    zero_ok: bool = declare(Flag(), "whether a batch may have no unit on this path", default=False)
    call: Call | None = declare(CallText(), "call of this path, where `forward.call` does not fit", default=None)


class Part(Record):
    """One part of an assembled item that is more than a path's output."""

    path: str | None = declare(Name("a path name", word=True), "path whose output is taken", default=None)
    grid: tuple[Expression, ...] | None = declare(Listing(_ITEM, 2, 2), "rows and columns of its units", default=None)
    newline: str | None = declare(AttributePath(), "token that ends each row of the grid", default=None)
    token: str | None = declare(AttributePath(), "single token that is inserted", default=None)


class Post(Record):
    """What is done with the outputs outside of the graph: paths become an item, or a module runs on the valid rows."""

    assemble: tuple[str | Part, ...] = declare(
        Listing(Shape("a path or a mapping", scalar=Name("a path name", word=True), mapping=Section(Part))),
        "parts of an item in order",
        default=(),
        examples=[["local", "global"]],
    )
    call: Call | None = declare(
        CallText("post"),
        "call that makes embeddings of a batch's rows (`output`), for a module that needs `sizes` on the host",
        default=None,
        examples=["self.resampler_model(output, sizes)"],
    )


class Axis(Record):
    """A further dimension of captured graphs, such as the patch grid of a slice."""

    name: str = declare(Name("an axis name"), "name of the axis")
    keys: Expression | tuple[Any, ...] = declare(
        Shape("an expression or a list of keys", scalar=_LET, sequence=Listing(Free())), "keys that are captured"
    )
    resolve: str = declare(
        Choice("a hook", {name: hook.purpose for name, hook in kinds.HOOKS.items()}), "hook that finds the key"
    )
    capture: str = declare(
        Choice("a hook", {name: hook.purpose for name, hook in kinds.HOOKS.items()}), "hook that gives the shape"
    )


class Hook(Record):
    """A method written by a person, in a file beside the descriptor."""

    file: str = declare(_FILE, "file that defines a function with the hook's name")


class Gates(Record):
    """Conditions under which the feature is on."""

    modalities: Expression | None = declare(_CONDITION, "condition for graphs of any modality", default=None)


class Requirement(Record):
    """A condition without which the model must not start with encoder graphs."""

    unless: Expression = declare(_CONDITION, "condition that has to hold")
    message: str = declare(Text("a message", 300), "what the user is told")


class DataParallel(Record):
    """How the model's own data parallelism is kept out of captured code."""

    switches: tuple[str, ...] = declare(
        Listing(AttributePath()), "attributes that must be False inside forwards called by the manager"
    )


class Output(Record):
    """The encoder's output."""

    hidden_size: Expression = declare(_LET, "columns of the output", examples=["self.visual.out_hidden_size"])


class Tower(Record):
    """What the splitting of the tower has to know."""

    class_: str | None = declare(Name("a class name"), "class of the tower, where it cannot be found", default=None)
    entry: str = declare(Name("a method name"), "method that is split", default="forward")
    data: str = declare(Name("a parameter name"), "parameter that holds pixels", examples=["x"])
    metadata: tuple[str, ...] = declare(
        Listing(Name("a parameter name")), "parameters that describe sizes", examples=[["grid_thw"]]
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
    text: str = declare(Text("a template"), "template with {content} where the prompt goes")


class TestEntry(Record):
    """The model's entry in vLLM's ViT-cudagraph generation test."""

    __test__ = False  # pytest must not collect it

    key: str = declare(Name("a key"), "key of the entry", examples=["internvl"])
    model: str = declare(_MODEL_ID, "checkpoint", examples=["OpenGVLab/InternVL3-1B"])
    image_prompt: str | None = declare(
        Text("a prompt"), "prompt of the image test, the template's content if there is one", default=None
    )
    video_prompt: str | None = declare(Text("a prompt"), "prompt of the video test", default=None)
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
    docs: Docs | None = declare(Section(Docs), "row of the documentation table", default=None)
    example: tuple[str, ...] = declare(
        Listing(_EXAMPLE, 1, 8, single=True), "key in the offline example's support list", default=()
    )


class Descriptor(Record):
    """Everything that the port of one vision-language model to encoder CUDA graphs needs and that cannot be derived."""

    schema: int = declare(Version((1,)), "version of this format", examples=[1])
    model: Model = declare(Section(Model), "which class is ported")
    layout: str = declare(Choice("a layout", kinds.LAYOUTS), "how pixels of several items lie in memory")
    modalities: Mapping[str, Modality] = declare(
        Table(Section(Modality), "a modality", kinds.MODALITIES, minimum=1), "inputs of each modality"
    )
    sizes: Sizes = declare(Section(Sizes), "meaning of the size key")
    let: Mapping[str, Expression] = declare(
        Table(Formula("let"), "a name"), "names for expressions; a line may use the ones above it", default={}
    )
    processor: Processor | None = declare(Section(Processor), "constants of the image processor", default=None)
    helpers: Mapping[str, Helper] = declare(
        Table(Section(Helper), "a helper name"), "functions for expressions", default={}
    )
    item: Item | None = declare(Section(Item), "rows and tokens of an item", default=None)
    pixels: Pixels | None = declare(Section(Pixels), "one row of the pixel tensor", default=None)
    attention: Attention | None = declare(Section(Attention), "attention and its sequences", default=None)
    capture: Capture | None = declare(Section(Capture), "inputs while a graph is recorded", default=None)
    metadata: Metadata | None = declare(Section(Metadata), "method that computes metadata", default=None)
    buffers: Mapping[str, Buffer] = declare(
        Table(Section(Buffer), "a buffer name"), "recorded buffers besides pixels and those of `attention`", default={}
    )
    budget: Budget | None = declare(Section(Budget), "range of token budgets", default=None)
    forward: Forward | None = declare(Section(Forward), "call that is recorded", default=None)
    eager: Eager | None = declare(Section(Eager), "call for items that no graph fits", default=None)
    paths: Mapping[str, Path] = declare(
        Table(Section(Path), "a path name", word=True), "independently captured paths", default={}
    )
    post: Post | None = declare(Section(Post), "how outputs become items", default=None)
    axes: tuple[Axis, ...] = declare(Listing(Section(Axis), 1, 4), "further dimensions of captured graphs", default=())
    hooks: Mapping[str, Hook] = declare(
        Table(Section(Hook), "a hook", {name: hook.purpose for name, hook in kinds.HOOKS.items()}),
        "hand-written methods",
        default={},
    )
    gates: Gates | None = declare(Section(Gates), "conditions under which the feature is on", default=None)
    requires: tuple[Requirement, ...] = declare(
        Listing(Section(Requirement)), "conditions for starting with graphs", default=()
    )
    data_parallel: DataParallel | None = declare(
        Section(DataParallel), "switches of the model's own data parallelism", default=None
    )
    output: Output = declare(Section(Output), "the encoder's output")
    tower: Tower | None = declare(Section(Tower), "what the splitting of the tower needs", default=None)
    integration: Integration | None = declare(Section(Integration), "test, documentation and example", default=None)

    #: Not part of the YAML: where everything stands, what was noticed, and every expression with its place.
    file: str = attach(default="")
    spans: Mapping[str, Span] = attach(default={})
    warnings: tuple[Diagnostic, ...] = attach(default=())
    uses: tuple[Use, ...] = attach(default=())
    hook_sources: Mapping[str, str] = attach(default={})

    def span(self, path: str) -> Span:
        """The place of a value by its dotted path (`model.class`); that of the nearest parent if it is not written."""
        while path and path not in self.spans:
            path = path.rpartition(".")[0]
        return self.spans.get(path) or Span(self.file or "<descriptor>", 1, 1, 1, 1)
