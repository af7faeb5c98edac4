"""Change each value of a draft to another candidate or to a likely slip: no change may become a port.

    python benchmarks/draft_mutants.py                    # one change of each proven draft
    python benchmarks/draft_mutants.py --each 5 --seed 1  # other ones, and more of them
    python benchmarks/draft_mutants.py --only NAME        # all of one architecture (repeatable)
    python benchmarks/draft_mutants.py --change "tokens:" # those with this text

`--recordings FOLDER` keeps the runs of the models, and takes those that are there.

`tests/numeric/test_draft_mutants.py` takes all changes of five models. This takes a random sample of the changes of
every architecture that `benchmarks/reach.py` found proven, and goes on where it was interrupted. Results go to
benchmarks/results/draft_mutants_RELEASE.json.

`refused` ends before anything runs, `caught` in the numerical proof, `same` gives the same code as the draft: another
spelling. `accepted` passed every proof. Read those: such a change may be right, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reach import NEWEST, RESULTS, code_of, first_candidate, load, recorded, write

from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import interview
from scaffold.verify.numeric import check_numerics_all, keep_warm
from scaffold.verify.numeric.recipes import AUTOMATIC, known_configuration
from scaffold.workflow import numeric_requests, prepare_port

if TYPE_CHECKING:
    from scaffold.draft import Draft
    from scaffold.protocol import SourceTree
    from scaffold.watch import Recording

#: A line of a draft, and its likely mistake.
SLIPS = (
    (r"hidden_size: self\.config\.text_config\.", "hidden_size: self.config.vision_config."),
    (r'( side| height| width): "?([^"\n]*)"?', r'\1: "(\2) // 2"'),
    (r"( k): (.*)", r"\1: \2 + 1"),
    (r"( m): (.*)", r"\1: \2 * 2"),
    (r"tokens: (.*)", r"tokens: \1 + 1"),
    (r"flatten: true", "flatten: false"),
    (r"(\w+):\n    sizes: \w+", r"\1: batched"),
    (r"  (\w+): batched\n", ""),
    (r"( p): (.*)", r"\1: \2 * 2"),
    (r"encoder: (\S+)\.\w+", r"encoder: \1"),
)
#: Any smallest budget gives the same embeddings.
HARMLESS = "budget.min"


def mutants(tree: SourceTree, name: str, recording: Recording) -> Iterator[tuple[str, str]]:
    """Each change, and the text of the changed descriptor."""

    def drafted(answers: dict[str, str]) -> Draft:
        return interview(tree, name, recording, answers, first_candidate)

    draft = drafted({})
    for question in draft.questions:
        for other in question.candidates[1:] if question.key != HARMLESS else ():
            changed = drafted({question.key: other.value})
            yield f"{question.key}: {other.value}", plain(changed)
    text = plain(draft)
    for pattern, replacement in SLIPS:
        for found in re.finditer(pattern, text):
            made = found.expand(replacement)
            yield f"{found[0]} -> {made}", text[: found.start()] + made + text[found.end() :]


def plain(draft: Draft) -> str:
    """A draft without its comments, which hold the evidence."""
    return re.sub(r" +#.*", "", draft.text)


def outcome(
    tree: SourceTree,
    change: str,
    text: str,
    folder: Path,
    *,
    recipe: str | None = AUTOMATIC,
    config: str | None = None,
    right: str = "",
) -> str:
    """`refused`, `caught`, `same` as the code whose hash is `right`, `without effect`, or `accepted`.

    Without a recipe the shipped one builds the model. A field of precomputed embeddings has no effect on a port of a
    model that refuses them all.
    """
    path = folder / "mutant.yaml"
    path.write_text(text)
    try:
        port = load_descriptor_text(text, str(path))
        changed = prepare_port(port, tree, replace=True).changed
        if right and right == code_of(changed):
            return "same"
        (report,) = check_numerics_all(numeric_requests(port, tree, recipe=recipe, config=config))
    except DiagnosticError:
        return "refused"
    if not report.passed:
        return "caught"
    refused = any("the model refuses them" in why for why in report.not_run)
    return "without effect" if refused and change.startswith("  image_embeds: ") else "accepted"


def save(path: Path, release: str, rows: list[dict[str, Any]]) -> None:
    """Write all rows, by architecture and change."""
    write(path, release, sorted(rows, key=lambda row: (row["architecture"], row["change"])))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--release", default=NEWEST)
    options.add_argument("--only", action="append", metavar="ARCHITECTURE", help="all changes of this one (repeatable)")
    options.add_argument("--each", type=int, default=1, help="changes of each architecture")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--recordings", type=Path)
    options.add_argument("--change", default="", metavar="TEXT", help="the changes that contain this alone")
    chosen = options.parse_args()
    os.nice(10)
    from scaffold.protocol import resolve_target

    tree = resolve_target(chosen.release).tree
    rated = load(chosen.release)
    passed = {name: row for name, row in rated.items() if row["numeric"] == "pass"}
    survey = {name: passed[name] for name in chosen.only or passed}
    path = RESULTS / f"draft_mutants_{chosen.release}.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    with keep_warm(), tempfile.TemporaryDirectory() as folder:
        for number, (name, row) in enumerate(survey.items(), 1):
            changes = sorted(
                {one for one in mutants(tree, name, recorded(tree, name, chosen.recordings)) if chosen.change in one[0]}
            )
            if not chosen.only:
                # A generator for each name: another architecture in a later survey leaves this one's sample alone.
                changes = random.Random(f"{chosen.seed} {name}").sample(changes, min(chosen.each, len(changes)))
            # Changes of an earlier draft say nothing of today's.
            rows = [other for other in rows if other["architecture"] != name or other["code"] == row["code"]]
            known = {other["change"] for other in rows if other["architecture"] == name}
            for change, text in changes:
                if change in known:
                    continue
                recipe = None if load(chosen.release)[name]["config"] == "recipe" else AUTOMATIC
                config = known_configuration([name]) or None
                end = outcome(tree, change, text, Path(folder), recipe=recipe, config=config, right=row["code"])
                rows.append({"architecture": name, "change": change, "outcome": end, "code": row["code"]})
                save(path, chosen.release, rows)
                print(f"{number}/{len(survey)} {name}: {end}: {change!r}", file=sys.stderr, flush=True)
    save(path, chosen.release, rows)
    return int(any(row["outcome"] == "accepted" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
