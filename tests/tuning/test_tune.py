"""`tune` itself, on a plain torch tower: what it leaves alone, what it takes back, and when."""

import logging
import sys
import types

import pytest
import torch
from torch import nn

from scaffold.runtime.tuning import BOUNDS, TuningChoice, kernels, largest_error, moved, read_choice, tower, tune
from scaffold.runtime.tuning import mlp as mlp_module
from scaffold.runtime.tuning.base import Undo
from scaffold.runtime.tuning.mlp import PadMlp
from scaffold.runtime.tuning.norms import FusedNorms


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 20), nn.GELU(approximate="tanh"), nn.Linear(20, 16)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Visual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(16), Mlp()

    def forward(self, x):
        return self.mlp(self.norm(x))


class Host(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual, self.language_model = Visual(), Visual()


@pytest.fixture
def host():
    torch.manual_seed(0)
    return Host().eval().requires_grad_(False)


@pytest.fixture
def proof(host):
    pixels = torch.randn(5, 16)
    return lambda step: [host.visual(moved(pixels, step))]


def applied(tuned):
    return {o.name: o.applied for o in tuned.outcomes if o.applied}


def test_the_tower_is_tuned_and_the_language_model_is_not(host, proof):
    want = proof(0.0)
    before = {name: p.clone() for name, p in host.named_parameters()}
    tuned = tune(host)
    assert applied(tuned) == {
        "gelu-epilogue": ["visual.mlp"], "pad-mlp": ["visual.mlp"], "fused-norms": ["visual.norm"],
    }  # fmt: skip
    assert host.visual.mlp.down.weight.untyped_storage().nbytes() == 4 * 16 * 24
    assert host.visual.mlp.down.weight.shape == (16, 20)  # graphs read 24 columns, and whoever loads weights sees 20
    assert host.language_model.mlp.down.weight.shape == (16, 20)
    assert "forward" not in vars(host.language_model.norm)
    assert largest_error(proof(0.0), want) < 1e-6
    assert tuned.extra_bytes == 4 * 4 * 16
    tuned.undo()
    assert all(torch.equal(p, before[name]) for name, p in host.named_parameters())
    assert torch.equal(proof(0.0)[0], want[0])
    assert applied(tune(host)) == applied(tuned)  # and again


@pytest.mark.parametrize("sound", [False, True])
def test_of_two_encoders_the_one_is_tuned_that_a_proof_runs(host, sound):
    alone = tune(host, sound=sound)
    assert applied(alone)["fused-norms"] == ["visual.norm"]
    alone.undo()
    host.audio_tower = Visual()
    assert applied(tune(host, sound=sound))["fused-norms"] == ["audio_tower.norm" if sound else "visual.norm"]


def test_a_host_without_a_language_model_is_left_alone(host):
    del host.language_model
    assert tune(host).outcomes == []
    assert tune(object()).outcomes == []


def test_a_getter_of_the_language_model_will_do(host):
    other = host.language_model
    del host.language_model
    host.text, host.get_language_model = other, lambda: other
    assert applied(tune(host))["fused-norms"] == ["visual.norm"]


def test_batch_invariance_asks_for_vllms_own_kernels(host, monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert tune(host).outcomes == []
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert tune(host).outcomes


def test_rocm_is_left_alone(host, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3")
    assert tune(host).outcomes == []


def test_a_device_that_no_kernel_ran_on_keeps_vllms_kernels(host, monkeypatch, caplog):
    monkeypatch.setattr(tower, "_device", lambda _: torch.device("xpu"))
    with caplog.at_level("INFO", logger="scaffold.runtime.tuning"):
        assert tune(host).outcomes == []
    assert "the tower is not tuned: the kernels were never run on xpu" in caplog.text


@pytest.mark.parametrize(
    ("capability", "given", "acts"),
    [((9, 0), None, True), ((8, 0), None, False), ((10, 0), {"pad-mlp": True}, False), ((8, 9), "on", True)],
)
def test_tunings_are_on_by_default_where_they_were_measured(host, monkeypatch, caplog, capability, given, acts):
    monkeypatch.setattr(tower, "_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    with caplog.at_level("INFO", logger="scaffold.runtime.tuning"):
        assert bool(applied(tune(host, read_choice(given)))) is acts
    told = f'{capability[0]}.{capability[1]}; the setting {{"encoder_graphs": {{"tuning": "on"}}}} turns them on'
    assert (told in caplog.text) is not acts


def test_without_triton_a_gpu_keeps_vllms_kernels(host, monkeypatch):
    monkeypatch.setattr(tower, "_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(kernels, "triton_kernels", lambda: None)
    tuned = tune(host)
    assert list(applied(tuned)) == ["gelu-epilogue", "pad-mlp"]
    assert {o.name for o in tuned.outcomes if o.refused.get("") == "Triton is not installed"} == {
        "fused-activations", "fused-norms", "fused-residuals", "inplace-rotary", "small-windows", "fp8-inputs",
    }  # fmt: skip


def test_parameters_stay_normal_tensors_in_inference_mode(host, proof):
    with torch.inference_mode():
        tuned = tune(host, prove=proof)
    assert applied(tuned)["pad-mlp"] == ["visual.mlp"]
    assert not any(p.is_inference() for p in host.parameters())
    with torch.inference_mode():
        tuned.undo()
    assert not any(p.is_inference() for p in host.parameters())
    host.visual.mlp.down.weight.data.zero_()  # loaded again, outside of inference mode


def test_switches(host):
    assert tune(host, read_choice("off")).outcomes == []
    dry = tune(host, read_choice("list"))
    assert applied(dry) != {}
    assert not dry.is_in_place
    assert host.visual.mlp.down.weight.untyped_storage().nbytes() == 4 * 16 * 20
    assert list(applied(tune(host, read_choice(["pad-mlp"])))) == ["pad-mlp"]


def test_a_proof_is_kept_with_its_error(host, proof):
    tuned = tune(host, prove=proof)
    assert 0 < tuned.rounding < 1e-5
    assert all(o.error is not None and o.error <= BOUNDS[torch.float32] for o in tuned.outcomes if o.applied)


@pytest.mark.parametrize("output", [None, [torch.full((3,), float("nan"))]])
def test_what_cannot_be_proved_is_not_tuned(host, output, caplog):
    def proof(step):
        if output is None:
            raise RuntimeError("no memory")
        return output

    with caplog.at_level(logging.INFO):
        assert tune(host, prove=proof).outcomes == []
    assert "forward" not in vars(host.visual.norm)
    assert "no tuning: it was to be proved" in caplog.text


def test_a_tuning_that_is_wrong_is_taken_back(host, proof, monkeypatch, caplog):
    monkeypatch.setattr(kernels, "norm", lambda x, *_, **__: x)
    want = proof(0.0)
    runs = []
    with caplog.at_level(logging.WARNING):
        tuned = tune(host, prove=lambda step: runs.append(step) or proof(step))
    assert len(runs) == 2 + 1 + 3  # untuned and moved; all together; each of the three that act
    (norms,) = (o for o in tuned.outcomes if o.name == "fused-norms")
    assert norms.applied == []
    assert "exceeds" in norms.refused["visual.norm"]
    assert "forward" not in vars(host.visual.norm)
    assert largest_error(proof(0.0), want) < 1e-6  # the others stay, and are right
    assert "fused-norms was taken back" in caplog.text


def test_a_kernel_that_cannot_run_is_taken_back(host, proof, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(kernels, "norm", broken)
    want = proof(0.0)
    tuned = tune(host, prove=proof)
    assert list(applied(tuned)) == ["gelu-epilogue", "pad-mlp"]
    assert tuned.outcomes[3].refused == {"visual.norm": "RuntimeError: Failed to find C compiler"}
    assert largest_error(proof(0.0), want) < 1e-6


def test_right_tunings_run_once_together(host, proof):
    runs = []
    tuned = tune(host, prove=lambda step: runs.append(step) or proof(step))
    assert len(runs) == 3
    assert 0 < tuned.check_seconds <= tuned.seconds


def test_a_weight_that_somebody_replaced_is_the_one_that_multiplies(host, proof):
    tune(host)
    host.visual.mlp.down.weight.data = torch.zeros(16, 20)
    assert torch.equal(proof(0.0)[0], host.visual.mlp.down.bias.expand(5, 16))


def test_a_tuning_that_raises_is_taken_back(host, monkeypatch):
    class Broken(PadMlp):
        def apply(self, path, module, modules, undo):
            super().apply(path, module, modules, undo)
            raise RuntimeError("no memory")

    monkeypatch.setattr(tower, "TUNINGS", (Broken(), FusedNorms()))
    tuned = tune(host)
    assert host.visual.mlp.down.weight.untyped_storage().nbytes() == 4 * 16 * 20
    assert tuned.outcomes[0].refused == {"": "RuntimeError: no memory"}
    assert list(applied(tuned)) == ["fused-norms"]


def test_a_norm_of_another_type_runs_its_own_code(host, monkeypatch):
    rows = torch.randn(2, 16, dtype=torch.bfloat16)
    want = host.visual.norm(rows)
    tune(host, TuningChoice(("fused-norms",)))
    monkeypatch.setattr(kernels, "norm", lambda *_, **__: pytest.fail("the kernel ran on mixed types"))
    assert torch.equal(host.visual.norm(rows), want)


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], 0.0),
        ([[1.0, 2.5]], [[1.0, 2.0]], 0.25),
        ([[1.0, float("nan")]], [[1.0, 2.0]], float("inf")),
        ([[1.0]], [[1.0, 2.0]], float("inf")),
        ([], [[1.0]], float("inf")),
        ([[float("nan")]], [[float("nan")]], float("inf")),
    ],
)
def test_errors(got, want, error):
    assert largest_error([torch.tensor(g) for g in got], [torch.tensor(w) for w in want]) == error


def test_pixels_move_by_at_most_half_a_step():
    pixels = torch.randn(1000)
    step = torch.finfo(torch.float32).eps * 2**10
    other = moved(pixels, step)
    assert torch.equal(moved(pixels, 0.0), pixels)
    assert torch.equal(other, moved(pixels, step))
    assert 0 < float(((other - pixels) / pixels).abs().max()) <= 0.51 * step


def test_undo_takes_back_in_reverse_order():
    undo, module = Undo(), nn.Linear(2, 2)
    undo.set(module, "note", 1)
    undo.set(module, "note", 2)
    undo.set(module, "weight", nn.Parameter(torch.zeros(2, 2)))
    undo.roll_back()
    assert not hasattr(module, "note")
    undo.roll_back()  # nothing left


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj, self.mlp = nn.Linear(16, 48), nn.Linear(16, 16), Mlp()
        self.narrow = nn.Linear(16, 1)

    def forward(self, x):
        return self.mlp(self.proj(self.qkv(x)[:, :16])) + self.narrow(x)


@pytest.mark.parametrize("sleeps", [False, True])
def test_the_weights_of_a_block_move_with_a_padded_matrix(host, monkeypatch, sleeps):
    """Their old memory is free before the new one is taken. With vLLM's sleep mode they stay in its memory."""
    blocks = host.visual.blocks = nn.ModuleList(Block() for _ in range(2)).requires_grad_(False)
    host.visual.forward = lambda x: blocks[1](blocks[0](x))
    monkeypatch.setattr(mlp_module, "SHARING", range(17 * 4, 1 << 20))
    allocator = types.SimpleNamespace(CuMemAllocator=types.SimpleNamespace(instance=object() if sleeps else None))
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", allocator)
    moving = [(b.qkv, b.proj, b.mlp.up, b.mlp.down) for b in blocks]
    where = {id(layer): layer.weight.data_ptr() for layers in moving for layer in layers}
    before = {name: p.clone() for name, p in host.named_parameters()}
    widened, together = kernels.widened, []

    def noted(x, width):
        if x.shape == (16, 20):
            layers = [layers for layers in moving if layers[3].weight.data_ptr() == x.data_ptr()]
            together.extend(len({one.weight.untyped_storage().data_ptr() for one in found}) == 1 for found in layers)
        return widened(x, width)

    monkeypatch.setattr(kernels, "widened", noted)
    pixels = torch.randn(5, 16)
    tuned = tune(host, read_choice(["pad-mlp"]), lambda step: [host.visual(moved(pixels, step))])
    assert applied(tuned)["pad-mlp"] == ["visual.mlp", "visual.blocks.0.mlp", "visual.blocks.1.mlp"]
    assert together == [not sleeps] * 2
    assert tuned.extra_bytes == 3 * 4 * 4 * 16
    for undo in (lambda: None, tuned.undo):
        undo()
        for name, parameter in host.named_parameters():
            assert torch.equal(parameter, before[name]), name
    for layer in (layer for layers in moving for layer in layers[:3]):
        assert not sleeps or layer.weight.data_ptr() == where[id(layer)]  # else the old address may be taken again
        assert layer.weight.untyped_storage().nbytes() == layer.weight.nbytes
