"""Packers: vLLM's exact greedy batches, and the cheapest cut."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scaffold.runtime import Item
from scaffold.runtime.budgets import fitting_budget
from scaffold.runtime.packing import REPLAY_OVERHEAD_TOKENS, pack_greedy, pack_planned


def items(*tokens):
    return [Item(t, t) for t in tokens]


def shape(batches):
    return [(list(b.indices), b.budgets["default"]) for b in batches]


@pytest.mark.parametrize(
    ("tokens", "ladder", "max_items", "expected"),
    [
        ([4000, 200], [256, 4096, 8192], 16, [([1], 256), ([0], 4096)]),
        ([4000, 4000], [256, 4096, 8192], 16, [([0, 1], 8192)]),
        ([1366] * 3, [256, 2048, 4096, 8192], 16, [([0, 1, 2], 8192)]),
        ([100] * 4, [256, 4096], 16, [([0, 1], 256), ([2, 3], 256)]),
        ([100] * 4, [1024, 4096], 3, [([0, 1, 2], 1024), ([3], 1024)]),
        ([100, 9000], [256, 4096], 16, [([0], 256), ([1], None)]),
        ([], [256], 16, []),
    ],
)
def test_greedy_batches_are_vllms(tokens, ladder, max_items, expected):
    assert shape(pack_greedy(items(*tokens), {"default": ladder}, max_items)) == expected


@pytest.mark.parametrize(
    ("tokens", "ladder", "max_items", "expected"),
    [
        # one replay of 8192 costs more than 2048 and 4096 together: vLLM's greedy rule misses this
        ([1366] * 3, [256, 2048, 4096, 8192], 16, [([0], 2048), ([1, 2], 4096)]),
        # two small replays cost more than one a little larger
        ([60, 60], [64, 128], 16, [([0, 1], 128)]),
        # ... and as much as one that is larger by what a replay costs besides its tokens, but not than a larger one
        ([60, 60], [60, 248], 16, [([0, 1], 248)]),
        ([60, 60], [60, 249], 16, [([0], 60), ([1], 60)]),
        # the order of the call is kept inside a batch
        ([30, 10, 20], [64], 16, [([0, 1, 2], 64)]),
        # an item without a budget takes nobody with it
        ([9000, 100, 100], [256, 4096], 16, [([1, 2], 256), ([0], None)]),
        ([50] * 3, [1024], 2, [([0], 1024), ([1, 2], 1024)]),
    ],
)
def test_planned_batches(tokens, ladder, max_items, expected):
    assert shape(pack_planned(items(*tokens), {"default": ladder}, max_items)) == expected


@given(
    tokens=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    # both far above what a second replay costs, so that cuts pay, and below
    ladder=st.lists(st.integers(10, 700), min_size=1, max_size=4, unique=True).map(sorted),
    max_items=st.integers(1, 6),
)
@settings(deadline=None, max_examples=120)
def test_planned_is_the_cheapest_cut(tokens, ladder, max_items):
    def cost(batch):
        total = sum(tokens[i] for i in batch)
        budget = fitting_budget(ladder, total)
        if budget is None:
            return 2.0 * (total + REPLAY_OVERHEAD_TOKENS) if len(batch) == 1 else float("inf")
        return budget + REPLAY_OVERHEAD_TOKENS

    order = sorted(range(len(tokens)), key=lambda i: tokens[i])
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, len(order)), k) for k in range(len(order)))
    splits = ([order[a:b] for a, b in itertools.pairwise((0, *cut, len(order)))] for cut in cuts)
    best = min(sum(cost(p) for p in parts) for parts in splits if all(len(p) <= max_items for p in parts))
    found = pack_planned(items(*tokens), {"default": ladder}, max_items)
    assert sorted(i for b in found for i in b.indices) == list(range(len(tokens)))
    assert sum(cost(b.indices) for b in found) == pytest.approx(best)


def test_a_path_without_budgets_runs_eager():
    both = [Item(3, 3, {"a": 2, "b": 1}), Item(4, 4, {"a": 0, "b": 4})]
    for pack in (pack_greedy, pack_planned):
        batches = pack(both, {"a": [], "b": [4, 8]}, 2)
        assert sorted(i for b in batches for i in b.indices) == [0, 1]
        assert next(b.budgets["a"] for b in batches if 0 in b.indices) is None


def test_an_idle_path_has_budget_zero():
    both = [Item(3, 3, {"a": 2, "b": 1}), Item(4, 4, {"a": 0, "b": 4})]
    for pack in (pack_greedy, pack_planned):
        batches = pack(both, {"a": [0, 2, 8], "b": [1, 4]}, 1)
        assert [(list(b.indices), dict(b.budgets)) for b in batches] == [
            ([0], {"a": 2, "b": 1}),
            ([1], {"a": 0, "b": 4}),
        ]
