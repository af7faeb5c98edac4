"""A cut at an encoder of another package: Gemma 4 and its kin, by stored drafts of real classes.

The shipped Gemma 4 also has graphs of frames, which have fewer patches than an image: a path for each shape.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted
from proven import assert_right

from scaffold.adapters.outputs import Source, render_outputs
from scaffold.adapters.source import render_adapter
from scaffold.diagnostics import DiagnosticError
from scaffold.edit import apply_edits
from scaffold.protocol import GENERATIONS, known_profile
from scaffold.workflow import prepare_port, prove_numerics

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
#: A release before upstream's own port.
PRISTINE = "0.25.0"
MODEL = "vllm/model_executor/models/gemma4_mm.py"
VISION = "self.config.vision_config"
CALL = (
    "self.vision_tower.encoder(inputs_embeds=pixels, attention_mask=attention_mask, "
    "pixel_position_ids=pixel_position_ids)"
)
#: stored draft -> its release and recipe
PORTS = {
    "gemma4_early": (PRISTINE, "gemma4_mm"),
    "diffusion_gemma": (RELEASE, "diffusion_gemma"),
    "embedding_gemma2": (RELEASE, "embedding_gemma2"),
}


@pytest.mark.parametrize("model", PORTS)
def test_a_draft_is_a_port(model: str, release_tree: Any) -> None:
    assert prepare_port(port_of(model), release_tree(PORTS[model][0])).changed


def test_a_subclass_without_the_encoder_has_no_graphs(release_tree: Any) -> None:
    """The unified Gemma 4 embeds patches by a linear layer, in an entry of its own."""
    port = port_of("gemma4_early")
    tree = release_tree(PRISTINE)
    assert port.model.optout == ("Gemma4UnifiedForConditionalGeneration",)
    kept = port.replace(model=port.model.replace(optout=()))
    with pytest.raises(DiagnosticError, match="overrides `Gemma4ForConditionalGeneration"):
        prepare_port(kept, tree)


def test_the_section_of_a_method_that_gets_a_parameter_keeps_its_title(release_tree: Any) -> None:
    tree = release_tree(PRISTINE)
    port = prepare_port(port_of("gemma4_early"), tree)
    [file] = [file for file in port.plan.files if file.path == MODEL]
    text = apply_edits(tree.read(MODEL), file.edits, path=MODEL).text
    for title in ("    # Image processing\n", "    # Video processing (frames through vision tower)\n"):
        assert text.count(title) == tree.read(MODEL).count(title) == 1


# -- a path for each shape ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "modalities", "mixin"),
    [("0.22.0", ["image"], "units"), (PRISTINE, ["image"], "units"), (RELEASE, ["image", "video"], "paths")],
)
def test_frames_have_graphs_where_ports_name_paths(
    release: str, modalities: list[str], mixin: str, release_tree: Any
) -> None:
    prepared = prepare_port(port_of("gemma4_mm"), release_tree(release), replace=True)
    text = {change.path: (change.after or b"").decode() for change in prepared.changed}
    assert f"vllm/model_executor/models/encoder_cudagraph_{mixin}.py" in text
    assert list(prepared.plan.port.modalities) == modalities
    assert prepared.plan.way is not None
    cut = [station.function for station in prepared.plan.way.stations]
    assert cut == [f"_process_{modality}_input" for modality in modalities]
    notes = [note for note in prepared.notes if note.code == "VCG447"]
    assert [note.message.partition(":")[0] for note in notes] == ["items of video run eagerly"] * (len(modalities) == 1)
    row = [line for line in text.get("docs/design/cuda_graphs_multimodal.md", "").split("\n") if "`Gemma4F" in line]
    # Upstream's own row stays.
    assert [cell.strip()[0] for line in row for cell in line.split("|")[3:5]] == ["✅", "❌"] * (release != RELEASE)


def test_a_page_says_which_adapters_serve_images_only() -> None:
    port = port_of("gemma4_mm")
    [page] = [file for file in render_outputs([Source("gemma4_mm", port)]).files if file.path == "docs/adapters.md"]
    [row] = [line for line in page.text.split("\n") if "`gemma4_mm`" in line and line.startswith("|")]
    marks = [cell.strip() for cell in row.strip("|").split("|")[2:]]
    # Architecture and name, three columns of a full port, the module, and a mark for each served generation.
    assert [mark[0] for mark in marks[:3]] == ["✅"] * 3
    assert [mark.partition(" ")[2] for mark in marks[4:]] == [*["(image only)"] * 2, "", ""]


def shapes_of(model: dict[str, Any]) -> tuple[Any, Any]:
    """The units of each path, and the features that are a token, of a port with these changes."""
    text, _ = render_adapter(port_of("gemma4_mm", model), known_profile(GENERATIONS[-1]))
    methods = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    made = ast.unparse(methods["_make_encoder_units"])
    merge = methods.get("_encoder_cudagraph_rows_per_token")
    return made, merge and ast.unparse(merge).rpartition("return ")[2]


def test_only_what_differs_depends_on_the_path() -> None:
    made, merge = shapes_of({})
    assert merge == f"{VISION}.pooling_kernel_size ** 2"
    assert "'pixel_values_videos': 70 * " in made
    assert f"(num_units, num_patches, {VISION}.hidden_size)" in made
    more, none = shapes_of({"item": None, "modalities.video.let": {"tokens": 70, "pool": 4}})
    assert none is None
    assert "'pixel_values_videos': 70 * 4 ** 2" in more
    assert "pool =" not in more  # a unit has no side of that name


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.parametrize("model", [*[*PORTS][:2], pytest.param([*PORTS][2], marks=pytest.mark.slow)])
def test_the_port_equals_the_pristine_tree(model: str, release_tree: Any) -> None:
    release, recipe = PORTS[model]
    [report] = prove_numerics(port_of(model), release_tree(release), recipe=recipe)
    assert_right(report, 20, 4)


MUTANTS = (
    Mutant("no mask", 'attention_mask=inputs["attention_mask"]', "attention_mask=None", "VCG650"),
    Mutant(
        "the same place for all patches",
        'pixel_position_ids=inputs["pixel_position_ids"]',
        'pixel_position_ids=torch.zeros_like(inputs["pixel_position_ids"])',
        "VCG650",
    ),
    Mutant("another number of patches", ".pooling_kernel_size**2,", ".pooling_kernel_size,", "VCG657"),
    Mutant("features of another unit", "last_hidden_state=features)", "last_hidden_state=features.flip(1))", "VCG650"),
)


test_mutants_are_rejected = planted(
    MUTANTS, "vllm/model_executor/models/diffusion_gemma.py", RELEASE, "diffusion_gemma", recipe="diffusion_gemma"
)


PATHS = (
    Mutant("frames as long as images", '"pixel_values_videos": 70', '"pixel_values_videos": 140', "VCG657"),
    Mutant(
        "budgets of features",
        '"""How many features of a unit become one token."""\n',
        '"""1"""\n        return 1\n',
        "VCG657",
    ),
    Mutant("an item is a unit", "1 if item.shape == unit else len(item)", "1", "VCG657"),
    Mutant("units of the other path", "if other == path:", "if other != path:", "VCG650"),
    Mutant("rows of one feature", "* shape[:-1].numel()", "* 1", "VCG654"),
    Mutant(
        "rows behind the batch", "features[path] = output[:num_rows]", "features[path] = output[num_rows:]", "VCG650"
    ),
)


test_mutants_of_paths_are_rejected = planted(PATHS, MODEL, RELEASE, "gemma4_mm", sampled=False)
