"""`vitcg-scaffold inspect MODEL`: how a vision tower splits, and what must not run while a graph is captured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from scaffold.cli.console import Console
from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree
    from scaffold.tower import Hazard, TowerSlice
    from scaffold.tower.parts import Crossing

#: Names of parameters that carry the grid, for a call without `--metadata`.
_GRID_WORDS = ("grid", "thw", "hws", "spatial_shapes", "tgt_sizes")


def show_tower(
    console: Console,
    tree: SourceTree,
    model: str,
    *,
    entry: str,
    data: tuple[str, ...],
    metadata: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> None:
    """Data and metadata of a tower, what crosses the cut and why, and each capture hazard.

    `model` is a descriptor, or MODULE:CLASS for a tower without one; `entry`, `data` and `metadata` go with a class.
    """
    from scaffold.tower import tower_report

    module, colon, class_name = model.rpartition(":")
    if colon and class_name.isidentifier():
        tower = _slice_class(tree, module, class_name, entry, data, metadata)
    else:
        if entry != "forward" or data or metadata:
            raise click.UsageError("--entry, --data and --metadata go with MODULE:CLASS; a descriptor says it itself.")
        tower = _slice_descriptor(tree, model)
    if as_json:
        console.document(json.dumps(_facts(tower), indent=2) + "\n")
    else:
        console.block(tower_report(tower, verbose=verbose).rstrip("\n"))
    console.report(())


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
    import ast

    from scaffold.syntax import positional_parameters
    from scaffold.tower.source import Program

    program = Program(tree)
    tree.parse(path)
    module = program.module(path)
    owner = program.resolve(module, class_name) if module is not None else None
    if owner is None or not isinstance(owner[1], ast.ClassDef):
        return []
    method = program.method((owner[0], owner[1]), entry)
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
