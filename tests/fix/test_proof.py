"""Which repairs are kept: outcomes by name of a check. A run is a table here: repairs to what fails with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.fix import fixing
from scaffold.fix.proof import Outcome, prove_repairs
from scaffold.fix.remaining import Kind, remaining
from scaffold.fix.repair import Repair
from scaffold.verify.numeric import Check, NumericReport
from scaffold.verify.numeric.reports import ObservedHazard
from scaffold.workflow import load_port

#: Checks of the run, by name; a code stands for a failure.
Codes = dict[str, str]
RIGHT: Codes = {"a": "", "b": "", "c": ""}


def repair(name: str, *codes: str, thread: str = "") -> Repair:
    span = Span("m.py", 1, 1, 1, 2)
    return Repair(name, "m.py", "C", ("m",), span, (), "wrong", "right", lambda check: check.code in codes, thread)


def report(codes: Codes, tail: str = "fa2", *, eager: bool = False, negative: int = 0) -> NumericReport:
    checks = [Check(name, "image", not code, detail=f"why {code}" * bool(code), code=code or "VCG650")
              for name, code in codes.items()]  # fmt: skip
    checks += [Check("eager unchanged: a", "image", True, code="VCG651")] * eager
    return NumericReport("m", "", tail, tuple(checks), negative_lengths=negative, sequences=9)  # type: ignore[arg-type]


class Lab:
    """What fails with which repairs, by their names; every call is noted."""

    def __init__(self, table: dict[str, Codes | NumericReport]) -> None:
        self.table = table
        self.asked: list[str] = []

    def __call__(self, repairs: Sequence[Repair]) -> tuple[NumericReport, ...]:
        self.asked.append("+".join(one.name for one in repairs))
        found = self.table[self.asked[-1]]
        return (found if isinstance(found, NumericReport) else report(RIGHT | found, eager=bool(repairs)),)


R, S = repair("r", "VCG654"), repair("s", "VCG650")
OPEN = repair("open", "VCG658", thread="#1")


def test_a_repair_that_mends_is_kept():
    lab = Lab({"": {"a": "VCG654"}, "r": {}})
    lines: list[str] = []
    proven = prove_repairs([R, S], lab, tell=lines.append)
    assert lab.asked == ["", "r"], "nothing asks for the others"
    assert [(kept.repair.name, kept.mended) for kept in proven.kept] == [("r", (("fa2", "image", "a"),))]
    assert (len(proven.before.failing), len(proven.after.failing), proven.after.eager) == (1, 0, 1)
    assert lines == ["1 of 4 checks fail (fa2 attention tails)", "`r` mends 1 checks: right, m.py:1:1"]


def test_nothing_fails_and_nothing_is_tried():
    lab = Lab({"": {}})
    proven = prove_repairs([R, S], lab)
    assert (lab.asked, proven.kept, proven.after is proven.before) == ([""], (), True)


#: with the repair, and why it is dropped
OBJECTIONS: dict[str, tuple[Codes | NumericReport, str]] = {
    "it mends nothing": ({"a": "VCG654"}, "no failing check passes with it"),
    "another code is no pass": ({"a": "VCG657"}, "no failing check passes with it"),
    "it spoils another check": ({"b": "VCG650"}, "the check `b` (image, fa2) fails with it: VCG650 why VCG650"),
    "eager results change": (
        {"eager: z": "VCG651"}, "the check `eager: z` (image, fa2) fails with it: VCG651 why VCG651"),
    "a check is gone": (report({"a": "", "b": ""}), "the check `c` (image, fa2) is gone"),
    "offsets fall": (
        report(RIGHT, negative=2),
        "the check `no attention sequence has a negative length` (all, fa2) fails with it: VCG665 2 of 9 have one"),
    "it does not run": (
        NumericReport("m", "", "fa2", failure=Diagnostic("VCG654", "raised\nat length")), "VCG654 raised"),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTIONS)
def test_a_repair_is_dropped(name):
    after, reason = OBJECTIONS[name]
    lines: list[str] = []
    proven = prove_repairs([R], Lab({"": {"a": "VCG654"}, "r": after}), tell=lines.append)
    assert proven.kept == ()
    assert lines[1:] == [f"`r` is not kept: {reason}"]
    assert proven.after is proven.before


def test_a_hazard_that_a_repair_brings_drops_it():
    hazard = ObservedHazard("host sync", "item", "m.py:3", "capture")
    worse = NumericReport("m", "", "fa2", report(RIGHT).checks, hazards=(hazard,), sequences=9)
    lines: list[str] = []
    assert prove_repairs([R], Lab({"": {"a": "VCG654"}, "r": worse}), tell=lines.append).kept == ()
    assert "fails with it: VCG652" in lines[1]


@pytest.mark.parametrize("code", ["VCG661", "VCG670"])
def test_a_failing_check_that_is_gone_is_not_mended(code):
    repairs = [replace(R, answers=lambda check: True)]
    proven = prove_repairs(repairs, Lab({"": report({"a": code}), "r": report({"b": ""})}))
    assert (proven.repairs, [check.code for check in proven.after.failing.values()]) == ((), [code])


@pytest.mark.trees
def test_a_repair_is_asked_for_the_check_of_split_layers(release_tree, monkeypatch):
    """Where it makes a layer whole, none may be split any more. The port as it is has the checks of `verify`."""
    asked = []

    def check(requests, watch):
        asked.append([request.options.whole_layers for request in requests])
        whole = bool(requests[0].overlay)
        return tuple(replace(report({"a": "" if whole else "VCG670"}), tail=request.tail) for request in requests)

    monkeypatch.setattr(fixing, "check_numerics_all", check)
    fix = fixing.fix_port(load_port("mllama4"), release_tree("0.33.0"))
    assert (asked, len(fix.proven.repairs)) == ([[False, False], [True, True]], 1)


def test_what_was_dropped_is_tried_again_on_top_of_another():
    """A check shows its first fault only: `r` mends nothing before `s` did."""
    lab = Lab(
        {"": {"a": "VCG654", "b": "VCG650"}, "r": {"a": "VCG654", "b": "VCG650"}, "s": {"a": "VCG654"}, "s+r": {}}
    )
    proven = prove_repairs([R, S], lab)
    assert lab.asked == ["", "r", "s", "s+r"]
    assert [one.name for one in proven.repairs] == ["s", "r"]


def test_what_an_open_pull_request_has_comes_last_and_is_left():
    """And with it what mends nothing before it. It is proven all the same, and no defect any more."""
    table: dict[str, Codes | NumericReport] = {
        "": {"a": "VCG654", "b": "VCG650", "c": "VCG658"}, "r": {"a": "VCG654", "b": "VCG650", "c": "VCG658"},
        "s": {"a": "VCG654", "c": "VCG658"}, "s+r": {"a": "VCG654", "c": "VCG658"}, "s+open": {"a": "VCG654"},
        "s+open+r": {},
    }  # fmt: skip
    proven = prove_repairs([OPEN, R, S], lab := Lab(table))
    assert lab.asked == ["", "r", "s", "s+r", "s+open", "s+open+r"]
    assert [one.name for one in proven.repairs] == ["s"]
    assert [(one.repair.name, one.mended) for one in proven.left] == [
        ("open", (("fa2", "image", "c"),)), ("r", (("fa2", "image", "a"),)),
    ]  # fmt: skip
    assert [one.place for one in proven.left] == ["#1 is an open pull request that has it", "it needs the one before"]
    assert ([*proven.after.failing.values()] != [], proven.remaining) == (True, ())

    both = prove_repairs([OPEN, R, S], Lab(table), with_open=True)
    assert ([one.name for one in both.repairs], both.left) == (["s", "open", "r"], ())
    assert both.after == proven.left[-1].after


def test_an_open_pull_request_whose_repair_is_wrong_here_mends_nothing():
    proven = prove_repairs([OPEN], Lab({"": {"c": "VCG658"}, "open": {"a": "VCG650"}}))
    assert (proven.kept, proven.left, [one.kind for one in proven.remaining]) == ((), (), [Kind.DEFECT])


def test_a_repair_on_top_must_keep_the_eager_bits_of_the_run_before():
    lab = Lab({"": {"a": "VCG654", "b": "VCG650"}, "r": {"b": "VCG650"}, "r+s": report(RIGHT)})
    lines: list[str] = []
    proven = prove_repairs([R, S], lab, tell=lines.append)
    assert [one.name for one in proven.repairs] == ["r"]
    assert lines[-1] == "`s` is not kept: the check `eager unchanged: a` (image, fa2) is gone"


def test_a_failure_that_nobody_can_meet_is_no_defect():
    lab = Lab({"": {"a": "VCG654", "b": "VCG657", "c": "VCG662"}, "r": {"b": "VCG657", "c": "VCG662"}})
    lines: list[str] = []
    proven = prove_repairs([R], lab, tell=lines.append)
    assert lines[0] == "1 of 4 checks fail (fa2 attention tails)"
    assert (len(proven.before.defects), len(proven.after.defects), len(proven.after.failing)) == (1, 0, 2)


def test_a_repair_that_brings_what_is_no_defect_is_dropped():
    lines: list[str] = []
    assert prove_repairs([R], Lab({"": {"a": "VCG654"}, "r": {"b": "VCG657"}}), tell=lines.append).kept == ()
    assert "the check `b` (image, fa2) fails with it: VCG657" in lines[1]


def test_a_port_that_does_not_run_is_an_error():
    broken = NumericReport("m", "", "fa2", failure=Diagnostic("VCG667", "no port"))
    with pytest.raises(DiagnosticError, match="VCG667"):
        prove_repairs([R], Lab({"": broken}))


def test_names_are_of_one_kernel_and_of_two_equal_ones_the_failing_counts():
    twice = NumericReport("m", "", "fa2", (*report({"a": ""}).checks, *report({"a": "VCG650"}).checks), sequences=9)
    outcome = Outcome((twice, report({"a": ""}, "fa3")))
    assert [*outcome.failing] == [("fa2", "image", "a")]
    assert len(outcome.checks) == 4, "and two for the offsets"
    again = NumericReport("m", "", "fa2", twice.checks[::-1], sequences=9)
    assert [*Outcome((again,)).failing] == [("fa2", "image", "a")]


KINDS = [
    (Check("items replayed", "image", False, code="VCG657"), Kind.NO_DEFECT),
    (Check("a context of 3 tokens", "image", False, code="VCG662"), Kind.NO_DEFECT),
    (Check("budget 8: capture", "image", False, detail="ValueError: Invalid minimum budget 9", code="VCG654"),
     Kind.NO_DEFECT),
    (Check("budget 8: capture", "image", False, detail="ValueError: shapes", code="VCG654"), Kind.DEFECT),
    (Check("budget 8: mixed", "image", False, detail="Invalid minimum budget", code="VCG654"), Kind.DEFECT),
    (Check("precomputed embeddings, one item", "image", False, code="VCG660"), Kind.UPSTREAM),
    (Check("more frames", "video", False, code="VCG666"), Kind.UPSTREAM),
    (Check("edges: one frame more than a graph holds, call 1", "video", False, code="VCG654"), Kind.UPSTREAM),
    (Check("edges: one frame more than a graph holds, call 1", "video", False, code="VCG650"), Kind.DEFECT),
    (Check("mixed", "image", False, code="VCG658"), Kind.DEFECT),
]  # fmt: skip


@pytest.mark.parametrize(("check", "kind"), KINDS)
def test_what_a_failing_check_means(check, kind):
    (found,) = remaining(Outcome((NumericReport("m", "", "fa2", (check,)),)).failing)
    assert found.kind is kind


def test_what_remains_is_grouped_with_defects_first():
    checks = (
        Check("small", "image", False, code="VCG657"),
        Check("one", "image", False, detail="alias", code="VCG658"),
        Check("two", "image", False, detail="alias", code="VCG658"),
    )
    outcome = Outcome((NumericReport("m", "", "fa2", checks), NumericReport("m", "", "fa3", checks[1:2])))
    found = remaining(outcome.failing)
    assert str(found[0]) == "VCG658, 3 checks on fa2, fa3: image one (and 1 more): alias"
    assert [one.kind for one in found] == [Kind.DEFECT, Kind.NO_DEFECT]
