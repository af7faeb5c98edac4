"""vLLM's registry of models: which architecture is which class. Light, since the shell's completion reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from scaffold.protocol.tree import SourceTree
from scaffold.syntax import assigned_to

REGISTRY = "vllm/model_executor/models/registry.py"
MULTIMODAL = "_MULTIMODAL_MODELS"


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """One line of the registry; `table` is the name of its dictionary."""

    module: str
    class_name: str
    line: int
    table: str

    @property
    def dotted(self) -> str:
        return self.module if self.module.startswith("vllm.") else f"vllm.model_executor.models.{self.module}"


def read_registry(tree: SourceTree) -> dict[str, RegisteredModel]:
    """Architectures by name. One that is in several tables is that of the multimodal models, or the first."""
    known: dict[str, RegisteredModel] = {}
    for table, key, value in registry_lines(tree):
        if isinstance(value, ast.Tuple) and len(value.elts) == 2:
            module, cls = (part.value if isinstance(part, ast.Constant) else None for part in value.elts)
            entry = RegisteredModel(str(module), str(cls), key.lineno, table)
            if table == MULTIMODAL or str(key.value) not in known:
                known[str(key.value)] = entry
    return known


def registry_lines(tree: SourceTree) -> Iterator[tuple[str, ast.Constant, ast.expr]]:
    """Every line of the registry's dictionaries: the dictionary's name, the architecture, and what stands for it."""
    for node in tree.parse(REGISTRY).body:
        table = _registry_name(node)
        if table is None or not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Dict):
            continue
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            if isinstance(key, ast.Constant):
                yield table, key, value


def _registry_name(node: ast.stmt) -> str | None:
    names = [target.id for target in assigned_to(node) if isinstance(target, ast.Name)]
    return names[0] if names and names[0].endswith("_MODELS") else None


def multimodal_names(tree: SourceTree) -> list[str]:
    """The architectures that the registry lists as multimodal, as it says them: no class is looked at."""
    return [name for name, entry in read_registry(tree).items() if entry.table == MULTIMODAL]
