"""The sections of a packed port that its tower tells: sequences, buffers, calls, and the budget.

Its slice says what crosses the cut, and the recording which rows the sequences cover.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from math import isqrt, prod

from scaffold.diagnostics import DiagnosticError
from scaffold.draft.common import line_of
from scaffold.draft.locate import Subject
from scaffold.draft.numbers import attributes, expressions
from scaffold.draft.sheet import Candidate, Sheet, SourceLine, beyond
from scaffold.syntax import FunctionNode, call_name, positional_parameters
from scaffold.tower import METADATA_ARGUMENT, Kind, slice_tower, split_tower
from scaffold.tower.parts import Crossing, Evidence, Hazard, Label, TowerSlice
from scaffold.tower.source import Module, Owner
from scaffold.watch import Batch, Call, Leaf, Recording

Grid = list[list[int]]
_WINDOW, _PATCH = r"(?<=\.)\w*window_size$", r"(?<=\.)patch_size$"
_FRAMES = "get_num_frames_with_most_features"
_SLICE = "`vitcg-scaffold inspect MODULE:CLASS -v` shows every statement"
_UNITS = {
    "frame": "one sequence a frame: h * w rows, t times",
    "item": "one sequence an item: all its rows",
    "window": "one sequence an attention window",
}


@dataclass(frozen=True, slots=True)
class Entered:
    """A part of the model that gets all patches of a modality as `data`, and their grid as `sizes`.

    `calls` are one of each batch; `merge` is the side of the square of rows that becomes a token, 0 where none does.
    """

    part: str
    pixels: str
    sizes: str
    data: str
    grid: tuple[str, ...]
    batches: tuple[Batch, ...]
    calls: tuple[Call, ...]
    grids: tuple[Grid, ...]
    merge: int

    @property
    def place(self) -> SourceLine:
        return line_of(self.batches[0].way(self.calls[0])[-1])

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for modalities whose patches enter alike."""
        return self.part, self.data, self.grid, self.merge, len(self.grids[0][0])


#: Recorded offsets of sequences, the grid of their batch, and where they were seen.
_Offsets = tuple[list[int], Grid, SourceLine]


@dataclass(frozen=True, slots=True)
class Tower:
    """The class of the part that all patches enter, and the modalities whose patches do."""

    subject: Subject
    recording: Recording
    sheet: Sheet
    cls: Owner
    entered: Mapping[str, Entered]

    @property
    def first(self) -> Entered:
        return next(iter(self.entered.values()))

    @property
    def call(self) -> str:
        return f"self.{self.first.part}"

    def shown(self, found: Evidence | Hazard) -> str:
        return f"{self.subject.tree.relative(found.file)}:{found.line}: {found.what}"

    def evidence(self, crossing: Crossing) -> str:
        return self.shown(crossing.evidence[-1]) if crossing.evidence else ""


def slice_of(tower: Tower) -> TowerSlice:
    """The tower's slice. Each reason why a clean slice cannot be split is an obstacle of the sheet."""
    tree, name = tower.subject.tree, tower.cls[1].name
    try:
        sliced = slice_tower(tree, tower.cls[0].file, name, data=(tower.first.data,), metadata=tower.first.grid)
        staying = [hazard for hazard in sliced.hazards if not hazard.moved and hazard.label == Label.META]
        if not staying and not sliced.already_split:
            split_tower(sliced)
    except DiagnosticError as error:
        first = error.diagnostics[0]
        place = SourceLine(tree.relative(first.span.file), first.span.line) if first.span else tower.first.place
        raise beyond(tree, place, f"`{tower.call}` ({name}) cannot be split: {first.message}") from None
    for hazard in staying if not sliced.already_split else ():
        place = SourceLine(tree.relative(hazard.file), hazard.line)
        within = f"`{hazard.via[-1]}`: " if hazard.via else ""
        what = f"{within}{hazard.what} follows from the grid and cannot leave the tower"
        tower.sheet.refuse(tree, place, what)
    return sliced


def crossings_of(sliced: TowerSlice) -> Iterator[Crossing]:
    """Values that cross the cut and become buffers, children's last. A child's own arguments do not become any."""
    passed = {name for child in sliced.children for name, _ in child.arguments}
    for crossing in sliced.crossings:
        # The grid itself crosses only where something that needs its values could not leave the tower.
        own = not sliced.already_split and crossing.key in sliced.metadata
        if not own and crossing.key not in passed - set(sliced.keys):
            yield crossing
    for child in sliced.children:
        yield from crossings_of(child.slice)


def put_attention(tower: Tower, sliced: TowerSlice) -> None:
    """The sets of sequences, the other metadata and the longest side of a grid."""
    sheet, tree = tower.sheet, tower.subject.tree
    crossings = list(crossings_of(sliced))
    offsets = [crossing for crossing in crossings if crossing.kind in (Kind.CUMULATIVE, Kind.TWO_SECTION)]
    if not offsets:
        place = SourceLine(tower.cls[0].file, tower.cls[1].lineno)
        raise beyond(tree, place, "the tower builds no offsets of sequences from the grid")
    # The bound that is made of each set's offsets, and those that no set has.
    made = [crossing for crossing in crossings if crossing.kind is Kind.HOST_BOUND]
    bounds = {one.source: one for one in reversed(made)}
    alone = [one for one in made if one.key not in {bounds[of.key].key for of in offsets if of.key in bounds}]
    taken = set()
    recorded = [(crossing, list(_offsets(tower, crossing))) for crossing in offsets]
    images = [*tower.entered] == ["image"]
    found = [(crossing, seen, _unit(sliced, seen, images=images)) for crossing, seen in recorded]
    # The sequences of whole frames or items come first: they are the tower's main ones.
    for crossing, seen, unit in sorted(found, key=lambda entry: entry[2] == "window"):
        name = "window" if unit == "window" else "full"
        name = crossing.key if name in taken else name
        taken.add(name)
        at = f"attention.{name}"
        shown = tower.evidence(crossing)
        if unit is None:
            sheet.ask(f"{at}.unit", "what one attention sequence covers", starmap(Candidate, _UNITS.items()), shown)
        else:
            sheet.put(f"{at}.unit", unit, seen[0][2], why=_UNITS[unit])
        sheet.put(f"{at}.offsets", crossing.key, shown)
        bound = bounds.get(crossing.key)
        if bound is not None:
            sheet.put(f"{at}.max", bound.key, tower.evidence(bound))
        elif len(alone) == 1:
            bound = alone.pop()
            candidate = Candidate(bound.key, "the one bound that the tower makes of no offsets")
            what = "the host scalar with the longest of these sequences, in rows"
            sheet.ask(f"{at}.max", what, [candidate], tower.evidence(bound))
        lengths = next((c for c in crossings if c.kind is Kind.LENGTHS and c.source == crossing.key), None)
        if lengths is not None:
            sheet.put(f"{at}.lengths", lengths.key, tower.evidence(lengths))
        if unit == "window":
            _put_window(sheet, at, _window(tower, seen), seen[0][2])
    _put_buffers(tower, crossings)
    limit = _table_limit(tower)
    if limit is not None:
        sheet.put("capture.side_limit", limit[0], limit[1], why="entries of the rotary table")
        sheet.put("capture.why", f"No side exceeds the rotary table, of {limit[0]} positions.")


def _put_window(sheet: Sheet, at: str, side: str | None, place: SourceLine) -> None:
    """Count and size of windows: nothing derives them, a window's side is a hint."""
    if side:
        sheet.put("let.window", side, place, why="the side of a window, from where windows are cut")
    look = f"{place}: the windows are cut here"
    strips = Candidate("min(b, max(B, F) + ceil_div(b, window))", "strips one token high, a partial window a frame")
    what = "the largest number of windows of a batch, over b, B, F (tokens, items, frames) and `let` names"
    count = strips if side else Candidate("b", "a window has at least one token")
    sheet.ask(f"{at}.count", what, [count], look)
    square = Candidate("(window * m) ** 2", "a square of this side, in tokens")
    longest = square if side else Candidate("b * m ** 2", "the whole budget")
    sheet.ask(f"{at}.longest", "rows of the largest window", [longest], look)


def _put_buffers(tower: Tower, crossings: Sequence[Crossing]) -> None:
    sheet = tower.sheet
    keys = sheet.keys("attention.")
    named = {sheet.value(key) for key in keys if key.endswith((".offsets", ".max", ".lengths"))}
    buffers = [c for c in crossings if c.key not in named and c.kind is not Kind.HOST_BOUND]
    names = list(dict.fromkeys(crossing.key for crossing in buffers))
    doubtful = [crossing for crossing in buffers if not crossing.certain]
    if doubtful:
        listed = Candidate(f"[{', '.join(names)}]", "if zeros are right behind a batch for all of them")
        look = (f"{crossing.key}: {tower.evidence(crossing) or _SLICE}" for crossing in doubtful)
        what = "metadata with an entry for each row or token, which is padded with zeros; nothing shows it of some"
        sheet.ask("buffers", what, [listed], *look)
    elif names:
        sheet.put("buffers", names, *(tower.evidence(crossing) for crossing in buffers[:1]))


def _table_limit(tower: Tower) -> tuple[int, SourceLine] | None:
    """The number of positions that the tower's rotary table is made for."""
    for module, cls in tower.subject.program.lineage(tower.cls):
        for node in ast.walk(cls):
            for keyword in node.keywords if isinstance(node, ast.Call) and call_name(node) == "get_rope" else ():
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "max_position" and isinstance(value, int):
                    return value, SourceLine(module.file, keyword.value.lineno)
    return None


def _unit(sliced: TowerSlice, seen: Sequence[_Offsets], *, images: bool) -> str | None:
    """The rows that the sequences of recorded offsets cover; None where nothing tells.

    `images`: there is nothing else. An image is one frame.
    """
    if not seen:
        return None
    items = all(ends == _ends([prod(one) for one in grid]) for ends, grid, _ in seen)
    frames = all(ends == _ends(_frames(grid)) for ends, grid, _ in seen)
    windows = all(set(_ends(_frames(grid))) <= set(ends) for ends, grid, _ in seen)
    asked = {parameter.name for parameter in sliced.method_parameters}
    if items and (images or not (frames and "max_frames_per_batch" in asked)):
        return "item"
    return "frame" if frames else "window" if windows else None


def _window(tower: Tower, seen: Sequence[_Offsets]) -> str | None:
    """The attributes that give the side of the largest window, in tokens."""
    side = isqrt(max(end - begin for ends, _, _ in seen for begin, end in pairwise(ends)))
    own = rf"^self\.{re.escape(tower.first.part)}\..*"
    pixels, patches = (attributes(tower.recording.numbers, re.compile(own + name)) for name in (_WINDOW, _PATCH))
    found = expressions(side, ["w // m // p"], m={"m": 1}, w=pixels, p=patches)
    return found[0] if found and side % tower.first.merge == 0 else None


def _offsets(tower: Tower, crossing: Crossing) -> Iterator[_Offsets]:
    """A variable or entry of that name where the tower calls its parts: once in each batch that keeps it."""
    for one in tower.entered.values():
        for batch, grid in zip(one.batches, one.grids, strict=True):
            inside = (frame for frame in batch.frames if (frame.part or "").partition(".")[0] == one.part)
            named = ((leaf, frame) for frame in inside for leaf in frame.values if _is(leaf, crossing))
            found = next(((leaf.value, line_of(frame)) for leaf, frame in named if leaf.value is not None), None)
            if found is not None:
                yield found[0], grid, found[1]


def _is(leaf: Leaf, crossing: Crossing) -> bool:
    return leaf.at in (crossing.key, crossing.name) or leaf.at.endswith(f".{crossing.key}")


def _frames(grid: Grid) -> list[int]:
    return [prod(one[-2:]) for one in grid for _ in range(prod(one[:-2]))]


def _ends(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)]


# --- calls and budget -----------------------------------------------------------------------------------------------


def put_calls(tower: Tower, sliced: TowerSlice, around: str) -> None:
    """The recorded call and the eager one; `around` is the part that projects the tower's rows, if there is one."""
    sheet = tower.sheet
    forward = tower.subject.program.method(tower.cls, "forward")
    names = positional_parameters(forward[2])[1:] if forward else []

    def call(grid: str, *more: str) -> str:
        values = {**dict.fromkeys(tower.first.grid, grid), tower.first.data: "pixels"}
        given = [name for name in names if name in values]
        known = ((f"{name}=" * (names[:at] != given[:at]), name) for at, name in enumerate(names) if name in values)
        text = f"{tower.call}({', '.join([*(f'{key}{values[name]}' for key, name in known), *more])})"
        return f"{around}({text})" if around else text

    captured = call("None", f"{METADATA_ARGUMENT}=metadata")
    staying = [hazard for hazard in sliced.hazards if not hazard.moved]
    # They are obstacles of a tower that is not split yet.
    if sliced.already_split and any(hazard.label == Label.META for hazard in staying):
        candidates = (
            Candidate(captured.replace("None", "[]"), "a grid without items passes what asks the grid for its values"),
            Candidate(captured, "no grid, if what asks for one is guarded"),
        )
        what = "the recorded call: the tower asks its grid even where it gets metadata"
        sheet.ask("forward.call", what, candidates, *map(tower.shown, staying))
    else:
        why = "; ".join(f"stays in the captured part: {tower.shown(hazard)}" for hazard in staying)
        sheet.put("forward.call", captured, tower.first.place, why=why)
    _put_grid(tower, sliced, elsewhere=sheet.has("post.call"))
    sheet.put("eager.call", call("sizes"), tower.first.place)


def _put_grid(tower: Tower, sliced: TowerSlice, *, elsewhere: bool) -> None:
    """A list, which copies nothing to the device, unless methods of the model beside the tower get the grid, too."""
    grid = tower.first.grid[0]
    parameter = sliced.method_parameters[0] if sliced.already_split else None
    forms = (parameter or next(p for p in sliced.parameters if p.name == grid)).forms
    form = "list" if "list" in forms and not (elsewhere and "tensor" in forms) else "tensor"
    why = f"what `{grid}` may be" if form == "list" or not elsewhere else "as the model's own methods get it"
    tower.sheet.put("tower.grid", form, SourceLine(sliced.file, tower.cls[1].lineno), why=why)


def put_budget(subject: Subject, modalities: Collection[str], sheet: Sheet) -> None:
    """The smallest budget, and the frames of a video."""
    candidates = (
        Candidate("64", "an image of 224 x 224 with patches of 14 and merge size 2"),
        Candidate("16", "an image of 112 x 112 with patches of 14 and merge size 2"),
    )
    look = f"{subject.processor_place}: the processor, for the smallest image that it makes"
    what = "the smallest token budget that makes sense: about the tokens of the smallest common item"
    if sheet.ask("budget.min", what, candidates, look) == candidates[0].value:
        sheet.put("budget.why", "As in Qwen2-VL's port.")
    if "video" not in modalities:
        return
    frames = subject.program.method(subject.info, _FRAMES) if subject.info else None
    dummies = dict(_dummy_frames(subject.owner[0]))
    if frames is not None:
        sheet.put("budget.frames.info", _FRAMES, SourceLine(frames[0].file, frames[2].lineno))
    elif len(dummies) == 1:
        [(number, place)] = dummies.items()
        sheet.put("budget.frames", number, place)
        sheet.put("budget.frames_why", "As many as the videos with which memory is profiled.")
    else:
        info = subject.info[1].name if subject.info else "the processing info"
        sheet.ask("budget.frames", "the largest number of frames of a video", (), info)


def _dummy_frames(module: Module) -> Iterator[tuple[int, SourceLine]]:
    """Numbers of frames of the videos with which the memory of a module's models is measured."""
    for function in (node for node in ast.walk(module.tree) if isinstance(node, FunctionNode)):
        statements = [node for node in function.body if isinstance(node, ast.Assign)]
        known = {ast.unparse(node.targets[0]): node.value for node in statements}
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("._get_dummy_videos"):
                continue
            given = next((keyword.value for keyword in node.keywords if keyword.arg == "num_frames"), None)
            value = known.get(given.id) if isinstance(given, ast.Name) else given
            if isinstance(value, ast.Constant) and type(value.value) is int:
                yield value.value, SourceLine(module.file, value.lineno)
