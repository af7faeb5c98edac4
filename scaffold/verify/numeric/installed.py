"""Whether this machine can run a request on real CUDA graphs, found without importing torch or vLLM.

Real graphs need a GPU and compiled kernels, so the installed vLLM runs them, not the tree; its files must be those of
the tree.
"""

from __future__ import annotations

import ast
import ctypes
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scaffold.syntax import assigned_to
from scaffold.verify.numeric.overlay import changed_modules
from scaffold.verify.numeric.reports import NumericRequest

#: Files that both trees must share for a result to be about the tree: the manager and its data classes.
_MANAGER = ("vllm/v1/worker/encoder_cudagraph.py", "vllm/v1/worker/encoder_cudagraph_defs.py")


@dataclass(frozen=True, slots=True)
class Missing:
    """Why real graphs cannot be run here, in words that complete "real CUDA graphs were not run: "."""

    reason: str


def find_installed(request: NumericRequest) -> Path | Missing:
    """The folder that holds the installed `vllm` package, where that and this machine can run `request` on a GPU."""
    if not _gpus():
        return Missing("there is no GPU here")
    if _cuda_of_torch() is None:
        return Missing("torch is not installed here, or was built without CUDA")
    root = _installed_root()
    if root is None:
        return Missing("vLLM is not installed here")
    for path in (*_MANAGER, *request.overlay):
        if path in _MANAGER or (path.startswith("vllm/") and path.endswith(".py")):
            ours, theirs = _bytes(request.tree / path), _bytes(root / path)
            if ours != theirs:
                return Missing(f"the installed vLLM is not this tree: {path} differs")
    if not changed_modules(request.overlay) and request.tree.resolve() != root.resolve():
        # The tree's own implementation is asked about, and there is no list of the files that it consists of.
        models = "vllm/model_executor/models"
        for file in sorted((request.tree / models).glob("*.py")):
            if file.read_bytes() != _bytes(root / models / file.name):
                return Missing(f"the installed vLLM is not this tree: {models}/{file.name} differs")
    return root


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _gpus() -> int:
    """CUDA devices that this process may use, asked of the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _cuda_of_torch() -> str | None:
    """The CUDA release that torch was built with, read off `torch/version.py`."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    with suppress(OSError, SyntaxError):
        module = ast.parse(Path(spec.submodule_search_locations[0], "version.py").read_text(encoding="utf-8"))
        for node in module.body:
            if any(isinstance(name, ast.Name) and name.id == "cuda" for name in assigned_to(node)):
                value = node.value  # type: ignore[attr-defined]
                return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
    return None


def _installed_root() -> Path | None:
    spec = None
    with suppress(ImportError, ValueError):
        spec = find_spec("vllm")
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return next((Path(place).parent for place in locations if Path(place, "__init__.py").is_file()), None)
