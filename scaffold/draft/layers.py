"""The layer that gets the pixels first, however many modules pass them on to it."""

from __future__ import annotations

from scaffold.draft.evaluate import Evaluator
from scaffold.draft.modules import Part, parameters, part_of
from scaffold.draft.values import Input, SourceLine, inputs_of
from scaffold.tower.source import Owner, Program

_PIXELS = "pixels"


def first_layer(program: Program, owner: Owner, part: Part, data: str | None = None) -> str:
    """Where pixels are used first, to be looked at: the innermost `forward` in the tree that gets them.

    `part` is what a class `owner` has; `data` is the parameter of the part's own `forward` that holds the pixels, its
    first one by default. Empty where the part's class is not in the tree.
    """
    place, what = None, ""
    cls, seen = part.cls or program.attribute_class(owner, part.name), set[int]()
    while cls is not None and id(cls[1]) not in seen:
        seen.add(id(cls[1]))
        method, names = program.method(cls, "forward"), parameters(program, cls, "forward")
        if method is None or not names:
            break
        place, what = (
            SourceLine(method[0].file, method[2].lineno),
            f"the first layer that gets the pixels, in {cls[1].name}",
        )
        evaluator = Evaluator(program, cls)
        evaluator.variables("forward", **{data or names[0]: Input(_PIXELS)})
        call = next((call for call in evaluator.trace.calls if _PIXELS in inputs_of(call)), None)
        if call is None:
            break
        place = call.place or place
        path = call.name.removeprefix("self.")
        inner = part_of(program, cls, path) if "." not in path else None
        cls, data = inner.cls if inner is not None else None, None
    return f"{place}: {what}" if place is not None else ""
