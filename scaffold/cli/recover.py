"""`vitcg-scaffold recover`: repair a tree after a run was killed while it wrote."""

from __future__ import annotations

from pathlib import Path

import click

from scaffold.cli.console import Console


@click.command("recover")
@click.argument("tree", type=click.Path(path_type=Path, file_okay=False, exists=True), default=Path())
@click.option("--force", is_flag=True, help="Restore even files that were edited after the kill; those edits are lost.")
@click.pass_obj
def command(console: Console, tree: Path, force: bool) -> None:
    """Bring TREE [.] back to a whole state after a killed run: all of its changes, or none of them."""
    from scaffold.publish import recover

    report = recover(tree, force=force)
    if report.rolled_back is None:
        console.note("Nothing to repair.")
        return
    for file in report.rolled_back.files:
        console.result(f"    restored  {file.path}")
    console.note(f"Rolled back the unfinished run: {report.rolled_back.label}")
