"""`vitcg-scaffold doctor`: what the plugin does in vLLM here, and why not."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import examples
from scaffold.diagnostics import DiagnosticError, Severity

if TYPE_CHECKING:
    from scaffold.doctor import Examination

_IMPLEMENTATIONS = {"adapter": "adapter", "vllm": "vLLM's own", "none": "none"}
_MANAGERS = {"ours": "ours", "vllm": "vLLM's", "none": "-"}


@click.command("doctor", epilog=examples("doctor", "doctor --json"))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.pass_obj
def command(console: Console, as_json: bool) -> None:
    """Say which vLLM is installed, whether the plugin is active in it, and what class and manager each model would use.

    Imports neither vLLM nor torch, and needs no GPU. The exit code is 0 if vLLM would run as configured, which includes
    a plugin that is switched off, and 4 if something is in the way.
    """
    from scaffold.doctor import examine

    found = examine(os.environ)
    if as_json:
        console.document(json.dumps(found.as_dict(), indent=2) + "\n")
    else:
        _show(console, found)
    errors = [problem for problem in found.problems if problem.severity is Severity.ERROR]
    console.report([*(problem for problem in found.problems if problem.severity is not Severity.ERROR), *found.notes])
    if errors:
        raise DiagnosticError(errors)


def _show(console: Console, found: Examination) -> None:
    from scaffold.doctor import adapters_folder

    controls = found.controls
    if found.path is None:
        console.result("vLLM        not installed in this Python environment")
    else:
        console.result(f"vLLM        {found.release or 'of unknown version'} ({found.path})")
    console.result(f"protocol    {found.generation or '-'}")
    console.result(f"plugin      {_state(found)}")
    console.result(f"adapters    {adapters_folder()}")
    if controls.models:
        console.result(f"only        {', '.join(sorted(controls.models))}")
    if found.options:
        console.result(f"settings    {json.dumps(found.options)}")
    gpus = [f"{g.name} ({g.memory_mib} MiB, capability {g.capability}, driver {g.driver})" for g in found.gpus]
    console.result(f"GPU         {'; '.join(gpus) or 'none seen: encoder graphs need one'}")
    for number, backend in enumerate(found.attention):
        usable = "usable" if backend.installed and backend.capturable else "not usable for graphs"
        why = f": {backend.why}" if backend.why else ""
        console.result(f"{'attention' if number == 0 else '':<12}{backend.name:<12} {usable}{why}")
    for number, option in enumerate(found.eager_with):
        console.result(f"{'' if number else 'eager with':<12}{option.option}: {option.why}")
    if not found.models:
        return
    console.block(
        "\nWith cudagraph_mm_encoder on (a class that is not listed runs eager, or with a port that it inherits in "
        "vLLM):\n"
    )
    width = max(len(model.architecture) for model in found.models)
    console.result(f"{'architecture':<{width}}  {'implementation':<14}  {'manager':<7}  why not the adapter")
    for model in found.models:
        line = (
            f"{model.architecture:<{width}}  {_IMPLEMENTATIONS[model.implementation]:<14}  "
            f"{_MANAGERS[model.manager]:<7}  {model.why}"
        )
        console.result(line.rstrip())


def _state(found: Examination) -> str:
    if found.controls.disabled:
        return "switched off"
    if not found.active:
        return "not active"
    return {
        "all": "active: adapters and manager",
        "adapters": "active: adapters only",
        "manager": "active: manager only",
    }[found.controls.mode]
