"""The hook that replaces the manager when vLLM imports it, on a module of its own."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys

import pytest

from scaffold import plugin

NAME = "vitcg_test_manager"


class Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.EncoderCudaGraphManager = "vLLM's"


class Sealed(Loader):
    """A loader that nothing can be added to."""

    def __setattr__(self, name, value):
        raise AttributeError(name)


@pytest.fixture
def finder(monkeypatch):
    """`finder(loader)`: the module can be imported through this loader, and the hook is in place."""
    monkeypatch.setattr(plugin, "MANAGER_MODULE", NAME)
    monkeypatch.setattr(plugin, "_told", set())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def install(loader):
        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, fullname, path, target=None):
                return importlib.machinery.ModuleSpec(fullname, loader) if fullname == NAME else None

        sys.meta_path.append(Finder())
        plugin.replace_manager(frozenset())
        plugin.replace_manager(frozenset())

    yield install
    sys.modules.pop(NAME, None)


def test_the_manager_is_replaced_right_after_the_import(finder, monkeypatch):
    seen = []
    monkeypatch.setattr(plugin, "_put_manager", lambda module, models: seen.append(module.EncoderCudaGraphManager))
    finder(Loader())

    importlib.import_module(NAME)

    assert seen == ["vLLM's"]


def test_an_import_that_cannot_be_hooked_still_works(finder, caplog):
    finder(Sealed())

    assert importlib.import_module(NAME).EncoderCudaGraphManager == "vLLM's"
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.message.startswith("encoder graphs run with vLLM's own manager")


def test_a_manager_that_cannot_be_replaced_leaves_the_module_as_it_is(finder, caplog):
    """Here it is no class, as in no vLLM that is known."""
    finder(Loader())

    assert importlib.import_module(NAME).EncoderCudaGraphManager == "vLLM's"
    assert [r.levelname for r in caplog.records if r.name == "scaffold.plugin" and r.levelname == "WARNING"] == [
        "WARNING"
    ]


def test_a_module_that_vllm_has_not_is_not_found(finder):
    plugin.replace_manager(frozenset())
    finder(Loader())
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "Finder"]

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)


class Config:
    """What the runner's constructor is given."""

    def __init__(self, graphs: bool) -> None:
        self.compilation_config = self
        self.cudagraph_mm_encoder = graphs


class RunnerLoader(Loader):
    def exec_module(self, module):
        class GPUModelRunner:
            def __init__(self, vllm_config, device):
                self.made = (vllm_config, device)

        module.GPUModelRunner = GPUModelRunner


@pytest.mark.parametrize("graphs", [True, False])
def test_a_runner_without_graphs_is_told_when_they_are_asked_for(finder, monkeypatch, caplog, graphs):
    monkeypatch.setattr(plugin, "V2_RUNNER_MODULE", NAME)
    monkeypatch.setattr(plugin, "MANAGER_MODULE", "vitcg_test_none")
    finder(RunnerLoader())
    plugin.watch_v2_runner()
    plugin.watch_v2_runner()

    module = importlib.import_module(NAME)
    plugin.watch_v2_runner()  # loaded again, as vLLM does
    config = Config(graphs)

    assert module.GPUModelRunner(config, device="cuda").made == (config, "cuda")
    assert module.GPUModelRunner(vllm_config=config, device="cuda").made == (config, "cuda")
    told = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert told == ([plugin.no_graphs_in_v2()] if graphs else [])
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in plugin.no_graphs_in_v2()


def test_a_runner_that_is_another_one_is_left_alone(finder, monkeypatch):
    monkeypatch.setattr(plugin, "V2_RUNNER_MODULE", NAME)
    monkeypatch.setattr(plugin, "MANAGER_MODULE", "vitcg_test_none")
    finder(Loader())
    plugin.watch_v2_runner()

    assert importlib.import_module(NAME).EncoderCudaGraphManager == "vLLM's"
