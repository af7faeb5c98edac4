"""Whether a release in the cache is still what was unpacked: it is the oracle of proofs, and `verify` runs it.

The record of a tree has two digests. That of the contents decides. That of sizes and times only spares reading 130 MB
in every run: the kernel sets the time of a change (`st_ctime`), a file cannot be edited and keep it. Where it differs
(a cache that was copied), the contents are compared, and the new times noted.
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


def seal_tree(root: Path, record: Path) -> None:
    """Write the record of a tree. A cache that cannot be written stays unsealed."""
    _write(record, _times(root), digest_of(root))


def check_tree(root: Path, record: Path) -> None:
    """Raise VCG407 when the tree is no longer what the record says. A tree that has none is sealed as it is."""
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


def digest_of(root: Path, suffix: str = "", *, replaced: Mapping[str, bytes] | None = None) -> str:
    """A hash of the files with that ending, names and contents. Those of `replaced`, by path, have other contents.

    Links are not followed. Raises OSError.
    """
    known = {f"{root}/{path}": content for path, content in (replaced or {}).items()}
    digest = hashlib.sha256()
    for path in sorted({*known, *(path for path, _ in _files(str(root)) if path.endswith(suffix))}):
        file = Path(path)
        if path in known:
            data = known[path]
        else:
            data = os.fsencode(file.readlink()) if file.is_symlink() else read_regular(file)
        digest.update(os.fsencode(path[len(str(root)) :]) + b"\0" + hashlib.sha256(data).digest())
    return digest.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a tree that is no folder. Compiled files of Python are not part of it, and nobody loads them."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry.path, entry.stat(follow_symlinks=False)
            elif entry.name != "__pycache__":
                yield from _files(entry.path)
