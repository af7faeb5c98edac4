"""The places of a port, found in every real release, and refused in trees where they are missing or doubtful."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from failing import failure

from scaffold.protocol import (
    SourceTree,
    absent_reason,
    anchors,
    find_docs_table,
    find_example_list,
    find_model,
    find_subclasses,
    find_test_registry,
)

pytestmark = pytest.mark.trees

INTERFACES = "vllm/model_executor/models/interfaces.py"
DEFS = "vllm/v1/worker/encoder_cudagraph_defs.py"
MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
PROTOCOL_FILES = (INTERFACES, DEFS, MANAGER)
REGISTRY = "tests/models/multimodal/generation/test_vit_cudagraph.py"
DOCS = "docs/design/cuda_graphs_multimodal.md"
EXAMPLE = "examples/generate/multimodal/vision_language_offline.py"
MODELS = "vllm/model_executor/models"

#: release, registry (line, entries, fields), table (line, rows, fifth column), example list (line, entries, keys of the
#: example map)
PLACES = [
    ("0.20.0", (44, 1, 12), (86, 1, ""), (2466, 2, 74)),
    ("0.21.0", (44, 2, 12), (86, 2, ""), (2466, 3, 74)),
    ("0.22.0", (53, 5, 13), (87, 5, ""), (2556, 7, 76)),
    ("0.23.0", (57, 6, 13), (83, 6, ""), (2556, 8, 76)),
    ("0.24.0", (65, 10, 14), (127, 10, "Dual-Path Graph"), (2500, 12, 74)),
    ("0.25.0", (69, 11, 14), (127, 12, "Dual-Path Graph"), (2393, 12, 70)),
    ("0.26.0", (69, 11, 14), (127, 12, "Dual-Path Graph"), (2375, 12, 69)),
    ("0.27.0", (69, 12, 14), (118, 13, "Dual-Path Graph"), (2415, 13, 70)),
    ("0.28.0", (77, 13, 14), (22, 14, "Multi-Path Graph"), (2415, 14, 70)),
    ("0.29.0", (77, 14, 14), (22, 14, "Multi-Path Graph"), (2264, 14, 67)),
    ("0.30.0", (91, 17, 14), (22, 16, "Multi-Path Graph"), (2264, 17, 67)),
    ("0.31.0", (95, 19, 14), (22, 16, "Multi-Path Graph"), (2263, 17, 67)),
    ("0.32.0", (95, 19, 14), (12, 19, "Multi-Path Graph"), (2263, 17, 67)),
    ("0.33.0", (99, 20, 14), (12, 20, "Multi-Path Graph"), (2296, 18, 68)),
]


@pytest.mark.parametrize(("version", "registry", "table", "examples"), PLACES)
def test_places_in_every_release(release_tree, version: str, registry, table, examples) -> None:
    tree = release_tree(version)

    found = find_test_registry(tree)
    assert found is not None
    assert (found.line, len(found.entries), len(found.entry_fields)) == registry
    lines = tree.read(found.path).split("\n")
    assert lines[found.line - 1] == "MODEL_CONFIGS: dict[str, VitCudagraphTestConfig] = {"
    for entry in found.entries:
        line = lines.index(f'    "{entry.key}": VitCudagraphTestConfig(')
        assert f'model="{entry.model}",' in lines[line + 1]
    assert {field.name for field in found.entry_fields} >= {keyword for e in found.entries for keyword in e.keywords}
    assert {"qwen_vl_chat_template", "get_compilation_config"} <= set(found.functions)
    assert {"pytest", "dataclass", "IMAGE_ASSETS"} <= set(found.imports)

    rows = find_docs_table(tree)
    assert rows is not None
    extra = rows.columns[4] if len(rows.columns) > 4 else ""
    assert (rows.line, len(rows.rows), extra) == table
    lines = tree.read(rows.path).split("\n")
    assert lines[rows.line - 1].startswith("| Architecture | Models | CG for Image | CG for Video |")
    below = lines[rows.line + 1 : rows.line + 2 + len(rows.rows)]
    assert [*(f"| {' | '.join(row.cells)} |" for row in rows.rows), ""] == below
    assert (rows.yes, rows.no) == ("\u2705\ufe0e", "\u274c\ufe0e")
    assert "Qwen3VLForConditionalGeneration" in {row.architecture for row in rows.rows}

    listed = find_example_list(tree)
    assert listed is not None
    assert (listed.line, len(listed.entries), len(listed.example_keys)) == examples
    lines = tree.read(listed.path).split("\n")
    assert lines[listed.line - 1] == "MODELS_SUPPORT_VIT_CUDA_GRAPH = ["
    below = lines[listed.line : listed.line + 1 + len(listed.entries)]
    assert [*(f'    "{entry.value}",' for entry in listed.entries), "]"] == below
    assert "internvl_chat" in listed.example_keys


@pytest.mark.parametrize("version", ["0.18.0", "0.19.1"])
@pytest.mark.parametrize(
    ("find", "code"), [(find_test_registry, "VCG421"), (find_docs_table, "VCG422"), (find_example_list, "VCG423")]
)
def test_places_before_the_protocol(release_tree, version: str, find: Callable[..., object], code: str) -> None:
    assert failure(find, release_tree(version)).code == code


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "module", "class_name", "lists", "methods"),
    [
        ("0.20.0", "internvl", "InternVLChatModel", False, 0),
        ("0.22.0", "internvl", "InternVLChatModel", False, 0),
        ("0.23.0", "internvl", "InternVLChatModel", True, 9),
        ("0.33.0", "internvl", "InternVLChatModel", True, 9),
        ("0.20.0", "qwen3_vl", "Qwen3VLForConditionalGeneration", True, 12),
        ("0.33.0", "qwen3_vl", "Qwen3VLForConditionalGeneration", True, 10),
        ("0.22.0", "qwen2_vl", "Qwen2VLForConditionalGeneration", True, 10),
        ("0.33.0", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", True, 10),
        ("0.22.0", "step3_vl", "Step3VLForConditionalGeneration", True, 10),
        ("0.33.0", "step3_vl", "Step3VLForConditionalGeneration", True, 9),
        ("0.33.0", "h2ovl", "H2OVLChatModel", False, 0),
        ("0.33.0", "minicpmv", "MiniCPMV2_6", False, 0),
        ("0.33.0", "llava", "LlavaForConditionalGeneration", False, 0),
    ],
)
def test_model(release_tree, version, module, class_name, lists, methods) -> None:
    tree = release_tree(version)
    anchor = find_model(tree, module, class_name)
    assert (anchor.lists_protocol, len(anchor.protocol_methods)) == (lists, methods)
    lines = tree.read(anchor.path).split("\n")
    assert lines[anchor.line - 1].startswith(f"class {class_name}(")
    assert all(f"def {item.name}(" in lines[item.line - 1] for item in anchor.methods)


def test_a_body_on_the_line_that_ends_the_header_is_not_indented(release_tree) -> None:
    anchor = find_model(release_tree("0.28.0"), "transformers", "TransformersMultiModalMoEForCausalLM")
    assert (anchor.lists_protocol, anchor.methods) == (False, ())


@pytest.mark.parametrize("module", ["internvl", "vllm.model_executor.models.internvl", f"{MODELS}/internvl.py"])
def test_module_is_named_in_three_ways(release_tree, module: str) -> None:
    anchor = find_model(release_tree("0.33.0"), module, "InternVLChatModel")
    assert (anchor.path, anchor.module) == (f"{MODELS}/internvl.py", "vllm.model_executor.models.internvl")


@pytest.mark.parametrize(
    ("module", "class_name", "words"),
    [
        ("intervl", "InternVLChatModel", "did you mean `internvl`"),
        ("internvl", "InternVLChatModal", "did you mean `InternVLChatModel`"),
        ("../../../pq.py", "X", "name a module below"),
        ("vllm.nowhere", "X", "name a module below"),
    ],
)
def test_model_is_not_there(release_tree, module: str, class_name: str, words: str) -> None:
    diagnostic = failure(find_model, release_tree("0.33.0"), module, class_name)
    assert diagnostic.code == "VCG420"
    assert words in (diagnostic.help or "")


def test_class_of_another_module_is_pointed_at(release_tree) -> None:
    diagnostic = failure(find_model, release_tree("0.33.0"), "qwen2_vl", "InternVLChatModel")
    assert diagnostic.notes == (f"`{MODELS}/internvl.py:551` defines a class of that name",)


@pytest.mark.parametrize("indentation", ["  ", "\t"])
def test_class_with_an_indentation_of_its_own(copied_tree, indentation: str) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    _append(tree, f"{MODELS}/internvl.py", f"\n\nclass Mine:\n{indentation}x = 1\n")
    diagnostic = failure(find_model, tree.reread(), "internvl", "Mine")
    assert diagnostic.code == "VCG435"
    assert f"run `ruff format {MODELS}/internvl.py`" in (diagnostic.help or "")


def test_class_defined_twice(copied_tree) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    _append(tree, f"{MODELS}/internvl.py", "\n\nclass InternVLChatModel:\n    pass\n")
    diagnostic = failure(find_model, tree.reread(), "internvl", "InternVLChatModel")
    assert diagnostic.code == "VCG424"
    assert diagnostic.notes[0] == f"tree/{MODELS}/internvl.py:551"
    assert len(diagnostic.notes) == 2


def test_subclasses_of_subclasses_in_other_files(copied_tree) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    _append(tree, f"{MODELS}/a.py", "from .internvl import InternVLChatModel\nclass A(InternVLChatModel): ...\n")
    _append(tree, f"{MODELS}/b.py", "from .a import A\nclass B(A): ...\n")
    _append(tree, f"{MODELS}/c.py", "from .b import B\nclass C(B): ...\n")
    assert [item.class_name for item in find_subclasses(tree.reread(), "internvl", "InternVLChatModel")] == [*"ABC"]


def test_subclasses_are_found_in_any_order_and_under_any_name(copied_tree) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    _append(
        tree,
        f"{MODELS}/a.py",
        "from . import internvl\nfrom .internvl import InternVLChatModel as Base\n"
        "class C(object, B): ...\nclass B(A): ...\nclass A(Base): ...\nclass D(internvl.InternVLChatModel): ...\n"
        "class Base2(Base2): ...\nclass E(unknown()): ...\n",
    )
    _append(tree, f"{MODELS}/b.py", "from .a import A as InternVLChatModel\n")
    _append(tree, f"{MODELS}/c.py", "from .b import InternVLChatModel\nclass F(InternVLChatModel): ...\n")
    found = find_subclasses(tree.reread(), "internvl", "InternVLChatModel")
    assert [item.class_name for item in found] == [*"CBADF"]


@pytest.mark.parametrize(
    "shape",
    [lambda n: "InternVLChatModel", lambda n: f"C{n - 1}", lambda n: f"C{n + 1}"],
    ids=["direct", "chain", "chain upwards"],
)
def test_each_class_and_file_is_looked_at_once(copied_tree, monkeypatch, shape) -> None:
    """Twice as many subclasses, twice as many look-ups; and as many searches of the package, whatever their number."""
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    counts = []
    for number in (200, 400):
        bases = ["InternVLChatModel", *(shape(n) for n in range(1, number - 1)), "InternVLChatModel"]
        classes = "".join(f"class C{n}({base}): ...\n" for n, base in enumerate(bases))
        (tree.root / MODELS / "a.py").write_text("from .internvl import InternVLChatModel\n" + classes)
        calls: Counter[str] = Counter()
        with monkeypatch.context() as patch:
            _count(patch, calls, anchors, "_locate")
            _count(patch, calls, SourceTree, "containing")
            found = find_subclasses(tree.reread(), "internvl", "InternVLChatModel")
        assert len(found) == number
        assert calls["containing"] <= 16
        counts.append(calls["_locate"])
    assert counts[1] < 2.2 * counts[0]


def _count(patch, calls: Counter[str], owner: object, name: str) -> None:
    plain = getattr(owner, name)

    def counted(*arguments, **keywords):
        calls[name] += 1
        return plain(*arguments, **keywords)

    patch.setattr(owner, name, counted)


def test_more_subclasses_than_any_model_has_are_refused(copied_tree) -> None:
    tree = copied_tree("0.33.0", *PROTOCOL_FILES, f"{MODELS}/internvl.py")
    classes = "".join(f"class C{n}(InternVLChatModel): ...\n" for n in range(2001))
    _append(tree, f"{MODELS}/a.py", "from .internvl import InternVLChatModel\n" + classes)
    assert failure(find_subclasses, tree.reread(), "internvl", "InternVLChatModel").code == "VCG439"


@pytest.mark.parametrize(
    ("version", "module", "class_name", "subclasses"),
    [
        ("0.22.0", "internvl", "InternVLChatModel", {"H2OVLChatModel", "NVLM_D_Model"}),
        ("0.33.0", "internvl", "InternVLChatModel",
         {"H2OVLChatModel", "NVLM_D_Model", "QianfanOCRForConditionalGeneration"}),
        # Step5 inherits from Step3p7, in another package
        ("0.33.0", "step3_vl", "Step3VLForConditionalGeneration",
         {"Step3p7ForConditionalGeneration", "StepVLForConditionalGeneration", "Step5ForConditionalGeneration"}),
        ("0.33.0", "qwen2_vl", "Qwen2VLForConditionalGeneration", {"JinaVLForSequenceClassification"}),
        ("0.33.0", "h2ovl", "H2OVLChatModel", set()),
    ],
)  # fmt: skip
def test_subclasses(release_tree, version: str, module: str, class_name: str, subclasses: set[str]) -> None:
    found = find_subclasses(release_tree(version), module, class_name)
    assert {item.class_name for item in found} >= subclasses
    if not subclasses or version == "0.33.0":
        assert {item.class_name for item in found} == subclasses


# --- missing, ambiguous, unexpected, not readable --------------------------------------------------------------------

FINDERS = [
    ("registry", find_test_registry, REGISTRY, "VCG421"),
    ("docs", find_docs_table, DOCS, "VCG422"),
    ("example", find_example_list, EXAMPLE, "VCG423"),
]
by_finder = pytest.mark.parametrize(
    ("find", "relpath", "missing"), [pytest.param(*row[1:], id=row[0]) for row in FINDERS]
)


@by_finder
def test_missing(copied_tree, find, relpath: str, missing: str) -> None:
    diagnostic = failure(find, copied_tree("0.33.0"))
    assert diagnostic.code == missing
    assert f"`{relpath}`" in diagnostic.notes[0]
    assert "then every " in diagnostic.notes[0]


@by_finder
def test_moved_is_found(copied_tree, find, relpath: str, missing: str) -> None:
    tree = copied_tree("0.33.0", relpath)
    before = find(tree)
    moved = f"{relpath.partition('/')[0]}/elsewhere/{Path(relpath).name}"
    tree.path(moved).parent.mkdir()
    tree.path(relpath).rename(tree.path(moved))
    after = find(tree.reread())
    assert (after.path, after.line) == (moved, before.line)


@by_finder
def test_two_unknown_places_are_ambiguous(copied_tree, find, relpath: str, missing: str) -> None:
    tree = copied_tree("0.33.0", relpath)
    line = find(tree).line
    top, name = relpath.partition("/")[0], Path(relpath).name
    text = tree.path(relpath).read_bytes()
    tree.path(relpath).unlink()
    for folder in ("a", "b"):
        tree.path(f"{top}/{folder}").mkdir()
        tree.path(f"{top}/{folder}/{name}").write_bytes(text)
    diagnostic = failure(find, tree.reread())
    assert diagnostic.code == "VCG424"
    assert diagnostic.notes == tuple(f"tree/{top}/{folder}/{name}:{line}" for folder in ("a", "b"))


@by_finder
def test_two_in_one_file_are_ambiguous(copied_tree, find, relpath: str, missing: str) -> None:
    tree = copied_tree("0.33.0", relpath)
    _append(tree, relpath, "\n\n" + tree.read(relpath))
    diagnostic = failure(find, tree.reread())
    assert diagnostic.code == "VCG424"
    assert len(diagnostic.notes) == 2


@by_finder
def test_not_utf8(copied_tree, find, relpath: str, missing: str) -> None:
    tree = copied_tree("0.33.0", relpath)
    path = tree.path(relpath)
    path.write_bytes(path.read_bytes() + b"# caf\xe9\n")
    assert failure(find, tree.reread()).code == "VCG411"


@pytest.mark.parametrize(
    ("find", "relpath", "old", "new", "code"),
    [
        (find_test_registry, REGISTRY, "MODEL_CONFIGS: dict[str, VitCudagraphTestConfig] = {",
         "MODEL_CONFIGS = build({", "VCG412"),
        (find_test_registry, REGISTRY, '    "gemma3": VitCudagraphTestConfig(', '    "gemma3": Other(', "VCG425"),
        (find_test_registry, REGISTRY, "class VitCudagraphTestConfig", "class OtherConfig", "VCG425"),
        (find_example_list, EXAMPLE, '    "llama4",\n    "gemma4",', '    "llama4",\n    GEMMA,', "VCG425"),
        (find_example_list, EXAMPLE, "model_example_map = {", "example_map = {", "VCG425"),
        (find_docs_table, DOCS, "CG for Image", "Image", "VCG422"),
    ],
)  # fmt: skip
def test_unexpected_form(copied_tree, find, relpath: str, old: str, new: str, code: str) -> None:
    tree = copied_tree("0.33.0", relpath)
    text = tree.read(relpath)
    assert text.count(old) == 1
    tree.path(relpath).write_text(text.replace(old, new), "utf-8")
    assert failure(find, tree.reread()).code == code


def test_statement_that_cannot_be_cut_out_is_read_with_its_file(copied_tree) -> None:
    tree = copied_tree("0.33.0", EXAMPLE)
    before = find_example_list(tree)
    text = tree.read(EXAMPLE)
    quoted = '"""\nMODELS_SUPPORT_VIT_CUDA_GRAPH = [\n    "quoted",\n]\n"""\n'
    tree.path(EXAMPLE).write_text(quoted + text, "utf-8")
    after = find_example_list(tree.reread())
    assert before is not None
    assert after is not None
    assert (after.line, len(after.entries)) == (before.line + 5, len(before.entries))


def test_windows_newlines_keep_the_lines(copied_tree) -> None:
    tree = copied_tree("0.33.0", REGISTRY, DOCS, EXAMPLE)
    places = _places(tree)
    assert len(places) == 3
    for relpath in (REGISTRY, DOCS, EXAMPLE):
        path = tree.path(relpath)
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    tree = tree.reread()
    assert "\r\n" in tree.read(DOCS)
    assert _places(tree) == places


def test_marks_follow_the_table(copied_tree) -> None:
    tree = copied_tree("0.33.0", DOCS)
    text = tree.read(DOCS).replace("\u274c\ufe0e", "\u2717").replace("\u2705\ufe0e", "\u2705")
    tree.path(DOCS).write_text(text, "utf-8")
    table = find_docs_table(tree.reread())
    assert table is not None
    assert (table.yes, table.no) == ("\u2705", "\u2717")


def test_installed_package_has_no_places(release_tree) -> None:
    tree = release_tree("0.33.0")
    installed = SourceTree(tree.root, "installed", "0.33.0", installed=True)
    assert absent_reason(installed) == "a package without its repository has no tests, docs or examples"
    assert [find(installed) for _, find, _, _ in FINDERS] == [None, None, None]
    assert absent_reason(tree) is None


def _places(tree: SourceTree) -> list[int]:
    return [anchor.line for _, find, _, _ in FINDERS if (anchor := find(tree)) is not None]


def _append(tree: SourceTree, relpath: str, text: str) -> None:
    path = tree.path(relpath)
    before = path.read_text("utf-8") if path.exists() else ""
    path.write_text(before + text, "utf-8")
