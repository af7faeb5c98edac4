"""The cache of release trees: where it is, and what is in it. Only `releases` writes there."""

from __future__ import annotations

import os
from pathlib import Path

from scaffold.protocol.tree import is_tree

#: The distribution that releases are fetched of.
PROJECT = "vllm"


def cache_root() -> Path:
    """`VITCG_CACHE_DIR`, else the user's cache folder of this tool."""
    override = os.environ.get("VITCG_CACHE_DIR")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("vitcg-scaffold", appauthor=False))


def seal_file(version: str) -> Path:
    """The record of what a release's tree held when it was unpacked."""
    return cache_root() / "seals" / f"{PROJECT}-{version}.json"


def cached_tree(version: str) -> Path | None:
    """The complete tree of a release in the cache, None when it was not fetched yet."""
    root = cache_root() / "trees" / f"{PROJECT}-{version}"
    return root if is_tree(root) else None
