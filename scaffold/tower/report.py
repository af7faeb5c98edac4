"""Text of `vitcg-scaffold inspect MODEL`: the slice, what crosses it and why, what must not be captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scaffold.tower.parts import Crossing, Hazard, Kind, Label, Piece, Place, TowerSlice, flatten

_MEANING = {
    Kind.ROWS: "one entry per row of pixels; zero padding",
    Kind.CUMULATIVE: "offsets of sequences; padded by repeating the last one",
    Kind.TWO_SECTION: "offsets of sequences, two sections under FlashInfer; padded before the sections are built",
    Kind.LENGTHS: "lengths of sequences; zero padding, None on most attention backends",
    Kind.PERMUTATION: "an index of rows; zero padding",
    Kind.HOST_BOUND: "a number on the host, fixed when the graph is captured",
}


def tower_report(tower: TowerSlice, *, verbose: bool = False) -> str:
    """The whole report, as plain text. `verbose` also lists every statement with its place, and all evidence."""
    return "\n".join(_lines(tower, verbose=verbose, depth=0)) + "\n"


def _lines(tower: TowerSlice, *, verbose: bool, depth: int) -> Iterator[str]:
    yield f"{tower.file}: {tower.class_name}.{tower.entry}"
    if tower.already_split:
        parameters = ", ".join(parameter.name for parameter in tower.method_parameters)
        yield f"  already split: {tower.metadata_method}({parameters})"
    else:
        yield f"  data: {', '.join(tower.data)}    metadata: {', '.join(tower.metadata)}"
    if not tower.keys:
        yield "  nothing crosses: the tower has no metadata, capture it as it is"
    yield from _crossings(tower, verbose=verbose)
    for child in tower.children:
        yield ""
        yield f"  child module `{child.attribute}`, called at line {child.call.lineno}, is split as well:"
        yield from ("    " + line if line else "" for line in _lines(child.slice, verbose=verbose, depth=depth + 1))
    if tower.constants:
        yield ""
        names = ", ".join(parameter.name for parameter in tower.constants)
        yield f"  passed on to the metadata method: {names}"
    if tower.pieces and depth == 0:
        yield ""
        yield from _summary(tower.pieces)
    if verbose and tower.pieces:
        yield from _statements(tower)
    if depth == 0:
        yield from _hazards(tower.hazards, verbose=verbose)


def _crossings(tower: TowerSlice, *, verbose: bool) -> Iterator[str]:
    if not tower.crossings:
        return
    yield ""
    yield "  crosses the cut" if not tower.already_split else "  keys of the metadata"
    width = max(len(crossing.key) for crossing in tower.crossings)
    for crossing in tower.crossings:
        yield f"    {crossing.key:<{width}}  {_kind(crossing)}"
        shown = crossing.evidence if verbose else crossing.evidence[-1:]
        for evidence in shown:
            yield f"    {'':<{width}}    {evidence.file}:{evidence.line}: {evidence.what}"


def _kind(crossing: Crossing) -> str:
    text = crossing.kind.value.replace("_", " ")
    if not crossing.certain:
        text += " (assumed: say it in the descriptor)"
    text += f" - {_MEANING[crossing.kind]}"
    if crossing.source is not None and crossing.source != crossing.key:
        text += f"; from `{crossing.source}`"
    if crossing.nullable:
        text += "; may be None"
    return text


def _summary(pieces: tuple[Piece, ...]) -> Iterator[str]:
    leaves = flatten(pieces)
    counts = {place: sum(leaf.place is place for leaf in leaves) for place in Place}
    yield (
        f"  {counts[Place.MOVE]} statements move, {counts[Place.STAY]} stay, {counts[Place.BOTH]} constants go to both "
        "sides"
    )


def _statements(tower: TowerSlice) -> Iterator[str]:
    lines = tower.source.split("\n")
    titles = ((Place.MOVE, "moves"), (Place.BOTH, "both"), (Place.STAY, "stays"))
    for place, title in titles:
        leaves = [leaf for leaf in flatten(tower.pieces) if leaf.place is place]
        if leaves:
            yield ""
            yield f"  {title}"
            for leaf in leaves:
                reason = f"  ({leaf.reason})" if leaf.reason else ""
                yield f"    {leaf.line:>5}  {lines[leaf.line - 1].strip()}{reason}"


def _hazards(hazards: Iterable[Hazard], *, verbose: bool) -> Iterator[str]:
    staying = [hazard for hazard in hazards if not hazard.moved]
    moved = [hazard for hazard in hazards if hazard.moved]
    yield ""
    if not staying:
        yield "  nothing that stays endangers a capture"
    else:
        yield f"  {len(staying)} hazards stay in the captured part"
        yield from _hazard_lines(staying, explain=True)
    if moved:
        yield ""
        yield f"  {len(moved)} hazards leave it with the metadata"
        yield from _hazard_lines(moved, explain=verbose)


def _hazard_lines(hazards: Iterable[Hazard], *, explain: bool) -> Iterator[str]:
    for hazard in hazards:
        via = f", through {' -> '.join(hazard.via)}" if hazard.via else ""
        yield f"    {hazard.file}:{hazard.line}: {hazard.what}{via}"
        yield f"        {hazard.text}"
        if explain:
            grid = " (it follows from the grid: a split is refused)" if hazard.label == Label.META else ""
            yield f"        {hazard.reason}{grid if not hazard.moved else ''}"
