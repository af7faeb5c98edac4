"""`python -m scaffold.verify.numeric TREE RECIPE [--overlay DIR]`: the lab by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.verify.numeric import RECIPES, TAILS, NumericOptions, NumericRequest, check_numerics


def main(arguments: list[str] | None = None) -> int:
    """Print the report; exit 0 when it passes, 6 when it does not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m scaffold.verify.numeric", description=__doc__)
    parser.add_argument("tree", type=Path, help="root of an unpacked vLLM release")
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--overlay", type=Path, help="directory of replaced files, laid out like the tree")
    parser.add_argument("--modality", action="append", choices=("image", "video"), help="default: all of the model")
    parser.add_argument("--tail", choices=tuple(TAILS), default="fa2", help="the attention kernel")
    parser.add_argument("--all", action="store_true", help="also the behaviours that upstream misses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds per child process")
    options = parser.parse_args(arguments)
    overlay = {}
    if options.overlay is not None:
        files = [path for path in sorted(options.overlay.rglob("*")) if path.is_file()]
        overlay = {path.relative_to(options.overlay).as_posix(): path.read_bytes() for path in files}
    request = NumericRequest(
        tree=options.tree,
        overlay=overlay,
        recipe=options.recipe,
        modalities=tuple(options.modality or ("image", "video")),
        release=options.tree.name,
        tail=options.tail,
        options=NumericOptions(
            image_embeds=options.all,
            data_parallel_switch=options.all,
            min_budget_above_max=options.all,
            frames_above_capacity=options.all,
            edges=options.all,
            seed=options.seed,
            timeout_s=options.timeout,
        ),
    )
    try:
        report = check_numerics(request, progress=lambda text: print(text, file=sys.stderr))
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            print(f"{diagnostic.code} {diagnostic.message}; {diagnostic.help}", file=sys.stderr)
        return int(error.exit)
    print("\n".join(report.lines()))
    return int(Exit.OK if report.passed else Exit.PROOF)


if __name__ == "__main__":
    sys.exit(main())
