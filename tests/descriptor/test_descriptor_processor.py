"""Constants of the image processor: names for expressions that neither the model nor its configuration has."""

from __future__ import annotations

from descriptor_documents import TILES

from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.sections import Count

SECTION = "processor: {module: tiled, class: TiledProcessor, values: {side: tile_size}}\n"
DOCUMENT = TILES.replace("  side: self.config.vision_config.image_size\n", "").replace("item:", SECTION + "item:")


def test_a_value_is_a_name_like_those_of_let() -> None:
    spec = load_descriptor_text(DOCUMENT, "model.yaml")

    assert spec.processor is not None
    assert spec.processor_module == "vllm.transformers_utils.processors.tiled"
    assert spec.processor.class_ == "TiledProcessor"
    assert spec.processor.values == {"side": "tile_size"}
    assert dict(spec.lets)["side"].text == "self._encoder_cudagraph_side"


def test_a_dotted_module_is_taken_as_it_is() -> None:
    text = DOCUMENT.replace(
        "module: tiled, class: TiledProcessor", "module: vllm.model_executor.models.other, class: TiledProcessor"
    )

    spec = load_descriptor_text(text, "model.yaml")

    assert spec.processor is not None
    assert spec.processor_module == "vllm.model_executor.models.other"


def test_a_value_may_be_what_a_static_method_computes() -> None:
    text = DOCUMENT.replace("side: tile_size", "side: {method: get_side, of: self.config.vision_config}")

    spec = load_descriptor_text(text, "model.yaml")

    assert spec.processor is not None
    (count,) = spec.processor.values.values()
    assert isinstance(count, Count)
    assert (count.method, count.of) == ("get_side", "self.config.vision_config")
    assert dict(spec.lets)["side"].text == "self._encoder_cudagraph_side"
