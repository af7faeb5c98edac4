"""`vitcg-scaffold regen`: generate the stand-alone adapters again, or check them for drift."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.differences import show_differences
from scaffold.diagnostics import Exit

if TYPE_CHECKING:
    from scaffold.adapters import Regeneration


@click.command("regen")
@click.argument("descriptors", nargs=-1, metavar="[DESCRIPTOR]...")
@click.option("--check", is_flag=True, help="Report what differs and exit 1; write nothing.")
@click.option("--diff", is_flag=True, help="Show what would be written; write nothing.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("generated"),
    help="The folder of the adapters [./generated].",
)
@click.option("--take-generated", is_flag=True, help="Drop hand edits.")
@click.option("--adopt", is_flag=True, help="Accept hand-edited files as they are.")
@click.option("--merge", is_flag=True, help="Carry hand edits over to what is generated now.")
@click.pass_obj
def command(
    console: Console,
    descriptors: tuple[str, ...],
    check: bool,
    diff: bool,
    into: Path,
    take_generated: bool,
    adopt: bool,
    merge: bool,
) -> None:
    """Generate stand-alone adapters, with their tests, docs and examples, for every protocol generation.

    Each DESCRIPTOR is a YAML file, the name of a shipped one, or `shipped` for all of those. Without any, the folder's
    manifest says what it is generated from. The same descriptors give the same bytes on every machine.

    --check reports changed, missing, extra and hand-edited files. A hand-edited file is never overwritten unasked.
    """
    chosen = [name for name, on in (("take-generated", take_generated), ("adopt", adopt), ("merge", merge)) if on]
    if check and (chosen or diff):
        raise click.UsageError("--check writes nothing: leave out --diff, --take-generated, --adopt and --merge.")
    if len(chosen) > 1:  # the last one must not win: one of them drops edits
        raise click.UsageError(f"--{' and --'.join(chosen)} exclude each other: what shall become of hand edits?")
    from scaffold.adapters import Choice, plan_regeneration, publish_regeneration

    plan = plan_regeneration(into, descriptors, choice=Choice(chosen[0] if chosen else "refuse"))
    if require_something(console, plan):
        raise click.exceptions.Exit(Exit.DESCRIPTOR)
    if check:
        console.report([*plan.notes_to_show(check=True), *plan.drift])
        console.result(plan.summary)
        if plan.drift:
            raise click.exceptions.Exit(Exit.DRIFT)
        return
    console.report([*plan.notes_to_show(check=False), *plan.conflicts])
    if diff:
        show_differences(console, plan.changes)
    else:
        publish_regeneration(plan, label="regen")
        show_written(console, plan, "changed")
    console.result(plan.summary)
    if plan.conflicts:
        raise click.exceptions.Exit(Exit.CONFLICT)


def require_something(console: Console, plan: Regeneration) -> bool:
    """Whether the run looked at nothing: a check of nothing must not pass."""
    if plan.files:
        return False
    console.report([*plan.notes_to_show(check=True), plan.nothing])
    console.result(plan.summary)
    return True


def show_written(console: Console, plan: Regeneration, verb: str) -> None:
    """One line a file that is written or removed."""
    for change in plan.changes:
        done = "removed" if change.after is None and verb == "changed" else verb
        console.result(f"{done:>12}  {(plan.folder / change.path).as_posix()}")
