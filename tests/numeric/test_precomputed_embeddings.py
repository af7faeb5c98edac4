"""Embeddings that a projector gets, too: before 0.31 a drafted port embeds them with the model's own code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from changed_ports import port_of

from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

FILE = "vllm/model_executor/models/hyperclovax_vision_v2.py"
EMBEDDED = "return torch.cat(tuple(self.embed_multimodal(**inputs)))"


def test_they_go_through_the_projector(release_tree: Any) -> None:
    [request] = numeric_requests(port_of("hyperclovax_vision_v2"), release_tree("0.30.0"))
    text = request.overlay[FILE].decode()
    assert EMBEDDED in text
    as_they_are = {**request.overlay, FILE: text.replace(EMBEDDED, "return inputs[embeds_key]").encode()}
    request = replace(request, options=replace(request.options, short=True))
    right, wrong = check_numerics_all([request, replace(request, overlay=as_they_are)])
    assert right.passed, "\n".join(right.lines())
    assert [check.name for check in right.checks if check.name.startswith("precomputed")]
    failed = [check.name for check in wrong.checks if not check.passed]
    assert failed, "\n".join(wrong.lines())
    assert all(name.startswith("precomputed") for name in failed), failed
