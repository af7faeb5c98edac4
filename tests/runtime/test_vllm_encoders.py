"""Two encoders of one model in one engine, each with a manager of its own: images and videos, and sound."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from both_encoders import MODEL, descriptors, write_adapters
from changed_ports import text_of
from helpers import link_tree
from release_process import last_line, run_script

from scaffold.adapters.outputs import Source, render_outputs
from scaffold.descriptor import load_descriptor, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import SourceTree
from scaffold.runtime.vllm.settings import VARIABLE, for_sound, read_settings
from scaffold.workflow import load_port, prepare_port

GIVEN = {
    "steps": 4, "tuning": "on", "trace": "sizes.json", "record": "seen/sizes.json", "stats": "stats",
    "max_graph_bytes": 10**9,
}  # fmt: skip


def configured(given: Any) -> SimpleNamespace:
    compilation = SimpleNamespace(
        encoder_cudagraph_token_budgets=[1024],
        encoder_cudagraph_max_vision_items_per_batch=2,
        encoder_cudagraph_max_frames_per_batch=16,
    )
    return SimpleNamespace(additional_config={"encoder_graphs": given, "other": 1}, compilation_config=compilation)


def test_the_settings_of_sound_are_those_of_images_but_for_what_is_of_images_alone() -> None:
    config = configured(GIVEN)
    sound = for_sound(config)
    settings = read_settings(sound)
    assert (settings.steps, settings.tuning, settings.trace) == (4, "off", None)
    assert (settings.record, settings.stats) == ("seen/sizes.audio.json", "stats.audio")
    assert settings.options.max_graph_bytes == 10**9
    assert not any(vars(sound.compilation_config).values())
    assert config.compilation_config.encoder_cudagraph_token_budgets == [1024]
    assert config.additional_config["encoder_graphs"] is GIVEN
    own = read_settings(for_sound(configured({**GIVEN, "audio": {"steps": 2, "trace": "heard.json", "stats": "own"}})))
    assert (own.steps, own.trace, own.stats, own.audio) == (2, "heard.json", "own", None)


def test_a_wrong_setting_of_sound_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r'\["audio"\] has no setting \'stepz\'; did you mean \'steps\'?'):
        read_settings(configured({"audio": {"stepz": 1}}))
    with pytest.raises(ValueError, match="'audio' is settings of sound, or null, not 5"):
        read_settings(configured({"audio": 5}))
    with pytest.raises(ValueError, match=r'\["audio"\] has no setting \'tuning\''):
        read_settings(configured({"audio": {"tuning": "on"}}))
    monkeypatch.setenv(VARIABLE, '{"steps": 1, "audio": {"steps": 3}}')
    assert read_settings(for_sound(configured(None))).steps == 3


def test_a_tower_that_vllm_left_out_is_one_of_sound_or_of_images() -> None:
    torch = pytest.importorskip("torch")
    from scaffold.runtime.vllm.refusal import refusal_of

    class StageMissingLayer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, stage: str) -> None:
            super().__init__()
            self.stage_name = stage

    def refused(stage: str, modality: str) -> bool:
        found = refusal_of(None, torch.nn.Sequential(StageMissingLayer(stage)), [modality])
        return found is not None and found.reason == "no-tower"

    assert [refused("audio_tower", one) for one in ("image", "audio")] == [False, True]
    assert [refused("vision_tower", one) for one in ("image", "audio")] == [True, False]
    assert [refused("language_model", one) for one in ("image", "audio")] == [False, False]


@pytest.mark.parametrize(
    ("chosen", "managers"),
    [((), "both"), (("heard",), "sound"), (("seen", "heard"), "both")],
)
def test_a_choice_of_models_means_one_encoder(
    chosen: tuple[str, ...], managers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`adapt_model` has made the sound beside the images where it is chosen."""
    from scaffold import plugin
    from scaffold.runtime.vllm import served
    from scaffold.runtime.vllm.encoders import BothManagers

    class Model:
        model_config = 0

    Model.__module__ = "somewhere.seen"
    model, heard = Model(), object()
    plugin._heard[model] = heard
    monkeypatch.setattr(served, "ServedManager", lambda config, device, dtype, model: model)
    controls = plugin.Controls(models=frozenset(chosen))
    made = plugin.make_manager(controls, configured({}), None, None, model)
    found = (made.seen, made.heard) if isinstance(made, BothManagers) else (made,)
    assert found == ((model, heard) if managers == "both" else (heard,))
    monkeypatch.setattr(plugin, "_vllms_manager", lambda config, device, dtype, model: ("vllm's", model))
    off = plugin.Controls(models=frozenset(chosen), mode="adapters")
    made = plugin.make_manager(off, configured({}), None, None, model)
    found = (made.seen, made.heard) if isinstance(made, BothManagers) else (made,)
    assert found == tuple(("vllm's", one) for one in ((model, heard) if managers == "both" else (heard,)))
    del plugin._heard[model]
    assert plugin.make_manager(off, configured({}), None, None, model) is None


def test_an_architecture_has_an_adapter_of_its_sound_beside_one_of_its_images() -> None:
    llava = "LlavaForConditionalGeneration"
    sound = text_of(descriptors()["sound"] | {"model": {"module": "llava", "class": llava}})
    sources = [
        Source("llava", load_port("llava")),
        *(Source(f"../{name}", load_descriptor_text(sound, name)) for name in ("heard.yaml", "more.yaml")),
    ]
    package = {file.path: file.text for file in render_outputs(sources[:2]).files}
    names: dict[str, Any] = {}
    exec(package["vitcg_adapters/__init__.py"], names)
    assert (names["ADAPTERS"]["v0_30"], names["SOUND"]["v0_30"]) == ({llava: "llava"}, {llava: "heard"})
    with pytest.raises(DiagnosticError, match="both port") as error:
        render_outputs(sources)
    assert {one.code for one in error.value.diagnostics} == {"VCG540"}


@pytest.mark.trees
def test_doctor_has_a_line_for_an_adapter_of_sound(release_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import vitcg_adapters

    from scaffold.doctor import _models
    from scaffold.plugin import Controls

    monkeypatch.setitem(vitcg_adapters.SOUND, "v0_30", {MODEL["architecture"]: "heard"})

    def lines(**controls: Any) -> list[tuple[str, str]]:
        found = _models(release_tree("0.33.0"), "v0_30", Controls(**controls), active=True)
        return [(one.implementation, one.manager) for one in found if one.name == "heard"]

    assert lines() == lines(models=frozenset({"heard"})) == [("adapter", "ours")]
    assert lines(models=frozenset({"llava"})) == [("none", "none")]
    assert lines(mode="adapters") == [("adapter", "vllm")]
    monkeypatch.setitem(vitcg_adapters.ADAPTERS, "v0_30", {MODEL["architecture"]: "seen"})
    assert lines(mode="adapters") == [("adapter", "vllm")]


def run_both(source: SourceTree, folder: Path, mode: str, *, ported: bool) -> Any:
    """The report of a run with a port of the images in the tree, or with adapters alone."""
    files = {name: folder / f"{name}.yaml" for name in ("seen", "sound")}
    for name, document in descriptors().items():
        files[name].write_text(text_of(document), "utf-8")
    tree, generated = source.root, folder / "generated"
    if ported:
        ported_files = prepare_port(load_descriptor(files.pop("seen")), source).package
        tree = link_tree(source.root, folder / "tree", ported_files)
    write_adapters(generated, list(files.values()))
    script = Path(__file__).with_name("run_both.py")
    return last_line(run_script(script, tree, str(generated), str(folder / "sound.yaml"), mode))


def check_both(report: Any) -> None:
    """Each encoder has replayed most of its items, and every result was the eager one's."""
    assert report["wrong"] == report["hazards"] == []
    seen, heard = report["parts"]
    assert (seen["modalities"], heard["modalities"]) == (["image", "video"], ["audio"])
    asked = report["asked"]
    assert seen["hits"] + seen["misses"] == asked["image"] + asked["video"] > 30
    assert heard["hits"] + heard["misses"] == asked["audio"] > 10
    assert all(part["hits"] > 4 * part["misses"] for part in (seen, heard))
    detail = report["total"]["detail"]
    assert report["total"]["graph_hits"] == seen["hits"] + heard["hits"]
    assert [detail[name]["graph_misses"] for name in ("vision", "audio")] == [seen["misses"], heard["misses"]]


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("ported", [True, False])
def test_images_and_sound_of_one_model_are_replayed_in_one_engine(
    ported: bool, release_tree: Any, tmp_path: Path
) -> None:
    """The class has a port of its images in the tree, or an adapter of them, and an adapter of its sound beside it."""
    report = run_both(release_tree("0.33.0"), tmp_path, "all", ported=ported)
    check_both(report)
    assert report["choices"] == {"qwen3_omni_moe_thinker": "ServedManager", "nothing": "NoneType"}
    seen, heard = report["parts"]
    assert (seen["budgets"], heard["budgets"]) == ([64, 128, 256, 512], [64, 96, 128, 192, 256, 384, 512])
    assert report["announced"] == 8 + 7  # images have graphs of their own beside videos
    for part in (seen, heard):
        assert part["failed"] == 0
        assert set(part["reasons"]) == {"over-budget"}
        assert part["reused"] > 0
    written = {file.name: json.loads(file.read_text("utf-8")) for file in (tmp_path / "generated").glob("stats*.json")}
    assert {name: one["graph_hits"] for name, one in written.items()} == {
        "stats.json": seen["hits"],
        "stats.audio.json": heard["hits"],
    }


@pytest.mark.trees
@pytest.mark.lab
def test_managers_of_vllm_replay_both_adapters(release_tree: Any, tmp_path: Path) -> None:
    report = run_both(release_tree("0.33.0"), tmp_path, "adapters", ported=False)
    check_both(report)
    assert [part["manager"] for part in report["parts"]] == ["EncoderCudaGraphManager"] * 2
    assert set(report["choices"].values()) == {"NoneType"}
    assert report["announced"] == 4 + 4
