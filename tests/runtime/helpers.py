"""What the tests of the runtime share: a manager on the recording backend, and the comparison with eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scaffold.runtime import EncoderGraphManager, Limits, Options, RecordingBackend

CPU = torch.device("cpu")


def make_manager(
    adapter: Any,
    ladders: Mapping[str, Sequence[int]] | Sequence[int] = (8, 16, 32),
    *,
    items: int = 4,
    frames: int = 0,
    small: Mapping[str, Sequence[int]] | None = None,
    capture: bool = True,
    backend: Any = None,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> EncoderGraphManager:
    """A manager that captured its graphs on the CPU. The crossover is off: there is nothing to measure; every budget is
    captured at once unless a test says otherwise."""
    options.setdefault("calibration_ms", 0)
    options.setdefault("start_steps", None)
    options.setdefault("trials", 0)
    manager = EncoderGraphManager(
        adapter,
        device,
        dtype,
        ladders=ladders if isinstance(ladders, Mapping) else {"default": list(ladders)},
        small=small,
        limits=Limits(items, frames),
        backend=backend or RecordingBackend(),
        options=Options(**options),
    )
    if capture:
        manager.capture()
    return manager


def budgets(manager: EncoderGraphManager) -> list[int]:
    """Of the captured graphs."""
    return sorted(key.budget for key in manager.graphs)


def assert_equals_eager(manager: EncoderGraphManager, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Every item as the model's own eager embedding gives it, in order."""
    outputs = manager.execute(inputs)
    expected = list(manager.adapter.embed(inputs))
    assert len(outputs) == len(expected)
    for number, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        assert got.shape == want.shape, number
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda m, n=number: f"item {n}: {m}")
    return outputs


def link_tree(source: Path, tree: Path, changes: Sequence[Any]) -> Path:
    """A tree of links to a release's files, but for the files that a port changes."""
    for path in source.glob("vllm/**/*"):
        if path.is_file():
            link = tree / path.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    for change in changes:
        (tree / change.path).unlink(missing_ok=True)
        (tree / change.path).write_bytes(change.after or b"")
    return tree
