"""InternVL in the CPU lab: the generated port is right on every release (tests/numeric/test_releases.py has the defects
of the hand-written ones)."""

from __future__ import annotations

import pytest
from proven import assert_right

from scaffold.workflow import load_port, prove_numerics

#: Mono-InternVL: its tower is the patch embedding alone, which knows no data parallelism.
MONO = """\
from scaffold.verify.numeric.recipes.internvl import InternVL


class Mono(InternVL):
    def model_config(self):
        config = super().model_config()
        config.text_config.architectures = ["InternLM2VEForCausalLM"]
        return config


RECIPE = Mono()
"""

pytestmark = [pytest.mark.trees, pytest.mark.lab, pytest.mark.usefixtures("check_once")]


#: The oldest and the newest. `test_matrix.py` has all others, and notices when the code for a release changes.
@pytest.mark.parametrize("release", ["0.22.0", "0.33.0"])
def test_generated_port_equals_the_pristine_tree(release_tree, release):
    (report,) = prove_numerics(load_port("internvl"), release_tree(release))

    # A check that never replayed a graph, or never fell back, would pass for the wrong reason.
    assert_right(report, 51)
    assert report.misses > 5
    assert {check.modality for check in report.checks} >= {"image", "video"}


@pytest.mark.parametrize("release", ["0.20.0", "0.22.0"])
def test_a_tower_without_the_switch(release_tree, tmp_path, release):
    """Releases to 0.22 give Mono-InternVL such a tower, in graphs and eagerly."""
    recipe = tmp_path / "mono.py"
    recipe.write_text(MONO)

    (report,) = prove_numerics(load_port("internvl"), release_tree(release), recipe=str(recipe))

    assert_right(report, 51)
    assert report.misses > 5
