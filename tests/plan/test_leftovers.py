"""What goes with a replaced implementation, what stays, and what a run says of both."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from scaffold.diagnostics import DiagnosticError
from scaffold.edit import apply_edits
from scaffold.edit.operations import DropDefinition, DropImport, DropTypingImport
from scaffold.plan.leftovers import Leftovers, _Use, find_leftovers, find_tested, lost_explanations
from scaffold.protocol import SourceTree, find_model, read_protocol
from scaffold.verify.equivalence import prove_equivalence
from scaffold.workflow import load_port, prepare_port

MODELS = "vllm/model_executor/models"
PROTOCOL_FILES = (
    f"{MODELS}/interfaces.py",
    "vllm/v1/worker/encoder_cudagraph_defs.py",
    "vllm/v1/worker/encoder_cudagraph.py",
)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Helpers of models with images and videos.
_BY_MODALITY = {"_get_grid_thw_by_modality", "_get_pixel_values_by_modality"}
#: The shipped models that 0.33 has a hand-written implementation of, with the class's members that go beside the
#: protocol's, what else goes from the file, and what is named as staying.
GONE: dict[str, tuple[set[str], set[str], set[str]]] = {
    "cohere_compass": (_BY_MODALITY, set(), set()),
    "deepseek_vl2": ({"_proj_hw"}, {"functools"}, set()),
    "idefics3": ({"_get_num_patches_list"}, {"get_position_ids"}, set()),
    "ernie45_vl": (set(), {"scatter_output_slices"}, set()),
    "gemma3_mm": (set(), {"vit_positions_per_patch"}, set()),
    "glm4_1v": (_BY_MODALITY, set(), set()),
    "internvl": ({"_get_internvl_patches_list"}, set(), set()),
    "mllama4": ({"get_image_patches_per_chunk"}, set(), {"Llama4ForConditionalGeneration.vllm_config"}),
    "qwen2_5_vl": (_BY_MODALITY, set(), set()),
    "qwen2_vl": (_BY_MODALITY, set(), set()),
    "qwen3_vl": (_BY_MODALITY, set(), set()),
    "step3_vl": (
        {"_batched_encoder_forward", "_compute_spatial_tokens", "img_output_tokens", "patch_output_tokens"},
        set(),
        set(),
    ),
}

pytestmark = pytest.mark.trees


def leftovers(tree: SourceTree, module: str, class_name: str, source: str = "") -> Leftovers:
    return find_leftovers(tree, find_model(tree, module, class_name), source, ())


@pytest.mark.parametrize("name", GONE)
def test_a_replacement_leaves_nothing_behind(release_tree, name: str) -> None:
    """Judged without the planner: each name of the file that lost its last use by the replacement is gone, or named."""
    tree, port = release_tree("0.33.0"), load_port(name)

    prepared = prepare_port(port, tree, replace=True)

    path = prepared.plan.files[0].path
    (change,) = [change for change in prepared.changed if change.path == path]
    before, after = ((text or b"").decode() for text in (change.before, change.after))
    ours = {node.name for node in ast.parse(prepared.plan.methods.source).body if isinstance(node, ast.FunctionDef)}
    demanded = {method.name for method in prepared.plan.profile.methods}
    members, others, staying = GONE[name]
    lost = defined(before) - defined(after)
    assert {one for one in lost if one in members | others} == (members | others) - ours
    assert lost - members - others <= demanded | imported(before)
    said = [note.message.partition(" stays, ")[0] for note in prepared.notes if note.code == "VCG522"]
    assert set(said) == staying
    uses, left = Counter(WORD.findall(before)), Counter(WORD.findall(after))
    orphans = {word for word in defined(after) - ours if left[word] == 1 < uses[word]}
    assert {one for one in orphans if not named_elsewhere(tree, path, one)} == set()


def defined(source: str) -> set[str]:
    """Names that a file defines or imports at any depth, attributes of `self` among them."""
    found = imported(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def imported(source: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in nodes for alias in node.names}


def named_elsewhere(tree: SourceTree, path: str, word: str) -> bool:
    return any(
        word in WORD.findall(tree.read(other)) for other in tree.containing("vllm", ".py", [word]) if other != path
    )


TYPED = {
    # a block with nothing else in it
    "kimi_k25": ("KimiK25ForConditionalGeneration", "if TYPE_CHECKING:\n    from vllm.v1"),
    # one of several statements
    "gemma4_mm": ("Gemma4ForConditionalGeneration", "    from vllm.v1.worker.encoder_cudagraph_defs import (\n"),
}


@pytest.mark.parametrize("module", TYPED)
def test_imports_for_type_checking_go(release_tree, module: str) -> None:
    class_name, statement = TYPED[module]
    tree = release_tree("0.33.0")
    found = find_leftovers(tree, find_model(tree, module, class_name), "", ())
    assert found.typing == (DropTypingImport("vllm.v1.worker.encoder_cudagraph_defs"),)
    names = {edit.name for edit in found.edits if isinstance(edit, DropImport)}
    assert ("TYPE_CHECKING" in names) == (module == "kimi_k25")
    path = f"{MODELS}/{module}.py"
    before = tree.read(path)
    after = apply_edits(before, found.typing, path=path).text
    assert before.count(statement) == after.count(statement) + 1
    assert prove_equivalence(before, after, found.typing, path) == ()


def test_imports_for_type_checking_stay_where_something_else_needs_them(copied_tree) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/kimi_k25.py")
    append(tree, f"{MODELS}/kimi_k25.py", "\ndef f(config: 'EncoderCudaGraphConfig'): ...\n")
    assert leftovers(tree.reread(), "kimi_k25", "KimiK25ForConditionalGeneration").typing == ()


def test_the_block_takes_the_place_of_the_methods_and_not_of_their_helpers(release_tree) -> None:
    prepared = prepare_port(load_port("step3_vl"), release_tree("0.33.0"), replace=True)

    names = re.findall(r"^    def (\w+)", (prepared.changed[0].after or b"").decode(), re.MULTILINE)
    assert names.index("_parse_and_validate_image_input") < names.index("get_encoder_cudagraph_config")


@pytest.mark.parametrize(
    ("relpath", "text", "kept"),
    [
        # a subclass of the class calls it
        ("a.py", "from .internvl import InternVLChatModel\nclass A(InternVLChatModel):\n"
         "    def f(self):\n        return self._get_internvl_patches_list({})\n", True),
        # a subclass overrides it
        ("a.py", "from .internvl import InternVLChatModel as Base\nclass A(Base):\n"
         "    def _get_internvl_patches_list(self, mm_kwargs):\n        return []\n", True),
        # another base of a subclass calls it
        ("a.py", "from .internvl import InternVLChatModel\nclass M:\n"
         "    def f(self):\n        return self._get_internvl_patches_list({})\n"
         "class A(M, InternVLChatModel): ...\n", True),
        # a subclass names it in its body
        ("a.py", "from .internvl import InternVLChatModel\nclass A(InternVLChatModel):\n"
         "    _get_internvl_patches_list = None\n", True),
        # a string names it
        ("a.py", "f = lambda model: getattr(model, '_get_internvl_patches_list')\n", True),
        # some object's attribute, which may be the model
        ("a.py", "def f(model):\n    return model._get_internvl_patches_list({})\n", True),
        # an unrelated class has a method of the same name
        ("a.py", "class A:\n    def f(self):\n        return self._get_internvl_patches_list({})\n", False),
        # the name stands in a comment only
        ("a.py", "from .internvl import InternVLChatModel\n# _get_internvl_patches_list\n", False),
        # the same module uses it outside of the class
        ("internvl.py", "\ndef f(model):\n    return model._get_internvl_patches_list({})\n", True),
    ],
)  # fmt: skip
def test_helper_stays_where_something_else_may_use_it(copied_tree, relpath: str, text: str, kept: bool) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    append(tree, f"{MODELS}/{relpath}", text)

    found = leftovers(tree.reread(), "internvl", "InternVLChatModel")

    assert found.methods == (() if kept else ("_get_internvl_patches_list",))
    # What the same file uses needs no note.
    assert [note.code for note in found.notes] == ["VCG522"] * (kept and relpath != "internvl.py")


def test_helper_stays_for_a_subclass_of_a_subclass(copied_tree) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    append(tree, f"{MODELS}/a.py", "from .internvl import InternVLChatModel\nclass A(InternVLChatModel): ...\n")
    append(tree, f"{MODELS}/b.py", "from .a import A\nclass B(A): ...\n")
    use = "from .b import B\nclass C(B):\n    def f(self):\n        self._get_internvl_patches_list({})\n"
    append(tree, f"{MODELS}/c.py", use)

    assert leftovers(tree.reread(), "internvl", "InternVLChatModel").methods == ()


MODEL = """
import math
import os  # for a reason
import numpy
import re
import n, o
from a import b, c
from d import e as f
from g import *

LIMIT = math.pi
MADE = make()


def pad(x):
    return b(x, LIMIT, numpy)


def pad_more(x: "c"):
    return pad_more(pad(x)) + MADE


@registered
def listed(x):
    return x


class Tower:
    def window(self):
        return 1

    @decorated
    def other(self):
        return 1


class Model(SupportsEncoderCudaGraph):
    size = 3

    def __init__(self, config):
        super().__init__()
        limit = 1
        self.side = config.side
        self.area = limit
        self.made = make(config)
        if config:
            self.late = config

    @property
    def tokens(self):
        return self._count()

    def _count(self):
        return self.tokens

    def get_encoder_cudagraph_config(self):
        self.late, self.made, self.area, os, f, re, n, o
        self.visual.window(), self.visual.other(), listed(1)
        return self.side, self.size, self.tokens, pad_more(1)
"""


@pytest.fixture
def model_tree(copied_tree):
    """A tree with MODEL, and more text in other files of it."""

    def make(**others: str) -> SourceTree:
        tree = copied_tree("0.33.0", *PROTOCOL_FILES)
        for name, text in {"m": MODEL, **others}.items():
            tree.path(f"{MODELS}/{name}.py").write_text(text, encoding="utf-8")
        return tree.reread()

    return make


def test_all_that_only_the_replaced_methods_need_goes(model_tree) -> None:
    found = leftovers(model_tree(), "m", "Model")

    assert found.methods == ("tokens", "_count")  # they use each other
    drops = {edit.name: edit for edit in found.edits if isinstance(edit, DropDefinition)}
    assert {name: edit.owner for name, edit in drops.items()} == {
        "LIMIT": "", "pad": "", "pad_more": "", "window": "Tower", "size": "Model", "side": "Model.__init__",
    }  # fmt: skip
    # Not: values made by a call, under a condition, or from a local variable; what may be registered; an import with a
    # comment, under another name, of anything, or of two modules.
    imports = [(edit.module, edit.name) for edit in found.edits if isinstance(edit, DropImport)]
    assert imports == [("math", None), ("numpy", None), ("re", None), ("a", "b"), ("a", "c")]
    assert found.notes == ()


@pytest.mark.parametrize(
    ("others", "stays"),
    [
        ({"n": "from .m import pad"}, {"pad", "b", "LIMIT", "math", "numpy"}),
        ({"n": "from . import m\nm.LIMIT"}, {"LIMIT", "math"}),
        ({"n": "import vllm.model_executor.models.m as m\nm.LIMIT"}, {"LIMIT", "math"}),
        ({"n": "from .m import *\npad_more, pa"}, {"pad_more", "pad", "b", "c", "LIMIT", "math", "numpy"}),
        ({"n": "def pad(x): ...\npad(1)"}, set()),
        ({"n": "x.size"}, {"size"}),
        ({"n": "class A:\n    def f(self): return self.size"}, set()),
        ({"n": "from .m import Tower\nclass A(Tower):\n    def f(self): return super().window()"}, {"window"}),
        ({"n": "from .m import math"}, {"math"}),
        ({"n": "pad, LIMIT, math"}, set()),  # a file that does not name the module is not even read for its names
        ({"n": "x = (\nm.pad, window"}, {"pad", "b", "LIMIT", "math", "numpy", "window"}),  # no valid Python
    ],
)
def test_what_another_file_needs_stays(model_tree, others: dict[str, str], stays: set[str]) -> None:
    def gone(**files: str) -> set[str]:
        found = leftovers(model_tree(**files), "m", "Model")
        return {*found.methods, *(edit.name or edit.module for edit in found.edits)}

    assert gone() - gone(**others) == stays


def test_a_method_stays_that_sets_what_another_one_reads(copied_tree) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES)
    more = "    def _prepare(self):\n        self.kept = 1\n        self.lost = 2\n\n"
    more += "    def embed(self):\n        self.kept\n\n"
    method = "    def get_encoder_cudagraph_config(self):\n"
    text = MODEL.replace(method, f"{more}{method}        self._prepare(), self.kept, self.lost\n")
    tree.path(f"{MODELS}/m.py").write_text(text, encoding="utf-8")

    found = leftovers(tree.reread(), "m", "Model")

    assert found.methods == ("tokens", "_count")
    drops = {edit.name for edit in found.edits if isinstance(edit, DropDefinition)}
    assert "lost" in drops
    assert drops.isdisjoint({"kept", "_prepare"})


def test_what_the_port_uses_stays_and_what_it_replaces_goes(model_tree) -> None:
    source = "def _count(self):\n    return self.side + pad(1)\n"

    found = leftovers(model_tree(), "m", "Model", source)

    assert found.methods == ("tokens", "_count")
    assert {"side", "pad", "LIMIT", "b"}.isdisjoint(edit.name for edit in found.edits)


FRAMES = "get_max_frames_per_video"


def test_a_method_stays_that_a_test_of_the_model_names(release_tree) -> None:
    """The limit of frames has no use in a port of images."""
    tree, port = release_tree("0.33.0"), load_port("ernie45_vl")
    path, test = f"{MODELS}/ernie45_vl.py", "tests/models/test_ernie45_vl.py"
    before = "    def get_encoder_cudagraph_budget_range("
    method = f"    def {FRAMES}(self) -> int:\n        return 600\n"
    text = tree.read(path).replace(before, f"{method}\n{before}", 1)
    named = f"from vllm.model_executor.models import ernie45_vl\nernie45_vl.X.{FRAMES}\n"
    tree = tree.with_files({path: text.encode(), test: named.encode()})

    prepared = prepare_port(port, tree, replace=True)

    files = {change.path: change.after or b"" for change in prepared.changed}
    assert text.count(method) == files[path].decode().count(method) == 1
    [note] = [note for note in prepared.notes if note.code == "VCG522" and FRAMES in note.message]
    assert note.span is not None
    assert text.splitlines()[note.span.line - 1] == method.splitlines()[0]
    assert note.help is not None
    assert note.help.startswith(f"see vllm-0.33.0/{test}, line ")
    ported = tree.with_files(files)
    assert prepare_port(port, ported).changed == ()
    assert prepare_port(port, ported, replace=True).changed == ()
    assert prepare_port(port, tree.with_files({test: b""}), replace=True).changed != prepared.changed


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("from vllm.model_executor.models.m import X\nassert X.%s()\n", True),
        ("from .fixtures import Model\nassert Model.%s()\n", True),
        ("from .fixtures import Heir\nassert Heir.%s()\n", True),
        ("mock.patch('vllm.model_executor.models.m.Model.%s')\n", True),
        ("def f(Model:\n    Model.%s(", True),  # no valid Python
        ("class A:\n    def %s(self): ...\nModel\n", False),
        ("from .fixtures import Other\nassert Other.%s()\n", False),
        ("from .fixtures import Model\nassert Model.%s_more()\n", False),
    ],
)
def test_a_test_is_one_of_the_model_if_it_names_that(model_tree, text: str, named: bool) -> None:
    method = "    def get_encoder_cudagraph_config(self):\n"
    frames = f"    def {FRAMES}(self): ...\n"
    tree = model_tree(m=MODEL.replace(method, frames + method), n="from .m import Model\nclass Heir(Model): ...\n")
    append(tree, "tests/models/test_m.py", text % FRAMES)
    profile, model = read_protocol(tree), find_model(tree.reread(), "m", "Model")

    found = find_tested(tree.reread(), profile, model, {"get_encoder_cudagraph_config"})

    assert set(found.stays) == ({FRAMES} if named else set())
    assert (FRAMES in found.rest.protocol_methods) is not named
    assert found.called == {}
    assert [note.code for note in found.notes(tree)] == ["VCG522"] * named
    brought = find_tested(tree.reread(), profile, model, {"get_encoder_cudagraph_config", FRAMES})
    assert (brought.rest, brought.stays) == (model, {})


def test_a_method_that_vllm_calls_cannot_stay_for_a_test(release_tree) -> None:
    """A port that has no method of this name relies on the protocol's own."""
    tree, path = release_tree("0.33.0"), f"{MODELS}/qwen2_vl.py"
    frames = f"    def {FRAMES}(self)"
    hook = "    def postprocess_encoder_output(self, *args, **kwargs):\n        return self.cut(*args)\n\n"
    text = tree.read(path).replace(frames, hook + frames, 1)
    test = b"from vllm.model_executor.models import qwen2_vl\nqwen2_vl.X.postprocess_encoder_output\n"
    own = tree.with_files({path: text.encode(), "tests/test_hook.py": test})

    with pytest.raises(DiagnosticError) as caught:
        prepare_port(load_port("qwen2_vl"), own, replace=True)

    [problem] = caught.value.diagnostics
    assert problem.code == "VCG529"
    assert "Qwen2VLForConditionalGeneration.postprocess_encoder_output can neither go" in problem.message
    assert problem.span is not None
    assert text.splitlines()[problem.span.line - 1].startswith("    def postprocess_encoder_output")
    assert problem.help == "see vllm-0.33.0/tests/test_hook.py, line 2: take the method out of that test first"


def test_lost_explanations_are_listed_line_by_line() -> None:
    before = """class A:
    # -- section --
    def f(self):
        \"\"\"What it is.\"\"\"
        # one thing
        # in two lines
        return 1  # kept

    # noqa
    def g(self):
        # %s
        return 2
""" % ("word " * 60)
    after = "class A:\n    def f(self):\n        return 1  # kept\n"

    (note,) = lost_explanations(before, after, "a.py")

    assert (note.code, note.span and note.span.line) == ("VCG523", 4)
    assert note.notes[0] == "line 4: What it is. one thing in two lines"
    assert note.notes[1].startswith("line 11: word word")
    assert note.notes[1].endswith(" word ...")
    assert len(note.notes) == 2
    assert list(lost_explanations(before, before, "a.py")) == []


def test_a_run_that_replaces_nothing_has_lost_nothing(release_tree) -> None:
    prepared = prepare_port(load_port("internvl"), release_tree("0.22.0"), replace=True)

    assert {"VCG522", "VCG523"}.isdisjoint(note.code for note in prepared.notes)


def append(tree: SourceTree, relpath: str, text: str) -> None:
    path: Path = tree.path(relpath)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text("utf-8") if path.exists() else "") + text, encoding="utf-8")


@pytest.mark.parametrize("kept", [False, True])
def test_the_cost_of_leftovers_grows_as_their_number(release_tree, monkeypatch, kept):
    """A chain of helpers behind a replaced method. It goes with it, or stays since another function uses the first."""
    tree, path = release_tree("0.33.0"), f"{MODELS}/internvl.py"
    method = "    def get_encoder_cudagraph_config(self):\n"
    before = tree.read(path)
    assert before.count(method) == 1
    looked: list[_Use] = []
    means = _Use.means

    def look(use, definition):
        looked.append(use)
        return means(use, definition)

    monkeypatch.setattr(_Use, "means", look)

    def cost(number: int) -> int:
        helpers = "".join(f"\n\ndef h{n}():\n    return h{n + 1}\n" for n in range(number)) + f"\n\nh{number} = 0\n"
        other = "\n\ndef other():\n    return h0\n" if kept else ""
        after = before.replace(method, f"{method}        h0()\n") + helpers + other
        looked.clear()
        found = leftovers(tree.with_files({path: after.encode()}), "internvl", "InternVLChatModel")
        gone = {edit.name for edit in found.edits if isinstance(edit, DropDefinition)}
        assert {f"h{n}" for n in range(number + 1)} & gone == (
            {f"h{n}" for n in range(number + 1)} if not kept else set()
        )
        return len(looked)

    few, more, many = map(cost, (10, 20, 40))
    assert more - few >= 10
    assert many - more <= 2.2 * (more - few)
