"""Digests of trees: that of a release in the cache, which must not change after unpacking, and that of a proof.

The record of a release's tree has two digests. The digest of the contents decides, and for a release that the tool
knows it must be the one that came with the tool. The digest of sizes and times only saves reading 130 MB in every run:
the kernel sets the time of a change (`st_ctime`), so nobody can edit a file and keep it. Where it differs, for instance
in a copied cache, the check compares the contents and notes the new times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from scaffold.diagnostics import DiagnosticError
from scaffold.files import open_regular, read_regular

#: Folders that tools write where they run. Nothing of a release loads what is in them.
_TOOLS = frozenset((".mypy_cache", ".pytest_cache", ".ruff_cache"))
#: The files that Python writes into `__pycache__` for a source beside it. The lab reads none of them. A file of another
#: name may be a module of a package that is called `__pycache__`.
_BYTECODE = re.compile(
    r"__pycache__/[^/]+\.(cpython-\d+t?|pypy\d*-?\d+)(\.opt-\w+|-pytest-\d+(\.\d+)*)?\.pyc(\.\d+)?$", re.ASCII
)


def seal_tree(root: Path, record: Path, contents: str) -> None:
    """Write the record of a tree with these contents (`digest_of`). A read-only cache stays unsealed."""
    _write(record, _times(root), contents)


def check_tree(root: Path, record: Path, known: str | None) -> bool:
    """Whether a tree is what was unpacked; False where nothing that can be trusted tells: fetch it again.

    `known` is the digest of the contents that came with the tool, None for a release that it does not know. Raises
    VCG407 when the tree differs from its record.
    """
    try:
        data = json.loads(read_regular(record))
        times, contents = str(data["times"]), str(data["contents"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        times = contents = ""
    recorded = bool(contents) and contents == (known or contents)
    now = _times(root)
    if recorded and now == times:
        return True
    if digest_of(root) != (contents if recorded else known):
        if not recorded:
            return False
        raise DiagnosticError.of(
            "VCG407",
            f"the cached release `{root}` was changed since it was unpacked",
            help="delete that folder, the next run fetches the release again; to edit a release, use "
            "`vitcg-scaffold new --into` or a copy of the folder",
        )
    _write(record, now, contents if recorded else known or "")
    return True


def _write(record: Path, times: str, contents: str) -> None:
    with contextlib.suppress(OSError):
        record.parent.mkdir(mode=0o755, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=record.parent, delete=False) as draft:
            json.dump({"times": times, "contents": contents}, draft)
        Path(draft.name).replace(record)


def _times(root: Path) -> str:
    lines = [
        f"{name}\0{status.st_mode}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}"
        for name, status in sorted((path[len(str(root)) :], status) for path, status in _files(str(root)))
    ]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def digest_of(root: Path) -> str:
    """A hash of the names and contents of all files of a tree. It follows no links. Raises OSError."""
    digest = hashlib.sha256()
    for path in sorted(path for path, _ in _files(str(root))):
        file = Path(path)
        data = hashlib.sha256(os.fsencode(file.readlink())).digest() if file.is_symlink() else digest_of_file(file)
        digest.update(os.fsencode(path[len(str(root)) :]) + b"\0" + data)
    return digest.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a tree except folders, bytecode and what tools leave."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _TOOLS:
                    yield from _files(entry.path)
            elif not _BYTECODE.search(entry.path):
                yield entry.path, entry.stat(follow_symlinks=False)


def digest_of_file(path: Path) -> bytes:
    """SHA-256 of a regular file, wherever links lead. Raises OSError."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.digest()


def digest_as_run(root: Path, replaced: Mapping[str, bytes | None]) -> str:
    """A hash of all that a program finds below a folder: each name, and the content that a link or a file has there.

    `replaced` has other contents for some files, by path relative to `root`; one with None counts as not there. A file
    that cannot be read counts as such: a program cannot read it either.
    """
    found = _as_run(root, replaced)
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(os.fsencode(path) + b"\0" + found[path])
    return digest.hexdigest()


def find_differences(root: Path, other: Path, replaced: Mapping[str, bytes | None]) -> list[str]:
    """The files that are not alike in two folders, as a program finds them; `replaced` as above, for the first one."""
    one, two = _as_run(root, replaced), _as_run(other, {})
    return sorted(path for path in one.keys() | two.keys() if one.get(path) != two.get(path))


def _as_run(root: Path, replaced: Mapping[str, bytes | None]) -> dict[str, bytes]:
    found = dict(_followed(root))
    for path, data in replaced.items():
        found.pop(path, None)
        if data is not None:
            found[path] = hashlib.sha256(data).digest()
    return found


def _followed(root: Path) -> Iterator[tuple[str, bytes]]:
    """Names relative to a folder, and digests. A folder with several names is entered once, under a real one first, so
    that links in a circle end.
    """
    names: dict[tuple[int, int], str] = {}
    folders, links = [""], list[str]()
    while folders or links:
        here = folders.pop() if folders else links.pop()
        try:
            status = (root / here).stat()
            first = names.setdefault((status.st_dev, status.st_ino), here)
            if first != here:
                yield here, hashlib.sha256(b"the folder " + os.fsencode(first)).digest()
                continue
            with os.scandir(root / here) as scan:
                entries = sorted(scan, key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            yield here, hashlib.sha256(f"no folder, {error.errno}".encode()).digest()
            continue
        for entry in entries:
            path = f"{here}/{entry.name}" if here else entry.name
            if _is_folder(entry):
                (links if entry.is_symlink() else folders).append(path)
            elif not _BYTECODE.search(path):
                try:
                    yield path, digest_of_file(Path(entry.path))
                except OSError as error:
                    yield path, hashlib.sha256(f"no file, {error.errno}".encode()).digest()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
