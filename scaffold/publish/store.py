"""`<root>/.vitcg-scaffold/`: the journal of an unfinished run, the records of finished ones, and their bytes.

    .gitignore          one line, `*`, so that git never sees the folder
    lock                held by the run that is writing
    journal.json        the record of a run that has begun to change the tree; absent otherwise
    runs/<id>.json      records of finished runs, the last `KEPT_RUNS` of them
    blobs/<id>/<n>.old  the bytes of a run's n-th file before (kept: `revert` needs them) ...
    blobs/<id>/<n>.new  ... and after (moved into the tree when its turn comes)
    blobs/<id>/<n>.gone a file that the run removes (moved here when its turn comes)

Two renames of one file decide everything. `journal.tmp -> journal.json`: from here on a killed run is rolled back.
`journal.json -> runs/<id>.json`: from here on it is done. Blobs without a record are rubbish. The folder lies in the
tree so that every rename stays on one file system. What is read back is not trusted: trees are passed around.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.files import NotRegularError, read_regular
from scaffold.publish import disk

STORE = ".vitcg-scaffold"
KEPT_RUNS = 20
_FORMAT = 1
_MOST_RUNS = 10**9


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a run: SHA-256 of its bytes before and after, None where there was no file.

    `unlinked` says that it had another name as well, a hard link, which still has the bytes from before: a file is
    replaced by a rename. What undoes the run restores the bytes, and cannot restore the link.
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
    """What one run did. `id` counts runs of this tree and is 0 for a run that had nothing to do.

    `made_dirs` were created for new files, parents first. `reverts` is the id of the run that this one undid, and
    `dropped_dirs` are the folders that are to go with it if they are empty.
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
    return DiagnosticError(
        Diagnostic(
            "VCG707",
            f"{path} is damaged: {why}",
            help=f"compare the tree with its origin (git diff), then delete the folder {STORE} to start afresh",
        )
    )


def _require_folder(path: Path) -> None:
    """A link in the place of a folder of ours would lead our deletions elsewhere."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise damaged(path, "it is not a folder")


class Store:
    """The folder of one tree. `root` is resolved; nothing is created before `open`."""

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
        """Create what is missing inside; the lock is held."""
        for folder in (self.runs, self.blobs):
            if not folder.exists():
                disk.mkdir(folder)
            _require_folder(folder)
        for temporary in self.folder.glob("*.tmp"):
            disk.unlink(temporary)
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            # Written aside and renamed: a kill in between must not leave an empty one, which would hide nothing.
            temporary = self.folder / "gitignore.tmp"
            disk.write_file(temporary, b"*\n")
            disk.replace(temporary, ignore)

    def inside(self, relative: str) -> Path:
        """The path of `relative`, links in its parents resolved; refused when it leaves the tree or enters a store."""
        plain = self.root / relative
        path = Path(os.path.realpath(plain.parent)) / plain.name
        if not path.is_relative_to(self.root) or {STORE, ".git", ".."} & set(path.relative_to(self.root).parts):
            raise DiagnosticError(
                Diagnostic(
                    "VCG502",
                    f"{relative} is not a file of the tree {self.root}: it leads to {path}",
                    help="replace the symbolic link by a real folder, or point --vllm at the tree that owns the file",
                )
            )
        return path

    def locate(self, relative: str) -> Path:
        """The path of a target file. What is there now must be a regular file, or nothing."""
        path = self.inside(relative)
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return path
        if not stat.S_ISREG(mode):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a special file"
            raise DiagnosticError(
                Diagnostic(
                    "VCG503", f"{relative} is {kind}, not a regular file", help="put a regular file in its place"
                )
            )
        return path

    def old(self, run: int, index: int) -> Path:
        return self.blobs / str(run) / f"{index}.old"

    def new(self, run: int, index: int) -> Path:
        return self.blobs / str(run) / f"{index}.new"

    def gone(self, run: int, index: int) -> Path:
        return self.blobs / str(run) / f"{index}.gone"

    def touched(self, record: RunRecord, index: int) -> bool:
        """Whether the run came to move this file: known from where the bytes are, even after a kill."""
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
        """Prepared: blobs are on the disk, and now what is needed to undo the run is, too."""
        temporary = self.folder / "journal.tmp"
        disk.write_file(temporary, _encode(record))
        disk.replace(temporary, self.journal)
        disk.sync_directory(self.folder)

    def commit(self, record: RunRecord) -> None:
        """Done. If this rename is lost in a power cut, the journal is back and the run is rolled back: also whole."""
        disk.replace(self.journal, self._record_path(record))
        with contextlib.suppress(OSError):
            disk.sync_directory(self.runs)
            disk.sync_directory(self.folder)

    def close_journal(self) -> None:
        """Rolled back: the run never was. Losing this in a power cut only means to roll back once more."""
        disk.unlink(self.journal)
        with contextlib.suppress(OSError):
            disk.sync_directory(self.folder)

    def _record_path(self, record: RunRecord) -> Path:
        return self.runs / f"{record.id}.json"

    def tidy(self) -> None:
        """Delete what no later command can need; no run is unfinished. What is left today goes the next time."""
        with contextlib.suppress(OSError, DiagnosticError):
            kept = {record.id for record in self.history()[-KEPT_RUNS:]}
            # In the order of ids: a revert's own record goes last, when all that it stands for is done.
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
