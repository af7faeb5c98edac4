"""Runs the mistakes of `examples.yaml` with the tool and keeps what it prints in `examples.json`.

    python docs/reference/run_examples.py

`generate.py` puts mistake, message and correction on the page of errors. A test runs the same mistakes, so that the
page says what the tool says today.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from scaffold.cli.app import main as scaffold
from scaffold.descriptor.load import shipped_path

HERE = Path(__file__).parent
KEPT = HERE / "examples.json"
FILE = "my_model.yaml"
#: The release of every example that needs a tree.
RELEASE = "0.33.0"


@dataclass(frozen=True)
class Example:
    """A mistake: lines of a descriptor (`wrote` in the place of `right`), or a command (`run` in that of `instead`).

    `of` is the shipped descriptor that `my_model.yaml` is, without one there is no such file.
    """

    code: str
    run: str = ""
    instead: str = ""
    of: str = ""
    wrote: str = ""
    right: str = ""
    command: str = "validate"

    @property
    def needs_tree(self) -> bool:
        return "--vllm" in self.wrong

    @property
    def wrong(self) -> str:
        """The command that meets the mistake."""
        if self.run:
            return self.run
        return f"{self.command} {FILE}" + (f" --vllm {RELEASE} --replace" if self.command != "validate" else "")

    def descriptor(self, *, right: bool) -> str | None:
        """The text of `my_model.yaml`; None where the mistake is in the command."""
        path = shipped_path(self.of) if self.of else None
        if path is None:
            return None
        text = path.read_text(encoding="utf-8")
        assert not self.right or text.count(self.right) == 1, f"{self.code}: `{self.right}` is not once in {self.of}"
        return text if right or not self.right else text.replace(self.right, self.wrote)


def examples() -> list[Example]:
    """All mistakes, in the order of the file."""
    return [Example(**entry) for entry in yaml.safe_load((HERE / "examples.yaml").read_text(encoding="utf-8"))]


def kept() -> dict[str, str]:
    """Code -> what the tool printed when the examples were run last."""
    found: dict[str, str] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def said(example: Example) -> str:
    """The messages with the example's code that the tool prints."""
    blocks = run(example, right=False).split("\n\n")
    return "\n\n".join(block.strip("\n") for block in blocks if f"[{example.code}]: " in block.partition("\n")[0])


def run(example: Example, *, right: bool) -> str:
    """What the tool prints on stderr with the mistake, or without it."""
    text = example.descriptor(right=right)
    with _new_folder() as folder:
        if text is not None:
            (folder / FILE).write_text(text, encoding="utf-8")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
            scaffold(shlex.split(example.instead if right and example.instead else example.wrong))
    return err.getvalue()


@contextlib.contextmanager
def _new_folder() -> Iterator[Path]:
    """An empty current folder, and a terminal of 100 columns without colours."""
    before, settings = Path.cwd(), {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(COLUMNS="100", NO_COLOR="1")
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            for name, value in settings.items():
                os.environ.pop(name)
                os.environ.update({name: value} if value is not None else {})


if __name__ == "__main__":
    KEPT.write_text(json.dumps({each.code: said(each) for each in examples()}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {KEPT}")
