"""Constants of the image processor: names for expressions that neither the model nor its configuration has."""

from __future__ import annotations

import pytest
from descriptor_documents import TILES, report_of

from scaffold.descriptor import load_descriptor_text

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
    text = DOCUMENT.replace("module: tiled, class: TiledProcessor", "module: vllm.other, class: TiledProcessor")

    spec = load_descriptor_text(text, "model.yaml")

    assert spec.processor is not None
    assert spec.processor_module == "vllm.other"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            "values: {side: tile_size}",
            "values: {side: tile_size, k: tokens}",
            "model.yaml:10:77: error[VCG303]: the name `k` is taken: it is a name of `let`",
            id="a let name",
        ),
        pytest.param(
            "values: {side: tile_size}",
            "values: {side: tile_size, pixels: p}",
            "model.yaml:10:77: error[VCG303]: the name `pixels` is taken: it is the pixel tensor",
            id="a taken name",
        ),
        pytest.param(
            "values: {side: tile_size}",
            "values: {side: tile_size, other: size}",
            "model.yaml:10:77: warning[VCG305]: `other` is never used",
            id="an unused name",
        ),
        pytest.param(
            "values: {side: tile_size}",
            "values: {sides: tile_size}",
            "error[VCG301]: the name `side` is not defined",
            id="a misspelt name",
        ),
        pytest.param(
            "values: {side: tile_size}",
            "values: {}",
            "model.yaml:10:59: error[VCG211]: the mapping is empty",
            id="no value at all",
        ),
    ],
)
def test_mistakes(old: str, new: str, message: str) -> None:
    assert old in DOCUMENT
    assert message in report_of(DOCUMENT.replace(old, new))
