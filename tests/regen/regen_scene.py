"""A folder of adapters made from one descriptor of the test's own, and the command line run on it in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import scaffold.descriptor
from scaffold.cli.app import main

SHIPPED = Path(scaffold.descriptor.__file__).parent / "shipped"


@dataclass(frozen=True)
class Result:
    """Exit code, standard output and standard error of one command."""

    exit: int
    out: str
    err: str

    @property
    def codes(self) -> list[str]:
        """Codes of the diagnostics of `--format json`, in their order."""
        return [item["code"] for item in json.loads(self.out)["diagnostics"]]


class Scene:
    """`descriptor` is a copy of the shipped InternVL; `folder` is what `new` makes of it, beside it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.descriptor = root / "my_model.yaml"
        self.folder = root / "out"
        self._capsys = capsys
        self.descriptor.write_text((SHIPPED / "internvl.yaml").read_text("utf-8"), "utf-8")

    def regen(self, *arguments: str, format: str = "text") -> Result:
        """`new` without a tree: with the descriptors in `arguments`, or with all of the manifest."""
        everything = [] if any(not word.startswith("-") for word in arguments) else ["--all"]
        return self.run("new", "--into", str(self.folder), *everything, *arguments, format=format)

    def run(self, *arguments: str, format: str = "text") -> Result:
        with pytest.raises(SystemExit) as caught:
            main(["--format", format, *arguments])
        captured = self._capsys.readouterr()
        return Result(int(caught.value.code or 0), captured.out, captured.err)

    def change_descriptor(self, old: str, new: str) -> None:
        text = self.descriptor.read_text("utf-8")
        assert text.count(old) == 1, f"the descriptor has {text.count(old)} of {old!r}"
        self.descriptor.write_text(text.replace(old, new), "utf-8")

    def edit(self, path: str, old: str, new: str) -> bytes:
        """Edit a generated file; returns what it holds then."""
        place = self.folder / path
        text = place.read_text("utf-8")
        assert old in text, f"{path} has no {old!r}"
        place.write_text(text.replace(old, new, 1), "utf-8")
        return place.read_bytes()

    def read(self, path: str) -> str:
        return (self.folder / path).read_text("utf-8")

    def manifest(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.read("MANIFEST.json"))
        return facts

    def content(self) -> dict[str, bytes]:
        """Every file of the folder but the tool's own records, with its bytes."""
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and ".vitcg-scaffold" not in path.parts
        }
