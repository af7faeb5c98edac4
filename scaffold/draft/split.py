"""The sections of a packed port that the split of its tower tells: sequences, buffers, calls, and the budget."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from scaffold.diagnostics import DiagnosticError
from scaffold.draft.locate import Located, Subject
from scaffold.draft.refusals import beyond
from scaffold.draft.sheet import Candidate, Question, Sheet, SourceLine
from scaffold.syntax import FunctionNode, call_name, positional_parameters
from scaffold.tower import METADATA_ARGUMENT, Kind, slice_tower, split_tower
from scaffold.tower.parts import Crossing, Hazard, Label, TowerSlice
from scaffold.tower.source import Owner

_FRAMES = "get_num_frames_with_most_features"
_SLICE = "`vitcg-scaffold inspect MODULE:CLASS -v` shows every statement"
_UNITS = {
    "frame": "one sequence a frame: h * w rows, t times",
    "item": "one sequence an item: all its rows",
    "window": "one sequence an attention window",
}


@dataclass(frozen=True, slots=True)
class Unit:
    """The rows that one attention sequence covers, and why; None where nothing tells."""

    name: str | None = None
    why: str = ""
    place: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class Tower:
    """A tower of a packed model, `self.NAME`, called at `place`. `data` and `grid` are parameters of its `forward`."""

    subject: Subject
    sheet: Sheet
    name: str
    cls: Owner
    data: str
    grid: tuple[str, ...]
    place: SourceLine

    @property
    def class_place(self) -> SourceLine:
        return SourceLine(self.cls[0].file, self.cls[1].lineno)

    @property
    def call(self) -> str:
        return f"self.{self.name}"

    def evidence(self, crossing: Crossing) -> str:
        last = crossing.evidence[-1] if crossing.evidence else None
        return f"{self.subject.tree.relative(last.file)}:{last.line}: {last.what}" if last is not None else ""

    def hazard(self, found: Hazard) -> str:
        return f"{self.subject.tree.relative(found.file)}:{found.line}: {found.what}"


def slice_of(tower: Tower) -> TowerSlice:
    """The tower's slice. Each reason why a clean slice cannot be split is an obstacle of the sheet."""
    tree, name = tower.subject.tree, tower.cls[1].name
    try:
        sliced = slice_tower(tree, tower.cls[0].file, name, data=(tower.data,), metadata=tower.grid)
        staying = [hazard for hazard in sliced.hazards if not hazard.moved and hazard.label == Label.META]
        if not staying and not sliced.already_split:
            split_tower(sliced)
    except DiagnosticError as error:
        first = error.diagnostics[0]
        place = SourceLine(tree.relative(first.span.file), first.span.line) if first.span else tower.place
        raise beyond(tree, place, f"`{tower.call}` ({name}) cannot be split: {first.message}") from None
    for hazard in staying if not sliced.already_split else ():
        place = SourceLine(tree.relative(hazard.file), hazard.line)
        within = f"`{hazard.via[-1]}`: " if hazard.via else ""
        what = f"{within}{hazard.what} follows from the grid and cannot leave the tower"
        tower.sheet.obstacles += beyond(tree, place, what).diagnostics
    return sliced


def crossings_of(sliced: TowerSlice) -> Iterator[Crossing]:
    """Values that cross the cut and become buffers, children's last. A child's own arguments do not become any."""
    passed = {name for child in sliced.children for name, _ in child.arguments}
    for crossing in sliced.crossings:
        # The grid itself crosses only where something that needs its values could not leave the tower.
        own = not sliced.already_split and crossing.key in sliced.metadata
        if crossing.kind is not Kind.PYTHON and not own and crossing.key not in passed - set(sliced.keys):
            yield crossing
    for child in sliced.children:
        yield from crossings_of(child.slice)


def put_attention(
    tower: Tower,
    sliced: TowerSlice,
    unit_of: Callable[[Crossing], Unit],
    window_of: Callable[[Crossing], str | None],
    *,
    frames: bool,
) -> None:
    """The sets of sequences, the other metadata and the longest side of a grid.

    `unit_of` says what a sequence covers, `window_of` the side of a window in tokens. `frames`: an item may have more.
    """
    sheet, tree = tower.sheet, tower.subject.tree
    crossings = list(crossings_of(sliced))
    offsets = [crossing for crossing in crossings if crossing.kind in (Kind.CUMULATIVE, Kind.TWO_SECTION)]
    if not offsets:
        raise beyond(tree, tower.class_place, "the tower builds no offsets of sequences from the grid")
    bounds, alone = _bounds(offsets, [crossing for crossing in crossings if crossing.kind is Kind.HOST_BOUND])
    taken = set()
    found = [(crossing, unit_of(crossing)) for crossing in offsets]
    # The sequences of whole frames or items come first: they are the tower's main ones.
    for crossing, unit in sorted(found, key=lambda entry: entry[1].name == "window"):
        name = "window" if unit.name == "window" else "full"
        name = crossing.key if name in taken else name
        taken.add(name)
        at = f"attention.{name}"
        shows = (tower.evidence(crossing),)
        if unit.name is None:
            candidates = tuple(Candidate(word, text) for word, text in _UNITS.items())
            sheet.ask(Question(f"{at}.unit", "what one attention sequence covers", candidates, shows))
        elif unit.name == "frame" and not frames and _has_room_for_items(sliced):
            alike = Candidate(
                "item", "an image is one frame, and the tower's method has room for items alone", unit.place
            )
            whole = (alike, Candidate("frame", unit.why, unit.place))
            sheet.ask(Question(f"{at}.unit", "what one attention sequence of images covers", whole, shows))
        else:
            sheet.put(f"{at}.unit", unit.name, unit.place, why=unit.why)
        sheet.put(f"{at}.offsets", crossing.key, tower.evidence(crossing))
        bound = bounds.get(crossing.key)
        if bound is not None:
            sheet.put(f"{at}.max", bound.key, tower.evidence(bound))
        elif len(alone) == 1:
            bound = alone.pop()
            candidate = Candidate(bound.key, "the one bound that the tower makes of no offsets")
            what = "the host scalar with the longest of these sequences, in rows"
            sheet.ask(Question(f"{at}.max", what, (candidate,), (tower.evidence(bound),)))
        lengths = next((c for c in crossings if c.kind is Kind.LENGTHS and c.source == crossing.key), None)
        if lengths is not None:
            sheet.put(f"{at}.lengths", lengths.key, tower.evidence(lengths))
        if unit.name == "window":
            _put_window(sheet, at, window_of(crossing), unit.place)
    for bound in alone:
        what = f"the bound `{bound.key}` belongs to no set of sequences, so nothing tells its largest value"
        raise beyond(tree, tower.class_place, what)
    _put_buffers(tower, crossings)
    limit = _table_limit(tower)
    if limit is not None:
        sheet.put("capture.side_limit", limit[0], limit[1], why="entries of the rotary table")
    else:
        free = Candidate("8192", "enough for every image, if positions are computed and not looked up")
        what = "the largest side of a grid, in rows: what the tower's tables of positions hold"
        sheet.ask(Question("capture.side_limit", what, (free,), (str(tower.class_place),)))


def _has_room_for_items(sliced: TowerSlice) -> bool:
    """Whether a tower's own method of metadata pads offsets to a number of items, and to none of frames."""
    names = {parameter.name for parameter in sliced.method_parameters}
    return sliced.already_split and "max_batch_size" in names and "max_frames_per_batch" not in names


def _bounds(offsets: list[Crossing], bounds: list[Crossing]) -> tuple[dict[str, Crossing], list[Crossing]]:
    """The bound that is made of each set's offsets, by their key, and the bounds that no set has."""
    of = {crossing.key: next((b for b in bounds if b.source == crossing.key), None) for crossing in offsets}
    own = {key: bound for key, bound in of.items() if bound is not None}
    taken = {bound.key for bound in own.values()}
    return own, [bound for bound in bounds if bound.key not in taken]


def _put_window(sheet: Sheet, at: str, side: str | None, place: SourceLine | None) -> None:
    """Count and size of windows: nothing derives them, a window's side is a hint."""
    if side:
        sheet.put("let.window", side, place, why="the side of a window, from where windows are cut")
    look = (f"{place}: the windows are cut here",) if place else ()
    strips = Candidate("min(b, max(B, F) + ceil_div(b, window))", "strips one token high, a partial window a frame")
    what = "the largest number of windows of a batch, over b, B, F (tokens, items, frames) and `let` names"
    count = strips if side else Candidate("b", "a window has at least one token")
    sheet.ask(Question(f"{at}.count", what, (count,), look))
    square = Candidate("(window * m) ** 2", "a square of this side, in tokens")
    longest = square if side else Candidate("b * m ** 2", "the whole budget")
    sheet.ask(Question(f"{at}.longest", "rows of the largest window", (longest,), look))


def _put_buffers(tower: Tower, crossings: Sequence[Crossing]) -> None:
    sheet = tower.sheet
    keys = sheet.keys("attention.")
    named = {sheet.value(key) for key in keys if key.endswith((".offsets", ".max", ".lengths"))}
    buffers = [c for c in crossings if c.key not in named and c.kind is not Kind.HOST_BOUND]
    names = list(dict.fromkeys(crossing.key for crossing in buffers))
    doubtful = [crossing for crossing in buffers if not crossing.certain]
    if doubtful:
        listed = Candidate(f"[{', '.join(names)}]", "if zeros are right behind a batch for all of them")
        look = tuple(f"{crossing.key}: {tower.evidence(crossing) or _SLICE}" for crossing in doubtful)
        what = "metadata with an entry for each row or token, which is padded with zeros; nothing shows it of some"
        sheet.ask(Question("buffers", what, (listed,), look))
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


# --- calls and budget -----------------------------------------------------------------------------------------------


def put_calls(tower: Tower, sliced: TowerSlice, around: str) -> None:
    """The recorded call and the eager one; `around` is the part that projects the tower's rows, if there is one."""
    sheet = tower.sheet
    wrapped = f"{around}({{}})" if around else "{}"
    forward = tower.subject.program.method(tower.cls, "forward")
    names = positional_parameters(forward[2])[1:] if forward else []
    given = [name for name in names if name == tower.data or name in tower.grid]
    captured, eager = [], []
    for position, name in enumerate(names):
        if name not in given:
            continue
        key = f"{name}=" if names[:position] != given[:position] else ""
        captured.append(key + ("pixels" if name == tower.data else "None"))
        eager.append(key + ("pixels" if name == tower.data else "sizes"))
    call = wrapped.format(f"{tower.call}({', '.join([*captured, f'{METADATA_ARGUMENT}=metadata'])})")
    left = [hazard for hazard in sliced.hazards if not hazard.moved and hazard.label == Label.META]
    if left and sliced.already_split:  # of another tower they are obstacles
        candidates = (
            Candidate(call.replace("None", "[]"), "a grid without items passes what asks the grid for its values"),
            Candidate(call, "no grid, if what asks for one is guarded"),
        )
        what = "the recorded call: the tower asks its grid even where it gets metadata"
        sheet.ask(Question("forward.call", what, candidates, tuple(map(tower.hazard, left))))
    else:
        sheet.put("forward.call", call, tower.place)
    for hazard in sliced.hazards:
        if not hazard.moved and (sliced.already_split or hazard.label != Label.META):
            sheet.note("forward", f"stays in the captured part: {tower.hazard(hazard)}")
    plain = wrapped.format(f"{tower.call}({', '.join(eager)})")
    _put_grid(tower, sliced, elsewhere=sheet.has("post.call"))
    sheet.put("eager.call", plain, tower.place)


def _put_grid(tower: Tower, sliced: TowerSlice, *, elsewhere: bool) -> None:
    """A list, which copies nothing to the device, unless methods of the model beside the tower get the grid, too."""
    grid = tower.grid[0]
    parameter = sliced.method_parameters[0] if sliced.already_split else None
    forms = (parameter or next(p for p in sliced.parameters if p.name == grid)).forms
    form = "list" if "list" in forms and not (elsewhere and "tensor" in forms) else "tensor"
    why = f"what `{grid}` may be" if form == "list" or not elsewhere else "as the model's own methods get it"
    tower.sheet.put("tower.grid", form, SourceLine(sliced.file, tower.cls[1].lineno), why=why)


def put_budget(subject: Subject, modalities: Collection[str], sheet: Sheet) -> None:
    """The smallest budget, and the frames of a video."""
    program, model = subject.program, subject.model
    candidates = (
        Candidate("64", "an image of 224 x 224 with patches of 14 and merge size 2"),
        Candidate("16", "an image of 112 x 112 with patches of 14 and merge size 2"),
    )
    look = f"{model.processor_place}: the processor, for the smallest image that it makes"
    what = "the smallest token budget that makes sense: about the tokens of the smallest common item"
    sheet.ask(Question("budget.min", what, candidates, (look,)))
    if "video" not in modalities:
        return
    frames = program.method(model.info, _FRAMES) if model.info else None
    dummies = dict(_dummy_frames(model))
    if frames is not None:
        sheet.put("budget.frames.info", _FRAMES, SourceLine(frames[0].file, frames[2].lineno))
    elif len(dummies) == 1:
        [(number, place)] = dummies.items()
        sheet.put("budget.frames", number, place, why="as many as the videos that memory is measured with")
    else:
        info = model.info[1].name if model.info else "the processing info"
        sheet.ask(Question("budget.frames", "the largest number of frames of a video", (), (info,)))


def _dummy_frames(model: Located) -> Iterator[tuple[int, SourceLine]]:
    """Numbers of frames of the videos with which the memory of a module's models is measured."""
    module = model.owner[0]
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
