"""InternVL and Step3-VL on releases: what `new` plans is proven, is complete, and is nothing the second time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

import pytest

from scaffold.descriptor.load import shipped_names
from scaffold.diagnostics import DiagnosticError, Exit, Severity
from scaffold.plan import Present
from scaffold.plan.manager import MANAGER_TESTS
from scaffold.protocol import SourceTree
from scaffold.verify.style import check_style, is_formatted
from scaffold.workflow import PreparedPort, find_drift, load_port, prepare_port

MODEL = "vllm/model_executor/models/internvl.py"
STEP3 = "vllm/model_executor/models/step3_vl.py"
TEST = "tests/models/multimodal/generation/test_vit_cudagraph.py"
DOCS = "docs/design/cuda_graphs_multimodal.md"
EXAMPLE = "examples/generate/multimodal/vision_language_offline.py"
MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
#: The towers, and Step3-VL's heirs, which hand `use_data_parallel` on.
TOWER = "vllm/model_executor/models/intern_vit.py"
HEIRS = {f"vllm/model_executor/models/{name}.py" for name in ("step_vl", "step3p7")}
#: Files that change. A release that has an implementation lists the model in the other places already. The ends of each
#: generation, and what lies between them with VITCG_SLOW=1.
RELEASES = {
    ("internvl", "0.22.0"): {MODEL, TOWER, TEST, DOCS, EXAMPLE},
    **{("internvl", f"0.{minor}.0"): {MODEL, TOWER} for minor in range(23, 31)},
    **{("internvl", f"0.{minor}.0"): {MODEL, TOWER, MANAGER, MANAGER_TESTS} for minor in range(31, 34)},
    ("step3_vl", "0.20.0"): {
        STEP3, "vllm/model_executor/models/step_vl.py", TEST, DOCS, "examples/offline_inference/vision_language.py",
    },
    ("step3_vl", "0.21.0"): {STEP3, "vllm/model_executor/models/step_vl.py", TEST, DOCS, EXAMPLE},
    ("step3_vl", "0.22.0"): {STEP3, "vllm/model_executor/models/step_vl.py"},
    **{("step3_vl", f"0.{minor}.0"): {STEP3, *HEIRS} for minor in (23, 24, 26, 27, 30, 33)},
}  # fmt: skip

pytestmark = pytest.mark.trees


def write_over(tree: SourceTree, port: PreparedPort) -> SourceTree:
    """The release with the port's files."""
    return tree.with_files({change.path: change.after or b"" for change in port.changed})


BETWEEN = {
    *(("internvl", f"0.{minor}.0") for minor in (25, 28, 31, 32)),
    # InternVL is ported into the same generations, and has tiles, too.
    *(("step3_vl", f"0.{minor}.0") for minor in (22, 23, 24, 27, 30)),
}


@pytest.mark.parametrize(
    ("model", "release"),
    [pytest.param(*key, marks=pytest.mark.slow if key in BETWEEN else ()) for key in RELEASES],
)
def test_port_changes_what_it_should_and_nothing_twice(release_tree, model, release):
    tree, port, files = release_tree(release), load_port(model), RELEASES[model, release]

    prepared = prepare_port(port, tree, replace=TEST not in files)

    assert {change.path for change in prepared.changed} == files
    ported = write_over(tree, prepared)
    # Without `replace`: our own methods are recognised, by their meaning and not by a mark.
    assert prepare_port(port, ported).changed == ()
    assert prepare_port(port, ported, replace=True).changed == ()


#: Ends of the generations.
ENDS = ("0.20.0", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.26.0", "0.27.0", "0.29.0", "0.30.0", "0.33.0")
#: Files that the formatter opens up where the edit did not touch them, and a port in many places.
USUAL = {("deepseek_ocr", "0.33.0"), ("deepseek_vl2", "0.33.0"), ("kimi_vl", "0.24.0"), ("qwen2_5_vl", "0.22.0")}


@pytest.mark.parametrize(
    ("model", "release"),
    [
        pytest.param(model, release, marks=() if (model, release) in USUAL else pytest.mark.slow)
        for model in shipped_names()
        for release in ENDS
    ],
)
def test_what_was_formatted_stays_formatted(release_tree, model, release):
    """`ruff format --check` and `ruff check` of every changed file, with and without `--replace`."""
    tree, looked = release_tree(release), 0
    for replace in (False, True):
        try:
            changed = prepare_port(load_port(model), tree, replace=replace).changed
        except DiagnosticError as refused:
            if refused.exit in (Exit.TARGET, Exit.CONFLICT):
                continue
            raise
        for change in (change for change in changed if change.path.endswith(".py")):
            before, after = (None if text is None else text.decode() for text in (change.before, change.after))
            if before is None or is_formatted(before, change.path, tree.root):
                assert is_formatted(after, change.path, tree.root), change.path
            found = check_style(before, after, change.path, tree.root)
            assert not [diagnostic for diagnostic in found if diagnostic.severity is Severity.ERROR]
            looked += 1
    assert looked or (model, release) not in USUAL


def test_constants_come_from_the_tree(release_tree):
    prepared = prepare_port(load_port("step3_vl"), release_tree("0.21.0"))

    (model,) = (change for change in prepared.changed if change.path == STEP3)
    before, after = ((text or b"").decode() for text in (model.before, model.after))
    assert after.count("504") == before.count("504") + 1
    assert "# `patch_size` of the image processor.\n    _encoder_cudagraph_tile_side: int = 504\n" in after


def test_port_of_the_pristine_release_only_adds(release_tree):
    port = prepare_port(load_port("internvl"), release_tree("0.22.0"))

    removed = {path: [line for line in lines if line.startswith("-")] for path, lines in _differences(port).items()}
    # Lines of the model file grow: the import from typing, the header of the class, and two that hand on the parameter
    # of the tower, whose signature grows, too.
    grown = {MODEL: 4, TOWER: 1, TEST: 0, DOCS: 0, EXAMPLE: 0}
    assert {path: len(lines) for path, lines in removed.items()} == grown
    added = [line for line in _differences(port)[MODEL] if line.startswith("+")]
    # Upstream's hand-written port added 166 lines to this file.
    assert len(added) <= 166


def test_hand_written_implementation_is_not_touched_unasked(release_tree):
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(load_port("internvl"), release_tree("0.30.0"))

    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "VCG520"
    assert caught.value.exit is Exit.CONFLICT
    assert diagnostic.span is not None
    assert diagnostic.span.file.endswith(MODEL)
    assert "--replace" in (diagnostic.help or "")


def test_a_port_of_ours_is_known_in_another_state(release_tree):
    """After an edit of code or of a comment. A port by hand is none."""
    tree, port = release_tree("0.22.0"), load_port("internvl")
    generated, *others = prepare_port(port, tree).package

    def state(edit: Callable[[bytes], bytes]) -> PreparedPort:
        files = {one.path: one.after or b"" for one in others} | {generated.path: edit(generated.after or b"")}
        return prepare_port(port, tree.with_files(files))

    same = state(lambda text: text)
    comment = state(lambda text: text.replace(b"# Round down to whole tiles", b"# Round to whole tiles"))
    code = state(lambda text: text.replace(b'modalities=["image", "video"]', b'modalities=["image"]'))
    found = [one.plan.present for one in (same, comment, code)]
    assert found == [Present.GENERATED, Present.CHANGED, Present.CHANGED]
    assert find_drift(same, tree) is None
    for one in (comment, code):
        assert one.changed[0].after == generated.after
    drift = find_drift(code, tree)
    assert drift is not None
    assert drift.notes == ('the tree has `modalities=["image"],`', 'generated is `modalities=["image", "video"],`')
    by_hand = prepare_port(port, release_tree("0.33.0"), replace=True)
    assert by_hand.plan.present is Present.FOREIGN
    assert find_drift(by_hand, tree) is None


def test_replacing_removes_the_helpers_that_only_the_old_methods_used(release_tree):
    port = prepare_port(load_port("internvl"), release_tree("0.33.0"), replace=True)

    after = port.changed[0].after or b""
    assert b"_get_internvl_patches_list" not in after
    assert after.count(b"# -- SupportsEncoderCudaGraph protocol methods --") == 1


@pytest.mark.parametrize(("model", "release"), [("internvl", "0.33.0"), ("glm4_1v", "0.23.0")])
def test_a_port_of_images_and_videos_names_the_modality_of_a_batch(release_tree, model, release):
    """The protocol's own answer is `image`, also where the model's class had no other one (GLM-4.1V in 0.23)."""
    port = prepare_port(load_port(model), release_tree(release), replace=True)
    after = next(change.after or b"" for change in port.changed if change.path.endswith(f"{model}.py"))
    assert after.count(b"def get_input_modality(") == 1
    assert after.count(b'if self.get_input_modality(mm_kwargs) == "video":') == 1


def _differences(port: PreparedPort) -> Mapping[str, list[str]]:
    return {
        change.path: [
            line
            for line in difflib.unified_diff(
                (change.before or b"").decode().splitlines(), (change.after or b"").decode().splitlines(), n=0
            )
            if not line.startswith(("---", "+++"))
        ]
        for change in port.changed
    }
