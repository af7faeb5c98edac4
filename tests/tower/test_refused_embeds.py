"""Whether a processor takes precomputed embeddings, by its source."""

from __future__ import annotations

from typing import Any

import pytest

from scaffold.tower.paths import ModelPaths, refuses_embeds

pytestmark = pytest.mark.trees

FOLDER = "vllm/model_executor/models"
HCX, MISTRAL = "hyperclovax_vision_v2:HCXVisionV2ForCausalLM", "mistral3:Mistral3ForConditionalGeneration"
IDEFICS, LLAVA = "idefics3:Idefics3ForConditionalGeneration", "llava_next:LlavaNextForConditionalGeneration"
ASKS = '            images = mm_items.get_items("image", ImageProcessorItems)\n\n'
BOTH = "(ImageEmbeddingItems, ImageProcessorItems)"
PARSER = "class HCXVisionV2ProcessingInfo(BaseProcessingInfo):\n"
#: a model, a text of its file and what takes its place, and what its processor says of embeddings then
CASES = {
    "items of images alone": (IDEFICS, "", "", "items of media alone"),
    "of a subclass": ("smolvlm:SmolVLMForConditionalGeneration", "", "", "items of media alone"),
    "of either kind": (IDEFICS, ASKS, ASKS.replace("ImageProcessorItems", BOTH), ""),
    "of another modality": (IDEFICS, ASKS, ASKS.replace('"image"', '"video"'), ""),
    "of several kinds of media": (IDEFICS, ASKS, ASKS.replace("Items)", "Items, VideoProcessorItems))").replace(
        "ImageP", "(ImageP"), "items of media alone"),
    "behind a decision": (IDEFICS, ASKS, f"            if item_idx:\n                return []\n{ASKS}", ""),
    "in no replacement": (IDEFICS, "replacement=get_replacement_idefics3", "replacement=None", ""),
    "both are taken": (LLAVA, "", "", ""),
    "cut by a grid": (HCX, "", "", "cuts `image_embeds` by an input"),
    "cut by their own lengths": (
        HCX, '"image_grid_thw", torch.empty', '"image_embeds", torch.empty', ""),
    "cut by nothing": (HCX, "image_embeds=MultiModalFieldConfig.flat_from_sizes", "image_embeds=of_grid", ""),
    "with a parser of its own": (HCX, PARSER, f"{PARSER}    def get_data_parser(self): ...\n\n", ""),
    "no processor": (IDEFICS, "@MULTIMODAL_REGISTRY.register_processor", "@registered", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_a_processor_says_of_embeddings(release_tree: Any, case: str) -> None:
    model, old, new, said = CASES[case]
    module, _, name = model.partition(":")
    tree, path = release_tree("0.33.0"), f"{FOLDER}/{module}.py"
    assert old in tree.read(path)
    changed = tree.with_files({path: tree.read(path).replace(old, new).encode()}) if old else tree

    found = ModelPaths(changed, path, name).refused_embeds("image")
    assert (said in found) if said else not found


@pytest.mark.parametrize(("model", "refused"), [(IDEFICS, True), (HCX, True), (MISTRAL, False), (LLAVA, False)])
def test_a_heir_may_take_what_a_model_refuses(release_tree: Any, model: str, refused: bool) -> None:
    """LightOnOCR inherits from Mistral 3, with a processor of its own."""
    module, _, name = model.partition(":")
    assert refuses_embeds(release_tree("0.33.0"), module, name, "image") == refused
