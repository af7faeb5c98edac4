"""Which descriptor of a model comes with the tool."""

from __future__ import annotations

import shlex

from scaffold.descriptor import load_descriptor, shipped_names
from scaffold.diagnostics import Diagnostic, Severity
from scaffold.draft.locate import locate
from scaffold.protocol.tree import SourceTree
from scaffold.tower.source import Program


def find_shipped(tree: SourceTree, reference: str, target: str) -> Diagnostic | None:
    """That a descriptor of a model, or of the nearest of its bases that has one, comes with the tool (VCG488).

    `target` is the tree as `--vllm` names it, for the command that the message gives. Raises what `locate` raises:
    VCG480 to VCG482.
    """
    program = Program(tree)
    model = locate(tree, program, reference)
    ports = [load_descriptor(name) for name in shipped_names()]
    for module, cls in program.lineage(model.owner):
        own = cls is model.owner[1]
        for port in ports:
            if f"{port.module.replace('.', '/')}.py" != module.file or model.class_name in port.model.optout:
                continue
            if port.class_name == cls.name or (own and port.architecture in model.architectures):
                base = f", a base of {model.class_name}" if not own else ""
                return Diagnostic(
                    "VCG488",
                    f"the descriptor `{port.name}` comes with the tool and ports {port.class_name}{base}",
                    help=f"`vitcg-scaffold plan {port.name} --vllm {shlex.quote(target)}` needs no draft",
                    severity=Severity.INFO,
                )
    return None
