"""`vitcg-scaffold schema`: the JSON Schema of descriptors, for an editor's YAML server."""

from __future__ import annotations

import json

import click

from scaffold.cli.console import Console
from scaffold.cli.options import examples


@click.command("schema", epilog=examples("schema > descriptor.schema.json"))
@click.pass_obj
def command(console: Console) -> None:
    """Print the JSON Schema of descriptors.

    Save it beside your descriptors and start each with `# yaml-language-server: $schema=descriptor.schema.json`.
    """
    from scaffold.descriptor import json_schema

    console.document(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
