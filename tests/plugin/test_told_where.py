"""A fault that only an engine process meets is said by that process: the user's own makes neither model nor manager."""

from __future__ import annotations

import multiprocessing

import pytest
import vitcg_adapters

from scaffold import plugin


class NoSuchModel:
    """A model whose adapter cannot be imported."""


@pytest.fixture(autouse=True)
def _a_process_that_vllm_started(monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    monkeypatch.setattr(plugin, "_told", set())


def test_an_adapter_that_cannot_be_used_is_warned_of_where_the_model_is(caplog, monkeypatch):
    monkeypatch.setitem(vitcg_adapters.ADAPTERS["v0_30"], "NoSuchModel", "no_such_module")
    model = NoSuchModel()
    plugin.adapt_model(model, "v0_30", plugin.Controls())
    assert type(model) is NoSuchModel
    assert [(r.levelname, "NoSuchModel" in r.message) for r in caplog.records] == [("WARNING", True)]


def test_what_the_users_process_says_too_is_not_repeated(caplog):
    plugin._warn("vitcg-scaffold is not active")
    assert [r.levelname for r in caplog.records if r.levelname == "WARNING"] == []
