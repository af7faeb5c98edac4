"""Reads the convolutions of a model: their strides, and how many positions they leave of a square image."""

from __future__ import annotations

from scaffold.draft.objects import Objects
from scaffold.draft.steps import PartCall
from scaffold.draft.values import Items, Made, Op, Plain, Term, inputs_of

_NAMES = ("Conv2d", "Conv2dLayer")


def is_convolution(value: Term | None) -> bool:
    name = value.owner[1].name if isinstance(value, Made) else value.name if isinstance(value, Op) else ""
    return name.rpartition(".")[2] in _NAMES


def stride_of(value: Term) -> Term | None:
    """The stride of a convolution whose kernel is as large."""
    given = _sides(value)
    stride = given.get("stride")
    return stride if stride is not None and stride == given.get("kernel_size") else None


def positions(objects: Objects, root: PartCall, key: str, side: str, patch: tuple[str, str]) -> str | None:
    """How many positions the convolutions behind an embedding of patches leave of an image, as an expression.

    `key` is the input of square images, `side` names their side, and `patch` is the name of a patch's side with its
    path. None where nothing is behind the embedding, where a convolution runs more than once, or where the model does
    not keep its sizes.
    """
    steps = (step for step in root.walk() if step.module and key in inputs_of(step.units or Plain(None)))
    values = [value for step in steps if is_convolution(value := objects.value(step.path))]
    if len(values) < 2 or len(values) != len(set(map(id, values))):
        return None
    first, *others = filter(None, values)
    if objects.text(stride_of(first)) != patch[1]:
        return None
    text, more = f"{side} // {patch[0]}", 0
    for value in others:
        behind = _behind(objects, value, text, more)
        if behind is None:
            return None
        text, more = behind
    return f"({_plus(text, more)}) ** 2"


def _behind(objects: Objects, convolution: Term, side: str, more: int) -> tuple[str, int] | None:
    """The side of what a convolution makes of a square of `side + more`: a text and what is added to it."""
    given = _sides(convolution)
    padding, kernel = given.get("padding", Plain(0)), given.get("kernel_size")
    stride = objects.text(given.get("stride", Plain(1)))
    if not isinstance(padding, Plain) or not isinstance(kernel, Plain) or stride is None:
        return None
    if not isinstance(padding.value, int) or not isinstance(kernel.value, int):
        return None
    more += 2 * padding.value - kernel.value
    if stride.isdigit():  # n // s + 1 is (n + s) // s
        return f"({_plus(side, more + int(stride))}) // {stride}", 0
    return f"({_plus(side, more)}) // {stride}", 1


def _plus(text: str, more: int) -> str:
    return f"{text} {'+' if more > 0 else '-'} {abs(more)}" if more else text


def _sides(value: Term) -> dict[str, Term]:
    assert isinstance(value, (Made, Op)), "a convolution"
    return {name: _side(part) for name, part in value.keywords}


def _side(value: Term) -> Term:
    """The side of a square: `n` of `(n, n)`."""
    square = isinstance(value, Items) and len(value.values) == 2 and value.values[0] == value.values[1]
    return value.values[0] if square and isinstance(value, Items) else value
