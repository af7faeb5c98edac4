"""Every tuning on real vision classes of releases, on the CPU, against the untuned tower; and what must stay alone."""

from functools import lru_cache
from pathlib import Path

import pytest
from release_process import last_line, run_script

ROOT = Path(__file__).resolve().parents[2]
FIVE = ("internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "step3_vl")

#: Every generation; the last one by default. `test_forwards.py` looks at the code of the towers of all of them.
RELEASES = [
    pytest.param(version, marks=() if version == "0.33.0" else pytest.mark.slow)
    for version in ("0.23.0", "0.24.0", "0.27.0", "0.30.0", "0.33.0")
]

#: Modules that each tuning changes in the recipes' tiny towers.
EXPECTED = {
    "internvl": {"pad-mlp": 2, "fused-norms": 5, "fused-residuals": 2, "unsplit-attention": 2},
    "qwen2_vl": {"fused-activations": 2, "pad-mlp": 2, "fused-norms": 5, "fused-residuals": 2, "inplace-rotary": 2},
    "qwen2_5_vl": {"fused-activations": 3, "pad-mlp": 3, "fused-norms": 7, "fused-residuals": 3, "inplace-rotary": 3,
                   "small-windows": 3},
    "qwen3_vl": {"gelu-epilogue": 3, "pad-mlp": 3, "fused-norms": 8, "fused-residuals": 3, "inplace-rotary": 3},
    "step3_vl": {"fused-activations": 2, "pad-mlp": 2, "fused-norms": 4, "fused-residuals": 2,
                 "unsplit-attention": 2, "channels-last": 1},
}  # fmt: skip
#: Relative to the largest output. vLLM's RMS norm computes in float32 whatever its input is.
BOUNDS = {"torch.float32": 2e-6, "torch.float64": 1e-14}
RMS_BOUND = 1e-6


@lru_cache(maxsize=8)
def run_of(script, tree, *arguments):
    """A script of this folder, run once for all of its tests."""
    return run_script(Path(__file__).with_name(script), tree, *arguments)


def found_by(script, tree, *arguments):
    """What a script printed last."""
    done = run_of(script, tree, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return last_line(done)


@pytest.fixture
def report(request, release_tree):
    return found_by("run_tunings.py", release_tree(request.param).root, *FIVE)


pytestmark = [pytest.mark.trees, pytest.mark.lab]
every_release = pytest.mark.parametrize("report", RELEASES, indirect=True)


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_each_tuning_computes_what_the_untuned_tower_computes(report, model):
    for dtype, bound in BOUNDS.items():
        allowed = max(bound, RMS_BOUND) if model == "qwen2_5_vl" else bound
        for way, found in report[model][dtype].items():
            assert found["error"] <= allowed, (dtype, way)
            assert found["changed"] == (found["applied"] != dict.fromkeys(found["applied"], 0)), (dtype, way)
            assert found["restored"], (dtype, way)


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_each_tuning_finds_its_modules(report, model):
    for found in (report[model]["torch.float32"]["all"], report[model]["torch.float64"]["all"]):
        assert {name: count for name, count in found["applied"].items() if count} == EXPECTED[model]
    alone = {way: found["applied"] for way, found in report[model]["torch.float32"].items() if way != "all"}
    assert {name: count for counts in alone.values() for name, count in counts.items() if count} == EXPECTED[model]


@every_release
def test_padding_says_what_memory_it_takes(report):
    # Three blocks: 4 columns of 32 rows, in float32.
    assert report["qwen2_5_vl"]["torch.float32"]["pad-mlp"]["extra_bytes"] == 3 * 4 * 4 * 32
    assert report["qwen2_5_vl"]["torch.float32"]["fused-norms"]["extra_bytes"] == 0


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_weights_of_a_shard_that_gathers_are_left_alone(report, model):
    found = report[model]["refusals"]["sharded"]
    assert found["pad_reasons"] == ["it is a tensor-parallel shard with whole inputs or outputs"]
    assert found["applied"]["pad-mlp"] == 0
    assert found["applied"]["gelu-epilogue"] == 0
    assert found["parameters_kept"]
    assert found["restored"]


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_a_tower_that_somebody_watches_or_compiles_is_untouched(report, model):
    for kind, reason in (("hooks", "it has hooks"), ("compiled", "vLLM compiles the code around it")):
        found = report[model]["refusals"][kind]
        assert found["reasons"] == [reason]
        assert sum(found["applied"].values()) == 0
        assert found["untouched"]


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_code_that_is_not_known_is_left_alone(report, model):
    found = report[model]["refusals"]["fork"]
    # Norms, convolutions and attention are vLLM's own layers, not code of the model; everything else is a fork's.
    own = {"fused-norms", "unsplit-attention", "channels-last"}
    assert {name for name, count in found["applied"].items() if count} <= own
    assert "the forward of Fork is no block of two branches" in found["reasons"]


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_listing_changes_nothing(report, model):
    for found in report[model]["refusals"].values():
        assert found["dry_changes_nothing"]
        assert found["dry_says"] == found["applied"]
