"""The binding to vLLM: a drop-in for its `EncoderCudaGraphManager`, for every protocol generation from 0.20 to 0.33.

The package loads a name at its first use: `settings` needs no torch, and `doctor` reads it without.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffold.runtime.vllm.dialect import ManagerDialect, installed_dialect, read_dialect
    from scaffold.runtime.vllm.manager import EncoderCudaGraphManager
    from scaffold.runtime.vllm.settings import Settings, read_settings

_HOME = {
    "dialect": ("ManagerDialect", "installed_dialect", "read_dialect"),
    "manager": ("EncoderCudaGraphManager",),
    "settings": ("Settings", "read_settings"),
}
__all__ = [
    "EncoderCudaGraphManager",
    "ManagerDialect",
    "Settings",
    "install",
    "installed_dialect",
    "read_dialect",
    "read_settings",
]


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _HOME.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def install(manager: type[Any] | None = None, original: type[Any] | None = None) -> type[Any]:
    """Replace vLLM's manager class by ours, also in modules that have imported it already. Returns vLLM's own class.

    A caller passes `original` while vLLM's module is still being imported.
    """
    if manager is None:
        from scaffold.runtime.vllm.manager import EncoderCudaGraphManager

        manager = EncoderCudaGraphManager
    if original is None:
        from vllm.v1.worker import encoder_cudagraph

        original = encoder_cudagraph.EncoderCudaGraphManager
    replaced: type[Any] = original
    if replaced is manager:
        return replaced
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "vllm" or not isinstance(module, ModuleType):
            continue  # None stands for a module that must not be imported
        if vars(module).get("EncoderCudaGraphManager") is replaced:
            module.EncoderCudaGraphManager = manager  # type: ignore[attr-defined]
    return replaced
