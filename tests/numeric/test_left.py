"""Tensors that vLLM's loader leaves on the host: found while a model is built, and on the host in the lab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
numpy = pytest.importorskip("numpy")

from scaffold.verify.numeric.graphs import DEVICE, Lab  # noqa: E402
from scaffold.verify.numeric.left import left_on_host, loading, move_as_loaded  # noqa: E402
from scaffold.verify.numeric.reports import LEFT, NumericReport  # noqa: E402

pytestmark = pytest.mark.lab


class Table(torch.nn.Module):
    """A table of the host's memory, what is computed of it, and tensors that the loader's device reaches."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.from_numpy(numpy.ones((4, 2), numpy.float64))
        self.register_buffer("table", table.float().unsqueeze(1), persistent=False)
        self.weight = torch.nn.Parameter(torch.from_numpy(numpy.ones(3, numpy.float32)))
        self.register_buffer("bytes", torch.frombuffer(bytearray(8), dtype=torch.uint8))
        self.register_buffer("scalar", torch.from_numpy(numpy.array(2.0)))
        self.register_buffer("made", torch.arange(4))
        self.register_buffer("filled", torch.zeros(4, 1, 2).copy_(self.table))
        self.register_buffer("converted", torch.as_tensor(numpy.ones(2)))
        self.register_buffer("constructed", torch.as_tensor(torch.from_numpy(numpy.ones(2))))
        self.register_buffer("moved", torch.from_numpy(numpy.ones(2)).to(torch.device("cpu")))

    def forward(self, rows: Any) -> Any:
        return rows + self.table.squeeze(1)[1:].to(rows.device)


class Whole(torch.nn.Module):
    def __init__(self, moves: bool = False) -> None:
        super().__init__()
        self.inner = Table().to("cpu") if moves else Table()


def built(**options: Any) -> Any:
    with loading() as made:
        model = Whole(**options)
    made.keep(model)
    return model


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab([])
    with made.watch(), torch.inference_mode():
        yield made


def test_only_what_is_made_of_the_hosts_memory_is_left_there() -> None:
    left = left_on_host(built())
    assert left.keys() == {"inner.table", "inner.weight", "inner.bytes"}
    assert all("test_left" in made and made.rpartition(":")[2].isdigit() for made in left.values())
    # The context that a loader has says the same of all of them.
    with torch.device("meta"):
        model = Whole()
    named = [*model.named_parameters(), *model.named_buffers()]
    of_host = {name for name, one in named if not one.is_meta and one.ndim}
    assert of_host == {*left, "inner.moved"}  # to the CPU by name, which may be the platform's name of its device


def test_a_model_that_moves_its_part_leaves_nothing() -> None:
    assert left_on_host(built(moves=True)) == {}


def test_other_models_are_not_followed() -> None:
    original = torch.from_numpy
    built()
    assert torch.from_numpy is original
    assert left_on_host(Whole()) == {}


def test_a_capture_may_not_read_it(lab: Lab) -> None:
    model, rows = built(), torch.ones(3, 2, device=DEVICE)
    lab.place_model(model)
    assert not lab.on_device(model.inner.table)
    assert lab.on_device(model.inner.filled)
    model.inner(rows)  # no capture: the model moves what it reads
    assert lab.hazards() == ()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=(0, 0)):
        model.inner(rows)
    [found] = lab.hazards()
    assert (found.kind, found.stage) == (LEFT, "capture")
    made = left_on_host(model)["inner.table"]
    assert f"of `inner.table`, which vLLM's loader leaves there ({made})" in found.operation
    [problem] = NumericReport("m", "r", "fa2", hazards=(found,)).diagnostics()[:1]
    assert problem.code == "VCG671"


def test_a_graph_may_read_what_was_moved_before_it(lab: Lab) -> None:
    model, rows = built(), torch.ones(3, 2, device=DEVICE)
    lab.place_model(model)
    table = model.inner.table.squeeze(1)[1:].to(rows.device)
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=(0, 0)):
        assert int(model.inner.bytes.sum()) == 0  # a number that the host computes for itself
        rows + table
    assert lab.hazards() == ()


def test_operators_that_mix_it_with_the_device_name_it(lab: Lab) -> None:
    model = built()
    lab.place_model(model)
    told: list[tuple[str, bool]] = []
    lab.on_left = lambda name, made, moved: told.append((name, moved))
    torch.ones(3, device=DEVICE) + model.inner.weight
    [found] = lab.hazards()
    assert (found.kind, found.stage, "`inner.weight`" in found.operation) == (LEFT, "run", True)
    assert ("inner.weight", True) in told


def test_a_model_on_a_gpu_keeps_it_on_the_host() -> None:
    """The meta device stands for the GPU."""
    model = move_as_loaded(built(), torch.device("meta"))
    assert {name for name, one in (*model.named_parameters(), *model.named_buffers()) if not one.is_meta} == {
        *left_on_host(model)
    }
