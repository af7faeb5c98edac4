"""The comparison that a port adds to vLLM's tests fails on ports with a mistake, and passes right ones."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from comparing import compare

from scaffold.syntax import FunctionNode
from scaffold.workflow import load_port, numeric_requests, prepare_port

pytestmark = [pytest.mark.trees, pytest.mark.lab]

RELEASE, HELPERS = "0.33.0", "tests/models/utils.py"
METADATA, EAGER = "values = {**metadata,", "    def encoder_eager_forward("
ONE_SEQUENCE = 'metadata["cu_seqlens"][[0, -1]]'
#: Model -> its runner, and mistakes: a fragment, what stands there instead, and what the comparison comes to.
MISTAKES = {
    "llava_next": (
        "V1",
        {
            "turned off": ('modalities=["image"]', "modalities=[]", "0 hits"),
            "other pixels": ('list(mm_kwargs["pixel_values"])', 'list(mm_kwargs["pixel_values"])[::-1]', "not close"),
        },
    ),
    "kimi_vl": (
        "V2",
        {
            "other positions": (METADATA, f'{METADATA} "pos_embeds": metadata["pos_embeds"].roll(1, 0),', "not close"),
            "attention to other images": (METADATA, f'{METADATA} "cu_seqlens": {ONE_SEQUENCE},', "not close"),
            "results in a graph's memory": (
                EAGER,
                "    def postprocess_encoder_output(self, *args, clone, **kwargs):\n"
                f"        super().postprocess_encoder_output(*args, clone=False, **kwargs)\n\n{EAGER}",
                "not equal",
            ),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", MISTAKES)
def test_a_mistake_fails_the_generated_test(model: str, release_tree: Any) -> None:
    tree, port, (runner, mistakes) = release_tree(RELEASE), load_port(model), MISTAKES[model]
    [request] = numeric_requests(port, tree)
    path = f"vllm/model_executor/models/{model}.py"
    right = request.overlay[path].decode()
    requests = [request]
    for before, after, _ in mistakes.values():
        assert before in right
        requests.append(replace(request, overlay={**request.overlay, path: right.replace(before, after).encode()}))

    found = compare(requests, added(tree), runner)

    assert found[0].endswith(" hits")
    assert found[0] != "0 hits"
    assert [(name, mistakes[name][2] in said) for name, said in zip(mistakes, found[1:], strict=True)] == [
        (name, True) for name in mistakes
    ], found


def added(tree: Any) -> str:
    """The functions that a port adds to the helpers of vLLM's tests."""
    [helpers] = [change for change in prepare_port(load_port("llava_next"), tree).changed if change.path == HELPERS]
    before, after = ((text or b"").decode() for text in (helpers.before, helpers.after))
    there = {node.name for node in ast.parse(before).body if isinstance(node, FunctionNode)}
    new = [node for node in ast.parse(after).body if isinstance(node, FunctionNode) and node.name not in there]
    assert len(new) == 4
    return "\n\n".join(map(ast.unparse, new))
