"""Codes of `budgets`, which reads traces of the runtime manager."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG800",
        "the trace cannot be read",
        "--trace takes a file that the runtime manager wrote, in UTF-8. A server records one when it is started with "
        '`--additional-config \'{"encoder_graphs": {"record": "sizes.json"}}\'`; it writes the file every ten seconds '
        "while it serves images, and when it ends.",
    ),
    Code(
        "VCG801",
        "the trace is not JSON",
        "A trace is one JSON object. The span shows where the text stops making sense. The manager replaces the file "
        "in one step, so a torn file was copied while it was written, or edited.",
    ),
    Code(
        "VCG802",
        "the file is not a trace",
        'A trace is `{"version": 1, "paths": {"default": {"1196": 17}}}`: for each path of the encoder, how many '
        "batches of so many tokens ran. Nothing else is in it, and nothing is in it twice.",
    ),
    Code(
        "VCG803",
        "the version of the trace is not known",
        "Another release of this tool wrote the file, and this one cannot know its numbers' meaning. Use that "
        "release, or record again.",
    ),
    Code(
        "VCG804",
        "a size or a count makes no sense",
        "A size is a number of tokens, 1 or more, written as a JSON string in plain digits. A count is a whole number, "
        "0 or more.",
    ),
    Code(
        "VCG805",
        "the traces hold no batch",
        "The traces hold nothing to fit a ladder to. A server records a batch when an image reaches the encoder; "
        "text, cached images and precomputed embeddings do not count.",
    ),
)
