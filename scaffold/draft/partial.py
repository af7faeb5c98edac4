"""What is left to ask when an obstacle keeps a draft from being whole: the values that nothing has shown."""

from __future__ import annotations

from collections.abc import Iterator

from scaffold.draft.inputs import SAME_SIZES, ModalityInputs, strip
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.values import Field, Input, Place

_LAYOUTS = (
    Candidate("packed", "rows of all items behind each other"),
    Candidate("tiles", "tiles of one shape, some for each item"),
    Candidate("padded", "items padded to one shape; nothing is generated for it yet"),
    Candidate("ragged", "a list of items of any shape; nothing is generated for it yet"),
)
_COLUMNS = (
    Candidate("[n]", "a number of rows or tiles"),
    Candidate("[h, w]", "a grid of rows"),
    Candidate("[t, h, w]", "a grid of rows, some frames of it"),
)


def missing_questions(sheet: Sheet, first: ModalityInputs) -> Iterator[Question]:
    """Questions for what the layout of the first modality needs; of an unknown layout, for what all layouts need."""
    look = tuple(str(root.place) for root in first.encoded[:1])
    field = (str(first.field.place),)
    if not first.layout:
        yield Question("layout", "how the inputs of several items lie beside each other", _LAYOUTS, field)
    yield Question("sizes.columns", "what a row of the sizes is", _COLUMNS, field)
    yield Question("item.rows", "rows of the pixel tensor that an item has", (), field)
    yield Question("item.tokens", "rows of the encoder's output that an item has", (), look)
    yield Question("pixels.shape", "shape of one row of the pixel tensor, as a list", (), field)
    yield Question("budget.min", "the smallest token budget that makes sense", (), ())
    recorded = [name for name in ("forward", "after_replay") if any(name in o.hooks for o in sheet.obstacles)]
    if "forward" not in recorded:
        yield Question("forward.call", "the call that is recorded, on `pixels`", (), look)
    if first.layout == "packed":
        yield from _packed(look)
    elif first.layout == "tiles":
        yield Question("capture.rows", "tiles that a graph of b tokens has room for", (), ())


def _packed(look: tuple[str, ...]) -> Iterator[Question]:
    yield Question("attention.kind", "how the tower attends", (Candidate("varlen", "by offsets of sequences"),), look)
    backends = (Candidate("[FLASH_ATTN, TRITON_ATTN]", "backends that take offsets"),)
    yield Question("attention.backends", "attention backends for which graphs are captured", backends, look)
    yield Question("attention.sequences.full.unit", "what one attention sequence covers", (), look)
    yield Question("attention.sequences.full.offsets", "the buffer of cumulative offsets", (), look)
    strips = (Candidate("strip", "one merged row after the other fits every budget exactly"),)
    yield Question("capture.grid", "the grid that a graph is recorded with", strips)
    yield Question("capture.side_limit", "the largest side of a grid, in rows", (), look)
    yield Question("eager.call", "the call for an item that no graph fits, on `pixels` and `sizes`", (), look)
    yield Question("tower.data", "the parameter of the tower's forward that gets the pixels", (), look)
    yield Question("tower.metadata", "its parameters that get the sizes, as a list", (), look)


def put_rows(sheet: Sheet, first: ModalityInputs) -> None:
    """Rows of an item, which the cut of the pixel tensor tells whatever the layout is."""
    if not first.layout and first.columns:
        why = f"cut by `{first.sizes}`"
        sheet.put("item.rows", " * ".join(first.columns), first.field.place, why=why)


def put_modality(sheet: Sheet, modality: ModalityInputs, fields: dict[str, Field]) -> None:
    """Keys of a modality; questions for those that an obstacle keeps from being told."""
    at, call = f"modalities.{modality.name}", modality.encoded[0].call
    look = (str(modality.encoded[0].place),)
    if modality.pixels:
        why = "the only one named so" if modality.others else ""
        sheet.put(f"{at}.pixels", modality.pixels, modality.field.place, why=why)
    else:
        candidates = tuple(Candidate(other, f"an input of `{call.name}`") for other in modality.others)
        sheet.ask(Question(f"{at}.pixels", "the key of the pixel tensor", candidates, look))
    if modality.sizes:
        place = modality.sizes_field.place if modality.sizes_field else modality.field.place
        sheet.put(f"{at}.sizes", modality.sizes, place)
    else:
        sheet.ask(Question(f"{at}.sizes", "the key of the sizes of items", (), look))
    for other in modality.others if modality.pixels else ():
        key, field = f"{at}.aux.{other}", fields.get(other)
        sizes = strip(field.sizes, SAME_SIZES) if field is not None and field.sizes is not None else None
        if (
            field is not None
            and isinstance(sizes, Input)
            and sizes.key == modality.sizes
            and modality.columns == ("n",)
        ):
            sheet.put(key, "n", field.place, why=f"cut by `{modality.sizes}`, too")
        else:
            sheet.ask(Question(key, "the rows that this input has for an item", (), look))


def ask_tower(sheet: Sheet, place: Place) -> None:
    sheet.ask(Question("model.tower", "the attribute that holds the vision tower", (), (str(place),)))
