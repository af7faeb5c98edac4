"""Every multimodal class of two releases: each edit is proven, or refused with a code."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from scaffold.diagnostics import DiagnosticError
from scaffold.edit import (
    AddBase,
    AddDictEntry,
    AddImport,
    AddListEntry,
    Edit,
    PutFunction,
    PutMethods,
    ReplaceMethod,
    apply_edits,
)
from scaffold.edit.document import PythonDocument
from scaffold.protocol import SourceTree
from scaffold.verify import format_changed, prove_equivalence, prove_idempotence, prove_text_form

pytestmark = pytest.mark.trees
ReleaseTree = Callable[[str], SourceTree]
VERSIONS = ("0.26.0", "0.33.0")
EACH = [pytest.param("0.26.0", marks=pytest.mark.slow), "0.33.0"]
MODELS = "vllm/model_executor/models"

BLOCK = '''\
# -- planned methods --

@torch.inference_mode()
def planned_first(self, *, mm_kwargs: dict[str, int] | None = None) -> int:
    """Count.

    Twice.
    """
    # keep this comment
    return len(mm_kwargs or {})


async def planned_second(self, value=(1, 2)):
    return [item for item in value if item]
'''


@dataclass(frozen=True)
class Subject:
    path: str
    text: str
    name: str
    methods: tuple[str, ...]
    has_bases_over_lines: bool
    is_decorated: bool


@cache
def subjects(tree: SourceTree) -> tuple[Subject, ...]:
    """The classes of a release that have `SupportsMultiModal` among their bases."""
    return tuple(_find_subjects(tree))


def _find_subjects(tree: SourceTree) -> Iterator[Subject]:
    for file in sorted((tree.root / MODELS).rglob("*.py")):
        path = file.relative_to(tree.root).as_posix()
        text = tree.read(path)
        if "SupportsMultiModal" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and any("SupportsMultiModal" in ast.unparse(base) for base in node.bases):
                methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
                over_lines = node.bases[-1].lineno > node.lineno
                yield Subject(path, text, node.name, tuple(methods), over_lines, bool(node.decorator_list))


def plans(subject: Subject) -> dict[str, tuple[Edit, ...]]:
    """Each kind of edit, for one class."""
    name, methods = subject.name, subject.methods
    protocol = tuple(method for method in methods if "cudagraph" in method or method == "forward")
    return {
        "import": (AddImport(".interfaces", "SupportsPlanned"),),
        "import of a new module": (AddImport("collections", "UserDict"), AddImport("vllm.planned", "planned")),
        "import of a package": (AddImport("planned_package"),),
        "base": (AddImport(".interfaces", "SupportsPlanned"), AddBase(name, "SupportsPlanned")),
        "methods at the end": (PutMethods(name, BLOCK),),
        "methods for others": (PutMethods(name, BLOCK, remove=protocol),),
        "function before": (PutFunction("# why\ndef planned(x: int) -> int:\n    return x\n", before=name),),
        "one method": (ReplaceMethod(name, methods[-1], f"def {methods[-1]}(self, planned):\n    return planned\n"),),
    }


def prove(before: str, after: str, edits: tuple[Edit, ...], path: str) -> None:
    assert after != before
    assert prove_text_form(before, after, path) == ()
    assert prove_equivalence(before, after, edits, path) == ()
    assert prove_idempotence(after, edits, path) == ()


@pytest.mark.parametrize("version", EACH)
def test_the_corpus_has_the_shapes_that_matter(release_tree: ReleaseTree, version: str) -> None:
    found = subjects(release_tree(version))
    assert len(found) >= 93
    assert sum(subject.is_decorated for subject in found) >= 85
    assert sum(subject.has_bases_over_lines for subject in found) >= 50


@pytest.mark.parametrize("version", EACH)
def test_each_class_with_one_kind_of_edit(release_tree: ReleaseTree, version: str) -> None:
    """The kinds take turns over the classes; the next test does them all at once."""
    refused = []
    for number, subject in enumerate(subjects(release_tree(version))):
        kinds = list(plans(subject).values())
        edits = kinds[number % len(kinds)]
        try:
            after = apply_edits(subject.text, edits, path=subject.path).text
        except DiagnosticError as error:
            refused.append((subject.name, error.diagnostics[0].code))
            continue
        prove(subject.text, after, edits, subject.path)
    assert refused == []


@pytest.mark.parametrize("version", EACH)
def test_every_third_class_with_all_edits_in_the_trees_format(release_tree: ReleaseTree, version: str) -> None:
    tree = release_tree(version)
    start = VERSIONS.index(version)
    for subject in subjects(tree)[start::3]:
        kinds = plans(subject)
        edits = (
            *kinds["base"],
            *kinds["import of a new module"],
            *kinds["import of a package"],
            *kinds["methods for others"],
            *kinds["function before"],
        )
        edited = apply_edits(subject.text, edits, path=subject.path).text
        after = format_changed(subject.text, edited, path=subject.path, config_root=tree.root)
        prove(subject.text, after, edits, subject.path)


def test_an_ambiguous_method_is_refused(release_tree: ReleaseTree) -> None:
    """The one class of both releases whose last method is overloaded."""
    tree = release_tree("0.33.0")
    path = f"{MODELS}/interfaces.py"
    edit = ReplaceMethod("SupportsMultiModal", "embed_input_ids", "def embed_input_ids(self): ...")
    with pytest.raises(DiagnosticError) as caught:
        apply_edits(tree.read(path), [edit], path=path)
    assert caught.value.diagnostics[0].code == "VCG431"


def test_all_model_files_pass_through_unchanged(release_tree: ReleaseTree) -> None:
    tree = release_tree("0.33.0")
    files = sorted((tree.root / MODELS).rglob("*.py"))
    assert len(files) >= 290
    for number, file in enumerate(files):
        text = file.read_bytes().decode("utf-8")
        document = PythonDocument.parse(text, "m.py")
        assert document.text == text, file
        if number % 20 == 0:  # and through libcst, which is ten times slower
            for index in range(len(document.chunks)):
                document.rewrite(index, lambda statement: statement)
            assert document.text == text, file


def test_damage_anywhere_in_a_real_file_is_found(release_tree: ReleaseTree) -> None:
    """Lines of a result that the plan does not own: each is lost, doubled, or swapped with the next in turn."""
    tree = release_tree("0.33.0")
    subject = next(item for item in subjects(tree) if item.name == "InternVLChatModel")
    edits = (*plans(subject)["import of a new module"], PutMethods(subject.name, BLOCK))
    after = apply_edits(subject.text, edits, path=subject.path).text
    lines = after.splitlines(keepends=True)
    known = set(subject.text.splitlines(keepends=True))
    places = [
        n for n, line in enumerate(lines[:-1]) if line.strip() and line in known and lines[n + 1] not in (line, "\n")
    ]
    chosen = random.Random(0).sample(places, 60)
    for number, place in enumerate(chosen):
        damaged = list(lines)
        if number % 3 == 0:
            del damaged[place]
        elif number % 3 == 1:
            damaged.insert(place, damaged[place])
        else:
            damaged[place : place + 2] = reversed(damaged[place : place + 2])
        assert prove_equivalence(subject.text, "".join(damaged), edits, subject.path) != (), (place, lines[place])


@pytest.mark.parametrize("version", EACH)
def test_the_registry_and_the_example_list(release_tree: ReleaseTree, version: str) -> None:
    tree = release_tree(version)
    for path, edit in (
        (
            "tests/models/multimodal/generation/test_vit_cudagraph.py",
            AddDictEntry("MODEL_CONFIGS", "planned", "Config(\n    a=1,\n)"),
        ),
        (
            "examples/generate/multimodal/vision_language_offline.py",
            AddListEntry("MODELS_SUPPORT_VIT_CUDA_GRAPH", "planned"),
        ),
    ):
        before = tree.read(path)
        edited = apply_edits(before, [edit], path=path).text
        after = format_changed(before, edited, path=path, config_root=tree.root)
        prove(before, after, (edit,), path)
        assert len(after.splitlines()) - len(before.splitlines()) in (1, 3)
