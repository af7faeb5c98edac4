"""The same bytes on every machine, and what is in the repository is what the descriptors say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from regen_scene import SHIPPED

import scaffold
from scaffold.adapters.header import MARKER
from scaffold.adapters.manifest import read_manifest
from scaffold.adapters.outputs import Source, render_outputs
from scaffold.adapters.regenerate import plan_regeneration
from scaffold.descriptor.load import shipped_names
from scaffold.workflow import load_port

REPOSITORY = Path(scaffold.__file__).parent.parent
GENERATED = REPOSITORY / "generated"

#: Environment, umask and folder that a run must not depend on. `C` is a locale without UTF-8.
SURROUNDINGS: dict[str, tuple[dict[str, str], int, bool]] = {
    "hash seed 1": ({"PYTHONHASHSEED": "1"}, 0o022, False),
    "hash seed 4242": ({"PYTHONHASHSEED": "4242"}, 0o022, False),
    "time zone": ({"TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "random"}, 0o022, False),
    "locale": ({"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, 0o022, False),
    "umask": ({}, 0o077, False),
    "working directory": ({}, 0o022, True),
}


def generate(folder: Path, extra: dict[str, str], umask: int, cwd: Path) -> dict[str, bytes]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **extra}
    subprocess.run(
        [sys.executable, "-m", "scaffold.cli", "-q", "new", "--into", os.path.relpath(folder, cwd), "internvl"],
        cwd=cwd,
        env=environment,
        umask=umask,
        check=True,
        capture_output=True,
    )
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".vitcg-scaffold" not in path.parts
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("reference")
    return generate(root / "out", {"PYTHONHASHSEED": "0"}, 0o022, root)


@pytest.mark.parametrize(("extra", "umask", "elsewhere"), SURROUNDINGS.values(), ids=SURROUNDINGS.keys())
def test_surroundings_change_no_byte(
    reference: dict[str, bytes], tmp_path: Path, extra: dict[str, str], umask: int, elsewhere: bool
) -> None:
    # Settings of a tool that lie around, and a file named like a shipped descriptor.
    (tmp_path / "ruff.toml").write_text("line-length = 40\n[format]\nquote-style = 'single'\n", "utf-8")
    (tmp_path / "internvl").write_text("not: a descriptor\n", "utf-8")
    cwd = tmp_path / "deep" / "down" if elsewhere else tmp_path / "here"
    cwd.mkdir(parents=True)

    # The scratch folder of the formatter lies below those settings.
    assert generate(tmp_path / "out", {"TMPDIR": str(tmp_path), **extra}, umask, cwd) == reference


@pytest.mark.skipif(not GENERATED.is_dir(), reason="not a checkout")
def test_every_shipped_model_is_the_same_in_odd_surroundings(tmp_path: Path) -> None:
    """All of `generated/`, with hash seed, time zone, locale, umask and folder changed at once."""
    (tmp_path / "ruff.toml").write_text("line-length = 40\n", "utf-8")
    extra = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "scaffold.cli",
            "new",
            "--all",
            "--check",
            "--into",
            os.path.relpath(GENERATED, tmp_path),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": "77", "TMPDIR": str(tmp_path), **extra},
        umask=0o077,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("checked ")


def test_outputs_hold_no_time_no_version_and_no_place(reference: dict[str, bytes]) -> None:
    text = b"\n".join(reference.values()).decode()

    for forbidden in (str(REPOSITORY), f"{Path.home()}/", "/tmp/", scaffold.__version__):
        assert forbidden not in text
    assert MARKER in text


def test_marker_is_not_in_our_own_sources() -> None:
    """Other tools skip files that carry it, which must not happen to the generator itself."""
    for folder in ("scaffold", "templates"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert MARKER.encode() not in path.read_bytes(), path


@pytest.mark.skipif(not GENERATED.is_dir(), reason="not a checkout")
def test_order_of_descriptors_changes_no_byte() -> None:
    """What the repository has comes of the names in order, which its manifest leaves to the shipped ones."""
    manifest = read_manifest(GENERATED)
    assert manifest is not None
    assert manifest.descriptors == ("shipped",)
    outputs = render_outputs([Source(name, load_port(name)) for name in reversed(shipped_names())])

    assert len(outputs.files) > 100
    for output in outputs.files:
        assert output.text.encode() == (GENERATED / output.path).read_bytes(), output.path


def test_comments_of_a_descriptor_are_not_in_the_hash(tmp_path: Path) -> None:
    text = (SHIPPED / "internvl.yaml").read_text("utf-8")
    hashes = set()
    for number, changed in enumerate((text, "# a comment\n\n" + text, text.replace("n * k", "n  *  k"))):
        path = tmp_path / str(number) / "internvl.yaml"
        path.parent.mkdir()
        path.write_text(changed, "utf-8")
        hashes.add(Source("internvl", load_port(str(path))).spec_hash)
    assert len(hashes) == 1

    (tmp_path / "0/internvl.yaml").write_text(text.replace("n * k", "n + k"), "utf-8")
    assert Source("internvl", load_port(str(tmp_path / "0/internvl.yaml"))).spec_hash not in hashes


@pytest.mark.skipif(not GENERATED.is_dir(), reason="not a checkout")
def test_check_notices_a_change_of_the_repository(tmp_path: Path) -> None:
    """Were the check blind, `make drift` and the check in odd surroundings would prove nothing."""
    import shutil

    copy = tmp_path / "generated"
    shutil.copytree(GENERATED, copy, ignore=shutil.ignore_patterns(".vitcg-scaffold", "__pycache__"))
    for path in sorted(copy.rglob("*")):
        if path.is_file() and path.name != "MANIFEST.json":
            before = path.read_bytes()
            path.write_bytes(before + b"\n")
            # One edit at a time would take long: what is seen of each is its own diagnostic.
    plan = plan_regeneration(copy)
    assert plan.summary == f"{len(plan.drift)} files from {len(shipped_names())} descriptors"
