"""The edits of vLLM's manager: too many frames run eagerly, and precomputed embeddings are left to the runner."""

from __future__ import annotations

import ast
import difflib
from typing import Any

import pytest
from changed_ports import port_of

from scaffold.edit import apply_edits
from scaffold.plan import Plan, plan_changes
from scaffold.plan.manager import EMBEDS, FRAMES, MANAGER_TESTS, checks_in, plan_manager
from scaffold.protocol import SourceTree, read_protocol
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
RUNNER = "vllm/v1/worker/gpu/mm/encoder_runner.py"
COPY = "        # Copy replay values into the buffers recorded for this path.\n"
BOTH = (FRAMES, EMBEDS)


def plan(tree: SourceTree, model: str) -> Plan:
    return plan_changes(port_of(model), tree, read_protocol(tree), replace=True)


def text_after(planned: Plan, tree: SourceTree, path: str) -> str:
    [file] = [file for file in planned.files if file.path == path]
    return apply_edits(tree.read(path), file.edits, path=path).text


def lines_between(old: str, new: str, mark: str) -> list[str]:
    """The lines that only one of two texts has, without indentation."""
    found = difflib.ndiff(old.splitlines(), new.splitlines())
    return [line[2:].strip() for line in found if line.startswith(f"{mark} ")]


@pytest.mark.parametrize("release", ["0.31.0", "0.33.0"])
def test_a_port_of_videos_brings_both_checks(release_tree: Any, release: str) -> None:
    tree = release_tree(release)
    planned = plan(tree, "qwen2_vl")

    old, new = tree.read(MANAGER), text_after(planned, tree, MANAGER)
    assert lines_between(old, new, "-") == [") -> list[torch.Tensor]:", "List of encoder outputs (one per item)."]
    assert lines_between(old, new, "+") == [
        "# A batch may have more frames than the graph was captured for.",
        "for key, buf in graph_meta.input_buffers.items():",
        "src = replay.values.get(key)",
        "if src is not None and src.ndim > 0 and src.shape[0] > buf.shape[0]:",
        "logger.warning_once(",
        '"A batch has more frames than its encoder CUDA graph, and runs "',
        '"eagerly: see encoder_cudagraph_max_frames_per_batch."',
        ")",
        "self.graph_misses += num_items",
        "with torch.inference_mode():",
        "return self.model.encoder_eager_forward(mm_kwargs, path)",
        "",
        ") -> list[torch.Tensor] | None:",
        "List of encoder outputs (one per item), or None if they are precomputed.",
        "# Precomputed embeddings need no encoder: the runner calls `embed_multimodal`.",
        'if any(f"{name}_embeds" in mm_kwargs for name in self.config.modalities):',
        "return None",
        "",
    ]
    ast.parse(new)
    tested = text_after(planned, tree, MANAGER_TESTS)
    added = lines_between(tree.read(MANAGER_TESTS), tested, "+")
    assert sum(line.startswith("def test_") for line in added) == 2
    assert added.count("assert img_result is not None") == 1
    assert "frame_tokens" not in planned.methods.source
    assert "_embeds" not in planned.methods.source


def test_a_second_port_leaves_the_manager_alone(release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    first = plan(tree, "qwen2_vl")
    edited = tree.with_files({MANAGER: text_after(first, tree, MANAGER).encode()})

    assert plan_manager(edited, read_protocol(edited), BOTH) == ([], frozenset(BOTH))
    second = plan(edited, "qwen3_vl")
    assert {MANAGER, MANAGER_TESTS}.isdisjoint(file.path for file in second.files)
    assert "frame_tokens" not in second.methods.source
    assert "_embeds" not in second.methods.source.replace("pos_embeds", "")


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("def _run_budget_graph(", "def _run_graph(", EMBEDS),
        ("in graph_meta.input_buffers.items():", "in sorted(graph_meta.input_buffers.items()):", EMBEDS),
        (COPY, "        replay = self.pad(replay)\n", EMBEDS),
        ("        if self.use_dp:\n            per_item", "        if self.shards:\n            per_item", FRAMES),
        ("outputs (one per item).", "outputs.", FRAMES),
    ],
)
def test_a_port_declares_what_its_manager_does_not_see_to(release_tree: Any, old: str, new: str, left: Any) -> None:
    tree = release_tree("0.33.0")
    other = tree.with_files({MANAGER: tree.read(MANAGER).replace(old, new).encode()})

    assert plan_manager(other, read_protocol(tree), BOTH)[1] == {left}
    made = plan(other, "qwen2_vl").methods.source
    assert ("frame_tokens" in made, "image_embeds" in made) == (left is EMBEDS, left is FRAMES)


def test_embeddings_are_not_left_to_a_runner_that_takes_no_none(release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    text = tree.read(RUNNER).replace("cudagraph_output is not None", "cg_manager is not None")
    other = tree.with_files({RUNNER: text.encode()})

    assert plan_manager(other, read_protocol(tree), BOTH)[1] == {FRAMES}


@pytest.mark.parametrize(("release", "model"), [("0.30.0", "qwen2_vl"), ("0.33.0", "step3_vl"), ("0.33.0", "kimi_vl")])
def test_other_ports_leave_the_manager_alone(release_tree: Any, release: str, model: str) -> None:
    """Before 0.31 spare sequences cover the rows behind a batch, which more frames would take."""
    assert MANAGER not in [file.path for file in plan(release_tree(release), model).files]


@pytest.mark.parametrize("taken", [True, False])
def test_embeddings_that_no_processor_takes_ask_for_no_check(release_tree: Any, taken: bool) -> None:
    """Mistral 3's own processor refuses them. That of LightOnOCR, which inherits the port, takes them."""
    tree, heir = release_tree("0.33.0"), "vllm/model_executor/models/lightonocr.py"
    kinds = "(ImageEmbeddingItems, ImageProcessorItems)" if taken else "ImageProcessorItems"
    text = tree.read(heir).replace("(ImageEmbeddingItems, ImageProcessorItems)", kinds)
    planned = plan(tree.with_files({heir: text.encode()}), "mistral3")

    assert (MANAGER in [file.path for file in planned.files]) == taken
    assert "image_embeds" not in planned.methods.source


def test_a_wheel_has_no_tests_to_add_one_to(release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    bare = tree.with_files({MANAGER_TESTS: b"x = 1\n"})

    assert [file.path for file in plan_manager(bare, read_protocol(bare), BOTH)[0]] == [MANAGER]


def test_a_tree_without_the_file_of_tests_gets_none(copied_tree: Any) -> None:
    tree = copied_tree("0.33.0", "vllm/model_executor/models/interfaces.py", MANAGER, f"{MANAGER[:-3]}_defs.py")

    files, brought = plan_manager(tree, read_protocol(tree), BOTH)

    assert ([file.path for file in files], brought) == ([MANAGER], frozenset(BOTH))


@pytest.mark.parametrize(("model", "brings"), [("qwen2_vl", [FRAMES, EMBEDS]), ("internvl", [EMBEDS]), ("kimi_vl", [])])
def test_the_edits_say_which_checks_they_bring(release_tree: Any, model: str, brings: Any) -> None:
    assert checks_in(plan(release_tree("0.33.0"), model).files) == brings


def test_the_shared_part_is_the_checks_and_the_comparison(release_tree: Any) -> None:
    tree, port = release_tree("0.33.0"), load_port("llava_next")
    whole, shared = (prepare_port(port, tree, shared=only) for only in (False, True))

    assert (whole.plan.only_shared, shared.plan.only_shared) == (False, True)
    paths = [change.path for change in shared.changed]
    assert paths[:2] == [MANAGER, MANAGER_TESTS]
    assert set(paths) < {change.path for change in whole.changed}
    assert "vllm/model_executor/models/llava_next.py" not in paths
    assert shared.notes == ()
