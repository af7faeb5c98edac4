"""Caps on memory and time, pruning, shared graphs, crossover, lazy capture, statistics."""

import gc
import weakref

import pytest
import torch
from helpers import assert_equals_eager, make_manager
from towers import GLOBAL_TOKENS, PackedTower, TileTower

from scaffold.runtime import GraphKey, RecordingBackend, Stats, Trace, export_to_prometheus
from scaffold.runtime import buffers as buffers_module
from scaffold.runtime.crossover import Crossover, Curve, sample_budgets
from scaffold.runtime.plans import Trial


def budgets(manager):
    return sorted(key.budget for key in manager.graphs)


def test_memory_cap_drops_the_largest_budgets_and_says_so():
    class Hungry(RecordingBackend):
        def peak_of(self, forward):
            return self.peaks.pop(0)

    backend = Hungry()
    backend.peaks = [18_000, 17_000, 900]
    tower = PackedTower()
    manager = make_manager(tower, [8, 16, 32, 64], backend=backend, max_graph_bytes=20_000)
    assert budgets(manager) == [8, 16]
    assert {k.budget for k in manager.report.dropped} == {32, 64}
    assert "allowed" in str(manager.report)
    assert_equals_eager(manager, tower.call([(1, 1, 20)]))
    assert_equals_eager(manager, tower.call([(1, 1, 10)]))
    assert dict(manager.stats.reasons) == {"not-captured": 1}


def test_memory_in_use_stops_the_capture():
    backend = RecordingBackend()
    backend.bytes_per_graph = 1000
    manager = make_manager(PackedTower(), [8, 16, 32, 64], backend=backend, max_graph_bytes=10**6)
    assert len(manager.graphs) == 4
    backend = RecordingBackend()
    backend.bytes_per_graph = 10**6
    manager = make_manager(PackedTower(), [8, 16, 32, 64], backend=backend, max_graph_bytes=2_500_000)
    assert budgets(manager) == [8, 64]  # the largest sets the size of the pool; small ones gain most
    assert {k.budget: why for k, why in manager.report.dropped.items()} == {
        16: "it went over the 2 MiB allowed",
        32: "3 MiB of 2 MiB allowed are in use",
    }
    text = str(manager.report)
    assert "dropped default/16: it went over" in text
    assert "dropped default/32: 3 MiB" in text
    assert_equals_eager(manager, PackedTower().call([(1, 1, 12)]))
    assert manager.stats.hits == 0


def test_time_cap_thins_the_ladder_and_keeps_the_smallest(monkeypatch):
    import scaffold.runtime.capture as module

    clock = iter(range(10**6))
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    ladder = list(range(8, 48, 2))
    tower = PackedTower()
    manager = make_manager(tower, ladder, max_capture_seconds=30.0)
    kept = budgets(manager)
    assert 3 <= len(kept) < len(ladder)
    assert (kept[0], kept[-1]) == (8, 46)
    assert len(kept) + len(manager.report.dropped) == len(ladder)
    assert all("time cap" in why for why in manager.report.dropped.values())
    assert_equals_eager(manager, tower.call([(1, 1, 44)]))
    assert manager.stats.hits == 1


def test_unreachable_budgets_are_not_captured():
    class Tiles(TileTower):
        def item_tokens(self, path, axes):
            return [GLOBAL_TOKENS * n for n in ((2, 4) if axes == (4,) else (1,))]

    manager = make_manager(Tiles(axes=(4, 6)), [4, 8, 12, 16, 40], items=2)
    reached = {axes: {k.budget for k in manager.graphs if k.axes == axes} for axes in ((4,), (6,))}
    assert reached == {(4,): {8, 16, 40}, (6,): {4, 8}}
    assert {(k.budget, k.axes) for k in manager.report.dropped} == {
        (4, (4,)), (12, (4,)), (12, (6,)), (16, (6,)), (40, (6,)),
    }  # fmt: skip
    few = make_manager(Tiles(axes=(4,)), [8, 16, 40, 64], items=2)
    assert budgets(few) == [8, 16, 40]
    assert {k.budget for k in few.report.dropped} == {64}


def test_budgets_between_two_tiles_share_a_graph():
    tower = TileTower(axes=(4,))
    manager = make_manager(tower, [8, 9, 10, 11, 12])
    assert len(manager.backend.graphs) == 2
    assert set(manager.report.shared) == {GraphKey("default", b, (4,)) for b in (8, 9, 10)}
    assert_equals_eager(manager, tower.call([2]))
    assert_equals_eager(manager, tower.call([1, 2]))
    assert manager.stats.hits == 3


def test_replay_is_not_chosen_where_eager_is_faster():
    tower = PackedTower()
    manager = make_manager(tower, [8, 64])
    crossover = manager.crossover["default"]
    crossover.replay.add(8, 1.0)
    crossover.replay.add(64, 10.0)
    crossover.launch_ms = 5.0
    assert_equals_eager(manager, tower.call([(1, 1, 6)]))
    assert_equals_eager(manager, tower.call([(1, 8, 8)]))  # no padding: a replay cannot lose
    assert manager.stats.hits == 2
    assert_equals_eager(manager, tower.call([(1, 1, 20)]))  # 10 ms padded, about 5 eager
    assert dict(manager.stats.reasons) == {"crossover": 1}


def test_calibration_measures_until_its_limit():
    backend = RecordingBackend()
    backend.clock = lambda action: (action(), 40.0)[1]
    manager = make_manager(PackedTower(), [8, 16, 32, 48, 64], backend=backend, calibration_ms=100)
    crossover = manager.crossover["default"]
    assert [tokens for tokens, _ in crossover.replay.points] == [8, 16, 32]  # three at least
    assert crossover.launch_ms == 40


@pytest.mark.parametrize(("tokens", "ms"), [(5, 2.0), (10, 2.0), (15, 2.5), (20, 3.0), (40, 5.0)])
def test_curve(tokens, ms):
    curve = Curve()
    curve.add(20, 3.0)
    curve.add(10, 2.5)
    curve.add(10, 2.0)
    curve.add(10, 9.0)
    assert curve.at(tokens) == pytest.approx(ms)


def test_without_a_sample_nothing_prefers_eager():
    assert Curve().at(3) is None
    assert Crossover().prefers_eager(1, 999) is False


@pytest.mark.parametrize(
    ("ladder", "samples", "expected"),
    [([0, 1, 2], 5, [1, 2]), (list(range(1, 102)), 5, [1, 26, 51, 76, 101])],
)
def test_sampled_budgets(ladder, samples, expected):
    assert sample_budgets(ladder, samples) == expected


class Stopwatches(RecordingBackend):
    """Timers that say what a test wants: one time for a replay, one for eager."""

    def __init__(self, tower, replay_ms, eager_ms, behind=0, busy=0):
        super().__init__()
        self.tower, self.times, self.behind, self.busy = tower, (replay_ms, eager_ms), behind, busy

    def idle(self):
        self.busy -= 1
        return self.busy < 0

    def timer(self):
        backend, before = self, self.tower.calls["eager"]

        class Watch:
            def stop(self):
                self.eager = backend.tower.calls["eager"] > before

            def ms(self):
                if backend.behind:
                    backend.behind -= 1
                    return None
                return backend.times[self.eager]

        return Watch()


@pytest.mark.parametrize(("behind", "busy"), [(0, 0), (2, 0), (0, 2)])
@pytest.mark.parametrize(
    ("replay_ms", "eager_ms", "stays", "calls"),
    [(9.0, 5.0, "eager", 3), (5.0, 9.0, "replay", 3), (5.01, 5.0, "replay", 7), (5.05, 5.0, "eager", 7)],
)
def test_a_padded_size_runs_both_ways_in_turn_and_the_faster_one_stays(replay_ms, eager_ms, stays, calls, behind, busy):
    tower = PackedTower()
    manager = make_manager(tower, [8, 32], backend=Stopwatches(tower, replay_ms, eager_ms, behind, busy), trials=1)
    took = []
    for seed in range(2 + behind + busy + 2 * calls + 4):
        before = manager.stats.hits
        assert_equals_eager(manager, tower.call([(1, 4, 5)], seed))
        took.append("replay" if manager.stats.hits > before else "eager")
    assert took[: 2 + busy] == ["replay"] * (2 + busy)  # eager behind other work would look faster than it is
    assert took[-4:] == [stays] * 4
    assert took[:-4].count("replay") == 2 + behind + busy + calls
    assert took[:-4].count("eager") == calls
    assert set(manager.stats.reasons) == {"crossover"}
    hits = manager.stats.hits
    for seed in range(8):
        assert_equals_eager(manager, tower.call([(1, 1, 6)], seed))  # no trial is left
    assert manager.stats.hits == hits + 8


@pytest.mark.parametrize(
    ("replay", "eager", "verdict"),
    [
        ([5.0, 5.0], [4.0, 4.0, 4.0], None),
        ([5.0, 5.2, 5.1], [4.0, 4.1, 4.2], True),
        ([4.0, 4.1, 4.2], [5.0, 5.1, 5.2], False),
        ([5.0, 5.2, 5.05], [5.0, 5.0, 5.0], None),
        ([5.0, 5.2, 5.2], [5.0, 4.5, 4.5], True),
        ([5.2] * 7, [5.0] + [5.3] * 6, False),  # one lucky call of eager
        ([5.0] + [5.3] * 6, [5.1] + [5.0] * 6, False),  # the smallest times say replay, the medians eager
        ([5.05] * 7, [5.0] * 7, True),
        ([5.01] * 7, [5.0] * 7, False),
    ],
)
def test_what_a_trial_concludes(replay, eager, verdict):
    assert Trial((replay, eager)).verdict() is verdict


@pytest.mark.parametrize(("eager_ms", "tried"), [(20.0, 0), (5.5, 1)])
def test_only_what_is_near_the_crossover_is_tried(eager_ms, tried):
    tower = PackedTower()
    manager = make_manager(tower, [8, 32], backend=Stopwatches(tower, 5.0, 9.0), trials=4)
    crossover = manager.crossover["default"]
    crossover.replay.add(32, 5.0)
    crossover.launch_ms = eager_ms
    for seed in range(12):
        assert_equals_eager(manager, tower.call([(1, 4, 8)], seed))  # no padding: a trial may still find eager faster
    assert manager.stats.misses == 3 * tried
    assert manager.stats.hits == 12 - 3 * tried


def test_hot_sizes_get_a_graph_of_their_own():
    tower = PackedTower()
    manager = make_manager(tower, [32], lazy_after=2, lazy_graphs=1)
    for seed in range(5):
        assert_equals_eager(manager, tower.call([(1, 3, 7)], seed))
    assert budgets(manager) == [21, 32]
    assert manager.stats.keys[GraphKey("default", 21)].waste == 0
    for seed in range(5):
        assert_equals_eager(manager, tower.call([(1, 1, 5)], seed))
    assert budgets(manager) == [21, 32]  # the limit of one lazy graph is used up


def test_a_budget_is_captured_when_it_is_needed_again():
    tower = PackedTower()
    manager = make_manager(tower, range(4, 41), start_graphs=3, demand_graphs=2)
    assert budgets(manager) == [4, 22, 40]
    assert manager.report.on_demand == 2
    for seed, expected in enumerate(([4, 22, 40], [4, 20, 22, 40], [4, 20, 22, 40])):
        assert_equals_eager(manager, tower.call([(1, 4, 5)], seed))
        assert budgets(manager) == expected
    assert [k.budget for k, s in manager.stats.keys.items() for _ in range(s.replays)] == [22, 20, 20]
    # another size that needs the same new budget has it at once; then the limit is reached
    for seed, grid in enumerate([(1, 2, 9), (1, 3, 6), (1, 5, 5), (1, 5, 5), (1, 5, 5)]):
        assert_equals_eager(manager, tower.call([grid], seed))
    assert budgets(manager) == [4, 18, 20, 22, 40]
    assert manager.stats.misses == 0


def test_a_capture_on_demand_that_fails_falls_back():
    backend = RecordingBackend()
    backend.fail = lambda number: number > 2
    tower = PackedTower()
    manager = make_manager(tower, [8, 20, 32], backend=backend, start_graphs=2)
    for seed in range(3):
        assert_equals_eager(manager, tower.call([(1, 2, 9)], seed))
    assert budgets(manager) == [8, 32]
    assert (manager.stats.hits, dict(manager.stats.reasons)) == (3, {})


def test_no_graph_is_captured_on_demand_once_memory_is_out(caplog):
    tried: list[int] = []

    class Full(RecordingBackend):
        def capture(self, forward, pool):
            tried.append(1)
            if len(tried) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")
            return super().capture(forward, pool)

    tower = PackedTower()
    backend = Full()
    manager = make_manager(tower, range(4, 41), backend=backend, start_graphs=3)
    for seed in range(3):
        for grid in [(1, 4, 5), (1, 2, 9), (1, 3, 6)]:
            assert_equals_eager(manager, tower.call([grid], seed))
    assert budgets(manager) == [4, 22, 40]
    assert len(tried) == 3 + 2  # one key, tried twice
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "no memory is left for more encoder graphs: default/18 failed, and no other is tried"
    ]


def test_the_memory_cap_holds_on_demand_too():
    class Hungry(RecordingBackend):
        def peak_of(self, forward):
            return self.peaks.pop(0)

    backend = Hungry()
    backend.peaks = [10**6, 0]
    manager = make_manager(PackedTower(), [8, 16, 32, 48, 64], backend=backend, start_graphs=3, max_graph_bytes=10**5)
    assert budgets(manager) == [8, 32]
    assert manager.report.on_demand == 1


def test_statistics_count_waste_and_samples_per_graph():
    tower = PackedTower()
    manager = make_manager(tower, [8, 16], sample_every=1)
    for seed in range(4):
        manager.execute(tower.call([(1, 2, 3), (1, 1, 4)], seed))
    stats = manager.stats.as_dict()
    assert stats["hits"] == 8
    assert stats["calls"] == 4
    graph = stats["graphs"]["default/16"]
    assert (graph["replays"], graph["items"], graph["tokens"], graph["waste"]) == (4, 8, 40, 0.375)
    assert graph["mean_ms"] > 0


def test_a_trace_records_what_ran():
    tower = PackedTower()
    manager = make_manager(tower, [8, 16])
    manager.trace = Trace()
    for _ in range(2):
        manager.execute(tower.call([(1, 2, 3)]))
    manager.execute(tower.call([(1, 9, 9)]))
    assert dict(manager.trace.sizes()) == {6: 2, 81: 1}


def test_prometheus_shows_the_counters():
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    stats = Stats()
    assert export_to_prometheus(stats, registry, model="m") is not None
    stats.hit(GraphKey("default", 8), 2, 6)
    stats.miss("over-budget", 3)
    text = prometheus.generate_latest(registry).decode()
    assert 'encoder_cudagraph_hits_total{model="m"} 2.0' in text
    assert 'encoder_cudagraph_misses_total{model="m",reason="over-budget"} 3.0' in text
    assert 'encoder_cudagraph_waste_ratio{axes="",budget="8",model="m",path="default"} 0.25' in text


def test_without_the_client_nothing_is_exported(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert export_to_prometheus(Stats()) is None


def test_one_set_of_buffers_serves_all_budgets(monkeypatch):
    monkeypatch.setattr(buffers_module, "OWN_BYTES", 0)
    manager = make_manager(PackedTower(), [8, 16, 32])
    first, *others = [c.buffers for c in manager.graphs.values()]
    for buffers in others:
        assert buffers.data["pixels"].data_ptr() == first.data["pixels"].data_ptr()
        assert buffers.metadata.data_ptr() == first.metadata.data_ptr()
    one = make_manager(PackedTower(), [32])
    assert manager.report.arena_bytes == one.report.arena_bytes


def test_small_metadata_have_memory_of_their_own_as_far_as_it_goes(monkeypatch):
    (small,) = make_manager(PackedTower(), [8]).graphs.values()
    monkeypatch.setattr(buffers_module, "OWN_TOTAL", small.buffers.layout.nbytes)
    tower = PackedTower()
    manager = make_manager(tower, [8, 16, 32])
    at = {key.budget: captured.buffers.metadata.data_ptr() for key, captured in manager.graphs.items()}
    assert at[16] == at[32] != at[8]
    assert_equals_eager(manager, tower.call([(1, 1, 8)]))
    held = manager.graphs[GraphKey("default", 8)].buffers
    blob = held.metadata_arena.holds
    for seed, grid in enumerate([(1, 1, 16), (1, 1, 32), (1, 1, 16), (1, 1, 8), (1, 1, 7), (1, 1, 8)]):
        assert_equals_eager(manager, tower.call([grid], seed))
        assert (held.metadata_arena.holds is blob) == (grid != (1, 1, 7))  # other graphs leave it alone


def test_memory_of_a_graph_that_cannot_be_captured_is_given_back():
    backend = RecordingBackend()
    backend.fail = lambda number: number in (2, 3)  # the second graph, twice
    manager = make_manager(PackedTower(), [8, 16, 32], backend=backend)
    assert budgets(manager) == [8, 32]
    assert manager.report.arena_bytes == make_manager(PackedTower(), [8, 32]).report.arena_bytes


def test_the_same_sizes_again_copy_pixels_only():
    tower = PackedTower()
    manager = make_manager(tower, [8])
    manager.execute(tower.call([(1, 1, 5)]))
    captured = manager.graphs[GraphKey("default", 8)]
    real = captured.buffers.metadata

    before = real.clone()
    manager.execute(tower.call([(1, 1, 5)], 1))
    assert real.equal(before)
    manager.execute(tower.call([(1, 1, 4)], 2))
    assert not real.equal(before)


@pytest.mark.parametrize("way", ["clear", "evict"])
def test_plans_that_are_gone_hold_no_graph_memory(way):
    """Not even until the next run of the garbage collector."""
    tower = PackedTower()
    manager = make_manager(tower, [8], plan_entries=1)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for seed in range(4):
            assert_equals_eager(manager, tower.call([(1, 1, 5)], seed))
        (plan,) = manager._plans.values()
        assert plan.ready is not None
        blob = weakref.ref(plan.steps[0].runs[0].blob)
        del plan
        if way == "clear":
            manager.clear()
        else:
            manager.execute(tower.call([(1, 1, 4)], 9))
        assert blob() is None
    finally:
        if collecting:
            gc.enable()
