"""What a port needs of the tower and of the model class beside the protocol methods.

A pristine tower is split; one that is split already is used as it is, after a look at what its metadata method returns
and takes. The model class gets `self.model_config` where the number of frames is asked from the processing info and the
class keeps neither it nor vLLM's whole configuration.
"""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit.operations import Edit, ReplaceMethod
from scaffold.plan.methods import TreeFacts, sequence_views
from scaffold.plan.model import Fact
from scaffold.protocol.profile import assigned_to, import_source, module_file

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec
    from scaffold.protocol import ModelAnchor, SourceTree
    from scaffold.tower import Parameter, TowerSlice, TowerSplit


@dataclass(frozen=True)
class TowerPlan:
    """Edits by file, the split that they come from (None: nothing to split), and what was learnt of the tree."""

    edits: dict[str, tuple[Edit, ...]]
    split: TowerSplit | None
    facts: TreeFacts
    evidence: tuple[Fact, ...] = ()
    notes: tuple[Diagnostic, ...] = ()


def plan_tower(spec: AdapterSpec, tree: SourceTree, model: ModelAnchor) -> TowerPlan:
    """The tower's part of a port. Raises VCG45x when the tower cannot be split, VCG429 when it does not fit."""
    owner = _class(tree, model.path, model.class_name)
    facts, notes = _gate(spec, tree, model, owner)
    if spec.split is None:
        return TowerPlan({}, None, facts, notes=notes)
    from scaffold.tower import attention_leaves_rows, split_tower

    tower = slice_of(spec, tree, model)
    facts = replace(
        facts,
        has_input_dtype=_has_input_dtype(spec, tree, tower),
        has_vllm_config=_assigns(owner, "vllm_config"),
        attention_fills_zeros=not attention_leaves_rows(tree),
    )
    split = None if tower.already_split else split_tower(tower)
    parameters = split.method_parameters if split else tower.method_parameters
    _check_fit(spec, tree, tower, parameters)
    _check_attributes(spec, tree, tower)
    edits: defaultdict[str, list[Edit]] = defaultdict(list)
    if split is not None:
        for edit in split.edits:
            edits[edit.file].append(ReplaceMethod(edit.class_name, edit.replaces, edit.source))
    if spec.budget.frames_info and not facts.has_vllm_config and not _assigns(owner, "model_config"):
        edits[model.path].append(_keep_model_config(tree, model, owner))
    state = "split already, used as it is" if tower.already_split else f"split: {len(tower.crossings)} values move"
    evidence = (
        Fact("tower", f"{tower.class_name}, {state}", tower.file),
        Fact("metadata", ", ".join(tower.keys), f"{tower.metadata_method or 'prepare_encoder_metadata'}"),
    )
    return TowerPlan({path: tuple(items) for path, items in edits.items()}, split, facts, evidence, notes)


def slice_of(spec: AdapterSpec, tree: SourceTree, model: ModelAnchor) -> TowerSlice:
    """The slice of the tower that a descriptor with a `tower` section names. Raises VCG419 or VCG45x."""
    from scaffold.tower import slice_tower

    assert spec.split is not None, "asked for by the caller"
    return slice_tower(
        tree,
        model.path,
        spec.split.class_name or _tower_class(spec, tree, model, _class(tree, model.path, model.class_name)),
        entry=spec.split.entry,
        data=(spec.split.data,),
        metadata=spec.split.metadata,
        names=dict(spec.split.names),
    )


def _gate(
    spec: AdapterSpec, tree: SourceTree, model: ModelAnchor, owner: ast.ClassDef
) -> tuple[TreeFacts, tuple[Diagnostic, ...]]:
    """Leave the gate out where the release does not have the feature that it asks about."""
    if spec.gate is None:
        return TreeFacts(), ()
    missing = sorted(path for path in spec.gate.attributes if not _assigns(owner, path.split(".")[1]))
    if not missing:
        return TreeFacts(), ()
    note = Diagnostic(
        "VCG429",
        f"{model.class_name} has no {', '.join(missing)} in this tree; the gate is left out",
        spec.span("gates.modalities"),
        "a feature that the release does not have cannot be switched on; check the name if it should have it",
        Severity.WARNING,
    )
    return TreeFacts(has_gate=False), (note,)


def _tower_class(spec: AdapterSpec, tree: SourceTree, model: ModelAnchor, owner: ast.ClassDef) -> str:
    """The class of `self.TOWER = Class(...)` in the model class."""
    found = _made(owner, spec.tower)
    if found is not None:
        return found
    raise DiagnosticError(
        Diagnostic(
            "VCG419",
            f"{model.class_name} does not assign self.{spec.tower} from a class",
            tree.span(model.path, model.line),
            "name the class under tower.class in the descriptor, or correct model.tower",
            notes=(f"asked for by {spec.span('model.tower')}",),
        )
    )


def wanted_keys(spec: AdapterSpec) -> list[str]:
    """The metadata that a tower must have for `spec`. Not the lengths: only some backends use them."""
    return [buffer.name for buffer in spec.buffers if buffer.source == "metadata" and buffer.kind != "lengths"]


def wanted_parameters(spec: AdapterSpec) -> list[str]:
    """The parameters that the tower's metadata method must have for `spec`."""
    return [name for view in sequence_views(spec) for name in (view.capacity, view.override)]


def assigned_class(tree: SourceTree, path: str, class_name: str, attribute: str) -> str | None:
    """The class of `self.ATTRIBUTE = Class(...)` in a class, None where it has no such line."""
    return _made(_class(tree, path, class_name), attribute)


def _made(owner: ast.ClassDef, attribute: str) -> str | None:
    for node in ast.walk(owner):
        if (
            isinstance(node, ast.Assign)
            and any(_is_attribute(target, attribute) for target in node.targets)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        ):
            return node.value.func.id
    return None


def _check_fit(spec: AdapterSpec, tree: SourceTree, tower: TowerSlice, parameters: Sequence[Parameter]) -> None:
    """The metadata method has what the generated methods use: keys, parameters of capacities, the form of the grid."""
    assert spec.metadata is not None, "rule of the packed layout"
    missing_keys = sorted(set(wanted_keys(spec)) - set(tower.keys))
    missing_parameters = sorted(set(wanted_parameters(spec)) - {parameter.name for parameter in parameters})
    grid = next((parameter for parameter in parameters if parameter.name != "self"), None)
    problems = []
    if missing_keys:
        problems.append(f"it has no metadata named {', '.join(missing_keys)} (it has {', '.join(tower.keys)})")
    if missing_parameters:
        problems.append(f"its metadata method takes no {', '.join(missing_parameters)}")
    if grid is not None and not _takes(grid.annotation, spec.metadata.grid):
        problems.append(f"it takes `{grid.name}` as {grid.annotation}, not as a {spec.metadata.grid}")
    if problems:
        raise DiagnosticError(
            Diagnostic(
                "VCG418",
                f"{tower.class_name} does not fit the descriptor: {'; '.join(problems)}",
                tree.span(tower.file, _class(tree, tower.file, tower.class_name).lineno),
                "compare `buffers` and `attention.sequences` with `vitcg-scaffold tower`",
                notes=(f"asked for by {spec.span('buffers')} and {spec.span('metadata.grid')}",),
            )
        )


def _check_attributes(spec: AdapterSpec, tree: SourceTree, tower: TowerSlice) -> None:
    """What `let` lines read of the tower (`self.visual.window_size`) exists there.

    A tower that inherits from more than `nn.Module` is not judged: its attributes may come from there.
    """
    owner = _class(tree, tower.file, tower.class_name)
    if [ast.unparse(base) for base in owner.bases] != ["nn.Module"]:
        return
    problems = []
    for name, expression in spec.lets:
        for path in sorted(expression.attributes):
            parts = path.split(".")
            if len(parts) > 2 and parts[1] == spec.tower and not _assigns(owner, parts[2]):
                problems.append(
                    Diagnostic(
                        "VCG419",
                        f"{tower.class_name} has no attribute `{parts[2]}`, which `{name}: {path}` reads",
                        tree.span(tower.file, owner.lineno),
                        "correct the name in the descriptor; the tower sets its attributes in `__init__`",
                        notes=(f"asked for by {spec.span(f'let.{name}')}",),
                    )
                )
    if problems:
        raise DiagnosticError(problems)


def _takes(annotation: str | None, form: str) -> bool:
    """Whether a parameter so annotated can be a list (or a tensor). Without an annotation nobody knows."""
    if annotation is None:
        return True
    return (
        "Tensor" in annotation
        if form == "tensor"
        else any(name in annotation for name in ("list", "Sequence", "Iterable"))
    )


def _has_input_dtype(spec: AdapterSpec, tree: SourceTree, tower: TowerSlice) -> bool:
    """Whether the tower has the attribute of `pixels.dtype`, such as `self.visual.input_norm.input_dtype`.

    The tower's attribute alone is not enough: 0.30 has an `input_norm` without an `input_dtype`.
    """
    path = spec.pixels.dtype.split(".") if spec.pixels and spec.pixels.dtype else []
    if len(path) != 4 or path[1] != spec.tower:
        return False
    values = [
        node.value
        for node in ast.walk(_class(tree, tower.file, tower.class_name))
        if isinstance(node, ast.Assign) and _sets(node, path[2])
    ]
    makers = {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}
    return any(_defines(tree, tower.file, maker, path[3]) for maker in makers)


def _defines(tree: SourceTree, path: str, class_name: str, attribute: str) -> bool:
    """Whether a class, of this file or imported into it, sets or declares `attribute`."""
    for node in tree.parse(path).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            declared = any(isinstance(part, ast.Name) and part.id == attribute for part in ast.walk(node))
            return declared or _assigns(node, attribute)
        if isinstance(node, ast.ImportFrom) and any(alias.name == class_name for alias in node.names):
            home = module_file(tree, import_source(path, node))
            return home is not None and _defines(tree, home, class_name, attribute)
    return False


def _keep_model_config(tree: SourceTree, model: ModelAnchor, owner: ast.ClassDef) -> ReplaceMethod:
    """`self.model_config = vllm_config.model_config` after `self.config = ...` in the class's own `__init__`."""
    init = next((node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    anchor = init and next((node for node in init.body if _sets(node, "config")), None)
    if init is None or anchor is None:
        raise DiagnosticError(
            Diagnostic(
                "VCG419",
                f"{model.class_name} keeps no configuration to ask for the number of frames",
                tree.span(model.path, model.line),
                "give budget.frames as an expression instead of a method of the processing info",
            )
        )
    lines = tree.read(model.path).splitlines()
    indentation = " " * anchor.col_offset
    first = min([init.lineno, *(node.lineno for node in init.decorator_list)])
    body = lines[first - 1 : anchor.end_lineno]
    rest = lines[(anchor.end_lineno or anchor.lineno) : init.end_lineno]
    source = "\n".join([*body, f"{indentation}self.model_config = vllm_config.model_config", *rest])
    return ReplaceMethod(model.class_name, "__init__", textwrap.dedent(source) + "\n")


def _class(tree: SourceTree, path: str, name: str) -> ast.ClassDef:
    return next(node for node in ast.walk(tree.parse(path)) if isinstance(node, ast.ClassDef) and node.name == name)


def _assigns(owner: ast.ClassDef, attribute: str) -> bool:
    """Whether a method of the class sets `self.ATTRIBUTE`, or the class defines it."""
    return any(
        _sets(node, attribute) or (isinstance(node, ast.FunctionDef) and node.name == attribute)
        for node in ast.walk(owner)
    )


def _sets(node: ast.AST, attribute: str) -> bool:
    return any(_is_attribute(target, attribute) for target in assigned_to(node))


def _is_attribute(node: ast.expr, attribute: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
