"""Drafts the layout `crops` from a recording: one call that gets the units of two inputs, of two shapes.

The processor declares whole images as one tensor an item, and crops as several. A graph holds the statements from that
call to the last part that the model calls after it for both, or that call alone.
"""

from __future__ import annotations

from scaffold.descriptor.expressions import parse_call
from scaffold.draft.common import line_of, reads
from scaffold.draft.cut import Site, put_unit, sites_of, units_of
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Sheet
from scaffold.draft.ways import entry_to
from scaffold.watch import Recording

_IMAGE, _EMBEDS = "image", "image_embeds"


def draft_crops(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """Whether a call gets whole images and crops of them. A way that the generator cannot take is an obstacle."""
    batches = recording.of(_IMAGE)
    texts: dict[str, dict[str, Site]] = {}
    for site in sites_of(subject, recording, _IMAGE):
        if not site.made and not site.more:
            texts.setdefault(site.text, {})[batches[0].kind(site.pixels)] = site
    for text, found in texts.items():
        if found.keys() != {"batched", "flat"}:
            continue
        whole, crops = found["batched"], found["flat"]
        later = [f"self.{part}" for part in reversed(whole.after) if part in crops.after]
        units, tokens = units_of(batches[0]), sum(leaf.shape[0] for leaf in batches[0].results)
        rows = sum(site.rows * units[site.pixels][0] for site in (whole, crops))
        if rows > tokens:  # a graph of that call would end before what makes tokens of them
            what = f"`{text}` gives {rows} rows of features for {tokens} tokens"
            sheet.refuse(subject.tree, whole.place, what)
        ends = [*later, *([None] if rows <= tokens else [])]
        for through in ends:
            entry, reasons = entry_to(subject, whole.way[0], parse_call(text), through=through)
            if not entry:
                sheet.obstacles += reasons
                continue
            sheet.put(f"modalities.{_IMAGE}.pixels", whole.pixels, whole.place, why="one for each item")
            sheet.put(f"modalities.{_IMAGE}.entry", entry, line_of(whole.way[0]))
            if reads(subject, _EMBEDS) and all(field.key != _EMBEDS for field in batches[0].fields):
                why = "the model reads it, and its processor declares it nowhere"
                sheet.put(f"fields.{_EMBEDS}", "batched", why=why)
            put_unit(subject, recording, whole.unit, "pixels", whole.place, sheet)
            sheet.put("crops.pixels", crops.pixels, crops.place, why="any number for each item")
            put_unit(subject, recording, crops.unit, "crops", crops.place, sheet)
            sheet.put("forward.call", text, whole.place, crops.place)
            if through is not None:
                sheet.put("forward.through", through, why="the last part that the model calls after it for both")
            sheet.obstacles.clear()  # of what was tried before
            return True
    return False
