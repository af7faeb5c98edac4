"""Draft architectures of a release as `init` does and from recordings, and compare: same, other, only one of them.

    python benchmarks/watch_drafts.py [--release 0.33.0] [--layout cut] [--only ARCHITECTURE]
    python benchmarks/watch_drafts.py --recordings FOLDER    # keep recordings there, and take those that are there
    python benchmarks/watch_drafts.py --recordings FOLDER --verify    # and prove what has no verdict yet

Both drafts get the first candidate of each question. With `--layout`, only architectures that `init` drafts so.
Two drafts are the same if they say the same of the model, in all sections but `integration`. `numeric`
is the verdict on the port of the recorded draft. An earlier one on the same code holds, also that of
`benchmarks/reach.py`; with `--verify` a failure is tried again. Results go to
benchmarks/results/watch_drafts_RELEASE.json after each row.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from reach import LIMIT, RESULTS, code_of, first_candidate, load, recorded, write

from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, architectures, draft_recorded, interview
from scaffold.protocol import SourceTree, resolve_target
from scaffold.verify.numeric import NumericRequest, check_numerics_all, keep_warm
from scaffold.verify.numeric.recipes import AUTOMATIC, known_configuration, recipe_of
from scaffold.watch import Recording
from scaffold.workflow import numeric_requests, prepare_port


def compare(
    tree: SourceTree, name: str, layout: str | None, folder: Path | None, *, prove: bool, before: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The row of one architecture; None where `init` drafts another layout."""
    old, refused = attempt(lambda: interview(tree, name, {}, first_candidate))
    drafted = said(old)["layout"] if old is not None else None
    if layout not in (None, drafted):
        return None
    begin = time.monotonic()
    recording, unrecorded = attempt(lambda: recorded(tree, name, folder))
    seconds = round(time.monotonic() - begin, 1)
    new, unseen = attempt(lambda: answered(tree, name, recording)) if recording is not None else (None, unrecorded)
    row: dict[str, Any] = {
        "architecture": name, "layout": drafted, "seconds": seconds,
        "questions": [len(draft.questions) if draft else None for draft in (old, new)],
        "verdict": "neither", "differs": {}, "reason": "; ".join(filter(None, (refused, unseen))),
        "recorded": said(new)["layout"] if new is not None else None, "code": "", "numeric": "none", "checks": 0,
    }  # fmt: skip
    if new is not None:
        row |= judged(tree, name, new, before, prove=prove)
    if old is not None and new is not None:
        one, other = flat(said(old)), flat(said(new))
        keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
        row["verdict"] = "other" if keys else "same"
        row["differs"] = {key: [one.get(key), other.get(key)] for key in keys}
    elif old is not None or new is not None:
        row["verdict"] = "sources alone" if new is None else "recording alone"
    return row


def judged(tree: SourceTree, name: str, draft: Draft, before: Mapping[str, Any], *, prove: bool) -> dict[str, Any]:
    """The numerical verdict on a draft's port, with its code; `none` where there is none."""
    surveyed = load(tree.release or "").get(name, {})
    try:
        port = load_descriptor_text(draft.text, f"{draft.name}.yaml")
        code = code_of(prepare_port(port, tree, replace=True).changed)
        if code == before.get("code") and before["numeric"] != "none" and (before["numeric"] == "pass" or not prove):
            return {key: before[key] for key in ("code", "numeric", "checks", "reason")}
        if code == surveyed.get("verified") and surveyed["numeric"] != "none":
            return {"code": code, "numeric": surveyed["numeric"], "checks": surveyed["checks"]}
        if not prove:
            return {"code": code}
        # As in `reach.py`: the automatic recipe, and the shipped one where that cannot build the model.
        shipped = recipe_of(port.name, port.module, port.class_name) is not None
        recipes = [None] if surveyed.get("config") == "recipe" else [AUTOMATIC, None] if shipped else [AUTOMATIC]
        given = known_configuration([name]) or None
        for recipe in recipes:
            requests = numeric_requests(port, tree, recipe=recipe, config=given if recipe else None)
            (report,) = check_numerics_all([with_limit(request) for request in requests])
            if report.checks:
                break
    except DiagnosticError as error:
        return {"numeric": "refused", "reason": error.diagnostics[0].message}
    verdict = "pass" if report.passed else "fail" if report.checks else "none"
    wrong = [problem.message for problem in report.diagnostics()[:1]]
    return {"code": code, "numeric": verdict, "checks": len(report.checks), "reason": "".join(wrong)}


def with_limit(request: NumericRequest) -> NumericRequest:
    """The request with the survey's time limit: a busy machine is no failure of a draft."""
    return replace(request, options=replace(request.options, timeout_s=LIMIT))


def attempt(step: Callable[[], Any]) -> tuple[Any, str]:
    """The result of a step, or why there is none."""
    try:
        return step(), ""
    except DiagnosticError as error:
        return None, error.diagnostics[0].message


def answered(tree: SourceTree, name: str, recording: Recording, given: Mapping[str, str] | None = None) -> Draft:
    """The draft from a recording with the first candidate of each question that has no answer."""
    answers = dict(given or {})
    while True:
        draft = draft_recorded(tree, name, recording, answers)
        more = {question.key: answer for question in draft.open if (answer := first_candidate(question))}
        if not more:
            return draft
        answers |= more


def said(draft: Draft) -> dict[str, Any]:
    """The sections of a draft but `integration`."""
    sections: dict[str, Any] = yaml.safe_load(draft.text)
    return {key: value for key, value in sections.items() if key != "integration"}


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def main() -> None:
    """Compare, one architecture at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="0.33.0")
    parser.add_argument("--layout")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    tree = resolve_target(options.release).tree
    results = RESULTS / f"watch_drafts_{options.release}.json"
    rows = {row["architecture"]: row for row in json.loads(results.read_text())["rows"]} if results.exists() else {}
    with keep_warm():
        for name in options.only or architectures(tree):
            before = rows.get(name, {})
            row = compare(tree, name, options.layout, options.recordings, prove=options.verify, before=before)
            if row is not None:
                rows[name] = row
                ordered = [rows[key] for key in sorted(rows)]
                write(results, options.release, ordered)
                print(name, row["verdict"], row["numeric"], *row["differs"], row["reason"], flush=True)
    print(dict(Counter(row["verdict"] for row in rows.values())))


if __name__ == "__main__":
    main()
