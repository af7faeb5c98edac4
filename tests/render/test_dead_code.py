"""No rendered port holds dead code: every name is used, every branch can be taken, every method is called.

Facts come from real trees, one release a generation and the newest, so a branch that a release decides is found, too.
What the protocol forces upon a method (its parameters) is no dead code. Who calls a method is read from the tree.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from captured import captured

from scaffold.descriptor import PackedPort, shipped_names
from scaffold.diagnostics import DiagnosticError
from scaffold.plan.methods import Methods, refusal, render_methods
from scaffold.plan.question import QUESTION
from scaffold.plan.towers import plan_tower
from scaffold.protocol import GENERATIONS, SourceTree, find_model, read_protocol
from scaffold.verify.style import _ruff_binary
from scaffold.workflow import load_port

#: A model of each layout.
SAMPLE = ("deepseek_ocr", "deepseek_vl2", "gemma3_mm", "lfm2_vl", "llava_next", "mistral3", "qwen2_5_vl", "step3_vl")
#: The oldest and the newest with all models, and each generation between them with the sample.
RELEASES = [
    ("0.20.0", shipped_names()),
    *((generation.first, SAMPLE) for generation in GENERATIONS[1:]),
    ("0.33.0", shipped_names()),
    *(
        pytest.param(release, shipped_names(), marks=pytest.mark.slow, id=f"{release}-all")
        for release in (*(generation.first for generation in GENERATIONS[1:]), "0.31.0")
    ),
]
#: Unused names, needless branches, returns, comprehensions and passes. Not ARG: it does not know the protocol.
RULES = "F811,F841,SIM,RET,C4,PIE,B007"


def dead_code(source: str, protocol: Iterable[str], called: Iterable[str]) -> Iterator[str]:
    """What is dead in a block of methods. `protocol` are the protocol's methods, `called` those that a tree calls."""
    block = ast.parse(source)
    methods = [node for node in block.body if isinstance(node, ast.FunctionDef)]
    used = {method: {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)} for method in methods}
    for method in methods:
        if method.name not in set(called).union(*(names for other, names in used.items() if other is not method)):
            yield f"nothing calls {method.name}"
        body = [node for node in method.body if not _is_docstring(node)]
        returned = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
        # A property may be the one place of a number that several methods need.
        private = method.name not in protocol and not method.decorator_list
        if private and returned is not None and _is_constant(returned):
            yield f"{method.name} wraps a constant"
        for function in (node for node in ast.walk(method) if isinstance(node, (ast.FunctionDef, ast.Lambda))):
            forced = function is method and method.name in protocol
            yield from _names(function, () if forced else _parameters(function), method.name)
        yield from _conditions(method)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_constant(node: ast.expr) -> bool:
    """A literal, or a tuple of literals. Lists and dictionaries are not: they may be filled."""
    if isinstance(node, ast.Tuple):
        return all(map(_is_constant, node.elts))
    return isinstance(node, ast.Constant)


def _parameters(function: ast.FunctionDef | ast.Lambda) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    static = isinstance(function, ast.FunctionDef) and any(
        isinstance(item, ast.Name) and item.id == "staticmethod" for item in function.decorator_list
    )
    names = [item.arg for item in every if item and not item.arg.startswith("_")]
    return names if static else [name for name in names if name != "self"]


def _names(function: ast.FunctionDef | ast.Lambda, parameters: list[str], where: str) -> Iterator[str]:
    """Names that a function binds and does not read, and those that only stand for a literal."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    outer = {name for node in ast.walk(function) if isinstance(node, (ast.Nonlocal, ast.Global)) for name in node.names}
    stored = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
    for name in parameters:
        if name not in read:
            yield f"{where} does not use its parameter {name}"
    for name in stored.keys() - read - outer:
        if not name.startswith("_"):
            yield f"{where} does not use {name}"
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _is_constant(node.value):
            targets = [item for target in node.targets for item in getattr(target, "elts", [target])]
            for name in [item.id for item in targets if isinstance(item, ast.Name)]:
                if stored[name] == 1:
                    yield f"{where} gives a literal the name {name}"


def _conditions(method: ast.FunctionDef) -> Iterator[str]:
    """Conditions that are decided: by what they are, or by the branch that they stand in."""
    for node in ast.walk(method):
        tests: list[ast.expr] = []
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            tests = [node.test]
        elif isinstance(node, ast.BoolOp):
            tests = node.values[:-1] if isinstance(node.op, ast.Or) else node.values  # `x or {}` is a default
        for test in tests:
            if not any(isinstance(part, (ast.Name, ast.Attribute, ast.Call)) for part in ast.walk(test)):
                yield f"{method.name} asks for the constant {ast.unparse(test)}"
        if isinstance(node, (ast.If, ast.IfExp)) and isinstance(node.test, (ast.Name, ast.Attribute)):
            known = ast.unparse(node.test)
            otherwise = node.orelse if isinstance(node.orelse, list) else [node.orelse]
            if any(ast.unparse(part) == known for branch in otherwise for part in ast.walk(branch)):
                yield f"{method.name} computes with {known} where it is nothing"
        if isinstance(node, ast.IfExp) and ast.dump(node.body) == ast.dump(node.orelse):
            yield f"{method.name} has two branches that are the same"


def block_of(methods: Methods) -> str:
    """A port's methods with those of its mixin, which it does not define itself or calls in its own."""
    if methods.mixin is None:
        return methods.source
    source = re.sub(r"super\(\)\.(\w+)\(", r"self.\1_of_the_mixin(", methods.source)
    [owner] = [node for node in ast.parse(methods.mixin.source).body if isinstance(node, ast.ClassDef)]
    own = {node.name for node in ast.parse(methods.source).body if isinstance(node, ast.FunctionDef)}
    shared = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
    for node in shared:
        node.name += "_of_the_mixin" * (f".{node.name}_of_the_mixin(" in source)
    shared = [node for node in shared if node.name not in own]
    assert not [node.name for node in shared if "NotImplementedError" in ast.unparse(node)]
    return "\n\n".join([*map(ast.unparse, shared), source])


@cache
def calls_of(tree: SourceTree, names: tuple[str, ...]) -> frozenset[str]:
    """The methods of these names that a worker or runner of a tree calls."""
    return frozenset(name for name in names if any(tree.containing("vllm/v1", ".py", [f".{name}("])))


@pytest.mark.trees
@pytest.mark.parametrize(("release", "models"), RELEASES)
def test_no_rendered_port_holds_dead_code(release, models, release_tree):
    tree = release_tree(release)
    profile = read_protocol(tree)
    protocol = (*(method.name for method in profile.methods), QUESTION)
    called = calls_of(tree, protocol) | {QUESTION}  # the function of that name reads it
    found, sources = [], {}
    for model in models:
        port = load_port(model)
        if refusal(port, profile.dialect):
            continue
        try:
            anchor = find_model(tree, port.module, port.class_name)
            plan = plan_tower(port, tree, anchor)
        except DiagnosticError:
            continue  # only a later release has the model, or in this form
        source = sources[model] = block_of(render_methods(port, profile, plan.facts))
        # Whoever asks a port of videos for the modality of a batch would get the protocol's own answer, `image`.
        answers = {"get_input_modality"} if port.has_video else set()
        found += [f"{model}: {what}" for what in dead_code(source, protocol, called | answers)]
        if isinstance(port, PackedPort) and port.flashinfer and "maybe_compute_seq_lens(" not in tree.read(anchor.path):
            found += [f"{model}: no tower makes {word}" for word in (*port.lengths, "FLASHINFER") if word in source]
    assert len(sources) > (1 if models == SAMPLE else 7)
    assert not found, "\n".join(found)
    block = "\n\n".join(f"class {name}:\n{textwrap.indent(source, '    ')}" for name, source in sources.items())
    command = [_ruff_binary(), "check", "--isolated", "--select", RULES, "--output-format", "concise", "-"]
    answer = captured(command, input=block)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def _helper(self): return self.x", "nothing calls _helper"),
        ("def _helper(self): return self._helper()", "nothing calls _helper"),
        ("def spoken(self): return self.x", "nothing calls spoken"),
        ('def _keys(self): return "a", "b"\ndef m(self): return self._keys()', "_keys wraps a constant"),
        ("def _f(self, a, b): return a\ndef m(self): return self._f(1, 2)", "_f does not use its parameter b"),
        ("def m(self):\n    def g(a, b): return a\n    return g(1, 2)", "m does not use its parameter b"),
        ("def m(self):\n    a, b = self.x\n    return a", "m does not use b"),
        ('def m(self):\n    a, b = "a", "b"\n    return a + b', "m gives a literal the name a"),
        ("def m(self, a):\n    if 1 < 2: return a", "m asks for the constant 1 < 2"),
        ("def m(self, a): return a and True", "m asks for the constant True"),
        ("def m(self, a, b): return b if a else max(a, b)", "m computes with a where it is nothing"),
        ("def m(self, a): return self.x if a else self.x", "m has two branches that are the same"),
    ],
)
def test_dead_code_is_found(source, says):
    """The gate itself can fail: `m` and `spoken` are the protocol's, and the tree calls `m`."""
    assert says in list(dead_code(source, ("m", "spoken"), ("m",)))


def test_what_the_protocol_forces_is_no_dead_code():
    source = """
def m(self, a, b):
    total, _ = 0, a
    for item in self.items:
        total += item
    return self._helper(total)

@staticmethod
def _helper(a, *_):
    return a
"""
    assert list(dead_code(source, ("m",), ("m",))) == []
