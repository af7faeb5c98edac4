"""The fused kernels: references against the modules that they replace, Triton's interpreter against the references."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from captured import captured
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.mlp import aligned_size, linear_gelu

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def noise():
    generator = torch.Generator().manual_seed(0)

    def make(*shape, dtype=torch.float64):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return make


def rms(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def test_norms_are_the_formulas(noise):
    x, branch, scale, weight, bias = noise(5, 1, 12), noise(5, 1, 12), noise(12), noise(12), noise(12)
    layer = nn.LayerNorm(12, eps=1e-6, dtype=torch.float64)
    layer.load_state_dict({"weight": weight, "bias": bias})
    close = {"rtol": 1e-12, "atol": 1e-12}
    with torch.no_grad():
        torch.testing.assert_close(kernels.norm(x, weight, bias, 1e-6, "layer"), layer(x), **close)
        torch.testing.assert_close(kernels.norm(x, weight, None, 1e-6, "rms"), rms(x, weight, 1e-6), **close)
        torch.testing.assert_close(kernels.norm(x, None, None, 1e-6, "rms"), rms(x, 1.0, 1e-6), **close)
        total, normed = kernels.add_norm(x, branch, scale, weight, bias, 1e-6, "layer")
        torch.testing.assert_close(total, x + branch * scale, **close)
        torch.testing.assert_close(normed, layer(x + branch * scale), **close)
        total, normed = kernels.add_norm(x, branch, None, weight, None, 1e-6, "rms")
        torch.testing.assert_close(total, x + branch, **close)
        torch.testing.assert_close(normed, rms(x + branch, weight, 1e-6), **close)
        torch.testing.assert_close(kernels.norm_add(x, branch, weight, bias, 1e-6, "layer"), x + layer(branch), **close)


def test_a_sum_that_broadcasts_or_converts_is_left_to_torch(noise, monkeypatch):
    monkeypatch.setattr(kernels, "runs_triton", lambda _: True)  # whatever is left to a kernel fails here
    x, weight = noise(5, 1, 12, dtype=torch.float32), noise(12, dtype=torch.float32)
    alike = noise(5, 1, 12, dtype=torch.float32)
    for branch, scale in (
        (noise(1, 1, 12, dtype=torch.float32), None),
        (noise(5, 1, 12, dtype=torch.bfloat16), None),
        (alike, noise(1, dtype=torch.float32)),
        (alike, noise(12, dtype=torch.bfloat16)),
    ):
        total, normed = kernels.add_norm(x, branch, scale, weight, None, 1e-6, "rms")
        torch.testing.assert_close(total, x + (branch if scale is None else branch * scale))
        torch.testing.assert_close(normed, rms(total, weight, 1e-6))
        if scale is None:
            kernels.norm_add(x, branch, None, None, 1e-6, "rms")
    with pytest.raises((AttributeError, RuntimeError, ValueError)):
        kernels.add_norm(x, alike, weight, weight, None, 1e-6, "rms")


def test_bfloat16_norms_round_where_the_modules_round(noise):
    x, weight, bias = (noise(*shape, dtype=torch.bfloat16) for shape in ((64, 48), (48,), (48,)))
    assert torch.equal(kernels.norm(x, weight, bias, 1e-6, "layer"), F.layer_norm(x, (48,), weight, bias, 1e-6))
    rounded = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16() * weight
    assert torch.equal(kernels.norm(x, weight, None, 1e-6, "rms"), rounded)


def test_activations_are_the_formulas(noise):
    x = noise(3, 1, 10)
    torch.testing.assert_close(kernels.quick_gelu(x), x * torch.sigmoid(1.702 * x))
    torch.testing.assert_close(kernels.silu_and_mul(x), F.silu(x[..., :5]) * x[..., 5:])
    weight, bias = noise(8, 10), noise(8)
    torch.testing.assert_close(linear_gelu(x, weight, bias), F.gelu(x @ weight.T + bias, approximate="tanh"))


def test_rotation_happens_in_place_and_nowhere_else(noise):
    qkv, cos, sin = noise(6, 3, 2, 8), noise(6, 4), noise(6, 4)
    before = qkv.clone()
    kernels.rotate_in_place(qkv[:, :2].flatten(1, 2), cos, sin)
    assert torch.equal(qkv[:, 2], before[:, 2])
    first, second = before[:, :2, :, :4], before[:, :2, :, 4:]
    c, s = cos[:, None, None], sin[:, None, None]
    torch.testing.assert_close(qkv[:, :2, :, :4], first * c - second * s)
    torch.testing.assert_close(qkv[:, :2, :, 4:], second * c + first * s)


def test_windows_attend_inside_themselves_only(noise):
    q, k, v = noise(10, 2, 8), noise(10, 2, 8), noise(10, 2, 8)
    out = kernels.window_attention(q, k, v, torch.tensor([0, 4, 4, 7, 9], dtype=torch.int32), 4, 0.3)
    for start, end in ((0, 4), (4, 7), (7, 9)):
        for head in range(2):
            weights = torch.softmax(q[start:end, head] @ k[start:end, head].T * 0.3, dim=-1)
            torch.testing.assert_close(out[start:end, head], weights @ v[start:end, head])
    assert not out[9].any()


@pytest.mark.parametrize(
    ("size", "padded"),
    [(3420, 3456), (4304, 4304), (4096, 4096), (44, 48), (48, 48), (1710, 1728), (1001, 1008)],
)
def test_padded_sizes(size, padded):
    assert aligned_size(size) == padded
    assert padded % 8 == 0
    assert padded - size < 8 or padded - size <= 0.02 * size


def test_kernels_never_run_where_their_reference_must():
    assert not kernels.runs_triton(torch.zeros(1))


INTERPRETED = """
import sys, torch
sys.path.insert(0, "benchmarks")
import tuning_gpu
from scaffold.runtime.tuning import kernels
tuning_gpu.DEVICE = torch.device("cpu")
kernels.runs_triton = lambda x: x.dtype is torch.float32
found = {name: error for name, error in tuning_gpu.check_kernels(3, (88, 1000), 2).items() if name.endswith("float32")}
# The interpreter forgets a carry where it rounds to FP8 (127.9 becomes 64), so it proves the scales alone.
found = {name: error for name, error in found.items() if not name.startswith("fp8")}
assert len(found) == 10, found
for width in (88, 1000, 2056):
    x = torch.randn(5, 2, width)
    for name in kernels.ACTIVATIONS:
        torch.testing.assert_close(kernels.to_fp8(x, name)[1], kernels.fp8_reference(x, name)[1])
wrong = {name: error for name, error in found.items() if not error <= tuning_gpu.KERNEL_BOUNDS["float32"]}
assert not wrong, wrong
print("checked", len(found))
"""


@pytest.mark.lab
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, whose interpreter runs kernels on the CPU")
def test_the_triton_kernels_equal_their_references_in_the_interpreter():
    done = captured(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert done.stdout.strip() == "checked 10", done.stderr[-3000:]
