"""A proof is of what ran: whatever changed since, by whatever way, `pr` says so, and the next run runs the change."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from captured import captured
from cli_scene import PLACES, child

from scaffold.protocol.cache import cache_root

MODELS = "vllm/model_executor/models"
RULE = "the numerical proof of these files passed"


def edit_in_place(file: Path, old: str, new: str) -> None:
    """Another content of the same size and time."""
    assert len(old) == len(new)
    status, text = file.stat(), file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.trees
@pytest.mark.lab
def test_a_proof_is_of_what_ran(release_tree, tmp_path):
    """The model's folder of layers lies outside of the tree, behind a link. Everything else is a release."""
    source, root, outside = release_tree("0.22.0").root, tmp_path / "tree", tmp_path / "outside"
    shutil.copytree(source / "vllm", root / "vllm")
    for path in ("pyproject.toml", *PLACES):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, root / path)
    (root / "vllm/model_executor/layers").rename(outside)
    (root / "vllm/model_executor/layers").symlink_to(outside)
    config = tmp_path / "recipe.py"
    shutil.copyfile(Path(__file__).parents[2] / "scaffold/verify/numeric/recipes/internvl.py", config)

    def call(*words: str | Path, **more: str) -> tuple[int, str]:
        done = child(*words, cwd=tmp_path, VITCG_CACHE_DIR=str(tmp_path / "cache"), **more)
        return done.returncode, done.stdout + done.stderr

    def proven(**more: str) -> str:
        """What `pr` says about the proof."""
        said = call("pr", "internvl", "--vllm", root, **more)[1]
        table = "| fa3 | image |" in said
        (line,) = [line for line in said.splitlines() if RULE in line]
        assert table == ("not run: fa2 image" in line), said
        return "proven" if table else line.partition(RULE)[2]

    assert call("new", "internvl", "--vllm", root, "--static")[0] == 0
    assert "none is on record" in proven()
    code, said = call("verify", "internvl", "--vllm", root, "--recipe", config)
    assert code == 0, said
    assert proven() == "proven"
    assert "none of" not in said

    # Another environment, recipe and tool.
    assert "PYTHONPATH was" in proven(PYTHONPATH=f"{Path(__file__).parents[2]}:/other")
    assert proven(VLLM_CPU_KVCACHE_SPACE="1") == "proven", "no such variable reaches the lab"
    edit_in_place(config, "import torch\n", "import torcx\n")
    assert "recipe was" in proven()
    edit_in_place(config, "import torcx\n", "import torch\n")
    assert proven() == "proven"

    # A file behind the link, and one with the size and the time that it had.
    activation = outside / "activation.py"
    before = activation.read_bytes()
    activation.write_bytes(before + b'raise RuntimeError("changed after the proof")\n')
    assert "none is on record" in proven()
    activation.write_bytes(before)
    assert proven() == "proven"
    edit_in_place(root / MODELS / "utils.py", "import torch\n", "import torcx\n")
    assert "none is on record" in proven()

    code, said = call("verify", "internvl", "--vllm", root)

    assert (code, "No module named 'torcx'" in said) == (4, True), said
    assert "PASS" not in said


#: Imports a package called `vllm` with the lab's bytecode, and prints what it holds.
IMPORT = """
import sys
from pathlib import Path
from scaffold.verify.numeric.cpu_imports import keep_bytecode
keep_bytecode(Path(sys.argv[2]) if sys.argv[2] else None)
sys.path.insert(0, sys.argv[1])
import vllm.module
print(vllm.module.VALUE, vllm.module.VALUE.__class__.__name__, vllm.module.f.__code__.co_filename)
"""


def import_module(root: Path, cache: Path | str) -> str:
    done = captured(
        [sys.executable, "-c", IMPORT, root, cache], timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


@pytest.fixture
def package(tmp_path) -> Path:
    (tmp_path / "tree/vllm").mkdir(parents=True)
    (tmp_path / "tree/vllm/__init__.py").write_text("")
    (tmp_path / "tree/vllm/module.py").write_text("VALUE = 1\ndef f(): ...\n")
    (tmp_path / "bytecode").mkdir()
    return tmp_path / "tree"


@pytest.mark.parametrize("cached", [True, False])
def test_bytecode_is_that_of_the_source(package, tmp_path, cached):
    module, cache = package / "vllm/module.py", tmp_path / "bytecode" if cached else ""
    assert import_module(package, cache) == f"1 int {module}"
    assert import_module(package, cache) == f"1 int {module}"
    edit_in_place(module, "VALUE = 1", "VALUE = 2")
    assert import_module(package, cache) == f"2 int {module}"
    assert not [*package.rglob("*.pyc")], "nothing is written into a tree"
    assert bool([*(tmp_path / "bytecode").iterdir()]) == cached


def test_bytecode_beside_the_source_is_not_run(package, tmp_path):
    """Python itself would: it has the time and the size of the source."""
    module = package / "vllm/module.py"
    edit_in_place(module, "VALUE = 1", "VALUE = 9")
    py_compile.compile(str(module))
    edit_in_place(module, "VALUE = 9", "VALUE = 1")
    script = "import vllm.module; print(vllm.module.VALUE)"
    stale = subprocess.run([sys.executable, "-c", script], cwd=package, capture_output=True, text=True, check=True)
    assert stale.stdout == "9\n", "or this test shows nothing"
    assert import_module(package, tmp_path / "bytecode").startswith("1 int")


def test_bytecode_without_a_source_is_refused(package, tmp_path):
    module = package / "vllm/module.py"
    py_compile.compile(str(module), cfile=str(module.with_suffix(".pyc")))
    module.unlink()
    script = "import vllm.module; print(vllm.module.VALUE)"
    alone = subprocess.run([sys.executable, "-c", script], cwd=package, capture_output=True, text=True, check=True)
    assert alone.stdout == "1\n", "or this test shows nothing"
    for cache in (tmp_path / "bytecode", ""):
        said = import_module(package, cache)
        assert said.splitlines()[-1] == f"ImportError: {module.with_suffix('.pyc')} is bytecode without a source"


def test_a_module_is_kept_once_for_all_trees(package, tmp_path):
    shutil.copytree(package, tmp_path / "second")
    (tmp_path / "third").symlink_to(package)
    for root in (package, tmp_path / "second", tmp_path / "third"):
        assert import_module(root, tmp_path / "bytecode") == f"1 int {root}/vllm/module.py"
    assert len([*(tmp_path / "bytecode").iterdir()]) == 2


@pytest.mark.parametrize("damage", [b"", b"x", b"\x00" * 100])
def test_damaged_bytecode_is_made_again(package, tmp_path, damage):
    import_module(package, tmp_path / "bytecode")
    for file in (tmp_path / "bytecode").iterdir():
        file.write_bytes(damage)
    assert import_module(package, tmp_path / "bytecode").startswith("1 int")


def test_a_cache_of_bytecode_that_others_can_write(small_tree, run, monkeypatch, tmp_path):
    cache = tmp_path / "open"
    (cache / "lab-bytecode").mkdir(parents=True)
    (cache / "lab-bytecode").chmod(0o777)
    assert cache_root().is_dir()
    monkeypatch.setenv("VITCG_CACHE_DIR", str(cache))

    done = run("verify", "internvl", "--vllm", small_tree, "--device", "cpu")

    assert (done.code, "error[VCG712]" in done.err) == (7, True), done.err
    assert "set `VITCG_CACHE_DIR` to a folder of your own" in done.err
