"""Tensors of a model that vLLM's loader leaves on the host.

It builds a model inside `with torch.device("cuda")`, and moves nothing afterwards. That context reaches functions that
make new tensors. `from_numpy` and `frombuffer` share memory of the host, so it does not reach them. A tensor with a
device of its own is no finding: the platform's name of its device is `cpu` here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves

#: Functions that make a tensor of the host's memory; those that move one, whose other arguments may say where.
_OF_HOST = ("from_numpy", "frombuffer")
_MOVES = ("to", "cuda", "type_as")
#: The attribute of a model with its tensors of this kind.
_KEPT = "_vitcg_left_on_host"


def left_on_host(host: nn.Module) -> Mapping[str, str]:
    """The names of a model's parameters and buffers that are left there, each with the line that made it."""
    found: Mapping[str, str] = getattr(host, _KEPT, {})
    return found


@contextmanager
def loading() -> Iterator[Made]:
    """Follow memory of the host while a model is built inside. `keep` tells the model what it has of it."""
    made = Made()
    with ExitStack() as patched, made:
        for name in _OF_HOST:
            patched.enter_context(mock.patch.object(torch, name, made.marking(getattr(torch, name))))
        yield made


def move_as_loaded(host: nn.Module, device: torch.device) -> nn.Module:
    """A model on a device, but for what the loader leaves on the host."""
    kept = {name: tensor.detach() for name, tensor in _named(host) if name in left_on_host(host)}
    host.to(device)
    for name, tensor in kept.items():
        owner, _, leaf = name.rpartition(".")
        part = host.get_submodule(owner)
        if leaf in part._buffers:
            part._buffers[leaf] = tensor
        else:
            part._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    return host


def _named(host: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*host.named_parameters(), *host.named_buffers()]


class Made(TorchFunctionMode):  # type: ignore[misc]
    """Follows memory of the host, and what is computed of it alone. Kept alive, so that no other gets its key."""

    def __init__(self) -> None:
        super().__init__()
        self._origins: dict[int, tuple[Any, str]] = {}

    def origin(self, tensor: torch.Tensor) -> str:
        """The line that made a tensor of such memory; empty for any other."""
        return self._origins.get(tensor.untyped_storage()._cdata, (None, ""))[1]

    def keep(self, host: nn.Module) -> None:
        """Note what a model has of such memory. Scalars go to a kernel by value, wherever they are."""
        named = _named(host) if self._origins else []
        left = {name: self.origin(tensor) for name, tensor in named if tensor.ndim and self.origin(tensor)}
        if left:
            setattr(host, _KEPT, left)

    def marking(self, function: Any) -> Any:
        def mark(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            self._mark(made, _line())
            return made

        return mark

    def _mark(self, tensor: torch.Tensor, origin: str) -> None:
        storage = tensor.untyped_storage()
        self._origins.setdefault(storage._cdata, (storage, origin))

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        origins = [self.origin(tensor) for tensor in _tensors((args, kwargs))] if self._origins else []
        if not any(origins):
            return result
        moved = func in _device_constructors() or _moves(func, args, kwargs)
        for tensor in _tensors(result):
            if moved:
                self._origins.pop(tensor.untyped_storage()._cdata, None)
            elif all(origins):
                self._mark(tensor, origins[0])
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _moves(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a tensor's method says where its result is."""
    name = getattr(func, "__name__", "")
    where = (torch.device, str, torch.Tensor)
    told = any(isinstance(value, where) for value in (*args[1:], *kwargs.values()))
    return name in _MOVES and (told or name == "cuda")


def _line() -> str:
    """The innermost line of a model that is being executed, relative to what holds its package."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("torch", "scaffold", "contextlib", "unittest"):
            file = frame.f_code.co_filename
            return f"{file[file.rfind(f'/{package}/') + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of a model"
