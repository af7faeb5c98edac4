"""What runs on the valid rows after a replay, and packed models without precomputed embeddings, in every dialect."""

from __future__ import annotations

import ast

import pytest
from changed_ports import document_of, port_of

from scaffold.descriptor import AnyPort, CutPort
from scaffold.plan import plan_changes
from scaffold.plan.methods import refusal, render_methods
from scaffold.plan.views import TreeFacts
from scaffold.protocol import GENERATIONS, read_protocol
from scaffold.protocol.profile import known_profile
from scaffold.workflow import load_port

PROFILES = {generation.name: known_profile(generation) for generation in GENERATIONS}
SPOKEN = [name for name in PROFILES if name != "v0_20"]
FINISH = "self._finish_encoder_output("


def methods(spec: AnyPort, generation: str) -> dict[str, str]:
    """Source of each method."""
    block = ast.parse(render_methods(spec, PROFILES[generation], TreeFacts()).source)
    return {node.name: ast.unparse(node) for node in block.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("generation", SPOKEN)
def test_the_call_runs_once_whatever_way_a_batch_takes(generation: str) -> None:
    """The manager hands eager results to the hook from 0.27 on, and takes them as they are before."""
    made = methods(load_port("ernie45_vl"), generation)

    assert "self.resampler_model(output[:num_patches], torch.tensor(grid_thw))" in made["_finish_encoder_output"]
    assert made["postprocess_encoder_output"].count(FINISH) == 1
    through_hook = PROFILES[generation].dialect.postprocess.value == "always"
    assert (FINISH in made["encoder_eager_forward"]) is not through_hook
    assert through_hook is (generation in ("v0_27", "v0_30"))
    replay = made["prepare_encoder_cudagraph_replay_buffers"]
    assert "replay_is_dropped" not in replay, "no batch of one sequence an item is too large for a graph"


@pytest.mark.parametrize("generation", SPOKEN)
def test_what_no_graph_serves_is_finished_once(generation: str) -> None:
    """Frames are sequences and embeddings may be precomputed: both replace the output of the graph, before 0.27."""
    spec = port_of("qwen2_vl", {"post": document_of("ernie45_vl")["post"]})
    made = methods(spec, generation)

    assert made["_finish_encoder_output"].index("in mm_kwargs") < made["_finish_encoder_output"].index("return output")
    if PROFILES[generation].dialect.zero_path_tokens:
        assert "replay_is_dropped" not in "".join(made.values())
        return
    assert "if 'replay_is_dropped' in batch_mm_kwargs:" in made["postprocess_encoder_output"]
    assert "mm_kwargs['replay_is_dropped'] = True" in made["prepare_encoder_cudagraph_replay_buffers"]
    assert "else:\n        output = self._finish_encoder_output(" in made["postprocess_encoder_output"]


@pytest.mark.parametrize("generation", PROFILES)
def test_models_without_ready_embeddings_ask_for_none(generation: str) -> None:
    made = methods(port_of("qwen2_vl", {"modalities.image.embeds": None, "modalities.video.embeds": None}), generation)

    assert "-> tuple[str, str]:" in made["_get_encoder_cudagraph_keys"]
    assert "embed" not in made["select_encoder_cudagraph_items"].replace("select_encoder", "")
    assert "embed_multimodal" not in made["encoder_eager_forward"]


@pytest.mark.parametrize("generation", PROFILES)
def test_one_modality_may_take_ready_embeddings_alone(generation: str) -> None:
    made = methods(port_of("qwen2_vl", {"modalities.video.embeds": None}), generation)

    keys = made["_get_encoder_cudagraph_keys"]
    assert "-> tuple[str, str | None, str]:" in keys
    assert "('pixel_values_videos', None, 'video_grid_thw')" in keys


def test_old_protocols_have_no_place_for_it() -> None:
    assert refusal(load_port("ernie45_vl"), PROFILES["v0_20"].dialect)
    assert refusal(load_port("ernie45_vl"), PROFILES["v0_22"].dialect) is None


@pytest.mark.trees
def test_an_import_of_the_replaced_methods_goes_with_them(release_tree) -> None:
    """0.33's own port scatters by itself; `prepare_port` proves that the target's linter accepts the result."""
    from scaffold.edit.operations import DropImport

    def dropped(model: str, release: str) -> list[DropImport]:
        tree = release_tree(release)
        plan = plan_changes(load_port(model), tree, read_protocol(tree), replace=True)
        return [edit for file in plan.files for edit in file.edits if isinstance(edit, DropImport)]

    assert dropped("ernie45_vl", "0.33.0") == [DropImport(".utils", "scatter_output_slices")]
    assert dropped("ernie45_vl", "0.26.0") == []
    assert dropped("qwen2_vl", "0.33.0") == []


@pytest.mark.parametrize("generation", PROFILES)
@pytest.mark.parametrize("unit", ["frame", "item"])
@pytest.mark.parametrize("embeds", [True, False])
def test_a_replay_is_dropped_only_where_the_manager_cannot_be_told(generation: str, unit: str, embeds: bool) -> None:
    """Frames of several items, and precomputed embeddings under data parallelism: before 0.27."""
    without = {} if embeds else {"modalities.image.embeds": None, "modalities.video.embeds": None}
    spec = port_of("qwen2_vl", {"attention.full.unit": unit, **without})
    dialect = PROFILES[generation].dialect
    made = methods(spec, generation)

    told = dialect.zero_path_tokens
    drops = dialect.postprocess.value != "none" and not told and (unit == "frame" or embeds)
    dropping = ("prepare_encoder_cudagraph_replay_buffers", "postprocess_encoder_output")
    assert ["replay_is_dropped" in made.get(name, "") for name in dropping] == [drops, drops]
    declared = made.get("get_encoder_cudagraph_item_specs", "")
    assert ("above" in declared) is (dialect.item_specs and embeds and not (told and unit == "frame"))
    assert ("max(tokens, t * frame_tokens)" in declared) is (told and unit == "frame")


@pytest.mark.parametrize(
    ("changes", "declared"),
    [
        ({}, "above if has_embeds or t > 1 else {}"),
        ({"modalities.image.embeds": None}, "above if t > 1 else {}"),
    ],
)
def test_images_have_one_frame_in_a_graph(changes: dict[str, None], declared: str) -> None:
    """No number of frames is known of a batch without videos."""
    assert declared in methods(port_of("cohere_compass", changes), "v0_30")["get_encoder_cudagraph_item_specs"]


@pytest.mark.parametrize("embeds", [True, False])
def test_a_port_of_videos_alone_claims_frames_always(embeds: bool) -> None:
    changes = {"modalities.image": None, "integration": None, **({} if embeds else {"modalities.video.embeds": None})}
    made = methods(port_of("qwen2_vl", changes), "v0_30")["get_encoder_cudagraph_item_specs"]
    claim = "path_tokens = max(tokens, t * frame_tokens)"
    assert (f"else:\n            {claim}" in made) is embeds
    assert claim in made


@pytest.mark.parametrize(
    ("result", "taken", "given"),
    [
        ((), "features", None),
        (("_", "features"), "features[1]", "(None, features)"),
        ("last_hidden_state", "features.last_hidden_state", "SimpleNamespace(last_hidden_state=features)"),
    ],
)
def test_an_encoder_gets_back_the_form_of_its_result(
    result: tuple[str, ...] | str, taken: str, given: str | None
) -> None:
    port = load_port("llava")
    assert isinstance(port, CutPort)
    made = methods(port.replace(forward=port.forward.replace(result=result)), "v0_30")

    call = ast.unparse(ast.parse(port.forward.call.text.replace("pixels)", "inputs['pixel_values'])")))
    assert taken.replace("features", call, 1) in made["_encode_units"]
    assert made["_embed_encoder_inputs"].count("def ") == (1 if given is None else 2)
    assert given is None or f"return {given}" in made["_embed_encoder_inputs"]
