"""Drafts of the layout `crops`: DeepSeek-OCR and its relatives, and what decides, one change of the model at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffold.descriptor import CropsPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, draft_descriptor
from scaffold.protocol import SourceTree
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

ROOT = Path(__file__).parents[2]
RELEASE = "0.33.0"
MODEL = "DeepseekOCR2ForCausalLM"
FILE = "vllm/model_executor/models/deepseek_ocr2.py"


def port_of(draft: Draft) -> CropsPort:
    port = load_descriptor_text(draft.text, "draft.yaml")
    assert isinstance(port, CropsPort)
    return port


def changed(tree: SourceTree, old: str, new: str) -> SourceTree:
    text = tree.read(FILE)
    assert old in text
    return tree.with_files({FILE: text.replace(old, new).encode()})


@pytest.mark.parametrize(
    ("architecture", "name"), [(MODEL, "deepseek_ocr2"), ("DeepseekOCRForCausalLM", "deepseek_ocr")]
)
def test_the_port_is_the_one_written_by_hand(architecture: str, name: str, release_tree) -> None:
    """Which passes its numeric proof: tests/cut/test_crops.py."""
    tree = release_tree(RELEASE)
    draft = draft_descriptor(tree, architecture)
    assert draft.questions == ()
    path = f"scaffold/descriptor/shipped/{name}.yaml"
    ports = (port_of(draft), load_descriptor_text((ROOT / path).read_text("utf-8"), path))
    drafts, hands = (
        {file.path: file.after for file in prepare_port(port, tree, replace=True).changed} for port in ports
    )
    assert drafts == hands


def test_a_class_of_the_same_encoders_has_the_same_draft(release_tree) -> None:
    tree = release_tree(RELEASE)
    found, other = (port_of(draft_descriptor(tree, f"{name}ForCausalLM")) for name in ("UnlimitedOCR", "DeepseekOCR"))
    assert (found.forward, found.crops, found.pixels, found.let) == (
        other.forward,
        other.crops,
        other.pixels,
        other.let,
    )
    paths = [change.path.rpartition("/")[2] for change in prepare_port(found, tree, replace=True).changed]
    assert {"unlimited_ocr.py", "deepseek_ocr.py", "encoder_cudagraph_paths.py"} <= set(paths)


def test_evidence(release_tree) -> None:
    text = draft_descriptor(release_tree(RELEASE), MODEL).text
    for line in (
        "  images_crop:\n    sizes: images_spatial_crop    # vllm/model_executor/models/deepseek_ocr2.py:186",
        "    least: 2    # vllm/model_executor/models/deepseek_ocr2.py:180: an image of one tile has no rows",
        "  base_size: 1024    # vllm/transformers_utils/processors/deepseek_ocr.py:21: ",
        "  image_size: 768    # vllm/model_executor/models/deepseek_ocr2.py:65: ",
        "  through: self.projector    # ",
        "layout: crops    # not packed, tiles or paths: ",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("architecture", "releases"), [("DeepseekOCR", ("0.22.0", "0.23.0")), ("UnlimitedOCR", ("0.26.0",))]
)
def test_releases_without_named_paths_have_the_same_draft(
    architecture: str, releases: tuple[str, ...], release_tree
) -> None:
    """Whole images alone have graphs there, which is not the descriptor's business."""
    named, *others = (
        port_of(draft_descriptor(release_tree(release), f"{architecture}ForCausalLM"))
        for release in ("0.27.0", *releases)
    )
    assert all(
        (other.forward, other.crops, other.pixels) == (named.forward, named.crops, named.pixels) for other in others
    )
    assert all(
        (other.modalities, other.fields, other.let) == (named.modalities, named.fields, named.let) for other in others
    )


def test_a_part_that_waits_has_no_draft(release_tree) -> None:
    """Before 0.27 DeepSeek-OCR 2's decoder asks for the places of its tokens."""
    with pytest.raises(DiagnosticError, match=r"nonzero.* waits for the GPU in a part of"):
        draft_descriptor(release_tree("0.26.0"), MODEL)


TILED = "(images_spatial_crop[:, 0] > 1) | (images_spatial_crop[:, 1] > 1)\n        patches_per_image"
SIZES = "torch.where(is_tiled, images_spatial_crop.prod(dim=-1), 0)\n        return dict("


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TILED, TILED.replace("[:, 1] > 1", "[:, 1] >= 1")),
        (TILED, TILED.replace("[:, 1] > 1", "[:, 1] > 2")),
        (TILED, TILED.replace("[:, 1] > 1", "[:, 0] > 1")),
        (TILED, TILED.replace(" | ", " & ")),
        (TILED, TILED.replace("images_spatial_crop[:, 1]", "hf_inputs['other'][:, 1]")),
        (TILED, TILED.replace("images_spatial_crop[:, 1] > 1", "is_large")),
        (SIZES, SIZES.replace(", 0)", ", 1)")),
        (SIZES, SIZES.replace(", 0)", ")")),
        (SIZES, SIZES.replace(".prod(dim=-1)", ".sum(dim=-1)")),
    ],
)
def test_other_numbers_of_crops_are_refused(old: str, new: str, release_tree) -> None:
    """They would be cut at other places than the processor's."""
    with pytest.raises(DiagnosticError) as caught:
        draft_descriptor(changed(release_tree(RELEASE), old, new), MODEL)
    assert any(
        "the sizes of `images_crop` are computed where" in problem.message for problem in caught.value.diagnostics
    )


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("            image_size=IMAGE_SIZE,\n            base", "            base", ["let.image_size"]),
        (
            "            image_size=IMAGE_SIZE,\n            base",
            "            image_size=2 * 384,\n            base",
            ["let.image_size"],
        ),
        (
            "            base_size=BASE_SIZE,\n            crop",
            "            base_size=SIZE,\n            crop",
            ["let.base_size"],
        ),
        ("    def get_hf_processor(", "    def make_processor(", ["let.base_size", "let.image_size"]),
    ],
)
def test_what_the_source_does_not_tell_is_asked(old: str, new: str, keys: list[str], release_tree) -> None:
    draft = draft_descriptor(changed(release_tree(RELEASE), old, new), MODEL)
    assert [question.key for question in draft.open] == keys


def test_a_shape_that_no_annotation_says_is_asked(release_tree) -> None:
    tree, file = release_tree(RELEASE), FILE.replace("ocr2", "ocr")
    shape = 'TensorShape("bnp", 3, "image_size", "image_size", dynamic_dims={"bnp"}),'
    text = tree.read(file)
    assert shape in text
    draft = draft_descriptor(tree.with_files({file: text.replace(shape, '"crops",').encode()}), MODEL)
    assert [question.key for question in draft.open] == ["crops.shape"]


def test_the_chain_ends_with_the_last_part_that_both_call(release_tree) -> None:
    tree = changed(
        release_tree(RELEASE), "features = self.projector(local_features)", "features = self.other(local_features)"
    )
    port = port_of(draft_descriptor(tree, MODEL))
    assert port.through == "self.qwen2_model"
    assert prepare_port(port, tree).plan.way.sites == 2


def test_statements_that_differ_are_no_chain(release_tree) -> None:
    old = "        local_features = self.qwen2_model(local_features)\n"
    new = "        local_features = self.qwen2_model(-local_features)\n"
    with pytest.raises(DiagnosticError) as caught:
        draft_descriptor(changed(release_tree(RELEASE), old, new), MODEL)
    assert any("it is not the same as in" in problem.message for problem in caught.value.diagnostics)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A third call, and crops that come as items.
        (
            "        local_features = self.sam_model(patches)\n",
            "        self.sam_model(patches)\n        local_features = self.sam_model(patches)\n",
        ),
        (
            'MultiModalFieldConfig.flat_from_sizes(\n                "image", patches_per_image\n            )',
            'MultiModalFieldConfig.batched("image")',
        ),
    ],
)
def test_another_number_of_calls_is_beyond_it(old: str, new: str, release_tree) -> None:
    with pytest.raises(DiagnosticError) as caught:
        draft_descriptor(changed(release_tree(RELEASE), old, new), MODEL)
    assert {problem.code for problem in caught.value.diagnostics} == {"VCG483"}


def test_the_layout_may_be_asked_for(release_tree) -> None:
    tree = release_tree(RELEASE)
    assert "layout: crops    # asked for" in draft_descriptor(tree, MODEL, layout="crops").text
    with pytest.raises(DiagnosticError, match="it is drafted as `crops`, not as `cut`"):
        draft_descriptor(tree, MODEL, layout="cut")
    with pytest.raises(DiagnosticError, match="it is drafted as `cut`, not as `crops`"):
        draft_descriptor(tree, "LlavaNextForConditionalGeneration", layout="crops")
