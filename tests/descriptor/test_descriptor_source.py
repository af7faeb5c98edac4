"""YAML text to positioned nodes: limits, encodings, and the place of each character of a scalar."""

from __future__ import annotations

import random
import time

import pytest
import yaml
from descriptor_documents import DOCUMENTS, TILES, report_of
from test_descriptor_mistakes import MISTAKES, Mistake

from scaffold.descriptor import source
from scaffold.descriptor.schema import scalar_kind
from scaffold.descriptor.source import (
    MAX_BYTES,
    MappingNode,
    ScalarNode,
    SequenceNode,
    decode_source,
    parse_source,
)


def _scalar(text: str) -> ScalarNode:
    root, problems = parse_source(f"key: {text}\n", "a.yaml")
    assert not problems
    assert isinstance(root, MappingNode)
    node = root.entries[0].value
    assert isinstance(node, ScalarNode)
    return node


@pytest.mark.parametrize(
    ("text", "part", "columns"),
    [
        ("a + bb", "bb", (10, 12)),
        ("'a + bb'", "bb", (11, 13)),
        ("'it''s bb'", "bb", (13, 15)),
        ('"a + bb"', "bb", (11, 13)),
        ('"\\t\\x41 \\u00e9 bb"', "bb", (21, 23)),
        ("größe + bb", "bb", (14, 16)),
        ("𝕏 + bb", "bb", (10, 12)),
    ],
)
def test_parts_of_a_scalar_have_their_place(text: str, part: str, columns: tuple[int, int]) -> None:
    node = _scalar(text)
    start = node.value.index(part)
    span = node.span_of(start, start + len(part))
    assert (span.line, span.column, span.end_column) == (1, *columns)


@pytest.mark.parametrize("text", ["|\n  a + bb\n", ">-\n  a +\n  bb\n", "a +\n  bb\n", '"a +\n  bb"'])
def test_a_scalar_over_lines_is_one_place(text: str) -> None:
    node = _scalar(text)
    assert node.span_of(4, 6) == node.span


def test_a_mapping_ends_where_its_text_ends() -> None:
    root, _ = parse_source("a:\n  b: 1\n  c: [1,\n    2]\n\n# comment\nd: 3\n", "a.yaml")
    assert isinstance(root, MappingNode)
    inner = root.entries[0].value
    assert isinstance(inner, MappingNode)
    listing = inner.entries[1].value
    assert isinstance(listing, SequenceNode)
    assert (listing.span.line, listing.span.column, listing.span.end_line, listing.span.end_column) == (3, 6, 4, 7)
    assert (root.span.end_line, root.span.end_column) == (7, 5)


@pytest.mark.parametrize(
    ("text", "kind", "trap"),
    [
        ("a", "str", False), ("'no'", "str", False), ("no", "bool", True), ("On", "bool", True),
        ("true", "bool", False),         ("y", "str", False),
        ("~", "null", False), ("''", "str", False), ("0", "int", False), ("-12", "int", False),
        ("012", "int", True), ("0x1f", "int", True), ("0b1", "int", True), ("1_0", "int", True), ("1:20", "int", True),
        ("1:20.5", "float", True), ("1.5", "float", False), (".inf", "float", False), ("1e3", "float", False),
        ("2024-1-1", "date", True), ("2024-01-01 10:00:00", "date", True), ("1.2.3", "str", False),
    ],
)  # fmt: skip
def test_what_yaml_makes_of_a_scalar(text: str, kind: str, trap: bool) -> None:
    assert scalar_kind(_scalar(text)) == (kind, trap)


def test_traps_are_those_that_yaml_1_1_has() -> None:
    for text in ("no", "On", "yes", "012", "0x1f", "0b1", "1_0", "1:20", "2024-01-01", "1:20.5"):
        assert not isinstance(yaml.safe_load(text), str), text


@pytest.mark.parametrize(
    ("data", "code", "place"),
    [
        (b"a: \xff\n", "VCG102", (1, 4)),
        (b"a: 1\nb: \xc3\xa9\xc3", "VCG102", (2, 5)),
        ("a: 1\n".encode("utf-16"), "VCG102", (1, 1)),
        (b"a" * (MAX_BYTES + 1), "VCG105", (1, 1)),
    ],
)
def test_bytes_that_are_no_descriptor(data: bytes, code: str, place: tuple[int, int]) -> None:
    text, [problem] = decode_source(data, "a.yaml")
    assert text is None
    assert problem.span is not None
    assert (problem.code, (problem.span.line, problem.span.column)) == (code, place)


@pytest.mark.parametrize("change", [lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n")])
def test_byte_order_mark_and_line_ends_do_not_move_positions(change: object) -> None:
    wrong = TILES.replace("n * k", "n * kk")
    assert report_of(change(wrong)) == report_of(wrong)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: &a [*a]\n", "VCG109"),
        ("a: &a [1]\n" + "\n".join(f"b{i}: &b{i} [*a, *a]" for i in range(50)), "VCG109"),
        ("[" * 4000, "VCG108"),
        ("a: " + "{a: " * 40 + "1" + "}" * 40, "VCG108"),
        ("- " * 3000 + "a", "VCG108"),
        ("[" + "1," * 6000 + "]", "VCG105"),
        ("a" * (MAX_BYTES + 1), "VCG105"),
        ("a: \ud800\n", "VCG104"),
        ('a: "\\U00110000"\n', "VCG101"),
        ('a: "\\ud800"\n', "VCG101"),
        ("!!python/object/apply:os.system ['true']\n", "VCG112"),
    ],
)
@pytest.mark.parametrize("libyaml", [True, False])
def test_hostile_texts_are_refused(text: str, code: str, libyaml: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not libyaml:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    _, problems = parse_source(text, "a.yaml")
    assert code in {problem.code for problem in problems}


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("a" * (MAX_BYTES + 1), "VCG105", (1, 1)),
        ("a: 1\nb: " + "[{" * 9, "VCG108", (2, 20)),
        ("b: " + '[ "]", ' * 20, "VCG108", (1, 116)),
        ("b: " + "[ # ]\n" * 20, "VCG108", (17, 1)),
        ("b: " + "{a: ']', b: " * 20, "VCG108", (1, 196)),
        ('"a #": ' + "[" * 20, "VCG108", (1, 24)),
        ('# ["\na: ' + "[" * 20 + '"', "VCG108", (2, 19)),
        ("a: 1\n" + "- ? " * 9, "VCG108", (2, 33)),
        ("\n".join(" " * level + "a:" for level in range(20)), "VCG108", (17, 17)),
        ("\n".join(" " * level + '- a: "\n"' for level in range(20)), "VCG108", (29, 17)),
    ],
)
def test_limits_hold_before_any_parser(
    text: str, code: str, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml, "parse", lambda *_, **__: pytest.fail("a parser sees it"))
    _, [problem] = parse_source(text, "a.yaml")
    assert problem.span is not None
    assert (problem.code, (problem.span.line, problem.span.column)) == (code, place)


#: Of these texts are made that look deeper or less deep than they are.
_PIECES = (
    *"[]{},:#-a\n\t'\" \\", ": ", " #", "- ", "? ", "''", '\\"', "|\n", ">", "&a ", "*a", "!t ", "\n ", "\n  ",
    "['", '["', '"]', "']", ", '", ', "', "{a: ", "[[", "- - ", "a:", "a:\n", "\n- ", "--- ", "\n---\n", "%a\n",
    '"]", ', "a: ']', ", " # ]\n", ' "\n"', "\n a:",
)  # fmt: skip


def test_no_text_is_deeper_than_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a column and of a bracket there are two levels at most, for both parsers."""
    limit = 2
    monkeypatch.setattr(source, "MAX_DEPTH", limit)
    rng = random.Random(0)
    found = []
    for _ in range(20_000):
        pieces = rng.sample(_PIECES, rng.randint(2, 8))
        start, again = ("".join(rng.choices(pieces, k=rng.randint(0, 4))) for _ in range(2))
        indented = rng.random() < 0.5
        text = start + "".join(again.replace("\n", "\n" + " " * level * indented) for level in range(10))
        if source._find_too_deep(text, "a.yaml") is None:
            found.append(max(_depth(text, loader) for loader in (yaml.SafeLoader, yaml.CSafeLoader)))
            assert found[-1] <= 4 * limit, text
    assert sum(depth > limit for depth in found) > 10, "or the texts show nothing"


def _depth(text: str, loader: type) -> int:
    """How deep a parser gets."""
    depth = deepest = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            deepest = max(deepest, depth)
    except (yaml.YAMLError, ValueError):
        pass
    return deepest


@pytest.mark.parametrize(
    "text",
    [
        "# " + "(don't [" * 12,
        "a: [" + "[1, 2], " * 400 + "]",
        "a: [" + "['[x]', \"{y}\"], " * 400 + "]",
        "a:\n" + "  - [a,  # it's one\n     b]  # [c] and 'd\n" * 400,
        "a: >\n" + "".join(f"{' ' * (at % 40 + 2)}text\n" for at in range(400)),
    ],
    ids=lambda text: text[:24],
)
def test_width_is_not_depth(text: str) -> None:
    assert source._find_too_deep(text, "a.yaml") is None


@pytest.mark.parametrize("libyaml", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "%FOO\n--- " + "[" * 20_000,  # libyaml stops at the directive, PyYAML's own parser goes on
        "%FOO\n--- " + "{a: " * 5_000,
        "%FOO\n---\n" + "- " * 10_000,
        "%FOO\n---\n" + "[\n" * 10_000,
        "%FOO\n--- [" + "a," * 60_000,
        "%FOO\n---\n" + "a: b\n" * 25_000,
        "[" * 900 + "@",
    ],
    ids=lambda text: text[:16] + text[-4:],
)
def test_no_text_takes_long(text: str, libyaml: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 kB the first took a minute. A descriptor of a page takes milliseconds."""
    if not libyaml:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    begin = time.process_time()
    _, problems = parse_source(text, "a.yaml")
    assert problems
    assert time.process_time() - begin < 3


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_reports_do_not_depend_on_libyaml(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    with_libyaml = report_of(mistake.text)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert report_of(mistake.text) == with_libyaml


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nodes_do_not_depend_on_libyaml(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_libyaml = parse_source(DOCUMENTS[name], "a.yaml")
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert parse_source(DOCUMENTS[name], "a.yaml") == with_libyaml
