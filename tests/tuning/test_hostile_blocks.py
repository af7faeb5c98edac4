"""No tuning changes what a hostile block or tower computes (`hostile.py`): two calls each, outputs and what stays."""

import copy

import pytest
import torch
from hostile import CASES, InPlaceTower, Tower
from torch import nn

from scaffold.runtime.tuning import DEFAULT, TuningChoice, tune


class Host(nn.Module):
    def __init__(self, tower):
        super().__init__()
        self.visual, self.language_model = tower, nn.Module()


def made(cls):
    torch.manual_seed(3)
    tower = cls().eval().requires_grad_(False)
    for number, parameter in enumerate(tower.parameters()):
        generator = torch.Generator().manual_seed(number)
        parameter.data = parameter.data.new_empty(parameter.shape).normal_(generator=generator) * 0.5
    return tower


def outcome(tower, act):
    """What two calls give, with what the tower keeps and what it did to its input; or the error."""
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    handle = act(tower)
    found = []
    try:
        for scale in (1.0, 0.7):
            given = rows * scale
            with torch.inference_mode():
                found += [tower(given).clone(), given]
    except Exception as error:
        return [type(error).__name__]
    finally:
        if handle is not None:
            handle.remove()
    kept = [m.memory for m in tower.modules() if isinstance(getattr(m, "memory", None), torch.Tensor)]
    counts = [torch.tensor(m.count) for m in tower.modules() if isinstance(getattr(m, "count", None), int)]
    return [*found, *kept, *counts, *tower.seen, *tower.buffers()]


def equal(got, want):
    if len(got) != len(want):
        return False
    return all(
        a == b if isinstance(b, str) else a.dtype is b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)
        for a, b in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_no_tuning_changes_a_hostile_tower(name):
    cls, before, after = CASES[name]
    plain, tuned = made(cls), made(cls)
    handles = []
    for tower in (plain, tuned):
        torch.manual_seed(5)
        handles.append(before(tower))
        tower.requires_grad_(False)
        if handles[-1] is not None and tower is plain:
            handles.pop().remove()  # a hook on all modules: one at a time
            want = outcome(plain, before)
        elif tower is plain:
            want = outcome(plain, after)
    result = tune(Host(tuned), TuningChoice(DEFAULT))
    got = outcome(tuned, after)
    for handle in handles:
        if handle is not None:
            handle.remove()
    assert equal(got, want), [str(o) for o in result.outcomes if o.applied]


def test_there_are_enough_of_them():
    assert len(CASES) >= 60


@pytest.mark.parametrize("cls", [Tower, InPlaceTower])
def test_the_plain_tower_is_tuned(cls):
    """Or the cases would prove nothing."""
    tower = made(cls)
    want = outcome(copy.deepcopy(tower), lambda _: None)
    applied = {o.name: len(o.applied) for o in tune(Host(tower)).outcomes}
    assert applied["fused-residuals"] == applied["gelu-epilogue"] == applied["pad-mlp"] == 4
    assert applied["fused-norms"] == 12
    assert equal(outcome(tower, lambda _: None), want)
