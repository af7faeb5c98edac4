"""What is read off a forward's source: chains of children, loops that hand their state on, digests."""

import ast
import textwrap

import pytest
from hostile import written
from torch import nn

from scaffold.runtime.tuning.attention import ATTENTIONS
from scaffold.runtime.tuning.blocks import readings
from scaffold.runtime.tuning.forwards import chain_of_node, digest_of_node, only_calls, reads_only_through
from scaffold.runtime.tuning.fp8_inputs import APPLY_WEIGHTS


def function(text):
    (node,) = ast.parse(textwrap.dedent(text)).body
    return node


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("return self.c(self.b(self.a(x)))", ["a", "b", "c"]),
        ("y, _ = self.a(x)\n    y = self.b(y)\n    z, _ = self.c(y)\n    return z", ["a", "b", "c"]),
        ('"""Doc."""\n    x, _bias = self.a(x)\n    return x', ["a"]),
        ("return x", []),
        ("x = maybe_fused_act_quant(self.a, x, self.b)\n    x, _ = self.b(x)\n    return x", ["a", "b"]),
        # Anything else is not a chain:
        ("y = self.a(x)\n    return x + y", None),
        ("y = self.a(x)\n    return self.b(x)", None),
        ("y = self.a(x, x)\n    return y", None),
        ("y = self.a(x=x)\n    return y", None),
        ("y, z = self.a(x)\n    return y", None),
        ("y = F.gelu(x)\n    return y", None),
        ("y = other(self.a, x, self.b)\n    return y", None),
        ("if self.flag:\n        x = self.a(x)\n    return x", None),
        ("x += 1\n    return x", None),
        ("y = self.a(x)", None),
    ],
)
def test_chains(body, names):
    steps = chain_of_node(function(f"def forward(self, x):\n    {body}"))
    assert (None if steps is None else [step.name for step in steps]) == names


def test_a_chain_takes_one_argument():
    assert chain_of_node(function("def forward(self, x, y):\n    return self.a(x)")) is None
    assert chain_of_node(function("def forward(self, x, **k):\n    return self.a(x)")) is None


def test_unpacking_is_noted():
    steps = chain_of_node(function("def forward(self, x):\n    y, _ = self.a(x)\n    return self.b(y)"))
    assert [(s.name, s.unpack) for s in steps] == [("a", True), ("b", False)]


class Calls:
    def forward(self, x):
        y = self.one(x)
        return maybe_fused_act_quant(self.two, y, self.three) + self.four.forward_native(y) + self.five(y, 1)  # noqa: F821


def test_a_child_that_is_only_called():
    names = ("one", "two", "three", "four", "five", "six")
    assert [name for name in names if only_calls(Calls(), name)] == ["one", "two"]


def test_a_digest_ignores_comments_annotations_and_defaults():
    one = function('def forward(self, x: int, y=None) -> int:\n    """Doc."""\n    # why\n    return (x +\n        y)')
    two = function("def forward(self, x, y):\n    return x + y")
    three = function("def forward(self, y, x):\n    return x + y")
    assert digest_of_node(one) == digest_of_node(two) != digest_of_node(three)


BLOCK_CLASSES = {
    "qwen2_5_vl": "Qwen2_5_VisionBlock", "qwen2_vl": "Qwen2VisionBlock", "qwen3_vl": "Qwen3_VisionBlock",
    "intern_vit": "InternVisionEncoderLayer", "step3_vl": "Step3VisionEncoderLayer",
}  # fmt: skip
ATTENTION_CLASSES = {"qwen2_5_vl": "Qwen2_5_VisionAttention", "qwen2_vl": "Qwen2VisionAttention"}


@pytest.mark.trees
@pytest.mark.parametrize("version", ["0.20.0", "0.22.0", "0.23.0", "0.24.0", "0.27.0", "0.30.0", "0.33.0"])
def test_the_forwards_of_real_releases_are_known(version, release_tree):
    folder = release_tree(version).path("vllm/model_executor/models")

    def forward_of(module, name):
        tree = ast.parse((folder / f"{module}.py").read_text(encoding="utf-8"))
        cls = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
        return next(n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "forward")

    for module, name in BLOCK_CLASSES.items():
        assert readings(forward_of(module, name)), name
    for module, name in ATTENTION_CLASSES.items():
        assert digest_of_node(forward_of(module, name)) in ATTENTIONS, name
    layers = release_tree(version).path("vllm/model_executor/kernels/linear/scaled_mm/ScaledMMLinearKernel.py")
    tree = ast.parse(layers.read_text(encoding="utf-8"))
    kernel = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "FP8ScaledMMLinearKernel")
    converts = next(n for n in kernel.body if isinstance(n, ast.FunctionDef) and n.name == "apply_weights")
    assert digest_of_node(converts) in APPLY_WEIGHTS


#: Bodies of forwards whose rows are `x`.
ROWS = {
    "to one layer": ("rows, _ = x.shape\nx, _ = self.qkv(x)\nx += rows\nreturn self.proj(x)", True),
    "to three layers": ("return self.q(x) + self.k(x) + self.v(x)", True),
    "changed": ("x += 1\nreturn self.qkv(x)", False),
    "changed by a method": ("x.mul_(2)\nreturn self.qkv(x)", False),
    "changed by another name": ("y = x\ny += 1\nreturn self.qkv(x)", False),
    "one entry changed": ("x[0] = 0\nreturn self.qkv(x)", False),
    "changed in a branch": ("if x.shape[0] > 1:\n    x = self.norm(x)\nreturn self.qkv(x)", False),
    "given elsewhere": ("self.relu(x)\nreturn self.qkv(x)", False),
    "returned": ("return self.qkv(x) + x", False),
}


@pytest.mark.parametrize("name", ROWS)
def test_who_gets_the_rows(name):
    """Rows bring their FP8 form to the layers behind a norm, which is wrong as soon as somebody changes the rows."""
    body, expected = ROWS[name]
    module = written(nn.Module, body, "self, x, mask=None")()
    assert reads_only_through(module, None, {"qkv", "q", "k", "v"}) is expected
