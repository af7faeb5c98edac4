"""The drop-in against real releases: vLLM's own unit test with our manager in its place, and real vision classes."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import link_tree
from release_process import last_line, run_script

from scaffold.runtime.options import Options
from scaffold.runtime.vllm import EncoderCudaGraphManager
from scaffold.runtime.vllm import manager as manager_module
from scaffold.runtime.vllm.dialect import read_dialect
from scaffold.runtime.vllm.manager import _in_words
from scaffold.runtime.vllm.settings import _CHECKS, _FROM_OPTIONS, VARIABLE, Settings, read_settings
from scaffold.workflow import load_port, prepare_port

ROOT = Path(__file__).resolve().parents[2]

#: The first release of each generation (0.30: the last), the models that its own tree ports, and tests that must pass.
#: Every generation and every model is run; all models of all generations with VITCG_SLOW=1. Own unit tests are those of
#: the oldest and the newest release that the plugin serves; all with VITCG_SLOW=1.
GENERATIONS = {
    # Step3-VL of 0.23 and 0.24 merges patches wrongly in its post-processing; the release's own manager is wrong, too.
    "0.23.0": (("internvl", "qwen2_5_vl"), ("qwen2_vl", "qwen3_vl"), 51),
    "0.24.0": (("qwen3_vl",), ("internvl", "qwen2_vl", "qwen2_5_vl"), 51),
    "0.27.0": (("qwen2_vl", "step3_vl"), ("internvl", "qwen2_5_vl", "qwen3_vl"), 51),
    "0.33.0": (("internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"), ("step3_vl",), 67),
}


#: Why an item may run eager: too large, too many frames (an adapter then asks for more pixels than a graph has), or
#: positions of Qwen3-VL's own manager. Pixtral's code crops images whose sides are no multiple of a merged patch.
REASONS = {"over-budget", "other-call", "capacity:pixel_values", "capacity:pos_embeds"}


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    "version",
    [one if one in ("0.23.0", "0.33.0") else pytest.param(one, marks=pytest.mark.slow) for one in GENERATIONS],
)
def test_the_releases_own_unit_test_passes(version, release_tree):
    done = run_script(Path(__file__).with_name("run_upstream.py"), release_tree(version).root)
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)}
    assert counts.get("passed") == GENERATIONS[version][-1], done.stdout[-3000:] + done.stderr[-2000:]
    assert set(counts) == {"passed"}


def run_models(tree: Path, tail: str, models) -> dict:
    """What `run_models.py` found. It shows icons to models that pack rows."""
    return last_line(run_script(Path(__file__).with_name("run_models.py"), tree, tail, *models))


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    ("version", "tail", "models"),
    [
        *((version, "fa3", models) for version, (models, _, _) in GENERATIONS.items()),
        *(
            pytest.param(version, "fa3", more, marks=pytest.mark.slow)
            for version, (_, more, _) in GENERATIONS.items()
            if more
        ),
        ("0.33.0", "cudnn", ("qwen2_5_vl", "qwen3_vl")),
        ("0.33.0", "fa3", ("deepseek_vl2",)),
    ],
)
def test_real_vision_classes_give_what_eager_gives(version, tail, models, release_tree):
    report = run_models(release_tree(version).root, tail, models)
    assert report["wrong"] == []
    for model in models:
        assert report[model]["hits"] > 100, model
        assert report[model]["reused"] > 0, model
        assert set(report[model]["reasons"]) <= REASONS
        if "updates" in report[model]:  # weights change in place, and metadata hold some
            ways = {"load_weights", "reload_weights", "reset_encoder_cache", "update_weights"}
            assert {"finish_weight_update", *report[model]["updates"]} == {"finish_weight_update", *ways}
        if "sequences" in report[model]:  # images have a sequence for each of 8 items, frames one for each of 64
            sections = 2 if tail == "cudnn" else 1
            offsets = {"items": [9 * sections, 2], "frames": [65 * sections, 2]}
            assert report[model]["sequences"] == offsets, model
        if "closed" in report[model]:  # the model turns graphs off: nothing is announced, captured or served
            assert report[model]["closed"] == [0, 0, False, True], model


#: One model of each layout, and Idefics3, whose code fails on the zeros that our binding tries.
SAMPLE = ("gemma3_mm", "idefics3", "lfm2_vl", "llava_next", "qwen2_5_vl", "step3_vl")


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    ("version", "generation", "sample"),
    [
        pytest.param("0.23.0", "v0_23", (), marks=pytest.mark.slow),
        ("0.26.0", "v0_24", SAMPLE),
        pytest.param("0.26.0", "v0_24", (), marks=pytest.mark.slow),
        pytest.param("0.29.0", "v0_27", (), marks=pytest.mark.slow),
        ("0.33.0", "v0_30", SAMPLE),
        pytest.param("0.33.0", "v0_30", (), marks=pytest.mark.slow),
    ],
)
def test_every_shipped_adapter_gives_what_eager_gives(version, generation, sample, release_tree):
    """All (or a sample) in our manager, with the edges of their processors, among them a path whose budgets no ladder
    has.

    A protocol whose two paths have no names, and the newest; VITCG_SLOW=1: all. tests/harm has all that are served.
    """
    files = sorted((ROOT / "generated/vitcg_adapters" / generation).glob("*.py"))
    shipped = [file.stem for file in files if not file.stem.startswith(("__init__", "encoder_cudagraph_"))]
    assert len(shipped) >= {"v0_23": 23, "v0_24": 24, "v0_27": 28, "v0_30": 31}[generation]
    wanted = [f"{model}@{generation}" for model in sample or shipped]
    report = run_models(release_tree(version).root, "fa3", wanted)
    assert report["wrong"] == []
    for model in wanted:
        name = model.partition("@")[0]
        # Phi-3-V has few items, of 576 tokens a tile. A port of Pixtral's tower leaves cropped images to the model.
        # Before 0.27 videos of Gemma 4 have no graphs, nor have crops of DeepSeek-OCR.
        fewer = {"phi3v": 20, "mistral3": 90, "pixtral": 90, "gemma4_mm": 50}
        fewer |= {"deepseek_ocr": 50} if generation < "v0_27" else {}
        least = fewer.get(name, 100)
        assert report[model]["hits"] > least, model
        # The recipe's items of Molmo 2 are never alike: it draws the patches that a token pools.
        assert (report[model]["reused"] > 0) == (name != "molmo2"), model
        assert set(report[model]["reasons"]) <= REASONS, model
        if "icons" in report[model]:
            assert report[model]["icons"] == [4, 12], model  # of 4 and 10 tokens


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    "version",
    [pytest.param("0.24.0", marks=pytest.mark.slow), pytest.param("0.28.0", marks=pytest.mark.slow), "0.33.0"],
)
def test_a_port_without_adapters_gives_what_eager_gives(version, release_tree, tmp_path):
    """MiniCPM-V's methods go into a class whose subclasses vLLM makes, so there is none but the port in a tree."""
    source = release_tree(version)
    ported = prepare_port(load_port("minicpmv"), source, replace=True).package
    report = run_models(link_tree(source.root, tmp_path / "tree", ported), "fa3", ["minicpmv"])
    assert report["wrong"] == []
    assert report["minicpmv"]["hits"] > 100
    assert report["minicpmv"]["reused"] > 0
    assert set(report["minicpmv"]["reasons"]) <= REASONS


def reports_of(tree, model, ranks, mode, broken=None):
    """What each rank found, in their order; none of them waits for ever."""
    script = Path(__file__).with_name("run_data_parallel.py")
    done = run_script(script, tree, model, str(ranks), mode, *([] if broken is None else [str(broken)]))
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found.sort(key=lambda report: report["rank"])
    assert [report["rank"] for report in found] == list(range(ranks)), done.stderr[-3000:]
    assert all(report["wrong"] == [] and report["ranks"] == list(range(ranks)) for report in found)
    return found


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    ("model", "ranks", "broken"),
    [
        pytest.param("qwen2_5_vl", 2, None, marks=pytest.mark.slow), ("step3_vl", 4, None), ("qwen2_5_vl", 2, 1),
        pytest.param("kimi_vl@v0_30", 2, None, marks=pytest.mark.slow), ("kimi_vl@v0_30", 2, 1),
    ],
)  # fmt: skip
def test_data_parallel_through_vllms_own_layer(model, ranks, broken, release_tree):
    """A rank that has no memory for graphs runs its share eager, and the others replay: a call shares one gather."""
    reports = reports_of(release_tree("0.33.0").root, model, ranks, "data", broken)
    assert all(report["served"] == report["calls"] for report in reports)
    assert sum(report["hits"] for report in reports) > 0
    assert [report["rank"] for report in reports if report["hits"] == 0] == ([] if broken is None else [broken])


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(("ranks", "repaired"), [(1, False), (2, False), (2, True)])
def test_a_port_of_llama_4_has_graphs_where_a_rank_has_the_whole_projector(ranks, repaired, release_tree, tmp_path):
    """One rank always has it, and several with the line that `fix` writes."""
    source, port = release_tree("0.33.0"), load_port("mllama4")
    tree = link_tree(source.root, tmp_path / "tree", prepare_port(port, source, replace=True).package)
    if repaired:
        file, layer = tree / "vllm/model_executor/models/mllama4.py", 'prefix=f"{prefix}.linear_1",'
        text = file.read_text("utf-8")
        assert layer in text
        file.write_text(text.replace(layer, f"{layer} disable_tp=is_vit_use_data_parallel(),"), "utf-8")
    reports = reports_of(tree, "mllama4", ranks, "data")
    assert [report["hits"] > 0 for report in reports] == [ranks == 1 or repaired] * ranks


@pytest.mark.trees
@pytest.mark.lab
def test_data_parallel_ranks_that_share_a_layer_have_no_graphs(release_tree):
    """vLLM's own port of Llama 4 has graphs there. Without the refusal its ranks gather different numbers of rows."""
    reports = reports_of(release_tree("0.33.0").root, "mllama4", 2, "data")
    assert [report["hits"] for report in reports] == [0, 0]
    assert all(report["served"] == report["calls"] and report["misses"] > 20 for report in reports)


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("model", ["mistral3@v0_30", pytest.param("phi3v@v0_30", marks=pytest.mark.slow)])
def test_ranks_that_share_a_tower_go_eager_together(model, release_tree):
    """Each layer of theirs is a collective: a rank that replayed padded rows would meet another's unpadded ones."""
    reports = reports_of(release_tree("0.33.0").root, model, 2, "weights", broken=1)
    assert [report["hits"] for report in reports] == [0, 0]
    assert all(report["misses"] >= report["calls"] > 4 for report in reports)


@pytest.mark.trees
@pytest.mark.parametrize(
    ("version", "generation"),
    [
        ("0.23.0", "0.23"),
        ("0.26.0", "0.24"),
        ("0.28.0", "0.27"),
        ("0.33.0", "0.30"),
    ],
)
def test_the_dialect_is_read_off_the_data_classes(version, generation, release_tree):
    import importlib.util

    file = Path(release_tree(version).root, "vllm/v1/worker/encoder_cudagraph_defs.py")
    spec = importlib.util.spec_from_file_location(f"defs_{version.replace('.', '_')}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        assert read_dialect(module).generation == generation
    finally:
        del sys.modules[spec.name]


def test_an_older_protocol_is_refused():
    @dataclasses.dataclass
    class EncoderCudaGraphConfig:
        modalities: list
        input_key_by_modality: dict

    with pytest.raises(NotImplementedError, match=r"0\.23 and later"):
        read_dialect(SimpleNamespace(EncoderCudaGraphConfig=EncoderCudaGraphConfig))


@pytest.mark.parametrize("items", [0, 4], ids=["auto", "four items"])
def test_a_smallest_budget_above_the_largest_is_refused_as_in_vllm(items):
    manager = EncoderCudaGraphManager.__new__(EncoderCudaGraphManager)
    manager.model = SimpleNamespace(get_encoder_cudagraph_budget_range=lambda config: (9, 8))
    manager.vllm_config = None
    options = SimpleNamespace(encoder_cudagraph_token_budgets=[], encoder_cudagraph_max_vision_items_per_batch=items)
    with pytest.raises(ValueError, match="min_budget=9 > max_budget=8"):
        manager._choose_budgets(options)


@pytest.mark.parametrize(
    ("largest", "given", "items", "top", "paid_above"),
    [
        (0, [], 0, 2048, None),  # the model does not say how large an image gets
        (1024, [], 0, 2048, None),
        (2691, [], 0, 2691, 2048),  # 1920x1080 in Qwen2.5-VL
        (2691, [], 8, 2691, 2048),
        (16384, [], 0, 3072, 2048),  # memory bounds it
        (16384, [64, 1024], 0, 1024, None),
    ],
)
def test_the_largest_image_gets_a_graph_although_the_scheduler_batches_fewer_tokens(
    monkeypatch, largest, given, items, top, paid_above
):
    """And what that graph takes comes off what start-up holds."""
    monkeypatch.setattr(manager_module, "largest_item", lambda config, modality: largest)
    manager = EncoderCudaGraphManager.__new__(EncoderCudaGraphManager)
    manager.model = SimpleNamespace(get_encoder_cudagraph_budget_range=lambda config: (64, 2048))
    manager.vllm_config = None
    options = SimpleNamespace(encoder_cudagraph_token_budgets=given, encoder_cudagraph_max_vision_items_per_batch=items)
    config = SimpleNamespace(
        compilation_config=options, parallel_config=SimpleNamespace(tensor_parallel_size=1), additional_config=None
    )
    manager._choose_budgets(options)
    assert manager.token_budgets[-1] == top
    assert manager.max_batch_size == (items or 32)
    assert manager._choose_options(config).paid_above == paid_above
    # Where the scheduler batches more, an image of so many tokens gains nothing from a graph.
    manager.model = SimpleNamespace(get_encoder_cudagraph_budget_range=lambda config: (64, 8192))
    manager._choose_budgets(options)
    assert manager.token_budgets[-1] == (max(given) if given else 8192)
    assert manager._choose_options(config).paid_above is None


def test_a_ladder_of_hundreds_is_logged_by_its_ends():
    assert _in_words({"global": [169, 338, 676], "local": [0, 81], "idle": [0]}) == (
        "global 169 to 676 (3), local 81 to 81 (1), idle (none)"
    )


# -- settings


def test_settings_default_without_configuration(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    settings = read_settings(SimpleNamespace())
    assert (settings.steps, settings.options.packing, settings.self_check) == (32, "planned", False)
    assert settings.ladder(64, 128)[:3] == [64, 66, 68]


def test_settings_come_from_the_configuration_or_the_environment(monkeypatch):
    config = SimpleNamespace(additional_config={"encoder_graphs": {"steps": 4, "max_capture_seconds": 3}})
    settings = read_settings(config)
    assert (settings.steps, settings.options.max_capture_seconds) == (4, 3)
    monkeypatch.setenv(VARIABLE, '{"packing": "greedy"}')
    assert read_settings(SimpleNamespace(additional_config=None)).options.packing == "greedy"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stepz": 3}, "did you mean 'steps'"),
        ([1], "must be a dictionary"),
        ({"packing": "x"}, "'packing' is \"planned\" or \"greedy\", not 'x'"),
        ({"stats": 5}, "'stats' is the name of a file, or null, not 5"),
        ({"stats": ""}, "'stats' is"),
        ({"record": ["a"]}, "'record' is"),
        ({"trace": []}, "'trace' is the name of a file, or a list of them"),
        ({"trace": ["a", 3]}, "'trace' is"),
        ({"steps": 0}, "'steps' is a whole number, 1 at least, not 0"),
        ({"steps": True}, "'steps' is"),
        ({"steps": 2.0}, "'steps' is"),
        ({"graphs": 1}, "'graphs' is a whole number, 2 at least"),
        ({"start_steps": 0}, "'start_steps' is a whole number, 1 at least, or null"),
        ({"idle_graphs": -1}, "'idle_graphs' is"),
        ({"idle_graphs": None}, "'idle_graphs' is"),
        ({"max_graph_bytes": "1G"}, "'max_graph_bytes' is"),
        ({"max_capture_seconds": 0}, "'max_capture_seconds' is a number above 0"),
        ({"max_capture_seconds": float("nan")}, "'max_capture_seconds' is"),
        ({"calibration_ms": -1}, "'calibration_ms' is"),
        ({"calibration_ms": float("inf")}, "'calibration_ms' is"),
        ({"trial_after": 1}, "'trial_after' is"),
        ({"trials": "many"}, "'trials' is"),
        ({"sample_every": 0}, "'sample_every' is"),
        ({"compact": 1}, "'compact' is true or false"),
        ({"self_check": "yes"}, "'self_check' is"),
        ({"prometheus": None}, "'prometheus' is"),
        ({"tuning_check": 0}, "'tuning_check' is"),
        ({"reproducible": 1}, "'reproducible' is"),
        ({"idle_bytes": None}, "'idle_bytes' is"),
        ({"plan_bytes": -1}, "'plan_bytes' is"),
        ({"debug_addresses": "on"}, "'debug_addresses' is"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        read_settings(SimpleNamespace(additional_config={"encoder_graphs": given}))


def test_every_setting_has_a_check_and_its_default_passes_it():
    own = {
        field.name: field.default for field in dataclasses.fields(Settings) if field.name not in ("options", "tuning")
    }
    handed_on = {field.name: field.default for field in dataclasses.fields(Options) if field.name in _FROM_OPTIONS}
    assert set(_CHECKS) == {*own, *handed_on}
    assert [name for name, default in {**own, **handed_on}.items() if not _CHECKS[name][1](default)] == []


@pytest.mark.parametrize("given", [None, {}, {"reproducible": False, "start_steps": 2}])
def test_vllms_batch_invariance_implies_reproducible(monkeypatch, given):
    config = SimpleNamespace(additional_config=given and {"encoder_graphs": given})
    for value, implied in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", value)
        assert read_settings(config).reproducible is implied


def test_without_clocks_nothing_is_timed_and_nothing_comes_later():
    timed = Options(max_capture_seconds=1.0, idle_graphs=9, trials=3)
    options = timed.without_clocks(8)
    assert (options.idle_graphs, options.trials, options.calibration_ms) == (0, 0, 0)
    assert (options.max_capture_seconds, options.start_steps) == (None, 8)
    assert Options(start_steps=None).without_clocks(8).start_steps is None  # a user's own budgets
    assert Options(start_steps=16).without_clocks(8).start_steps == 16


@pytest.mark.parametrize(("own", "trials"), [(True, Options().trials), (False, 0)])
def test_no_trial_times_a_model_without_an_eager_forward(own, trials):
    """Its own code makes such results behind the clock: eager would seem to take no time, and win."""

    class SupportsEncoderCudaGraph:
        def encoder_eager_forward(self):
            """Empty, as the protocol's."""

    class Model(SupportsEncoderCudaGraph):
        if own:

            def encoder_eager_forward(self):
                return 1

    manager = EncoderCudaGraphManager.__new__(EncoderCudaGraphManager)
    manager.model, manager.settings = Model(), Settings()
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(encoder_cudagraph_token_budgets=[]),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    options = manager._choose_options(config)
    assert (options.trials, options.calibration_ms > 0) == (trials, own)


def test_a_broken_variable_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "{")
    with pytest.raises(ValueError, match="not JSON"):
        read_settings(SimpleNamespace())


def test_a_trace_fits_the_ladder(tmp_path):
    from scaffold.runtime import Trace

    trace = Trace()
    # Icons of 4 tokens: a batch has no more items than the smallest budget has tokens, so it must stay what it was.
    for tokens, count in ((4, 50), (100, 9), (300, 5), (900, 1), (5000, 3)):
        trace.add("default", tokens, count)
    file = tmp_path / "trace.json"
    trace.save(file)
    config = SimpleNamespace(additional_config={"encoder_graphs": {"trace": str(file), "graphs": 4}})
    settings = read_settings(config)
    assert settings.ladder(64, 1024) == [64, 100, 300, 1024]
    assert settings.ladder(64, 128, "local")[-1] == 128
