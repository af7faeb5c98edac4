"""That signatures are compared by name, kind, order and default, on the protocols of real trees."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from scaffold.protocol import ProtocolProfile, SourceTree, read_protocol
from scaffold.verify import prove_conformance

ReleaseTree = Callable[[str], SourceTree]
PATH = "vllm/model_executor/models/m.py"
pytestmark = pytest.mark.trees


@pytest.fixture(scope="module")
def profile(release_tree: ReleaseTree) -> ProtocolProfile:
    return read_protocol(release_tree("0.33.0"))


def implementation(profile: ProtocolProfile, *, defaults: bool = True) -> str:
    """A class with exactly the protocol's signatures, bodies left out."""
    methods = "\n".join(
        f"    def {method.name}({method.signature_source()}): ..."
        for method in profile.methods
        if defaults or not method.has_default
    )
    return f"class M:\n{methods}\n"


@pytest.mark.parametrize("version", ["0.20.0", "0.22.0", "0.24.0", "0.33.0"])
def test_the_declared_signatures_conform(release_tree: ReleaseTree, version: str) -> None:
    profile = read_protocol(release_tree(version))
    assert prove_conformance(implementation(profile), "M", profile, PATH) == ()
    assert prove_conformance(implementation(profile, defaults=False), "M", profile, PATH) == ()


def test_a_mixin_has_the_methods_that_the_class_has_not(release_tree: ReleaseTree) -> None:
    profile = read_protocol(release_tree("0.33.0"))
    mixin = implementation(profile).replace("class M:", "class Mixin:")
    assert prove_conformance("class M(Mixin):\n    pass\n", "M", profile, PATH, mixin) == ()
    found = prove_conformance("class M(Mixin):\n    def encoder_eager_forward(self): ...\n", "M", profile, PATH, mixin)
    assert [item.code for item in found] == ["VCG611"]
    wrong = mixin.replace("def encoder_eager_forward(self, ", "def encoder_eager_forward(self, more, ")
    assert [item.code for item in prove_conformance("class M: ...\n", "M", profile, PATH, wrong)] == ["VCG611"]


@pytest.mark.parametrize(
    ("version", "needed"), [("0.20.0", True), ("0.21.0", True), ("0.22.0", False), ("0.33.0", False)]
)
def test_what_nothing_calls_may_be_absent(release_tree: ReleaseTree, version: str, needed: bool) -> None:
    """The protocol of 0.22 and later still declares `get_max_frames_per_video`, without a default and for nobody."""
    profile = read_protocol(release_tree(version))
    source = implementation(profile).replace("def get_max_frames_per_video(", "def get_something_else(")
    found = [item.code for item in prove_conformance(source, "M", profile, PATH)]
    assert found == (["VCG610"] if needed else [])
    source = implementation(profile).replace("def encoder_eager_forward(", "def get_something_else(")
    assert [item.code for item in prove_conformance(source, "M", profile, PATH)] == ["VCG610"]


def test_hand_written_code_that_cannot_be_called_as_declared_is_found(release_tree: ReleaseTree) -> None:
    """0.33's InternVL names a parameter `values` that the protocol calls `inputs`, and has no `path`."""
    tree = release_tree("0.33.0")
    path = "vllm/model_executor/models/internvl.py"
    found = prove_conformance(tree.read(path), "InternVLChatModel", read_protocol(tree), path)
    assert [(item.code, item.message.split(":")[0]) for item in found if item.code == "VCG611"] == [
        ("VCG611", "`InternVLChatModel.encoder_cudagraph_forward`")
    ]


def change(profile: ProtocolProfile, mutate: Callable[[ast.FunctionDef], object], name: str) -> str:
    tree = ast.parse(implementation(profile))
    body = tree.body[0].body  # type: ignore[attr-defined]
    node = next(item for item in body if item.name == name)
    made = mutate(node)
    if isinstance(made, ast.AsyncFunctionDef):
        body[body.index(node)] = made
    return ast.unparse(tree)


FORWARD = "prepare_encoder_cudagraph_capture_inputs"


@pytest.mark.parametrize(
    ("mutate", "part"),
    [
        (lambda node: setattr(node.args.args[1], "arg", "budget"), "parameter 2 is `budget`"),
        (lambda node: node.args.args.reverse(), "parameter 1 is"),
        (lambda node: node.args.args.pop(1), "parameter 2 is"),
        (lambda node: node.args.args.append(ast.arg("more")), "(positional or keyword), the protocol has"),
        (lambda node: setattr(node.args, "vararg", ast.arg("args")), "`args` (var positional)"),
        (
            lambda node: setattr(node.args, "kwarg", ast.arg("kwargs")),
            "`kwargs` (var keyword), the protocol has nothing",
        ),
        (
            lambda node: ((node.args.kwonlyargs.append(ast.arg("k")), node.args.kw_defaults.append(ast.Constant(1)))),
            "`k` = 1 (keyword only)",
        ),
        (
            lambda node: (node.args.kwonlyargs.append(ast.arg("k")), node.args.kw_defaults.append(None)),
            "`k` (keyword only)",
        ),
        (lambda node: setattr(node.args, "posonlyargs", [node.args.args.pop(0)]), "`self` (positional only)"),
        (lambda node: node.args.defaults.__setitem__(0, ast.Constant("other")), "= 'other'"),
        (lambda node: node.args.defaults.pop(), "the protocol has"),
        (lambda node: node.decorator_list.append(ast.Name("staticmethod")), "bound to the class in another way"),
        (
            lambda node: ast.AsyncFunctionDef(node.name, node.args, node.body, [], lineno=1, col_offset=0),
            "one is async",
        ),
    ],
)
def test_another_signature_is_refused(
    profile: ProtocolProfile, mutate: Callable[[ast.FunctionDef], object], part: str
) -> None:
    source = change(profile, mutate, FORWARD)
    found = prove_conformance(source, "M", profile, PATH)
    assert [item.code for item in found] == ["VCG611"]
    assert part in found[0].message
    assert f"the protocol declares {FORWARD}(" in found[0].notes[0]


def test_the_spelling_of_a_default_does_not_matter(profile: ProtocolProfile) -> None:
    source = implementation(profile)
    assert '"default"' in source
    assert prove_conformance(source.replace('"default"', "'default'"), "M", profile, PATH) == ()


@pytest.mark.parametrize(
    ("source", "code", "part"),
    [
        ("class M: ...\n", "VCG610", "does not define `"),
        ("class N: ...\n", "VCG610", "defined 0 times"),
        ("class M: ...\nclass M: ...\n", "VCG610", "defined 2 times"),
        ("class M: (\n", "VCG600", "not valid Python"),
        ("x = '\0'\n", "VCG600", "not valid Python"),
    ],
)
def test_missing_parts(profile: ProtocolProfile, source: str, code: str, part: str) -> None:
    found = prove_conformance(source, "M", profile, PATH)
    assert {item.code for item in found} == {code}
    assert part in found[0].message


def test_every_missing_method_is_reported_at_once(profile: ProtocolProfile) -> None:
    demanded = [
        method.name for method in profile.methods if not method.has_default and method.name not in profile.uncalled
    ]
    found = prove_conformance("class M:\n    x = 1\n", "M", profile, PATH)
    assert len(found) == len(demanded) >= 8
