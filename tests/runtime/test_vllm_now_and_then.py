"""Captures where the engine does not tell when it is idle: after a batch, within a small share of the time."""

import itertools
from types import SimpleNamespace

import pytest

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
