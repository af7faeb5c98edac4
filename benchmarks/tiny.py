"""Run a benchmark for GPUs to its end on a CPU, with tiny models: whether it works, never how fast anything is.

    python benchmarks/tiny.py stream_gpu.py --out RESULT.json [further options of that script]

The script runs unchanged, in a release's own source tree (0.33.0, or VITCG_TINY_TREE). Its device is the CPU, graphs of
vLLM's manager and of a script are tapes that replay their operators (`scaffold.runtime.recording`), kernels that exist
on CUDA alone are their references, and the models have the lab's tiny sizes. With VITCG_TINY_WRONG our manager's
answers are wrong, which a script that compares must see.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(__file__).resolve().parent
RELEASE = "0.33.0"
#: The machine in a result.
MACHINE = "a CPU in place of a GPU"
#: The variable that makes answers wrong.
WRONG = "VITCG_TINY_WRONG"
#: Output tokens of a tiny model's call, at most.
CONTEXT = 64
#: Scripts of towers in FP8, which is made of bfloat16 alone.
IN_FP8 = {"fp8_gpu.py", "fp8_checkpoint_gpu.py"}
#: Sizes of a draft's tower.
LLAVA = {
    "model_type": "llava",
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 3, "image_size": 28, "patch_size": 14, "projection_dim": 48,
    },
    "text_config": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99},
}  # fmt: skip


def main() -> int:
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parent / "generated")]
    import_release()
    return run(sys.argv[1], sys.argv[2:])


def run(script: str, arguments: list[str]) -> int:
    """Run a script of this folder, where a release is imported. Returns its exit status."""
    from scaffold.verify.numeric import attention, cpu_imports

    cpu_imports.patch_vllm()
    attention.set_tail("fa3")
    _stand_in()
    _shrink()
    if script in IN_FP8:
        _allow_fp8()
    if script == "attention_gpu.py":
        _replace_attention()
    if script == "drafted_towers_gpu.py":
        _install()
    if WRONG in os.environ:
        _spoil()
    sys.argv = [str(FOLDER / script), *arguments]
    try:
        return int(import_module(script.removesuffix(".py")).main())
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


def import_release() -> None:
    """Let `import vllm` mean the release's source tree."""
    from scaffold.protocol import resolve_target
    from scaffold.verify.numeric import cpu_imports

    tree = os.environ.get("VITCG_TINY_TREE") or resolve_target(RELEASE).tree.root
    # Children of the script import the same tree.
    os.environ["VITCG_TINY_TREE"] = str(tree)
    cpu_imports.prepare(Path(tree), None)


class Graph:
    """`torch.cuda.CUDAGraph`: the operators of a capture, which a replay runs again."""

    def __init__(self) -> None:
        self.recorded: Any = None

    def replay(self) -> None:
        self.recorded.replay()

    def reset(self) -> None:
        self.recorded = None

    def pool(self) -> tuple[int, int]:
        return 0, 0


class _OnHost(set[int]):
    """Every storage: what lies on the host is not known here, and hazards are the lab's concern."""

    def __contains__(self, storage: object) -> bool:
        return True


class Capture:
    """`torch.cuda.graph(...)`."""

    def __init__(self, graph: Graph, *_: Any, **__: Any) -> None:
        from scaffold.runtime.recording import _Tape
        from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS

        self._graph, self._tape = graph, _Tape(PYTHON_OPERATORS)
        self._tape.host = _OnHost()

    def __enter__(self) -> None:
        import torch

        torch.cuda.is_current_stream_capturing = lambda: True
        self._tape.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        import torch

        from scaffold.runtime.recording import RecordedGraph, RecordingBackend

        self._tape.__exit__(*exc_info)
        torch.cuda.is_current_stream_capturing = lambda: False
        self._graph.recorded = RecordedGraph(RecordingBackend(), self._tape, None)  # type: ignore[arg-type]


class Event:
    """`torch.cuda.Event`: a time of the host."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: Event) -> float:
        return max((end.at - self.at) * 1e3, 1e-6)


def _stand_in() -> None:
    """The answers of `torch.cuda` that scripts and managers need, and vLLM's set-up."""
    import torch

    plenty = 1 << 36
    answers: dict[str, Any] = {
        "CUDAGraph": Graph, "graph": Capture, "Event": Event, "graph_pool_handle": lambda: (0, 0),
        "synchronize": lambda *_: None, "empty_cache": lambda: None, "get_device_name": lambda *_: MACHINE,
        "mem_get_info": lambda *_: (plenty, plenty), "memory_reserved": lambda *_: 0, "memory_allocated": lambda *_: 0,
        "memory_stats": lambda *_: {}, "host_memory_stats": lambda *_: {}, "current_stream": lambda *_: None,
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=4),
    }  # fmt: skip
    for name, value in answers.items():
        setattr(torch.cuda, name, value)

    from vllm.model_executor.layers import utils

    from scaffold.measure import runs, subject
    from scaffold.runtime.recording import RecordingBackend
    from scaffold.runtime.vllm import manager
    from scaffold.verify.numeric import cpu_imports, real

    subject.DEVICE, subject.DTYPE, subject.CONTEXT = torch.device("cpu"), torch.float32, CONTEXT

    def make_backend(_: Any) -> RecordingBackend:
        backend = RecordingBackend(bodies=cpu_imports.PYTHON_OPERATORS)
        torch.cuda.is_current_stream_capturing = lambda: backend.is_capturing
        return backend

    manager.EncoderCudaGraphManager._make_backend = make_backend  # type: ignore[method-assign, assignment]

    def start_vllm(_: str | None) -> Any:
        from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

        context = set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu")))
        context.__enter__()
        cpu_imports.start_distributed(Path(tempfile.mkdtemp()))
        return context

    real.start_vllm = start_vllm
    # A loader packs weights for the CPU. Nothing is loaded here.
    utils.cpu_unquantized_gemm = lambda _, x, weight, bias=None: torch.nn.functional.linear(x, weight, bias)
    read = runs.read_trace
    runs.read_trace = lambda events: read([*events, *_kernels(events)])
    from vllm.distributed import parallel_state
    from vllm.v1.worker import encoder_cudagraph

    parallel_state.graph_capture = lambda device: nullcontext(SimpleNamespace(stream=None))
    encoder_cudagraph.current_stream = lambda: None


def _kernels(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A launch and a kernel for each operator of a profile: a CPU has none."""
    for number, event in enumerate(event for event in events if event.get("cat") == "cpu_op"):
        place = {"ts": event["ts"], "dur": event["dur"], "pid": event["pid"], "tid": event["tid"]}
        yield {"cat": "cuda_runtime", "name": "launch", "args": {"correlation": number}, **place}
        yield {"cat": "kernel", "name": str(event["name"]), "args": {"correlation": number}, **place}


def _allow_fp8() -> None:
    """FP8 for more than one tile, by the references of its kernels, in a tower of InternVL that has inner blocks."""
    import torch
    import towers
    from vllm import _custom_ops

    from scaffold.measure import subject
    from scaffold.runtime.tuning import fp8, kernels

    subject.DTYPE = towers.DTYPE = torch.bfloat16
    fp8.LEAST_ROWS = 32
    _custom_ops.scaled_fp8_quant = lambda x, **_: kernels.to_fp8(x)  # vLLM has no such operator for CPUs

    import fp8_checkpoint_gpu

    fp8_checkpoint_gpu.ROWS, fp8_checkpoint_gpu.REPEATS = 8, 2

    def deepen(_: Any, config: Any) -> Any:
        vision = config.vision_config
        vision.num_hidden_layers, vision.intermediate_size = 4, 48
        return config

    towers.Subject._make_config = deepen  # type: ignore[method-assign]


def _replace_attention() -> None:
    """The lab's attention in place of FlashAttention 3 and 4, torch's own in place of cuDNN, and few rows of one head.

    The kernels write rows of sequences alone, as the real ones do.
    """
    import attention_gpu
    import torch

    from scaffold.runtime.tuning import flash4
    from scaffold.verify.numeric import attention

    def flash4_forward(q: Any, k: Any, v: Any, *, out: Any, cu_seqlens_q: Any = None, max_seqlen_q: int = 0,
                       softmax_scale: float, **_: Any) -> None:  # fmt: skip
        if cu_seqlens_q is None:  # tiles
            max_seqlen_q = q.shape[1]
            cu_seqlens_q = torch.arange(len(q) + 1, dtype=torch.int32) * max_seqlen_q
            q, k, v, out = (t.flatten(0, 1) for t in (q, k, v, out))
        attention.flash_attn_varlen_func(
            q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_q, cu_seqlens_q, softmax_scale, out=out
        )

    sys.modules["vllm.vllm_flash_attn"] = attention
    flash4.load = lambda: flash4_forward
    attention_gpu.SDPBackend = SimpleNamespace(CUDNN_ATTENTION=attention_gpu.SDPBackend.MATH)
    attention_gpu.DEVICE, attention_gpu.HEADS, attention_gpu.RANDOM = torch.device("cpu"), 1, (1, 3)
    attention_gpu.ROWS, attention_gpu.PACKED = (5,), {64: ([3, 5], [4] * 2)}


def _install() -> None:
    """The release in place of an installed vLLM, with the models of a port, and a LLaVA-1.5 of small sizes."""
    from vllm.model_executor import models

    from scaffold import protocol
    from scaffold.measure import subject
    from scaffold.verify.numeric import overlay

    target = protocol.resolve_target(os.environ["VITCG_TINY_TREE"])
    protocol.resolve_target = lambda _: target
    build = overlay.build_overlay

    def build_overlay(root: Path, files: Any, folder: Path) -> None:
        build(root, files, folder)
        models.__path__.insert(0, str(folder / "vllm/model_executor/models"))  # vLLM itself was imported before

    overlay.build_overlay = build_overlay
    subject.Subject.build.__defaults__ = (subject.DEVICE, subject.DTYPE, False)
    subject.KNOWN = Path(tempfile.mkdtemp())
    subject.KNOWN.joinpath("llava.json").write_text(json.dumps(LLAVA), encoding="utf-8")


def _shrink() -> None:
    """Tiny models, and calls of a few tokens."""
    import towers

    from scaffold.measure import runs

    # A processor without products of bf16 takes minutes for one of the real size.
    runs.CEILING_SIDE, runs.CEILING_BYTES = 64, 1 << 20
    towers.Subject._make_config = lambda self, config: config  # type: ignore[method-assign]
    # Under names that scripts look for.
    sizes = {"224x224": [(1, 4, 4)], "1288x728": [(1, 8, 8)], "8 x 336x336": [(1, 4, 4)] * 4}
    _replace(towers.GRIDS, sizes)
    _replace(towers.TILES, {"1 tile": [1], "7 tiles": [3], "7+1+13 tiles": [2, 1]})
    _replace(towers.CROPS, {"no crop": [0], "4 crops": [2], "0+3+5 crops": [0, 1]})
    towers.PRODUCTS[:] = [(8, 12, 16)]
    _shrink_cuts()


def _shrink_cuts() -> None:
    """LLaVA-1.5, DeepSeek-VL2, of which the release has a port of its own, and three models of sound."""
    from dataclasses import replace
    from functools import partial

    import cut_gpu

    vision = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 3}

    def llava() -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

        small = CLIPVisionConfig(**vision, image_size=28, patch_size=14, projection_dim=48)
        return LlavaConfig(vision_config=small, text_config=LlamaConfig(hidden_size=64))

    def deepseek_vl2() -> Any:
        import timm
        from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config

        real = getattr(timm.create_model, "func", timm.create_model)
        timm.create_model = partial(real, embed_dim=48, depth=2, num_heads=3, img_size=28)
        return DeepseekVLV2Config(
            tile_tag="2D",
            vision_config={"image_size": 28, "patch_size": 14, "width": 48, "layers": 2, "heads": 3},
            projector_config={"input_dim": 48, "n_embed": 64},
            language_config={"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 99},
        )

    def qwen2_audio() -> Any:
        from transformers import Qwen2AudioConfig

        audio = {"d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 64}
        return Qwen2AudioConfig(audio_config=audio, text_config={"model_type": "qwen2", "hidden_size": 64})

    windows = {
        "d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 64, "n_window": 50,
        "n_window_infer": 800, "output_dim": 64, "downsample_hidden_size": 8,
    }  # fmt: skip
    thinker = {"audio_config": windows, "text_config": {"hidden_size": 64}}

    def qwen3_asr() -> Any:
        from vllm.transformers_utils.configs.qwen3_asr import Qwen3ASRConfig

        return Qwen3ASRConfig(thinker_config=thinker)

    def qwen3_omni() -> Any:
        from transformers import Qwen3OmniMoeConfig

        return Qwen3OmniMoeConfig(thinker_config={**thinker, "vision_config": cut_gpu._NO_IMAGES})

    sounds = {"1 sound, 2 s": [2], "2 sounds, 4 s": [1, 3]}  # no more tokens than a context has
    small = {
        "qwen2_audio": {"config": qwen2_audio, "calls": sounds},
        "qwen3_asr": {"config": qwen3_asr, "calls": sounds},
        "qwen3_omni": {"config": qwen3_omni, "calls": sounds},
        "llava": {"config": llava, "inputs": cut_gpu._square(28), "calls": {"1 image": 1, "4 images": 4}},
        "deepseek_vl2": {"config": deepseek_vl2, "inputs": cut_gpu._tiles_of_grids(28)},
    }
    for name, fields in small.items():
        cut_gpu.SUBJECTS[name] = replace(cut_gpu.SUBJECTS[name], **fields)
    cut_gpu.IDLE_TURNS, cut_gpu.WARM_TURNS, cut_gpu.TURNS, cut_gpu.CONTEXT = 1, 2, 1, CONTEXT
    _shrink_both(qwen3_omni)


def _shrink_both(config: Any) -> None:
    """The model that sees and hears."""
    import both_gpu
    import cut_gpu

    cut_gpu._qwen3_omni = config
    both_gpu.VISION |= {
        "depth": 3, "hidden_size": 48, "intermediate_size": 64, "num_heads": 3, "out_hidden_size": 64,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
    both_gpu.CALLS |= {
        "image": {"1 image": [(1, 4, 6)], "3 images": [(1, 4, 4), (1, 2, 6), (1, 4, 8)]},
        "video": {"1 video": [(2, 4, 4)]},
        "audio": {"1 sound, 2 s": [2], "2 sounds, 4 s": [1, 3]},
    }


def _replace(workloads: dict[str, Any], tiny: dict[str, Any]) -> None:
    workloads.clear()
    workloads.update(tiny)


def _spoil() -> None:
    """Our manager answers with other numbers."""
    from scaffold.runtime.vllm.manager import EncoderCudaGraphManager

    execute = EncoderCudaGraphManager.execute

    def wrong(self: Any, inputs: Any) -> Any:
        return [output + output.abs().max() for output in execute(self, inputs)]

    EncoderCudaGraphManager.execute = wrong  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
