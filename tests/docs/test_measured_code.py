"""A result says which code it measured, and its page whether that is today's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import measured_code
from gpu_result import head

MODULE = '"""A module."""\n\n\ndef double(x):\n    """Twice `x`."""\n    return 2 * x\n'


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (MODULE.replace("A module", "Another text"), True),
        (MODULE.replace('    """Twice `x`."""\n', "") + "# a remark\n", True),
        (MODULE.replace("2 * x", "(2  *  x)"), True),
        (MODULE.replace("2 * x", "x * 2"), False),
        (MODULE.replace("2 * x", "2 * x + 0"), False),
        (MODULE + "VALUE = 'a string that is no docstring'\n", False),
    ],
)
def test_a_digest_follows_the_code_and_not_its_words(tmp_path: Path, monkeypatch, text: str, same: bool) -> None:
    monkeypatch.setattr(measured_code, "ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text(MODULE, encoding="utf-8")
    before = measured_code.digest_of([file])
    file.write_text(text, encoding="utf-8")
    assert (measured_code.digest_of([file]) == before) is same


def test_another_file_is_another_digest(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(measured_code, "ROOT", tmp_path)
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    for file in (one, other):
        file.write_text(MODULE, encoding="utf-8")
    assert len({measured_code.digest_of(files) for files in ([one], [other], [one, other])}) == 3


def test_a_page_tells_todays_code_from_that_of_a_result(monkeypatch) -> None:
    monkeypatch.setenv("VITCG_COMMIT", "0123456789abcdef")
    result = head("a machine", "0.33.0")
    assert measured_code.told(result) == "`01234567`"
    assert measured_code.told({**result, "code": {**result["code"], "digest": "0"}}) == "changed since `01234567`"
    assert measured_code.told({"date": "2026-01-01"}) == "not recorded"
