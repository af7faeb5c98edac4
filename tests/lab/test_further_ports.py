"""Models outside of the core five in the CPU lab: the port of the last release without one, and on all others.

Also what upstream's own ports get wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from changed_ports import port_of

from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.load import shipped_path
from scaffold.verify.numeric import NumericOptions, NumericReport, NumericRequest, check_numerics, check_numerics_all
from scaffold.workflow import load_port, numeric_requests, prove_numerics

pytestmark = [pytest.mark.trees, pytest.mark.lab]


class Further(NamedTuple):
    """`word`: what upstream's port brings into the model's file, in the release after `pristine`.

    A report has so many `hits` (replays) and `misses` at least, and `eager` comparisons with the unchanged tower for
    each modality, so that none passes because little was run.
    """

    pristine: int
    word: str
    hits: int
    misses: int
    eager: int = 0


MODELS = {
    "mllama4": Further(23, "get_encoder_cudagraph_config", 70, 10),
    "gemma3_mm": Further(24, "get_encoder_cudagraph_config", 70, 10),
    "glm4_1v": Further(23, "encoder_metadata", 150, 10, 20),
    "ernie45_vl": Further(27, "encoder_metadata", 80, 8, 1),
}
CELLS = [
    pytest.param(name, minor, id=f"{name}-0.{minor}", marks=() if minor == model.pristine else pytest.mark.slow)
    for name, model in MODELS.items()
    for minor in (20, 21, 22, 23, 24, 26, 27, 28, 30, 31, 32, 33)
    if (name, minor) not in (("ernie45_vl", 20), ("ernie45_vl", 21))  # no hook for its resampler
]


@pytest.mark.parametrize(("name", "minor"), CELLS)
def test_generated_port_equals_the_pristine_tree(release_tree: Any, name: str, minor: int) -> None:
    port, model = load_port(name), MODELS[name]
    # The cells of the support matrix run all kernels.
    requests = numeric_requests(port, release_tree(f"0.{minor}.0"), tails=("fa3",))

    for report in check_numerics_all(requests):
        text = "\n".join(report.lines())
        assert report.passed, text
        assert report.negative_lengths == 0, text
        assert report.hits >= model.hits, text
        assert report.misses >= model.misses, text
        eager = [check for check in report.checks if check.name.startswith("eager unchanged: ")]
        assert {check.max_abs for check in eager} <= {0.0}, "eager results of a changed tower are not bit-identical"
        for modality, inputs in port.modalities.items():
            assert sum(check.modality == modality for check in eager) >= model.eager, text
            ready = [check for check in report.checks if check.name.startswith("precomputed embed")]
            assert any(check.modality == modality for check in ready) is bool(inputs.embeds), text


@pytest.mark.parametrize("name", MODELS)
def test_last_release_without_a_port(release_tree: Any, name: str) -> None:
    source, model = f"vllm/model_executor/models/{name}.py", MODELS[name]
    assert model.word not in release_tree(f"0.{model.pristine}.0").read(source)
    assert model.word in release_tree(f"0.{model.pristine + 1}.0").read(source)


#: What is wrong once data parallelism is on, on one rank and on several. The shipped gate asks the projector for ranks.
GATES = {
    "not (self.use_data_parallel and self.multi_modal_projector.linear_1.tp_size > 1)": "",
    "not self.use_data_parallel": "VCG661",  # one rank has no graphs
    "not (self.use_data_parallel and self.multi_modal_projector.linear_1.tp_size > 2)": "VCG670",  # two have some
}


def llama_4_with_gate(gate: str, tree: Any, **options: bool) -> NumericReport:
    path = shipped_path("mllama4")
    assert path is not None
    text = path.read_text()
    assert next(iter(GATES)) in text
    port = load_descriptor_text(text.replace(next(iter(GATES)), gate), path.name)
    [request] = numeric_requests(port, tree)
    return check_numerics(replace(request, recipe="mllama4", options=replace(request.options, short=True, **options)))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("minor", [20, pytest.param(33, marks=pytest.mark.slow)])
def test_one_data_parallel_rank_has_graphs(release_tree: Any, minor: int, gate: str) -> None:
    report = llama_4_with_gate(gate, release_tree(f"0.{minor}.0"), data_parallel_switch=True)
    assert "".join(problem.code for problem in report.diagnostics()) == GATES[gate], "\n".join(report.lines())


@pytest.mark.parametrize("minor", [23, pytest.param(33, marks=pytest.mark.slow)])
def test_graphs_of_data_parallel_ranks_that_share_the_projector_are_found(release_tree: Any, minor: int) -> None:
    report = llama_4_with_gate("self.config.text_config.hidden_size > 0", release_tree(f"0.{minor}.0"))

    [problem] = report.diagnostics()
    assert (problem.code, "share the weights of multi_modal_projector.linear_1" in problem.message) == ("VCG670", True)


def test_gemma_3s_hand_written_port_has_the_defects(release_tree: Any) -> None:
    """A6: a graph has a tile for each item only, so that an image of several tiles does not fit. E10: no start with a
    budget below one tile."""
    options = NumericOptions(min_budget_above_max=True)
    request = NumericRequest(release_tree("0.33.0").root, {}, "gemma3_mm", ("image",), "0.33.0", options=options)

    report = check_numerics(request)

    assert {diagnostic.code for diagnostic in report.diagnostics()} == {"VCG654", "VCG662"}, "\n".join(report.lines())
    wrong = {check.name.split(": ")[1] for check in report.checks if not check.passed and "items: " in check.name}
    assert {"mixed sizes", "one item fills the budget"} <= wrong


def test_a_port_that_forgets_precomputed_embeddings_is_caught(release_tree: Any) -> None:
    """The recipe knows whether the model takes them, not the descriptor."""
    path = shipped_path("llava_next")
    assert path is not None
    text = path.read_text(encoding="utf-8").replace(", image_embeds: batched", "")
    port = load_descriptor_text(text, path.name)
    assert port.embeds is None
    report = check_numerics(numeric_requests(port, release_tree("0.33.0"))[0])

    wrong = {(check.name, check.code) for check in report.checks if not check.passed}
    assert wrong == {(f"precomputed embeddings, {items}", "VCG660") for items in ("one item", "several items")}


@pytest.mark.parametrize("covered", [True, False])
def test_rows_that_a_models_own_attention_leaves_are_covered(
    covered: bool, monkeypatch: Any, release_tree: Any
) -> None:
    """MiMo-V2-Omni's window layers write into `torch.empty_like`, and the next full layer reads all of it."""
    if not covered:
        monkeypatch.setattr("scaffold.plan.towers.own_attention_leaves_rows", lambda *_: False)

    (report,) = prove_numerics(port_of("mimo_v2_omni"), release_tree("0.33.0"))

    text = "\n".join(report.lines())
    assert report.passed is covered, text
    assert covered or "rows behind the batch, which no attention sequence covers, reach valid ones" in text
    assert report.hits > 100 or not covered


@pytest.mark.slow
def test_ernies_hand_written_port_resamples_eager_results_twice(release_tree: Any) -> None:
    """The manager of these releases hands eager results to the hook, too."""
    report = check_numerics(NumericRequest(release_tree("0.33.0").root, {}, "ernie45_vl", ("image",), "0.33.0"))

    wrong = {check.name.split(": ")[1] for check in report.checks if not check.passed}
    assert "an item above all budgets" in wrong, "\n".join(report.lines())
    assert "every budget full" not in wrong
