"""A child process whose outputs a test reads."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """What a command returned and wrote, whatever its exit code is."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
