"""The unit tests that repairs bring to vLLM: the port's own methods on stubs, on a CPU without weights.

A template has the test of a rule. Its stubs serve the ports that read no more than these have; others get no test. Each
test goes behind those of its model, so that repairs of two models never write the same file.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaffold.changes import FileChange
from scaffold.edit import AddImport, apply_edits
from scaffold.protocol import SourceTree, read_protocol
from scaffold.render import Signatures, render_template, template_root
from scaffold.syntax import FunctionNode, dotted, made_by, name_path
from scaffold.tower.source import Method, Owner, Program

if TYPE_CHECKING:
    from scaffold.fix.repair import Port

#: vLLM's CPU lane runs this folder.
_FOLDER = "tests/models/multimodal/processing"
_LAST = "postprocess_encoder_output"
#: Some modules have this suffix, and their tests do not: `gemma3_mm` and `test_gemma3.py`.
_SUFFIX = "_mm"


@dataclass(frozen=True)
class UnitTest:
    """The file of a model's tests, and one more behind its imports."""

    path: str
    source: str

    @property
    def name(self) -> str:
        """The test for pytest."""
        return f"{self.path}::{_function(self.source)[1].name}"


@dataclass(frozen=True)
class Layer:
    """A layer of a part of the model: the method that makes it, its name, and the function that `disable_tp` asks."""

    method: Method
    name: str
    switch: str


def _function(source: str) -> tuple[list[ast.stmt], ast.FunctionDef]:
    """The imports of a test, and its function."""
    *heads, function = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef), source
    return heads, function


def unit_test(port: Port, rule: str, layer: Layer | None = None) -> UnitTest | None:
    """The test of a rule; None where there is none for this port, or for this tree."""
    template = f"fix/{rule.replace(' ', '_')}.py.jinja"
    source = (template_root() / template).read_text("utf-8")
    signature, (module, owner) = Signatures(read_protocol(port.tree)), port.owner
    # Templates call the protocol of 0.27, where results and values have names.
    named = signature.has(_LAST) and "outputs" in signature.header(_LAST)
    if not named or not port.tree.exists(f"{_FOLDER}/__init__.py"):
        return None
    run = [(port.owner, method) for name, (*_, method) in port.methods.items() if f'"{name}"' in source]
    tower = made_by(owner, "visual") or ""
    home, encoder = port.program.resolve(module, tower) or (module, None)
    if "tower" in source and isinstance(encoder, ast.ClassDef):
        found = port.program.method((home, encoder), "prepare_encoder_metadata")
        run += [((home, encoder), found[2])] if found is not None else []
    model = dotted(module.file).rpartition(".")[2]
    home, cls = (module, owner) if layer is None else layer.method[:2]
    test = render_template(
        template,
        model=model,
        cls=cls.name,
        home=dotted(home.file),
        tower=tower,
        layer=layer and layer.name,
        switch=layer and layer.switch,
        names={name for _, method in run for name in _names_of_self(method)},
        signature=signature,
    )
    known = {*re.findall(r"\w+", test)}
    made = () if layer is None else ast.walk(layer.method[2])
    read = {node.attr for node in made if isinstance(node, ast.Attribute)} - {"__init__"}
    if not read <= known or not all(_reads_no_more(port.program, owner, method, known) for owner, method in run):
        return None
    paths = [f"{_FOLDER}/test_{name}.py" for name in (model, model.removesuffix(_SUFFIX))]
    return UnitTest(next(filter(port.tree.exists, paths), paths[0]), test)


def _names_of_self(method: FunctionNode) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and (path := name_path(node))[:1] == ["self"]:
            yield from path[1:]


def _reads_no_more(program: Program, owner: Owner, method: FunctionNode, known: set[str]) -> bool:
    """Whether a method, with those that it calls and no stub has, reads only these names of its object."""
    for name in {*_names_of_self(method)} - known:
        called = program.method(owner, name)
        if called is None or not _reads_no_more(program, owner, called[2], known | {name}):
            return False
    return True


def put_tests(tree: SourceTree, tests: Iterable[UnitTest | None]) -> tuple[FileChange, ...]:
    """The files of tests with those that they lack; none that has all. Raises VCG433 where a test's name is taken."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for test in filter(None, tests):
        found[test.path].append(test.source)
    changes = (_put(tree, path, sorted(sources)) for path, sources in sorted(found.items()))
    return tuple(change for change in changes if not change.is_noop)


def _put(tree: SourceTree, path: str, tests: list[str]) -> FileChange:
    from scaffold.verify.style import format_changed

    before = tree.read(path) if tree.exists(path) else None
    text, imports = before, []
    for test in tests:
        heads, function = _function(test)
        if text is None:
            text = f"{render_template('common/licence.py.jinja')}\n{test}"
        elif f"def {function.name}(" not in text:
            for node in heads:
                assert isinstance(node, (ast.Import, ast.ImportFrom)), test
                module = node.module if isinstance(node, ast.ImportFrom) else None
                imports += [AddImport(module or one.name, one.name if module else None) for one in node.names]
            own = "".join(test.splitlines(keepends=True)[heads[-1].end_lineno :])
            text = f"{text.rstrip()}\n\n\n{own.strip()}\n"
    assert text is not None, "a test, or a file that is there"
    after = apply_edits(text, imports, path=path).text
    after = format_changed(before, after, path=path, config_root=tree.root)
    return FileChange(path, None if before is None else before.encode(), after.encode())
