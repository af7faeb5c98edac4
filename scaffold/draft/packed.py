"""Drafts the layout `packed` from a recording: the part that gets the patches of all items, and their grid.

The recording says which part that is, its arguments, the rows that its sequences cover and the rows of a token. The
slice of the tower says which statements can leave the graph.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod

from scaffold.descriptor.port import VISUAL
from scaffold.draft.common import line_of, pixel_keys, put_dtype, put_embeds, sizes_of_items, token_side
from scaffold.draft.locate import Subject
from scaffold.draft.numbers import MERGE, put_columns, put_number
from scaffold.draft.sheet import Sheet, SourceLine, beyond
from scaffold.draft.split import Entered, Grid, Tower, put_attention, put_budget, put_calls, slice_of
from scaffold.syntax import FunctionNode, self_attribute
from scaffold.watch import Batch, Call, Recording

_ROWS = {3: ("t * h * w", "t * (h // m) * (w // m)"), 2: ("h * w", "(h // m) * (w // m)")}
_GRIDS = {3: ("t", "h", "w"), 2: ("h", "w")}
_PRUNING = "is_multimodal_pruning_enabled"


def draft_packed(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """Whether a part gets all patches and their grid. Raises VCG483 with what hinders its split."""
    entered = [(name, one) for name in VISUAL for one in [_entered(recording.of(name))] if one is not None]
    if not entered:
        return False
    kept = {name: one for name, one in entered if one.form == entered[0][1].form}
    _put_tower(subject, recording, kept, sheet)
    put_budget(subject, list(kept), sheet)
    return True


def _entered(batches: Sequence[Batch]) -> Entered | None:
    """The outermost attribute of the model that gets all patches and their grid in every batch, once."""
    for key in sorted(pixel_keys(batches[0])) if batches else ():
        sizes = sizes_of_items(batches, key) if batches[0].kind(key) == "flat" else None
        grids = [leaf.grid for batch in batches for leaf in batch.inputs if leaf.at == sizes]
        columns = {len(one) for grid in grids for one in grid or [[]]}
        if len(grids) != len(batches) or len(columns) != 1 or columns - _ROWS.keys():
            continue
        found = [list(_getting(batch, key, grid)) for batch, grid in zip(batches, grids, strict=True)]
        parts = [{part for part, _, _, _ in one} for one in found]
        for part, data, names, _ in found[0]:
            calls = [[call for of, _, _, call in one if of == part] for one in found]
            if part not in set.intersection(*parts) or any(len(one) != 1 for one in calls):
                continue
            assert sizes is not None, "a grid is the value of an input"
            tokens = [[leaf.shape[0] for leaf in batch.results] for batch in batches]
            items = (zip(map(prod, grid), made, strict=False) for grid, made in zip(grids, tokens, strict=True))
            merge = token_side(list(chain(*items)))
            return Entered(
                part, key, sizes, data, names, tuple(batches), tuple(one for [one] in calls), tuple(grids), merge
            )
    return None


def _getting(batch: Batch, key: str, grid: Grid) -> Iterator[tuple[str, str, tuple[str, ...], Call]]:
    """The calls of the model's own attributes with an input as it is and its grid, with the names of both arguments.

    They give one tensor.
    """
    for call in batch.calls:
        if call.inside is not None or "." in call.part:
            continue
        data = [leaf.at for leaf in call.arguments if any(one.of == key for one in leaf.sources)]
        names = tuple(leaf.at for leaf in call.arguments if leaf.grid == grid)
        if len(data) == 1 and names and [leaf.at for leaf in call.results if leaf.is_tensor] == [""]:
            yield call.part, data[0], names, call


def _put_tower(subject: Subject, recording: Recording, kept: dict[str, Entered], sheet: Sheet) -> None:
    first = next(iter(kept.values()))
    place, tree = first.place, subject.tree
    cls = subject.program.class_at(first.calls[0].cls)
    if cls is None:
        raise beyond(tree, place, f"the class of `self.{first.part}`, which gets the pixels, is not in the tree")
    if not first.merge:
        raise beyond(tree, place, f"no square of rows of `self.{first.part}` is a token")
    sheet.put("model.tower", first.part, place)
    for modality, one in kept.items():
        sheet.put(f"modalities.{modality}.pixels", one.pixels, one.place, why=f"`{one.data}` of `self.{one.part}`")
        sheet.put(f"modalities.{modality}.sizes", one.sizes, why=f"`{', '.join(one.grid)}` there")
        put_embeds(subject, one.batches[0], sheet)
    columns = len(first.grids[0][0])
    sheet.put("sizes.columns", _GRIDS[columns], why=f"a row of `{first.sizes}`")
    own, what = re.escape(f"self.{first.part}"), "the side of the square of rows that becomes one token"
    called = re.compile(own + MERGE.pattern)
    put_number(recording, first.merge, "let.m", what, MERGE, re.compile(rf"{own}\."), sheet, first=called)
    sheet.put("item.rows", _ROWS[columns][0], why=f"the product of `{first.sizes}`")
    sheet.put("item.tokens", _ROWS[columns][1], why="the embeddings of each item")
    _put_row(recording, first, sheet)
    sheet.put("tower.class", cls[1].name, place)
    sheet.put("tower.entry", "forward")
    sheet.put("tower.data", first.data, place)
    sheet.put("tower.metadata", first.grid)
    tower = Tower(subject, recording, sheet, cls, kept)
    _put_dtype(subject, first, sheet)
    around = _around(subject, first, sheet)
    sliced = slice_of(tower)
    put_attention(tower, sliced)
    put_calls(tower, sliced, around)
    # The attribute of a tower that runs last says the columns of the embeddings.
    own, width = f"self.{first.part}.out_hidden_size", first.batches[0].results[0].shape[-1]
    if recording.numbers.get(own) == width and not around and not sheet.has("post.call"):
        sheet.put("output.hidden_size", own, place, why=f"{width} in the recording")
    _put_gate(subject, sheet)


def _put_dtype(subject: Subject, entered: Entered, sheet: Sheet) -> None:
    """Where a normalisation inside the tower keeps the dtype of raw pixels, if the model gives it one that does."""
    family = (owner for _, owner in subject.program.lineage(subject.owner))
    if any(isinstance(node, ast.keyword) and node.arg == "input_norm" for one in family for node in ast.walk(one)):
        calls = entered.batches[0].calls
        put_dtype(subject, [call for call in calls if call.part == f"{entered.part}.input_norm"], sheet)


def _put_gate(subject: Subject, sheet: Sheet) -> None:
    """The condition without which embeddings are edited after the encoder: where a method of the model reads it.

    A class that only sets the attribute prunes nothing: GLM-4.1V has it for a port's own gate, and no code for it.
    """
    for module, cls in subject.program.lineage(subject.owner):
        methods = (node for node in cls.body if isinstance(node, FunctionNode) and "cudagraph" not in node.name)
        for node in (inner for method in methods for inner in ast.walk(method)):
            if isinstance(node, ast.Attribute) and self_attribute(node) == _PRUNING and isinstance(node.ctx, ast.Load):
                place = SourceLine(module.file, node.lineno)
                sheet.put("gates.modalities", f"not self.{_PRUNING}", place)
                sheet.put("gates.why", "Pruning edits embeddings after the encoder.")
                return


def _put_row(recording: Recording, entered: Entered, sheet: Sheet) -> None:
    """The shape of a row: its width as an attribute of the tower. The sheet asks for a row of several axes."""
    batch = entered.batches[0]
    shape = next(leaf.shape for leaf in entered.calls[0].arguments if leaf.at == entered.data)[1:]
    if len(shape) == 1:
        put_columns(recording, batch, entered.pixels, f"{entered.part}.", shape[0], "pixels.shape", sheet)
    else:
        sheet.ask("pixels.shape", f"shape of one row of the pixel tensor, as a list: {list(shape)} in the recording")


def _around(subject: Subject, entered: Entered, sheet: Sheet) -> str:
    """The part that gets the tower's rows and gives as many; one that also gets the sizes runs after the graph."""
    batch, tower = entered.batches[0], entered.calls[0]
    number = batch.calls.index(tower)
    for call in batch.calls[number + 1 :]:
        origins = [leaf for leaf in call.arguments if any(one.of == f"#{number}" for one in leaf.sources)]
        if call.inside is not None or not origins:
            continue
        place = line_of(batch.way(call)[-1])
        others = [leaf for leaf in call.arguments if leaf not in origins and leaf.type != "NoneType"]
        if len(others) == 1 and others[0].grid == entered.grids[0]:
            sheet.put("post.call", f"self.{call.part}(output, sizes)", place, why="needs the sizes on the host")
            return ""
        rows = [leaf.shape[0] for leaf in (*tower.results, *call.results) if leaf.is_tensor and leaf.shape]
        if others or len(rows) != 2 or rows[0] != rows[1]:
            raise beyond(subject.tree, place, f"`self.{call.part}` runs on the tower's output, and is no part of it")
        return f"self.{call.part}"
    return ""
