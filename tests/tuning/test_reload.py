"""Managers that tune their towers: what they serve, and weights that change under them by each release's reload."""

import pytest
from test_tunings import EXPECTED, FIVE, RELEASES, found_by

FORMATS = ("checkpoint", "kernel", "loaders", "discarded", "shards", "checkpoint again")

#: The release's own port gives wrong replays before anything is reloaded, with tunings and without.
WRONG_BEFORE = {("step3_vl", "0.23.0"), ("step3_vl", "0.24.0")}

pytestmark = [pytest.mark.trees, pytest.mark.lab]


@pytest.fixture
def report(request, release_tree):
    return request.param, found_by("run_reload.py", release_tree(request.param).root, *FIVE)


every_release = pytest.mark.parametrize("report", RELEASES, indirect=True)


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_a_manager_tunes_and_proves_before_it_captures(report, model):
    release, found = report[0], report[1][model]
    assert found["applied"] == EXPECTED[model]
    assert 0 < found["rounding"] < 1e-4
    assert all(error <= 1e-4 for error in found["proved"])
    assert found["worst"] <= 1e-4 or (model, release) in WRONG_BEFORE
    assert (found["failed"], found["warnings"]) == (0, [])
    assert found["calls"] >= 5
    assert found["served"] > 0


@every_release
def test_a_tuning_that_is_wrong_is_off_in_the_manager_with_one_warning(report):
    found = report[1]["qwen2_vl"]["wrong"]
    (warning,) = found["warnings"]
    assert "the tuning fused-activations was taken back: its error of" in warning
    assert found["applied"] == {name: n for name, n in EXPECTED["qwen2_vl"].items() if name != "fused-activations"}
    assert found["worst"] <= 1e-4


@every_release
@pytest.mark.parametrize("model", FIVE)
def test_new_weights_arrive_in_graphs_and_in_eager(report, model):
    release, found = report[0], report[1][model]
    right = found["first"] <= 1e-5
    assert right or (model, release) in WRONG_BEFORE
    for kind in FORMATS:
        seen = found[kind]
        assert seen["changed"] > 0.5, kind  # the new weights are other ones
        assert seen["hits"] >= 1, kind
        assert seen["replayed"] <= 1e-5 or not right, kind
        assert seen["eager"] <= 1e-5, kind
        assert (seen["moved"], seen["on_meta"], seen["other_shapes"]) == ([], [], []), kind
    assert found["equal_after_undo"]
