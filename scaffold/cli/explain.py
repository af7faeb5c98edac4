"""`vitcg-scaffold explain`: the long form of an error code."""

from __future__ import annotations

from textwrap import fill

import click

from scaffold.cli.console import Console


@click.command("explain")
@click.argument("code", required=False)
@click.pass_obj
def command(console: Console, code: str | None) -> None:
    """Explain an error CODE such as VCG204; without one, list all codes."""
    from scaffold.diagnostics.catalogue import all_codes

    codes = all_codes()
    if code is None:
        for entry in codes.values():
            console.result(f"{entry.code}  {entry.title}")
        return
    wanted = codes.get(code.upper())
    if wanted is None:
        raise click.BadParameter(f"there is no code {code}; run `vitcg-scaffold explain` for the list", param_hint="CODE")
    console.result(f"{wanted.code}: {wanted.title}\n")
    console.result("\n\n".join(fill(" ".join(block.split()), 100) for block in wanted.explanation.split("\n\n")))
