"""The scene of each test: freshly generated, unedited."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from regen_scene import Scene


@pytest.fixture
def scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Scene:
    made = Scene(tmp_path, capsys)
    assert made.regen(str(made.descriptor)).exit == 0
    return made
