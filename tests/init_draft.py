"""`init` with a known draft, of a run that it does not make: for tests of what it does with any draft."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from changed_ports import path_of

import scaffold.draft
import scaffold.verify.numeric
from scaffold.draft import Draft


def draft_is(model: str, patch: Callable[[object, str, object], None] = setattr) -> None:
    """From now on `init` drafts this descriptor, a shipped one or one for tests, whatever model it is asked for."""
    draft = Draft(model, path_of(model).read_text("utf-8"), (), (), ())
    patch(scaffold.verify.numeric, "record_run", lambda *_, **__: SimpleNamespace(batches=(1,)))
    for name in ("draft_descriptor", "interview"):
        patch(scaffold.draft, name, lambda *_, **__: draft)
