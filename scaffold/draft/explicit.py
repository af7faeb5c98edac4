"""Drafts the section `explicit` of a cut: a port in a tree that runs no code of the model twice.

The largest call that a graph can hold is tried first, and what follows it is tried as nothing before it becomes a
method. `scaffold.cut` looks for the methods as the generator will.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from scaffold.cut import Extraction, Form, find_calls, find_extraction, find_way
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.diagnostics import DiagnosticError
from scaffold.draft.place import SourceLine
from scaffold.draft.sheet import Sheet
from scaffold.draft.subject import Subject
from scaffold.draft.ways import NOWHERE
from scaffold.protocol import read_protocol

#: Attributes of a model with the tokens of one unit.
_TOKENS = ("num_image_token", "num_patches")
#: Entries of a configuration by which a side of the patches gets shorter behind the encoder, and whether it is padded.
_FACTORS = {"downsample_factor": False, "downsample_ratio": True, "hidden_stride": True, "pixel_shuffle_factor": False,
            "scale_factor": False, "spatial_pool_stride": False}  # fmt: skip
_SIDE = re.compile(r"\bimage_size('\]|)$")


def put_explicit(
    subject: Subject,
    entry: str,
    call: str,
    tokens: Callable[[Call], str | None],
    single: bool,
    places: tuple[SourceLine, SourceLine | None],
    sheet: Sheet,
) -> None:
    """Fill in `explicit` of a call that gets the pixels as they are. `tokens` says what a call gives of a unit.

    `single`: an item is one unit. `places` are those of the call and of the pixels.
    """
    what = "audio" if sheet.has("modalities.audio.pixels") else "image"
    after = f"_project_{what}_features" if single else "_merge_patch_embeddings"
    found = _find(subject, parse_call(entry), parse_call(call), after) if _has_paths(subject) else None
    if found is None:
        return
    held, follows = found
    said = tokens(held)
    if said is None:
        return
    sheet.put("explicit.call", held.text, places[0], why="what follows the encoder unit by unit, too")
    sheet.put("explicit.tokens", said, why="what a graph gives of a unit, which `verify` counts")
    if follows:
        sheet.put("explicit.after", follows, why="a name for the statements behind it")
    if single:
        sheet.put("explicit.single", True, places[1], why="one unit an item")


def _find(subject: Subject, entry: Call, encoder: Call, after: str) -> tuple[Call, str | None] | None:
    """The largest call of a form that the generator finds, and the name of what follows it, if anything does."""
    tree, model = subject.tree, subject.model
    way = find_way(tree, model.file, model.class_name, {entry.path: NOWHERE}, encoder, NOWHERE)
    family = tuple(subject.program.lineage(model.owner))
    calls = [call for call in find_calls(tree, way) if call != encoder]
    for call in (*reversed(calls), encoder):
        for name in (None, after):
            with suppress(DiagnosticError):
                form = Form(entry, call, name, NOWHERE)
                if isinstance(find_extraction(tree, family, way, form), Extraction):
                    return call, name
    return None


def tokens_recorded(numbers: Mapping[str, object], rows: int, sheet: Sheet) -> str | None:
    """The tokens of one unit, of which a run gave `rows`: what the model says, or its patches and what joins them.

    None where no expression gives that number, or several do. `numbers` are the recorded values by path.
    """
    said = [f"self.{name}" for name in _TOKENS if numbers.get(f"self.{name}") == rows]
    if said or rows == 1:
        return said[0] if said else "1"
    side, patch = _side_and_patch(sheet)
    long, short = numbers.get(side), numbers.get(patch)
    if patch == side or not isinstance(long, int) or not isinstance(short, int) or not short:
        return None
    across = long // short
    factors: dict[str, str] = {}
    for path in sorted(numbers, key=lambda path: (path.count("."), path)):
        factors.setdefault(path.rpartition(".")[2], path)
    joined = {path: numbers[path] for name, path in factors.items() if name in _FACTORS}
    patches = f"(side // {patch}) ** 2"
    made = {patches: across**2, f"{patches} + 1": across**2 + 1, _with_ends(patch): (across // 2) ** 2 + 2}
    for path, by in joined.items():
        if isinstance(by, int) and by > 0:
            is_padded = _FACTORS[path.rpartition(".")[2]]
            made[_joined(patch, path)] = (-(-across // by) if is_padded else across // by) ** 2
    found = [text for text, value in made.items() if value == rows]
    return found[0] if len(found) == 1 else None


def _side_and_patch(sheet: Sheet) -> tuple[str, str]:
    """The side of a unit and that of a patch, as the configuration names them; the same text where it names none."""
    side = sheet.value("let.side").strip('"') if sheet.has("let.side") else ""
    return side, _SIDE.sub(r"patch_size\1", side)


def _joined(patch: str, factor: str) -> str:
    """The tokens of patches that a projector joins, `factor` a side."""
    if _FACTORS[factor.rpartition(".")[2]]:
        return f"ceil_div(side // {patch}, {factor}) ** 2"
    return f"(side // {patch} // {factor}) ** 2"


def _with_ends(patch: str) -> str:
    """The tokens where two by two patches are one, and a token is at either end."""
    return f"(side // {patch} // 2) ** 2 + 2"


def _has_paths(subject: Subject) -> bool:
    """Whether the protocol of the tree names paths: then an item may have no tokens at all."""
    with suppress(DiagnosticError):
        return read_protocol(subject.tree).dialect.paths.value == "named"
    return False
