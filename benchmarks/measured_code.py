"""Which code a result measured: a digest that every result carries, and that its page compares with today's code.

A change of comments, docstrings or layout is no change of the code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: The code that serves a model: the runtime, and the adapters of the newest generation.
SERVING = (ROOT / "scaffold/runtime", max((ROOT / "generated/vitcg_adapters").glob("v*")))


def measured_code() -> dict[str, str]:
    """The `code` of a result: `digest` of the code that serves, and the `commit` that it was, where that is known.

    `VITCG_COMMIT` names the commit on a machine that has the files without their history.
    """
    return {"digest": current_digest(), "commit": os.environ.get("VITCG_COMMIT") or _commit()}


@functools.cache
def current_digest() -> str:
    """The digest of the code that serves today."""
    return digest_of(path for folder in SERVING for path in sorted(folder.rglob("*.py")))


def digest_of(files: Iterable[Path]) -> str:
    """A hash of what Python files say, without their comments, docstrings and layout."""
    digest = hashlib.sha256()
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[0] if node.body else None
                if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                    del node.body[0]
        digest.update(f"{file.relative_to(ROOT)}\0{_written(tree)}\0".encode())
    return digest.hexdigest()[:16]


def _written(node: object) -> str:
    """A syntax tree as text, the same with every version of Python: what is empty is left out, as later ones add it."""
    if isinstance(node, list):
        return f"[{','.join(map(_written, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [f"{name}={_written(value)}" for name, value in ast.iter_fields(node) if value not in (None, [])]
    # A literal `None` has a value that is None, too.
    return f"{type(node).__name__}({','.join(fields)})"


def told(result: dict[str, Any]) -> str:
    """For a page: does today's code still have these numbers?"""
    code = result.get("code")
    if code is None:
        return "not recorded"
    commit = f"`{code['commit'][:8]}`" if code["commit"] else "an unknown commit"
    return commit if code["digest"] == current_digest() else f"changed since {commit}"


def _commit() -> str:
    try:
        asked = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10
        )
    except OSError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""
