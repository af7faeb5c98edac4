"""All static proofs of a run: what must hold before a byte is written, whatever machine this is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic
from scaffold.edit.operations import Edit
from scaffold.verify.conformance import prove_conformance
from scaffold.verify.equivalence import prove_equivalence, prove_idempotence, prove_text_form
from scaffold.verify.style import check_style

if TYPE_CHECKING:
    from scaffold.protocol.profile import ProtocolProfile


@dataclass(frozen=True)
class PlannedFile:
    """One file of a plan with its result. `before` is None for a new file.

    `path` is relative to the tree's root `config_root`. With `class_name` and `profile`, the class must implement the
    protocol, with the class of the module `mixin` if there is one, and but for what bases in the tree have (`given`).
    """

    path: str
    before: str | None
    after: str
    edits: tuple[Edit, ...]
    config_root: Path
    class_name: str | None = None
    profile: ProtocolProfile | None = None
    mixin: str | None = None
    given: frozenset[str] = frozenset()


def verify_changes(planned: Sequence[PlannedFile]) -> tuple[Diagnostic, ...]:
    """Every static proof of every file, in the order of the files. Warnings do not stop a run; errors are `VCG6xx`."""
    with ThreadPoolExecutor() as pool:  # the style check waits for ruff, the proofs do not
        styles = [pool.submit(check_style, file.before, file.after, file.path, file.config_root) for file in planned]
        proofs = [_prove(file) for file in planned]
        return tuple(found for proof, style in zip(proofs, styles, strict=True) for found in (*proof, *style.result()))


def _prove(file: PlannedFile) -> tuple[Diagnostic, ...]:
    found = [*prove_text_form(file.before, file.after, file.path)]
    if any(diagnostic.code == "VCG600" for diagnostic in found):
        return tuple(found)  # without a syntax tree there is nothing to compare
    if file.before is not None:
        found += prove_equivalence(file.before, file.after, file.edits, file.path)
        found += prove_idempotence(file.after, file.edits, file.path)
    if file.class_name is not None and file.profile is not None:
        found += prove_conformance(file.after, file.class_name, file.profile, file.path, file.mixin, file.given)
    return tuple(found)
