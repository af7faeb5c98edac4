"""Signals at every single system call of a run, in real processes: the tree is all old or all new, never a mix."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from publish_scene import make_tree, run_publish, snapshot, store_files

from scaffold.publish import disk, recover, revert_last

DRIVER = Path(__file__).with_name("publish_scene.py")
REPOSITORY = DRIVER.parents[2]


@pytest.fixture(autouse=True)
def _plain_and_fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(disk, "fsync", lambda _: None)  # a kill loses nothing that the kernel has
    previous = os.umask(0o022)
    yield
    os.umask(previous)


@pytest.fixture
def states(tmp_path: Path) -> tuple[dict, dict]:
    """The scene before and after the run."""
    root = tmp_path / "states"
    root.mkdir()
    old = snapshot(make_tree(root))
    run_publish(root)
    new = snapshot(root)
    assert old != new
    return old, new


def drive(job: str, folder: Path, number: int, start: int = 0) -> list[tuple[Path, int]]:
    """The tree and the exit code of one process for each system call of `job`; the last one was not interrupted."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(DRIVER), job, str(folder), str(int(number)), str(start)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["code"] == 0
    return [(folder / str(line["step"]), line["code"]) for line in lines]


def files_of(state: dict) -> dict:
    return {name: entry for name, entry in state.items() if entry[0] is not None}


def is_mixed(root: Path, old: dict, new: dict) -> bool:
    """Whether files are half old, half new. (Folders that a revert empties go after its commit.)"""
    return files_of(snapshot(root)) not in (files_of(old), files_of(new))


def check_recovered(root: Path, old: dict, new: dict) -> dict:
    """One of the two states, and nothing left over. Returns the state."""
    state = snapshot(root)
    assert state in (old, new), root
    expected = {".gitignore", "lock"}
    if state == new:
        expected |= {"runs/1.json", "blobs/1/2.gone", *(f"blobs/1/{n}.old" for n in (0, 2, 4, 5))}
    assert set(store_files(root)) | {"lock", ".gitignore"} == expected
    assert recover(root) is None
    return state


def check_healthy(root: Path, old: dict, new: dict) -> None:
    """And the next commands work."""
    if check_recovered(root, old, new) == old:
        run_publish(root)
        assert snapshot(root) == new
    revert_last(root)
    assert snapshot(root) == old


@pytest.mark.parametrize("job", ["publish", "revert"])
def test_sigkill_at_every_call(job: str, tmp_path: Path, states: tuple[dict, dict]) -> None:
    old, new = states
    *killed, (complete, _) = drive(job, tmp_path / "trees", signal.SIGKILL)
    assert {code for _, code in killed} == {-signal.SIGKILL}
    assert snapshot(complete) == (new if job == "publish" else old)
    mixed = [root for root, _ in killed if is_mixed(root, old, new)]
    assert len(mixed) >= 5, "the kills must hit the middle of the run, or this test shows nothing"
    for root in mixed:
        assert recover(root) is not None
    for root, _ in killed:
        recover(root)
        check_healthy(root, old, new)


def test_sigkill_at_every_call_of_recover(tmp_path: Path, states: tuple[dict, dict]) -> None:
    old, new = states
    killed = drive("publish", tmp_path / "publish", signal.SIGKILL)
    starts = [step for step, (root, _) in enumerate(killed, 1) if is_mixed(root, old, new)]
    mixed_again = 0
    for start in starts[::3]:
        for root, _ in drive("recover", tmp_path / f"trees{start}", signal.SIGKILL, start):
            mixed_again += is_mixed(root, old, new)
            recover(root)
            assert check_recovered(root, old, new) == old
    assert mixed_again >= 5


@pytest.mark.parametrize(
    ("job", "number", "expected"),
    [
        ("publish", signal.SIGINT, 130),
        ("publish", signal.SIGTERM, -signal.SIGTERM),
        ("publish", signal.SIGHUP, -signal.SIGHUP),
        ("revert", signal.SIGINT, 130),
    ],
)
def test_signals_end_the_process_after_the_rollback(
    job: str, number: int, expected: int, tmp_path: Path, states: tuple[dict, dict]
) -> None:
    old, new = states
    before, after = (old, new) if job == "publish" else (new, old)
    *interrupted, _ = drive(job, tmp_path / "trees", number)
    assert {code for _, code in interrupted} == {expected}
    seen = [snapshot(root) for root, _ in interrupted]
    # Up to the commit the run is undone; a signal during the cleaning up after it finds the run done.
    done = seen.index(after)
    assert done > 40
    assert seen == [before] * done + [after] * (len(seen) - done)
    for root, _ in interrupted:
        assert recover(root) is None
        check_recovered(root, old, new)
    check_healthy(interrupted[done // 2][0], old, new)
