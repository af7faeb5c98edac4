"""Emulated graphs keep the semantics of CUDA graphs, and what a real capture refuses is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the `cpu` extra")

from scaffold.verify.numeric.graphs import DEVICE, HOST, Lab  # noqa: E402

pytestmark = pytest.mark.lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab([])
    with made.watch(), torch.inference_mode():
        yield made


def capture(body: Callable[[], Any]) -> tuple[Any, Any]:
    """Record `body` the way a manager does; gives the graph and what `body` returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=(0, 0)):
        result = body()
    return graph, result


def on_device(*values: float) -> Any:
    return torch.tensor(values, device=DEVICE)


def test_a_replay_reads_the_recorded_storages(lab: Lab) -> None:
    source = on_device(1.0, 2.0)
    graph, result = capture(lambda: source * 3)
    assert result.isnan().all(), "a capture computes nothing"
    source.copy_(on_device(5.0, 6.0))
    graph.replay()
    assert result.tolist() == [15.0, 18.0]


def test_a_replay_overwrites_its_results(lab: Lab) -> None:
    source = on_device(1.0)
    graph, result = capture(lambda: source + 1)
    graph.replay()
    kept, copied = result[:1], result.clone()
    source.fill_(7.0)
    graph.replay()
    assert (kept.item(), copied.item()) == (8.0, 2.0)


def test_python_values_and_host_tensors_are_frozen(lab: Lab) -> None:
    source, factor, host = on_device(1.0, 1.0), 2.0, torch.tensor(3.0)
    graph, result = capture(lambda: source * (factor * host.item()))
    host.fill_(100.0)
    graph.replay()
    assert result.tolist() == [6.0, 6.0]
    assert not lab.hazards(), "reading a host tensor is no sync"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x: x.view(2, 2).t().reshape(-1), id="reshape copies"),
        pytest.param(lambda x: x.view(2, 2).reshape(-1), id="reshape aliases"),
        pytest.param(lambda x: x.view(2, 2).t().contiguous().view(-1), id="contiguous copies"),
        pytest.param(lambda x: x.contiguous(), id="contiguous aliases"),
        pytest.param(lambda x: x.to(torch.float64).to(torch.float32), id="to copies"),
        pytest.param(lambda x: torch.cat(x.chunk(2)[::-1]), id="chunks are views"),
        pytest.param(lambda x: torch.zeros_like(x).index_copy_(0, torch.arange(4, device=DEVICE), x), id="in place"),
        pytest.param(lambda x: torch.empty_like(x).copy_(x), id="uninitialised, then written"),
        pytest.param(lambda x: torch.nn.functional.pad(x, (1, 1))[1:-1] + x.sum(), id="composite functions"),
    ],
)
def test_a_replay_equals_eager_execution(lab: Lab, body: Callable[[Any], Any]) -> None:
    source = on_device(1.0, 2.0, 3.0, 4.0)
    graph, result = capture(lambda: body(source))
    for values in ((5.0, 6.0, 7.0, 8.0), (-1.0, 0.0, 2.0, 9.0)):
        source.copy_(on_device(*values))
        want = body(source.clone())
        graph.replay()
        assert torch.equal(result, want)


def test_uninitialised_memory_is_poisoned_at_capture_and_at_each_replay(lab: Lab) -> None:
    def body() -> Any:
        out = torch.empty(2, device=DEVICE)
        out[:1].copy_(source)
        return out

    source = on_device(1.0)
    graph, result = capture(body)
    for _ in range(2):
        graph.replay()
        assert result[0].item() == 1.0
        assert result[1].isnan()
        with lab.unwatched():
            result.zero_()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(lambda x: x.max().item(), "host sync", id="item"),
        pytest.param(lambda x: x.tolist(), "host sync", id="tolist"),
        pytest.param(lambda x: x.cpu(), "host sync", id="cpu"),
        pytest.param(lambda x: x.to("cpu"), "host sync", id="to cpu"),
        pytest.param(lambda x: bool(x.sum() > 0), "host sync", id="branch on data"),
        pytest.param(lambda x: x.numpy(), "placement", id="numpy"),
        pytest.param(torch.nonzero, "dynamic shape", id="nonzero"),
        pytest.param(lambda x: x[x > 0], "dynamic shape", id="boolean index"),
        pytest.param(lambda x: torch.repeat_interleave(x, (x > 0).long()), "dynamic shape", id="repeat_interleave"),
        pytest.param(torch.unique, "dynamic shape", id="unique"),
        pytest.param(lambda x: x * torch.tensor([2.0, 1.0], device=DEVICE), "copy in capture", id="tensor of data"),
        pytest.param(lambda x: x * torch.ones(2).to(x.device), "copy in capture", id="to device"),
        pytest.param(lambda x: x[torch.tensor([1, 0])], "copy in capture", id="host index"),
        pytest.param(lambda x: x + torch.ones(2), "placement", id="host operand"),
    ],
)
def test_what_a_capture_refuses_is_noted(lab: Lab, body: Callable[[Any], Any], kind: str) -> None:
    source = on_device(1.0, 2.0)
    capture(lambda: body(source))
    assert kind in {hazard.kind for hazard in lab.hazards()}
    assert {hazard.stage for hazard in lab.hazards()} == {"capture"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x: x[torch.arange(2, device=x.device)], id="device index"),
        pytest.param(lambda x: x * torch.tensor(2.0), id="host scalar by value"),
        pytest.param(lambda x: x.to(x.device), id="to its own device"),
        pytest.param(lambda x: torch.cat([torch.tensor([], device=x.device), x]), id="nothing to copy"),
        pytest.param(lambda x: torch.repeat_interleave(x, 2), id="repeat by a number"),
        pytest.param(lambda x: x.masked_fill(x > 1, 0.0), id="mask without a new shape"),
    ],
)
def test_what_a_capture_allows_is_not_noted(lab: Lab, body: Callable[[Any], Any]) -> None:
    source = on_device(1.0, 2.0)
    capture(lambda: body(source))
    assert lab.hazards() == ()


def test_syncs_are_allowed_outside_a_capture(lab: Lab) -> None:
    source = on_device(1.0, 2.0)
    assert source.max().item() == 2.0
    assert source[source > 1].tolist() == [2.0]
    assert lab.hazards() == ()


def test_device_memory_says_so_and_results_of_it_stay_there(lab: Lab) -> None:
    device, host = on_device(1.0), torch.ones(1)
    assert (device.device, (device * 2).device, device.clone().device) == (DEVICE, DEVICE, DEVICE)
    assert (host.device, device.cpu().device, host.to(DEVICE).device) == (HOST, HOST, DEVICE)
    assert torch.zeros(1, device=device.device).device == DEVICE
    assert not device.is_cpu
    assert host.is_cpu


def test_a_move_between_memories_is_a_copy(lab: Lab) -> None:
    host = torch.ones(2)
    device = host.to(DEVICE)
    host.fill_(5.0)
    assert device.tolist() == [1.0, 1.0]


def test_outside_the_lab_nothing_is_patched() -> None:
    before = torch.cuda.CUDAGraph, torch.cuda.graph
    with Lab([]).watch():
        assert (torch.cuda.CUDAGraph, torch.cuda.graph) != before
    assert (torch.cuda.CUDAGraph, torch.cuda.graph) == before
    assert torch.ones(1, device=DEVICE).device == HOST
