"""The commands of any guide that measure; what `docs/bench.md` and `docs/tuning.md` list, and their length."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import types
from pathlib import Path

import operator_page
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LONGEST = 150


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["operators", "runtime", "tuning", "bench", "compared-with-upstream"])
def test_a_guide_is_short(page):
    assert len(text_of(page).splitlines()) <= LONGEST


@pytest.fixture
def here(run):
    """The files that the commands read: a benchmark, a recording, and a checkpoint's sizes."""
    folder = Path.cwd()
    (folder / "bench.json").write_bytes((RESULTS / "bench_h200_qwen2_5_vl.json").read_bytes())
    recording = gzip.decompress((RESULTS / "profile_qwen2_5_vl_3b_h200.json.gz").read_bytes())
    (folder / "recording.json").write_bytes(recording)
    (folder / "path" / "to").mkdir(parents=True)
    (folder / "path" / "to" / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    "words",
    [shlex.split(command)[1:] for command in operator_page.measuring_commands()],
    ids=" ".join,
)
def test_a_command_that_measures_runs_or_asks_for_a_gpu(run, here, monkeypatch, words):
    """What asks for one, has a result on record (`tests/docs/test_guides.py`)."""
    torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    done = run(*words)

    if "--recording" in words:
        assert (done.code, " ms, floor " in done.out) == (0, True)
    else:
        assert (done.code, "VCG470" in done.err) == (4, True)


@pytest.mark.parametrize("option", re.findall(r"`(--[a-z]+)[ `]", text_of("bench")))
def test_options_that_the_page_explains_exist(run, here, option):
    """`--result bench.json` as the page has it, and the others beside it."""
    values = {
        "--config": ["path/to/config.json"],
        "--image": ["64x64"],
        "--video": ["64x64x8"],
        "--tokens": ["64"],
        "--replace": [],
        "--result": ["bench.json"],
        "--svg": ["first.svg"],
    }[option]

    done = run("bench", "qwen2_5_vl", "--result", "bench.json", option, *values, "--svg", "bench.svg")

    assert done.code == 0, done.err
    assert "<svg" in Path("bench.svg").read_text()


def test_the_settings_of_a_server_are_read():
    settings = pytest.importorskip("scaffold.runtime.vllm.settings", reason="needs torch")
    (command,) = [line for line in operator_page.commands(ROOT / "docs" / "tuning.md") if "vllm serve" in line]

    found = settings.read_settings(types.SimpleNamespace(additional_config=json.loads(shlex.split(command)[-1])))

    assert found.tuning == "list"


@pytest.mark.parametrize("value", re.findall(r"^\* (?:switches[^`]*)?`([^`]+)`", text_of("tuning"), re.MULTILINE))
def test_values_of_tuning_are_read(value):
    settings = pytest.importorskip("scaffold.runtime.vllm.settings", reason="needs torch")
    given = {"encoder_graphs": {"tuning": json.loads(value)}}

    assert settings.read_settings(types.SimpleNamespace(additional_config=given)).tuning == json.loads(value)


def test_the_table_has_every_tuning():
    choice = pytest.importorskip("scaffold.runtime.tuning.choice", reason="needs torch")
    names = re.findall(r"^\| `([a-z0-9-]+)`(?: \(off by default\))? \|", text_of("tuning"), re.MULTILINE)

    assert set(names) == set(choice.NAMES)
