"""Calls, paths and keys of a descriptor are looked up in the tree, and in the installed transformers."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.load import shipped_names, shipped_path
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.plan.names import check_names
from scaffold.protocol import SourceTree, find_model

pytestmark = pytest.mark.trees

TRANSFORMERS = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
HEAVY = "self.vision_tower(pixels)"


def found(tree: SourceTree, name: str, old: str = "", new: str = "") -> list[Diagnostic]:
    path = shipped_path(name)
    assert path is not None
    text = path.read_text(encoding="utf-8")
    assert old in text
    port = load_descriptor_text(text.replace(old, new) if old else text, f"{name}.yaml")
    try:
        return check_names(port, tree, find_model(tree, port.module, port.class_name))
    except DiagnosticError as error:
        return list(error.diagnostics)


@pytest.mark.parametrize("release", ["0.20.0", "0.24.0", "0.30.0", "0.33.0"])
def test_all_names_of_the_shipped_descriptors_are_there(release, release_tree):
    """Only the keys that MiniCPM-V puts together when it runs are not seen."""
    tree = release_tree(release)
    said: dict[str, set[str]] = {}
    for name in shipped_names():
        codes = {problem.code for problem in found(tree, name)} - {"VCG420"}  # the release has no such model
        said |= {name: codes} if codes else {}
    assert said in ({}, {"minicpmv": {"VCG463"}})


WRONG = {
    "method": ("internvl", "extract_feature(", "extract_features(", "InternVLChatModel has no `extract_features`"),
    "method of an entry": (
        "llava", "_parse_and_validate_image_input(", "_parse_image(",
        "LlavaForConditionalGeneration has no `_parse_image`",
    ),
    "method of a part": ("gemma3_mm", HEAVY, "self.vision_tower.keep(pixels)", "SiglipVisionModel has no `keep`"),
    "value of the class": (
        "gemma3_mm", HEAVY, "self._processor_factory(pixels)",
        "is neither a method of Gemma3ForConditionalGeneration nor a part",
    ),
    "number of the model": (
        "internvl", "self.extract_feature(pixels)", "self.num_image_token(pixels)",
        "is neither a method of InternVLChatModel nor a part",
    ),
    "part of a part": ("gemma3_mm", HEAVY, "self.vision_towr.vision(pixels)", "has no `vision_towr`"),
    "method that is handed over": (
        "llava", "(self.vision_tower, pixels)", "(self.embed_multimodal, pixels)",
        "passes `self.embed_multimodal`, which is a method",
    ),
    "method that is read": (
        "gemma3_mm", "hidden_size: self.config.text_config.hidden_size", "hidden_size: self.compute_logits",
        "reads `self.compute_logits`, which is a method",
    ),
    "attribute of the tower": (
        "qwen2_5_vl", "self.visual.spatial_merge_size", "self.visual.spatial_merge_sise",
        "Qwen2_5_VisionTransformer has no `spatial_merge_sise`",
    ),
    "key of an input": (
        "gemma3_mm", "sizes: num_patches", "sizes: num_patche",
        "the field configuration of Gemma3MultiModalProcessor has no `num_patche`",
    ),
    "key of a field": ("kimi_vl", "image_grid_hws", "image_grid_hw", "VLMultiModalProcessor has no `image_grid_hw`"),
    "embeddings that neither processor nor model has": (
        "deepseek_ocr", "\nfields:\n", "\nfields:\n  image_embeds: batched\n", "Processor has no `image_embeds`",
    ),
    "frames": ("qwen2_5_vl", "get_num_frames_with_most_features", "get_frames", "has no method `get_frames`"),
    "function of tokens": (
        "deepseek_v41", "function: image_token_types", "function: image_token_type",
        "defines no function `image_token_type`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_name_that_is_not_there(case, release_tree):
    name, old, new, message = WRONG[case]

    problems = found(release_tree("0.33.0"), name, old, new)

    assert {problem.code for problem in problems} == {"VCG464"}
    assert message in problems[0].message
    assert problems[0].span is not None
    assert problems[0].span.line > 1
    if case == "method of an entry":  # too far from the name for a misspelling: its words are in it
        assert problems[0].help == "did you mean `_parse_and_validate_image_input`?"


def test_a_model_may_read_embeddings_that_its_processor_declares_nowhere(release_tree):
    tree, field = release_tree("0.33.0"), "\n  image_embeds: batched"
    assert "image_embeds" in tree.read("vllm/model_executor/models/gemma4_mm.py")

    assert found(tree, "gemma4_mm", "\nfields:", f"\nfields:{field}") == found(tree, "gemma4_mm") == []


def test_a_module_of_tokens_that_is_not_there(release_tree):
    module = "vllm.models.deepseek_v41.common.mm_preprocess"
    problems = found(release_tree("0.33.0"), "deepseek_v41", module, "vllm.models.nowhere")
    assert [problem.code for problem in problems] == ["VCG464"]


@pytest.mark.parametrize(
    ("name", "places", "message"),
    [
        (
            "deepseek_v41",
            {
                "vllm.models.deepseek_v41.common.mm_preprocess": "vllm.model_executor.models.registry",
                "function: image_token_types": "function: _run",
            },
            "neither the model nor its processor calls `_run` of",
        ),
        (
            "deepseek_v41",
            {
                "vllm.models.deepseek_v41.common.mm_preprocess": "vllm.model_executor.models.utils",
                "function: image_token_types": "function: flatten_bn",
            },
            "neither the model nor its processor calls `flatten_bn` of",
        ),
        (
            "step3_vl",
            {"{module: step3_vl, class: Step3VLImageProcessor": "{module: ovis, class: OvisProcessor"},
            "neither the model nor its processor names `OvisProcessor` of",
        ),
    ],
)
def test_ports_import_only_what_the_model_uses(release_tree, name, places, message):
    text = shipped_path(name).read_text(encoding="utf-8")
    for old, new in places.items():
        assert old in text
        text = text.replace(old, new)
    tree = release_tree("0.33.0")
    port = load_descriptor_text(text, f"{name}.yaml")

    with pytest.raises(DiagnosticError) as refused:
        check_names(port, tree, find_model(tree, port.module, port.class_name))

    (problem,) = refused.value.diagnostics
    assert problem.code == "VCG464"
    assert message in problem.message
    assert problem.span is not None
    assert problem.span.line > 1


def test_what_another_package_has_is_called_only_as_the_model_calls_it(release_tree):
    """DeepSeek-VL2 has a tower of timm, whose `forward_features` it calls itself."""
    assert found(release_tree("0.33.0"), "deepseek_vl2") == []
    tree = release_tree("0.33.0")
    call = "self._process_image_input(self._parse_and_validate_image_input(**inputs))"
    problems = found(tree, "deepseek_vl2", call, "self.vision.save_features(self._process_image_input(**inputs))")
    assert "has no `save_features`" in problems[0].message
    assert "whose class is not in the tree" in problems[0].message


@TRANSFORMERS
@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("config.text_config.", "config.text_confg.", "Gemma3Config has no `text_confg`", "`text_config`"),
        ("text_config.hidden_size", "text_config.hiden_size", "Gemma3TextConfig has no `hiden_size`", "`hidden_size`"),
        # It has a name that is there, and gives no number.
        ("text_config.hidden_size", "text_config.save_pretrained", "save_pretrained`, which is a method", "or a value"),
    ],
)
def test_a_slip_in_a_configuration(release_tree, old, new, message, hint):
    (problem,) = found(release_tree("0.33.0"), "gemma3_mm", old, new)
    assert problem.code == "VCG464"
    assert message in problem.message
    assert hint in str(problem.help)


@pytest.mark.parametrize(
    ("name", "old", "new", "hint"),
    [
        ("internvl", "self.config.text_config", "self.config.text_confg", "did you mean `text_config`"),
        ("internvl", "self.config.text_config", "self.config.xyzzy", "make sure that `xyzzy` is there"),
        ("minicpmv", "tgt_sizes", "tgt_sices", "did you mean `tgt_sizes`?"),
        ("minicpmv", "tgt_sizes", "xyzzy_words", "make sure that the processor has it"),
    ],
)
def test_what_no_source_says_is_a_warning(release_tree, name, old, new, hint):
    problems = found(release_tree("0.24.0"), name, old, new)
    assert {problem.code for problem in problems} == {"VCG463"}
    assert hint in " ".join(str(problem.help) for problem in problems)
