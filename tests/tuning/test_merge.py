"""`benchmarks/tuning_merge.py`: which run a model is taken from, and what keeps runs apart."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from tuning_merge import merge, read


def run(tflops, **models):
    """A run whose models have rows of these times; None is a model that failed."""
    return {
        "machine": "GPU", "versions": {"vllm": "1"}, "backend": "FLASH_ATTN", "date": "2026-01-01",
        "ceilings": {"tflops": tflops}, "kernels": {"norm": tflops / 1e6}, "sweep": None,
        "models": {name: {"error": "no memory"} if ms is None else {"extra_mb": 0.0} for name, ms in models.items()},
        "rows": [{"model": name, "ms": ms} for name, ms in models.items() if ms is not None],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "times", "foreign"),
    [
        ([(run(1, a=1.0, b=2.0), [])], {"a": 1.0, "b": 2.0}, []),
        ([(run(1, a=1.0), []), (run(2, a=9.0, b=3.0), [])], {"a": 1.0, "b": 3.0}, ["b"]),
        ([(run(1, a=1.0, b=None), []), (run(2, b=3.0), [])], {"a": 1.0, "b": 3.0}, ["b"]),
        ([(run(1, a=1.0, b=2.0), ["a"]), (run(2, a=9.0, b=3.0), ["b"])], {"a": 1.0, "b": 3.0}, ["b"]),
    ],
)
def test_a_model_is_that_of_the_first_run_that_has_it(runs, times, foreign):
    merged = merge(runs)
    assert {row["model"]: row["ms"] for row in merged["rows"]} == times
    assert list(merged["models"]) == list(times)
    assert {name: found["run"] for name, found in merged["models"].items() if "run" in found} == {
        name: {"date": "2026-01-01", "ceilings": {"tflops": 2}} for name in foreign
    }
    assert merged["ceilings"] == {"tflops": 1}
    assert merged["kernels"]["norm"] == max(one["kernels"]["norm"] for one, _ in runs)


def test_runs_of_other_versions_do_not_fit():
    other = {**run(1, b=1.0), "versions": {"vllm": "2"}}
    with pytest.raises(ValueError, match="different versions"):
        merge([(run(1, a=1.0), []), (other, [])])


def test_names_behind_a_file(tmp_path):
    file = tmp_path / "run.json"
    file.write_text("{}", encoding="utf-8")
    assert read(str(file)) == ({}, [])
    assert read(f"{file}:a,b") == ({}, ["a", "b"])
