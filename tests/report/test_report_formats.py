# ruff: noqa: E501 - rendered lines are as wide as they are
"""The four views of a list of diagnostics."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from scaffold.diagnostics import Diagnostic, Severity, Span
from scaffold.report import FORMATS, render_diagnostics

SOURCE = "schema: 1\nitem: {rows: n, tokens: n * kk}\n\tprompt: 図 kk\n"
NAME = Diagnostic("VCG301", "the name `kk` is not defined", Span("model.yaml", 2, 29, 2, 31), "did you mean `k`?")
UNUSED = Diagnostic("VCG305", "`k` is never used", Span("model.yaml", 1, 1, 1, 7), None, Severity.WARNING)
NOWHERE = Diagnostic("VCG100", "no descriptor `x`", help="check the path", notes=("first note", "second note"))
WIDE = Diagnostic("VCG203", "wide", Span("model.yaml", 3, 12, 3, 14))
OVER_LINES = Diagnostic("VCG203", "over lines", Span("model.yaml", 2, 7, 3, 4), severity=Severity.INFO)


def text_of(*diagnostics: Diagnostic, color: bool = False, source: str | None = SOURCE) -> str:
    return render_diagnostics(diagnostics, format="text", color=color, sources=lambda _: source)


def test_text_shows_line_caret_and_help() -> None:
    assert text_of(NAME, UNUSED, NOWHERE) == snapshot("""\
error[VCG100]: no descriptor `x`
    = note: first note
    = note: second note
    = help: check the path

model.yaml:1:1: warning[VCG305]: `k` is never used
    1 | schema: 1
      | ^^^^^^

model.yaml:2:29: error[VCG301]: the name `kk` is not defined
    2 | item: {rows: n, tokens: n * kk}
      |                             ^^
      = help: did you mean `k`?

2 errors, 1 warning; explain one with: vitcg-scaffold explain VCG100
""")


def test_text_without_a_source_keeps_place_and_help() -> None:
    assert text_of(NAME, source=None) == snapshot("""\
model.yaml:2:29: error[VCG301]: the name `kk` is not defined
    = help: did you mean `k`?

1 error; explain one with: vitcg-scaffold explain VCG301
""")
    assert render_diagnostics([NAME], format="text") == text_of(NAME, source=None)


def test_diagnostics_that_others_follow_are_not_counted_yet() -> None:
    assert render_diagnostics([NAME], format="text", more=True) + text_of(NAME, source=None) == snapshot("""\
model.yaml:2:29: error[VCG301]: the name `kk` is not defined
    = help: did you mean `k`?
model.yaml:2:29: error[VCG301]: the name `kk` is not defined
    = help: did you mean `k`?

1 error; explain one with: vitcg-scaffold explain VCG301
""")


def test_text_with_a_source_that_has_changed() -> None:
    assert text_of(NAME, source="schema: 1\n") == text_of(NAME, source=None)
    assert "^" in text_of(NAME, source="a\nshort\n")


def test_carets_stand_below_wide_characters_and_tabs() -> None:
    lines = text_of(WIDE).split("\n")
    assert lines[1].index("kk") + 1 == lines[2].index("^")  # the ideograph takes two cells
    assert lines[2].count("^") == 2


def test_a_whole_line_is_marked_without_its_indentation() -> None:
    """The place of a line in a tree has no column of its own: it begins at the first."""
    whole = Diagnostic("VCG483", "this line", Span("model.py", 2, 1, 2, 2))
    shown = text_of(whole, source="def f(self):\n    return self.visual(x)  \n")
    assert shown.splitlines()[1:3] == ["    2 |     return self.visual(x)", "      |     ^^^^^^^^^^^^^^^^^^^^^"]
    tab = Diagnostic("VCG103", "a tab", Span("model.yaml", 3, 1, 3, 2))
    assert text_of(tab).splitlines()[2] == "      | ^^^^"


def test_a_span_over_lines_marks_its_first_line() -> None:
    assert text_of(OVER_LINES) == snapshot("""\
model.yaml:2:7: info[VCG203]: over lines
    2 | item: {rows: n, tokens: n * kk}
      |       ^^^^^^^^^^^^^^^^^^^^^^^^^

1 note; explain one with: vitcg-scaffold explain VCG203
""")


def test_the_summary_explains_an_error_first() -> None:
    warning = Diagnostic("VCG305", "`frames` is never used", Span("a", 1, 1, 1, 2), severity=Severity.WARNING)
    error = Diagnostic("VCG334", "a fixed number", Span("a", 2, 1, 2, 2))
    assert text_of(warning, error).endswith("1 error, 1 warning; explain one with: vitcg-scaffold explain VCG334\n")


def test_a_long_line_is_cut_around_the_caret() -> None:
    source = "x" * 300 + "HERE" + "y" * 300
    lines = text_of(Diagnostic("VCG101", "long", Span("a", 1, 301, 1, 305)), source=source).split("\n")
    assert max(map(len, lines)) < 190
    start = lines[2].index("^")
    assert lines[1][start : start + 4] == "HERE"
    assert lines[2].count("^") == 4


def test_colors_only_add_escapes() -> None:
    colored = text_of(NAME, UNUSED, color=True)
    assert "\x1b[31;1merror[VCG301]\x1b[0m" in colored
    assert "\x1b[33;1mwarning[VCG305]\x1b[0m" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == text_of(NAME, UNUSED)


def test_text_cannot_move_the_cursor() -> None:
    evil = Diagnostic("VCG101", "a\x1b[2Jb\nc", Span("a\x1b.yaml", 1, 1, 1, 2), "x\ry")
    shown = text_of(evil, source="\x1b[31mred\x07\n")
    assert not set(shown) & {"\x1b", "\x07", "\r"}
    assert shown.count("\n") == 6


def test_each_source_is_asked_for_once() -> None:
    asked: list[str] = []

    def sources(file: str) -> str:
        asked.append(file)
        return SOURCE

    render_diagnostics([NAME, UNUSED, WIDE], format="text", sources=sources)
    assert asked == ["model.yaml"]


def test_nothing_to_say() -> None:
    assert render_diagnostics([], format="text") == render_diagnostics([], format="github") == ""
    assert json.loads(render_diagnostics([], format="json"))["exit_code"] == 0
    assert json.loads(render_diagnostics([], format="sarif"))["runs"][0]["results"] == []


def test_json_is_stable() -> None:
    assert render_diagnostics([NAME, NOWHERE], format="json") == snapshot("""\
{
  "format": "vitcg-diagnostics",
  "version": 1,
  "counts": {
    "error": 2,
    "warning": 0,
    "info": 0
  },
  "exit_code": 3,
  "diagnostics": [
    {
      "code": "VCG100",
      "severity": "error",
      "message": "no descriptor `x`",
      "help": "check the path",
      "notes": [
        "first note",
        "second note"
      ],
      "span": null
    },
    {
      "code": "VCG301",
      "severity": "error",
      "message": "the name `kk` is not defined",
      "help": "did you mean `k`?",
      "notes": [],
      "span": {
        "file": "model.yaml",
        "line": 2,
        "column": 29,
        "end_line": 2,
        "end_column": 31
      }
    }
  ]
}
""")


def test_json_counts_and_exit_code() -> None:
    document = json.loads(render_diagnostics([UNUSED, OVER_LINES], format="json"))
    assert document["counts"] == {"error": 0, "warning": 1, "info": 1}
    assert document["exit_code"] == 0
    proof = Diagnostic("VCG601", "proof", None)
    assert json.loads(render_diagnostics([NAME, proof], format="json"))["exit_code"] == 6


def test_github_annotations() -> None:
    assert render_diagnostics([NAME, UNUSED, NOWHERE, OVER_LINES], format="github") == snapshot("""\
::error title=VCG100::no descriptor `x`%0Anote: first note%0Anote: second note%0Ahelp: check the path
::warning file=model.yaml,line=1,endLine=1,col=1,endColumn=6,title=VCG305::`k` is never used
::notice file=model.yaml,line=2,endLine=3,title=VCG203::over lines
::error file=model.yaml,line=2,endLine=2,col=29,endColumn=30,title=VCG301::the name `kk` is not defined%0Ahelp: did you mean `k`?
""")


def test_github_values_are_escaped() -> None:
    evil = Diagnostic("VCG101", "100% a\n::error::b\rc", Span("a,b:c%.yaml", 1, 1, 1, 2), "x\ny")
    assert render_diagnostics([evil], format="github") == snapshot(
        "::error file=a%2Cb%3Ac%25.yaml,line=1,endLine=1,col=1,endColumn=1,title=VCG101::100%25 a\\n::error::b\\rc%0Ahelp: x\\ny\n"
    )


@pytest.mark.parametrize(
    ("file", "folder", "name"),
    [
        ("./vllm/a.py", "", "vllm/a.py"),
        ("m.yaml", ".", "m.yaml"),
        ("./vllm/a.py", "ports/own", "ports/own/vllm/a.py"),
        ("../m.yaml", "ports", "m.yaml"),
        ("/a/m.yaml", "ports", "/a/m.yaml"),
    ],
)
def test_github_gets_names_from_the_root_of_the_repository(file: str, folder: str, name: str) -> None:
    found = Diagnostic("VCG101", "m", Span(file, 1, 1, 1, 2))
    assert f" file={name}," in render_diagnostics([found], format="github", folder=folder)
    uri = f"file://{name}" if name.startswith("/") else name
    assert f'"uri": "{uri}"' in render_diagnostics([found], format="sarif", folder=folder)
    assert f'"file": "{file}"' in render_diagnostics([found], format="json", folder=folder)


#: The part of the SARIF 2.1.0 schema that a log of ours uses, written from the specification (section 3).
_SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {"type": "object", "required": ["id"]},
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"type": "object", "required": ["text"]},
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "artifactLocation": {
                                                        "type": "object",
                                                        "properties": {
                                                            "uri": {"type": "string", "pattern": "^[!-~]*$"}
                                                        },
                                                    },
                                                    "region": {
                                                        "type": "object",
                                                        "additionalProperties": False,
                                                        "properties": {
                                                            key: {"type": "integer", "minimum": 1}
                                                            for key in (
                                                                "startLine",
                                                                "startColumn",
                                                                "endLine",
                                                                "endColumn",
                                                            )
                                                        },
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_sarif_is_valid_and_refers_to_its_rules() -> None:
    odd = Diagnostic("VCG102", "odd", Span("a b/ü#.yaml", 1, 1, 1, 2))
    absolute = Diagnostic("VCG102", "absolute", Span("/a b/c.yaml", 1, 1, 1, 2))
    log = json.loads(render_diagnostics([NAME, UNUSED, NOWHERE, WIDE, odd, absolute], format="sarif"))
    jsonschema.validate(log, _SARIF)
    [run] = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["VCG100", "VCG102", "VCG203", "VCG301", "VCG305"]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert all(rule["shortDescription"]["text"] for rule in run["tool"]["driver"]["rules"])
    uris = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"][1:]]
    assert {"a%20b/%C3%BC%23.yaml", "file:///a%20b/c.yaml", "model.yaml"} == set(uris)


def test_sarif_of_one() -> None:
    log = json.loads(render_diagnostics([NAME], format="sarif"))
    assert log["runs"][0]["results"] == snapshot(
        [
            {
                "ruleId": "VCG301",
                "ruleIndex": 0,
                "level": "error",
                "message": {
                    "text": """\
the name `kk` is not defined
help: did you mean `k`?\
"""
                },
                "locations": [
                    {
                        "physicalLocation": {
                            "artifactLocation": {"uri": "model.yaml"},
                            "region": {"startLine": 2, "startColumn": 29, "endLine": 2, "endColumn": 31},
                        }
                    }
                ],
            }
        ]
    )


def test_order_is_that_of_the_text_in_every_format() -> None:
    forwards, backwards = [NOWHERE, UNUSED, NAME, WIDE], [WIDE, NAME, UNUSED, NOWHERE]
    for format in FORMATS:
        assert render_diagnostics(forwards, format=format) == render_diagnostics(backwards, format=format)


def test_an_unknown_format() -> None:
    with pytest.raises(ValueError, match="expected one of text, json, github, sarif"):
        render_diagnostics([NAME], format="xml")


_texts = st.text(max_size=30)
_spans = st.builds(
    lambda file, line, column, lines, columns: Span(
        file, line, column, line + lines, column + columns if lines == 0 else columns + 1
    ),
    st.one_of(st.just("model.yaml"), _texts),
    st.integers(1, 6),
    st.integers(1, 60),
    st.integers(0, 2),
    st.integers(0, 30),
)
_diagnostics = st.builds(
    Diagnostic,
    st.sampled_from(["VCG101", "VCG305", "VCG601"]),
    _texts,
    st.one_of(st.none(), _spans),
    st.one_of(st.none(), _texts),
    st.sampled_from(Severity),
    st.lists(_texts, max_size=2).map(tuple),
)


@given(st.lists(_diagnostics, max_size=4), st.one_of(st.none(), _texts, st.just(SOURCE)), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_diagnostics_can_be_rendered(diagnostics: list[Diagnostic], source: str | None, color: bool) -> None:
    rendered = {
        format: render_diagnostics(diagnostics, format=format, color=color, sources=lambda _: source)
        for format in FORMATS
    }
    assert len(json.loads(rendered["json"])["diagnostics"]) == len(diagnostics)
    jsonschema.validate(json.loads(rendered["sarif"]), _SARIF)
    assert rendered["github"].count("\n") == len(diagnostics)
    assert rendered["text"].endswith("\n") or not diagnostics
