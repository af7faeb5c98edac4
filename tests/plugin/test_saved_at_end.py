"""The trace and the counters are written while a server waits for images, and when its process ends."""

from __future__ import annotations

import gc
import json
import multiprocessing
import threading
import weakref
from types import SimpleNamespace

import pytest

from scaffold.runtime.vllm import served
from scaffold.runtime.vllm.manager import EncoderCudaGraphManager
from scaffold.runtime.vllm.served import ServedManager


def serve(file, failed: bool) -> None:
    """What an engine process does with its manager, and how it ends."""
    manager = ServedManager.__new__(ServedManager)
    manager.save = lambda: file.write_text("saved")
    manager._save_soon()
    if failed:
        manager.keep_files()
    raise SystemExit(0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("failed", [False, True], ids=["", "cannot be written"])
def test_files_are_written_at_the_end_of_a_process(tmp_path, method, failed):
    process = multiprocessing.get_context(method).Process(target=serve, args=(tmp_path / "file", failed))
    process.start()
    process.join(120)

    assert process.exitcode == 0
    assert (tmp_path / "file").exists() is not failed


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A manager that counts its calls, and writes each count as soon as it may."""
    monkeypatch.setattr(served, "SAVE_AFTER", 0.0)
    monkeypatch.setattr(EncoderCudaGraphManager, "execute", lambda self, inputs: self.calls.append(inputs) or [])
    made = ServedManager.__new__(ServedManager)
    made.calls, made._logged = [], float("inf")
    made.settings = SimpleNamespace(stats=str(tmp_path / "stats.json"), record=None)
    made.get_cumulative_stats = lambda: {"calls": len(made.calls)}
    made._writes = True
    yield made
    made.keep_files()


def wait_for_writers() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)


def calls_in(file) -> int | None:
    return json.loads(file.read_text())["calls"] if file.exists() else None


def test_an_image_that_no_other_follows_is_in_the_files(manager, tmp_path):
    for number in (1, 2, 3):
        manager.execute({})
        wait_for_writers()
        assert calls_in(tmp_path / "stats.json") == number


def test_a_manager_without_images_writes_nothing_and_is_not_kept(tmp_path, monkeypatch):
    idle = ServedManager.__new__(ServedManager)
    idle.settings, idle._writes = SimpleNamespace(stats=str(tmp_path / "stats.json"), record=None), True
    left = weakref.ref(idle)
    del idle
    gc.collect()
    assert left() is None
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_written_keep_no_manager(manager, monkeypatch):
    manager.execute({})
    wait_for_writers()
    other = ServedManager.__new__(ServedManager)
    other.__dict__.update(manager.__dict__, _writer=None, _at_end=None)
    other._save_soon()
    wait_for_writers()
    left = weakref.ref(other)
    del other
    gc.collect()
    assert left() is None


def test_images_that_come_before_a_writing_share_it(manager, monkeypatch, tmp_path):
    monkeypatch.setattr(served, "SAVE_AFTER", 3600.0)
    manager.execute({})
    writer = manager._writer
    manager.execute({})
    assert manager._writer is writer
    assert calls_in(tmp_path / "stats.json") is None
    writer.function()
    assert calls_in(tmp_path / "stats.json") == 2
    manager.execute({})
    assert manager._writer not in (None, writer)
    writer.cancel()


def test_files_that_cannot_be_written_are_tried_once(manager, caplog, tmp_path):
    (tmp_path / "stats.json").mkdir()
    manager.execute({})
    wait_for_writers()
    manager.execute({})
    assert manager._writer is None
    assert [record.message for record in caplog.records if "cannot be written" in record.message] == [
        caplog.records[-1].message
    ]
