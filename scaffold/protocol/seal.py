"""Checks that a release in the cache has not changed since unpacking: it is the oracle of proofs, and `verify` runs it.

The record of a tree has two digests. The digest of the contents decides. The digest of sizes and times only saves
reading 130 MB in every run: the kernel sets the time of a change (`st_ctime`), so nobody can edit a file and keep it.
Where it differs, for instance in a copied cache, the check compares the contents and notes the new times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.files import read_regular

#: Folders that Python and its tools write where they run. Nothing loads what is in them.
CACHES = frozenset(("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"))


def seal_tree(root: Path, record: Path) -> None:
    """Write the record of a tree. A read-only cache stays unsealed."""
    _write(record, _times(root), digest_of(root))


def check_tree(root: Path, record: Path) -> None:
    """Raise VCG407 when the tree differs from its record. A tree without a record gets one."""
    try:
        data = json.loads(read_regular(record))
        times, contents = str(data["times"]), str(data["contents"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        seal_tree(root, record)
        return
    now = _times(root)
    if now == times:
        return
    if digest_of(root) != contents:
        raise DiagnosticError(
            Diagnostic(
                "VCG407",
                f"the cached release `{root}` was changed since it was unpacked",
                help="delete that folder, the next run fetches the release again; to edit a release, use "
                "`vitcg-scaffold new --into` or a copy of the folder",
            )
        )
    _write(record, now, contents)


def _write(record: Path, times: str, contents: str) -> None:
    with contextlib.suppress(OSError):
        record.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=record.parent, delete=False) as draft:
            json.dump({"times": times, "contents": contents}, draft)
        Path(draft.name).replace(record)


def _times(root: Path) -> str:
    lines = [
        f"{name}\0{status.st_mode}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
        for name, status in sorted((path[len(str(root)) :], status) for path, status in _files(str(root)))
    ]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def digest_of(root: Path, suffix: str = "", *, replaced: Mapping[str, bytes | None] | None = None) -> str:
    """A hash of names and contents of the files with that ending. `replaced` has other contents for some, by path; a
    file with None counts as not there.

    It follows no links. Raises OSError.
    """
    known = {f"{root}/{path}": content for path, content in (replaced or {}).items()}
    digest = hashlib.sha256()
    for path in sorted({*known, *(path for path, _ in _files(str(root)) if path.endswith(suffix))}):
        file = Path(path)
        if path in known:
            content = known[path]
            if content is None:
                continue
            data = content
        else:
            data = os.fsencode(file.readlink()) if file.is_symlink() else read_regular(file)
        digest.update(os.fsencode(path[len(str(root)) :]) + b"\0" + hashlib.sha256(data).digest())
    return digest.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a tree except folders and `CACHES`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry.path, entry.stat(follow_symlinks=False)
            elif entry.name not in CACHES:
                yield from _files(entry.path)
