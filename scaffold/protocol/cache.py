"""The cache of release trees: its place, its contents, and whom it is trusted to. Only `releases` fetches into it."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
from pathlib import Path

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.seal import check_tree
from scaffold.protocol.tree import is_tree

#: The distribution whose releases we fetch.
PROJECT = "vllm"
#: The digests of the trees of all known releases (`python -m scaffold.protocol.known_trees` writes them).
KNOWN_TREES = Path(__file__).with_name("known_trees.json")


def cache_root() -> Path:
    """`VITCG_CACHE_DIR`, else the user's cache folder of this tool."""
    override = os.environ.get("VITCG_CACHE_DIR")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("vitcg-scaffold", appauthor=False))


def cache_folder(*parts: str) -> Path:
    """A folder of the cache that nobody but the user and root can have put anything into. It need not be there.

    We run what lies in the cache: release trees and their bytecode. Raises VCG712.
    """
    root = cache_root()
    inside = [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    above = {*root.absolute().parents, *root.resolve().parents}
    for folder, why in [
        *((f, _who_else_writes(f)) for f in inside),
        *((f, _who_replaces_in(f)) for f in sorted(above)),
    ]:
        if why:
            raise DiagnosticError.of(
                "VCG712",
                f"the cache folder `{folder}` {why}, and what lies in the cache is run",
                help="if you trust what is in it: `chown -R $(id -u)` and `chmod -R go-w` it; else set "
                "`VITCG_CACHE_DIR` to a folder of your own",
            )
    return inside[-1]


def made_folder(*parts: str) -> Path:
    """`cache_folder`, made where it is missing. Raises VCG712, OSError."""
    folder = cache_folder(*parts)
    cache_root().parent.mkdir(parents=True, exist_ok=True)
    for depth in range(len(parts) + 1):
        cache_root().joinpath(*parts[:depth]).mkdir(mode=0o755, exist_ok=True)
    return folder


def _who_else_writes(folder: Path) -> str:
    """The others, beside the user and root, that can put files there, in words; empty for nobody."""
    try:
        status = folder.stat()
    except OSError:  # it is not there, or no use to anybody
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to {_user(status.st_uid)}"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid, status.st_uid):
        return f"can be written by the group {_group(status.st_gid)}"
    return ""


def _who_replaces_in(folder: Path) -> str:
    """The others that can replace a folder of ours below it, in words: the sticky bit of /tmp forbids that."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return ""
    return "can be written by everybody" if mode & stat.S_IWOTH and not mode & stat.S_ISVTX else ""


def _is_private(group: int, user: int) -> bool:
    """Whether a group is that of one user alone, as many systems make one for each user."""
    try:
        entry, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:  # a container without names
        return group == user
    alone = set(entry.gr_mem) <= {owner.pw_name}
    return alone and owner.pw_gid == group and (entry.gr_name == owner.pw_name or group == user)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def seal_file(version: str) -> Path:
    """The record of the contents of a release's tree after unpacking."""
    return cache_root() / "seals" / f"{PROJECT}-{version}.json"


def known_digest(version: str) -> str | None:
    """The digest of the contents of a release's tree (`seal.digest_of`), None for one that the tool does not know."""
    known: dict[str, str] = json.loads(KNOWN_TREES.read_text())
    return known.get(version)


def cached_tree(version: str) -> Path | None:
    """The complete tree of a release in the cache, whatever is in it; None before its first fetch."""
    root = cache_root() / "trees" / f"{PROJECT}-{version}"
    return root if is_tree(root) else None


def checked_tree(version: str) -> Path | None:
    """The tree of a release in the cache; None where there is none, or nothing tells that it is the release.

    Raises VCG407 (it was changed) and VCG712 (others can write it).
    """
    cache_folder("seals")
    cache_folder("trees", f"{PROJECT}-{version}")
    found = cached_tree(version)
    return found if found is not None and check_tree(found, seal_file(version), known_digest(version)) else None
