"""The commands of `docs/operators.md`, for whoever runs them: the tests on the CPU, and the script for the GPU."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"


def commands() -> list[str]:
    """Every line of every fenced shell block, in the order of the page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def serve_commands() -> list[str]:
    """Those that start a server of `$MODEL`. They need a GPU to capture anything."""
    return [line for line in commands() if "vllm serve " in line]
