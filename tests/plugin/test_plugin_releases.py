"""The plugin in every supported release's own source tree: registry, adapters, and who takes the manager from where."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import vitcg_adapters

from scaffold.plugin import MANAGER_MODULE, V2_BY_DEFAULT_SINCE, V2_CAPTURES_SINCE, V2_SWITCH, generation_of

ROOT = Path(__file__).parents[2]
RELEASES = tuple(f"0.{minor}.0" for minor in range(23, 34))
#: The first and the last release of every generation that has adapters; the others with VITCG_SLOW=1.
SAMPLE = ("0.23.0", "0.26.0", "0.27.0", "0.33.0")
#: Since when the V2 runner takes the manager at import.
V2_SINCE = V2_CAPTURES_SINCE[1]


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("release", [r if r in SAMPLE else pytest.param(r, marks=pytest.mark.slow) for r in RELEASES])
def test_the_plugin_in_a_release(release, release_tree):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("release_child.py")), str(release_tree(release).root), release],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("VITCG_M")},
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "generated")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    found = json.loads(lines[-1].removeprefix("RESULT "))

    assert found["early"] == []
    generation = generation_of(release)
    assert found["models"] == {
        architecture: {
            "module": f"vitcg_adapters.{generation}.{module}",
            "same inspection": True,
            "same processor": True,
        }
        for architecture, module in vitcg_adapters.ADAPTERS[generation].items()
    }
    assert found["derived"]
    assert not [name for name, modules in found["derived"].items() if any("vitcg_adapters" in m for m in modules)]
    assert found["manager"][0] == "scaffold.runtime.vllm.served"
    assert found["runner V2"] is (int(release.split(".")[1]) >= V2_SINCE)


@pytest.mark.trees
@pytest.mark.parametrize("release", RELEASES)
def test_every_runner_takes_the_manager_from_the_one_module(release, release_tree):
    """Where a release would look the class up elsewhere, replacing it in that module would not reach it."""
    users = {}
    for path in sorted((Path(release_tree(release).root) / "vllm").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "EncoderCudaGraphManager(" not in text or path.name == "encoder_cudagraph.py":
            continue
        imports = [
            node.module
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and "EncoderCudaGraphManager" in [alias.name for alias in node.names]
        ]
        users[path.stem] = set(imports)

    expected = {"gpu_model_runner"} | ({"interface"} if int(release.split(".")[1]) >= V2_SINCE else set())
    assert users == {user: {MANAGER_MODULE} for user in expected}


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
