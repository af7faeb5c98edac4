"""A graph for a long context must be prepared without an index beyond the model's tables."""

from dataclasses import replace

import pytest
from changed_ports import port_of

from scaffold.verify.numeric import NumericOptions, check_numerics
from scaffold.workflow import numeric_requests


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(("side", "problem"), [(8192, ""), (16384, "index 8192 is out of bounds")])
def test_a_captured_side_beyond_the_rotary_table_is_found(release_tree, side, problem):
    """No budget of the other checks is wide enough to show it, and on a GPU it ends the server."""
    port = port_of("qwen2_vl", {"capture.side_limit": side})
    (request,) = numeric_requests(port, release_tree("0.21.0"), modalities=("image",))
    assert request.options.long_context

    report = check_numerics(replace(request, options=NumericOptions(long_context=True, short=True)))

    found = [check for check in report.checks if not check.passed]
    assert report.hits
    assert report.passed == (not problem)
    assert [problem in check.detail and check.group == "a long context" for check in found] == [True] * bool(problem)


@pytest.mark.trees
def test_only_a_port_whose_captured_grid_grows_is_asked(release_tree):
    """A long context of tiles is many pixels and nothing new; upstream's own ports are compared as they were."""
    tree = release_tree("0.21.0")
    asked = [
        numeric_requests(port_of(model), tree, as_is=as_is)[0].options.long_context
        for model, as_is in (("qwen2_vl", False), ("qwen2_vl", True), ("internvl", False))
    ]
    assert asked == [True, False, False]
