"""Each benchmark for GPUs runs to its end on a CPU, so that no change breaks one unseen: what is in its result."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import cpu_wheel
import measured
import measured_attention
import measured_fp8
import measured_tuning
import pytest
import readme_gpu
from both_encoders import descriptors, write_adapters
from captured import captured
from changed_ports import text_of
from readme_gpu import PARTS, Part
from release_process import run_script

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "0.33.0"
#: The scripts of other pages. Those of README.md are `readme_gpu.PARTS`.
OTHERS = (
    Part(
        "reload", "reload_gpu.py", (), ("--models", "qwen2_5_vl"), frozenset({"model", "format", "errors", "replayed"})
    ),
    Part(
        "fp8", "fp8_gpu.py", (), ("--models", "internvl", "--rounds", "2"),
        frozenset({"model", "workload", "tokens", "tuned_ms", "fp8_ms", "tuned_error", "fp8_error"}),
    ),
    Part(
        "fp8_checkpoint", "fp8_checkpoint_gpu.py", (), ("--models", "internvl", "--rounds", "2"),
        frozenset({"model", "workload", "tokens", "untuned_ms", "without_ms", "tuned_ms", "bf16_ms", "rounding"}),
    ),
    Part(
        "drafted", "drafted_towers_gpu.py", (),
        (str(ROOT / "scaffold/descriptor/shipped/llava.yaml"), "--image", "28x28"),
        frozenset({"model", "image", "tokens", "untuned_ms", "tuned_ms", "error", "rounding", "sizes", "applied"}),
    ),
    Part("attention", "attention_gpu.py", (), (), frozenset({"head_size", "heads", "sequences", "tiles", "us"})),
)  # fmt: skip
#: The module that makes a script's page, and the result that it reads.
PAGES = {
    "attention": (measured_attention, "attention_h200"),
    "drafted": (measured_tuning, "drafted_towers_h100"),
    "fp8": (measured_fp8, "fp8_h200"),
    "fp8_checkpoint": (measured_fp8, "fp8_checkpoint_h100"),
}
TOWERS = [part for part in (*PARTS, *OTHERS) if not part.engine]


def run_tiny(part: Part, folder: Path, tree: Path, **variables: str) -> tuple[int, str]:
    """The exit status of a part in its tiny mode, and what it printed at the end."""
    (folder / "work").mkdir(exist_ok=True)
    for command in readme_gpu.commands(part, folder, "cpu", tiny=True):
        done = run_script(Path(__file__).with_name("run_tiny.py"), tree, *command, **variables)
        if done.returncode:
            return done.returncode, done.stdout[-1500:] + done.stderr[-3000:]
    return 0, ""


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("part", TOWERS, ids=lambda part: part.name)
def test_a_benchmark_runs_to_its_end(part, release_tree, tmp_path, capsys, monkeypatch):
    status, told = run_tiny(part, tmp_path, release_tree(RELEASE).root)
    assert status == 0, told
    assert readme_gpu.report([part], tmp_path, "cpu", {part.name: status}) == 0, capsys.readouterr().err
    result_file = readme_gpu.file_of(part, tmp_path, "cpu")
    result = json.loads(result_file.read_text("utf-8"))
    assert result["machine"] == "a CPU in place of a GPU"
    assert {"versions", "date"} <= result.keys()
    assert not any("error" in model for model in result.get("models", {}).values())
    if part.name in PAGES:
        module, name = PAGES[part.name]
        stored = measured.RESULTS
        monkeypatch.setattr(measured, "RESULTS", tmp_path / "results")
        measured.RESULTS.mkdir()
        for file in stored.glob("*.json"):
            measured.RESULTS.joinpath(file.name).symlink_to(result_file if file.stem == name else file)
        assert "a CPU in place of a GPU" in module.pages()[0].text


@pytest.mark.lab
@pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs an installed vLLM (the `cpu` extra)")
def test_the_benchmark_of_engines_runs_to_its_end(tmp_path, capsys):
    """Its engines are the installed vLLM's."""
    part = next(part for part in PARTS if part.engine)
    [[script, *options]] = readme_gpu.commands(part, tmp_path, "cpu", tiny=True)
    env = cpu_wheel.environment(tmp_path)
    done = cpu_wheel.run_python(ROOT / "benchmarks" / script, *options, env=env)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    assert readme_gpu.report([part], tmp_path, "cpu", {part.name: 0}) == 0, capsys.readouterr().err
    [model] = json.loads(readme_gpu.file_of(part, tmp_path, "cpu").read_text("utf-8"))["models"].values()
    ours = model["engines"]["ours"]
    assert ours["at_end"][0]["stats"]["graph_hits"] > 0
    assert ours["check"]["equal"] == ours["check_after_all"]["equal"] == ours["check"]["answers"] > 0
    assert len(ours["stream"]) == 1


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs an installed vLLM (the `cpu` extra)")
def test_the_benchmark_of_memory_runs_to_its_end(tmp_path):
    """Slow: its engines start as those above do, which run each time."""
    file = tmp_path / "memory_cpu.json"
    options = ["--scale", "tiny", "--images", "12", "--tokens", "512", "--modes", "vllm_graphs,ours"]
    env = cpu_wheel.environment(tmp_path)
    done = cpu_wheel.run_python(ROOT / "benchmarks/memory_gpu.py", "--out", str(file), *options, env=env)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    result = json.loads(file.read_text("utf-8"))
    ours = result["engines"]["ours"]
    assert ours["captured_when_idle"] > 0
    assert ours["memory"]["after the images"]["ours"]["graphs"] > ours["memory"]["started"]["ours"]["graphs"] > 0
    assert {"machine", "versions", "date", "code", "settings"} <= result.keys()


MANAGERS = frozenset({"model", "eager_ms", "vllm_ms", "ours_ms"})
#: Scripts that measure ports of a tree. The first one makes these ports.
PORTED = (
    Part(
        "cut", "cut_gpu.py", (), ("--ports", "{work}/ports", "--models", "deepseek_vl2"),
        MANAGERS | {"call", "limit_ms", "ours_error", "alone_error"},
        first=("--generate", "{work}/ports"),
    ),
    Part(
        "explicit", "stream_gpu.py", (),
        ("--ports", "{work}/ports", "--models", "deepseek_vl2", "--ways", "vllm,upstream,off", "--share", "0.02",
         "--passes", "1", "--without-starts"),
        MANAGERS | {"upstream_ms", "plans_built"},
    ),
)  # fmt: skip


@pytest.mark.trees
@pytest.mark.lab
def test_benchmarks_of_ports_run_to_their_end(release_tree, tmp_path):
    rows = {}
    for part in PORTED:
        status, told = run_tiny(part, tmp_path, release_tree(RELEASE).root)
        assert status == 0, told
        rows[part.name] = json.loads((tmp_path / f"{part.name}_cpu.json").read_text("utf-8"))["rows"]
        assert all(part.keys <= row.keys() for row in rows[part.name])
    errors = ("vllm_error", "ours_error", "whole_vllm_error", "whole_ours_error")
    assert all(row[key] < 1e-3 for row in rows["cut"] for key in errors)
    assert any(row["replays"] for row in rows["cut"])  # the largest calls fit no graph
    assert rows["explicit"]


@pytest.mark.trees
@pytest.mark.lab
def test_the_benchmark_of_both_encoders_runs_to_its_end(release_tree, tmp_path):
    """Its option `--generate` drafts what `both_encoders` has."""
    files = {tmp_path / f"{name}.yaml": document for name, document in descriptors().items()}
    for file, document in files.items():
        file.write_text(text_of(document), "utf-8")
    write_adapters(tmp_path / "adapters", files)
    options = ("--adapters", "{work}/../adapters", "--rounds", "1")
    part = Part("both", "both_gpu.py", (), options, MANAGERS | {"modality", "call", "ours_error"})
    status, told = run_tiny(part, tmp_path, release_tree(RELEASE).root)
    assert status == 0, told
    result = json.loads((tmp_path / "both_cpu.json").read_text("utf-8"))
    assert {row["modality"] for row in result["rows"]} == {"image", "video", "audio"}
    assert all(part.keys <= row.keys() and row["ours_error"] < 1e-3 for row in result["rows"])
    served = result["models"]["qwen3_omni"]["managers"]
    assert all(one["hits"] for manager in served.values() for one in manager["parts"])


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("name", ["manager", pytest.param("stream", marks=pytest.mark.slow)])
def test_a_benchmark_sees_a_wrong_answer(name, release_tree, tmp_path):
    part = next(part for part in PARTS if part.name == name)
    status, _ = run_tiny(part, tmp_path, release_tree(RELEASE).root, VITCG_TINY_WRONG="1")
    assert status == 1
    result = json.loads((tmp_path / f"{name}_cpu.json").read_text("utf-8"))
    assert all(model["wrong"] for model in result["models"].values())


PART = replace(PARTS[1], keys=frozenset({"model"}))
RESULT = {"rows": [{"model": "a"}], "machine": "one H200", "code": {"digest": "d", "commit": ""}}


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({}, 0, ""),
        ({}, 1, "ended with 1"),
        (None, 0, "no result"),
        ({"rows": []}, 0, "rows lack values"),
        ({"rows": [{}]}, 0, "rows lack values"),
        ({"machine": "one H100"}, 0, "different cards"),
        ({"code": {"digest": "e", "commit": ""}}, 0, "different states of the code"),
    ],
)
def test_results_that_are_not_of_one_run_are_refused(changed, status, said, tmp_path, capsys):
    other = replace(PART, name="other")
    for part, result in ((PART, RESULT), (other, None if changed is None else {**RESULT, **changed})):
        if result is not None:
            readme_gpu.file_of(part, tmp_path, "h200").write_text(json.dumps(result))
    ended = readme_gpu.report([PART, other], tmp_path, "h200", {PART.name: 0, "other": status})
    printed = capsys.readouterr()
    assert ended == bool(said)
    assert said in printed.err
    assert "manager_h200.json: 1 rows, one H200, commit unknown, digest d" in printed.out


def test_one_command_runs_all_parts_in_order(tmp_path, monkeypatch, capsys):
    """Where one fails, the others still run, and the exit status says it."""
    ran = []

    def started(part, command, tiny):
        ran.append((part.name, *command[:2]))
        if part.name == "tuning":
            return 3
        if "--out" in command:
            rows = [dict.fromkeys(part.keys, 1.0)]
            Path(command[command.index("--out") + 1]).write_text(json.dumps({**RESULT, "rows": rows}))
        return 0

    monkeypatch.setattr(readme_gpu, "started", started)
    monkeypatch.setattr("sys.argv", ["readme_gpu.py", str(tmp_path), "--card", "h200"])
    assert readme_gpu.main() == 1
    assert [name for name, *_ in ran] == ["ports", *(part.name for part in PARTS)]
    assert ran[0] == ("ports", "ports_gpu.py", "--generate")
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["tuning: tuning_gpu.py ended with 3", "tuning: no result"]
    assert [line.partition(":")[0] for line in printed.out.splitlines()] == [
        f"{part.name}_h200.json" for part in PARTS if part.name != "tuning"
    ]


def test_the_command_has_every_result_of_readmes_table():
    """Each page that the table links to has a part."""
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme.partition("<!-- summary")[2].partition("<!-- end -->")[0]
    pages = set(re.findall(r"docs/measured/(\w+)\.md", table))
    assert pages == {"ports", "manager", "tuning", "streams", "engine"}
    assert {part.name.partition("_")[0].rstrip("s") for part in PARTS} == {page.rstrip("s") for page in pages}


@pytest.mark.slow
def test_the_command_ends_well_in_tiny_mode(tmp_path):
    """As somebody types it, with a process of its own for the part. The tests above run the other parts."""
    script = ROOT / "benchmarks" / "readme_gpu.py"
    command = [sys.executable, str(script), str(tmp_path), "--tiny", "--parts", "manager"]
    done = captured(command, timeout=900)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    assert "manager_gpu.json: 3 rows, a CPU in place of a GPU, commit" in done.stdout
