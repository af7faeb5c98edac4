"""The bench of the lab: what sessions on one host share, and what they must not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs the `cpu` extra")


def test_a_manager_finds_nothing_that_an_earlier_one_left():
    """Ports for 0.20 to 0.22 keep captured offsets on the model, by budget: those of another session are not its."""
    from scaffold.verify.numeric.session import Bench

    host = torch.nn.Linear(2, 2)
    host.made_by_the_model = 1
    bench = Bench(None, host, SimpleNamespace(), None, (), {}, {})
    host.left_by_a_manager = {64: "offsets"}

    bench.forget_managers()

    assert not hasattr(host, "left_by_a_manager")
    assert host.made_by_the_model == 1
    assert host(torch.ones(2)).shape == (2,)
