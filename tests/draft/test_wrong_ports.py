"""Drafts that would have been wrong and passed every static proof: each is refused with its line, or drafted right."""

from __future__ import annotations

import pytest

from scaffold.descriptor import PackedPort, TilesPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, draft_descriptor, interview
from scaffold.protocol import open_tree
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MODELS = "vllm/model_executor/models"
#: architecture -> the layout that it was drafted in, words of the refusal, words of the line that it names
REFUSED = {
    "Cohere2VisionForConditionalGeneration": ("tiles", "each item goes through `flatten(0, 2)`", ".flatten(0, 2)"),
    "DotsOCRForCausalLM": (
        "packed",
        "the result of `self.vision_tower` is indexed before it is split",
        "self.vision_tower(",
    ),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_what_is_done_to_a_result_is_not_dropped(architecture, release_tree):
    tree = release_tree(RELEASE)
    layout, words, code = REFUSED[architecture]
    with pytest.raises(DiagnosticError) as caught:
        draft_descriptor(tree, architecture, layout=layout)
    (problem,) = caught.value.diagnostics
    assert problem.code == "VCG483"
    assert words in problem.message
    assert problem.span is not None
    lines = tree.read(problem.span.file.removeprefix(tree.display(""))).splitlines()
    assert code in lines[problem.span.line - 1]


def test_videos_that_audio_is_put_between_are_left_out(release_tree):
    """MiMo splits the embeddings of a video a second time and puts those of its audio between the parts."""
    found = draft_descriptor(release_tree(RELEASE), "MiMoV2OmniForCausalLM")
    left = [note.message for note in found.notes if "`video`" in note.message]
    assert left == [
        "the modality `video` is left out: the result of `self.visual` is split again after it was split into items"
    ]
    assert "video" not in found.text.partition("modalities:")[2].partition("sizes:")[0].partition("image:")[2]


EXTRACTED = "image_embeds = self.extract_feature(image_input["
#: name -> what the model does to the features of InternVL instead
CHANGED = {
    "one of two results": (EXTRACTED, f"image_embeds, _ = {EXTRACTED.partition(' = ')[2]}", "is indexed before it is"),
    "a part of the result": (
        "image_feature_sizes = [",
        "image_embeds = image_embeds[:, 1:]\n        image_feature_sizes = [",
        "is indexed before it is",
    ),
    "another shape": ("image_embeds.view(-1, self.config", "image_embeds.view(2, self.config", "is given to `view`"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_result_of_tiles(name, copied_tree):
    files = tuple(f"{MODELS}/{name}.py" for name in ("registry", "internvl", "intern_vit"))
    tree = copied_tree("0.22.0", *files)
    old, new, words = CHANGED[name]
    path = tree.root / MODELS / "internvl.py"
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new))
    with pytest.raises(DiagnosticError) as caught:
        draft_descriptor(open_tree(tree.root), "InternVLChatModel")
    assert words in caught.value.diagnostics[0].message


#: architecture -> lines of its draft about the sides of a tile, which the first candidates complete
SIDES = {
    # their image processor cannot be made without arguments, and a port would make it so
    "SkyworkR1VChatModel": ("side: self.config.vision_config.image_size", "shape: [3, side, side]"),
    "Eagle2_5_VLForConditionalGeneration": ("side: self.config.vision_config.image_size", "shape: [3, side, side]"),
    # the shape is annotated in the module of the base
    "H2OVLChatModel": ("side: self.config.vision_config.image_size", "shape: [3, side, side]"),
    # a configuration with two sides
    "InternS1ForConditionalGeneration": (
        'height: "self.config.vision_config.image_size[0]"',
        'width: "self.config.vision_config.image_size[1]"',
        "shape: [3, height, width]",
    ),
}


@pytest.mark.parametrize("architecture", SIDES)
def test_the_sides_of_a_tile(architecture, release_tree):
    found = first_candidates(release_tree(RELEASE), architecture)
    said = [line.strip().partition("    #")[0] for line in found.text.splitlines()]
    assert set(SIDES[architecture]) <= set(said)
    assert load_descriptor_text(found.text, "draft.yaml").processor is None


def test_results_beside_each_other_are_wider_than_one(release_tree):
    """Qwen3-Omni joins the outputs of several layers: the language model's width would be one of them."""
    found = draft_descriptor(release_tree(RELEASE), "Qwen3OmniMoeForConditionalGeneration")
    (question,) = [question for question in found.open if question.key == "output.hidden_size"]
    assert [candidate.value for candidate in question.candidates] == ["self.visual_dim + self.multiscale_dim"]
    assert "beside each other" in question.what


#: architecture -> the one reason for which no layout will ever express it
UNPORTABLE = {
    "TransformersMultiModalForCausalLM": "its encoder is code of Hugging Face Transformers",
    "Terratorch": "its inputs go into the model as they are",
    "MiniCPMV": "draft the one that is served: `init minicpmv:MiniCPMV2_0`, `init minicpmv:MiniCPMV2_5`",
}


@pytest.mark.parametrize("architecture", UNPORTABLE)
def test_what_can_never_be_ported_is_refused_first(architecture, release_tree):
    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(release_tree(RELEASE), architecture)
    [problem] = error.value.diagnostics
    assert problem.code == "VCG483"
    assert UNPORTABLE[architecture] in problem.message


def test_a_class_that_is_served_has_the_processor_of_the_one_that_makes_it(release_tree):
    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(release_tree(RELEASE), "vllm/model_executor/models/minicpmv.py:MiniCPMV2_6")
    assert {problem.code for problem in error.value.diagnostics} == {"VCG483"}
    assert "`self.resampler` also depends on `tgt_sizes`" in str(error.value)
    with pytest.raises(DiagnosticError, match="VCG481"):
        draft_descriptor(release_tree(RELEASE), "vllm/model_executor/models/minicpmv.py:MiniCPMVBaseModel")


def test_a_table_of_fields_at_the_top_of_a_module_is_read(release_tree):
    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(release_tree(RELEASE), "MoonshotKimiaForCausalLM")
    assert [problem.code for problem in error.value.diagnostics] == ["VCG486"]


#: architecture -> what a tower is called with, the class of it, and the width
TOWERS = {
    # Precomputed embeddings go through the projector, too: a port embeds them with the model's own code.
    "HCXVisionV2ForCausalLM": (
        "self.mm_projector(self.visual(pixels, None, encoder_metadata=metadata))",
        "Qwen2_5_VisionTransformer",
        "self.text_config.hidden_size",
    ),
    # A projector behind the tower that works on each row by itself; fields that a comprehension picks.
    "BailingMoeV3VLForConditionalGeneration": (
        "self.linear_proj(self.visual(pixels, None, encoder_metadata=metadata))",
        "BailingMoeV3VisionTransformer",
        "self.config.text_config.hidden_size",
    ),
    # A stub stands for the tower in a process without it.
    "Qwen4ExpForConditionalGeneration": (
        "self.visual(pixels, None, encoder_metadata=metadata)",
        "Qwen3_VisionTransformer",
        "self.visual.out_hidden_size",
    ),
}


@pytest.mark.parametrize("architecture", TOWERS)
def test_the_tower_and_what_stands_around_it(architecture, release_tree):
    found = first_candidates(release_tree(RELEASE), architecture)
    port = load_descriptor_text(found.text, "draft.yaml")
    call, cls, width = TOWERS[architecture]
    assert isinstance(port, PackedPort)
    assert (port.forward.call.text, port.split.class_, port.output.hidden_size.text) == (call, cls, width)
    assert port.eager.call.text == call.replace("None, encoder_metadata=metadata", "sizes")
    assert len(found.questions) <= 3


#: architecture -> the part of the model that gets the inputs, which a refusal names once the way to it is followed
FOLLOWED = {
    # a method that checks the pixels and gives them back
    "OpenPanguVLForConditionalGeneration": "`self.visual` (OpenPanguVisionTransformer) cannot be split",
}


@pytest.mark.parametrize("architecture", FOLLOWED)
def test_the_way_to_the_encoder_is_followed(architecture, release_tree):
    with pytest.raises(DiagnosticError) as caught:
        draft_descriptor(release_tree(RELEASE), architecture)
    assert FOLLOWED[architecture] in caught.value.diagnostics[0].message
    assert len(set(caught.value.diagnostics)) == len(caught.value.diagnostics)


#: architecture -> what a draft says, the wrong answer in its place, the refusal and the end of its place
IMPOSSIBLE = {
    "a list for a side": (
        "InternS1ForConditionalGeneration",
        ('"self.config.vision_config.image_size[0]"', "self.config.vision_config.image_size"),
        "VCG419",
        "`self.config.vision_config.image_size` is a list, not a number: "
        "InternS1ForConditionalGeneration takes it apart",
    ),
    "the width of other patches": (
        "Qwen2VLForConditionalGeneration",
        ("[channels * frames * side ** 2]", "[1176]"),
        "VCG334",
        "the width of a row is a fixed number, but the checkpoint's patches decide it",
    ),
    "the same through names": (
        "Qwen2VLForConditionalGeneration",
        ("channels: self.visual.patch_embed.proj.in_channels", "channels: 3"),
        "",
        "",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_answers_that_cannot_be_right(name, release_tree):
    """What `validate` or `new` refuses; a width of which one factor is read is not judged."""
    architecture, (old, new), code, message = IMPOSSIBLE[name]
    tree = release_tree(RELEASE)
    text = first_candidates(tree, architecture).text
    assert old in text
    try:
        prepare_port(load_descriptor_text(text.replace(old, new), "draft.yaml"), tree, replace=True)
        found = []
    except DiagnosticError as error:
        found = [
            (problem.code, problem.message)
            for problem in error.diagnostics
            if problem.exit and problem.code != "VCG305"
        ]
    assert found == ([(code, message)] if code else [])


def first_candidates(tree, architecture) -> Draft:
    return interview(
        tree, architecture, {}, lambda question: question.candidates[0].value if question.candidates else None
    )


def test_tiles_of_one_row_each_are_not_flattened(release_tree):
    """Inkling cuts [tiles, hidden] by the number of tiles: joining two axes would put all hidden values in one row."""
    found = first_candidates(release_tree(RELEASE), "InklingForConditionalGeneration")
    port = load_descriptor_text(found.text, "draft.yaml")
    encoder = "self.visual.vision_encoder"
    assert isinstance(port, TilesPort)
    assert (port.let["k"].text, port.forward.flatten) == ("1", False)
    assert tuple(part.text for part in port.pixels.shape) == (
        f"{encoder}.temporal_patch_size",
        f"{encoder}.patch_size",
        f"{encoder}.patch_size",
        f"{encoder}.n_channels",
    )
    assert port.module == "vllm.models.inkling.nvidia.model"  # not the class that only ROCm imports


def test_the_tokens_that_a_pixel_shuffle_leaves(release_tree):
    """As the shipped descriptor of Llama 4 says them."""
    found = first_candidates(release_tree(RELEASE), "Llama4ForConditionalGeneration")
    port = load_descriptor_text(found.text, "draft.yaml")
    config = "self.config.vision_config"
    assert isinstance(port, TilesPort)
    assert port.let["k"].text == f"round(side // {config}.patch_size * {config}.pixel_shuffle_ratio) ** 2"
