"""Vision-encoder graphs at run time: capture token budgets, replay the batches that fit, and run the others eager.

The core needs torch only and knows nothing of any model or serving engine; `scaffold.runtime.vllm` binds it to vLLM.
The package loads a name at its first use, so that the parts without torch (`budgets`, `trace`) stay cheap to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffold.runtime.adapter import (
        BufferKind,
        BufferSpec,
        EncoderAdapter,
        EncoderDescription,
        GraphKey,
        Item,
        Limits,
        PathSpec,
        scatter_rows,
    )
    from scaffold.runtime.attention import choose_attention
    from scaffold.runtime.backend import CaptureError, CudaGraphBackend
    from scaffold.runtime.budgets import octave_ladder, optimal_ladder
    from scaffold.runtime.manager import EncoderGraphManager
    from scaffold.runtime.options import CaptureReport, Options
    from scaffold.runtime.packed import PackedAdapter
    from scaffold.runtime.parallel import TorchGroup
    from scaffold.runtime.recording import RecordingBackend
    from scaffold.runtime.selfcheck import check_graphs
    from scaffold.runtime.stats import Stats
    from scaffold.runtime.trace import Trace

_HOME = {
    "adapter": (
        "BufferKind", "BufferSpec", "EncoderAdapter", "EncoderDescription", "GraphKey", "Item", "Limits", "PathSpec",
        "scatter_rows",
    ),
    "attention": ("choose_attention",),
    "backend": ("CaptureError", "CudaGraphBackend"),
    "budgets": ("octave_ladder", "optimal_ladder"),
    "manager": ("EncoderGraphManager",),
    "options": ("CaptureReport", "Options"),
    "packed": ("PackedAdapter",),
    "parallel": ("TorchGroup",),
    "recording": ("RecordingBackend",),
    "selfcheck": ("check_graphs",),
    "stats": ("Stats",),
    "trace": ("Trace",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BufferKind",
    "BufferSpec",
    "CaptureError",
    "CaptureReport",
    "CudaGraphBackend",
    "EncoderAdapter",
    "EncoderDescription",
    "EncoderGraphManager",
    "GraphKey",
    "Item",
    "Limits",
    "Options",
    "PackedAdapter",
    "PathSpec",
    "RecordingBackend",
    "Stats",
    "TorchGroup",
    "Trace",
    "check_graphs",
    "choose_attention",
    "octave_ladder",
    "optimal_ladder",
    "scatter_rows",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
