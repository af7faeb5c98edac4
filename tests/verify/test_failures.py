"""Failures that are the same are said once, at the line of the descriptor that they come from."""

from __future__ import annotations

from scaffold.verify.numeric.reports import Check, NumericReport
from scaffold.workflow import failures_of, load_port


def raised(name: str, detail: str) -> Check:
    return Check(name, "image", False, detail=detail, code="VCG654")


def report(tail: str, *checks: Check) -> NumericReport:
    return NumericReport("llava", "0.33.0", tail, checks)  # type: ignore[arg-type]


def test_one_mistake_of_a_descriptor_is_one_failure_at_its_line():
    method = (
        "AttributeError: 'LlavaForConditionalGeneration' object has no attribute '_process_image_input' at x.py:588"
    )
    checks = [raised(f"case {number}", method) for number in range(25)]
    other = raised("another", "ValueError: no at x.py:1")
    port = load_port("llava")

    first, second = failures_of(port, [report("fa2", *checks, other), report("fa3", *checks)])

    assert first.code == second.code == "VCG654"
    assert first.span is not None
    assert (first.span.file, first.span.line) == ("llava.yaml", 6)
    assert "24 more comparisons fail like this: image case 1, image case 2" in first.notes[0]
    assert "modalities.image.entry: self._process_image_input(" in first.notes[1]
    assert (second.span, second.notes) == (None, ())


def test_a_key_of_an_input_has_its_place():
    port = load_port("kimi_vl")
    (failure,) = failures_of(port, [report("fa2", raised("case", "KeyError: 'image_grid_hws' at x.py:3"))])
    assert failure.span == port.span("fields.image_grid_hws")
    assert failure.notes == ("the descriptor says `fields.image_grid_hws`",)


def test_a_wrong_width_is_at_the_key_that_names_it():
    port = load_port("llava")
    detail = "the port says 64, embeddings have 96"
    (failure,) = failures_of(port, [report("fa2", Check("columns of the embeddings", "all", False, detail=detail))])
    assert failure.span == port.span("output.hidden_size")
    assert failure.help is not None
    assert "`output.hidden_size`" in failure.help
    assert detail in failure.message


def test_what_was_compared_is_said_each_time():
    wrong = [Check(name, "image", False, 1.0, 1.0, "", "VCG650") for name in ("one", "two")]
    assert len(failures_of(load_port("llava"), [report("fa2", *wrong)])) == 2
