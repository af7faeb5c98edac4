"""`bench` without a GPU: what it refuses and why, and table and picture from a result."""

import json
import re
from xml.etree import ElementTree

import pytest
from cli_scene import ROOT

from scaffold.measure import MODELS

ROWS = [
    {"workload": "224x224", "tokens": 64, "eager_ms": 24.0, "exact_ms": 4.0, "vllm_ms": 4.8, "ours_ms": 4.1,
     "vllm_right": True, "ours_right": True},
    {"workload": "a & b", "tokens": 256, "eager_ms": 24.0, "exact_ms": 8.0, "vllm_ms": 9.0, "ours_ms": 8.0,
     "vllm_right": False, "ours_right": True},
]  # fmt: skip
RESULT = {
    "model": "qwen2_5_vl",
    "machine": "a GPU",
    "versions": {"vllm": "0.33.0"},
    "date": "2026-01-01",
    "rows": ROWS,
}


@pytest.fixture
def result(tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(RESULT), encoding="utf-8")
    return file


def test_without_a_gpu_it_says_so(run, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = run("bench", "qwen2_5_vl")
    assert done.code == 4
    assert "VCG470" in done.err
    assert "a benchmark needs a GPU, and torch finds none here" in done.err
    assert "--result" in done.err


def test_a_result_needs_no_gpu(run, result, tmp_path):
    files = [tmp_path / name for name in ("table.md", "picture.svg", "again.json")]
    done = run("bench", "qwen2_5_vl", "--result", result, "--svg", files[1], "-o", files[2])
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert "`qwen2_5_vl` on a GPU (vllm 0.33.0; 2026-01-01)" in lines[0]
    assert "| 224x224 | 64 | 24.00 | 4.80 | 4.10 | 4.00 | 0.17 | 1.02 |" in lines
    assert "| a & b | 256 | 24.00 | 9.00 (wrong) | 8.00 | 8.00 | 0.33 | 1.00 |" in lines
    assert lines[-1] == "Geometric mean over exact: eager 4.24, vllm 1.16, ours 1.01."
    assert json.loads(files[2].read_text()) == RESULT
    picture = ElementTree.parse(files[1]).getroot()
    texts = ["".join(element.itertext()) for element in picture.iter() if element.tag.endswith("text")]
    assert "a & b" in texts
    assert "6.0 " in texts, "a ratio beyond the axis is written"
    kept = run("bench", "qwen2_5_vl", "--result", result, "--markdown", files[0])
    assert (kept.code, files[0].read_text()) == (0, done.out)


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "[]",
        json.dumps({**RESULT, "rows": []}),
        json.dumps({**RESULT, "rows": [{**ROWS[0], "ours_ms": 0}]}),
        json.dumps({**RESULT, "rows": [{"workload": "x"}]}),
        json.dumps({**RESULT, "machine": 3}),
    ],
)
def test_other_files_are_refused(run, tmp_path, broken):
    file = tmp_path / "bench.json"
    file.write_text(broken)
    done = run("bench", "qwen2_5_vl", "--result", file)
    assert (done.code, done.out) == (5, "")
    assert "VCG513" in done.err


@pytest.mark.parametrize("place", ["bench", "profile", "docs/bench.md"])
def test_the_models_with_real_sizes_are_named(run, place):
    """All of them where somebody looks them up, and no other."""
    text = (ROOT / place).read_text("utf-8") if "/" in place else run(place, "--help").out
    (line,) = re.findall(r"(?:Real sizes are known for|has the sizes of) ([^.]*)\.", text)
    assert set(re.findall(r"\w+_vl|\w+vl", line)) == set(MODELS)


def test_a_model_without_real_sizes_is_refused(run):
    done = run("bench", "mllama4")
    assert done.code == 4
    assert "VCG473" in done.err
