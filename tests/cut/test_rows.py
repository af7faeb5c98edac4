"""The layout `rows` on real classes of vLLM 0.33: the edits, refusals, and the numerical proof with its mutants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import changed_ports
import pytest
from port_mutants import Mutant, assert_rejected, cases, reports_of
from proven import assert_right

from scaffold.diagnostics import DiagnosticError
from scaffold.plan.cut import plan_way
from scaffold.protocol import find_model
from scaffold.verify.numeric import NumericOptions, NumericReport, check_numerics_all
from scaffold.workflow import failures_of, numeric_requests, prepare_port, prove_numerics

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
PIXTRAL = "vllm/model_executor/models/pixtral.py"
MIXIN = "vllm/model_executor/models/encoder_cudagraph_rows.py"
WAYS = {
    "mistral3": {"_process_image_input": 0, "PixtralHFVisionModel.forward": 1},
    "pixtral": {"_process_image_input": 0, "VisionTransformer.forward": 1},
    "isaac": {"_process_image_input": 0, "IsaacVisionEmbedding.forward": 0, "Siglip2VisionTransformer.forward": 1},
    "cosmos3_edge": {
        "_process_image_input": 0,
        "Cosmos3EdgeVisionModel.forward": 0,
        "encode": 0,
        "Siglip2VisionTransformer.forward": 1,
    },
    "llava_onevision2": {"_process_image_input": 0, "LlavaOnevision2VisionTower.forward": 1},
}


def port_of(model: str, changes: dict[str, Any] | None = None) -> Any:
    """A port that runs the model's code again; `test_explicit_rows.py` has those that do not."""
    return changed_ports.port_of(model, {**(changes or {}), "explicit": None})


def recipe(model: str) -> str | None:
    """The recipe of a model that has no shipped one."""
    path = Path(__file__).with_name(f"{model}_rows.py")
    return str(path) if path.exists() else None


@pytest.mark.parametrize("model", WAYS)
def test_the_way_is_found_and_proven(model: str, release_tree: Any) -> None:
    tree, spec = release_tree(RELEASE), port_of(model)
    way = plan_way(spec, tree, find_model(tree, spec.module, spec.class_name))
    found = {station.class_name: station for station in way.stations}
    assert {
        f"{name}.forward" if station.function == "forward" else station.function: len(station.sites)
        for name, station in found.items()
    } == WAYS[model]
    port = prepare_port(spec, tree)
    text = "".join((change.after or b"").decode() for change in port.changed)
    assert text.count(" if encode is None else encode)(") == 1


def test_the_arguments_stay_where_they_are(release_tree: Any) -> None:
    port = prepare_port(port_of("mistral3"), release_tree(RELEASE))
    [change] = [change for change in port.changed if change.path == PIXTRAL]
    before, after = (text.decode().splitlines() for text in (change.before, change.after))
    assert [line for line in after if line not in before] == [
        "from collections.abc import Callable, Iterable, Mapping, Sequence",
        "        encode: Callable[..., torch.Tensor] | None = None,",
        "            encode: What is called in the place of the encoder, if anything.",
        "        out = (self.transformer if encode is None else encode)(",
    ]
    assert len(after) == len(before) + 2


def test_a_subclass_in_another_file_is_named(release_tree: Any) -> None:
    port = prepare_port(port_of("mistral3"), release_tree(RELEASE))
    messages = [note.message for note in port.notes if note.code != "VCG466"]
    assert ["LightOnOCRForConditionalGeneration" in message for message in messages] == [True]


@pytest.mark.parametrize(
    ("release", "changes", "code", "message"),
    [
        ("0.28.0", {}, "VCG446", "is not told where sequences end"),
        ("0.23.0", {}, "VCG446", "is not told where sequences end"),
        ("0.22.1", {}, "VCG446", "fills the offsets behind a batch with zeros"),
        ("0.21.0", {}, "VCG446", "fills the offsets behind a batch with zeros"),
        (RELEASE, {"forward.encoder": "self.vision_tower.encoder"}, "VCG443", "does not lead to"),
    ],
)
def test_what_cannot_be_ported_is_refused(
    release: str, changes: dict[str, Any], code: str, message: str, release_tree: Any
) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("mistral3", changes), release_tree(release))
    [problem] = caught.value.diagnostics
    assert (problem.code, message in problem.message) == (code, True), problem


def test_a_class_that_shares_items_between_ranks_needs_no_gate(release_tree: Any) -> None:
    """Its rows declare their tokens, and the generated code looks at them when the model starts."""
    tree = release_tree(RELEASE)
    assert "supports_encoder_tp_data = True" in tree.read("vllm/model_executor/models/isaac.py")
    [change] = [change for change in prepare_port(port_of("isaac"), tree).changed if change.path == MIXIN]
    assert b'getattr(self, "supports_encoder_tp_data", False)' in (change.after or b"")


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.parametrize("model", ["mistral3", *(pytest.param(one, marks=pytest.mark.slow) for one in [*WAYS][1:])])
def test_the_port_equals_the_pristine_tree(model: str, release_tree: Any) -> None:
    [report] = prove_numerics(port_of(model), release_tree(RELEASE), tails=("fa3",), recipe=recipe(model))
    assert_right(report, 15, 3)


#: LightOnOCR inherits Mistral 3's port. It takes precomputed embeddings, one list entry an item.
LIGHTON = """\
import torch
from scaffold.verify.numeric.recipes import mistral3


class LightOnOCR(type(mistral3.RECIPE)):
    module = "lightonocr"
    host_class = "LightOnOCRForConditionalGeneration"

    def embeds_inputs(self, modality, items, generator):
        return {"image_embeds": [torch.randn(self.tokens(modality, item), 32, generator=generator) for item in items]}


RECIPE = LightOnOCR()
"""


@pytest.mark.lab
@pytest.mark.parametrize("make", [pytest.param(port_of, marks=pytest.mark.slow), changed_ports.port_of])
def test_a_subclass_inherits_a_right_port(make: Any, release_tree: Any, tmp_path: Path) -> None:
    """One that re-enters, and an explicit one."""
    file = tmp_path / "lightonocr.py"
    file.write_text(LIGHTON)
    [report] = prove_numerics(make("mistral3"), release_tree(RELEASE), recipe=str(file))
    assert_right(report, 31)
    assert [check.name for check in report.checks if check.name.startswith("precomputed")]


@pytest.mark.lab
def test_a_port_that_has_no_graphs_says_why_at_the_descriptors_line(release_tree: Any) -> None:
    """A misspelt value of the configuration: the help sent readers to `modalities`."""
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    port = port_of("mistral3", {"let": {"p": "self.config.vision_config.patchsize"}})
    requests = numeric_requests(port, release_tree(RELEASE))
    reports = check_numerics_all([replace(request, options=NumericOptions(short=True)) for request in requests])
    failures = failures_of(port, reports)
    failure = next(failure for failure in failures if failure.span is not None)
    assert failure.code == "VCG657"
    assert "No encoder CUDA graphs: 'PixtralVisionConfig' object has no attribute 'patchsize'" in failure.message
    assert failure.span == port.span("let.p")


@pytest.mark.lab
def test_offsets_in_two_sections_have_no_graphs(release_tree: Any) -> None:
    """FlashInfer's kernel gets the offsets of queries and of values behind each other, in elements."""
    [report] = prove_numerics(port_of("mistral3"), release_tree(RELEASE), tails=("cudnn",))
    text = "\n".join(report.lines())
    failed = [check for check in report.checks if not check.passed]
    assert {(check.code, check.detail) for check in failed} == {
        (
            "VCG657",
            "the configuration does not list the modality; "
            "No encoder CUDA graphs: value 3 of the encoder's call is [18]",
        )
    }, text
    assert report.hits == 0
    assert [check for check in report.checks if check.passed and check.name.startswith("a context of 63")], text


COVER = "dst[n:] = torch.minimum(src[-1] + length * steps, dst[-1])"


@pytest.mark.lab
@pytest.mark.parametrize(("covered", "code"), [(COVER, ""), ("dst[n:] = src[-1]", "VCG650")], ids=["ours", "empty"])
def test_sequences_cover_the_rows_after_a_batch_before_0_31(covered: str, code: str, release_tree: Any) -> None:
    """FlashAttention 3 lets unwritten rows reach valid ones there."""
    [request] = numeric_requests(port_of("mistral3"), release_tree("0.30.0"), tails=("fa3",), recipe=recipe("mistral3"))
    text = request.overlay[MIXIN].decode()
    assert COVER in text
    overlay = {**request.overlay, MIXIN: text.replace(COVER, covered).encode()}
    [report] = check_numerics_all([replace(request, overlay=overlay)])
    found = {problem.code for problem in report.diagnostics()}
    assert (code in found) if code else report.passed, "\n".join(report.lines())


#: model -> a key of its descriptor and a likely slip: what the port then finds has no graphs.
SLIPS = {
    "llava_onevision2": ("item.zeros.patch_positions", ["h * w", "2"]),
}


@pytest.mark.lab
@pytest.mark.parametrize("model", SLIPS)
def test_another_form_of_what_the_encoder_gets_is_not_accepted(model: str, release_tree: Any) -> None:
    changed = port_of(model, dict([SLIPS[model]]))
    [report] = prove_numerics(changed, release_tree(RELEASE), recipe=recipe(model))
    assert report.hits == 0
    assert {check.code for check in report.checks if not check.passed} == {"VCG657"}, "\n".join(report.lines())


PADDED = "dst[len(src) :] = src[-1]"
MUTANTS = (
    Mutant("offsets are not padded", PADDED, "pass", "VCG665", "negative length"),
    Mutant("bound too small", "entries = [num_rows] if sample.ndim else num_rows", "entries = num_rows // 8", "VCG650"),
    Mutant(
        "rows shifted", 'buffers[f"{name}_{index}"] = leaf', 'buffers[f"{name}_{index}"] = leaf.roll(1, 0)', "VCG650"
    ),
    Mutant("features of other rows", "output[: sum(rows)].clone()", "output[-sum(rows) :].clone()", "VCG650"),
    Mutant("a graph with too few rows", "num_rows = token_budget * ", "num_rows = token_budget // 2 * ", "VCG654"),
    # What the generated code cannot classify has no graphs, and runs eagerly.
    Mutant("offsets are not known", "list(accumulate(lengths, initial=0))", "lengths", "VCG657", "modality"),
    Mutant("nothing is constant", 'kinds.add(("constant", leaf))', "pass", "VCG657", "modality"),
    # Nor is what a graph gave used where the model calls its encoder in another way.
    Mutant("another call at a replay", "structure != wanted:", "structure == wanted:", "VCG657", "eager"),
)


@pytest.fixture(scope="module")
def reports(release_tree: Any, asked: list[Mutant]) -> dict[str, NumericReport]:
    """Every mutant of Mistral 3's port."""
    [request] = numeric_requests(port_of("mistral3"), release_tree(RELEASE), recipe=recipe("mistral3"))
    return reports_of(request, MIXIN, MUTANTS, asked)


@pytest.mark.lab
@pytest.mark.parametrize("mutant", cases(MUTANTS))
def test_mutants_are_rejected(mutant: Mutant, reports: dict[str, NumericReport]) -> None:
    report = reports[mutant.name]
    assert_rejected(report, mutant)
    if mutant.code == "VCG657":
        assert {check.code for check in report.checks if not check.passed} == {"VCG657"}
