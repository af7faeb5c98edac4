"""Compiles at start-up the Triton kernels that a request would otherwise wait for.

Triton compiles a separate variant of a kernel for each kind of each whole number among its arguments: multiples of 16,
and others. Qwen3-VL interpolates its position embeddings with a kernel that takes the height and the width of an image,
so it has four variants. A capture needs one or two of them, and the first image of another kind then waited for a
compiler: 144 ms on an H200, 186 on an H100, in a stream of calls of 5 to 40 ms (`benchmarks/stream_gpu.py`).

So we note the kernels that run while an adapter makes capture values. A thread beside the captures compiles their other
variants. This module knows Triton and nothing of models. Without Triton it notes nothing.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

logger = logging.getLogger("scaffold.runtime")

#: The most numbers of a kernel that we compile variants for: three numbers make eight variants.
MOST_NUMBERS = 3
#: Triton distinguishes numbers that are multiples of this, and addresses of memory as well.
MULTIPLE = 16


class Launches:
    """The Triton kernels that ran within `noted`, each with the arguments of its first launch."""

    def __init__(self) -> None:
        self._first: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the kernels that the block launches."""
        # A model with kernels has imported Triton.
        kernels = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
        if kernels is None:
            yield
            return
        original = kernels.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            self._note(kernel, args, named)
            return original(kernel, *args, grid=grid, warmup=warmup, **named)

        kernels.run = run
        try:
            yield
        finally:
            kernels.run = original

    def _note(self, kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if kernel not in self._first and not any(isinstance(value, torch.Tensor) for value in named.values()):
            # Keep types instead of tensors: the allocator takes their memory back once the capture values are made.
            self._first[kernel] = (tuple([_without_memory(value) for value in args]), named)

    def compile_others(self) -> None:
        """Begin to compile the noted kernels for the other kinds of their numbers. `wait` waits for the end."""
        if self._first:
            device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
            self._thread = threading.Thread(target=self._compile, args=(device,), name="compile-kernels")
            self._thread.start()

    def _compile(self, device: int | None) -> None:
        if device is not None:  # a thread begins on the first device
            torch.cuda.set_device(device)
        for kernel, (args, named) in self._first.items():
            for variant in variants_of(kernel, args):
                try:
                    kernel.warmup(*variant, grid=(1,), **named)
                except Exception as error:  # the first request that needs the variant compiles it, as without us
                    logger.debug("%s cannot be compiled ahead of requests", kernel, exc_info=error)
                    break

    def wait(self) -> None:
        """Wait until everything is compiled, and forget the noted kernels."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._first.clear()


def _without_memory(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype if value.data_ptr() % MULTIPLE == 0 else None
    return value


def variants_of(kernel: Any, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """`args` in variants: each whole number that the kernel is specialised for becomes a number of each kind.

    Empty for too many numbers, for none, and for unaligned memory, which may be aligned next time.
    """
    numbers = [
        place
        for place, (parameter, value) in enumerate(zip(kernel.params, args, strict=False))
        if type(value) is int and not _is_fixed(parameter)
    ]
    if not 0 < len(numbers) <= MOST_NUMBERS or any(value is None for value in args):
        return []
    # Stay near the original number: Triton also tells numbers of 32 bits from larger ones.
    kinds = [(even := max(MULTIPLE, -(-args[place] // MULTIPLE) * MULTIPLE), even + 1) for place in numbers]
    found = []
    for chosen in itertools.product(*kinds):
        variant = list(args)
        for place, number in zip(numbers, chosen, strict=True):
            variant[place] = number
        found.append(tuple(variant))
    return found


def _is_fixed(parameter: Any) -> bool:
    """Whether one kernel serves all numbers, or each number has its own."""
    names = ("is_constexpr", "do_not_specialize", "do_not_specialize_on_alignment")
    return any(getattr(parameter, name, False) for name in names)
