"""Tensor parallelism with a tower that is spread over the ranks: all of them replay the same graphs, or none does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from scaffold.runtime import GraphKey
from scaffold.runtime.vllm.manager import EncoderCudaGraphManager
from scaffold.runtime.vllm.served import ServedManager

KEYS = [GraphKey("default", budget) for budget in (8, 16, 32)]


class Core:
    """What `_agree` looks at."""

    def __init__(self, keys) -> None:
        self.graphs = dict.fromkeys(keys)
        self.dropped: dict[GraphKey, str] = {}

    def drop(self, key, why):
        del self.graphs[key]
        self.dropped[key] = why

    def clear(self):
        self.graphs.clear()


def rank(keys, others, *, spread=True, fault=None):
    """The manager of one rank that captured `keys`; `others` is what the other ranks give."""
    manager = ServedManager.__new__(ServedManager)
    manager._core = Core(keys)
    manager.budget_graphs = {}
    manager.graph_pool = object()
    manager._ranks = 1 + len(others)
    manager._is_spread = spread
    manager.fault = fault
    manager.given = []

    def exchange(value):
        manager.given.append(value)
        return [value, *others]

    manager._exchange = exchange
    manager._publish_graphs = lambda: None
    return manager


@pytest.fixture(autouse=True)
def _nothing_is_captured(monkeypatch):
    monkeypatch.setattr(EncoderCudaGraphManager, "capture", lambda self, graph_pool=None: None)


def test_graphs_that_another_rank_lacks_are_dropped():
    manager = rank(KEYS, [frozenset(KEYS[:2]), frozenset(KEYS[1:])])
    manager.capture()
    assert list(manager.core.graphs) == KEYS[1:2]
    assert set(manager.core.dropped.values()) == {"another rank could not capture it"}
    assert manager.fault is None


def test_a_rank_without_graphs_leaves_none_to_the_others(caplog):
    manager = rank(KEYS, [None])
    manager.capture()
    assert manager.fault is not None
    assert manager.supports_modality("image") is False
    assert not manager.core.graphs
    assert "another rank has none" in caplog.text


@pytest.mark.parametrize("early", [True, False], ids=["set up", "captured"])
def test_a_rank_that_failed_tells_the_others(monkeypatch, early):
    """It must take part in the exchange, or the others wait for it for ever."""

    def fail(self, graph_pool=None):
        raise RuntimeError("planted")

    if not early:
        monkeypatch.setattr(EncoderCudaGraphManager, "capture", fail)
    manager = rank(KEYS, [frozenset(KEYS)], fault="planted" if early else None)
    manager.capture()
    assert manager.given == [None]
    assert manager.fault is not None


def test_ranks_that_have_the_same_keep_them():
    manager = rank(KEYS, [frozenset(KEYS)])
    manager.capture()
    assert (list(manager.core.graphs), manager.fault) == (KEYS, None)


def test_with_one_rank_or_whole_towers_nothing_is_exchanged():
    manager = rank(KEYS, [], spread=False)
    manager.capture()
    assert manager.given == []


@pytest.mark.parametrize(("ranks", "raises"), [(1, False), (2, True)])
def test_a_batch_that_fails_stops_a_server_of_several_ranks(monkeypatch, ranks, raises):
    def fail(self, mm_kwargs):
        raise RuntimeError("planted")

    monkeypatch.setattr(EncoderCudaGraphManager, "execute", fail)
    manager = rank(KEYS, [frozenset(KEYS)] * (ranks - 1))
    if raises:
        with pytest.raises(RuntimeError, match="planted"):
            manager.execute({})
    else:
        assert manager.execute({}) is None


@pytest.mark.parametrize(("mode", "spread"), [("weights", True), ("data", False)])
def test_the_configuration_says_whether_the_tower_is_spread(mode, spread):
    config = SimpleNamespace(
        additional_config=None,
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
        model_config=SimpleNamespace(multimodal_config=SimpleNamespace(mm_encoder_tp_mode=mode)),
    )
    manager = ServedManager(config, None, None, object())
    assert manager.fault is not None  # no model; the ranks must know what they share all the same
    assert manager._is_spread is spread
