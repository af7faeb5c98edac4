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
from typing import TYPE_CHECKING, TypeAlias

from scaffold.descriptor import PackedPort
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit.operations import AddImport, Edit, ReplaceMethod
from scaffold.plan.model import Fact
from scaffold.plan.views import TreeFacts, sequence_parameters
from scaffold.protocol.tree import module_file
from scaffold.syntax import FunctionNode, assigned_to, find_class, find_method, import_source, self_attribute

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import ModelAnchor, SourceTree
    from scaffold.tower import Parameter, TowerSlice, TowerSplit


#: A class and its bases in the tree, each with its file.
Family: TypeAlias = "tuple[tuple[str, ast.ClassDef], ...]"


@dataclass(frozen=True)
class TowerPlan:
    """Edits by file, the split among them (None: nothing to split), and what was learnt of the tree."""

    edits: dict[str, tuple[Edit, ...]]
    split: TowerSplit | None
    facts: TreeFacts
    evidence: tuple[Fact, ...] = ()
    notes: tuple[Diagnostic, ...] = ()


def plan_tower(port: AnyPort, tree: SourceTree, model: ModelAnchor) -> TowerPlan:
    """The tower's part of a port. Raises VCG45x when the tower cannot be split, VCG429 when it does not fit."""
    family = lineage(tree, model.path, model.class_name)
    facts, notes = _gate(port, tree, model, family)
    edits: defaultdict[str, list[Edit]] = defaultdict(list)
    edits[model.path].append(AddImport("torch"))  # every layout's methods name it
    if not isinstance(port, PackedPort):
        return TowerPlan({model.path: tuple(edits[model.path])}, None, facts, notes=notes)
    from scaffold.tower import attention_leaves_rows, split_tower

    tower = slice_of(port, tree, model)
    facts = replace(
        facts,
        has_input_dtype=_has_input_dtype(port, tree, tower),
        has_vllm_config=any(_assigns(owner, "vllm_config") for _, owner in family),
        attention_fills_zeros=not attention_leaves_rows(tree),
    )
    split = None if tower.already_split else split_tower(tower)
    parameters = split.method_parameters if split else tower.method_parameters
    _check_fit(port, tree, tower, parameters)
    _check_attributes(port, tree, tower)
    if split is not None:
        for part in split.edits:
            edits[part.file].append(ReplaceMethod(part.class_name, part.replaces, part.source))
    kept = ("vllm_config", "model_config")
    if port.frames_info and not any(_assigns(owner, name) for _, owner in family for name in kept):
        home, edit = _keep_model_config(tree, model, family)
        edits[home].append(edit)
    state = "split already, used as it is" if tower.already_split else f"split: {len(tower.crossings)} values move"
    evidence = (
        Fact("tower", f"{tower.class_name}, {state}", tower.file),
        Fact("metadata", ", ".join(tower.keys), f"{tower.metadata_method or 'prepare_encoder_metadata'}"),
    )
    return TowerPlan({path: tuple(items) for path, items in edits.items()}, split, facts, evidence, notes)


def slice_of(port: PackedPort, tree: SourceTree, model: ModelAnchor) -> TowerSlice:
    """The slice of the tower that the descriptor names. Raises VCG419 or VCG45x."""
    from scaffold.tower import slice_tower

    named = port.split.class_
    path, class_name = (model.path, named) if named is not None else _tower_class(port, tree, model)
    return slice_tower(
        tree,
        path,
        class_name,
        entry=port.split.entry,
        data=(port.split.data,),
        metadata=port.split.metadata,
        names=dict(port.split.names),
    )


def _gate(
    port: AnyPort, tree: SourceTree, model: ModelAnchor, family: Family
) -> tuple[TreeFacts, tuple[Diagnostic, ...]]:
    """Leave the gate out where the release does not have the feature that it asks about."""
    if port.gate is None:
        return TreeFacts(), ()
    wanted = ((path, path.split(".")[1]) for path in port.gate.attributes)
    missing = sorted(path for path, name in wanted if not any(_assigns(owner, name) for _, owner in family))
    if not missing:
        return TreeFacts(), ()
    note = Diagnostic(
        "VCG429",
        f"{model.class_name} has no {', '.join(missing)} in this tree; the gate is left out",
        port.span("gates.modalities"),
        "a feature that the release does not have cannot be switched on; check the name if it should have it",
        Severity.WARNING,
    )
    return TreeFacts(has_gate=False), (note,)


def _tower_class(port: PackedPort, tree: SourceTree, model: ModelAnchor) -> tuple[str, str]:
    """The file and the class of `self.TOWER = Class(...)` in the model class or its nearest base that has it."""
    for path, owner in lineage(tree, model.path, model.class_name):
        found = _made(owner, port.tower)
        if found is not None:
            return path, found
    raise DiagnosticError(
        Diagnostic(
            "VCG419",
            f"{model.class_name} does not assign self.{port.tower} from a class",
            tree.span(model.path, model.line),
            "name the class under tower.class in the descriptor, or correct model.tower",
            notes=(f"asked for by {port.span('model.tower')}",),
        )
    )


def wanted_keys(port: PackedPort) -> list[str]:
    """The metadata that a tower must have for `port`. Not the lengths: only some backends use them."""
    return [name for name in port.metadata if name not in port.lengths]


def wanted_parameters(port: PackedPort) -> list[str]:
    """The parameters that the tower's metadata method must have for `port`."""
    return [name for names in sequence_parameters(port) for name in names]


def assigned_class(tree: SourceTree, path: str, class_name: str, attribute: str) -> str | None:
    """The class of `self.ATTRIBUTE = Class(...)` in a class, None where it has no such line."""
    return _made(_class(tree, path, class_name), attribute)


def _made(owner: ast.ClassDef, attribute: str) -> str | None:
    for node in ast.walk(owner):
        if (
            isinstance(node, ast.Assign)
            and any(self_attribute(target) == attribute for target in node.targets)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        ):
            return node.value.func.id
    return None


def _check_fit(port: PackedPort, tree: SourceTree, tower: TowerSlice, parameters: Sequence[Parameter]) -> None:
    """The metadata method has what the generated methods use: keys, parameters of capacities, the form of the grid."""
    missing_keys = sorted(set(wanted_keys(port)) - set(tower.keys))
    missing_parameters = sorted(set(wanted_parameters(port)) - {parameter.name for parameter in parameters})
    grid = next((parameter for parameter in parameters if parameter.name != "self"), None)
    problems = []
    if missing_keys:
        problems.append(f"it has no metadata named {', '.join(missing_keys)} (it has {', '.join(tower.keys)})")
    if missing_parameters:
        problems.append(f"its metadata method takes no {', '.join(missing_parameters)}")
    if grid is not None and not _takes(grid.annotation, port.split.grid):
        problems.append(f"it takes `{grid.name}` as {grid.annotation}, not as a {port.split.grid}")
    if problems:
        raise DiagnosticError(
            Diagnostic(
                "VCG418",
                f"{tower.class_name} does not fit the descriptor: {'; '.join(problems)}",
                tree.span(tower.file, _class(tree, tower.file, tower.class_name).lineno),
                "compare `buffers` and `attention` with `vitcg-scaffold tower`",
                notes=(f"asked for by {port.span('buffers')} and {port.span('tower.grid')}",),
            )
        )


def _check_attributes(port: PackedPort, tree: SourceTree, tower: TowerSlice) -> None:
    """What `let` lines read of the tower (`self.visual.window_size`) exists there.

    A tower that inherits from more than `nn.Module` is not judged: its attributes may come from there.
    """
    owner = _class(tree, tower.file, tower.class_name)
    if [ast.unparse(base) for base in owner.bases] != ["nn.Module"]:
        return
    problems = []
    for name, expression in port.lets:
        for path in sorted(expression.attributes):
            parts = path.split(".")
            if len(parts) > 2 and parts[1] == port.tower and not _assigns(owner, parts[2]):
                problems.append(
                    Diagnostic(
                        "VCG419",
                        f"{tower.class_name} has no attribute `{parts[2]}`, which `{name}: {path}` reads",
                        tree.span(tower.file, owner.lineno),
                        "correct the name in the descriptor; the tower sets its attributes in `__init__`",
                        notes=(f"asked for by {port.span(f'let.{name}')}",),
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


def _has_input_dtype(port: PackedPort, tree: SourceTree, tower: TowerSlice) -> bool:
    """Whether the tower has the attribute of `pixels.dtype`, such as `self.visual.input_norm.input_dtype`.

    The tower's attribute alone is not enough: 0.30 has an `input_norm` without an `input_dtype`.
    """
    path = port.pixels.dtype.split(".") if port.pixels.dtype else []
    if len(path) != 4 or path[1] != port.tower:
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


def _keep_model_config(tree: SourceTree, model: ModelAnchor, family: Family) -> tuple[str, ReplaceMethod]:
    """`self.model_config = vllm_config.model_config` after `self.config = ...` in the `__init__` that the class runs.

    Gives the file of that `__init__`, which may be a base's, with the edit.
    """
    found = _configuring_init(family)
    if found is None:
        raise DiagnosticError(
            Diagnostic(
                "VCG419",
                f"{model.class_name} keeps no configuration to ask for the number of frames",
                tree.span(model.path, model.line),
                "give budget.frames as an expression instead of a method of the processing info",
            )
        )
    path, owner, init, anchor = found
    lines = tree.read(path).splitlines()
    indentation = " " * anchor.col_offset
    first = min([init.lineno, *(node.lineno for node in init.decorator_list)])
    body = lines[first - 1 : anchor.end_lineno]
    rest = lines[(anchor.end_lineno or anchor.lineno) : init.end_lineno]
    source = "\n".join([*body, f"{indentation}self.model_config = vllm_config.model_config", *rest])
    return path, ReplaceMethod(owner.name, "__init__", textwrap.dedent(source) + "\n")


def _configuring_init(family: Family) -> tuple[str, ast.ClassDef, FunctionNode, ast.stmt] | None:
    """The nearest `__init__` that keeps the configuration: its file, class, itself and the statement that does.

    A class whose `__init__` does not hand on to that of its base ends the search.
    """
    for path, owner in family:
        init = find_method(owner, "__init__")
        if init is None:
            continue
        anchor = next((node for node in init.body if _sets(node, "config")), None)
        if anchor is not None:
            return path, owner, init, anchor
        if not any(isinstance(node, ast.Expr) and "super().__init__(" in ast.unparse(node) for node in init.body):
            return None
    return None


def lineage(tree: SourceTree, path: str, class_name: str) -> Family:
    """A class and its bases in the tree, the nearest first, each with its file."""
    from scaffold.tower.source import Program

    program = Program(tree)
    module = program.module(path)
    assert module is not None, "read before"
    return tuple((home.file, node) for home, node in program.lineage((module, _class(tree, path, class_name))))


def _class(tree: SourceTree, path: str, name: str) -> ast.ClassDef:
    found = find_class(tree.parse(path), name)
    assert found is not None, f"{path} has no {name}, which was found before"
    return found


def _assigns(owner: ast.ClassDef, attribute: str) -> bool:
    """Whether a method of the class sets `self.ATTRIBUTE`, or the class defines it."""
    return any(
        _sets(node, attribute) or (isinstance(node, ast.FunctionDef) and node.name == attribute)
        for node in ast.walk(owner)
    )


def _sets(node: ast.AST, attribute: str) -> bool:
    return any(self_attribute(target) == attribute for target in assigned_to(node))
