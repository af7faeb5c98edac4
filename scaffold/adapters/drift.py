"""Compares the files of a folder with those that it should hold. Reads, never writes, and follows no symbolic link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from scaffold.adapters.header import is_unedited, origin
from scaffold.changes import FileChange
from scaffold.diagnostics import DiagnosticError, Span

#: The only folders that outputs may have. `examples` is one of earlier versions, which a run empties.
FOLDERS = ("vitcg_adapters", "tests", "docs", "examples")


def is_edited(change: FileChange) -> bool:
    """Whether bytes are on the disk that no run of ours wrote, by the hash in their own header."""
    return change.before is not None and not is_unedited(change.path, change.before)


def is_foreign(change: FileChange) -> bool:
    """Whether it is somebody's file where no output belongs: such a file is never removed."""
    return change.after is None and is_edited(change)


def compare_outputs(
    folder: Path, expected: Mapping[str, bytes], *, known: frozenset[str], origins: frozenset[str] | None
) -> tuple[FileChange, ...]:
    """The changes that make the folder hold `expected` (path -> bytes) and nothing else, by path.

    `known` are the paths of all outputs of the folder. `origins` limits the search for extra files to those made of
    descriptor files of these names; None means all files. Raises VCG543 for a path that cannot be read or that leads
    through a link.
    """
    found = [FileChange(path, read_file(folder, path), content) for path, content in expected.items()]
    for path in _walk(folder):
        if path not in known:
            disk = read_file(folder, path)
            assert disk is not None
            if origins is None or origin(path, disk) in origins:
                found.append(FileChange(path, disk, None))
    return tuple(sorted((change for change in found if not change.is_noop), key=lambda change: change.path))


def read_file(folder: Path, path: str) -> bytes | None:
    """The bytes of a file of the folder, None when there is none. Raises VCG543 when it is no plain file."""
    place = folder
    for part in Path(path).parts:
        place = place / part
        try:
            mode = os.lstat(place).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(place, error.strerror or str(error)) from None
        if stat.S_ISLNK(mode):
            raise _unreadable(place, "it is a symbolic link")
    if not stat.S_ISREG(mode):
        raise _unreadable(place, "it is not a regular file")
    try:
        return place.read_bytes()
    except OSError as error:
        raise _unreadable(place, error.strerror or str(error)) from None


def _walk(folder: Path) -> Iterator[str]:
    """Every file below the folders that outputs may have, except what Python leaves there. Links are not followed."""
    for top in FOLDERS:
        for parent, folders, files in os.walk(folder / top):
            folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
            here = Path(parent).relative_to(folder)
            yield from ((here / name).as_posix() for name in files if not name.endswith(".pyc"))


def _unreadable(place: Path, why: str) -> DiagnosticError:
    path = place.as_posix()
    return DiagnosticError.of(
        "VCG543",
        f"{path} cannot be compared: {why}",
        span=Span(path, 1, 1, 1, 1),
        help="put a regular file in its place or remove it, then run the command again",
    )
