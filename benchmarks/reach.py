"""Survey a release: which multimodal architectures get a port from `init --yes` alone, and why the others do not.

    python benchmarks/reach.py [--release 0.33.0]        # update the static part, verify what is new
    python benchmarks/reach.py --static                  # without verify
    python benchmarks/reach.py --only ARCHITECTURE       # these alone (repeatable)
    python benchmarks/reach.py --again                   # verify today's code again, too

For some models neither vLLM nor transformers holds the configuration's values: those that come with the tool
(scaffold/verify/numeric/known/ARCHITECTURE.json) are used then, and the row says so. `verify` builds all
models by its automatic recipe; where that cannot, a shipped recipe does, and the row says that, too.

Every architecture of the release's registry is drafted as `init --yes` does: from a run of the model, with the first
candidate of each question. `--recordings FOLDER` keeps the runs, and takes those that are there. The draft is ported
in memory with all static proofs, and run by `vitcg-scaffold verify`, one at a time. Results go to
benchmarks/results/reach_RELEASE.json after each row, so that an interrupted run goes on where it was;
`python benchmarks/pages.py` writes docs/reach.md from them.

A row is `proven` or `refused` statically and `pass`, `fail` or `none` (not run, or nothing there to build the model)
numerically. `code` is the hash of what is generated, `verified` that of what was verified: where they differ, the
number is outdated and shown as such. As in the matrix, a changed lab outdates nothing: run --again. A row has `sound`
where the model has neither images nor videos.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare_upstream import own_port
from matrix import fingerprint

from scaffold.verify.numeric import UNDECIDED
from scaffold.verify.numeric.recipes import AUTOMATIC, known_configuration, recipe_of

if TYPE_CHECKING:
    from scaffold.changes import FileChange
    from scaffold.diagnostics import DiagnosticError
    from scaffold.draft import Draft, Question
    from scaffold.protocol import SourceTree
    from scaffold.watch import Recording

RESULTS = Path(__file__).resolve().parent / "results"
NEWEST = "0.33.0"
#: Seconds that one model may take in the lab.
LIMIT = 1800
#: How a failure of the pristine model is named, with which nothing of a port was compared.
ORACLE = "the pristine model "
#: How a failure of one modality is named for which the lab found no inputs.
UNMADE = "no inputs could be made: "


def survey(tree: SourceTree, name: str, folder: Path | None = None) -> tuple[dict[str, Any], Draft | None]:
    """The static part of one architecture's row, and the draft that was proven."""
    from scaffold.diagnostics import DiagnosticError

    begin = time.monotonic()
    row: dict[str, Any] = {
        "architecture": name, "has_port": _has_port(tree, name), "kind": None, "questions": 0,
        "static": "refused", "numeric": "none", "checks": 0, "seconds": 0.0, "reason": "", "code": "", "verified": "",
        "config": "", "guessed": [],
    }  # fmt: skip
    if hears(tree, name):
        row["sound"] = True
    proven = None
    try:
        proven = _port(tree, name, row, folder)
        row["static"] = "proven"
    except DiagnosticError as error:
        row["reason"] = reasons(error, tree)
    except Exception as crash:
        traceback.print_exc()
        row["reason"] = f"crashed: {crash!r}"
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row, proven


def first_candidate(question: Question) -> str | None:
    """The answer of `init --yes`."""
    return question.candidates[0].value if question.candidates else None


def recorded(tree: SourceTree, name: str, folder: Path | None) -> Recording:
    """A recording, from the folder if it is there. Raises DiagnosticError where the model cannot be built."""
    from scaffold.verify.numeric import record_run
    from scaffold.watch import Recording
    from scaffold.workflow import recording_request

    path = folder / f"{name}.json" if folder else None
    if path is not None and path.exists():
        return Recording.from_json(json.loads(path.read_text("utf-8")))
    request = recording_request(tree, name, config=known_configuration([name]) or None)
    made = record_run(replace(request, options=replace(request.options, timeout_s=LIMIT)))  # a machine may be busy
    if path is not None:
        path.write_text(json.dumps(made.to_json()), "utf-8")
    return made


def _port(tree: SourceTree, name: str, row: dict[str, Any], folder: Path | None) -> Draft:
    """Draft and port one architecture; what is learnt on the way goes into the row. Raises DiagnosticError."""
    from scaffold.descriptor import load_descriptor_text
    from scaffold.draft import interview, refuse_model
    from scaffold.workflow import prepare_port

    refuse_model(tree, name)
    draft = interview(tree, name, recorded(tree, name, folder), {}, first_candidate)
    row["questions"] = len(draft.questions)
    port = load_descriptor_text(draft.text, f"{draft.name}.yaml")
    row["kind"] = port.layout
    prepared = prepare_port(port, tree, replace=True)
    row["kind"] += ", explicit" if prepared.plan.extraction is not None else ""
    row["code"] = code_of(prepared.changed)
    if not prepared.plan.reenters:
        row["lines"] = own_port(prepared).lines
    return draft


def code_of(changed: Iterable[FileChange]) -> str:
    """The fingerprint of what a port makes of vLLM's own files."""
    return fingerprint(
        {change.path: change.after for change in changed if change.after and change.path.startswith("vllm/")}
    )


def hears(tree: SourceTree, name: str) -> bool:
    """Whether an architecture has sound, and neither images nor videos."""
    from scaffold.draft.locate import locate
    from scaffold.draft.unportable import offered

    return set(offered(locate(tree, name))) == {"audio"}


def _has_port(tree: SourceTree, name: str) -> bool:
    """Whether the architecture's class speaks the protocol in the release, itself or through a base."""
    from scaffold.draft.locate import locate
    from scaffold.tower.source import Program

    model, program = locate(tree, name), Program(tree)
    return program.method(program.owner(model.file, model.class_name), "get_encoder_cudagraph_config") is not None


def reasons(error: DiagnosticError, tree: SourceTree) -> str:
    """Everything for which a model was refused, each with its code and its place in the release."""
    from scaffold.diagnostics import Severity

    found = []
    for problem in error.diagnostics:
        if problem.severity is Severity.ERROR:
            file = problem.span.file.removeprefix(tree.display("")) if problem.span else ""
            place = f" ({file.rpartition('/')[2]}:{problem.span.line})" if problem.span and "/" in file else ""
            found.append(f"{problem.code}: {problem.message}{place}")
    return "; ".join(found)


def verify(draft: Draft, name: str, release: str) -> dict[str, Any]:
    """The result of `vitcg-scaffold verify` for an architecture's draft: the numeric part of a row."""
    from scaffold.descriptor import load_descriptor_text

    config = known_configuration([name])
    given = ["--config", config] if config else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{draft.name}.yaml"
        path.write_text(draft.text, encoding="utf-8")
        run = [sys.executable, "-m", "scaffold.cli", "verify", str(path), "--vllm", release]
        run += ["--device", "cpu", "--json"]
        found = _run([*run, "--recipe", AUTOMATIC, *given]) | {"config": "given" if given else "found"}
        port = load_descriptor_text(draft.text, path.name)
        if found["numeric"] == "none" and recipe_of(port.name, port.module, port.class_name) is not None:
            found = _run(run) | {"config": "recipe"}
    return found


def _run(run: Sequence[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"numeric": "none", "checks": 0, "reason": f"verify did not end in {LIMIT} s", "guessed": []}
    return {"guessed": [], **judged(done.returncode, done.stdout, done.stderr)}


def judged(code: int, out: str, err: str) -> dict[str, Any]:
    """The numeric part of a row from what `verify --json` returned and wrote."""
    reports = json.loads(out) if out.strip() else []
    problems = [(problem["code"], problem["message"]) for report in reports for problem in report["problems"]]
    problems = problems or re.findall(r"error\[(VCG\d+)\]: (.*)", err)
    checks = sum(len(report["checks"]) for report in reports)
    if code == 0 and checks:
        guessed = sorted({value for report in reports for value in report.get("guessed", ())})
        return {"numeric": "pass", "checks": checks, "reason": "", "guessed": guessed}
    unbuilt = not checks and any(name in UNDECIDED or ORACLE in message for name, message in problems)
    unbuilt |= bool(problems) and all(UNMADE in message for _, message in problems)
    last = (err.strip().splitlines() or ["verify said nothing"])[-1]
    reason = "; ".join(f"{name}: {message}" for name, message in problems)[:500] or last
    return {"numeric": "none" if unbuilt else "fail", "checks": checks, "reason": reason}


def path_of(release: str) -> Path:
    return RESULTS / f"reach_{release}.json"


def load(release: str) -> dict[str, dict[str, Any]]:
    """The rows of a release by architecture."""
    path = path_of(release)
    return {row["architecture"]: row for row in json.loads(path.read_text("utf-8"))["rows"]} if path.exists() else {}


def save(release: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write all rows, by architecture."""
    write(path_of(release), release, [rows[name] for name in sorted(rows)])


def write(path: Path, release: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write results of a release: the old file or the new one, never a part."""
    document = {"release": release, "date": datetime.now(timezone.utc).date().isoformat(), "rows": rows}
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def carried(row: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """A static row with the number that an earlier run found for it, also when it is of other code."""
    if before is None or row["static"] != "proven" or not before["verified"]:
        return row
    kept = {key: before[key] for key in ("numeric", "checks", "verified")}
    kept |= {key: before[key] for key in ("config", "guessed") if key in before}
    return {**row, **kept, "reason": before["reason"], "seconds": before["seconds"]}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--release", default=NEWEST)
    options.add_argument("--only", action="append", metavar="ARCHITECTURE", help="this one alone (repeatable)")
    options.add_argument("--static", action="store_true", help="do not run verify")
    options.add_argument("--again", action="store_true", help="verify also what was verified with today's code")
    options.add_argument("--recordings", type=Path, metavar="FOLDER", help="keep recordings there")
    chosen = options.parse_args()
    os.nice(10)
    from scaffold.draft import architectures
    from scaffold.protocol import resolve_target

    tree = resolve_target(chosen.release).tree
    every = architectures(tree)
    if unknown := sorted(set(chosen.only or ()) - set(every)):
        options.error(f"vLLM {chosen.release} has no multimodal architecture {', '.join(unknown)}")
    before = load(chosen.release)
    rows = {name: row for name, row in before.items() if name in every}
    names = chosen.only or every
    bad = 0
    for number, name in enumerate(names, 1):
        row, draft = survey(tree, name, chosen.recordings)
        drafted = row["seconds"]
        row = carried(row, before.get(name))
        if draft is not None and not chosen.static and (chosen.again or row["verified"] != row["code"]):
            begin = time.monotonic()
            row |= verify(draft, name, chosen.release)
            row |= {"verified": row["code"], "seconds": round(drafted + time.monotonic() - begin, 1)}
        rows[name] = row
        bad += row["numeric"] == "fail" or row["reason"].startswith("crashed")
        print(f"{number}/{len(names)} {name}: {row['static']}, {row['numeric']} {row['reason'][:150]}", file=sys.stderr)
        save(chosen.release, rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
