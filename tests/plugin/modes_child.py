"""Load the plugin into the installed vLLM in every mode, each in a fork of this process, and print what it changed."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

MODES = {
    "all": {},
    "off": {"VITCG_DISABLE": "1"},
    "adapters": {"VITCG_MODE": "adapters"},
    "manager": {"VITCG_MODE": "manager"},
    "some": {"VITCG_MODELS": "internvl,Qwen2VLForConditionalGeneration"},
    "wrong": {"VITCG_MODE": "everything"},
    "left out": {"VLLM_PLUGINS": ""},
    "no GPU": {"VITCG_CPU": "0"},
}
#: Packages that commands need, and neither a server nor vLLM.
OF_COMMANDS = ("ruff", "markdown_it", "pypi_simple", "platformdirs")
ARCHITECTURES = ("InternVLChatModel", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


def look() -> dict[str, object]:
    connected: list[str] = []
    sys.addaudithook(lambda event, _: connected.append(event) if event.startswith("socket.") else None)
    from torch import nn
    from vllm.model_executor.models import interfaces
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    models = []
    for name in ARCHITECTURES:
        model = object.__new__(ModelRegistry.models[name].load_model_cls())
        nn.Module.__init__(model)
        interfaces.supports_encoder_cudagraph(model)  # as a runner asks before it makes a manager
        models.append(model)
    return {
        "of commands": [name for name in OF_COMMANDS if name in sys.modules],
        "adapters": [type(m).__name__ for m in models if type(m).__module__.startswith("vitcg_adapters.")],
        "ours": [type(m).__name__ for m in models if is_ours(m)],
        "network": [event for event in connected if event in ("socket.connect", "socket.getaddrinfo", "socket.bind")],
    }


def is_ours(model: object) -> bool:
    """Whether vLLM's class makes our manager: it has a fault with this model, where vLLM's own raises."""
    from vllm.v1.worker import encoder_cudagraph

    config = SimpleNamespace(additional_config=None, model_config=None)
    try:
        manager = encoder_cudagraph.EncoderCudaGraphManager(config, None, None, model)
    except Exception:
        return False
    return type(manager).__module__.startswith("scaffold.")


def main() -> None:
    from vllm.model_executor.models import internvl, qwen2_5_vl, qwen2_vl  # noqa: F401 - the forks share them

    found = {}
    for name, environ in MODES.items():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.environ.update(environ)
            try:
                os.write(write, json.dumps(look()).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            found[name] = json.loads(pipe.read() or "null")
        os.waitpid(child, 0)
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
