"""What the commands that need a GPU share: which models have real sizes, what is missing here, JSON files as input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scaffold.diagnostics import Diagnostic, DiagnosticError


def sized_model(descriptor: str) -> str:
    """The descriptor's name. Raises VCG473 where no tower of real sizes is known."""
    from scaffold.verify.profiling import MODELS
    from scaffold.workflow import load_spec

    name = load_spec(descriptor).name
    if name not in MODELS:
        help_text = f"take one of {', '.join(MODELS)}, or add a preset in scaffold/verify/profiling/towers.py"
        raise _error("VCG473", f"there is no tower of real sizes for {name}", help_text)
    return name


def require_gpu(what: str, way_out: str) -> None:
    """Raises VCG470 with what is missing: torch, a GPU, or vLLM."""
    from scaffold.verify.profiling.machine import missing

    lacking = missing()
    if lacking is not None:
        raise _error("VCG470", f"{what} needs a GPU, and {lacking}", f"run it where the model is served, or {way_out}")


def read_json(file: Path, code: str, wanted: str) -> Any:
    """A JSON file; raises `code` when it cannot be read as one."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise _error(code, f"{file}: {reason}", f"give {wanted}") from error


def _error(code: str, message: str, help_text: str) -> DiagnosticError:
    return DiagnosticError(Diagnostic(code, message, help=help_text))
