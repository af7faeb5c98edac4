"""What a person edits to add a model, a layout key, a tuning, an error or a generation: done on a copy, and counted.

What commands write is not counted: `new --all`, `docs/reference/`, `make matrix`. Each addition must take effect.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from captured import captured

import scaffold

REPOSITORY = Path(scaffold.__file__).parent.parent
PARTS = ("scaffold", "templates", "benchmarks", "tests", "generated", "docs")
#: Written by commands.
MADE = ("generated/", "docs/reference/", "benchmarks/results/", "docs/measured/")


class Copy:
    """A copy of the repository, and the files of it that were edited."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for part in PARTS:
            ignored = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(REPOSITORY / part, root / part, ignore=ignored)
        (root / "pyproject.toml").write_bytes((REPOSITORY / "pyproject.toml").read_bytes())
        self._before = self._digests()

    def _digests(self) -> dict[str, str]:
        files = [path for part in PARTS for path in (self.root / part).rglob("*") if path.is_file()]
        return {
            path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if "__pycache__" not in path.parts
        }

    def edited(self) -> list[str]:
        """Files that are new or changed, without those that commands write."""
        now = self._digests()
        changed = [path for path, digest in now.items() if self._before.get(path) != digest]
        return sorted(path for path in changed if not path.startswith(MADE))

    def replace(self, path: str, before: str, after: str) -> None:
        text = (self.root / path).read_text("utf-8")
        assert text.count(before) == 1, (path, before)
        (self.root / path).write_text(text.replace(before, after), "utf-8")

    def python(self, *arguments: str) -> str:
        """What the copy's own code prints; it must succeed."""
        environment = {**os.environ, "PYTHONPATH": f"{self.root}:{self.root / 'generated'}"}
        done = captured([sys.executable, *arguments], cwd=self.root, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "tool")


def test_a_model_is_one_file(copy: Copy) -> None:
    """Its descriptor. dots.ocr is drafted in a test, and not shipped."""
    drafted = (REPOSITORY / "tests/cut/dots_ocr.yaml").read_text("utf-8")
    (copy.root / "scaffold/descriptor/shipped/dots_ocr.yaml").write_text(f"# dots.ocr: rows of patches.\n{drafted}")

    copy.python("-m", "scaffold.cli", "new", "--all")

    copy.python("-m", "scaffold.cli", "new", "--all", "--check")
    assert (copy.root / "generated/vitcg_adapters/v0_30/dots_ocr.py").is_file()
    shown = copy.python(
        "-c",
        "import sys; sys.path.insert(0, 'benchmarks')\n"
        "import json, matrix, measured\n"
        "print(json.dumps(['dots_ocr' in matrix.MODELS, measured.NAMES['dots_ocr']]))",
    )
    assert json.loads(shown) == [True, "dots.ocr"]
    assert copy.edited() == ["scaffold/descriptor/shipped/dots_ocr.yaml"]


def test_a_recipe_is_one_file(copy: Copy) -> None:
    folder = copy.root / "scaffold/verify/numeric/recipes"
    text = (folder / "llava.py").read_text("utf-8")
    (folder / "llava_twin.py").write_text(text.replace('"LlavaForConditionalGeneration"', '"LlavaTwin"'), "utf-8")

    shown = copy.python(
        "-c",
        "from scaffold.verify.numeric.recipes import RECIPES, recipe_of\n"
        "print('llava_twin' in RECIPES, recipe_of('llava_twin', 'llava', 'LlavaTwin'))",
    )

    assert shown.split() == ["True", "llava_twin"]
    assert copy.edited() == ["scaffold/verify/numeric/recipes/llava_twin.py"]


def test_a_tuning_is_two_files(copy: Copy) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    (copy.root / "scaffold/runtime/tuning/idle.py").write_text(
        "from scaffold.runtime.tuning.convolution import ChannelsLast\n\n\n"
        'class Idle(ChannelsLast):\n    name = "idle"\n',
        "utf-8",
    )
    last = '    "fp8-inputs": "fp8_inputs.Fp8Inputs",\n'
    copy.replace("scaffold/runtime/tuning/choice.py", last, f'    "idle": "idle.Idle",\n{last}')

    shown = copy.python(
        "-c",
        "from scaffold.runtime.tuning import DEFAULT, TUNINGS, read_choice\n"
        "print([one.name for one in TUNINGS].index('idle'), 'idle' in DEFAULT, read_choice(['idle']).names)",
    )

    assert shown.split() == ["10", "True", "('idle',)"]
    assert copy.edited() == ["scaffold/runtime/tuning/choice.py", "scaffold/runtime/tuning/idle.py"]


def test_an_error_is_two_files(copy: Copy) -> None:
    """The place that raises it, and its explanation."""
    rule = '    """No name has two meanings: VCG303."""\n'
    copy.replace(
        "scaffold/descriptor/rules.py",
        rule,
        f'{rule}    if context.port.class_name == "Unwanted":\n'
        '        yield context.problem("VCG399", "the class is unwanted", "model.class", "name another one")\n',
    )
    codes, following = "scaffold/diagnostics/codes.md", "## VCG304: "
    copy.replace(codes, following, f"## VCG399: a class is unwanted\n\nNobody wants it.\n\n{following}")

    copy.python("docs/reference/generate.py")

    assert "VCG399" in copy.python("-m", "scaffold.cli", "explain", "VCG399")
    assert "VCG399" in (copy.root / "docs/reference/errors.md").read_text("utf-8")
    assert copy.edited() == ["scaffold/descriptor/rules.py", codes]


def test_a_generation_is_two_files() -> None:
    """Its record, in which one pair of names is given by hand, and a template: `test_drill.py` runs this change."""
    patch = (Path(__file__).parent / "generation.patch").read_text("utf-8")
    assert re.findall(r"^\+\+\+ b/(.*)$", patch, re.MULTILINE) == ["templates/units/eager.py.jinja"]


def test_a_layout_key_is_four_files(copy: Copy) -> None:
    """Its section, its place in the view, the template that reads it, and a descriptor that has it."""
    copy.replace(
        "scaffold/descriptor/sections.py",
        '"columns of the output", examples=["self.visual.out_hidden_size"])\n',
        '"columns of the output", examples=["self.visual.out_hidden_size"])\n'
        '    parts: Expression | None = declare(_LET, "parts of the output", default=None, examples=["2"])\n',
    )
    copy.replace("scaffold/plan/views.py", "    hidden_size: Code\n", "    hidden_size: Code\n    parts: Code | None\n")
    given = '        "hidden_size": names.code(port.output.hidden_size),\n'
    made = '        "parts": names.code(port.output.parts) if port.output.parts else None,\n'
    copy.replace("scaffold/plan/views.py", given, given + made)
    template = "out_hidden_size={{ hidden_size }}"
    copy.replace("templates/common/config.py.jinja", template, template + "{% if parts %} * {{ parts }}{% endif %}")
    descriptor = "scaffold/descriptor/shipped/llava.yaml"
    copy.replace(descriptor, "text_config.hidden_size}", "text_config.hidden_size, parts: 2}")

    copy.python("-m", "scaffold.cli", "new", "--all")
    copy.python("docs/reference/generate.py")

    adapter = (copy.root / "generated/vitcg_adapters/v0_30/llava.py").read_text("utf-8")
    assert "out_hidden_size=self.config.text_config.hidden_size * 2," in adapter
    assert "parts of the output" in (copy.root / "docs/reference/descriptor.md").read_text("utf-8")
    assert copy.edited() == [
        "scaffold/descriptor/sections.py",
        descriptor,
        "scaffold/plan/views.py",
        "templates/common/config.py.jinja",
    ]
