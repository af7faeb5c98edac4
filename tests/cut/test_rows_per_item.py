"""The layout `rows` where the model calls its encoder once for each item: DeepSeek-V4's layers get offsets."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, assert_rejected, cases, reports_of
from proven import assert_right

from scaffold.cut import cut_at_load, prove_cut
from scaffold.diagnostics import DiagnosticError
from scaffold.plan.cut import plan_way
from scaffold.protocol import find_model
from scaffold.verify.numeric import NumericReport
from scaffold.workflow import numeric_requests, prepare_port, prove_numerics

RELEASE = "0.33.0"
MODEL = "vllm/models/deepseek_v4/common/vl_model.py"
TOWER = "vllm/models/deepseek_v4/common/vision.py"
ARCHITECTURE = "DeepseekV4ForConditionalGeneration"
SEQUENCES = ("cu_seqlens", "max_seqlen")

# -- the parameters ---------------------------------------------------------------------------------------------------


@pytest.mark.trees
@pytest.mark.parametrize(
    ("release", "classes"),
    [
        # Before 0.31 not even attention's layer takes offsets.
        ("0.30.0", ["DeepseekV4VisionAttention", "DeepseekV4VisionBlock", "DeepseekV4ViT"]),
        ("0.31.0", ["DeepseekV4ViT"]),
        (RELEASE, ["DeepseekV4ViT"]),
    ],
)
def test_methods_that_take_no_offsets_get_them(release: str, classes: list[str], release_tree: Any) -> None:
    tree, spec = release_tree(release), port_of("deepseek_v4")
    way = plan_way(spec, tree, find_model(tree, spec.module, spec.class_name))
    assert [one.class_name for one in way.hoisted] == classes
    assert {one.names for one in way.hoisted} == {SEQUENCES}
    assert [station.loop.arguments for station in way.stations if station.loop] == [("x", "cos", "sin", *SEQUENCES)]

    port = prepare_port(spec, tree)
    files = {change.path: change.after or b"" for change in port.changed}
    assert files[TOWER].count(b"x = block(x, cos, sin, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)") == 1
    again = prepare_port(spec, tree.with_files(files), replace=True)
    assert [change for change in again.changed if change.path in (TOWER, MODEL)] == []


@pytest.mark.trees
@pytest.mark.parametrize(("release", "told"), [("0.31.0", 0), (RELEASE, 1)])
def test_a_type_check_is_told_that_the_model_has_its_encoder(release: str, told: int, release_tree: Any) -> None:
    """The class says `self.vision: DeepseekV4ViT | None`, and vLLM checks types of model files since 0.32."""
    port = prepare_port(port_of("deepseek_v4"), release_tree(release))
    [after] = [(change.after or b"").decode() for change in port.changed if change.path == MODEL]
    method = after.partition("    def _captured_encoder(self)")[2].partition("    @torch")[0]
    assert method.count("assert self.vision is not None") == told


ATTENTION = "o = self.attn(q, k, v.unsqueeze(0))"
LAYER = "class DeepseekV4VisionAttention(nn.Module):"
BLOCK_FORWARD = "    def forward(\n        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor\n"
#: Changes of the tower of 0.30: fragment, the other one, and the note.
UNTOLD = {
    "offsets of its own": (
        ATTENTION, "o = self.attn(q, k, v.unsqueeze(0), cu_seqlens=self.ends)",
        "`DeepseekV4VisionAttention.forward` tells attention something else already",
    ),
    "something else by place": (
        ATTENTION, "o = self.attn(q, k, v.unsqueeze(0), self.ends)",
        "`DeepseekV4VisionAttention.forward` tells attention something else already",
    ),
    "no matter what": (
        ATTENTION, "o = self.attn(q, k, v.unsqueeze(0), **self.more)",
        "`DeepseekV4VisionAttention.forward` tells attention something else already",
    ),
    "a layer with any arguments": (
        "x = x + self.attn(self.norm1(x), cos, sin)", "x = x + self.attn(self.norm1(x), cos, sin, **self.more)",
        "`DeepseekV4VisionBlock.forward` tells attention something else already",
    ),
    "the name is taken": (
        "n = x.size(0)\n        qkv", "n = max_seqlen = x.size(0)\n        qkv",
        "`DeepseekV4VisionAttention.forward` has such names already, or a decorator",
    ),
    "a decorator": (
        BLOCK_FORWARD, f"    @compiled\n{BLOCK_FORWARD}",
        "`DeepseekV4VisionAttention.forward` has such names already, or a decorator",
    ),
    "no attention": ("self.attn = MMEncoderAttention(", "self.attn = DeepseekV4RMSNorm(", ""),
}  # fmt: skip


@pytest.mark.trees
@pytest.mark.parametrize("change", UNTOLD)
def test_layers_that_cannot_be_told_are_refused(change: str, release_tree: Any) -> None:
    tree, (old, new, note) = release_tree("0.30.0"), UNTOLD[change]
    text = tree.read(TOWER)
    assert old in text
    # The first of them is in attention's own layer.
    changed = tree.with_files({TOWER: text.replace(old, new, 1).encode()})
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("deepseek_v4"), changed)
    problems = {problem.code: problem for problem in caught.value.diagnostics}
    assert "attention of the layers cannot be told where items end" in problems["VCG448"].message
    notes = " ".join(problems["VCG448"].notes)
    assert "no `cu_seqlens` is handed in: " + note in notes if note else "handed in" not in notes


@pytest.mark.trees
def test_layers_that_are_told_something_are_refused(release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    text = tree.read(TOWER)
    for given in ("max_seqlen=self.longest", "self.ends", "**self.more"):
        loop = "            x = block(x, cos, sin)\n"
        assert text.count(loop) == 1
        changed = tree.with_files({TOWER: text.replace(loop, loop.replace("sin)", f"sin, {given})")).encode()})
        with pytest.raises(DiagnosticError) as caught:
            prepare_port(port_of("deepseek_v4"), changed)
        [problem] = caught.value.diagnostics
        assert any("`DeepseekV4ViT.forward` tells attention something else already" in note for note in problem.notes)


def test_an_item_of_several_units_is_no_item_a_call() -> None:
    with pytest.raises(DiagnosticError, match="an item of several units has several sequences"):
        port_of("lfm2_vl", {"forward.per_item": True})


TINY = """\
import torch
from torch import nn


class MMEncoderAttention(nn.Module):
    def forward(self, q, k, v, cu_seqlens=None, max_seqlen=None):
        return q if cu_seqlens is None else q * max_seqlen


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = MMEncoderAttention()

    def forward(self, x):
        \"\"\"Attend.

        Args:
            x: Rows.
        \"\"\"
        return self.attn(x, x, x) + 1


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return -x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def run(self, items):
        return [self.encoder(x) for x in items]
"""


def test_a_running_model_gets_the_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    (tmp_path / "tiny_per_item.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = import_module("tiny_per_item").Model
    model = cls()
    cut_at_load(model, cls, entries=["self.run"], call="self.encoder", loop="self.layers", per_item=True)
    assert model.run([1, 2]) == [-3, -4]
    assert model.encoder.forward_layers(1, None, None) == 3
    assert model.encoder.forward_layers(1, [0, 1], 10) == 111
    assert "max_seqlen: A bound" in type(model.encoder.layers[0]).forward.__doc__
    with pytest.raises(TypeError):
        cls().encoder.layers[0](1, cu_seqlens=None)  # other models keep their layers


# -- the proof --------------------------------------------------------------------------------------------------------

BEFORE = """\
class Layer:
    def forward(self, x):
        return self.attn(x, x, x) + self.mlp(x)

class Encoder:
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
"""
AFTER = """\
class Layer:
    def forward(self, x, cu_seqlens: torch.Tensor | None = None, max_seqlen=None):
        return self.attn(x, x, x, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen) + self.mlp(x)

class Encoder:
    def forward(self, x, cu_seqlens=None, max_seqlen=None, encode=None):
        x = (self.forward_layers if encode is None else encode)(x, cu_seqlens, max_seqlen)
        return self.norm(x)

    def forward_layers(self, x, cu_seqlens, max_seqlen):
        \"\"\"The layers.\"\"\"
        for layer in self.layers:
            x = layer(x, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
        return x
"""
TOLD = {("Layer", "forward"): SEQUENCES, ("Encoder", "forward"): SEQUENCES}
METHODS = frozenset(TOLD)


def test_parameters_that_nothing_hands_in_are_proven() -> None:
    assert prove_cut(BEFORE, AFTER, METHODS, "a.py", TOLD) == ()


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("Layer", "x, x, x, cu_seqlens=cu_seqlens, ", "x, x, x, cu_seqlens=x, "),
        ("Layer", "x, x, x, cu_seqlens=cu_seqlens", "x, x, x, cu_seqlens"),
        ("Layer", "max_seqlen=max_seqlen) + self.mlp(x)", "max_seqlen=max_seqlen) + self.mlp(cu_seqlens)"),
        ("Layer", "| None = None", "| None = 0"),
        ("Layer", "cu_seqlens: torch.Tensor | None = None, max_seqlen=None", "max_seqlen=None, cu_seqlens=None"),
        ("Layer", "        return", "        if cu_seqlens is None:\n            cu_seqlens = x\n        return"),
        ("Encoder", "(x, cu_seqlens, max_seqlen)\n        return", "(x, None, max_seqlen)\n        return"),
        ("Encoder", "layer(x, cu_seqlens=cu_seqlens", "layer(x, cu_seqlens=max_seqlen"),
        ("Encoder", "        x = (self", "        cu_seqlens = len(x)\n        x = (self"),
    ],
)
def test_another_use_of_them_is_refused(method: str, old: str, new: str) -> None:
    begin = AFTER.index(f"class {method}:")
    changed = AFTER[:begin] + AFTER[begin:].replace(old, new, 1)
    assert changed != AFTER
    ast.parse(changed)
    problems = prove_cut(BEFORE, changed, METHODS, "a.py", TOLD)
    assert [(problem.code, problem.message.split("`")[1]) for problem in problems] == [("VCG646", f"{method}.forward")]


def test_only_parameters_for_sequences_are_known() -> None:
    before = "class Layer:\n    def forward(self, x):\n        return self.attn(x)\n"
    after = before.replace("self, x", "self, x, scale=None").replace("(x)", "(x, scale=scale)")
    [problem] = prove_cut(before, after, frozenset({("Layer", "forward")}), "a.py", {("Layer", "forward"): ("scale",)})
    assert problem.code == "VCG646"


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("release", [pytest.param("0.30.0", marks=pytest.mark.slow), RELEASE])
def test_the_port_equals_the_pristine_tree(release: str, release_tree: Any) -> None:
    """In 0.30 sequences cover the rows behind a batch, too."""
    [report] = prove_numerics(port_of("deepseek_v4"), release_tree(release), tails=("fa3",))
    assert_right(report, 80, 6)


#: What the layers of a port compute wrong.
TOWER_MUTANTS = (
    Mutant("images attend to each other", "block(x, cos, sin, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)",
           "block(x, cos, sin)", "VCG650"),
    Mutant("one image for two", "block(x, cos, sin, cu_seqlens=cu_seqlens,",
           "block(x, cos, sin, cu_seqlens=None if cu_seqlens is None else cu_seqlens[::2].contiguous(),", "VCG650"),
)  # fmt: skip
MUTANTS = (
    Mutant("results in the wrong order", "left.pop(0)", "left.pop()", "VCG650"),
    Mutant("the first rows for all", "list(zip(parts, features.split([*map(sum, parts)])))",
           "[(part, features[: sum(part)]) for part in parts]", "VCG650"),
    Mutant("the first call alone", "1 if rows is None else len(rows)", "1", "VCG657"),
    Mutant("one call too many", "1 if rows is None else len(rows)", "1 if rows is None else len(rows) + 1", "VCG657"),
    Mutant("rows in the wrong order", "torch.cat(leaves, ", "torch.cat(leaves[::-1], ", "VCG650"),
    Mutant("one sequence for all", "list(accumulate(rows, initial=0))", "[0, sum(rows)]", "VCG657"),
    Mutant("the longest of others", "torch.tensor(max(rows), ", "torch.tensor(rows[0], ", "VCG657"),
    Mutant("offsets are not padded", "dst[len(src) :] = src[-1]", "pass", "VCG665"),
    Mutant("indices of other images", '"perm"].split(sizes)', '"perm"].flip(0).split(sizes)', "VCG654"),
)  # fmt: skip


@pytest.fixture(scope="module")
def reports(release_tree: Any, asked: list[Mutant]) -> dict[str, NumericReport]:
    [request] = numeric_requests(port_of("deepseek_v4"), release_tree(RELEASE))
    return {**reports_of(request, TOWER, TOWER_MUTANTS, asked), **reports_of(request, MODEL, MUTANTS, asked)}


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("mutant", cases([*TOWER_MUTANTS, *MUTANTS]))
def test_mutants_are_rejected(mutant: Mutant, reports: dict[str, NumericReport]) -> None:
    assert_rejected(reports[mutant.name], mutant)
