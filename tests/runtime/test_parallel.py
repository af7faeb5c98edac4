"""Data parallelism with real processes (gloo): the same outputs on every rank as eager on one."""

import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from scaffold.runtime import TorchGroup
from scaffold.runtime.parallel import assign_by_cost

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import ranks  # noqa: E402
from helpers import assert_equals_eager, make_manager  # noqa: E402
from towers import PackedTower, TileTower  # noqa: E402

CALLS = {
    "one item, ranks without work": [(1, 2, 3)],
    "as many as ranks": [(1, 1, 2), (1, 3, 3)],
    "mixed": [(1, 3, 5), (1, 1, 1), (2, 2, 2), (1, 2, 6), (1, 1, 3), (1, 4, 4), (1, 1, 1)],
    "over budget on one rank": [(1, 9, 9), (1, 1, 2), (1, 1, 2)],
    "nothing": [],
}


@given(costs=st.lists(st.integers(0, 50), max_size=12), ranks=st.integers(1, 5))
@settings(deadline=None)
def test_every_item_goes_to_one_rank_and_the_load_is_balanced(costs, ranks):
    assignment = assign_by_cost(costs, ranks)
    assert sorted(i for indices in assignment for i in indices) == list(range(len(costs)))
    work = [sum(costs[i] for i in indices) for indices in assignment]
    assert max(work) <= sum(costs) / ranks + max(costs, default=0)
    assert assignment == assign_by_cost(list(costs), ranks)


def _check(size: int, store: str) -> int:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=ranks.rank(), world_size=size)
    tower = PackedTower()
    manager = make_manager(tower, [4, 16, 24])
    manager.group = TorchGroup()
    for seed, grids in enumerate(CALLS.values()):
        inputs = tower.call(grids, seed)
        assert_equals_eager(manager, inputs)
        assert not tower.seen_empty
    assert manager.stats.hits > 0
    tiles = TileTower()
    manager = make_manager(tiles, {"global": [8], "local": [0, 12]})
    manager.group = TorchGroup()
    for counts in ([0], [3, 0, 1, 2], [7, 1]):
        assert_equals_eager(manager, tiles.call(counts))
    torch.distributed.barrier()  # no rank leaves while another one still talks to it
    torch.distributed.destroy_process_group()
    return 0


def test_two_and_four_ranks_agree_with_eager(tmp_path):
    """Forks of one process, which imports torch once. None of them waits for ever."""
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_wrong_width_is_an_error_not_a_hang():
    from scaffold.runtime.parallel import run_sharded

    class Alone:
        rank, size = 0, 2

        def all_gather(self, tensor):
            raise AssertionError("must not be reached")

    with pytest.raises(ValueError, match="expected"):
        run_sharded(
            Alone(), costs=[1, 1], tokens=[2, 2], run=lambda mine: [torch.zeros(2, 5)],
            width=4, device=torch.device("cpu"), dtype=torch.float32,
        )  # fmt: skip


def main(folder: str) -> int:
    import_module("torch._dynamo")  # or each group does
    return max(ranks.run(partial(_check, size, f"{folder}/{size}"), size, seconds=120) for size in (2, 4))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
