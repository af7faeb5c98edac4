"""`vitcg-scaffold revert`: undo the last run on a tree, exactly."""

from __future__ import annotations

from pathlib import Path

import click

from scaffold.cli.console import Console


@click.command("revert")
@click.argument("tree", type=click.Path(path_type=Path, file_okay=False, exists=True), default=Path())
@click.option("--force", is_flag=True, help="Undo even if a file was edited since; those edits are lost.")
@click.pass_obj
def command(console: Console, tree: Path, force: bool) -> None:
    """Undo the last run on TREE [.]: bytes, modes and new files. Repeat it to undo earlier runs."""
    from scaffold.publish import revert_last

    record = revert_last(tree, force=force)
    for file in record.files:
        console.result(f"    restored  {file.path}")
    console.note(f"Undid: {record.label}")
