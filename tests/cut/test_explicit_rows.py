"""Explicit ports of rows: the form, what is refused, the proof that puts statements back, and the numbers."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, assert_rejected, reports_of

from scaffold.cut import prove_extraction
from scaffold.diagnostics import DiagnosticError
from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import numeric_requests, prepare_port, prove_numerics, tails_of

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MODEL = "vllm/model_executor/models/mistral3.py"
PIXTRAL = "vllm/model_executor/models/pixtral.py"
LOOK = "attention = self.transformer.layers[0].attention.attn"
FOREIGN = ("encode=", "Mixin", "except", "inspect", "pytree", "mock", "__dict__", "vars(")


def text_of(prepared: Any, path: str) -> str:
    [change] = [change for change in prepared.changed if change.path == path]
    return (change.after or b"").decode()


def test_a_port_has_no_mixin_and_no_second_way_through_the_model(release_tree: Any) -> None:
    prepared = prepare_port(port_of("mistral3"), release_tree(RELEASE))
    package = [change for change in prepared.changed if "/models/" in change.path and change.path.startswith("vllm/")]
    assert {change.path for change in package} == {MODEL, PIXTRAL}
    added = "\n".join(
        line
        for change in package
        for line in (change.after or b"").decode().splitlines()
        if line not in (change.before or b"").decode().splitlines()
    )
    assert [word for word in FOREIGN if word in added] == []
    assert added.count("\n") < 210


PADDING = "vllm/model_executor/models/qwen2_5_vl.py"


def test_a_buffer_holds_the_lengths_that_flashinfer_needs(release_tree: Any) -> None:
    text = text_of(prepare_port(port_of("mistral3"), release_tree(RELEASE)), MODEL)
    assert 'inputs.get("sequence_lengths")' in text
    assert "    _pad_flashinfer_cu_seqlens_buffer,\n" in text
    assert "_pad_cu_seqlens(" not in text


def test_a_port_pads_itself_where_the_tree_has_no_function_for_it(release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    renamed = tree.read(PADDING).replace("_pad_flashinfer_cu_seqlens_buffer", "_pad_flashinfer")
    text = text_of(prepare_port(port_of("mistral3"), tree.with_files({PADDING: renamed.encode()})), MODEL)
    assert 'padding_logics={"cu_seqlens": self._pad_cu_seqlens}' in text
    assert "else 1\n" in text.partition("def _pad_cu_seqlens")[2].partition("def ")[0]


@pytest.mark.parametrize(("release", "asked"), [("0.33.0", True), ("0.30.0", False)])
def test_flashinfer_is_asked_for_where_a_port_has_buffers_for_it(release: str, asked: bool, release_tree: Any) -> None:
    assert ("cudnn" in tails_of(port_of("mistral3"), release_tree(release))) is asked


def test_eager_code_and_a_port_call_the_same_methods(release_tree: Any) -> None:
    prepared = prepare_port(port_of("mistral3"), release_tree(RELEASE))
    assert text_of(prepared, PIXTRAL).count("self.prepare_layers(pixel_values)") == 1
    assert text_of(prepared, MODEL).count("self.vision_tower.prepare_layers(") == 1
    assert text_of(prepared, MODEL).count("self._project_image_features(") == 2


def test_only_units_are_counted(release_tree: Any) -> None:
    rows, units = (prepare_port(port_of(name), release_tree(RELEASE)).plan for name in ("mistral3", "llava_next"))
    assert (rows.counts_units, units.counts_units, rows.reenters) == (False, True, False)
    assert (rows.single, units.single) == (False, False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"explicit.offsets": "offsets"}, "reads no `offsets`"),
        ({"explicit.rotary": "rotary"}, "reads `position_embedding`, which is no buffer"),
    ],
)
def test_a_variable_that_the_call_does_not_read_is_refused(
    changes: dict[str, Any], says: str, release_tree: Any
) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("mistral3", changes), release_tree(RELEASE))
    assert {problem.code for problem in caught.value.diagnostics} == {"VCG443"}
    assert any(says in problem.message for problem in caught.value.diagnostics)


def test_items_whose_sides_tell_no_patches_are_refused() -> None:
    with pytest.raises(DiagnosticError) as caught:
        port_of("mistral3", {"item.shape": ["h * w", "3 * p**2"]})
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG349"]


def test_a_comment_goes_with_its_statement(release_tree: Any) -> None:
    tree, first, last = release_tree(RELEASE), "images = [image.to(", "out = self.transformer(\n"
    text, found = tree.read(PIXTRAL), 0
    for statement in (first, last):
        above, place, below = text.rpartition(f"        {statement}")
        text, found = f"{above}        # Before {statement[:3]}.\n{place}{below}", found + bool(place)
    assert found == 2
    prepared = prepare_port(port_of("mistral3"), tree.with_files({PIXTRAL: text.encode()}))
    made, _, rest = text_of(prepared, PIXTRAL).rpartition("def prepare_layers")[2].partition("\n    def forward(")
    assert ("# Before ima." in made, "# Before ima." in rest) == (True, False)
    assert ("# Before out." in made, "# Before out." in rest) == (False, True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "return torch.split(out.squeeze(0), embed_sizes)",
            "return torch.split(out.squeeze(0) * 2, embed_sizes)",
            "changes what it gets",
        ),
        (LOOK, f"if select_layers:\n            return ()\n        {LOOK}", "may leave"),
        ("embed_sizes = [p.shape[-2]", "embed_sizes = select_layers or [p.shape[-2]", "does not hand over"),
        ("attention.attn_backend", "attention.backend", "which attention backend needs lengths"),
    ],
)
def test_code_of_another_form_is_run_again(old: str, new: str, says: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    text = tree.read(PIXTRAL)
    # The tower of Mistral 3 is the last one of the file.
    above, found, below = text.rpartition(old)
    assert found
    prepared = prepare_port(port_of("mistral3"), tree.with_files({PIXTRAL: f"{above}{new}{below}".encode()}))
    [note] = [note for note in prepared.notes if note.code == "VCG466"]
    assert says in note.message
    assert "EncoderRowsMixin" in text_of(prepared, MODEL)


def test_a_tower_that_gets_no_input_is_run_again(release_tree: Any) -> None:
    tree, handed = release_tree(RELEASE), 'self.vision_tower(image_input["pixel_values"])'
    text = tree.read(MODEL)
    assert text.count(handed) == 1
    changed = tree.with_files({MODEL: text.replace(handed, handed.replace('"])', '"].float())')).encode()})
    [note] = [note for note in prepare_port(port_of("mistral3"), changed).notes if note.code == "VCG466"]
    assert "which is no input of the model" in note.message


@pytest.mark.parametrize(("base", "parses"), [("return super()._", False), ("return self.others()._", True)])
def test_a_parser_may_hand_on_to_that_of_its_base(base: str, parses: bool, release_tree: Any) -> None:
    tree, path = release_tree(RELEASE), "vllm/model_executor/models/lightonocr.py"
    text = tree.read(path)
    assert "return super()._parse" in text
    port = port_of("mistral3", {"model.module": "lightonocr", "model.class": "LightOnOCRForConditionalGeneration"})
    changed = tree.with_files({path: text.replace("return super()._", base).encode()})
    found = text_of(prepare_port(port, changed), path).partition("# -- Supports")[2]
    assert ("self._parse_and_validate_image_input(" in found) is parses
    assert "self.vision_tower.prepare_layers(" in found


def test_a_release_that_leaves_rows_unwritten_gets_a_mixin(release_tree: Any) -> None:
    prepared = prepare_port(port_of("mistral3"), release_tree("0.30.0"))
    assert [note.code for note in prepared.notes if note.code == "VCG466"] == ["VCG466"]


WHOLE = """
class M:
    def m(self, x, y=None):
        a = x + 1
        b = [a, x]
        c = self.f(a, b, y)
        return c, b
"""
SPLIT = """
class M:
    def before(self, x):
        a = x + 1
        b = [a, x]
        return a, b

    def m(self, x, y=None):
        a, b = self.before(x)
        c = self.f(a, b, y)
        return c, b
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("", "", True),
        ("b = [a, x]\n        return a, b", "b = [a]\n        return a, b", False),
        ("return a, b", "return b, a", False),
        ("a, b = self.before(x)", "b, a = self.before(x)", False),
        ("self.before(x)", "self.before(y)", False),
        ("a = x + 1", "a = x + 1\n        if a:\n            return a, a", False),
        ("return a, b", "return a", False),
        ("b = [a, x]\n        return a, b", "b = [a, y]\n        return a, b", False),
        ("    def before", "    @cache\n    def before", False),
        ("def before(self, x)", "def before(self, x, *, z=1)", False),
        ("def before", "def behind", False),
        ("c = self.f(a, b, y)", "c = self.f(a, b, self.before(x))", False),
    ],
)
def test_the_statements_in_front_are_put_back(old: str, new: str, same: bool) -> None:
    split = SPLIT.replace(old, new) if old else SPLIT
    ast.parse(split)
    assert (prove_extraction(WHOLE, split, frozenset({("M", "m")}), None, "m.py", "before") == ()) is same


@pytest.mark.parametrize(("old", "new", "same"), [("", "", True), ("x + 1", "x + 2", False), ("[x]", "[y]", False)])
def test_a_variable_may_be_taken_and_given(old: str, new: str, same: bool) -> None:
    def changed(text: str) -> str:
        return text.replace("a = x", "x = x").replace("[a, x]", "[x]").replace("a, b", "x, b")

    split = changed(SPLIT)
    assert "x, b = self.before(x)" in split
    split = split.replace(old, new) if old else split
    assert (prove_extraction(changed(WHOLE), split, frozenset({("M", "m")}), None, "m.py", "before") == ()) is same


CHOSEN = "attn_backend\n            == AttentionBackendEnum."
#: Mistakes that show with FlashInfer alone.
FLASHINFER = (
    Mutant("two sections filled as one", f"{CHOSEN}FLASHINFER", f"{CHOSEN}TORCH_SDPA", "VCG650"),
    Mutant("no lengths", "if sequence_lengths is not None:", "if False:", "VCG654"),
    Mutant("lengths of the capture", "values = self._get_encoder_cudagraph_buffers(mm_kwargs)\n",
           "values = self._get_encoder_cudagraph_buffers(mm_kwargs) | {'sequence_lengths': None}\n", "VCG650"),
)  # fmt: skip


@pytest.mark.lab
def test_flashinfer_gets_its_sections_and_lengths(release_tree: Any) -> None:
    [request] = numeric_requests(port_of("mistral3"), release_tree(RELEASE), tails=("cudnn",))
    reports = reports_of(request, MODEL, FLASHINFER, FLASHINFER)
    for mistake in FLASHINFER:
        assert_rejected(reports[mistake.name], mistake)
    [report] = check_numerics_all([request])
    assert [check for check in report.checks if not check.passed] == []


@pytest.mark.slow
def test_the_numbers_are_those_of_the_pristine_tree(release_tree: Any) -> None:
    [report] = prove_numerics(port_of("mistral3"), release_tree(RELEASE), tails=("fa2",))
    assert [check for check in report.checks if not check.passed] == []
