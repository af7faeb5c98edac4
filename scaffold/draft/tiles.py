"""Drafts the layout `tiles` from a recording: the embeddings of an item are the rows of one call's result.

No code of the model runs behind that call but a split into items, so a port needs no second run of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from scaffold.cut import find_calls
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.descriptor.port import VISUAL
from scaffold.draft.common import put_embeds, sized_by
from scaffold.draft.cut import Site, put_unit, reached_sites, results_of
from scaffold.draft.locate import Subject
from scaffold.draft.numbers import CONFIG, attributes, tokens_of_unit
from scaffold.draft.sheet import Sheet
from scaffold.draft.ways import way_to
from scaffold.watch import Batch, Leaf, Recording

#: Names of attributes with the tokens of a tile, beside those of a cut.
_TOKENS = re.compile(r"\.\w*tokens?_per_(image|tile)$")
#: Axes of a result with a table of rows for each tile.
_TABLES = 3


@dataclass(frozen=True, slots=True)
class _Tiles:
    """A modality: its `pixels` and the number of tiles of each item; `call` gives `tokens` rows of each tile."""

    site: Site
    sizes: str
    call: Call
    tokens: int
    axes: int

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for modalities whose tiles enter alike."""
        return self.call.text, self.tokens, self.axes


def draft_tiles(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """Whether the embeddings are the rows of one call, and something says their number."""
    sites, _ = reached_sites(subject, recording, VISUAL)
    read = ((name, _read(subject, recording.of(name), site)) for name, site in sites.items())
    found = {name: tiles for name, tiles in read if tiles is not None}
    if not found:
        return False
    first = next(iter(found.values()))
    kept = {name: one for name, one in found.items() if one.form == first.form}
    put_unit(subject, recording, first.site.unit, "pixels", first.site.place, sheet)
    tokens = _tokens(recording, first.tokens, sheet)
    if tokens is None:
        return False
    for name, tiles in kept.items():
        at = f"modalities.{name}"
        sheet.put(f"{at}.pixels", tiles.site.pixels, tiles.site.place, why="all of it enters the call")
        sheet.put(f"{at}.sizes", tiles.sizes, why="so many tiles has each item")
        put_embeds(subject, recording.of(name)[0], sheet)
    sheet.put("sizes.columns", ["n"], why=f"an entry of `{first.sizes}`")
    single = tokens == "1"
    if not single:
        sheet.put("let.k", tokens, why=f"rows of a tile: {first.tokens} in the recording")
    sheet.put("item.rows", "n", why=f"`{first.sizes}` tiles an item")
    sheet.put("item.tokens", "n" if single else "n * k", why="the embeddings of each item")
    sheet.put("capture.rows", "b" if single else "b // k", why="as many tiles as fit")
    sheet.put("budget.min", 64 if single else "k")
    sheet.put("budget.why", "Fewer would be few images a batch." if single else "One tile.")
    sheet.put("forward.call", first.call.text, first.site.place, why="the embeddings are its rows, item by item")
    if first.axes == _TABLES:
        sheet.put("forward.flatten", True, why="it gives a table of rows for each tile")
    return True


def _read(subject: Subject, batches: Sequence[Batch], site: Site) -> _Tiles | None:
    """The tiles of a modality, if the embeddings of its items are the rows that one call gives of these, in order."""
    sized = sized_by(batches, site.pixels) if batches[0].kind(site.pixels) == "flat" else []
    if not sized or sized[0][1] or not site.raw or site.padded or site.short:
        return None
    sizes = sized[0][0]
    counts = [leaf.value for batch in batches for leaf in batch.inputs if leaf.at == sizes]
    held = parse_call(site.text)
    for call in (held, *find_calls(subject.tree, way_to(subject, [site.entry], held))):
        results = [leaf for batch in batches if (leaf := _result(batch, call.path)) is not None]
        tables = {leaf.shape[1:-1] for leaf in results}
        tokens = {
            leaf.shape[0] / count if count else -1  # rows of no tile
            for batch, items in zip(batches, counts, strict=True)
            for leaf, count in zip(batch.results, items if isinstance(items, list) else [], strict=False)
            if type(count) is int and (count or leaf.shape[0])
        }
        if len(results) == len(batches) and tables in ({()}, {(int(max(tokens, default=0)),)}):
            rows = prod(*tables)
            if tokens == {rows}:
                return _Tiles(site, sizes, call, rows, len(results[0].shape))
    return None


def _result(batch: Batch, path: str) -> Leaf | None:
    """The tensor that a call of the model gives, if the embeddings of all items are views of it."""
    origins = {source.of for leaf in batch.results for source in leaf.sources if source.how in ("same", "view")}
    if len(origins) != 1 or not all(leaf.sources for leaf in batch.results):
        return None
    found = [leaf for made, leaf in results_of(batch, path) if origins <= made and leaf.is_tensor]
    return found[0] if len(found) == 1 else None


def _tokens(recording: Recording, rows: int, sheet: Sheet) -> str | None:
    """The rows of a tile: what a cut says of a unit, or the one attribute of a configuration that is called so."""
    own = [path for path, n in attributes(recording.numbers, _TOKENS).items() if n == rows and CONFIG.search(path)]
    return tokens_of_unit(recording.numbers, rows, sheet) or (own[0] if len(own) == 1 else None)
