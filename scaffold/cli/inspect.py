"""`vitcg-scaffold inspect`: what the tool reads from a vLLM tree: its protocol, or how a model's tower splits."""

from __future__ import annotations

import click

from scaffold.cli.console import Console
from scaffold.cli.options import descriptor_argument, examples, open_target, target_option
from scaffold.cli.protocol import show_protocol
from scaffold.cli.tower import show_tower


@click.command(
    "inspect",
    epilog=examples(
        "inspect --vllm 0.33.0",
        "inspect qwen2_5_vl --vllm 0.22.0 -v",
        "inspect glm4_1v:Glm4vVisionTransformer --vllm 0.22.0 --json",
    ),
)
@descriptor_argument("model", required=False)
@target_option(required=True)
@click.option("--entry", default="forward", help="With MODULE:CLASS: name the method that runs the tower [forward].")
@click.option(
    "--data", multiple=True, help="With MODULE:CLASS: name a parameter with pixels (repeatable) [the first one]."
)
@click.option(
    "--metadata",
    multiple=True,
    help="With MODULE:CLASS: name a parameter with the grid (repeatable) [found by its name].",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every statement of a tower with its place, and all evidence.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.pass_obj
def command(
    console: Console,
    model: str | None,
    vllm: str,
    entry: str,
    data: tuple[str, ...],
    metadata: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> None:
    """Show the encoder CUDA graph protocol of a vLLM tree: its generation, methods, data classes and dialect.

    With MODEL, show how its vision tower splits: data and metadata, what crosses the cut and why, and each capture
    hazard. MODEL is a descriptor (a YAML file or the name of a shipped one), or MODULE:CLASS for a tower without a
    descriptor: a module below vllm/model_executor/models and the tower's class in it. Writes nothing.
    """
    if model is None and (entry != "forward" or data or metadata):
        raise click.UsageError("--entry, --data and --metadata go with MODULE:CLASS.")
    tree = open_target(console, vllm).tree
    if model is None:
        show_protocol(console, tree, as_json=as_json)
    else:
        show_tower(console, tree, model, entry=entry, data=data, metadata=metadata, verbose=verbose, as_json=as_json)
