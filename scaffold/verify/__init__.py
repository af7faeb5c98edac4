"""Proofs that a planned change is what it claims to be, before anything is written.

`verify_changes` runs the static ones (no vLLM needed); `scaffold.verify.numeric` runs a release's real classes.
"""

from scaffold.verify.conformance import prove_conformance
from scaffold.verify.equivalence import prove_equivalence, prove_idempotence, prove_text_form
from scaffold.verify.static import PlannedFile, verify_changes
from scaffold.verify.style import check_style, format_changed

__all__ = [
    "PlannedFile",
    "check_style",
    "format_changed",
    "prove_conformance",
    "prove_equivalence",
    "prove_idempotence",
    "prove_text_form",
    "verify_changes",
]
