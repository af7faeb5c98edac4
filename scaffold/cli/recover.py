"""`vitcg-scaffold recover`: repair a tree after a run was killed while it wrote."""

from __future__ import annotations

from pathlib import Path

import click

from scaffold.cli.console import Console
from scaffold.cli.options import examples, tree_with_runs


@click.command("recover", epilog=examples("recover ~/src/vllm"))
@click.argument("tree", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False)
@click.option("--force", is_flag=True, help="Restore even files that were edited after the kill; those edits are lost.")
@click.pass_obj
def command(console: Console, tree: Path | None, force: bool) -> None:
    """Bring TREE back to a whole state after a killed run: all of its changes, or none of them.

    Without TREE, it takes the tree around the current folder.
    """
    from scaffold.publish import lost_links, recover

    report = recover(tree_with_runs(tree), force=force)
    if report.rolled_back is None:
        console.note("Nothing to repair.")
        return
    for file in report.rolled_back.files:
        console.result(f"{'removed' if file.before is None else 'restored':>12}  {file.path}")
    console.report(lost_links(report.rolled_back))
    console.note(f"Rolled back the unfinished run: {report.rolled_back.label}")
