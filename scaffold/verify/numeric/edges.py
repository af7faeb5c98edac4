"""Sizes at the edges of what a model's processor makes, found by running the release's own arithmetic.

A recipe says where the arithmetic is (`Recipe.edge_sessions`); here it is run over image sizes, scaled to the lab's
tiny patches and budgets, and turned into sessions. Every case names its source: `file:line` of the function or default
that an edge is from, or the budgets themselves.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scaffold.verify.numeric.recipes.base import Case, Item, Session
from scaffold.verify.numeric.recipes.calls import in_turn

#: Source of an edge that only budgets and limits make.
BUDGETS = "budgets"
#: Packages whose files are cited from their own name on.
_PACKAGES = ("vllm", "transformers")


def where(thing: Any) -> str:
    """`file:line` of a function or class, or of the code that it wraps."""
    with suppress(TypeError, OSError):
        thing = inspect.unwrap(thing)
        file, line = inspect.getsourcefile(thing) or "", inspect.getsourcelines(thing)[1]
        parts = file.split("/")
        for package in _PACKAGES:
            if package in parts:
                last = len(parts) - 1 - parts[::-1].index(package)
                return f"{'/'.join(parts[last:])}:{line}"
        return f"{parts[-1]}:{line}"
    return "a function without source"


def line_of(module: Any, text: str) -> str:
    """`file:line` of the first line of a module that holds `text`; of the module where none does."""
    lines, _ = inspect.getsourcelines(module)
    number = next((number for number, line in enumerate(lines, 1) if text in line), 1)
    return f"{where(module).rpartition(':')[0]}:{number}"


def info_of(host: Any) -> Any:
    """The class of the release's processing information for a host class."""
    return host._processor_factory.info


def function_of(host: type, *names: str) -> Any:
    """The first of these global functions in the modules of a host's processing information, nearest class first."""
    info = info_of(host)
    for owner in (host, *info.__mro__):
        module = vars(sys.modules[owner.__module__])
        for name in names:
            if callable(module.get(name)):
                return module[name]
    raise LookupError(f"{info.__name__} uses none of {', '.join(names)}")


# -- grids of patches --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GridRange:
    """The grids that a resize function makes of images, in merged tokens: `(height, width)`.

    `ratio` is the longest side over the shortest, `least` the default minimum of tokens, `resized` gives the grid of an
    image with a minimum and a maximum of tokens.
    """

    ratio: int
    least: int
    resized: Callable[[int, int, int, int], tuple[int, int]]
    source: str


def grid_range(resize: Any) -> GridRange:
    """Run `smart_resize` of any release: with or without a number of frames, refusing long images or cutting them."""
    parameters = inspect.signature(resize).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    factor = defaults["factor"]
    frames = defaults.get("temporal_factor", 2) if "num_frames" in parameters else 1
    given = {"num_frames": frames} if "num_frames" in parameters else {}
    pixels = frames * factor**2

    def resized(height: int, width: int, least: int, most: int) -> tuple[int, int]:
        h, w = resize(height=height, width=width, min_pixels=least * pixels, max_pixels=most * pixels, **given)
        return h // factor, w // factor

    ratio = 1
    for wanted in range(2, 1001):
        with suppress(ValueError):
            h, w = resized(factor, wanted * factor, 1, 10**6)
            ratio = max(ratio, w // h)
    least = -(-defaults["min_pixels"] // pixels)
    return GridRange(ratio, least, resized, where(resize))


def grid_sessions(modalities: Sequence[str], merge: int, found: GridRange, frames_source: str) -> tuple[Session, ...]:
    """Managers and calls at the edges of grids `(t, h, w)` in patches."""
    items, frames, small, large = 4, 8, 8, 64

    def grid(height: int, width: int, t: int = 1) -> Item:
        return t, height * merge, width * merge

    def images(name: str, source: str, *batches: Sequence[Item]) -> Iterable[Case]:
        for number, batch in enumerate(batches, 1):
            yield Case(f"{name}, call {number}", "image", tuple(batch), group=f"edge: {name}", source=source)

    def videos(name: str, *batches: Sequence[Item], beyond: bool = False) -> Iterable[Case]:
        for number, batch in enumerate(batches, 1):
            label = f"{name}, call {number}"
            yield Case(label, "video", tuple(batch), beyond, group=f"edge: {name}", source=frames_source)

    def resized(sizes: Iterable[tuple[int, int]], minimum: int) -> list[Item]:
        """The items that images of these sizes become; a release may refuse some."""
        grids = []
        for size in sizes:
            with suppress(ValueError):
                grids.append(grid(*found.resized(*size, minimum, large)))
        return grids

    (one,) = resized([(1, 1)], 1)
    least = set(resized([(1, 1), (1, 150), (150, 1)], found.least))
    # The short side cannot shrink below one token: a result of the longest ratio exceeds the processor's own maximum.
    side = 10**4
    beyond = resized([(side, found.ratio * side), (found.ratio * side, side)], 1)
    cases = [
        *images("the smallest image", found.source, *([item] for item in [one, *sorted(least - {one})])),
        *images("a budget exactly, as strips and as a square", BUDGETS,
                *([grid(*size)] for size in ((1, small), (small, 1), (1, large), (large, 1), (8, large // 8)))),
        *images("one token above a budget", BUDGETS,
                *([grid(*size)] for size in ((1, small + 1), (3, 3), (1, large + 1), (large + 1, 1), (5, 13)))),
        *images("as many of one token as slots, and one more", BUDGETS,
                [one] * items, [one] * (items + 1), [grid(1, large - items + 1), *[one] * (items - 1)],
                [*[one] * (items - 1), grid(1, large - items + 2)]),
        *images("above all budgets by its ratio alone", found.source, *([item] for item in beyond)),
    ]  # fmt: skip
    if "video" in modalities:
        video = [
            *videos("a video of one token", [grid(1, 1)]),
            *videos("as many frames of one token as a graph holds", [grid(1, 1, frames)],
                    [grid(1, 1, frames - 3), grid(1, 1, 3)], [grid(1, 1, 2)] * items),
            *videos("one frame more than a graph holds", [grid(1, 1, frames + 1)],
                    [grid(1, 1, frames - 3), grid(1, 1, 4)], beyond=True),
            *videos("a budget exactly, with every frame", [grid(1, large // frames, frames)],
                    [grid(large // frames, 1, frames)]),
            *videos("a budget and one token", [grid(1, (large + 1) // 5, 5)]),
        ]  # fmt: skip
        cases = [*in_turn(cases, video)]
    longest = found.ratio
    strips = list(
        images(
            f"the longest image, {longest} to 1", found.source,
            [grid(1, longest)], [grid(longest, 1)], [one, grid(longest // 2, 1), grid(1, longest // 2 - 1)], [one],
        )
    )  # fmt: skip
    limit = frames if "video" in modalities else 0
    # The manager checks no batch against the user's limit: the tokens that its videos claim bound its frames.
    limited = list(
        videos(
            "more frames than the user's limit", [grid(1, 1, 4)], [grid(1, 1, 18)], [grid(1, 1, 2)] * 9,
            [grid(1, 2, 9), grid(1, 1, 9)], [grid(1, 1)], beyond=True,
        )
    )  # fmt: skip
    by_user = (Session("edges: budget 144; 9 items; 3 frames", (144,), 9, 3, tuple(limited)),)
    return (
        Session(
            f"edges: budgets {small}, {large}; {items} items; {limit} frames",
            (small, large),
            items,
            limit,
            tuple(cases),
        ),
        Session(f"edges: budget {longest}; 3 items", (longest,), 3, limit, tuple(strips)),
        *(by_user if limit else ()),
    )


# -- tiles -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TileRange:
    """The numbers of tiles that a processor makes of one item, in ascending order. `source` is `file:line`."""

    modality: str
    counts: tuple[int, ...]
    source: str


def tile_sessions(
    found: Sequence[TileRange], tokens: Callable[[int], int], each: int, *, several_paths: bool = False
) -> tuple[Session, ...]:
    """Managers and calls at the edges of numbers of tiles.

    `tokens` gives those of an item and `each` those of a tile. With `several_paths` an item above a budget may still be
    replayed on one of them; such a model's tiles are large, so there each edge is one call.
    """
    most, items = max(kind.counts[-1] for kind in found), 4
    smallest = max(tokens(min(kind.counts[0] for kind in found)), items)
    whole, short = [], []
    for kind in found:
        low, top = kind.counts[0], kind.counts[-1]
        next_lower = kind.counts[-2]

        def calls(name: str, source: str, *batches: Sequence[int], modality: str = kind.modality) -> Iterable[Case]:
            for number, batch in enumerate(batches, 1):
                label = f"{name}, call {number}"
                yield Case(label, modality, tuple(batch), several_paths, group=f"edge: {name}", source=source)

        largest = [[top], [low, top]]
        numbers = [kind.counts, kind.counts[::-1]]
        above = [[top], [low, top, low]]
        whole += [
            *calls("the smallest item", kind.source, [low]),
            *calls(f"the largest item, {top} tiles", kind.source, *largest[-1 if several_paths else 0 :]),
            *calls("as many smallest items as slots, and one more", BUDGETS, [low] * items, [low] * (items + 1)),
            *calls("numbers of tiles that the processor makes", kind.source, *([] if several_paths else numbers)),
            *calls("the smallest item after the largest", kind.source, [low]),
        ]
        short += [
            *calls("one token above the largest budget", BUDGETS, *above[-1 if several_paths else 0 :]),
            *calls("the largest item that fits an uneven budget", BUDGETS, [next_lower], [low]),
        ]
    frames = most if any(kind.modality == "video" for kind in found) else 0
    full = tokens(most)
    less = each * most - 1 if several_paths else full - 1
    return (
        Session(f"edges: budgets {smallest}, {full}; {items} items", (smallest, full), items, frames, tuple(whole)),
        Session(f"edges: budgets {smallest}, {less}; {items} items", (smallest, less), items, frames, tuple(short)),
    )
