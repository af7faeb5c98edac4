"""Load the plugin into a release's source tree, as vLLM does, and print what became of registry and manager.

python release_child.py TREE RELEASE
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from scaffold.verify.numeric.cpu_imports import prepare

DERIVED = (
    "OpenCUAForConditionalGeneration", "Tarsier2ForConditionalGeneration", "NVLM_D", "H2OVLChatModel",
    "Qwen3VLMoeForConditionalGeneration", "StepVLForConditionalGeneration",
)  # fmt: skip
#: Where the class is that a GPU gets, of architectures for which the CPU gets one that refuses to be built.
ON_A_GPU = {"DeepseekV4ForConditionalGeneration": "vllm.models.deepseek_v4.common.vl_model"}


def main() -> None:
    tree, release = Path(sys.argv[1]), sys.argv[2]
    prepare(tree, None)
    # A fusion of all-reduces, which MiniMax-M3's decoder imports, asks for compiled operators. It is optional.
    sys.modules["vllm.compilation.passes.fusion.allreduce_rms_fusion"] = None  # type: ignore[assignment]
    import vllm

    vllm.__version__ = release  # an unpacked sdist does not know
    from scaffold import plugin

    plugin.register()
    plugin.register()
    early = sorted({"vllm.v1.worker.encoder_cudagraph", "scaffold.runtime"} & set(sys.modules))
    from vllm.model_executor.models.registry import ModelRegistry, _ModelInfo

    found: dict[str, object] = {"early": early}
    adapted = {a: e for a, e in ModelRegistry.models.items() if isinstance(e, plugin.AdaptedModel)}
    models = {}
    for architecture in ON_A_GPU.keys() & adapted.keys():
        own = getattr(import_module(ON_A_GPU[architecture]), architecture)
        adapted[architecture] = replace(
            adapted[architecture], original=SimpleNamespace(load_model_cls=lambda own=own: own)
        )
    for architecture, entry in adapted.items():
        own, loaded = entry.original.load_model_cls(), entry.load_model_cls()
        models[architecture] = {
            "module": loaded.__module__,
            "same inspection": _ModelInfo.from_model_cls(loaded) == _ModelInfo.from_model_cls(own),
            "same processor": getattr(loaded, "_processor_factory", 1) is getattr(own, "_processor_factory", 2),
        }
    found["models"] = models
    # Models that derive from adapted ones must stay as they are.
    found["derived"] = {
        name: [part.__module__ for part in ModelRegistry.models[name].load_model_cls().__mro__]
        for name in DERIVED
        if name in ModelRegistry.models
    }
    from vllm.v1.worker import encoder_cudagraph

    manager = encoder_cudagraph.EncoderCudaGraphManager
    found["manager"] = [part.__module__ for part in manager.__mro__]
    try:
        from vllm.v1.worker.gpu.model_states import interface
    except ImportError as error:
        found["runner V2"] = f"ImportError: {error}"
    else:
        found["runner V2"] = getattr(interface, "EncoderCudaGraphManager", None) is manager
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
