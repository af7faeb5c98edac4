"""Ladders, traces and their waste."""

import itertools
import json
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scaffold.runtime.budgets import (
    fitting_budget,
    geometric_ladder,
    octave_ladder,
    optimal_ladder,
    powers_of_two,
    reachable_budgets,
    thin_ladder,
    waste,
)
from scaffold.runtime.trace import Trace, knee, render_svg, waste_curve

sizes = st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=8)


@given(low=st.integers(1, 300), span=st.integers(0, 9000), ratio=st.floats(1.01, 2.5), granule=st.integers(1, 64))
@settings(deadline=None)
def test_geometric_ladder_bounds_the_waste(low, span, ratio, granule):
    ladder = geometric_ladder(low, low + span, ratio, granule)
    assert (ladder[0], ladder[-1]) == (low, low + span)
    assert ladder == sorted(set(ladder))
    for below, above in itertools.pairwise(ladder):
        assert above - below <= max(below * (ratio - 1), granule)
        assert above % granule == 0 or above == low + span


@given(low=st.integers(1, 300), span=st.integers(0, 9000), steps=st.integers(1, 64))
@settings(deadline=None)
def test_octave_ladder_bounds_the_waste_and_keeps_round_numbers(low, span, steps):
    ladder = octave_ladder(low, low + span, steps)
    assert (ladder[0], ladder[-1]) == (low, low + span)
    assert ladder == sorted(set(ladder))
    for below, above in itertools.pairwise(ladder):
        assert above - below <= max(below / steps, 1)
    if steps & (steps - 1) == 0:
        assert set(ladder) >= {1 << k for k in range(20) if low <= 1 << k <= low + span}


def test_octave_ladder_by_example():
    assert octave_ladder(6, 40, 4) == [6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40]


@pytest.mark.parametrize("arguments", [(0, 8), (9, 8), (1, 8, 0)])
def test_octaves_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match="ladder"):
        octave_ladder(*arguments)


@pytest.mark.parametrize("arguments", [(0, 8), (9, 8), (1, 8, 1.0)])
def test_a_ladder_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ValueError, match="ladder"):
        geometric_ladder(*arguments)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(64, 1024, [64, 128, 256, 512, 1024]), (64, 800, [64, 128, 256, 512, 800]), (64, 64, [64])],
)
def test_powers_of_two(low, high, expected):
    assert powers_of_two(low, high) == expected


@pytest.mark.parametrize(("tokens", "budget"), [(0, 4), (4, 4), (5, 8), (8, 8), (9, None)])
def test_fitting_budget(tokens, budget):
    assert fitting_budget([4, 8], tokens) == budget


@given(trace=sizes, graphs=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_optimal_ladder_is_the_best_of_all(trace, graphs):
    def spent(ladder):
        return sum(n * fitting_budget(ladder, s) ** 1.3 for s, n in trace.items())

    found = optimal_ladder(trace, graphs, cost=lambda b: b**1.3)
    assert len(found) <= graphs
    assert found[-1] == max(trace)
    best = min(
        spent(sorted(c))
        for k in range(1, min(graphs, len(trace)) + 1)
        for c in itertools.combinations(trace, k)
        if max(c) == max(trace)
    )
    assert spent(found) == pytest.approx(best)


@given(trace=sizes, always=st.lists(st.integers(1, 80), max_size=3, unique=True))
@settings(deadline=None, max_examples=40)
def test_wanted_budgets_stay(trace, always):
    ladder = optimal_ladder(trace, len(always) + 1, always=always)
    assert set(always) <= set(ladder)
    assert len(ladder) <= len(always) + 1
    assert waste(trace, ladder) <= waste(trace, sorted({*always, max(trace)})) + 1e-9


def test_waste_of_an_exact_ladder_is_zero():
    assert waste({3: 5, 9: 1}, [3, 9]) == 0
    assert waste({3: 1}, [4]) == pytest.approx(0.25)
    assert waste({99: 1}, [4]) == 0  # runs eager


@given(
    ladder=st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True).map(sorted),
    items=st.lists(st.integers(1, 15), min_size=1, max_size=3, unique=True),
    count=st.integers(1, 3),
    top=st.integers(1, 40),
)
@settings(deadline=None)
def test_reachable_budgets_equal_enumeration(ladder, items, count, top):
    sums = {sum(c) for k in range(1, count + 1) for c in itertools.combinations_with_replacement(items, k)}
    expected = {fitting_budget(ladder, s) for s in sums if s <= top} - {None}
    assert reachable_budgets(ladder, items, count, top) == sorted(expected)


@pytest.mark.parametrize(
    ("keep", "expected"), [(9, [1, 2, 3, 4, 5, 6]), (3, [2, 4, 6]), (1, [6]), (0, []), (4, [2, 3, 5, 6])]
)
def test_thin_ladder_keeps_the_largest_and_an_even_spread(keep, expected):
    assert thin_ladder([1, 2, 3, 4, 5, 6], keep) == expected


def test_trace_survives_its_file(tmp_path):
    trace = Trace()
    trace.add("default", 64)
    trace.add("default", 1196, 3)
    file = tmp_path / "trace.json"
    trace.save(file)
    assert Trace.from_json(file.read_text()).paths == {"default": Counter({1196: 3, 64: 1})}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1"),
        ("[]", '"version": 1'),
        (json.dumps({"version": 2, "paths": {}}), '"version": 1'),
        (json.dumps({"version": 1, "paths": {"default": 3}}), 'path "default"'),
        (json.dumps({"version": 1, "paths": {"default": {"x": 3}}}), "not a size"),
        (json.dumps({"version": 1, "paths": {"default": {"3": -1}}}), "not a size"),
    ],
)
def test_a_broken_trace_says_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        Trace.from_json(text)


def test_waste_falls_with_more_graphs_and_the_knee_stops_in_time():
    trace = {64: 10, 216: 3, 256: 7, 1152: 1, 1196: 4, 1732: 2, 2691: 2}
    curve = waste_curve(trace, range(1, 8))
    assert [p.graphs for p in curve] == list(range(1, 8))
    assert all(a.waste >= b.waste for a, b in itertools.pairwise(curve))
    assert curve[-1].waste == 0
    assert knee(curve, good_enough=0.05).graphs < 7
    svg = render_svg(curve)
    assert svg.startswith("<svg")
    assert svg.count("<circle") == 7
