"""A ported release, and the plan of a shipped descriptor, which is made once."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from scaffold.descriptor import CutPort, RowsPort
from scaffold.protocol import SourceTree
from scaffold.workflow import load_port, prepare_port


@pytest.fixture
def ported(release_tree: Any) -> Any:
    """`ported(port, prepared)`: the release with what was prepared, 0.33.0 unless another one is given."""

    def write(port: CutPort | RowsPort, prepared: Any, release: str = "0.33.0") -> SourceTree:
        return release_tree(release).with_files({change.path: change.after for change in prepared.changed})

    return write


@pytest.fixture(scope="session")
def planned(release_tree: Any) -> Any:
    """`planned(name)`: the port of a shipped descriptor into 0.33.0, unless another release is given."""

    @functools.cache
    def plan(name: str, release: str = "0.33.0") -> Any:
        return prepare_port(load_port(name), release_tree(release), replace=True)

    return plan
