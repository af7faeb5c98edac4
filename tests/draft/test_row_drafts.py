"""Drafts of the layout `rows`: the models that have it, and what decides, one change of a small model at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffold.descriptor import RowsPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, draft_descriptor
from scaffold.protocol import SourceTree
from scaffold.workflow import prepare_port

ROOT = Path(__file__).parents[2]
RELEASE = "0.33.0"
USUAL = "self._process_image_input(self._parse_and_validate_image_input(**inputs))"
VISION = "self.config.vision_config"
WIDTH = "self.config.text_config.hidden_size"
#: architecture -> encoder, merge, shape of an item, values of its other inputs, width
DRAFTED = {
    "Mistral3ForConditionalGeneration": (
        "self.vision_tower.transformer",
        "self.config.spatial_merge_size",
        ("3", "h * p", "w * p"),
        {},
        WIDTH,
    ),
    "LightOnOCRForConditionalGeneration": (
        "self.vision_tower.transformer",
        "self.config.spatial_merge_size",
        ("3", "h * p", "w * p"),
        {},
        WIDTH,
    ),
    "PixtralForConditionalGeneration": (
        "self.vision_encoder.transformer",
        "self.vision_args.spatial_merge_size",
        ("3", "h * p", "w * p"),
        {},
        WIDTH,
    ),
    "IsaacForConditionalGeneration": (
        "self.vision_embedding.transformer.encoder",
        f"{VISION}.pixel_shuffle_scale_factor",
        ("h * w", "width"),
        {"image_grid_thw": ("1", "h", "w")},
        "self.config.hidden_size",
    ),
    "Cosmos3EdgeForConditionalGeneration": (
        "self.visual.encoder.encoder",
        "self.visual.spatial_merge_size",
        ("h * w", "width"),
        {"image_grid_thw": ("1", "h", "w")},
        WIDTH,
    ),
}
_PIXELS = (
    "vision_patch_size",
    "input_size",
    "torch.Size(",
    "h * w,",
    "3,",
    "return torch",
    "            (",
    "            )",
)
#: Written by hand, with lines of the port in which a draft says the same in other words.
BY_HAND = {
    "PaddleOCRVLForConditionalGeneration": ("tests/cut/paddleocr_vl.yaml", ("out_hidden_size=",)),
    "KeyeForConditionalGeneration": ("tests/cut/keye.yaml", ()),
    "Mistral3ForConditionalGeneration": ("scaffold/descriptor/shipped/mistral3.yaml", ()),
    "PixtralForConditionalGeneration": ("scaffold/descriptor/shipped/pixtral.yaml", ()),
    "IsaacForConditionalGeneration": ("tests/cut/isaac.yaml", ("out_hidden_size=", "patch_size**2", ".input_size")),
    "Cosmos3EdgeForConditionalGeneration": ("tests/cut/cosmos3_edge.yaml", ()),
    "LlavaOnevision2ForConditionalGeneration": ("tests/cut/llava_onevision2.yaml", ()),
    "MiniMaxM3SparseForConditionalGeneration": ("scaffold/descriptor/shipped/minimax_m3.yaml", ()),
    "KimiK25ForConditionalGeneration": ("scaffold/descriptor/shipped/kimi_k25.yaml", ()),
    "KimiK3ForConditionalGeneration": ("scaffold/descriptor/shipped/kimi_k3.yaml", ()),
    # An item's pixels have as many numbers in either form.
    "DeepseekV4ForConditionalGeneration": ("scaffold/descriptor/shipped/deepseek_v4.yaml", _PIXELS),
    "DeepseekV41ForCausalLM": ("scaffold/descriptor/shipped/deepseek_v41.yaml", ()),
    "MuseGlimmerForCausalLM": ("tests/cut/muse_glimmer.yaml", ()),
    "KimiVLForConditionalGeneration": ("scaffold/descriptor/shipped/kimi_vl.yaml", (".patch_size",)),
    "Phi4ForCausalLMV": ("tests/cut/phi4siglip.yaml", ()),
    "KananaVForConditionalGeneration": ("tests/cut/kanana_v.yaml", ("in_channels", "for key in")),
}


@pytest.fixture(scope="module")
def drafted(release_tree):
    found: dict[str, Draft] = {}

    def call(architecture: str) -> Draft:
        if architecture not in found:
            asked = draft_descriptor(release_tree(RELEASE), architecture).questions
            answers = {question.key: question.candidates[0].value for question in asked}
            found[architecture] = draft_descriptor(release_tree(RELEASE), architecture, answers)
        return found[architecture]

    return call


def port_of(draft: Draft) -> RowsPort:
    port = load_descriptor_text(draft.text, "draft.yaml")
    assert isinstance(port, RowsPort)
    return port


@pytest.mark.trees
@pytest.mark.parametrize("architecture", DRAFTED)
def test_what_is_drafted(architecture, drafted):
    encoder, merge, shape, values, width = DRAFTED[architecture]
    draft = drafted(architecture)
    port = port_of(draft)
    assert draft.questions == ()
    assert (port.forward.encoder, port.item.merge.text) == (encoder, merge)
    assert tuple(part.text for part in port.item.shape) == shape
    assert {key: tuple(part.text for part in entry) for key, entry in port.item.values.items()} == values
    assert (port.modalities["image"].entry.text, port.output.hidden_size.text) == (USUAL, width)
    assert "enter one call of the encoder, as rows" in draft.text


@pytest.mark.trees
@pytest.mark.parametrize("architecture", BY_HAND)
def test_the_port_is_the_one_written_by_hand(architecture, drafted, release_tree):
    """Which passes its numeric proof with a recipe: tests/cut/test_rows.py."""
    path, other_words = BY_HAND[architecture]
    tree = release_tree(RELEASE)
    by_hand = load_descriptor_text((ROOT / path).read_text("utf-8"), path)
    by_hand = by_hand.replace(explicit=None)  # no draft of rows has one
    drafts, hands = (
        {
            change.path: [line for line in (change.after or b"").decode().splitlines() if not _has(line, other_words)]
            for change in prepare_port(port, tree, replace=True).changed
            if change.path.startswith("vllm/")
        }
        for port in (port_of(drafted(architecture)), by_hand)
    )
    assert drafts == hands


def _has(line: str, words: tuple[str, ...]) -> bool:
    return any(word in line for word in words)


#: architecture -> encoder, what it loops over, the question, and its first candidate
LOOPS = {
    "PaddleOCRVLForConditionalGeneration": (
        "self.visual.vision_model.encoder",
        "self.layers",
        {"item.merge": f"{VISION}.spatial_merge_size"},
    ),
    # Their layers compute the longest sequence, and get a parameter for it. The base of the second makes its parts.
    "KeyeForConditionalGeneration": (
        "self.visual.vision_model.encoder",
        "self.layers",
        {"item.merge": f"{VISION}.spatial_merge_size"},
    ),
    "KeyeVL1_5ForConditionalGeneration": (
        "self.visual.vision_model.encoder",
        "self.layers",
        {"item.merge": "self.merge_size"},
    ),
    "DotsOCRForCausalLM": ("self.vision_tower", "self.blocks", {"let.width": f"3 * {VISION}.patch_size ** 2"}),
    # The loop counts its layers, which have an optional `max_seqlen` already; a rotation beside the loop waits.
    "KimiVLForConditionalGeneration": (
        "self.vision_tower.encoder",
        "self.blocks",
        {"item.merge": f"{VISION}.merge_kernel_size[0]"},
    ),
    # A function of a module hands the tower on. A port of its own has another call of the encoder, in a branch.
    "KimiK25ForConditionalGeneration": (
        "self.vision_tower.encoder",
        "self.blocks",
        {"item.merge": "self.vision_tower.merge_kernel_size[0]", "gates.modalities": "not self.use_data_parallel"},
    ),
    "KimiK3ForConditionalGeneration": (
        "self.vision_tower.encoder",
        "self.blocks",
        {"item.merge": "self.vision_tower.merge_kernel_size[0]"},
    ),
    # The loop goes through the layers and their kinds together.
    "MuseGlimmerForCausalLM": ("self.vision_encoder", "self.transformer", {}),
    # Its tower takes the place of one that its base makes, and normalises pixels before it embeds them.
    "GlmOcrForConditionalGeneration": ("self.visual", "self.blocks", {}),
    # A class method makes the tower, whose loop collects hidden states.
    "KananaVForConditionalGeneration": (
        "self.vision_model",
        "self.blocks",
        {"item.merge": "self.abstractor.merge_size"},
    ),
    # Layers in a part without a class; the merger unpacks its own layers, and is no encoder.
    "LlavaOnevision2ForConditionalGeneration": (
        "self.visual",
        "self.encoder.layers",
        {},
    ),
}


@pytest.mark.trees
@pytest.mark.parametrize("architecture", LOOPS)
def test_a_loop_where_the_call_gets_what_no_graph_holds(architecture, drafted, release_tree):
    encoder, loop, asked = LOOPS[architecture]
    draft = drafted(architecture)
    port = port_of(draft)
    assert (port.forward.encoder, port.forward.loop) == (encoder, loop)
    assert {question.key: question.candidates[0].value for question in draft.questions} == asked
    assert prepare_port(port, release_tree(RELEASE), replace=True).changed


@pytest.mark.trees
@pytest.mark.parametrize(
    ("architecture", "name"),
    [("GlmOcrForConditionalGeneration", "glm_ocr"), ("MiniMaxM3SparseForConditionalGeneration", "minimax_m3")],
)
def test_the_width_of_rows_is_the_patch_that_they_are_viewed_as(architecture, name, drafted):
    draft = drafted(architecture)
    assert draft.name == name
    assert draft.questions == ()
    assert [part.text for part in port_of(draft).item.shape] == ["h * w", "channels * frames * side ** 2"]


@pytest.mark.trees
def test_a_part_that_takes_the_place_of_one_of_the_base(drafted):
    assert "runs GlmOcrVisionTransformer on the rows of all images" in drafted("GlmOcrForConditionalGeneration").text


@pytest.mark.trees
def test_a_release_that_pads_offsets_with_zeros(release_tree):
    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(release_tree("0.22.0"), "PixtralForConditionalGeneration")
    assert "this release fills the offsets behind a batch with zeros" in str(error.value)


# -- one change at a time ----------------------------------------------------------------------------------------------

FILE = "vllm/model_executor/models/small.py"
MODEL = """
class Layer(nn.Module):
    kind = MMEncoderAttention

    def forward(self, x, cu_seqlens):
        return attention(x, cu_seqlens)


class Layers(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(config.num_layers)])

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cu_seqlens)
        return x


class Tower(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.conv = nn.Conv2d(3, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size)
        self.encoder = Layers(config)

    def forward(self, images: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        embeds = [self.conv(image.unsqueeze(0)).flatten(2).permute(0, 2, 1) for image in images]
        lengths = [embed.shape[1] for embed in embeds]
        out = self.encoder(torch.cat(embeds, dim=1), make_offsets(lengths))
        return torch.split(out.squeeze(0), lengths)


class ImageInputs(TensorSchema):
    type: Literal["pixel_values"]
    data: Annotated[torch.Tensor | list[torch.Tensor], TensorShape("bn", 3, "h", "w", dynamic_dims={"h", "w"})]


class SmallProcessor(BaseMultiModalProcessor):
    def _get_mm_fields_config(self, hf_inputs, hf_processor_mm_kwargs):
        return dict(
            pixel_values=MultiModalFieldConfig.batched("image"),
            image_embeds=MultiModalFieldConfig.batched("image"),
        )


@MULTIMODAL_REGISTRY.register_processor(SmallProcessor)
class Small(nn.Module, SupportsMultiModal):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.vision_tower = Tower(config.vision_config)
        with self._mark_language_model(vllm_config):
            self.language_model = make_model(vllm_config=vllm_config, hf_config=config.text_config)

    def _parse_and_validate_image_input(self, **kwargs: object):
        pixel_values = kwargs.pop("pixel_values", None)
        if pixel_values is None:
            return None
        return ImageInputs(type="pixel_values", data=pixel_values)

    def _process_image_input(self, image_input):
        features = self.vision_tower(image_input["data"])
        lengths = [len(one) // self.config.merge_size**2 for one in features]
        return torch.split(self.projector(torch.cat(features)), lengths)

    def embed_multimodal(self, **kwargs: object):
        image_input = self._parse_and_validate_image_input(**kwargs)
        if image_input is None:
            return []
        return self._process_image_input(image_input)
"""


@pytest.fixture
def draft(tmp_path: Path):
    """`draft((old, new), ...)`: the draft of rows with these changes of the small model."""

    def call(*changes: tuple[str, str]) -> Draft:
        text = MODEL
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        attention = tmp_path / "vllm/v1/attention/ops/vit_attn_wrappers.py"
        attention.parent.mkdir(parents=True, exist_ok=True)
        attention.write_text("def run(q):\n    return attend(q, out=torch.zeros_like(q))\n", encoding="utf-8")
        tree = SourceTree(root=tmp_path, label="tree", release=None, read_only=True)
        return draft_descriptor(tree, FILE, {}, "rows")

    return call


def test_the_small_model(draft):
    port = port_of(draft())
    assert (port.forward.encoder, port.item.merge.text) == ("self.vision_tower.encoder", "self.config.merge_size")
    assert port.let["p"].text == "self.config.vision_config.patch_size"


CALL = "out = self.encoder(torch.cat(embeds, dim=1), make_offsets(lengths))"
ATTENTION = "return attention(x, cu_seqlens)"
KEYS = 'image_embeds=MultiModalFieldConfig.batched("image"),'
READ = 'pixel_values = kwargs.pop("pixel_values", None)'
REFUSED = {
    "called in a loop": [
        (CALL, "out = torch.cat([self.encoder(one, make_offsets(lengths)) for one in embeds], dim=1)")
    ],
    "is not told where the rows of an item end": [(CALL, "out = self.encoder(torch.cat(embeds, dim=1), None)")],
    "`cu_seqlens.max()` waits for the GPU": [
        ("return attention(x, cu_seqlens)", "return attention(x, cu_seqlens, cu_seqlens.max())")
    ],
    "`(cu_seqlens[1:] - cu_seqlens[:-1]).max()` waits for the GPU": [
        (CALL, f"{CALL}[0]"),  # the loop is tried
        (ATTENTION, "max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()\n        return attention(x, max_seqlen)"),
    ],
    "is called in several places": [(CALL, f"{CALL}\n        out = self.encoder(out, make_offsets(lengths))")],
    "called in several places": [
        (
            CALL,
            f"if images:\n            {CALL}\n            return torch.split(out, lengths)\n        {CALL}\n"
            "        out = self.encoder(out, make_offsets(lengths))",
        ),
    ],
    "run an attention of their own": [("    kind = MMEncoderAttention\n", "")],
    "no part of the model encodes rows": [("self.layers = nn.ModuleList(", "self.layers = list(")],
    "no annotation says that an item of `pixel_values` is one image": [
        ('TensorShape("bn", 3, "h",', 'TensorShape("bn", "h",')
    ],
    "the model reads `image_sizes` with the pixels": [
        (KEYS, 'image_sizes=MultiModalFieldConfig.batched("image"),'),
        (READ, f'{READ}\n        image_sizes = kwargs.pop("image_sizes")'),
    ],
    "a row of `image_grid` is no grid of an image's patches": [
        (KEYS, 'image_grid=MultiModalFieldConfig.batched("image"),'),
        (
            'pixel_values=MultiModalFieldConfig.batched("image")',
            'pixel_values=MultiModalFieldConfig.flat_from_sizes("image", hf_inputs["image_grid"].prod(-1))',
        ),
        (READ, f'{READ}\n        image_grid = kwargs.pop("image_grid")'),
    ],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason, draft):
    with pytest.raises(DiagnosticError) as error:
        draft(*REFUSED[reason])
    assert {problem.code for problem in error.value.diagnostics} == {"VCG483"}
    assert reason in str(error.value)


#: key of the question -> changes that raise it
ASKED = {
    "item.merge": [("len(one) // self.config.merge_size**2", "len(one)")],
    "let.p": [("stride=config.patch_size", "stride=1")],
}


@pytest.mark.parametrize("key", ASKED)
def test_what_is_asked(key, draft):
    assert [question.key for question in draft(*ASKED[key]).questions] == [key]


def test_of_two_calls_in_branches_either_leads_to_the_loop(draft):
    branch = f"if images:\n            {CALL}\n            return torch.split(out, lengths)\n        {CALL}"
    assert port_of(draft((CALL, branch))).forward.loop == "self.layers"


def test_a_modality_may_be_asked_for_with_more(draft):
    changes = [
        (
            "        if image_input is None:",
            "        for key in kwargs:\n          if key == 'a' and image_input is not None:",
        ),
        ("            return []\n        return self._p", "            return self._p"),
    ]
    assert port_of(draft(*changes)).forward.encoder == "self.vision_tower.encoder"


def test_a_loop_over_the_modalities_of_a_batch_is_none(draft):
    changes = [
        (
            "        return self._process_image_input(image_input)",
            '        for name in ("images",):\n'
            '            if name == "images":\n'
            "                embeddings = self._process_image_input(image_input)\n"
            "        return embeddings",
        )
    ]
    assert port_of(draft(*changes)).modalities["image"].entry.text == USUAL


def test_an_encoder_that_gets_an_input_itself_is_cut_at_its_loop(draft):
    forward = port_of(draft((CALL, "out = self.encoder(torch.cat(embeds, dim=1), images)"))).forward
    assert (forward.encoder, forward.loop) == ("self.vision_tower.encoder", "self.layers")


def test_videos_are_left_out(draft):
    found = draft(
        (KEYS, 'pixel_values_videos=MultiModalFieldConfig.batched("video"),'),
        (
            "        if image_input is None:\n            return []\n        return",
            '        videos = kwargs.pop("pixel_values_videos", None)\n'
            "        if videos is not None:\n            return self.vision_tower(videos)\n        return",
        ),
    )
    assert list(port_of(found).modalities) == ["image"]
    left, gain = (note.message for note in found.notes)
    assert left == "the modality `video` is left out: graphs of rows hold images"
    assert "an item has as many rows as its size asks for" in gain


def test_a_key_spells_the_columns_of_its_grid(release_tree):
    """No line of MiniMax-M3 says how many columns `image_grid_thw` has."""
    draft = draft_descriptor(release_tree("0.30.0"), "MiniMaxM3SparseForConditionalGeneration")
    assert "image_grid_thw: [1, h, w]" in draft.text
    assert draft.questions == ()
