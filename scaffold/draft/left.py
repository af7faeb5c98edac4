"""Tensors that vLLM's loader leaves on the host: no graph may read them, and a draft holds no call that does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Sheet, SourceLine
from scaffold.watch import Batch, Left, Recording

#: Keys of a sheet with calls or parts that a graph holds.
_HELD = ("forward.call", "forward.encoder", "forward.loop", "forward.through", "explicit.call")
_PATH = re.compile(r"self(?:\.\w+)+")


def read_inside(batches: Iterable[Batch], held: str) -> Left | None:
    """A tensor that is left on the host and that is read inside a call or part which this text names, or its layers."""
    layers = "|".join(map(re.escape, _PATH.findall(held)))
    inside = re.compile(rf"({layers})(\.\d+(\..*)?)?") if layers else None
    found = (left for batch in batches for left in batch.left if inside and any(map(inside.fullmatch, left.inside)))
    return next(found, None)


def refuse_left(subject: Subject, recording: Recording, sheet: Sheet) -> None:
    """Refuse a draft whose graphs would read such a tensor (VCG483)."""
    tower = f"self.{sheet.value('model.tower')}" if sheet.has("model.tower") else ""
    for held in filter(None, (tower, *map(sheet.value, _HELD))):
        left = read_inside(_drafted(recording, sheet), held)
        if left is not None:
            what = f"`{held}` reads `{left.of}`, which vLLM's loader leaves on the host, and a graph may not"
            sheet.refuse(subject.tree, _place(subject, left), what)
            return


def left_out(subject: Subject, recording: Recording, sheet: Sheet) -> Iterator[Diagnostic]:
    """Say of each such tensor that the drafted graphs end before it is read, or begin after it (VCG468)."""
    for left in {one.of: one for batch in _drafted(recording, sheet) for one in batch.left}.values():
        place = _place(subject, left)
        yield Diagnostic(
            "VCG468",
            f"vLLM's loader leaves `{left.of}` on the host, and the model moves what it reads of it: no graph of this "
            "draft holds that",
            subject.tree.span(place.file, place.line),
            "for a graph that holds it, let the model make the tensor with `torch.as_tensor`: it follows the loader's "
            "device",
            Severity.WARNING,
        )


def _drafted(recording: Recording, sheet: Sheet) -> Sequence[Batch]:
    return [*chain.from_iterable(map(recording.of, sheet.pixels))] or recording.batches


def _place(subject: Subject, left: Left) -> SourceLine:
    """The line that makes the tensor, or the model's class where that is in another package."""
    file, _, line = left.made.rpartition(":")
    return SourceLine(file, int(line)) if line.isdigit() and subject.tree.exists(file) else subject.place
