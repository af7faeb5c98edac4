"""Keeps what a tower interpolates from a learned table of positions, by the size that it asks for.

MoonViT and others interpolate their positions for each image, on each call: 9 to 10 ms for 1152 channels on an H200,
more than the 27 layers behind it take for a small image (docs/measured/cuts.md). The code is in front of a captured
encoder, so no graph makes it faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from types import TracebackType
from typing import Any

import torch
from torch import nn

#: Bytes of the device that all kept results of a model may take: some 25 sizes of 1,000 patches with 1152 channels.
MOST_BYTES = 64 * 2**20


class KeptTables:
    """While it is entered, `interpolate` of a parameter gives a copy of what it gave for the same size before.

    The result is the same bit for bit. A copy, since the caller may write into it. Nothing is kept while a graph is
    captured: the graph would read memory that is given back later.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._original = nn.functional.interpolate
        self._depth = 0
        self._memories: frozenset[int] | None = None
        self._kept: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._nbytes = 0

    def __enter__(self) -> None:
        if self._depth == 0:
            self._original = nn.functional.interpolate
            nn.functional.interpolate = self._interpolate
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0:
            nn.functional.interpolate = self._original

    def forget(self) -> None:
        """Interpolate again: the parameters have other values, or other memory."""
        self._memories = None
        self._kept.clear()
        self._nbytes = 0

    def _interpolate(self, input: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        if self._memories is None:
            self._memories = frozenset(p.untyped_storage().data_ptr() for p in self._model.parameters())
        if (
            input.untyped_storage().data_ptr() not in self._memories
            or torch.is_grad_enabled()
            or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
        ):
            return self._original(input, *arguments, **named)
        place = (input.data_ptr(), input.dtype, input.shape, input.stride())
        key = (*place, repr(arguments), repr(sorted(named.items())))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._original(input, *arguments, **named)
            self._nbytes += found.nbytes
            while self._nbytes > MOST_BYTES:
                self._nbytes -= self._kept.popitem(last=False)[1].nbytes
        else:
            self._kept.move_to_end(key)
        return found.clone()
