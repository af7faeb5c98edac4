"""The profiler's ranges: one a call of a vision module, of a tower that runs as it does without them."""

import pytest

pytest.importorskip("torch", reason="needs the `cpu` extra")

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from scaffold.measure.runs import module_ranges
from scaffold.measure.trace import MODULE_RANGE
from scaffold.runtime.tuning.forwards import is_untouched


class Host(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
        self.language_model = nn.Linear(4, 4)

    def forward(self, x):
        assert all(map(is_untouched, self.modules()))
        return self.language_model(self.visual(x))


def test_ranges_name_every_call_of_a_vision_module_and_leave_the_modules_alone():
    host, x = Host(), torch.randn(2, 4)
    plain = nn.Module.__call__
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with module_ranges(host, describe=False):
            watched = host(x)
        host(x)
    names = [event.name for event in profiler.events() if event.name.startswith(MODULE_RANGE)]
    assert sorted(name.split(":", 1)[1] for name in names) == [
        "0:visual:Sequential", "1:visual.0:LayerNorm", "2:visual.1:Linear",
    ]  # fmt: skip
    assert nn.Module.__call__ is plain
    assert torch.equal(watched, host(x))


def test_ranges_end_with_a_call_that_fails():
    host, plain = Host(), nn.Module.__call__
    with pytest.raises(RuntimeError, match="normalized_shape"), module_ranges(host, describe=False):
        host(torch.randn(2, 5))
    assert nn.Module.__call__ is plain
