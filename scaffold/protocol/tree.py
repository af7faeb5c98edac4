"""A vLLM source tree as a value: read text, list files, parse modules. Never imports vLLM and never writes.

A `SourceTree` is a snapshot: its cache keeps every file that it has read, so that planning, proving and reporting see
the same bytes. Make a new one (`SourceTree.reread`) after publishing.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from scaffold.diagnostics import DiagnosticError, Span
from scaffold.files import read_regular
from scaffold.syntax import SourceLines, parse

T = TypeVar("T")

_BOM = "\ufeff"

#: A vLLM tree has these: relative path, and a name for people.
LANDMARKS = (("vllm/__init__.py", "the package"), ("vllm/model_executor/models", "the model classes"))


def is_tree(root: Path) -> bool:
    """Whether `root` has every landmark of a vLLM tree."""
    return all((root / path).exists() for path, _ in LANDMARKS)


#: Bytes of a folder's source files that are read at most: twenty times those of vLLM 0.33.
_MAX_FOLDER = 10**9

#: Names that are searched for before an index of all words is made.
_SEARCHES = 16
_WORD_BYTES = bytes(byte if chr(byte).isalnum() or byte == ord("_") or byte > 127 else 32 for byte in range(256))

#: Kinds of cached values that belong to one file.
_OF_ONE_FILE = frozenset({"bytes", "text", "ast", "lines", "names"})


@dataclass(frozen=True)
class Package:
    """Packages of somebody else that use vLLM's classes. A run writes their files, and then none of the tree.

    `root` is the folder that holds them, `names` are theirs, and `label` is the user's name for the folder.
    """

    root: Path
    label: str
    names: frozenset[str]


@dataclass(frozen=True)
class SourceTree:
    """One tree of vLLM sources, and the packages beside it that import vLLM.

    `root` is the folder that holds the package folder `vllm`. `label` is the user's name for it and starts every path
    in a diagnostic, so no absolute path appears unless the user typed one. `release` is the version that the tree
    names, or None. `installed` means an installed package: it has no tests, docs or examples. With a `package`, paths
    that start with one of its names are read there, and vLLM's own files stay as they are.
    """

    root: Path
    label: str
    release: str | None
    installed: bool = False
    package: Package | None = None
    _cache: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False, compare=False)

    def reread(self) -> SourceTree:
        """The same tree without anything cached."""
        return replace(self, _cache={})

    def with_files(self, files: Mapping[str, bytes]) -> SourceTree:
        """The same tree, read as if it had these files with these bytes. No other file is read again."""
        cache: dict[tuple[str, str], Any] = {("bytes", relpath): data for relpath, data in files.items()}
        for (kind, what), value in self._cache.items():
            if kind in _OF_ONE_FILE and what not in files:
                cache[kind, what] = value
            elif kind == "folder":
                folder, _, suffix = what.partition("/**")
                inside = {relpath: data for relpath, data in files.items() if _is_in(relpath, folder, suffix)}
                cache[kind, what] = sorted({**dict(value), **inside}.items())
        return replace(self, _cache=cache)

    def cached(self, key: tuple[str, str], make: Callable[[], T]) -> T:
        """`make()`, called once for each key of this snapshot. Its value must depend on the files alone."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    @property
    def home(self) -> Path:
        """The folder that a run writes into: the package's, or that of the tree."""
        return self.package.root if self.package is not None else self.root

    @property
    def home_label(self) -> str:
        """The user's name for `home`."""
        return self.package.label if self.package is not None else self.label

    @property
    def packages(self) -> tuple[str, ...]:
        """The names of all packages: vLLM's, and those beside it."""
        return ("vllm", *sorted(self.package.names if self.package is not None else ()))

    def beside(self, relpath: str) -> Package | None:
        """The package that a path is in; None for vLLM's own tree."""
        inside = self.package is not None and relpath.partition("/")[0] in self.package.names
        return self.package if inside else None

    def display(self, relpath: str) -> str:
        """The path that a person sees: the label and the path inside the tree."""
        return f"{(self.beside(relpath) or self).label.rstrip('/')}/{relpath}"

    def relative(self, shown: str) -> str:
        """The path inside the tree, or its package, of one that a person sees."""
        for label in (self.label, self.home_label):
            shown = shown.removeprefix(f"{label.rstrip('/')}/")
        return shown

    def span(self, relpath: str, line: int = 1, column: int = 1, width: int = 1) -> Span:
        """A span on one line of a file of the tree."""
        return Span(self.display(relpath), line, column, line, column + width)

    def path(self, relpath: str) -> Path:
        """The file on disk. `relpath` is relative to the root, with forward slashes, and stays inside it."""
        pure = PurePosixPath(relpath)
        assert relpath, "no path given"
        assert not pure.is_absolute() and ".." not in pure.parts, relpath  # noqa: PT018
        return (self.beside(relpath) or self).root.joinpath(*pure.parts)

    def exists(self, relpath: str) -> bool:
        """Whether the tree has a regular file at `relpath`."""
        return ("bytes", relpath) in self._cache or self.path(relpath).is_file()

    def read_bytes(self, relpath: str) -> bytes:
        """The file as it is. Raises VCG410 when it is missing or cannot be read."""
        key = ("bytes", relpath)
        if key not in self._cache:
            try:
                self._cache[key] = read_regular(self.path(relpath))
            except OSError as error:
                raise DiagnosticError.of(
                    "VCG410",
                    f"cannot read `{relpath}`: {error.strerror or error}",
                    span=self.span(relpath),
                    help="check that the tree is a complete vLLM checkout, sdist or installation",
                ) from error
        data: bytes = self._cache[key]
        return data

    def read(self, relpath: str) -> str:
        """The file as text: UTF-8, newlines kept as they are. Raises VCG410, or VCG411 when it is not UTF-8."""
        key = ("text", relpath)
        if key not in self._cache:
            data = self.read_bytes(relpath)
            try:
                self._cache[key] = data.decode("utf-8")
            except UnicodeDecodeError as error:
                before = data[: error.start].decode("utf-8")
                raise DiagnosticError.of(
                    "VCG411",
                    f"`{relpath}` is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
                    span=Span.at(self.display(relpath), before, len(before)),
                    help="save the file as UTF-8; vLLM's own files all are",
                ) from error
        text: str = self._cache[key]
        return text

    def parse(self, relpath: str) -> ast.Module:
        """The file's syntax tree; callers must not change it. Raises VCG410, VCG411, or VCG412 (not valid Python)."""
        key = ("ast", relpath)
        if key not in self._cache:
            try:
                self._cache[key] = parse(self.read(relpath).removeprefix(_BOM))
            except SyntaxError as error:
                version = ".".join(map(str, sys.version_info[:2]))
                raise DiagnosticError.of(
                    "VCG412",
                    f"`{relpath}` is not valid Python: {error.msg}",
                    span=self.span(relpath, max(error.lineno or 1, 1), max(error.offset or 1, 1)),
                    help="repair the file (a merge conflict left in it?) and run again; "
                    f"this is Python {version}, so for newer syntax run the tool with a newer Python",
                ) from error
        module: ast.Module = self._cache[key]
        return module

    def modules_with(self, name: str) -> tuple[str, ...]:
        """The modules of all packages that contain a name, for a caller that asks for one name after the other."""
        return tuple(relpath for package in self.packages for relpath in self.naming(package, ".py", name))

    def naming(self, folder: str, suffix: str, name: str) -> tuple[str, ...]:
        """The files under `folder` that contain a name, for a caller that asks for one name after the other.

        After a few searches an index answers, which takes as long as fifty of them.
        """
        asked: dict[str, tuple[str, ...]] = self.cached(("searched", f"{folder}/**{suffix}"), dict)
        if name not in asked:
            if len(asked) < _SEARCHES:
                asked[name] = tuple(self.containing(folder, suffix, [name]))
            else:
                words = self.cached(("words", f"{folder}/**{suffix}"), lambda: _words(self._files(folder, suffix)))
                asked[name] = tuple(words.get(name.encode(), ()))
        return asked[name]

    def _files(self, folder: str, suffix: str) -> list[tuple[str, bytes]]:
        return self.cached(("folder", f"{folder}/**{suffix}"), lambda: _read_all(self, folder, suffix))

    def containing(self, folder: str, suffix: str, needles: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The files under `folder` that contain any of `needles` as plain text, with the needles that each contains.

        This filters files for a parser. It reads every file (44 MB for vLLM 0.33) and keeps them all, with what it
        found: a run searches the package two to four times, reading takes three times as long as searching, and a plan
        that is watched asks the same again. It skips unreadable files.
        Raises VCG410 for more than a GB.
        """
        wanted = list(needles)
        files = self._files(folder, suffix)
        known: dict[str, set[str]] = self.cached(("containing", f"{folder}/**{suffix}"), dict)
        encoded = [(needle, needle.encode()) for needle in wanted if needle not in known]
        known.update((needle, {relpath for relpath, data in files if raw in data}) for needle, raw in encoded)
        found = {relpath: tuple(needle for needle in wanted if relpath in known[needle]) for relpath, _ in files}
        return {relpath: hits for relpath, hits in found.items() if hits}


def _words(files: list[tuple[str, bytes]]) -> dict[bytes, list[str]]:
    """The files that have each word."""
    found: defaultdict[bytes, list[str]] = defaultdict(list)
    for relpath, data in files:
        for word in set(data.translate(_WORD_BYTES).split()):
            found[word].append(relpath)
    return found


def _read_all(tree: SourceTree, folder: str, suffix: str) -> list[tuple[str, bytes]]:
    """The readable files under `folder` whose names end with `suffix`, by path relative to the root."""
    # Files that the tree is to have (`with_files`) were never read from the disk, and may not be on it.
    found = {
        what: data for (kind, what), data in tree._cache.items() if kind == "bytes" and _is_in(what, folder, suffix)
    }
    room = _MAX_FOLDER
    for relpath, full in _walk((tree.beside(folder) or tree).root, folder, suffix):
        if relpath not in found:
            try:
                found[relpath] = read_regular(full)
            except OSError:
                continue
        room -= len(found[relpath])
        if room < 0:
            message = f"`{folder}` has more than {_MAX_FOLDER // 10**6} MB of `*{suffix}` files"
            raise DiagnosticError.of("VCG410", message, tree.span(folder), "give the folder of a vLLM tree")
    return sorted(found.items())


def _is_in(relpath: str, folder: str, suffix: str) -> bool:
    return relpath.startswith(f"{folder}/") and relpath.endswith(suffix)


def _walk(root: Path, folder: str, suffix: str) -> Iterator[tuple[str, str]]:
    """Files under `root/folder` whose names end with `suffix`: (path relative to the root, full path)."""
    stack = [(folder, os.path.join(root, *folder.split("/")))]  # noqa: PTH118 - see `containing`
    while stack:
        relative, full = stack.pop()
        try:
            with os.scandir(full) as entries:
                for entry in entries:
                    if entry.name.endswith(suffix) and entry.is_file():
                        yield f"{relative}/{entry.name}", entry.path
                    elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                        stack.append((f"{relative}/{entry.name}", entry.path))
        except OSError:
            continue


def holds_models(relpath: str) -> bool:
    """Whether a file may hold code of a model: one of vLLM's folder of models, or of another package."""
    return relpath.startswith(f"{LANDMARKS[1][0]}/") or not relpath.startswith("vllm/")


def module_file(tree: SourceTree, module: str) -> str | None:
    """The file of a dotted module name, None when the tree has none."""
    base = module.replace(".", "/")
    return next((path for path in (f"{base}.py", f"{base}/__init__.py") if tree.exists(path)), None)


def source_lines(tree: SourceTree, relpath: str) -> SourceLines:
    """The lines of a file, for reading the source of its nodes."""
    return tree.cached(("lines", relpath), lambda: SourceLines(tree.read(relpath)))
