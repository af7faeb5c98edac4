"""Codes of the encode/assemble cut: VCG442 to VCG449, VCG465 to VCG467 and VCG646."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG442",
        "the protocol cannot express a cut",
        "A cut captures the encoder alone. Its output is features, which the model's own code turns into embeddings "
        "after a replay. The managers of 0.20 and 0.21 take a graph's output for embeddings. Port the model into 0.22 "
        "or later.",
    ),
    Code(
        "VCG443",
        "the encoder's call is not found on the way from the entry",
        "`entry` is the call that makes a batch's embeddings. `forward.call` (or `forward.encoder`, whatever its "
        "arguments are) is the encoder's call that it leads to. The tool follows calls from the entry through "
        "methods of the class, its bases and its submodules, and through functions that get a part of the model. "
        "Each of them gets the parameter `encode`. Write `forward.call` as the model does: the same attributes of "
        "the model and literals beside the units.",
    ),
    Code(
        "VCG444",
        "a method on the way cannot take the parameter",
        "Each method on the way to the encoder gets a parameter `encode`. This method cannot take it: it has a "
        "variable of that name, it takes more than keyword arguments, or a subclass in the tree overrides it without "
        "the parameter. A stand-alone adapter cannot give it to a function of a module, which other models may call. "
        "The message says which, and the help what to change.",
    ),
    Code(
        "VCG445",
        "a cut needs a gate for the data-parallel encoder",
        "With `--mm-encoder-tp-mode data` the manager spreads items over the ranks, and gathers embeddings by the "
        "tokens that each item declares. A cut declares features, because it has no formula for tokens. Rows "
        "declare the tokens of an image, and the frames of a `vision_chunk` may become fewer. So the class needs "
        "a gate that turns graphs off in this mode.",
    ),
    Code(
        "VCG446",
        "this release cannot have graphs of rows",
        "Before 0.23 the manager fills every buffer behind a batch with zeros. The offsets of rows need other values "
        "there, and a port of rows finds its buffers when a model starts. On any release an encoder of rows must run "
        "vLLM's attention of encoders, which gets the offsets of the sequences. Attention that gets a mask of all "
        "pairs depends on the size of the whole batch.",
    ),
    Code(
        "VCG447",
        "a call of the encoder is not cut",
        "A note, not an error. The model calls its encoder in another form, too, for instance for videos or in "
        "another mode. The port leaves that call alone: such a batch gets its embeddings from the model's own code, "
        "without a graph. The same goes for units of a second shape where ports name no paths, which is before 0.27: "
        "videos of Gemma 4, or crops, beside which whole images keep their graphs.",
    ),
    Code(
        "VCG448",
        "the loop over the layers, or a run of statements, cannot be captured",
        "With `forward.loop` the loop over the encoder's layers becomes a method, which a graph holds: its parameters "
        "are the variables that the loop reads, its results those that go from layer to layer. So the loop may not "
        "return, end early, collect features in a list, set attributes or change values in place. It hands on one "
        "value, in the layout `rows` perhaps several, such as a tuple that grows. Nor may its layers wait for the GPU. "
        "Layers that compute the longest sequence beside their attention get a parameter for it. A note names the "
        "method where that is not possible. "
        "With `forward.through` the statements from the first encoder's call to that of this part become a method, "
        "too. They may only set variables, read the pixels and each other, and must be the same in all places. No part "
        "that they call may wait for the GPU.",
    ),
    Code(
        "VCG449",
        "`embed_multimodal` changes what the entry makes",
        "A port calls the entry in the place of `embed_multimodal`, for features that a graph computed. So "
        "the port would lose a change of the entry's result there: some models scale or reorder it. It may "
        "return the result, alone or in a sequence. `self.embed_multimodal(**inputs)` is an entry without any code "
        "after it.",
    ),
    Code(
        "VCG465",
        "what follows the encoder reads a value that is no input",
        "With `explicit.after` the statements behind the encoder's call become a method. A port calls it with what the "
        "model parses the inputs of a batch into, or parts of that, and with the features of a replay. So all that the "
        "statements read beside the features must be such a part. Values that the model computes of pixels before the "
        "call are lost by then. Without the section `explicit` a descriptor is for the plugin's adapter alone, which "
        "runs the model's own code around the replay.",
    ),
    Code(
        "VCG466",
        "the port runs the model's code again",
        "The port is right, and vLLM's own manager would run the model's code twice for each batch: to record what the "
        "encoder gets, and to assemble its features. That costs time on the host, and nobody merges such a port. "
        "So `new` and `pr` refuse it, where `plan` and `new --diff` show it with a note. The message says why the port "
        "has no other form; where the model's code of this release is the reason, a note has its line. The plugin's "
        "adapter has the same methods and costs no second run, because our manager replays inside the first. vLLM "
        "finds an adapter of your own on Python's path: docs/own-adapters.md. For a fork of "
        "vLLM, `new --reenter` writes the port all the same.",
    ),
    Code(
        "VCG467",
        "budgets that vLLM chooses hold no item",
        "The context of an encoder-decoder counts the tokens of its decoder alone, and vLLM chooses no budget above "
        "it. An item of the encoder may have more tokens (an audio of Whisper has 1500, the context 448). So every "
        "item runs eagerly, unless the engine is given budgets: `encoder_cudagraph_token_budgets`.",
    ),
    Code(
        "VCG646",
        "a method on the way to the encoder changed",
        "Without its new parameters (`encode`, in some layers `max_seqlen`, and a tower's `use_data_parallel`) each "
        "method must be what it was: the proof takes them out of the result and compares what is left with the "
        "original. The methods of an explicit port go back to where they are called. Nothing was written.",
    ),
)
