"""Drafts of the layout `cut`, from the sources of one release: what is captured, and from where."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from scaffold.descriptor import CutPort, load_descriptor_text
from scaffold.descriptor.sections import SizedField
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, draft_descriptor
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
#: As most models say it: `embed_multimodal` parses the inputs of a batch and processes what comes of it.
USUAL = "self._process_image_input(self._parse_and_validate_image_input(**inputs))"
VIDEO = "self._process_video_pixels(self._parse_and_validate_video_input(**inputs))"
ALL = "self.embed_multimodal(**inputs)"
SIDE = "self.config.vision_config.image_size"
WIDTH = "self.config.text_config.hidden_size"
TOWER = "self._image_pixels_to_features(self.vision_tower, pixels)"
#: Of the models that parse InternVL's inputs.
TILES = {"pixel_values_flat": "image_num_patches", "image_num_patches": "batched", "image_embeds": "batched"}


@dataclass(frozen=True)
class Case:
    """What a draft says, with the first candidate for each of its questions. `fields` give the key of sizes."""

    call: str
    fields: dict[str, str]
    entries: dict[str, str] = field(default_factory=lambda: {"image": USUAL})
    let: dict[str, str] = field(default_factory=lambda: {"side": SIDE})
    shape: tuple[str, ...] = ("3", "side", "side")
    width: str = WIDTH
    questions: tuple[str, ...] = ()
    gate: str | None = None
    axis: int = 0
    layers: int = 0
    masks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    padded: bool = False


PIXELS = {"pixel_values": "batched"}
DRAFTED = {
    "LlavaForConditionalGeneration": Case(TOWER, PIXELS | {"image_embeds": "batched"}),
    "LlavaNextForConditionalGeneration": Case(TOWER, PIXELS | {"image_sizes": "batched", "image_embeds": "batched"}),
    "LlavaNextVideoForConditionalGeneration": Case(
        "self._video_pixels_to_features(self.vision_tower, pixels)",
        {"pixel_values_videos": "batched"},
        {"video": VIDEO},
    ),
    # Images and videos have a wrapper each: the call that both have in common is the tower's own.
    "LlavaOnevisionForConditionalGeneration": Case(
        "self.vision_tower(pixels, feature_select_strategy=self.config.vision_feature_select_strategy)",
        PIXELS | {"image_sizes": "batched", "image_embeds": "batched", "pixel_values_videos": "batched"},
        {"image": USUAL, "video": VIDEO},
    ),
    "PaliGemmaForConditionalGeneration": Case(TOWER, PIXELS),
    "Blip2ForConditionalGeneration": Case(
        "self._image_pixels_to_features(self.vision_model, pixels)", PIXELS | {"image_embeds": "batched"}
    ),
    # The call around the tower's takes units with an axis of tiles, and without.
    "ModernVBertModel": Case("self.vision_model(pixels)", PIXELS, {"image": ALL}, questions=("output.hidden_size",)),
    # The tower is a part of a part, whose size stands in a module's constant.
    "Phi3VForCausalLM": Case(
        "self.vision_embed_tokens.get_img_features(pixels)",
        PIXELS | {"image_sizes": "batched", "image_embeds": "batched"},
        let={"side": "336"},
        width="self.config.hidden_size",
    ),
    "Ovis": Case(
        "self.visual_tokenizer(pixels)",
        PIXELS | {"grids": "batched", "indicator_tokens": "batched"},
        let={"side": "self.config.visual_tokenizer_config.backbone_config.image_size"},
        width="self.llm.config.hidden_size",
        questions=("output.hidden_size",),
    ),
    "Cohere2VisionForConditionalGeneration": Case(
        "self.vision_tower(pixels)",
        {"pixel_values": "num_patches", "num_patches": "batched"},
        {"image": "self._process_image_input(self._parse_and_validate_image_input(**inputs), **inputs)"},
    ),
    "Eagle2_5_VLForConditionalGeneration": Case(
        "self.extract_feature(pixels)", TILES, gate="not self.use_data_parallel"
    ),
    "SkyworkR1VChatModel": Case("self.extract_feature(pixels)", TILES),
    # The tower comes from the checkpoint's own code, and gives an object: its wrapper gives a tensor.
    "Llama_Nemotron_Nano_VL": Case(
        "self.extract_feature(pixels)",
        TILES,
        let={"side": "self.config.force_image_size"},
        width="self.language_model.config.hidden_size",
        questions=("output.hidden_size",),
    ),
    "NemotronH_Nano_VL_V2": Case(
        "self.extract_feature(pixels)",
        TILES
        | {
            "num_tokens_per_image": "batched",
            "imgs_sizes": "batched",
            "pixel_values_flat_video": "video_num_patches",
            "video_num_patches": "batched",
            "frames_indices": "batched",
            "frame_duration_ms": "batched",
        },
        # What `embed_multimodal` does with an image depends on more than its modality.
        {"image": ALL, "video": "self._process_video_input(self._parse_and_validate_video_input(**inputs))"},
        let={"side": "self.config.force_image_size"},
        # Its processor gives images of any size as rows, without a number of tiles.
        gate="not self.dynamic_resolution",
        questions=("gates.modalities",),
    ),
    # `embed_multimodal` itself goes over the images.
    "Moondream3ForCausalLM": Case(
        "self.vision(pixels)",
        PIXELS | {"tilings": "batched"},
        {"image": ALL},
        let={"side": "self.config.vision_config.crop_size"},
    ),
    # Sides that stand in a list, and in a dictionary.
    "InternS1ForConditionalGeneration": Case(
        "self.extract_feature(pixels)",
        {
            "pixel_values": "image_num_patches",
            "image_num_patches": "batched",
            "image_embeds": "batched",
            "pixel_values_videos": "video_num_patches",
            "video_num_patches": "batched",
        },
        {
            "image": "self._process_vision_input(self._parse_and_validate_image_input(**inputs))",
            "video": "self._process_vision_input(self._parse_and_validate_video_input(**inputs))",
        },
        let={"height": f"{SIDE}[0]", "width": f"{SIDE}[1]"},
        shape=("3", "height", "width"),
    ),
    "GLM4VForCausalLM": Case(
        "self.transformer.vision(pixels)",
        PIXELS,
        let={"side": "self.config.vision_config['image_size']"},
        width="self.config.hidden_size",
        questions=("output.hidden_size",),
    ),
    # Flat patches behind a batch axis, with two further tables of sizes.
    "Molmo2ForConditionalGeneration": Case(
        "self.vision_backbone.encode_image(pixels)",
        {
            "pixel_values": "image_num_crops",
            "image_token_pooling": "image_num_pooled_patches",
            "image_num_crops": "batched",
            "image_num_pooled_patches": "batched",
            "image_num_patches": "batched",
            "image_tokens": "num_image_tokens",
            "num_image_tokens": "batched",
            "pixel_values_videos": "video_num_crops",
            "video_token_pooling": "video_num_pooled_patches",
            "video_num_crops": "batched",
            "video_num_pooled_patches": "batched",
            "video_num_patches": "batched",
            "video_tokens": "num_video_tokens",
            "num_video_tokens": "batched",
        },
        {"image": USUAL, "video": "self._process_video_input(self._parse_and_validate_video_input(**inputs))"},
        let={
            "cps": "self.vision_backbone.image_vit.patch_embedding.in_features",
            "np": "self.vision_backbone.image_vit.patch_num[0] * self.vision_backbone.image_vit.patch_num[1]",
        },
        shape=("np", "cps"),
        width="self.config.hidden_size",
        axis=1,
    ),
    # A list of layers, of which a table says some.
    "Granite4VisionForConditionalGeneration": Case(
        "self._get_vision_hidden_states(pixels)",
        PIXELS | {"image_sizes": "batched"},
        {"image": ALL},
        width=f"{WIDTH} * (len(self._deepstack_layer_map) + len(self._spatial_target_layers))",
        questions=("output.hidden_size",),
        layers=2,
    ),
    # Two towers of another package in one part, which gets both of their images as one.
    "OpenVLAForActionPrediction": Case(
        "self.vision_backbone(pixels)",
        PIXELS,
        let={"side": "self.config.image_sizes[0]", "channels": "6"},
        shape=("channels", "side", "side"),
    ),
    # A mask of the patches of each image, from one of its pixels.
    "AriaForConditionalGeneration": Case(
        "self.vision_tower(pixel_values=pixels, patch_attention_mask=mask)",
        PIXELS | {"pixel_mask": "batched"},
        masks={"mask": ("side // self.vision_tower.config.patch_size",) * 2},
    ),
    # A mask with an annotated shape, and a batch that is padded to the most crops of an image.
    "Phi4MMForCausalLM": Case(
        "self.vision_encoder.get_img_features(pixels, mask)",
        {
            "input_image_embeds": "batched",
            "image_attention_mask": "batched",
            "image_sizes": "batched",
            "num_img_tokens": "batched",
        },
        let={"side": "self.vision_encoder.crop_size"},
        width="self.config.hidden_size",
        masks={"mask": ("32", "32")},
        padded=True,
    ),
    # Its decoder gets a part of the configuration as the first argument.
    "NemotronParseForConditionalGeneration": Case(
        "self.encoder(pixels)",
        PIXELS,
        let={"height": "self.config.image_size[0]", "width": "self.config.image_size[1]"},
        shape=("3", "height", "width"),
        width="self.config.decoder.hidden_size",
    ),
    "BagelForConditionalGeneration": Case(
        "self.vit_model(pixels)",
        PIXELS,
        let={"side": "self.config.vit_config.image_size"},
        width="self.config.llm_config.hidden_size",
    ),
}


@pytest.fixture(scope="module")
def drafted(release_tree):
    """The draft of an architecture with the first candidate for each question; one draft a model."""
    found: dict[str, Draft] = {}

    def call(architecture: str) -> Draft:
        if architecture not in found:
            tree = release_tree(RELEASE)
            asked = draft_descriptor(tree, architecture, layout="cut").questions
            answers = {question.key: question.candidates[0].value for question in asked}
            found[architecture] = draft_descriptor(tree, architecture, answers, "cut")
        return found[architecture]

    return call


def port_of(draft: Draft) -> CutPort:
    port = load_descriptor_text(draft.text, "draft.yaml")
    assert isinstance(port, CutPort)
    return port


@pytest.mark.parametrize("architecture", DRAFTED)
def test_what_is_drafted(architecture, drafted):
    case, draft = DRAFTED[architecture], drafted(architecture)
    port = port_of(draft)
    assert (port.forward.call.text, port.forward.axis) == (case.call, case.axis)
    assert {name: entry.entry.text for name, entry in port.modalities.items()} == case.entries
    assert len(port.forward.layers) == case.layers
    masks = {name: tuple(part.text for part in entry.shape) for name, entry in port.forward.with_.items()}
    assert (masks, port.pixels.padded) == (case.masks, case.padded)
    assert {entry.dtype for entry in port.forward.with_.values()} <= {"bool"}
    fields = {key: kind.sizes if isinstance(kind, SizedField) else kind for key, kind in port.fields.items()}
    assert fields == case.fields
    assert tuple(part.text for part in port.pixels.shape) == case.shape
    assert {name: value.text for name, value in port.let.items()} == case.let
    assert port.output.hidden_size.text == case.width
    assert tuple(question.key for question in draft.questions) == case.questions
    assert (port.gates.modalities.text if port.gates else None) == case.gate


#: Small models of one file each; every other draft is planned when all are asked for.
PLANNED = ("BagelForConditionalGeneration", "Phi3VForCausalLM", "Moondream3ForCausalLM")


@pytest.mark.parametrize(
    "architecture",
    [*PLANNED, *(pytest.param(name, marks=pytest.mark.slow) for name in DRAFTED if name not in PLANNED)],
)
def test_the_static_proofs_pass(architecture, drafted, release_tree):
    port = port_of(drafted(architecture))
    assert any(change.path.startswith("vllm/") for change in prepare_port(port, release_tree(RELEASE)).changed)


@pytest.mark.parametrize(
    ("architecture", "lines"),
    {
        "LlavaNextForConditionalGeneration": (
            "call: self._image_pixels_to_features(self.vision_tower, pixels)",
            "runs CLIPVisionModel",
            "what the model checks its input against",
        ),
        "Moondream3ForCausalLM": ("what the encoder is built for", "an RGB image; no annotation says its shape"),
        "NemotronH_Nano_VL_V2": ("the size that the model reads",),
    }.items(),
)
def test_evidence(architecture, lines, drafted):
    """Each value has its reason beside it."""
    for line in lines:
        assert line in drafted(architecture).text


#: architecture -> reasons, each with the line of source that it is about
REFUSED = {
    "RadioMBartPrefixForCausalLM": (
        "`self.encoder` also depends on `content_sizes`, which is no size of `pixel_values`",
        "self.encoder(",
    ),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_what_is_refused(architecture, release_tree):
    """Beside what no other layout says of it."""
    reason, source = REFUSED[architecture]
    tree = release_tree(RELEASE)
    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(tree, architecture)
    assert {problem.code for problem in error.value.diagnostics} == {"VCG483"}
    [found] = [problem for problem in error.value.diagnostics if reason in problem.message]
    assert found.span is not None
    path = found.span.file[found.span.file.index("vllm/model_executor") :]
    assert source in tree.read(path).splitlines()[found.span.line - 1]


def test_an_encoder_of_convolutions(release_tree):
    """Gemma 3n: only the checkpoint's processor knows the side of an image."""
    tree = release_tree(RELEASE)
    [question] = draft_descriptor(tree, "Gemma3nForConditionalGeneration").questions
    assert (question.key, question.candidates) == ("let.side", ())

    forward = port_of(draft_descriptor(tree, "Gemma3nForConditionalGeneration", {"let.side": "768"})).forward

    assert forward.call.text == "self.vision_tower(pixel_values=pixels, do_pooling=False, return_dict=True)"
    assert (forward.result, forward.channels) == ("last_hidden_state", 1)


@pytest.mark.parametrize("architecture", ["Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"])
def test_a_call_that_waits_is_for_a_run(architecture, release_tree):
    """Until 0.28 one call of the tower gets the pixels alone, and waits for the mask of patches in it."""
    with pytest.raises(DiagnosticError, match="waits for values; a run shows what of it a graph can hold"):
        draft_descriptor(release_tree("0.28.0"), architecture)


class TestLayouts:
    """Which layout is chosen, and that another one can be asked for."""

    @pytest.mark.parametrize("architecture", ["InternVLChatModel", "Gemma3ForConditionalGeneration"])
    def test_tiles_whose_rows_are_the_embeddings(self, architecture, release_tree):
        assert re.search(r"(?m)^layout: tiles\b", draft_descriptor(release_tree(RELEASE), architecture).text)

    def test_a_tower_that_can_be_split(self, release_tree):
        text = draft_descriptor(release_tree(RELEASE), "Qwen2VLForConditionalGeneration").text
        assert re.search(r"(?m)^layout: packed\b", text)

    @pytest.mark.parametrize(
        ("architecture", "reason"),
        {
            "Cohere2VisionForConditionalGeneration": "each item goes through `flatten(0, 2)`",
            "ColUltraVBertForRetrieval": "the layout `tiles` would leave a value without a candidate open",
            "Phi3VForCausalLM": "not packed, tiles or paths: `self.vision_embed_tokens` also depends on `image_sizes`",
        }.items(),
    )
    def test_a_cut_says_what_speaks_against_the_others(self, architecture, reason, release_tree):
        text = draft_descriptor(release_tree(RELEASE), architecture).text
        assert re.search(r"(?m)^layout: cut\b", text)
        assert reason in text

    def test_a_cut_that_is_asked_for(self, release_tree):
        draft = draft_descriptor(release_tree(RELEASE), "InternVLChatModel", layout="cut")
        assert "layout: cut    # asked for" in draft.text
        assert port_of(draft).forward.call.text == "self.extract_feature(pixels)"

    def test_another_one_than_the_model_has(self, release_tree):
        with pytest.raises(DiagnosticError) as error:
            draft_descriptor(release_tree(RELEASE), "InternVLChatModel", layout="packed")
        assert "it is drafted as `tiles`, not as `packed`" in str(error.value)

    def test_a_model_that_only_a_cut_expresses(self, release_tree):
        with pytest.raises(DiagnosticError) as error:
            draft_descriptor(release_tree(RELEASE), "LlavaNextForConditionalGeneration", layout="tiles")
        assert "`pixel_values` arrives as one tensor an item" in str(error.value)

    def test_a_release_that_cannot_express_a_cut(self, release_tree):
        """The hook for results came with 0.22."""
        with pytest.raises(DiagnosticError) as error:
            draft_descriptor(release_tree("0.21.0"), "LlavaNextForConditionalGeneration")
        assert "also depends on `image_sizes`" in str(error.value)
        assert "runs the encoder" not in str(error.value)

    def test_a_release_before_named_paths(self, release_tree):
        draft = draft_descriptor(release_tree("0.22.0"), "LlavaNextForConditionalGeneration", {})
        assert "layout: cut" in draft.text


def test_images_that_are_projected_with_text_have_the_width_of_the_projection(release_tree):
    """CLIP's text has another width, equal in its class defaults alone. SigLIP's text is not projected so, and
    ColPali makes the one projection of its text at two places."""
    widths = {
        architecture: load_descriptor_text(
            draft_descriptor(release_tree("0.33.0"), architecture).text, "draft.yaml"
        ).output.hidden_size.text
        for architecture in ("CLIPModel", "SiglipModel", "ColPaliForRetrieval")
    }
    assert widths == {
        "CLIPModel": "self.projection_dim",
        "SiglipModel": "self.text_model.config.hidden_size",
        "ColPaliForRetrieval": "self.config.text_config.hidden_size",
    }


def test_a_prompt_has_no_placeholder_where_the_processor_puts_the_image(release_tree):
    """PaliGemma says None for it, which was once the first word of the prompt."""
    draft = draft_descriptor(release_tree(RELEASE), "PaliGemmaForConditionalGeneration", {})
    [test] = load_descriptor_text(draft.text, "paligemma.yaml").tests
    assert test.image_prompt == "What is this?"


@pytest.mark.parametrize(
    ("release", "counted"),
    [
        ("0.22.0", b"[int(size.prod()) + 1 for size in mm_kwargs"),
        ("0.32.0", b'[n + 1 for n in mm_kwargs["images_spatial_crop"].prod(-1).tolist()]'),
    ],
)
def test_sizes_that_the_processor_keeps_to_itself_are_those_of_the_grid_behind_them(release, counted, release_tree):
    """DeepSeek-VL2's processor counts the tiles of an image: its grid of crops, and the whole image."""
    draft = draft_descriptor(release_tree(release), "DeepseekVLV2ForCausalLM")
    port = load_descriptor_text(draft.text, "deepseek_vl2.yaml")
    assert isinstance(port, CutPort)
    assert (port.sized, port.grids["pixel_values"].extra) == ({"pixel_values": "images_spatial_crop"}, 1)
    change, *_ = prepare_port(port, release_tree(release)).changed
    assert counted in (change.after or b"")


def test_a_side_that_the_processor_reads_of_a_variable(release_tree):
    """Cheers: `vit_config = hf_config.vision_representation_config`, and then `vit_config.image_size`."""
    [question] = draft_descriptor(release_tree("0.28.0"), "CheersForConditionalGeneration").questions
    assert question.key == "let.side"
    assert [one.value for one in question.candidates] == ["self.config.vision_representation_config.image_size"]
