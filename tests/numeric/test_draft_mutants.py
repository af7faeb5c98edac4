"""Each value of a draft that `init --yes` makes, changed to another candidate or to a likely slip: never accepted.

What `validate` and the static proofs do not refuse, the automatic recipe must.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, interview
from scaffold.verify.numeric import keep_warm
from scaffold.verify.numeric.recipes import AUTOMATIC
from scaffold.workflow import load_port, prepare_port, prove_numerics

pytest.importorskip("torch", reason="needs the `cpu` extra")
pytestmark = [pytest.mark.trees, pytest.mark.lab]

#: What a line of a draft holds, and what it may be mistaken for.
SLIPS = (
    (r"hidden_size: self\.config\.text_config\.", "hidden_size: self.config.vision_config."),
    (r'( side| height| width): "?([^"\n]*)"?', r'\1: "(\2) // 2"'),
    (r"( k): (.*)", r"\1: \2 + 1"),
    (r"( m): (.*)", r"\1: \2 * 2"),
    (r"tokens: (.*)", r"tokens: \1 + 1"),
    (r"flatten: true", "flatten: false"),
    (r"(\w+):\n    sizes: \w+", r"\1: batched"),
    (r"  (\w+): batched\n", ""),
    (r"( p): (.*)", r"\1: \2 * 2"),
    (r"encoder: (\S+)\.\w+", r"encoder: \1"),
)
#: One of each layout, and one with two modalities that share a call.
MODELS = (
    "Cohere2VisionForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Blip2ForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "LightOnOCRForConditionalGeneration",
)


@pytest.fixture(scope="module", autouse=True)
def warm() -> Any:
    with keep_warm() as process:
        yield process


def _first(question: Any) -> str | None:
    return question.candidates[0].value if question.candidates else None


def _plain(draft: Draft) -> str:
    return re.sub(r" +#.*", "", draft.text)


def mutants(tree: Any, name: str) -> Iterator[tuple[str, str]]:
    """What was changed, and the text of the descriptor."""
    draft = interview(tree, name, {}, _first)
    for question in draft.questions:
        for other in question.candidates[1:]:
            changed = interview(tree, name, {question.key: other.value}, _first)
            yield f"{question.key}: {other.value}", _plain(changed)
    text = _plain(draft)
    for pattern, replacement in SLIPS:
        for found in re.finditer(pattern, text):
            made = found.expand(replacement)
            yield f"{found[0]} -> {made}", text[: found.start()] + made + text[found.end() :]


def outcome(tree: Any, change: str, text: str, folder: Path) -> str:
    """`refused` before anything is run, `caught` by the numerical proof, `without effect`, or `accepted`.

    A field of precomputed embeddings has no effect on a port of a model that refuses them all.
    """
    path = folder / "mutant.yaml"
    path.write_text(text)
    try:
        prepare_port(load_descriptor_text(text, path.name), tree, replace=True)
        (report,) = prove_numerics(load_port(str(path)), tree, recipe=AUTOMATIC)
    except DiagnosticError:
        return "refused"
    if not report.passed:
        return "caught"
    refused = any("the model refuses them" in why for why in report.not_run)
    return "without effect" if refused and change.startswith("  image_embeds: ") else "accepted"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_other_value_is_accepted(name: str, release_tree: Any, tmp_path: Path) -> None:
    tree = release_tree("0.33.0")
    found = {change: outcome(tree, change, text, tmp_path) for change, text in mutants(tree, name)}
    print(name, *(f"  {end}: {change!r}" for change, end in found.items()), sep="\n")
    assert len(found) >= 3
    assert [change for change, end in found.items() if end == "accepted"] == []


def test_drafts_have_values_to_change(release_tree: Any) -> None:
    changes = [change for name in MODELS for change, _ in mutants(release_tree("0.33.0"), name)]
    assert len(changes) >= 12
    assert any("vision_config" in change for change in changes)
    assert any("flatten: false" in change for change in changes)
