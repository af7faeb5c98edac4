"""LoRA on the vision tower, with two adapters and images of several sizes in one batch (vLLM issue 52376).

vLLM maps adapters to rows of the tower in the order of its batch, and the capture sees a tower without adapters. So
with graphs, embeddings would be silently wrong: every image runs eager, and the statistics say why.
"""

from __future__ import annotations

import pytest
from serving import needs_vllm, serve

pytestmark = needs_vllm


def wrong(got: list[list[float]], want: list[list[float]]) -> list[int]:
    """The requests whose logprobs differ by more than rounding."""
    return [n for n, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pytest.approx(pair[1], abs=1e-4)]


def test_two_adapters_and_mixed_sizes_in_one_batch_are_right(tmp_path):
    found = serve("lora_child.py", tmp_path, {"guarded": True})
    eager, served = found["eager"], found["served"]
    assert wrong(eager["together"], eager["alone"]) == []
    assert wrong(eager["without"], eager["alone"]) == [*range(len(eager["alone"]))]  # each adapter changes something
    assert {way: wrong(served[way], eager[way]) for way in eager} == {way: [] for way in eager}
    stats = found["encoder"]["stats"]
    assert stats["graph_hits"] == 0
    assert stats["detail"]["miss_reasons"] == {"lora": 3 * len(eager["alone"])}


@pytest.mark.slow  # the control: this test can fail
def test_without_the_guard_they_are_wrong(tmp_path):
    found = serve("lora_child.py", tmp_path, {"guarded": False})
    assert wrong(found["served"]["together"], found["eager"]["alone"]) != []
