"""Fill the support matrix by running it: each cell is one model on one release, in the CPU lab.

    python benchmarks/matrix.py [--models A,B] [--releases X,Y] [--all]  # run missing and outdated cells
    python benchmarks/matrix.py --render                                 # forget outdated cells, write the page
    python benchmarks/matrix.py --check                                  # exit 1 if the page is not what ran

A cell generates the port into the release's tree and runs `vitcg-scaffold verify --tail all` on it: with every
attention kernel that the model may have there, for each modality. Where an adapter has another form than the port in
that tree, the cell runs that form as well. It is *proven* (every comparison equal, no hazard),
*refused* (with a reason), or *failed*. Results are kept in benchmarks/results/matrix.json together with a hash of the
files that were proven: those of the release's package with the generated code in them, and nothing else. A cell whose
code has changed is shown as not run, never as proven; adapters, tests, docs rows and examples are no part of a cell.
A changed lab or recipe does not outdate a cell: run it again with --all.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import io
import itertools
import json
import sys
import time
import tokenize
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import SourceTree

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "matrix.json"
CORE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "step3_vl")
FURTHER = tuple(sorted({path.stem for path in (ROOT / "scaffold/descriptor/shipped").glob("*.yaml")} - {*CORE}))
MODELS = (*CORE, *FURTHER)
#: The later ones of a minor version, whose files may differ.
PATCHES = ("0.20.1", "0.20.2", "0.22.1", "0.25.1", "0.27.1")
RELEASES = tuple(sorted([*(f"0.{minor}.0" for minor in range(20, 34)), *PATCHES], key=Version))
MARKS = {"proven": "✅", "refused": "➖", "failed": "❌", "not run": "·"}
PAGE = ROOT / "docs" / "matrix.md"


@lru_cache(maxsize=1)
def tree_of(release: str) -> SourceTree:
    """The release's tree; what was read of it serves the next model, too."""
    from scaffold.protocol import resolve_target

    return resolve_target(release).tree


def run_cell(model: str, release: str) -> dict[str, Any]:
    """Generate and prove one model on one release."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.plan.methods import left_out
    from scaffold.protocol import read_protocol
    from scaffold.verify.numeric import check_numerics_all
    from scaffold.workflow import load_port, numeric_requests, tails_of

    begin = time.monotonic()
    spec, tree = load_port(model), tree_of(release)
    try:
        runs = [numeric_requests(form, tree, tails=tails_of(form, tree)) for form in forms_of(model, release)]
    except DiagnosticError as error:
        first = error.diagnostics[0]
        return {"state": "refused", "reason": f"{first.code}: {first.message}", "code": ""}
    # Hashed before the run, and from the very bytes that are run: templates may change meanwhile.
    cell: dict[str, Any] = {"code": fingerprint(*(requests[0].overlay for requests in runs)), "modalities": {}}
    reports = [report for requests in runs for report in check_numerics_all(requests)]
    for modality in dict.fromkeys(name for requests in runs for name in requests[0].modalities):
        checks = [check for report in reports for check in report.checks if check.modality in (modality, "all")]
        proven = all(check.passed for check in checks) and all(report.passed for report in reports)
        cell["modalities"][modality] = {
            "state": "proven" if proven and checks else "failed",
            "comparisons": len(checks),
            "passed": sum(check.passed for check in checks),
            "largest_relative_error": max((check.max_rel or 0.0 for check in checks), default=None),
        }
    cell["state"] = "proven" if all(report.passed for report in reports) else "failed"
    cell["replayed"] = sum(report.hits for report in reports)
    cell["eager"] = sum(report.misses for report in reports)
    if left := left_out(spec, read_protocol(tree).dialect):
        cell["reason"] = "; ".join(f"{note.code}: {note.message}" for note in left)
    if cell["state"] == "failed":
        cell["reason"] = "; ".join(d.message for report in reports for d in report.diagnostics())[:400]
    cell["seconds"] = round(time.monotonic() - begin)
    return cell


def forms_of(model: str, release: str) -> list[AnyPort]:
    """The port for the release's tree, and that of the adapter where it has another form."""
    from scaffold.plan.towers import port_in
    from scaffold.protocol import read_protocol
    from scaffold.workflow import load_port

    port, tree = load_port(model), tree_of(release)
    other = port_in(port, tree, read_protocol(tree).dialect) is not port
    return [port, port.replace(in_tree=None)] if other else [port]


def fingerprint(*overlays: Mapping[str, bytes]) -> str:
    """Hash of the files of the release's package that differ from the release: what a cell proves.

    Comments prove nothing, so another wording outdates no cell.
    """
    digest = hashlib.sha256()
    for path, content in itertools.chain.from_iterable(overlay.items() for overlay in overlays):
        digest.update(path.encode() + b"\0" + (without_comments(content) if path.endswith(".py") else content))
    return digest.hexdigest()[:16]


@functools.cache
def without_comments(source: bytes) -> bytes:
    """Python code without its comments and the blank ends of lines, which depend on neither platform nor Python."""
    lines = source.splitlines()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1].decode()[:column].encode()
    return b"\n".join(filter(None, map(bytes.rstrip, lines)))


def current_code(model: str, release: str) -> str:
    """The hash that a cell would have now; empty when the port is refused."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.workflow import numeric_requests

    try:
        requests = [one for form in forms_of(model, release) for one in numeric_requests(form, tree_of(release))]
    except DiagnosticError:
        return ""
    return fingerprint(*(request.overlay for request in requests))


def load() -> dict[str, Any]:
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def state_of(cells: dict[str, Any], model: str, release: str, modality: str) -> str:
    cell = cells.get(f"{model} {release}")
    if cell is None:
        return "not run"
    if cell["state"] == "refused":
        return "refused"
    return str(cell["modalities"].get(modality, {"state": "refused"})["state"])


def render(cells: dict[str, Any]) -> str:
    """docs/matrix.md from what ran."""
    from scaffold.workflow import load_port

    rows = [(model, name) for model in MODELS for name in load_port(model).modalities]
    lines = [
        "# Support matrix",
        "",
        "`make matrix` generates each port into the release's tree and runs it in the CPU lab: real classes, the",
        "release's own manager, emulated graphs, each attention kernel. A port is *proven* when it returns what the",
        "pristine tree's `embed_multimodal` returns. A cell that did not run with today's generated code is *not run*.",
        "",
        f"| model | modality | {' | '.join(release.removesuffix('.0') for release in RELEASES)} |",
        f"| --- | --- | {' | '.join('---' for _ in RELEASES)} |",
    ]
    for model, modality in rows:
        states = [MARKS[state_of(cells, model, release, modality)] for release in RELEASES]
        lines.append(f"| `{model}` | {modality} | {' | '.join(states)} |")
    lines += ["", "✅ proven, ➖ refused with a reason, ❌ failed, · not run", ""]
    reasons: dict[tuple[str, str], list[str]] = {}
    for model in MODELS:
        for release in RELEASES:
            if reason := cells.get(f"{model} {release}", {}).get("reason"):
                reasons.setdefault((model, reason), []).append(release.removesuffix(".0"))
    if reasons:
        listed = (f"* `{model}` on {', '.join(found)}: {reason}" for (model, reason), found in reasons.items())
        lines += ["## Reasons", "", *listed, ""]
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--releases", default=",".join(RELEASES))
    options.add_argument("--all", action="store_true", help="run every selected cell, also those that are up to date")
    options.add_argument("--render", action="store_true", help="run nothing; forget outdated cells and write the page")
    options.add_argument("--check", action="store_true", help="run and write nothing; is the page current?")
    arguments = options.parse_args()
    cells = load()
    if arguments.check:
        stale = PAGE.read_text("utf-8") != render(cells)
        if stale:
            print("docs/matrix.md is not what benchmarks/results/matrix.json says")
        return int(stale)
    from scaffold.verify.numeric import keep_warm

    with keep_warm():
        failed = fill(cells, arguments)
    PAGE.write_text(render(cells), encoding="utf-8")
    return 1 if failed else 0


def fill(cells: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Run the cells that are missing or outdated, a release at a time; returns how many failed."""
    failed = 0
    for release in arguments.releases.split(","):
        for model in arguments.models.split(","):
            key = f"{model} {release}"
            known = cells.get(key)
            if known is not None and not arguments.all and known["code"] == current_code(model, release):
                continue
            cells.pop(key, None)
            if not arguments.render:
                print(f"{key} ...", end=" ", flush=True)
                cells[key] = run_cell(model, release)
                print(cells[key]["state"], cells[key].get("reason", ""), flush=True)
                failed += cells[key]["state"] == "failed"
            # After each cell, so that an interrupted run keeps what it proved.
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(cells, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
