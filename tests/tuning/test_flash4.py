"""Which attention kernel is taken, held against what was measured; where none is; and how it is called."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from measured import load
from measured_attention import FLASH3, best, chosen, share

from scaffold.runtime.tuning import attention, flash4
from scaffold.runtime.tuning.base import Undo
from scaffold.runtime.tuning.kernels import window_attention_reference

RESULT = load("attention_h200")


def test_every_kernel_was_measured_and_right():
    assert RESULT["wrong"] == []
    for size, kernels in flash4.KERNELS.items():
        rows = [row for row in RESULT["rows"] if row["head_size"] == size]
        assert len(rows) >= 11
        assert all(row["largest_error"] < 0.01 for row in rows)
        names = {f"{kernel.rows}x{kernel.columns}" for kernel in kernels if kernel.columns}
        assert all(names <= row["us"].keys() for row in rows)


@pytest.mark.parametrize("row", RESULT["rows"], ids=lambda row: f"{row['head_size']}-{row['sequences']}-{row['tiles']}")
def test_the_kernel_that_is_taken_is_near_the_best(row):
    us = row["us"][chosen(row, RESULT["processors"])]
    assert us <= 1.06 * row["us"][FLASH3]
    assert us <= 1.11 * best(row)


def test_most_shapes_gain():
    shares = [share(row, RESULT["processors"]) for row in RESULT["rows"]]
    assert sum(share < 0.97 for share in shares) > 0.75 * len(shares)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ((80, 16, 1, 1024, 1024, 132), 128),  # 128 tiles of 128 rows fill 132 processors once
        ((80, 16, 1, 1088, 1088, 132), 192),  # and of 1088 rows they would take two waves
        ((80, 16, 1, 256, 256, 132), 64),
        ((80, 4, 1, 1024, 1024, 132), 64),  # a shard has fewer heads
        ((80, 16, 1, 10764, 10764, 132), 192),
        ((64, 16, 13, 13 * 1025, 1025, 132), 192),
        ((80, 16, flash4.MOST_SEQUENCES, 4784, 4784, 132), 128),
        ((80, 16, flash4.MOST_SEQUENCES + 1, 4784, 4784, 132), None),
        ((104, 16, 1, 256, 256, 132), None),  # no such head was measured
        ((80, 16, 1, 256, 0, 132), None),
        ((80, 16, 1, 256, 257, 132), None),
        ((128, 16, 1, 4784, 4784, 132), None),  # FlashAttention 3 is the fastest
    ],
)
def test_tiles_follow_from_rows_heads_and_processors(case, expected):
    kernel = flash4.choose(*case)
    assert (kernel and kernel.rows) == expected


def test_sequences_of_other_lengths_count_as_tiles():
    kernel = flash4.Kernel(128, 128, True, 5.0, 10.0)
    assert kernel.microseconds(1000, 400, 13, 132) == 5.0 + 1 * 400 * 10.0 / 1000  # 4 + 4 + 2 tiles of 13 heads
    assert kernel.microseconds(1000, 400, 27, 132) == 5.0 + 3 * 400 * 10.0 / 1000  # 270 on 132


class Owner(nn.Module):
    def forward(self, x, cu_seqlens=None):
        return x


class Tiled(nn.Module):
    def forward(self, x):
        return x


class MMEncoderAttention(nn.Module):
    """What the tuning reads of vLLM's class of this name."""

    attn_backend = SimpleNamespace(name="FLASH_ATTN")
    num_heads = num_kv_heads = 2
    head_size, scale, dtype, _fa_version, fp8_enabled = 80, 80**-0.5, torch.bfloat16, 3, False

    def forward(self, query, key, value, cu_seqlens=None, max_seqlen=None, sequence_lengths=None):
        return "vLLM's"


@pytest.fixture(autouse=True)
def _class_of_vllm(monkeypatch):
    """Tunings ask whether a class is the one in vLLM's module."""
    home = "vllm.model_executor.layers.attention.mm_encoder_attention"
    monkeypatch.setitem(sys.modules, home, SimpleNamespace(MMEncoderAttention=MMEncoderAttention))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attn_backend": SimpleNamespace(name="TORCH_SDPA")}, "the backend is TORCH_SDPA"),
        ({"num_kv_heads": 1}, "queries share keys"),
        ({"fp8_enabled": True}, "attention runs in fp8"),
        ({"_fa_version": 4}, "it is FlashAttention 4, not 3"),
        ({"dtype": torch.float32}, "no kernel was measured for torch.float32"),
        ({"head_size": 104}, "no kernel was measured for heads of 104 lanes"),
        ({}, "the device is no Hopper GPU"),
    ],
)
def test_what_was_not_measured_is_left_alone(change, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module = MMEncoderAttention()
    vars(module).update(change)
    tower = {"attn": Owner(), "attn.attn": module}
    outcome = attention.FittedAttention().run(tower, Undo())
    assert outcome.refused == {"attn.attn": reason}
    assert "forward" not in vars(module)


def tuned(owner, monkeypatch):
    """A tuned module whose kernel is attention in torch, and the calls that it got."""
    calls = []

    def attend(kernel, q, k, v, scale, offsets=None, longest=0):
        calls.append((kernel.rows, q.shape, longest))
        if offsets is None:
            flat = (t.flatten(0, 1) for t in (q, k, v))
            ends = torch.arange(q.shape[0] + 1) * q.shape[1]
            return window_attention_reference(*flat, ends, scale).view(q.shape)
        return window_attention_reference(q, k, v, offsets, scale)

    monkeypatch.setattr(flash4, "refusal", lambda size: None)
    monkeypatch.setattr(flash4, "compile_kernels", lambda *args: calls.append(args))
    monkeypatch.setattr(flash4, "attend", attend)
    monkeypatch.setattr(attention, "processors", lambda device: 132)
    monkeypatch.setattr(attention, "on_gpu", lambda tensor: True)
    module = MMEncoderAttention()
    outcome = attention.FittedAttention().run({"a": owner, "a.attn": module}, Undo())
    assert outcome.applied == ["a.attn"]
    return module, calls


def qkv(*shape):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).bfloat16() for _ in range(3)]


def test_packed_sequences_run_on_the_kernel(monkeypatch):
    module, calls = tuned(Owner(), monkeypatch)
    q, k, v = qkv(1, 90, 2, 80)
    offsets = torch.tensor([0, 50, 80], dtype=torch.int32)
    got = module.forward(q, k, v, cu_seqlens=offsets, max_seqlen=torch.tensor(50))
    assert got.shape == q.shape
    assert torch.equal(got[0], window_attention_reference(q[0], k[0], v[0], offsets, module.scale))
    assert calls == [(80, 2, torch.bfloat16, True), (64, (90, 2, 80), 50)]
    # Heads side by side in the last dimension, as some towers pass them.
    flat = module.forward(*(t.flatten(2) for t in (q, k, v)), cu_seqlens=offsets, max_seqlen=50)
    assert torch.equal(flat, got.flatten(2))


def test_tiles_of_one_size_run_as_a_batch(monkeypatch):
    module, calls = tuned(Tiled(), monkeypatch)
    q, k, v = qkv(3, 40, 160)
    got = module.forward(q, k, v)
    assert got.shape == q.shape
    assert calls == [(80, 2, torch.bfloat16, False), (64, (3, 40, 2, 80), 40)]
    each = [window_attention_reference(*(t[i].view(40, 2, 80) for t in (q, k, v)), torch.tensor([0, 40]), module.scale)
            for i in range(3)]  # fmt: skip
    assert torch.equal(got, torch.stack(each).flatten(2))


@pytest.mark.parametrize(
    ("owner", "shape", "more"),
    [
        (Owner(), (1, 90, 2, 80), {}),  # its kernels are compiled for offsets
        (Owner(), (1, 90, 2, 80), {"cu_seqlens": torch.tensor([0, 90]), "max_seqlen": None}),
        (Owner(), (1, 90, 2, 80), {"cu_seqlens": torch.tensor([0, 90]), "max_seqlen": 91}),
        (Owner(), (2, 90, 2, 80), {"cu_seqlens": torch.tensor([0, 90, 180]), "max_seqlen": 90}),
        (Tiled(), (1, 90, 2, 80), {"cu_seqlens": torch.tensor([0, 90]), "max_seqlen": 90}),
    ],
    ids=["no offsets", "no bound", "bound above the rows", "two batches", "offsets"],
)
def test_a_call_that_no_kernel_was_compiled_for_stays_vllms(owner, shape, more, monkeypatch):
    module, calls = tuned(owner, monkeypatch)
    assert module.forward(*qkv(*shape), **more) == "vLLM's"
    assert len(calls) == 1


def test_other_numbers_and_other_keys_stay_vllms(monkeypatch):
    module, _ = tuned(Tiled(), monkeypatch)
    q, k, v = qkv(1, 90, 2, 80)
    assert module.forward(q.float(), k.float(), v.float()) == "vLLM's"
    assert module.forward(q, k[:, :50], v[:, :50]) == "vLLM's"
