"""The edit of vLLM's manager: a batch that a graph cannot hold runs eagerly."""

from __future__ import annotations

import ast

import pytest
from changed_ports import port_of

from scaffold.edit import apply_edits
from scaffold.edit.operations import ReplaceMethod
from scaffold.plan import Plan, plan_changes
from scaffold.plan.manager import MANAGER_TESTS, plan_manager
from scaffold.protocol import SourceTree, read_protocol

pytestmark = pytest.mark.trees

MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
COPY = "        # Copy replay values into the buffers recorded for this path.\n"


def plan(tree: SourceTree, model: str) -> Plan:
    return plan_changes(port_of(model), tree, read_protocol(tree), replace=True)


def text_after(planned: Plan, tree: SourceTree, path: str) -> str:
    [file] = [file for file in planned.files if file.path == path]
    return apply_edits(tree.read(path), file.edits, path=path).text


@pytest.mark.parametrize("release", ["0.31.0", "0.33.0"])
def test_a_port_of_videos_lets_the_manager_bound_frames(release_tree, release):
    """The check stands between what the model prepares and the copies, and nothing else of the method changes."""
    tree = release_tree(release)
    planned = plan(tree, "qwen2_vl")

    old, new = tree.read(MANAGER), text_after(planned, tree, MANAGER)
    added = new[: len(new) - len(old) + old.index(COPY)].removeprefix(old[: old.index(COPY)])
    assert new == old.replace(COPY, added + COPY)
    assert ast.unparse(ast.parse("if 1:\n" + added).body[0].body[0]) == (  # type: ignore[attr-defined]
        "for key, buf in graph_meta.input_buffers.items():\n"
        "    src = replay.values.get(key)\n"
        "    if src is not None and src.ndim > 0 and (src.shape[0] > buf.shape[0]):\n"
        "        self.graph_misses += num_items\n"
        "        with torch.inference_mode():\n"
        "            return self.model.encoder_eager_forward(mm_kwargs, path)"
    )
    assert "test_video_eager_fallback_when_a_buffer_is_too_small" in text_after(planned, tree, MANAGER_TESTS)
    assert "frame_tokens" not in planned.methods.source


def test_a_second_port_leaves_the_manager_alone(release_tree):
    tree = release_tree("0.33.0")
    first = plan(tree, "qwen2_vl")
    edited = tree.with_files({MANAGER: text_after(first, tree, MANAGER).encode()})

    assert plan_manager(edited, read_protocol(edited)) == ()
    second = plan(edited, "qwen3_vl")
    assert MANAGER not in [file.path for file in second.files]
    assert "frame_tokens" not in second.methods.source


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def _run_budget_graph(", "def _run_graph("),
        ("in graph_meta.input_buffers.items():", "in sorted(graph_meta.input_buffers.items()):"),
        (COPY, "        replay = self.pad(replay)\n"),
    ],
)
def test_frames_claim_tokens_where_the_manager_has_another_form(release_tree, old, new):
    tree = release_tree("0.33.0")
    other = tree.with_files({MANAGER: tree.read(MANAGER).replace(old, new).encode()})

    assert plan_manager(other, read_protocol(tree)) is None
    planned = plan(other, "qwen2_vl")
    assert MANAGER not in [file.path for file in planned.files]
    assert "frame_tokens" in planned.methods.source


@pytest.mark.parametrize(
    ("release", "model"), [("0.30.0", "qwen2_vl"), ("0.33.0", "llava_next"), ("0.33.0", "kimi_vl")]
)
def test_other_ports_leave_the_manager_alone(release_tree, release, model):
    """Before 0.31 spare sequences cover the rows behind a batch, which more frames would take."""
    tree = release_tree(release)

    assert not any(isinstance(edit, ReplaceMethod) and edit.class_name == "EncoderCudaGraphManager"
                   for file in plan(tree, model).files for edit in file.edits)  # fmt: skip


def test_a_wheel_has_no_tests_to_add_one_to(release_tree):
    tree = release_tree("0.33.0")
    bare = tree.with_files({MANAGER_TESTS: b"x = 1\n"})

    assert [file.path for file in plan_manager(bare, read_protocol(tree)) or ()] == [MANAGER]
