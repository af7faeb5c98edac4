"""`init` of a run that it does not make: with a known draft, or with a layout that one model fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml
from changed_ports import path_of

import scaffold.draft
import scaffold.draft.drafting
import scaffold.verify.numeric
from scaffold.draft import Candidate, Draft
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Sheet
from scaffold.watch import Batch, Field, Recording

Patch = Callable[[object, str, object], None]

#: What the command itself drafts, and videos.
_OTHERS = ("schema", "model.", "layout", "integration.", "modalities.video.")
#: A run of which nothing but its inputs is told.
RUN = Recording(
    module="",
    class_name="",
    configuration={},
    basis=(),
    guessed=(),
    numbers={},
    placeholders={},
    repeated=(),
    batches=(Batch("image", (), (), (Field("pixel_values", "image", "batched", (), 0, False),), (), (), ()),),
    missing={},
)


def draft_is(model: str, patch: Patch = setattr) -> None:
    """From now on `init` drafts this descriptor, a shipped one or one for tests, whatever model it is asked for."""
    draft = Draft(model, path_of(model).read_text("utf-8"), (), (), ())
    patch(scaffold.verify.numeric, "record_run", lambda *_, **__: RUN)
    for name in ("draft_descriptor", "interview"):
        patch(scaffold.draft, name, lambda *_, **__: draft)


def tiles_fit(patch: Patch = setattr, candidates: tuple[str, ...] = ("self.num_image_token",)) -> None:
    """From now on a run shows `init` all of InternVL's descriptor but the tokens of a tile."""
    values = dict(_flat(yaml.safe_load(path_of("internvl").read_text("utf-8"))))

    def draft(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
        for key, value in values.items():
            if not key.startswith(_OTHERS) and key != "let.k":
                sheet.put(key, value, subject.place)
        known = tuple(Candidate(one, "set by the model", subject.place) for one in candidates)
        sheet.ask("let.k", "the tokens of one tile", known)
        return True

    patch(scaffold.verify.numeric, "record_run", lambda *_, **__: RUN)
    patch(scaffold.draft.drafting, "_LAYOUTS", (("tiles", "whole tiles", draft),))


def nothing_fits(patch: Patch = setattr) -> None:
    """From now on no layout fits a run, for a reason of its own each."""

    def draft(reason: str) -> Callable[..., bool]:
        def refuse(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
            sheet.refuse(subject.tree, subject.place, reason)
            return False

        return refuse

    patch(scaffold.verify.numeric, "record_run", lambda *_, **__: RUN)
    layouts = (("packed", "", draft("no rows")), ("rows", "", draft("no offsets")))
    patch(scaffold.draft.drafting, "_LAYOUTS", layouts)


def _flat(values: Mapping[str, Any], path: str = "") -> Any:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", [str(part) for part in value] if isinstance(value, list) else value
