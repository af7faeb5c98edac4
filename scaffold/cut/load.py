"""Cuts the encoder of a model of the installed vLLM when it is adapted: what an adapter does about the way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from scaffold.cut.edits import cut_methods
from scaffold.cut.proof import prove_cut
from scaffold.cut.way import find_way
from scaffold.descriptor.expressions import parse_call
from scaffold.diagnostics import DiagnosticError, Span
from scaffold.tower.running import (
    Replaced,
    compiled,
    compiled_function,
    edited_files,
    give_methods,
    refused,
    tree_of,
)


def cut_at_load(
    model: Any,
    owner: type[Any],
    *,
    entries: Sequence[str],
    call: str,
    loop: str | None = None,
    through: str | None = None,
    per_item: bool = False,
) -> None:
    """Give the methods of `model` on the way to its encoder the parameter `encode`.

    `owner` is the release's class of the model; `entries` and `call` are what the descriptor says: where embeddings are
    made (`self._process_image_input`), and the encoder's call, or the encoder alone where all of its arguments are
    handed over; `loop` is what the encoder loops over, where that loop is recorded instead; `through` is the last part
    that is called, where the statements from `call` to it are; `per_item` says that the layers get offsets.
    Raises `DiagnosticError` VCG462 when the source of a class is not there, is not what runs, or has no such way;
    `model` is as it was then.
    """
    cls: Any = owner
    give_methods(model, _cut(cls, tuple(entries), call, loop, through, per_item))


@cache
def _cut(
    owner: type[Any], entries: tuple[str, ...], call: str, loop: str | None, through: str | None, per_item: bool
) -> tuple[Replaced, ...]:
    """The methods of the proven cut, compiled in the namespaces of the modules that they come from."""
    tree, file = tree_of(owner)
    place = Span(file, 1, 1, 1, 1)
    encoder = parse_call(call) if call.endswith(")") else call
    try:
        places = dict.fromkeys(entries, place)
        way = find_way(tree, file, owner.__name__, places, encoder, place, loop, through, per_item)
        edits = cut_methods(tree, way)
        files = edited_files(tree, edits)
        problems = [
            item
            for name, texts in files.items()
            for item in prove_cut(
                *texts,
                frozenset((edit.class_name, edit.replaces) for edit in edits if edit.file == name),
                name,
                way.parameters,
            )
        ]
        if problems:
            raise DiagnosticError(problems)
    except DiagnosticError as error:
        raise refused(owner, "its source has no cut that is proven", *error.diagnostics) from None
    functions = {
        edit.replaces: compiled_function(owner, tree, edit, files[edit.file][1])
        for edit in edits
        if not edit.class_name
    }
    return tuple(compiled(owner, tree, edit, files[edit.file][1], functions) for edit in edits if edit.class_name)
