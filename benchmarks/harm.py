"""Run every situation of `tests/harm` on releases, and write the results for docs/measured/harm.md.

python benchmarks/harm.py [RELEASE...] [-- MODEL...]  # all, if none is named; others keep their results
VITCG_SLOW=1 python benchmarks/harm.py                # every model in every situation

It prints what is worse, and why.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HARM = ROOT / "tests" / "harm"
RESULT = Path(__file__).with_name("results") / "harm.json"
RELEASES = tuple(f"0.{minor}.0" for minor in range(23, 34))
sys.path[:0] = [str(ROOT / "tests"), str(HARM)]

from judging import harm  # noqa: E402

from scaffold.protocol import resolve_target  # noqa: E402


def verdict(name: str, sides: dict[str, dict[str, Any]]) -> str:
    """`worse`, `starts` (where vLLM alone refuses), `served` by an adapter or our manager, or `same`."""
    if harm(name, sides["without"], sides["with"]):
        return "worse"
    if "error" in sides["without"]:
        return "same" if "error" in sides["with"] else "starts"
    chosen = ("class", "manager")
    is_same = all(sides["with"].get(fact) == sides["without"].get(fact) for fact in chosen)
    return "same" if is_same else "served"


def run(release: str, models: list[str]) -> dict[str, dict[str, str]]:
    """Situation -> model -> verdict, of one release; no models: all."""
    path = os.pathsep.join(str(folder) for folder in (ROOT / "tests", ROOT, ROOT / "generated"))
    done = subprocess.run(
        [sys.executable, str(HARM / "situations.py"), str(resolve_target(release).tree.root), release, "--", *models],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.strip().splitlines()[-1])
    for name, of_models in found.items():
        for model, sides in of_models.items():
            if reason := harm(name, sides["without"], sides["with"]):
                print(f"{release}, {name}, {model}: {reason}", flush=True)
    return {name: {m: verdict(name, sides) for m, sides in of_models.items()} for name, of_models in found.items()}


def main() -> int:
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    models = sys.argv[split + 1 :]
    is_worse = False
    for release in sys.argv[1:split] or RELEASES:
        found = run(release, models)
        is_worse |= any("worse" in of_models.values() for of_models in found.values())
        known = json.loads(RESULT.read_text(encoding="utf-8"))["releases"] if RESULT.exists() else {}
        before = known[release]["situations"] if models and release in known else {}
        situations = {name: before.get(name, {}) | of_models for name, of_models in found.items()}
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        known[release] = {"date": today, "situations": situations}
        ordered = {name: known[name] for name in RELEASES if name in known}
        RESULT.write_text(json.dumps({"releases": ordered}, indent=1) + "\n", encoding="utf-8")
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
