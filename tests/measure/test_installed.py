"""The vLLM that `bench` and `profile` measure: the installed one, with a port only where it has none."""

import sys
from pathlib import Path

import pytest

from scaffold.diagnostics import DiagnosticError
from scaffold.measure.installed import installed_vllm, port_files
from scaffold.protocol import Target, TargetKind
from scaffold.workflow import load_port

pytestmark = pytest.mark.trees
MODEL = "vllm/model_executor/models/llava.py"
GEMMA = "vllm/model_executor/models/gemma3_mm.py"


def test_a_model_without_an_implementation_gets_the_port(release_tree):
    files = port_files(load_port("llava"), release_tree("0.33.0"), replace=False)

    assert b"SupportsEncoderCudaGraph" in files[MODEL]
    assert all(path.startswith("vllm/") for path in files), "tests and docs are not imported"


def test_an_implementation_is_measured_unless_the_port_replaces_it(release_tree):
    tree = release_tree("0.33.0")

    assert port_files(load_port("gemma3_mm"), tree, replace=False) == {}
    made = port_files(load_port("gemma3_mm"), tree, replace=True)
    assert GEMMA in made
    edited = tree.with_files({GEMMA: made[GEMMA].replace(b'modalities=["image"]', b"modalities=[]")})
    assert port_files(load_port("gemma3_mm"), edited, replace=False) == {}


@pytest.mark.parametrize(("name", "said"), [("llava", "the port of llava"), ("gemma3_mm", "the implementation")])
def test_the_port_is_imported_and_nothing_is_written(release_tree, monkeypatch, name, said):
    tree, notes, before = release_tree("0.33.0"), [], list(sys.path)
    monkeypatch.setattr(
        "scaffold.protocol.resolve_target",
        lambda text: Target(TargetKind.INSTALLED, tree) if text == "installed" else None,
    )
    kept = tree.read_bytes(MODEL)

    with installed_vllm(load_port(name), False, notes.append):
        added = [entry for entry in sys.path if entry not in before]
        assert len(added) == (name == "llava")
        assert all(b"SupportsEncoderCudaGraph" in Path(root, MODEL).read_bytes() for root in added)

    assert sys.path == before
    assert tree.read_bytes(MODEL) == kept
    assert said in notes[0]


def test_a_release_that_our_manager_does_not_serve_is_refused(release_tree, monkeypatch):
    tree = release_tree("0.22.0")
    monkeypatch.setattr("scaffold.protocol.resolve_target", lambda text: Target(TargetKind.INSTALLED, tree))

    with pytest.raises(DiagnosticError) as refused, installed_vllm(load_port("llava"), False, print):
        pass

    (diagnostic,) = refused.value.diagnostics
    assert (diagnostic.code, "0.22.0" in diagnostic.message) == ("VCG490", True)
