"""The text of a recorded number in a draft: an attribute of the model that holds it, or an expression of several.

All searches go through `attributes`, which orders what the model holds, and `expressions`, which tries forms on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product

from scaffold.descriptor.expressions import EvaluationError, ExpressionError, parse_expression
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Candidate, Sheet
from scaffold.draft.spelled import TEXT, may_lack_text, widths_read
from scaffold.watch import Batch, Recording

CONFIG, _ANY = re.compile(r"^self\.config\."), re.compile("")
#: Names of the parts of a configuration that say the width of embeddings and the side of an image first.
TEXT_WIDTH = re.compile(r"self\.config\.(text|llm|language|lm)_?\w*\.(hidden_size|d_model)")
_TEXT, VISION = re.compile(r"\.(text|llm|language|lm)_?\w*\."), re.compile(r"\.vi[st]\w*\.")
MERGE = re.compile(r"\.(?!temporal)\w*(merge|shuffle|downsample|factor|hidden_stride)\w*(\[0\])?$")
PATCH = re.compile(r"[._]patch_size(\[0\])?$")
_WIDTH, _OWN = re.compile(r"\.(hidden_size|d_model)$"), re.compile(r"^self\.[^.\[]+$")
_COLUMNS, _CHANNELS, _PATCH = r"\.(input_size|in_features)$", r"\.(in|num)_chann?els$", r"\.patch_size$"
#: Attributes of a model with the tokens of one unit.
_TOKENS = ("self.num_image_token", "self.num_patches", "self.config.num_query_tokens")
_SIDE = re.compile(r"\bimage_size('\]|)$")
#: The tokens of a unit: its patches as they are, with one token more, and two by two as one with a token at either end.
_OF_PATCHES = ("(side // p) ** 2", "(side // p) ** 2 + 1", "(side // p // 2) ** 2 + 2")
#: Those behind a projector that joins so many patches a side, by what a configuration calls it.
_JOINED = (
    ("(side // p // f) ** 2", r"\.(downsample_factor|pixel_shuffle_factor|scale_factor|spatial_pool_stride)$"),
    ("ceil_div(side // p, f) ** 2", r"\.(downsample_ratio|hidden_stride)$"),
)


def attributes(
    numbers: Mapping[str, object], names: re.Pattern[str] = _ANY, *first: re.Pattern[str], at: int | None = None
) -> dict[str, int]:
    """The integers of a recording by their paths, where these have one of the `names`.

    Paths like the `first` patterns come first, then short ones. With `at`, a pair is the integer at that place.
    """
    found = {path: n for path, n in numbers.items() if isinstance(n, int)}
    for path, pair in numbers.items() if at is not None else ():
        if isinstance(pair, list) and len(pair) == 2:
            found[f"{path}[{0 if pair[0] == pair[1] else at}]"] = pair[at or 0]
    called = (path for path in found if names.search(path.replace("['", ".").replace("']", "")))
    order = sorted(called, key=lambda path: (*(not one.search(path) for one in first), path.count("."), path))
    return {path: found[path] for path in order}


def expressions(value: int, forms: Sequence[str], **letters: Mapping[str, int]) -> list[str]:
    """The expressions of this value: each of the `forms`, with each choice of attributes for its `letters`.

    Forms are in the language of descriptors. A name of `let` stands for itself: `side={"side": 448}`.
    """
    found, parsed = [], {form: parse_expression(form) for form in forms}
    for paths in product(*letters.values()):
        chosen = dict(zip(letters, paths, strict=True))
        values = {letter: letters[letter][path] for letter, path in chosen.items()}
        for form, expression in parsed.items():
            with suppress(EvaluationError):  # it divides by zero
                if expression.evaluate(values) == value:
                    words = re.split(r"(\w+)", form)
                    found.append("".join(chosen.get(word, word) for word in words))
    return found


def value_of(recording: Recording, text: str) -> object:
    """The value of an expression in the recording; None where it has none, or the text is no expression."""
    with suppress(ExpressionError, EvaluationError):
        return parse_expression(text).evaluate({**recording.numbers, **attributes(recording.numbers, at=0)})
    return None


def put_number(
    recording: Recording,
    value: int,
    key: str,
    what: str,
    names: re.Pattern[str],
    part: re.Pattern[str],
    sheet: Sheet,
    *,
    at: int | None = None,
    first: re.Pattern[str] | None = None,
    last: re.Pattern[str] | None = None,
    more: Sequence[str] = (),
    doubted: Sequence[str] = (),
) -> None:
    """The attribute of this value: the only configuration entry that is called so, or a question with all of them.

    It may be the only one of several whose name the model's parts have, too: these are built of it. With `at` it may be
    a number of the code, and of a pair the one at that place. The only path like `first` comes before all others, and
    the only one like `last` where nothing is called so. `more` are expressions where no attribute holds it. A
    `doubted` path was guessed for the recording: nothing shows that a checkpoint's configuration has it.
    """
    holding, called = (
        [path for path, n in attributes(recording.numbers, named, CONFIG, part, at=at or 0).items() if n == value]
        for named in (_ANY, names)
    )
    configured = [path for path in called if CONFIG.search(path)]
    held = {path.rpartition(".")[2] for path in called if path not in configured}
    own = [path for path in configured if path.rpartition(".")[2] in held]
    before, after = ([path for path in holding if one and one.fullmatch(path)] for one in (first, last))
    sure = after if not called else called[:1] if len(configured) < 2 else []
    for found in (before, own, sure):
        if len(found) == 1 and found[0] not in doubted:
            sheet.put(key, found[0], why=f"{value} in the recording")
            return
    reason = f"{value} in the recording"
    candidates = [
        Candidate(text, f"{reason}, where the configuration is guessed" if text in doubted else reason)
        for text in called or holding or more
    ]
    if at is not None and not called:
        candidates.insert(0, Candidate(str(value), "no attribute of the model that is called so holds it"))
    sheet.ask(key, f"{what}: {value} in the recording", candidates[:6])


def put_width(subject: Subject, recording: Recording, batch: Batch, sheet: Sheet) -> None:
    """The columns of the embeddings: the one width that the model's code reads, where it is so wide.

    Where a tower gives the embeddings and both are, it is the tower's: a checkpoint may have another for its text.
    Else it is the language model's, where one attribute of its configuration is so wide. Where nothing is called so, it
    is the one attribute of the model itself: configurations may repeat it, and differ. Where none is so wide, a sum of
    two of these is a candidate.
    """
    width, what = batch.results[0].shape[-1], "columns of the embeddings"
    wide = [path for path in widths_read(subject) if _number(recording, path) == width]
    seen, read = (set(filter(VISION.search, wide)), {path for path in wide if not VISION.search(path)})
    tower = _tower(batch)
    if len(seen) == 1 and recording.numbers.get(f"self.{tower}.config.hidden_size") == width:
        why = f"{width} in the recording: `{tower}` itself gives the embeddings"
        sheet.put("output.hidden_size", seen.pop(), why=why)
        return
    if len(read) == 1:
        sheet.put("output.hidden_size", read.pop(), why=f"as the model's own code reads it: {width} in the recording")
        return
    flat = "self.config.hidden_size"
    if may_lack_text(subject) and recording.numbers.get(flat) == width:
        sheet.put("output.hidden_size", flat, why=f"{width} in the recording; the class asks for a `text_config`")
        return
    held = attributes(recording.numbers, _OWN)
    sums = [f"{one} + {other}" for one, n in held.items() for other, m in held.items() if n + m == width and n < m]
    guessed = [f"self.config.{path}" for path in recording.guessed]
    put_number(
        recording, width, "output.hidden_size", what, _WIDTH, _TEXT, sheet, first=TEXT_WIDTH, last=_OWN, more=sums,
        doubted=guessed,
    )  # fmt: skip


def _tower(batch: Batch) -> str:
    """The part of the model itself whose result the embeddings are; empty where there is none."""
    made = {call for leaf in batch.results for call in leaf.made_by}
    part = batch.calls[made.pop()].part if len(made) == 1 else ""
    return part if "." not in part else ""


def _number(recording: Recording, path: str) -> object:
    """The number that a path of the model's code leads to. A recording has an object under its first name alone."""
    names = (path.replace(TEXT, name) for name in (TEXT, "self.config.text_config", "self.config"))
    return next((recording.numbers[name] for name in names if name in recording.numbers), None)


def put_columns(
    recording: Recording, batch: Batch, pixels: str, inside: str, width: int, key: str, sheet: Sheet
) -> None:
    """The attribute with the width of a row: of the one part that gets `pixels` and says so wide an input.

    Where pixels are normalised before, it is the first part to run `inside` that does, or that says the channels of a
    patch and its side.
    """

    def own(part: str, names: str) -> dict[str, int]:
        return attributes(recording.numbers, re.compile(f"^{re.escape(f'self.{part}')}{names}"))

    called = [call for call in batch.calls if call.part.startswith(inside)]
    raw = {call.part for call in called if any(one.of == pixels for leaf in call.arguments for one in leaf.sources)}
    wide = {call.part: expressions(width, ["c"], c=own(call.part, _COLUMNS)) for call in called}
    square = (expressions(width, ["c * p ** 2"], c=own(part, _CHANNELS), p=own(part, _PATCH)) for part in wide)
    found = [text for part in wide if part in raw for text in wide[part]]
    found = found or next(filter(None, wide.values()), [])[:1] or next(filter(None, square), [])
    if len(found) == 1:
        value = found if key.endswith(".shape") else found[0]
        sheet.put(key, value, why=f"so wide are the rows that this part gets: {width} in the recording")
        return
    others = found or expressions(width, ["c"], c=attributes(recording.numbers, re.compile(_COLUMNS)))
    candidates = (Candidate(text, f"{width} in the recording") for text in others)
    sheet.ask(key, f"the width of a row of pixels: {width} in the recording", candidates)


def tokens_of_unit(numbers: Mapping[str, object], rows: int, sheet: Sheet) -> str | None:
    """The tokens of one unit, of which a run gave `rows`: what the model says, or its patches and what joins them.

    None where no expression gives that number, or several do. `numbers` are the recorded values by path.
    """
    said = [path for path in _TOKENS if numbers.get(path) == rows]
    if said or rows == 1:
        return said[0] if said else "1"
    # The configuration names the side of a unit, and beside it that of a patch.
    side, held = sheet.value("let.side"), attributes(numbers)
    patch = _SIDE.sub(r"patch_size\1", side)
    beside = [path for path in held if PATCH.search(path) and path.rpartition(".")[0] == side.rpartition(".")[0]]
    if patch == side and len({held[path] for path in beside}) == 1:
        patch = beside[0]  # an alias of another may be there, too
    if patch == side or not {side, patch} <= held.keys():
        return None
    unit = {"side": {"side": held[side]}, "p": {patch: held[patch]}}
    found = expressions(rows, _OF_PATCHES, **unit)
    for form, names in _JOINED:
        # The shortest of the paths with one name.
        factors = {path.rpartition(".")[2]: path for path in reversed(attributes(numbers, re.compile(names)))}
        found += expressions(rows, [form], **unit, f={path: held[path] for path in factors.values()})
    return found[0] if len(found) == 1 else None
