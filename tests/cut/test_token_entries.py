"""The layout `rows` where a function of the tree says what each token of an image is: DeepSeek-V4.1."""

from __future__ import annotations

from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted
from proven import assert_right

from scaffold.diagnostics import DiagnosticError
from scaffold.workflow import prepare_port, prove_numerics

RELEASE = "0.33.0"
PACKAGE = "vllm/models/deepseek_v41/"
MODEL = f"{PACKAGE}nvidia/vl_model.py"
#: Upstream's port, which has the call of the encoder since 0.31.
UPSTREAM = f"{PACKAGE}common/vl_cudagraph.py"
TOWER = "vllm/models/deepseek_v4/common/vision.py"

# -- the port ---------------------------------------------------------------------------------------------------------


@pytest.mark.trees
@pytest.mark.parametrize("release", ["0.30.0", RELEASE])
def test_the_files_of_a_port(release: str, release_tree: Any) -> None:
    tree = release_tree(release)
    port = prepare_port(port_of("deepseek_v41"), tree, replace=True)
    files = {change.path: (change.after or b"").decode() for change in port.changed}
    beside = {UPSTREAM} if release == RELEASE else set()
    assert {path for path in files if "deepseek" in path} == {MODEL, TOWER} | beside
    assert "    image_token_types,\n" in files[MODEL]
    assert "int(size[0]) * (int(size[1]) + 1) + 2 for size in mm_kwargs" in files[MODEL]
    if beside:
        # The class of AMD's platform has upstream's port from there.
        assert tree.read(UPSTREAM).count("def ") == files[UPSTREAM].count("def ")
        assert "self.vision(patches, n_vit_h, n_vit_w, encode=encode)" in files[UPSTREAM]
    again = tree.with_files({path: text.encode() for path, text in files.items()})
    assert prepare_port(port_of("deepseek_v41"), again).changed == ()


@pytest.mark.trees
def test_only_replace_overrides_what_a_base_has(release_tree: Any) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("deepseek_v41"), release_tree(RELEASE))
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG520"
    assert "from DeepseekV4VLEncoderCudaGraphMixin" in problem.message


def test_a_module_beside_the_models_needs_no_path() -> None:
    assert port_of("deepseek_v41", {"item.tokens.module": "other"}).tokens_module == "vllm.model_executor.models.other"
    assert port_of("deepseek_v4").tokens_module == ""


#: Changed keys, and words of the refusal.
WRONG = {
    "an input without sizes": ({"item.tokens.input": "llm_grid"}, "`llm_grid` has no entries for tokens alone"),
    "the pixels": ({"item.tokens.input": "patches"}, "`patches` has no entries for tokens alone"),
    "zeros beside it": ({"item.zeros": {"types": ["h * w"]}}, "`types` has no entries for tokens alone"),
    "three columns": ({"item.values.llm_grid": [1, "h", "w"]}, "`llm_grid` has 3 columns"),
    "embeddings": ({"fields.image_embeds": "batched"}, "the tokens of an item with precomputed embeddings"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_tokens_without_a_grid_are_refused(name: str) -> None:
    changes, words = WRONG[name]
    with pytest.raises(DiagnosticError) as caught:
        port_of("deepseek_v41", changes)
    assert [problem for problem in caught.value.diagnostics if words in problem.message]


def test_tokens_of_several_units_are_refused() -> None:
    tokens = {"input": "types", "count": "h * w", "module": "other", "function": "make_types"}
    with pytest.raises(DiagnosticError, match="the tokens of an item of several units are those of its patches"):
        port_of("lfm2_vl", {"item.tokens": tokens})


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("release", [pytest.param("0.30.0", marks=pytest.mark.slow), RELEASE])
def test_the_port_equals_the_pristine_tree(release: str, release_tree: Any) -> None:
    [report] = prove_numerics(port_of("deepseek_v41"), release_tree(release), tails=("fa3",))
    assert_right(report, 80, 6)


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("count", ["h * w", pytest.param("h * (w + 1) + 3", marks=pytest.mark.slow)])
def test_another_count_is_found(count: str, release_tree: Any) -> None:
    port = port_of("deepseek_v41", {"item.tokens.count": count})
    [report] = prove_numerics(port, release_tree(RELEASE), tails=("fa3",))
    assert not report.passed


MUTANTS = (
    Mutant("tokens of other images", "map(len, entries)", "map(len, entries[::-1])", "VCG657"),
    Mutant("tokens of one image for all", "map(len, entries)", "[len(entries[0])] * len(entries)", "VCG657"),
    Mutant("types of zeros", "image_token_types(\n", "(lambda h, w: torch.zeros(h * (w + 1) + 2))(\n", "VCG657"),
    Mutant("types of other images", '"types"].split(sizes)', '"types"].flip(0).split(sizes)', "VCG654"),
    Mutant("one type too few", "+ 1) + 2 for size", "+ 1) + 1 for size", "VCG657"),
)  # fmt: skip


test_mutants_are_rejected = planted(MUTANTS, MODEL, RELEASE, "deepseek_v41")
