"""Tune the real vision classes of one release tree with FP8 on the CPU, and compare with the untuned ones.

    python tests/tuning/run_fp8.py TREE RECIPE...

Prints one JSON object: for each recipe, the error in bfloat16 with few rows and with many, the layers in FP8, why
others were left alone, what became of new weights, and whether taking FP8 back restored everything bit for bit.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import print_checks
from reloading import INNER, shrink
from run_tunings import build, inputs_of, map_floats, recipe_with, same, state


def main() -> int:
    return print_checks(check)


def deepen(name, vision) -> None:  # type: ignore[no-untyped-def]
    """Four blocks, so that two are inside; inner sizes that FP8 takes, and that `pad-mlp` makes so."""
    shrink(vision, INNER if name in ("qwen2_5_vl", "qwen3_vl") else 48)
    for depth in ("depth", "num_hidden_layers"):
        if hasattr(vision, depth):
            setattr(vision, depth, 4)


def check(name):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.runtime.tuning import DEFAULT, NAMES, TuningChoice, fp8, largest_error, tune
    from scaffold.runtime.tuning.fp8 import Fp8Method

    recipe = recipe_with(name, partial(deepen, name))
    dtype = torch.bfloat16
    inputs = map_floats(inputs_of(recipe), lambda value: value.to(dtype))

    def run(host):  # type: ignore[no-untyped-def]
        return [t.clone() for t in host.embed_multimodal(**inputs)]

    def in_fp8(host):  # type: ignore[no-untyped-def]
        return sorted(n for n, m in host.named_modules() if isinstance(getattr(m, "quant_method", None), Fp8Method))

    plain, host = build(recipe, dtype), build(recipe, dtype)
    want, before = run(plain), state(host)
    tune(plain, TuningChoice(DEFAULT))
    tuned = tune(host, TuningChoice(NAMES))
    outcome = tuned.outcomes[-1]
    found = {
        "applied": outcome.applied,
        "refused": sorted(set(outcome.refused.values())),
        "layers": in_fp8(host),
        "extra_bytes": outcome.extra_bytes,
        "few": largest_error(run(host), run(plain)),
    }
    with mock.patch.object(fp8, "LEAST_ROWS", 1):
        # Norms have the number of rows from when they were tuned.
        tuned.undo()
        tuned = tune(host, TuningChoice(NAMES))
        got = run(host)
        found["many"], found["tuned"] = largest_error(got, want), largest_error(run(plain), want)
        for one in (plain, host):
            for parameter_name, parameter in one.named_parameters():
                if "language" not in parameter_name:
                    parameter.mul_(-0.5)
        new = run(plain)
        found["stale"] = largest_error(run(host), new)

        def places():  # type: ignore[no-untyped-def]
            methods = (getattr(m, "quant_method", None) for m in host.modules())
            return [t.data_ptr() for m in methods if isinstance(m, Fp8Method) for t in m.own if t is not None]

        held = places()
        tuned.read_weights()
        found["fresh"] = largest_error(run(host), new)
        found["moved"] = places() != held
        for parameter_name, parameter in host.named_parameters():
            if "language" not in parameter_name:
                parameter.mul_(-2)
        tuned.undo()
    found["restored"] = same(state(host), before) and all(map(torch.equal, run(host), want)) and not in_fp8(host)
    wide = build(recipe, torch.float32)
    found["wide"] = sorted(set(tune(wide, TuningChoice(("fp8-linears",))).outcomes[0].refused.values()))
    return found


if __name__ == "__main__":
    sys.exit(main())
