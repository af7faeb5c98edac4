"""One run of `fix`: the rules at their places, the lab on the tree with each, and the changes that come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scaffold.changes import FileChange
from scaffold.diagnostics import Severity
from scaffold.fix.proof import Proven, prove_repairs
from scaffold.fix.repair import Repair, apply_repairs, heirs_of
from scaffold.fix.rules import find_repairs
from scaffold.verify.numeric import NumericReport, Tail, Watch, check_numerics_all, keep_warm
from scaffold.verify.style import check_style
from scaffold.workflow import RefusedResult, numeric_requests, tails_of

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import SourceTree


@dataclass(frozen=True)
class Fix:
    """The proven repairs of a model's own port in one tree, and the files with them.

    `heirs` are other classes whose port runs the repaired methods. The lab does not run these.
    """

    port: AnyPort
    tree: SourceTree
    proven: Proven
    changes: tuple[FileChange, ...]
    heirs: tuple[str, ...]


def fix_port(
    port: AnyPort,
    tree: SourceTree,
    *,
    tails: Sequence[Tail] = (),
    recipe: str | None = None,
    with_open: bool = False,
    watch: Watch | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Fix:
    """Run the tree's own port and find the repairs that are proven. It runs the tree's code, and writes nothing to it.

    `tails` are attention kernels, all of the model's by default. The tree's eager results are the oracle: each repair
    is laid over the tree and compared with it. `with_open`: also write repairs that an open pull request of vLLM has.
    Raises `DiagnosticError` where the port cannot be run, RefusedResult where the tree's own ruff refuses the files.
    """
    requests = numeric_requests(port, tree, tails=tails or tails_of(port, tree), as_is=True, recipe=recipe)

    def run(repairs: Sequence[Repair]) -> tuple[NumericReport, ...]:
        overlay = {change.path: change.after or b"" for change in apply_repairs(tree, repairs)}
        options = replace(requests[0].options, whole_layers=bool(repairs))
        return check_numerics_all([replace(one, overlay=overlay, options=options) for one in requests], watch=watch)

    with keep_warm():
        repairs = find_repairs(tree, port.module, port.class_name)
        proven = prove_repairs(repairs, run, with_open=with_open, tell=tell)
    changes = apply_repairs(tree, proven.repairs)
    found = [
        problem
        for change in changes
        for problem in check_style(
            None if change.before is None else change.before.decode(),
            (change.after or b"").decode(),
            change.path,
            tree.root,
        )
    ]
    if any(problem.severity is Severity.ERROR for problem in found):
        raise RefusedResult(found, changes)
    return Fix(port, tree, proven, changes, heirs_of(tree, port.module, port.class_name, proven.repairs))
