"""Caps on memory and time, shared graphs, crossover, captures of an idle worker, statistics."""

import gc
import itertools
import weakref

import pytest
import torch
from helpers import assert_equals_eager, budgets, make_manager
from towers import PackedTower, TileTower

from scaffold.runtime import GraphKey, RecordingBackend, Trace
from scaffold.runtime import buffers as buffers_module
from scaffold.runtime.adapter import Room
from scaffold.runtime.capture import GraphSet
from scaffold.runtime.crossover import Crossover, Curve, sample_budgets
from scaffold.runtime.plans import Trial


class Hungry(RecordingBackend):
    """Each forward takes the next of these peaks."""

    def peak_of(self, forward):
        return self.peaks.pop(0)


def test_memory_cap_drops_the_largest_budgets_and_says_so():
    backend = Hungry()
    backend.bytes_of_pool, backend.peaks = 0, [18_000, 17_000, 900]
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
    backend.bytes_of_pool, backend.bytes_per_graph = 0, 1000
    manager = make_manager(PackedTower(), [8, 16, 32, 64], backend=backend, max_graph_bytes=10**6)
    assert len(manager.graphs) == 4
    backend = RecordingBackend()
    backend.bytes_of_pool, backend.bytes_per_graph = 0, 10**6
    manager = make_manager(PackedTower(), [8, 16, 32, 64], backend=backend, max_graph_bytes=2_500_000)
    assert budgets(manager) == [8, 64]  # the largest sets the size of the pool; the smallest gains most
    assert {k.budget: why for k, why in manager.report.dropped.items()} == {
        32: "it went over the 2 MiB allowed",
        16: "3 MiB of 2 MiB allowed are in use",
    }
    text = str(manager.report)
    assert "dropped default/32: it went over" in text
    assert "dropped default/16: 3 MiB" in text
    assert manager.capture_when_idle() == 0
    assert_equals_eager(manager, PackedTower().call([(1, 1, 12)]))
    assert manager.stats.hits == 0


def test_what_the_time_cap_leaves_is_captured_when_the_worker_is_idle(monkeypatch):
    import scaffold.runtime.capture as module

    clock = iter(range(10**6))
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    ladder = list(range(8, 48, 2))
    tower = PackedTower()
    manager = make_manager(tower, ladder, max_capture_seconds=20.0)
    kept = budgets(manager)
    assert 3 <= len(kept) < len(ladder)
    assert (kept[0], kept[-1]) == (8, 46)
    assert max(high / low for low, high in itertools.pairwise(kept)) < 2  # an even spread
    assert f"{len(ladder) - len(kept)} are left for when the worker is idle" in str(manager.report)
    assert manager.report.dropped == {}
    assert_equals_eager(manager, tower.call([(1, 1, 44)]))
    assert manager.stats.hits == 1
    assert manager.capture_when_idle() > 0
    within = budgets(manager)
    assert all(high / low <= 1.125 or high - low == 2 for low, high in itertools.pairwise(within))


def test_budgets_between_two_tiles_share_a_graph():
    tower = TileTower(axes=(4,))
    manager = make_manager(tower, [8, 9, 10, 11, 12])
    assert len(manager.backend.graphs) == 2
    assert len({id(manager.graphs[GraphKey("default", b, (4,))]) for b in (8, 9, 10, 11)}) == 1
    assert len(manager.report.shared) == 3
    assert_equals_eager(manager, tower.call([2]))
    assert_equals_eager(manager, tower.call([1, 2]))
    assert manager.stats.hits == 3


def test_rooms_share_a_graph_where_frames_change_nothing():
    """Units of a cut are tiles or frames: a graph of so many is the same for images and for videos."""
    values = {"units": torch.zeros(2, 3)}

    def shape(*axes):
        return GraphSet._shape_of(GraphKey("default", 8, axes), values)

    assert shape(Room.ITEMS) == shape(Room.FRAMES) == shape()
    assert shape(4, Room.ITEMS) == shape(4, Room.FRAMES) != shape(6, Room.ITEMS)


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
    assert_equals_eager(manager, tower.call([(1, 1, 60)]))  # 10 ms padded, 9.4 predicted for eager: not worth it
    assert manager.stats.hits == 3
    assert_equals_eager(manager, tower.call([(1, 1, 20)]))  # 10 ms padded, about 5 eager
    assert dict(manager.stats.reasons) == {"crossover": 1}


@pytest.mark.parametrize(("launch_ms", "reasons"), [(6.0, {"crossover": 1}), (7.0, {})])
def test_a_replay_stays_where_a_slow_host_makes_eager_slower(launch_ms, reasons):
    tower = PackedTower()
    manager = make_manager(tower, [8, 64])
    crossover = manager.crossover["default"]
    crossover.replay.add(8, 1.0)
    crossover.replay.add(64, 10.0)
    crossover.launch_ms = launch_ms
    assert_equals_eager(manager, tower.call([(1, 1, 20)]))  # 10 ms padded; eager takes 9 or 10.5 beside a slow host
    assert dict(manager.stats.reasons) == reasons


def test_calibration_measures_until_its_limit():
    backend = RecordingBackend()
    backend.clock = lambda action: (action(), 40.0)[1]
    manager = make_manager(PackedTower(), [8, 16, 32, 48, 64], backend=backend, calibration_ms=100)
    crossover = manager.crossover["default"]
    assert [tokens for tokens, _ in crossover.replay.points] == [8, 16, 32]  # three at least
    assert crossover.launch_ms == 40


@pytest.mark.parametrize(("tokens", "ms"), [(1, 1.1), (5, 1.5), (10, 2.0), (15, 2.5), (20, 3.0), (40, 5.0)])
def test_curve(tokens, ms):
    curve = Curve()
    curve.add(20, 3.0)
    curve.add(10, 2.5)
    curve.add(10, 2.0)
    curve.add(10, 9.0)
    assert curve.at(tokens) == pytest.approx(ms)


def test_a_curve_does_not_fall_below_half_of_its_first_sample_nor_rise_before_it():
    curve = Curve()
    curve.add(10, 2.0)
    assert curve.at(1) == 2.0
    curve.add(11, 3.0)
    assert curve.at(1) == 1.0
    curve.add(11, 1.5)
    assert curve.at(1) == 2.0


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


@pytest.mark.parametrize(("eager_ms", "tried"), [(20.0, 0), (5.3, 0), (5.1, 1)])
def test_only_what_is_near_the_crossover_is_tried(eager_ms, tried):
    tower = PackedTower()
    manager = make_manager(tower, [8, 32], backend=Stopwatches(tower, 5.0, 9.0), trials=4)
    crossover = manager.crossover["default"]
    crossover.replay.add(32, 5.0)
    crossover.launch_ms = eager_ms
    crossover.extra_ms = 1e-6  # what a busy machine takes for metadata would make eager look slow
    for seed in range(12):
        assert_equals_eager(manager, tower.call([(1, 4, 8)], seed))  # no padding: a trial may still find eager faster
    assert manager.stats.misses == 3 * tried
    assert manager.stats.hits == 12 - 3 * tried


def test_an_idle_worker_captures_what_was_needed_twice():
    tower = PackedTower()
    manager = make_manager(tower, range(4, 41), start_steps=1, idle_graphs=3)
    start = [4, 8, 16, 32, 40]
    assert budgets(manager) == start
    for seed in range(2):
        assert_equals_eager(manager, tower.call([(1, 4, 5)], seed))
        assert budgets(manager) == start  # no call waits for a capture
    assert_equals_eager(manager, tower.call([(1, 1, 9)]))
    assert_equals_eager(manager, tower.call([(1, 2, 9)]))  # others of its budget may come
    assert_equals_eager(manager, tower.call([(2, 1, 9)]))
    assert manager.wants_graphs
    assert manager.capture_when_idle(1) == 1
    assert budgets(manager) == sorted([*start, 18])  # saves more than 20, though that came first
    assert manager.capture_when_idle(1) == 1
    assert budgets(manager) == sorted([*start, 18, 20])
    for seed, grids in enumerate([[(1, 4, 5)], [(2, 1, 9)], [(1, 1, 40)]]):
        assert_equals_eager(manager, tower.call(grids, seed))
    assert [k.budget for k, s in manager.stats.keys.items() for _ in range(s.replays)] == [32] * 4 + [16, 20, 18, 40]
    assert manager.stats.misses == 0
    assert manager.capture_when_idle() == 1  # one is left, and goes into the widest gap
    assert budgets(manager) == sorted([*start, 6, 18, 20])
    assert not manager.wants_graphs


def test_sizes_that_no_new_graph_fits_keep_their_plans():
    tower = PackedTower()
    manager = make_manager(tower, range(4, 41), start_steps=1)
    for _ in range(2):
        for grid in [(1, 4, 5), (1, 1, 8), (1, 1, 40)]:
            assert_equals_eager(manager, tower.call([grid]))
    assert manager.capture_when_idle(1) == 1
    for grid in [(1, 4, 5), (1, 1, 8), (1, 1, 40)]:
        assert_equals_eager(manager, tower.call([grid]))
    assert (manager.stats.plans_built, manager.stats.plans_reused) == (4, 5)


def test_a_batch_smaller_than_all_budgets_gets_a_graph_of_its_size():
    tower = PackedTower()
    manager = make_manager(tower, [16, 32], small={"default": range(1, 16)}, items=8)
    assert budgets(manager) == [16, 32]
    for seed in range(2):
        assert_equals_eager(manager, tower.call([(1, 1, 4)], seed))
    assert manager.capture_when_idle() == 1
    assert budgets(manager) == [4, 16, 32]
    assert_equals_eager(manager, tower.call([(1, 1, 4)]))
    assert_equals_eager(manager, tower.call([(1, 1, 1)] * 4))
    assert {k.budget: s.replays for k, s in manager.stats.keys.items()} == {16: 2, 4: 2}
    assert manager.graphs[GraphKey("default", 4)].buffers.contexts["offsets"].end == 8


def test_such_a_graph_serves_a_model_that_pads_to_the_limit_of_items():
    """As vLLM's models do: lengths of eight sequences do not fit into a graph of four items."""

    class Pads(PackedTower):
        def capture_values(self, key, limits):
            values = super().capture_values(key, limits)
            return {**values, "lengths": values["lengths"][: limits.items]}

        def replay_values(self, inputs, limits, path):
            values = super().replay_values(inputs, limits, path)
            lengths = values["lengths"]
            return {**values, "lengths": torch.cat([lengths, lengths.new_zeros(limits.items - len(lengths))])}

    tower = Pads()
    manager = make_manager(tower, [16, 32], small={"default": range(1, 16)}, items=8)
    for seed in range(2):
        assert_equals_eager(manager, tower.call([(1, 1, 4)], seed))
    assert manager.capture_when_idle() == 1
    assert_equals_eager(manager, tower.call([(1, 1, 4)]))
    assert_equals_eager(manager, tower.call([(1, 1, 1)] * 4))
    assert_equals_eager(manager, tower.call([(1, 1, 1)] * 8))
    assert {k.budget: s.replays for k, s in manager.stats.keys.items()} == {16: 3, 4: 2}
    with torch.inference_mode():
        assert manager.replay_on(GraphKey("default", 4), tower.call([(1, 1, 4)])) is not None


def test_it_gets_one_where_replays_were_timed_too():
    """The times of the larger graphs must say that a smaller one takes less: no smaller one was there to be timed."""

    def clock(action):
        action()
        return 1 + 0.1 * len(action.__self__.output) if hasattr(action, "__self__") else 40.0

    backend = RecordingBackend()
    backend.clock = clock
    tower = PackedTower()
    manager = make_manager(
        tower, [16, 32], small={"default": range(1, 16)}, items=8, backend=backend, calibration_ms=100
    )
    assert manager.crossover["default"].replay.points == [(16, 2.6), (32, 4.2)]
    for seed in range(2):
        assert_equals_eager(manager, tower.call([(1, 1, 4)], seed))
    assert manager.capture_when_idle() == 1
    assert budgets(manager) == [4, 16, 32]


def test_a_capture_that_fails_when_idle_costs_nothing_but_a_warning(caplog):
    backend = RecordingBackend()
    backend.fail = lambda number: number > 2
    tower = PackedTower()
    manager = make_manager(tower, [8, 12, 16], backend=backend, start_steps=1, retry=False)
    assert budgets(manager) == [8, 16]
    assert manager.capture_when_idle() == 0
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "encoder graph default/12 cannot be captured: CaptureError: refused by the test"
    ]
    for seed in range(3):
        assert_equals_eager(manager, tower.call([(1, 2, 5)], seed))
    assert (manager.stats.hits, dict(manager.stats.reasons)) == (3, {})


def test_no_graph_is_captured_once_memory_is_out(caplog):
    tried: list[int] = []

    class Full(RecordingBackend):
        def capture(self, forward, pool):
            tried.append(1)
            if len(tried) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")
            return super().capture(forward, pool)

    tower = PackedTower()
    manager = make_manager(tower, range(4, 41), backend=Full(), start_steps=1, idle_graphs=9)
    for seed in range(3):
        for grid in [(1, 4, 5), (1, 2, 9), (1, 3, 6)]:
            assert_equals_eager(manager, tower.call([grid], seed))
        manager.capture_when_idle()
    assert budgets(manager) == [4, 8, 16, 32, 40]
    assert len(tried) == 5 + 2  # one key, tried twice
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "no memory is left for more encoder graphs: default/18 failed, and no other is tried"
    ]


def test_the_memory_cap_holds_when_idle_too():
    backend = Hungry()
    backend.bytes_of_pool, backend.peaks = 40_000, [10**6, 0]
    tower = PackedTower()
    manager = make_manager(tower, [8, 16, 30, 48, 60], backend=backend, start_steps=1, max_graph_bytes=10**5)
    assert budgets(manager) == [8, 16, 30, 48]
    for seed in range(3):
        assert_equals_eager(manager, tower.call([(1, 5, 11)], seed))
    assert manager.capture_when_idle() == 0  # what the cap dropped does not come back


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
    assert budgets(manager) == [16, 32]
    assert manager.report.arena_bytes == make_manager(PackedTower(), [16, 32]).report.arena_bytes


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
        (run,) = plan.steps[0].runs
        held = weakref.ref(run.captured.buffers.metadata_arena.holds)  # the plan's metadata on the device
        run.captured.buffers.metadata_arena.holds = None
        del plan, run
        if way == "clear":
            manager.clear()
        else:
            manager.execute(tower.call([(1, 1, 4)], 9))
        assert held() is None
    finally:
        if collecting:
            gc.enable()
