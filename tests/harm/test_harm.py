"""A server with the plugin is never worse than the same server without it: every situation, on the releases' classes.

The oldest and the newest release: every model where it matters who serves, and one in the other situations, a cut, a
split or a release's own port in turn. Every model in every situation and release with VITCG_SLOW=1.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import release_process
from judging import harm
from situations import REPRESENTATIVES

SCRIPT = Path(__file__).with_name("situations.py")
RELEASES = tuple(f"0.{minor}.0" for minor in range(23, 34))
#: The oldest and the newest, and one between them with few models. The adapters of the fourth generation, 0.26's, run
#: in `tests/runtime/test_vllm_binding.py`.
SAMPLE: dict[str, tuple[str, ...]] = {"0.23.0": (), "0.29.0": REPRESENTATIVES, "0.33.0": ()}


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("release", [r if r in SAMPLE else pytest.param(r, marks=pytest.mark.slow) for r in RELEASES])
def test_no_situation_is_worse_with_the_plugin(release, release_tree):
    models = () if os.environ.get("VITCG_SLOW") == "1" else SAMPLE.get(release, ())
    done = release_process.run_script(SCRIPT, Path(release_tree(release).root), release, "--one", "--", *models)
    found = release_process.last_line(done)

    worse = {
        f"{name}, {model}": reason
        for name, models in found.items()
        for model, sides in models.items()
        if (reason := harm(name, sides["without"], sides["with"]))
    }
    assert worse == {}
    assert len(found) > 20


SERVED, OWN = {"class": "adapter", "manager": "ours"}, {"class": "vllm", "manager": "none"}
ALONE, FREE, PATCHED = "graphs not asked for", "graphs asked for", "method set on the instance"
ADAPTERS, LEFT_OUT = "VITCG_MODE=adapters", "tower left out, graphs asked for"


@pytest.mark.parametrize(
    ("name", "without", "with_plugin", "reason"),
    [
        (ALONE, OWN, OWN, ""),
        (FREE, OWN, SERVED, ""),
        (FREE, {"error": "no"}, {"error": "no"}, "it does not start without the plugin: no"),
        (FREE, {"error": "no"}, SERVED, "it does not start without the plugin: no"),
        (LEFT_OUT, {"error": "no tower, but the image limit is 0"}, OWN, ""),
        (LEFT_OUT, {"error": "no"}, OWN, "it does not start without the plugin: no"),
        (ALONE, OWN, SERVED, "class is adapter, not vllm"),
        (ALONE, OWN, {**OWN, "manager": "ours"}, "manager is ours, not none"),
        (PATCHED, {**OWN, "manager": "vllm"}, {**OWN, "manager": "ours"}, ""),
        (PATCHED, OWN, SERVED, "class is adapter, not vllm"),
        (FREE, OWN, {"error": "no"}, "it does not start: no"),
        (FREE, {**OWN, "outputs": [[1.0]]}, {**SERVED, "outputs": [[1.1]]}, "outputs differ"),
        (FREE, {**OWN, "outputs": [[1.0]]}, {**SERVED, "outputs": [[1.0], [1.0]]}, "outputs differ"),
        (FREE, {**OWN, "outputs": [[1.0]]}, {**SERVED, "outputs": [[float("nan")]]}, "outputs differ"),
        (FREE, {**OWN, "calls": 1}, {**SERVED, "calls": 0}, "calls is 0, not 1"),
        (FREE, {**OWN, "missing": ["a"]}, SERVED, "missing is None, not ['a']"),
        (FREE, OWN, OWN, "nothing serves"),
        (FREE, OWN, {**SERVED, "manager": "ours, without graphs"}, "nothing serves"),
        (ADAPTERS, OWN, {"class": "adapter", "manager": "vllm"}, ""),
        (ADAPTERS, OWN, SERVED, "nothing serves"),
    ],
)
def test_what_counts_as_worse(name: str, without: dict[str, Any], with_plugin: dict[str, Any], reason: str):
    assert harm(name, without, {**with_plugin, "warnings": []}).startswith(reason)
    assert bool(harm(name, without, {**with_plugin, "warnings": []})) is bool(reason)
