"""`vitcg-scaffold revert`: undo the last run on a tree, exactly, also one that was killed."""

from __future__ import annotations

from pathlib import Path

import click

from scaffold.cli.console import Console
from scaffold.cli.options import examples
from scaffold.diagnostics import DiagnosticError


@click.command("revert", epilog=examples("revert ~/src/vllm", "revert --unfinished ~/src/vllm"))
@click.argument("tree", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False)
@click.option("--force", is_flag=True, help="Undo even if a file was edited since; those edits are lost.")
@click.option("--unfinished", is_flag=True, help="Undo only a run that was killed, and nothing if none was.")
@click.pass_obj
def command(console: Console, tree: Path | None, force: bool, unfinished: bool) -> None:
    """Undo the last run on TREE: bytes, modes and new files. Repeat it to undo earlier runs.

    A run that was killed while it wrote goes first: TREE is whole again afterwards. With --unfinished, nothing else is
    undone. Without TREE, `revert` takes the tree around the current folder.
    """
    from scaffold.publish import lost_links, recover, revert_last

    root = tree or _tree_here()
    killed = recover(root, force=force)
    if killed is None and unfinished:
        console.note("Nothing to repair.")
        return
    record = killed or revert_last(root, force=force)
    for file in record.files:
        # The record of a killed run is of that run, and any other is of its undoing.
        gone = (file.before if killed else file.after) is None
        console.result(f"{'removed' if gone else 'restored':>12}  {file.path}")
    console.report(lost_links(record))
    undone = record.label.removeprefix("revert ")
    console.note(f"Rolled back the unfinished run: {record.label}" if killed else f"Undid: {undone}")


def _tree_here() -> Path:
    """The nearest tree with runs above the current folder. Raises VCG506 where only folders right below are trees."""
    from scaffold.publish.store import STORE

    here = Path()
    for folder in (here, *here.absolute().parents):
        if (folder / STORE).is_dir():
            return folder
    below = sorted(folder for folder in here.iterdir() if (folder / STORE).is_dir())
    if not below:
        return here
    help = f"name the tree: {' or '.join(f'`{folder}`' for folder in below)}"
    raise DiagnosticError.of("VCG506", "the current folder is in no tree that a run wrote to", help=help)
