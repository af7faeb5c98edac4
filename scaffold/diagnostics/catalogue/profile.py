"""Codes of `profile`, `bench` and `verify --device cuda`, which need a GPU: VCG470 to VCG479."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG470",
        "no GPU to run on",
        "`profile`, `bench` and `verify --device cuda` run the installed vLLM on a CUDA device of this machine; "
        "`verify` needs the tree's own release installed. A CPU cannot replace that. Any machine reads what an "
        "earlier run kept (`profile --recording`, `bench --result`), and `verify` without the option does all that "
        "needs no GPU.",
    ),
    Code(
        "VCG471",
        "not a configuration",
        "`--config` takes the config.json of a checkpoint of the descriptor's model, a JSON object, or the folder that "
        "has it.",
    ),
    Code(
        "VCG472",
        "not a recording",
        "`--recording` takes a file that `profile --save` wrote: a list of recordings with their kernels.",
    ),
    Code(
        "VCG473",
        "the model cannot be built at real sizes",
        "`profile` and `bench` build a model's vision classes at the sizes of a checkpoint, and make images for its "
        "own processor. The message says what is missing. A size that neither the configuration's class nor a known "
        "checkpoint gives has to come from `--config config.json`: a guessed one would measure another model.",
    ),
    Code(
        "VCG474",
        "no library to draw with",
        "`budgets --plot`, `profile --svg` and `bench --svg` draw with matplotlib, which servers do not need. "
        "`pip install matplotlib` brings it. The tables of these commands need nothing.",
    ),
)
