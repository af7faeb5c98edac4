"""A cut at an encoder of another package: Gemma 4 and its kin, by the drafts of `init --yes` on real classes."""

from __future__ import annotations

from typing import Any

import pytest
from port_mutants import Mutant, id_of, reports_of

from scaffold.descriptor import CutPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor
from scaffold.edit import apply_edits
from scaffold.verify.numeric import NumericReport
from scaffold.workflow import numeric_requests, prepare_port, prove_numerics

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
#: A release before upstream's own port.
PRISTINE = "0.25.0"
MODEL = "vllm/model_executor/models/gemma4_mm.py"
VISION = "self.config.vision_config"
CALL = (
    "self.vision_tower.encoder(inputs_embeds=pixels, attention_mask=attention_mask, "
    "pixel_position_ids=pixel_position_ids)"
)
#: architecture -> its release and recipe
PORTS = {
    "Gemma4ForConditionalGeneration": (PRISTINE, "gemma4_mm"),
    "DiffusionGemmaForBlockDiffusion": (RELEASE, "diffusion_gemma"),
    "EmbeddingGemma2Model": (RELEASE, "embedding_gemma2"),
}


@pytest.fixture(scope="module")
def drafted(release_tree: Any) -> Any:
    def call(architecture: str, answers: dict[str, str] | None = None) -> CutPort:
        tree = release_tree(PORTS[architecture][0])
        asked = draft_descriptor(tree, architecture).questions
        first = {question.key: question.candidates[0].value for question in asked}
        port = load_descriptor_text(draft_descriptor(tree, architecture, first | (answers or {})).text, "draft.yaml")
        assert isinstance(port, CutPort)
        return port

    return call


@pytest.mark.parametrize("architecture", PORTS)
def test_what_is_drafted(architecture: str, drafted: Any, release_tree: Any) -> None:
    port = drafted(architecture)
    assert (port.forward.call.text, port.forward.result) == (CALL, "last_hidden_state")
    assert port.let["np"].text == f"{VISION}.default_output_length * {VISION}.pooling_kernel_size ** 2"
    assert [part.text for part in port.forward.unit] == ["np", "columns"]
    beside = {name: ([part.text for part in one.shape], one.dtype) for name, one in port.forward.with_.items()}
    assert beside == {"attention_mask": (["np"], "bool"), "pixel_position_ids": (["np", "2"], "int64")}
    assert list(port.modalities) == ["image"]
    assert prepare_port(port, release_tree(PORTS[architecture][0])).changed


def test_a_subclass_without_the_encoder_has_no_graphs(drafted: Any, release_tree: Any) -> None:
    """The unified Gemma 4 embeds patches by a linear layer, in an entry of its own."""
    port = drafted("Gemma4ForConditionalGeneration")
    tree = release_tree(PRISTINE)
    assert port.model.optout == ("Gemma4UnifiedForConditionalGeneration",)
    kept = port.replace(model=port.model.replace(optout=()))
    with pytest.raises(DiagnosticError, match="overrides `Gemma4ForConditionalGeneration"):
        prepare_port(kept, tree)


def test_the_section_of_a_method_that_gets_a_parameter_keeps_its_title(drafted: Any, release_tree: Any) -> None:
    tree = release_tree(PRISTINE)
    port = prepare_port(drafted("Gemma4ForConditionalGeneration"), tree)
    [file] = [file for file in port.plan.files if file.path == MODEL]
    text = apply_edits(tree.read(MODEL), file.edits, path=MODEL).text
    for title in ("    # Image processing\n", "    # Video processing (frames through vision tower)\n"):
        assert text.count(title) == tree.read(MODEL).count(title) == 1


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.parametrize("architecture", PORTS)
def test_the_port_equals_the_pristine_tree(architecture: str, drafted: Any, release_tree: Any) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    release, recipe = PORTS[architecture]
    [report] = prove_numerics(drafted(architecture), release_tree(release), recipe=recipe)
    text = "\n".join(report.lines())
    assert report.passed, text
    assert (report.hits >= 20, report.misses >= 4) == (True, True), text


MUTANTS = (
    Mutant("no mask", 'attention_mask=inputs["attention_mask"]', "attention_mask=None", "VCG650"),
    Mutant(
        "the same place for all patches",
        'pixel_position_ids=inputs["pixel_position_ids"]',
        'pixel_position_ids=torch.zeros_like(inputs["pixel_position_ids"])',
        "VCG650",
    ),
    Mutant("another number of patches", ".pooling_kernel_size**2,", ".pooling_kernel_size,", "VCG657"),
    Mutant("features of another unit", "last_hidden_state=features)", "last_hidden_state=features.flip(1))", "VCG650"),
)


@pytest.fixture(scope="module")
def reports(drafted: Any, release_tree: Any) -> dict[str, NumericReport]:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    port = drafted("DiffusionGemmaForBlockDiffusion")
    [request] = numeric_requests(port, release_tree(RELEASE), recipe="diffusion_gemma")
    return reports_of(request, "vllm/model_executor/models/diffusion_gemma.py", MUTANTS)


@pytest.mark.lab
@pytest.mark.parametrize("mutant", MUTANTS, ids=id_of)
def test_mutants_are_rejected(mutant: Mutant, reports: dict[str, NumericReport]) -> None:
    report = reports[mutant.name]
    assert any(problem.code == mutant.code for problem in report.diagnostics()), "\n".join(report.lines())
