"""The parameter for the longest sequence: where layers get it, what is declined, and that it changes nothing."""

from __future__ import annotations

import ast
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted
from proven import assert_right

from scaffold.cut import cut_at_load, prove_cut
from scaffold.cut.hoist import documented, find_computed, has_room
from scaffold.diagnostics import DiagnosticError
from scaffold.syntax import FunctionNode
from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import numeric_requests, prepare_port

RELEASE = "0.33.0"
KEYE = "vllm/model_executor/models/keye.py"
COMPUTED = "max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()"


def function_of(text: str) -> FunctionNode:
    [function] = ast.parse(text).body
    assert isinstance(function, FunctionNode)
    return function


# -- what is recognised -----------------------------------------------------------------------------------------------

LAYER = """\
def forward(self, x, cu_seqlens):
    {statement}
    return self.attn({use})
"""


def layer(statement: str = COMPUTED, use: str = "x, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen") -> FunctionNode:
    return function_of(LAYER.format(statement=statement, use=use))


@pytest.mark.parametrize(
    "function",
    [
        layer(),
        layer("if self.windowed: x = -x\n    " + COMPUTED),
        layer(f"if cu_seqlens is None:\n        raise ValueError\n    else:\n        {COMPUTED}"),
        layer(use="self.attn(x, max_seqlen=max_seqlen), max_seqlen=max_seqlen"),
    ],
)
def test_what_computes_the_longest_sequence(function: FunctionNode) -> None:
    found = find_computed(function)
    assert found is not None
    assert ast.unparse(found) == COMPUTED


@pytest.mark.parametrize(
    "function",
    [
        layer("max_seqlen = cu_seqlens[1:].max()"),  # not the longest
        layer("max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).min()"),
        layer(f"{COMPUTED} + 1"),
        layer("max_seqlen = (self.cu[1:] - self.cu[:-1]).max()"),  # nothing that a caller knows
        layer("cu_seqlens = cu_seqlens * 2\n    " + COMPUTED),  # of other offsets than the caller's
        layer(f"for x in cu_seqlens:\n        {COMPUTED}"),  # several times
        layer(f"{COMPUTED}\n    max_seqlen = max_seqlen + 1"),
        layer(COMPUTED, "x[:max_seqlen], max_seqlen=max_seqlen"),  # not a bound there: a size
        layer(COMPUTED, "x, cu_seqlens, max_seqlen"),  # handed to something that is not known to take a bound
        layer("longest = max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()"),
        function_of("def forward(self, x, max_seqlen): return self.attn(x, max_seqlen=max_seqlen)"),
        function_of(f"def forward(self, cu_seqlens, max_seqlen):\n    {COMPUTED}"),
    ],
)
def test_what_does_not(function: FunctionNode) -> None:
    assert find_computed(function) is None


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("def forward(self, x): return self.attn(x)", True),
        ("def forward(self, x, max_seqlen=None): return self.attn(x)", False),
        ("def forward(self, x): return self.attn(x, max_seqlen=None)", False),
        ("def forward(self, x):\n    max_seqlen = 4\n    return self.attn(x)", False),
        ("@compiled\ndef forward(self, x): return self.attn(x)", False),
    ],
)
def test_what_may_hand_it_on(text: str, room: bool) -> None:
    assert has_room(function_of(text)) is room


def test_a_docstring_that_lists_arguments_lists_this_one() -> None:
    before = 'def f(self, x):\n    """Run.\n\n    Args:\n        x: What.\n\n    More.\n    """\n'
    assert documented(before, "y", "Why.") == before.replace("What.\n", "What.\n        y: Why.\n")
    assert documented('def f(self):\n    """Run."""\n', "y", "Why.") == 'def f(self):\n    """Run."""\n'


# -- the proof --------------------------------------------------------------------------------------------------------

BEFORE = """\
class Layer:
    def forward(self, x, cu_seqlens):
        self.check(x)
        max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
        return self.attn(x, cu_seqlens, max_seqlen=max_seqlen)

class Block:
    def forward(self, x, cu_seqlens, *, scale):
        \"\"\"Run.

        Args:
            x: Rows.
        \"\"\"
        return self.mlp(self.layer(x, cu_seqlens=cu_seqlens), scale)

class Encoder:
    def forward(self, x, cu_seqlens):
        for block in self.blocks:
            x = block(x, cu_seqlens, scale=2)
        return self.norm(x)
"""
AFTER = """\
class Layer:
    def forward(self, x, cu_seqlens, max_seqlen: torch.Tensor | None = None):
        self.check(x)
        if max_seqlen is None:
            max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
        return self.attn(x, cu_seqlens, max_seqlen=max_seqlen)

class Block:
    def forward(self, x, cu_seqlens, *, scale, max_seqlen=None):
        \"\"\"Run.

        Args:
            x: Rows.
            max_seqlen: A bound.
        \"\"\"
        return self.mlp(self.layer(x, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen), scale)

class Encoder:
    def forward(self, x, cu_seqlens, max_seqlen=None, encode=None):
        x = (self.forward_layers if encode is None else encode)(x, cu_seqlens, max_seqlen)
        return self.norm(x)

    def forward_layers(self, x, cu_seqlens, max_seqlen):
        \"\"\"The layers.\"\"\"
        for block in self.blocks:
            x = block(x, cu_seqlens, scale=2, max_seqlen=max_seqlen)
        return x
"""
METHODS = frozenset({("Layer", "forward"), ("Block", "forward"), ("Encoder", "forward")})
BOUNDED = dict.fromkeys(METHODS, ("max_seqlen",))


def test_a_parameter_that_nothing_hands_in_is_proven() -> None:
    assert prove_cut(BEFORE, AFTER, METHODS, "a.py", BOUNDED) == ()
    branch = BEFORE.replace("        max_seqlen = (", "        if self.full:\n            max_seqlen = (")
    guarded = AFTER.replace("        if max_seqlen is None:\n            max", "        if self.full:\n"
                            "            if max_seqlen is None:\n                max")  # fmt: skip
    assert prove_cut(branch, guarded, METHODS, "a.py", BOUNDED) == ()


def test_only_what_is_said_to_have_it_may() -> None:
    others = {method: names for method, names in BOUNDED.items() if method != ("Block", "forward")}
    problems = prove_cut(BEFORE, AFTER, METHODS, "a.py", others)
    assert [problem.message.split("`")[1] for problem in problems] == ["Block.forward"]


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("Layer", "max_seqlen is None", "max_seqlen is not None"),
        ("Layer", "max_seqlen is None", "cu_seqlens is None"),
        ("Layer", "cu_seqlens[1:] -", "cu_seqlens[2:] -"),  # another value
        ("Layer", ".max()\n", ".max()\n            x = x + 1\n"),  # more under the condition
        ("Layer", ".max()\n", ".max()\n        else:\n            x = x + 1\n"),
        ("Layer", "        self.check(x)\n", "        self.check(x)\n        max_seqlen = 5\n"),
        ("Layer", "        if max_seqlen is None:\n            max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()\n",
         ""),
        ("Layer", "cu_seqlens, max_seqlen=max_seqlen", "cu_seqlens, max_seqlen=x"),
        ("Layer", "        self.check(x)", "        self.check(max_seqlen)"),
        ("Layer", "Tensor | None = None", "Tensor | None = 0"),  # a default that skips the statement
        ("Layer", ": torch.Tensor | None = None", ""),  # foreign callers have to give it
        ("Layer", "x, cu_seqlens, max_seqlen: torch.Tensor | None = None", "x, max_seqlen=None, cu_seqlens=None"),
        ("Block", "max_seqlen=max_seqlen", "max_seqlen=cu_seqlens"),  # something else is handed on
        ("Block", "self.layer(x, cu_seqlens=cu_seqlens", "self.layer(x, cu_seqlens=max_seqlen"),
        ("Block", "max_seqlen=max_seqlen), scale", "max_seqlen=max_seqlen), max_seqlen"),
        ("Block", "max_seqlen=max_seqlen), scale)", "max_seqlen=max_seqlen), scale) + (max_seqlen or 0)"),
        ("Block", "scale, max_seqlen=None", "scale, max_seqlen=0"),
        ("Block", "x: Rows.", "x: Columns."),
        ("Encoder", "(x, cu_seqlens, max_seqlen)\n        return", "(x, cu_seqlens, None)\n        return"),
        ("Encoder", "        x = (self", "        max_seqlen = len(x)\n        x = (self"),
        ("Encoder", "scale=2, max_seqlen=max_seqlen", "scale=3, max_seqlen=max_seqlen"),
    ],
)  # fmt: skip
def test_another_use_of_it_is_refused(method: str, old: str, new: str) -> None:
    begin = AFTER.index(f"class {method}:")
    changed = AFTER[:begin] + AFTER[begin:].replace(old, new, 1)
    assert changed != AFTER
    ast.parse(changed)
    problems = prove_cut(BEFORE, changed, METHODS, "a.py", BOUNDED)
    assert [(problem.code, problem.message.split("`")[1]) for problem in problems] == [("VCG646", f"{method}.forward")]


def test_a_statement_that_runs_twice_may_not_wait_for_none() -> None:
    """The second time it would keep the first value."""
    for head in ("for cu_seqlens in x:", "while x:"):
        before = BEFORE.replace("        max_seqlen = (", f"        {head}\n            max_seqlen = (")
        after = AFTER.replace("        if max_seqlen is None:\n            max",
                              f"        {head}\n            if max_seqlen is None:\n                max")  # fmt: skip
        assert [problem.code for problem in prove_cut(before, after, METHODS, "a.py", BOUNDED)] == ["VCG646"]


# -- real trees -------------------------------------------------------------------------------------------------------


@pytest.mark.trees
def test_keyes_layers_get_it(release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    # Somebody's comments on the statements that change.
    noted = tree.read(KEYE).replace(f"        {COMPUTED}\n", f"        # of all\n        {COMPUTED}  # waits\n")
    last = "                rope_emb=rope_emb,{}\n            )\n        return hidden_states"
    noted = noted.replace(last.format(""), last.format("  # tables"))
    assert noted.count("# waits") == noted.count("# tables") == 1
    port = prepare_port(port_of("keye"), tree.with_files({KEYE: noted.encode()}))
    [after] = [(change.after or b"").decode() for change in port.changed if change.path == KEYE]
    assert [f"{one.class_name}.{one.function}" for one in port.plan.way.hoisted] == [
        "KeyeSiglipAttention.forward",
        "KeyeSiglipEncoderLayer.forward",
        "KeyeSiglipEncoder.forward",
    ]
    assert f"        # of all\n        if max_seqlen is None:\n            {COMPUTED}  # waits\n" in after
    assert "rope_emb=rope_emb,  # tables\n                max_seqlen=max_seqlen,\n" in after
    assert after.count("max_seqlen: torch.Tensor | None = None,\n") == 3

    again = prepare_port(port_of("keye"), tree.with_files({KEYE: after.encode()}), replace=True)
    assert [change for change in again.changed if change.path == KEYE] == []


LAYER_FORWARD = (
    "    def forward(\n        self,\n        hidden_states: torch.Tensor,\n        attention_mask: torch.Tensor,\n"
)
AFTER_ATTENTION = "max_seqlen=max_seqlen,\n        )\n        context_layer = re"
OTHER = "`KeyeSiglipAttention.forward` does not compute it once, of offsets that it is given, for attention alone"


@pytest.mark.trees
@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        (COMPUTED, f"{COMPUTED} + 1", OTHER),
        (AFTER_ATTENTION, AFTER_ATTENTION.replace(")", ")[:max_seqlen]", 1), OTHER),
        (LAYER_FORWARD, f"    @compiled\n{LAYER_FORWARD}",
         "`KeyeSiglipEncoderLayer.forward` has that name already, or a decorator"),
    ],
)  # fmt: skip
def test_what_is_declined_says_why(old: str, new: str, note: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    assert tree.read(KEYE).count(old) == 1
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("keye"), tree.with_files({KEYE: tree.read(KEYE).replace(old, new).encode()}))
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG448"
    assert any(note in line and "keye.py:" in line for line in problem.notes), problem.notes


@pytest.mark.trees
def test_a_subclass_with_a_layer_of_its_own_is_refused(release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    heir = "class Other(KeyeSiglipAttention):\n    def forward(self, hidden_states, cu_seqlens):\n        return 0\n"
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("keye"), tree.with_files({KEYE: f"{tree.read(KEYE)}\n\n{heir}".encode()}))
    [problem] = caught.value.diagnostics
    assert (problem.code, problem.message) == (
        "VCG444",
        "Other overrides `KeyeSiglipAttention.forward`, which gets a parameter",
    )


TINY = """\
import torch
from torch import nn


class Layer(nn.Module):
    def forward(self, x, cu_seqlens):
        max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
        return self.attention(x, max_seqlen=max_seqlen)

    def attention(self, x, max_seqlen):
        return x + max_seqlen


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x, cu_seqlens):
        for index, layer in enumerate(self.layers):
            x = layer(x, cu_seqlens)
        return -x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def run(self, x):
        return self.encoder(x, torch.tensor([0, 3, 5]))
"""


def test_a_running_model_gets_the_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
    (tmp_path / "tiny_hoist.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = import_module("tiny_hoist").Model
    model, offsets = cls(), torch.tensor([0, 3, 5])
    cut_at_load(model, cls, entries=["self.run"], call="self.encoder", loop="self.layers")
    assert int(model.run(1)) == -7
    assert int(model.encoder.forward_layers(1, offsets, torch.tensor(10))) == 21
    assert int(model.encoder.forward_layers(1, offsets, None)) == 7
    with pytest.raises(TypeError):
        cls().encoder.layers[0](1, offsets, max_seqlen=None)  # other models keep their layers


# -- numbers ----------------------------------------------------------------------------------------------------------

MUTANTS = (
    Mutant("a bound of the first batch", "torch.tensor(num_rows, dtype=torch.int32)", "torch.tensor(8)", "VCG650"),
    Mutant("not handed on", "rope_emb=rope_emb,\n                max_seqlen=max_seqlen,\n", "rope_emb=rope_emb,\n",
           "VCG652"),
    Mutant("computed of nothing", COMPUTED, "max_seqlen = cu_seqlens[1] * 0 + 1", "VCG650"),
    Mutant("handed to the norm", "self.layer_norm1(hidden_states)",
           "self.layer_norm1(hidden_states, max_seqlen=max_seqlen)", "VCG654"),
)  # fmt: skip


@pytest.mark.lab
def test_keyes_port_equals_the_pristine_tree(release_tree: Any) -> None:
    [request] = numeric_requests(port_of("keye"), release_tree(RELEASE))
    [report] = check_numerics_all([replace(request, options=replace(request.options, short=True))])
    assert_right(report, 1, 1)
    assert report.hazards == ()


test_a_wrong_parameter_is_rejected = planted(MUTANTS, KEYE, RELEASE, "keye", sampled=False)
