"""Planted mistakes: each is one wrong thing in an editor's result, and each must be refused with its code."""

# Texts stand on one line each, so that before and after can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from scaffold.edit import (
    AddBase,
    AddDictEntry,
    AddImport,
    AddListEntry,
    AddTableRow,
    DropDefinition,
    DropImport,
    DropTypingImport,
    Edit,
    PutFunction,
    PutMethods,
    ReplaceFunction,
    ReplaceMethod,
    apply_edits,
)
from scaffold.verify import prove_equivalence, prove_idempotence, prove_text_form

PATH = "vllm/model_executor/models/m.py"

BEFORE = '''\
# licence
"""What the module is."""

import os  # why os
from typing import TYPE_CHECKING

from vllm.a import A

from .interfaces import (
    Other,  # about other
    # above z
    Z,
)

if TYPE_CHECKING:
    from vllm.c import C

LIMIT = 10


def helper(x, y=1):
    """Help."""
    # how it helps
    return x + y


@register(1)
class Model(
    Other,
    Z,  # about z
):
    """The model."""

    flag = True

    def first(self, a, b=2):
        # first comment
        return a

    # -- section --

    # about old
    def old(self):
        # inside old
        return 0

    def old_helper(self):
        return 1

    def last(self):
        """Last."""
        return {"a": 1}

    @cached
    def forward(self, x):
        # inside forward
        return x


# about the dict
D = {
    "a": 1,
    "b": f(2),  # b
}

L = ["z", "a"]
'''

EDITS: tuple[Edit, ...] = (
    AddImport(".interfaces", "SupportsNew"),
    AddImport("vllm.b", "B"),
    AddImport("vllm.d", "D2"),
    AddImport("torch"),
    AddBase("Model", "SupportsNew"),
    PutMethods(
        "Model",
        '# -- block --\n\ndef new(self, n=3):\n    """New.\n\n    More.\n    """\n    # inside new\n    return n\n\ndef newer(self):\n    return B\n',
        remove=("old", "old_helper"),
    ),
    ReplaceMethod("Model", "forward", "def forward(self, x):\n    # new forward\n    return x + 1\n"),
    PutFunction("# about make\ndef make(n):\n    # inside make\n    return n\n", before="D"),
    AddDictEntry("D", "new", "g(\n    3,  # three\n)"),
    AddListEntry("L", "new"),
)


@pytest.fixture(scope="module")
def after() -> str:
    return apply_edits(BEFORE, EDITS, path=PATH).text


def test_the_editors_result_is_accepted(after: str) -> None:
    assert prove_equivalence(BEFORE, after, EDITS, PATH) == ()
    assert prove_idempotence(after, EDITS, PATH) == ()
    assert prove_text_form(BEFORE, after, PATH) == ()


def test_formatting_of_planned_code_is_accepted(after: str) -> None:
    formatted = after.replace(
        "class Model(\n    Other,\n    Z,  # about z\n    SupportsNew,\n)",
        "class Model(\n    Other, Z,  # about z\n    SupportsNew,\n)",
    )
    formatted = formatted.replace("def new(self, n=3):", "def new(\n        self,\n        n=3,\n    ):")
    assert formatted != after
    assert prove_equivalence(BEFORE, formatted, EDITS, PATH) == ()


@pytest.mark.parametrize(
    ("wrong", "right", "code"),
    [
        # -- one changed token elsewhere
        ("LIMIT = 11", "LIMIT = 10", "VCG601"),
        ("return x - y", "return x + y", "VCG601"),
        ("y=2):", "y=1):", "VCG601"),
        ("def first(self, a, b=3)", "def first(self, a, b=2)", "VCG601"),
        ("def first(self, b=2, *, a)", "def first(self, a, b=2)", "VCG601"),
        ("    flag = 1", "    flag = True", "VCG601"),
        ('"""Helps."""', '"""Help."""', "VCG601"),
        ('"""A model."""', '"""The model."""', "VCG601"),
        ('"""What the module was."""', '"""What the module is."""', "VCG601"),
        ('"""Last. """', '"""Last."""', "VCG601"),
        ("@register(2)", "@register(1)", "VCG601"),
        ('{"a": 1.0}', '{"a": 1}', "VCG601"),
        ("f(3),", "f(2),", "VCG601"),
        ("from vllm.a import A as A2\n", "from vllm.a import A\n", "VCG601"),
        ("    def extra(self): ...\n\n    def last", "    def last", "VCG603"),
        ("X = 1\n\n\n# about the dict", "# about the dict", "VCG603"),
        ("D: dict = {", "D = {", "VCG601"),
        # -- a lost or changed comment
        ("import os\n", "import os  # why os\n", "VCG605"),
        ("    return x + y", "    # how it helps\n    return x + y", "VCG605"),
        ("        # first Comment", "        # first comment", "VCG605"),
        ("    Other,\n", "    Other,  # about other\n", "VCG605"),
        ("    Z,\n    SupportsNew,\n):", "    Z,  # about z\n    SupportsNew,\n):", "VCG605"),
        ("", "# licence\n", "VCG605"),
        ("", "    # above z\n", "VCG605"),
        ("", "# about the dict\n", "VCG605"),
        ('f(2),\n    "new"', 'f(2),  # b\n    "new"', "VCG605"),
        ("        3,\n", "        3,  # three\n", "VCG605"),
        ("", "        # inside new\n", "VCG605"),
        ("", "# about make\n", "VCG605"),
        ("", "    # -- block --\n\n", "VCG605"),
        ("from vllm.b import B  # who asked\n", "from vllm.b import B\n", "VCG605"),
        # -- order and layout elsewhere
        ("from vllm.a import A\nimport os  # why os\n", "import os  # why os\n", "VCG601"),
        (
            "from typing import TYPE_CHECKING\nimport os  # why os\n",
            "import os  # why os\nfrom typing import TYPE_CHECKING\n",
            "VCG601",
        ),
        ("    # above z\n    Z,\n    Other,  # about other\n", "    Other,  # about other\n", "VCG605"),
        ("x+y", "x + y", "VCG604"),
        ("LIMIT = 10 \n", "LIMIT = 10\n", "VCG604"),
        ("LIMIT = 10\n\n\n\n", "LIMIT = 10\n\n\n", "VCG604"),
        ("LIMIT = 10\n# hello\n", "LIMIT = 10\n", "VCG604"),
        ("L = ['z', \"a\"", 'L = ["z", "a"', None),
        # -- planned changes that are missing, wrong, twice or out of place
        ("", "    SupportsNew,\n    # above z\n", "VCG602"),
        ("    Z,  # about z\n):", "    Z,  # about z\n    SupportsNew,\n):", "VCG602"),
        (
            "    SupportsNew,\n    Other,\n    Z,  # about z\n):",
            "    Other,\n    Z,  # about z\n    SupportsNew,\n):",
            "VCG603",
        ),
        ("def new(self, n=4)", "def new(self, n=3)", "VCG602"),
        ("        return n + 0\n\n    def newer", "        return n\n\n    def newer", "VCG602"),
        ("    def newer2(self)", "    def newer(self)", "VCG602"),
        ("    def new(self): ...\n\n    def last", "    def last", "VCG602"),
        ("    def old(self): ...\n\n    def last", "    def last", "VCG602"),
        ("    y = 1\n\n    def newer", "    def newer", "VCG603"),
        ("return x + 2", "return x + 1", "VCG602"),
        ("    def forward(self, x):", "    @cached\n    def forward(self, x):", "VCG602"),
        ("def make(m)", "def make(n)", "VCG602"),
        ("", "# about make\ndef make(n):\n    # inside make\n    return n\n\n\n", "VCG602"),
        ("g(\n        4,", "g(\n        3,", "VCG602"),
        ('    "new2": g', '    "new": g', "VCG602"),
        ('"z", "new", "a"', '"z", "a", "new"', "VCG603"),
        ('"z", "a", "newer"', '"z", "a", "new"', "VCG602"),
        ('("z", "a", "new")', '["z", "a", "new"]', "VCG601"),
        ("from vllm.d import D3\n", "from vllm.d import D2\n", "VCG602"),
        ("if TYPE_CHECKING:\n    from vllm.d import D2\n", "if TYPE_CHECKING:\n", "VCG602"),
        ("from vllm.d import D2, D4\n", "from vllm.d import D2\n", "VCG601"),
        ("", "import torch\n", "VCG602"),
        ("import torch as th\n", "import torch\n", "VCG602"),
        ("import torch.nn\n", "import torch\n", "VCG602"),
        ("import torch, sys\n", "import torch\n", "VCG601"),
        ("import torch\nimport torch\n", "import torch\n", "VCG602"),
        ("import torch  # who asked\n", "import torch\n", "VCG605"),
    ],
)
def test_a_planted_mistake_is_refused(after: str, wrong: str, right: str, code: str | None) -> None:
    assert right in after
    mutated = after.replace(right, wrong, 1)
    assert mutated != after
    found = prove_equivalence(BEFORE, mutated, EDITS, PATH)
    assert [item.code for item in found][:1] == ([code] if code else []), found


def test_methods_out_of_place_are_refused(after: str) -> None:
    start, end = after.index("    # -- block --"), after.index("    def last")
    block = after[start:end]
    moved = after.replace(block, "").replace("    def first", block + "    def first")
    assert [item.code for item in prove_equivalence(BEFORE, moved, EDITS, PATH)] == ["VCG603"]


def test_methods_in_another_order_are_refused(after: str) -> None:
    newer = "    def newer(self):\n        return B\n\n"
    moved = after.replace(newer, "").replace("    def new(", newer + "    def new(")
    assert [item.code for item in prove_equivalence(BEFORE, moved, EDITS, PATH)] == ["VCG602"]


TYPED = "import a\n\nif TYPE_CHECKING:\n    from x import N\n\nb = 1\n"


@pytest.mark.parametrize(
    ("before", "edits", "mutated", "code"),
    [
        ("class A: ...\n", (AddBase("B", "C"),), "class A: ...\n", "VCG602"),
        ("class A: ...\n", (AddBase("A", "C"),), "class A(C): ...\nclass A(C): ...\n", "VCG602"),
        ("class A(B): ...\n", (AddBase("A", "C"),), "class A(C, B): ...\n", "VCG603"),
        ("class A(B): ...\n", (AddBase("A", "C", first=True),), "class A(B, C): ...\n", "VCG603"),
        (
            "class A(B):\n    def f(self): ...\n",
            (PutMethods("A", "def f(self): 1"),),
            "class A(B):\n    def f(self): 1\n",
            "VCG601",
        ),
        (
            "class A(B):\n    x = 1\n",
            (PutMethods("A", "def f(self): ..."),),
            "class A(B):\n    x = 1\n",
            "VCG602",
        ),
        (
            "class A(B):\n    def g(self): ...\n    def h(self): ...\n",
            (PutMethods("A", "def f(self): ..."),),
            "class A(B):\n    def g(self): ...\n\n    def f(self): ...\n\n    def h(self): ...\n",
            "VCG603",
        ),
        (
            "class A(B):\n    def g(self): ...\n",
            (PutMethods("A", "x: int = 1", first=True),),
            "class A(B):\n    def g(self): ...\n\n    x: int = 1\n",
            "VCG603",
        ),
        (
            "class A:\n    def old(self): ...\n\n    def x(self): ...\n",
            (PutMethods("A", "def f(self): ...\n\ndef g(self): ...\n", remove=("old",)),),
            "class A:\n    def f(self): ...\n\n    def x(self): ...\n\n    def g(self): ...\n",
            "VCG603",
        ),
        (
            "class A:\n    def old(self): ...\n\n    def x(self): ...\n\n    def f(self): ...\n",
            (PutMethods("A", "def f(self): 1\n", remove=("old", "f")),),
            "class A:\n    def f(self): 1\n\n    def x(self): ...\n",
            "VCG603",
        ),
        (
            "class A:\n    def g(self): ...\n",
            (PutMethods("A", "def f(self): ...\n\nn: int = 0\n"),),
            "class A:\n    def g(self): ...\n\n    def f(self): ...\n",
            "VCG602",
        ),
        (
            "class A:\n    def g(self): ...\n",
            (PutMethods("A", "def f(self): ...\n\nn: int = 0\n"),),
            "class A:\n    def g(self): ...\n\n    def f(self): ...\n\n    n: int = 1\n",
            "VCG602",
        ),
        (
            "class A:\n    n: int = 1\n",
            (PutMethods("A", "n: int = 0\n"),),
            "class A:\n    n: int = 0\n",
            "VCG601",
        ),
        (
            "class A:\n    n: int = 1\n    m: int = 2\n",
            (PutMethods("A", "n: int = 1\n"),),
            "class A:\n    n: int = 1\n",
            "VCG601",
        ),
        ("x = 1\ny = 2\n", (DropDefinition("x"),), "x = 1\n", "VCG602"),
        ("x = 1\ny = 2\n", (DropDefinition("x"),), "\n", "VCG601"),
        ("x = 1\nx = 2\n", (DropDefinition("x"),), "\n", "VCG602"),
        ("x = 1\n# about y\ny = 2\n", (DropDefinition("y"),), "# about\nx = 1\n", "VCG604"),
        ("x = 1\n", (DropDefinition("x", "A"),), "x = 1\n", "VCG602"),
        (
            "class A:\n    def f(self):\n        self.x = 1\n        self.y = 1\n",
            (DropDefinition("x", "A.f"),),
            "class A:\n    def f(self):\n        self.x = 1\n",
            "VCG602",
        ),
        (
            "class A:\n    def f(self):\n        self.x = 1\n        y.x = 1\n",
            (DropDefinition("x", "A.f"),),
            "class A:\n    def f(self):\n        pass\n",
            "VCG601",
        ),
        ("import a\nimport b\n", (DropImport("a"),), "import a\n", "VCG602"),
        ("import a\nimport b\n", (DropImport("a"),), "\n", "VCG601"),
        ("import a  # why\nimport b\n", (DropImport("a"),), "import b\n", "VCG605"),
        ("def f(): ...\n", (ReplaceFunction("f", "def f(): 1\n"),), "def f(): ...\n", "VCG602"),
        ("def f(): ...\n", (ReplaceFunction("f", "def f(): 1\n"),), "def f(): 1\n\n\ndef f(): 1\n", "VCG602"),
        ("def f(): ...\n", (ReplaceFunction("f", "def f(): 1\n"),), "x = 1\n", "VCG602"),
        ("x = 1\ndef f(): ...\n", (ReplaceFunction("f", "def f(): 1\n"),), "def f(): 1\nx = 1\n", "VCG601"),
        ("def f(): ...\nx = 1\n", (ReplaceFunction("f", "def f(): 1\n"),), "def f(): 1\nx = 2\n", "VCG601"),
        ("def f(): ...\n", (ReplaceFunction("f", "def f():\n    # a\n    1\n"),), "def f():\n    1\n", "VCG605"),
        (TYPED, (DropTypingImport("x"),), TYPED, "VCG602"),
        (TYPED, (DropTypingImport("x"),), "import a\n", "VCG601"),
        (TYPED, (DropTypingImport("x"),), "import a\nb = 2\n", "VCG601"),
        (TYPED.replace("b =", "if a:\n    pass\nb ="), (DropTypingImport("x"),), "import a\nb = 1\n", "VCG601"),
        (
            "if TYPE_CHECKING:\n    import y\n    from x import N\n",
            (DropTypingImport("x"),),
            "if TYPE_CHECKING:\n    import z\n",
            "VCG601",
        ),
        ("x = 1\n", (PutFunction("y = 1\n", before="x"),), "x = 1\ny = 1\n", "VCG603"),
        ("x = 1\nz = 2\n", (PutFunction("y = 1\n", before="z"),), "y = 1\nx = 1\nz = 2\n", "VCG603"),
        ("y = 2\n", (PutFunction("y = 1\n", before="x"),), "y = 1\n", "VCG601"),
        ("D = dict()\n", (AddDictEntry("D", "a", "1"),), "D = dict(a=1)\n", "VCG602"),
        ("D = {}\nD = {}\n", (AddDictEntry("D", "a", "1"),), "D = {}\nD = {}\n", "VCG602"),
        ('D = {"b": 1}\n', (AddDictEntry("D", "a", "1"),), 'D = {"a": 1, "b": 1}\n', "VCG603"),
        ('D = {"b": 1}\n', (AddDictEntry("D", "a", "f(  # f\n)"),), 'D = {"b": 1, "a": f()}\n', "VCG605"),
        ("L = list()\n", (AddListEntry("L", "a"),), 'L = ["a"]\n', "VCG602"),
        ("import z\n", (AddImport("x", "N"),), "import z\nN\nfrom x import N\n", "VCG603"),
        ("import N\n", (AddImport("x", "N"),), "import N\nfrom x import N\n", "VCG601"),
        ("import z\n", (AddImport("x", "N"),), "import z\nfrom x import N\nfrom x import N\n", "VCG602"),
        ("import z\n", (AddImport("x", "N"),), "import z\nfrom x import M, N\n", "VCG601"),
        ('"""Doc."""\nx = 1\n', (AddImport("x", "N"),), 'from x import N\n"""Doc."""\nx = 1\n', "VCG601"),
        ("x = 1\n", (AddImport("x", "N"),), "x = 1\nif TYPE_CHECKING:\n    from x import N\n", "VCG602"),
        ("x = 1\n", (AddImport("x"),), "try:\n    import x\nexcept E:\n    pass\nx = 1\n", "VCG601"),
        ("import z as x\n", (AddImport("x"),), "import z as x\nimport x\n", "VCG601"),
        ("import z\n", (AddImport("x"),), "import z\nx.y\nimport x\n", "VCG603"),
        ("x = (\n", (AddBase("A", "B"),), "x = 1\n", "VCG600"),
        ("x = 1\n", (AddBase("A", "B"),), "x = (\n", "VCG600"),
        ("x = 1\n", (AddBase("A", "B"),), "x = '\0'\n", "VCG600"),
        ("x = 1\n", (AddBase("A", "B"),), "x = " + "-" * 200_000 + "1\n", "VCG600"),
        ("x = 1\n", (), "x = 1\ny = 1\n", "VCG601"),
        ("x = 1\ny = 1\n", (), "x = 1\n", "VCG601"),
        ("x = 1\n", (), "x = 1\n# new\n", "VCG604"),
        ("x = 1\n\n\ny = 1\n", (), "x = 1\n\ny = 1\n", "VCG604"),
        ("x = 1\n# old\n", (), "x = 1\n", "VCG605"),
    ],
)
def test_small_mistakes(before: str, edits: tuple[Edit, ...], mutated: str, code: str) -> None:
    found = prove_equivalence(before, mutated, edits, PATH)
    assert [item.code for item in found][:1] == [code], found
    assert all(item.help and item.span and item.span.file == PATH for item in found)


TABLE = "| Name | Image |\n| --- | --- |\n| A | `x|y` |\n\n| Name | Image |\n"
ROW = AddTableRow(("Name", "Image"), "B", ("B", "yes"))


@pytest.mark.parametrize(
    ("mutated", "code"),
    [
        (TABLE, "VCG602"),
        (TABLE.replace("\n\n", "\n| B | no |\n\n"), "VCG602"),
        (TABLE.replace("\n\n", "\n| B | yes |\n| B | yes |\n\n"), "VCG602"),
        (TABLE + "| B | yes |\n", "VCG602"),
        ("| B | yes |\n" + TABLE, "VCG602"),
        (TABLE.replace("\n\n", "\n| B | yes |\n\n").replace("| A |", "|  A |"), "VCG604"),
        (TABLE.replace("\n\n", "\n| B | yes |\n\n") + "more\n", "VCG604"),
        (TABLE.replace("\n\n", "\n| B | yes |\n\n"), None),
        (TABLE.replace("\n\n", "\nB | yes\n\n"), None),
    ],
)
def test_table_rows(mutated: str, code: str | None) -> None:
    found = prove_equivalence(TABLE, mutated, (ROW, ROW), "docs/x.md")
    assert [item.code for item in found] == ([code] if code else [])


def test_a_row_that_was_there_needs_nothing() -> None:
    table = "| Name | Image |\n| --- | --- |\n| `B` | no |\n"
    assert prove_equivalence(table, table, (ROW,), "docs/x.md") == ()
    assert prove_equivalence(table, table + "| B | yes |\n", (ROW,), "docs/x.md") != ()


def test_a_result_that_a_second_run_would_change_is_refused(after: str) -> None:
    (found,) = prove_idempotence(after.replace('"z", "a", "new"', '"z", "a"'), EDITS, PATH)
    assert found.code == "VCG606"
    assert "AddListEntry" in found.message


def test_a_result_that_the_plan_does_not_fit_is_refused(after: str) -> None:
    (found,) = prove_idempotence(after.replace("return n\n\n    def newer", "return 0\n\n    def newer"), EDITS, PATH)
    assert found.code == "VCG606"
    assert "the method `Model.new` is there already and differs" in found.message
    (found,) = prove_idempotence(after.replace("class Model", "class Modem"), EDITS, PATH)
    assert "cannot be applied to its own result" in found.message


@pytest.mark.parametrize(
    ("before", "mutated", "code"),
    [
        ("x = 1\n", "x = 1\n", None),
        ("x = 1\r\n", "x = 1\r\ny = 2\r\n", None),
        ("x = 1\r\n", "x = 1\r\ny = 2\n", "VCG607"),
        ("x = 1\n", "x = 1", "VCG607"),
        ("x = 1", "x = 1\n", "VCG607"),
        ("x = 1\n", "\ufeffx = 1\n", "VCG607"),
        ("\ufeffx = 1\n", "x = 1\n", "VCG607"),
        ("# coding: latin-1\n", "# coding: latin-1\nx = '\u4e00'\n", "VCG607"),
        ("# coding: latin-1\nx = 1\n", "x = 1\n", "VCG607"),
        ("# coding: nonsense\nx = 1\n", "# coding: nonsense\nx = 1\n", "VCG607"),
        ("x = 1\n", "x = (\n", "VCG600"),
        ("x = 1\n", "x = '\0'\n", "VCG600"),
        ("x = 1\n", "x = " + "-" * 200_000 + "1\n", "VCG600"),
        ("x = 1\n", "x = 1\nfrom __future__ import annotations\n", "VCG600"),
        ("x = 1\n", "x = 1\nreturn x\n", "VCG600"),
        (None, "x = 1\n", None),
        (None, "x = 1", "VCG607"),
        (None, "x = 1\r\ny = 1\n", "VCG607"),
        ("", "x = 1\n", None),
    ],
)
def test_text_form(before: str | None, mutated: str, code: str | None) -> None:
    found = prove_text_form(before, mutated, PATH)
    assert [item.code for item in found][:1] == ([code] if code else [])


def test_text_form_of_markdown_does_not_parse_python() -> None:
    assert prove_text_form("# x\n", "# x (\n", "docs/x.md") == ()
