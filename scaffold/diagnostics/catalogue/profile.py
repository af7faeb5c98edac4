"""Codes of `profile`."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG490",
        "no GPU to profile on",
        "`profile` measures kernels of the installed vLLM on a CUDA device of this machine. Nothing stands in for that "
        "on a CPU. A recording that `--save` kept can be read on any machine with `--recording`.",
    ),
    Code(
        "VCG491",
        "the configuration does not fit the model",
        "`--config` takes the config.json of a checkpoint of the descriptor's model: its `vision_config` gives the "
        "tower's sizes. The message says what is missing or what the model's configuration class refused.",
    ),
    Code(
        "VCG492",
        "not a recording",
        "`--recording` takes a file that `profile --save` wrote: a list of recordings with their kernels.",
    ),
    Code(
        "VCG493",
        "no real sizes are known for this model",
        "`profile` builds a model's tower at real sizes. It has presets for the core models; a further one is a recipe "
        "and a few lines in `scaffold/verify/profiling/towers.py`.",
    ),
)
