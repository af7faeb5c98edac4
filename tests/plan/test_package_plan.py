"""A port of a model of another package: its files alone change, and vLLM's never."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from changed_ports import port_of

from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.protocol import SourceTree
from scaffold.protocol.target import resolve_package
from scaffold.workflow import PreparedPort, load_port, prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"


def package_of(tree: SourceTree, home: Path, module: str) -> SourceTree:
    """The tree with a package beside it that has vLLM's model of this name as its own file."""
    folder = home / "acme/models"
    folder.mkdir(parents=True)
    source = tree.read(f"vllm/model_executor/models/{module}.py")
    text = re.sub(r"^(\s*)from \.(\w+) import", r"\1from vllm.model_executor.models.\2 import", source, flags=re.M)
    (folder / f"{module}.py").write_text(text)
    for name in ("acme", "acme/models"):
        (home / name / "__init__.py").write_text("")
    return resolve_package(tree, str(home))


@pytest.mark.parametrize("name", ["phi3v", "molmo2", "llava"])
def test_all_is_in_the_package_s_folder(name: str, release_tree, tmp_path: Path) -> None:
    port = load_port(name)
    stem = port.module.rpartition(".")[2]
    tree = package_of(release_tree(RELEASE), tmp_path, stem)

    found: PreparedPort = prepare_port(port_of(name, {"model.module": f"acme.models.{stem}"}), tree, replace=True)

    paths = [change.path for change in found.changed]
    mixin = found.plan.methods.mixin
    beside = [f"acme/models/{mixin.module}.py"] if mixin is not None else []
    assert sorted(paths) == sorted([f"acme/models/{stem}.py", *beside])
    text = next(change.after for change in found.changed if change.path.endswith(f"/{stem}.py")).decode()
    assert "from vllm.model_executor.models.interfaces import" in text
    assert mixin is None or f"from .{mixin.module} import {mixin.class_name}" in text
    assert not {"VCG426", "VCG524"} & {note.code for note in found.notes}
    asks = [note.message for note in found.notes if "supports_encoder_cudagraph" in note.message]
    assert bool(asks) is (name == "llava")  # which is for one of its towers: vLLM would have to ask the model
    assert all("does not ask a model here" in message for message in asks)
    for change in found.changed:
        (tmp_path / change.path).write_bytes(change.after)
    again = port_of(name, {"model.module": f"acme.models.{stem}"})
    assert not prepare_port(again, tree.reread()).changed  # in the package's order of imports, too


@pytest.mark.parametrize(("name", "reenters"), [("llava", True), ("qwen2_vl", False)])
def test_a_change_of_vllm_is_refused(name: str, reenters: bool, release_tree, tmp_path: Path) -> None:
    """The package's class is vLLM's under another name: what the port changes is in vLLM's file."""
    port, home = load_port(name), tmp_path / "acme"
    home.mkdir()
    (home / "__init__.py").write_text("")
    (home / "model.py").write_text(
        f"from {port.module} import {port.class_name} as Base\n\n\nclass {port.class_name}(Base):\n    pass\n"
    )
    tree = resolve_package(release_tree("0.29.0" if reenters else "0.20.0"), str(home))

    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of(name, {"model.module": "acme.model"}), tree)

    codes = {problem.code for problem in caught.value.diagnostics}
    assert codes == {"VCG499"}
    assert caught.value.exit is Exit.TARGET
    assert all(problem.span.file.startswith(tree.label) for problem in caught.value.diagnostics)
    assert all(("--into FOLDER" in problem.help) is reenters for problem in caught.value.diagnostics)
