"""The examples of docs/ci.md and the project's own workflows, by the real tools where they are installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from captured import captured

from scaffold.descriptor.load import shipped_path

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
#: The file that each example of the page is, and its text.
EXAMPLES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one descriptor of its own, and nothing generated."""
    home = tmp_path / "repository"
    (home / "descriptors").mkdir(parents=True)
    (home / "descriptors/mymodel.yaml").write_bytes(shipped_path("internvl").read_bytes())
    git(home, "init", "-q")
    return home


def git(home: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", *identity, *words], cwd=home, check=True, capture_output=True, text=True).stdout


def program(folder: Path) -> dict[str, str]:
    """An environment in which `vitcg-scaffold` is this source."""
    folder.mkdir()
    (folder / "vitcg-scaffold").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scaffold.cli "$@"\n')
    (folder / "vitcg-scaffold").chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def test_the_page_has_one_example_of_each_kind() -> None:
    workflows = [f".github/workflows/{name}.yml" for name in ("ports", "drift", "alerts")]
    assert list(EXAMPLES) == [".pre-commit-config.yaml", *workflows]


@pytest.mark.slow
def test_the_hooks_run_under_pre_commit(repository: Path, tmp_path: Path) -> None:
    """As the page says, but for the address: both hooks look at this repository's own descriptors."""
    pytest.importorskip("pre_commit", reason="needs the `dev` extra")
    if not (ROOT / ".git").exists():
        pytest.skip("pre-commit installs hooks from a git repository")
    config = yaml.safe_load(EXAMPLES[".pre-commit-config.yaml"])
    (source,) = config["repos"]
    source |= {"repo": str(ROOT), "rev": git(ROOT, "rev-parse", "HEAD").strip()}
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    environment = program(tmp_path / "bin") | {"PRE_COMMIT_HOME": str(tmp_path / "cache"), "PRE_COMMIT_COLOR": "never"}

    def hooks() -> tuple[int, str]:
        git(repository, "add", "--all")
        command = [sys.executable, "-m", "pre_commit", "run", "--all-files"]
        done = captured(command, cwd=repository, env=environment)
        return done.returncode, done.stdout + done.stderr

    code, said = hooks()
    assert (code, said.count("error[")) == (1, 1), said
    assert "error[VCG535]" in said
    (again,) = re.findall(r"`vitcg-scaffold (new [^`]+)`", said)
    subprocess.run(["vitcg-scaffold", *again.split()], cwd=repository, env=environment, check=True, capture_output=True)

    code, said = hooks()
    assert (code, said.count("Passed")) == (0, 2), said

    descriptor = repository / "descriptors/mymodel.yaml"
    descriptor.write_text(descriptor.read_text().replace("layout: tiles", "layout: tile"))
    code, said = hooks()
    assert (code, said.count("Failed")) == (1, 2), said
    assert "descriptors/mymodel.yaml:" in said


def test_alerts_are_written_and_then_the_job_fails(repository: Path, tmp_path: Path) -> None:
    """The steps' own shell: the document is whole where the command fails."""
    steps = yaml.safe_load(EXAMPLES[".github/workflows/alerts.yml"])["jobs"]["descriptors"]["steps"]
    (validate,) = [step for step in steps if step.get("id") == "validate"]
    upload = next(step for step in steps if step.get("uses", "").startswith("github/codeql-action/upload-sarif@"))
    environment = program(tmp_path / "bin")

    def run() -> tuple[int, dict[str, Any]]:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", validate["run"]]  # as a runner calls it
        done = subprocess.run(shell, cwd=repository, env=environment, capture_output=True, check=False)
        return done.returncode, json.loads((repository / upload["with"]["sarif_file"]).read_text())

    code, document = run()
    assert (code, document["runs"][0]["results"]) == (0, [])
    (repository / "descriptors/mymodel.yaml").write_text("schema: 1\n")
    code, document = run()
    assert code == 3
    places = {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in document["runs"][0]["results"]
    }
    assert places == {"descriptors/mymodel.yaml"}
    assert validate["continue-on-error"]
    assert steps[-1] == {"if": "steps.validate.outcome == 'failure'", "run": "exit 1"}


@pytest.mark.trees
def test_the_job_for_drift_fails_beside_a_missing_port(repository: Path, release_tree: Any, tmp_path: Path) -> None:
    """The action's own shell, below a workspace that holds this repository: names are from the workspace."""
    steps = yaml.safe_load(EXAMPLES[".github/workflows/drift.yml"])["jobs"]["drift"]["steps"]
    action = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][-1]
    (repository / steps[1]["with"]["path"]).symlink_to(release_tree("0.22.0").root)
    environment = program(tmp_path / "bin") | {"COMMAND": steps[2]["with"]["command"]}

    def run() -> tuple[int, str]:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action["run"]]  # as a runner calls it
        done = captured(shell, cwd=repository, env=environment)
        return done.returncode, done.stdout + done.stderr

    code, said = run()
    assert (code, "would change" in said) == (1, True), said
    (repository / "descriptors/mymodel.yaml").write_text("schema: 1\n")
    environment["GITHUB_WORKSPACE"] = str(tmp_path)
    code, said = run()
    assert (code, "::error file=repository/descriptors/mymodel.yaml,line=1" in said) == (3, True), said


def lint(home: Path) -> str:
    """What actionlint says of the workflows of a repository."""
    linter = shutil.which("actionlint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("actionlint is not installed: it comes with the `dev` extra")
    done = captured([linter, "-no-color"], cwd=home)
    assert done.returncode in (0, 1), done.stderr
    assert bool(done.stdout) == bool(done.returncode)
    return done.stdout


def test_workflows_are_right_to_actionlint(repository: Path) -> None:
    """The project's own and the page's. The action is a local one here, so that its inputs are looked at."""
    shutil.copy(ROOT / "action.yml", repository)
    folder = repository / ".github/workflows"
    folder.mkdir(parents=True)
    texts = {path.name: path.read_text() for path in WORKFLOWS}
    texts |= {Path(name).name: text for name, text in EXAMPLES.items() if "workflows" in name}
    assert len(texts) == len(WORKFLOWS) + 3
    (step,) = re.findall(r"^```yaml\n(- uses: .*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    frame = "on: push\njobs:\n  ports:\n    runs-on: ubuntu-latest\n    steps:\n"
    texts["readme.yml"] = frame + textwrap.indent(step, " " * 6)
    assert texts["ports.yml"].count("OWNER/vitcg-scaffold@v0") == 3
    for name, text in texts.items():
        (folder / name).write_text(text.replace("OWNER/vitcg-scaffold@v0", "./"))
    assert lint(repository) == ""
    wrong = texts["ports.yml"].replace("OWNER/vitcg-scaffold@v0", "./").replace("extras:", "extra:")
    (folder / "ports.yml").write_text(wrong)
    assert 'input "extra" is not defined' in lint(repository)


@pytest.mark.slow
def test_the_action_installs_what_it_runs(repository: Path, tmp_path: Path) -> None:
    """Both steps of the action by their own shell, in an empty environment: the action's folder is the package."""
    steps = {step["name"]: step for step in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][1:]}
    assert list(steps) == ["Install", "Run"]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    path = {"PATH": f"{tmp_path / 'empty/bin'}:/usr/bin:/bin"}
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HOME"))}

    def run(step: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        assert set(inputs) == set(steps[step]["env"])
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps[step]["run"]]  # as a runner calls it
        return captured(shell, cwd=repository, env=kept | path | inputs)

    example = yaml.safe_load(EXAMPLES[".github/workflows/ports.yml"])["jobs"]["ports"]["steps"]
    command = example[1]["with"]["command"]
    done = run("Install", SOURCE=str(ROOT), EXTRAS="")
    assert done.returncode == 0, done.stderr
    done = run("Run", COMMAND=command)
    assert (done.returncode, done.stdout) == (0, "")
    (repository / "descriptors/mymodel.yaml").write_text("schema: 1\n")
    done = run("Run", COMMAND=command)
    assert (done.returncode, "::error file=descriptors/mymodel.yaml,line=1" in done.stdout) == (3, True)
    # With an extra, pip is asked for it. The program in its place says what it was asked for.
    (tmp_path / "empty/bin/python").unlink()
    (tmp_path / "empty/bin/python").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (tmp_path / "empty/bin/python").chmod(0o755)
    assert run("Install", SOURCE="/a b", EXTRAS="cpu").stdout == "-m|pip|install|--quiet|/a b[cpu]|"


def test_workflows_call_targets_that_make_knows() -> None:
    """Each `run` of the project's workflows is one call of make, which is asked what it would do."""
    assert [path.stem for path in WORKFLOWS] == ["lab", "nightly", "publish", "quick", "weekly"]
    called = []
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                if "run" not in step:
                    continue
                words = re.sub(r"\$\{\{ matrix\.release \}\}", "0.33.0", step["run"]).split()
                assert words[0] == "make", step
                called.append(words[1])
                shell = step["run"].replace("${{ matrix.release }}", "0.33.0").replace("make ", "make -n ", 1)
                environment = os.environ | {"TORCH_INDEX": "https://example.org", "GITHUB_REF_NAME": "v0.1.0"}
                done = captured(["bash", "-euo", "pipefail", "-c", shell], cwd=ROOT, env=environment)
                assert done.returncode == 0, done.stderr
                if "RELEASE" in shell:
                    assert "--releases 0.33.0" in done.stdout
                if "TAG" in shell:
                    assert "ls dist/vitcg_scaffold-0.1.0-py3-none-any.whl" in done.stdout
    assert sorted(called) == ["dist", "lab", "new-release", "quick", "reach", "test"]


#: Jobs that may do more than read.
MORE = {
    ("publish", "publish"): {"id-token": "write"},
    ("weekly", "new-release"): {"contents": "read", "issues": "write"},
}


def test_only_two_jobs_may_do_more_than_read() -> None:
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            assert job.get("permissions") == MORE.get((path.stem, name)), (path.name, name)
