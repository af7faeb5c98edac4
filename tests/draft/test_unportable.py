"""Models that no layout will ever express: refused before anything runs."""

from __future__ import annotations

import pytest

from scaffold.diagnostics import DiagnosticError
from scaffold.draft import refuse_model

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
#: architecture or class -> code and words of the one reason
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
