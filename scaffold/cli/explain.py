"""`vitcg-scaffold explain`: the long form of an error code."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import examples

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _complete_code(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from scaffold.diagnostics.catalogue import all_codes

    found = (entry for entry in all_codes().values() if entry.code.startswith(incomplete.upper()))
    return [CompletionItem(entry.code, help=entry.title) for entry in found]


@click.command("explain", epilog=examples("explain VCG520"))
@click.argument("code", required=False, shell_complete=_complete_code)
@click.pass_obj
def command(console: Console, code: str | None) -> None:
    """Explain an error CODE such as VCG204; without one, list all codes."""
    from scaffold.diagnostics.catalogue import all_codes

    codes = all_codes()
    if code is None:
        console.document("".join(f"{entry.code}  {entry.title}\n" for entry in codes.values()))
        return
    name = code.upper() if code.upper().startswith("VCG") else f"VCG{code}"
    wanted = codes.get(name)
    if wanted is None:
        from difflib import get_close_matches

        close = [code for code in codes if code.startswith(name)] or get_close_matches(name, codes, cutoff=0.8)
        hint = f"did you mean {' or '.join(close[:3])}?" if close else "run `vitcg-scaffold explain` for the list"
        raise click.BadParameter(f"there is no code {code}; {hint}", param_hint="CODE")
    text = "\n\n".join(fill(block, 100) for block in wanted.explanation.split("\n\n"))
    console.document(f"{wanted.code}: {wanted.title}\n\n{text}\n")
