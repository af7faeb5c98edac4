"""The text of a pull request for a fix: it claims the repairs that were proven, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from scaffold.fix.fixing import Fix
from scaffold.fix.remaining import Key, Kind
from scaffold.fix.repair import Repair
from scaffold.pull_request import changed_lines, open_points, under_headings


def fix_title(fix: Fix) -> str:
    """A title with the tags that the guide asks for."""
    return f"[Bugfix][Multimodal] Encoder CUDA graphs of {fix.port.class_name}: {_listed(fix)}"


def _listed(fix: Fix) -> str:
    return ", ".join(repair.name for repair in fix.proven.repairs)


def describe_fix(fix: Fix, *, command: str) -> str:
    """The description in Markdown, under the headings of the tree's own template. `command` runs the checks again."""
    purpose, plan, result = list(_purpose(fix)), list(_plan(fix)), list(_result(fix, command))
    notes = list(_notes(fix))
    return under_headings(fix.tree, purpose, plan, result, notes)


def _purpose(fix: Fix) -> Iterator[str]:
    yield f"Repair the encoder CUDA graphs of `{fix.port.class_name}`: {_listed(fix)}."
    yield ""
    for repair in fix.proven.repairs:
        place = f"`{repair.edits[0].path or repair.path}:{repair.span.line}`"
        yield f"- {repair.what[0].upper()}{repair.what[1:]}. Now {repair.so} ({place})."
        if repair.cost:
            yield f"- What it costs: {repair.cost}."
    yield "- Eager results of one rank stay bit-identical, and no check that passed fails."


def _notes(fix: Fix) -> Iterator[str]:
    for change in fix.changes:
        added, removed = changed_lines(change)
        yield f"- Size: `{change.path}`, +{added} -{removed} lines."
    for repair in fix.proven.repairs:
        if repair.thread:
            yield f"- {repair.thread} is an open pull request that mends this ({repair.name}): comment there instead."
    if fix.heirs:
        yield f"- These classes run the repaired methods, too, and were not run: {', '.join(fix.heirs)}."
    yield from open_points(fix.tree, fix.port, "rules found the places, and the checks below chose among them")


def _plan(fix: Fix) -> Iterator[str]:
    own = [repair.test for repair in fix.proven.repairs if repair.test]
    others = {change.path for change in fix.changes} - {test.path for test in own}
    tests = [test.name for test in own] + sorted(path for path in others if path.startswith("tests/"))
    if tests:
        yield "Unit tests of the repaired methods, on a CPU and without weights. Run them before the change, too:"
        yield from ("", "```sh", *(f"pytest {test}" for test in tests), "```")
    untested = ", ".join(repair.name for repair in fix.proven.repairs if not _is_tested(repair))
    if untested:
        yield f"No unit test for {untested}: the port reads more than small stubs have, or the tree has no tests."


def _is_tested(repair: Repair) -> bool:
    return bool(repair.test) or any(edit.path.startswith("tests/") for edit in repair.edits)


def _result(fix: Fix, command: str) -> Iterator[str]:
    if any(change.path.startswith("tests/") for change in fix.changes):
        yield "<!-- Put here what the unit tests say before and after. -->"
    yield "<!-- The CPU shows no kernels and no speed: add a run on a GPU. -->"
    for kind, heading in _HEADINGS.items():
        lines = [f"- {one}" for one in fix.proven.remaining if one.kind is kind]
        if kind is Kind.UPSTREAM:
            lines += [f"- {len(one.mended)} that pass with {one.repair.name}: {one.place}" for one in fix.proven.left]
        if lines:
            yield from ("", heading, "", *lines)
    yield from ("", *_checks(fix, command))


_HEADINGS = {
    Kind.DEFECT: "These checks still fail:",
    Kind.UPSTREAM: "These checks still fail, and have threads of their own:",
}


def _checks(fix: Fix, command: str) -> Iterator[str]:
    """The checks of this tool, folded: a reviewer may not have it."""
    before, after = fix.proven.before, fix.proven.after
    now = sum(key in after.defects for key in before.checks)
    counts = f"{len(before.defects)} of {len(before.checks)} failed before, and {now} fail after"
    yield f"<details><summary>Checks of vitcg-scaffold on a CPU: {counts}</summary>"
    yield ""
    yield "The real classes, tiny and with random weights, are driven by this tree's own manager. The CPU emulates the"
    yield "graphs, and every result is compared with `embed_multimodal`."
    yield f"{after.eager} eager results are the same bits as before."
    yield from ("", "```sh", command, "```", "")
    yield "| checks | failed before | now | the first failure |"
    yield "| --- | --- | --- | --- |"
    yield from _rows(fix)
    yield from ("", "</details>")


def _rows(fix: Fix) -> Iterator[str]:
    """A row for each property whose checks are mended."""
    found: dict[tuple[str, str, str], list[Key]] = {}
    for key in (key for kept in fix.proven.kept for key in kept.mended):
        check = fix.proven.before.checks[key]
        found.setdefault((check.modality, check.group or check.name, check.code), []).append(key)
    for (modality, name, code), keys in found.items():
        kernels = ", ".join(dict.fromkeys(kernel for kernel, _, _ in keys))
        said = fix.proven.before.checks[keys[0]].detail.replace("|", "\\|").replace("\n", " ")
        yield f"| {modality}: {name} | {len(keys)} ({kernels}) | pass | {code}: {said} |"
