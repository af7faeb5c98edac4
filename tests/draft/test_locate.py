"""From an architecture to its class and its processor, in every form in which vLLM 0.33 registers them, or to none."""

from __future__ import annotations

import pytest

from scaffold.diagnostics import DiagnosticError
from scaffold.draft import architectures, refuse_model
from scaffold.draft.locate import locate

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
#: architecture -> the end of its class's file, its processor, its processing info
FOUND = {
    "InternVLChatModel": ("internvl.py", "InternVLMultiModalProcessor", "InternVLProcessingInfo"),
    # a factory function that makes one of two
    "LlavaForConditionalGeneration": ("llava.py", "LlavaMultiModalProcessor", "LlavaProcessingInfo"),
    # a subscripted generic
    "Llama_Nemotron_Nano_VL": ("nemotron_vl.py", "BaseInternVLMultiModalProcessor", "NemotronVLProcessingInfo"),
    # a function as decorator, and a class for each vendor, of which a branch imports one
    "MuseSparkForConditionalGeneration": (
        "nvidia/multimodal.py",
        "MuseSpark1xOmniMultiModalProcessor",
        "MuseSpark1xOmniProcessingInfo",
    ),
    # a chain of branches over platforms, two of which import a stub; the last one is for all others
    "DeepseekV4ForConditionalGeneration": (
        "common/vl_model.py",
        "DeepseekV4VLMultiModalProcessor",
        "DeepseekV4VLProcessingInfo",
    ),
    # other sections of the registry than that of multimodal models
    "SiglipModel": ("siglip.py", "SiglipMultiModalProcessor", "SiglipProcessingInfo"),
    "CLIPModel": ("clip.py", "CLIPMultiModalProcessor", "CLIPProcessingInfo"),
    "ModernVBertModel": ("colmodernvbert.py", "ColModernVBertMultiModalProcessor", "ColModernVBertProcessingInfo"),
    # the name of a module, alone or with a class
    "internvl": ("internvl.py", "InternVLMultiModalProcessor", "InternVLProcessingInfo"),
    "step3_vl:Step3VLForConditionalGeneration": ("step3_vl.py", "Step3VLMultiModalProcessor", "Step3VLProcessingInfo"),
    "JinaVLForRanking": ("jina_vl.py", "JinaVLMultiModalProcessor", "Qwen2VLProcessingInfo"),
}


@pytest.mark.parametrize("name", FOUND)
def test_class_and_processor(name, release_tree):
    tree = release_tree(RELEASE)
    model = locate(tree, name)
    assert model.info is not None
    assert model.file.endswith(FOUND[name][0])
    assert (model.processor[1].name, model.info[1].name) == FOUND[name][1:]


def test_all_architectures(release_tree):
    """127 of the multimodal section, and 28 of others; no text model."""
    found = architectures(release_tree(RELEASE))
    assert len(found) == 155
    assert {name for name in FOUND if not name[0].islower()} < set(found)
    assert "LlamaForCausalLM" not in found


#: What is asked for, and of which release -> code, message, help, the place's file and what stands in its line.
NOT_FOUND = {
    "it left vLLM before there were encoder graphs": (
        ("MllamaForConditionalGeneration", RELEASE),
        "VCG480",
        "`MllamaForConditionalGeneration` left vLLM: 0.10.2 was its last release",
        "there is nothing to port: encoder CUDA graphs came with vLLM 0.20.0",
        ("registry.py", '"MllamaForConditionalGeneration": "0.10.2"'),
    ),
    "it left vLLM later": (
        ("QwenVLForConditionalGeneration", RELEASE),
        "VCG480",
        "0.23.0 was its last release",
        "draft it from that release: `--vllm 0.23.0`",
        ("registry.py", '"QwenVLForConditionalGeneration": "0.23.0"'),
    ),
    "a plugin has it": (
        ("Florence2ForConditionalGeneration", RELEASE),
        "VCG480",
        "`Florence2ForConditionalGeneration` left vLLM: the plugin at https://github.com/",
        "port it in the plugin's source, by hand",
        ("registry.py", '"Florence2ForConditionalGeneration"'),
    ),
    "a processor that cannot be followed": (
        ("Emu3ForConditionalGeneration", "0.30.0"),
        "VCG481",
        "registers the processor `MultiModalProcessor`, whose class cannot be found",
        "define or import the class at the top level",
        ("transformers/__init__.py", "@MULTIMODAL_REGISTRY.register_processor("),
    ),
    "no processor": (
        ("Qwen3_5MTP", RELEASE),
        "VCG481",
        "`Qwen3_5MTP` has no processor: no decorator of the class or its bases calls `register_processor`",
        "name the class that has it",
        ("qwen3_5_mtp.py", "class Qwen3_5MTP("),
    ),
}


@pytest.mark.parametrize("case", NOT_FOUND)
def test_what_is_not_found_says_why(case, release_tree):
    (name, release), code, message, help_text, (file, line) = NOT_FOUND[case]
    tree = release_tree(release)
    with pytest.raises(DiagnosticError) as met:
        locate(tree, name)
    [problem] = met.value.diagnostics
    assert problem.code == code
    assert message in problem.message
    assert help_text in problem.help
    assert problem.span.file.endswith(file)
    path = problem.span.file.removeprefix(f"{tree.label}/")
    assert line in tree.read(path).splitlines()[problem.span.line - 1]


#: Models that no layout will ever express, refused before anything runs -> code and words of the one reason
UNPORTABLE = {
    "TransformersMultiModalForCausalLM": ("VCG483", "its encoder is code of Hugging Face Transformers"),
    "Terratorch": ("VCG483", "its inputs go into the model as they are"),
    "MiniCPMV": ("VCG483", "draft the one that is served: `init minicpmv:MiniCPMV2_0`, `init minicpmv:MiniCPMV2_5`"),
    "vllm/model_executor/models/minicpmv.py:MiniCPMVBaseModel": ("VCG481", "processor"),
}


@pytest.mark.parametrize("model", UNPORTABLE)
def test_what_can_never_be_ported_is_refused_first(model, release_tree):
    with pytest.raises(DiagnosticError) as error:
        refuse_model(release_tree(RELEASE), model)
    [problem] = error.value.diagnostics
    code, words = UNPORTABLE[model]
    assert (problem.code, words in problem.message) == (code, True), problem.message
