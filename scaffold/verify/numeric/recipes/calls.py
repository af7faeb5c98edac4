"""Calls that recipes have in common, and the managers that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

from scaffold.verify.numeric.recipes.base import Case, Item, Session


def one_to_eight(**items: Sequence[Item]) -> tuple[Case, ...]:
    """Calls of one to eight items of each modality; those that are given take turns."""
    return tuple(
        Case(f"{count} items", modality, tuple(ours[i % len(ours)] for i in range(count)), group="1 to 8 items")
        for count in range(1, 9)
        for modality, ours in items.items()
    )


def usual(
    modality: str, full: Sequence[Item], small: Item, mixed: Sequence[Item], many: Sequence[Item]
) -> tuple[Case, ...]:
    """Calls that fill every budget, that find the values of larger ones in the buffers, and of several batches."""
    calls = {
        "every budget full": full,
        "one small item after large ones": (small,),
        "mixed sizes": mixed,
        "mixed sizes, reversed": mixed[::-1],
        "more items than one batch": many,
    }
    return tuple(Case(name, modality, tuple(items)) for name, items in calls.items())


def above(modality: str, large: Item, before: Item, after: Item, among: Item = None) -> tuple[Case, ...]:
    """Calls of an item above all budgets: alone, and among others (there perhaps another one)."""
    return (
        Case("an item above all budgets", modality, (large,)),
        Case("an item above all budgets among others", modality, (before, among or large, after)),
    )


def in_turn(*lists: Sequence[Case]) -> tuple[Case, ...]:
    """Calls of several modalities in turn, so that each finds the other's values in the buffers."""
    return tuple(case for cases in zip_longest(*lists) for case in cases if case is not None)


def manager(budgets: tuple[int, ...], items: int, cases: Iterable[Case], frames: int | None = 0) -> Session:
    """A manager that is named after its budgets and limits."""
    name = f"budget{'s' * (len(budgets) > 1)} {', '.join(map(str, budgets))}; {items} item{'s' * (items > 1)}"
    limit = f"; {frames} frames" if frames else "; default frames" if frames is None else ""
    return Session(name + limit, budgets, items, frames, tuple(cases))


def counted(*modalities: str, items: int = 4, frames: int = 0, more: tuple[Case, ...] = ()) -> tuple[Session, ...]:
    """Managers and calls of items that are numbers of units, each of four tokens; `more` are a model's own calls."""
    calls = [
        (
            *usual(modality, (3, 2, 3), 1, (1, 5, 2), (3, 1, 4, 1, 5, 2, 6, 1)),
            Case("one item fills the budget", modality, (8,)),
            *above(modality, 9, 2, 1, among=11),
            Case("several above all budgets", modality, (12, 1, 9)),
            *(case for case in more if case.modality == modality),
        )
        for modality in modalities
    ]
    return (
        manager((8, 16, 32), items, chain(*calls), frames),
        manager((32,), 8, one_to_eight(**dict.fromkeys(modalities, (1,))), None if frames else 0),
        manager((6, 18), 3, calls[0]),
    )
