"""Ports that run the model's code twice (VCG466): none goes into a tree unasked, and the plugin serves their models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scaffold.cli.options import command_line
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity

if TYPE_CHECKING:
    from scaffold.cli.console import Console
    from scaffold.descriptor import AnyPort
    from scaffold.plan import Plan

_Command = TypeVar("_Command", bound=Callable[..., Any])

_CODE = "VCG466"
#: Where `new` makes adapters, as it does without the option.
_FOLDER = "generated"
#: The page that says how vLLM finds an adapter.
SERVING = "docs/own-adapters.md"


def reenter_option(text: str) -> Callable[[_Command], _Command]:
    """`--reenter`, named after what such a port does. No other option means it: `--replace` is for a port that is
    there, and `--allow-dirty` for files."""
    return click.option("--reenter", is_flag=True, help=text)


def adapter_commands(port: AnyPort, plan: Plan, descriptor: str, target: Sequence[str]) -> list[str]:
    """The commands that prove a port for the plugin and make its adapter; none where it can have no adapter."""
    if _no_adapter(port, plan):
        return []
    return [command_line("verify", descriptor, *target), command_line("new", descriptor, "--into", _FOLDER)]


def with_adapter(
    notes: Sequence[Diagnostic], port: AnyPort, plan: Plan, descriptor: str, target: Sequence[str]
) -> list[Diagnostic]:
    """The notes on a plan, of which the one on the second run says what to do. `target` names the tree."""
    if not plan.reenters:
        return list(notes)
    instead = _instead(port, plan, descriptor, target)
    return [replace(note, help=instead) if note.code == _CODE else note for note in notes]


def refuse_reentry(port: AnyPort, plan: Plan, descriptor: str, target: Sequence[str]) -> None:
    """Raise VCG466 for a plan of such a port."""
    for note in with_adapter(plan.notes, port, plan, descriptor, target):
        if note.code == _CODE:
            raise DiagnosticError(replace(note, severity=Severity.ERROR))


def say_unwritten(console: Console, plan: Plan) -> None:
    """The last line of a look at such a port: nobody gets it."""
    if plan.reenters:
        console.note("`new` writes no such port into a tree (VCG466): it would run the model's code twice.")


def _instead(port: AnyPort, plan: Plan, descriptor: str, target: Sequence[str]) -> str:
    """How the model gets graphs without this port, whose host work nobody merges."""
    if reason := _no_adapter(port, plan):
        serves = f"no adapter either: {reason}"
    elif port.shipped:
        module = f"vitcg_adapters.{plan.profile.generation.name}.{port.name}"
        serves = f"the plugin serves this model by its adapter, {module}: our manager needs no second run"
    else:
        verify, make = adapter_commands(port, plan, descriptor, target)
        serves = (
            f"the plugin serves it without a second run: `{verify}` proves that, `{make}` makes the adapter, and vLLM "
            f"finds it with PYTHONPATH={_FOLDER} ({SERVING})"
        )
    images = ""
    if len(port.modalities) > 1:
        init = command_line("init", f"{port.module}:{port.class_name}", *target)
        images = f". `{init}` drafts a port of images alone, if these have a form for a tree"
    return f"{serves}{images}. `new` with --reenter writes the port all the same, for a fork of vLLM"


def _no_adapter(port: AnyPort, plan: Plan) -> str:
    """Why the plugin has no adapter of a descriptor on a tree's release; empty where it has, or can have one."""
    from scaffold.adapters.towers import no_adapter
    from scaffold.protocol import SERVED

    if plan.profile.generation not in SERVED:
        return f"the plugin serves vLLM {SERVED[0].first} to {SERVED[-1].last}"
    return no_adapter(port, plan.profile.generation) or ""
