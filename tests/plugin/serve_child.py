"""Read `vllm serve` commands (JSON on stdin) as vLLM does, up to its configuration, and print what we make of each."""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import ArgumentParser
from functools import cache


@cache  # vLLM looks through its sources for the help of each option
def parser() -> ArgumentParser:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers())
    return parser


def configure(command: str) -> dict[str, object]:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from scaffold.plugin import read_controls
    from scaffold.runtime.vllm.settings import read_settings

    words = shlex.split(os.path.expandvars(command))
    start = words.index("vllm")
    assert words[start : start + 2] == ["vllm", "serve"], command
    environ = dict(word.split("=", 1) for word in words[:start])
    arguments = parser().parse_args(words[start + 1 :])
    arguments.model = arguments.model_tag
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    settings = read_settings(config)
    controls = read_controls(environ)
    return {
        "model": config.model_config.architecture,
        "graphs": config.compilation_config.cudagraph_mm_encoder,
        "eager": config.model_config.enforce_eager,
        "ranks": config.parallel_config.tensor_parallel_size,
        "spread": config.model_config.multimodal_config.mm_encoder_tp_mode,
        "settings": {name: getattr(settings, name) for name in ("record", "stats", "trace", "graphs")},
        "tuning": settings.tuning,
        "controls": [controls.disabled, controls.mode, sorted(controls.models)],
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps([configure(command) for command in json.load(sys.stdin)]))
