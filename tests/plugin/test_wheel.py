"""The wheel, installed into a new virtual environment, where only its dependencies are borrowed from this one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import vitcg_adapters
from captured import captured
from hatchling.builders.wheel import WheelBuilder

from scaffold.descriptor import shipped_names
from scaffold.protocol import GENERATIONS, SERVED
from scaffold.verify.numeric.runner import _bytecode_cache

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(iter(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel. What is installed editable here is not there."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    # A path file is read for the folders that a Python searches itself, not for those that another path file names.
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VITCG_", "COV_"))}
    return captured([str(part) for part in command], env=env, cwd=cwd)


def test_the_wheel_holds_what_runs_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/entry_points.txt"))
        entries = archive.read(metadata).decode()

    templates = [path.relative_to(ROOT / "templates") for path in (ROOT / "templates").rglob("*.jinja")]
    expected = {
        "scaffold/diagnostics/codes.md",
        "scaffold/plugin.py",
        "scaffold/runtime/vllm/served.py",
        "vitcg_adapters/__init__.py",
        *(f"scaffold/descriptor/shipped/{name}.yaml" for name in shipped_names()),
        *(f"scaffold/protocol/known/{generation.name}.json" for generation in GENERATIONS),
        *(f"scaffold/_templates/{path}" for path in templates),
        *(
            f"vitcg_adapters/{generation}/{module}.py"
            for generation, adapters in vitcg_adapters.ADAPTERS.items()
            for module in adapters.values()
        ),
    }
    assert expected <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"scaffold", "vitcg_adapters", "vitcg_scaffold"}
    assert "[vllm.general_plugins]\nvitcg = scaffold.plugin:register" in entries
    assert "vitcg-scaffold = scaffold.cli:main" in entries


def test_a_wheel_of_other_digests_is_not_built(tmp_path):
    """Nor one with an edited adapter, and a checkout without older generations has them afterwards."""
    for name in ("scaffold", "templates", "generated"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", ".vitcg-scaffold"))
    schema = "docs/reference/descriptor.schema.json"
    (tmp_path / schema).parent.mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", schema):
        shutil.copy(ROOT / name, tmp_path / name)
    folder = tmp_path / "generated"
    older, left = (folder / f"vitcg_adapters/v0_24/{name}.py" for name in ("internvl", "left_over"))
    expected = older.read_bytes()
    left.write_bytes(expected)
    shutil.rmtree(folder / "vitcg_adapters/v0_23")

    def build():
        return run(sys.executable, "-c", "import hatchling.build as b; b.build_wheel('dist')", cwd=tmp_path)

    older.write_bytes(expected + b"# mine\n")
    assert "v0_24/internvl.py was edited by hand" in build().stderr
    older.unlink()
    done = build()
    assert done.returncode == 0, done.stderr
    assert older.read_bytes() == expected
    assert (folder / "vitcg_adapters/v0_23/internvl.py").is_file()
    assert not left.exists()

    manifest = folder / "MANIFEST.json"
    digest = hashlib.sha256(expected).hexdigest()
    manifest.write_text(manifest.read_text("utf-8").replace(digest, digest[::-1]), "utf-8")
    assert "adapters of older generations have other digests" in build().stderr


def test_the_installed_wheel_imports_from_itself(installed, tmp_path):
    code = (
        "import scaffold, scaffold.plugin, vitcg_adapters\nprint(scaffold.__file__, vitcg_adapters.__file__, sep='\\n')"
    )
    done = run(installed / "python", "-c", code, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(installed.parent)) for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 2


GENERATING = """
import sys
from pathlib import Path
import scaffold, vitcg_adapters
from scaffold.adapters.regenerate import plan_regeneration
from scaffold.render import template_root
from scaffold.tower import split_at_load  # what adapters of 0.20 and 0.21 import
site = Path(scaffold.__file__).parents[1]
assert template_root().is_relative_to(site), template_root()
assert vitcg_adapters.adapter_path("v0_30", "InternVLChatModel")
plan = plan_regeneration(Path("out"), ["shipped"])
for change in plan.changes:
    if change.path.startswith("vitcg_adapters/"):
        assert change.after == (site / change.path).read_bytes(), change.path
print(len(plan.changes))
"""


def test_the_wheel_carries_what_it_generates(installed, tmp_path):
    done = run(installed / "python", "-c", GENERATING, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


LOADING = """
import sys
from pathlib import Path
from scaffold.verify.numeric.cpu_imports import prepare
prepare(Path(sys.argv[1]), Path(sys.argv[3]))
sys.modules["vllm.compilation.passes.fusion.allreduce_rms_fusion"] = None  # asks for compiled operators, is optional
import vitcg_adapters
for architecture in vitcg_adapters.ADAPTERS[sys.argv[2]]:
    adapter = vitcg_adapters.adapter_for(sys.argv[2], architecture)
    print(architecture, sys.modules[adapter.__module__].__file__)
"""


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("generation", SERVED, ids=lambda generation: generation.name)
def test_every_adapter_of_the_installed_wheel_loads(installed, tmp_path, generation, release_tree):
    """In the last release of its generation. The repository holds those of the newest alone."""
    tree = release_tree(generation.last).root
    done = run(installed / "python", "-c", LOADING, tree, generation.name, _bytecode_cache(), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    loaded = [line.split() for line in done.stdout.splitlines() if line.count(str(installed.parent)) == 1]
    assert [architecture for architecture, _ in loaded] == list(vitcg_adapters.ADAPTERS[generation.name])
    assert len(loaded) > 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--help"], "Usage: vitcg-scaffold"),
        (["validate", "--schema"], '"$schema"'),
        (["validate", "internvl"], "1 descriptor checked, no error found"),
        (["new", "internvl", "--into", "out"], "changed  out/vitcg_adapters/v0_30/internvl.py"),
    ],
)
def test_the_installed_command_runs(installed, tmp_path, arguments, said):
    done = run(installed / "vitcg-scaffold", *arguments, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr


def test_a_file_of_init_leads_editors_to_the_schema_in_the_wheel(installed, tmp_path, release_tree):
    """Its first line is the address of a file that the wheel has, and that is what the tool prints."""
    tree = release_tree("0.22.0").root
    done = run(
        installed / "vitcg-scaffold",
        "init",
        "InternVLChatModel",
        "--vllm",
        tree,
        "--no-run",
        "-o",
        "start.yaml",
        cwd=tmp_path,
    )
    assert done.returncode == 4, done.stderr
    first = (tmp_path / "start.yaml").read_text(encoding="utf-8").splitlines()[0]
    address = first.removeprefix("# yaml-language-server: $schema=file://")
    assert Path(address).is_relative_to(installed.parent.resolve())
    printed = run(installed / "vitcg-scaffold", "validate", "--schema", cwd=tmp_path).stdout
    assert Path(address).read_text(encoding="utf-8") == printed
