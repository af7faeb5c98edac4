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
