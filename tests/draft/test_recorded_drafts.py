"""Drafts from recordings of vLLM 0.33: what a run shows, or a refusal with what was seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from changed_ports import document_of

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft import Draft, NoDraft, draft_descriptor, drafting
from scaffold.watch import Batch, Call, Frame, Leaf, Recording, Source

pytest.importorskip("torch", reason="needs the `cpu` extra")
pytestmark = [pytest.mark.trees, pytest.mark.lab]

Record, Drafts = Callable[[str], Recording], Callable[..., Draft]
NEXT, ONEVISION = "LlavaNextForConditionalGeneration", "LlavaOnevisionForConditionalGeneration"
QWEN = "Qwen2_5_VLForConditionalGeneration"
MISTRAL = "Mistral3ForConditionalGeneration"
KEYE = "KeyeForConditionalGeneration"
KIMI, GLM_OCR = "KimiVLForConditionalGeneration", "GlmOcrForConditionalGeneration"


@pytest.fixture(scope="module")
def draft(record: Record, release_tree: Any) -> Drafts:
    """`draft(architecture)` from its own recording, or from another one."""

    def make(name: str, recording: Recording | None = None, tree: Any = None, **options: Any) -> Draft:
        return draft_descriptor(tree or release_tree("0.33.0"), name, recording or record(name), **options)

    return make


def changed_tree(release_tree: Any, model: str, before: str, after: str) -> Any:
    """The tree with another text in the file of a model, or in that of vLLM's attention."""
    tree = release_tree("0.33.0")
    files = (f"vllm/model_executor/models/{model}.py", "vllm/v1/attention/ops/vit_attn_wrappers.py")
    texts = {file: tree.read(file) for file in files}
    assert any(before in text for text in texts.values())
    return tree.with_files({file: text.replace(before, after).encode() for file, text in texts.items()})


def values(found: Draft) -> dict[str, Any]:
    said: dict[str, Any] = yaml.safe_load(found.text)
    return said


#: shipped descriptor -> what its draft has like it. No draft of the first five has a question.
CUT = ("layout", "modalities", "fields", "pixels", "forward", "explicit", "output")
ROWS = ("layout", "modalities", "fields", "item", "forward")
SHIPPED = {
    "llava_next": CUT,
    # It calls its tower for images in a method that gets it as an argument, and for videos at once.
    "llava_onevision": CUT,
    # Images and videos, whose embeddings are rows of one method.
    "internvl": ("layout", "modalities", "sizes", "let", "item", "pixels", "capture", "forward", "output"),
    # Patches with a grid for a loop over layers, and images as they are for one call. The text and the tower of this
    # tiny Mistral 3 are equally wide: embeddings are as wide as the text.
    "kimi_vl": (*ROWS, "output"),
    "mistral3": (*ROWS, "let", "output"),
    # One of its batches has a blank crop, which the model leaves out, and an image without crops.
    "deepseek_ocr2": ("layout", "modalities", "fields", "forward", "crops.pixels"),
    # Units are patches in rows, behind an axis of 1.
    "molmo2": ("modalities", "forward"),
    # An image is several tiles of rows; a chunk may have frames, and then fewer tokens.
    "lfm2_vl": ("modalities", "fields", "forward", "item.values"),
    "kimi_k25": ("modalities", "fields", "forward", "item.values"),
    # The encoder gets patches of an image, and a mask only where some have none.
    "idefics3": ("modalities",),
}


@pytest.mark.parametrize("shipped", SHIPPED)
def test_a_draft_is_like_the_shipped_descriptor(shipped: str, draft: Drafts) -> None:
    known = document_of(shipped)
    found = draft(known["model"].get("architecture", known["model"]["class"]), adapter=True)
    seen = values(found)
    for section, _, key in (name.partition(".") for name in SHIPPED[shipped]):
        assert (seen.get(section) or {})[key] == known[section][key] if key else seen.get(section) == known.get(section)
    assert seen["integration"]["test"]["image_prompt"]
    assert found.questions == () or list(SHIPPED).index(shipped) > 4


NEMOTRON = "NemotronH_Nano_VL_V2"


def test_images_alone_get_a_port_where_one_of_videos_would_run_code_twice(draft: Drafts) -> None:
    found = draft(ONEVISION)
    seen = values(found)
    # Each image of the batch is projected by itself, so the projector's calls together have all units.
    projected = "self.multi_modal_projector(self._image_pixels_to_features(self.vision_tower, pixels))"
    assert (seen["explicit"]["call"], [*seen["modalities"]]) == (projected, ["image"])
    assert not [key for key in seen["fields"] if "video" in key]
    [note] = [one for one in found.notes if one.code == "VCG484" and "`video`" in one.message]
    assert "run the model's code twice" in note.message
    assert "--adapter" in str(note.help)
    whole = draft(ONEVISION, adapter=True)
    assert [*values(whole)["modalities"]] == ["image", "video"]
    assert "explicit" not in values(whole)


def test_a_model_whose_port_of_images_is_slower_than_eager_code_gets_an_adapter(
    draft: Drafts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shipped descriptor says so: it has no port for a tree."""
    answers = {"gates.modalities": "not self.dynamic_resolution"}
    found = draft(NEMOTRON, answers=answers)
    assert found.text == draft(NEMOTRON, answers=answers, adapter=True).text
    assert [*values(found)["modalities"]] == ["image", "video"]
    monkeypatch.setattr(drafting, "for_adapters_alone", lambda subject: False)
    assert values(draft(NEMOTRON, answers=answers))["explicit"]["call"] == "self.extract_feature(pixels)"


@pytest.mark.parametrize("architecture", [NEXT, KIMI])
def test_comments_name_lines_that_show_a_value(architecture: str, draft: Drafts, release_tree: Any) -> None:
    """Every line exists, and a class stands where it is said to."""
    tree = release_tree("0.33.0")
    text = draft(architecture).text
    places = re.findall(r"([\w/]+\.(?:py|md)):(\d+)", text)
    assert len(places) >= 10
    for file, line in places:
        assert tree.read(file).splitlines()[int(line) - 1].strip(), f"{file}:{line}"
    [(name, file, line)] = re.findall(r"^  class: (\w+)    # (\S+):(\d+)", text, re.MULTILINE)
    assert f"class {name}(" in tree.read(file).splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        (QWEN, "has a port already"),
        (NEXT, ""),
        ("JinaVLForRanking", "JinaVLForSequenceClassification inherits the port of Qwen2VLForConditionalGeneration"),
    ],
)
def test_a_port_of_the_class_or_of_a_base_is_said(architecture: str, said: str, record: Record, draft: Drafts) -> None:
    recording = record(QWEN if "Jina" in architecture else architecture)
    found = draft(architecture, recording)
    notes = [note.message for note in found.notes if note.code == "VCG485"]
    titles = [line for line in found.text.splitlines() if "which was not looked at" in line]
    assert titles == [f"# {words}, which was not looked at: `new` replaces it with --replace." for words in notes]
    assert [said in note for note in notes] == [True] * bool(said)


MINICPM, MERGE = "MiniCPMV4_6ForConditionalGeneration", "self.config.vision_downsample_ratio"
OWN, SIDE = "self.visual.embeddings", "self.config.image_size // patch"
IMAGES = "self._process_image_input(self._parse_and_validate_image_input(**inputs))"
MOSS, HEARD = "MossTranscribeDiarizeForConditionalGeneration", "self.config.audio_config"
CHUNK, WIDTH = f"{HEARD}.max_source_positions", f"{HEARD}.d_model"
#: architecture -> values of its draft by their keys, None where there is none.
SEEN: dict[str, dict[str, Any]] = {
    # Tiles that are projected behind a method.
    "Gemma3ForConditionalGeneration": {
        "layout": "tiles",
        "let.k": "self.config.mm_tokens_per_image",
        "forward.call": "self.multi_modal_projector(self._image_pixels_to_features(self.vision_tower, pixels))",
        "forward.flatten": True,
    },
    # One call gets whole images and crops, and other statements are between those of what follows it. One batch has an
    # image without crops. The processor declares no precomputed embeddings, and the model reads them.
    "StepVLForConditionalGeneration": {
        "layout": "crops",
        "forward": {"call": "self._get_vision_model_output(pixels)"},
        "crops": {"pixels": "patch_pixel_values", "shape": [3, "crop", "crop"]},
        "fields.patch_pixel_values": {"sizes": "num_patches"},
        "fields.image_embeds": "batched",
    },
    # Some layers of a list, joined as columns. Its batches are padded to the most tiles.
    "Granite4VisionForConditionalGeneration": {
        "forward.call": "self._get_vision_hidden_states(pixels)",
        "forward.layers": ["self._spatial_vision_layer", {"table": "self._deepstack_layer_map", "column": 0}],
    },
    # Two loops over the layers, on units that the model pads to the longest. It hands embeddings of videos on under the
    # key of those of images.
    MINICPM: {
        "forward.loop": "self.vpm.encoder.layers",
        "forward.call": "self.forward_layers(pixels, self.config.insert_layer_id, mask)",
        "forward.with": {"mask": "additive"},
        "modalities.image.pixels": "pixel_values",
        "modalities.video.pixels": "video_pixel_values",
        "fields.video_embeds": "batched",
    },
    # The encoder gets patches of an image, and a mask only where some have none.
    "Idefics3ForConditionalGeneration": {
        "forward.with": {"attention_mask": "absent"},
        "forward.unit": ["(side // self.config.vision_config.patch_size) ** 2", "columns"],
    },
    # An image is one unit, one of LLaVA-NeXT has several; the projectors keep the number of patches.
    "PaliGemmaForConditionalGeneration": {
        "explicit.call": "self.multi_modal_projector(self._image_pixels_to_features(self.vision_tower, pixels))",
        "explicit.tokens": "(side // self.config.vision_config.patch_size) ** 2",
        "explicit.single": True,
    },
    NEXT: {"explicit.tokens": "(side // self.config.vision_config.patch_size) ** 2", "explicit.single": None},
    # The processor declares precomputed embeddings, and the model asserts that there are none.
    "Cohere2VisionForConditionalGeneration": {
        "fields": {"pixel_values": {"sizes": "num_patches"}, "num_patches": "batched"}
    },
    # Four patches are shuffled into a token: nothing says the tokens of a unit, and items that fit got no graph.
    "Llama4ForConditionalGeneration": {"layout": "cut", "explicit": None},
    # Items are padded to one length, and one layer of several is taken.
    "Phi4ForCausalLMV": {"item.mask": "pixel_attention_mask", "forward.several": True},
    # Grids are tables.
    "Ovis2_5": {
        "item.values": {"grids": [[1, "h", "w"]]},
        "item.zeros.indicator_tokens": [
            "2 + 1 * (1 - min(1, h * w // (self.config.vit_config.hidden_stride ** 2 + 1)))"
        ],
        "item.moved": ["grids"],
        "forward.unread": ["cu_window_seqlens"],
    },
    # The class parses a batch into a mapping, which it reads by a constant, or by a variable that it compares.
    "KeyeForConditionalGeneration": {"modalities.image.entry": IMAGES},
    GLM_OCR: {"modalities.image.entry": IMAGES},
    # The encoder is called image by image, and gets a grid of tokens and their order, too.
    "DeepseekV4ForConditionalGeneration": {
        "forward": {"encoder": "self.vision", "loop": "self.blocks", "per_item": True},
        "item.values": {"vit_grid": ["h", "w"], "llm_grid": [f"h // {MERGE}", f"w // {MERGE}"]},
        "item.zeros": {"perm": [f"(h // {MERGE}) * (w // {MERGE})"]},
        "let": {"p": "self.config.vision_patch_size"},
    },
    # An image has a kind for each token, and more of them: a function makes these of its grid.
    "DeepseekV41ForCausalLM": {
        "fields.types": {"sizes": "llm_grid"},
        "item.tokens": {
            "input": "types",
            "count": "h * w + h + 2",
            "module": "vllm.models.deepseek_v41.common.mm_preprocess",
            "function": "image_token_types",
        },
    },
    # The tower loops over the layers of another part, with a row of integers for each of its rows.
    "LlavaOnevision2ForConditionalGeneration": {
        "forward": {"encoder": "self.visual", "loop": "self.encoder.layers"},
        "let": {"width": f"{OWN}.in_channels * {OWN}.patch_size ** 2"},
        "item.zeros": {"patch_positions": ["h * w", 3]},
    },
    # The parts of these two encoders have a value of one of the two names that the configuration has for it.
    "QianfanOCRForConditionalGeneration": {"let.side": "self.config.vision_config.image_size"},
    "IsaacForConditionalGeneration": {"item.merge": "self.config.vision_config.pixel_shuffle_scale_factor"},
    # No name says the side of a patch, and the convolution that gets images strides by it.
    "PixtralForConditionalGeneration": {"let.p": "self.vision_encoder.patch_conv.stride[0]"},
    # Three configurations have the width of CLIP's projection, and the model keeps the one that it is built by.
    "CLIPModel": {"output.hidden_size": "self.projection_dim"},
    # The tower's own configuration is a part of the model's.
    "AriaForConditionalGeneration": {"let.columns": "self.config.vision_config.hidden_size"},
    # The layers of an encoder of sound, whose call gets lengths.
    MOSS: {
        "layout": "cut",
        "let": {"bins": f"{HEARD}.num_mel_bins", "frames": f"2 * {CHUNK}", "rows": CHUNK, "columns": WIDTH},
        "pixels": {"shape": ["bins", "frames"]},
        "forward.loop": "self.layers",
        "forward.unit": ["rows", "columns"],
        "forward.call": "self.whisper_encoder.forward_layers(pixels)",
    },
}
LEVELS = "len(self.layerwise_projectors) + len(self.spatial_projectors)"
#: architecture -> what its draft asks, with the first candidate. Others ask nothing.
ASKED = {
    MINICPM: {"let.patch": "self.config.vision_config.patch_size", "let.rows": f"{SIDE} * ({SIDE} + 1)"},
    "StepVLForConditionalGeneration": {"let.crop": "504"},
    "Idefics3ForConditionalGeneration": {"let.columns": "self.config.vision_config.hidden_size"},
    "Phi4ForCausalLMV": {"item.merge": "1"},
    "Granite4VisionForConditionalGeneration": {
        "output.hidden_size": f"self.config.text_config.hidden_size * ({LEVELS})"
    },
    "DeepseekOCR2ForCausalLM": {"let.crop": str(document_of("deepseek_ocr2")["let"]["image_size"])},
}


@pytest.mark.parametrize("architecture", dict.fromkeys([*SEEN, *ASKED]))
def test_what_a_run_shows(architecture: str, draft: Drafts) -> None:
    found = draft(architecture)
    for key, value in SEEN.get(architecture, {}).items():
        held: Any = values(found)
        for name in key.split("."):
            held = (held or {}).get(name)
        assert held == value, key
    asked = {question.key: question.candidates[0].value for question in found.open}
    assert asked == ASKED.get(architecture, {})


def test_the_smaller_port_comes_first_and_another_layout_on_request(draft: Drafts, release_tree: Any) -> None:
    """H2OVL's cut runs no code twice, so its port is smaller than that of the tiles that it is, too."""
    name = "H2OVLChatModel"
    found = {asked: values(draft(name, layout=asked)) for asked in (None, "tiles")}
    assert (found[None]["layout"], "explicit" in found[None]) == ("cut", True)
    assert (found["tiles"]["layout"], found["tiles"]["let"]["k"]) == ("tiles", "self.num_image_token")


@pytest.mark.parametrize(
    "change",
    [
        lambda leaf: replace(leaf, sources=()),  # the model changes what the call gives
        lambda leaf: replace(leaf, shape=(leaf.shape[0] + 1, *leaf.shape[1:])),  # or adds a row to each item
        lambda leaf: replace(leaf, sources=tuple(replace(one, how="copy") for one in leaf.sources)),
    ],
)
def test_embeddings_that_are_no_rows_of_a_call_are_a_cut(
    change: Callable[[Leaf], Leaf], record: Record, draft: Drafts
) -> None:
    name = "InternVLChatModel"
    other = with_batches(record(name), lambda batch: replace(batch, results=tuple(map(change, batch.results))))
    assert values(draft(name, other))["layout"] == "cut"


@pytest.mark.parametrize(
    ("architecture", "key", "name"), [(NEXT, "let.side", "image_size"), (KIMI, "let.p", "patch_size")]
)
def test_equal_numbers_are_asked_for(architecture: str, key: str, name: str, record: Record, draft: Drafts) -> None:
    """Where the text's configuration holds the number, too, nothing in one recording tells which is meant."""
    recording, own, other = record(architecture), f"self.config.vision_config.{name}", f"self.config.{name}"
    assert values(draft(architecture))["let"] == {key.removeprefix("let."): own}
    doubtful = replace(recording, numbers={**recording.numbers, other: recording.numbers[own]})
    [question] = draft(architecture, doubtful).open
    assert question.key == key
    assert {one.value for one in question.candidates} >= {own, other}


def test_a_run_on_no_images_gives_no_draft(record: Record, draft: Drafts) -> None:
    """Diffusion Gemma of 0.28: no inputs could be made."""
    with pytest.raises(NoDraft) as caught:
        draft(KIMI, replace(record(KIMI), batches=(), missing={"image": "odd"}))
    [problem] = caught.value.diagnostics
    assert (problem.code, problem.message) == ("VCG489", "no draft: the model ran on nothing: odd")
    assert "odd" in caught.value.start


def test_a_loop_that_hands_on_more_than_features(record: Record, draft: Drafts, release_tree: Any) -> None:
    file, before = "vllm/model_executor/models/minicpmv4_6.py", "= self.vpm.post_layernorm(hidden_states)"
    tree = release_tree("0.33.0")
    text = tree.read(file)
    assert before in text
    other = tree.with_files({file: text.replace(before, "= layer(hidden_states)").encode()})
    assert {one.code for one in refusal(draft, record(MINICPM), MINICPM, other)} == {"VCG483"}


def test_numbers_of_tokens_are_no_features(record: Record, draft: Drafts) -> None:
    """Chameleon finds a token for each place of its encoder's result: a number has no columns, by which rows count."""

    outer = "self._image_pixels_to_features("

    def numbers(batch: Batch) -> Batch:
        def of(frame: Frame) -> Frame:
            found = tuple(replace(leaf, dtype="int64") for leaf in frame.results)
            return replace(frame, results=found) if frame.text.startswith(outer) else frame

        return replace(batch, frames=tuple(map(of, batch.frames)))

    assert values(draft(NEXT))["forward"]["call"].startswith(outer)
    inner = values(draft(NEXT, with_batches(record(NEXT), numbers)))
    assert inner["forward"]["call"].startswith("self.vision_tower(")


def test_no_explicit_port_of_units_that_a_model_changes(record: Record, draft: Drafts) -> None:
    """Units in other memory than the pixels are none that a port can hand over."""

    def made(batch: Batch) -> Batch:
        calls = tuple(
            replace(call, arguments=tuple(replace(leaf, sources=()) for leaf in call.arguments)) for call in batch.calls
        )
        frames = tuple(
            replace(frame, values=tuple(replace(leaf, sources=()) for leaf in frame.values)) for frame in batch.frames
        )
        return replace(batch, calls=calls, frames=frames)

    found = draft(NEXT, with_batches(record(NEXT), made))
    assert "explicit" not in values(found)


@pytest.mark.parametrize(
    ("said", "most"),
    [
        ("vision_config.max_crops", "self.config.vision_config.max_crops + 1"),
        ("max_dynamic_patch", "self.config.max_dynamic_patch + 1"),
        ("max_position", None),
    ],
)
def test_budgets_hold_the_largest_item_that_a_configuration_names(
    said: str, most: str | None, record: Record, draft: Drafts
) -> None:
    """Where an image has no more units than that, and one more: the whole image beside its parts."""
    recording = record(NEXT)
    largest = max(leaf.shape[0] for batch in recording.batches for leaf in batch.given("pixel_values"))

    def drafted(number: int) -> Any:
        changed = replace(recording, numbers={**recording.numbers, f"self.config.{said}": number})
        return values(draft(NEXT, changed))["explicit"].get("most")

    assert (drafted(largest - 1), drafted(largest - 2)) == (most, None)


def test_an_explicit_port_of_rows_has_what_the_encoders_call_reads(record: Record, draft: Drafts) -> None:
    shipped = document_of("mistral3")["explicit"]
    assert values(draft(MISTRAL))["explicit"] == shipped | {"after": "_process_image_features"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [("max_seqlen", 7), ("max_seqlen", None), ("sequence_lengths", [0, 256, 272]), ("patch_embeds", None)],
)
def test_no_explicit_port_where_the_call_reads_what_has_no_buffer(
    variable: str, value: Any, record: Record, draft: Drafts
) -> None:
    def other(leaf: Leaf) -> Leaf:
        return replace(leaf, type="Tensor", shape=(3,), value=value) if leaf.at == variable else leaf

    def change(batch: Batch) -> Batch:
        return replace(batch, frames=tuple(replace(one, values=tuple(map(other, one.values))) for one in batch.frames))

    found = values(draft(MISTRAL, with_batches(record(MISTRAL), change)))
    assert found["layout"] == "rows"
    assert "explicit" not in found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The statements in front of the call leave their method.
        ("patch_embeds = self.ln_pre(patch_embeds)", "if not images: return ()"),
        # A release whose attention leaves rows of its result unwritten.
        ("torch.zeros", "torch.empty"),
    ],
)
def test_no_explicit_port_of_rows_in_code_of_another_form(
    before: str, after: str, record: Record, draft: Drafts, release_tree: Any
) -> None:
    found = values(draft(MISTRAL, record(MISTRAL), changed_tree(release_tree, "pixtral", before, after)))
    assert found["layout"] == "rows"
    assert "explicit" not in found


def test_an_explicit_port_of_layers_in_a_loop_has_the_calls_around_it(draft: Drafts) -> None:
    found = draft(KEYE)
    assert values(found)["explicit"] == document_of("keye")["explicit"]
    assert found.questions == ()


BRANCH = "if interpolate_pos_encoding and image_grid_thw is not None:"


@pytest.mark.parametrize(
    ("before", "after", "there"),
    [
        # A tensor of which the embedding's branch asks only whether it is None.
        (BRANCH, BRANCH, True),
        (BRANCH, "if not sample_indices:", False),
        (BRANCH, "if image_grid_thw is None or interpolate_pos_encoding:", True),
        (BRANCH, "if sample_indices:", False),
        (BRANCH, f"position_ids = position_ids + 1\n            {BRANCH}", False),
        ("assert attention_mask is None", "if attention_mask is None: return inputs_embeds", False),
        ("torch.zeros", "torch.empty", False),
    ],
)
def test_layers_in_a_loop_are_explicit_in_code_that_reads_what_is_known(
    before: str, after: str, there: bool, record: Record, draft: Drafts, release_tree: Any
) -> None:
    found = values(draft(KEYE, record(KEYE), changed_tree(release_tree, "keye", before, after)))
    assert (found["layout"], "explicit" in found) == ("rows", there)


def calls(part: str, change: Callable[[tuple[Leaf, ...]], tuple[Leaf, ...]]) -> Callable[[Batch], Batch]:
    """A change of the arguments of a part's calls."""

    def changed(call: Call) -> Call:
        return replace(call, arguments=change(call.arguments)) if call.part == part else call

    return lambda batch: replace(batch, calls=tuple(map(changed, batch.calls)))


TOWER = "visual.vision_model"


@pytest.mark.parametrize(
    "change",
    [
        # An argument that is nothing known, or not in all batches; a text that no call of a descriptor may have.
        calls("mlp_AR", lambda given: tuple(replace(one, value=None) for one in given)),
        calls("mlp_AR", lambda given: (*given, Leaf("mode", "str", value="nearest"))),
        calls(f"{TOWER}.post_layernorm", lambda given: (*given, Leaf("args[1]", "Tensor", (3,)))),
        calls(f"{TOWER}.encoder", lambda given: (*given, Leaf("scale", "int", value=given[0].shape[1]))),
        # Nothing gets the features; the embeddings are not what the last call gives; pixels are no rows of the grids.
        calls(f"{TOWER}.post_layernorm", lambda given: ()),
        lambda batch: replace(batch, results=tuple(replace(leaf, sources=()) for leaf in batch.results)),
        lambda batch: replace(batch, fields=tuple(replace(one, lengths=()) for one in batch.fields)),
    ],
)
def test_no_explicit_port_where_a_call_around_the_loop_is_unknown(
    change: Callable[[Batch], Batch], record: Record, draft: Drafts
) -> None:
    found = values(draft(KEYE, with_batches(record(KEYE), change)))
    assert (found["layout"], "explicit" in found) == ("rows", False)


# -- packed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shipped", ["qwen2_5_vl", "ernie45_vl"])
def test_packed_rows_are_those_of_the_shipped_descriptor(shipped: str, draft: Drafts) -> None:
    """Frames and windows are sequences of Qwen2.5-VL. A part of ERNIE runs after the graph."""
    known = document_of(shipped)
    architecture, answers = known["model"]["class"], {"budget.min": "64"}
    answers |= {"buffers": "[rotary_pos_emb]"} if shipped == "ernie45_vl" else {}
    found = draft(architecture, answers=answers)
    seen = values(found)
    for section in ("model", "layout", "sizes", "item", "buffers"):
        assert seen[section] == known[section]
    assert ("capture" in seen) == (shipped == "qwen2_5_vl")  # ERNIE's tower has no table of positions
    assert seen["let"]["m"] == known["let"]["m"]
    assert seen["forward"]["call"] == known["forward"]["call"]
    assert seen.get("post", {}).get("call") == known.get("post", {}).get("call")
    for name, one in known["modalities"].items():
        assert seen["modalities"][name].items() >= {key: one[key] for key in one if key != "why"}.items()
    for name, one in known["attention"].items():
        assert seen["attention"][name].items() >= {k: one[k] for k in ("unit", "offsets", "max")}.items()
    asked = {question.key: [one.value for one in question.candidates] for question in found.open}
    if "window" in known["attention"]:
        assert asked == {f"attention.window.{key}": [known["attention"]["window"][key]] for key in ("count", "longest")}
    else:
        # The text, the tower and the resampler of this tiny ERNIE are equally wide: its code reads one of them.
        assert not asked
        assert seen["output"] == known["output"]


def test_sequences_that_cover_nothing_known_are_asked_for(record: Record, draft: Drafts) -> None:
    """Offsets that skip the end of a frame are no frames, no items and no windows of them."""

    def odd(leaf: Leaf) -> Leaf:
        return replace(leaf, value=[0, leaf.value[-1]]) if leaf.at.endswith("cu_seqlens") and leaf.value else leaf

    def other(frame: Frame) -> Frame:
        return replace(frame, values=tuple(map(odd, frame.values)))

    doubtful = with_batches(record(QWEN), lambda batch: replace(batch, frames=tuple(map(other, batch.frames))))
    asked = {one.key for one in draft(QWEN, doubtful).open}
    assert "attention.full.unit" in asked


def test_a_width_that_was_guessed_for_the_run_is_asked_for(record: Record, draft: Drafts) -> None:
    """A tiny configuration may have got a width that no checkpoint's has, and PaliGemma's code reads none."""
    gemma = record("PaliGemmaForConditionalGeneration")
    known = values(draft("PaliGemmaForConditionalGeneration", gemma))["output"]["hidden_size"]
    doubtful = draft(
        "PaliGemmaForConditionalGeneration",
        replace(gemma, guessed=(*gemma.guessed, known.removeprefix("self.config."))),
    )
    [question] = [one for one in doubtful.open if one.key == "output.hidden_size"]
    assert question.candidates[0].value == known
    assert "guessed" in question.candidates[0].why


# -- rows --------------------------------------------------------------------------------------------------------------


def refusal(draft: Drafts, recording: Recording, architecture: str = KIMI, tree: Any = None) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as met:
        draft(architecture, recording, tree)
    return tuple(met.value.diagnostics)


def changed(recording: Recording, part: str, at: str, **values: Any) -> Recording:
    """The recording with one argument of a part changed, in every batch."""

    def leaf(one: Leaf) -> Leaf:
        return replace(one, **values) if one.at == at else one

    def call(one: Call) -> Call:
        return replace(one, arguments=tuple(map(leaf, one.arguments))) if one.part == part else one

    return with_batches(recording, lambda batch: replace(batch, calls=tuple(map(call, batch.calls))))


def with_variables(recording: Recording, at: str, **values: Any) -> Recording:
    """The recording with one variable of all functions changed."""

    def frame(one: Frame) -> Frame:
        return replace(one, values=tuple(replace(leaf, **values) if leaf.at == at else leaf for leaf in one.values))

    return with_batches(recording, lambda batch: replace(batch, frames=tuple(map(frame, batch.frames))))


def with_batches(recording: Recording, change: Callable[[Batch], Batch]) -> Recording:
    return replace(recording, batches=tuple(map(change, recording.batches)))


def test_the_width_of_rows_is_that_of_the_part_which_gets_them(record: Record, draft: Drafts) -> None:
    recording = record(GLM_OCR)
    seen = values(draft(GLM_OCR, recording))
    width = "self.visual.patch_embed.proj.input_size"
    assert seen["let"] == {"width": width}
    assert seen["item"]["shape"] == ["h * w", "width"]
    other = "self.visual.patch_embed.input_size"
    doubtful = replace(recording, numbers={**recording.numbers, other: recording.numbers[width]})
    asked = {question.key: question for question in draft(GLM_OCR, doubtful).open}
    assert {one.value for one in asked["let.width"].candidates} == {width, other}


@pytest.mark.parametrize(
    "call",
    [
        "image_token_types(n_llm_h, n_llm_w, n_vit_w)",
        "image_token_types(n_llm_h, n_llm_w=n_llm_w)",
        "self.types_of(n_llm_h, n_llm_w)",
        "DeepseekV4VLImageProcessor(n_llm_h, n_llm_w)",
    ],
)
def test_entries_of_tokens_that_no_function_of_the_grid_makes(
    call: str, record: Record, draft: Drafts, release_tree: Any
) -> None:
    architecture, tree = "DeepseekV41ForCausalLM", release_tree("0.33.0")
    file, old = "vllm/models/deepseek_v41/common/mm_preprocess.py", "image_token_types(n_llm_h, n_llm_w)"
    text = tree.read(file)
    assert text.count(old) == 1
    changed_tree = tree.with_files({file: text.replace(old, call).encode()})
    problems = refusal(draft, record(architecture), architecture, changed_tree)
    assert "no input holds the lengths of the items of `types`" in problems[0].message


def test_a_token_of_one_row_without_a_name_is_asked_for(record: Record, draft: Drafts) -> None:
    recording = record(KIMI)
    numbers = {path: number for path, number in recording.numbers.items() if "merge" not in path}

    def whole(batch: Batch) -> Batch:
        rows = next(field.lengths for field in batch.fields if field.key == "pixel_values")
        results = zip(batch.results, rows, strict=True)
        return replace(batch, results=tuple(replace(leaf, shape=(count, 32)) for leaf, count in results))

    single = replace(with_batches(recording, whole), numbers=numbers)
    [question] = draft(KIMI, single).open
    assert (question.key, [one.value for one in question.candidates]) == ("item.merge", ["1"])


ENCODER = "vision_tower.encoder"
LAYER = f"{ENCODER}.blocks.0"


def deep(batch: Batch) -> Batch:
    """Features of a layer that another part gets, too, such as those of several depths."""
    [(number, layer)] = [(n, one) for n, one in enumerate(batch.calls) if one.part == LAYER]
    features = replace(layer.arguments[0], sources=(Source(f"#{number}", "same"),))
    return replace(batch, calls=(*batch.calls, replace(layer, part="deep", arguments=(features,))))


def twice(batch: Batch) -> Batch:
    named = (replace(one, part=one.part.replace("vision_tower", "second")) for one in batch.calls)
    return replace(batch, calls=(*batch.calls, *named))


def again(batch: Batch) -> Batch:
    return replace(batch, calls=(*batch.calls, *(one for one in batch.calls if one.part.endswith("blocks.1"))))


def told_more(batch: Batch) -> Batch:
    """A layer that gets lengths beside features."""

    def call(one: Call) -> Call:
        more = replace(one.arguments[0], at="lengths", shape=one.arguments[0].shape[:1])
        return replace(one, arguments=(*one.arguments, more)) if one.part.endswith(".layers.1") else one

    return replace(batch, calls=tuple(map(call, batch.calls)))


def two_encoders(run: Recording) -> Recording:
    second = [replace(one, name=one.name.replace("vision_tower", "second")) for one in run.repeated]
    return replace(with_batches(run, twice), repeated=(*run.repeated, *second))


def of_batch(change: Callable[[Batch], Batch]) -> Callable[[Recording], Recording]:
    return lambda run: with_batches(run, change)


V4, LOOP = "DeepseekV4ForConditionalGeneration", "vpm.encoder.layers.0"
#: An architecture, what its run might have shown instead, and words of the refusal, the only one of Kimi-VL.
REFUSED: list[tuple[str, Callable[[Recording], Recording], tuple[str, ...]]] = [
    # Nothing tells where the rows of an image end.
    (KIMI, lambda run: changed(run, LAYER, "cu_seqlens", value=None),
     (f"the encoder `{ENCODER}` is called once for 2 images (vllm/",)),
    (KIMI, lambda run: changed(run, LAYER, "rope_freqs_cis", shape=(7, 12)),
     (f"`rope_freqs_cis` of the layer `{LAYER}` is neither rows, offsets", "moonvit.py")),
    (KIMI, two_encoders, ("`vision_tower.encoder` and `second.encoder` (vllm/",)),
    (KIMI, of_batch(deep), (f"`deep` gets the result of the layer `{LAYER}`, beside the next",)),
    (KIMI, of_batch(again), ("the layer `vision_tower.encoder.blocks.1` is called 2 times",)),
    (KIMI, of_batch(lambda b: replace(b, inputs=(*b.inputs, replace(b.inputs[1], at="mask")))),
     ("the model gets `mask` with",)),
    (KIMI, of_batch(lambda b: replace(b, inputs=(*b.inputs, replace(b.inputs[0], at="more")))),
     ("several inputs: more, pixel_",)),
    (KIMI, of_batch(lambda b: replace(b, results=(replace(b.results[0], shape=(63, 32)), *b.results[1:]))),
     ("no square of rows",)),
    (KIMI, of_batch(lambda b: replace(b, inputs=tuple(
        replace(one, value=[[3, 3]] * len(b.items)) if one.at == "image_grid_hws" else one for one in b.inputs))),
     ("the model gets `image_grid_hws` with",)),
    (KIMI, of_batch(lambda b: replace(b, inputs=b.inputs[:1])),
     ("neither patches with a grid nor images of whole patches",)),
    (KIMI, of_batch(lambda b: replace(b, calls=tuple(
        replace(one, results=(*one.results, b.results[0])) if one.part == ENCODER else one for one in b.calls))),
     ("2 tensors, of which some are no rows",)),
    # Its grid says other rows than its calls get.
    (V4, of_batch(lambda b: replace(b, inputs=tuple(replace(one, value=[[5, 5]] * 9) for one in b.inputs))),
     ("the encoder `vision` is called 2 times for 2 images",)),
    # Rows without their grid are no packed rows, and rows of windows are none of one encoder.
    (QWEN, lambda run: changed(run, "visual", "grid_thw", value=[[1, 2, 2]]), ()),
    # Not all units enter the call. In a single batch they may be what the model leaves out.
    (NEXT, of_batch(lambda b: replace(b, inputs=(*b.inputs, replace(b.inputs[0], at="pixel_values[9]")))),
     ("neither it nor a call around it gets all pixels",)),
    (MOSS, of_batch(told_more), ("neither it nor a call around it gets all pixels as units",)),
    # Not the patches of the longest unit; a mask in each batch; a number that no configuration has.
    (MINICPM, lambda run: changed(run, LOOP, "hidden_states", shape=(5, 63, 48)), ()),
    (MINICPM, lambda run: with_variables(run, "attention_mask", type="int", value=0), ()),
    (MINICPM, lambda run: with_variables(run, "insert_layer_id", value=7), ()),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "change", "words"), REFUSED)
def test_a_refusal_says_what_was_seen(
    architecture: str, change: Callable[[Recording], Recording], words: tuple[str, ...], record: Record, draft: Drafts
) -> None:
    problem, *more = refusal(draft, change(record(architecture)), architecture)
    assert {one.code for one in (problem, *more)} == {"VCG483"}
    assert architecture != KIMI or not more
    assert all(word in str(problem) for word in words), problem


@pytest.mark.parametrize(("architecture", "release", "kind"), [(KIMI, "0.22.0", "rows"), (NEXT, "0.21.0", "cuts")])
def test_a_release_without_the_graphs(
    architecture: str, release: str, kind: str, record: Record, draft: Drafts, release_tree: Any
) -> None:
    [problem] = refusal(draft, record(architecture), architecture, release_tree(release))
    assert any(note.startswith(f"{kind} came with vLLM") for note in problem.notes)
