"""The next generation's mixin, rehearsed before its release: what the tool does on a tree that has it, counted.

Upstream's main after 0.33 has a class with all protocol methods of Qwen2-VL-like towers; a host implements one method.
The tree is made of release 0.33: its own methods of Qwen2-VL move into such a class. `docs/new-generation.md` states
the lines.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from changed_ports import port_of
from init_draft import RUN, tiles_fit

import scaffold
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor, inherited_port
from scaffold.draft.locate import Subject, locate
from scaffold.draft.ported import fitting_mixin
from scaffold.draft.sheet import Sheet
from scaffold.plan.file_plans import Present
from scaffold.protocol import SourceTree, read_protocol
from scaffold.syntax import find_class
from scaffold.watch import Recording
from scaffold.workflow import load_port, numeric_requests, prepare_port, short_request

pytestmark = pytest.mark.trees

PAGE = Path(scaffold.__file__).parent.parent / "docs/new-generation.md"
MODELS = "vllm/model_executor/models"
MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
HOST, MIXIN = f"{MODELS}/qwen2_vl.py", f"{MODELS}/encoder_cudagraph_utils.py"
NAMED = "vllm.model_executor.models.encoder_cudagraph_utils.Qwen2VLEncoderCudaGraphMixin"
OWNER, CONFIG = "Qwen2VLForConditionalGeneration", "get_encoder_cudagraph_config"


@pytest.fixture
def tree(release_tree: Any) -> SourceTree:
    """Release 0.33 with the protocol's methods of Qwen2-VL in a mixin, all but the host's one."""
    release: SourceTree = release_tree("0.33.0")
    lines = release.read(HOST).splitlines(keepends=True)
    owner = find_class(release.parse(HOST), OWNER)
    assert owner is not None
    demanded = {method.name for method in read_protocol(release).methods} - {CONFIG}
    moved = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name in demanded]
    assert len(moved) > 5
    taken = {line for node in moved for line in range(node.lineno - 1, node.end_lineno or 0)}
    bodies = ("".join(lines[node.lineno - 1 : node.end_lineno]) for node in moved)
    imports = [node for node in release.parse(HOST).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    header = [*map(ast.unparse, imports), "\n\nclass Qwen2VLEncoderCudaGraphMixin(SupportsEncoderCudaGraph):\n"]
    # The host's processing info is not the mixin's.
    moved_text = "\n".join(bodies).replace("        assert isinstance(info, Qwen2VLProcessingInfo)\n", "")
    mixin = without_unused("\n".join(header) + moved_text)
    host = "".join(line for number, line in enumerate(lines) if number not in taken)
    above, statement, body = host.partition(f"class {OWNER}(")
    host = above + statement + body.replace("    SupportsEncoderCudaGraph,\n", "    Qwen2VLEncoderCudaGraphMixin,\n", 1)
    imported = "import torch\nfrom .encoder_cudagraph_utils import Qwen2VLEncoderCudaGraphMixin\n"
    host = without_unused(host.replace("import torch\n", imported, 1))
    return release.with_files({HOST: host.encode(), MIXIN: mixin.encode()})


def without_unused(text: str) -> str:
    """A text without the imports that only moved methods needed."""
    words = [sys.executable, "-m", "ruff", "check", "--fix-only", "--isolated", "--quiet", "--select", "F401,I001", "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def lines_of(node: ast.AST) -> int:
    return (node.end_lineno or 0) - node.lineno + 1  # type: ignore[attr-defined]


def test_a_host_of_the_mixin_has_a_port(tree: SourceTree) -> None:
    """Nothing by hand: the protocol is known, the port is seen, and nothing is written in its place unasked."""
    assert read_protocol(tree).generation.name == "v0_30"
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(load_port("qwen2_vl"), tree)
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG520"]
    assert "(1 methods)" in caught.value.diagnostics[0].message


def test_a_subclass_of_a_host_needs_no_port(tree: SourceTree) -> None:
    text = tree.read(HOST) + f"\n\nclass Next({OWNER}):\n    pass\n"
    found = inherited_port(tree.with_files({HOST: text.encode()}), "qwen2_vl:Next")
    assert found is not None
    assert found.code == "VCG485"


@pytest.fixture
def new_host(tree: SourceTree) -> SourceTree:
    """A model whose class inherits the mixin, and has nothing else for graphs."""
    lines = tree.read(HOST).splitlines(keepends=True)
    config = config_of(tree)
    host = "".join([*lines[: config.lineno - 1], *lines[config.end_lineno :]])
    return tree.with_files({HOST: host.encode(), MIXIN: tree.read_bytes(MIXIN)})


def test_init_says_what_is_left_to_a_host(new_host: SourceTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no port yet, and is told of none: `new` needs no --replace."""
    assert inherited_port(new_host, f"qwen2_vl:{OWNER}") is None
    tiles_fit(monkeypatch.setattr)
    draft = draft_descriptor(new_host, f"qwen2_vl:{OWNER}", RUN)
    assert "`new` writes the methods that its base Qwen2VLEncoderCudaGraphMixin leaves to it" in draft.text
    assert "VCG485" not in {note.code for note in draft.notes}


@pytest.mark.parametrize(
    ("model", "inputs", "changes", "fits"),
    [
        (f"qwen2_vl:{OWNER}", ("pixel_values", "pixel_values_videos"), (), True),
        # Inputs of other names, an attribute that the model lacks, and a mixin that leaves two methods.
        (f"qwen2_vl:{OWNER}", ("pixel_values_flat",), (), False),
        ("kimi_vl:KimiVLForConditionalGeneration", ("pixel_values",), (), False),
        (f"qwen2_vl:{OWNER}", ("pixel_values",), ("def encoder_cudagraph_forward(", "def other_forward("), False),
    ],
)
def test_a_mixin_of_the_tree_is_proposed_where_it_fits(
    model: str, inputs: tuple[str, ...], changes: tuple[str, ...], fits: bool, new_host: SourceTree
) -> None:
    bare = bare_host(new_host)
    mixin = new_host.read(MIXIN).replace(*changes, 1) if changes else new_host.read(MIXIN)
    tree = new_host.with_files({HOST: bare.encode(), MIXIN: mixin.encode()})
    found = fitting_mixin(locate(tree, model), inputs)
    assert (found is not None) is fits
    assert found is None or (found[0], found[1].file) == (NAMED, MIXIN)
    assert found is None or f"all methods but {CONFIG}" in found[2]


def bare_host(tree: SourceTree) -> str:
    """The model's file without the mixin among the bases."""
    return tree.read(HOST).replace("    Qwen2VLEncoderCudaGraphMixin,\n", "", 1)


def test_a_draft_names_it_and_new_adds_it(new_host: SourceTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing by hand: the port is the one of a class that has the base."""
    bare = new_host.with_files({HOST: bare_host(new_host).encode(), MIXIN: new_host.read_bytes(MIXIN)})

    def fits(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
        sheet.put("modalities.image.pixels", "pixel_values")
        sheet.put("output.hidden_size", "self.visual.out_hidden_size")
        return True

    for layout in ("packed", "tiles"):  # the mixin is one for rows of all items behind each other
        monkeypatch.setattr("scaffold.draft.drafting._LAYOUTS", ((layout, "", fits),))
        text = draft_descriptor(bare, f"qwen2_vl:{OWNER}", RUN).text
        assert (f"  mixin: {NAMED}\n" in text) is (layout == "packed")

    prepared = prepare_port(port_of("qwen2_vl", {"model.mixin": NAMED}), bare)

    assert prepared.plan.methods.source == prepare_port(load_port("qwen2_vl"), new_host).plan.methods.source
    text = next(change.after for change in prepared.package if change.path == HOST).decode()
    assert "    Qwen2VLEncoderCudaGraphMixin,\n):\n" in text
    assert "\nfrom .encoder_cudagraph_utils import Qwen2VLEncoderCudaGraphMixin\n" in text


def test_a_tree_without_it_refuses_the_descriptor(tree: SourceTree, release_tree: Any) -> None:
    """And a class that lists the protocol gets no base that has it: Python could not order the two."""
    port, release = port_of("qwen2_vl", {"model.mixin": NAMED}), release_tree("0.33.0")
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port, release, replace=True)
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG420"]

    listed = prepare_port(port, release.with_files({MIXIN: tree.read_bytes(MIXIN)}), replace=True)

    assert listed.plan.methods.source == prepare_port(load_port("qwen2_vl"), release, replace=True).plan.methods.source
    assert "Mixin" not in next(change.after for change in listed.package if change.path == HOST).decode()


def test_a_subclass_of_such_a_host_has_no_port_to_inherit(new_host: SourceTree) -> None:
    text = new_host.read(HOST) + f"\n\nclass Next({OWNER}):\n    pass\n"
    assert inherited_port(new_host.with_files({HOST: text.encode()}), "qwen2_vl:Next") is None


def test_a_host_gets_the_method_that_the_mixin_leaves(new_host: SourceTree) -> None:
    prepared = prepare_port(load_port("qwen2_vl"), new_host)

    assert prepared.plan.methods.names == {CONFIG, "_pad_cu_seqlens"}  # with what it names
    [change] = (change for change in prepared.package if change.path == HOST)
    before, after = (text.decode().splitlines() for text in (change.before, change.after))
    assert [line for line in difflib.ndiff(before, after) if line[:1] == "-"] == []


@pytest.mark.lab
def test_it_has_the_same_proof(new_host: SourceTree) -> None:
    """With the base that `new` adds."""
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    from scaffold.verify.numeric import check_numerics

    bare = new_host.with_files({HOST: bare_host(new_host).encode(), MIXIN: new_host.read_bytes(MIXIN)})
    prepared = prepare_port(port_of("qwen2_vl", {"model.mixin": NAMED}), bare)
    request = short_request(prepared, bare)
    before = {path: bare.read_bytes(path) for path in (HOST, MIXIN)}
    report = check_numerics(dataclasses.replace(request, before=before, overlay=before | dict(request.overlay)))
    assert report.passed, "\n".join(report.lines())
    assert report.hits > 10


def config_of(tree: SourceTree) -> ast.FunctionDef:
    owner = find_class(tree.parse(HOST), OWNER)
    assert owner is not None
    [method] = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == CONFIG]
    return method


def test_the_lines_are_those_of_the_page(tree: SourceTree, release_tree: Any) -> None:
    """A port has all methods, unless its class inherits the mixin: then it has the one that hosts have."""
    mixin = find_class(tree.parse(MIXIN), "Qwen2VLEncoderCudaGraphMixin")
    assert mixin is not None
    port = load_port("qwen2_vl")

    whole, one = (prepare_port(port, target, replace=True) for target in (release_tree("0.33.0"), tree))

    assert [change.path for change in one.package] == [HOST, MANAGER]  # the mixin stays for other hosts
    counted = {
        "the mixin, once": lines_of(mixin),
        "a host of the mixin, by hand": lines_of(config_of(tree)),
        "a port without the mixin": len(whole.plan.methods.source.strip().splitlines()),
        "a port beside the mixin": len(one.plan.methods.source.strip().splitlines()),
    }
    assert counted["a port beside the mixin"] <= 25
    page = PAGE.read_text(encoding="utf-8")
    assert [what for what, lines in counted.items() if f"| {what} | {lines} |" not in page] == [], counted


# --- another shape of the port ----------------------------------------------------------------------------------------

#: Texts of our port and what a person makes of them, for the design of upstream's first port after 0.33.
BY_HAND = {
    "budgets in patches": {
        "        max_budget = min(\n": """        patches = self.visual.spatial_merge_size**2
        max_budget = patches * min(
""",
        "return min(64, max_budget)": "return min(64 * patches, max_budget)",
        "output_tokens=t * (h // m) * (w // m),\n": """output_tokens=t * (h // m) * (w // m),
                path_output_tokens={"default": t * h * w},
""",
        "        # Capture images one token high": """        token_budget //= m**2
        # Capture images one token high""",
    },
    "the modality as a capture axis": {
        "            padding_logics=": """            capture_axes=(("image", "video"),),
            padding_logics=""",
        "        return {\n            # A rank": """        modality = self.get_input_modality(mm_kwargs)
        return {
            "encoder_cudagraph_axis_keys": (modality,),
            # A rank""",
        "        num_seqs = max(": """        if axis_keys == ("image",):
            max_frames = 0
        num_seqs = max(""",
    },
}


@pytest.fixture
def ported(release_tree: Any) -> Any:
    """Our port of Qwen2-VL in release 0.33."""
    return prepare_port(load_port("qwen2_vl"), release_tree("0.33.0"), replace=True)


def shaped(ported: Any, shapes: Mapping[str, Mapping[str, str]]) -> str:
    """The model's file with the edits of some shapes."""
    text: str = next(change.after for change in ported.package if change.path == HOST).decode()
    for old, new in (pair for edits in shapes.values() for pair in edits.items()):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("shape", BY_HAND)
def test_what_a_person_adds_is_the_page_s(shape: str, ported: Any) -> None:
    before, after = (shaped(ported, shapes).splitlines() for shapes in ({}, {shape: BY_HAND[shape]}))
    lines = sum(line[:2] == "+ " for line in difflib.ndiff(before, after))
    assert f"| {shape} | {lines} |" in PAGE.read_text(encoding="utf-8"), lines


def test_a_port_of_that_shape_is_ours_edited(ported: Any, release_tree: Any) -> None:
    """`new` says so, writes nothing unasked, and leaves nothing of the shape where it is asked."""
    tree = release_tree("0.33.0").with_files({HOST: shaped(ported, BY_HAND).encode()})
    assert prepare_port(load_port("qwen2_vl"), tree).plan.present is Present.CHANGED
    again = prepare_port(load_port("qwen2_vl"), tree, replace=True)
    assert next(change.after for change in again.package if change.path == HOST).decode() == shaped(ported, {})


@pytest.mark.lab
@pytest.mark.parametrize(("axis", "passes"), [("(modality,)", True), ('("image",)', False)])
def test_verify_proves_both_together(axis: str, passes: bool, ported: Any, release_tree: Any) -> None:
    """And not where videos go to the graphs of images, which have no room for their frames."""
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    from scaffold.verify.numeric import check_numerics

    text = shaped(ported, BY_HAND).replace("(modality,)", axis)
    tree = release_tree("0.33.0")
    request = numeric_requests(load_port("qwen2_vl"), tree)[0] if passes else short_request(ported, tree)
    report = check_numerics(dataclasses.replace(request, overlay=dict(request.overlay) | {HOST: text.encode()}))
    assert report.passed is passes, "\n".join(report.lines())
    assert report.hits > (150 if passes else 0)
