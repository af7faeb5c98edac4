"""Explicit ports of models that encode one item after another: the form, refusals, the proof, and the numbers."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted

from scaffold.cut import prove_extraction
from scaffold.diagnostics import DiagnosticError
from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import numeric_requests, prepare_port

RELEASE = "0.33.0"
MODEL = "vllm/model_executor/models/moondream3.py"
LOOP = (
    "        for image_input in image_inputs:\n            image_embeddings = self._encode_image_input(image_input)\n"
)
ENCODE = "    def _encode_image_input("
EMBEDS = "        embeddings: list[torch.Tensor] = []\n"


def changed(tree: Any, old: str, new: str) -> Any:
    text = tree.read(MODEL)
    assert text.count(old) == 1
    return tree.with_files({MODEL: text.replace(old, new).encode()})


@pytest.mark.trees
def test_the_loop_goes_over_what_each_item_is_encoded_to(release_tree: Any) -> None:
    prepared = prepare_port(port_of("moondream3"), release_tree(RELEASE))
    assert not prepared.plan.reenters
    [change] = prepared.package
    text = (change.after or b"").decode()
    entry, _, behind = text.partition("    def embed_multimodal")[2].partition("    def _finish_image_embeddings")
    assert entry.rstrip().endswith(
        "        if not image_inputs:\n            return []\n        return self._finish_image_embeddings(\n"
        "            self._encode_image_input(image_input) for image_input in image_inputs\n        )"
    )
    assert behind.count("        for image_embeddings in encoded:\n            embeddings.append(\n") == 1
    # Parsed inputs are a list, which is never None.
    assert "assert image_inputs" not in text
    assert "self._project_image_features(image_input, encoded)\n" in text
    assert "# A copy already: no replay overwrites it." in text
    # Its configuration calls a unit a crop. The largest image has more of them than a server batches tokens.
    assert "features.split(num_crops)" in text
    largest = "max(max_budget // num_tokens, self.config.vision_config.max_crops + 1)"
    assert f"        max_budget = (\n            {largest}\n            * num_tokens\n        )\n" in text
    again = release_tree(RELEASE).with_files({one.path: one.after for one in prepared.changed})
    assert prepare_port(port_of("moondream3"), again).changed == ()


@pytest.mark.trees
def test_the_largest_item_has_a_graph_where_a_unit_has_few_tokens(release_tree: Any) -> None:
    changes = {"explicit.tokens": "4", "let": {"side": "378", "crops": "self.config.vision_config.max_crops"}}
    port = port_of("moondream3", changes | {"explicit.most": "crops + 1"})
    [change] = prepare_port(port, release_tree(RELEASE)).package
    text = (change.after or b"").decode()
    assert "max_budget = max(max_budget, (self.config.vision_config.max_crops + 1) * 4)\n" in text
    assert "num_patches" in text


@pytest.mark.trees
@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Not the first statement of the loop; a comment that would be lost; another argument; a loop with an end.
        (LOOP, LOOP.replace("            image_emb", "            tiling = 1\n            image_emb")),
        (LOOP, LOOP.replace("            image_emb", "            # One at a time.\n            image_emb")),
        (LOOP, LOOP.replace("for image_input in", "for image_input, _ in")),
        ("        return embeddings\n\n    def forward(\n", "        embeddings.reverse()\n\n    def forward(\n"),
        # What follows reads the item, all items, or a variable of the statements in front.
        (EMBEDS, f"{EMBEDS}        count = len(image_inputs)\n"),
        ("torch.cat([bos_embedding.to(", "torch.cat([image_input.pixel_values, bos_embedding.to("),
        (EMBEDS, f"{EMBEDS}        if not bos_ids.numel():\n            return embeddings\n"),
        # Its names are taken.
        (EMBEDS, f"{EMBEDS}        encoded = encoded_items = 1\n"),
        (ENCODE, f"    def _finish_image_embeddings(self):\n        pass\n\n{ENCODE}"),
    ],
)  # fmt: skip
def test_a_loop_of_another_form_is_run_again(old: str, new: str, release_tree: Any) -> None:
    prepared = prepare_port(port_of("moondream3"), changed(release_tree(RELEASE), old, new))
    [note] = [note for note in prepared.notes if note.code == "VCG466"]
    assert "no loop over items whose rest can be a method `_finish_image_embeddings`" in note.message


@pytest.mark.trees
def test_the_items_must_be_what_a_port_can_parse(release_tree: Any) -> None:
    old = "        if not image_inputs:\n            return []\n\n        device"
    tree = changed(release_tree(RELEASE), old, old.replace("if not", "image_inputs = image_inputs[:1]\n        if not"))
    assert "VCG466" in [note.code for note in prepare_port(port_of("moondream3"), tree).notes]


@pytest.mark.trees
def test_a_parameter_has_a_name_that_is_free(release_tree: Any) -> None:
    tree = changed(release_tree(RELEASE), EMBEDS, f"{EMBEDS}        encoded = 1\n")
    [change] = prepare_port(port_of("moondream3"), tree).package
    assert "for image_embeddings in encoded_items:\n" in (change.after or b"").decode()


@pytest.mark.parametrize("changes", [{"explicit.after": None}, {"explicit.single": True}])
def test_what_follows_in_a_loop_needs_a_method_in_it(changes: dict[str, Any]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        port_of("moondream3", changes)
    assert [
        (one.code, one.span and one.span.line) for one in caught.value.diagnostics if "`items`" in one.message
    ] != []


def test_an_item_of_one_unit_has_no_largest() -> None:
    with pytest.raises(DiagnosticError, match="the largest has no more"):
        port_of("moondream3", {"explicit.single": True, "explicit.items": None})


WHOLE = """
class M:
    def m(self, x):
        xs = self.parse(x)
        n = self.new()
        out = []
        for one in xs:
            y = self.each(one)
            out.append(y + n)
        return out
"""
SPLIT = """
class M:
    def rest(self, ys):
        '''Finish them.'''
        n = self.new()
        out = []
        for y in ys:
            out.append(y + n)
        return out

    def m(self, x):
        xs = self.parse(x)
        return self.rest(self.each(one) for one in xs)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("", "", True),
        ("y + n", "y - n", False),
        ("self.each(one)", "self.each(xs)", False),
        ("for one in xs", "for one in xs if one", False),
        ("for one in xs", "for one in self.parse(x)", False),
        ("(self.each(one) for one in xs)", "([self.each(one) for one in xs])", False),
        ("for y in ys:", "for y in ys[1:]:", False),
        ("n = self.new()", "n = len(ys)", False),
        ("n = self.new()", "n = xs", False),
        ("n = self.new()", "one = n = self.new()", False),
        ("self, ys", "self, ys=()", False),
        ("    def rest", "    @cached\n    def rest", False),
        ("def rest", "def other", False),
    ],
)
def test_a_loop_is_put_back(old: str, new: str, same: bool) -> None:
    assert old in SPLIT
    split = SPLIT.replace(old, new) if old else SPLIT
    ast.parse(split)
    proven = prove_extraction(WHOLE, split, frozenset({("M", "m")}), None, "m.py", items="rest")
    assert (proven == ()) is same
    assert prove_extraction(WHOLE, WHOLE, frozenset({("M", "m")}), None, "m.py", items="rest") == ()


FINISH = "self._finish_image_embeddings(\n                self._project"
MUTANTS = (
    Mutant("features of another image", "image_inputs, features.split(num_crops)",
           "image_inputs, features.flip(0).split(num_crops)", "VCG650"),
    Mutant("no first token", FINISH, FINISH.replace("self._finish_image_embeddings", "list"), "VCG650"),
    Mutant("tilings of another image", "else [value[i] for", "else [value[0] for", "VCG650"),
)  # fmt: skip

test_a_mistake_in_the_port_is_rejected = planted(MUTANTS, MODEL, RELEASE, "moondream3", sampled=False)


@pytest.mark.slow  # 27 layers on crops of 729 patches: the model has these numbers in its code
def test_the_port_equals_the_pristine_tree(release_tree: Any) -> None:
    [request] = numeric_requests(port_of("moondream3"), release_tree(RELEASE))
    [report] = check_numerics_all([replace(request, options=replace(request.options, short=True))])
    assert [check for check in report.checks if not check.passed] == []
    assert report.hazards == ()
