"""What a folder holds compared with what it should hold. Reads, never writes, and follows no symbolic link."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.adapters.header import is_unedited
from scaffold.adapters.manifest import FOLDERS
from scaffold.diagnostics import Diagnostic, DiagnosticError, Span

if TYPE_CHECKING:
    from scaffold.adapters.manifest import Entry, Manifest
    from scaffold.adapters.outputs import Output


class Kind(str, Enum):
    """How a file differs."""

    CHANGED = "changed"  # what an older run wrote, unedited: the descriptor or the tool has changed
    MISSING = "missing"
    EXTRA = "extra"  # an earlier run wrote it, no descriptor asks for it any more, nobody edited it
    EDITED = "hand-edited"
    FOREIGN = "foreign"  # an extra file that no run of ours wrote


@dataclass(frozen=True)
class Finding:
    """One file that is not as it should be. `expected` is None for an extra file, `disk` for a missing one."""

    kind: Kind
    path: str
    expected: Output | None
    disk: bytes | None
    entry: Entry | None


@dataclass(frozen=True)
class Comparison:
    """`findings` in the order of paths; `adopted` are paths whose hand-edited version is the accepted one."""

    findings: tuple[Finding, ...]
    adopted: frozenset[str]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def compare_outputs(
    folder: Path, outputs: Sequence[Output], manifest: Manifest, *, known: frozenset[str], names: frozenset[str] | None
) -> Comparison:
    """Compare `outputs` and what else lies in the folder.

    `known` are the paths of all outputs of the folder. `names` limits the search for extra files to those of these
    descriptors, None means all. Raises VCG543 for a path that cannot be read or that leads through a link.
    """
    entries = {entry.path: entry for entry in manifest.entries}
    findings: list[Finding] = []
    adopted: set[str] = set()
    for output in outputs:
        entry, disk = entries.get(output.path), read_file(folder, output.path)
        if disk == output.content:
            continue
        if disk is None:
            findings.append(Finding(Kind.MISSING, output.path, output, None, entry))
        elif entry is not None and entry.adopted == sha256(disk) and entry.sha256 == sha256(output.content):
            adopted.add(output.path)
        else:
            kind = Kind.CHANGED if _is_ours(output.path, disk, entry) else Kind.EDITED
            findings.append(Finding(kind, output.path, output, disk, entry))
    findings += _extras(folder, entries, known, names)
    return Comparison(tuple(sorted(findings, key=lambda finding: finding.path)), frozenset(adopted))


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


def _is_ours(path: str, disk: bytes, entry: Entry | None) -> bool:
    """Whether the bytes are what some run of ours wrote: by the manifest, or by the file's own header."""
    return (entry is not None and entry.sha256 == sha256(disk)) or is_unedited(path, disk)


def _extras(
    folder: Path, entries: Mapping[str, Entry], known: frozenset[str], names: frozenset[str] | None
) -> Iterator[Finding]:
    for path in _walk(folder):
        entry = entries.get(path)
        if path in known or (names is not None and (entry is None or entry.descriptor not in names)):
            continue
        disk = read_file(folder, path)
        assert disk is not None
        if entry is None:
            yield Finding(Kind.FOREIGN, path, None, disk, None)
        else:
            yield Finding(Kind.EXTRA if _is_ours(path, disk, entry) else Kind.EDITED, path, None, disk, entry)


def _walk(folder: Path) -> Iterator[str]:
    """Every file below the folders that outputs may have, except what Python leaves there. Links are not followed."""
    for top in FOLDERS:
        for parent, folders, files in os.walk(folder / top):
            folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
            here = Path(parent).relative_to(folder)
            yield from ((here / name).as_posix() for name in files if not name.endswith(".pyc"))


def _unreadable(place: Path, why: str) -> DiagnosticError:
    path = place.as_posix()
    return DiagnosticError(
        Diagnostic(
            "VCG543",
            f"{path} cannot be compared: {why}",
            span=Span(path, 1, 1, 1, 1),
            help="put a regular file in its place or remove it, then run the command again",
        )
    )
