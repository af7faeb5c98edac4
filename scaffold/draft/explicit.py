"""Drafts the section `explicit` of a cut: a port in a tree that runs no code of the model twice.

The largest call that a graph can hold is tried first, and what follows it is tried as nothing before it becomes a
method. `scaffold.cut` looks for the methods as the generator will.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from scaffold.cut import Extraction, Form, find_calls, find_extraction, find_tails
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.descriptor.port import ENCODE_METHODS, unit_word
from scaffold.diagnostics import DiagnosticError
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Sheet, SourceLine
from scaffold.draft.unportable import dialect_of
from scaffold.draft.ways import NOWHERE, way_to
from scaffold.protocol.dialect import Paths


def put_explicit(
    subject: Subject,
    entry: str,
    call: str,
    tokens: Callable[[Call, bool], str | None],
    single: bool,
    place: SourceLine,
    sheet: Sheet,
) -> None:
    """Fill in `explicit` of a call that gets the pixels as they are. `tokens` says what a call gives of a unit, or what
    follows it, if a graph holds that.

    `single`: an item is one unit.
    """
    what = "audio" if sheet.has("modalities.audio.pixels") else "image"
    unit = unit_word(what, single=single)
    after = f"_project_{what}_features" if single else f"_merge_{unit}_embeddings"
    encode = ENCODE_METHODS[unit]
    dialect = dialect_of(subject.tree)
    # Where the protocol names no paths, an item may not be without tokens.
    named = dialect is not None and dialect.paths is Paths.NAMED
    found = _find(subject, entry, parse_call(call), after, encode) if named else None
    if found is None:
        return
    held, follows, reads = found
    said = tokens(held, single and follows is not None and not reads)
    if said is None:
        return
    sheet.put("explicit.call", held.text, place, why="what follows the encoder unit by unit, too")
    sheet.put("explicit.tokens", said, why="what a graph gives of a unit, which `verify` counts")
    if follows:
        own = "the model's own method behind it"
        sheet.put("explicit.after", follows, why="a name for the statements behind it" if follows == after else own)
    if single:
        sheet.put("explicit.single", True, why="one unit an item, in batches of items of all sizes")


def _find(
    subject: Subject, entry: str, encoder: Call, after: str, encode: str
) -> tuple[Call, str | None, tuple[str, ...]] | None:
    """The largest call of a form that the generator finds, and the name of what follows it, if anything does, with what
    that reads beside features."""
    tree, way = subject.tree, way_to(subject, [entry], encoder)
    family = tuple(subject.program.lineage(subject.model.owner))
    beside = tuple(node.name for node in encoder.name_nodes() if node.name != "pixels")
    calls = [call for call in find_calls(tree, way, beside) if call != encoder]
    for call in (*reversed(calls), encoder):
        for name in (None, *find_tails(tree, family, way), after):
            with suppress(DiagnosticError):
                found = find_extraction(tree, family, way, Form(parse_call(entry), call, name, NOWHERE, encode, beside))
                if isinstance(found, Extraction):
                    return call, name, found.arguments
    return None
