"""The rules on the ports of real releases: where each applies, what it writes, and which ports it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaffold.changes import FileChange, unified_lines
from scaffold.fix.repair import Repair, apply_repairs, heirs_of
from scaffold.fix.rules import find_repairs
from scaffold.plan.manager import MANAGER_TESTS
from scaffold.protocol import SourceTree
from scaffold.verify.numeric import Check
from scaffold.verify.numeric.reports import FROZEN, ROUND_UP, SECTIONS, captured_short
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

KIMI = "vllm/model_executor/models/kimi_vl.py"
QWEN = "vllm/model_executor/models/qwen2_vl.py"
GEMMA = "vllm/model_executor/models/gemma3_mm.py"
STEP3 = "vllm/model_executor/models/step3_vl.py"
LLAMA4 = "vllm/model_executor/models/mllama4.py"
DEEPSEEK = "vllm/model_executor/models/deepseek_vl2.py"
ERNIE = "vllm/model_executor/models/ernie45_vl.py"
INTERNVL = "vllm/model_executor/models/internvl.py"
MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
GLM = "vllm/model_executor/models/glm4_1v.py"


def found_in(tree: SourceTree, model: str) -> dict[str, Repair]:
    port = load_port(model)
    return {repair.name: repair for repair in find_repairs(tree, port.module, port.class_name)}


#: Most tests ask for the repairs of a release. By identity: a tree with a changed file is equal to the release.
_FOUND: dict[tuple[int, str], tuple[SourceTree, dict[str, Repair]]] = {}


def repairs_of(release: SourceTree, model: str) -> dict[str, Repair]:
    """The same of a release's own tree, looked for once."""
    key = id(release), model
    if key not in _FOUND:
        _FOUND[key] = release, found_in(release, model)
    return dict(_FOUND[key][1])


def changed(change: FileChange) -> tuple[list[str], list[str]]:
    """The lines that go, and those that come."""
    before, after = (text.decode().splitlines() for text in (change.before or b"", change.after or b""))
    lines = [*unified_lines(before, after, ("a", "b"))][2:]
    return tuple([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")  # type: ignore[return-value]


def with_text(tree: SourceTree, path: str, old: str, new: str) -> SourceTree:
    text = tree.read(path)
    assert old in text
    return tree.with_files({path: text.replace(old, new).encode()})


LARGER = "max(max_batch_size, max_frames_per_batch)"
WHY = [
    "# The capture has offsets for the larger of both, and the manager would",
    "# fill the rest of a shorter list with zeros.",
]
ENCODE = ["metadata = self.visual.prepare_encoder_metadata(", "grid_thw_list,"]
ONE_BRANCH = [
    "modality = self.get_input_modality(mm_kwargs)", 'if modality == "image":', *ENCODE,
    "max_batch_size=max_batch_size,", ")",
]  # fmt: skip
OTHER = [*ENCODE, "max_frames_per_batch=max_frames_per_batch,", ")"]
NEITHER = ["else:", 'raise AssertionError("This line should be unreachable.")']
BRANCHES = {
    "qwen2_vl": [*ONE_BRANCH, "else:", *OTHER],
    "glm4_1v": [*ONE_BRANCH, 'elif modality == "video":', *OTHER, *NEITHER],
}
BRANCHES["qwen3_vl"] = BRANCHES["glm4_1v"]
EMBEDS = [
    ") -> list[torch.Tensor] | None:", "List of encoder outputs (one per item), or None if they are precomputed.",
    "# Precomputed embeddings need no encoder: the runner calls `embed_multimodal`.",
    'if any(f"{name}_embeds" in mm_kwargs for name in self.config.modalities):', "return None", "",
]  # fmt: skip
BEFORE = [") -> list[torch.Tensor]:", "List of encoder outputs (one per item)."]
MANY = [
    "# A batch may have more frames than the graph was captured for.",
    "for key, buf in graph_meta.input_buffers.items():", "src = replay.values.get(key)",
    "if src is not None and src.ndim > 0 and src.shape[0] > buf.shape[0]:", "logger.warning_once(",
    '"A batch has more frames than its encoder CUDA graph, and runs "',
    '"eagerly: see encoder_cudagraph_max_frames_per_batch."', ")", "self.graph_misses += num_items",
    "with torch.inference_mode():", "return self.model.encoder_eager_forward(mm_kwargs, path)", "",
]  # fmt: skip
#: model, rule, the lines that go, the lines that come
PLACES = [
    (
        "kimi_vl",
        "bound in rows",
        ["max_seqlen_override=token_budget,"],
        ["max_seqlen_override=token_budget * kh * kw,"],
    ),
    (
        "gemma3_mm",
        "rows by budget alone",
        ["num_images = min(", "token_budget // mm_tokens_per_image,", "max_batch_size,", ")", "num_images,"],
        [
            "# An image may have several crops: only the budget limits them.",
            "num_patches = token_budget // mm_tokens_per_image",
            "num_patches,",
        ],
    ),
    (
        "glm4_1v",
        "capture rounds up",
        ["per_mm_item_output = token_budget // max_batch_size"],
        [
            "from vllm.utils.math_utils import cdiv",
            "# Use ceil: one item may need the whole budget.",
            "per_mm_item_output = cdiv(token_budget, max_batch_size)",
        ],
    ),
    *(
        (model, "pad as captured", gone, [*WHY, *ENCODE, f"max_frames_per_batch={LARGER},", ")"])
        for model, gone in BRANCHES.items()
    ),
    *((model, "embeddings run eagerly", BEFORE, EMBEDS) for model in ("deepseek_vl2", "minicpmv", "qwen2_vl")),
    (
        "ernie45_vl",
        "finished once",
        [
            "# Eager fallback: run the full pipeline (ViT + resampler). The result",
            "# is scattered directly, so it must be the post-merge embeddings.",
            "grid_thw = async_tensor_h2d(",
            'mm_kwargs["image_grid_thw"], self.vision_model.device',
            ")",
            "return self.resampler_model(image_features, grid_thw)",
        ],
        [
            "# As in a graph: `postprocess_encoder_output` runs the rest.",
            'grid_thw = mm_kwargs["image_grid_thw"]',
            "return image_features",
        ],
    ),
    (
        "mllama4",
        "no layer split over ranks",
        [],
        ["disable_tp=is_vit_use_data_parallel(),"],
    ),
    *((model, "many frames run eagerly", [], MANY) for model in ("glm4_1v", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")),
    (
        "step3_vl",
        "copy on clone",
        ["merged[idx] = torch.cat(parts, dim=0) if len(parts) > 1 else parts[0]"],
        ["merged[idx] = (", "torch.cat(parts, dim=0) if len(parts) > 1 or clone else parts[0]", ")"],
    ),
]


@pytest.mark.parametrize(("model", "rule", "gone", "come"), PLACES, ids=[f"{one[0]}, {one[1]}" for one in PLACES])
def test_a_rule_writes_the_smallest_edit(release_tree, model, rule, gone, come):
    tree = release_tree("0.33.0")
    repair = repairs_of(tree, model)[rule]

    (change,) = (change for change in apply_repairs(tree, [repair]) if change.path.startswith("vllm/"))
    removed, added = changed(change)

    assert (removed, added) == (gone, come)
    compile(change.after or b"", change.path, "exec")
    line = tree.read(change.path).splitlines()[repair.span.line - 1]
    starts = (
        "token_budget",
        "min",
        "max_",
        "len",
        "return",
        "m = ",
        "h, w = ",
        "video = ",
        "if modality",
        "# Keep",
        ",",
        "self.res",
        "# Copy",
        "if self.use_dp",
    )
    assert line[repair.span.column - 1 :].strip().startswith(starts), "the place is exact"


def test_which_ports_of_a_release_have_a_place(release_tree):
    """Step3-VL and DeepSeek-OCR limit whole images by items, one row each, rightly; Kimi-K2.5 has the bound in rows.
    Idefics3's processor refuses embeddings."""
    tree = release_tree("0.33.0")
    models = [
        "cohere_compass", "deepseek_ocr", "deepseek_v41", "deepseek_vl2", "ernie45_vl", "gemma3_mm", "gemma4_mm",
        "glm4_1v", "idefics3", "internvl", "kimi_k25", "kimi_k3", "kimi_vl", "lfm2_vl", "minicpmv", "minimax_m3",
        "mllama4", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "step3_vl",
    ]  # fmt: skip
    embeds, frames = "embeddings run eagerly", "many frames run eagerly"
    assert {model: found for model in models if (found := [*repairs_of(tree, model)])} == {
        "cohere_compass": [embeds, frames],
        "deepseek_ocr": [embeds],
        "deepseek_v41": ["finished once"],  # what it calls twice may be called twice: no check fails
        "deepseek_vl2": [embeds],
        "ernie45_vl": ["finished once"],
        "gemma3_mm": ["rows by budget alone"],
        "glm4_1v": ["capture rounds up", "pad as captured", embeds, frames],
        "internvl": ["no sharding inside", embeds],
        "kimi_vl": ["bound in rows"],
        "minicpmv": [embeds],
        "mllama4": ["no layer split over ranks"],
        # Its own padding functions make the first one right: no check fails, and so nothing asks for the repair.
        "qwen2_5_vl": ["pad as captured", embeds, frames],
        "qwen2_vl": ["pad as captured", embeds, frames],
        "qwen3_vl": ["pad as captured", embeds, frames],
        "step3_vl": ["copy on clone", "no sharding inside"],
    }


VIDEO_CALL = "grid_thw_list,\n                max_frames_per_batch=max_frames_per_batch,"
NEXT = '        else:\n            raise AssertionError("This line should be unreachable.")\n\n        values '
#: what one branch has beside the padding: both stay, and each pads to the larger number
BOTH_STAY = {
    "another argument": (VIDEO_CALL, VIDEO_CALL + " device=None,"),
    "another statement": (NEXT, f"            del modality\n{NEXT}"),
    "a third way": (NEXT, NEXT.replace("raise AssertionError(", "metadata = dict(").replace('("', '(a="')),
}


@pytest.mark.parametrize("why", BOTH_STAY)
def test_branches_that_differ_stay(release_tree, why):
    tree = release_tree("0.33.0")
    text = tree.read(GLM)
    place = text.index("def prepare_encoder_cudagraph_replay_buffers(")
    old, new = BOTH_STAY[why]
    assert old in text[place:]
    tree = tree.with_files({GLM: (text[:place] + text[place:].replace(old, new, 1)).encode()})
    repair = found_in(tree, "glm4_1v")["pad as captured"]
    assert [edit.new.decode() for edit in repair.edits] == [LARGER, LARGER]


def test_a_name_that_something_else_reads_stays(release_tree):
    tree = with_text(
        release_tree("0.33.0"), QWEN, "        values = metadata | {\n            \"pixel_values\": self._get",
        "        logger.debug(modality)\n        values = metadata | {\n            \"pixel_values\": self._get",
    )  # fmt: skip
    change, _ = apply_repairs(tree, [found_in(tree, "qwen2_vl")["pad as captured"]])
    assert changed(change)[0] == BRANCHES["qwen2_vl"][1:]


def test_older_releases_have_their_own_places(release_tree):
    assert "capture rounds up" in repairs_of(release_tree("0.21.0"), "qwen3_vl")
    assert "capture rounds up" not in repairs_of(release_tree("0.22.0"), "qwen3_vl")


TOKENS = "output_tokens=(h // kh) * (w // kw)"
BOTH = "max_batch_size=max_batch_size,\n            max_frames_per_batch=max_frames_per_batch,"
ONE = "grid_thw_list,\n                max_batch_size=max_batch_size,"
CALL = "prepare_encoder_metadata(\n            "
FIELD = "image_embeds=MultiModalFieldConfig.batched"
#: the rule, the model and its file, then why the rule stays away: a text there and what takes its place
UNSURE = {
    ("bound in rows", "kimi_vl", KIMI): {
        "the specs divide by something else": (TOKENS, "output_tokens=(h // 2) * (w // 2)"),
        "the specs divide by no name that is set": (TOKENS, "output_tokens=(h // h) * (w // w)"),
        "the specs merge nothing": (TOKENS, "output_tokens=h * w"),
        "the specs count other rows": ("input_size=h * w,", "input_size=h * w * 2,"),
        "the specs count rows of another size": ("input_size=h * w,", "input_size=h * h,"),
        "the specs say no rows": ("input_size=h * w,", ""),
        "the bound is in rows already": ("max_seqlen_override=token_budget", "max_seqlen_override=token_budget * 4"),
    },
    ("rows by budget alone", "gemma3_mm", GEMMA): {
        "the limit is of no buffer": ("num_images,\n            3,", "2,\n            3,"),
        "the limit is a maximum": ("num_images = min(", "num_images = max("),
    },
    ("pad as captured", "qwen2_vl", QWEN): {
        "the capture pads to one of them": (BOTH, "max_frames_per_batch=max_frames_per_batch,"),
        "the capture calls another method": (f"{CALL}grid_config", "other(\n            grid_config"),
        "the replay has one call for both": (ONE, f"{ONE} max_frames_per_batch=max_frames_per_batch,"),
        "only one of them is padded": (ONE, "grid_thw_list,"),
    },
    ("finished once", "ernie45_vl", ERNIE): {
        "the graph runs it, too": ("return self.vision_model(p", "return self.resampler_model(p"),
        "the eager forward ends otherwise": ("return self.resampler_model(", "yield self.resampler_model("),
        "its last call gets nothing": (
            "(image_features, grid_thw)\n\n    def postprocess",
            "()\n\n    def postprocess",
        ),
        "nothing finishes": ("def postprocess_encoder_output(", "def other("),
    },
    ("no sharding inside", "internvl", INTERNVL): {
        "no eager forward": ("def encoder_eager_forward(", "def other("),
        "the graph calls something else": ("self.extract_feature(pixel_values)  #", "self.other(pixel_values)  #"),
    },
    ("embeddings run eagerly", "deepseek_vl2", DEEPSEEK): {
        "no field has them": (FIELD, FIELD.replace("image", "other")),
        "the processor refuses them": ("(ImageEmbeddingItems, ImageProcessorItems)", "ImageProcessorItems"),
        "the port knows them": (
            "if not indices:\n            return {",
            'mm_kwargs.get("image_embeds")\n        if not indices:\n            return {',
        ),
        "there is no port": ("def prepare_encoder_cudagraph_capture_inputs(", "def other("),
    },
    ("many frames run eagerly", "qwen2_vl", QWEN): {
        "the capture has no room for frames": (
            "max_frames_per_batch=max_frames_per_batch,\n            max_seqlen_override",
            "max_seqlen_override",
        ),
    },
    ("copy on clone", "step3_vl", STEP3): {
        "something reads it": ("dest[idx] = out[i]", "dest[idx] = out[i].clone() if clone else out[i]"),
        "the release does not ask": ("        clone: bool = False,\n", ""),
        "another condition": ("if len(parts) > 1 else", "if len(parts) > 2 else"),
        "another part": ("else parts[0]", "else parts[-1]"),
        "another function": ("torch.cat(parts, dim=0) if", "torch.stack(parts, dim=0) if"),
        "no call": ("torch.cat(parts, dim=0) if", "whole if"),
    },
    ("no layer split over ranks", "mllama4", LLAMA4): {
        "each rank has all weights": ("gather_output=True,", "gather_output=True,\n            disable_tp=True,"),
        "the model makes no such layer": ("= Llama4MultiModalProjector(", "= nn.Linear("),
        "the layer has no name": ("self.linear_1 = Col", "linear_1 = Col"),
        "other layers are split, too": ("            disable_tp=use_data_parallel,\n", ""),
        "other layers do not ask a function": ("disable_tp=use_data_parallel,", "disable_tp=quant_config is None,"),
        "other layers differ": (
            "disable_tp=use_data_parallel,\n        )\n        self.fc2",
            "disable_tp=a(),\n        )\n        self.fc2",
        ),
        "there is no port": ("def encoder_cudagraph_forward(", "def other("),
    },
}
REASONS = [(*place, why, *texts) for place, reasons in UNSURE.items() for why, texts in reasons.items()]


@pytest.mark.parametrize(("rule", "model", "path", "why", "old", "new"), REASONS, ids=[each[3] for each in REASONS])
def test_a_rule_stays_away(release_tree, rule, model, path, why, old, new):
    tree = release_tree("0.33.0")
    assert rule in repairs_of(tree, model)
    assert rule not in found_in(with_text(tree, path, old, new), model), why


def test_a_factor_that_stands_twice_is_a_square(release_tree):
    tree = with_text(
        release_tree("0.33.0"), QWEN, "max_seqlen_override=token_budget * (spatial_merge_size**2)",
        "max_seqlen_override=token_budget",
    )  # fmt: skip
    # The specs have further factors, the frames, and call the merge size by another name.
    repair = found_in(tree, "qwen2_vl")["bound in rows"]
    assert repair.so == "the bound is `token_budget * (spatial_merge_size**2)`"


GUARD = "if use_data_parallel and self.use_data_parallel:"
PASSED = ["self, input_tensor: torch.Tensor | None, *, use_data_parallel: bool = True", GUARD]
DISTRIBUTED = "# The manager has distributed the items over the ranks."
#: The lines that come, by file.
SHARDED = {
    "internvl": {
        "internvl.py": [
            "def extract_feature(", "self, pixel_values: torch.Tensor, *, use_data_parallel: bool = True",
            ") -> torch.Tensor:", "vit_embeds = self.vision_model(",
            "pixel_values=pixel_values, use_data_parallel=use_data_parallel", ")",
            *[DISTRIBUTED, "# [N, num_image_token, H]",
              "out = self.extract_feature(pixel_values, use_data_parallel=False)"] * 2,
        ],
        "intern_vit.py": ["*,", "use_data_parallel: bool = True,", GUARD],
    },
    # One method alone calls the tower for a graph and for an eager batch. Two subclasses have the switch themselves.
    "step3_vl": {
        "step3_vl.py": [
            "*,", "use_data_parallel: bool = True,", GUARD, DISTRIBUTED,
            "self._get_vision_model_output(pixel_values, use_data_parallel=False)", "def _get_vision_model_output(",
            "self, input_tensor: torch.Tensor, *, use_data_parallel: bool = True", ") -> torch.Tensor:",
            "return self.vision_model(input_tensor, use_data_parallel=use_data_parallel)[", ":, 4:", "]",
        ],
        "step3p7.py": PASSED,
        "step_vl.py": PASSED,
    },
}  # fmt: skip


@pytest.mark.parametrize("model", SHARDED)
def test_a_parameter_goes_through_all_files_to_the_switch(release_tree, model):
    tree = release_tree("0.33.0")
    changes = apply_repairs(tree, [repairs_of(tree, model)["no sharding inside"]])
    found = {
        change.path.rpartition("/")[2]: changed(change)[1] for change in changes if change.path.startswith("vllm/")
    }
    assert found == SHARDED[model]
    mended = tree.with_files({change.path: change.after or b"" for change in changes})
    assert "no sharding inside" not in found_in(mended, model)


def test_a_number_keeps_its_name_where_the_field_s_is_taken(release_tree):
    line = "        mm_tokens_per_image = self.config.mm_tokens_per_image\n        num_images"
    taken = line.replace("        num_images", "        num_patches = 1\n        num_images")
    for old, new in (
        (line, taken),
        ('num_patches = mm_kwargs["num_patches"]\n        mm', "num_patches = [1]\n        mm"),
    ):
        repair = found_in(with_text(release_tree("0.33.0"), GEMMA, old, new), "gemma3_mm")["rows by budget alone"]
        assert b"num_patches" not in {edit.new for edit in repair.edits}


def test_a_layer_takes_the_variable_that_its_method_has(release_tree):
    made = "        super().__init__()\n        self.linear_1 ="
    tree = with_text(
        release_tree("0.33.0"), LLAMA4, made, made.replace("()\n", "()\n        whole = is_vit_use_data_parallel()\n"),
    )  # fmt: skip
    repair = found_in(tree, "mllama4")["no layer split over ranks"]
    assert [edit.new.decode() for edit in repair.edits] == [", disable_tp=whole"]


def test_a_keyword_joins_those_that_are_there(release_tree):
    plain = "self, pixel_values: torch.Tensor) -> torch.Tensor:"
    keyword = plain.replace("Tensor)", "Tensor, *, scale: float = 1.0)")
    tree = with_text(release_tree("0.33.0"), INTERNVL, plain, keyword)
    edits = found_in(tree, "internvl")["no sharding inside"].edits
    assert b", use_data_parallel: bool = True" in {edit.new for edit in edits}


def test_line_ends_stay(release_tree):
    tree = release_tree("0.33.0")
    crlf = tree.with_files({QWEN: tree.read_bytes(QWEN).replace(b"\n", b"\r\n")})
    repairs = [*repairs_of(tree, "qwen2_vl").values()]
    plain, *_ = apply_repairs(tree, repairs)
    change, *_ = apply_repairs(crlf, [*found_in(crlf, "qwen2_vl").values()])
    assert change.after == (plain.after or b"").replace(b"\n", b"\r\n")


def test_the_repairs_of_a_file_go_together(release_tree):
    tree = release_tree("0.33.0")
    repairs = [*repairs_of(tree, "glm4_1v").values()]
    assert [repair.name for repair in repairs] == [
        "capture rounds up",
        "pad as captured",
        "embeddings run eagerly",
        "many frames run eagerly",
    ]
    changes = apply_repairs(tree, repairs)
    assert {*apply_repairs(tree, repairs[::-1])} == {*changes}
    assert [change.path for change in changes] == [GLM, MANAGER, MANAGER_TESTS, repairs[0].test.path]
    repaired = tree.with_files({change.path: change.after or b"" for change in changes})
    assert find_repairs(repaired, "glm4_1v", "Glm4vForConditionalGeneration") == ()


def test_a_check_of_the_manager_has_the_unit_tests_of_a_port(release_tree):
    """And what a result that may be None asks of the tests that are there."""
    tree = release_tree("0.33.0")
    ported = prepare_port(load_port("qwen2_vl"), tree, replace=True).changed
    fixed = apply_repairs(tree, [*repairs_of(tree, "qwen2_vl").values()])
    of_port, of_fix = ({change.path: change.after for change in one} for one in (ported, fixed))
    assert of_fix[MANAGER_TESTS] == of_port[MANAGER_TESTS]
    assert of_fix[MANAGER] == of_port[MANAGER]


def test_a_tree_without_tests_gets_none(release_tree):
    tree = release_tree("0.33.0")
    bare = tree.with_files({MANAGER_TESTS: b"x = 1\n"})
    (change,) = apply_repairs(bare, [repairs_of(bare, "deepseek_vl2")["embeddings run eagerly"]])
    assert change.path == MANAGER


def test_the_heirs_are_those_that_run_the_repaired_method(release_tree):
    tree = release_tree("0.33.0")
    names = repairs_of(tree, "glm4_1v")
    found = heirs_of(tree, "glm4_1v", "Glm4vForConditionalGeneration", [*names.values()])
    assert "Glm4vMoeForConditionalGeneration" in found
    assert "Glm4vForConditionalGeneration" not in found
    assert heirs_of(tree, "kimi_vl", "KimiVLForConditionalGeneration", [*repairs_of(tree, "kimi_vl").values()]) == ()


def test_a_repair_that_vllm_has_a_pull_request_for_names_it(release_tree):
    tree = release_tree("0.33.0")
    assert repairs_of(tree, "step3_vl")["copy on clone"].thread == "vllm-project/vllm#52115"
    assert repairs_of(tree, "qwen2_vl")["embeddings run eagerly"].thread == "vllm-project/vllm#58122"
    assert repairs_of(tree, "kimi_vl")["bound in rows"].thread == ""


def failed(code: str, detail: str = "") -> Check:
    return Check("a", "image", False, detail=detail, code=code)


SHORT = f"{captured_short('pixel_values')} 3 entries for a budget of 32 tokens, and a replay brings 8: {ROUND_UP}"
ANSWERS: list[tuple[str, str, Check, bool]] = [
    ("gemma3_mm", "rows by budget alone", failed("VCG654", SHORT), True),
    ("gemma3_mm", "rows by budget alone", failed("VCG654", SHORT.replace("pixel_values", "cu_seqlens")), False),
    ("gemma3_mm", "rows by budget alone", failed("VCG650", SHORT), False),
    ("glm4_1v", "capture rounds up", failed("VCG654", SHORT), True),
    ("glm4_1v", "capture rounds up", failed("VCG654", "ValueError"), False),
    ("glm4_1v", "pad as captured", failed("VCG665"), True),
    ("glm4_1v", "pad as captured", failed("VCG650", f"rows: {SECTIONS}, and so on"), True),
    ("glm4_1v", "pad as captured", failed("VCG650"), False),
    ("kimi_vl", "bound in rows", failed("VCG650", f"256 rows, {FROZEN} 64"), True),
    ("kimi_vl", "bound in rows", failed("VCG650"), False),
    ("step3_vl", "copy on clone", failed("VCG658"), True),
    ("step3_vl", "copy on clone", failed("VCG650"), False),
    ("ernie45_vl", "finished once", failed("VCG654"), True),
    ("ernie45_vl", "finished once", failed("VCG658"), False),
    ("internvl", "no sharding inside", failed("VCG661"), True),
    ("internvl", "no sharding inside", failed("VCG660"), False),
    ("mllama4", "no layer split over ranks", failed("VCG670"), True),
    ("mllama4", "no layer split over ranks", failed("VCG661"), False),
    ("deepseek_vl2", "embeddings run eagerly", failed("VCG660"), True),
    ("deepseek_vl2", "embeddings run eagerly", failed("VCG654"), False),
    ("qwen2_vl", "many frames run eagerly", failed("VCG666"), True),
    ("qwen2_vl", "many frames run eagerly", failed("VCG654"), False),
]


@pytest.mark.parametrize(("model", "rule", "check", "answered"), ANSWERS)
def test_a_repair_answers_the_failures_that_it_is_for(
    release_tree: Callable[[str], SourceTree], model: str, rule: str, check: Check, answered: bool
) -> None:
    repair = repairs_of(release_tree("0.33.0"), model)[rule]
    assert repair.answers(check) is answered
