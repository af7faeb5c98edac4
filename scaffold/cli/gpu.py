"""Shared by the commands that need a GPU: the measured tower, what this machine lacks, JSON files as input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from scaffold.diagnostics import Diagnostic, DiagnosticError

_Command = TypeVar("_Command", bound=Callable[..., Any])


def tower_options(command: _Command) -> _Command:
    """`--config` and `--backend`: the sizes of the tower and its attention."""
    backend = click.option(
        "--backend", default="FLASH_ATTN", show_default=True, help="Use this attention backend of vLLM."
    )
    config = click.option(
        "--config",
        "configuration",
        type=click.Path(path_type=Path),
        help="Take the sizes from this config.json [sizes of the best-known checkpoint].",
    )
    return config(backend(command))


def sized_model(descriptor: str) -> str:
    """The descriptor's name. Raises VCG473 where no tower of real sizes is known."""
    from scaffold.measure import MODELS
    from scaffold.workflow import load_port

    name = load_port(descriptor).name
    if name not in MODELS:
        help_text = f"take one of {', '.join(MODELS)}, or add a preset in scaffold/measure/towers.py"
        raise _error("VCG473", f"there is no tower of real sizes for {name}", help_text)
    return name


def require_gpu(what: str, way_out: str) -> None:
    """Raises VCG470 with what is missing: torch, a GPU, or vLLM."""
    from scaffold.measure.machine import missing

    lacking = missing()
    if lacking is not None:
        raise _error("VCG470", f"{what} needs a GPU, and {lacking}", f"run it where the model is served, or {way_out}")


def read_json(file: Path, code: str, wanted: str) -> Any:
    """A JSON file; raises `code` when it cannot be read as one."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise _error(code, f"{file}: {reason}", f"give {wanted}") from error


def read_configuration(file: Path | None) -> Any:
    """The configuration that `--config` names, None without it. Raises VCG471."""
    return None if file is None else read_json(file, "VCG471", "a model's config.json")


def misfit(name: str, error: ValueError) -> DiagnosticError:
    """VCG471: a configuration that the model's own class refuses."""
    return _error("VCG471", f"{name}: {error}", "give the config.json of a checkpoint of this model")


def _error(code: str, message: str, help_text: str) -> DiagnosticError:
    return DiagnosticError(Diagnostic(code, message, help=help_text))
