"""Load the plugin into the installed vLLM in every mode, each in a fork of this process, and print what it changed."""

from __future__ import annotations

import json
import os
import sys

MODES = {
    "all": {},
    "off": {"VITCG_DISABLE": "1"},
    "adapters": {"VITCG_MODE": "adapters"},
    "manager": {"VITCG_MODE": "manager"},
    "some": {"VITCG_MODELS": "internvl,Qwen2VLForConditionalGeneration"},
    "wrong": {"VITCG_MODE": "everything"},
    "left out": {"VLLM_PLUGINS": ""},
}
ARCHITECTURES = ("InternVLChatModel", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


def look() -> dict[str, object]:
    connected: list[str] = []
    sys.addaudithook(lambda event, _: connected.append(event) if event.startswith("socket.") else None)
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    classes = [ModelRegistry.models[name].load_model_cls() for name in ARCHITECTURES]
    from vllm.v1.worker import encoder_cudagraph

    return {
        "adapters": [c.__name__ for c in classes if c.__module__.startswith("vitcg_adapters.")],
        "ours": encoder_cudagraph.EncoderCudaGraphManager.__module__.startswith("scaffold."),
        "network": [event for event in connected if event in ("socket.connect", "socket.getaddrinfo", "socket.bind")],
    }


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
