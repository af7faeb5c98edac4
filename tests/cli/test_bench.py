"""`bench` without a GPU: what it refuses and why, and table and picture from a result."""

import contextlib
import json
from xml.etree import ElementTree

import pytest

from scaffold.cli.console import Console
from scaffold.cli.gpu import measured, workloads
from scaffold.diagnostics import DiagnosticError
from scaffold.measure import WORKLOADS
from scaffold.workflow import load_port

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
    "sizes": "",
}


@pytest.fixture
def result(tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(RESULT), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("command", "what", "way_out"), [("bench", "a benchmark", "--result"), ("profile", "a profile", "--recording")]
)
def test_without_a_gpu_it_says_so(run, monkeypatch, command, what, way_out):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = run(command, "qwen2_5_vl")
    assert done.code == 4
    assert "VCG470" in done.err
    assert f"{what} needs a GPU, and torch finds none here" in done.err
    assert way_out in done.err


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
    assert {"eager", "vllm", "ours", "qwen2_5_vl on a GPU"} <= set(texts)
    kept = run("bench", "qwen2_5_vl", "--result", result, "--markdown", files[0])
    assert (kept.code, files[0].read_text()) == (0, done.out)


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "[]",
        json.dumps({**RESULT, "rows": []}),
        json.dumps({**RESULT, "rows": [{**ROWS[0], "ours_ms": 0}]}),
        json.dumps({**RESULT, "rows": [{**ROWS[0], "ours_ms": None}]}),
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


@pytest.mark.parametrize("command", ["bench", "profile"])
@pytest.mark.parametrize(
    ("option", "size", "example"),
    [
        *(("--image", size, "1280x720") for size in ("12", "0x4", "4x", "axb", "100000x4", "-3x4", "4x4x4")),
        *(("--video", size, "640x360x16") for size in ("64x64", "64x64x0", "64x64x8x8")),
    ],
)
def test_what_is_no_size(run, command, option, size, example):
    done = run(command, "qwen2_5_vl", option, size)
    assert done.code == 2
    assert f"'{size}' is no size such as {example}" in done.err


@pytest.mark.parametrize("command", ["bench", "profile", "verify"])
@pytest.mark.parametrize("named", [(), ("--config", "config.json")])
def test_code_of_no_folder_cannot_be_trusted(run, small_tree, tmp_path, monkeypatch, command, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "internvl_chat"}')
    target = ("--vllm", small_tree) if command == "verify" else ()
    done = run(command, "internvl", "--trust-remote-code", *named, *target)
    assert done.code == 2
    assert "name its folder, --config FOLDER" in done.err


def test_named_calls_take_the_place_of_the_usual_mix():
    assert list(workloads([], [], [])) == list(WORKLOADS)
    named = workloads([(12, 34), (56, 78)], [(90, 12, 4)], [])
    assert named == {"12x34": [(12, 34)], "56x78": [(56, 78)], "90x12x4": [(90, 12, 4)]}
    assert workloads([], [], [100]) == {}


def test_a_model_that_cannot_be_built_says_why_and_what_helps(run, monkeypatch):
    """What `measured` makes of the model's own refusal, whatever measures it."""
    pytest.importorskip("torch")
    from scaffold.measure import installed
    from scaffold.measure.subject import NoSubject

    monkeypatch.setattr(installed, "installed_vllm", lambda *_: contextlib.nullcontext())
    with pytest.raises(DiagnosticError) as caught, measured(Console(), load_port("mllama4"), None, False, False):
        raise NoSubject("nothing says vision_config.hidden_size", "give the checkpoint's own values")
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("VCG473", "mllama4: nothing says vision_config.hidden_size")
    assert found.help == "give the checkpoint's own values"


def test_a_call_that_no_graph_holds(run, tmp_path):
    rows = [{**ROWS[0], "exact_ms": None}, ROWS[1]]
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({**RESULT, "rows": rows, "sizes": "LlavaConfig (config.json)"}), encoding="utf-8")
    done = run("bench", "qwen2_5_vl", "--result", file, "--svg", tmp_path / "x.svg")
    assert done.code == 0, done.err
    assert "| 224x224 | 64 | 24.00 | 4.80 | 4.10 |  | 0.17 |  |" in done.out
    assert "Sizes of LlavaConfig (config.json). Median" in done.out
    assert "Geometric mean over exact: eager 3.00, vllm 1.12, ours 1.00." in done.out
    file.write_text(json.dumps({**RESULT, "rows": rows[:1]}), encoding="utf-8")
    assert "Geometric mean" not in run("bench", "qwen2_5_vl", "--result", file).out
