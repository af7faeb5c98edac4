"""Random traffic through the manager: every item equals eager, whatever came before it."""

import hypothesis.strategies as st
import pytest
from helpers import assert_equals_eager, make_manager
from hypothesis import HealthCheck, given, settings
from towers import GLOBAL_TOKENS, LOCAL_TOKENS, PackedTower, TileTower

from scaffold.runtime.stats import Stats

SETTINGS = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))

grids = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
packed_calls = st.lists(st.lists(grids, min_size=1, max_size=6), min_size=1, max_size=5)
tile_calls = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=5)


def assert_capacities(stats: Stats, limit: int) -> None:
    """No graph was asked for more than it was captured for."""
    for key, s in stats.keys.items():
        assert s.tokens <= s.replays * key.budget, key
        assert s.items <= s.replays * limit, key


@SETTINGS
@given(
    calls=packed_calls,
    ladder=st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True),
    items=st.integers(1, 5),
    frames=st.integers(0, 6),
    packing=st.sampled_from(["planned", "greedy"]),
    two_section=st.booleans(),
    start=st.sampled_from([None, 1, 2]),
    small=st.lists(st.integers(1, 6), max_size=2, unique=True),
    idle=st.sampled_from([0, 1, None]),
)
def test_packed_tower_equals_eager(calls, ladder, items, frames, packing, two_section, start, small, idle):
    tower = PackedTower(two_section=two_section)
    small = {"default": [budget for budget in small if budget < min(ladder)]}
    manager = make_manager(tower, ladder, small=small, items=items, frames=frames, packing=packing, start_steps=start)
    kept = []
    for seed, call in enumerate(calls):
        inputs = tower.call(call, seed)
        outputs = assert_equals_eager(manager, inputs)
        kept += [(output, output.clone()) for output in outputs]
        manager.capture_when_idle(idle)
    for output, copy in kept:
        assert output.equal(copy), "a later replay changed an output that the caller owns"
    assert_capacities(manager.stats, items)
    assert manager.stats.hits + manager.stats.misses == sum(len(call) for call in calls)
    assert not tower.seen_empty


@SETTINGS
@given(
    calls=tile_calls,
    shared=st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    local=st.lists(st.integers(1, 20), min_size=1, max_size=4, unique=True),
    items=st.integers(1, 4),
    packing=st.sampled_from(["planned", "greedy"]),
)
def test_two_paths_equal_eager(calls, shared, local, items, packing):
    tower = TileTower()
    ladders = {"global": [b * GLOBAL_TOKENS for b in shared], "local": [0, *(b * LOCAL_TOKENS for b in local)]}
    manager = make_manager(tower, ladders, items=items, packing=packing)
    kept = []
    for seed, call in enumerate(calls):
        outputs = assert_equals_eager(manager, tower.call(call, seed))
        kept += [(output, output.clone()) for output in outputs]
    for output, copy in kept:
        assert output.equal(copy), "a later replay changed an output that the caller owns"
    assert_capacities(manager.stats, items)


@SETTINGS
@given(
    calls=st.lists(
        st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([4, 6, 9])),
        min_size=1,
        max_size=4,
    ),
    ladder=st.lists(st.integers(1, 10), min_size=1, max_size=4, unique=True),
)
def test_capture_axes_equal_eager(calls, ladder):
    tower = TileTower(axes=(4, 6))
    manager = make_manager(tower, [b * GLOBAL_TOKENS for b in ladder])
    for seed, (counts, side) in enumerate(calls):
        assert_equals_eager(manager, tower.call(counts, seed, side))
        if side == 9:
            assert manager.stats.reasons["axis-not-captured"] or manager.stats.reasons["over-budget"]
    assert all(key.axes in [(4,), (6,)] for key in manager.graphs)


@pytest.mark.parametrize("packing", ["planned", "greedy"])
def test_a_repeated_call_reuses_its_plan(packing):
    tower = PackedTower()
    manager = make_manager(tower, packing=packing)
    for seed in range(4):
        assert_equals_eager(manager, tower.call([(1, 2, 3), (1, 1, 4)], seed))
    assert (manager.stats.plans_built, manager.stats.plans_reused) == (1, 3)
    assert tower.calls["replay_values"] == 1
