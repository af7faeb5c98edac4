"""What a run does to a tree and back, what it refuses, and two runs at once."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from publish_scene import CHANGES, make_tree, run_publish, snapshot, store_files

from scaffold.changes import FileChange
from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.publish import (
    disk,
    lost_links,
    publish_changes,
    published_changes,
    recover,
    require_clean,
    require_finished,
    revert_last,
    signals,
)
from scaffold.publish.store import KEPT_RUNS, Store


def codes(error: pytest.ExceptionInfo[DiagnosticError]) -> list[str]:
    return [diagnostic.code for diagnostic in error.value.diagnostics]


def edit(root: Path, number: int) -> None:
    """The run that makes `counter` say `number`."""
    path = root / "counter"
    before = path.read_bytes() if path.exists() else None
    publish_changes(root, [FileChange("counter", before, b"%d" % number)], label=f"run {number}")


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


# --- there and back ------------------------------------------------------------------------------------------------


def test_a_second_name_of_a_file_is_lost_and_said_to_be(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "tree")
    (tmp_path / "second").hardlink_to(root / "model.py")
    run_publish(root)
    assert (tmp_path / "second").read_bytes() == CHANGES[0].before
    [note] = lost_links(revert_last(root))
    assert (note.code, note.message.split()[0]) == ("VCG514", "model.py")


def test_a_lock_that_is_no_file_is_damage(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    run_publish(root)
    (root / ".vitcg-scaffold/lock").unlink()
    os.mkfifo(root / ".vitcg-scaffold/lock")
    with pytest.raises(DiagnosticError) as caught:
        revert_last(root)
    assert codes(caught) == ["VCG707"]


def test_publish_then_revert_leaves_a_clean_checkout(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "start")
    before = snapshot(root)
    times = {name: (root / name).stat().st_mtime_ns for name in before if (root / name).is_file()}

    record = publish_changes(root, CHANGES, label="new internvl")
    assert [(file.path, file.action) for file in record.files] == [
        ("model.py", "modified"),
        ("adapters/v1/new.py", "created"),
        ("docs/gone.md", "removed"),
        ("adapters/empty", "created"),
        ("run.sh", "modified"),
        ("docs/table.md", "modified"),
    ]
    assert record.made_dirs == ("adapters", "adapters/v1")
    after = snapshot(root)
    for change in CHANGES:
        assert after.get(change.path, (None,))[0] == change.after
        if change.before is not None and change.after is not None:
            assert after[change.path][1] == before[change.path][1]
    assert git(root, "status", "--porcelain").splitlines() == [
        " D docs/gone.md",
        " M docs/table.md",
        " M model.py",
        " M run.sh",
        "?? adapters/",
    ]

    undone = revert_last(root)
    assert (undone.label, undone.reverts) == ("revert new internvl", record.id)
    assert snapshot(root) == before
    assert git(root, "status", "--porcelain") == ""
    assert {name: (root / name).stat().st_mtime_ns for name in times} == times
    assert store_files(root) == [".gitignore", "lock"]


def test_a_changed_file_gets_a_new_time_and_keeps_its_extended_attributes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    try:
        os.setxattr(path, "user.origin", b"upstream")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    os.utime(path, (1, 1))
    publish_changes(tmp_path, [FileChange("a", b"1", b"2")], label="x")
    assert os.getxattr(path, "user.origin") == b"upstream"
    assert path.stat().st_mtime > 1
    revert_last(tmp_path)
    assert os.getxattr(path, "user.origin") == b"upstream"
    assert path.stat().st_mtime == 1


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    publish_changes(tmp_path, [FileChange("a", None, b"1")], label="x")
    os.umask(previous)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_nothing_to_do_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    record = publish_changes(tmp_path, [FileChange("a", b"1", b"1")], label="x")
    assert (record.id, record.files) == (0, ())
    assert recover(tmp_path) is None
    require_finished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_root_may_be_a_link_and_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    publish_changes(Path("link"), [FileChange("a", None, b"1")], label="x")
    assert (tmp_path / "real/a").read_bytes() == b"1"


def test_links_to_folders_inside_the_tree_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    publish_changes(tmp_path, [FileChange("link/new/a", None, b"1")], label="x")
    assert (tmp_path / "real/new/a").read_bytes() == b"1"
    revert_last(tmp_path)
    assert list((tmp_path / "real").iterdir()) == []


# --- history -------------------------------------------------------------------------------------------------------


def test_runs_are_reverted_from_the_last_to_the_first(tmp_path: Path) -> None:
    for number in range(KEPT_RUNS + 3):
        edit(tmp_path, number)
    assert len(Store(tmp_path).history()) == KEPT_RUNS
    assert len(list((tmp_path / ".vitcg-scaffold/blobs").iterdir())) == KEPT_RUNS
    for number in reversed(range(3, KEPT_RUNS + 3)):
        assert revert_last(tmp_path).label == f"revert run {number}"
        assert (tmp_path / "counter").read_bytes() == b"%d" % (number - 1)
        if number == 10:  # and runs in between
            edit(tmp_path, 99)
            revert_last(tmp_path)
    with pytest.raises(DiagnosticError) as refused:
        revert_last(tmp_path)
    assert codes(refused) == ["VCG506"]
    assert refused.value.exit is Exit.CONFLICT


def test_revert_without_any_run(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as refused:
        revert_last(tmp_path)
    assert codes(refused) == ["VCG506"]
    assert list(tmp_path.iterdir()) == []


def test_revert_names_every_file_that_was_edited_since(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    before = snapshot(root)
    run_publish(root)
    (root / "model.py").write_bytes(b"mine")
    (root / "docs/gone.md").write_bytes(b"back")
    (root / "adapters/empty").unlink()
    mine = snapshot(root)
    with pytest.raises(DiagnosticError) as refused:
        revert_last(root)
    assert [(d.code, d.message) for d in refused.value.diagnostics] == [
        ("VCG504", "model.py, modified by `scene`, was changed since; nothing was written"),
        ("VCG504", "docs/gone.md, removed by `scene`, was changed since; nothing was written"),
        ("VCG504", "adapters/empty, created by `scene`, was changed since; nothing was written"),
    ]
    assert refused.value.exit is Exit.CONFLICT
    assert snapshot(root) == mine
    revert_last(root, force=True)
    assert snapshot(root) == before


def test_revert_keeps_a_folder_that_got_other_files(tmp_path: Path) -> None:
    publish_changes(tmp_path, [FileChange("new/sub/a", None, b"1")], label="x")
    (tmp_path / "new/mine").write_bytes(b"")
    revert_last(tmp_path)
    assert sorted(snapshot(tmp_path)) == ["new", "new/mine"]


def test_a_folder_replaced_by_a_file_does_not_stop_the_cleaning_up(tmp_path: Path) -> None:
    publish_changes(tmp_path, [FileChange("new/a", None, b"1")], label="x")
    (tmp_path / "new/a").unlink()
    (tmp_path / "new").rmdir()
    (tmp_path / "new").write_bytes(b"mine")
    with pytest.raises(DiagnosticError, match="VCG703"):  # not a directory
        revert_last(tmp_path, force=True)
    assert (tmp_path / "new").read_bytes() == b"mine"


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_disk", "before"),
    [(b"edited", b"planned"), (None, b"planned"), (b"appeared", None)],
    ids=["modified", "removed", "created"],
)
def test_a_file_that_changed_after_planning(tmp_path: Path, on_disk: bytes | None, before: bytes | None) -> None:
    if on_disk is not None:
        (tmp_path / "b").write_bytes(on_disk)
    (tmp_path / "a").write_bytes(b"1")
    state = snapshot(tmp_path)
    with pytest.raises(DiagnosticError) as refused:
        publish_changes(tmp_path, [FileChange("a", b"1", b"2"), FileChange("b", before, b"new")], label="x")
    assert codes(refused) == ["VCG501"]
    assert refused.value.exit is Exit.CONFLICT
    assert snapshot(tmp_path) == state


@pytest.mark.parametrize("after", [b"2", None], ids=["modify", "remove"])
def test_a_file_that_changes_right_before_its_turn(
    after: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"1")
    real = disk.replace

    def replace(source: Path, target: Path) -> None:
        real(source, target)
        if target.name == "a" and source.suffix == ".new":
            (tmp_path / "b").write_bytes(b"theirs")

    monkeypatch.setattr(disk, "replace", replace)
    changes = [FileChange("a", b"1", b"2"), FileChange("b", b"1", after), FileChange("c", b"1", after)]
    with pytest.raises(DiagnosticError) as refused:
        publish_changes(tmp_path, changes, label="x")
    assert codes(refused) == ["VCG501"]
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [b"1", b"theirs", b"1"]
    require_finished(tmp_path)


def test_a_file_that_changes_right_after_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now the only copy of their edit is in the file that the roll-back would replace: leave it to the user."""
    (tmp_path / "a").write_bytes(b"1")
    real = disk.replace

    def replace(source: Path, target: Path) -> None:
        if target.name == "b":
            (tmp_path / "a").write_bytes(b"theirs")
            raise OSError(errno.EIO, "dead")
        real(source, target)

    monkeypatch.setattr(disk, "replace", replace)
    with pytest.raises(DiagnosticError) as refused:
        publish_changes(tmp_path, [FileChange("a", b"1", b"2"), FileChange("b", None, b"2")], label="x")
    assert codes(refused) == ["VCG704"]
    assert "a was changed after" in refused.value.diagnostics[0].message
    assert (tmp_path / "a").read_bytes() == b"theirs"
    recover(tmp_path, force=True)
    assert snapshot(tmp_path).keys() == {"a"}
    assert (tmp_path / "a").read_bytes() == b"1"


Obstacle = Callable[[Path, Path], object]
OBSTACLES: dict[str, tuple[str, Obstacle, str]] = {
    "a link to a folder outside": ("d/a", lambda root, out: (root / "d").symlink_to(out), "VCG502"),
    "a link that climbs": ("d/a", lambda root, out: (root / "d").symlink_to(f"../{out.name}"), "VCG502"),
    "a link two levels up": ("d/e/a", lambda root, out: (root / "d").symlink_to(out.parent), "VCG502"),
    "a link into .git": ("d/a", lambda root, _: ((root / ".git").mkdir(), (root / "d").symlink_to(".git")), "VCG502"),
    "git's own folder": (".git/hooks/pre-commit", lambda root, _: None, "VCG502"),
    "our own folder": (".vitcg-scaffold/journal.json", lambda root, _: None, "VCG502"),
    "a link to a file": ("a", lambda root, out: (root / "a").symlink_to(out / "victim"), "VCG503"),
    "a dangling link": ("a", lambda root, out: (root / "a").symlink_to(out / "none"), "VCG503"),
    "a folder": ("a", lambda root, _: (root / "a").mkdir(), "VCG503"),
    "a pipe": ("a", lambda root, _: os.mkfifo(root / "a"), "VCG503"),
    "a file as a folder": ("f/a", lambda root, _: (root / "f").write_bytes(b""), "VCG703"),
    "links in a circle": ("l/a", lambda root, _: (root / "l").symlink_to("l"), "VCG703"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_paths_that_must_not_be_written(name: str, tmp_path: Path) -> None:
    path, build, code = OBSTACLES[name]
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "victim").write_bytes(b"safe")
    (root / "first").write_bytes(b"1")
    build(root, outside)
    with pytest.raises(DiagnosticError) as refused:
        publish_changes(root, [FileChange("first", b"1", b"2"), FileChange(path, None, b"evil")], label="x")
    assert codes(refused) == [code]
    assert (root / "first").read_bytes() == b"1"
    assert [(p.name, p.read_bytes()) for p in outside.iterdir()] == [("victim", b"safe")]


def test_a_file_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "device", lambda path: path.name == "mounted")
    (tmp_path / "mounted").mkdir()
    with pytest.raises(DiagnosticError) as refused:
        publish_changes(tmp_path, [FileChange("mounted/deep/a", None, b"1")], label="x")
    assert codes(refused) == ["VCG708"]
    assert sorted(snapshot(tmp_path)) == ["mounted"]


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as refused:
        publish_changes(tmp_path / "none", [FileChange("a", None, b"1")], label="x")
    assert codes(refused) == ["VCG703"]


# --- a journal is not trusted --------------------------------------------------------------------------------------


def leave_journal(root: Path, **fields: object) -> None:
    """As if a run had been killed, with these fields changed by someone."""
    publish_changes(root, [FileChange("a", None, b"1")], label="x")
    record = root / ".vitcg-scaffold/runs/1.json"
    data = json.loads(record.read_bytes()) | fields
    (root / ".vitcg-scaffold/journal.json").write_text(json.dumps(data))
    record.unlink()


def entry(path: str, before: str | None = None, after: str | None = None) -> dict[str, object]:
    return {"path": path, "before": before, "after": after}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"files": [entry("../victim", None, disk.digest(b"safe"))]}, "VCG502"),
        ({"files": [entry("/etc/passwd")], "made_dirs": []}, "VCG502"),
        ({"files": [entry("a", None, disk.digest(b"1"))], "made_dirs": ["../outside"]}, "VCG502"),
        ({"files": [entry("a", disk.digest(b"0"), disk.digest(b"1"))]}, "VCG707"),
        ({"files": [{"path": "a"}]}, "VCG707"),
        ({"files": None}, "VCG707"),
        ({"files": [entry(7)]}, "VCG707"),
        ({"id": "1"}, "VCG707"),
        ({"label": 1}, "VCG707"),
        ({"format": 2}, "VCG707"),
        ({"more": 1}, "VCG707"),
    ],
    ids=str,
)
def test_a_forged_journal(fields: dict[str, object], code: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "victim").write_bytes(b"safe")
    leave_journal(root, **fields)
    with pytest.raises(DiagnosticError) as refused:
        recover(root, force=True)
    assert codes(refused) == [code]
    assert refused.value.diagnostics[0].help
    assert (tmp_path / "victim").read_bytes() == b"safe"
    assert (tmp_path / "outside").is_dir()


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "\xff"])
def test_a_journal_that_is_none(text: str, tmp_path: Path) -> None:
    edit(tmp_path, 1)
    (tmp_path / ".vitcg-scaffold/journal.json").write_text(text, encoding="latin-1")
    with pytest.raises(DiagnosticError, match="VCG707"):
        recover(tmp_path)


@pytest.mark.parametrize("folder", ["", "runs", "blobs"])
def test_a_store_that_leads_elsewhere(folder: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (outside / "precious").mkdir(parents=True)
    (root / ".vitcg-scaffold").mkdir(parents=True)
    if not folder:
        (root / ".vitcg-scaffold").rmdir()
    (root / ".vitcg-scaffold" / folder).symlink_to(outside)
    with pytest.raises(DiagnosticError, match="VCG707"):
        publish_changes(root, [FileChange("a", None, b"1")], label="x")
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert snapshot(root).keys() <= {"a"}
    assert not (root / "a").exists()


def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    edit(tmp_path, 1)
    edit(tmp_path, 2)
    (tmp_path / ".vitcg-scaffold/blobs/2/0.old").write_bytes(b"rot")
    with pytest.raises(DiagnosticError, match="VCG707"):
        revert_last(tmp_path)
    assert (tmp_path / "counter").read_bytes() == b"2"


def test_a_damaged_record_stops_revert_but_no_new_run(tmp_path: Path) -> None:
    edit(tmp_path, 1)
    (tmp_path / ".vitcg-scaffold/runs/1.json").write_text("{")
    edit(tmp_path, 2)
    with pytest.raises(DiagnosticError, match="VCG707"):
        revert_last(tmp_path)


def test_recover_does_not_drop_edits_made_after_the_kill(tmp_path: Path) -> None:
    leave_journal(tmp_path)
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(DiagnosticError) as refused:
        recover(tmp_path)
    assert codes(refused) == ["VCG505"]
    assert (tmp_path / "a").read_bytes() == b"mine"
    undone = recover(tmp_path, force=True)
    assert undone is not None
    assert undone.label == "x"
    assert not (tmp_path / "a").exists()


def test_every_command_refuses_a_tree_with_an_unfinished_run(tmp_path: Path) -> None:
    leave_journal(tmp_path)
    for command in (run_publish, revert_last, require_finished):
        with pytest.raises(DiagnosticError) as refused:
            command(tmp_path)
        assert codes(refused) == ["VCG706"]
        assert "revert --unfinished" in (refused.value.diagnostics[0].help or "")
    assert require_clean(tmp_path, ["a"]) == ()


# --- two runs at once ----------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_while_the_first_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run stands still in the middle of its changes; the second comes from another process."""
    context = multiprocessing.get_context("spawn")
    refused: list[object] = []
    real = disk.replace

    def replace(source: Path, target: Path) -> None:
        if target.name == "a":
            with context.Pool(1) as pool:
                refused.extend(pool.map(_codes_of, [("require_finished", tmp_path), ("run_publish", tmp_path)]))
        real(source, target)

    monkeypatch.setattr(disk, "replace", replace)
    publish_changes(tmp_path, [FileChange("a", None, b"1")], label="x")
    assert refused == [["VCG705"], ["VCG705"]]
    assert snapshot(tmp_path).keys() == {"a"}


def _codes_of(job: tuple[str, Path]) -> list[str]:
    name, root = job
    try:
        {"require_finished": require_finished, "run_publish": run_publish}[name](root)
    except DiagnosticError as error:
        return [diagnostic.code for diagnostic in error.diagnostics]
    return []


def test_a_lock_held_in_this_process(tmp_path: Path) -> None:
    edit(tmp_path, 1)
    with FileLock(tmp_path / ".vitcg-scaffold/lock"), pytest.raises(DiagnosticError) as refused:
        revert_last(tmp_path)
    assert codes(refused) == ["VCG705"]
    assert refused.value.exit is Exit.IO
    revert_last(tmp_path)


def test_of_many_runs_one_wins(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        results = pool.map(_codes_of, [("run_publish", root)] * 12, chunksize=1)
    assert results.count([]) == 1
    assert all(result in ([], ["VCG705"], ["VCG501"]) for result in results)
    assert len(Store(root).history()) == 1


# --- signals, in this process (in real ones: test_publish_kill) ----------------------------------------------------


def signal_in_the_middle(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = disk.replace

    def replace(source: Path, target: Path) -> None:
        real(source, target)
        if target.name == "a":
            os.kill(os.getpid(), number)

    monkeypatch.setattr(disk, "replace", replace)


CHANGE_TWO = (FileChange("a", None, b"1"), FileChange("b", None, b"1"))


@pytest.fixture
def _fresh_handlers() -> Iterator[None]:
    """The handlers of a program in the foreground, whatever a shell in the background gave to this one."""
    fresh = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    previous = {number: signal.signal(number, handler) for number, handler in fresh.items()}
    yield
    assert {number: signal.getsignal(number) for number in fresh} == fresh
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_fresh_handlers")
def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_in_the_middle(monkeypatch, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        publish_changes(tmp_path, CHANGE_TWO, label="x")
    assert snapshot(tmp_path) == {}


@pytest.mark.usefixtures("_fresh_handlers")
def test_a_default_that_does_not_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 1 of a container survives a SIGTERM without a handler; it must not go on as if the run were done."""
    raised: list[int] = []
    monkeypatch.setattr(signals.signal, "raise_signal", raised.append)
    signal_in_the_middle(monkeypatch, signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        publish_changes(tmp_path, CHANGE_TWO, label="x")
    assert raised == [signal.SIGTERM]
    assert ended.value.code == 143
    assert snapshot(tmp_path) == {}


def test_a_handler_of_the_caller_hears_of_it_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    real = disk.replace

    def replace(source: Path, target: Path) -> None:
        real(source, target)
        if target.name == "1.json":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(disk, "replace", replace)
    try:
        publish_changes(tmp_path, CHANGE_TWO, label="x")
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert heard == [signal.SIGTERM]
    assert snapshot(tmp_path).keys() == {"a", "b"}


def test_an_ignored_signal_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    signal_in_the_middle(monkeypatch, signal.SIGHUP)
    try:
        publish_changes(tmp_path, CHANGE_TWO, label="x")
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert snapshot(tmp_path).keys() == {"a", "b"}


def test_outside_the_main_thread(tmp_path: Path) -> None:
    thread = threading.Thread(target=publish_changes, args=(tmp_path, CHANGE_TWO), kwargs={"label": "x"})
    thread.start()
    thread.join()
    assert snapshot(tmp_path).keys() == {"a", "b"}


# --- what a run found ----------------------------------------------------------------------------------------------


def test_the_bytes_before_a_run_are_kept(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    assert published_changes(root, "run 1") == ()
    edit(root, 1)
    edit(root, 2)
    assert published_changes(root, "run 3") == ()
    assert published_changes(root, "run 2") == (FileChange("counter", b"1", b"2"),)
    # Of an earlier run: what it found, and what is there now.
    assert published_changes(root, "run 1") == (FileChange("counter", None, b"2"),)
    (root / "counter").write_bytes(b"1")
    assert published_changes(root, "run 2") == (), "put back by hand"
    (root / "counter").write_bytes(b"2")
    revert_last(root)
    assert published_changes(root, "run 2") == (), "reverted"


def test_runs_of_one_label_are_one_change(tmp_path: Path) -> None:
    """A port that is written again, after its descriptor was mended: the tree before it is that of the first run."""
    root = make_tree(tmp_path)

    def write(label: str, **files: bytes) -> None:
        changes = []
        for path, after in files.items():
            before = (root / path).read_bytes() if (root / path).exists() else None
            changes.append(FileChange(path, before, after))
        publish_changes(root, changes, label=label)

    write("new a", model=b"1", table=b"a")
    write("new b", table=b"ab")
    write("new a", test=b"1")
    model, table, test = (FileChange(path, None, (root / path).read_bytes()) for path in ("model", "table", "test"))
    assert set(published_changes(root, "new a")) == {model, table, test}
    assert published_changes(root, "new b") == (FileChange("table", b"a", b"ab"),)
    write("new a", model=b"2")
    assert FileChange("model", None, b"2") in published_changes(root, "new a"), "before the first run, not the last"
    (root / "model").write_bytes(b"from elsewhere")
    write("new a", model=b"3")
    assert published_changes(root, "new a") == (FileChange("model", b"from elsewhere", b"3"),)
    (root / "model").write_bytes(b"2")
    revert_last(root, force=True)
    (root / "model").write_bytes(b"2")
    assert set(published_changes(root, "new a")) == {FileChange("model", None, b"2"), table, test}, "a run is undone"
