"""What each operation does to a text: before and after, side by side."""

# Texts stand on one line each, so that before and after can be compared.
# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass

import pytest

from scaffold.diagnostics import DiagnosticError
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

MODEL = "vllm/model_executor/models/m.py"


def edit(before: str, *edits: Edit, path: str = MODEL) -> str:
    """Apply, and hold every result to the proofs: they must accept all of this module's expected texts."""
    after = apply_edits(before, edits, path=path).text
    assert prove_text_form(before, after, path) == ()
    assert prove_equivalence(before, after, edits, path) == ()
    assert prove_idempotence(after, edits, path) == ()
    return after


def refuse(before: str, *edits: Edit, path: str = MODEL) -> tuple[str, int, str]:
    with pytest.raises(DiagnosticError) as caught:
        apply_edits(before, edits, path=path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.span is not None
    assert diagnostic.help
    return diagnostic.code, diagnostic.span.line, f"{diagnostic.message}; {diagnostic.help}"


@dataclass(frozen=True)
class Case:
    """One edit; `after` is None when nothing may change."""

    name: str
    edit: Edit
    before: str
    after: str | None
    path: str = MODEL


def run(case: Case) -> None:
    after = edit(case.before, case.edit, path=case.path)
    assert after == (case.before if case.after is None else case.after)


def cases(*items: Case) -> pytest.MarkDecorator:
    assert len({item.name for item in items}) == len(items)
    return pytest.mark.parametrize("case", items, ids=[item.name for item in items])


@cases(
    Case("a function", DropDefinition("f"), "x = 1\n\n\n# about f\ndef f(): ...\n\n\ny = 1\n", "x = 1\n\n\ny = 1\n"),
    Case("the first function", DropDefinition("f"), "def f(): ...\n\n\nx = 1\n", "x = 1\n"),
    Case("the last function", DropDefinition("f"), "x = 1\n\n\ndef f(): ...\n", "x = 1\n"),
    Case("a value", DropDefinition("X"), "import a\n\nX = 1\nY = 2\n", "import a\n\nY = 2\n"),
    Case(
        "a heading stays",
        DropDefinition("f"),
        "x = 1\n\n# -- these --\n\ndef f(): ...\n\n\ndef g(): ...\n",
        "x = 1\n\n# -- these --\n\ndef g(): ...\n",
    ),
    Case(
        "a heading at the end stays",
        DropDefinition("f"),
        "x = 1\n\n# -- these --\n\ndef f(): ...\n",
        "x = 1\n\n# -- these --\n",
    ),
    Case("not there", DropDefinition("f"), "x = 1\n", None),
    Case(
        "a method with its comments and decorators",
        DropDefinition("f", "A"),
        "class A:\n    def e(self): ...\n\n    # about f\n    @property\n    def f(self):\n        return 1\n        # after f\n\n    # about g\n    def g(self): ...\n",
        "class A:\n    def e(self): ...\n\n    # about g\n    def g(self): ...\n",
    ),
    Case(
        "the last method",
        DropDefinition("f", "A"),
        "class A:\n    def e(self): ...\n\n    def f(self): ...\n\n\nx = 1\n",
        "class A:\n    def e(self): ...\n\n\nx = 1\n",
    ),
    Case(
        "a value of a class",
        DropDefinition("x", "A"),
        "class A:\n    x = 1\n    y = 2\n",
        "class A:\n    y = 2\n",
    ),
    Case(
        "an attribute with its comment",
        DropDefinition("x", "A.f"),
        "class A:\n    def f(self):\n        self.w = 1\n        # about x\n        self.x: int = (\n            2\n        )\n\n        self.y = 3\n",
        "class A:\n    def f(self):\n        self.w = 1\n\n        self.y = 3\n",
    ),
    Case(
        "an attribute below a heading of several",
        DropDefinition("x", "A.f"),
        "class A:\n    def f(self):\n        # about both\n        self.x = 2\n        self.y = 3\n",
        "class A:\n    def f(self):\n        # about both\n        self.y = 3\n",
    ),
    Case(
        "an attribute between blank lines",
        DropDefinition("x", "A.f"),
        "class A:\n    def f(self):\n        a = 1\n\n        self.x = 2\n\n        b = 3\n",
        "class A:\n    def f(self):\n        a = 1\n\n        b = 3\n",
    ),
    Case("no such method", DropDefinition("x", "A.g"), "class A:\n    def f(self): ...\n", None),
)
def test_drop_definition(case: Case) -> None:
    run(case)


def test_one_definition_of_two_is_not_chosen() -> None:
    assert refuse("def f(): ...\n\n\ndef f(): ...\n", DropDefinition("f"))[:2] == ("VCG431", 1)
    assert refuse("x = 1\n", DropDefinition("f", "A"))[0] == "VCG430"


OLD = DropImport(".utils", "scatter")


@cases(
    Case("the last of one line", OLD, "from .utils import A, scatter\n", "from .utils import A\n"),
    Case("the only one", OLD, "import a\nfrom .utils import scatter\n\nx = 1\n", "import a\n\nx = 1\n"),
    Case(
        "the only one of its section",
        OLD,
        "import a\n\nfrom .utils import scatter\n\n\nx = 1\n",
        "import a\n\n\nx = 1\n",
    ),
    Case("the first of a file", OLD, "from .utils import scatter\n\nx = 1\n", "x = 1\n"),
    Case("the last of a file", OLD, "import a\n\nfrom .utils import scatter\n", "import a\n"),
    Case(
        "a section's first",
        OLD,
        "import a\n\nfrom .utils import scatter\nfrom .z import z\n",
        "import a\n\nfrom .z import z\n",
    ),
    Case("a whole module", DropImport("math"), "import math\nimport z\n", "import z\n"),
    Case("not a name of that module", DropImport("math"), "from math import math\n", None),
    Case("not that module under another name", DropImport("math"), "import math as m\n", None),
    Case("not under a condition", OLD, "if x:\n    from .utils import scatter\n", None),
    Case("the first of one line", OLD, "from .utils import scatter, z\n", "from .utils import z\n"),
    Case(
        "a line of its own",
        OLD,
        "from .utils import (\n    a,\n    scatter,\n    z,\n)\n",
        "from .utils import (\n    a,\n    z,\n)\n",
    ),
    Case(
        "the last line",
        OLD,
        "from .utils import (\n    a,\n    scatter,\n)\nx = a\n",
        "from .utils import (\n    a,\n)\nx = a\n",
    ),
    Case(
        "the absolute name",
        OLD,
        "from vllm.model_executor.models.utils import a, scatter\n",
        "from vllm.model_executor.models.utils import a\n",
    ),
    Case("another module", OLD, "from .other import a, scatter\n", None),
    Case("inside a function", OLD, "def f():\n    from .utils import a, scatter\n", None),
    Case("under a condition", OLD, "if x:\n    from .utils import a, scatter\n", None),
    Case("nothing to drop", OLD, "from .utils import a\nimport scatter\n", None),
)
def test_drop_import(case: Case) -> None:
    run(case)


TYPED = DropTypingImport("vllm.defs")


@cases(
    Case(
        "between imports, which become one block",
        TYPED,
        "from a import x\n\nif TYPE_CHECKING:\n    from vllm.defs import A, B\nfrom b import y\n",
        "from a import x\nfrom b import y\n",
    ),
    Case(
        "before other code",
        TYPED,
        "from a import x\n\nif typing.TYPE_CHECKING:\n    from vllm.defs import A\n\nlogger = x()\n",
        "from a import x\n\nlogger = x()\n",
    ),
    Case("the first of a file", TYPED, "if TYPE_CHECKING:\n    from vllm.defs import A\n\nx = 1\n", "x = 1\n"),
    Case("the last of a file", TYPED, "import a\n\nif TYPE_CHECKING:\n    from vllm.defs import A\n", "import a\n"),
    Case(
        "one statement of several",
        TYPED,
        "if TYPE_CHECKING:\n    # all of b\n    import b\n    from vllm.defs import (\n        A,\n        B,\n    )\n\nx = 1\n",
        "if TYPE_CHECKING:\n    # all of b\n    import b\n\nx = 1\n",
    ),
    Case("another module", TYPED, "if TYPE_CHECKING:\n    from vllm.other import A\n", None),
    Case("at run time", TYPED, "from vllm.defs import A\n", None),
    Case("under another condition", TYPED, "if x:\n    from vllm.defs import A\n", None),
    Case("with `else`", TYPED, "if TYPE_CHECKING:\n    from vllm.defs import A\nelse:\n    A = 1\n", None),
)
def test_drop_typing_import(case: Case) -> None:
    run(case)


def test_two_entries_at_the_end_of_a_list() -> None:
    before = "names = [\n    'a',\n]\n"
    edits = [AddListEntry("names", "b"), AddListEntry("names", "c")]
    after = apply_edits(before, edits, path=MODEL).text
    assert after == "names = [\n    'a',\n    'b',\n    'c',\n]\n"
    assert prove_equivalence(before, after, edits, MODEL) == ()
    lost = after.replace("    'b',\n", "")
    assert [problem.code for problem in prove_equivalence(before, lost, edits, MODEL)] == ["VCG602"]


def test_the_proof_wants_a_dropped_import_to_be_gone() -> None:
    before = "from .utils import a, scatter\n"
    (kept,) = prove_equivalence(before, before, [OLD], MODEL)
    assert (kept.code, "should have been removed" in kept.message) == ("VCG602", True)
    (other,) = prove_equivalence("from .utils import a, b, scatter\n", "from .utils import a\n", [OLD], MODEL)
    assert other.code in ("VCG601", "VCG604")


NEW = AddImport(".interfaces", "SupportsNew")


@cases(
    Case("joins one line", NEW, "from .interfaces import A, Z\n", "from .interfaces import A, SupportsNew, Z\n"),
    Case("joins at the start", NEW, "from .interfaces import Z\n", "from .interfaces import SupportsNew, Z\n"),
    Case("joins at the end", NEW, "from .interfaces import A\n", "from .interfaces import A, SupportsNew\n"),
    Case(
        "joins an absolute import of the same module",
        NEW,
        "from vllm.model_executor.models.interfaces import A\n",
        "from vllm.model_executor.models.interfaces import A, SupportsNew\n",
    ),
    Case(
        "one name a line keeps its trailing comma",
        NEW,
        "from .interfaces import (\n    A,\n    Z,\n)\n",
        "from .interfaces import (\n    A,\n    SupportsNew,\n    Z,\n)\n",
    ),
    Case(
        "one name a line, new name last",
        NEW,
        "from .interfaces import (\n    A,\n    B,  # b\n)\n",
        "from .interfaces import (\n    A,\n    B,  # b\n    SupportsNew,\n)\n",
    ),
    Case(
        "one name a line without a trailing comma stays without",
        NEW,
        "from .interfaces import (\n    A,\n    B\n)\n",
        "from .interfaces import (\n    A,\n    B,\n    SupportsNew\n)\n",
    ),
    Case(
        "comments stay with their names",
        NEW,
        "from .interfaces import (\n    # above a\n    A,  # a\n    # above z\n    Z,\n)\n",
        "from .interfaces import (\n    # above a\n    A,  # a\n    SupportsNew,\n    # above z\n    Z,\n)\n",
    ),
    Case(
        "the first name below a comment",
        NEW,
        "from .interfaces import (\n    # above z\n    Z,\n)\n",
        "from .interfaces import (\n    SupportsNew,\n    # above z\n    Z,\n)\n",
    ),
    Case(
        "hanging names with a comment before the bracket",
        NEW,
        "from .interfaces import (A,\n    B  # b\n)\n",
        "from .interfaces import (A,\n    B,  # b\n    SupportsNew\n)\n",
    ),
    Case(
        "hanging names",
        NEW,
        "from .interfaces import (A,\n    B\n)\n",
        "from .interfaces import (A,\n    B, SupportsNew\n)\n",
    ),
    Case(
        "bracket on the last name's line",
        NEW,
        "from .interfaces import (\n    A)\n",
        "from .interfaces import (\n    A,\n    SupportsNew)\n",
    ),
    Case(
        "unsorted names: at the end",
        NEW,
        "from .interfaces import Z, A\n",
        "from .interfaces import Z, A, SupportsNew\n",
    ),
    Case(
        "constants before classes before functions",
        NEW,
        "from .interfaces import LIMIT, A, Z, check\n",
        "from .interfaces import LIMIT, A, SupportsNew, Z, check\n",
    ),
    Case(
        "numbers count",
        AddImport(".m", "Qwen10"),
        "from .m import Qwen9, Qwen11\n",
        "from .m import Qwen9, Qwen10, Qwen11\n",
    ),
    Case(
        "the first of two statements that can be joined",
        NEW,
        "from .interfaces import A as B\nfrom .interfaces import C\nfrom .interfaces import D\n",
        "from .interfaces import A as B\nfrom .interfaces import C, SupportsNew\nfrom .interfaces import D\n",
    ),
    Case(
        "a shared line is not joined",
        NEW,
        "import a; from .interfaces import B\n",
        "import a; from .interfaces import B\n\nfrom .interfaces import SupportsNew\n",
    ),
    Case("already there", NEW, "from .interfaces import SupportsNew\n", None),
    Case("already there under an alias", NEW, "from .interfaces import SupportsNew as New\n", None),
    Case(
        "already there in a try",
        NEW,
        "try:\n    from .interfaces import SupportsNew\nexcept ImportError:\n    pass\n",
        None,
    ),
    Case(
        "an import in another condition is not enough",
        AddImport("vllm.x", "N"),
        "import os\n\nif os.name:\n    from vllm.y import M\n",
        "import os\n\nfrom vllm.x import N\n\nif os.name:\n    from vllm.y import M\n",
    ),
    Case(
        "new statement in its section",
        AddImport("vllm.b", "B"),
        "import os\n\nimport torch\n\nfrom vllm.a import A\nfrom vllm.c import C\n\nfrom .d import D\n",
        "import os\n\nimport torch\n\nfrom vllm.a import A\nfrom vllm.b import B\nfrom vllm.c import C\n\nfrom .d import D\n",
    ),
    Case(
        "first of its section takes the blank line",
        AddImport("vllm.a", "A"),
        "import os\n\nfrom vllm.c import C\n",
        "import os\n\nfrom vllm.a import A\nfrom vllm.c import C\n",
    ),
    Case(
        "a comment stays with its import",
        AddImport("vllm.a", "A"),
        "import os\n\n# why c\nfrom vllm.c import C\n",
        "import os\n\nfrom vllm.a import A\n# why c\nfrom vllm.c import C\n",
    ),
    Case(
        "the comments that head a file stay at its head",
        AddImport("abc", "ABC"),
        "# licence\nfrom typing import Any\n",
        "# licence\nfrom abc import ABC\nfrom typing import Any\n",
    ),
    Case(
        "a new section in the middle",
        AddImport("torch", "nn"),
        "import os\n\nfrom vllm.c import C\n",
        "import os\n\nfrom torch import nn\n\nfrom vllm.c import C\n",
    ),
    Case(
        "a new section at the top",
        AddImport("__future__", "annotations"),
        '"""Doc."""\nimport os\n',
        '"""Doc."""\nfrom __future__ import annotations\n\nimport os\n',
    ),
    Case(
        "a new section at the bottom",
        NEW,
        "import os\n\nX = 1\n",
        "import os\n\nfrom .interfaces import SupportsNew\n\nX = 1\n",
    ),
    Case(
        "in another package, where vLLM is third party and which more are first party is not known",
        AddImport("vllm.b", "B"),
        "import torch\nfrom vllm.a import A\n\nfrom acme_utils import U\nfrom acme.x import X\n",
        "import torch\nfrom vllm.a import A\nfrom vllm.b import B\n\nfrom acme_utils import U\nfrom acme.x import X\n",
        path="acme/models/m.py",
    ),
    Case(
        "in another package that does not import vLLM yet",
        AddImport("vllm.b", "B"),
        "import vllm_utils\n\nfrom acme.x import X\n",
        "import vllm_utils\nfrom vllm.b import B\n\nfrom acme.x import X\n",
        path="acme/models/m.py",
    ),
    Case(
        "an unsorted section gets it at its end",
        AddImport("vllm.b", "B"),
        "from vllm.c import C\nfrom vllm.a import A\n\nX = 1\n",
        "from vllm.c import C\nfrom vllm.a import A\nfrom vllm.b import B\n\nX = 1\n",
    ),
    Case(
        "the longest run of imports is the main one",
        AddImport("vllm.b", "B"),
        "import os\n\nos.x()\n\nimport torch\n\nfrom vllm.a import A\n",
        "import os\n\nos.x()\n\nimport torch\n\nfrom vllm.a import A\nfrom vllm.b import B\n",
    ),
    Case(
        "a star import does not count",
        NEW,
        "from .interfaces import *\n",
        "from .interfaces import *\nfrom .interfaces import SupportsNew\n",
    ),
    Case(
        "distant packages first", AddImport("..a", "A"), "from .a import B\n", "from ..a import A\nfrom .a import B\n"
    ),
    Case("from the package itself", AddImport(".", "a"), "from .b import B\n", "from . import a\nfrom .b import B\n"),
    Case("leaving the tree", AddImport(".....a", "A"), "from .....a import B\n", "from .....a import A, B\n"),
    Case(
        "no import, a docstring",
        NEW,
        '"""Doc."""\n\nX = 1\n',
        '"""Doc."""\n\nfrom .interfaces import SupportsNew\n\nX = 1\n',
    ),
    Case("no import, only a docstring", NEW, '"""Doc."""\n', '"""Doc."""\n\nfrom .interfaces import SupportsNew\n'),
    Case(
        "no import, comments",
        NEW,
        "# licence\n\n# x\nX = 1\n",
        "# licence\n\nfrom .interfaces import SupportsNew\n\n# x\nX = 1\n",
    ),
    Case(
        "no import, a class",
        NEW,
        "class A:\n    pass\n",
        "from .interfaces import SupportsNew\n\n\nclass A:\n    pass\n",
    ),
    Case("an empty file", NEW, "", "from .interfaces import SupportsNew\n"),
    Case("only comments", NEW, "# licence\n", "# licence\nfrom .interfaces import SupportsNew\n"),
)
def test_add_import(case: Case) -> None:
    run(case)


TORCH = AddImport("torch")


@cases(
    Case("already there", TORCH, "import os\n\nimport torch\n", None),
    Case("a submodule binds it as well", TORCH, "import torch.nn\n", None),
    Case("already there in a try", TORCH, "try:\n    import torch\nexcept ImportError:\n    pass\n", None),
    Case("an alias is another name", TORCH, "import torch.nn as nn\n", "import torch\nimport torch.nn as nn\n"),
    Case(
        "in its section, in front of names",
        TORCH,
        "import os\n\nfrom torch import nn\n\nfrom vllm.a import A\n",
        "import os\n\nimport torch\nfrom torch import nn\n\nfrom vllm.a import A\n",
    ),
    Case(
        "a section of its own",
        TORCH,
        "import os\n\nfrom vllm.a import A\n",
        "import os\n\nimport torch\n\nfrom vllm.a import A\n",
    ),
    Case("no import", TORCH, "X = 1\n", "import torch\n\nX = 1\n"),
)
def test_add_import_of_a_package(case: Case) -> None:
    run(case)


@cases(
    Case("one line", AddBase("A", "New"), "class A(B, C):\n    pass\n", "class A(B, C, New):\n    pass\n"),
    Case("no brackets", AddBase("A", "New"), "class A:\n    pass\n", "class A(New):\n    pass\n"),
    Case("the first", AddBase("A", "New", first=True), "class A(B, C):\n    pass\n", "class A(New, B, C):\n    pass\n"),
    Case("the first of none", AddBase("A", "New", first=True), "class A:\n    pass\n", "class A(New):\n    pass\n"),
    Case("empty brackets", AddBase("A", "New"), "class A():\n    pass\n", "class A(New):\n    pass\n"),
    Case(
        "before keywords",
        AddBase("A", "New"),
        "class A(B, metaclass=M):\n    pass\n",
        "class A(B, New, metaclass=M):\n    pass\n",
    ),
    Case(
        "only keywords",
        AddBase("A", "New"),
        "class A(metaclass=M):\n    pass\n",
        "class A(New, metaclass=M):\n    pass\n",
    ),
    Case(
        "one base a line",
        AddBase("A", "New"),
        "@register(\n    x=1,\n)\nclass A(\n    B,\n    C,  # c\n):  # head\n    # body\n    pass\n",
        "@register(\n    x=1,\n)\nclass A(\n    B,\n    C,  # c\n    New,\n):  # head\n    # body\n    pass\n",
    ),
    Case(
        "one base a line, keyword with a comment above",
        AddBase("A", "New"),
        "class A(\n    B,\n    # why\n    metaclass=M,\n):\n    pass\n",
        "class A(\n    B,\n    New,\n    # why\n    metaclass=M,\n):\n    pass\n",
    ),
    Case(
        "all bases on one inner line",
        AddBase("A", "New"),
        "class A(\n    B, C\n):\n    pass\n",
        "class A(\n    B, C,\n    New\n):\n    pass\n",
    ),
    Case("object stays last", AddBase("A", "New"), "class A(object):\n    pass\n", "class A(New, object):\n    pass\n"),
    Case(
        "Generic stays last",
        AddBase("A", "New"),
        "class A(B, Generic[T]):\n    pass\n",
        "class A(B, New, Generic[T]):\n    pass\n",
    ),
    Case("starred bases", AddBase("A", "New"), "class A(*bases):\n    pass\n", "class A(*bases, New):\n    pass\n"),
    Case("dotted", AddBase("A", "m.New"), "class A(B):\n    pass\n", "class A(B, m.New):\n    pass\n"),
    Case("a one-line class", AddBase("A", "New"), "class A: pass\n", "class A(New): pass\n"),
    Case("already there", AddBase("A", "New"), "class A(New):\n    pass\n", None),
    Case("already there, dotted", AddBase("A", "New"), "class A(m.New[int]):\n    pass\n", None),
    Case(
        "inside an if",
        AddBase("A", "New"),
        "import os\n\nif os.name:\n    x = 1\n\n    class A(B):\n        pass\nelse:\n    y = 2\n",
        "import os\n\nif os.name:\n    x = 1\n\n    class A(B, New):\n        pass\nelse:\n    y = 2\n",
    ),
    Case(
        "inside a with",
        AddBase("A", "New"),
        "with x:\n    class A(B): ...\n",
        "with x:\n    class A(B, New): ...\n",
    ),
    Case(
        "inside a try, with other classes",
        AddBase("A", "New"),
        "try:\n    import a\nexcept E:\n    class Z: pass\nelse:\n    class A(B): pass\nfinally:\n    x = 1\n",
        "try:\n    import a\nexcept E:\n    class Z: pass\nelse:\n    class A(B, New): pass\nfinally:\n    x = 1\n",
    ),
    Case("tabs", AddBase("A", "New"), "class A(\n\tB,\n):\n\tpass\n", "class A(\n\tB,\n\tNew,\n):\n\tpass\n"),
)
def test_add_base(case: Case) -> None:
    run(case)


BLOCK = "# -- block --\n\ndef f(self):\n    return 1\n\n# about g\n@property\nasync def g(self):\n    return 2\n"
INDENTED = "    # -- block --\n\n    def f(self):\n        return 1\n\n    # about g\n    @property\n    async def g(self):\n        return 2\n"
HEAD = "class A(B):\n    x = 1\n"
OTHER = "\n    def other(self):\n        def f():\n            return 0\n        return f\n"


@cases(
    Case("at the end", PutMethods("A", BLOCK), HEAD + OTHER, HEAD + OTHER + "\n" + INDENTED),
    Case(
        "at the end, more below", PutMethods("A", BLOCK), HEAD + "\n\ny = 1\n", HEAD + "\n" + INDENTED + "\n\ny = 1\n"
    ),
    Case(
        "before the first method",
        PutMethods("A", "x: int = 1", first=True),
        "class A:\n    y = 2\n\n    def f(self): ...\n",
        "class A:\n    y = 2\n\n    x: int = 1\n\n    def f(self): ...\n",
    ),
    Case(
        "a field behind others",
        PutMethods("A", "x: int = 1"),
        "class A:\n    y: int = 2\n\n\nz = 1\n",
        "class A:\n    y: int = 2\n    x: int = 1\n\n\nz = 1\n",
    ),
    Case(
        "in the place of the first removed one",
        PutMethods("A", BLOCK, remove=("a", "b", "absent")),
        "class A:\n    # about a\n    def a(self):\n        # in a\n        return 1\n        # after a\n\n    def keep(self): ...\n\n    def b(self): ...\n",
        "class A:\n" + INDENTED + "\n    def keep(self): ...\n",
    ),
    Case(
        "in the place of its own first, not of a helper's",
        PutMethods("A", "def f(self): 2", remove=("a", "f")),
        "class A:\n    def a(self): ...\n\n    def keep(self): ...\n\n    def f(self): ...\n\n    def b(self): ...\n",
        "class A:\n    def keep(self): ...\n\n    def f(self): 2\n\n    def b(self): ...\n",
    ),
    Case(
        "a section comment that heads nothing any more goes",
        PutMethods("A", "def f(self): ...", remove=("a", "b")),
        HEAD
        + "\n    # -- section --\n\n    def a(self): ...\n\n    # about b\n    def b(self): ...\n\n    # -- next --\n\n    def c(self): ...\n",
        HEAD + "\n    def f(self): ...\n\n    # -- next --\n\n    def c(self): ...\n",
    ),
    Case(
        "a section comment that still heads something stays",
        PutMethods("A", "def f(self): ...", remove=("a",)),
        HEAD + "\n    # -- section --\n\n    def a(self): ...\n\n    def c(self): ...\n",
        HEAD + "\n    # -- section --\n\n    def f(self): ...\n\n    def c(self): ...\n",
    ),
    Case(
        "a section comment that the block brings is not doubled",
        PutMethods("A", BLOCK, remove=("a",)),
        HEAD + "\n    # -- block --\n\n    def a(self): ...\n\n    def c(self): ...\n",
        HEAD + "\n" + INDENTED + "\n    def c(self): ...\n",
    ),
    Case(
        "a later section comment that still heads something stays",
        PutMethods("A", "def f(self): ...", remove=("a", "b")),
        HEAD
        + "\n    def a(self): ...\n\n    x = 2\n\n    # -- section --\n\n    def b(self): ...\n    def c(self): ...\n",
        HEAD + "\n    def f(self): ...\n\n    x = 2\n\n    # -- section --\n\n    def c(self): ...\n",
    ),
    Case(
        "a later section comment that heads nothing goes",
        PutMethods("A", "def f(self): ...", remove=("a", "b")),
        HEAD + "\n    def a(self): ...\n\n    x = 2\n\n    # -- section --\n\n    def b(self): ...\n",
        HEAD + "\n    def f(self): ...\n\n    x = 2\n",
    ),
    Case(
        "a section comment about the same goes, whatever else it says",
        PutMethods("A", "# -- SupportsGraphs methods --\n\ndef f(self): ...", remove=("a",)),
        HEAD
        + "\n    # ---- #\n    # SupportsGraphs protocol #\n    # Of images. #\n    # ---- #\n\n    def a(self): ...\n\n"
        + "    def c(self): ...\n",
        HEAD + "\n    # -- SupportsGraphs methods --\n\n    def f(self): ...\n\n    def c(self): ...\n",
    ),
    Case(
        "an attribute with a type among them",
        PutMethods("A", "def f(self): ...\n\n# about n\nn: int = 0\n", remove=("a",)),
        "class A:\n    n: int = 0\n\n    def a(self): ...\n\n    m: int\n",
        "class A:\n    def f(self): ...\n\n    # about n\n    n: int = 0\n\n    m: int\n",
    ),
    Case(
        "there already, with an attribute",
        PutMethods("A", "n: int = 0\n\ndef f(self): ...\n"),
        "class A:\n    n: int = 0\n\n    def f(self): ...\n",
        None,
    ),
    Case("there already", PutMethods("A", BLOCK), HEAD + "\n" + INDENTED, None),
    Case(
        "there already with other comments: the planned ones",
        PutMethods("A", "# -- f --\n\ndef f(self):\n    # one\n    return 1\n"),
        HEAD + "\n    # -- f --\n\n    def f(self):\n        # two\n        return 1\n",
        HEAD + "\n    # -- f --\n\n    def f(self):\n        # one\n        return 1\n",
    ),
    Case(
        "there already without its heading",
        PutMethods("A", "# -- f --\n\ndef f(self): ..."),
        HEAD + "\n    def f(self): ...\n",
        HEAD + "\n    # -- f --\n\n    def f(self): ...\n",
    ),
    Case(
        "there already below a comment of others",
        PutMethods("A", "# -- f --\n\ndef f(self):\n    #one\n    return 1\n"),
        HEAD + "\n    # end of x\n\n    # -- f --\n\n    def f(self):\n        # one\n        return 1\n",
        None,
    ),
    Case(
        "there in another meaning, named in remove",
        PutMethods("A", "def f(self): ...\ndef g(self): ...", remove=("f",)),
        HEAD + "\n    def f(self): pass\n\n    def g(self): ...\n",
        HEAD + "\n    def f(self): ...\n    def g(self): ...\n",
    ),
    Case(
        "there already, named in remove",
        PutMethods("A", BLOCK, remove=("f", "g")),
        HEAD + "\n" + INDENTED + OTHER,
        None,
    ),
    Case(
        "there already in another layout",
        PutMethods("A", "def f(self, a, b):\n    '''Doc.\n\n    More.\n    '''\n    del (a, b)\n"),
        'class A:\n    def f(\n        self, a, b\n    ):\n        """\n        Doc.\n\n        More."""\n        del a, b\n',
        None,
    ),
    Case(
        "there, but apart: together again",
        PutMethods("A", "def f(self): ...\ndef g(self): ..."),
        "class A:\n    def f(self): ...\n    def x(self): ...\n    def g(self): ...\n",
        "class A:\n    def f(self): ...\n    def g(self): ...\n\n    def x(self): ...\n",
    ),
    Case(
        "a one-line class",
        PutMethods("A", "def f(self): ..."),
        "class A: x = 1  # x\n",
        "class A:\n    x = 1  # x\n\n    def f(self): ...\n",
    ),
    Case(
        "comments at the end of the class stay above",
        PutMethods("A", "def f(self): ..."),
        HEAD + "\n    # end of A\n\n# below A\ny = 1\n",
        HEAD + "\n    # end of A\n\n    def f(self): ...\n\n# below A\ny = 1\n",
    ),
    Case(
        "strings keep their lines, docstrings move",
        PutMethods("A", 'def f(self):\n    """Doc.\n\n    More.\n    """\n    return """\nx\n\n  y\n"""\n'),
        "class A:\n    x = 1\n",
        'class A:\n    x = 1\n\n    def f(self):\n        """Doc.\n\n        More.\n        """\n        return """\nx\n\n  y\n"""\n',
    ),
    Case(
        "inside an if, with a docstring",
        PutMethods("A", 'def f(self):\n    """Doc.\n\n    More."""\n'),
        "if x:\n    class Z: ...\n    class A:\n        y = 1\n",
        'if x:\n    class Z: ...\n    class A:\n        y = 1\n\n        def f(self):\n            """Doc.\n\n            More."""\n',
    ),
    Case(
        "tabs",
        PutMethods("A", 'def f(self):\n    """Doc.\n\n    More."""\n    if self:\n        return 1\n'),
        "class A:\n\tx = 1\n",
        'class A:\n\tx = 1\n\n\tdef f(self):\n\t\t"""Doc.\n\n\t\tMore."""\n\t\tif self:\n\t\t\treturn 1\n',
    ),
)
def test_put_methods(case: Case) -> None:
    run(case)


@cases(
    Case(
        "body and parameters, with decorators and comments kept",
        ReplaceMethod("A", "f", "def f(self, x):\n    return x\n"),
        "class A:\n    y = 1\n\n    # -- s --\n\n    # about f\n    @cached\n    @other(1)\n    def f(self):\n        # old\n        return 1\n\n    def g(self): ...\n",
        "class A:\n    y = 1\n\n    # -- s --\n\n    # about f\n    @cached\n    @other(1)\n    def f(self, x):\n        return x\n\n    def g(self): ...\n",
    ),
    Case(
        "own decorators and comments win",
        ReplaceMethod("A", "f", "# new\n@mine\ndef f(self, x):\n    return x\n"),
        "class A:\n    # old\n    @cached\n    def f(self):\n        return 1\n",
        "class A:\n    # new\n    @mine\n    def f(self, x):\n        return x\n",
    ),
    Case(
        "a comment behind its last statement stays",
        ReplaceMethod("A", "f", "def helper(self): ...\n\ndef f(self, x):\n    return x\n"),
        "class A:\n    def f(self):\n        return 1\n\n        # to be done\n\n    def g(self): ...\n",
        "class A:\n    def helper(self): ...\n\n    def f(self, x):\n        return x\n\n        # to be done\n\n    def g(self): ...\n",
    ),
    Case(
        "with a helper before it",
        ReplaceMethod("A", "f", "def prepare(self): ...\n\ndef f(self, x):\n    return x\n"),
        "class A:\n    y = 1\n    @cached\n    def f(self):\n        return 1\n",
        "class A:\n    y = 1\n\n    def prepare(self): ...\n\n    @cached\n    def f(self, x):\n        return x\n",
    ),
    Case(
        "there already",
        ReplaceMethod("A", "f", "def f(self, x):\n    return x\n\ndef h(self): ..."),
        "class A:\n    @cached\n    def f(self, x): return x\n    def h(self): ...\n",
        None,
    ),
)
def test_replace_method(case: Case) -> None:
    run(case)


@cases(
    Case(
        "between others, with the comments above",
        ReplaceFunction("f", "@cached\ndef f(x, y=None):\n    # new\n    return x\n"),
        "x = 1\n\n\n# about f\n@cached\ndef f(x):\n    # old\n    return x\n\n\nclass A:\n    def f(self): ...\n",
        "x = 1\n\n\n# about f\n@cached\ndef f(x, y=None):\n    # new\n    return x\n\n\nclass A:\n    def f(self): ...\n",
    ),
    Case(
        "its overloads stay",
        ReplaceFunction("f", "def f(x):\n    return 2\n"),
        "@overload\ndef f(x: int): ...\n\n\n@typing.overload\ndef f(x: str): ...\n\n\ndef f(x):\n    return 1\n",
        "@overload\ndef f(x: int): ...\n\n\n@typing.overload\ndef f(x: str): ...\n\n\ndef f(x):\n    return 2\n",
    ),
    Case("there already", ReplaceFunction("f", "def f(x):\n    return x\n"), "def f(x): return x\n", None),
)
def test_replace_function(case: Case) -> None:
    run(case)


FUNCTION = "# about f\ndef f(x):\n    return x\n"


@cases(
    Case(
        "before, below the section's comment",
        PutFunction(FUNCTION, before="A"),
        "import os\n\n# ----\n# section\n# ----\n\n\n# about a\nA = 1\n",
        "import os\n\n# ----\n# section\n# ----\n\n\n" + FUNCTION + "\n\n# about a\nA = 1\n",
    ),
    Case(
        "before, no comment",
        PutFunction("@d\ndef f(): ...\n", before="A"),
        "import os\nA = 1\n",
        "import os\n\n\n@d\ndef f(): ...\n\n\nA = 1\n",
    ),
    Case(
        "before the first statement",
        PutFunction(FUNCTION, before="A"),
        "# licence\n\nA = 1\n",
        "# licence\n\n" + FUNCTION + "\n\nA = 1\n",
    ),
    Case(
        "before a class that is inside an if",
        PutFunction("def f(): ...\n", before="A"),
        "import os\n\nif os:\n    class A: ...\n",
        "import os\n\n\ndef f(): ...\n\n\nif os:\n    class A: ...\n",
    ),
    Case("there already", PutFunction(FUNCTION, before="A"), "def f(x): return x  # here\n", None),
)
def test_put_function(case: Case) -> None:
    run(case)


ENTRY = AddDictEntry("D", "new", "Config(\n    a=1,\n    b='''\nx\n''',\n)")


@cases(
    Case(
        "one entry a line",
        ENTRY,
        'D: dict[str, C] = {\n    "a": 1,\n    "b": f(\n        2,\n    ),\n}\n',
        "D: dict[str, C] = {\n    \"a\": 1,\n    \"b\": f(\n        2,\n    ),\n    \"new\": Config(\n        a=1,\n        b='''\nx\n''',\n    ),\n}\n",
    ),
    Case("one line", AddDictEntry("D", "new", "2"), 'D = {"a": 1}\n', 'D = {"a": 1, "new": 2}\n'),
    Case("empty", AddDictEntry("D", "new", "2"), "D = {}\n", 'D = {"new": 2}\n'),
    Case(
        "no trailing comma, comment at the end",
        AddDictEntry("D", "new", "2"),
        'D = {\n    "a": 1  # a\n    # end\n}\n',
        'D = {\n    "a": 1,  # a\n    # end\n    "new": 2\n}\n',
    ),
    Case(
        "a spread",
        AddDictEntry("D", "new", "2"),
        "D = {\n    **OTHER,\n    'a': 1,\n    **MORE,\n}\n",
        "D = {\n    **OTHER,\n    'a': 1,\n    **MORE,\n    \"new\": 2,\n}\n",
    ),
    Case(
        "a comment in the entry",
        AddDictEntry("D", "new", "f(\n    1,  # one\n)"),
        'D = {\n    "a": 1,\n}\n',
        'D = {\n    "a": 1,\n    "new": f(\n        1,  # one\n    ),\n}\n',
    ),
    Case(
        "a comment in the entry, one line",
        AddDictEntry("D", "new", "f(\n    1,  # one\n)"),
        'D = {"a": 1}  # d\n',
        'D = {"a": 1, "new": f(\n    1,  # one\n)}  # d\n',
    ),
    Case(
        "below a string over lines with a comment",
        AddDictEntry("D", "new", "2"),
        'D = {\n    "a": """x\n"""  # a\n}\n',
        'D = {\n    "a": """x\n""",  # a\n    "new": 2\n}\n',
    ),
    Case(
        "inside an if",
        AddDictEntry("D", "new", "2"),
        'if x:\n    def f(): ...\n    D = {\n        "a": 1,\n    }\n',
        'if x:\n    def f(): ...\n    D = {\n        "a": 1,\n        "new": 2,\n    }\n',
    ),
    Case("quotes in the key", AddDictEntry("D", "a\"b'c\\", "2"), "D = {}\n", 'D = {"a\\"b\'c\\\\": 2}\n'),
    Case("there already, another value", AddDictEntry("D", "a", "2"), 'D = {"a": 1}\n', None),
)
def test_add_dict_entry(case: Case) -> None:
    run(case)


@cases(
    Case(
        "unsorted: at the end",
        AddListEntry("L", "m"),
        'L = [\n    "z",\n    "a",\n]\n',
        'L = [\n    "z",\n    "a",\n    "m",\n]\n',
    ),
    Case(
        "sorted: in order",
        AddListEntry("L", "m"),
        'L = [\n    "a",\n    "z",\n]\n',
        'L = [\n    "a",\n    "m",\n    "z",\n]\n',
    ),
    Case(
        "sorted: first",
        AddListEntry("L", "0"),
        'L = [\n    "a",\n    "z",\n]\n',
        'L = [\n    "0",\n    "a",\n    "z",\n]\n',
    ),
    Case("one line", AddListEntry("L", "m"), "L = ['a', 'z']\n", "L = ['a', 'm', 'z']\n"),
    Case("one line, a trailing comma", AddListEntry("L", "z"), "L = ['a', 'b',]\n", "L = ['a', 'b', 'z',]\n"),
    Case("empty", AddListEntry("L", "m"), "L = []\n", 'L = ["m"]\n'),
    Case("names among the strings", AddListEntry("L", "b"), 'L = ["a", X, *Y, "z"]\n', 'L = ["a", X, *Y, "z", "b"]\n'),
    Case(
        "other assignments around",
        AddListEntry("L", "m"),
        'K = ["z"]\nA = B = 1\nC, D = 1, 2\nE: int\nL = ["z"]; M = ["y"]\nL += ["x"]\n',
        'K = ["z"]\nA = B = 1\nC, D = 1, 2\nE: int\nL = ["z", "m"]; M = ["y"]\nL += ["x"]\n',
    ),
    Case("there already", AddListEntry("L", "z"), 'L = ["z"]\n', None),
)
def test_add_list_entry(case: Case) -> None:
    run(case)


CLASS = "class A(B):\n    def f(self): ...\n    def p(self): ...\n    def p(self): ...\n"


@pytest.mark.parametrize(
    ("before", "planned", "code", "line", "part"),
    [
        ("class Alpha: ...\n", AddBase("Alfa", "B"), "VCG430", 1, "no class `Alfa` to edit; there is `Alpha`"),
        ("x = 1\n", AddBase("A", "B"), "VCG430", 1, "the file has no class"),
        (
            "if x:\n    class A: ...\nelse:\n    class A: ...\n",
            AddBase("A", "B"),
            "VCG431",
            2,
            "2 places define the class `A`",
        ),
        ("\nclass A(:\n", AddBase("A", "B"), "VCG432", 2, "cannot be parsed"),
        ("x = '\0'\n", AddBase("A", "B"), "VCG432", 1, "cannot be parsed"),
        ("x = " + "-" * 200_000 + "1\n", AddBase("A", "B"), "VCG432", 1, "cannot be parsed"),
        ("import os\nfrom y import N\n", AddImport("x", "N"), "VCG433", 2, "`N` means something else"),
        ("import N.x\n", AddImport("x", "N"), "VCG433", 1, "`N` means something else"),
        ("class N: ...\n", AddImport("x", "N"), "VCG433", 1, "`N` means something else"),
        ("a, (N, b) = f()\n", AddImport("x", "N"), "VCG433", 1, "`N` means something else"),
        ("N: int = 1\n", AddImport("x", "N"), "VCG433", 1, "`N` means something else"),
        (
            "if TYPE_CHECKING:\n    from x import N\n",
            AddImport("x", "N"),
            "VCG433",
            2,
            "for type checking only",
        ),
        (CLASS, PutMethods("A", "def f(self, x): ..."), "VCG434", 2, "the method `A.f` is there already and differs"),
        (CLASS, PutMethods("A", "x = 1"), "VCG436", 1, "statements other than functions"),
        (
            "class A:\n    n: int = 1\n",
            PutMethods("A", "n: int = 0"),
            "VCG434",
            2,
            "the method `A.n` is there already and differs",
        ),
        (CLASS, PutMethods("A", "def f(: ..."), "VCG436", 1, "invalid syntax (line 1)"),
        (CLASS, PutMethods("A", "# nothing"), "VCG436", 1, "it defines nothing"),
        (CLASS, PutMethods("A", "def f(): ...\ndef f(): ..."), "VCG436", 1, "defines a name twice"),
        (CLASS, ReplaceMethod("A", "ff", "def ff(self): ..."), "VCG430", 1, "no method of `A` `ff`"),
        (CLASS, ReplaceMethod("A", "p", "def p(self): ..."), "VCG431", 3, "2 places define the method of `A` `p`"),
        (CLASS, ReplaceMethod("A", "f", "def g(self): ..."), "VCG436", 1, "it does not define `f`"),
        (
            "class A:\n    def f(self): ...\n    def g(self): ...\n",
            ReplaceMethod("A", "f", "def f(self): 1\ndef g(self): 1"),
            "VCG434",
            3,
            "`A.g` is there already",
        ),
        ("def g(): ...\n", ReplaceFunction("f", "def f(): ..."), "VCG430", 1, "no function `f` to edit; there is `g`"),
        ("def f(): ...\ndef f(): 1\n", ReplaceFunction("f", "def f(): 2"), "VCG431", 1, "2 places define"),
        ("def f(): ...\n", ReplaceFunction("f", "def f(): 1\nx = 1"), "VCG436", 1, "does not define `f` alone"),
        ("x = 1\n", PutFunction("def f(): ...", before="y"), "VCG430", 1, "no definition `y`"),
        ("x = 1\nx = 2\n", PutFunction("def f(): ...", before="x"), "VCG431", 1, "2 places define"),
        (
            "def f(x): ...\n",
            PutFunction("def f(): ...", before="f"),
            "VCG434",
            1,
            "the definition `f` is there already",
        ),
        (
            "def f(): ...\n" * 2,
            PutFunction("def f(): ...", before="f"),
            "VCG434",
            1,
            "the definition `f` is there already",
        ),
        ("x = 1\n", PutFunction("y = 1", before="x"), "VCG436", 1, "it is not one function"),
        ("x = 1\n", PutFunction("def f(): ...\ny = 1", before="x"), "VCG436", 1, "it is not one function"),
        ("D = {}\n", AddDictEntry("DD", "a", "1"), "VCG430", 1, "no variable `DD` to edit; there is `D`"),
        ("D = {}\nD = {}\n", AddDictEntry("D", "a", "1"), "VCG431", 1, "2 places define the variable `D`"),
        ("D = {k: 1 for k in x}\n", AddDictEntry("D", "a", "1"), "VCG435", 1, "`D` is not a dict literal"),
        ("\nD = dict(a=1)\n", AddDictEntry("D", "a", "1"), "VCG435", 2, "`D` is not a dict literal"),
        ("D = {}\n", AddDictEntry("D", "a", "1, 'b': 2"), "VCG436", 1, "is not one expression"),
        ("D = {}\n", AddDictEntry("D", "a", "1}\nE = {"), "VCG436", 1, "is not one expression"),
        ("D = {}\n", AddDictEntry("D", "a", "f("), "VCG436", 1, "unusable"),
        ("L = ('a')\n", AddListEntry("L", "b"), "VCG435", 1, "`L` is not a list literal"),
        ("L = [x for x in y]\n", AddListEntry("L", "b"), "VCG435", 1, "`L` is not a list literal"),
        ("L = [('a', 1)]\n", AddListEntry("L", "b"), "VCG435", 1, "`L` does not contain strings"),
    ],
)
def test_refusals(before: str, planned: Edit, code: str, line: int, part: str) -> None:
    found_code, found_line, text = refuse(before, planned)
    assert (found_code, found_line) == (code, line)
    assert part in text


def test_errors_name_the_displayed_path() -> None:
    with pytest.raises(DiagnosticError) as caught:
        apply_edits("x = 1\n", [AddBase("A", "B")], path="vllm/a.py", display="/tree/vllm/a.py")
    assert str(caught.value.diagnostics[0].span) == "/tree/vllm/a.py:1:1"


@pytest.mark.parametrize(
    "text",
    [
        "import os\r\n\r\n\r\nclass A(\r\n    B,\r\n):\r\n    x = 1\r\n\r\n\r\nL = [\r\n    'a',\r\n]\r\n",
        "\ufeffimport os\n\n\nclass A(\n    B,\n):\n    x = 1\n\n\nL = [\n    'a',\n]\n",
        "import os\n\n\nclass A(\n\tB,\n):\n\tx = 1\n\n\nL = [\n\t'a',\n]\n",
        "import os\n\n\nL = [\n    'a',\n]\n\n\nclass A(\n    B,\n):\n    x = 1",
        "import os\r\n\r\nclass A(B):\r\n    x = 1\r\n\r\nL = ['a']",
        "# -*- coding: latin-1 -*-\nimport os\n\nclass A(B):\n    x = 'é'\n\nL = ['a']\n",
        "import os\rclass A(B):\r    x = 1\rL = ['a']\r",
    ],
    ids=["CRLF", "BOM", "tabs", "no final newline", "CRLF and no final newline", "latin-1", "CR"],
)
def test_the_form_of_the_file_is_kept(text: str) -> None:
    newline = "\r\n" if "\r\n" in text else "\r" if "\r" in text else "\n"
    after = edit(
        text,
        AddImport(".interfaces", "New"),
        AddImport("torch"),
        AddBase("A", "New"),
        PutMethods("A", 'def f(self):\n    """Doc.\n\n    More.\n    """\n    return 1\n'),
        PutFunction("def g():\n    return 1\n", before="L"),
        AddListEntry("L", "b"),
    )
    assert "def f(self)" in after
    assert "New" in after
    assert set(_ends(after)) == {newline} | ({""} if not text.endswith(newline) else set())
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    assert after.endswith(("\n", "\r")) == text.endswith(("\n", "\r"))
    if "\n\t" in text:
        assert "\n    " not in after


def _ends(text: str) -> list[str]:
    import io

    return [line[len(line.rstrip("\r\n")) :] for line in io.StringIO(text, newline="")]


def test_several_edits_see_each_other() -> None:
    before = "from .interfaces import A\n\n\nclass M(A):\n    def f(self): ...\n\n\nD = {}\n"
    after = edit(
        before,
        AddImport(".interfaces", "B"),
        AddImport(".interfaces", "B"),
        AddImport(".interfaces", "C"),
        AddBase("M", "C"),
        AddBase("M", "B"),
        AddBase("M", "B"),
        PutMethods("M", "def g(self): ..."),
        PutMethods("M", "def h(self): ..."),
        PutMethods("M", "def g(self): ..."),
        PutFunction("def x(): ...\n", before="D"),
        PutFunction("def x(): ...\n", before="D"),
        PutFunction("def y(): ...\n", before="D"),
        AddDictEntry("D", "a", "1"),
        AddDictEntry("D", "b", "2"),
        AddDictEntry("D", "a", "3"),
    )
    assert after == (
        "from .interfaces import A, B, C\n\n\nclass M(A, C, B):\n    def f(self): ...\n\n    def g(self): ...\n\n"
        '    def h(self): ...\n\n\ndef x(): ...\n\n\ndef y(): ...\n\n\nD = {"a": 1, "b": 2}\n'
    )


def test_no_edit_returns_the_same_text() -> None:
    text = "x = 1;y  =  2 # odd\n"
    result = apply_edits(text, [], path=MODEL)
    assert (result.text, result.changed) == (text, ())


def test_what_changed_is_reported() -> None:
    edits = (AddBase("A", "B"), AddListEntry("L", "a"))
    result = apply_edits("class A(B): ...\nL = []\n", edits, path=MODEL)
    assert result.changed == (edits[1],)


HEADER = ("Name", "Image", "Video")
ROW = AddTableRow(HEADER, "`New`", ("`New`", "yes", "no"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "| Name | Image | Video |\n| --- | --- | --- |\n| `Z` | yes | no |\n| A | yes | no |\n\ntext\n",
            "| Name | Image | Video |\n| --- | --- | --- |\n| `Z` | yes | no |\n| A | yes | no |\n| `New` | yes | no |\n\ntext\n",
        ),
        (
            "| Name | Image | Video |\n| --- | --- | --- |\n| A | yes | no |\n| `Z` | yes | no |\n",
            "| Name | Image | Video |\n| --- | --- | --- |\n| A | yes | no |\n| `New` | yes | no |\n| `Z` | yes | no |\n",
        ),
        (
            "| Name | Image | Video |\n| --- | --- | --- |\n| P | yes | no |\n| `Z` | yes | no |\n",
            "| Name | Image | Video |\n| --- | --- | --- |\n| `New` | yes | no |\n| P | yes | no |\n| `Z` | yes | no |\n",
        ),
        (
            "Name | Image | Video\n--- | --- | ---\nA | yes | no\n",
            "Name | Image | Video\n--- | --- | ---\nA | yes | no\n`New` | yes | no\n",
        ),
        (
            "| Name    | Image | Video |\n| ------- | ----- | ----- |\n| A\\|B    | yes   | no    |\n",
            "| Name    | Image | Video |\n| ------- | ----- | ----- |\n| A\\|B    | yes   | no    |\n| `New`   | yes   | no    |\n",
        ),
        (
            "| Name | Image | Video |\n| --- | --- | --- |\n",
            "| Name | Image | Video |\n| --- | --- | --- |\n| `New` | yes | no |\n",
        ),
        (
            "x\r\n\r\n| Name | Image | Video |\r\n| --- | --- | --- |\r\n| A | yes | no |",
            "x\r\n\r\n| Name | Image | Video |\r\n| --- | --- | --- |\r\n| A | yes | no |\r\n| `New` | yes | no |",
        ),
        (
            "> | Name | Image | Video |\n> | --- | --- | --- |\n> | A | yes | no |\n",
            "> | Name | Image | Video |\n> | --- | --- | --- |\n> | A | yes | no |\n> | `New` | yes | no |\n",
        ),
        ("| Name | Image | Video |\n| --- | --- | --- |\n| New | ? | ? |\n", None),
    ],
    ids=[
        "append",
        "sorted",
        "sorted first",
        "no outer pipes",
        "aligned",
        "no rows",
        "CRLF and no final newline",
        "quoted",
        "there already",
    ],
)
def test_add_table_row(before: str, after: str | None) -> None:
    assert edit(before, ROW, path="docs/x.md") == (before if after is None else after)


def test_a_pipe_in_a_cell_is_escaped() -> None:
    before = "| Name | Image | Video |\n| --- | --- | --- |\n| B | 1 | 2 |\n"
    row = AddTableRow(HEADER, "A", ("A", "x|y", "z"))
    assert edit(before, row, row, path="docs/x.md") == before + "| A | x\\|y | z |\n"


@pytest.mark.parametrize(
    ("before", "code", "part"),
    [
        ("text\n", "VCG430", "the file has no table"),
        ("| Name | Image |\n| --- | --- |\n", "VCG430", "there is `Name | Image`"),
        ("    | Name | Image | Video |\n    | --- | --- | --- |\n", "VCG430", "no table"),
        ("| Name | Image | Video |\n| --- | --- | --- |\n\nx\n\n" * 2, "VCG431", "2 places"),
    ],
)
def test_table_refusals(before: str, code: str, part: str) -> None:
    found_code, _, text = refuse(before, ROW, path="docs/x.md")
    assert found_code == code
    assert part in text
