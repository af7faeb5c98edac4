"""What an editor says of a descriptor: the header of a draft leads to the schema, and the schema to the mistakes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
import yaml
from captured import captured

from scaffold.descriptor import json_schema, schema_file
from scaffold.descriptor.load import shipped_path

ROOT = Path(__file__).resolve().parents[2]
#: How Red Hat's server reads the line: up to the first space.
MODELINE = re.compile(r"^#\s+yaml-language-server\s*:\s*\$schema=(\S+)")
#: `init` with a shipped descriptor as its draft.
INIT = """
import sys
from init_draft import draft_is
from scaffold.cli import main
draft_is("internvl")
main(["init", *sys.argv[1:]])
"""


def draft(folder: Path, output: Path, release_tree, tool: Path = ROOT) -> Path:
    done = captured(
        [
            *(sys.executable, "-c", INIT, "InternVLChatModel"),
            *("--vllm", str(release_tree("0.22.0").root), "--no-input", "-o", str(output)),
        ],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": f"{tool}:{ROOT / 'tests'}"},
    )
    assert done.returncode == 0, done.stderr
    return folder / output


def address(file: Path) -> str:
    found = MODELINE.match(file.read_text())
    assert found is not None, "the first line"
    return found[1]


def place(file: Path) -> Path:
    """The schema that the server opens: a URL, or a path from the file."""
    url = urlparse(address(file))
    return Path(unquote(url.path)) if url.scheme == "file" else file.parent / address(file)


@pytest.mark.trees
def test_a_draft_leads_to_the_schema_of_a_checkout(release_tree, tmp_path: Path) -> None:
    file = draft(tmp_path, Path("mine.yaml"), release_tree)
    assert address(file) == (ROOT / "docs/reference/descriptor.schema.json").as_uri()
    assert json.loads(place(file).read_text()) == json_schema()


@pytest.mark.trees
def test_a_draft_leads_to_the_schema_of_an_installed_tool(release_tree, tmp_path: Path) -> None:
    """As the wheel is laid out: below the folder of the package, here in a virtual environment of the project. The
    address is relative then, so that it holds in every clone."""
    site = tmp_path / ".venv/site"
    wheel_files = {"scaffold": "scaffold", "templates": "scaffold/_templates"}
    forced = (ROOT / "pyproject.toml").read_text()
    source, target = "docs/reference/descriptor.schema.json", "scaffold/descriptor/descriptor.schema.json"
    assert f'"{source}" = "{target}"' in forced
    for origin, there in wheel_files.items():
        shutil.copytree(ROOT / origin, site / there, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / source, site / target)
    (tmp_path / "descriptors").mkdir()
    file = draft(tmp_path, Path("descriptors/mine.yaml"), release_tree, tool=site)
    assert address(file) == f"../.venv/site/{target}"
    assert place(file).resolve() == site / target


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        ("layout: tile", None),
        ("budget: {min: [1]}", "budget"),
        ("budgets: {min: k}", None),
    ],
)
def test_the_schema_refuses_a_broken_descriptor(wrong: str, at: str | None) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs the `dev` extra")
    document = yaml.safe_load(shipped_path("internvl").read_text())
    check = jsonschema.Draft202012Validator(json.loads(schema_file().read_text()))
    assert check.is_valid(document)
    errors = list(check.iter_errors(document | yaml.safe_load(wrong)))
    assert errors
    if at is not None:
        places = {str(part) for error in errors for inner in error.context for part in inner.absolute_path}
        assert at in places


# -- the server itself, where it is installed: npm install -g yaml-language-server -----------------------------------


def message(body: dict[str, Any]) -> bytes:
    data = json.dumps({"jsonrpc": "2.0", **body}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(data), data)


def answers(stream: Any) -> Iterator[dict[str, Any]]:
    while line := stream.readline():
        length = int(line.split(b":")[1])
        while stream.readline().strip():
            pass
        yield json.loads(stream.read(length))


def complaints(file: Path) -> list[dict[str, Any]]:
    """What the server publishes about a file that an editor opens."""
    server = shutil.which("yaml-language-server")
    if server is None:
        pytest.skip("yaml-language-server is not installed")
    uri = file.as_uri()
    with subprocess.Popen([server, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        start = {"processId": None, "rootUri": file.parent.as_uri(), "capabilities": {}}
        text = {"uri": uri, "languageId": "yaml", "version": 1, "text": file.read_text()}
        for body in (
            {"id": 1, "method": "initialize", "params": start},
            {"method": "initialized", "params": {}},
            {"method": "textDocument/didOpen", "params": {"textDocument": text}},
        ):
            process.stdin.write(message(body))
        process.stdin.flush()
        try:
            for answer in answers(process.stdout):
                if answer.get("method") == "textDocument/publishDiagnostics" and answer["params"]["uri"] == uri:
                    return list(answer["params"]["diagnostics"])
        finally:
            process.kill()
    raise AssertionError("the server said nothing")


@pytest.mark.trees
def test_the_server_of_editors_reads_the_header(release_tree, tmp_path: Path) -> None:
    file = draft(tmp_path, Path("mine.yaml"), release_tree)
    text = file.read_text()
    assert complaints(file) == []
    file.write_text(text.replace("\nbudget:", "\nbudgt:"))
    assert any("budgt" in found["message"] for found in complaints(file))
