"""Files that a command writes because it was told to (`-o`): whole, or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path

from scaffold.diagnostics import DiagnosticError


def write_output(output: Path, text: str) -> None:
    """Write beside the output first, then rename over it. Raises VCG709."""
    from scaffold.publish import disk

    beside = output.with_name(f".{output.name}.{secrets.token_hex(8)}")
    try:
        disk.write_file(beside, text.encode("utf-8"), like=output if output.exists() else None)
        disk.replace(beside, output)
        disk.sync_directory(output.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DiagnosticError.of(
            "VCG709",
            f"cannot write `{output}`: {error.strerror or error}",
            help="check that the folder exists and that you may write there",
        ) from error
