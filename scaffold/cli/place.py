"""Where a command writes: the tree that a user named, or the working copy of a release, which may have to be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import command_line
from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.changes import FileChange
    from scaffold.protocol import SourceTree, Target


@dataclass(frozen=True)
class Place:
    """The tree to plan on, and the folder of a working copy that is still to be made of it."""

    tree: SourceTree
    copy: Path | None = None


def find_place(target: Target, into: Path | None, *, writes: bool) -> Place:
    """Where a run looks and writes. A cached release is never written: a copy of it is, made after the proofs.

    A run that writes nothing looks at the release itself, unless `into` names a copy.
    """
    from scaffold.protocol import TargetKind, open_tree, tree_name

    if target.kind is not TargetKind.RELEASE:
        if into is not None:
            raise click.UsageError("--into names the working copy of a release; other trees are changed in place.")
        if writes:
            _refuse_cache(target.tree)
        return Place(target.tree)
    if not writes and (into is None or not into.exists()):
        return Place(target.tree)
    folder = into or Path(target.tree.label)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return Place(target.tree, folder)
    copy = open_tree(folder)
    if copy.release != target.tree.release:
        held = tree_name(copy) if copy.release else "vLLM of no known release"
        raise DiagnosticError.of(
            "VCG409",
            f"`{folder}` holds {held}, not {target.tree.release}",
            help="name another folder with --into, or give this one as --vllm",
        )
    return Place(copy)


def _refuse_cache(tree: SourceTree) -> None:
    """Releases in the cache stay pristine, also when the user names one by its path."""
    from scaffold.protocol.cache import cache_root

    if tree.home.resolve().is_relative_to((cache_root() / "trees").resolve()):
        raise DiagnosticError.of(
            "VCG701",
            f"`{tree.label}` is the pristine copy of a release in the cache, which is never written",
            help=f"name the release, `--vllm {tree.release}`: the change then goes into a working copy of it",
        )


def require_clean_place(console: Console, place: Place, files: Sequence[str]) -> None:
    """Raise VCG507 for files with uncommitted changes; a copy that is still to be made has none yet."""
    from scaffold.publish import require_clean

    if place.copy is None:
        console.report(require_clean(place.tree.home, files))


def publish_at(console: Console, place: Place, changes: Sequence[FileChange], *, label: str, allow_dirty: bool) -> str:
    """Write proven changes, into a new working copy where there is to be one. Gives the tree's name for people."""
    from scaffold.protocol import unpack_release
    from scaffold.publish import publish_changes, require_clean

    root, name = place.tree.home, place.tree.home_label
    if place.copy is not None and changes:
        console.note(f"Making a working copy of vLLM {place.tree.release} in {place.copy}")
        root, name = unpack_release(place.tree.release or "", place.copy), str(place.copy)
        if not allow_dirty:
            console.report(require_clean(root, [change.path for change in changes]))
    publish_changes(root, changes, label=label)
    return name


def name_undo(console: Console, tree: str) -> None:
    """The last line of a run that wrote."""
    console.note(f"Undo with: {command_line('revert', tree)}")
