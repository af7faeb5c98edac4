"""The image processor that a descriptor names is looked up in the tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scaffold.descriptor import AnyPort
from scaffold.diagnostics import DiagnosticError
from scaffold.edit.operations import AddImport, PutMethods
from scaffold.plan import plan_changes
from scaffold.plan.processor import check_processor, known_constants
from scaffold.protocol import SourceTree, open_tree, read_protocol
from scaffold.workflow import load_port

PROCESSOR = "vllm/transformers_utils/processors/step3_vl.py"
SOURCE = """\
class Other:
    patch_size = 1


class Step3VLImageProcessor:
    limit = 4
    names: list[str]

    def __init__(self, size: int = 504) -> None:
        self.{attribute} = size
        self.more: int = 1
        self.sizes[0] = 2
        count = 3

    def tokens(self) -> int:
        return 81
"""


@pytest.fixture
def tree_with(tmp_path: Path) -> Callable[[str | None], SourceTree]:
    def make(source: str | None) -> SourceTree:
        (tmp_path / "vllm/model_executor/models").mkdir(parents=True)
        (tmp_path / "vllm/__init__.py").touch()
        if source is not None:
            path = tmp_path / PROCESSOR
            path.parent.mkdir(parents=True)
            path.write_text(source)
        return open_tree(tmp_path, label="tree")

    return make


@pytest.fixture
def step3() -> AnyPort:
    return load_port("step3_vl")


def test_a_model_without_one_needs_none(tree_with: Callable[[str | None], SourceTree]) -> None:
    assert check_processor(load_port("internvl"), tree_with(None)) == ()


def test_it_is_found(tree_with: Callable[[str | None], SourceTree], step3: AnyPort) -> None:
    (fact,) = check_processor(step3, tree_with(SOURCE.format(attribute="patch_size")))

    assert fact.value == "Step3VLImageProcessor"
    assert fact.evidence == f"{PROCESSOR}:5"


@pytest.mark.parametrize(
    ("source", "message", "help_text"),
    [
        pytest.param(None, "step3_vl.py has no class Step3VLImageProcessor", "look for", id="no module"),
        pytest.param("x = 1\n", "step3_vl.py has no class Step3VLImageProcessor", "look for", id="no class"),
        pytest.param(
            SOURCE.format(attribute="tile_size"),
            "Step3VLImageProcessor sets no attribute patch_size",
            "it sets limit, more, names, tile_size, tokens",
            id="no attribute",
        ),
        pytest.param("class Step3VLImageProcessor: ...\n", "no attribute patch_size", "it sets none", id="empty"),
    ],
)
def test_it_is_not_there(
    tree_with: Callable[[str | None], SourceTree],
    step3: AnyPort,
    source: str | None,
    message: str,
    help_text: str,
) -> None:
    with pytest.raises(DiagnosticError) as caught:
        check_processor(step3, tree_with(source))

    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "VCG438"
    assert message in diagnostic.message
    assert help_text in (diagnostic.help or "")
    assert diagnostic.span is not None
    assert diagnostic.span.file.endswith("step3_vl.yaml")


@pytest.mark.parametrize(
    ("source", "known"),
    [
        pytest.param(SOURCE.format(attribute="patch_size"), {"tile_side": 504}, id="default"),
        pytest.param(SOURCE.format(attribute="patch_size").replace(" = 504", " = SIZE"), {}, id="another value"),
        pytest.param(SOURCE.format(attribute="patch_size").replace("= size", "= size // 2"), {}, id="computed"),
        pytest.param("class Step3VLImageProcessor: ...\n", {}, id="no constructor"),
        pytest.param(None, {}, id="no module"),
    ],
)
def test_a_default_needs_no_processor(
    tree_with: Callable[[str | None], SourceTree], step3: AnyPort, source: str | None, known: dict[str, int]
) -> None:
    assert known_constants(step3, tree_with(source)) == known


def test_a_port_makes_it_without_arguments(tree_with: Callable[[str | None], SourceTree], step3: AnyPort) -> None:
    source = SOURCE.format(attribute="patch_size").replace("size: int = 504", "size, *, more=1, limit")
    with pytest.raises(DiagnosticError) as caught:
        check_processor(step3, tree_with(source))

    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "VCG438"
    assert "Step3VLImageProcessor cannot be made without size, limit" in diagnostic.message
    assert diagnostic.span == step3.span("processor.class")


@pytest.mark.trees
@pytest.mark.parametrize("release", ["0.20.0", "0.26.0", "0.33.0"])
def test_releases_have_it(release_tree: Callable[[str], SourceTree], step3: AnyPort, release: str) -> None:
    assert len(check_processor(step3, release_tree(release))) == 1


COUNTED = """\
class Mllama4ProcessingInfo:
    def __init__(self, ctx):
        self.ctx = ctx

    {decorator}
    def {method}({parameters}) -> int:
        return 1
"""
LLAMA = "vllm/model_executor/models/mllama4.py"


@pytest.mark.parametrize(
    ("decorator", "method", "parameters"),
    [
        ("@property", "get_patch_per_chunk", "self"),
        ("@classmethod", "get_patch_per_chunk", "cls, config"),
        ("@staticmethod", "get_chunk", "config"),
        ("@staticmethod", "get_patch_per_chunk", ""),
        ("@staticmethod", "get_patch_per_chunk", "config, size"),
        ("@staticmethod", "get_patch_per_chunk", "config, *, size"),
    ],
)
def test_a_count_is_a_static_method_of_one_argument(
    tree_with: Callable[[str | None], SourceTree], decorator: str, method: str, parameters: str
) -> None:
    tree, port = tree_with(None), load_port("mllama4")
    (tree.root / LLAMA).write_text(COUNTED.format(decorator=decorator, method=method, parameters=parameters))

    with pytest.raises(DiagnosticError, match="no static method get_patch_per_chunk of one argument") as caught:
        check_processor(port, tree)

    assert caught.value.diagnostics[0].span == port.span("processor.values.tile_tokens")


@pytest.mark.parametrize("parameters", ["config", "config, size=1", "config, /, *, size=1"])
def test_a_count_needs_no_constructor(tree_with: Callable[[str | None], SourceTree], parameters: str) -> None:
    tree = tree_with(None)
    text = COUNTED.format(decorator="@staticmethod", method="get_patch_per_chunk", parameters=parameters)
    (tree.root / LLAMA).write_text(text)

    (fact,) = check_processor(load_port("mllama4"), tree)

    assert fact.value == "Mllama4ProcessingInfo"


@pytest.mark.trees
@pytest.mark.parametrize("release", ["0.20.0", "0.33.0"])
def test_a_count_of_the_models_own_module_is_not_imported(
    release_tree: Callable[[str], SourceTree], release: str
) -> None:
    """The processing info stands in the model's file; an adapter, which is another file, imports it."""
    tree = release_tree(release)
    plan = plan_changes(load_port("mllama4"), tree, read_protocol(tree), replace=True)

    (model,) = (file for file in plan.files if file.path == LLAMA)
    assert "Mllama4ProcessingInfo" not in {edit.name for edit in model.edits if isinstance(edit, AddImport)}
    (methods,) = (edit for edit in model.edits if isinstance(edit, PutMethods))
    assert methods.source.count("Mllama4ProcessingInfo.get_patch_per_chunk(self.config.vision_config)") == 1
