"""Files and shipped names; the JSON Schema; and what loading must not import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from descriptor_documents import DOCUMENTS, PATHS, TILES
from test_descriptor_mistakes import MISTAKES, Mistake

from scaffold.descriptor import json_schema, load_descriptor, load_descriptor_text, shipped_names
from scaffold.descriptor.load import shipped_path
from scaffold.diagnostics import DiagnosticError
from scaffold.diagnostics.catalogue import all_codes

#: Descriptors with a gate: on pruning, on how a processor cuts images, and on data-parallel towers.
GATED = {"cohere_compass", "kimi_k25", "minicpmv", "mllama4", "nano_nemotron_vl", "qwen2_5_vl", "qwen3_vl"}
PACKAGE = Path(sys.modules["scaffold.descriptor"].__file__ or "").parent


def _code_of(reference: str | Path) -> tuple[str, str]:
    with pytest.raises(DiagnosticError) as caught:
        load_descriptor(reference)
    [problem] = caught.value.diagnostics
    assert caught.value.exit == 3
    return problem.code, f"{problem.message} | {problem.help}"


def test_shipped_descriptors_load_by_name_without_a_remark() -> None:
    assert {"internvl", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "step3_vl"} <= set(shipped_names())
    assert shipped_names() == tuple(sorted(path.stem for path in (PACKAGE / "shipped").glob("*.yaml")))
    for name in shipped_names():
        descriptor = load_descriptor(name)
        assert descriptor.warnings == ()
        assert (descriptor.name, descriptor.file) == (name, f"{name}.yaml")
        assert (descriptor.gate is not None) == (name in GATED)


def test_a_path_wins_and_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "internvl").write_text(TILES)
    (tmp_path / "mine.yaml").write_text(TILES)
    monkeypatch.chdir(tmp_path)
    assert load_descriptor("internvl").model.class_ == "TiledModel"
    assert load_descriptor("mine.yaml").file == "mine.yaml"
    assert load_descriptor(tmp_path / "mine.yaml").span("model.class").file == str(tmp_path / "mine.yaml")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert _code_of("intervl") == (
        "VCG100",
        "no descriptor `intervl`: neither a file nor a shipped name | did you mean `internvl`?",
    )
    assert _code_of(tmp_path / "none.yaml")[0] == "VCG100"
    (tmp_path / "mine.yaml").write_text(TILES)
    for misspelt in ("mne.yaml", "mine"):  # the help listed what is shipped
        assert _code_of(tmp_path / misspelt)[1].endswith(f" | did you mean `{tmp_path / 'mine.yaml'}`?")
    assert _code_of(tmp_path) == (
        "VCG100",
        f"cannot read the descriptor `{tmp_path}`: it is a directory | name a readable YAML file",
    )
    (tmp_path / "latin.yaml").write_bytes("schema: 1 # é\n".encode("latin-1"))
    assert _code_of(tmp_path / "latin.yaml")[0] == "VCG102"
    (tmp_path / "größe.yaml").write_bytes(b"")
    assert _code_of(tmp_path / "größe.yaml")[0] == "VCG114"
    (tmp_path / "huge.yaml").write_bytes(b"#" * 10_000_000)
    assert _code_of(tmp_path / "huge.yaml")[0] == "VCG105"


def test_loading_is_pure_and_repeatable() -> None:
    for text in DOCUMENTS.values():
        first, second = load_descriptor_text(text, "a.yaml"), load_descriptor_text(text, "b.yaml")
        assert first == second


def test_descriptors_are_frozen() -> None:
    descriptor = load_descriptor_text(PATHS, "a.yaml")
    with pytest.raises(AttributeError):
        descriptor.layout = "packed"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del descriptor.model.class_
    assert "class_='TwofoldModel'" in repr(descriptor.model)


def test_positions_by_path() -> None:
    descriptor = load_descriptor_text(TILES, "a.yaml")
    assert str(descriptor.span("model.class")) == "a.yaml:2:31"
    assert str(descriptor.span("pixels.shape.1")) == "a.yaml:12:21"
    assert descriptor.span("item.merge") == descriptor.span("item")


class _EditorLoader(yaml.SafeLoader):
    """Reads YAML as an editor's YAML server does, by version 1.2, where `on` is a word."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if first not in "oOyYnN" or not tag.endswith("bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


#: What no JSON Schema can say: words that Python reserves, what YAML itself refuses.
_BEYOND_JSON_SCHEMA = ("reserved name", "merge key", "complex key")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", [*DOCUMENTS, *shipped_names()])
def test_the_json_schema_accepts_valid_descriptors(name: str, validator: jsonschema.Draft202012Validator) -> None:
    text = DOCUMENTS.get(name) or (PACKAGE / "shipped" / f"{name}.yaml").read_text(encoding="utf-8")
    validator.validate(yaml.load(text, _EditorLoader))


@pytest.mark.parametrize(
    "mistake",
    [m for m in MISTAKES if re.search(r"error\[VCG20[1-5]\]", str(m.report)) and m.name not in _BEYOND_JSON_SCHEMA],
    ids=lambda m: m.name,
)
def test_the_json_schema_refuses_what_the_schema_refuses(
    mistake: Mistake, validator: jsonschema.Draft202012Validator
) -> None:
    assert not validator.is_valid(yaml.load(mistake.text, _EditorLoader))


def test_the_json_schema_describes_every_key() -> None:
    def missing(schema: dict[str, object], at: str) -> list[str]:
        properties = schema.get("properties")
        found = (
            []
            if not isinstance(properties, dict)
            else [f"{at}.{key}" for key, value in properties.items() if not value.get("description")]
        )
        for key, value in schema.items():
            if isinstance(value, dict):
                found += missing(value, f"{at}.{key}")
        return found

    assert missing(json_schema(), "") == []


def test_codes_are_listed_and_used() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py"))
    used = set(re.findall(r'"(VCG\d{3})"', source))
    listed = {code for code in all_codes() if code[3] in "123"}
    assert used == listed | {"VCG487"}  # a note that `init` gives, of what a descriptor says


def test_every_code_but_those_of_files_has_a_mistake() -> None:
    shown = set(re.findall(r"\[(VCG\d{3})\]", " ".join(str(mistake.report) for mistake in MISTAKES)))
    listed = {code for code in all_codes() if code[3] in "123"}
    elsewhere = {"VCG100", "VCG102", "VCG105", "VCG114"}
    assert listed - shown == elsewhere


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys; from scaffold.descriptor import load_descriptor; load_descriptor('qwen2_5_vl');"
        "print(*[name for name in ('pydantic', 'libcst', 'torch', 'jinja2', 'ast', 'difflib')"
        " if name in sys.modules])"
    )
    before = subprocess.run(
        [sys.executable, "-c", "import sys, yaml, dataclasses; print('ast' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent.parent
    )
    allowed = {"ast"} if "True" in before.stdout else set()
    assert set(ran.stdout.split()) - allowed == set()


@pytest.mark.parametrize("key", ["extra: 1", "least: 2"])
def test_rows_of_patches_have_none_beside_their_grid(key: str) -> None:
    text = (PACKAGE / "shipped" / "minimax_m3.yaml").read_text("utf-8")
    changed = text.replace("{sizes: image_grid_thw}", f"{{sizes: image_grid_thw, {key}}}")
    assert changed != text
    with pytest.raises(DiagnosticError) as caught:
        load_descriptor_text(changed, "minimax_m3.yaml")
    [problem] = caught.value.diagnostics
    assert (problem.code, "no rows beside the patches" in problem.message) == ("VCG343", True)
    assert problem.span is not None
    assert changed.splitlines()[problem.span.line - 1][problem.span.column - 1 :].startswith(key.partition(":")[0])


@pytest.mark.parametrize("name", shipped_names())
def test_a_misspelt_layout_is_one_mistake(name: str) -> None:
    """The other sections are read as those of the layout that was meant."""
    path = shipped_path(name)
    assert path is not None
    text, count = re.subn(r"^(layout: \w+)\w\b", r"\1", path.read_text("utf-8"), flags=re.MULTILINE)
    assert count == 1
    with pytest.raises(DiagnosticError) as refused:
        load_descriptor_text(text, "mine.yaml")
    assert [found.code for found in refused.value.diagnostics if found.exit] == ["VCG204"]
