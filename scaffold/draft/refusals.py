"""Why a model gets no draft."""

from __future__ import annotations

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
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


def beyond_context(tree: SourceTree, place: SourceLine, tokens: int) -> Diagnostic:
    """That vLLM chooses no budget which holds an item of an encoder-decoder (VCG467)."""
    return Diagnostic(
        "VCG467",
        f"an item has {tokens} tokens in the recording, and vLLM chooses no budget above the context, which counts the "
        "decoder's tokens alone",
        tree.span(place.file, place.line),
        f"give vLLM budgets: --compilation-config '{{\"encoder_cudagraph_token_budgets\": [{tokens}]}}'",
        Severity.WARNING,
    )
