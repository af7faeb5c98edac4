"""What the tests of protocols and releases share: a call that ends in one diagnostic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaffold.diagnostics import Diagnostic, DiagnosticError, Exit


def failure(call: Callable[..., object], *arguments: object, code: str | None = None, **keywords: object) -> Diagnostic:
    """Its only diagnostic, which has this code; the exit code is that of a target, or of the disk."""
    with pytest.raises(DiagnosticError) as caught:
        call(*arguments, **keywords)
    (diagnostic,) = caught.value.diagnostics
    assert code in (None, diagnostic.code), diagnostic
    assert diagnostic.exit is caught.value.exit is (Exit.IO if diagnostic.code.startswith("VCG7") else Exit.TARGET)
    return diagnostic
