"""All static proofs together, on the four files of a port, in real trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scaffold.edit import AddBase, AddDictEntry, AddImport, AddListEntry, AddTableRow, Edit, PutMethods, apply_edits
from scaffold.protocol import SourceTree, find_docs_table, find_example_list, find_test_registry, read_protocol
from scaffold.protocol.tables import find_tables
from scaffold.verify import PlannedFile, format_changed, verify_changes

pytestmark = pytest.mark.trees
MODEL = "vllm/model_executor/models/llava.py"


def plan_port(tree: SourceTree) -> list[PlannedFile]:
    """A port of a model that no release has ported, with the protocol's own signatures and empty bodies."""
    profile = read_protocol(tree)
    block = "\n\n".join(f"def {m.name}({_untyped(m)}):\n    raise NotImplementedError" for m in profile.methods)
    docs, tests, example = find_docs_table(tree), find_test_registry(tree), find_example_list(tree)
    header = next(t.header for t in find_tables(tree.read(docs.path)) if "CG for Image" in t.header)
    name = "LlavaForConditionalGeneration"
    files: list[tuple[str, tuple[Edit, ...]]] = [
        (
            MODEL,
            (
                AddImport(".interfaces", "SupportsEncoderCudaGraph"),
                AddBase(name, "SupportsEncoderCudaGraph"),
                PutMethods(name, block),
            ),
        ),
        (
            tests.path,
            (
                AddDictEntry(
                    "MODEL_CONFIGS",
                    "llava_x",
                    'VitCudagraphTestConfig(model="a/b", image_prompt="x", modalities=["image"])',
                ),
            ),
        ),
        (example.path, (AddListEntry("MODELS_SUPPORT_VIT_CUDA_GRAPH", "llava_x"),)),
        (docs.path, (AddTableRow(header, f"`{name}`", (f"`{name}`", *["✅︎"] * (len(header) - 1))),)),
    ]
    planned = []
    for path, edits in files:
        before = tree.read(path)
        edited = apply_edits(before, edits, path=path).text
        after = format_changed(before, edited, path=path, config_root=tree.root)
        is_model = path == MODEL
        planned.append(
            PlannedFile(
                path, before, after, edits, tree.root, name if is_model else None, profile if is_model else None
            )
        )
    return planned


def _untyped(method: object) -> str:
    parts = []
    for parameter in method.parameters:  # type: ignore[attr-defined]
        parts.append(parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}")
    return ", ".join(parts)


@pytest.mark.parametrize("version", ["0.22.0", "0.26.0", "0.33.0"])
def test_a_port_is_proven(release_tree: Callable[[str], SourceTree], version: str) -> None:
    planned = plan_port(release_tree(version))
    assert verify_changes(planned) == ()
    assert all(file.before != file.after for file in planned)


def test_each_proof_is_run(release_tree: Callable[[str], SourceTree]) -> None:
    model, registry, example, docs = plan_port(release_tree("0.33.0"))

    def codes(file: PlannedFile) -> list[str]:
        return [item.code for item in verify_changes([file])]

    assert codes(replace(model, after=model.after.replace("import torch\n", "import torch  # odd\n", 1))) == ["VCG604"]
    signature = "def get_encoder_cudagraph_budget_range(self, vllm_config)"
    wrong = replace(model, after=model.after.replace(signature, signature.replace("vllm_config", "config")))
    assert codes(wrong) == ["VCG602", "VCG606", "VCG611"]
    assert codes(replace(registry, after=registry.after.rstrip("\n"))) == ["VCG607", "VCG621"]
    assert codes(replace(example, after=example.before or "")) == ["VCG602", "VCG606"]
    assert codes(replace(docs, after=docs.after + "x\n")) == ["VCG604"]
    assert codes(replace(example, after="x = 1\nreturn\n"))[0] == "VCG600"
    assert "VCG601" not in codes(replace(example, after="x = 1\nreturn\n"))


def test_a_new_file_has_no_before(release_tree: Callable[[str], SourceTree]) -> None:
    root = release_tree("0.33.0").root
    header = "# SPDX-License-Identifier: Apache-2.0\n"
    new = PlannedFile("vllm/model_executor/models/new.py", None, header + "x = 1\n", (), root)
    assert verify_changes([new]) == ()
    assert [item.code for item in verify_changes([replace(new, after=header + "import os\n")])] == ["VCG620"]
