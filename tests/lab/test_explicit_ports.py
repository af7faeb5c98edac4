"""Ports of vLLM 0.33 that run the model's code once, where adapters re-enter it, in the CPU lab; mistakes in some."""

from __future__ import annotations

from typing import Any

import pytest
from port_mutants import Mutant, assert_rejected, reports_of
from proven import assert_right

from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

RELEASE = "0.33.0"
#: Replays of each model at least.
MODELS = {"kimi_vl": 80, "llava": 60, "llava_next": 70, "paligemma": 60}

PIXELS, REPLAY = 'list(mm_kwargs["pixel_values"]', "}\n        )\n\n    def encoder_cudagraph_forward"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("llava", "paligemma") else ()) for name in MODELS]
)
def test_a_port_gives_what_the_model_gives(name: str, release_tree: Any) -> None:
    [report] = check_numerics_all(numeric_requests(load_port(name), release_tree(RELEASE)))
    assert_right(report, MODELS[name])


#: Not in LLaVA's port, which changes a module that all models import: each check of it imports vLLM anew.
MISTAKES = {
    "kimi_vl": [
        # Upstream's port of 0.33 has this bound: a graph's tokens, of which each has four rows.
        Mutant("a bound in tokens", "=token_budget * m**2,", "=token_budget,", "VCG650"),
        Mutant(
            "offsets behind a batch",
            '"cu_seqlens": _pad_cumulative_seqlens_buffer',
            '"cu_seqlens": lambda dst, src: dst.zero_()[: len(src)].copy_(src)',
            "VCG665",
        ),
        Mutant(
            "eager metadata of other sides",
            "metadata(grid_hw),\n",
            "metadata([(w, h) for h, w in grid_hw]),\n",
            "VCG650",
        ),
    ],
    "paligemma": [Mutant("rows of images", ".flatten(0, -2)", "", "VCG650")],
    "llava_next": [
        Mutant("other items", "split(num_patches)", "split(num_patches[::-1])", "VCG654"),
        Mutant("other pixels", f"{PIXELS})){REPLAY}", f"{PIXELS}[::-1])){REPLAY}", "VCG650"),
        # Eager all the time: vLLM's own tests of a modality would not see it.
        Mutant("turned off", 'modalities=["image"]', "modalities=[]", "VCG657"),
        # Right results, and graphs of half the units that their budgets allow.
        Mutant("tokens of a unit that a graph does not give", "return (\n", "return 2 * (\n", "VCG657"),
    ],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_port_is_found(name: str, release_tree: Any) -> None:
    [request] = numeric_requests(load_port(name), release_tree(RELEASE))
    mistakes = MISTAKES[name]
    reports = reports_of(request, f"vllm/model_executor/models/{name}.py", mistakes, mistakes)
    for mistake in mistakes:
        assert_rejected(reports[mistake.name], mistake)
