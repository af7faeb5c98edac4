"""Ladders, traces and their waste."""

import itertools
import json
import re
from collections import Counter
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scaffold.runtime.budgets import (
    fitting_budget,
    octave_ladder,
    optimal_ladder,
    optimal_ladders,
    powers_of_two,
    refine,
    start_ladder,
    waste,
)
from scaffold.runtime.trace import Trace, TraceError, knee, waste_curve

sizes = st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=8)


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
def test_a_ladder_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ValueError, match="ladder"):
        octave_ladder(*arguments)


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


@pytest.mark.parametrize(("low", "high"), [(64, 8192), (100, 5000), (169, 8192), (1, 63)])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_start_of_an_octave_ladder_is_a_coarser_one(low, high, steps):
    assert sorted(start_ladder(octave_ladder(low, high), steps)) == octave_ladder(low, high, steps)


@given(ladder=st.lists(st.integers(1, 900), min_size=1, max_size=40, unique=True).map(sorted), steps=st.integers(1, 9))
@settings(deadline=None)
def test_the_start_of_a_ladder_has_both_ends_and_no_wide_gap_that_it_could_fill(ladder, steps):
    order = start_ladder(ladder, steps)
    assert order[0] == ladder[-1]
    assert ladder[0] in order[:2]
    assert len(set(order)) == len(order)
    for low, high in itertools.pairwise(sorted(order)):
        assert high / low <= 1 + 1 / steps or not any(low < budget < high for budget in ladder)
    assert sorted(start_ladder(ladder, None)) == ladder


def test_refine_by_example():
    ladder = octave_ladder(64, 1024)
    assert start_ladder(ladder, 2) == [1024, 64, 512, 256, 128, 96, 192, 384, 768]
    assert refine([], [], 0.5) is None


def test_trace_survives_its_file(tmp_path):
    trace = Trace()
    trace.add("default", 64)
    trace.add("default", 1196, 3)
    trace.add("default", 0)  # a path without tokens ran nothing
    file = tmp_path / "trace.json"
    trace.save(file)
    assert Trace.from_json(file.read_text()).paths == {"default": Counter({1196: 3, 64: 1})}


def trace_text(paths, version=1, **more):
    return json.dumps({"version": version, "paths": paths, **more})


@pytest.mark.parametrize(
    ("text", "kind", "place", "message"),
    [
        ("{", "json", (), "line 1 column 2"),
        ("[" * 100_000, "form", (), "nested too deeply"),
        ("[]", "form", (), "a trace must be an object"),
        ("{}", "form", (), 'says its "version"'),
        ('{"version": 1}', "form", (), 'has "paths"'),
        (trace_text({}, version=2), "version", ("version",), "version 2 is not known, only 1"),
        (trace_text({}, version=True), "version", ("version",), "true"),
        (trace_text({}, budgets=3), "form", ("budgets",), "not part of a trace"),
        (trace_text([]), "form", ("paths",), '"paths" must be an object'),
        (trace_text({"default": 3}), "form", ("paths", "default"), 'path "default" must be an object'),
        ('{"version": 1, "paths": {"a": {"3": 1, "3": 2}}}', "form", ("paths", "a", "3"), "given twice"),
        (trace_text({"a": {"x": 3}}), "size", ("paths", "a", "x"), "not a size"),
        (trace_text({"a": {"0": 3}}), "size", ("paths", "a", "0"), "not a size"),
        (trace_text({"a": {"٣": 3}}), "size", ("paths", "a", "٣"), "not a size"),
        (trace_text({"a": {"3": -1}}), "size", ("paths", "a", "3"), "-1 is not a count"),
        (trace_text({"a": {"3": 1.5}}), "size", ("paths", "a", "3"), "1.5 is not a count"),
        (trace_text({"a": {"3": True}}), "size", ("paths", "a", "3"), "not a count"),
        (trace_text({"a": {"3": {}}}), "size", ("paths", "a", "3"), "an object is not a count"),
    ],
)
def test_a_broken_trace_says_what_is_wrong_and_where(text, kind, place, message):
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        Trace.from_json(text)
    assert (caught.value.kind, caught.value.place) == (kind, place)


traces = st.dictionaries(st.sampled_from(["default", "local"]), sizes, max_size=2)


@given(first=traces, second=traces)
@settings(deadline=None)
def test_merged_traces_count_what_both_saw(first, second):
    merged = Trace()
    for part in (first, second):
        merged.merge(Trace.from_json(trace_text({p: {str(s): n for s, n in c.items()} for p, c in part.items()})))
    for path in ("default", "local"):
        assert merged.sizes(path) == Counter(first.get(path, {})) + Counter(second.get(path, {}))
    assert Trace.from_json(merged.to_json()).paths == merged.paths


def test_a_trace_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "sizes.json"
    trace = Trace()
    trace.add("default", 64)
    trace.save(file)
    before = file.read_text()
    trace.add("default", 99)

    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(file), "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        trace.save(file)
    assert file.read_text() == before


@given(trace=sizes, graphs=st.integers(1, 7), always=st.lists(st.integers(1, 80), max_size=2, unique=True))
@settings(deadline=None, max_examples=60)
def test_ladders_of_all_lengths_equal_those_one_by_one(trace, graphs, always):
    graphs += len(always)  # room for the largest size, too
    ladders = optimal_ladders(trace, graphs, always=always)
    assert list(ladders) == list(range(len({*always, max([*trace, *always])}), graphs + 1))
    for count, ladder in ladders.items():
        assert ladder == optimal_ladder(trace, count, always=always)


def test_a_ladder_of_thousands_of_sizes_is_fitted():
    """12,000 distinct sizes, and the two budgets that a server keeps."""
    random = Random(0)
    trace = {size: random.randint(1, 50) for size in random.sample(range(64, 16384), 12_000)}
    ladder = optimal_ladder(trace, 64, always=[64, 16384])
    assert (ladder[0], ladder[-1], len(ladder)) == (64, 16384, 64)


def test_waste_falls_with_more_graphs_and_the_knee_stops_in_time():
    trace = {64: 10, 216: 3, 256: 7, 1152: 1, 1196: 4, 1732: 2, 2691: 2}
    curve = waste_curve(trace, range(1, 8))
    assert [p.graphs for p in curve] == list(range(1, 8))
    assert all(a.waste >= b.waste for a, b in itertools.pairwise(curve))
    assert curve[-1].waste == 0
    assert knee(curve, good_enough=0.05).graphs < 7


def test_no_curve_without_room_for_what_must_stay():
    assert waste_curve({3: 1}, [1], always=[5, 9]) == []
    assert waste_curve({3: 1}, []) == []
