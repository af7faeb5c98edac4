"""Recordings of real models of vLLM 0.33: what happened, as facts. Nothing here asks what a fact means."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scaffold.cli.app import main
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.verify.numeric import record_run
from scaffold.watch import Batch, Call, Leaf, Recording, show_recording
from scaffold.workflow import recording_request

pytest.importorskip("torch", reason="needs the `cpu` extra")
pytestmark = [pytest.mark.trees, pytest.mark.lab]

RELEASE = "0.33.0"
LLAVA = "LlavaNextForConditionalGeneration"
QWEN = "Qwen2_5_VLForConditionalGeneration"
KIMI = "KimiVLForConditionalGeneration"
Record = Callable[[str], Recording]


def call(batch: Batch, part: str) -> Call:
    [found] = [one for one in batch.calls if one.part == part]
    return found


def argument(batch: Batch, part: str, name: str) -> Leaf:
    [found] = [leaf for leaf in call(batch, part).arguments if leaf.at == name]
    return found


def given(batch: Batch, name: str) -> Leaf:
    [found] = [leaf for leaf in batch.inputs if leaf.at == name]
    return found


def origin(leaf: Leaf) -> dict[str, str]:
    return {source.of: source.how for source in leaf.sources if not source.of.startswith("#")}


def test_units_are_the_pixels_of_all_images_in_one_tensor(record: Record) -> None:
    """LLaVA-NeXT: images of different numbers of tiles come in a list, which the model concatenates."""
    for batch in record(LLAVA).of("image"):
        tiles = [leaf for leaf in batch.inputs if leaf.at.startswith("pixel_values[")]
        units = argument(batch, "vision_tower", "pixel_values")
        assert len(tiles) == len(batch.items) == len(batch.results)
        assert units.shape == (sum(leaf.shape[0] for leaf in tiles), *tiles[0].shape[1:])
        assert origin(units) == {"pixel_values": "concatenation"}
        # The first layer gets something that the encoder made.
        assert origin(argument(batch, "vision_tower.vision_model.encoder.layers.0", "hidden_states")) == {}


def test_what_stands_for_an_item_in_a_prompt(record: Record) -> None:
    assert (record(LLAVA).placeholders, record(QWEN).placeholders["image"]) == (
        {"image": "<image>"},
        "<|vision_start|><|image_pad|><|vision_end|>",
    )


def test_the_way_to_a_call_is_told_by_exact_places(record: Record, release_tree: Any) -> None:
    batch = record(LLAVA).of("image")[0]
    way = batch.way(call(batch, "vision_tower"))
    assert {frame.part for frame in way} == {""}
    assert batch.way(call(batch, "vision_tower.vision_model.encoder"))[-1].part == "vision_tower.vision_model"
    assert [frame.function.rpartition(".")[2] for frame in way] == [
        "embed_multimodal", "_process_image_input", "_process_image_pixels", "_image_pixels_to_features",
    ]  # fmt: skip
    tree = release_tree(RELEASE)
    for frame in batch.frames:
        if frame.place.file.startswith("vllm/"):
            calls = {
                (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                for node in ast.walk(tree.parse(frame.place.file))
                if isinstance(node, ast.Call)
            }
            place = frame.place
            assert (place.line, place.column, place.end_line, place.end_column) in calls, frame
            assert ast.unparse(ast.parse(frame.text, mode="eval")), frame


def test_an_execution_of_a_call_is_one_frame(record: Record) -> None:
    """The loop over layers waits once for each of them, and the entry once for the whole encoder."""
    batch = record(LLAVA).of("image")[0]
    places = [(frame.caller, str(frame.place)) for frame in batch.frames]
    layers = [one for one in batch.calls if one.cls.endswith(".CLIPEncoderLayer")]
    [loop] = {places[one.frame or 0] for one in layers}
    assert len(layers) == places.count(loop) == 2
    [entry] = [place for place in places if place[1] == str(batch.way(layers[0])[0].place)]
    assert entry[0] is None
    assert [batch.calls[one.inside or 0].part for one in layers] == ["vision_tower.vision_model.encoder"] * 2


def test_variables_beside_a_call_are_those_of_its_moment(record: Record) -> None:
    """What LLaVA-NeXT needs after the encoder: the input, which holds the tiles, and the tiles of each image."""
    batch = record(LLAVA).of("image")[0]
    [pixels] = [f for f in batch.way(call(batch, "vision_tower")) if f.function.endswith("._process_image_pixels")]
    values = {leaf.at: leaf for leaf in pixels.values}
    assert {"pixel_values[0]", "pixel_values[1]", "stacked_pixel_values", "num_patches_per_batch"} <= values.keys()
    assert origin(values["pixel_values[0]"]) == {"pixel_values[0]": "same"}
    assert values["num_patches_per_batch"].value == [leaf.shape[0] for leaf in batch.inputs[:2]]
    assert "stacked_image_features" not in values  # its result is not there yet
    [features] = pixels.results
    assert (features.at, features.shape[0]) == ("", values["stacked_pixel_values"].shape[0])
    assert [leaf.shape[0] for leaf in batch.way(call(batch, "vision_tower"))[0].results] == [
        leaf.shape[0] for leaf in batch.results
    ]


@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_packed_tower_gets_all_rows(record: Record, modality: str) -> None:
    """Qwen2.5-VL, of two modalities: rows, offsets, and constants of its blocks; windows have offsets of their own."""
    batches = record(QWEN).of(modality)
    assert len(batches) == 3
    suffix = "_videos" if modality == "video" else ""
    lengths = set()
    for batch in batches:
        grids = given(batch, f"{modality}_grid_thw").value
        patches = [t * h * w for t, h, w in grids]
        [field] = [field for field in batch.fields if field.key == f"pixel_values{suffix}"]
        assert (field.kind, field.lengths, field.on_host) == ("flat", tuple(patches), False)
        assert origin(argument(batch, "visual", "x")) == {f"pixel_values{suffix}": "same"}
        assert argument(batch, "visual", "grid_thw").value == grids
        rows = {"x", "rotary_pos_emb_cos", "rotary_pos_emb_sin"}
        block = {leaf.at: leaf for leaf in call(batch, "visual.blocks.0").arguments}
        assert {name for name, leaf in block.items() if leaf.shape[:1] == (sum(patches),)} == rows
        offsets = block["cu_seqlens"].value
        assert (offsets[0], offsets[-1], offsets == sorted(offsets)) == (0, sum(patches), True)
        assert (block["max_seqlen"].device, block["cu_seqlens"].device) == ("cpu", "cuda")
        assert given(batch, f"{modality}_grid_thw").device == "cpu"
        assert [one.shape[0] for one in batch.results] == [count // 4 for count in patches]
        lengths.add(sum(patches))
    assert len(lengths) > 1


def test_a_kept_grid_is_the_input_itself(record: Record) -> None:
    """Kimi-VL hands its grids down to the layers' loop, which gets rows and one offset for each image."""
    for batch in record(KIMI).of("image"):
        assert origin(argument(batch, "vision_tower.encoder", "grid_hw")) == {"image_grid_hws": "same"}
        patches = [h * w for h, w in given(batch, "image_grid_hws").value]
        offsets = argument(batch, "vision_tower.encoder.blocks.0", "cu_seqlens").value
        assert offsets == [sum(patches[:count]) for count in range(len(patches) + 1)]


@pytest.mark.parametrize("architecture", [LLAVA, QWEN, KIMI])
def test_a_recording_crosses_a_process_boundary(record: Record, architecture: str) -> None:
    recording = record(architecture)
    assert recording.missing == {}
    assert Recording.from_json(json.loads(json.dumps(recording.to_json()))) == recording
    assert recording.repeated
    vision = recording.configuration["vision_config"]["patch_size"]
    assert recording.numbers["self.config.vision_config.patch_size"] == vision
    shown = "\n".join(show_recording(recording))
    assert f":{architecture}" in shown
    assert ".0: " in shown
    assert ".1: " not in shown


@pytest.mark.parametrize(
    ("architecture", "held"),
    [
        ("Cosmos3EdgeForConditionalGeneration", "projector_hidden_size"),
        ("LlavaOnevision2ForConditionalGeneration", "vision_config.patch_size"),
        ("PixtralForConditionalGeneration", "text_config.hidden_size"),
    ],
)
def test_a_recipe_gives_a_namespace_for_a_configuration(architecture: str, held: str, record: Record) -> None:
    recording = record(architecture)
    assert len(recording.batches) == 3
    value: Any = recording.configuration
    for key in held.split("."):
        value = value[key]
    assert value == recording.numbers[f"self.config.{held}"]


def test_a_recording_repeats(record: Record, release_tree: Any) -> None:
    again = record_run(recording_request(release_tree(RELEASE), KIMI))
    assert again == record(KIMI)


@pytest.fixture
def run(capfdbinary: Any) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["init", *arguments, "--vllm", RELEASE])
        captured = capfdbinary.readouterr()
        return int(stop.value.code or 0), captured.out.decode(), captured.err.decode()

    return call


def test_it_drafts_from_the_run(record: Record, run: Any) -> None:
    code, out, err = run(KIMI)
    assert code == 0, err
    assert err.startswith(f"Runs the code of vllm-{RELEASE}: ")
    assert f"# {KIMI}: drafted from a run in vLLM {RELEASE}." in out
    assert "VCG489" not in err


def test_without_a_run_there_is_no_draft(run: Any, monkeypatch: Any, tmp_path: Any) -> None:
    """The file has what the source tells: the class, its entries, and that the layout is open."""
    monkeypatch.setattr("scaffold.verify.numeric.record_run", None)
    file = tmp_path / "kimi.yaml"
    code, _, err = run(KIMI, "--no-run", "-o", str(file))
    assert (code, "error[VCG489]: no draft: nothing may be run" in err, "Runs the code" in err) == (4, True, False)
    text = file.read_text()
    assert "layout: TODO" in text
    assert f"  class: {KIMI} " in text
    assert "  example: kimi_vl " in text
    code, out, err = run(KIMI, "--no-run")
    assert (code, out) == (4, "")
    assert f"init {KIMI} --no-run --vllm {RELEASE} -o start.yaml" in err


class TestCommand:
    """`init` and `init --show-recording`; the lab's process of the other tests serves them, too."""

    def test_it_says_that_it_runs_code_and_prints_the_calls(self, record: Record, run: Any) -> None:
        code, out, err = run(KIMI, "--show-recording")
        assert code == 0, err
        assert err.startswith(f"Runs the code of vllm-{RELEASE}: ")
        assert out.splitlines() == list(show_recording(record(KIMI)))
        assert "moonvit.py:" in out
        assert "pixel_values [272, 3, 4, 4] float32 | flat, items of 256, 16" in out

    def test_json_has_everything(self, record: Record, run: Any) -> None:
        _, out, _ = run(KIMI, "--show-recording", "--json")
        assert Recording.from_json(json.loads(out)) == record(KIMI)

    def test_a_model_that_cannot_be_built_says_what_to_give(self, record: Record, run: Any) -> None:
        code, out, err = run("Phi3VForCausalLM", "--show-recording", "--recipe", "automatic")
        assert (code, out) == (6, "")
        assert "error[VCG668]" in err
        assert "phi3v.py:103 reads `img_processor`" in err

    def test_a_run_without_a_draft_is_said(self, record: Record, run: Any, monkeypatch: Any) -> None:
        """Kimi-VL, if its run had called no part."""
        bare = replace(record(KIMI), batches=tuple(replace(one, calls=()) for one in record(KIMI).batches))
        monkeypatch.setattr("scaffold.verify.numeric.record_run", lambda *_, **__: bare)
        code, out, err = run(KIMI)
        assert (code, out) == (4, "")
        assert "error[VCG483]: the model is beyond the layouts: no call of a part with equal layers was seen" in err

    def test_a_model_that_does_not_run_leaves_a_file(self, run: Any, monkeypatch: Any, tmp_path: Any) -> None:
        def broken(*_: Any, **__: Any) -> Recording:
            raise DiagnosticError(Diagnostic("VCG668", "no such size"))

        monkeypatch.setattr("scaffold.verify.numeric.record_run", broken)
        file = tmp_path / "kimi.yaml"
        code, _, err = run(KIMI, "-o", str(file))
        assert (code, "error[VCG668]: no such size" in err) == (6, True)
        assert "#   look at: no such size" in file.read_text()

    def test_the_next_command_builds_the_same_model(self, record: Record, run: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr("scaffold.verify.numeric.record_run", lambda *_, **__: record(KIMI))
        code, _, err = run(KIMI, "--set", "text_config.head_dim=32", "--recipe", "automatic")
        assert code == 0, err
        words = "--set text_config.head_dim=32 --recipe automatic"
        assert f"init {KIMI} {words} --vllm {RELEASE} -o kimi_vl.yaml`" in err
