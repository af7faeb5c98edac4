"""What must never happen: NaN from padding, aliased outputs, an exception where eager would do, a dead server."""

import logging
from dataclasses import replace

import pytest
import torch
from helpers import CPU, assert_equals_eager, make_manager
from towers import GLOBAL_TOKENS, LOCAL_TOKENS, PackedTower, TileTower

from scaffold.runtime import (
    BufferSpec,
    EncoderGraphManager,
    GraphKey,
    Limits,
    Options,
    RecordingBackend,
    Trace,
    check_graphs,
)
from scaffold.runtime import manager as manager_module
from scaffold.runtime.manager import AddressChanged


def test_zero_items_never_reach_the_model():
    tower = PackedTower()
    manager = make_manager(tower)
    calls = dict(tower.calls)
    assert manager.execute({"pixels": torch.zeros(0, 4), "grids": []}) == []
    assert tower.calls == {**calls, "items": calls["items"] + 1}
    assert not tower.seen_empty


def test_inputs_without_pixels_go_to_the_model_itself():
    tower = PackedTower()
    manager = make_manager(tower)
    embeds = [torch.ones(3, 8), torch.zeros(2, 8)]
    outputs = manager.execute({"embeds": embeds})
    assert [o is e for o, e in zip(outputs, embeds, strict=True)] == [True, True]
    assert (manager.stats.hits, manager.stats.misses, dict(manager.stats.reasons)) == (0, 2, {"no-pixels": 2})


@pytest.mark.parametrize(
    ("grids", "reason"),
    [
        ([(1, 5, 7)], "over-budget"),
        # 30 frames of one token each: tokens fit, sequences do not
        ([(30, 1, 1)], "capacity:offsets"),
    ],
)
def test_what_exceeds_a_capacity_runs_eager_and_is_counted(grids, reason):
    tower = PackedTower()
    manager = make_manager(tower, [32])
    assert_equals_eager(manager, tower.call(grids))
    assert (manager.stats.hits, manager.stats.misses) == (0, 1)
    assert dict(manager.stats.reasons) == {reason: 1}


def test_a_model_may_claim_more_than_an_item_has_to_keep_it_out_of_graphs():
    """As ports of 0.20 to 0.26 do for a video of more frames than a graph is captured for."""

    class Claims(PackedTower):
        def items(self, inputs):
            return [replace(item, tokens=33) if t > 2 else item
                    for item, (t, _, _) in zip(super().items(inputs), inputs["grids"], strict=True)]  # fmt: skip

    manager = make_manager(Claims())
    manager.trace = Trace()
    for seed, grids in enumerate([[(3, 1, 2)], [(1, 2, 3), (4, 1, 1), (1, 1, 1), (3, 1, 2)]]):
        assert_equals_eager(manager, manager.adapter.call(grids, seed))
    assert manager.stats.reasons == {"over-budget": 3}
    assert manager.stats.hits == 2
    assert manager.trace.sizes() == {7: 1}  # no ladder would replay the others


def test_a_batch_that_lacks_another_capacity_takes_the_next_graph(monkeypatch):
    class Sequences(PackedTower):
        """Room for as many sequences as tokens allow, times a quarter."""

        def capture_values(self, key, limits):
            return super().capture_values(key, Limits(max(key.budget // 8, 1)))

    tower = Sequences()
    narrow = make_manager(tower, [8, 16, 64])
    assert_equals_eager(narrow, tower.call([(8, 1, 1)]))
    assert dict(narrow.stats.reasons) == {"capacity:offsets": 1}
    monkeypatch.setattr(manager_module, "MAX_STRETCH", 8)
    manager = make_manager(tower, [8, 16, 64])
    assert_equals_eager(manager, tower.call([(8, 1, 1)]))
    assert [key.budget for key in manager.stats.keys] == [64]


def test_a_longer_sequence_than_the_frozen_bound_runs_eager():
    class Short(PackedTower):
        def capture_values(self, key, limits):
            return {**super().capture_values(key, limits), "longest": torch.tensor(8, dtype=torch.int32)}

    tower = Short()
    manager = make_manager(tower, [32])
    assert_equals_eager(manager, tower.call([(1, 1, 4), (1, 1, 3)]))
    assert_equals_eager(manager, tower.call([(1, 1, 5)]))
    assert manager.stats.hits == 2
    assert dict(manager.stats.reasons) == {"capacity:longest": 1}


def test_outputs_do_not_alias_though_the_model_returns_views():
    tower = TileTower()
    manager = make_manager(tower, {"global": [4 * GLOBAL_TOKENS], "local": [0, 8 * LOCAL_TOKENS]})
    (first,) = assert_equals_eager(manager, tower.call([0], seed=1))  # no local tiles: Step3's hook returns a view
    before = first.clone()
    for seed in range(2, 5):
        assert_equals_eager(manager, tower.call([3, 0, 1], seed))
    assert first.equal(before)
    memory = {g.output.untyped_storage().data_ptr() for g in manager.backend.graphs}
    assert first.untyped_storage().data_ptr() not in memory


def test_a_path_without_any_budget_runs_eager():
    tower = TileTower()
    manager = make_manager(tower, {"global": [8 * GLOBAL_TOKENS], "local": []})
    assert_equals_eager(manager, tower.call([2, 0, 1]))
    assert set(tower.eager_calls) == {"local"}
    assert manager.stats.hits > 0


def test_one_path_may_run_eager_while_the_other_replays():
    tower = TileTower()
    manager = make_manager(tower, {"global": [4 * GLOBAL_TOKENS], "local": [0, 2 * LOCAL_TOKENS]})
    assert_equals_eager(manager, tower.call([5]))
    assert tower.eager_calls == ["local"]
    assert (manager.stats.hits, manager.stats.misses) == (1, 0)
    assert dict(manager.stats.reasons) == {"over-budget": 1}


@pytest.mark.parametrize(("retry", "captures", "failed"), [(True, 3, 0), (False, 2, 1)])
def test_a_capture_that_fails_once_is_tried_again_unless_it_holds_collectives(retry, captures, failed):
    backend = RecordingBackend()
    numbers: list[int] = []
    backend.fail = lambda number: numbers.append(number) or number == 1
    manager = make_manager(PackedTower(), [8, 16], backend=backend, retry=retry, compact=False)
    assert (len(numbers), len(manager.report.failed)) == (captures, failed)


@pytest.mark.parametrize("failing", [{1, 2}, {1, 2, 3, 4}])
def test_a_failing_capture_costs_one_warning_and_means_eager_for_that_key(failing, caplog):
    backend = RecordingBackend()
    backend.fail = lambda number: number in failing  # each key is tried twice
    tower = PackedTower()
    with caplog.at_level(logging.WARNING, "scaffold.runtime"):
        manager = make_manager(tower, [8, 16], backend=backend)
    failed = list(manager.report.failed)
    (warning,) = [r.message for r in caplog.records if "cannot be captured" in r.message]
    assert warning.startswith(f"{len(failed)} encoder graphs cannot be captured")
    assert all(str(key) in warning for key in failed)
    caplog.clear()
    for key in failed:
        assert_equals_eager(manager, tower.call([(1, 1, key.budget)]))
    if len(failed) == 2:
        assert manager.stats.reasons["capture-failed"] == 2
    assert not caplog.records


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda v: v["pixels"].sum().item() + v["pixels"], "reads a device value"),
        (lambda v: v["pixels"][v["real"]], "mask"),
        (lambda v: v["pixels"][torch.nonzero(v["real"])[:, 0]], "reads a device value"),
        (lambda v: (v["pixels"], 1), "not a tensor"),
    ],
)
def test_what_cannot_be_captured_is_named(forward, message):
    class Hazard(PackedTower):
        def forward(self, values, path="default"):
            return forward(values)

    manager = make_manager(Hazard(), [8])
    ((key, why),) = manager.report.failed.items()
    assert key == GraphKey("default", 8)
    assert message in why


def test_stale_pixels_of_a_larger_call_are_cleared():
    tower = PackedTower()
    manager = make_manager(tower, [8, 32])
    spoiled = tower.call([(1, 1, 30)])
    spoiled["pixels"] = spoiled["pixels"] * float("nan")
    manager.execute(spoiled)  # one user's broken pixels
    for seed in range(2):
        for output in assert_equals_eager(manager, tower.call([(1, 1, 5)], seed)):
            assert torch.isfinite(output).all()
        assert_equals_eager(manager, tower.call([(1, 1, 20)], seed))


def test_debug_mode_notices_a_moved_tensor():
    class Watched(PackedTower):
        def watched(self):
            return {"embed_in": self.embed_in}

    tower = Watched()
    manager = make_manager(tower, [8], debug_addresses=True)
    assert_equals_eager(manager, tower.call([(1, 1, 5)]))
    tower.embed_in = tower.embed_in.clone()
    with pytest.raises(AddressChanged, match="embed_in"):
        manager.execute(tower.call([(1, 1, 5)]))


def test_values_that_depend_on_pixels_are_not_memoised():
    class Computed(PackedTower):
        """Normalises pixels in the replay hook, as models with uint8 pixels do."""

        def replay_values(self, inputs, limits, path):
            return {**super().replay_values(inputs, limits, path), "pixels": inputs["pixels"] * 1.0}

    tower = Computed()
    manager = make_manager(tower)
    for seed in range(3):
        assert_equals_eager(manager, tower.call([(1, 1, 5)], seed))
        assert_equals_eager(manager, tower.call([(1, 1, 3)], seed))
    assert manager.stats.plans_reused == 0
    assert manager.stats.hits == 6


def test_a_buffer_that_replays_leave_alone_keeps_its_capture_value():
    class Constant(PackedTower):
        def replay_values(self, inputs, limits, path):
            values = super().replay_values(inputs, limits, path)
            return {**values, "scale": None}

        def capture_values(self, key, limits):
            return {**super().capture_values(key, limits), "scale": torch.full((1,), float(key.budget))}

        def forward(self, values, path="default"):
            return super().forward(values, path) * values["scale"] / values["pixels"].shape[0] * 2

    def pad(target, source):
        """As the generated `_pad_offsets` does: it divides by the places that are left to pad."""
        _ = 1 // (len(target) - len(source))

    for extra in ({}, {"scale": BufferSpec(pad=pad)}):
        tower = Constant()
        tower.embed = PackedTower().embed
        tower.extra_buffers = extra
        manager = make_manager(tower, [8, 16])
        for seed, n in enumerate((3, 12, 5)):
            assert_equals_eager(manager, tower.call([(1, 1, n)], seed))


# -- the self-check


def test_self_check_passes_on_sound_graphs():
    manager = make_manager(PackedTower())
    findings = check_graphs(manager)
    assert [f.key.budget for f in findings] == [8, 16, 32]
    assert all(f.ok for f in findings)


def test_self_check_finds_a_forward_that_reads_garbage():
    class Garbage(PackedTower):
        def forward(self, values, path="default"):
            out = super().forward(values, path)
            return out + torch.empty_like(out).clamp(0, 0)

    findings = check_graphs(make_manager(Garbage(), [8]))
    assert [f.ok for f in findings] == [False]
    assert "nan" in findings[0].detail


def test_self_check_refuses_a_graph_that_eager_says_nothing_of():
    """Memory that eager does not write may hold NaN from before: then no value of the replay could be wrong."""

    class Nothing(PackedTower):
        def forward(self, values, path="default"):
            return super().forward(values, path) * float("nan")

    (finding,) = check_graphs(make_manager(Nothing(), [8]))
    assert not finding.ok
    assert "no finite value" in finding.detail


def test_a_graph_that_the_self_check_refuses_is_dropped_and_its_sizes_run_eager():
    class Garbage(PackedTower):
        """Reads what another graph left in the pool, in one of its graphs only."""

        def forward(self, values, path="default"):
            out = super().forward(values, path)
            return out + torch.empty_like(out).clamp(0, 0) if len(out) == 8 else out

        def eager(self, inputs, path="default"):
            return PackedTower.forward(self, {**self.replay_values(inputs, Limits(4), path)}, path)

    tower = Garbage()
    manager = make_manager(tower, [8, 32])
    for finding in check_graphs(manager):
        if not finding.ok:
            manager.drop(finding.key, "differs from eager")
    assert [key.budget for key in manager.graphs] == [32]
    assert_equals_eager(manager, tower.call([(1, 2, 3)]))
    assert_equals_eager(manager, tower.call([(1, 4, 7)]))
    assert (manager.stats.hits, dict(manager.stats.reasons)) == (1, {"capture-failed": 1})


def test_self_check_finds_a_frozen_python_value():
    class Frozen(PackedTower):
        def __init__(self):
            super().__init__()
            self.runs = 0

        def forward(self, values, path="default"):
            self.runs += 1
            return super().forward(values, path) + self.runs

    assert [f.ok for f in check_graphs(make_manager(Frozen(), [8]))] == [False]


# -- construction


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Options(packing="magic"), "packing"),
        (lambda: make_manager(TileTower(), {"global": [4]}, capture=False), "local"),
        (lambda: make_manager(TileTower(axes=()), {"default": [4]}, capture=False), "no budgets"),
    ],
)
def test_a_wrong_construction_says_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_clear_releases_everything_and_capture_works_again():
    tower = PackedTower()
    manager = make_manager(tower)
    assert manager.is_captured()
    manager.clear()
    assert not manager.is_captured()
    assert manager.graphs == {}
    assert_equals_eager(manager, tower.call([(1, 1, 3)]))
    assert dict(manager.stats.reasons) == {"not-captured": 1}
    manager.capture()
    assert_equals_eager(manager, tower.call([(1, 1, 3)]))
    assert manager.stats.hits == 1


def test_the_manager_does_not_need_a_capture():
    tower = PackedTower()
    manager = EncoderGraphManager(
        tower, CPU, torch.float32, ladders={"default": [8]}, limits=Limits(2), backend=RecordingBackend()
    )
    assert_equals_eager(manager, tower.call([(1, 1, 3), (1, 2, 2)]))
    assert manager.stats.misses == 2
