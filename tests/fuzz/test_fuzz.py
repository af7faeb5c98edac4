"""A share of the fuzzing that CI bears, with fixed seeds; `make fuzz` goes on from random ones until it is stopped."""

from __future__ import annotations

import collections
import json
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
        ("descriptor", 1500, {"accepted": 75, "refused": 750}),
        ("port", 15, {"ported": 1}),
        ("trace", 100, {"accepted": 10, "refused": 30}),
        ("store", 40, {"refused": 8, "all done": 2}),
        ("kill", 30, {"before its end": 1}),
        ("call", 30, {"refused by validate": 10, "refused in the tree": 1, "ran": 1}),
        pytest.param("descriptor", 3000, {"accepted": 150, "refused": 1500}, marks=pytest.mark.slow),
        pytest.param("store", 100, {"refused": 20, "all done": 5}, marks=pytest.mark.slow),
        pytest.param("port", 60, {"ported": 5}, marks=pytest.mark.slow),
        pytest.param(
            *("call", 300, {"refused by validate": 100, "refused in the tree": 5, "ran": 5}), marks=pytest.mark.slow
        ),
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


def test_a_run_that_was_stopped_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every seed is tried once, and the record says with which version of the code."""
    seeds: list[int] = []

    def stopped(rng: object) -> str:
        if len(seeds) == 3:
            raise KeyboardInterrupt
        return "good"

    def trial(kind: str, seed: int) -> str:
        end = fuzzing.KINDS[kind](seed)  # type: ignore[arg-type]
        seeds.append(seed)
        if seed == 5:
            raise KeyError("a bug")
        return end

    record = tmp_path / "fuzz.json"
    monkeypatch.setattr(fuzzing, "trial", trial)
    monkeypatch.setattr(fuzzing, "code_version", lambda: "one")
    monkeypatch.setitem(fuzzing.KINDS, "trace", stopped)
    with pytest.raises(KeyboardInterrupt):
        fuzzing.resume("trace", 8, record)
    monkeypatch.setitem(fuzzing.KINDS, "trace", lambda rng: "good")
    assert fuzzing.resume("trace", 4, record) == 0
    monkeypatch.setattr(fuzzing, "code_version", lambda: "two")
    assert fuzzing.resume("trace", 4, record) == 0, "nothing is left to do"
    assert fuzzing.resume("trace", 8, record) == 1
    monkeypatch.setattr(fuzzing, "code_version", lambda: "three")
    assert fuzzing.resume("trace", 8, record) == 1, "a failure stays on record"

    assert seeds == list(range(8))
    found = {
        run["code"]: (run["seeds"], run["ends"], run["failed_seeds"]) for run in json.loads(record.read_text())["trace"]
    }
    assert found == {"one": ([0, 4], {"good": 4}, []), "two": ([4, 8], {"good": 3}, [5])}


def test_the_version_of_the_code_is_that_of_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuzzing, "ROOT", tmp_path)
    versions = set()
    for path, text in (
        ("scaffold/a.py", "1"),
        ("scaffold/a.py", "2"),
        ("templates/b.j2", "2"),
        ("scaffold/__pycache__/c", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        versions.add(fuzzing.code_version())
    assert len(versions) == 3


def test_the_page_adds_up_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(fuzzing.ROOT / "benchmarks"))
    import measured_fuzz

    runs = [
        {
            "code": "one",
            "date": "2026-01-01",
            "seeds": [0, 1000],
            "ends": {"refused": 700, "accepted": 300},
            "failed_seeds": [],
        },
        {"code": "two", "date": "2026-01-02", "seeds": [1000, 1500], "ends": {"refused": 499}, "failed_seeds": [1007]},
    ]
    monkeypatch.setattr(measured_fuzz, "load", lambda name: {"trace": runs})
    assert measured_fuzz.tried().splitlines()[-1] == (
        "| changed traces, read and fitted | 1,500 | accepted 300, refused 1,199 | 1 | 2 |"
    )
