"""The unit tests that repairs bring to vLLM: the port's own methods on stubs, on a CPU without weights.

A template has the test of a rule. Its stubs serve the ports that read no more than these have; others get no test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from scaffold.changes import FileChange
from scaffold.edit import AddImport, apply_edits
from scaffold.protocol import SourceTree, read_protocol
from scaffold.render import Signatures, render_template, template_root
from scaffold.syntax import FunctionNode, dotted, made_by, name_path
from scaffold.tower.source import Owner, Program

if TYPE_CHECKING:
    from scaffold.fix.repair import Port

#: vLLM's CPU lane runs this folder.
_FOLDER = "tests/models/multimodal/processing"
_LAST = "postprocess_encoder_output"
UNIT_TESTS = f"{_FOLDER}/test_encoder_cudagraph.py"


def unit_test(port: Port, rule: str) -> str:
    """The test of a rule behind its imports; empty where there is none for this port, or for this tree."""
    template = f"fix/{rule.replace(' ', '_')}.py.jinja"
    source = (template_root() / template).read_text("utf-8")
    signature, (module, owner) = Signatures(read_protocol(port.tree)), port.owner
    # Templates call the protocol of 0.27, where results and values have names.
    named = signature.has(_LAST) and "outputs" in signature.header(_LAST)
    if not named or not port.tree.exists(f"{_FOLDER}/__init__.py"):
        return ""
    run = [(port.owner, method) for name, (*_, method) in port.methods.items() if f'"{name}"' in source]
    tower = made_by(owner, "visual") or ""
    home, encoder = port.program.resolve(module, tower) or (module, None)
    if "tower" in source and isinstance(encoder, ast.ClassDef):
        found = port.program.method((home, encoder), "prepare_encoder_metadata")
        run += [((home, encoder), found[2])] if found is not None else []
    test = render_template(
        template,
        model=dotted(module.file).rpartition(".")[2],
        cls=owner.name,
        home=dotted(module.file),
        tower=tower,
        names={name for _, method in run for name in _names_of_self(method)},
        signature=signature,
    )
    known = {*re.findall(r"\w+", test)}
    return test if all(_reads_no_more(port.program, owner, method, known) for owner, method in run) else ""


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


def put_tests(tree: SourceTree, tests: Iterable[str]) -> tuple[FileChange, ...]:
    """vLLM's file of these tests with those that it lacks; none where it has all."""
    from scaffold.verify.style import format_changed

    before = tree.read(UNIT_TESTS) if tree.exists(UNIT_TESTS) else None
    text, imports = before, []
    for test in sorted(filter(None, tests)):
        *heads, function = ast.parse(test).body
        assert isinstance(function, ast.FunctionDef), test
        if text is None:
            text = f"{render_template('common/licence.py.jinja')}\n{test}"
        elif f"def {function.name}(" not in text:
            for node in heads:
                assert isinstance(node, (ast.Import, ast.ImportFrom)), test
                module = node.module if isinstance(node, ast.ImportFrom) else None
                imports += [AddImport(module or one.name, one.name if module else None) for one in node.names]
            own = "".join(test.splitlines(keepends=True)[heads[-1].end_lineno :])
            text = f"{text.rstrip()}\n\n\n{own.strip()}\n"
    if text is None or text == before:
        return ()
    after = apply_edits(text, imports, path=UNIT_TESTS).text
    after = format_changed(before, after, path=UNIT_TESTS, config_root=tree.root)
    return (FileChange(UNIT_TESTS, None if before is None else before.encode(), after.encode()),)
