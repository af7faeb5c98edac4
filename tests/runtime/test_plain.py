"""The documented example, and attention backends for towers of one's own."""

import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers import assert_equals_eager, make_manager

from scaffold.runtime import PackedAdapter, choose_attention
from scaffold.runtime.attention import UNCAPTURABLE
from scaffold.verify.numeric import attention as kernels

DOC = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"


def example() -> str:
    return re.search(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL).group(1)


def test_the_documented_example_runs_and_equals_eager():
    names: dict[str, object] = {}
    torch.manual_seed(0)
    exec(compile(example(), str(DOC), "exec"), names)
    manager, images = names["manager"], names["images"]
    with torch.inference_mode():
        expected = names["adapter"].embed(images)
    for _ in range(4):
        for got, want in zip(manager.execute(images), expected, strict=True):
            tolerance = 3e-2 if want.dtype is torch.bfloat16 else 1e-4
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert manager.report.failed == {}
    assert manager.report.captured


def test_the_graph_part_of_the_example_is_short():
    statements = [line for line in example().splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(statements) < 30


@pytest.mark.parametrize("name", UNCAPTURABLE)
def test_a_backend_that_cannot_be_captured_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"'{name.upper()}' cannot be captured"):
        choose_attention(name.upper())


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="there are 'torch', 'flash_attn', 'flashinfer'"):
        choose_attention("flash")


@pytest.mark.parametrize(("name", "package"), [("flash_attn", "flash-attn"), ("flashinfer", "flashinfer-python")])
def test_a_missing_package_is_named(name, package, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda found: None)
    with pytest.raises(ImportError, match=package):
        choose_attention(name)


def tower(rows, attend):
    x = rows.unflatten(1, (3, 2, -1))
    for _ in range(2):
        out = attend(x[:, 0], x[:, 1], x[:, 2])
        x = x + 0.5 * out[:, None]
    return x[:, 0].flatten(1)


def reference(rows, lengths):
    return torch.cat([
        tower(part, lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            *(t.transpose(0, 1)[None] for t in (q, k, v))
        )[0].transpose(0, 1))
        for part in rows.split(lengths)
    ])  # fmt: skip


def check_in_graphs(name, device, dtype, backend=None):
    """Calls of many sizes against plain attention of each sequence by itself."""
    adapter = PackedAdapter(
        tower, width=128, row=torch.empty(384, device=device, dtype=dtype), attention=choose_attention(name),
        attention_width=128,
    )  # fmt: skip
    manager = make_manager(adapter, [16, 40, 64], items=3, backend=backend, device=device, dtype=dtype)
    assert manager.report.failed == {}
    for seed, lengths in enumerate(([40], [3], [7, 20], [1, 1, 60], [64], [5, 5, 5, 5, 30])):
        torch.manual_seed(seed)
        rows = torch.randn(sum(lengths), 384, device=device, dtype=dtype)
        got = torch.cat(manager.execute({"rows": rows, "lengths": lengths}))
        tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(got, reference(rows, lengths), rtol=tolerance, atol=tolerance)
    assert manager.stats.misses == 0


@pytest.mark.parametrize("name", ["torch", "flash_attn", "flashinfer"])
def test_attention_in_a_graph_equals_plain_attention(name):
    try:
        choose_attention(name)
    except ImportError as error:
        pytest.skip(str(error))
    if torch.cuda.is_available():
        from scaffold.runtime import CudaGraphBackend

        device = torch.device("cuda")
        check_in_graphs(name, device, torch.bfloat16, CudaGraphBackend(device))
    elif name == "torch":
        check_in_graphs(name, torch.device("cpu"), torch.float32)
    else:
        pytest.skip("needs a GPU")


@pytest.fixture
def packages(monkeypatch):
    """The packages, with kernels that leave undefined what the real ones do."""

    def varlen(q, k, v, offsets, offsets_k, longest, longest_k):
        return kernels.flash_attn_varlen_func(q, k, v, longest, offsets, longest_k, offsets_k)

    flash, flashinfer, prefill = (ModuleType(name) for name in ("flash_attn", "flashinfer", "flashinfer.prefill"))
    flash.flash_attn_varlen_func = varlen
    prefill.cudnn_batch_prefill_with_kv_cache = kernels.cudnn_batch_prefill_with_kv_cache
    for module in (flash, flashinfer, prefill):
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield
    kernels.set_tail("fa2")


@pytest.mark.parametrize(("name", "tail"), [("flash_attn", "fa2"), ("flash_attn", "fa3"), ("flashinfer", "fa2")])
def test_what_a_package_leaves_undefined_does_not_reach_an_output(packages, name, tail):
    kernels.set_tail(tail)
    check_in_graphs(name, torch.device("cpu"), torch.float32)
    assert kernels.Counters.sequences > 0
    assert kernels.Counters.negative_lengths == 0
    assert kernels.Counters.cut is None


def test_rows_that_are_no_whole_tokens_are_refused():
    adapter = PackedAdapter(tower, width=8, row=torch.empty(24), rows_per_token=4, attention="torch")
    with pytest.raises(ValueError, match="no whole number of tokens"):
        adapter.items({"rows": torch.empty(6, 24), "lengths": [6]})


def test_several_rows_make_one_token():
    adapter = PackedAdapter(
        lambda rows, attend: tower(rows, attend).unflatten(0, (-1, 4)).mean(1),
        width=8, row=torch.empty(24), rows_per_token=4, attention="torch",
    )  # fmt: skip
    manager = make_manager(adapter, [4, 12], items=3)
    for seed in range(3):
        torch.manual_seed(seed)
        assert_equals_eager(manager, {"rows": torch.randn(32, 24), "lengths": [8, 24]})
    assert manager.stats.hits == 6
