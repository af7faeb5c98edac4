"""The same contracts on real CUDA graphs. Metadata are computed on the host, so the staging buffer is used."""

import itertools
import random

import pytest
import torch
from helpers import assert_equals_eager, make_manager
from towers import PackedTower

from scaffold.runtime import CudaGraphBackend, GraphKey, capture, check_graphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")


def make(tower, ladder=(8, 16, 32, 64), failed=(), **options):
    manager = make_manager(tower, ladder, backend=CudaGraphBackend(CUDA), device=CUDA, **options)
    assert list(manager.report.failed) == list(failed)
    return manager


@pytest.mark.parametrize("two_section", [False, True])
def test_random_traffic_equals_eager(two_section):
    tower = PackedTower(two_section=two_section, device=CUDA)
    manager = make(tower, sample_every=1)
    random.seed(0)
    kept = []
    for seed in range(60):
        grids = [
            (random.randint(1, 2), random.randint(1, 3), random.randint(1, 5)) for _ in range(random.randint(1, 6))
        ]
        outputs = assert_equals_eager(manager, tower.call(grids, seed))
        kept += [(o, o.clone()) for o in outputs]
    assert all(o.equal(copy) for o, copy in kept)
    assert manager.stats.hits > 100
    assert any(s.mean_ms for s in manager.stats.keys.values())


def test_self_check_with_poisoned_pool():
    tower = PackedTower(device=CUDA)
    assert all(f.ok for f in check_graphs(make(tower)))

    class Garbage(PackedTower):
        def forward(self, values, path="default"):
            out = super().forward(values, path)
            return out + torch.empty(1 << 24, device=CUDA).sum() * 0

    assert not all(f.ok for f in check_graphs(make(Garbage(device=CUDA))))


def test_a_failing_capture_leaves_the_others_usable():
    class Hazard(PackedTower):
        def forward(self, values, path="default"):
            if values["pixels"].shape[0] == 32:
                values["pixels"].sum().item()
            return super().forward(values, path)

    tower = Hazard(device=CUDA)
    manager = make(tower, [8, 16, 32], failed=[GraphKey("default", 16)])
    for seed, n in enumerate((5, 12, 30, 7, 15)):
        assert_equals_eager(manager, tower.call([(1, 1, n)], seed))
    assert manager.stats.hits == 5  # sizes of the failed budget took the next one
    assert torch.randn(10, device=CUDA).sum().isfinite()  # the allocator and the stream are sound


def test_clear_gives_the_memory_back():
    def used():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    tower = PackedTower(device=CUDA)
    make(tower).clear()
    before = used()
    manager = make(tower, [64, 1024])
    manager.execute(tower.call([(1, 1, 1000)]))
    assert used() > before
    manager.clear()
    del manager
    assert used() == before


def test_replay_does_not_wait_for_the_device():
    tower = PackedTower(device=CUDA)
    manager = make(tower, sample_every=2)
    calls = [tower.call([(1, 1, n)], n) for n in (5, 12, 30)]
    for inputs in calls:
        manager.execute(inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for inputs in itertools.chain(calls, calls):
            manager.execute(inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert manager.stats.plans_reused == 6


def test_a_trial_takes_its_times_from_the_device():
    tower = PackedTower(device=CUDA)
    manager = make(tower, trials=4)
    inputs = tower.call([(1, 1, 12)])
    expected = manager.execute(inputs)[0]
    for _ in range(20):
        torch.testing.assert_close(manager.execute(inputs)[0], expected, rtol=1e-4, atol=1e-4)
        torch.cuda.synchronize()
    (run,) = next(iter(manager._plans.values())).steps[0].runs
    assert run.trial is None  # decided
    assert not run.eager  # a replay of so small a tower is faster by far
    assert manager.stats.misses == 3


@pytest.mark.parametrize("compact", [True, False])
def test_one_block_holds_the_intermediate_values_of_all_graphs(compact):
    class Greedy(PackedTower):
        """Needs a large block after small ones, which leaves gaps where each gets a segment of its own."""

        def forward(self, values, path="default"):
            out = super().forward(values, path)
            rows = values["pixels"].shape[0]
            small = [torch.ones(rows, 12 << 10, device=CUDA) for _ in range(4)]
            total = sum(t[:1, 0].sum() for t in small)
            del small
            return out + 0 * (total + torch.ones(rows, 40 << 10, device=CUDA)[:1, 0].sum())

    manager = make(Greedy(device=CUDA), [512, 1024], compact=compact)
    assert_equals_eager(manager, manager.adapter.call([(1, 30, 30)]))
    segments = [
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) == tuple(manager.pool) and segment["total_size"] > 20 << 20
    ]
    assert (len(segments) == 1) is compact, segments


def test_an_idle_worker_captures_what_the_traffic_needs(monkeypatch):
    monkeypatch.setattr(capture, "IDLE_SHARE", 1000)  # a quarter of what so small graphs take holds no segment
    tower = PackedTower(device=CUDA)
    manager = make(tower, range(8, 65), start_steps=1)
    for seed in range(5):
        assert_equals_eager(manager, tower.call([(1, 3, 7)], seed))
        manager.capture_when_idle(1)
    assert GraphKey("default", 21) in manager.graphs
    assert manager.stats.keys[GraphKey("default", 21)].waste == 0
