"""Every command of the operators' page and every server of any guide runs; the tables of the settings are the code's.

The pages are `docs/operators.md` and `docs/reference/settings.md`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import sys
import time
import venv
from pathlib import Path

import cpu_wheel
import operator_page
import pytest
from captured import captured
from hatchling.builders.wheel import WheelBuilder
from ruff.__main__ import find_ruff_bin

from scaffold import plugin
from scaffold.runtime.options import Options
from scaffold.runtime.vllm.settings import _FROM_OPTIONS, Settings

ROOT = Path(__file__).parents[2]
needs_wheel = pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs the `cpu` extra")
REFERENCE = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")


def kind(command: str) -> str:
    """Which test runs a command."""
    if command in operator_page.serve_commands():
        return "serve"
    return "pip" if command.startswith("pip ") else "tool"


KINDS = {command: kind(command) for command in operator_page.commands()}
SERVE = operator_page.serve_commands()


def test_the_page_has_commands_of_every_kind():
    assert set(KINDS.values()) == {"serve", "pip", "tool"}
    assert len(SERVE) >= 7


def test_pip_installs_and_uninstalls(tmp_path):
    """The page's own lines, in the checkout. A wheel of this tree stands for the package index, nothing else is
    installed, and the build uses our copy of its backend instead of one from an index."""
    next(iter(WheelBuilder(str(ROOT)).build(directory=str(tmp_path / "dist"), versions=["standard"])))
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    program = tmp_path / "environment" / "bin" / "vitcg-scaffold"
    backend = tmp_path / "backend"
    backend.mkdir()
    of_the_hook = ("jinja2", "markupsafe", "ruff", "yaml")
    for name in ("hatchling", "packaging", "pathspec", "pluggy", "trove_classifiers", *of_the_hook):
        (found,) = importlib.util.find_spec(name).submodule_search_locations
        (backend / name).symlink_to(found)
    (backend / "bin").mkdir()
    (backend / "bin" / "ruff").symlink_to(find_ruff_bin())
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(backend),
        "PIP_PYTHON": str(tmp_path / "environment" / "bin" / "python"),
        "PIP_NO_BUILD_ISOLATION": "0",  # a switch of pip whose 0 means: do not isolate
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "dist"),
    }
    there = []
    for command in (command for command, found in KINDS.items() if found == "pip"):
        done = captured(["bash", "-c", command], env=env, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        there.append(program.exists())

    assert there == [True, True, False]


@pytest.mark.lab
@needs_wheel
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vitcg-scaffold doctor", "plugin      active: adapters and manager"),
        ("vitcg-scaffold doctor --json", '"active": true'),
        ("python -m json.tool stats.json", '"miss_reasons"'),
        ("vitcg-scaffold budgets --trace sizes.json", "encoder_cudagraph_token_budgets"),
    ],
)
def test_a_command_of_the_tool_runs(faults, tmp_path, command, said):
    assert KINDS[command] == "tool"
    env = cpu_wheel.environment(tmp_path)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])

    done = captured(["bash", "-c", command], env=env, cwd=faults.folder)

    assert done.returncode == 0, done.stderr
    assert said in done.stdout


ONE, SOUND = operator_page.own_adapter_commands().values()


@needs_wheel
@pytest.mark.parametrize("lines", [ONE, pytest.param([*ONE, *SOUND], marks=pytest.mark.slow)], ids=["one", "sound"])
def test_the_plugin_finds_an_adapter_of_your_own(tmp_path, lines):
    """The page's own lines, with a descriptor of a model that no shipped one is for."""
    shutil.copy(ROOT / "tests/drafts/blip2.yaml", tmp_path / "mymodel.yaml")
    env = cpu_wheel.environment(tmp_path)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])

    done = captured(["bash", "-c", " && ".join(lines)], env=env, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert f"\nadapters    {tmp_path}/generated/vitcg_adapters\n" in done.stdout
    served = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    assert served["Blip2ForConditionalGeneration"] == served["Qwen2VLForConditionalGeneration"] == ["adapter", "ours"]


def test_every_command_of_the_tool_is_run():
    parameters = test_a_command_of_the_tool_runs.pytestmark
    run = next(mark.args[1] for mark in parameters if mark.name == "parametrize")

    assert {command for command, _ in run} == {command for command, found in KINDS.items() if found == "tool"}


@pytest.mark.lab
@needs_wheel
def test_vllm_understands_every_serve_command(faults, tmp_path):
    """Up to vLLM's configuration and what we read of it. The slow test starts the servers; the GPU script, graphs."""
    env = cpu_wheel.environment(tmp_path, MODEL=str(faults.folder / "qwen2_vl"))
    done = captured(
        [sys.executable, str(Path(__file__).with_name("serve_child.py"))],
        input=json.dumps(SERVE), env=env, cwd=faults.folder
    )  # fmt: skip
    (configured,) = cpu_wheel.results_of(done)
    found = dict(zip(SERVE, configured, strict=True))

    assert all(config["graphs"] and not config["eager"] for config in found.values())
    assert {config["model"] for config in found.values()} == {"Qwen2VLForConditionalGeneration"}
    spread = [config for command, config in found.items() if "mm-encoder-tp-mode" in command]
    assert [(config["ranks"], config["spread"]) for config in spread] == [(2, "data")]
    settings = [{k: v for k, v in config["settings"].items() if v} for config in found.values()]
    assert {"record": "sizes.json", "stats": "stats.json", "graphs": 64} in settings
    assert {"trace": "sizes.json", "graphs": 24} in settings
    assert {config["tuning"] for config in found.values()} == {None, "list"}
    controls = [config["controls"] for config in found.values()]
    assert [True, "all", []] in controls
    assert [False, "manager", []] in controls
    assert [False, "all", ["qwen2_5_vl"]] in controls


@pytest.mark.slow
@pytest.mark.lab
@needs_wheel
@pytest.mark.parametrize("command", [command for command in SERVE if "tensor-parallel" not in command])
def test_a_server_that_is_started_so_answers(faults, tmp_path, command):
    """With the page's line as it is, and dummy weights. On the CPU vLLM captures no encoder graphs."""
    port = operator_page.free_port()
    options = ["--load-format", "dummy", "--dtype", "float32", "--max-model-len", "1024"]
    programs = operator_page.write_programs(tmp_path / "bin", [*options, "--host", "127.0.0.1", "--port", str(port)])
    env = cpu_wheel.environment(tmp_path, MODEL=str(faults.folder / "qwen2_vl"), VLLM_ENABLE_V1_MULTIPROCESSING=None)
    env["PATH"] = os.pathsep.join([str(programs), env["PATH"]])
    server = operator_page.Server(command, port, env, faults.folder, tmp_path / "log")
    try:
        answer = server.chat(server.wait(time.monotonic() + 600), (56, 56))
    except operator_page.ServerError as error:
        pytest.fail(f"{error}\n{server.said()[-3000:]}")
    finally:
        server.stop()

    assert answer["choices"][0]["message"]["role"] == "assistant"
    # Qwen2-VL: the page chooses another model by VITCG_MODELS.
    assert ("is served by vitcg_adapters" in server.said()) is ("VITCG_" not in command)


# -- tables


def _table(heading: str) -> dict[str, str]:
    """Names in the first column of the tables below a heading, with their defaults."""
    section = REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


def test_the_reference_has_every_variable():
    named = {name for name in _table("Environment") if name.startswith(plugin.PREFIX)}
    sources = [path for path in (ROOT / "scaffold").rglob("*.py") if path.name != "app.py"]
    read = {name for path in sources for name in re.findall(r'"(VITCG_\w+)"', path.read_text(encoding="utf-8"))}

    assert named == plugin.VARIABLES
    # A prefix of names that a proof depends on is no name.
    assert read - {"VITCG_ENCODER", plugin.PREFIX} == plugin.VARIABLES


def test_the_reference_has_every_setting_with_its_default():
    defaults = {
        field.name: field.default
        for field in (*dataclasses.fields(Settings), *dataclasses.fields(Options))
        if field.name in {own.name for own in dataclasses.fields(Settings)} - {"options"} | set(_FROM_OPTIONS)
    }
    written = {
        name: "none" if value is None else f'`"{value}"`' if isinstance(value, str) else f"{value:.9g}"
        for name, value in defaults.items()
        if not isinstance(value, bool)
    } | {name: str(value).lower() for name, value in defaults.items() if isinstance(value, bool)}

    assert _table("The manager") == written


def test_the_reference_has_every_reason():
    """Reasons for which an item ran eager. The name of a buffer follows that of a capacity."""
    runtime = Path(plugin.__file__).with_name("runtime")
    reasons = set(
        re.findall(r'reason = "([a-z0-9-]+)"|miss\("([a-z0-9-]+)"', (runtime / "manager.py").read_text("utf-8"))
    )
    found = {name for pair in reasons for name in pair if name}
    found |= set(re.findall(r'^ +"([a-z0-9-]+)",$', (runtime / "vllm" / "refusal.py").read_text("utf-8"), re.MULTILINE))
    section = REFERENCE.partition("\n## Statistics\n")[2]

    assert len(found) > 7
    assert found <= set(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE))
