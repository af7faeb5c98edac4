"""A graph inside the model's own code: ports that capture the encoder alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import assert_equals_eager, make_manager
from towers import GLOBAL_TOKENS, LOCAL_TOKENS, WIDTH, PackedTower, TileTower

from scaffold.runtime import EncoderDescription, GraphKey, Item, Limits
from scaffold.runtime.adapter import Replay


class Surrounded(TileTower):
    """Its own code scales tiles, encodes them (with `apart`, those of each item alone), and appends a token to an item.

    Nothing but this code knows what the encoder gets, as in the layout `cut`.
    """

    def __init__(self, *, apart: bool = False) -> None:
        super().__init__(axes=(4,))
        self.apart = apart
        self.passes = 0
        self.encoded: list[int] = []

    def _own_code(
        self, inputs: Mapping[str, Any], encode: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> Sequence[torch.Tensor] | None:
        self.passes += 1
        tiles, counts = inputs["tiles"] * 2, inputs["counts"]
        self.encoded += counts if self.apart else [len(tiles)]
        parts = [encode(part) for part in (tiles.split(counts) if self.apart else [tiles])]
        if any(part is None for part in parts):
            return None
        features = torch.cat(parts).view(-1, GLOBAL_TOKENS, WIDTH)
        return [torch.cat([part.flatten(0, 1), part.mean((0, 1))[None]]) for part in features.split(counts)]

    def embed(self, inputs: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        found = self._own_code(inputs, lambda tiles: self._tower(tiles, "default"))
        assert found is not None
        return found

    def around(self, inputs: Mapping[str, Any], replay: Replay) -> Sequence[torch.Tensor] | None:
        def encode(tiles: torch.Tensor) -> torch.Tensor | None:
            rows = len(tiles) * GLOBAL_TOKENS
            return replay("default", {"tiles": tiles}, rows, rows)

        return self._own_code(inputs, encode)

    def describe(self) -> EncoderDescription:
        return replace(super().describe(), axes=())

    def select(self, inputs: Mapping[str, Any], indices: Sequence[int]) -> tuple[Mapping[str, Any], tuple[()]]:
        return super().select(inputs, indices)[0], ()

    def whole(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[()]]:
        return inputs, ()

    def capture_values(self, key: GraphKey, limits: Limits) -> dict[str, torch.Tensor]:
        return super().capture_values(key._replace(axes=(4,)), limits)

    def replay_values(self, *_: object) -> dict[str, torch.Tensor]:
        raise AssertionError("the values are known only inside the model's own code")


class Apart(Surrounded):
    """It encodes the tiles of each item alone, and puts results together again: with `finish`, parts share a replay."""

    def __init__(self) -> None:
        super().__init__(apart=True)
        self.recorded: list[int] = []

    def replay_values(self, inputs: Mapping[str, Any], limits: Limits, path: str) -> dict[str, torch.Tensor]:
        tiles: list[torch.Tensor] = []
        self._own_code(inputs, lambda part: tiles.append(part) or torch.zeros(len(part) * GLOBAL_TOKENS, WIDTH))
        self.recorded.append(len(tiles))
        return {"tiles": torch.cat(tiles)}

    def finish(self, outputs, indices, items, results, inputs, eager) -> None:  # type: ignore[no-untyped-def]
        rows = [n * GLOBAL_TOKENS for n in inputs["counts"]]
        features = iter(outputs["default"][: sum(rows)].split(rows))
        results.update(zip(indices, self._own_code(inputs, lambda part: next(features)), strict=True))


def replays(manager) -> dict[int, int]:
    """Budget -> replays."""
    return {key.budget: stats.replays for key, stats in manager.stats.keys.items()}


def test_the_models_own_code_runs_once_a_call():
    tower = Surrounded()
    manager = make_manager(tower, [4, 8, 16])
    kept = []
    for seed in range(6):
        inputs = tower.call([2, 1], seed)
        tower.passes = 0
        outputs = manager.execute(inputs)
        assert tower.passes == 1
        kept.append((outputs, tower.embed(inputs)))
    for outputs, want in kept:  # what a later replay overwrites is not what a caller holds
        assert all(torch.equal(a, b) for a, b in zip(outputs, want, strict=True))
    assert replays(manager) == {16: 6}
    assert (manager.stats.plans_built, manager.stats.plans_reused, manager.stats.misses) == (1, 5, 0)


def test_a_smaller_call_leaves_nothing_of_a_larger_one():
    tower = Surrounded()
    manager = make_manager(tower, [16])
    assert_equals_eager(manager, tower.call([4], 1))
    for counts in ([1], [3], [1, 1], [2]):
        assert_equals_eager(manager, tower.call(counts, 2))
    assert manager.stats.misses == 0


def test_parts_of_a_batch_share_a_replay():
    """Two graphs of a part each would take longer than one of the whole batch."""
    tower = Apart()
    manager = make_manager(tower, [4, 8, 16])
    for seed in range(3):
        assert_equals_eager(manager, tower.call([1, 2], seed))
    assert tower.recorded == [2, 2, 2]
    assert_equals_eager(manager, tower.call([3]))  # one item is no part
    assert tower.recorded == [2, 2, 2]
    assert replays(manager) == {16: 4}
    assert (manager.stats.hits, manager.stats.misses) == (7, 0)

    larger = Surrounded(apart=True)
    larger.replay_values = lambda *_: {"tiles": torch.zeros(9, 4, 4)}  # type: ignore[method-assign]
    manager = make_manager(larger, [16])
    assert_equals_eager(manager, larger.call([1, 2]))
    assert dict(manager.stats.reasons) == {"other-call": 2}


def test_what_no_graph_holds_is_encoded_by_the_model():
    tower = Surrounded()
    manager = make_manager(tower, [4, 8])
    assert_equals_eager(manager, tower.call([3]))
    assert dict(manager.stats.reasons) == {"over-budget": 1}
    manager.stats.reasons.clear()

    # The model encodes more than its items have.
    counted = tower.items
    tower.items = lambda inputs: counted({"counts": [n // 2 for n in inputs["counts"]]})  # type: ignore[method-assign]
    assert_equals_eager(manager, tower.call([4]))
    assert dict(manager.stats.reasons) == {"other-call": 1}
    manager.stats.reasons.clear()

    tower.around = lambda inputs, replay: None  # type: ignore[method-assign]
    manager = make_manager(tower, [8])
    tower.items = counted  # type: ignore[method-assign]
    assert_equals_eager(manager, tower.call([2]))
    assert (dict(manager.stats.reasons), manager.stats.hits) == ({"other-call": 1}, 0)


def test_items_without_tokens_on_any_path_are_eager():
    """A port says so of units that no graph holds."""
    tower = Surrounded()
    honest = tower.items
    tower.items = lambda inputs: [  # type: ignore[method-assign]
        replace(item, path_tokens={"default": 0 if item.cost > 2 else item.tokens}) for item in honest(inputs)
    ]
    manager = make_manager(tower, [4, 8])
    assert_equals_eager(manager, tower.call([3]))
    assert (dict(manager.stats.reasons), manager.stats.hits) == ({"other-call": 1}, 0)
    assert_equals_eager(manager, tower.call([2, 3]))
    assert manager.stats.hits + manager.stats.misses == 3


@pytest.mark.parametrize(("slope", "batches"), [(1.0, 2), (0.5, 1)])
def test_batches_in_turn_lose_to_one_eager_call(slope, batches):
    """Two batches fill their graphs. Where a token costs less in a larger call, all of them run eager at once."""
    tower = Surrounded()
    manager = make_manager(tower, [8, 16])
    crossover = manager.crossover["default"]
    crossover.replay.add(8, 16.0 - 8 * slope)
    crossover.replay.add(16, 16.0)
    crossover.launch_ms = 1.0
    tower.encoded.clear()
    outputs = manager.execute(tower.call([4, 4]))
    assert tower.encoded == [8 // batches] * batches
    assert dict(manager.stats.reasons) == ({} if batches == 2 else {"crossover": 2})
    assert [len(output) for output in outputs] == [4 * GLOBAL_TOKENS + 1] * 2


def test_items_that_claim_too_many_tokens_stay_alone():
    """A port may keep an item off graphs by claiming tokens that it does not have: its rows must not be cut by them."""
    tower = PackedTower()
    honest = tower.items
    tower.items = lambda inputs: [  # type: ignore[method-assign]
        item if item.tokens < 20 else Item(item.cost, 100) for item in honest(inputs)
    ]
    manager = make_manager(tower, [8, 16])
    crossover = manager.crossover["default"]
    crossover.replay.add(8, 12.0)
    crossover.replay.add(16, 12.1)  # one call of everything looks best
    crossover.launch_ms = 1.0
    assert_equals_eager(manager, tower.call([(1, 4, 4), (1, 4, 5), (1, 4, 4)]))
    assert_equals_eager(manager, tower.call([(1, 4, 4), (1, 4, 4)]))
    assert dict(manager.stats.reasons) == {"over-budget": 1, "crossover": 2}


def test_batches_that_all_run_eager_are_one_call():
    """Slices of MiniCPM-V: no replay pays, and three eager calls took longer than the model's own one."""
    tower = Surrounded()
    manager = make_manager(tower, [8, 16])
    crossover = manager.crossover["default"]
    for budget, ms in ((8, 1.0), (16, 16.0)):
        crossover.replay.add(budget, ms)
    crossover.launch_ms = 1.0
    assert_equals_eager(manager, tower.call([3, 3], 1))  # 12 tokens each: 16 ms padded, 8.5 eager
    assert tower.passes == 2  # ours, and the one to compare with
    assert dict(manager.stats.reasons) == {"crossover": 2}

    # Above all budgets: one call, too, and for that reason.
    manager = make_manager(tower, [4])
    tower.passes = 0
    assert_equals_eager(manager, tower.call([3, 3], 2))
    assert tower.passes == 2
    assert dict(manager.stats.reasons) == {"over-budget": 2}


def test_a_model_that_is_known_to_encode_items_apart_does_not_have_to_tell():
    tower = Surrounded(apart=True)
    tower.encodes_apart = True  # type: ignore[attr-defined]
    tower.replay_values = lambda inputs, limits, path: {"tiles": inputs["tiles"] * 2}  # type: ignore[method-assign]
    tower.finish = lambda *_: None  # type: ignore[method-assign]
    manager = make_manager(tower, [4, 8, 16])
    manager._plans.forget = lambda: pytest.fail("the first call dropped all plans")  # type: ignore[method-assign]
    tower.passes = 0
    with pytest.raises(KeyError):  # nothing has put the results together
        manager.execute(tower.call([1, 2]))
    assert tower.passes == 0


def test_eager_has_the_launches_of_a_call_for_each_item():
    """A graph of more tokens than the batch has looks slower than eager until a replay has told of the calls."""
    tower = Apart()
    manager = make_manager(tower, [4, 8, 32])
    crossover = manager.crossover["default"]
    for budget, ms in ((4, 4.0), (8, 8.0), (32, 32.0)):
        crossover.replay.add(budget, ms)
    crossover.launch_ms = 17.0
    for seed in range(3):
        assert_equals_eager(manager, tower.call([2, 2], seed))  # 32 ms, or two calls of 17
    assert replays(manager) == {32: 3}
    assert_equals_eager(manager, tower.call([4]))  # one call of 17
    assert dict(manager.stats.reasons) == {"crossover": 1}
    crossover.launch_ms = 1.0
    assert_equals_eager(manager, tower.call([3, 1]))
    assert dict(manager.stats.reasons) == {"crossover": 3}


class WholeAndCrops(TileTower):
    """Its own code encodes item after item: a whole image, and its crops on another path, as in the layout `crops`."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.encoded_eagerly: list[str] = []

    def _own_code(
        self, inputs: Mapping[str, Any], encode: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        self.passes += 1
        crops = iter(inputs["local"].split(inputs["counts"]))
        embeddings = []
        for tile, mine in zip(inputs["tiles"], crops, strict=True):
            parts = [encode("global", tile[None] * 2), *([encode("local", mine + 1)] if len(mine) else [])]
            embeddings.append(torch.cat([*parts, parts[0].mean(0, keepdim=True)]))
        return embeddings

    def embed(self, inputs: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        return self._own_code(inputs, lambda path, units: self._tower(units, path))

    def around(self, inputs: Mapping[str, Any], replay: Replay) -> Sequence[torch.Tensor] | None:
        def encode(path: str, units: torch.Tensor) -> torch.Tensor:
            rows = len(units) * (GLOBAL_TOKENS if path == "global" else LOCAL_TOKENS)
            output = replay(path, {self._keys()[path]: units}, rows, rows)
            if output is None:
                self.encoded_eagerly.append(path)
                return self._tower(units, path)
            return output

        return self._own_code(inputs, encode)

    def replay_values(self, inputs: Mapping[str, Any], limits: Limits, path: str) -> dict[str, torch.Tensor]:
        recorded = []

        def record(other: str, units: torch.Tensor) -> torch.Tensor:
            if other == path:
                recorded.append(units)
            return self._tower(units, other)

        self._own_code(inputs, record)
        return {self._keys()[path]: torch.cat(recorded)}

    def eager(self, inputs: Mapping[str, Any], path: str = "default") -> torch.Tensor:
        self.eager_calls.append(path)
        return self._tower(next(iter(self.replay_values(inputs, Limits(1), path).values())), path)

    def finish(self, outputs, indices, items, results, inputs, eager) -> None:  # type: ignore[no-untyped-def]
        given = dict.fromkeys(outputs, 0)

        def take(path: str, units: torch.Tensor) -> torch.Tensor:
            rows = len(units) * (GLOBAL_TOKENS if path == "global" else LOCAL_TOKENS)
            given[path] += rows
            return outputs[path][given[path] - rows : given[path]]

        results.update(zip(indices, self._own_code(inputs, take), strict=True))


def test_each_path_is_replayed_where_the_models_code_encodes_it():
    tower = WholeAndCrops()
    manager = make_manager(tower, {"global": [4, 8], "local": [0, 4, 8]})
    for seed in range(3):
        inputs = tower.call([3], seed)
        tower.passes = 0
        outputs = manager.execute(inputs)
        assert tower.passes == 1
        assert all(torch.equal(a, b) for a, b in zip(outputs, tower.embed(inputs), strict=True))
    assert {str(key): stats.replays for key, stats in manager.stats.keys.items()} == {"global/4": 3, "local/8": 3}
    assert (manager.stats.plans_built, manager.stats.plans_reused, manager.stats.misses) == (1, 2, 0)

    assert_equals_eager(manager, tower.call([0]))  # no crops: their path has no run
    assert (tower.encoded_eagerly, manager.stats.misses) == ([], 0)


def test_items_of_two_paths_share_a_replay_a_path():
    tower = WholeAndCrops()
    manager = make_manager(tower, {"global": [4, 8], "local": [0, 4, 8]})
    for seed in range(3):
        assert_equals_eager(manager, tower.call([1, 2], seed))
    keys = {str(key): stats.replays for key, stats in manager.stats.keys.items()}
    assert keys == {"global/8": 3, "local/8": 3}
    # The crops of the only item that has some are the whole batch of their path, and its whole image is not.
    assert_equals_eager(manager, tower.call([2, 0]))
    assert manager.stats.misses == 0


def test_one_path_runs_eagerly_beside_the_graph_of_another():
    tower = WholeAndCrops()
    manager = make_manager(tower, {"global": [4, 8], "local": [0, 4]})
    assert_equals_eager(manager, tower.call([5]))
    assert (tower.encoded_eagerly, manager.stats.hits) == (["local"], 1)
    assert dict(manager.stats.reasons) == {"over-budget": 1}

    manager = make_manager(tower, {"global": [4, 8], "local": [0, 32]})
    local = manager.crossover["local"]
    for budget in (4, 8, 32):
        local.replay.add(budget, float(budget))
    local.launch_ms = 1.0
    for _ in range(2):  # the first replay tells that each item is a call
        assert_equals_eager(manager, tower.call([1, 1]))
    assert tower.eager_calls == ["local"]
    assert {str(key): stats.replays for key, stats in manager.stats.keys.items()} == {"global/8": 2, "local/32": 1}
    assert dict(manager.stats.reasons) == {"crossover": 2}


def test_a_path_that_no_item_has_declared_is_another_call():
    tower = WholeAndCrops()
    counted = tower.items
    tower.items = lambda inputs: counted({"counts": [0]})  # type: ignore[method-assign]
    manager = make_manager(tower, {"global": [4, 8], "local": [0, 4]})
    assert_equals_eager(manager, tower.call([1]))
    assert dict(manager.stats.reasons) == {"other-call": 1}

    def fail(*_: object) -> dict[str, torch.Tensor]:
        return {"tiles": torch.zeros(9, 4, 4)}

    tower.items = counted  # type: ignore[method-assign]
    tower.replay_values = fail  # type: ignore[method-assign]
    assert_equals_eager(manager, tower.call([0, 0]))
    assert dict(manager.stats.reasons) == {"other-call": 3}
