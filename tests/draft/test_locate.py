"""From an architecture to its class and its processor, in every form in which vLLM 0.33 registers them."""

from __future__ import annotations

import pytest

from scaffold.draft import architectures
from scaffold.draft.locate import locate
from scaffold.tower.source import Program

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
    # other sections of the registry than that of multimodal models
    "SiglipModel": ("siglip.py", "SiglipMultiModalProcessor", "SiglipProcessingInfo"),
    "CLIPModel": ("clip.py", "CLIPMultiModalProcessor", "CLIPProcessingInfo"),
    "ModernVBertModel": ("colmodernvbert.py", "ColModernVBertMultiModalProcessor", "ColModernVBertProcessingInfo"),
    "JinaVLForRanking": ("jina_vl.py", "JinaVLMultiModalProcessor", "Qwen2VLProcessingInfo"),
}


@pytest.mark.parametrize("name", FOUND)
def test_class_and_processor(name, release_tree):
    tree = release_tree(RELEASE)
    model = locate(tree, Program(tree), name)
    assert model.info is not None
    assert model.file.endswith(FOUND[name][0])
    assert (model.processor[1].name, model.info[1].name) == FOUND[name][1:]


def test_all_architectures(release_tree):
    """127 of the multimodal section, and 28 of others; no text model."""
    found = architectures(release_tree(RELEASE))
    assert len(found) == 155
    assert set(FOUND) < set(found)
    assert "LlamaForCausalLM" not in found
