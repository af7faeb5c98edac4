"""The class that ports of one kind share: who brings it, who finds it, and what is refused."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from scaffold.diagnostics import DiagnosticError
from scaffold.edit import AddBase
from scaffold.protocol import SourceTree
from scaffold.workflow import load_port as load_shipped
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
FOLDER = "vllm/model_executor/models"
UNITS = f"{FOLDER}/encoder_cudagraph_units.py"
ROWS = f"{FOLDER}/encoder_cudagraph_rows.py"
#: Two models of each layout.
PAIRS = {UNITS: ("molmo2", "phi3v"), ROWS: ("mistral3", "pixtral")}


def load_port(name: str) -> Any:
    """A shipped port that runs the model's code again."""
    port = load_shipped(name)
    return port.replace(explicit=None) if port.layout == "rows" else port


@pytest.fixture
def with_file(release_tree: Any, tmp_path: Path) -> Any:
    """`with_file(path, content)`: the release with one file more, as links."""

    def add(path: str, content: bytes) -> SourceTree:
        from scaffold.protocol import open_tree
        from scaffold.verify.numeric.overlay import build_overlay

        build_overlay(release_tree(RELEASE).root, {path: content}, tmp_path / "tree")
        for name in ("tests", "docs", "examples", "pyproject.toml", "PKG-INFO"):
            (tmp_path / "tree" / name).symlink_to(release_tree(RELEASE).root / name)
        return open_tree(tmp_path / "tree", label="tree")

    return add


def brought(name: str, path: str, tree: SourceTree) -> bytes:
    """The file that the first port brings."""
    [change] = [change for change in prepare_port(load_port(name), tree).changed if change.path == path]
    assert change.before is None
    assert change.after is not None
    return change.after


@pytest.mark.parametrize("path", PAIRS)
def test_it_is_the_same_for_every_model(path: str, release_tree: Any) -> None:
    first, second = (brought(name, path, release_tree(RELEASE)) for name in PAIRS[path])
    assert first == second


@pytest.mark.parametrize("formatted", [False, True])
@pytest.mark.parametrize("path", PAIRS)
def test_the_second_port_finds_it(path: str, formatted: bool, release_tree: Any, with_file: Any) -> None:
    """Also where somebody formatted it: comments and lines are others, the meaning is the same."""
    first, second = PAIRS[path]
    text = brought(first, path, release_tree(RELEASE))
    tree = with_file(path, ast.unparse(ast.parse(text)).encode() if formatted else text)
    prepared = prepare_port(load_port(second), tree)
    assert path not in [change.path for change in prepared.changed]
    assert path in [file.path for file in prepared.plan.files]


@pytest.mark.parametrize("replace", [False, True])
def test_another_text_is_refused(replace: bool, release_tree: Any, with_file: Any) -> None:
    first, second = PAIRS[UNITS]
    text = brought(first, UNITS, release_tree(RELEASE))
    other = text.replace(b"return units\n", b"return [*units]\n")
    assert other != text
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(load_port(second), with_file(UNITS, other), replace=replace)
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG525"
    assert problem.span is not None
    assert problem.span.file == f"tree/{UNITS}"


def test_it_is_the_first_base(release_tree: Any) -> None:
    """Before the empty methods of the protocol, and before a base that has another port."""
    prepared = prepare_port(load_port("phi3v"), release_tree(RELEASE))
    edits = [edit for file in prepared.plan.files for edit in file.edits if isinstance(edit, AddBase)]
    assert [(edit.base, edit.first) for edit in edits] == [
        ("SupportsEncoderCudaGraph", False),
        ("EncoderUnitsMixin", True),
    ]


def test_a_method_of_the_model_that_has_the_name_of_a_helper_is_refused(release_tree: Any) -> None:
    """Also one of a base: the mixin's would take its place."""
    tree, path = release_tree(RELEASE), f"{FOLDER}/phi3v.py"
    line = "    def compute_logits("
    assert line in tree.read(path)
    more = f"    def _record_encoder_units(self):\n        return 1\n\n{line}"
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(load_port("phi3v"), tree.with_files({path: tree.read(path).replace(line, more).encode()}))
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG434"
    assert "Phi3VForCausalLM._record_encoder_units" in problem.message
