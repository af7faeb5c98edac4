"""`vitcg-scaffold revert`: undo the last run on a tree, exactly."""

from __future__ import annotations

from pathlib import Path

import click

from scaffold.cli.console import Console
from scaffold.cli.options import examples, tree_with_runs


@click.command("revert", epilog=examples("revert ~/src/vllm"))
@click.argument("tree", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False)
@click.option("--force", is_flag=True, help="Undo even if a file was edited since; those edits are lost.")
@click.pass_obj
def command(console: Console, tree: Path | None, force: bool) -> None:
    """Undo the last run on TREE: bytes, modes and new files. Repeat it to undo earlier runs.

    Without TREE, it takes the tree around the current folder.
    """
    from scaffold.publish import lost_links, revert_last

    record = revert_last(tree_with_runs(tree), force=force)
    for file in record.files:
        console.result(f"{'removed' if file.after is None else 'restored':>12}  {file.path}")
    console.report(lost_links(record))
    console.note(f"Undid: {record.label.removeprefix('revert ')}")
