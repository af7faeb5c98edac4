"""The cache of release trees: its place and its contents. Only `releases` writes there."""

from __future__ import annotations

import os
from pathlib import Path

from scaffold.protocol.tree import is_tree

#: The distribution whose releases we fetch.
PROJECT = "vllm"


def cache_root() -> Path:
    """`VITCG_CACHE_DIR`, else the user's cache folder of this tool."""
    override = os.environ.get("VITCG_CACHE_DIR")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("vitcg-scaffold", appauthor=False))


def seal_file(version: str) -> Path:
    """The record of the contents of a release's tree after unpacking."""
    return cache_root() / "seals" / f"{PROJECT}-{version}.json"


def cached_tree(version: str) -> Path | None:
    """The complete tree of a release in the cache; None before its first fetch."""
    root = cache_root() / "trees" / f"{PROJECT}-{version}"
    return root if is_tree(root) else None
