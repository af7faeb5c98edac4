"""The section `explicit` of drafts: models of one release whose code has the form of a port that runs nothing twice."""

from __future__ import annotations

import pytest

from scaffold.descriptor import CutPort, load_descriptor_text
from scaffold.draft import draft_descriptor
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
PROJECTED = "self.multi_modal_projector(self._image_pixels_to_features(self.vision_tower, pixels))"
MERGED, ALONE = "_merge_patch_embeddings", "_project_image_features"
#: What a graph holds, the method of what follows it, and whether an item is one unit.
DRAFTED = {
    "LlavaNextForConditionalGeneration": (PROJECTED, MERGED, False),
    # A list of images is projected one by one: that branch of the model stays.
    "BeeForConditionalGeneration": (PROJECTED, MERGED, False),
    # Frames of videos, whose rows go one behind the other.
    "LlavaNextVideoForConditionalGeneration": (
        "self._video_pixels_to_features(self.vision_tower, pixels)", None, False
    ),
    "PaliGemmaForConditionalGeneration": (PROJECTED, None, True),
    # A method in front of the tail has another unit's name: what follows sets it anew.
    "BagelForConditionalGeneration": ("self.connector(self.vit_model(pixels))", ALONE, True),
    # The type of the pixels is converted in front of the encoder.
    "GLM4VForCausalLM": ("self.transformer.vision(pixels)", None, True),
    "OpenVLAForActionPrediction": ("self.projector(self.vision_backbone(pixels))", None, True),
    "ModernVBertModel": ("self.connector(self.vision_model(pixels))", None, True),
    # Items that lie behind each other, with parsed inputs read below, in one method, in two, and not at all.
    "Eagle2_5_VLForConditionalGeneration": ("self.extract_feature(pixels)", MERGED, False),
    "DeepseekVLV2ForCausalLM": ("self.projector(self.vision.forward_features(pixels))", MERGED, False),
    # Sizes that the model computes of its parsed inputs, and a list of items that it joins.
    "Ovis": ("self.vte(self.visual_tokenizer(pixels))", MERGED, False),
    "ColUltraVBertForRetrieval": ("self.connector(self.vision_model(pixels))", None, False),
}  # fmt: skip
#: What the ports of some say, beside that.
SAYS = {
    "GLM4VForCausalLM": "return self.transformer.vision(pixel_values.to(dtype=self.config.dtype))",
    # A conversion of the pixels whose argument is long gets a line of its own.
    "OpenVLAForActionPrediction": "return self.projector(self.vision_backbone(pixel_values))",
    "ModernVBertModel": 'torch.stack(list(mm_kwargs["pixel_values"])).flatten(0, -4)',
    "Eagle2_5_VLForConditionalGeneration": "image_input = self._parse_and_validate_image_input(**batch_mm_kwargs)",
    "DeepseekVLV2ForCausalLM": 'batch_mm_kwargs["images_spatial_crop"], features',
    "Ovis": 'image_input["indicator_tokens"],',
    "ColUltraVBertForRetrieval": 'for key in ["pixel_values", "pixel_attention_mask"]:',
}
#: What a graph gives of one unit: a first token, the pooled one alone, patches that a projector joins, also padded
#: ones, and pooled ones, a token at either end, and what the model says.
TOKENS = {
    "Blip2ForConditionalGeneration": "(side // self.config.vision_config.patch_size) ** 2 + 1",
    "SiglipModel": "1",
    "Cohere2VisionForConditionalGeneration":
        "(side // self.config.vision_config.patch_size // self.config.downsample_factor) ** 2",
    "ColUltraVBertForRetrieval":
        "(side // self.config.vision_config.patch_size // self.config.pixel_shuffle_factor) ** 2",
    "DeepseekVLV2ForCausalLM":
        "ceil_div(side // self.vision_config.patch_size, self.projector_config.downsample_ratio) ** 2",
    "LlavaNextVideoForConditionalGeneration":
        "(side // self.config.vision_config.patch_size // self.config.spatial_pool_stride) ** 2",
    "GLM4VForCausalLM": "(side // self.config.vision_config['patch_size'] // 2) ** 2 + 2",
    "LlavaNextForConditionalGeneration": "(side // self.config.vision_config.patch_size) ** 2",
    "Eagle2_5_VLForConditionalGeneration": "self.num_image_token",
}  # fmt: skip
#: A mask beside the pixels; units of two modalities; values of the pixels' shape; a call for each image; more than
#: moved pixels in front of the encoder.
WITHOUT = ("AriaForConditionalGeneration", "LlavaOnevisionForConditionalGeneration", "Phi3VForCausalLM",
           "Moondream3ForCausalLM", "NemotronParseForConditionalGeneration")  # fmt: skip


def drafted(tree, architecture) -> CutPort:
    """The draft with the first candidate of each question."""
    asked = draft_descriptor(tree, architecture, layout="cut").questions
    answers = {question.key: question.candidates[0].value for question in asked}
    port = load_descriptor_text(draft_descriptor(tree, architecture, answers, "cut").text, "draft.yaml")
    assert isinstance(port, CutPort)
    return port


@pytest.mark.parametrize("architecture", DRAFTED)
def test_a_model_of_the_form_gets_an_explicit_port(architecture, release_tree):
    tree = release_tree(RELEASE)
    port = drafted(tree, architecture)
    assert port.explicit is not None
    assert (port.explicit.call.text, port.explicit.after, port.explicit.single) == DRAFTED[architecture]
    prepared = prepare_port(port, tree, replace=True)
    assert not [note for note in prepared.notes if note.code == "VCG466"]
    text = "".join((change.after or b"").decode() for change in prepared.package)
    assert "def _encode_patches(" in text
    assert "Mixin" not in text
    assert SAYS.get(architecture, "") in text


@pytest.mark.parametrize("architecture", TOKENS)
def test_the_tokens_are_what_a_graph_gives_of_a_unit(architecture, release_tree):
    port = drafted(release_tree(RELEASE), architecture)
    assert port.explicit is not None
    assert port.explicit.tokens.text == TOKENS[architecture]


@pytest.mark.parametrize("architecture", WITHOUT)
def test_a_model_of_another_form_gets_none(architecture, release_tree):
    assert drafted(release_tree(RELEASE), architecture).explicit is None


def test_a_prompt_without_a_placeholder_is_that_of_the_example(release_tree):
    """Cohere2 Vision names no placeholder, so its port brought no test entry."""
    test = drafted(release_tree(RELEASE), "Cohere2VisionForConditionalGeneration").tests[0]
    assert test.image_prompt == "What is this?"
    assert test.template is not None
    assert test.template.text.startswith("<|START_OF_TURN_TOKEN|><|USER_TOKEN|><|IMG_PATCH|>{content}<|END_OF_TURN_")


def test_channels_that_are_no_colours_have_a_name(release_tree):
    prepared = prepare_port(drafted(release_tree(RELEASE), "OpenVLAForActionPrediction"), release_tree(RELEASE))
    text = "".join((change.after or b"").decode() for change in prepared.package)
    assert "channels = 6\n" in text
    assert "max_images, channels, side, side" in text


def test_a_release_without_named_paths_gets_none(release_tree):
    assert drafted(release_tree("0.26.0"), "LlavaNextForConditionalGeneration").explicit is None
