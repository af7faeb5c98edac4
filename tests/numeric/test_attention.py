"""The reference kernel leaves undefined what real kernels leave undefined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the `cpu` extra")

from scaffold.verify.numeric import attention  # noqa: E402

pytestmark = pytest.mark.lab

ROWS, HEADS, SIZE = 12, 2, 4


@pytest.fixture(autouse=True)
def _fa2() -> Iterator[None]:
    attention.set_tail("fa2")
    yield
    attention.set_tail("fa2")


def run(offsets: list[int], *, max_seqlen: int = ROWS, poison_from: int = ROWS) -> tuple[Any, Any]:
    """Output and inputs; rows from `poison_from` on are NaN in the inputs, and all of the output is before the call."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(ROWS, HEADS, SIZE, generator=generator) for _ in range(3))
    for tensor in (q, k, v):
        tensor[poison_from:] = torch.nan
    out = torch.full((ROWS, HEADS, SIZE), torch.nan)
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32)
    attention.flash_attn_varlen_func(
        q, k, v, max_seqlen, cu_seqlens, max_seqlen, cu_seqlens, out=out, dropout_p=0.0, fa_version=3
    )
    return out, (q, k, v)


def finite_rows(out: Any) -> list[int]:
    return [index for index in range(ROWS) if bool(out[index].isfinite().all())]


def test_each_sequence_attends_to_itself() -> None:
    out, (q, k, v) = run([0, 5, 12])
    for start, end in ((0, 5), (5, 12)):
        want = torch.nn.functional.scaled_dot_product_attention(
            *(tensor[start:end].transpose(0, 1).unsqueeze(0) for tensor in (q, k, v))
        )
        torch.testing.assert_close(out[start:end], want[0].transpose(0, 1))


@pytest.mark.parametrize(
    ("offsets", "max_seqlen", "written"),
    [
        pytest.param([0, 5, 8], 12, range(8), id="rows after the last sequence"),
        pytest.param([0, 5, 8, 8, 8], 12, range(8), id="empty sequences"),
        pytest.param([0, 5, 8, 0, 0], 12, range(8), id="a negative length"),
        pytest.param([0, 6, 12], 4, [0, 1, 2, 3, 6, 7, 8, 9], id="rows beyond max_seqlen"),
    ],
)
def test_rows_that_no_kernel_writes_keep_what_was_there(offsets: list[int], max_seqlen: int, written: Any) -> None:
    out, _ = run(offsets, max_seqlen=max_seqlen)
    assert finite_rows(out) == list(written)


def test_negative_lengths_are_counted() -> None:
    run([0, 5, 8, 0, 0])
    assert attention.Counters.negative_lengths == 1


@pytest.mark.parametrize(("tail", "valid"), [("fa2", range(8)), ("fa3", [])])
def test_garbage_after_the_end_contaminates_whole_tiles_only(tail: str, valid: Any) -> None:
    attention.set_tail(tail)
    out, _ = run([0, 5, 8], poison_from=8)
    assert finite_rows(out) == list(valid)


def test_finite_garbage_contaminates_nothing() -> None:
    attention.set_tail("fa3")
    out, _ = run([0, 5, 8])
    assert finite_rows(out) == list(range(8))


def test_offsets_outside_the_tensor_raise() -> None:
    with pytest.raises(IndexError, match=r"\[5, 20\)"):
        run([0, 5, 20])


def _windows(starts: list[int], lengths: list[int], window: int, bias: Any = None, max_seqlen: int = ROWS) -> Any:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(ROWS, heads, SIZE, generator=generator) for heads in (2 * HEADS, HEADS, HEADS))
    out = torch.full_like(q, torch.nan)
    given = {"is_causal": False, "sliding_window_q": window, "sliding_window_k": window, "sinks": bias}
    numbers = torch.tensor(starts), torch.tensor(lengths)
    attention.context_attention_fwd(q, k, v, out, *numbers, max_seqlen, sinks_bias_key0=True, **given)
    return out, (q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1))


@pytest.mark.parametrize("biased", [False, True])
def test_a_window_hides_what_is_further_away(biased: bool) -> None:
    bias = torch.tensor([1.0, -2.0, 3.0, 0.5]) if biased else None
    out, (q, k, v) = _windows([0, 5], [5, 7], 2, bias)
    for start, length in ((0, 5), (5, 7)):
        near = (torch.arange(length)[:, None] - torch.arange(length)).abs() <= 2
        mask = torch.zeros(2 * HEADS, length, length).masked_fill(~near, -torch.inf)
        if bias is not None:
            mask[:, :, 0] += bias[:, None]
        parts = (tensor[start : start + length].transpose(0, 1) for tensor in (q, k, v))
        want = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        torch.testing.assert_close(out[start : start + length], want.transpose(0, 1))


def test_windows_leave_undefined_what_the_kernel_does() -> None:
    assert finite_rows(_windows([0, 5, 9], [5, 0, -1], 3)[0]) == list(range(5))
    assert attention.Counters.negative_lengths == 1
    assert finite_rows(_windows([0], [8], 3, max_seqlen=4)[0]) == [0, 1, 2, 3]
    assert attention.Counters.cut == (8, 4)
    whole, (q, k, v) = _windows([0], [ROWS], 0)
    want = torch.nn.functional.scaled_dot_product_attention(*(tensor.transpose(0, 1) for tensor in (q, k, v)))
    torch.testing.assert_close(whole, want.transpose(0, 1))
    with pytest.raises(IndexError, match="outside the 12 rows"):
        _windows([8], [6], 3)
    with pytest.raises(NotImplementedError, match="not causal"):
        attention.context_attention_fwd(q, k, v, whole, torch.tensor([0]), torch.tensor([1]), 1)
