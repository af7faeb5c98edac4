"""`<root>/.vitcg-scaffold/`: the journal of an unfinished run, the records of finished ones, and their bytes.

* `.gitignore`: one line, `*`, so that git never sees the folder.
* `lock`: the writing run holds it.
* `journal.json`: the record of a run that has begun to change the tree; absent otherwise.
* `runs/<id>.json`: the records of the last `KEPT_RUNS` finished runs.
* `blobs/<id>/<n>.old`: the bytes of a run's n-th file before the run. `revert` needs them.
* `blobs/<id>/<n>.new`: its bytes after the run. They move into the tree when their turn comes.
* `blobs/<id>/<n>.gone`: a file that the run removes. It moves here when its turn comes.

Two renames of one file decide everything. After `journal.tmp -> journal.json`, a kill leads to a roll-back. After
`journal.json -> runs/<id>.json`, the run is done. Blobs without a record are rubbish. The folder is in the tree so that
every rename stays on one file system. The store does not trust its own files: people pass trees around.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from scaffold.diagnostics import DiagnosticError
from scaffold.files import NotRegularError, read_regular
from scaffold.publish import disk

STORE = ".vitcg-scaffold"
KEPT_RUNS = 20
_FORMAT = 1
_MOST_RUNS = 10**9


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a run: SHA-256 of its bytes before and after, None where there was no file.

    `unlinked` tells that the file had another name as well, a hard link. That name still has the bytes from before,
    since a run replaces files by renames. `revert` and roll-back restore the bytes, but cannot restore the link.
    """

    path: str
    before: str | None
    after: str | None
    unlinked: bool = False

    @property
    def action(self) -> str:
        if self.before is None:
            return "created"
        return "removed" if self.after is None else "modified"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The effects of one run. `id` counts runs of this tree and is 0 for a run that had nothing to do.

    `made_dirs` are the folders that it made for new files, parents first. `reverts` is the id of the run that this one
    undid, and `dropped_dirs` are the folders to remove with that run if they are empty.
    """

    id: int
    label: str
    files: tuple[FileRecord, ...]
    made_dirs: tuple[str, ...] = ()
    dropped_dirs: tuple[str, ...] = ()
    reverts: int | None = None


def _encode(record: RunRecord) -> bytes:
    return (json.dumps({"format": _FORMAT, **asdict(record)}, indent=1) + "\n").encode()


def _decode(path: Path) -> RunRecord:
    try:
        data = json.loads(read_regular(path, follow=False))
        if data.pop("format") != _FORMAT:
            raise ValueError("written by another version")
        files = tuple(FileRecord(**entry) for entry in data.pop("files"))
        made, dropped = tuple(data.pop("made_dirs")), tuple(data.pop("dropped_dirs"))
        record = RunRecord(files=files, made_dirs=made, dropped_dirs=dropped, **data)
        texts = [record.label, *made, *dropped, *(file.path for file in files)]
        digests = [digest for file in files for digest in (file.before, file.after) if digest is not None]
        numbers = [record.id, *([] if record.reverts is None else [record.reverts])]
        if not (
            all(type(number) is int and 0 < number < _MOST_RUNS for number in numbers)
            and all(isinstance(text, str) and text.isprintable() for text in texts)
            and all(isinstance(digest, str) for digest in digests)
            and all(isinstance(file.unlinked, bool) for file in files)
        ):
            raise TypeError("a field has the wrong type")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotRegularError) as error:
        raise damaged(path, str(error)) from error
    return record


def damaged(path: Path, why: str) -> DiagnosticError:
    return DiagnosticError.of(
        "VCG707",
        f"{path} is damaged: {why}",
        help=f"compare the tree with its origin (git diff), then delete the folder {STORE} to start afresh",
    )


def _require_folder(path: Path) -> None:
    """Refuse a link in the place of one of our folders: it would lead our deletions elsewhere."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise damaged(path, "it is not a folder")


class Store:
    """The folder of one tree. `root` is resolved. Nothing exists on the disk before `open`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.folder = self.root / STORE
        self.lock = self.folder / "lock"
        self.journal = self.folder / "journal.json"
        self.runs = self.folder / "runs"
        self.blobs = self.folder / "blobs"

    def exists(self) -> bool:
        return self.folder.is_dir() and not self.folder.is_symlink()

    def open(self) -> None:
        """Create the folder, for its lock. Another run may be doing the same."""
        with contextlib.suppress(FileExistsError):
            disk.mkdir(self.folder)
        _require_folder(self.folder)

    def fill(self) -> None:
        """Create the missing files inside. The caller holds the lock."""
        for folder in (self.runs, self.blobs):
            if not folder.exists():
                disk.mkdir(folder)
            _require_folder(folder)
        for temporary in self.folder.glob("*.tmp"):
            disk.unlink(temporary)
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            # Write it aside and rename it: a kill in between must not leave an empty file, which would hide nothing.
            temporary = self.folder / "gitignore.tmp"
            disk.write_file(temporary, b"*\n")
            disk.replace(temporary, ignore)

    def inside(self, relative: str) -> Path:
        """The path of `relative`, links in its parents resolved. Refuses paths that leave the tree or enter a store."""
        plain = self.root / relative
        path = Path(os.path.realpath(plain.parent)) / plain.name
        if not path.is_relative_to(self.root) or {STORE, ".git", ".."} & set(path.relative_to(self.root).parts):
            raise DiagnosticError.of(
                "VCG502",
                f"{relative} is not a file of the tree {self.root}: it leads to {path}",
                help="replace the symbolic link by a real folder, or point --vllm at the tree that owns the file",
            )
        return path

    def locate(self, relative: str) -> Path:
        """The path of a target file. It must be a regular file, or not exist yet."""
        path = self.inside(relative)
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return path
        if not stat.S_ISREG(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a special file"
            raise DiagnosticError.of(
                "VCG503", f"{relative} is {kind}, not a regular file", help="put a regular file in its place"
            )
        return path

    def old(self, run: int, index: int) -> Path:
        return self.blobs / str(run) / f"{index}.old"

    def new(self, run: int, index: int) -> Path:
        return self.blobs / str(run) / f"{index}.new"

    def gone(self, run: int, index: int) -> Path:
        return self.blobs / str(run) / f"{index}.gone"

    def touched(self, record: RunRecord, index: int) -> bool:
        """Whether the run has moved this file. The place of its bytes tells, even after a kill."""
        if record.files[index].after is None:
            return self.gone(record.id, index).exists()
        return not self.new(record.id, index).exists()

    def unfinished(self) -> RunRecord | None:
        """The record of a run that was killed while it changed the tree, if there is one."""
        return _decode(self.journal) if self.journal.exists() else None

    def next_id(self) -> int:
        names = [*self.runs.glob("*.json"), *self.blobs.iterdir()]
        return 1 + max((int(path.stem) for path in names if path.stem.isdecimal()), default=0)

    def history(self) -> list[RunRecord]:
        """Finished runs that still stand, oldest first."""
        records = self._records()
        gone = {record.reverts for record in records}
        return [record for record in records if record.reverts is None and record.id not in gone]

    def _records(self) -> list[RunRecord]:
        paths = (path for path in self.runs.glob("*.json") if path.stem.isdecimal())
        return sorted((_decode(path) for path in paths), key=lambda record: record.id)

    def open_journal(self, record: RunRecord) -> None:
        """Note that the run is prepared. The blobs are on the disk already; now the record to undo the run is, too."""
        temporary = self.folder / "journal.tmp"
        disk.write_file(temporary, _encode(record))
        disk.replace(temporary, self.journal)
        disk.sync_directory(self.folder)

    def commit(self, record: RunRecord) -> None:
        """Note that the run is done. A power cut may lose this rename. Then `recover` rolls the whole run back."""
        disk.replace(self.journal, self._record_path(record))
        with contextlib.suppress(OSError):
            disk.sync_directory(self.runs)
            disk.sync_directory(self.folder)

    def close_journal(self) -> None:
        """Note that the run is rolled back. If a power cut loses this, `recover` only rolls back once more."""
        disk.unlink(self.journal)
        with contextlib.suppress(OSError):
            disk.sync_directory(self.folder)

    def _record_path(self, record: RunRecord) -> Path:
        return self.runs / f"{record.id}.json"

    def tidy(self) -> None:
        """Delete files that no later command needs. No run may be unfinished. A later call deletes leftovers."""
        with contextlib.suppress(OSError, DiagnosticError):
            kept = {record.id for record in self.history()[-KEPT_RUNS:]}
            # Go in the order of ids: a revert's own record goes last, after everything that it refers to.
            for record in self._records():
                if record.id in kept:
                    continue
                with contextlib.suppress(OSError, DiagnosticError):
                    for name in reversed(record.dropped_dirs):
                        disk.remove_if_empty(self.inside(name))
                    disk.unlink(self._record_path(record))
            for folder in self.blobs.iterdir():
                if folder.name not in {str(run) for run in kept}:
                    disk.remove_tree(folder)
