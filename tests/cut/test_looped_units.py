"""A loop over a slice of the layers in a method of the model itself, on units that the model pads: MiniCPM-V 4.6."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted
from proven import assert_right

from scaffold.cut import cut_at_load, prove_cut
from scaffold.cut.loops import find_misfit, outline
from scaffold.diagnostics import DiagnosticError
from scaffold.workflow import prepare_port, prove_numerics

RELEASE = "0.33.0"
MODEL = "vllm/model_executor/models/minicpmv4_6.py"
FIRST, LAST = (
    f"for layer in self.vpm.encoder.layers[{which}]:" for which in (": insert_layer_id + 1", "insert_layer_id + 1 :")
)


def texts_of(port: Any, tree: Any) -> tuple[str, str]:
    [change] = [change for change in prepare_port(port, tree).changed if change.path == MODEL]
    return (change.before or b"").decode(), (change.after or b"").decode()


@pytest.mark.trees
def test_the_last_loop_becomes_a_method_of_the_model(release_tree: Any) -> None:
    before, after = texts_of(port_of("minicpmv4_6"), release_tree(RELEASE))
    for loop in (FIRST, LAST):
        assert (before.count(loop), after.count(loop)) == (1, 1)
    method = after.partition("def forward_layers(")[2].partition("\n    def ")[0]
    assert (FIRST in method, LAST in method) == (False, True)
    call = "hidden_states = (self.forward_layers if encode is None else encode)("
    assert call in after.partition("def get_vision_hidden_states(")[2].partition("def forward_layers(")[0]
    stand_in = after.partition("def encode_units(")[2]
    assert "if insert_layer_id != self.config.insert_layer_id:" in stand_in
    assert stand_in.index("insert_layer_id: Any") < stand_in.index("mask: torch.Tensor | None")


@pytest.mark.trees
@pytest.mark.parametrize("release", ["0.28.0", RELEASE])
def test_a_second_port_finds_the_method(release: str, release_tree: Any) -> None:
    """And not the other loop, which is the only one there now."""
    port = port_of("minicpmv4_6", None if release == RELEASE else OLDER)
    _, after = texts_of(port, release_tree(release))
    tree = release_tree(release).with_files({MODEL: after.encode()})
    assert [again for again in prepare_port(port, tree, replace=True).changed if again.path == MODEL] == []


#: Before 0.33 no item says whether it is merged.
OLDER = {f"fields.{prefix}use_vit_merger": None for prefix in ("", "video_")}


@pytest.mark.trees
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"forward.loop": "self.vpm.layers"}, "VCG443", "does not lead to a loop over `self.vpm.layers` in `self`"),
        (
            {"forward.call": "self.forward_layers(pixels, mask)"},
            "VCG448",
            "it takes `hidden_states`, `insert_layer_id`, `attention_mask`, the features first",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    changes: dict[str, Any], code: str, message: str, release_tree: Any
) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("minicpmv4_6", changes), release_tree(RELEASE))
    [problem] = caught.value.diagnostics
    assert (problem.code, message in problem.message) == (code, True), problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {"forward.loop": None},
        {"forward.call": "self.vpm.encoder(pixels, attention_mask=mask)"},
        {"forward.call": "self.forward_layers(mask, self.config.insert_layer_id, pixels)"},
        {"forward.call": "self.forward_layers(pixels, 6, mask)"},
        {"forward.call": "self.forward_layers(pixels, self.config.insert_layer_id, mask=mask)"},
    ],
)
def test_a_loop_is_what_is_called(changes: dict[str, Any]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        port_of("minicpmv4_6", changes)
    assert [(problem.code, problem.span is not None) for problem in caught.value.diagnostics] == [("VCG347", True)]


TINY = """\
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = 1
        self.tower = nn.Module()
        self.tower.layers = nn.ModuleList([nn.Identity(), nn.Identity(), nn.Identity()])

    def run(self, x, mask=None):
        first = self.first
        for layer in self.tower.layers[:first]:
            x = layer(x) + 1
        for layer in self.tower.layers[first:]:
            x = layer(x) * 3
            if mask is not None:
                x = x + mask
        return -x
"""


def test_a_running_model_gets_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stand-alone adapter asks for it."""
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    (tmp_path / "tiny_slices.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = import_module("tiny_slices").Model
    model, asked = cls(), "self.forward_layers(pixels, self.first, mask)"
    cut_at_load(model, cls, entries=["self.run"], call=asked, loop="self.tower.layers")
    assert model.run(2) == cls().run(2) == -27
    assert model.forward_layers(1, 2, None) == 3
    assert model.run(2, 5, encode=lambda x, first, mask: x * 100 + first * 10 + mask) == -315
    with pytest.raises(DiagnosticError, match="VCG462"):
        cut_at_load(
            cls(), cls, entries=["self.run"], call="self.forward_layers(pixels, mask)", loop="self.tower.layers"
        )


# -- names that several loops have ------------------------------------------------------------------------------------

METHOD = """\
def forward(self, y, cu):
    {above}
    for layer in self.layers[2:]:
        {body}
    {below}
    return y
"""


def given(above: str = "pass", below: str = "pass", body: str = "y = layer(y)") -> tuple[str, ast.FunctionDef, ast.For]:
    text = METHOD.format(above=above, below=below, body=body)
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    loop = next(node for node in ast.walk(function) if isinstance(node, ast.For) and "[2:]" in ast.unparse(node.iter))
    return text, function, loop


FREE = {
    "a loop above": ("for layer in self.layers[:2]: y = layer(y)", "pass"),
    "a loop below": ("pass", "for layer in self.others: y = layer(y)"),
    "both": ("for layer in self.layers[:2]: y = layer(y)", "for layer in self.others: y = layer(y)"),
}
BOUND = {
    "read below": ("pass", "y = layer.norm(y)"),
    "read below of a loop": ("for layer in self.layers[:2]: y = layer(y)", "y = layer.norm(y)"),
    "read where another loop starts": ("pass", "for layer in layer.others: y = layer(y)"),
    "read behind a loop without entries": ("pass", "for layer in self.others: y = layer(y)\n    else: y = layer(y)"),
    "kept by a loop": ("for layer in self.layers[:2]: y = keep(lambda: layer)", "y = y()"),
    "of a parameter": ("cu = layer = 1", "pass"),
}


def moved(text: str) -> str:
    """The method with the loop in one of its own, as a tool would write it that takes no care of names."""
    loop = text[text.index("    for layer in self.layers[2:]:") : text.index("y = layer(y)\n", text.index("[2:]")) + 13]
    call = "    y = (self.forward_layers if encode is None else encode)(y)\n"
    return (
        text.replace(loop, call).replace("cu):", "cu, encode=None):", 1)
        + f'\ndef forward_layers(self, y):\n    """Layers."""\n{loop}    return y\n'
    )


@pytest.mark.parametrize("kind", [*FREE, *BOUND])
def test_a_name_that_only_loops_set_is_no_result(kind: str) -> None:
    """The search and the proof say the same, and have nothing in common."""
    fits = kind in FREE
    text, function, loop = given(*(FREE | BOUND)[kind])
    assert (find_misfit(function, loop) is None) == fits
    if fits:
        assert outline(function, loop).arguments == ("y",)
    before, after = (f"class A:\n{indent(part, '    ')}" for part in (text, moved(text)))
    problems = prove_cut(before, after, frozenset({("A", "forward")}), "a.py")
    assert [problem.code for problem in problems] == ([] if fits else ["VCG646"])


INSIDE = """\
class A:
    def forward(self, y{parameter}):
        for layer in self.rest:
            {loop}
            y = layer(y)
        return y
{method}"""
LOOP = "for layer in self.layers:\n                y = layer(y)"
MOVED = """
    def forward_layers(self, y):
        \"\"\"Layers.\"\"\"
        for layer in self.layers:
            y = layer(y)
        return y
"""


def test_a_loop_inside_of_one_with_its_name_is_refused() -> None:
    """The outer loop would go on with another layer."""
    before = INSIDE.format(parameter="", loop=LOOP, method="")
    call = "y = (self.forward_layers if encode is None else encode)(y)"
    after = INSIDE.format(parameter=", encode=None", loop=call, method=MOVED)
    [problem] = prove_cut(before, after, frozenset({("A", "forward")}), "a.py")
    assert problem.code == "VCG646"
    # The very same move, where nothing reads the name behind it.
    rest = ("            y = layer(y)\n        return y", "        return y")
    assert prove_cut(before.replace("for layer in self.rest", "if y").replace(*rest),
                     after.replace("for layer in self.rest", "if y").replace(*rest, 1),
                     frozenset({("A", "forward")}), "a.py") == ()  # fmt: skip


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
def test_the_port_equals_the_pristine_tree(release_tree: Any) -> None:
    [report] = prove_numerics(port_of("minicpmv4_6"), release_tree(RELEASE), tails=("fa2",))
    assert_right(report, 100, 5)


MUTANTS = (
    Mutant("the other loop", LAST, FIRST, "VCG650"),
    Mutant("padding is not hidden", "padding, value=lowest", "padding, value=0.0", "VCG650"),
    Mutant(
        "the last rows are kept", "encode(units, mask)[:, :num_rows]", "encode(units, mask)[:, -num_rows:]", "VCG650"
    ),
    Mutant("every loop is taken for this one", "if insert_layer_id != self", "if insert_layer_id == self", "VCG657"),
)


test_a_planted_mistake_is_found = planted(MUTANTS, MODEL, RELEASE, "minicpmv4_6", sampled=False)
