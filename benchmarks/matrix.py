"""Fill the support matrix by running it: each cell is one model on one release, in the CPU lab.

    python benchmarks/matrix.py [--models A,B] [--releases X,Y] [--all]  # run missing and outdated cells
    python benchmarks/matrix.py --render                                 # only draw docs/matrix.md and .svg

A cell generates the port into the release's tree and runs `vitcg-scaffold verify` on it, with both semantics of
attention tails, for each modality. It is *proven* (every comparison equal, no hazard), *refused* (with a reason), or
*failed*. Results are kept in benchmarks/results/matrix.json together with a hash of the generated model files: a cell
whose generated code has changed since is shown as not run, never as proven.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "matrix.json"
MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "step3_vl")
RELEASES = tuple(f"0.{minor}.0" for minor in (20, 21, 22, 23, 24, 26, 27, 28, 30, 31, 32, 33))
TAILS = ("fa2", "fa3")
MARKS = {"proven": "✅", "refused": "➖", "failed": "❌", "not run": "·"}
COLORS = {"proven": "#2e7d32", "refused": "#9e9e9e", "failed": "#c62828", "not run": "#eeeeee"}


def run_cell(model: str, release: str) -> dict[str, Any]:
    """Generate and prove one model on one release."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.protocol import resolve_target
    from scaffold.workflow import load_spec, prepare_port, prove_numerics

    begin = time.monotonic()
    spec, tree = load_spec(model), resolve_target(release).tree
    try:
        port = prepare_port(spec, tree, replace=True)
    except DiagnosticError as error:
        first = error.diagnostics[0]
        return {"state": "refused", "reason": f"{first.code}: {first.message}", "code": ""}
    cell: dict[str, Any] = {"code": fingerprint(port), "modalities": {}}
    reports = prove_numerics(spec, tree, tails=TAILS)
    for modality in (modality.name for modality in spec.modalities):
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
    if cell["state"] == "failed":
        cell["reason"] = "; ".join(d.message for report in reports for d in report.diagnostics())[:400]
    cell["seconds"] = round(time.monotonic() - begin)
    return cell


def fingerprint(port: Any) -> str:
    """Hash of the generated model files: what a cell has proven."""
    digest = hashlib.sha256()
    for change in port.changed:
        if change.path.startswith("vllm/"):
            digest.update(change.path.encode() + b"\0" + (change.after or b""))
    return digest.hexdigest()[:16]


def current_code(model: str, release: str) -> str:
    """The hash that a cell would have now; empty when the port is refused."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.protocol import resolve_target
    from scaffold.workflow import load_spec, prepare_port

    try:
        return fingerprint(prepare_port(load_spec(model), resolve_target(release).tree, replace=True))
    except DiagnosticError:
        return ""


def load() -> dict[str, Any]:
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def state_of(cells: dict[str, Any], model: str, release: str, modality: str) -> str:
    cell = cells.get(f"{model} {release}")
    if cell is None:
        return "not run"
    if cell["state"] == "refused":
        return "refused"
    return str(cell["modalities"].get(modality, {"state": "refused"})["state"])


def render(cells: dict[str, Any]) -> None:
    """docs/matrix.md and docs/matrix.svg from what ran."""
    from scaffold.workflow import load_spec

    rows = [(model, modality.name) for model in MODELS for modality in load_spec(model).modalities]
    lines = [
        "# Support matrix",
        "",
        "Made by `make matrix` from what ran: the port is generated into the release's tree and compared in the CPU",
        "lab (real classes, the release's own manager, emulated graphs, both attention tails) with the pristine tree's",
        "`embed_multimodal`. A cell that was not run with today's generated code is shown as not run.",
        "",
        "![matrix](matrix.svg)",
        "",
        f"| model | modality | {' | '.join(release.removesuffix('.0') for release in RELEASES)} |",
        f"| --- | --- | {' | '.join('---' for _ in RELEASES)} |",
    ]
    for model, modality in rows:
        states = [MARKS[state_of(cells, model, release, modality)] for release in RELEASES]
        lines.append(f"| `{model}` | {modality} | {' | '.join(states)} |")
    lines += ["", "✅ proven, ➖ refused with a reason, ❌ failed, · not run", ""]
    reasons = [(key, cell["reason"]) for key, cell in sorted(cells.items()) if cell.get("reason")]
    if reasons:
        lines += ["## Reasons", "", *(f"* `{key}`: {reason}" for key, reason in reasons), ""]
    (ROOT / "docs" / "matrix.md").write_text("\n".join(lines), encoding="utf-8")
    (ROOT / "docs" / "matrix.svg").write_text(draw(cells, rows), encoding="utf-8")


def draw(cells: dict[str, Any], rows: list[tuple[str, str]]) -> str:
    left, top, width, height = 150, 30, 46, 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width * len(RELEASES) + 10}" '
        f'height="{top + height * len(rows) + 40}" font-family="sans-serif" font-size="12">'
    ]
    for column, release in enumerate(RELEASES):
        x = left + width * column + width / 2
        parts.append(f'<text x="{x}" y="{top - 10}" text-anchor="middle">{release.removesuffix(".0")}</text>')
    for row, (model, modality) in enumerate(rows):
        y = top + height * row
        parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{model} {modality}</text>')
        for column, release in enumerate(RELEASES):
            state = state_of(cells, model, release, modality)
            parts.append(
                f'<rect x="{left + width * column + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" '
                f'rx="3" fill="{COLORS[state]}"><title>{model} {modality} on {release}: {state}</title></rect>'
            )
    for index, (state, color) in enumerate(COLORS.items()):
        x, y = left + 110 * index, top + height * len(rows) + 12
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" fill="{color}"/>')
        parts.append(f'<text x="{x + 20}" y="{y + 12}">{state}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--releases", default=",".join(RELEASES))
    options.add_argument("--all", action="store_true", help="run every selected cell, also those that are up to date")
    options.add_argument("--render", action="store_true", help="run nothing; forget outdated cells and draw")
    arguments = options.parse_args()
    cells = load()
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
    render(cells)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
