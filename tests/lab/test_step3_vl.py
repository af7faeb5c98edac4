"""Step3-VL in the CPU lab: two kinds of tiles, on two paths where the release's protocol has them, in one graph before.

The recipe's cases: items without local tiles and with many, several of both in a batch, full and partial batches, items
above the budget on one path only, and a budget below one image, where an item is eager on both paths.
"""

from __future__ import annotations

import pytest
from proven import assert_right

from scaffold.verify.numeric import NumericRequest, check_numerics, check_numerics_all
from scaffold.workflow import load_port, numeric_requests, prepare_port, prove_numerics, subclass_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab, pytest.mark.usefixtures("check_once")]

MODEL = "vllm/model_executor/models/step3_vl.py"
#: One release of each way to speak: no hook for results; one graph; two paths; named paths. `test_matrix.py` has all.
SAMPLE = ("0.21.0", "0.23.0", "0.26.0", "0.33.0")


@pytest.mark.parametrize("release", SAMPLE)
def test_generated_port_equals_the_pristine_tree(release_tree, release):
    (report,) = prove_numerics(load_port("step3_vl"), release_tree(release))

    # A check that never replayed a graph would pass for the wrong reason. Two paths of 0.24 to 0.26 count no misses.
    assert_right(report, 51)
    assert report.misses > 0 or release in ("0.24.0", "0.25.0", "0.26.0")


#: Releases, and how many of their subclasses are run: in 0.33 the third has the second one's tower.
HEIRS = [
    ("0.33.0", 2),
    *(pytest.param(f"0.{minor}.0", None, marks=pytest.mark.slow, id=f"0.{minor}.0-all") for minor in range(20, 34)),
]


@pytest.mark.parametrize(("release", "most"), HEIRS)
def test_subclasses_with_another_tower_inherit_a_right_port(release_tree, release, most):
    """Their perception encoder has no data-parallel switch of its own, and is right with the parent's token counts."""
    tree, spec = release_tree(release), load_port("step3_vl")
    requests = subclass_requests(spec, tree, numeric_requests(spec, tree)[0])[:most]
    names = [request.recipe for request in requests]
    assert "step_vl" in names

    reports = check_numerics_all(requests)

    for name, report in zip(names, reports, strict=True):
        assert report.passed, "\n".join([name, *report.lines()])
        assert report.hits > 50, name
        assert any(check.name == "data parallelism stays outside" for check in report.checks), name


@pytest.mark.parametrize(
    ("release", "right", "wrong", "code"),
    [
        # The manager of these releases loses its way when both paths of an item are eager.
        pytest.param(
            "0.26.0",
            "local_path_tokens = local_tokens if smallest >= global_tokens else 0",
            "local_path_tokens = local_tokens",
            "VCG654",
            id="both paths eager",
        ),
        pytest.param(
            "0.33.0",
            "torch.cat([*local_tiles[start : start + n], global_tiles[i]])",
            "torch.cat([*local_tiles[start : start + n], global_tiles[i]]) if n else global_tiles[i]",
            "VCG658",
            id="a view of the output",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "0.23.0",
            "(token_budget - global_tokens) // local_tokens",
            "(token_budget - max_batch_size * global_tokens) // local_tokens",
            "VCG654",
            id="room for local tiles beside a full batch only",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "0.21.0",
            "self._encode_tiles(local_pixels).flip(0)",
            "self._encode_tiles(local_pixels)",
            "VCG650",
            id="rows of local tiles in another order",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_the_generated_code_must_not_leave_out(release_tree, release, right, wrong, code):
    tree = release_tree(release)
    (after,) = (
        change.after
        for change in prepare_port(load_port("step3_vl"), tree, replace=True).changed
        if change.path == MODEL
    )
    assert right in after.decode()
    overlay = {MODEL: after.decode().replace(right, wrong).encode()}

    report = check_numerics(NumericRequest(tree.root, overlay, "step3_vl", ("image",), release))

    assert code in {diagnostic.code for diagnostic in report.diagnostics()}, "\n".join(report.lines())
