"""Tunings on towers that none was written for: real classes of the newest release, built by the automatic recipe."""

import pytest
from test_tunings import found_by

#: Each has a block of another form: keywords, positional arguments, a tuple of positions, a fused norm, sums in place.
MODELS = {
    "siglip:SiglipEmbeddingModel": "fused-norms",
    "clip:CLIPEmbeddingModel": "fused-activations",
    "dots_ocr:DotsOCRForCausalLM": "fused-activations",
    "isaac:IsaacForConditionalGeneration": "gelu-epilogue",
    "lightonocr:LightOnOCRForConditionalGeneration": "fused-norms",
    "glm4_1v:Glm4vForConditionalGeneration": "fused-activations",
    "kimi_vl:KimiVLForConditionalGeneration": "fused-norms",
}

pytestmark = [pytest.mark.trees, pytest.mark.lab]


@pytest.mark.parametrize("model", MODELS)
def test_a_tower_that_nobody_has_seen_computes_the_same_when_it_is_tuned(release_tree, model):
    # What the automatic recipe adds to vLLM for one model may not suit the next, so each has a process.
    found = found_by("run_others.py", release_tree("0.33.0").root, *model.split(":"))
    assert found["error"] <= max(2e-6, 1.5 * found["rounding"])
    assert found["spread"] > 1e-3
    assert found["restored"]
    assert not found["failed"]
    assert found["applied"]["fused-residuals"] >= 2
    assert MODELS[model] in found["applied"]
