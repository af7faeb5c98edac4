"""What the plugin relies on in every supported release: where runners make managers, and since when they capture."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scaffold.plugin import ENCODER_ONLY_SINCE, V2_BY_DEFAULT_SINCE, V2_CAPTURES_SINCE, V2_SWITCH

RELEASES = tuple(f"0.{minor}.0" for minor in range(23, 34))
#: Since when the V2 runner takes the manager at import.
V2_SINCE = V2_CAPTURES_SINCE[1]


@pytest.mark.trees
@pytest.mark.parametrize("release", RELEASES)
def test_every_runner_asks_for_support_and_makes_the_one_class(release, release_tree):
    """The plugin waits for the question, and lets that class make our manager (`tests/harm` runs both)."""
    users = {}
    for path in sorted((Path(release_tree(release).root) / "vllm").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "EncoderCudaGraphManager(" not in text or path.name == "encoder_cudagraph.py":
            continue
        asks = "supports_encoder_cudagraph(" in text
        imports = [
            node.module
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and "EncoderCudaGraphManager" in [alias.name for alias in node.names]
        ]
        users[path.stem] = (set(imports), asks)

    expected = {"gpu_model_runner"} | ({"interface"} if int(release.split(".")[1]) >= V2_SINCE else set())
    assert users == {user: ({"vllm.v1.worker.encoder_cudagraph"}, True) for user in expected}


@pytest.mark.trees
@pytest.mark.parametrize("release", RELEASES)
def test_since_when_the_v2_runner_serves_and_captures(release, release_tree):
    root, number = Path(release_tree(release).root), (0, int(release.split(".")[1]))
    runner = (root / "vllm/v1/worker/gpu/model_states/interface.py").read_text(encoding="utf-8")
    config = (root / "vllm/config/vllm.py").read_text(encoding="utf-8")
    switches = (root / "vllm/envs.py").read_text(encoding="utf-8")

    assert ("cudagraph_mm_encoder" in runner) is (number >= V2_CAPTURES_SINCE)
    if number < V2_CAPTURES_SINCE:
        assert ("or not model_config.is_moe" in config) is (number >= V2_BY_DEFAULT_SINCE)
    assert f'"{V2_SWITCH}"' in switches
    encoder_only = root / "vllm/v1/worker/mm_encoder_model_runner.py"
    captures = encoder_only.exists() and "has_cudagraph" in encoder_only.read_text(encoding="utf-8")
    assert captures is (number >= ENCODER_ONLY_SINCE)
