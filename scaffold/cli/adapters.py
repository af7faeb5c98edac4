"""Stand-alone adapters in a folder: `vitcg-scaffold new` without a tree writes them, or checks them for drift."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.differences import show_differences
from scaffold.cli.options import command_line
from scaffold.cli.place import name_undo
from scaffold.cli.reentry import SERVING
from scaffold.diagnostics import Exit

if TYPE_CHECKING:
    from scaffold.adapters.regenerate import Regeneration


def generate_adapters(
    console: Console, descriptors: Sequence[str], mode: str | None, folder: Path, *, allow_dirty: bool
) -> None:
    """Those of `descriptors`, or of all that the folder's manifest names. `mode` is `check`, `diff` or None: write."""
    from scaffold.adapters.regenerate import plan_regeneration, publish_regeneration

    plan = plan_regeneration(folder, descriptors)
    if plan.nothing is not None:  # a check of nothing must not pass
        console.report([*plan.notes, plan.nothing])
        console.result(f"checked {plan.summary}")
        raise click.exceptions.Exit(Exit.DESCRIPTOR)
    if mode == "check":
        console.report([*plan.notes, *plan.drift])
        console.result(f"checked {plan.summary}")
        if plan.drift:
            raise click.exceptions.Exit(Exit.DRIFT)
        return
    console.report([*plan.notes, *plan.left])
    if mode == "diff":
        show_differences(console, plan.changes)
    else:
        label = " ".join(["new", *(descriptors or ["--all"])])
        console.report(publish_regeneration(plan, label=label, allow_dirty=allow_dirty))
    _show_files(console, plan, "would change" if mode else "changed")
    console.result(plan.summary if plan.changes else f"{plan.summary}, all current")
    if plan.changes and not mode:
        tests = folder / "tests"
        # A descriptor without a shipped recipe has no tests of its adapters, whose methods are those of its port.
        one = descriptors[0] if len(descriptors) == 1 else "DESCRIPTOR"
        how = f"pytest {tests}" if any(tests.glob("test_*.py")) else f"vitcg-scaffold verify {one} --vllm RELEASE"
        console.note(f"Proven statically only. For the numerical proof: {how}")
        if descriptors:
            tree = command_line("plan", one, "--vllm", "TREE")
            path = shlex.quote(str(folder.resolve()))
            console.note(f"These are adapters for the plugin. vLLM finds them with PYTHONPATH={path} ({SERVING})")
            console.note(f"What a vLLM tree gets of it: {tree}")
        name_undo(console, str(folder))


def _show_files(console: Console, plan: Regeneration, verb: str) -> None:
    """One line per file that is written or removed."""
    for change in plan.changes:
        done = "removed" if change.after is None and verb == "changed" else verb
        console.result(f"{done:>12}  {(plan.folder / change.path).as_posix()}")
