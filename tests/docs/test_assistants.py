"""What assistants, workflows and editors are told: every command, option and target is there today."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
import yaml
from captured import captured

from scaffold.cli.app import cli
from scaffold.descriptor import json_schema, shipped_names
from scaffold.descriptor.load import shipped_path

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / ".agents/skills/port-vision-encoder/SKILL.md"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
COMMANDS = [
    *re.findall(r"^vitcg-scaffold (.+)$", SKILL.read_text(), re.MULTILINE),
    *re.findall(r"command: ([^},]+)[},]", (ROOT / "action.yml").read_text()),
]


def options_of(name: str) -> set[str]:
    context = click.Context(cli)
    context.meta["scaffold.invoking"] = True
    found = cli.get_command(context, name)
    assert found is not None, name
    return {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_its_options(command: str) -> None:
    name, *words = shlex.split(command)
    assert {word for word in words if word.startswith("-")} <= options_of(name)


def test_a_skill_has_a_name_and_says_when_it_is_used() -> None:
    _, head, body = SKILL.read_text().split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == SKILL.parent.name
    assert "Use when" in about["description"]
    assert set(re.findall(r"`(--[a-z-]+)", body)) <= options_of("init") | options_of("new") | options_of("verify")


def test_what_agents_are_told_is_there() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= set(targets)
    places = [*re.findall(r"\]\(([^)]+)\)", text), *re.findall(r"`((?:docs|tests|scaffold|generated)/[^` ]*)`", text)]
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_the_action_runs_a_command_and_annotates(tmp_path: Path) -> None:
    run = ACTION["runs"]["steps"][-1]["run"]
    (tmp_path / "bad.yaml").write_text("schema: 1\n")
    (tmp_path / "vitcg-scaffold").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scaffold.cli "$@"\n')
    (tmp_path / "vitcg-scaffold").chmod(0o755)
    # A word of the command that the shell would run stays a word.
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "COMMAND": "validate bad.yaml $(touch ran)", "PYTHONPATH": str(ROOT)}
    done = captured(["bash", "-e", "-c", run], cwd=tmp_path, env=env)
    assert done.returncode == 3
    assert "::error file=bad.yaml,line=1" in done.stdout
    assert not (tmp_path / "ran").exists()
    steps = ACTION["runs"]["steps"]
    used = set(re.findall(r"inputs\.([a-z-]+)", json.dumps(steps)))
    assert used == set(ACTION["inputs"])


def test_shipped_descriptors_satisfy_the_schema_of_editors() -> None:
    schema = json.loads((ROOT / "docs/reference/descriptor.schema.json").read_text())
    assert schema == json_schema()
    jsonschema = pytest.importorskip("jsonschema", reason="needs the `cpu` extra")
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    for name in shipped_names():
        kind(schema).validate(yaml.safe_load(shipped_path(name).read_text()))
