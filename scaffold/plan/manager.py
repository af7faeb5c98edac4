"""The tree's own encoder-graph manager: it runs eagerly what a graph cannot hold.

A manager packs items by their tokens and bounds no frames, so that a batch may have more sequences than its graph was
captured for. Its copy into the buffers then raises. No port can tell it so by an item's tokens alone.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from scaffold.edit.operations import PutMethods, ReplaceMethod
from scaffold.plan.file_plans import FilePlan
from scaffold.protocol.profile import MANAGER
from scaffold.render import Signatures, render_template
from scaffold.syntax import find_class

if TYPE_CHECKING:
    from scaffold.protocol import ProtocolProfile, SourceTree

_RUN = "_run_budget_graph"

#: vLLM's unit tests of its manager, and the class among them whose graphs are of videos.
MANAGER_TESTS = "tests/v1/cudagraph/test_encoder_cudagraph.py"
_TEST_CLASS = "TestEncoderCudaGraphVideoReplay"

#: The statements between which the check belongs, in every release from 0.27 on.
_BEFORE = "replay = self.model.prepare_encoder_cudagraph_replay_buffers("
_AFTER = "for key, buf in graph_meta.input_buffers.items():"


@dataclass(frozen=True, slots=True)
class Missing:
    """The check that a manager lacks: lines to put in front of line `line` of its file, in the method `method`."""

    path: str
    line: int
    lines: tuple[str, ...]
    method: ast.FunctionDef


def find_missing(tree: SourceTree, profile: ProtocolProfile) -> Missing | bool:
    """The check that the manager of a tree lacks; True where it has it, False where its code has another form."""
    path = f"{profile.manager_module.replace('.', '/')}.py"
    owner = find_class(tree.parse(path), MANAGER)
    assert owner is not None, "a profile names the file that defines it"
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == _RUN]
    if len(methods) != 1:
        return False
    [method] = methods
    if any(isinstance(node, ast.Attribute) and node.attr == "encoder_eager_forward" for node in ast.walk(method)):
        return True
    code = [(node.end_lineno or 0, ast.unparse(node)) for node in method.body]
    places = [end for (end, a), (_, b) in pairwise(code) if a.startswith(_BEFORE) and b.startswith(_AFTER)]
    if len(places) != 1:
        return False
    check = render_template("manager/check.py.jinja", signature=Signatures(profile))
    text = tree.read(path).splitlines()
    line = next(number for number in range(places[0] + 1, len(text)) if text[number - 1].strip())
    return Missing(path, line, tuple(check.splitlines()), method)


def plan_manager(tree: SourceTree, profile: ProtocolProfile) -> tuple[FilePlan, ...] | None:
    """The edits after which the manager runs a batch eagerly whose values are longer than the graph's buffers.

    Empty where it does already; None where its code has another form, or belongs to another package than the run.
    """
    missing = find_missing(tree, profile) if tree.package is None else False
    if not isinstance(missing, Missing):
        return () if missing else None
    method, text = missing.method, tree.read(missing.path).splitlines()
    lines = [line.removeprefix(" " * method.col_offset) for line in text[: method.end_lineno]]
    source = "\n".join([*lines[method.lineno - 1 : missing.line - 1], *missing.lines, *lines[missing.line - 1 :]])
    edit = ReplaceMethod(MANAGER, _RUN, source)
    files = [FilePlan(missing.path, (edit,), "let batches that a graph cannot hold run eagerly")]
    if tree.exists(MANAGER_TESTS) and find_class(tree.parse(MANAGER_TESTS), _TEST_CLASS):
        test = PutMethods(_TEST_CLASS, render_template("manager/test.py.jinja"))
        files.append(FilePlan(MANAGER_TESTS, (test,), "test that they do"))
    return tuple(files)
