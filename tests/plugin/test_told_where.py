"""A fault that only an engine process meets is said by that process: the user's own loads neither model nor manager."""

from __future__ import annotations

import multiprocessing

import pytest

from scaffold import plugin


class _Entry:
    """A registry entry of vLLM's own for a class that has no adapter."""

    def load_model_cls(self) -> type:
        return int


@pytest.fixture(autouse=True)
def _a_process_that_vllm_started(monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    monkeypatch.setattr(plugin, "_told", set())


def test_an_adapter_that_cannot_be_used_is_warned_of_where_the_model_is_loaded(caplog):
    entry = plugin.AdaptedModel(_Entry(), "v0_30", "NoSuchModel")
    assert entry.load_model_cls() is int
    assert [(r.levelname, "NoSuchModel" in r.message) for r in caplog.records] == [("WARNING", True)]


def test_what_the_users_process_says_too_is_not_repeated(caplog):
    plugin._warn("vitcg-scaffold is not active")
    assert [r.levelname for r in caplog.records if r.levelname == "WARNING"] == []
