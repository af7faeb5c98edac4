"""The common parts of the results of all benchmarks on a GPU: machine and versions, a part for each model, the file.

It knows no model and no measurement.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gc
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from measured_code import measured_code


def versions(release: str) -> dict[str, str]:
    """The versions of the measured packages."""
    found = {"vllm": release, "python": sys.version.split()[0]}
    for package in ("torch", "transformers", "vitcg-scaffold"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def head(machine: str, release: str) -> dict[str, Any]:
    """The first keys of a result."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"machine": machine, "versions": versions(release), "date": today, "code": measured_code()}


def again(script: str) -> list[str]:
    """The command that runs a script of this folder as it runs here: in its tiny mode (`tiny.py`), or not."""
    if "VITCG_TINY_TREE" in os.environ:
        return [sys.executable, str(Path(__file__).with_name("tiny.py")), Path(script).name]
    return [sys.executable, script]


def load_file(module: str, file: Path) -> Any:
    """Import a file as the module of this name, in the place of one that was imported."""
    found = importlib.util.spec_from_file_location(module, file)
    assert found is not None
    assert found.loader is not None
    sys.modules[module] = made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def save(total: dict[str, Any], out: Path | None) -> None:
    """Write a result, or its parts so far."""
    if out is not None:
        out.write_text(json.dumps(total, indent=1) + "\n", encoding="utf-8")


def run_models(models: Sequence[str], measure: Callable[[str, int], dict[str, Any]], rounds: int) -> int:
    """The whole of a script that measures `models` with FLASH_ATTN: its options, and the part of each model. Gives the
    exit status; a part may count what is `wrong` in it."""
    from scaffold.verify.numeric.real import start_vllm, stop_vllm

    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--models", default=",".join(models))
    options.add_argument("--rounds", type=int, default=rounds)
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    context = start_vllm("FLASH_ATTN")
    total = ByModel(arguments.out, arguments.machine, backend="FLASH_ATTN")
    for name in sorted(arguments.models.split(","), key=models.index):
        part = total.add(name, functools.partial(measure, name, arguments.rounds))
        total.failed += part.get("wrong", 0) if part else 0
    stop_vllm(context)
    return 1 if total.failed else 0


class ByModel:
    """A result of one model after the other. A failing model loses only its own part, and sets the exit status."""

    def __init__(self, out: Path | None, machine: str = "", **more: Any) -> None:
        import torch
        import vllm

        self.out = out
        machine = machine or torch.cuda.get_device_name()
        self.total: dict[str, Any] = {**head(machine, vllm.__version__), **more, "rows": [], "models": {}}
        self.failed = 0

    def add(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Add the part of one model, and its rows to those of all. If it raises: None, and the error in its place."""
        begin = time.perf_counter()
        try:
            part = measure()
        except Exception as error:
            traceback.print_exc()
            self.total["models"][name] = {"error": f"{type(error).__name__}: {error}"}
            self.failed += 1
            save(self.total, self.out)
            return None
        self.total["rows"] += part["rows"]
        self.total["models"][name] = {key: value for key, value in part.items() if key != "rows"}
        save(self.total, self.out)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
        self._tidy()
        return part

    @staticmethod
    def _tidy() -> None:
        """Leave the next model an empty device, without the objects that a benchmark froze."""
        import torch

        gc.unfreeze()
        gc.collect()
        torch.cuda.empty_cache()
