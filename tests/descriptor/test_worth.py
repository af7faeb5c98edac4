"""The note where graphs stop paying off: what a descriptor says of its items, and the numbers that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from changed_ports import port_of

from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.worth import FEW_ROWS, GAIN, MANY_ROWS, worth

ROOT = Path(__file__).parents[2]
#: Rows of one unit in the encoder of `benchmarks/cut_gpu.py`; those of Mistral 3 and Kimi-VL are counted as units.
ROWS = {
    "llava_next": 576,
    "mistral3": 1,
    "paligemma": 256,
    "llava": 576,
    "blip2": 256,
    "phi3v": 576,
    "moondream3": 729,
    "kimi_vl": 1,
    "idefics3": 676,
    "lfm2_vl": 1,
}
#: Models that call their encoder for each image, so that eager has the launches of as many calls.
BY_IMAGE = {"moondream3"}
#: Our manager keeps the positions that eager interpolates in every call, which is no gain of a graph.
KEPT = {"kimi_vl"}
#: Their eager encodes one image after the other.
ONE_BY_ONE = {"deepseek_ocr", "deepseek_ocr2", "deepseek_v4"}
#: Attention with a mask.
MASKED = {"minicpmv"}
REASONS = {
    "llava_next": "an item may have several units",
    "mistral3": "an item has as many rows as its size asks for",
    "internvl": "an item has several tiles",
    "deepseek_ocr2": "",
    "qwen2_vl": "",
}


def test_the_numbers_are_those_measured():
    rows = json.loads((ROOT / "benchmarks/results/cut_h200.json").read_text("utf-8"))["rows"]
    calls = [
        (
            row["units"] * ROWS[row["model"]] / (int(row["call"].split()[0]) if row["model"] in BY_IMAGE else 1),
            row["eager_ms"] / row["ours_ms"],
        )
        for row in rows
        if row["model"] not in KEPT | ONE_BY_ONE | MASKED
    ]
    assert {row["model"] for row in rows} == ROWS.keys() | ONE_BY_ONE | MASKED
    assert min(row["eager_ms"] / row["ours_ms"] for row in rows if row["model"] in ONE_BY_ONE) > 1.25
    assert max(row["eager_ms"] / row["ours_ms"] for row in rows if row["model"] in MASKED) < 1.05
    assert min(gain for size, gain in calls if size < FEW_ROWS) >= GAIN
    assert max(gain for size, gain in calls if size > MANY_ROWS) < 1.25
    assert any(size > MANY_ROWS for size, _ in calls)


@pytest.mark.parametrize("name", REASONS)
def test_what_a_descriptor_says_of_its_items(name):
    port = port_of(name)
    assert port.long_calls == REASONS[name]
    note = worth(port)
    assert (note is None) == (not REASONS[name])
    assert note is None or (note.code == "VCG487" and str(MANY_ROWS) in (note.help or ""))


def test_a_mask_takes_longer_than_launches():
    note = worth(port_of("minicpmv"))
    assert note is not None
    assert (note.code, note.span) == ("VCG487", port_of("minicpmv").span("forward.with.mask"))


@pytest.mark.parametrize(
    ("name", "reason"),
    {"phi4mm": "the model pads all items of a batch to the most units of one", "aria": ""}.items(),
)
def test_a_batch_that_is_padded(name, reason):
    text = (ROOT / f"tests/lab/cuts/{name}.yaml").read_text("utf-8")
    assert load_descriptor_text(text, f"{name}.yaml").long_calls == reason
