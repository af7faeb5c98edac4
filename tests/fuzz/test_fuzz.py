"""A share of the fuzzing that CI bears, with fixed seeds; `make fuzz` goes on from random ones until it is stopped."""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fuzzing

from scaffold.publish import disk


@pytest.mark.trees
@pytest.mark.parametrize(
    ("kind", "count", "wanted"),
    [
        ("descriptor", 1000, {"accepted": 50, "refused": 500}),
        ("port", 30, {"ported": 3}),
        ("trace", 100, {"accepted": 10, "refused": 30}),
        ("store", 100, {"refused": 20, "all done": 5}),
        ("kill", 30, {"before its end": 1}),
    ],
)
def test_no_input_breaks_it(kind: str, count: int, wanted: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """And enough of the trials get as far as they should, or they show nothing."""
    monkeypatch.setattr(disk, "fsync", lambda _: None)
    ends: collections.Counter[str] = collections.Counter()
    assert fuzzing.run(kind, range(count), ends) == 0
    for end, least in wanted.items():
        assert ends[end] >= least, ends


def test_a_failure_is_printed_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(rng: object) -> str:
        raise KeyError("a bug")

    monkeypatch.setitem(fuzzing.KINDS, "trace", broken)
    assert fuzzing.run("trace", range(7, 9), collections.Counter()) == 2
    assert "FAILED: python tests/fuzz/fuzzing.py trace --seed 8" in capsys.readouterr().out
