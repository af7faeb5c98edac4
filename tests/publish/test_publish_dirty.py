"""What counts as dirty, in every kind of checkout and in none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import scaffold
from scaffold.changes import FileChange
from scaffold.diagnostics import DiagnosticError, Exit, Severity
from scaffold.git import ask_git
from scaffold.publish import DirtyState, changed_files, publish_changes, require_clean, revert_last

FILES = {"a.py": b"a\n", "pkg/b.py": b"b\n", ":naïve name [x].md": b"c\n", "clean.py": b"d\n"}
PATHS = (*FILES, "new.py", "fresh/deep/new.py")
EDITED = "was changed since the last run"


def find_dirty(root: Path, paths: Sequence[str]) -> dict[str, str]:
    """The files that are refused, each with the reason."""
    try:
        require_clean(root, paths)
    except DiagnosticError as error:
        if {one.code for one in error.diagnostics} != {"VCG507"}:
            raise
        return {
            path: one.message[len(path) + 1 :]
            for one in error.diagnostics
            for path in paths
            if one.message.startswith(f"{path} ")
        }
    return {}


def git(root: Path, *arguments: str, check: bool = True) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    allow = ("-c", "protocol.file.allow=always")
    command = ["git", *identity, *allow, *arguments]
    return subprocess.run(command, cwd=root, check=check, capture_output=True, text=True).stdout


def fill(root: Path) -> Path:
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def commit_all(root: Path, message: str = "x") -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", message)


def plain(folder: Path) -> Path:
    root = folder / "plain"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    commit_all(fill(root))
    return root


def worktree(folder: Path) -> Path:
    git(plain(folder), "worktree", "add", "-q", str(folder / "tree"))
    return folder / "tree"


def submodule(folder: Path) -> Path:
    inner = plain(folder)
    outer = folder / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(inner), "third party/vllm")
    return outer / "third party/vllm"


def subfolder(folder: Path) -> Path:
    """The tree is a folder of a larger repository."""
    repository = folder / "mono"
    (repository / "libs").mkdir(parents=True)
    git(repository, "init", "-q")
    fill(repository / "libs/vllm")
    commit_all(repository)
    return repository / "libs/vllm"


Edit = Callable[[Path], object]
EDITS: dict[str, tuple[Edit, dict[str, DirtyState]]] = {
    "nothing": (lambda root: None, {}),
    "edited": (lambda root: (root / "a.py").write_bytes(b"1"), {"a.py": DirtyState.UNSTAGED}),
    "staged": (
        lambda root: ((root / "pkg/b.py").write_bytes(b"1"), git(root, "add", "-A")),
        {"pkg/b.py": DirtyState.STAGED},
    ),
    "deleted": (lambda root: (root / "a.py").unlink(), {"a.py": DirtyState.UNSTAGED}),
    "renamed": (lambda root: git(root, "mv", "a.py", "new.py"), dict.fromkeys(("a.py", "new.py"), DirtyState.STAGED)),
    "untracked": (lambda root: (root / "new.py").write_bytes(b"1"), {"new.py": DirtyState.UNTRACKED}),
    "untracked in an untracked folder": (
        lambda root: ((root / "fresh/deep").mkdir(parents=True), (root / "fresh/deep/new.py").write_bytes(b"1")),
        {"fresh/deep/new.py": DirtyState.UNTRACKED},
    ),
    "untracked in a checkout that hides it": (
        lambda root: (git(root, "config", "status.showUntrackedFiles", "no"), (root / "new.py").write_bytes(b"1")),
        {"new.py": DirtyState.UNTRACKED},
    ),
    "a name that git would quote, with pathspec letters": (
        lambda root: (root / ":naïve name [x].md").write_bytes(b"1"),
        {":naïve name [x].md": DirtyState.UNSTAGED},
    ),
    "ignored": (
        lambda root: ((root / ".gitignore").write_text("new.py\n"), (root / "new.py").write_bytes(b"1")),
        {"new.py": DirtyState.UNTRACKED},
    ),
    "assumed unchanged": (
        lambda root: (git(root, "update-index", "--assume-unchanged", "a.py"), (root / "a.py").write_bytes(b"1")),
        {"a.py": DirtyState.UNSTAGED},
    ),
    "skipped in the work tree": (
        lambda root: (git(root, "update-index", "--skip-worktree", "a.py"), (root / "a.py").write_bytes(b"1")),
        {"a.py": DirtyState.UNSTAGED},
    ),
    "an index that believes times and sizes": (
        lambda root: (
            git(root, "config", "core.ignoreStat", "true"),
            git(root, "update-index", "--refresh"),
            (root / "a.py").write_bytes(b"A\n"),
        ),
        {"a.py": DirtyState.UNSTAGED},
    ),
    "added without content": (
        lambda root: ((root / "new.py").write_bytes(b"1"), git(root, "add", "-N", "new.py")),
        {"new.py": DirtyState.STAGED},
    ),
    "a link in its place": (
        lambda root: ((root / "a.py").unlink(), (root / "a.py").symlink_to("clean.py")),
        {"a.py": DirtyState.UNSTAGED},
    ),
    "mode only": (lambda root: (root / "a.py").chmod(0o755), {"a.py": DirtyState.UNSTAGED}),
    "a file that is no target": (lambda root: (root / "other").write_bytes(b"1"), {}),
}


@pytest.mark.parametrize("kind", [plain, worktree, submodule, subfolder], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", EDITS)
def test_states(name: str, kind: Callable[[Path], Path], tmp_path: Path) -> None:
    edit, expected = EDITS[name]
    root = kind(tmp_path)
    edit(root)
    assert find_dirty(root, PATHS) == expected


def conflict(root: Path) -> None:
    """Two branches that changed the same line."""
    git(root, "checkout", "-qb", "side")
    (root / "a.py").write_bytes(b"side\n")
    commit_all(root)
    git(root, "checkout", "-q", "-")
    (root / "a.py").write_bytes(b"main\n")
    commit_all(root)


OPERATIONS = {
    "merge": ("merge", "side"),
    "rebase": ("rebase", "side"),
    "rebase by patches": ("rebase", "--apply", "side"),
    "cherry-pick": ("cherry-pick", "side"),
    "revert": ("revert", "--no-edit", "HEAD~1"),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", [plain, worktree], ids=lambda kind: kind.__name__)
def test_an_operation_in_progress_makes_every_target_dirty(
    name: str, kind: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = kind(tmp_path)
    conflict(root)
    if name == "revert":
        (root / "a.py").write_bytes(b"third\n")
        commit_all(root)
    git(root, *OPERATIONS[name], check=False)
    dirty = find_dirty(root, ["clean.py", "a.py", "new.py"])
    reason = f"is in a checkout with a {name.split(' ', maxsplit=1)[0]} in progress"
    assert dirty == dict.fromkeys(["clean.py", "a.py", "new.py"], reason)


def test_during_an_operation_even_our_own_work_is_dirty(tmp_path: Path) -> None:
    root = plain(tmp_path)
    conflict(root)
    publish_changes(root, [FileChange("clean.py", b"d\n", b"ours")], label="x")
    assert find_dirty(root, ["clean.py"]) == {}
    git(root, "merge", "side", check=False)
    assert find_dirty(root, ["clean.py"]) == {"clean.py": "is in a checkout with a merge in progress"}


def test_unmerged_without_an_operation(tmp_path: Path) -> None:
    root = plain(tmp_path)
    (root / "a.py").write_bytes(b"stashed\n")
    git(root, "stash")
    (root / "a.py").write_bytes(b"main\n")
    commit_all(root)
    git(root, "stash", "pop", check=False)
    assert [*find_dirty(root, PATHS).values()] == [DirtyState.UNMERGED]


def test_what_we_wrote_ourselves_is_not_dirty_until_someone_edits_it(tmp_path: Path) -> None:
    root = plain(tmp_path)
    publish_changes(root, [FileChange("a.py", b"a\n", b"ours"), FileChange("new.py", None, b"n")], label="x")
    assert find_dirty(root, PATHS) == {}
    git(root, "add", "-A")
    assert find_dirty(root, PATHS) == {}
    (root / "new.py").write_bytes(b"mine")
    assert [*find_dirty(root, PATHS)] == ["new.py"]
    (root / "new.py").write_bytes(b"n")
    revert_last(root)
    (root / "a.py").write_bytes(b"ours")  # the same bytes, but no longer from a run that stands
    git(root, "reset", "-q")
    assert [*find_dirty(root, PATHS)] == ["a.py"]


def test_a_tree_without_git_is_compared_with_the_last_run(tmp_path: Path) -> None:
    root = fill(tmp_path)
    (root / "a.py").write_bytes(b"1")
    assert find_dirty(root, PATHS) == {}
    publish_changes(root, [FileChange("a.py", b"1", b"2")], label="x")
    assert find_dirty(root, PATHS) == {}
    publish_changes(root, [FileChange("a.py", b"2", b"3"), FileChange("new.py", None, b"n")], label="y")
    assert find_dirty(root, PATHS) == {}
    (root / "a.py").write_bytes(b"2")
    (root / "new.py").unlink()
    (root / "clean.py").write_bytes(b"unknown to us")
    dirty = find_dirty(root, PATHS)
    assert dirty == dict.fromkeys(["a.py", "new.py"], EDITED)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_release_unpacked_inside_some_checkout_is_not_a_checkout(ignored: bool, tmp_path: Path) -> None:
    repository = plain(tmp_path)
    if ignored:
        (repository / ".gitignore").write_text("vllm-0.22.0/\n")
    root = fill(repository / "vllm-0.22.0")
    assert find_dirty(root, PATHS) == {}


def test_no_paths(tmp_path: Path) -> None:
    root = plain(tmp_path)
    (root / "a.py").write_bytes(b"1")
    assert find_dirty(root, ()) == {}


def test_the_repository_of_a_calling_hook_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain(tmp_path)
    (root / "a.py").write_bytes(b"1")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    assert [*find_dirty(root, PATHS)] == ["a.py"]


def test_asking_does_not_write(tmp_path: Path) -> None:
    root = plain(tmp_path)
    (root / "clean.py").touch()
    index = (root / ".git/index").read_bytes()
    assert find_dirty(root, PATHS) == {}
    assert (root / ".git/index").read_bytes() == index


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
@pytest.mark.parametrize("linked", [False, True])
def test_before_the_first_commit(kind: str, linked: bool, tmp_path: Path) -> None:
    root = tmp_path / "new"
    root.mkdir()
    git(root, "init", "-q", f"--object-format={kind}")
    fill(root)
    if linked:
        (root / "clean.py").unlink()
        (root / "clean.py").symlink_to("a.py")
    git(root, "add", "-A")
    assert {*find_dirty(root, ["a.py", "clean.py"]).values()} == {DirtyState.STAGED}
    git(root, "commit", "-qm", "x")
    assert find_dirty(root, ["a.py", "clean.py"]) == {}


@pytest.mark.parametrize(
    ("attribute", "setting", "same"),
    [
        ("*.py text eol=crlf", "false", True),
        ("*.py text=auto", "false", True),
        ("", "true", True),
        ("", "input", True),
        ("", "false", False),
        ("*.py -text", "true", False),
    ],
)
def test_line_ends_that_git_itself_writes_are_no_work(attribute: str, setting: str, same: bool, tmp_path: Path) -> None:
    root = plain(tmp_path)
    (root / ".gitattributes").write_text(attribute + "\n")
    git(root, "config", "core.autocrlf", setting)
    (root / "a.py").write_bytes(b"a\r\n")
    assert (find_dirty(root, ["a.py"]) == {}) is same
    (root / "a.py").write_bytes(b"mine\r\n")
    assert [*find_dirty(root, ["a.py"]).values()] == [DirtyState.UNSTAGED]


def test_modes_on_a_file_system_without_them(tmp_path: Path) -> None:
    root = plain(tmp_path)
    git(root, "config", "core.fileMode", "false")
    (root / "a.py").chmod(0o755)
    assert find_dirty(root, PATHS) == {}


def test_all_that_differs_from_the_last_commit(tmp_path: Path) -> None:
    inner = submodule(tmp_path)
    assert changed_files(inner) == {}
    (inner / "a.py").write_bytes(b"1")
    (inner / "new.py").write_bytes(b"1")
    git(inner, "rm", "-q", "--cached", "pkg/b.py")
    assert changed_files(inner) == {"a.py": DirtyState.UNSTAGED, "pkg/b.py": DirtyState.STAGED}
    outer = tmp_path / "outer"
    assert changed_files(outer) == {".gitmodules": DirtyState.STAGED, "third party/vllm": DirtyState.STAGED}
    git(outer, "commit", "-qm", "x")
    assert changed_files(outer) == {}


def test_require_clean_names_every_dirty_file(tmp_path: Path) -> None:
    root = plain(tmp_path)
    assert require_clean(root, PATHS) == ()
    (root / "a.py").write_bytes(b"1")
    (root / "new.py").write_bytes(b"1")
    with pytest.raises(DiagnosticError) as refused:
        require_clean(root, PATHS)
    assert [(d.code, d.message) for d in refused.value.diagnostics] == [
        ("VCG507", "a.py has changes that are not committed"),
        ("VCG507", "new.py is not tracked by git"),
    ]
    assert refused.value.exit is Exit.CONFLICT


def test_no_git_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain(tmp_path)
    publish_changes(root, [FileChange("a.py", b"a\n", b"2")], label="x")
    (root / "a.py").write_bytes(b"3")
    (root / "pkg/b.py").write_bytes(b"3")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_dirty(root, PATHS) == {"a.py": EDITED}
    (note,) = require_clean(root, ["pkg/b.py"])
    assert (note.code, note.severity) == ("VCG509", Severity.INFO)


def test_a_checkout_that_git_cannot_read(tmp_path: Path) -> None:
    root = plain(tmp_path)
    (root / ".git/HEAD").write_text("nonsense")
    with pytest.raises(DiagnosticError) as refused:
        find_dirty(root, PATHS)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "VCG508"
    assert any("not a git repository" in note for note in diagnostic.notes)


@pytest.mark.parametrize("elsewhere", ["/", "..", "pkg"])
def test_a_checkout_whose_settings_name_another_work_tree(elsewhere: str, tmp_path: Path) -> None:
    """git would track nothing here, and a changed file would be nobody's work."""
    root = plain(tmp_path)
    git(tmp_path, "init", "-q")
    (root / "a.py").write_bytes(b"by hand\n")
    git(root, "config", "core.worktree", str((root / elsewhere).resolve()))
    with pytest.raises(DiagnosticError) as refused:
        require_clean(root, PATHS)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "VCG508"
    assert diagnostic.notes == (f"its work tree is {root}, and git takes {(root / elsewhere).resolve()} for it",)


WAITS: dict[str, dict[str, str]] = {
    **{
        path: {f".git/{path}": "PIPE"} for path in ("HEAD", "config", "index", "packed-refs", "shallow", "refs/heads/a")
    },
    "an object": {".git/objects/ab/cdef": "PIPE"},
    "alternates": {".git/objects/info/alternates": "PIPE"},
    "a pack behind alternates": {".git/objects/info/alternates": "../../more\n", "more/pack/a.idx": "PIPE"},
    "an included file": {".git/config": '[Include]\n\tPath = "../p\\\nipe"\n', "pipe": "PIPE"},
    "a condition": {".git/config": '[includeIf "gitdir:/"] path = ../pipe\n', "pipe": "PIPE"},
    "attributes": {".git/config": "[core]\nattributesFile = ROOT/pipe\n", "pipe": "PIPE"},
    "a folder behind a link": {".git/refs/more": "-> more", "more/a": "PIPE"},
    "another repository": {".git": "gitdir: more\n", "more/HEAD": "PIPE"},
    "the repository of a worktree": {".git": "gitdir: more\n", "more/commondir": "../rest\n", "rest/HEAD": "PIPE"},
    "a circle": {".git/objects/info/alternates": ".\n", ".git/refs/a/b/c/d/e": "PIPE"},
    "large settings": {".git/config": "#" * 10_000_001, ".git/index": "PIPE"},
    "no file of attributes": {".git/config": "[core]\nattributesFile = /dev/null\n", ".git/index": "PIPE"},
    "many files": {".git/objects/ab/1/a": ""},
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_repository_that_git_would_wait_for(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain(tmp_path)
    (root / ".git/refs/nothing").symlink_to("nowhere")
    if ".git" in WAITS[kind]:
        shutil.rmtree(root / ".git")
    if kind == "many files":
        monkeypatch.setattr("scaffold.git._MAX_ENTRIES", 10)
    for name, text in WAITS[kind].items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if text == "PIPE":
            os.mkfifo(file)
        elif text.startswith("-> "):
            (root / text[3:]).mkdir()
            file.symlink_to(root / text[3:])
        else:
            file.write_text(text.replace("ROOT", str(root)))
    begun = time.monotonic()
    with pytest.raises(DiagnosticError) as refused:
        require_clean(root, PATHS)
    assert ask_git(root, "describe") is None
    assert time.monotonic() - begun < 5
    (diagnostic,) = refused.value.diagnostics
    (note,) = diagnostic.notes
    assert diagnostic.code == "VCG508"
    assert note.endswith("has more than 10 entries" if kind == "many files" else "is not a regular file")


def test_a_pipe_in_the_place_of_attributes_is_no_wait(tmp_path: Path) -> None:
    """Git reads attributes where line ends differ alone."""
    root = plain(tmp_path)
    os.mkfifo(root / ".gitattributes")
    require_clean(root, PATHS)
    file = root / PATHS[0]
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    begun = time.monotonic()
    with pytest.raises(DiagnosticError) as refused:
        require_clean(root, PATHS)
    assert time.monotonic() - begun < 5
    assert refused.value.diagnostics[0].notes[0].endswith(".gitattributes is not a regular file")


def test_a_repository_is_walked_once_whatever_leads_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worktree names the repository that names them all, and a link leads back to it."""
    root = worktree(tmp_path)
    for name in ("second", "third"):
        git(root, "worktree", "add", "-q", str(tmp_path / name))
    (tmp_path / "plain/.git/again").symlink_to(".")
    monkeypatch.setattr("scaffold.git._MAX_ENTRIES", 200)
    assert require_clean(root, tuple(FILES)) == ()


def test_one_module_runs_git() -> None:
    """Its environment is the only one; every command of it is tried on a hostile repository in tests/cli."""
    package = Path(scaffold.__file__).parent
    spoken = re.compile(r"""["']git["'][,\]]""")
    found = [path.name for path in package.rglob("*.py") if spoken.search(path.read_text())]
    assert found == ["git.py"]


def test_a_git_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain(tmp_path)
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    monkeypatch.setattr("scaffold.git._TIMEOUT_S", 0.2)
    with pytest.raises(DiagnosticError) as refused:
        find_dirty(root, PATHS)
    assert refused.value.diagnostics[0].notes == ("no answer within 0.2 s",)


def test_a_commit_that_git_cannot_read_is_no_missing_commit(tmp_path: Path) -> None:
    root = plain(tmp_path)
    tree = git(root, "rev-parse", "HEAD^{tree}").strip()
    (root / ".git/objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(DiagnosticError) as caught:
        find_dirty(root, ["a.py"])
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG508"]
