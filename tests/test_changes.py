"""How two texts differ: as difflib says where that is cheap, and at a bounded cost everywhere."""

from __future__ import annotations

import difflib
import random

import pytest

from scaffold import changes
from scaffold.changes import line_opcodes, unified_lines


def applied(old: list[str], new: list[str]) -> list[str]:
    """`new`, made of `old` by the opcodes, which must cover both texts in order."""
    result: list[str] = []
    at = (0, 0)
    for tag, a, b, c, d in line_opcodes(old, new):
        assert (a, c) == at
        result += old[a:b] if tag == "equal" else new[c:d]
        at = (b, d)
    assert at == (len(old), len(new))
    return result


@pytest.mark.parametrize("limit", [0, 20, changes._MAX_WORK])
def test_opcodes_make_the_new_text_of_the_old_one(monkeypatch, limit):
    monkeypatch.setattr(changes, "_MAX_WORK", limit)
    choose = random.Random(1)
    for _ in range(200):
        old, new = ([str(choose.randrange(4)) for _ in range(choose.randrange(20))] for _ in range(2))
        assert applied(old, new) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["a", "b", "c", "d", "e", "f", "g", "h"], ["a", "b", "c", "d", "e", "F", "g", "h"]),
        (["a", "b", "c"], ["a", "b", "c", "d"]),
        ([str(n) for n in range(40)], ["x", *(str(n) for n in range(40) if n != 30)]),
        (["a"], []),
        ([], ["a", "b"]),
        (["a"], ["a"]),
    ],
)
@pytest.mark.parametrize("context", [1, 3])
def test_unified_lines_are_those_of_difflib(old, new, context):
    expected = difflib.unified_diff(old, new, "x", "y", n=context, lineterm="")
    assert [*unified_lines(old, new, ("x", "y"), context=context)] == [*expected]


def blank(number: int) -> tuple[list[str], list[str]]:
    lines = [""] * number
    return [*"ab", *lines, "b", *lines, "b"], [*"xy", *lines, "y", *lines, "y"]


def alternating(number: int) -> tuple[list[str], list[str]]:
    """Every second line is equal, so each is a match of its own."""
    return [f"{n}" for n in range(number)], [f"{n}" if n % 2 else f"x{n}" for n in range(number)]


@pytest.mark.parametrize("texts", [blank, alternating])
def test_the_work_on_repeated_lines_is_bounded(monkeypatch, texts):
    """Pairs that difflib looks at, for lines of four sizes. Without the bound it takes the square and more."""
    done = 0

    def count(matcher: difflib.SequenceMatcher[str], alo: int, ahi: int, blo: int, bhi: int) -> difflib.Match:
        nonlocal done
        done += sum(1 + len(matcher.b2j.get(line, ())) for line in matcher.a[alo:ahi])
        return original(matcher, alo, ahi, blo, bhi)

    original = difflib.SequenceMatcher.find_longest_match
    monkeypatch.setattr(difflib.SequenceMatcher, "find_longest_match", count)

    def work(number: int) -> int:
        nonlocal done
        done = 0
        old, new = texts(number)
        assert applied(old, new) == new
        return done

    monkeypatch.setattr(changes, "_MAX_WORK", 10_000)
    assert max(map(work, (50, 100, 200, 400))) <= 10_000
    monkeypatch.setattr(changes, "_MAX_WORK", 10**9)
    assert work(400) > 3 * work(200) > 9 * work(100)
