"""Device memory: start-up holds all that graphs, plans and tables take later, and what fails is given back."""

import logging

import pytest
import torch
from helpers import assert_equals_eager, budgets, make_manager
from towers import PackedTower, TileTower

from scaffold.runtime.backend import fit_block
from scaffold.runtime.capture import AGAIN_AFTER
from scaffold.runtime.recording import RecordingBackend

MIB = 1 << 20
START = [4, 8, 16, 32, 40]
#: What the five graphs of start-up take together, its quarter for idle captures, and its eighth for metadata.
GRAPHS, ROOM, KEPT = 200 * MIB, 50 * MIB, 25 * MIB


class Device(RecordingBackend):
    """A device of 1000 MiB. A graph takes some, and so does whatever else sets `other`."""

    total = 1000 * MIB

    def __init__(self, per_graph=12 * MIB):
        super().__init__()
        self.bytes_per_graph = per_graph
        self.bytes_of_pool = GRAPHS - len(START) * per_graph
        self.other = self.trims = 0

    def memory_used(self):
        return super().memory_used() + self.other

    def hold(self, nbytes):
        if nbytes > self.memory_free():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().hold(nbytes)

    def trim(self):
        self.trims += 1


def started(backend, **options):
    return make_manager(PackedTower(), range(4, 41), backend=backend, start_steps=1, **options)


def test_start_up_holds_what_comes_later_until_the_first_image():
    device = Device()
    manager = started(device)
    assert device.memory_used() == GRAPHS + ROOM + KEPT  # what vLLM's profile sees
    assert manager.report.held_bytes == ROOM + KEPT
    assert manager.report.device_bytes == GRAPHS
    trims = device.trims
    manager.execute(PackedTower().call([(1, 2, 3)]))
    assert device.memory_used() == GRAPHS
    assert device.trims == trims + 1  # else torch's cache would keep it
    manager.execute(PackedTower().call([(1, 2, 4)]))
    assert device.trims == trims + 1


@pytest.mark.parametrize(
    ("options", "held"),
    [
        ({"idle_bytes": 7 * MIB, "plan_bytes": 3 * MIB}, 10 * MIB),  # the settings are caps
        ({"idle_bytes": 0}, KEPT),
        ({"idle_graphs": 0}, KEPT),
        ({"plan_bytes": 0}, ROOM),
        ({"max_graph_bytes": GRAPHS + 9 * MIB}, 9 * MIB + KEPT),
        ({"max_graph_bytes": GRAPHS}, KEPT),
    ],
)
def test_settings_and_caps_bound_what_is_held(options, held):
    device = Device()
    manager = started(device, **options)
    assert budgets(manager) == START
    assert device.memory_used() == GRAPHS + held
    assert manager.wants_graphs == (held > KEPT or "plan_bytes" in options)


@pytest.mark.parametrize(
    ("paid_above", "options", "room", "kept"),
    [
        (40, {}, ROOM, KEPT),
        (64, {}, ROOM, KEPT),
        (36, {}, ROOM - GRAPHS // 10, KEPT),
        (30, {}, 0, KEPT),
        (28, {}, 0, KEPT - GRAPHS // 20),
        (28, {"idle_graphs": 0}, 0, KEPT - GRAPHS // 20),
        (28, {"plan_bytes": 3 * MIB}, 0, 3 * MIB),
        (24, {}, 0, 0),
        (32, {"max_graph_bytes": GRAPHS + 4 * MIB}, 4 * MIB, KEPT),
    ],
)
def test_what_larger_graphs_than_the_servers_take_comes_off_what_is_held(paid_above, options, room, kept):
    """The graphs of up to 40 tokens take 200 MiB: those above 36 take a tenth of it. Idle captures go first."""
    device = Device()
    manager = started(device, paid_above=paid_above, **options)
    assert budgets(manager) == START  # no graph is lost
    assert manager.report.held_bytes == room + kept
    assert device.memory_used() == GRAPHS + room + kept
    assert manager.report.kept_bytes == manager._plans.most_bytes == kept
    assert manager.report.idle == (128 if room else 0)
    assert manager.wants_graphs == bool(room)
    assert bool(manager.capture_when_idle()) == (room >= 12 * MIB)


def test_a_dropped_graph_pays_for_nothing():
    """Below 40 tokens the largest graph of the ladder has 32."""
    device = Device()
    device.fail = lambda number: number == 1  # the largest comes first
    manager = started(device, paid_above=32, retry=False)
    assert budgets(manager) == START[:-1]
    assert manager.report.held_bytes == ROOM + KEPT


@pytest.mark.parametrize(
    ("further", "best"),
    [
        ({}, 1050),
        ({1000: 320, 1050: 320}, 1150),
        ({1000: 40, 1050: 90, 1100: 90}, 1000),  # a larger block has gaps, too
        ({1000: 320, 1050: 320, 1100: 320, 1150: 20}, 1200),
        (dict.fromkeys((1000, 1050, 1100, 1150, 1200), 320), 1050),
        ({1000: 320, 1050: 10, 1100: 320}, 1050),
    ],
)
def test_the_first_block_of_a_pool_is_the_largest_of_those_that_cost_little(further, best):
    tried = []

    def pool_with(block):
        tried.append(block)
        return block + further.get(block, 0)

    assert fit_block(1000, pool_with) == best
    assert tried == sorted(set(tried))
    assert len(tried) == 5 or 1.05 * min(map(pool_with, list(tried))) < tried[-1] + 50


class Around(PackedTower):
    """A model whose own code runs around its encoder, and may interpolate positions."""

    keeps_tables = True
    most = None

    def around(self, inputs, replay):
        raise AssertionError("no call comes")

    def keep_at_most(self, nbytes):
        self.most = nbytes


def test_memory_for_sizes_is_held_where_something_is_kept_of_them():
    """Of metadata, or of what the model's own code computes."""
    tiles = make_manager(TileTower(axes=(4, 8)), [8], backend=Device(), start_steps=1)
    assert not any(captured.buffers.layout.nbytes for captured in tiles.graphs.values())
    around, fixed = Around(), Around()
    fixed.keeps_tables = False
    managers = [started(Device()), tiles, *(make_manager(a, [8], backend=Device()) for a in (around, fixed))]
    assert [bool(manager.report.kept_bytes) for manager in managers] == [True, False, True, False]
    assert around.most == managers[2].report.kept_bytes
    assert fixed.most == 0


def test_metadata_of_plans_stay_within_what_was_held():
    tower = PackedTower()
    unbounded = make_manager(tower, [8])
    unbounded.execute(tower.call([(1, 2, 3)]))
    (plan,) = unbounded._plans.values()
    manager = make_manager(tower, [8, 64], plan_bytes=2 * plan.nbytes)
    sizes = [[(1, 2, height)] for height in (1, 2, 3)]
    for grids in (*sizes, sizes[2], [(1, 8, 8)]):  # three of one graph, and one of a larger graph
        assert_equals_eager(manager, tower.call(grids))
        assert sum(plan.nbytes for plan in manager._plans.values()) <= manager.report.kept_bytes
    assert len(manager._plans) == 2  # a plan beyond all memory takes no other's place
    assert_equals_eager(manager, tower.call(sizes[2]))
    assert manager.stats.plans_reused == 2


def test_a_manager_without_graphs_holds_nothing():
    device = Device(0)
    device.fail = lambda number: True
    manager = started(device)
    assert not manager.graphs
    assert device.memory_used() == 0


def test_idle_captures_stay_within_their_memory(caplog):
    caplog.set_level(logging.INFO)
    device = Device()
    manager = started(device)
    before = device.memory_used()
    assert manager.capture_when_idle() == 4  # of 12 MiB each
    assert not manager.wants_graphs
    assert device.memory_used() <= before
    assert "no more encoder graphs are captured when idle: their memory is used" in caplog.text
    assert manager.report.idle == 124


class Growing(Device):
    """From now on a capture takes 60 MiB, more than all that idle captures may: of a pool, or of the device beside."""

    def grow(self, pools):
        self.bytes_per_graph = 0
        self.other = len(START) * 12 * MIB  # all captures so far
        self.pools, self.lost = 0, {"pools": 60 * MIB * pools, "other": 60 * MIB}

    def memory_in_pools(self):
        return getattr(self, "pools", 0)

    def capture(self, forward, pool):
        graph = super().capture(forward, pool)
        if hasattr(self, "lost"):
            self.other += self.lost["other"]
            self.pools += self.lost["pools"]
        return graph


def test_an_idle_capture_beyond_its_memory_is_undone(caplog):
    device = Growing()
    manager = started(device)
    device.grow(pools=True)
    trims, started_with = device.trims, manager.report.device_bytes + manager.report.held_bytes
    assert manager.capture_when_idle() == 0
    assert budgets(manager) == START
    assert device.trims > trims
    # A pool keeps what its captures took: plans get that much less, so that nothing of ours takes more than was held.
    assert manager.report.device_bytes + manager._plans.most_bytes <= started_with
    assert 0 < manager._plans.most_bytes < manager.report.kept_bytes
    assert not manager.wants_graphs
    assert "no memory is left for more encoder graphs" in caplog.text
    tower = manager.adapter
    for seed in range(3):
        assert_equals_eager(manager, tower.call([(1, 4, 5)], seed))


def at(monkeypatch, seconds):
    monkeypatch.setattr("scaffold.runtime.capture.time.monotonic", lambda: 1000.0 + seconds)


def test_memory_that_another_process_takes_ends_no_idle_captures(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    device = Growing()
    manager = started(device)
    kept = manager._plans.most_bytes
    device.grow(pools=False)
    at(monkeypatch, 0)
    assert manager.capture_when_idle() == 0
    assert budgets(manager) == START
    assert "the device lost memory while" in caplog.text
    assert not manager.wants_graphs  # for the time being
    assert manager._plans.most_bytes == kept
    device.lost = {"pools": 0, "other": 0}
    at(monkeypatch, AGAIN_AFTER[0] - 0.1)
    assert not manager.wants_graphs
    at(monkeypatch, AGAIN_AFTER[0])
    assert manager.capture_when_idle(1) == 1
    assert not manager.report.dropped
    assert_equals_eager(manager, manager.adapter.call([(1, 4, 5)], 0))


def test_memory_that_goes_with_every_capture_is_taken_for_the_graphs(monkeypatch, caplog):
    """A driver may take it, whose memory torch does not count."""
    device = Growing()
    manager = started(device)
    device.grow(pools=False)
    for seconds in (0, 5, 35):
        at(monkeypatch, seconds)
        assert manager.wants_graphs
        assert manager.capture_when_idle() == 0
    assert "no memory is left for more encoder graphs" not in caplog.text
    at(monkeypatch, 215)
    assert manager.wants_graphs
    assert manager.capture_when_idle() == 0
    assert "no memory is left for more encoder graphs" in caplog.text
    at(monkeypatch, 10000)
    assert not manager.wants_graphs


def test_nothing_is_captured_while_something_else_needs_the_memory():
    device = Device()
    manager = started(device)
    manager.execute(PackedTower().call([(1, 2, 3)]))  # the held memory is free now
    assert manager.wants_graphs
    device.other = device.memory_free() - ROOM + 1
    assert not manager.wants_graphs
    assert manager.capture_when_idle() == 0
    device.other -= 1
    assert manager.capture_when_idle(1) == 1


def test_a_full_device_has_no_idle_captures(caplog):
    device = Device()
    device.other = 730 * MIB
    manager = started(device)
    assert budgets(manager) == START
    assert not manager.wants_graphs
    assert device.memory_free() == 70 * MIB  # five less than it would hold
    assert manager.report.kept_bytes == 0
    assert "no encoder graphs are captured when idle, and no metadata are kept: 75 MiB" in caplog.text


class Caching(Device):
    """Torch keeps what captures' temporary tensors and eager runs took."""

    cached = 0
    per_capture = 0

    def memory_used(self):
        return super().memory_used() + self.cached

    def memory_outside(self):
        return self.cached

    def capture(self, forward, pool):
        self.cached += self.per_capture
        return super().capture(forward, pool)

    def warm_up(self, forward):
        self.cached += 30 * MIB
        return super().warm_up(forward)

    def trim(self):
        super().trim()
        self.cached = 0


def test_what_torch_keeps_of_a_capture_is_not_the_graphs_and_stays_within_the_bound():
    device = Caching(1 * MIB)
    manager = started(device, idle_bytes=20 * MIB)
    manager.execute(PackedTower().call([(1, 2, 3)]))
    device.per_capture, device.trims, graphs = 8 * MIB, 0, len(manager.graphs)
    used = device.memory_used()
    most = 0
    for _ in range(6):
        assert manager.capture_when_idle(1) == 1
        most = max(most, device.memory_used() - used)
    assert len(manager.graphs) == graphs + 6
    assert most <= 20 * MIB
    assert device.trims == 2  # after 24 of 17 MiB that are left, and after 24 of 14


@pytest.mark.parametrize("retry", [True, False])
def test_what_a_failed_capture_took_is_given_back(retry):
    """Its second try runs the forward eagerly, whose memory torch would keep."""

    device = Caching(0)
    manager = started(device, retry=retry)
    manager.execute(PackedTower().call([(1, 2, 3)]))
    used, arenas, device.fail = device.memory_used(), manager.report.arena_bytes, lambda number: True
    assert manager.capture_when_idle(1) == 0
    assert device.memory_used() == used
    assert manager._graph_set.buffers.nbytes == arenas
