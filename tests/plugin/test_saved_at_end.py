"""The trace and the counters are written when a process of vLLM's ends, whatever started it."""

from __future__ import annotations

import multiprocessing

import pytest

from scaffold.runtime.vllm.served import ServedManager


def serve(file, failed: bool) -> None:
    """What an engine process does with its manager, and how it ends."""
    manager = ServedManager.__new__(ServedManager)
    manager.save = lambda: file.write_text("saved")
    manager._save_at_end()
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
