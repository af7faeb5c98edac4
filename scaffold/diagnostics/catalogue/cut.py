"""Codes of the encode/assemble cut: VCG442 to VCG448 and VCG646."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG442",
        "the protocol cannot express a cut",
        "The encoder's features are no embeddings yet: the model's own code assembles them after a replay, and an item "
        "may have no features at all. In 0.20 and 0.21 the manager cuts the output of a graph into embeddings itself.",
    ),
    Code(
        "VCG443",
        "the encoder's call is not found on the way from the entry",
        "`entry` is the call that makes embeddings of a batch, `forward.call` (or `forward.encoder`, whatever its "
        "arguments are) the encoder's call in it. The tool "
        "follows calls from the entry through methods of the class, of its bases and of its submodules, and gives each "
        "method on the way the parameter `encode`. The encoder must be called there as `forward.call` says: the same "
        "attributes of the model and literals beside the units.",
    ),
    Code(
        "VCG444",
        "a method on the way cannot take the parameter",
        "The parameter is called `encode`. A method that has a variable of that name, or that a subclass in the tree "
        "overrides without it, would mean something else or fail when it is called.",
    ),
    Code(
        "VCG445",
        "a cut needs a gate for the data-parallel encoder",
        "With `--mm-encoder-tp-mode data` the manager spreads items over the ranks and gathers their embeddings by the "
        "number of tokens that each item declares. A cut declares features, since it knows no formula for the tokens "
        "of an item. Where the class supports this mode, a gate turns graphs off in it.",
    ),
    Code(
        "VCG446",
        "attention of this release leaves rows unwritten",
        "A graph has more rows than most batches. Attention writes the rows of the sequences of a batch; before 0.31 "
        "those behind them keep what the memory held, which may reach valid rows (FlashAttention 3 multiplies it by "
        "zero, and NaN stays NaN). The packed layout covers them by short sequences, which the layout `rows` cannot, "
        "since it does not know what the encoder takes.",
    ),
    Code(
        "VCG447",
        "a call of the encoder is not cut",
        "A note. The encoder is called in another form, too, for instance for videos or in another mode of the model. "
        "A batch that takes that way has other units than it declared, so its embeddings come from the model's own "
        "code, without a graph.",
    ),
    Code(
        "VCG448",
        "the loop over the layers cannot be captured",
        "With `forward.loop` the loop over the encoder's layers becomes a method, which a graph holds: its parameters "
        "are the variables that the loop reads, its result the one that goes from layer to layer. So the loop may not "
        "return, end early, collect features in a list, set attributes or change values in place, and what it hands on "
        "is one value. Nor may its layers wait for the GPU, for instance to find the longest item in offsets.",
    ),
    Code(
        "VCG646",
        "a method on the way to the encoder changed",
        "Without `encode` each method on the way must be what it was: the proof takes the parameter out of the result "
        "and compares what is left with the original. Nothing was written.",
    ),
)
