"""The layout `rows` where the encoder, or the loop over its layers, gives several tensors of rows, and where items are
padded: Phi-4-reasoning-vision and Kanana-V of vLLM 0.33."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, cases, reports_of
from proven import assert_right

from scaffold.cut import cut_at_load
from scaffold.cut.loops import find_misfit, loop_method, outline
from scaffold.cut.proof import prove_cut
from scaffold.diagnostics import DiagnosticError
from scaffold.plan.cut import plan_way
from scaffold.protocol import SourceTree, find_model
from scaffold.tower.source import Program
from scaffold.verify.numeric import NumericReport
from scaffold.workflow import numeric_requests, prepare_port, prove_numerics

RELEASE = "0.33.0"
PHI4 = "vllm/model_executor/models/phi4siglip.py"
KANANA = "vllm/model_executor/models/kanana_v.py"


# -- the loop ---------------------------------------------------------------------------------------------------------


METHOD = """\
def forward(self, x, cu, keep: bool | None = None):
    y = x + 1
    {states}
    for layer in self.layers:
        if keep:
            {kept}
        y = layer(y, cu)
    return y, states
"""
TUPLE = "states: tuple[torch.Tensor, ...] = ()"


def loop_of(text: str) -> tuple[ast.FunctionDef, ast.For]:
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    [loop] = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    return function, loop


def test_a_loop_with_several_results_is_a_method() -> None:
    text = METHOD.format(states=TUPLE, kept="states += (y,)")
    function, loop = loop_of(text)
    assert find_misfit(function, loop, several=True) is None
    found = outline(function, loop)
    assert (found.results, found.arguments) == (("y", "states"), ("y", "states", "keep", "cu"))
    method = loop_method(function, found, text.splitlines()[3:7])
    header, *_, end = method.splitlines()
    states = "tuple[torch.Tensor, ...]"
    given = f"self, y: torch.Tensor, states: {states}, keep: bool | None, cu: Any"
    assert header == f"def forward_layers({given}) -> tuple[torch.Tensor, {states}]:"
    assert end == "    return y, states"


@pytest.mark.parametrize(
    ("states", "kept", "reason"),
    [
        (TUPLE, "states += (y,)", "it hands on `y`, `states`, and a graph gives one tensor"),
        ("states = []", "states += (y,)", "it changes `states` in place"),
        ("states = states or ()", "states += (y,)", "it changes `states` in place"),
        ("(states, _) = (), ()", "states += (y,)", "it changes `states` in place"),
        ("states = ()", "states.append(y)", "`states.append(y)` has an effect beside the features"),
        ("states = ()", "states = (y,)", "`states`, which is used behind it, does not go from layer to layer"),
    ],
)
def test_what_is_no_loop_with_several_results(states: str, kept: str, reason: str) -> None:
    function, loop = loop_of(METHOD.format(states=states, kept=kept))
    misfit = find_misfit(function, loop, several=not reason.startswith("it hands on"))
    assert misfit is not None
    assert misfit.reason == reason


BEFORE = METHOD.format(states=TUPLE, kept="states += (y,)")
CALL = "y, states = (self.forward_layers if encode is None else encode)(y, states, keep, cu)"
LINES = BEFORE.splitlines(keepends=True)
MOVED = "def forward_layers(self, y, states, keep, cu):\n    'The layers.'\n"
HEAD = "".join(LINES[:3]).replace("None):", "None, encode=None):")
AFTER = f"{HEAD}    {CALL}\n    return y, states\n{MOVED}{''.join(LINES[3:7])}    return y, states\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("    y, states = (self", "    states, y = (self"),
        ("    return y, states\n", "    return states, y\n"),
        ("    return y, states\n", "    return y, cu\n"),
        ("    return y, states\n", "    return y, states, keep\n"),
        ("    return y, states\n", "    return y, self.states\n"),
        ("    return y, states\n", "    return y\n"),
        ("    return y, states\n", "    return\n"),
        ("(y, states, keep, cu)\n", "(y, states, cu, keep)\n"),
    ],
)
def test_the_proof_of_several_results(old: str, new: str) -> None:
    last = AFTER.rindex(old) if "return" in old else AFTER.index(old)
    after = AFTER[:last] + new + AFTER[last + len(old) :]
    assert (after != AFTER) == bool(old)
    texts = [f"class A:\n{indent(text, '    ')}" for text in (BEFORE, after)]
    problems = prove_cut(*texts, frozenset({("A", "forward")}), "a.py")
    assert [problem.code for problem in problems] == (["VCG646"] if old else [])


TINY = """\
from torch import nn


class Encoder(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
        self.layers = nn.ModuleList([nn.Identity(), nn.Identity()])

    @classmethod
    def make(cls, by):
        \"\"\"As others do it.\"\"\"
        return cls(by)

    def forward(self, x, keep: bool = True):
        states = ()
        for layer in self.layers:
            if keep:
                states += (x,)
            x = layer(x) * self.by
        return states, x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder.make(3)

    def run(self, x):
        return self.encoder(**{"x": x, "keep": True})
"""


def test_a_running_model_gets_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    (tmp_path / "tiny_several.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = import_module("tiny_several").Model
    model = cls()
    cut_at_load(model, cls, entries=["self.run"], call="self.encoder", loop="self.layers")
    assert (model.run(2), model.encoder.forward_layers(2, (), False)) == (((2, 6), 18), (18, ()))
    assert model.run(2, encode=lambda x, states, keep: (x, (*states, keep))) == ((True,), 2)
    del sys.modules["tiny_several"]


@pytest.mark.parametrize(
    ("old", "new", "known"),
    [
        ("", "", True),
        ("return cls(by)", "return cls(by + 1)", False),
        ("return cls(by)", "return Encoder(by)", False),
        ("    @classmethod\n", "    @staticmethod\n", False),
        ("def make(cls, by)", "def make()", False),
        ("Encoder.make(3)", "Other.make(3)", False),
        ("Encoder.make(3)", "Encoder.other(3)", False),
    ],
)
def test_a_class_method_that_hands_its_arguments_on_makes_its_class(
    old: str, new: str, known: bool, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(TINY.replace(old, new, 1))
    program = Program(SourceTree(root=tmp_path, label="tree", release=None))
    found = program.attribute_class(program.owner("model.py", "Model"), "encoder", returned=True)
    assert (found is not None and found[1].name == "Encoder") is known


# -- the descriptor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "problem"),
    [
        ("phi4siglip", {"item.mask": "pixel_mask"}, "`pixel_mask` is no mask with an entry for each item"),
        ("phi4siglip", {"item.mask": "spatial_shapes"}, "`spatial_shapes` is no mask with an entry for each item"),
        ("phi4siglip", {"item.mask": "pixel_values"}, "`pixel_values` is no mask with an entry for each item"),
        ("phi4siglip", {"item.moved": ["spatial_shapes"]}, "counted by one grid, which stays on the host"),
        ("phi4siglip", {"item.values": None}, "counted by one grid, which stays on the host"),
        ("phi4siglip", {"item.values.spatial_shapes": [["h", "w"]]}, "counted by one grid, which stays on the host"),
        ("phi4siglip", {"item.shape": ["3", "h * p", "w * p"]}, "lie side by side as rows of patches"),
        ("kanana_v", {"item.mask": "pixel_mask", "fields.pixel_mask": "batched"}, "all inputs are batched"),
        ("kanana_v", {"forward.per_item": True}, "an encoder with several results is called once for a batch"),
    ],
)
def test_what_no_item_can_have_is_refused(model: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(DiagnosticError, match=problem):
        port_of(model, changes)


@pytest.mark.trees
def test_a_loop_with_several_results_needs_the_word(release_tree: Any) -> None:
    tree, spec = release_tree(RELEASE), port_of("kanana_v", {"forward.several": None})
    with pytest.raises(DiagnosticError) as caught:
        plan_way(spec, tree, find_model(tree, spec.module, spec.class_name))
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG443"
    assert problem.message == "the loop over the layers gives several values: `x`, `encoder_states`"


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.trees
@pytest.mark.parametrize("model", ["phi4siglip", pytest.param("kanana_v", marks=pytest.mark.slow)])
def test_the_port_equals_the_pristine_tree(model: str, release_tree: Any) -> None:
    [report] = prove_numerics(port_of(model), release_tree(RELEASE), tails=("fa3",))
    assert_right(report, 50, 2)


#: A model that reads two of the layers.
LAYERS = """\
from scaffold.verify.numeric.recipes import phi4siglip


class Layers(type(phi4siglip.RECIPE)):
    def model_config(self):
        config = super().model_config()
        config.mm_hidden_size = 96
        return config

    def build(self, host_class=None):
        def choose(module, args, kwargs):
            return args, {**kwargs, "select_layers": [-2, 1]}

        host, config = super().build(host_class)
        host.vision_tower.register_forward_pre_hook(choose, with_kwargs=True)
        return host, config


RECIPE = Layers()
"""
MUTANTS = (
    Mutant("none", "# What the model reads", "# Whatever the model reads", ""),
    Mutant("columns of the other result", "rows[:, start : start", "rows.flip(1)[:, start : start", "VCG650"),
    Mutant("both have the same columns", "start += shape.numel()", "start += 0", "VCG650"),
    Mutant("what is not read", "reads = any(", "reads = not any(", "VCG650"),
    Mutant("an image without padding", "int(row < h * w)", "int(row < 2)", "VCG657", "modality"),
)


@pytest.fixture(scope="module")
def reports(
    release_tree: Any, tmp_path_factory: pytest.TempPathFactory, asked: list[Mutant]
) -> dict[str, NumericReport]:
    file = tmp_path_factory.mktemp("recipe") / "layers.py"
    file.write_text(LAYERS)
    [request] = numeric_requests(port_of("phi4siglip"), release_tree(RELEASE), recipe=str(file))
    return reports_of(request, PHI4, MUTANTS, asked)


@pytest.mark.lab
@pytest.mark.trees
@pytest.mark.parametrize("mutant", cases(MUTANTS))
def test_mutants_are_rejected(mutant: Mutant, reports: dict[str, NumericReport]) -> None:
    report = reports[mutant.name]
    text = "\n".join(report.lines())
    assert report.passed is not bool(mutant.code), text
    problems = [problem for problem in report.diagnostics() if problem.code == mutant.code]
    assert bool(problems) is bool(mutant.code), text
    assert all(mutant.says in f"{problem.message} {problem.help}" for problem in problems), text


@pytest.mark.trees
def test_one_result_is_handed_on_as_it_is(release_tree: Any) -> None:
    """Only a port of several results has the methods for them."""
    [change] = [change for change in prepare_port(port_of("ovis2_5"), release_tree(RELEASE)).changed
                if change.path.endswith("ovis2_5.py")]  # fmt: skip
    assert b"_split_encoder_rows" not in (change.after or b"")
