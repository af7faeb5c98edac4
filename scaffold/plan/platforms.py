"""The class that vLLM loads on ROCm in the place of the ported one: a package may choose its class by the platform.

Encoder graphs and vLLM's test of them are for CUDA and ROCm. So a port of one class alone says where it has none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scaffold.protocol import find_model
from scaffold.protocol.registry import REGISTRY, read_registry
from scaffold.protocol.tree import module_file
from scaffold.syntax import import_source
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import SourceTree

#: The module of vLLM's platforms, its name for the one that it runs on, and the question that a package asks of it.
PLATFORMS, PLATFORM = "vllm.platforms", "current_platform"
IS_ROCM = f"{PLATFORM}.is_rocm()"


def class_on_rocm(port: AnyPort, tree: SourceTree) -> str | None:
    """The dotted name of the class that vLLM loads on ROCm instead, if that one has no encoder graphs.

    None where it loads the ported class there, too, or one that inherits the port or has an implementation of its own.
    """
    program = Program(tree)
    ported = program.owner(find_model(tree, port.module, port.class_name).path, port.class_name)
    for entry in (read_registry(tree) if tree.exists(REGISTRY) else {}).values():
        file = module_file(tree, entry.dotted) if entry.class_name == port.class_name else None
        for dotted in _on_rocm(tree, file, entry.class_name) if file is not None else ():
            other = program.class_at(dotted)
            if other is None or program.class_at(f"{entry.dotted}.{entry.class_name}") != ported:
                continue
            inherits = any(node is ported[1] for _, node in program.lineage(other))
            if not inherits and program.method(other, "get_encoder_cudagraph_config") is None:
                return dotted
    return None


def _on_rocm(tree: SourceTree, file: str, class_name: str) -> Iterator[str]:
    """The classes that a package imports under this name on ROCm alone."""
    for choice in (node for node in ast.walk(tree.parse(file)) if isinstance(node, ast.If)):
        test = ast.unparse(choice.test)
        chosen = choice.body if test == IS_ROCM else choice.orelse if test.endswith(f"not {IS_ROCM}") else []
        for node in chosen:
            if isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names if (alias.asname or alias.name) == class_name]
                yield from (f"{import_source(file, node)}.{name}" for name in names)
