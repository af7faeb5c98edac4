"""A ported release."""

from __future__ import annotations

from typing import Any

import pytest

from scaffold.descriptor import CutPort, RowsPort
from scaffold.protocol import SourceTree


@pytest.fixture
def ported(release_tree: Any) -> Any:
    """`ported(port, prepared)`: the release with what was prepared, 0.33.0 unless another one is given."""

    def write(port: CutPort | RowsPort, prepared: Any, release: str = "0.33.0") -> SourceTree:
        return release_tree(release).with_files({change.path: change.after for change in prepared.changed})

    return write
