"""`profile` without a GPU: what it refuses and why, and reports from a recording."""

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scaffold.measure.profiles import Ceilings, Recording
from scaffold.measure.trace import read_trace

TRACE = Path(__file__).parents[1] / "tuning" / "data" / "qwen2_5_vl_2_blocks_h200.json.gz"


@pytest.fixture
def recording(tmp_path):
    kernels = read_trace(json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"])
    one = Recording("qwen2_5_vl", "", 96, Ceilings(799.0, 4.24), kernels)
    file = tmp_path / "recording.json"
    file.write_text(json.dumps([one.to_json()]), encoding="utf-8")
    return file


@pytest.fixture
def no_gpu(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_recording_needs_no_gpu(run, no_gpu, recording, tmp_path):
    done = run("profile", "qwen2_5_vl", "--recording", recording)
    assert done.code == 0
    assert "inner size 3420 is not a multiple of 8" in done.out
    assert "pad-mlp" in done.out
    files = [tmp_path / "report.md", tmp_path / "picture.svg", tmp_path / "again.json"]
    kept = run("profile", "qwen2_5_vl", "--recording", recording, "--markdown", files[0], "--svg", files[1],
               "--save", files[2])  # fmt: skip
    assert kept.code == 0
    assert files[0].read_text(encoding="utf-8").rstrip() == done.out.rstrip()
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")
    assert json.loads(files[2].read_bytes()) == json.loads(recording.read_bytes())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[{}]", "is not a file that --save wrote: KeyError"),
        ("{}", "no list"),
        ("[]", "no list"),
        ("[1]", "is not a file that --save wrote: TypeError"),
        (None, "No such file"),
    ],
)
def test_what_is_no_recording(run, tmp_path, text, message):
    file = tmp_path / "broken.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    done = run("profile", "qwen2_5_vl", "--recording", file)
    assert (done.code, "VCG472" in done.err, message in done.err) == (4, True, True)


def test_a_configuration_is_read_before_the_gpu_is_asked(run, no_gpu, tmp_path):
    file = tmp_path / "list.json"
    file.write_text("[]")
    (tmp_path / "folder").mkdir()
    for given, message in (
        ("missing.json", "No such file"),
        ("list.json", "not a JSON object"),
        ("folder", "folder/config.json: No such file"),
    ):
        done = run("profile", "qwen2_5_vl", "--config", tmp_path / given)
        assert (done.code, "VCG471" in done.err, message in done.err) == (4, True, True)


def test_a_file_that_cannot_be_written(run, recording, tmp_path):
    done = run("profile", "qwen2_5_vl", "--recording", recording, "--svg", tmp_path / "none" / "x.svg")
    assert (done.code, "VCG709" in done.err) == (7, True)
