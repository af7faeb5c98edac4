"""What `verify` found last: kept, found again for the same files alone, and never an error when it is damaged."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from scaffold.descriptor.sections import Verify
from scaffold.diagnostics import DiagnosticError
from scaffold.verify import proofs
from scaffold.verify.numeric import Check, NumericReport
from scaffold.verify.numeric.reports import ObservedHazard
from scaffold.verify.proofs import Basis, KeptProof, find_other_changes, find_proof, identify_proof, keep_proof

MODEL = "vllm/model.py"
GOOD = Check("a: small", "image", True, 0.0, 2e-7, group="small")
REPORTS = (
    NumericReport("internvl", "0.22.0", "fa3", (GOOD,), hits=3, misses=1, sequences=5, guessed=("a",)),
    NumericReport("internvl", "0.22.0", "fa2", (GOOD,), (ObservedHazard("host sync", "item", "a.py:1", "run", 2),)),
    NumericReport("internvl", "0.22.0", "fa2", (GOOD,), hits=3, machine="a GPU"),
)


BASIS = Basis("internvl", "", False, {"depth": 1}, {"torch": "2.13.0"})
KEPT = KeptProof(BASIS, REPORTS)


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITCG_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "tree"
    for path in ("vllm/__init__.py", MODEL, "vllm/data.json", "vllm/layers/deep/a.py", "docs/a.md"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("old")
    return root


def test_the_last_result_is_found_again() -> None:
    first = KeptProof(BASIS, REPORTS[:1])
    keep_proof("one", first)
    keep_proof("two", KeptProof(BASIS, REPORTS[1:]))
    assert find_proof("one") == first
    keep_proof("one", KEPT)
    assert find_proof("one") == KEPT
    assert find_proof("three") is None


def test_a_failure_stays_one() -> None:
    wrong = Check("a: small", "image", False, math.nan, math.inf)
    reports = (NumericReport("m", "", "fa2", (wrong,)), NumericReport("m", "", "fa2"))
    keep_proof("one", KeptProof(BASIS, reports))
    found = find_proof("one")
    assert found is not None
    assert [report.passed for report in found.reports] == [False, False]


# -- the files that ran ------------------------------------------------------------------------------------------------


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def same_size_and_time(root: Path) -> None:
    file = root / "vllm/layers/deep/a.py"
    status = file.stat()
    file.write_text("new")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def through_a_second_name(root: Path) -> None:
    second = root.parent / "second.py"
    second.hardlink_to(root / "vllm/layers/deep/a.py")
    second.write_text("new")


#: What of a tree or a port is another proof.
CHANGES: dict[str, Mapping[str, object]] = {
    "the model": {"model": "step3_vl"},
    "a ported file": {"after": {MODEL: b"other"}},
    "a further ported file": {"after": {MODEL: b"new", "vllm/more.py": b""}},
    "what the ported file was": {"before": {MODEL: b"other"}},
}
EDITS: dict[str, Callable[[Path], object]] = {
    "another file": lambda root: write(root, "vllm/__init__.py", "other"),
    "a new file": lambda root: write(root, "vllm/further.py", ""),
    "a file without a package": lambda root: write(root, "vllm/no_init/further.py", ""),
    "data that code reads": lambda root: write(root, "vllm/data.json", "other"),
    "compiled code": lambda root: write(root, "vllm/_C.abi3.so", ""),
    "bytecode without a source": lambda root: write(root, "vllm/further.pyc", ""),
    "search paths": lambda root: write(root, "vllm/further.pth", ""),
    "another case": lambda root: (root / MODEL).rename(root / "vllm/MODEL.py"),
    "the same size and time": same_size_and_time,
    "a hard link": through_a_second_name,
    "a package in __pycache__": lambda root: write(root, "vllm/__pycache__/model.py", ""),
    "bytecode of a package in __pycache__": lambda root: write(root, "vllm/__pycache__/model.pyc", ""),
    "a file that is called like bytecode": lambda root: write(root, "vllm/__pycache__/w.cpython-3data.pyc", ""),
    "another one": lambda root: write(root, "vllm/__pycache__/w.cpython-311.data.pyc", ""),
    "a package below __pycache__": lambda root: write(root, "vllm/__pycache__/more/a.cpython-311.py", ""),
    "a package in a tool's folder": lambda root: write(root, "vllm/.mypy_cache/a.py", ""),
    "a missing file": lambda root: (root / "vllm/data.json").unlink(),
    "a missing folder": lambda root: shutil.rmtree(root / "vllm/layers"),
    "a pipe": lambda root: os.mkfifo(root / "vllm/pipe.py"),
    "a link to nowhere": lambda root: (root / "vllm/link.py").symlink_to("nowhere"),
    "a link to itself": lambda root: (root / "vllm/link").symlink_to("link"),
}


def name_of(tree: Path, **how: object) -> str:
    given: dict[str, object] = {"model": "internvl", "before": {}, "after": {MODEL: b"new"}}
    return identify_proof(root=tree, **given | how)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", CHANGES)
def test_another_port_has_another_name(change: str, tree: Path) -> None:
    assert name_of(tree) != name_of(tree, **CHANGES[change])


@pytest.mark.parametrize("edit", EDITS)
def test_another_tree_has_another_name(edit: str, tree: Path) -> None:
    first = name_of(tree)
    EDITS[edit](tree)
    assert name_of(tree) != first


LINKED = {
    "a file": "vllm/layers/deep/a.py",
    "a folder": "vllm/layers",
    "a folder in it": "vllm/layers/deep",
    "all": "vllm",
}


@pytest.mark.parametrize("what", LINKED)
@pytest.mark.parametrize("twice", [False, True])
def test_a_change_behind_a_link_is_another_tree(what: str, twice: bool, tree: Path) -> None:
    outside = tree.parent / "outside"
    (tree / LINKED[what]).rename(outside)
    if twice:
        (tree.parent / "between").symlink_to(outside)
    (tree / LINKED[what]).symlink_to(tree.parent / "between" if twice else outside)
    first = name_of(tree)
    (tree / "vllm/layers/deep/a.py").resolve().write_text("new")
    assert name_of(tree) != first
    (tree / "vllm/layers/deep/a.py").resolve().write_text("old")
    assert name_of(tree) == first


def test_links_in_a_circle_end(tree: Path) -> None:
    (tree / "vllm/layers/up").symlink_to("..")
    (tree / "vllm/again").symlink_to("layers")
    first = name_of(tree)
    (tree / "vllm/again").unlink()
    (tree / "vllm/again").symlink_to("layers/deep")
    assert name_of(tree) != first


def test_a_thousand_ways_to_one_folder_are_walked_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two links from each of 40 folders to the next make 2**40 paths."""
    for number in range(40):
        here = tree / f"vllm/chain/{number}"
        here.mkdir(parents=True)
        for name in ("left", "right"):
            (here / name).symlink_to(f"../{number + 1}")
    entered: list[object] = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (entered.append(path), scan(path))[1])
    name_of(tree)
    assert len(entered) < 60


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("path", ["vllm/data.json", "vllm/layers"])
def test_what_cannot_be_read_is_no_part_of_a_run(path: str, tree: Path) -> None:
    (tree / path).chmod(0)
    unreadable = name_of(tree)
    (tree / path).chmod(0o755)
    assert name_of(tree) != unreadable


def test_the_same_port_has_the_same_name(tree: Path) -> None:
    """Before it was written and after, with the bytecode that Python leaves, and without files outside the package."""
    first = name_of(tree)
    (tree / MODEL).write_text("new")
    write(tree, "docs/a.md", "other")
    for name in ("model.cpython-311.pyc", "model.cpython-310.opt-1.pyc", "test_a.cpython-312-pytest-8.3.pyc"):
        write(tree, f"vllm/__pycache__/{name}", "")
    assert first == name_of(
        tree, before={MODEL: b"old", "docs/a.md": b"old"}, after={"docs/a.md": b"new", MODEL: b"new"}
    )


def test_other_changes_are_what_differs_from_the_base_outside_the_port(tree: Path) -> None:
    base = tree.parent / "base"
    shutil.copytree(tree, base)
    (tree / MODEL).write_text("new")
    write(tree, "docs/a.md", "other")
    before = {MODEL: (base / MODEL).read_bytes(), "docs/a.md": b"old"}
    assert find_other_changes(tree, before, base) == []
    (tree / "vllm/data.json").write_text("other")
    write(tree, "vllm/further.py", "")
    assert find_other_changes(tree, before, base) == ["vllm/data.json", "vllm/further.py"]


def test_a_file_that_a_port_brings_was_not_there(tree: Path) -> None:
    """The same port has the same name, seen from the tree before it and from the tree that has it."""
    brought = "vllm/brought.py"
    first = identify_proof("internvl", tree, {}, {MODEL: b"new", brought: b"more"})
    (tree / brought).write_bytes(b"more")
    assert identify_proof("internvl", tree, {}, {MODEL: b"new", brought: b"more"}) != first
    assert identify_proof("internvl", tree, {brought: b""}, {MODEL: b"new", brought: b"more"}) == first


# -- what else a result depends on -------------------------------------------------------------------------------------


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A recipe, and the folder of a checkpoint."""
    for path in ("recipe.py", "checkpoint/config.json", "checkpoint/code/model.py", "checkpoint/model.safetensors"):
        write(tmp_path, path, "old")
    return tmp_path


def today(
    inputs: Path,
    *,
    trusted: bool = False,
    section: Verify | None = None,
    values: Mapping[str, object] | None = None,
    real: bool = False,
) -> Basis:
    recipe, config = str(inputs / "recipe.py"), str(inputs / "checkpoint")
    return Basis.today(recipe, config, trusted, section, values=values or {}, real=real)


FACTS = {
    "recipe": lambda at, patch: write(at, "recipe.py", "new"),
    "no recipe": lambda at, patch: (at / "recipe.py").unlink(),
    "configuration": lambda at, patch: write(at, "checkpoint/config.json", "new"),
    "nested configuration": lambda at, patch: write(at, "checkpoint/code/model.py", "new"),
    "no configuration": lambda at, patch: shutil.rmtree(at / "checkpoint"),
    "torch": lambda at, patch: patch.setattr(proofs.metadata, "version", lambda package: "9"),
    "no transformers": lambda at, patch: patch.setattr(proofs.metadata, "version", missing),
    "python": lambda at, patch: patch.setattr(proofs.platform, "python_version", lambda: "4.0.0"),
    "the tool": lambda at, patch: patch.setattr(proofs.scaffold, "__version__", "9"),
    "the tool's code": lambda at, patch: patch.setattr(proofs.scaffold, "__file__", str(at / "recipe.py")),
    "PYTHONPATH": lambda at, patch: patch.setenv("PYTHONPATH", "/other"),
    "a path file": lambda at, patch: patch.setattr(proofs.site, "getsitepackages", lambda: [packages(at, "a.pth")]),
    "the user's folder": lambda at, patch: own_packages(at, patch, "usercustomize.py"),
    "a package of the user": lambda at, patch: own_packages(at, patch, "torch/__init__.py"),
    "sitecustomize": lambda at, patch: patch.setattr(
        proofs, "find_spec", lambda name: ModuleSpec(name, None, origin=str(at / "recipe.py"))
    ),
    "LD_PRELOAD": lambda at, patch: patch.setenv("LD_PRELOAD", "/other.so"),
}


def packages(at: Path, path: str) -> str:
    write(at, f"packages/{path}", "new")
    return str(at / "packages")


def own_packages(at: Path, patch: pytest.MonkeyPatch, path: str) -> None:
    patch.setattr(proofs.site, "ENABLE_USER_SITE", True)
    patch.setattr(proofs.site, "getusersitepackages", lambda: packages(at, path))


def missing(package: str) -> str:
    raise proofs.metadata.PackageNotFoundError(package)


@pytest.mark.parametrize("fact", FACTS)
def test_what_a_result_depends_on(fact: str, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = today(inputs)
    assert then.differences(today(inputs)) == ()
    FACTS[fact](inputs, monkeypatch)
    assert then.differences(today(inputs)) != ()


def test_a_changed_folder_of_the_user_is_another_basis(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_packages(inputs, monkeypatch, "usercustomize.py")
    first = today(inputs)
    write(inputs, "packages/usercustomize.py", "other")
    monkeypatch.setattr(proofs.site, "getusersitepackages", lambda: str(inputs / "packages"))
    (line,) = first.differences(today(inputs))
    assert line.startswith("code that Python runs at its start was")


def test_the_descriptor_can_change_the_model_of_a_proof(inputs: Path) -> None:
    plain, small = today(inputs), today(inputs, section=Verify(set={"depth": 1}))
    assert plain.differences(small) == (
        'verify section was absent, now {"config": null, "images": [], "keep": [], "set": {"depth": 1}}',
    )
    assert small.differences(today(inputs, section=Verify(set={"depth": 2}))) != ()


def test_values_of_a_user_are_part_of_a_proof(inputs: Path) -> None:
    """And no text of theirs ends the code that `pr` quotes it in."""
    plain, small = today(inputs), today(inputs, values={"depth": {"a`b": 1}})
    assert plain.differences(small) == ('--set was absent, now {"depth": {"a\\u0060b": 1}}',)
    keep_proof("one", KeptProof(small, REPORTS))
    found = find_proof("one")
    assert found is not None
    assert found.basis.values == {"depth": {"a`b": 1}}


def test_weights_are_read_where_code_may_read_them(inputs: Path) -> None:
    plain, trusted = today(inputs), today(inputs, trusted=True)
    assert any(line.startswith("remote code was") for line in plain.differences(trusted))
    write(inputs, "checkpoint/model.safetensors", "new")
    assert plain.differences(today(inputs)) == ()
    assert trusted.differences(today(inputs, trusted=True)) != ()


def test_settings_of_kernels_count_where_they_reach_the_tree(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU lab gets none of them."""
    plain, real = today(inputs), today(inputs, real=True)
    monkeypatch.setenv("VLLM_FLASH_ATTN_VERSION", "3")
    assert plain.differences(today(inputs)) == ()
    assert [line.split()[0] for line in real.differences(today(inputs, real=True))] == ["VLLM_FLASH_ATTN_VERSION"]


def test_a_shipped_recipe_is_part_of_the_tool() -> None:
    facts = Basis.today("internvl", "", False, None, values={}, real=False).facts
    assert facts["recipe"] == "internvl"
    assert {"Python", "torch", "transformers", "vitcg-scaffold"} <= {*facts}
    assert "configuration" not in facts


# -- the records -------------------------------------------------------------------------------------------------------

NO_RECORDS = ["", "[", "{}", "[1]", '{"a": 1}', '[{"tail": ""}]', "[" * 100_000, '{"reports": [], "basis": {}}',
              '{"reports": [], "basis": {"recipe": "", "config": "", "remote_code": false, "values": {}, "facts": 1}}',
              '{"reports": [], "basis": {"recipe": "", "config": "", "remote_code": false, "values": 1, "facts": {}}}',
              '{"reports": [{"tail": "fa2"}], "basis": {}}']  # fmt: skip


@pytest.mark.parametrize("text", NO_RECORDS)
def test_a_damaged_result_is_none(text: str, tmp_path: Path) -> None:
    keep_proof("one", KEPT)
    (tmp_path / "cache/proofs/one.json").write_text(text)
    assert find_proof("one") is None


def test_a_pipe_for_a_result_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cache/proofs").mkdir(parents=True)
    os.mkfifo(tmp_path / "cache/proofs/one.json")
    assert find_proof("one") is None
    keep_proof("one", KEPT)
    assert find_proof("one") == KEPT


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(OSError, match="cache"):
        keep_proof("one", KEPT)


@pytest.mark.parametrize("use", [lambda: keep_proof("one", KEPT), lambda: find_proof("one")], ids=["keep", "find"])
def test_a_proof_that_others_could_write_is_none(use: Callable[[], object], tmp_path: Path) -> None:
    keep_proof("one", KEPT)
    (tmp_path / "cache/proofs").chmod(0o777)
    with pytest.raises(DiagnosticError) as caught:
        use()
    assert caught.value.diagnostics[0].code == "VCG712"
