"""`vitcg-scaffold plan`: what `new` would do, edit by edit, and what was derived from the tree."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import descriptor_argument, examples, open_target, target_option

if TYPE_CHECKING:
    from scaffold.edit.operations import Edit


@click.command("plan", epilog=examples("plan internvl --vllm 0.22.0 -v"))
@descriptor_argument()
@target_option(required=True)
@click.option("--replace", is_flag=True, help="Plan the swap of an existing implementation.")
@click.option("-v", "--verbose", is_flag=True, help="Show what was derived from the tree, with its place.")
@click.pass_obj
def command(console: Console, descriptor: str, vllm: str, replace: bool, verbose: bool) -> None:
    """Show what `new` would change in a vLLM tree, and why. Writes nothing."""
    from scaffold.plan import plan_changes
    from scaffold.protocol import read_protocol
    from scaffold.workflow import load_port

    port = load_port(descriptor, report=console.report)
    tree = open_target(console, vllm).tree
    profile = read_protocol(tree)
    plan = plan_changes(port, tree, profile, replace=replace)
    console.report(plan.notes)
    console.result(f"{port.name} on {tree.label}: protocol {profile.generation.name}")
    if verbose:
        for fact in plan.facts:
            console.result(f"  {fact.name} = {fact.value}  ({fact.evidence})")
    for file in plan.files:
        console.result("")
        console.result(file.path)
        console.result(f"  {file.reason}")
        for edit in file.edits:
            console.result(f"  - {_describe(edit)}")


def _describe(edit: Edit) -> str:
    """`AddBase class_name=InternVLChatModel base=SupportsEncoderCudaGraph`; long texts by their number of lines."""
    parts = [type(edit).__name__]
    for field in fields(edit):
        value = getattr(edit, field.name)
        if isinstance(value, str) and "\n" in value:
            value = f"<{len(value.splitlines())} lines>"
        if value not in (None, (), False):
            parts.append(f"{field.name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
    return " ".join(parts)
