"""The calls that prove a tuning at start-up: their budget, and what of their inputs is random."""

from dataclasses import replace

import pytest
import torch
from helpers import CPU, make_manager
from towers import PackedTower

from scaffold.runtime import BufferSpec
from scaffold.runtime.vllm.manager import EncoderCudaGraphManager
from scaffold.runtime.vllm.settings import Settings


class Watched(PackedTower):
    """Keeps what its forwards get."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, values, path="default"):
        self.seen.append({name: value.clone() for name, value in values.items()})
        return super().forward(values, path)


class Rows(Watched):
    """A port of rows: no buffer is known to hold pixels."""

    def describe(self):
        description = super().describe()
        return replace(description, buffers={**description.buffers, "pixels": BufferSpec()})


def calls(tower, ladder):
    """What two forwards of the proof get, before and after its pixels move."""
    manager = object.__new__(EncoderCudaGraphManager)
    manager.settings = replace(Settings(), tuning_check=True)
    manager.device = CPU
    manager._core = make_manager(tower, ladder, capture=False)
    prove = manager._proof()
    tower.seen.clear()
    with torch.inference_mode():
        prove(0.0)
        prove(1.0)
    return tower.seen


@pytest.mark.parametrize(
    ("ladder", "budget"),
    [((64, 256, 512, 1024), 512), ((64, 300, 400), 400), ((64, 600, 800), 600), ((1024, 2048), 1024)],
)
def test_the_proof_runs_on_the_smallest_budget_of_512_tokens_or_more_else_on_the_largest(ladder, budget):
    smallest, proven = (calls(Watched(), given)[0]["pixels"] for given in ((budget,), ladder))
    assert proven.shape == smallest.shape


@pytest.mark.parametrize("tower", [Watched, Rows])
def test_the_proof_runs_on_random_pixels_that_move(tower):
    before, after = calls(tower(), (64,))
    assert before["pixels"].std() > 0.5
    assert not torch.equal(before["pixels"], after["pixels"])
    assert torch.equal(before["offsets"], after["offsets"])
