"""What `new` writes for the models outside the core five, on every release that their descriptors claim.

The entries of the generation test, the docs table and the example list are those that upstream wrote itself, in the
releases that have them; before, they are added, and name what the release's own model class understands.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

import pytest
from test_port_on_releases import write_over

from scaffold.descriptor import AnyPort
from scaffold.diagnostics import DiagnosticError
from scaffold.plan.entries import docs_row
from scaffold.plan.manager import MANAGER_TESTS
from scaffold.protocol import SourceTree, find_docs_table, find_example_list, find_test_registry
from scaffold.workflow import PreparedPort, load_port, prepare_port

pytestmark = pytest.mark.trees

TEST = "tests/models/multimodal/generation/test_vit_cudagraph.py"
DOCS = "docs/design/cuda_graphs_multimodal.md"
EXAMPLE = "the example list"  # its file moves between releases
MODELS = "vllm/model_executor/models"
MANAGER = "vllm/v1/worker/encoder_cudagraph.py"

#: Model -> first claimed release, the last one before upstream's own entries, and files besides the model's own that
#: change on every release. Upstream's example list lacks Gemma 3 to this day. That of GLM-4.1V captures no graph.
CLAIMED: dict[str, tuple[int, int, set[str]]] = {
    "mllama4": (20, 23, set()),
    "gemma3_mm": (20, 24, {EXAMPLE}),
    # The subclass with another tower opts out.
    "glm4_1v": (20, 23, {f"{MODELS}/glm_ocr.py", f"{MODELS}/interfaces.py"}),
    "ernie45_vl": (22, 27, set()),
}
NEWEST = 33
CELLS = [
    pytest.param(
        model,
        minor,
        id=f"{model}-0.{minor}",
        marks=() if minor in (first, pristine, NEWEST) else pytest.mark.slow,
    )
    for model, (first, pristine, _) in CLAIMED.items()
    for minor in range(first, NEWEST + 1)
]


@cache
def ported(model: str, minor: int, release_tree: Any) -> tuple[AnyPort, SourceTree, PreparedPort]:
    spec, tree = load_port(model), release_tree(f"0.{minor}.0")
    return spec, tree, prepare_port(spec, tree, replace=True)


def after(port: PreparedPort, tree: SourceTree, path: str) -> str:
    """A file as it is after the port."""
    found = next((change.after for change in port.changed if change.path == path), None)
    return found.decode("utf-8") if found is not None else tree.read(path)


@pytest.mark.parametrize(("model", "minor"), CELLS)
class TestPort:
    def test_it_changes_what_it_should_and_nothing_twice(self, model, minor, release_tree):
        spec, tree, port = ported(model, minor, release_tree)
        _, pristine, more = CLAIMED[model]
        new = {TEST, DOCS, EXAMPLE} if minor <= pristine else set()
        without_example = TEST in new and model == "glm4_1v"
        new -= {EXAMPLE} if without_example else set()

        examples = find_example_list(tree)
        assert examples is not None
        changed = {EXAMPLE if change.path == examples.path else change.path for change in port.changed}
        bounded = {MANAGER, MANAGER_TESTS} if model == "glm4_1v" and minor >= 31 else set()
        assert changed == {f"{MODELS}/{model}.py", *more, *new, *bounded}
        # A subclass with another tower is named, and what upstream's implementation leaves.
        expected = {"VCG428", *(() if TEST in new else ("VCG522", "VCG523"))}
        assert {note.code for note in port.notes} - expected == ({"VCG427"} if without_example else set())
        again = write_over(tree, port)
        assert prepare_port(spec, again).changed == ()

    def test_the_entry_is_read_by_the_releases_own_test(self, model, minor, release_tree):
        """All its arguments are fields of the entry's class, and its prompts have the placeholders of the model."""
        spec, tree, port = ported(model, minor, release_tree)
        source = after(port, tree, TEST)
        (test,) = spec.tests
        registry = find_test_registry(tree)
        assert registry is not None

        functions, entry = entry_of(source, test.key)

        assert set(entry) <= {field.name for field in registry.entry_fields}
        assert ast.literal_eval(entry["model"]) == test.model
        modalities = ast.literal_eval(entry["modalities"]) if "modalities" in entry else ["image", "video"]
        assert modalities == list(spec.modalities)
        for modality in modalities:
            prompt = eval(ast.unparse(entry[f"{modality}_prompt"]), dict(functions))
            assert placeholder_of(tree, model, modality) in prompt

    def test_docs_and_example_name_the_model(self, model, minor, release_tree):
        spec, tree, port = ported(model, minor, release_tree)
        again = write_over(tree, port)
        table, examples = find_docs_table(again), find_example_list(again)
        assert table is not None
        assert examples is not None

        [row] = [row for row in table.rows if row.architecture == spec.class_name]

        assert [cell.replace("`", "") for cell in row.cells] == [
            cell.replace("`", "") for cell in docs_row(spec, table)
        ]
        wanted = set(spec.examples) if model != "glm4_1v" or minor > CLAIMED[model][1] else set()
        assert wanted <= {entry.value for entry in examples.entries}
        assert set(spec.examples) <= set(examples.example_keys)


@pytest.mark.parametrize("model", CLAIMED)
def test_the_entry_is_upstreams_own(model, release_tree):
    """In a release without an entry the port writes the one that upstream wrote later, argument by argument."""
    _, pristine, _ = CLAIMED[model]
    spec, tree, port = ported(model, pristine, release_tree)
    (test,) = spec.tests
    newest = release_tree(f"0.{NEWEST}.0")
    assert all(entry.key != test.key for entry in registry_of(tree).entries), "the release has an entry already"

    mine, theirs = (entry_of(text, test.key)[1] for text in (after(port, tree, TEST), newest.read(TEST)))

    defaults = {
        field.name: ast.unparse(ast.parse(field.default, mode="eval")) if field.default else None
        for field in registry_of(newest).entry_fields
    }
    assert values(mine, defaults) == values(theirs, defaults)


@pytest.mark.parametrize("minor", [20, 21])
def test_what_cannot_be_ported_is_refused_with_its_reason(minor, release_tree):
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(load_port("ernie45_vl"), release_tree(f"0.{minor}.0"), replace=True)

    [problem] = caught.value.diagnostics
    assert (problem.code, problem.span is not None) == ("VCG441", True)


# --- reading --------------------------------------------------------------------------------------------------------


def registry_of(tree: SourceTree) -> Any:
    found = find_test_registry(tree)
    assert found is not None
    return found


def entry_of(source: str, key: str) -> tuple[dict[str, Any], dict[str, ast.expr]]:
    """The chat templates of a generation test, as functions, and the arguments of one entry."""
    functions: dict[str, Any] = {}
    arguments: dict[str, ast.expr] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_chat_template"):
            exec(ast.unparse(node), functions)
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == key and isinstance(value, ast.Call):
                    arguments = {str(keyword.arg): keyword.value for keyword in value.keywords}
    assert arguments, f"no entry {key}"
    return functions, arguments


def values(entry: dict[str, ast.expr], defaults: dict[str, str | None]) -> dict[str, object]:
    """The arguments by what they mean: those that repeat a default are left out, keys of a dict have no order."""
    found: dict[str, object] = {}
    for name, value in entry.items():
        text = ast.unparse(value)
        if text != defaults.get(name):
            pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
            found[name] = {ast.unparse(k): ast.unparse(v) for k, v in pairs if k is not None} or text
    return found


def placeholder_of(tree: SourceTree, model: str, modality: str) -> str:
    """What the model's own `get_placeholder_str` returns."""
    for node in ast.walk(tree.parse(f"{MODELS}/{model}.py")):
        if isinstance(node, ast.FunctionDef) and node.name == "get_placeholder_str":
            for branch in ast.walk(node):
                if isinstance(branch, ast.If) and f"'{modality}'" in ast.unparse(branch.test):
                    [returned] = [part for part in branch.body if isinstance(part, ast.Return)]
                    assert isinstance(returned.value, ast.Constant)
                    return str(returned.value.value)
    raise AssertionError(f"no placeholder for {modality}")
