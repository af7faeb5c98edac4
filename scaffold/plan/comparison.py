"""The comparison that a port adds to vLLM's tests, once: encoder graphs are replayed and give what the model gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scaffold.edit.operations import AddDictEntry, AddImport, Edit, PutFunction, PutMethods
from scaffold.plan.file_plans import FilePlan
from scaffold.render import Code, render_template
from scaffold.syntax import FunctionNode, first_line

if TYPE_CHECKING:
    from scaffold.protocol import RegistryAnchor, SourceTree

#: The module of helpers that all tests of models import from, and the one above which ours go.
_HELPERS, _BELOW = "tests/models/utils.py", "dummy_hf_overrides"
#: A worker compares from the first on, and counts with the second.
_CHECK, _HITS = "check_encoder_cudagraph_outputs", "get_encoder_cudagraph_hits"
#: vLLM's own comparison, of Qwen's models alone, shows that the release's workers can compare.
_OWN = "_check_eonly_encoder_outputs"
#: The tests that get a runner whose worker compares.
_RUN = ("test_vit_cudagraph_image", "test_vit_cudagraph_video")
#: The field of an entry that asks for the comparison.
FIELD = "check_outputs"
#: The test of models that only pool, which a port brings, and its entries.
_POOLING, _POOLING_CONFIGS, _POOLING_CLASS = (
    "tests/models/multimodal/pooling/test_vit_cudagraph.py", "POOLING_CONFIGS", "PoolingTestConfig"
)  # fmt: skip


def can_compare(registry: RegistryAnchor, tree: SourceTree) -> bool:
    """Whether the tree's tests have what a comparison needs: tests to run, a call in a worker, a place for helpers."""
    return {_OWN, *_RUN} <= registry.functions.keys() and _BELOW in _functions_of(tree)


def plan_comparison(registry: RegistryAnchor, tree: SourceTree, *, with_runner: bool) -> list[FilePlan]:
    """The shared part of all entries, where the tree lacks it: the functions that a worker runs, and the runner of the
    generation test that calls them.
    """
    reason = "let entries of the generation test compare outputs"
    runner = [FilePlan(registry.path, tuple(comparison_edits(registry)), reason)] if with_runner else []
    return [_plan_helpers(tree), *runner]


def _plan_helpers(tree: SourceTree) -> FilePlan:
    there = _functions_of(tree)
    parts = {name: part for name, part in _parts(render_template("test/compare.py.jinja")) if name not in there}
    edits = tuple(PutFunction(part, before=_BELOW) for part in parts.values())
    return FilePlan(_HELPERS, edits, "compare the outputs of encoder CUDA graphs in tests")


def comparison_edits(registry: RegistryAnchor) -> Iterator[Edit]:
    """The runner that compares, and the field of the entries that it is for, where the generation test lacks them."""
    if FIELD not in {field.name for field in registry.entry_fields}:
        yield PutMethods(registry.entry_class, f"{FIELD}: bool = False\n")
    [(name, source)] = _parts(render_template("test/outputs.py.jinja", registry=registry.variable))
    if name not in registry.functions:
        for module, imported in (("contextlib", "contextmanager"), ("...utils", _CHECK), ("...utils", _HITS)):
            if imported not in registry.imports:
                yield AddImport(module, imported)
        yield PutFunction(source, before=_RUN[0])


def plan_pooling(key: str, fields: Sequence[tuple[str, Code, Sequence[Code]]], tree: SourceTree) -> FilePlan:
    """An entry of the test of models that only pool, or the test with it where the tree has none."""
    entry = render_template("test/entry.py.jinja", entry_class=_POOLING_CLASS, fields=fields)
    dummy = any("dummy_hf_overrides" in value for _, value, _ in fields)
    reason = "compare the outputs of a pooling model's encoder CUDA graphs"
    if not tree.exists(_POOLING):
        licence = render_template("common/licence.py.jinja")
        text = render_template("test/pooling.py.jinja", key=key, entry=Code(entry.strip()), dummy=dummy)
        return FilePlan(_POOLING, (), reason, source=licence + text)
    if repr(key) in {ast.unparse(one) for node in ast.walk(tree.parse(_POOLING)) for one in getattr(node, "keys", ())}:
        return FilePlan(_POOLING, (), reason)
    imports = (AddImport("functools", "partial"), AddImport("...utils", "dummy_hf_overrides")) if dummy else ()
    return FilePlan(_POOLING, (*imports, AddDictEntry(_POOLING_CONFIGS, key, entry)), reason)


def _functions_of(tree: SourceTree) -> set[str]:
    nodes = tree.parse(_HELPERS).body if tree.exists(_HELPERS) else []
    return {node.name for node in nodes if isinstance(node, FunctionNode)}


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The functions of a module's text by their names, each with its decorators."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        assert isinstance(node, FunctionNode), "the template has functions alone"
        yield node.name, "".join(lines[first_line(node) - 1 : node.end_lineno])
