"""A model of another package (`--package`): drafted, ported in its own file, undone; vLLM's tree is only read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from changed_ports import DRAFTED
from cli_scene import contents

from scaffold.protocol import resolve_target, with_package
from scaffold.protocol.target import resolve_package

pytestmark = pytest.mark.trees

RELEASE = "0.21.0"
MODEL = "acme_models/qwen.py"
#: Two more models, of vLLM's classes: one with a port, one whose encoding is code of vLLM.
FURTHER = """
from vllm.model_executor.models import qwen2_5_vl, llava


class Inherits(qwen2_5_vl.Qwen2_5_VLForConditionalGeneration):
    pass


class Foreign(llava.LlavaForConditionalGeneration):
    pass
"""


@pytest.fixture
def package(tmp_path, release_tree) -> Path:
    """A folder with a package that has vLLM's Qwen2-VL as its own model, tower included, as plugins do it."""
    home = tmp_path / "acme"
    (home / "acme_models").mkdir(parents=True)
    source = release_tree(RELEASE).read("vllm/model_executor/models/qwen2_vl.py")
    source = re.sub(r"^from \.(\w+) import", r"from vllm.model_executor.models.\1 import", source, flags=re.MULTILINE)
    (home / MODEL).write_text(source.replace("Qwen2VLForConditionalGeneration", "AcmeForVision"))
    (home / "acme_models/__init__.py").write_text("")
    (home / "acme_models/further.py").write_text(FURTHER)
    (home / "tests").mkdir()
    (home / "pyproject.toml").write_text("[tool.ruff.lint]\nselect = ['E4', 'E9', 'F', 'I']\n")
    return home


@pytest.fixture
def drafted(run) -> Path:
    """The stored draft of its model, in the current folder."""
    return Path(shutil.copy(DRAFTED["acme"], "acme.yaml"))


@pytest.mark.parametrize(
    ("model", "release", "module"),
    [("AcmeForVision", RELEASE, "qwen"), ("acme_models/further.py:Foreign", "0.29.0", "further")],
)
def test_a_model_is_found_by_its_name_and_by_its_file(run, package, model, release, module):
    """The file that is left where nothing runs has its class and its place."""
    reference = package / model if "/" in model else model

    done = run("init", reference, "--vllm", release, "--package", package, "--no-run", "-o", "acme.yaml")

    assert (done.code, "VCG489" in done.err) == (4, True), done.err
    text = Path("acme.yaml").read_text()
    assert f"module: acme_models.{module}" in text
    assert "integration:" not in text  # vLLM's tests, docs and examples list no model of another package
    assert f"    # acme_models/{module}.py:" in text
    assert str(package) not in text  # a draft goes to others


@pytest.mark.lab
def test_a_model_is_drafted_from_its_run(run, package):
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    target = ("--vllm", RELEASE, "--package", package)

    done = run("init", "AcmeForVision", *target, "--yes", "-o", "acme.yaml")

    assert done.code == 0, done.err
    assert f"plan acme.yaml --vllm {RELEASE} --package {package}" in done.err
    drafted, stored = (yaml.safe_load(Path(one).read_text()) for one in ("acme.yaml", DRAFTED["acme"]))
    assert {key: drafted[key] for key in ("model", "layout", "modalities", "item", "tower", "attention")} == {
        key: stored[key] for key in ("model", "layout", "modalities", "item", "tower", "attention")
    }


def test_the_port_is_in_the_package_s_file_alone_and_goes_again(run, package, drafted, release_tree):
    target = ("--vllm", RELEASE, "--package", package)
    before = contents(package)

    planned = run("plan", drafted, *target)
    written = run("new", drafted, *target)

    assert (planned.code, written.code) == (0, 0), written.err
    after = contents(package)
    assert [path for path in after if after[path] != before.get(path)] == [MODEL]
    port = after[MODEL].decode()
    assert "class AcmeForVision(" in port
    assert "    SupportsEncoderCudaGraph," in port
    assert "def prepare_encoder_metadata(" in port  # the tower is the package's own, so it is split there
    assert "from vllm.model_executor.models.interfaces import" in port
    assert "runs the code of a folder only with --verify" in written.err
    assert f"verify acme.yaml --vllm {RELEASE} --package {package}" in written.err
    assert "VCG524" not in written.err
    assert "VCG426" not in written.err
    assert not (release_tree(RELEASE).root / ".vitcg-scaffold").exists()
    assert run("new", drafted, *target, "--check").code == 0
    # Drift, and the way back.
    (package / MODEL).write_text(port.replace("buffer_keys=[", "buffer_keys=[*(),", 1))
    drift = run("new", drafted, *target, "--replace", "--check")
    assert drift.code == 1
    assert f"new acme.yaml --vllm {RELEASE} --package {package} --replace" in drift.err
    (package / MODEL).write_text(port)
    assert run("revert", package).code == 0
    assert contents(package) == before


def test_a_folder_a_package_and_what_holds_packages_are_the_same(package, release_tree, monkeypatch):
    tree = release_tree(RELEASE)
    moved = package.parent / "src_layout"
    (moved / "src").mkdir(parents=True)
    (package / "acme_models").rename(moved / "src/acme_models")

    found = [resolve_package(tree, str(moved / inside)).package for inside in ("", "src", "src/acme_models")]

    assert {(one.root, one.names) for one in found} == {(moved / "src", frozenset({"acme_models"}))}
    assert resolve_package(tree, str(moved)).display(MODEL) == f"{moved}/src/{MODEL}"
    monkeypatch.chdir(moved / "src/acme_models")
    assert resolve_package(tree, ".").package.root == moved / "src"


def test_an_installed_package_goes_by_its_name(package, monkeypatch):
    monkeypatch.syspath_prepend(str(package))

    target = with_package(resolve_target(RELEASE), "acme-models")

    assert target.kind.value == "installed"
    assert target.tree.home == package
    assert target.tree.read(MODEL)
    assert "acme_models" not in sys.modules


@pytest.mark.parametrize("name", ["nowhere", "vllm", "./empty"])
def test_what_is_no_package_is_named(name, run):
    Path("empty").mkdir()
    done = run("init", "AcmeForVision", "--vllm", RELEASE, "--package", name)
    assert done.code == 4
    assert "VCG498" in done.err
    assert f"`{name}`" in done.err


def test_a_class_with_a_port_needs_nothing(run, package):
    done = run("init", "Inherits", "--vllm", "0.33.0", "--package", package)
    assert (done.code, done.out) == (0, "")
    assert "Inherits inherits the port of Qwen2_5_VLForConditionalGeneration: nothing is to be done" in done.err


def test_a_port_that_would_change_vllm_is_refused(run, package):
    target = ("--vllm", "0.29.0", "--package", package)
    assert run("init", "further.py:Foreign", *target).code == 4  # no such file
    shutil.copy(DRAFTED["acme_foreign"], "foreign.yaml")
    before = contents(package)

    done = run("new", "foreign.yaml", *target)

    assert done.code == 4
    assert "VCG499" in done.err
    assert "vllm-0.29.0/vllm/model_executor/models/llava.py" in done.err
    assert "--into FOLDER" in done.err
    assert contents(package) == before
    adapters = run("new", "foreign.yaml", "--into", "adapters")  # which change nothing of vLLM
    assert adapters.code == 0, adapters.err
    assert ", further.Foreign, " in Path("adapters/vitcg_adapters/v0_30/foreign.py").read_text()


def test_a_split_tower_of_a_package_gets_adapters(run, drafted):
    done = run("new", drafted, "--into", "adapters")
    assert done.code == 0, done.err
    assert "prepare_encoder_metadata" in Path("adapters/vitcg_adapters/v0_30/acme.py").read_text()


def test_uncommitted_work_of_the_package_is_kept(run, package, drafted):
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=t", "-c", "user.email=t@e.org", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=package, check=True)
    (package / MODEL).write_text((package / MODEL).read_text() + "\n# mine\n")
    done = run("new", drafted, "--vllm", RELEASE, "--package", package)
    assert done.code == 5
    assert "VCG507" in done.err
