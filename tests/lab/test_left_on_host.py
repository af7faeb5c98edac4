"""Bagel of 0.33: its table of positions is made with `torch.from_numpy`, and stays on the host of a server's GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import Severity
from scaffold.draft import NoDraft, draft_descriptor
from scaffold.verify.numeric import check_numerics_all
from scaffold.watch import Left, Recording
from scaffold.workflow import numeric_requests

pytest.importorskip("torch", reason="needs the `cpu` extra")
pytestmark = [pytest.mark.trees, pytest.mark.lab]

BAGEL, FILE = "BagelForConditionalGeneration", "vllm/model_executor/models/bagel.py"


@pytest.fixture
def recording(record: Callable[[str], Recording]) -> Recording:
    return record(BAGEL)


@pytest.fixture
def reached(recording: Recording) -> Recording:
    """The same run, if the loader's device reached the table."""
    return replace(recording, batches=tuple(replace(batch, left=()) for batch in recording.batches))


@pytest.fixture
def tree(release_tree: Any) -> Any:
    return release_tree("0.33.0")


def line_of(tree: Any, text: str) -> int:
    return next(number for number, line in enumerate(tree.read(FILE).splitlines(), 1) if text in line)


def test_a_draft_holds_nothing_that_reads_it(recording: Recording, tree: Any) -> None:
    made = line_of(tree, "torch.from_numpy(")
    [left] = {left for batch in recording.batches for left in batch.left}
    assert (left.of, left.made) == ("vit_pos_embed.pos_embed", f"{FILE}:{made}")
    assert {"self.vit_pos_embed", "self._process_image_input"} <= {*left.inside}
    draft = draft_descriptor(tree, BAGEL, recording)
    seen = yaml.safe_load(draft.text)
    assert (seen["layout"], seen["forward"]["call"], "explicit" in seen) == ("cut", "self.vit_model(pixels)", False)
    [note] = [note for note in draft.notes if note.code == "VCG468"]
    assert "`vit_pos_embed.pos_embed`" in note.message
    assert note.span is not None
    assert (note.span.line, note.severity) == (made, Severity.WARNING)


def test_a_draft_without_such_a_tensor_has_an_explicit_port(reached: Recording, tree: Any) -> None:
    draft = draft_descriptor(tree, BAGEL, reached)
    held = yaml.safe_load(draft.text)["explicit"]
    assert (held["call"], held["single"]) == ("self.connector(self.vit_model(pixels))", True)
    assert "VCG468" not in {note.code for note in draft.notes}


@pytest.mark.parametrize("inside", ["self.vit_model", "self.connector"])
def test_a_call_that_reads_it_is_held_by_no_graph(recording: Recording, tree: Any, inside: str) -> None:
    """Where the encoder itself does, there is no draft; where a part behind it does, no explicit port."""
    left = Left("table", "vllm/outside.py:1", ("self.embed_multimodal", inside))
    changed = replace(recording, batches=tuple(replace(batch, left=(left,)) for batch in recording.batches))
    if inside == "self.connector":
        assert "explicit" not in yaml.safe_load(draft_descriptor(tree, BAGEL, changed).text)
        return
    with pytest.raises(NoDraft) as refused:
        draft_descriptor(tree, BAGEL, changed)
    [reason] = [one for one in refused.value.diagnostics if "`table`" in one.message]
    assert reason.code == "VCG483"
    assert "`self.vit_model(pixels)` reads `table`, which vLLM's loader leaves on the host" in reason.message


def test_the_proof_of_a_graph_that_reads_it_fails(reached: Recording, tree: Any) -> None:
    """Its graph holds all from the pixels to the embeddings."""
    port = load_descriptor_text(draft_descriptor(tree, BAGEL, reached).text, "bagel.yaml")
    [report] = check_numerics_all(numeric_requests(port, tree))
    assert all(check.passed for check in report.checks), "on a CPU its embeddings are right"
    assert not report.passed
    first, *_ = report.diagnostics()
    assert (first.code, "of `vit_pos_embed.pos_embed`, which vLLM's loader leaves there" in first.message) == (
        "VCG671",
        True,
    )
    assert len(re.findall(rf"{FILE}:\d+", first.message)) == 2


def test_the_proof_of_a_graph_that_ends_before_it_passes(recording: Recording, tree: Any) -> None:
    port = load_descriptor_text(draft_descriptor(tree, BAGEL, recording).text, "bagel.yaml")
    [report] = check_numerics_all(numeric_requests(port, tree))
    assert report.passed, "\n".join(report.lines())
    assert report.hits > 0
