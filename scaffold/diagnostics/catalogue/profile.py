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
        "the configuration does not fit the model",
        "`--config` takes the config.json of a checkpoint of the descriptor's model: its `vision_config` gives the "
        "tower's sizes. The message says what is missing or what the model's configuration class refused.",
    ),
    Code(
        "VCG472",
        "not a recording",
        "`--recording` takes a file that `profile --save` wrote: a list of recordings with their kernels.",
    ),
    Code(
        "VCG473",
        "no real sizes are known for this model",
        "`profile` and `bench` build a model's tower at real sizes. There are presets for the core models; a further "
        "one is a recipe and a few lines in `scaffold/measure/towers.py`.",
    ),
)
