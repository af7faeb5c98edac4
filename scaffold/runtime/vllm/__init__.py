"""The binding to vLLM: a drop-in for its `EncoderCudaGraphManager`, for every protocol generation from 0.23 to 0.33.

The package loads a name at its first use: `settings` needs no torch, and `doctor` reads it without.
"""

from __future__ import annotations

from importlib import import_module
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
    "installed_dialect",
    "read_dialect",
    "read_settings",
]


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _HOME.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
