"""Makes a vLLM tree with an invented next protocol out of a release's tree: `python invent.py RELEASE_TREE TARGET`.

Against release 0.33: the method `postprocess_encoder_output` is called `finish_encoder_output`, and
`encoder_cudagraph_forward` has a new required parameter, `step: int`. The protocol and the models of the tree are
changed in the same way, as a change of vLLM itself would.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

RELEASE = "0.34.0"
OLD_NAME, NEW_NAME = "postprocess_encoder_output", "finish_encoder_output"
CHANGED, PARAMETER, VALUE = "encoder_cudagraph_forward", "step: int", "0"
#: What the tool looks at besides the package: the places of a port, the version, the rules of style.
_KEPT = ("tests/models/multimodal/generation", "docs/design", "examples", "pyproject.toml", "PKG-INFO")


def invent_tree(release: Path, target: Path) -> dict[str, int]:
    """Copy and change; returns how often each of the changes was made."""
    for part in ("vllm", *_KEPT):
        source = release / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.json"))
        else:
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / part)
    done = {"renamed": 0, "declared": 0, "given": 0}
    for path in sorted((target / "vllm").rglob("*.py")):
        text = before = path.read_bytes()
        if OLD_NAME.encode() in text:
            text, count = re.subn(rb"\b%s\b" % OLD_NAME.encode(), NEW_NAME.encode(), text)
            done["renamed"] += count
        if CHANGED.encode() in text:
            text, count = _insert(text, f", {PARAMETER}", _declaration)
            done["declared"] += count
            text, count = _insert(text, f", {VALUE}", _call)
            done["given"] += count
        if text != before:
            path.write_bytes(text)
    facts = (target / "PKG-INFO").read_text("utf-8")
    (target / "PKG-INFO").write_text(re.sub(r"(?m)^Version: .*$", f"Version: {RELEASE}", facts, count=1), "utf-8")
    return done


def _declaration(node: ast.AST) -> ast.AST | None:
    """The parameter after which the new one goes: the first behind `self`."""
    return node.args.args[1] if isinstance(node, ast.FunctionDef) and node.name == CHANGED else None


def _call(node: ast.AST) -> ast.AST | None:
    """The first argument of a call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == CHANGED:
        return node.args[0]
    return None


def _insert(text: bytes, new: str, find: Callable[[ast.AST], ast.AST | None]) -> tuple[bytes, int]:
    """`text` with `new` behind every node that `find` gives."""
    lines = text.split(b"\n")
    places = [place for node in ast.walk(ast.parse(text)) if (place := find(node)) is not None]
    for place in sorted(places, key=lambda node: (node.end_lineno, node.end_col_offset), reverse=True):  # type: ignore[attr-defined]
        row, column = place.end_lineno - 1, place.end_col_offset  # type: ignore[attr-defined]
        lines[row] = lines[row][:column] + new.encode() + lines[row][column:]
    return b"\n".join(lines), len(places)


if __name__ == "__main__":
    print(invent_tree(Path(sys.argv[1]), Path(sys.argv[2])))
