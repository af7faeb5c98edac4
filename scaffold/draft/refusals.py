"""Why a model gets no draft."""

from __future__ import annotations

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.sheet import SourceLine
from scaffold.protocol.tree import SourceTree


class Beyond(DiagnosticError):
    """A model does what no layout expresses (VCG483)."""


def beyond(tree: SourceTree, place: SourceLine | None, reason: str) -> Beyond:
    """The refusal of a model that no layout expresses."""
    return Beyond(
        Diagnostic(
            "VCG483",
            f"the model is beyond the layouts: {reason}",
            tree.span(place.file, place.line) if place else None,
            "change this statement if the model is yours; `vitcg-scaffold explain VCG483` names the other ways",
        )
    )
