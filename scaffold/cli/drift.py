"""A generated port that a tree has in another state (VCG511): what to do with an edit, and with an earlier port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scaffold.cli.options import command_line
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.workflow import find_drift

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree
    from scaffold.workflow import PreparedPort


def drift(
    prepared: PreparedPort, tree: SourceTree, descriptor: str, target: Sequence[str], severity: Severity
) -> list[Diagnostic]:
    """The difference, if there is one, with the ways out. `target` are the words that name the tree."""
    found = find_drift(prepared, tree)
    if found is None:
        return []
    file = prepared.package[0].path
    write = command_line("new", descriptor, *target, "--replace")
    prove = command_line("verify", descriptor, *target, "--as-is")
    ways = f"`{prove}` proves the tree's, `{write}` writes the generated one; `git checkout {file}` drops a new edit"
    return [replace(found, help=ways, severity=severity)]


def refuse_drift(prepared: PreparedPort, tree: SourceTree, descriptor: str, target: Sequence[str]) -> None:
    """Raise VCG511 for a tree with another state of the port."""
    if found := drift(prepared, tree, descriptor, target, Severity.ERROR):
        raise DiagnosticError(found)
