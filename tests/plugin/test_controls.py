"""What the environment asks for, and which releases there is something for. No vLLM is needed."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType

import pytest
import vitcg_adapters

from scaffold import plugin
from scaffold.plugin import Controls, generation_of, misspelt_variables, read_controls, without_adapter


@pytest.mark.parametrize(
    ("environ", "controls", "adapters", "manager"),
    [
        ({}, Controls(), True, True),
        ({"VITCG_DISABLE": "1"}, Controls(disabled=True), False, False),
        ({"VITCG_DISABLE": "0"}, Controls(), True, True),
        ({"VITCG_MODE": "adapters"}, Controls(mode="adapters"), True, False),
        ({"VITCG_MODE": "manager"}, Controls(mode="manager"), False, True),
        ({"VITCG_MODE": " all "}, Controls(), True, True),
        ({"VITCG_MODELS": "qwen2_vl, internvl,"}, Controls(models=frozenset({"qwen2_vl", "internvl"})), True, True),
        ({"VITCG_MODELS": ""}, Controls(), True, True),
    ],
)
def test_controls_are_read_from_the_environment(environ, controls, adapters, manager):
    found = read_controls(environ)

    assert found == controls
    assert (found.adapters, found.manager) == (adapters, manager)


def test_a_mode_that_there_is_none_of_is_named_with_the_nearest():
    with pytest.raises(ValueError, match="VITCG_MODE is one of all, adapters, manager, not 'mangaer'; did you mean"):
        read_controls({"VITCG_MODE": "mangaer"})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("VITCG_DISABLED", "VITCG_DISABLED does nothing; did you mean VITCG_DISABLE?"),
        ("VITCG_MODEL", "VITCG_MODEL does nothing; did you mean VITCG_MODELS?"),
        ("VITCG_ENCODER_GRAPH", "VITCG_ENCODER_GRAPH does nothing; did you mean VITCG_ENCODER_GRAPHS?"),
        ("VITCG_MODE", None),
        # Kubernetes makes these for a service of this name; the tests and other tools have variables, too.
        ("VITCG_PORT", None),
        ("VITCG_SERVICE_HOST", None),
        ("VITCG_SLOW", None),
        ("VITCG_GPU", None),
        ("VLLM_DISABLE", None),
    ],
)
def test_a_misspelt_name_of_a_variable_is_named_with_the_right_one(name, said):
    assert list(misspelt_variables({name: "1"})) == ([said] if said else [])


def test_names_without_an_adapter_come_with_the_nearest():
    controls = read_controls({"VITCG_MODELS": "qwen2vl,InternVLChatModel,internvl,xyz"})

    assert without_adapter(controls, "v0_30") == {"qwen2vl": "qwen2_vl", "xyz": None}


@pytest.mark.parametrize(
    ("release", "generation"),
    [
        ("0.22.1", None),
        ("0.23.0", "v0_23"),
        ("0.25.1", "v0_24"),
        ("0.27.1", "v0_27"),
        ("0.29.0+cu129", "v0_27"),
        ("0.30.0", "v0_30"),
        ("0.33.0", "v0_30"),
        ("0.33.1.dev5+g0123abc", "v0_30"),
        ("0.34.0rc1", None),
        ("1.0.0", None),
        ("dev", None),
        ("", None),
    ],
)
def test_the_generation_follows_from_the_minor_release(release, generation):
    assert generation_of(release) == generation


def test_every_supported_generation_has_adapters():
    supported = {generation_of(f"0.{minor}.0") for minor in range(23, 34)}

    assert None not in supported
    for generation in supported:
        assert {"InternVLChatModel", "Qwen2VLForConditionalGeneration"} <= set(vitcg_adapters.ADAPTERS[generation])
    assert plugin.supported_releases() == "0.23 to 0.33"


@pytest.fixture
def vllm(monkeypatch):
    """A vLLM that says its version and holds nothing else, and a plugin that has said nothing yet."""
    module = ModuleType("vllm")
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(plugin, "_told", set())
    monkeypatch.setattr(plugin, "_join_vllms_log", lambda: None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in plugin.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return module


@pytest.mark.parametrize(
    ("version", "environ", "said"),
    [
        ("0.34.0", {}, "does not support vLLM 0.34.0 (it supports 0.23 to 0.33): vLLM runs untouched"),
        ("0.22.1", {}, "does not support vLLM 0.22.1"),
        ("dev", {}, "does not support vLLM dev"),
        ("0.33.0", {"VITCG_MODE": "both"}, "is not active and vLLM runs untouched: VITCG_MODE is one of"),
        # A vLLM without a registry: whatever goes wrong, `register` does not raise.
        ("0.33.0", {}, "is not active and vLLM runs untouched"),
        ("0.34.0", {"VITCG_DISABLE": "1"}, None),
        ("0.34.0", {"VITCG_DISABLE": "1", "VITCG_DISABLED": "1"}, "VITCG_DISABLED does nothing"),
    ],
)
def test_what_cannot_be_used_is_said_once_and_changes_nothing(vllm, monkeypatch, caplog, version, environ, said):
    vllm.__version__ = version
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    finders = list(sys.meta_path)

    with caplog.at_level(logging.INFO, "scaffold"):
        plugin.register()
        plugin.register()

    assert sys.meta_path == finders
    messages = [r.message for r in caplog.records if r.levelno >= logging.INFO]
    assert len(messages) == (said is not None)
    assert all(said in message for message in messages)


def test_the_plugin_imports_nothing_heavy():
    code = "import sys, scaffold.plugin\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "vitcg_adapters" in loaded
    assert not loaded & {"torch", "vllm", "numpy", "libcst", "click", "yaml", "scaffold.runtime", "scaffold.descriptor"}
