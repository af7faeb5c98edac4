"""Which repairs are right: the checks of the lab before and after each, compared by their names.

`prove_repairs` is told how to run the checks and decides from their results alone. A repair is kept if a check that
failed passes with it, each check that passed still does, and eager results stay the same bits. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scaffold.diagnostics import DiagnosticError
from scaffold.fix.remaining import Key, Kind, Remaining, judge, remaining
from scaffold.fix.repair import Repair
from scaffold.verify.numeric import TAILS, Check, NumericReport

_OFFSETS = "no attention sequence has a negative length"


@dataclass(frozen=True)
class Outcome:
    """One run of the checks, a report for each attention kernel."""

    reports: tuple[NumericReport, ...]

    @cached_property
    def checks(self) -> Mapping[Key, Check]:
        """The checks by name; of two with one name, one that failed. Sequences of negative length and each hazard,
        which a report counts for a whole run, are checks as well.
        """
        found: dict[Key, Check] = {}
        for report in self.reports:
            negative = report.negative_lengths
            detail = f"{negative} of {report.sequences} have one" if negative else ""
            whole = [Check(_OFFSETS, "all", not negative, detail=detail, code="VCG665")]
            whole += [Check(str(hazard), "all", False, code="VCG652") for hazard in report.hazards]
            for check in (*report.checks, *whole):
                key = (report.tail, check.modality, check.name)
                if key not in found or not check.passed:
                    found[key] = check
        return found

    @cached_property
    def failing(self) -> Mapping[Key, Check]:
        return {key: check for key, check in self.checks.items() if not check.passed}

    @cached_property
    def defects(self) -> Mapping[Key, Check]:
        """The failing checks that somebody can meet."""
        return {key: check for key, check in self.failing.items() if judge(check)[0] is not Kind.NO_DEFECT}

    @property
    def eager(self) -> int:
        """How many eager results were compared bit for bit, and are the same."""
        return sum(check.code == "VCG651" and check.passed for check in self.checks.values())

    @property
    def verdict(self) -> str:
        """One line: how many of the checks show a defect, and on which kernels."""
        kernels = ", ".join(TAILS[report.tail] for report in self.reports)
        return f"{len(self.defects)} of {len(self.checks)} checks fail ({kernels})"


@dataclass(frozen=True)
class Kept:
    """A repair, the checks that failed without it and pass with it, and all checks with it and those before."""

    repair: Repair
    mended: tuple[Key, ...]
    after: Outcome

    @property
    def place(self) -> str:
        """Where else the repair is, of one that is left."""
        thread = self.repair.thread
        return f"{thread} is an open pull request that has it" if thread else "it needs the one before"


@dataclass(frozen=True)
class Proven:
    """The checks before any repair, and the repairs that are kept.

    `left` are proven on top of those and not written: open pull requests of vLLM have them, or they need one that has.
    """

    before: Outcome
    kept: tuple[Kept, ...]
    left: tuple[Kept, ...] = ()

    @property
    def after(self) -> Outcome:
        """The checks with all that are kept."""
        return self.kept[-1].after if self.kept else self.before

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(kept.repair for kept in self.kept)

    @property
    def remaining(self) -> tuple[Remaining, ...]:
        """The meaning of what still fails, without what `left` mends."""
        mended = {key for one in self.left for key in one.mended}
        return remaining({key: check for key, check in self.after.failing.items() if key not in mended})


#: Runs the checks with these repairs in the tree; without any, on the tree as it is.
Run = Callable[[Sequence[Repair]], tuple[NumericReport, ...]]


def prove_repairs(
    repairs: Sequence[Repair],
    run: Run,
    *,
    with_open: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Proven:
    """Try the repairs that answer a failing check, one after the other, on top of those that are kept.

    Those that an open pull request of vLLM has come last, and are left unless `with_open`. A failing check shows its
    first fault only. So what is dropped is tried again after another repair was kept. `tell` gets a line for each
    decision. Raises `DiagnosticError` where the tree's own port cannot be run.
    """
    before = now = Outcome(run(()))
    for report in before.reports:
        if report.failure is not None:
            raise DiagnosticError(report.failure)
    tell(before.verdict)
    kept: list[Kept] = []
    pending = sorted(repairs, key=lambda repair: bool(repair.thread))
    while pending:
        for repair in pending:
            if not any(repair.answers(check) for check in now.failing.values()):
                continue
            after = Outcome(run([*(one.repair for one in kept), repair]))
            reason = _objection(now, after)
            if reason:
                tell(f"`{repair.name}` is not kept: {reason}")
                continue
            mended = _mended(now, after)
            kept.append(Kept(repair, mended, after))
            tell(f"`{repair.name}` mends {len(mended)} checks: {repair.so}, {repair.span}")
            now = after
            pending.remove(repair)
            break
        else:
            pending = []
    own = next((index for index, one in enumerate(kept) if one.repair.thread and not with_open), len(kept))
    return Proven(before, tuple(kept[:own]), tuple(kept[own:]))


def _mended(before: Outcome, after: Outcome) -> tuple[Key, ...]:
    return tuple(key for key in before.failing if key in after.checks and after.checks[key].passed)


def _objection(before: Outcome, after: Outcome) -> str:
    """Why a repair is wrong or useless, empty where it is neither."""
    for report in after.reports:
        if report.failure is not None:
            return f"{report.failure.code} {report.failure.message.partition(chr(10))[0]}"
    for key, check in before.checks.items():
        if check.passed and key not in after.checks:
            return f"the check {_shown(key)} is gone"
    for key, check in after.failing.items():
        if key not in before.failing:
            return f"the check {_shown(key)} fails with it: {check.code} {check.detail}"
    return "" if _mended(before, after) else "no failing check passes with it"


def _shown(key: Key) -> str:
    kernel, modality, name = key
    return f"`{name}` ({modality}, {kernel})"
