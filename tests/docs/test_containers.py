"""The image and the Kubernetes fragment of docs/containers.md, without a registry of images."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import dockerfile
import kubernetes_validate
import pytest
import yaml

from scaffold.cli.options import PROGRAM
from scaffold.plugin import DISABLE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/containers.md").read_text()
NEWEST = "0.33.0"


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_image_is_of_the_newest_release_and_small() -> None:
    lines = [line.split(None, 1) for line in block("dockerfile").splitlines()]
    assert len(lines) <= 6
    commands = dockerfile.parse_string(block("dockerfile"))  # Docker's own parser
    assert [command.cmd for command in commands] == ["FROM", "COPY", "RUN", "RUN"]
    assert lines[0][1] == f"vllm/vllm-openai:v{NEWEST}"
    source, place = lines[1][1].split()
    assert (source, lines[2][1]) == (".", f"uv pip install --system {place}")
    assert "`vitcg-scaffold doctor` in it" in PAGE
    for what in ("pyproject.toml", "hatch_build.py", "scaffold", "templates", "generated/MANIFEST.json", "README.md"):
        assert (ROOT / what).exists(), f"a build in the image reads {what}"


@pytest.mark.trees
def test_the_base_image_installs_so_and_serves(release_tree) -> None:
    """By the release's own Dockerfile: uv installs for the system's Python, and the entry point is `vllm serve`."""
    text = release_tree(NEWEST).read("docker/Dockerfile")
    stages = dict(re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE))
    assert stages["vllm-base"] == "vllm-openai-base"
    final = text[text.index("AS vllm-openai-base") :]
    assert "uv pip install --system" in final
    assert (
        re.search(r"AS vllm-openai$.*?^ENTRYPOINT ([^\n]*)$", text, re.MULTILINE | re.DOTALL)[1] == '["vllm", "serve"]'
    )


def test_what_the_image_runs_runs_here(tmp_path: Path) -> None:
    """The last line, with this source as the installed tool: JSON, whatever `doctor` finds."""
    line = block("dockerfile").splitlines()[-1].removeprefix("RUN ").replace("/opt/", f"{tmp_path}/")
    (tmp_path / PROGRAM).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scaffold.cli "$@"\n')
    (tmp_path / PROGRAM).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    subprocess.run(["sh", "-ec", line], env=env, check=True, capture_output=True)
    assert json.loads((tmp_path / "vitcg-doctor.json").read_text())["vllm"]


def test_the_deployment_is_of_kubernetes_own_schema() -> None:
    deployment = yaml.safe_load(block("yaml"))
    newest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(deployment, newest, strict=True)
    deployment["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="arguments"):
        kubernetes_validate.validate(deployment, newest, strict=True)


def test_the_deployment_serves_with_graphs() -> None:
    deployment = yaml.safe_load(block("yaml"))
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    option, value = container["args"][1:]
    command = next(line for line in block("sh").splitlines() if option in line)
    assert json.loads(value) == json.loads(shlex.split(command)[-1]) == {"cudagraph_mm_encoder": True}
    assert container["readinessProbe"]["httpGet"]["port"] == container["ports"][0]["containerPort"]
    assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    (back,) = re.findall(r"`env: (\[.*?\])`", PAGE)
    assert yaml.safe_load(back) == [{"name": DISABLE, "value": "1"}]
