"""The calls that prove a tuning at start-up: their budget, and what of their inputs is random."""

from dataclasses import replace

import pytest
import torch
from helpers import CPU, make_manager
from towers import PackedTower

from scaffold.runtime import BufferSpec, check_graphs
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


class Bytes(Watched):
    """A model that scales raw pixels itself, as vLLM's do where the processor leaves that to the device."""

    def capture_values(self, key, limits):
        values = super().capture_values(key, limits)
        return {**values, "pixels": values["pixels"].to(torch.uint8)}

    def forward(self, values, path="default"):
        return super().forward({**values, "pixels": values["pixels"].float() / 255}, path)


def proof_of(tower, ladder):
    """The proof of a manager for this tower."""
    manager = object.__new__(EncoderCudaGraphManager)
    manager.settings = Settings()
    manager.device = CPU
    manager._core = make_manager(tower, ladder, capture=False)
    prove = manager._proof()
    tower.seen.clear()
    return prove


def calls(tower, ladder, steps=(0.0,)):
    """What the forwards of the proof get."""
    prove = proof_of(tower, ladder)
    with torch.inference_mode():
        for step in steps:
            prove(step)
    return tower.seen


@pytest.mark.parametrize(
    ("ladder", "budgets"),
    [((64, 256, 512, 1024), (64, 512)), ((64, 300, 400), (64, 400)), ((1024, 2048), (1024,)), ((64,), (64,))],
)
def test_the_proof_runs_on_the_smallest_budget_and_on_one_of_512_tokens_or_more_else_on_the_largest(ladder, budgets):
    proven = [call["pixels"].shape for call in calls(Watched(), ladder)]
    assert proven == [calls(Watched(), (budget,))[0]["pixels"].shape for budget in budgets]


@pytest.mark.parametrize("tower", [Watched, Rows])
def test_the_proof_runs_on_random_pixels_that_move(tower):
    before, after = calls(tower(), (64,), steps=(0.0, 1.0))
    assert before["pixels"].std() > 0.5
    assert not torch.equal(before["pixels"], after["pixels"])
    assert torch.equal(before["offsets"], after["offsets"])


def test_the_proof_runs_on_random_bytes_where_a_model_gets_raw_pixels():
    eps = torch.finfo(torch.bfloat16).eps
    before, after = (call["pixels"] * 255 for call in calls(Bytes(), (4096,), steps=(0.0, eps)))
    assert before.std() > 60
    assert (before - after).abs().max().round() == 1
    # As many moved as have the variance of half-steps: see `moved`.
    assert (before != after).double().mean() == pytest.approx((eps * 256 / 12) ** 2, rel=0.2)


def test_the_self_check_finds_a_graph_that_does_not_read_its_bytes():
    class Baked(Bytes):
        is_captured = False

        def forward(self, values, path="default"):
            if not self.is_captured:
                values = {**values, "pixels": torch.zeros_like(values["pixels"])}
            return super().forward(values, path)

    for tower, sound in ((Bytes(), True), (Baked(), False)):
        manager = make_manager(tower, (64,))
        tower.is_captured = True
        assert [finding.ok for finding in check_graphs(manager)] == [sound]
