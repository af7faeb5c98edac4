"""`vitcg-scaffold inspect`: what the tool reads from a vLLM tree: its protocol, or how a model's tower splits."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from scaffold.cli.console import Console
from scaffold.cli.options import descriptor_argument, examples, open_target, target_option
from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree
    from scaffold.tower import Hazard, TowerSlice
    from scaffold.tower.parts import Crossing

#: Names of parameters that carry the grid, for a call without `--metadata`.
_GRID_WORDS = ("grid", "thw", "hws", "spatial_shapes", "tgt_sizes")


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
        _show_protocol(console, tree, as_json=as_json)
        return
    from scaffold.tower import tower_report

    module, colon, class_name = model.rpartition(":")
    if colon and class_name.isidentifier():
        tower = _slice_class(tree, module, class_name, entry, data, metadata)
    elif entry != "forward" or data or metadata:
        raise click.UsageError("--entry, --data and --metadata go with MODULE:CLASS; a descriptor says it itself.")
    else:
        tower = _slice_descriptor(tree, model)
    if as_json:
        console.document(json.dumps(_facts(tower), indent=2) + "\n")
    else:
        console.block(tower_report(tower, verbose=verbose).rstrip("\n"))
    console.report(())


def _show_protocol(console: Console, tree: SourceTree, *, as_json: bool) -> None:
    """The generation, methods, data classes and dialect."""
    from scaffold.protocol import own_version, read_protocol

    profile = read_protocol(tree)
    dialect = {field.name: getattr(profile.dialect, field.name) for field in fields(profile.dialect)}
    if as_json:
        facts = {
            "tree": tree.label,
            "release": profile.release,
            "generation": profile.generation.name,
            "fingerprint": profile.fingerprint,
            "modules": {
                "protocol": profile.interfaces_module,
                "definitions": profile.defs_module,
                "manager": profile.manager_module,
            },
            "methods": [str(method) for method in profile.methods],
            "dataclasses": {entry.name: [str(field) for field in entry.fields] for entry in profile.dataclasses},
            "dialect": dialect,
        }
        console.document(json.dumps(facts, indent=2) + "\n")
        return
    generation = profile.generation
    console.result(f"{tree.label}: protocol {generation.name} (vLLM {generation.first} to {generation.last})")
    if own := own_version(tree):
        console.result(f"  version      {own}")
    console.result(f"  fingerprint  {profile.fingerprint}")
    console.result(f"  protocol     {profile.interfaces_module}")
    console.result(f"  definitions  {profile.defs_module}")
    console.result(f"  manager      {profile.manager_module}")
    console.block("\nMethods")
    for method in profile.methods:
        console.result(f"  {'  ' if method.has_default else '* '}{method}")
    console.block("  (* must be implemented)\n\nData classes")
    for entry in profile.dataclasses:
        console.result(f"  {entry.name}")
        for field in entry.fields:
            console.result(f"    {field}")
    console.block("\nDialect")
    for name, value in dialect.items():
        console.result(f"  {name:<24} {getattr(value, 'value', value)}")


def _slice_descriptor(tree: SourceTree, reference: str) -> TowerSlice:
    from scaffold.descriptor import PackedPort
    from scaffold.plan.towers import slice_of
    from scaffold.protocol import find_model
    from scaffold.workflow import load_port

    port = load_port(reference)
    if not isinstance(port, PackedPort):
        raise DiagnosticError.of(
            "VCG450",
            f"{port.name} names no tower to split: the layout `{port.layout}` has no metadata",
            port.span("layout"),
            "name the tower's class to look at it all the same, such as `inspect qwen2_vl:Qwen2VisionTransformer`",
        )
    return slice_of(port, tree, find_model(tree, port.module, port.class_name))


def _slice_class(
    tree: SourceTree, module: str, class_name: str, entry: str, data: tuple[str, ...], metadata: tuple[str, ...]
) -> TowerSlice:
    from scaffold.protocol import find_module
    from scaffold.tower import slice_tower

    path = find_module(tree, module)
    parameters = _parameters(tree, path, class_name, entry)
    data = data or tuple(parameters[:1])
    metadata = metadata or tuple(
        name for name in parameters if name not in data and any(word in name for word in _GRID_WORDS)
    )
    return slice_tower(tree, path, class_name, entry=entry, data=data, metadata=metadata)


def _parameters(tree: SourceTree, path: str, class_name: str, entry: str) -> list[str]:
    """Names of the entry's parameters after self; none where class or method are not there, which the slice reports."""
    from scaffold.syntax import positional_parameters
    from scaffold.tower.source import Program

    program = Program(tree)
    tree.parse(path)
    module = program.module(path)
    owner = program.resolve_class(module, class_name) if module is not None else None
    method = program.method(owner, entry) if owner is not None else None
    return positional_parameters(method[2])[1:] if method is not None else []


def _facts(tower: TowerSlice) -> dict[str, Any]:
    """The slice as plain values; a child module that is split as well nests its own."""
    return {
        "file": tower.file,
        "class": tower.class_name,
        "entry": tower.entry,
        "data": list(tower.data),
        "metadata": list(tower.metadata),
        "already_split": tower.already_split,
        "metadata_method": tower.metadata_method,
        "crossings": [_crossing(crossing) for crossing in tower.crossings],
        "moved_lines": list(tower.moved_lines),
        "staying_lines": list(tower.staying_lines),
        "hazards": [_hazard(hazard) for hazard in tower.hazards],
        "children": [
            {"attribute": child.attribute, "line": child.call.lineno, "slice": _facts(child.slice)}
            for child in tower.children
        ],
    }


def _crossing(crossing: Crossing) -> dict[str, Any]:
    return {
        "key": crossing.key,
        "name": crossing.name,
        "kind": crossing.kind.value,
        "certain": crossing.certain,
        "nullable": crossing.nullable,
        "source": crossing.source,
        "evidence": [{"file": item.file, "line": item.line, "what": item.what} for item in crossing.evidence],
    }


def _hazard(hazard: Hazard) -> dict[str, Any]:
    return {
        "file": hazard.file,
        "line": hazard.line,
        "text": hazard.text,
        "what": hazard.what,
        "reason": hazard.reason,
        "leaves_with_metadata": hazard.moved,
        "via": list(hazard.via),
    }
