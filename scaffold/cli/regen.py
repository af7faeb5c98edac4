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
@click.option("--allow-dirty", is_flag=True, help="Overwrite hand edits that are not committed.")
@click.pass_obj
def command(
    console: Console, descriptors: tuple[str, ...], check: bool, diff: bool, into: Path, allow_dirty: bool
) -> None:
    """Generate stand-alone adapters, with their tests, docs and examples, for every generation that the plugin serves.

    Each DESCRIPTOR is a YAML file, the name of a shipped one, or `shipped` for all of those. Without one, the
    folder's manifest names the descriptors. The same descriptors give the same bytes on every machine.

    --check reports changed, missing and extra files. Without it, `regen` overwrites every file that differs, hand edits
    included. Version control protects them: `regen` refuses to overwrite an uncommitted edit.
    """
    if check and (diff or allow_dirty):
        raise click.UsageError("--check writes nothing: leave out --diff and --allow-dirty.")
    from scaffold.adapters import plan_regeneration, publish_regeneration

    plan = plan_regeneration(into, descriptors)
    require_something(console, plan)
    if check:
        console.report([*plan.notes, *plan.drift])
        console.result(plan.summary)
        if plan.drift:
            raise click.exceptions.Exit(Exit.DRIFT)
        return
    console.report([*plan.notes, *plan.left])
    if diff:
        show_differences(console, plan.changes)
    else:
        console.report(publish_regeneration(plan, label="regen", allow_dirty=allow_dirty))
        show_written(console, plan, "changed")
    console.result(plan.summary)


def require_something(console: Console, plan: Regeneration) -> None:
    """Exit with 3 when the run looked at nothing: a check of nothing must not pass."""
    if plan.nothing is not None:
        console.report([*plan.notes, plan.nothing])
        console.result(plan.summary)
        raise click.exceptions.Exit(Exit.DESCRIPTOR)


def show_written(console: Console, plan: Regeneration, verb: str) -> None:
    """One line per file that is written or removed."""
    for change in plan.changes:
        done = "removed" if change.after is None and verb == "changed" else verb
        console.result(f"{done:>12}  {(plan.folder / change.path).as_posix()}")
