"""`vitcg-scaffold validate`: check descriptors, all errors at once."""

from __future__ import annotations

import click

from scaffold.cli.console import Console
from scaffold.cli.options import descriptor_argument, examples
from scaffold.diagnostics import Diagnostic, DiagnosticError


def _print_schema(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """For a catalogue of schemas, or an editor that takes one from a file."""
    if not asked or ctx.resilient_parsing:
        return
    import json

    from scaffold.descriptor import json_schema

    ctx.obj.document(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
    ctx.exit()


@click.command(
    "validate",
    epilog=examples("validate my_model.yaml", "validate descriptors/*.yaml --format github", "validate --schema"),
)
@descriptor_argument("descriptors", nargs=-1, required=True)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of descriptors instead.",
)
@click.pass_obj
def command(console: Console, descriptors: tuple[str, ...]) -> None:
    """Check DESCRIPTORS (YAML files or names of shipped ones) and report every problem with its place and its fix."""
    from scaffold.descriptor import load_descriptor

    found: list[Diagnostic] = []
    for reference in descriptors:
        try:
            found.extend(load_descriptor(reference).warnings)
        except DiagnosticError as error:
            found.extend(error.diagnostics)
    console.report(found)
    bad = [diagnostic for diagnostic in found if diagnostic.exit]
    if bad:
        raise click.exceptions.Exit(max(diagnostic.exit for diagnostic in bad))
    console.note(f"{len(descriptors)} descriptor{'s' * (len(descriptors) > 1)} checked, no error found")
