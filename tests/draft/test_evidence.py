"""Nothing is known by heart: a changed source changes the draft, and every comment names a line that exists."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from draft_cases import DRAFTED, Case

from scaffold.descriptor import PackedPort, load_descriptor_text
from scaffold.descriptor.source import MappingNode, ScalarNode, SequenceNode, parse_source
from scaffold.diagnostics import DiagnosticError, Exit, Severity
from scaffold.draft import Draft, draft_descriptor, interview
from scaffold.protocol import open_tree

pytestmark = pytest.mark.trees

MODELS = "vllm/model_executor/models"
REGISTRY = f"{MODELS}/registry.py"


# --- evidence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DRAFTED, ids=lambda case: case.name)
def test_every_named_line_exists(case: Case, drafted, release_tree):
    tree = release_tree(case.release)
    places = re.findall(r"([\w/]+\.(?:py|md)):(\d+)", drafted(case).text)
    assert len(places) >= 15
    for file, line in places:
        lines = tree.read(file).splitlines()
        assert int(line) <= len(lines), (file, line)
        assert lines[int(line) - 1].strip(), f"{file}:{line} is empty"


@pytest.mark.parametrize("case", DRAFTED, ids=lambda case: case.name)
def test_keys_stand_in_the_lines_that_are_named(case: Case, drafted, release_tree):
    """For the inputs and the class: the very words are in the line."""
    tree = release_tree(case.release)
    section = ""
    checked = 0
    for text in drafted(case).text.splitlines():
        section = text.partition(":")[0] if text[:1].isalpha() else section
        found = re.match(r" +(?:(?:pixels|sizes|embeds|class): (\w+)|(\w+): batched)    # (\S+):(\d+)", text)
        if found and (section in ("model", "modalities") or found[2]):
            line = tree.read(found[3]).splitlines()[int(found[4]) - 1]
            after = tree.read(found[3]).splitlines()[int(found[4])]
            assert (found[1] or found[2]) in line + after, (text, line)
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize("case", DRAFTED, ids=lambda case: case.name)
def test_every_value_is_derived_or_asked(case: Case, drafted):
    """Scalars without a comment of their own are only those that another value or the layout decides."""
    found = drafted(case)
    root, problems = parse_source(found.text, "draft.yaml")
    assert problems == []
    lines = found.text.splitlines()
    bare = {
        key
        for key, line in _scalars(root, "")
        if "#" not in lines[line - 1] and not lines[line - 2].strip().startswith("#")
    }
    assert {key for key in bare if not re.fullmatch(DECIDED, key)} == set()


#: Names of our own, and what the layout fixes.
DECIDED = r"schema|item\.tokens|tower\.(entry|metadata\.0)|integration\.test\.(key|template\.name)"


def _scalars(node, at):
    if isinstance(node, ScalarNode):
        yield at, node.span.line
    elif isinstance(node, SequenceNode):
        yield f"{at}.0", node.span.line
    elif isinstance(node, MappingNode):
        for entry in node.entries:
            yield from _scalars(entry.value, f"{at}.{entry.key.value}".lstrip("."))


# --- changed sources ------------------------------------------------------------------------------------------------

#: Files of a release that a draft of a model needs, so that they can be changed.
FILES = {
    "qwen2_vl": ("0.21.0", "Qwen2VLForConditionalGeneration"),
    "internvl": ("0.22.0", "InternVLChatModel"),
    "mllama4": ("0.23.0", "Llama4ForConditionalGeneration"),
    "step3_vl": ("0.21.0", "Step3VLForConditionalGeneration"),
}
MORE = {
    "internvl": (f"{MODELS}/intern_vit.py",),
    "step3_vl": ("vllm/transformers_utils/processors/step3_vl.py",),
}

Says = Callable[[Draft], bool]


def says(line: str) -> Says:
    """The draft has this value."""
    return lambda draft: any(text.strip().partition("    #")[0] == line for text in draft.text.splitlines())


def asks(*keys: str) -> Says:
    return lambda draft: set(keys) <= {question.key for question in draft.questions}


def lacks(word: str) -> Says:
    return lambda draft: word not in draft.text


#: A line of `embed_multimodal`.
PARSES = "        modalities = self._parse_and_validate_multimodal_inputs(**kwargs)\n"
#: name -> model, what is replaced by what, and what the draft then says
CHANGED: dict[str, tuple[str, list[tuple[str, str]], Says]] = {
    "another key of sizes": ("qwen2_vl", [("image_grid_thw", "sizes_of_images")], says("sizes: sizes_of_images")),
    "another key of pixels": (
        "internvl",
        [("pixel_values_flat_video", "frames_flat")],
        says("pixels: frames_flat"),
    ),
    "fields that are added one after the other": (
        "mllama4",
        [
            ("patches_per_image", "tiles_of_image"),
            (
                "        return dict(\n            pixel_values=",
                "        fields = {}\n        fields.update(\n            pixel_values=",
            ),
            (
                "        )\n\n    def _get_prompt_updates",
                "        )\n        return fields\n\n    def _get_prompt_updates",
            ),
        ],
        says("sizes: tiles_of_image"),
    ),
    "another tower": ("qwen2_vl", [("self.visual", "self.eyes")], says("tower: eyes")),
    "a smaller rotary table": ("qwen2_vl", [("max_position=8192", "max_position=512")], says("side_limit: 512")),
    "no rotary table": ("qwen2_vl", [("max_position=8192,", "")], asks("capture.side_limit")),
    "an item is one sequence": (
        "qwen2_vl",
        [
            (
                "np.repeat(grid_thw[:, 1] * grid_thw[:, 2], grid_thw[:, 0]).cumsum(",
                "grid_thw.prod(-1).cumsum(",
            )
        ],
        says("unit: item"),
    ),
    "sequences of unknown extent": (
        "qwen2_vl",
        [("np.repeat(grid_thw[:, 1] * grid_thw[:, 2], grid_thw[:, 0])", "np.array(measure(grid_thw))")],
        asks("attention.full.unit"),
    ),
    "sequences that are no frames": (
        "qwen2_vl",
        [
            (
                "np.repeat(grid_thw[:, 1] * grid_thw[:, 2], grid_thw[:, 0])",
                "np.repeat(grid_thw[:, 1] * grid_thw[:, 2], 2)",
            )
        ],
        asks("attention.full.unit"),
    ),
    "an unknown merge size": (
        "qwen2_vl",
        [("grid_thw.prod(-1) // merge_size // merge_size", "tokens_of(grid_thw)")],
        asks("let.m"),
    ),
    "a squared merge size": (
        "qwen2_vl",
        [("grid_thw.prod(-1) // merge_size // merge_size", "grid_thw.prod(-1) // self.visual.merge**2")],
        says("m: self.visual.merge"),
    ),
    "no embeddings of videos": (
        "qwen2_vl",
        [('kwargs.pop("video_embeds", None)', "None")],
        lacks("embeds: video_embeds"),
    ),
    "no videos": ("qwen2_vl", [('if modality == "videos":', 'if modality == "none":')], lacks("  video:")),
    "images with embeddings that are refused": (
        "qwen2_vl",
        [
            (
                "        if pixel_values is None and image_embeds is None:",
                "        assert image_embeds is None\n        if pixel_values is None:",
            )
        ],
        lacks("embeds: image_embeds"),
    ),
    "an unknown number of frames": (
        "qwen2_vl",
        [("def get_num_frames_with_most_features", "def most_frames")],
        asks("budget.frames"),
    ),
    "a width of its own": (
        "qwen2_vl",
        [("self.out_hidden_size = vision_config.hidden_size", "pass")],
        asks("output.hidden_size"),
    ),
    "pruned embeddings": (
        "qwen2_vl",
        [
            (
                "        self.config = config\n        self.multi",
                "        self.config = config\n        self.is_multimodal_pruning_enabled = True\n        self.multi",
            ),
            (PARSES, f"        if self.is_multimodal_pruning_enabled:\n            pass\n{PARSES}"),
        ],
        says("modalities: not self.is_multimodal_pruning_enabled"),
    ),
    "pruned embeddings, set outside of the constructor": (
        "qwen2_vl",
        [
            (
                "    def _parse_and_validate_image_input(",
                "    def _setup(self):\n        self.is_multimodal_pruning_enabled = True\n\n"
                "    def _parse_and_validate_image_input(",
            ),
            (PARSES, f"        if self.is_multimodal_pruning_enabled:\n            pass\n{PARSES}"),
        ],
        says("modalities: not self.is_multimodal_pruning_enabled"),
    ),
    "a part that runs behind the graph": (
        "qwen2_vl",
        [
            (
                "image_embeds = self.visual(pixel_values, grid_thw=grid_thw)",
                "image_embeds = self.resampler(self.visual(pixel_values, grid_thw=grid_thw), grid_thw)",
            )
        ],
        says("call: self.resampler(output, sizes)"),
    ),
    "a grid that the model changes": (
        "qwen2_vl",
        [("self.visual(pixel_values, grid_thw=grid_thw)", "self.visual(pixel_values, grid_thw=frames_of(grid_thw))")],
        asks("eager.call"),
    ),
    "another last part": (
        "mllama4",
        [("self.multi_modal_projector(vision_embeddings_flat)", "self.connector(vision_embeddings_flat)")],
        says("call: self.connector(self.vision_model(pixels))"),
    ),
    "a part that is told whether to shard": (
        "mllama4",
        [
            (
                "self.multi_modal_projector(vision_embeddings_flat)",
                "self.connector(vision_embeddings_flat, shard=self.use_data_parallel)",
            )
        ],
        says("call: self.connector(self.vision_model(pixels), shard=False)"),
    ),
    "channels that nothing names": (
        "mllama4",
        [("self.num_channels = config.num_channels", "pass")],
        asks("pixels.shape"),
    ),
    "a side that nothing binds": (
        "internvl",
        [
            ('resolve_bindings = {"h": expected_h, "w": expected_w}', "resolve_bindings = {}"),
            ("self.image_size = config.image_size", "pass"),
        ],
        asks("let.side"),
    ),
    "another switch": (
        "internvl",
        [("if self.use_data_parallel:", "if self.shards_pixels:")],
        says("switches: [self.vision_model.shards_pixels]"),
    ),
    "the whole image first": (
        "step3_vl",
        [
            (
                "torch.cat(cur_feature) if len(cur_feature) > 1 else cur_feature[0]",
                "torch.cat([image_features[i], patch_image_features])",
            ),
        ],
        says("assemble: [global, local]"),
    ),
    "an order that nothing shows": (
        "step3_vl",
        [("torch.cat(cur_feature) if len(cur_feature) > 1 else cur_feature[0]", "join(cur_feature)")],
        asks("post.assemble"),
    ),
    "another constant of the processor": (
        "step3_vl",
        [("num_image_feature_size: int = 169", "num_image_feature_size: int = 170")],
        lambda draft: "candidate: 170 " in draft.text,
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_the_draft_follows_the_source(name, copied_tree):
    model, replacements, says_so = CHANGED[name]
    release, architecture = FILES[model]
    files = (f"{MODELS}/{model}.py", *MORE.get(model, ()))
    tree = copied_tree(release, REGISTRY, *files)
    before = draft_descriptor(tree, architecture)
    assert not says_so(before), "the unchanged source says it, too"
    replace(tree.root, files, replacements)
    after = draft_descriptor(open_tree(tree.root), architecture)
    assert says_so(after), after.text
    with pytest.raises(DiagnosticError) as error:
        load_descriptor_text(after.text, "draft.yaml")
    assert {problem.code for problem in error.value.diagnostics} == {"VCG390"}


def replace(root: Path, files: tuple[str, ...], replacements: list[tuple[str, str]]) -> None:
    """Each text in each of the files that has it; one of them must."""
    for old, new in replacements:
        texts = {file: (root / file).read_text() for file in files}
        assert any(old in text for text in texts.values()), old
        for file, text in texts.items():
            (root / file).write_text(text.replace(old, new))


#: name -> model, replacement, words of the reason, words of the line that shows it
BEYOND: dict[str, tuple[str, list[tuple[str, str]], str, str]] = {
    "a list of pixels": (
        "mllama4",
        [
            (
                'flat_from_sizes(\n                "image", patches_per_image\n            )',
                'batched("image")',
            )
        ],
        "arrives as one tensor an item",
        "pixel_values=",
    ),
    "rows of no known number": (
        "qwen2_vl",
        [(f"{name}_grid_thw.prod(-1)\n", f"{name}_grid_thw.sum(-1)\n") for name in ("image", "video")],
        "neither a count nor the product",
        "MultiModalFieldConfig.flat_from_sizes(",
    ),
    "grids of four columns": (
        "qwen2_vl",
        [
            (f'"{name}_grid_thw", torch.empty((0, 3))', f'"{name}_grid_thw", torch.empty((0, 4))')
            for name in ("image", "video")
        ],
        "has 4 columns",
        "MultiModalFieldConfig.flat_from_sizes(",
    ),
    "a function between parts": (
        "mllama4",
        [
            (
                "self.multi_modal_projector(vision_embeddings_flat)",
                "self.multi_modal_projector(torch.relu(vision_embeddings_flat))",
            )
        ],
        "`torch.relu` stands between",
        "torch.relu(",
    ),
    "a part after the tower": (
        "qwen2_vl",
        [
            (
                "image_embeds = self.visual(pixel_values, grid_thw=grid_thw)",
                "image_embeds = self.norm(self.visual(pixel_values, grid_thw=grid_thw))",
            )
        ],
        "`self.norm` runs on the tower's output",
        "self.norm(",
    ),
    "a part after the tower that gets more than the sizes": (
        "qwen2_vl",
        [
            (
                "image_embeds = self.visual(pixel_values, grid_thw=grid_thw)",
                "image_embeds = self.norm(self.visual(pixel_values, grid_thw=grid_thw), grid_thw, 3)",
            )
        ],
        "`self.norm` runs on the tower's output and needs the sizes",
        "self.norm(",
    ),
    "a tower that cannot be split": (
        "qwen2_vl",
        [("        # adapter\n", "        if grid_thw_list[0][0] > 1:\n            x = x * 2\n        # adapter\n")],
        "cannot be split: a branch on metadata touches data",
        "if grid_thw_list[0][0] > 1:",
    ),
    "layers that find the longest sequence": (
        "qwen2_vl",
        [
            (
                "        # [s, b, c] --> [s, b, 3 * head * head_dim]\n",
                "        max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()\n",
            )
        ],
        "`max_seqlen` computed beside the attention",
        "self.attn(",
    ),
    "a tower from elsewhere": (
        "qwen2_vl",
        [("class Qwen2VisionTransformer(", "class Tower(")],
        "is not in the tree",
        "self.visual(",
    ),
    "a further input": (
        "mllama4",
        [
            (
                "self.multi_modal_projector(vision_embeddings_flat)",
                "self.multi_modal_projector(vision_embeddings_flat, aspect_ratios)",
            ),
            (
                'image_input["patches_per_image"]',
                'image_input["patches_per_image"]\n        aspect_ratios = image_input["aspect_ratios"]',
            ),
        ],
        "also depends on `aspect_ratios`",
        "self.multi_modal_projector(",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_no_layout_says_is_refused_with_its_line(name, copied_tree):
    model, replacements, words, code = BEYOND[name]
    release, architecture = FILES[model]
    files = (f"{MODELS}/{model}.py", *MORE.get(model, ()))
    tree = copied_tree(release, REGISTRY, *files)
    draft_descriptor(tree, architecture)
    replace(tree.root, files, replacements)
    changed = open_tree(tree.root)

    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(changed, architecture)

    found = [problem for problem in error.value.diagnostics if words in problem.message]
    assert found
    for problem in found:
        assert (problem.code, problem.exit) == ("VCG483", Exit.TARGET)
        assert problem.span is not None
        file = problem.span.file.removeprefix(changed.display(""))
        assert code in changed.read(file).splitlines()[problem.span.line - 1]


def test_every_reason_is_said_at_once(copied_tree):
    """Two parts of one model that no descriptor says: one before and one inside of the tower."""
    release, architecture = FILES["qwen2_vl"]
    file = f"{MODELS}/qwen2_vl.py"
    tree = copied_tree(release, REGISTRY, file)
    names = ("a part after the tower", "layers that find the longest sequence")
    replace(tree.root, (file,), [pair for name in names for pair in BEYOND[name][1]])
    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(open_tree(tree.root), architecture)
    assert len(error.value.diagnostics) == 2
    for name, problem in zip(names, error.value.diagnostics, strict=True):
        assert BEYOND[name][2] in problem.message


#: name -> model, replacement, the modality that is left out, words of the reason
LEFT_OUT: dict[str, tuple[str, list[tuple[str, str]], str, str]] = {
    "rows of no known number": (
        "qwen2_vl",
        [("image_grid_thw.prod(-1)\n", "image_grid_thw.sum(-1)\n")],
        "image",
        "neither a count nor the product",
    ),
    "grids of another form": (
        "qwen2_vl",
        [('"video_grid_thw", torch.empty((0, 3))', '"video_grid_thw", torch.empty((0, 4))')],
        "video",
        "a row of `video_grid_thw` has 4 columns",
    ),
    "another tower": (
        "qwen2_vl",
        [("self.visual(pixel_values_videos, grid_thw=grid_thw)", "self.eyes(pixel_values_videos, grid_thw=grid_thw)")],
        "video",
        "it goes through other parts of the model than `image`",
    ),
    "sizes of another form": (
        "qwen2_vl",
        [('"video_grid_thw", torch.empty((0, 3))', '"video_grid_thw", torch.empty((0, 2))')],
        "video",
        "its inputs lie otherwise in memory than those of `image`",
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_modality_beyond_the_layouts_is_left_out(name, copied_tree):
    """The other one is drafted, with a warning at the line that shows why."""
    model, replacements, modality, words = LEFT_OUT[name]
    release, architecture = FILES[model]
    files = (f"{MODELS}/{model}.py", *MORE.get(model, ()))
    tree = copied_tree(release, REGISTRY, *files)
    assert draft_descriptor(tree, architecture).notes == ()
    replace(tree.root, files, replacements)
    found = draft_descriptor(open_tree(tree.root), architecture)
    assert f"  {modality}:\n" not in found.text
    [note] = found.notes
    assert (note.code, note.severity) == ("VCG484", Severity.WARNING)
    assert f"the modality `{modality}` is left out" in note.message
    assert words in note.message
    assert note.span is not None
    with pytest.raises(DiagnosticError) as error:
        load_descriptor_text(found.text, "draft.yaml")
    assert {problem.code for problem in error.value.diagnostics} == {"VCG390"}


def test_a_port_of_tiles_takes_ready_embeddings_of_one_modality(release_tree):
    """InternVL reads those of videos, too, since 0.30; the draft says what it does not cover."""
    found = draft_descriptor(release_tree("0.33.0"), "InternVLChatModel", {"let.k": "self.num_image_token"})
    port = load_descriptor_text(found.text, "draft.yaml")
    assert [(modality.name, modality.embeds) for modality in port.inputs] == [
        ("image", "image_embeds"),
        ("video", None),
    ]
    [note] = [note for note in found.notes if note.code == "VCG484"]
    assert (note.code, note.severity) == ("VCG484", Severity.WARNING)
    assert "precomputed embeddings of `video` are left out" in note.message


@pytest.mark.parametrize("architecture", ["Alpamayo2Super", "OpenCUAForConditionalGeneration"])
def test_an_inherited_modality_that_requests_cannot_have_is_left_out(architecture, release_tree):
    """The class that it inherits from takes videos; its own processing information lists images alone."""
    found = interview(release_tree("0.33.0"), architecture, {}, lambda question: question.candidates[0].value)
    port = load_descriptor_text(found.text, "draft.yaml")
    assert [modality.name for modality in port.inputs] == ["image"]
    [note] = [note for note in found.notes if note.code == "VCG484"]
    assert "the modality `video` is left out" in note.message


def test_what_a_method_returns_in_several_places_limits_no_modality(release_tree):
    """ColQwen3 asks its configuration whether there are videos."""
    found = interview(release_tree("0.33.0"), "ColQwen3", {}, lambda question: question.candidates[0].value)
    assert [modality.name for modality in load_descriptor_text(found.text, "draft.yaml").inputs] == ["image", "video"]


def test_the_configuration_that_a_model_keeps_may_be_its_language_models(release_tree):
    """Inkling hands a part of its configuration to a method, which keeps that part as `self.config`."""
    found = interview(release_tree("0.33.0"), "InklingForConditionalGeneration", {}, lambda question: "self.visual")
    assert "\n  hidden_size: self.config.hidden_size\n" in found.text


def test_the_bound_of_no_offsets_is_a_question(release_tree):
    """MiMo takes the longest sequence of what it makes its offsets of, and not of the offsets."""
    answers = {
        "attention.full.max": "max_seqlen",
        "buffers": "[rotary_cos, rotary_sin, window_index_1d_col, reverse_window_index_1d_col, col_cos, col_sin]",
        "budget.min": "64",
        "output.hidden_size": "self.config.text_config.hidden_size",
    }
    found = draft_descriptor(release_tree("0.33.0"), "MiMoV2OmniForCausalLM", answers)
    assert sorted(question.key for question in found.questions) == sorted(answers)
    question = next(question for question in found.questions if question.key == "attention.full.max")
    assert question.candidates[0].value == "max_seqlen"
    port = load_descriptor_text(found.text, "draft.yaml")
    assert isinstance(port, PackedPort)
    assert [(entry.unit, entry.max) for entry in port.sequences] == [("frame", "max_seqlen")]
    assert "max_seqlen" not in port.buffers


#: name -> model, replacement, words of the refusal: of what remains nothing could be drafted
REFUSED: dict[str, tuple[str, list[tuple[str, str]], str]] = {
    "inputs that cannot be read": (
        "mllama4",
        [("return dict(\n            pixel_values=", "return make(\n            pixel_values=")],
        "does not list the inputs",
    ),
    "nothing is encoded": (
        "mllama4",
        [
            ("self.vision_model(pixel_values)", "pixel_values"),
            ("self.multi_modal_projector(vision_embeddings_flat)", "vision_embeddings_flat"),
        ],
        "no call of a part of the model",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_tells_nothing_is_refused(name, copied_tree):
    model, replacements, words = REFUSED[name]
    release, architecture = FILES[model]
    files = (f"{MODELS}/{model}.py", *MORE.get(model, ()))
    tree = copied_tree(release, REGISTRY, *files)
    draft_descriptor(tree, architecture)
    replace(tree.root, files, replacements)
    with pytest.raises(DiagnosticError) as error:
        draft_descriptor(open_tree(tree.root), architecture)
    first = error.value.diagnostics[0]
    assert first.code == "VCG483"
    assert words in first.message
    assert first.span is not None


# --- a port that is there already -------------------------------------------------------------------------------------

#: architecture of 0.33 -> what is said of its port
PORTED = {
    "InternVLChatModel": ["InternVLChatModel has a port already"],
    "NVLM_D": ["NVLM_D_Model inherits the port of InternVLChatModel"],
    "JinaVLForRanking": ["JinaVLForSequenceClassification inherits the port of Qwen2VLForConditionalGeneration"],
    "SkyworkR1VChatModel": [],
}


@pytest.mark.parametrize("architecture", PORTED)
def test_a_port_of_the_class_or_of_a_base_is_said(architecture, release_tree):
    found = draft_descriptor(release_tree("0.33.0"), architecture)
    said = PORTED[architecture]
    assert [note.message for note in found.notes if note.code == "VCG485"] == said
    titles = [line for line in found.text.splitlines() if "which was not looked at" in line]
    assert titles == [f"# {words}, which was not looked at: `new` replaces it with --replace." for words in said]


def test_a_question_points_to_the_layer_that_has_the_answer(release_tree):
    """Inkling's model calls a tower, which calls an encoder, whose `forward` reads the shape of its pixels."""
    tree = release_tree("0.33.0")
    draft = draft_descriptor(tree, "InklingForConditionalGeneration")
    [question] = [question for question in draft.questions if question.key == "pixels.shape"]
    [look] = question.look
    place, _, what = look.partition(": ")
    file, _, line = place.rpartition(":")
    assert what == "the first layer that gets the pixels, in HMLPPatchEncoder"
    assert "def forward" in tree.read(file).splitlines()[int(line) - 1]


def test_a_refused_model_asks_nothing_and_says_each_reason_once(release_tree):
    """Before rows: of DotsOCR one line rules out three layouts, for three reasons."""
    asked = []
    refused = (("DotsOCRForCausalLM", "0.22.1", 3), ("KimiK25ForConditionalGeneration", "0.22.0", 2))
    for model, release, reasons in refused:
        with pytest.raises(DiagnosticError) as met:
            interview(release_tree(release), model, {}, lambda question: asked.append(question) or "1")
        found = met.value.diagnostics
        assert [problem.code for problem in found] == ["VCG483"] * reasons
        assert len({(problem.message, problem.span) for problem in found}) == reasons
        assert len({problem.notes for problem in found}) == reasons
        assert all(problem.notes[0].startswith("so the layout") for problem in found)
    assert not asked
