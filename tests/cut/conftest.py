"""A ported release."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from scaffold.descriptor import CutPort, RowsPort
from scaffold.protocol import SourceTree, open_tree


@pytest.fixture
def ported(release_tree: Any, tmp_path: Path) -> Any:
    """`ported(port, prepared)`: the release with what was prepared, 0.33.0 unless another one is given."""

    def write(port: CutPort | RowsPort, prepared: Any, release: str = "0.33.0") -> SourceTree:
        source, root = release_tree(release).root, tmp_path / "tree"
        for folder in ("vllm", "tests/models", "docs", "examples", "tools/pre_commit"):
            shutil.copytree(source / folder, root / folder, copy_function=link)
        shutil.copy(source / "PKG-INFO", root)
        for change in prepared.changed:
            (root / change.path).unlink(missing_ok=True)
            (root / change.path).write_bytes(change.after)
        return open_tree(root, label="tree")

    return write


def link(source: str, target: str) -> None:
    """A hard link, which takes no time; a copy where the folders are on different disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)
