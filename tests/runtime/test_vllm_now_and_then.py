"""Captures where the engine does not tell when it is idle: after a batch, within a small share of the time."""

import itertools
from types import SimpleNamespace

import pytest

from scaffold.runtime.stats import Stats
from scaffold.runtime.vllm import idle, served
from scaffold.runtime.vllm.manager import EncoderCudaGraphManager


@pytest.fixture
def manager(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(served.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(idle._Pauses, "seen", False)
    monkeypatch.setattr(EncoderCudaGraphManager, "execute", lambda self, inputs: [])
    made = served.ServedManager.__new__(served.ServedManager)
    made._log_stats = lambda: None
    made.clock, made.captures, made.left = clock, [], 100
    monkeypatch.setattr(served.ServedManager, "wants_graphs", property(lambda self: self.left > 0))

    def capture(most):
        clock.now += 0.05
        made.captures.append(clock.now)
        made.left -= most

    made.capture_when_idle = capture
    return made


def serve(manager, batches, every):
    for _ in range(batches):
        manager.clock.now += every
        before = len(manager.captures)
        assert manager.execute({}) == []
        yield len(manager.captures) > before


def test_captures_take_a_small_share_and_no_two_batches_in_a_row_wait(manager):
    waited = list(serve(manager, 1000, every=0.1))
    assert 1 <= sum(waited) <= 1 + served.SHARE * manager.clock.now / 0.05
    assert not any(a and b for a, b in itertools.pairwise(waited))


def test_no_batch_waits_where_a_loop_tells_of_its_pauses(manager, monkeypatch):
    monkeypatch.setattr(idle._Pauses, "seen", True)
    assert not any(serve(manager, 100, every=10.0))


def test_nothing_is_captured_when_nothing_is_missing(manager):
    manager.left = 2
    assert sum(serve(manager, 100, every=100.0)) == 2


@pytest.mark.parametrize(
    ("given", "limit"),
    [(None, "--max-num-batched-tokens or --max-model-len"), ([16, 64], "encoder_cudagraph_token_budgets")],
)
def test_images_above_all_budgets_are_told_of_once_with_the_setting_that_limits_them(monkeypatch, given, limit):
    said = []
    monkeypatch.setattr(served.logger, "warning", lambda text, *values: said.append(text % values))
    made = served.ServedManager.__new__(served.ServedManager)
    made.token_budgets, made._core = [16, 64], SimpleNamespace(stats=Stats())
    made.vllm_config = SimpleNamespace(compilation_config=SimpleNamespace(encoder_cudagraph_token_budgets=given))
    made._log_stats()
    assert said == []

    made.stats.miss("over-budget", 1)
    made._log_stats()
    made.stats.miss("over-budget", 1)
    made._log_stats()

    (warning,) = said
    assert warning == f"images of more than 64 tokens have no graph and run eager: {limit} allows no larger ones"
