"""MiniCPM-V's port serves every version that inherits it; the support matrix runs 2.6, of which 4.0 has the tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from proven import assert_right

from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]


@pytest.mark.parametrize(
    ("version", "release"),
    [
        (2.5, "0.29.0"),
        (4.5, "0.33.0"),
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in ((2.5, "0.28.0"), (2.5, "0.33.0"), (4.0, "0.28.0"), (4.0, "0.33.0"), (4.5, "0.28.0"))
        ),
    ],
)
def test_every_version_gives_what_eager_gives(version: float, release: str, release_tree: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"from scaffold.verify.numeric.recipes import minicpmv\n\nRECIPE = type(minicpmv.RECIPE)({version})\n"
    )
    [report] = check_numerics_all(numeric_requests(load_port("minicpmv"), release_tree(release), recipe=str(recipe)))
    assert_right(report, 101)
