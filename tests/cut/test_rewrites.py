"""Expressions of an explicit port in another form than the model's: what the proof takes as no change, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from scaffold.cut import prove_extraction
from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.load import shipped_path
from scaffold.diagnostics import DiagnosticError
from scaffold.workflow import prepare_port

IMPORT = "from einops import rearrange, repeat"
ROW = "a, b = grid[i]"
NUMBERS = f"{ROW}.tolist()"
#: Each place in which a tensor of one number is that number.
SIZES = f"""
n = 0
for i in range(len(grid)):
    {ROW}
    if a == 0 or not b != 1:
        break
    both = a * b
    out.append(rearrange(x[n + 1 : n + 1 + both], "(a b) d -> a b d", a=a, b=b))
    out.append(x[n].view(a, 2 * b - 1))
    n += both + 1
return out
"""


def proved(before: str, after: str, imports: str = IMPORT) -> bool:
    texts = [
        f"{imports}\nclass M:\n    def m(self, x, grid, out, h):\n"
        + "".join(f"        {line}\n" for line in body.splitlines())
        for body in (before, after)
    ]
    return prove_extraction(*texts, frozenset({("M", "m")}), None, "m.py") == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('repeat(self.line, "d -> h 1 d", h=h)', "self.line.expand(h, 1, -1)"),
        ('repeat(x, "c d -> (t h) c d", t=3, h=h)', "x.expand(3 * h, -1, -1)"),
    ],
)
def test_new_axes_in_front_are_an_expansion(old: str, new: str) -> None:
    assert proved(f"return {old}", f"return {new}")
    assert not proved(f"return {old}", f"return {new}", "from torch import repeat")
    assert not proved(f"return {old}", f"return {new}", f"{IMPORT}\nrepeat = print")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('repeat(x, "d -> h 1 d", h=h)', "x.expand(h, -1)"),
        ('repeat(x, "d -> h k d", h=h, k=2)', "x.expand(2, h, -1)"),
        ('repeat(x, "d -> h d", h=h, d=4)', "x.expand(h, -1)"),
        ('repeat(x, "d -> h d")', "x.expand(h, -1)"),
        ('repeat(x, "d -> h d", h=h())', "x.expand(h(), -1)"),
        ('repeat(x, "d -> h d", **h)', "x.expand(h, -1)"),
        ('repeat(x(), "d -> h d", h=h)', "x().expand(h, -1)"),
        ('repeat(x, "d -> d h", h=h)', "x.expand(h, -1)"),
        ('repeat(x, "c d -> h d c", h=h)', "x.expand(h, -1, -1)"),
        ('repeat(x, "(c d) -> h (c d)", h=h)', "x.expand(h, -1)"),
        ('repeat(x, "d -> () d")', "x.expand(1, -1)"),
        ('rearrange(x, "d -> h d", h=h)', "x.expand(h, -1)"),
    ],
)
def test_another_expansion_is_refused(old: str, new: str) -> None:
    assert not proved(f"return {old}", f"return {new}")


def test_sizes_are_numbers() -> None:
    assert proved(SIZES, SIZES.replace(ROW, NUMBERS))
    assert not proved(SIZES, SIZES.replace(ROW, NUMBERS), "from other import rearrange, repeat")
    assert not proved(SIZES, SIZES.replace(ROW, "a, b = grid[i].item()"))
    assert not proved(SIZES, SIZES.replace(ROW, "b, a = grid[i].tolist()"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Something else than a size: a value, a quotient, a power, an entry of a list, an argument.
        ("return out", "return a"),
        ("return out", "return out, both"),
        ("both = a * b", "both = a / b"),
        ("both = a * b", "both = a * b**2"),
        ("both = a * b", "both = a * len(x)"),
        ("both = a * b", "both = [a]"),
        ("both = a * b", "both = self.product(a, b)"),
        ("x[n].view(a, 2 * b - 1)", "x[n].fill_(a)"),
        ("x[n].view(a, 2 * b - 1)", "x[n, a]"),
        ("x[n].view(a, 2 * b - 1)", "x[::a]"),
        ("a=a, b=b))", "**a))"),
        # A condition that keeps the tensor, or compares it with what may be no number.
        ("not b != 1:", "b:"),
        ("not b != 1:", "b == h:"),
        ("not b != 1:", "b == 1.5:"),
        ("not b != 1:", "b in (1, 2):"),
        ("both = a * b", "both = a == 1"),
        ("both = a * b", "both = not a == 1"),
        ("return out", "if both == 1:\n    return x\nreturn out"),
        # A second name for what grows in place, or a part of the grid that does.
        ("n += both + 1", "m = n\n    n += both + 1"),
        ("n += both + 1", "b += 1"),
        ("n = 0\n", "n = h\n"),
        ("n = 0\n", "n = x.shape[0]\n"),
        ("n = 0\n", "n = h = 0\n"),
        ("n += both + 1", "n @= both"),
        ("n = 0\n", "n = grid = 0\n"),
        ("n = 0\n", "global n\nn = 0\n"),
        ("n += both + 1", "h += both + 1"),
    ],
)
def test_a_tensor_that_may_mean_something_else_stays(before: str, after: str) -> None:
    assert SIZES.count(before) == 1
    other = SIZES.replace(before, after)
    assert proved(other, other)
    assert not proved(other, other.replace(ROW, NUMBERS))


# -- the edit ----------------------------------------------------------------------------------------------------------

OLD = 'old: "images_spatial_crop[jdx]"'


def deepseek(release_tree: Any, before: str, after: str) -> Any:
    path = shipped_path("deepseek_vl2")
    assert path is not None
    text = path.read_text("utf-8")
    assert text.count(before) == 1
    return prepare_port(load_descriptor_text(text.replace(before, after), "deepseek_vl2.yaml"), release_tree("0.33.0"),
                        replace=True)  # fmt: skip


@pytest.mark.trees
@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (OLD, 'old: "images_spatial_crop[index]"', "VCG464"),
        (OLD, 'old: "images_spatial_crop[jdx"', "VCG214"),
        ("[jdx].tolist()", "[0].tolist()", "VCG646"),
        ("expand(h, 1, -1)", "expand(h, 2, -1)", "VCG646"),
        ("  after: _merge_patch_embeddings\n", "", "VCG349"),
    ],
)
def test_a_rewrite_that_is_wrong_is_refused(before: str, after: str, code: str, release_tree: Any) -> None:
    with pytest.raises(DiagnosticError) as refused:
        deepseek(release_tree, before, after)
    assert [problem.code for problem in refused.value.diagnostics if problem.code != "VCG624"] == [code]


@pytest.mark.trees
def test_an_import_without_a_use_goes(release_tree: Any) -> None:
    def imported(before: str, after: str) -> bool:
        [change] = deepseek(release_tree, before, after).package
        return b"from einops import rearrange, repeat\n" in change.after

    assert not imported(OLD, OLD)
    assert imported('    - {old: \'repeat(self.image_newline, "d -> h 1 d", h=h)\', '
                    'new: "self.image_newline.expand(h, 1, -1)"}\n', "")  # fmt: skip
