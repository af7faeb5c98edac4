"""Mistakes planted into a port: each replaces a fragment of the file, and must be reported with a code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from changed_ports import port_of

from scaffold.verify.numeric import NumericReport, NumericRequest, check_numerics_all
from scaffold.workflow import numeric_requests


@dataclass(frozen=True)
class Mutant:
    """`code` is the diagnostic that must be among the report's; empty for a change that is right. `says` is what a
    contributor must be told of the cause. `after` is appended where there is no `before`."""

    name: str
    before: str
    after: str
    code: str = ""
    says: str = ""
    #: A second fragment, where one alone leaves a second look at the same mistake.
    also: tuple[str, str] = ("", "")


def id_of(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "-")


#: What only all calls decide: whether a port is right, and whether it is of any use.
LATE = ("", "VCG657")


def cases(mutants: Sequence[Mutant], *codes: str) -> list[Any]:
    """The parameters of a test of `mutants`. A pull request runs what is right, and the first mistake that few calls
    show: it finds a lab that is blind to this port. It also runs the first of each of `codes`, which finds a check that
    is broken: `tests/numeric` has all. `make test-all` runs every mutant, which finds a guard that no call needs."""
    first = {mutant.code: mutant for mutant in reversed(mutants)}
    early = [mutant for mutant in mutants if mutant.code not in LATE]
    run = [first[code] for code in ("", *codes) if code in first] + (early or [*mutants])[:1]
    return [pytest.param(one, id=id_of(one), marks=() if one in run else pytest.mark.slow) for one in mutants]


def is_rejected(report: NumericReport, mutant: Mutant) -> bool:
    """Whether a report names the mistake."""
    problems = [problem for problem in report.diagnostics() if problem.code == mutant.code]
    return not report.passed and any(mutant.says in f"{problem.message} {problem.help}" for problem in problems)


def assert_rejected(report: NumericReport, mutant: Mutant) -> None:
    assert is_rejected(report, mutant), "\n".join(report.lines())


def mixin_of(request: NumericRequest, path: str) -> str:
    """The file that the port shares with others; its own file without one."""
    return next((path for path in request.overlay if "encoder_cudagraph_" in path), path)


def reports_of(
    request: NumericRequest, path: str, mutants: Sequence[Mutant], asked: Sequence[Any]
) -> dict[str, NumericReport]:
    """The report of each of `mutants` that is `asked` for, in the file `path` of a port, or in its mixin, from one
    import of its release. That each of them can be planted is asserted all the same.

    Without an overlay, the file is the release's own.
    """
    requests = {}
    overlay = request.overlay or {path: (request.tree / path).read_bytes()}
    for mutant in mutants:
        place = path if mutant.before in overlay[path].decode() else mixin_of(request, path)
        right = overlay[place].decode()
        for fragment in (mutant.before, mutant.also[0]):
            assert fragment in right, f"{mutant.name}: a fragment is not in {place}"
        changed = right.replace(mutant.before, mutant.after) if mutant.before else right + mutant.after
        changed = changed.replace(*mutant.also) if mutant.also[0] else changed
        assert changed != right, mutant.name
        if mutant in asked:
            requests[mutant.name] = replace(request, overlay={**overlay, place: changed.encode()})
    # Most are rejected in the calls of the first manager, which are a part of all calls. Only the others get all that
    # `verify` runs, and what is right or of no use (VCG657), which all calls decide.
    mutants = [mutant for mutant in mutants if mutant.name in requests]
    early = [mutant.name for mutant in mutants if mutant.code not in LATE]
    short = [replace(requests[name], options=replace(request.options, short=True)) for name in early]
    reports = dict(zip(early, check_numerics_all(short), strict=True))
    late = [m.name for m in mutants if m.name not in reports or not is_rejected(reports[m.name], m)]
    return {**reports, **dict(zip(late, check_numerics_all(requests[name] for name in late), strict=True))}


def planted(
    mutants: Sequence[Mutant], path: str, release: str, *port: Any, recipe: str | None = None, sampled: bool = True
) -> Any:
    """A test that each of `mutants` in the file `path` of a port is rejected. `port` is what `port_of` takes.

    A pull request runs a sample of them (`cases`), or with `sampled=False` none.
    """
    reports: dict[str, NumericReport] = {}
    parameters = cases(mutants) if sampled else [pytest.param(one, id=id_of(one)) for one in mutants]

    @pytest.mark.trees
    @pytest.mark.lab
    @pytest.mark.parametrize("mutant", parameters)
    def test(mutant: Mutant, release_tree: Any, asked: list[Mutant]) -> None:
        if not reports:
            [request] = numeric_requests(port_of(*port), release_tree(release), recipe=recipe)
            reports.update(reports_of(request, path, mutants, asked))
        assert_rejected(reports[mutant.name], mutant)

    return test if sampled else pytest.mark.slow(test)
