"""Explicit ports of layers in a loop: the form, refusals, the proof that puts statements back, and the numbers."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted

from scaffold.cut import prove_cut
from scaffold.diagnostics import DiagnosticError
from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import numeric_requests, prepare_port, prove_numerics

RELEASE = "0.33.0"
MODELS = "vllm/model_executor/models"
KEYE, PADDLE = f"{MODELS}/keye.py", f"{MODELS}/paddleocr_vl.py"
FOREIGN = ("encode=", "Mixin", "except", "inspect", "pytree", "mock", "__dict__", "vars(")


def text_of(prepared: Any, path: str) -> str:
    [change] = [change for change in prepared.changed if change.path == path]
    return (change.after or b"").decode()


@pytest.mark.trees
@pytest.mark.parametrize(("model", "path", "lines"), [("keye", KEYE, 260), ("paddleocr_vl", PADDLE, 230)])
def test_a_port_has_no_mixin_and_no_second_way_through_the_model(
    model: str, path: str, lines: int, release_tree: Any
) -> None:
    prepared = prepare_port(port_of(model), release_tree(RELEASE))
    assert not prepared.plan.reenters
    package = [one for one in prepared.changed if one.path.startswith(MODELS)]
    assert [one.path for one in package] == [path]
    [change] = package
    before = (change.before or b"").decode().splitlines()
    added = [line for line in (change.after or b"").decode().splitlines() if line not in before]
    assert [word for word in FOREIGN if word in "\n".join(added)] == []
    assert len(added) < lines


@pytest.mark.trees
def test_offsets_go_to_the_device_once(release_tree: Any) -> None:
    """PaddleOCR-VL's encoder copies them, Keye's gets them there."""
    texts = [text_of(prepare_port(port_of(one), release_tree(RELEASE)), at) for one, at in TWO]
    ports = [text.partition("def _get_encoder_layer_inputs")[2].partition("    def ")[0] for text in texts]
    assert ["async_tensor_h2d(" in one for one in ports] == [True, False]
    assert ["torch.tensor(offsets, dtype=torch.int32)" in one for one in ports] == [False, True]


@pytest.mark.trees
def test_grids_have_a_type_that_the_encoder_takes(release_tree: Any) -> None:
    """Lists are invariant: PaddleOCR-VL's encoder takes lists of grids among them."""
    texts = [text_of(prepare_port(port_of(one), release_tree(RELEASE)), at) for one, at in TWO]
    types = [
        text.partition("_get_encoder_cudagraph_grid_thw(")[2].partition("-> ")[2].partition(":")[0] for text in texts
    ]
    assert types == ["list[tuple[int, int, int]]", "list[Any]"]


@pytest.mark.trees
def test_embeddings_of_their_own_memory_are_not_copied(release_tree: Any) -> None:
    """Keye's projector comes of a method that its class implements."""
    tree, copied = release_tree(RELEASE), "embeds.clone() if clone else embeds"
    texts = [text_of(prepare_port(port_of(one), tree), at) for one, at in TWO]
    assert [copied in text for text in texts] == [False, False]
    made = "processed_features.append(hidden_states)"
    assert made in tree.read(KEYE)
    views = tree.with_files({KEYE: tree.read(KEYE).replace(made, made.replace("hidden_states", "image_grid")).encode()})
    assert copied in text_of(prepare_port(port_of("keye"), views), KEYE)


TWO = (("keye", KEYE), ("paddleocr_vl", PADDLE))


@pytest.mark.trees
@pytest.mark.parametrize(("model", "path"), TWO)
def test_a_second_port_changes_nothing(model: str, path: str, release_tree: Any) -> None:
    port, tree = port_of(model), release_tree(RELEASE)
    ported = tree.with_files({one.path: one.after or b"" for one in prepare_port(port, tree).changed})
    assert prepare_port(port, ported, replace=True).changed == ()


@pytest.mark.trees
def test_layers_that_compute_the_longest_sequence_take_it(release_tree: Any) -> None:
    text = text_of(prepare_port(port_of("keye"), release_tree(RELEASE)), KEYE)
    assert text.count("        if max_seqlen is None:\n") == 1
    # The model's own code computes it in the layers still; the port's eager calls hand it over on the host.
    assert "attn_cu_seqlens, rope_emb\n        )\n        return hidden_states\n" in text
    assert text.count("max(t * h * w for t, h, w in grid_thw), dtype=torch.int32") == 1


@pytest.mark.trees
def test_a_graph_may_hold_the_layers_alone(release_tree: Any) -> None:
    prepared = prepare_port(port_of("keye", {"explicit.held": None}), release_tree(RELEASE))
    assert text_of(prepared, KEYE).count("        return features.squeeze(0)\n") == 2


@pytest.mark.trees
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"explicit.offsets": "offsets"}, "reads no `offsets`"),
        ({"explicit.rotary": None}, "reads `rope_emb`, which is no buffer"),
        ({"explicit.longest": "longest"}, "reads no `longest`"),
    ],
)
def test_a_variable_that_the_layers_do_not_read_is_refused(
    changes: dict[str, Any], says: str, release_tree: Any
) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("keye", changes), release_tree(RELEASE))
    assert {problem.code for problem in caught.value.diagnostics} == {"VCG443"}
    assert any(says in problem.message for problem in caught.value.diagnostics)


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"explicit.layers": None}, ["calls its encoder once", "no use for `post`", "no use for `held`"]),
        ({"explicit.post": None}, ["needs `post`"]),
        ({"explicit.after": "_finish"}, ["has no use for `after`"]),
        ({"explicit.lengths": "lengths"}, ["has no use for `lengths`"]),
        ({"item.shape": ["h * p", "w * p"]}, ["takes images as rows of patches"]),
        ({"item.zeros": {"positions": ["h * w"]}}, ["takes images as rows of patches"]),
        ({"forward.loop": None}, ["takes images as rows of patches"]),
    ],
)
def test_keys_of_another_form_are_refused(changes: dict[str, Any], places: list[str]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        port_of("keye", changes)
    found = [problem.message for problem in caught.value.diagnostics if problem.code == "VCG349"]
    assert [says for says in places if not any(says in message for message in found)] == []


LOOP = "        for encoder_layer in self.layers:\n"
COPIED = "        device = inputs_embeds.device\n        hidden_states = inputs_embeds\n"


@pytest.mark.trees
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (LOOP, f"        if cu_seqlens is None:\n            return hidden_states\n{LOOP}", "may leave its method"),
        (
            "        flatten_image_grid_thw = self.flatten_list(image_grid_thw)\n\n        if width",
            "        flatten_image_grid_thw = self.flatten_list(image_grid_thw)\n        scale = 1\n\n        if width",
            "",
        ),
    ],
)
def test_code_of_another_form_is_run_again(old: str, new: str, says: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    above, found, below = tree.read(PADDLE).rpartition(old)
    assert found
    prepared = prepare_port(port_of("paddleocr_vl"), tree.with_files({PADDLE: f"{above}{new}{below}".encode()}))
    notes = [note.message for note in prepared.notes if note.code == "VCG466"]
    assert [says in note for note in notes] == [True] * bool(says)


@pytest.mark.trees
def test_a_call_must_hand_over_what_is_read(release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    given = "        cu_seqlens: torch.Tensor | None = None,\n        image_grid_thw: list["
    above, found, below = tree.read(PADDLE).rpartition(given)
    assert found
    read = "        hidden_states = inputs_embeds\n\n        flatten"
    text = f"{above}        scale,\n{given}{below}".replace(read, read.replace("_embeds\n", "_embeds * scale\n"))
    changed = tree.with_files({PADDLE: text.encode()})
    [note] = [one for one in prepare_port(port_of("paddleocr_vl"), changed).notes if one.code == "VCG466"]
    assert "leaves out" in note.message


@pytest.mark.trees
def test_a_release_that_leaves_rows_unwritten_gets_a_mixin(release_tree: Any) -> None:
    prepared = prepare_port(port_of("keye"), release_tree("0.30.0"))
    assert ["leaves rows unwritten" in note.message for note in prepared.notes if note.code == "VCG466"] == [True]
    assert prepared.plan.reenters


WHOLE = """
class M:
    def m(self, x, y=None):
        a = x + 1
        b = [a, x]
        for layer in self.layers:
            a = layer(a, b, y)
        return a
"""
SPLIT = """
class M:
    def before(self, x=None):
        a = x + 1
        b = [a, x]
        return a, b

    def forward_layers(self, a, b, y):
        '''The layers, one after the other.'''
        for layer in self.layers:
            a = layer(a, b, y)
        return a

    def m(self, x, y=None):
        a, b = self.before(x)
        a = self.forward_layers(a, b, y)
        return a
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("", "", True),
        ("a = x + 1", "a = x + 2", False),
        ("a = layer(a, b, y)", "a = layer(a, a, y)", False),
        ("self.forward_layers(a, b, y)", "self.forward_layers(a, b, x)", False),
        ("self.before(x)", "self.before()", False),
        ("def before", "def behind", False),
        ("return a\n", "return b\n", False),
    ],
)
def test_statements_and_loop_are_put_back(old: str, new: str, same: bool) -> None:
    split = SPLIT.replace(old, new) if old else SPLIT
    ast.parse(split)
    assert (prove_cut(WHOLE, split, frozenset({("M", "m")}), "m.py", first="before") == ()) is same
    assert prove_cut(SPLIT, SPLIT, frozenset({("M", "m")}), "m.py", first="before") == ()


TOLD = {("M", "forward_layers"): ("max_seqlen",), ("M", "layer"): ("max_seqlen",)}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("", "", True),
        ("max_seqlen=None):\n        '''", "max_seqlen):\n        '''", False),
        ("max_seqlen=max_seqlen", "max_seqlen=a", False),
        ("a = layer(a, b, y, max_seqlen=max_seqlen)", "a = layer(a, max_seqlen, y, max_seqlen=max_seqlen)", False),
    ],
)
def test_the_loops_method_may_take_the_longest_sequence(old: str, new: str, same: bool) -> None:
    told = SPLIT.replace("(self, a, b, y):", "(self, a, b, y, max_seqlen=None):")
    told = told.replace("layer(a, b, y)", "layer(a, b, y, max_seqlen=max_seqlen)")
    assert old in told
    split = told.replace(old, new) if old else told
    assert (prove_cut(WHOLE, split, frozenset({("M", "m")}), "m.py", TOLD, "before") == ()) is same


MUTANTS = (
    Mutant("offsets of one sequence", "[0, *accumulate(t * h * w for t, h, w in grid_thw)]",
           "[0, sum(t * h * w for t, h, w in grid_thw)]", "VCG650"),
    Mutant("grids of the batch", "image_grid_thw=batch_mm_kwargs[\"image_grid_thw\"]",
        "image_grid_thw=batch_mm_kwargs[\"image_grid_thw\"].flip(0)", "VCG650"),
    Mutant("one sequence too few", "merge]] * max_batch_size", "merge]] * (max_batch_size - 1)", "VCG654"),
    Mutant("no norm", "self.visual.vision_model.post_layernorm(features).squeeze(0)", "features.squeeze(0)", "VCG650"),
    Mutant("a bound of one token", 'max_seqlen = torch.tensor(len(inputs["hidden_states"]), dtype=torch.int32)',
           "max_seqlen = torch.tensor(4, dtype=torch.int32)", "VCG650"),
)  # fmt: skip

test_a_mistake_in_the_port_is_rejected = planted(MUTANTS, KEYE, RELEASE, "keye")


@pytest.mark.lab
def test_the_port_of_keye_equals_the_pristine_tree(release_tree: Any) -> None:
    [request] = numeric_requests(port_of("keye"), release_tree(RELEASE))
    [report] = check_numerics_all([replace(request, options=replace(request.options, short=True))])
    assert [check for check in report.checks if not check.passed] == []
    assert report.hazards == ()


@pytest.mark.slow
def test_the_port_of_paddleocr_equals_the_pristine_tree(release_tree: Any) -> None:
    [report] = prove_numerics(port_of("paddleocr_vl"), release_tree(RELEASE), tails=("fa2",))
    assert [check for check in report.checks if not check.passed] == []
