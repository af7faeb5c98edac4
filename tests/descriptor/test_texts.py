"""Texts of a descriptor: what a reader cannot see, and what a tool would obey, is refused at its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from captured import captured
from descriptor_documents import DOCUMENTS, problems_of

from scaffold.descriptor.port import PORTS
from scaffold.descriptor.schema import Record, Remark, Section, Type
from scaffold.descriptor.sections import Reasoned
from scaffold.render.environment import comment


def found(document: str, old: str, new: str) -> list[tuple[str, str]]:
    """Codes and marked texts of a document after one replacement."""
    text = DOCUMENTS[document]
    assert old in text
    text = text.replace(old, new, 1)
    rows = text.splitlines()
    spans = [(problem.code, problem.span) for problem in problems_of(text)]
    return [(code, rows[at.line - 1][at.column - 1 : at.end_column - 1]) for code, at in spans if at is not None]


REASON = "budget: {min: k}"


@pytest.mark.parametrize(
    "escape", ["\\0", "\\x0b", "\\e", "\\x85", "\\u2028", "\\u2029", "\\u202e", "\\u2066", "\\ufeff"]
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (REASON, 'budget: {min: k, why: "a tile%s"}'),
        ("image_prompt: What is", 'core_model: false\n    video_prompt: "a%s"\n    image_prompt: What is'),
        ("image_prompt: What is", 'skip: "a%s"\n    image_prompt: What is'),
        ("image_prompt: What is", 'runner_kwargs: {a: [{b: "a%s"}]}\n    image_prompt: What is'),
        ("image_prompt: What is", 'runner_kwargs: {a: {"b%s": 1}}\n    image_prompt: What is'),
        ("models: [Tiled]", 'models: ["A%s"]'),
        ("integration:", 'verify: {config: "a%s", keep: ["b"]}\nintegration:'),
        ("integration:", 'verify: {set: {a: "b%s"}}\nintegration:'),
    ],
)
def test_what_nobody_sees_is_refused_in_every_text(old, new, escape):
    assert ("VCG215", escape) in found("tiles", old, new % escape)


@pytest.mark.parametrize(("text", "codes"), [('"A\\nB"', ["VCG215"]), ("\uff21\u3000B", [])])
def test_a_name_has_one_line_and_any_letters(text, codes):
    assert [code for code, _ in found("tiles", "models: [Tiled]", f"models: [{text}]")] == codes


def test_a_reason_and_a_prompt_may_have_lines():
    assert found("tiles", REASON, "budget:\n  min: k\n  why: |\n    One tile,\n    or more.") == []


DIRECTIVES = [
    "ruff: noqa", "ruff:noqa: F401", "RUFF : NOQA", "flake8: noqa", "isort: skip_file", "isort:skip", "fmt: off",
    "fmt:skip", "yapf: disable", "black: off", "mypy: ignore-errors", "type: ignore", "type:ignore[misc]",
    "pyright: basic", "pylint: disable=all", "noqa", "NoQA: E501", "nosec", "pragma: no cover", "pragma no cover",
    "pyre-ignore-all-errors", "pyre-strict", "codespell:ignore", "ty: ignore", "pyrefly: ignore", "lint-ignore: X",
    "@formatter:off",
]  # fmt: skip


@pytest.mark.parametrize(
    "before", ["", "One tile, # ", "One tile, or a line that is so long that the comment begins anew with "]
)
@pytest.mark.parametrize("directive", DIRECTIVES)
def test_a_reason_tells_no_tool_anything(directive, before):
    said = found("tiles", REASON, f'budget: {{min: k, why: "{before}{directive}"}}')
    assert [code for code, _ in said] == ["VCG216"]
    assert said[0][1]
    assert directive.startswith(said[0][1])


@pytest.mark.parametrize(
    "reason", ["No tile is a frame: noqualms", "The archetype: one tile", "Types, formats (fmt), isort"]
)
def test_words_that_are_like_it_are_no_directives(reason):
    assert found("tiles", REASON, f'budget: {{min: k, why: "{reason}"}}') == []


def test_a_directive_on_a_line_of_its_own_would_work():
    """Else the refusal would protect from nothing."""
    code = "import os\n# {}\nimport sys\n"

    def ruff(directive: str) -> int:
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F", "--no-cache", "-q", "-"]
        return captured(command, input=code.format(directive)).returncode

    assert (ruff("One tile"), ruff("ruff: noqa")) == (1, 0)


def test_no_word_is_broken_so_that_its_end_begins_a_line():
    assert comment("x" * 73 + "ruff:noqa a") == ["x" * 73 + "ruff:noqa", "a"]


def sections(of: type[Record]) -> Iterator[type[Record]]:
    yield of
    for declared in of.by_key.values():
        yield from below(declared.type)


def below(kind: Type | None) -> Iterator[type[Record]]:
    if isinstance(kind, Section):
        yield from sections(kind.cls)
    for name in ("item", "value", "scalar", "sequence", "mapping"):
        if (part := getattr(kind, name, None)) is not None:
            yield from below(part)


@pytest.mark.parametrize("layout", sorted(PORTS))
def test_every_reason_is_a_remark(layout):
    reasoned = [cls for cls in sections(PORTS[layout]) if "why" in cls.by_key]
    assert reasoned
    for cls in reasoned:
        assert isinstance(cls.by_key["why"].type, Remark)
        assert issubclass(cls, Reasoned)
