"""Tunings on towers that two ranks share: shards are tuned right or left alone, replicated towers are tuned."""

import json

import pytest
from test_tunings import EXPECTED, FIVE, run_of

#: What is left alone on shards: Qwen2-VL gathers and splits between its product and the rotation.
LEFT = {"qwen2_vl": {"inplace-rotary": ["it is a tensor-parallel shard"]}}

pytestmark = [pytest.mark.trees, pytest.mark.lab]


RELEASES = [pytest.param("0.23.0", marks=pytest.mark.slow), pytest.param("0.27.0", marks=pytest.mark.slow), "0.33.0"]


@pytest.fixture(scope="module", params=RELEASES)
def report(request, release_tree):
    done = run_of("run_sharded.py", release_tree(request.param).root, "2", *FIVE)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(found["rank"] for found in ranks) == [0, 1]
    return ranks


@pytest.mark.parametrize("model", FIVE)
@pytest.mark.parametrize("mode", ["weights", "data"])
def test_the_tuned_tower_computes_what_the_untuned_one_computes(report, mode, model):
    for found in (rank[mode][model] for rank in report):
        assert found["error"] <= 2e-6
        assert found["restored"]
        assert found["proved"]
        assert all(error is not None and error <= 1e-4 for error in found["proved"])
    # Both ranks end with the same embeddings, whatever each of them computed.
    assert report[0][mode][model]["sum"] == pytest.approx(report[1][mode][model]["sum"], rel=1e-5)


@pytest.mark.parametrize("model", FIVE)
def test_shards_are_tuned_or_left_alone_with_a_reason(report, model):
    left = LEFT.get(model, {})
    for found in (rank["weights"][model] for rank in report):
        assert found["shards"] > 0
        assert found["applied"] == {name: count for name, count in EXPECTED[model].items() if name not in left}
        assert {name: found["refused"][name] for name in left} == left


@pytest.mark.parametrize("model", FIVE)
@pytest.mark.parametrize("mode", ["weights", "data"])
def test_weights_can_be_loaded_again_into_tuned_shards(report, mode, model):
    for found in (rank[mode][model] for rank in report):
        assert found["loaded"] >= 8
        assert found["changed"] > 0.01
        assert found["reloaded"] <= 2e-6


@pytest.mark.parametrize("model", FIVE)
def test_a_replicated_tower_is_tuned_whole(report, model):
    for found in (rank["data"][model] for rank in report):
        assert found["shards"] == 0
        assert found["applied"] == EXPECTED[model]
