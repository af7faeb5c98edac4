"""Blocks of transformers, read from the source of their `forward`."""

import ast
import textwrap

import pytest
import torch
from torch import nn

from scaffold.runtime.tuning.blocks import Branch, Given, readings
from scaffold.runtime.tuning.norms import FusedResiduals


def read(text):
    node = ast.parse(textwrap.dedent(text)).body[0]
    assert isinstance(node, ast.FunctionDef)
    return readings(node)


PLAIN = Branch("mlp")


@pytest.mark.parametrize(
    ("text", "attention", "nones"),
    [
        (
            """
            def forward(self, x):
                x = x + self.attn(self.norm1(x))
                x = x + self.mlp(self.norm2(x))
                return x
            """,
            Branch("attn"),
            None,
        ),
        (
            """
            def forward(self, hidden_states, mask=None, *, size):
                '''Doc.'''
                residual = hidden_states
                hidden_states = self.norm1(hidden_states)
                hidden_states, _ = self.attn(hidden_states=hidden_states, mask=mask, size=size)
                hidden_states += residual
                residual = hidden_states
                hidden_states = self.norm2(hidden_states)
                hidden_states = self.mlp(hidden_states)
                hidden_states += residual
                return hidden_states, None
            """,
            Branch("attn", "hidden_states", (), (("mask", Given("mask")), ("size", Given("size"))), unpack=True),
            1,
        ),
        (
            """
            def forward(self, x, cos, sin):
                r = self.attn.forward(self.norm1(x), 1, position=(cos, sin), causal=False)
                h = r + x
                return h + self.mlp(self.norm2(h))
            """,
            Branch(
                "attn",
                None,
                (Given(None, 1),),
                (("position", Given(None, entries=(Given("cos"), Given("sin")))), ("causal", Given(None, False))),
                past_hooks=True,
            ),
            None,
        ),
        (
            """
            def forward(self, x, lengths):
                attended = self.attn(self.norm1(x), lengths=lengths)
                normed, total = self.norm2(x, residual=attended)
                return total + self.mlp(normed)
            """,
            Branch("attn", None, (), (("lengths", Given("lengths")),)),
            None,
        ),
    ],
)
def test_a_norm_before_each_branch(text, attention, nones):
    block = read(text)[0]
    assert (block.norm1, block.attention, block.norm2, block.mlp) == ("norm1", attention, "norm2", PLAIN)
    assert (block.scales, block.norms_behind, block.nones) == ((None, None), False, nones)
    assert block.result("rows") == ("rows" if nones is None else ("rows", None))


def test_layer_scales():
    (block, *_) = read(
        """
        def forward(self, x):
            x = x + self.attn(self.norm1(x)) * self.ls1
            return x + self.ls2 * self.mlp(self.norm2(x))
        """
    )
    assert block.scales == ("ls1", "ls2")


def test_a_sum_of_two_calls_has_two_readings():
    """Only the classes of the children tell which of them is a norm."""
    before, behind = read(
        """
        def forward(self, x):
            x = x + self.one(self.two(x))
            return x + self.three(self.four(x))
        """
    )
    assert (before.norm1, before.attention.child, before.norms_behind) == ("two", "one", False)
    assert (behind.norm1, behind.attention.child, behind.norms_behind) == ("one", "two", True)


@pytest.mark.parametrize(
    "lines",
    [
        ["x = x + self.attn(self.norm1(x))", "return x"],  # one branch
        ["y = x + self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(y))"],  # the first sum is lost
        ["y = x + self.attn(self.norm1(x))", "return y + self.mlp(self.norm2(x))"],  # the second norm misses it
        ["x = x + self.attn(self.norm1(x), x)", "return x + self.mlp(self.norm2(x))"],  # rows as another argument
        ["x = x + self.attn(self.norm1(x), self.mask)", "return x + self.mlp(self.norm2(x))"],
        ["x = x + self.attn(self.norm1(x), *rest)", "return x + self.mlp(self.norm2(x))"],
        ["x = x + self.attn(self.norm1(x), **rest)", "return x + self.mlp(self.norm2(x))"],
        ["x += self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(x))"],  # it changes the caller's tensor
        ["a = self.attn(self.norm1(x))", "h = a", "h += x", "x = x + a", "return x + self.mlp(self.norm2(x))"],
        ["x = x - self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(x))"],
        ["x = x + 2 * self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(x))"],
        ["x = x + self.attn(self.norm(x))", "return x + self.mlp(self.norm(x))"],  # one norm for both
        ["x = x + self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(x)), x"],
        ["if mask is not None: x = x + 1", "x = x + self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(x))"],
        ["x = x + self.attn(self.norm1(x))", "x = x + self.mlp(self.norm2(x))"],  # it returns nothing
    ],
)
def test_other_forwards_are_no_blocks(lines):
    assert read("def forward(self, x, mask=None):\n" + textwrap.indent("\n".join(lines), "    ")) == ()


@pytest.mark.parametrize("head", ["(self)", "(self, *x)", "(self, x, **rest)"])
def test_other_signatures_are_no_blocks(head):
    assert read(f"def forward{head}:\n    x = x + self.a(self.b(x))\n    return x + self.c(self.d(x))") == ()


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale1 = self.scale2 = scale

    def forward(self, x):
        x = x + self.one(self.norm1(x)) * self.scale1
        return x + self.two(self.norm2(x)) * self.scale2


def test_a_number_is_no_layer_scale():
    tuning = FusedResiduals()
    assert tuning.refusal("block", Scaled(0.5), {}) == "scale1 is no layer scale"
    assert tuning.refusal("block", Scaled(nn.Parameter(torch.ones(4))), {}) is None
