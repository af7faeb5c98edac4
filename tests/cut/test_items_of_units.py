"""The layout `rows` where an item is several units, each a sequence with a grid of its own: LFM2-VL's tiles."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, assert_rejected, cases, reports_of
from proven import assert_right

from scaffold.diagnostics import DiagnosticError
from scaffold.plan.cut import plan_way
from scaffold.protocol import find_model
from scaffold.verify.numeric import NumericReport
from scaffold.workflow import numeric_requests, prepare_port, prove_numerics

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
#: The last without upstream's port. Its manager cuts eager results by tokens, and copies the buffers that it was told.
PRISTINE = "0.23.0"
MODEL = "vllm/model_executor/models/lfm2_vl.py"
TOWER = "vllm/model_executor/models/lfm2_siglip2.py"
COSMOS = "vllm/model_executor/models/cosmos3_edge.py"
WAY = {
    ("Lfm2VLForConditionalGeneration", "_process_image_input"): 0,
    ("Lfm2VLForConditionalGeneration", "image_pixels_to_features"): 0,
    ("Siglip2Model", "forward"): 0,
    ("Siglip2VisionTransformer", "forward"): 1,
}


def test_the_way_and_where_the_model_has_its_parts(release_tree: Any) -> None:
    tree, spec = release_tree(RELEASE), port_of("lfm2_vl")
    way = plan_way(spec, tree, find_model(tree, spec.module, spec.class_name))
    assert {(one.class_name, one.function): len(one.sites) for one in way.stations} == WAY
    held = {one.class_name: one.held for one in way.stations}
    assert (held["Siglip2Model"], held["Siglip2VisionTransformer"]) == ({"vision_tower"}, {"vision_model"})
    assert held["Lfm2VLForConditionalGeneration"] == frozenset()


def test_the_port_replaces_upstreams_and_keeps_what_the_model_still_calls(release_tree: Any) -> None:
    port = prepare_port(port_of("lfm2_vl"), release_tree(RELEASE), replace=True)
    [change] = [change for change in port.changed if change.path == MODEL]
    names = {node.name for node in ast.walk(ast.parse(change.after or b"")) if isinstance(node, ast.FunctionDef)}
    assert not {name for name in names if "lfm2vl" in name} - {
        "_get_lfm2vl_tile_output_lengths", "get_image_replacement_lfm2vl"
    }  # fmt: skip
    assert "_pad_cumulative_seqlens_buffer" not in names


MERGER = "class Cosmos3EdgePatchMerger("
#: Changes of Cosmos 3 Edge, whose encoder is LFM2-VL's tower with a method of its own in 0.27, and kept apart from it.
REACHED = {
    "in the attribute that the way goes through": ("self.encoder = Cosmos3", "self.vision_model = Cosmos3"),
    "moved into that attribute": (
        "        self.encoder = Cosmos3", "        self.vision_model = None\n        self.encoder = Cosmos3"
    ),
    "named elsewhere": (MERGER, f"KNOWN = [Cosmos3EdgeVisionEncoder]\n\n\n{MERGER}"),
    "named in a text": (MERGER, f'KNOWN = "Cosmos3EdgeVisionEncoder"\n\n\n{MERGER}'),
    "of an alias": (MERGER, f"from a import Cosmos3EdgeVisionEncoder as b\n\n\n{MERGER}"),
    "of a module": (MERGER, f"KNOWN = a.Cosmos3EdgeVisionEncoder\n\n\n{MERGER}"),
}  # fmt: skip


@pytest.mark.parametrize("change", REACHED)
def test_a_subclass_of_the_tower_that_the_way_may_reach_is_refused(change: str, release_tree: Any) -> None:
    tree = release_tree("0.27.0")
    text = tree.read(COSMOS)
    assert text.count(REACHED[change][0]) == 1
    changed = tree.with_files({COSMOS: text.replace(*REACHED[change]).encode()})
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("lfm2_vl"), changed, replace=True)
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG444"
    assert "Cosmos3EdgeVisionEncoder overrides `Siglip2VisionTransformer.forward`" in problem.message


def test_a_subclass_of_the_tower_that_is_kept_apart_may_override_it(release_tree: Any) -> None:
    """The tests above show something: it is the attribute, or the name, that is refused."""
    assert prepare_port(port_of("lfm2_vl"), release_tree("0.27.0"), replace=True).changed


# -- the descriptor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"fields.pixel_values": "batched"}, "pixel_values` has no entry for each unit of an item: it is not cut by"),
        ({"item.values.num_patches": ["1"]}, "spatial_shapes` is no input with an entry for each item"),
        ({"item.zeros": {"masks": ["h * w"]}}, "masks` has no entry for each unit of an item"),
        ({"item.shape": ["channels", "h * p", "w * p"]}, "the first side of `shape` is their number"),
        ({"item.moved": ["num_patches"]}, "num_patches` has no values"),
        ({"fields.spatial_shapes": "batched"}, "num_patches` has no values for an item of h x w patches"),
    ],
)
def test_what_units_cannot_have_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(DiagnosticError, match=problem):
        port_of("lfm2_vl", changes)


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.parametrize("release", [PRISTINE, pytest.param("0.30.0", marks=pytest.mark.slow), RELEASE])
def test_the_port_equals_the_pristine_tree(release: str, release_tree: Any) -> None:
    """Before 0.31 sequences cover the rows behind a batch, too, in the same offsets."""
    [report] = prove_numerics(port_of("lfm2_vl"), release_tree(release), tails=("fa3",))
    assert_right(report, 80, 10)


FITS = "(len(item) - 1) * 128 <= sum(item)"
MUTANTS = (
    # What is left of a port that knows one sequence an item.
    Mutant("offsets of items alone", "counts: list[int] = [1] * len(rows)\n        if self._encoder_cudagraph_counts:",
           "counts: list[int] = [1] * len(rows)\n        if False:", "VCG654"),
    Mutant("room for one sequence an item", "num_rows // 128 if self._encoder_cudagraph_counts else 0", "0", "VCG654"),
    Mutant("room for one sequence too few", "num_seqs = max_batch_size + num_others",
           "num_seqs = max_batch_size + num_others - 1", "VCG654"),
    Mutant("any number of sequences fits", FITS, "True", "VCG654"),
    Mutant("one sequence too many fits", FITS, "(len(item) - 2) * 128 <= sum(item)", "VCG654"),
    Mutant("only one sequence fits", FITS, "len(item) == 1", "VCG657"),
    Mutant("offsets are not padded", "dst[len(src) :] = src[-1]", "pass", "VCG665"),
    Mutant("padding is zeros", "dst[len(src) :] = src[-1]", "dst[len(src) :] = 0", "VCG665"),
    Mutant("more units than grids", "[2] * (len(grids) // 2)", "[2] * len(grids)", "VCG657"),
    Mutant("too few rows for the longest", "max(h * w for h, w in grids)", "min(h * w for h, w in grids)", "VCG657"),
    Mutant("rows of the padded tiles", "grids.prod(-1).tolist()",
           '[mm_kwargs["pixel_values"].shape[1]] * len(grids)', "VCG657"),
    Mutant("sides instead of squares", "grids.prod(-1).tolist()", "grids.sum(-1).tolist()", "VCG657"),
    Mutant("pixels of other tiles", '"pixel_values"].split(sizes)', '"pixel_values"].flip(0).split(sizes)', "VCG650"),
)  # fmt: skip

#: Of what a port has before 0.27 alone.
EARLY = (
    Mutant("offsets for any batch", FITS, "True", "VCG654"),
    Mutant("an early batch of one sequence", FITS, "len(item) == 1", "VCG657"),
    Mutant("a replay that is not dropped", "output, batch_mm_kwargs) if fits", "output, batch_mm_kwargs) if True",
           "VCG650"),
    Mutant("buffers that nobody copies", 'if kind in ("rows", "offsets")\n', "if not kind\n", "VCG650"),
    Mutant("offsets that nobody copies", 'if kind in ("rows", "offsets")\n', 'if kind == "rows"\n', "VCG650"),
    Mutant("an eager run of fewer tokens", "[*self.embed_multimodal(**mm_kwargs)]",
           "[*self.embed_multimodal(**mm_kwargs)])[1:].contiguous(", "VCG650"),
    Mutant("more tokens than there are", "cdiv(num_rows, merge)", "num_rows", "VCG657"),
    Mutant("fewer tokens than there are", "cdiv(num_rows, merge)", "num_rows // merge - 1", "VCG657"),
)  # fmt: skip


@pytest.fixture(scope="module")
def reports(release_tree: Any, asked: list[Mutant]) -> dict[str, NumericReport]:
    found: dict[str, NumericReport] = {}
    for release, mutants in ((RELEASE, MUTANTS), (PRISTINE, EARLY)):
        [request] = numeric_requests(port_of("lfm2_vl"), release_tree(release))
        found |= reports_of(request, MODEL, mutants, asked)
    return found


@pytest.mark.lab
@pytest.mark.parametrize("mutant", cases([*MUTANTS, *EARLY]))
def test_mutants_are_rejected(mutant: Mutant, reports: dict[str, NumericReport]) -> None:
    assert_rejected(reports[mutant.name], mutant)
