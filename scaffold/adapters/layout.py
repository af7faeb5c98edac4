"""One run of ruff over all files: imports sorted, lines of 88 columns, which is vLLM's own style."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from scaffold.verify.style import call_ruff, unavailable

#: `--isolated`: the settings of the machine and of folders above must not change a byte.
_STYLE = ("--isolated", "--config", "line-length=88", "--target-version", "py310")
_OURS = 'lint.isort.known-first-party=["scaffold", "vitcg_adapters"]'


def format_sources(sources: Mapping[str, str]) -> dict[str, str]:
    """The Python files of `sources` (relative path to text) formatted, the others as they are. Errors: VCG623."""
    formatted = dict(sources)
    names = [path for path in sorted(sources) if path.endswith(".py")]
    if not names:
        return formatted
    with tempfile.TemporaryDirectory(prefix="vitcg-format-") as scratch:
        root = Path(scratch)
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sources[name].encode())
        _ruff(root, "check", "--select", "I", "--fix", *_STYLE, "--config", _OURS, ".")
        _ruff(root, "format", *_STYLE, ".")
        for name in names:
            formatted[name] = (root / name).read_bytes().decode()
    return formatted


def _ruff(root: Path, *arguments: str) -> None:
    done = call_ruff(arguments, root, "the generated files")
    if done.returncode:
        raise unavailable((done.stderr or done.stdout).strip()[-2000:])
