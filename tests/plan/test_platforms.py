"""Packages that choose the class of a model by the platform: what a port of one class says of ROCm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from changed_ports import port_of

from scaffold.descriptor import AnyPort
from scaffold.diagnostics import Severity
from scaffold.edit.operations import AddDictEntry, AddImport, AddTableRow
from scaffold.plan.entries import plan_entries, plan_tests
from scaffold.plan.platforms import class_on_rocm
from scaffold.protocol import SourceTree, find_test_registry

pytestmark = pytest.mark.trees

NAME = "InklingForConditionalGeneration"
AMD = "vllm/models/inkling/amd/model.py"
TEST = {"key": "m", "model": "org/m", "image_prompt": "a", "core_model": True}


def port_of_class(module: str, class_name: str) -> AnyPort:
    changes: dict[str, Any] = {"model": {"module": f"vllm.models.{module}", "class": class_name}}
    changes |= {"integration": {"test": TEST, "docs": {"models": ["M"]}}}
    return port_of("gemma3_mm", changes)


@pytest.mark.parametrize(
    ("module", "class_name", "other"),
    [
        ("inkling.nvidia.model", NAME, f"vllm.models.inkling.amd.model.{NAME}"),
        ("inkling.amd.model", NAME, None),
        (
            "kimi_k3.nvidia.model",
            "KimiK3ForConditionalGeneration",
            "vllm.models.kimi_k3.amd.model.KimiK3ForConditionalGeneration",
        ),
        (
            "muse_spark.nvidia.multimodal",
            "MuseSparkForConditionalGeneration",
            "vllm.models.muse_spark.amd.multimodal.MuseSparkForConditionalGeneration",
        ),
        # One class for all platforms, and a package of one platform.
        ("deepseek_v4.common.vl_model", "DeepseekV4ForConditionalGeneration", None),
        ("step5.nvidia.vl", "Step5ForConditionalGeneration", None),
        # Upstream's implementation is in a base of both.
        ("minimax_m3.nvidia.model", "MiniMaxM3SparseForConditionalGeneration", None),
        ("deepseek_v41.nvidia.vl_model", "DeepseekV41ForCausalLM", None),
        ("qwen4_exp.nvidia.model", "Qwen4ExpForConditionalGeneration", None),
    ],
)
def test_the_class_that_rocm_loads_instead(release_tree: Any, module: str, class_name: str, other: str | None) -> None:
    assert class_on_rocm(port_of_class(module, class_name), release_tree("0.33.0")) == other


@pytest.mark.parametrize(
    "source",
    [
        f"from ..nvidia.model import {NAME} as Base\nclass {NAME}(Base):\n    pass\n",
        f"class {NAME}:\n    def get_encoder_cudagraph_config(self):\n        pass\n",
        f"{NAME} = None\n",
    ],
    ids=["inherits", "has its own", "is no class"],
)
def test_a_class_of_rocm_that_has_graphs_or_is_not_found(release_tree: Any, source: str) -> None:
    tree: SourceTree = release_tree("0.33.0").with_files({AMD: source.encode()})

    assert class_on_rocm(port_of_class("inkling.nvidia.model", NAME), tree) is None


def test_a_port_of_the_class_for_cuda_is_not_tested_on_rocm_and_says_so(release_tree: Any) -> None:
    found = plan_entries(port_of_class("inkling.nvidia.model", NAME), release_tree("0.33.0"))
    edits = [edit for file in found.files for edit in file.edits]

    [entry] = [edit.source for edit in edits if isinstance(edit, AddDictEntry)]
    reason = "The class for ROCm has no encoder CUDA graphs"
    assert f'marks=[pytest.mark.core_model, pytest.mark.skipif(current_platform.is_rocm(), reason="{reason}")]' in entry
    [row] = [edit.cells for edit in edits if isinstance(edit, AddTableRow)]
    assert row[:2] == (f"`{NAME}`", "`M` (CUDA only)")
    [note] = [note for note in found.notes if note.code == "VCG469"]
    assert (note.severity, "amd.model" in note.message) == (Severity.INFO, True)


def test_a_port_of_a_class_for_all_platforms_is_tested_on_all(release_tree: Any) -> None:
    found = plan_entries(port_of_class("step5.nvidia.vl", "Step5ForConditionalGeneration"), release_tree("0.33.0"))
    edits = [edit for file in found.files for edit in file.edits]

    assert "is_rocm" not in str(edits)
    assert "CUDA only" not in str(edits)
    assert "VCG469" not in [note.code for note in found.notes]


def test_the_mark_brings_its_import(release_tree: Any) -> None:
    registry = find_test_registry(release_tree("0.33.0"))
    assert registry is not None
    port = port_of_class("inkling.nvidia.model", NAME)

    for names, imports in (((), [AddImport("vllm.platforms", "current_platform")]), (("current_platform",), [])):
        edits = plan_tests(port, replace(registry, imports=names), cuda_only=True).edits
        assert [edit for edit in edits if isinstance(edit, AddImport)] == imports
