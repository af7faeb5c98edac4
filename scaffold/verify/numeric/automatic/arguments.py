"""Other values of a processor's arguments, which a server or a request may give (`mm_processor_kwargs`).

Their names and values come from the signatures of the processor and of its parts. Whether a value is accepted, and
changes anything, shows when it is tried.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

#: Not what decides how many units or patches an item has; geometry is the tower's.
_FIXED = re.compile(
    r"do_(resize|rescale|normalize|convert_rgb|center_crop|pad|sample_frames)|return_.*|disable_.*|input_.*|default_.*"
    r"|.*(patch_size|merge_size|image_size|token|_id|_ids|_mean|_std|factor|ratio.*|format|device|dtype|seq_length)"
)
_COUNT = re.compile(r".*(num|crops|tiles|patch|patches|slices?|splits?|frames)(_.*)?")
_BOUND = re.compile(r"(?:.*_)?(min|max|shortest|longest)(?:_.*)?")
#: A number below it is a count or a side, one above it an area.
_AREA = 10_000


def other_arguments(processor: Any, modality: str, pixels: int) -> Iterator[Mapping[str, Any]]:
    """Arguments with one value that is not today's: switches first, then counts, then bounds of sizes.

    `pixels` are those of an image in the middle of what is tried: bounds above and below it change most.
    """
    known = dict(_arguments(processor, modality))
    switches = [(name, value) for name, (kind, value) in known.items() if kind is bool]
    numbers = [(name, value) for name, (kind, value) in known.items() if kind is int]
    numbers.sort(key=lambda entry: _COUNT.fullmatch(entry[0]) is None)
    for name, value in switches:
        yield {name: not value}
    for name, value in numbers:
        for other in _others(name, value, pixels):
            yield {name: other}
    size = known.get("size", (None, None))[1]
    for name, value in (size or {}).items():
        for other in _others(name, value, pixels):
            yield {"size": {**size, name: other}}


def _arguments(processor: Any, modality: str) -> Iterator[tuple[str, tuple[type | None, Any]]]:
    """Name, kind and today's value of each argument that may decide something."""
    whole = processor.info.get_hf_processor()
    part = getattr(whole, f"{modality}_processor", None) or whole
    said: dict[str, tuple[Any, Any]] = {}
    for call in (processor.info.get_hf_processor, type(whole).__init__, getattr(part, "preprocess", None), type(part)):
        for name, parameter in _parameters(call).items():
            said[name] = parameter.annotation, None if parameter.default is parameter.empty else parameter.default
    for name, annotation in getattr(getattr(part, "valid_kwargs", None), "__annotations__", {}).items():
        said[name] = annotation, None
    for name, (annotation, default) in said.items():
        if _FIXED.fullmatch(name):
            continue
        value = getattr(part, name, default)
        if name == "size":
            yield name, (None, _sides(value))
        elif isinstance(value, bool) or (value is None and _is(annotation, "bool")):
            yield name, (bool, bool(value))
        elif _BOUND.fullmatch(name) if value is None and _is(annotation, "int") else _is_number(name, value):
            yield name, (int, value)


def _is_number(name: str, value: Any) -> bool:
    return isinstance(value, int) and bool(_BOUND.fullmatch(name) or _COUNT.fullmatch(name))


def _parameters(call: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}


def _is(annotation: Any, name: str) -> bool:
    """Whether an argument may be of this type; its annotation is a type, a union or their text."""
    text = getattr(annotation, "__name__", None) if isinstance(annotation, type) else str(annotation)
    return name in re.findall(r"\w+", text or "")


def _sides(size: Any) -> dict[str, int]:
    """The bounds in a size. One with a height and a width is the tower's."""
    keys = ("shortest_edge", "longest_edge", "min_pixels", "max_pixels")
    values = {key: size.get(key) if isinstance(size, dict) else getattr(size, key, None) for key in keys}
    return {key: value for key, value in values.items() if isinstance(value, int)}


def _others(name: str, value: int | None, pixels: int) -> tuple[int, ...]:
    """Lower numbers of what is counted or bounded above, higher ones of what is bounded below."""
    bound = _BOUND.fullmatch(name)
    lower = bound is None or bound[1] in ("max", "longest")
    if value is None or value >= _AREA:
        return (pixels // 4, pixels // 2) if lower else (pixels * 4, pixels * 2)
    return tuple(other for other in ((value // 2, value // 4) if lower else (value * 4, value * 2)) if other > 0)
