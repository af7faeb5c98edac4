"""FP8 in the tower: its arithmetic, and the real vision classes of the newest release with it."""

import pytest
import torch
import torch.nn.functional as F
from test_tunings import FIVE, found_by

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.fp8 import LARGEST_ERROR


@pytest.fixture
def noise():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator)


@pytest.mark.parametrize("activation", kernels.ACTIVATIONS)
def test_each_row_has_four_bits_and_a_scale_of_its_own(noise, activation):
    x = noise(4, 1, 48) * torch.tensor([1.0, 1e-3, 1e4, 0.0])[:, None, None]
    rows, scales = kernels.to_fp8(x, activation)
    wanted = kernels.ACTIVATIONS[activation](x)
    assert (rows.dtype, rows.shape, scales.shape) == (torch.float8_e4m3fn, wanted.shape, (4, 1))
    got = rows.float() * scales[:, None]
    assert ((got - wanted).abs() <= wanted.abs() / 16 + scales[:, None] / 1024).all()
    # The largest of each row is the largest of FP8, so that no row loses bits to another one's size.
    assert rows.float().abs().amax(-1)[:3].tolist() == [[448.0]] * 3


def test_zeros_fill_a_row_up_to_the_width_that_a_product_takes(noise):
    x = noise(3, 20)
    rows, scales = kernels.to_fp8(x, "gelu", width=32)
    plain, same = kernels.to_fp8(x, "gelu")
    assert rows.shape == (3, 32)
    assert torch.equal(rows[:, :20].float(), plain.float())
    assert not rows[:, 20:].float().any()
    assert torch.equal(scales, same)


def test_a_product_is_that_of_the_rounded_numbers(noise):
    x, weight, bias = noise(5, 1, 32), noise(16, 32), noise(16).bfloat16()
    (rows, x_scales), (matrix, scales) = kernels.to_fp8(x), kernels.to_fp8(weight)
    out = kernels.scaled_product(rows, x_scales, matrix, scales, bias)
    wanted = F.linear(rows.double() * x_scales[:, None], matrix.double() * scales, bias.double())
    assert out.shape == (5, 1, 16)
    torch.testing.assert_close(out, wanted.bfloat16())
    assert (out.float() - F.linear(x, weight, bias.float())).abs().max() < 1  # of values up to 15


def test_a_norm_brings_its_rows_in_fp8_and_a_view_of_them_does_not(noise):
    x, branch = noise(6, 1, 16).bfloat16(), noise(6, 1, 16).bfloat16()
    for out in (
        kernels.norm(x, None, None, 1e-6, "rms", fp8=True),
        kernels.add_norm(x, branch, None, None, None, 1e-6, "rms", fp8=True)[1],
        kernels.norm_add(x, branch, None, None, 1e-6, "rms", fp8=True),
    ):
        rows, scales = kernels.in_fp8(out)
        assert rows.shape == out.shape
        assert rows is kernels.in_fp8(out)[0]
        assert rows is not kernels.in_fp8(out.view(6, 16))[0]
        assert torch.equal(rows.float(), kernels.to_fp8(out)[0].float())
        assert torch.equal(scales, kernels.to_fp8(out)[1])
    assert not hasattr(kernels.norm(x, None, None, 1e-6, "rms"), "_vitcg_fp8")


@pytest.fixture
def found(request, release_tree):
    return found_by("run_fp8.py", release_tree("0.33.0").root, *FIVE)[request.param]


every_model = pytest.mark.parametrize("found", FIVE, indirect=True)


@pytest.mark.trees
@pytest.mark.lab
@every_model
def test_inner_blocks_multiply_in_fp8_where_a_batch_has_many_rows(found):
    assert len(found["applied"]) == 2  # of four blocks
    assert found["refused"] == []
    assert len(found["layers"]) == 6  # but those behind attention
    assert all(any(layer.startswith(block) for block in found["applied"]) for layer in found["layers"])
    assert found["extra_bytes"] > 0
    assert found["few"] == 0.0
    # FP8 has a sixteenth of bfloat16's precision: a much smaller error would mean that nothing ran in it.
    assert 2 * found["tuned"] < found["many"] <= LARGEST_ERROR
    assert found["wide"] == ["its weights are float32, and products of FP8 are bfloat16"]


@pytest.mark.trees
@pytest.mark.lab
@every_model
def test_new_weights_are_read_again_in_place_and_taken_back_all_is_as_before(found):
    assert found["fresh"] <= LARGEST_ERROR
    assert found["stale"] > 3 * found["fresh"]
    assert not found["moved"]
    assert found["restored"]
