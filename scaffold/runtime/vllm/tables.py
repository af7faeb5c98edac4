"""Keeps what a tower interpolates from a learned table of positions, by the size that it asks for.

MoonViT and others interpolate their positions for each image, on each call: 9 to 10 ms for 1152 channels on an H200,
more than the 27 layers behind it take for a small image (docs/measured/cuts.md). The code is in front of a captured
encoder, so no graph makes it faster.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from types import TracebackType
from typing import Any

import torch
from torch import nn


def interpolates(model: nn.Module) -> bool:
    """Whether the files of a model's classes call `interpolate`; true where one has no source."""
    names = {cls.__module__ for module in model.modules() for cls in type(module).__mro__}
    for name in names:
        if name == "builtins" or name.partition(".")[0] == "torch":
            continue
        try:
            source = inspect.getsource(sys.modules[name])
        except (KeyError, OSError, TypeError):
            return True
        if _CALL.search(source):
            return True
    return False


_CALL = re.compile(r"\binterpolate\(")


class _Switch:
    """PyTorch's `interpolate`, while any thread is in some tables. Other threads only pass through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._is_in_place = False
        self._tables = threading.local()
        self.original = nn.functional.interpolate
        self.interpolate = self._interpolate  # one object, to know it again

    def enter(self, tables: KeptTables) -> None:
        stack = self._tables.__dict__.setdefault("stack", [])
        stack.append(tables)
        with self._lock:
            self._inside += 1
            if not self._is_in_place:
                self.original = nn.functional.interpolate
                nn.functional.interpolate = self.interpolate
                self._is_in_place = True

    def leave(self) -> None:
        self._tables.stack.pop()
        with self._lock:
            self._inside -= 1
            # Another plugin's function that came meanwhile stays, and may call ours for ever.
            if self._inside == 0 and nn.functional.interpolate is self.interpolate:
                nn.functional.interpolate = self.original
                self._is_in_place = False

    def _interpolate(self, input: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        stack = getattr(self._tables, "stack", None)
        found = stack[-1].find(input, *arguments, **named) if stack else None
        return self.original(input, *arguments, **named) if found is None else found


class KeptTables:
    """While a thread is in it, `interpolate` of a parameter gives a copy of what it gave for the same size before.

    The result is the same bit for bit. A copy, since the caller may write into it. Nothing is kept while a graph is
    captured: the graph would read memory that is given back later. All results take at most `most_bytes` of the device.
    """

    def __init__(self, model: nn.Module, most_bytes: int = 0) -> None:
        self._model = model
        self.most_bytes = most_bytes
        self._memories: frozenset[int] | None = None
        self._kept: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._nbytes = 0

    def __enter__(self) -> None:
        _switch.enter(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _switch.leave()

    def forget(self) -> None:
        """Interpolate again: the parameters have other values, or other memory."""
        self._memories = None
        self._kept.clear()
        self._nbytes = 0

    def find(self, input: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor | None:
        """The result for a parameter, in a run without gradients; None for anything else."""
        if not self.most_bytes:
            return None
        if self._memories is None:
            self._memories = frozenset(p.untyped_storage().data_ptr() for p in self._model.parameters())
        if (
            input.untyped_storage().data_ptr() not in self._memories
            or torch.is_grad_enabled()
            or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
        ):
            return None
        # A write into `.data` raises no version: code that does so calls `reset_encoder_cache`, which ends in `forget`.
        version = None if input.is_inference() else input._version
        place = (input.data_ptr(), input.dtype, input.shape, input.stride(), version)
        key = (*place, repr(arguments), repr(sorted(named.items())))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = _switch.original(input, *arguments, **named)
            self._nbytes += found.nbytes
            while self._nbytes > self.most_bytes:
                self._nbytes -= self._kept.popitem(last=False)[1].nbytes
        else:
            self._kept.move_to_end(key)
        return found.clone()


_switch = _Switch()
