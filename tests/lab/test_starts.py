"""An engine that started without a port starts with one: vLLM's own question, manager and capture, on ported trees."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from captured import captured

from scaffold.verify.numeric.overlay import build_overlay
from scaffold.workflow import load_port, prepare_port

pytest.importorskip("torch", reason="needs the `cpu` extra")
pytestmark = [pytest.mark.trees, pytest.mark.lab]


def start(tree: Any, folder: Path, model: str, kind: str, *, explicit: bool = True) -> dict[str, Any]:
    port = load_port(model)
    port = port if explicit else port.replace(explicit=None)
    changes = prepare_port(port, tree, replace=True).changed
    build_overlay(tree.root, {change.path: change.after for change in changes if change.after}, folder)
    command = [sys.executable, str(Path(__file__).with_name("starting.py")), str(folder), model, kind]
    done = captured(command)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    "explicit", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["explicit", "re-entrant"]
)
def test_a_tower_that_no_graph_holds_runs_eagerly(explicit: bool, release_tree: Any, tmp_path: Path) -> None:
    """With Pixtral's tower a capture of LLaVA fails, and vLLM's runner catches nothing."""
    answer = start(release_tree("0.33.0"), tmp_path / "tree", "llava", "pixtral", explicit=explicit)

    assert answer["has_graphs"] is False
    assert answer["captured"] == 0
    [said] = answer["said"]
    assert said.startswith("LlavaForConditionalGeneration has no encoder CUDA graphs")


def test_another_tower_of_the_same_class_has_graphs(release_tree: Any, tmp_path: Path) -> None:
    answer = start(release_tree("0.33.0"), tmp_path / "tree", "llava", "clip")

    assert answer == {"has_graphs": True, "said": [], "captured": 3}


@pytest.mark.parametrize(
    ("model", "module", "name"),
    [
        ("minicpmv", "minicpmv", "MiniCPMV2_0"),
        pytest.param("gemma4_mm", "gemma4_unified", "Gemma4UnifiedForConditionalGeneration", marks=pytest.mark.slow),
        pytest.param("glm4_1v", "glm_ocr", "GlmOcrForConditionalGeneration", marks=pytest.mark.slow),
    ],
)
def test_a_subclass_that_opts_out_runs_eagerly(
    model: str, module: str, name: str, release_tree: Any, tmp_path: Path
) -> None:
    answer = start(release_tree("0.33.0"), tmp_path / "tree", model, f"{module}:{name}")

    assert answer["has_graphs"] is False
    assert [line.partition(" ")[0] for line in answer["said"]] == [name]
