"""The layout `rows` where each item brings a tensor of patches, a grid and more: Ovis 2.5 of vLLM 0.33."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted
from proven import assert_right

from scaffold.diagnostics import DiagnosticError
from scaffold.plan.cut import plan_way
from scaffold.protocol import SourceTree, find_model
from scaffold.tower.source import Program
from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import numeric_requests, prepare_port, prove_numerics

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MODEL = "vllm/model_executor/models/ovis2_5.py"
TOWER = "vllm/model_executor/models/siglip2navit.py"
WAY = {
    ("Ovis2_5", "_process_visual_input"): 0,
    ("VisualTokenizer", "forward"): 0,
    ("VisualTokenizer", "encode"): 0,
    ("Siglip2NavitModel", "forward"): 0,
    ("Siglip2VisionTransformer", "forward"): 0,
    ("Siglip2Encoder", "forward"): 1,
}


def test_the_way_goes_through_a_tower_that_a_method_makes(release_tree: Any) -> None:
    tree, spec = release_tree(RELEASE), port_of("ovis2_5")
    way = plan_way(spec, tree, find_model(tree, spec.module, spec.class_name))
    assert {(one.class_name, one.function): len(one.sites) for one in way.stations} == WAY
    assert [one.class_name for one in way.hoisted] == ["Siglip2Attention", "Siglip2EncoderLayer", "Siglip2Encoder"]


def test_what_takes_a_parameter_says_so_within_88_columns(release_tree: Any) -> None:
    [change] = [change for change in prepare_port(port_of("ovis2_5"), release_tree(RELEASE)).changed
                if change.path == TOWER]  # fmt: skip
    told = [line for line in (change.after or b"").decode().splitlines() if "A bound of the longest" in line]
    assert len(told) == 2
    assert max(map(len, told)) <= 88


@pytest.mark.parametrize(
    ("returns", "known"),
    [("return Tower()", True), ("if self:\n            return Tower()\n        return Other()", False),
     ("return make()", False), ("return Tower(), 1", False), ("pass", False)],
)  # fmt: skip
def test_a_part_that_a_method_makes_has_the_class_of_all_its_returns(returns: str, known: bool, tmp_path: Path) -> None:
    init = "    def __init__(self):\n        self.tower = self._make()\n"
    text = f"class Tower: pass\nclass Other: pass\nclass Model:\n{init}    def _make(self):\n        {returns}\n"
    (tmp_path / "model.py").write_text(text, "utf-8")
    program = Program(SourceTree(root=tmp_path, label="tree", release=None))
    found = program.attribute_class(program.owner("model.py", "Model"), "tower", returned=True)
    assert (found is not None and found[1].name == "Tower") is known


# -- the descriptor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"item.moved": ["pixel_values"]}, "pixel_values` has no values"),
        ({"item.zeros.grids": ["2"]}, "grids` is no input with rows or entries of its own"),
        ({"item.zeros.pixel_values": ["2"]}, "pixel_values` is no input with rows or entries of its own"),
        ({"forward.loop": None}, "only a loop takes more than its layers read"),
    ],
)
def test_what_no_item_can_have_is_refused(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(DiagnosticError, match=place):
        port_of("ovis2_5", changes)


@pytest.mark.parametrize("name", ["hidden_states", "grid_thws"])
def test_only_what_the_loop_takes_is_unread(name: str, release_tree: Any) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("ovis2_5", {"forward.unread": [name]}), release_tree(RELEASE))
    [problem] = caught.value.diagnostics
    assert (problem.code, problem.message) == ("VCG443", f"the loop over the layers takes no `{name}`")
    assert "`cu_window_seqlens`" in problem.help


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
def test_the_port_equals_the_pristine_tree(release_tree: Any) -> None:
    [report] = prove_numerics(port_of("ovis2_5"), release_tree(RELEASE), tails=("fa3",))
    assert_right(report, 60, 5)


MUTANTS = (
    Mutant("a grid on the host", ", device=like.device", "", "VCG653"),
    Mutant("a grid without its own axis", "[[1, h, w]]", "[1, h, w]", "VCG657", "modality"),
    Mutant("another number of indicators", "2 + 1 // (h", "1 + 1 // (h", "VCG657", "modality"),
    Mutant("offsets are not read", '["cu_window_seqlens"]', '["cu_seqlens"]', "VCG657", "modality"),
    Mutant("windows are read", 'call.arguments["cu_window_seqlens"] = "unread"', "pass", "VCG657", "modality"),
    Mutant("rows of twice the width", "* self.config.vit_config.temporal_patch_size", "* 2", "VCG657"),
)


test_mutants_are_rejected = planted(MUTANTS, MODEL, RELEASE, "ovis2_5")


#: A model whose layers attend to windows, but one.
WINDOWS = """\
from scaffold.verify.numeric.recipes import ovis2_5


class Windows(type(ovis2_5.RECIPE)):
    def model_config(self):
        config = super().model_config()
        config.vit_config.fullatt_block_indexes = "1"
        return config


RECIPE = Windows()
"""


@pytest.mark.lab
def test_a_model_with_windows_has_no_graphs_and_right_results(release_tree: Any, tmp_path: Path) -> None:
    file = tmp_path / "windows.py"
    file.write_text(WINDOWS)
    [request] = numeric_requests(port_of("ovis2_5"), release_tree(RELEASE), recipe=str(file))
    [report] = check_numerics_all([replace(request)])
    text = "\n".join(report.lines())
    assert report.hits == 0, text
    assert {check.code for check in report.checks if not check.passed} == {"VCG657"}, text
