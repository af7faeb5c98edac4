"""Parts of the automatic recipe, each by itself: no release, and no model."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

# A CUDA build of torchvision does not load beside a CPU torch; transformers only needs its Python code, as in the lab.
sys.modules.setdefault("torchvision._meta_registrations", ModuleType("torchvision._meta_registrations"))
torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
transformers = pytest.importorskip("transformers", reason="needs the `cpu` extra")

from scaffold.verify.numeric.automatic import inputs, survey  # noqa: E402
from scaffold.verify.numeric.automatic.arguments import other_arguments  # noqa: E402
from scaffold.verify.numeric.automatic.configuration import (  # noqa: E402
    Attempt,
    Configuration,
    ConfigurationSource,
    _is_in,
    lineage,
)
from scaffold.verify.numeric.automatic.fixed import _RELEASE  # noqa: E402
from scaffold.verify.numeric.automatic.guess import GuessedProcessor, Patches, _patches  # noqa: E402
from scaffold.verify.numeric.automatic.processor import ProcessorMaker, make_tokenizer  # noqa: E402
from scaffold.verify.numeric.automatic.refusal import NoRecipe  # noqa: E402
from scaffold.verify.numeric.automatic.shrink import Level  # noqa: E402
from scaffold.verify.numeric.cpu_imports import fused_q_kv_rmsnorm  # noqa: E402
from scaffold.verify.numeric.host import (  # noqa: E402
    LanguageModel,
    _config_among,
    _LanguageConfig,
    _leave_out_the_language_model,
    _name_remote_towers,
    leave_out_bfloat16,
)
from scaffold.verify.numeric.recipes.base import Case, Session  # noqa: E402
from scaffold.verify.numeric.reports import Automatic  # noqa: E402
from scaffold.verify.numeric.session import (  # noqa: E402
    _several_items,
    case_key,
    check_image_embeds,
    widened,
)

T = TypeVar("T")
SETTINGS = Automatic("model", "Model")
#: timm's sizes of one tower.
ROW = (1280, 32, 16, 5120)


@pytest.fixture
def timm_table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    table: dict[str, Any] = {"vit_huge_patch16_224": ROW}
    name = "vllm.transformers_utils.configs.radio"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(VIT_TIMM_DIM_BY_NAME=table))  # type: ignore[arg-type]
    monkeypatch.setattr("scaffold.verify.numeric.automatic.fixed._RELEASE", {})
    return table


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`imported(name, text, **names)`: a module that has these names and a file with this text."""

    def make(name: str, text: str = "", **names: Any) -> Any:
        module, file = ModuleType(name), tmp_path / f"{name}.py"
        file.write_text(text)
        vars(module).update(names, __file__=str(file))
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


VALUES = {
    "model_type": "x",
    "vit_hidden_size": 1280,
    "vision_config": {"args": {"model": "vit_huge_patch16_224"}},
    "text_config": {"hidden_size": 4096, "num_attention_heads": 32},
}


def test_a_tower_of_a_table_is_made_small_with_what_names_its_width(timm_table: dict[str, Any]) -> None:
    source = ConfigurationSource(None, "", VALUES, SETTINGS)
    small = source.make(Attempt())
    assert timm_table["vit_huge_patch16_224"] == (64, 3, 2, 256)
    assert small.hf_config.vit_hidden_size == 64
    assert small.hf_config.text_config.hidden_size == 96
    source.make(Attempt(Level.DEPTH))  # of the release's sizes again
    assert timm_table["vit_huge_patch16_224"] == (1280, 3, 16, 5120)


def test_a_constant_beside_the_model_is_made_small(timm_table: dict[str, Any], imported: Callable[..., Any]) -> None:
    tower = transformers.CLIPVisionConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)
    module = imported("a_module_of_a_model", TOWER=tower)
    source = ConfigurationSource(None, "", {"image_dim": 1024}, SETTINGS, module=module.__name__)
    assert source.make(Attempt()).hf_config.image_dim == 64
    assert (module.TOWER.hidden_size, module.TOWER.num_hidden_layers) == (64, 3)
    source.make(Attempt(Level.DEPTH))
    assert (module.TOWER.hidden_size, module.TOWER.num_hidden_layers) == (1024, 3)


def test_defaults_of_a_convolutional_tower_are_made_small(imported: Callable[..., Any]) -> None:
    module = imported("a_module_of_convolutions", DEFAULTS={"ch": 128, "ch_mult": [1, 2], "num_res_blocks": 2})
    source = ConfigurationSource(None, "", {"vae_config": {"base_channels": 128}}, SETTINGS, module=module.__name__)
    assert source.make(Attempt()).hf_config.vae_config.base_channels == 32
    assert module.DEFAULTS == {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1}


def test_real_sizes_are_the_configurations_own(timm_table: dict[str, Any]) -> None:
    made = ConfigurationSource(None, "", VALUES, SETTINGS).make(Attempt(level=None))
    assert (made.hf_config.vit_hidden_size, made.hf_config.text_config.hidden_size) == (1280, 4096)
    assert timm_table == {"vit_huge_patch16_224": ROW}
    assert str(Attempt(level=None)) == ""


def test_a_survey_for_a_gpu_makes_images_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is made on the default device. A generator of the host makes no numbers on another one."""
    devices: list[str] = []

    def make(attempt: Attempt) -> Any:
        devices.append(torch.get_default_device().type)

    def look(*_: Any) -> Any:
        devices.append(torch.get_default_device().type)

    monkeypatch.setattr(survey, "_survey", look)
    with torch.device("meta"):
        survey.survey(make, ConfigurationSource(None, "", None, SETTINGS))
    assert devices == ["meta", "cpu"]


def _guessed(tower: type | None, *names: str) -> Configuration:
    made = ConfigurationSource(None, "", None, SETTINGS, tower).make(Attempt(empty=True))
    for path in names:
        made.add_guessed([path])
    return made


def test_guesses_fit_each_other() -> None:
    before = _guessed(
        None, "force_image_size", "vision_config", "hidden_size", "text_config", "text_config.hidden_size"
    )
    assert before.hf_config.force_image_size == before.hf_config.vision_config.image_size
    assert before.hf_config.hidden_size == before.hf_config.text_config.hidden_size == 96
    assert before.hf_config.vision_config.hidden_size == 64
    assert before.hf_config.max_dynamic_patch > 1
    assert before.guessed[0] == "max_dynamic_patch"
    before.add_guessed(before.guessed)  # as the other process is told
    assert len(before.guessed) == len(set(before.guessed))


def test_a_class_that_keeps_a_part_as_it_was_written_gets_it_read() -> None:
    """DeepSeek-VL2 writes `text_config` and reads `language_config`: its language model's width was in a dictionary."""

    class Whole(transformers.PretrainedConfig):  # type: ignore[misc]
        def __init__(self, **values: Any) -> None:
            self.text_config = transformers.Qwen2Config(**values.pop("language_config", {}))
            super().__init__(**values)

    made = ConfigurationSource(Whole, "", None, SETTINGS).make(Attempt()).hf_config
    assert isinstance(made.text_config, transformers.Qwen2Config)
    assert made.text_config.hidden_size == 96


def test_a_registry_may_name_the_package_of_a_class() -> None:
    host = type("Host", (), {"__module__": "vllm.models.glm5next.common.model"})
    assert _is_in(host, "vllm.models.glm5next")
    assert not _is_in(host, "vllm.models.glm5")
    assert _is_in(type("Host", (), {"__module__": "vllm.model_executor.models.glm4_1v"}), "glm4_1v")


def test_the_norms_of_queries_and_keys_are_two_norms() -> None:
    q, kv, scale = torch.randn(5, 8), torch.randn(5, 6), torch.rand(8)
    left, right = fused_q_kv_rmsnorm(q, kv, scale, scale[:6], 1e-5)
    assert torch.allclose(left, torch.nn.functional.rms_norm(q, (8,), scale, 1e-5), atol=1e-6)
    assert torch.allclose(right, torch.nn.functional.rms_norm(kv, (6,), scale[:6], 1e-5), atol=1e-6)


def test_one_side_is_guessed_of_a_tower_with_a_pair() -> None:
    """Some models take one side of the pair when they are built: a survey guesses after that, and others before."""
    made = _guessed(transformers.QianfanOCRVisionConfig, "vision_config", "force_image_size").hf_config
    assert made.vision_config.image_size == [448, 448]
    assert made.force_image_size == 448


def test_a_guessed_tower_is_of_the_class_that_the_module_names() -> None:
    class TowerConfig(transformers.CLIPVisionConfig):  # type: ignore[misc]
        window = 7

    made = _guessed(TowerConfig, "vision_config").hf_config.vision_config
    assert (type(made), made.hidden_size, made.num_hidden_layers, made.window) == (TowerConfig, 64, 3, 7)


def test_a_processor_that_takes_one_medium_gets_a_request_each(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[list[str]] = []

    def process(processor: Any, modality: str, media: list[str], arguments: Any = None) -> list[str]:
        requests.append(list(media))
        if "none" in media:
            raise ValueError("no such image")
        if processor == "raises" and len(media) > 1:
            raise ValueError("ragged")
        return media if processor == "many" else ["".join(media)]

    monkeypatch.setattr(inputs, "process", process)
    shared = [inputs.Size(1, 1), inputs.Size(2, 2)]
    for name in ("many", "one item", "raises"):
        assert inputs.process_requests(name, "image", shared, ["a", "b"]) == ["a", "b"]
        assert (["a"] in requests) == (name != "many")
    own = [inputs.Size(1, 1), inputs.Size(2, 2, own=True), inputs.Size(3, 3)]
    requests.clear()
    assert inputs.process_requests("many", "image", own, ["a", "b", "c"]) == ["a", "b", "c"]
    assert requests == [["a"], ["b"], ["c"]]
    with pytest.raises(ValueError, match="no such image"):
        inputs.process_requests("many", "image", shared[:1], ["none"])


def test_videos_of_one_length_where_the_model_takes_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(model: Any, modality: str, sizes: Any, images: Any, facts: Any) -> list[Any]:
        asked.append({size[2] for size in sizes})
        if len(asked[-1]) > 1:
            raise survey.Failure(stage, ValueError("no matrix"))
        return []

    monkeypatch.setattr(survey, "_measure", measure)
    facts: Any = SimpleNamespace(basis=[])
    stage = "oracle"
    survey._measured(None, "video", (), facts)  # type: ignore[arg-type]
    assert [len(frames) for frames in asked] == [6, 1]
    assert facts.basis == ["videos of 4 frames alone: of different lengths, no matrix"]
    stage = "inputs"
    with pytest.raises(survey.Failure):
        survey._measured(None, "video", (), facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stage", "said", "give"),
    [("inputs", "KeyError: 'no such token'", "processor, in its folder"), ("model", "Failed to apply", "config.json")],
)
def test_a_refusal_says_what_a_checkpoint_has_to_give(stage: str, said: str, give: str) -> None:
    cause = ValueError("Failed to apply AProcessor on data={}")
    cause.__cause__ = KeyError("no such token") if stage == "inputs" else None

    def make(attempt: Attempt) -> Any:
        raise survey.Failure(stage, cause)

    told: list[str] = []
    with pytest.raises(NoRecipe, match=said) as caught:
        survey.survey(make, ConfigurationSource(None, "", None, SETTINGS), told.append)
    assert give in caught.value.help
    assert told == ["makes a tiny model and its items, way 1 of 1"]


def test_the_stand_in_knows_the_configuration_that_it_was_made_with() -> None:
    config = transformers.CLIPTextConfig(hidden_size=96, dtype="bfloat16")
    engine = SimpleNamespace(model_config=SimpleNamespace(hf_config=config))
    for given in (LanguageModel(config), LanguageModel(vllm_config=engine, hf_config=config), LanguageModel(engine)):
        assert given.config.hidden_size == 96
        assert given.config.dtype is torch.float32
        assert isinstance(given.config.no_such_thing, LanguageModel)
    assert _config_among(["a", engine]) is config
    assert isinstance(LanguageModel().config, LanguageModel)
    assert LanguageModel().embed_tokens(torch.tensor([1, 2])).shape == (2, 96)
    assert isinstance(LanguageModel()(torch.zeros(2)), LanguageModel)
    # Our manager asks each module of a model whether its FP8 scales are found on the host.
    assert not getattr(LanguageModel(), "_fp8_dynamic_scale", False)


@pytest.mark.parametrize("weights", [torch.float32, torch.float16], ids=["on the CPU", "on a GPU"])
def test_a_model_that_rounds_in_between_does_not(
    weights: torch.dtype, monkeypatch: pytest.MonkeyPatch, imported: Callable[..., Any]
) -> None:
    module = imported("vllm.model_executor.models.of_a_test", torch=torch)
    inputs_of_it = imported("vllm.models.inputs_of_a_test", torch=torch)
    processor = types.new_class(
        "Processor", (Generic[T],), {}, lambda names: names.update(__module__=inputs_of_it.__name__)
    )
    factory = SimpleNamespace(info=object, processor=processor[int])  # type: ignore[index]
    monkeypatch.setattr(torch, "get_default_dtype", lambda: weights)
    leave_out_bfloat16(type("Model", (), {"__module__": module.__name__, "_processor_factory": factory}))
    for made in (module, inputs_of_it):
        assert made.torch.zeros(1).to(made.torch.bfloat16).dtype is weights
        assert made.torch.cat is torch.cat


MODEL_IN_A_METHOD = """
class Base(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tower = Tower(config.vision_config)
        self._build(config, config.text_config)
        self.check(config)

    def _build(self, config, text_config):
        self.model = Layers(config=text_config, prefix="")
        self.projector = Projector(config.vision_config, config.text_config)
        self.head = Head(text_config.hidden_size)
"""


@pytest.mark.parametrize(
    ("more", "left_out"),
    [("", {"Layers"}), ("        with self._mark_language_model(config):\n            Marked()\n", {"Marked"})],
    ids=["made in a method", "marked"],
)
def test_a_language_model_that_a_method_makes_is_left_out(
    more: str, left_out: set[str], imported: Callable[..., Any]
) -> None:
    """Where `__init__` marks none: what gets the language model's configuration and no other one."""
    names = ("Tower", "Layers", "Projector", "Head", "Marked")
    text = MODEL_IN_A_METHOD.replace("        self.check(config)\n", more)
    parts = {name: type(name, (torch.nn.Module,), {}) for name in names}
    module = imported("vllm.models.of_a_test", text, nn=torch.nn, **parts)
    exec(compile(text, module.__file__, "exec"), vars(module))
    _leave_out_the_language_model(vars(module)["Base"], None)
    assert {name for name in names if vars(module)[name] is LanguageModel} == left_out


def test_a_tower_that_comes_with_its_checkpoint_is_named(
    monkeypatch: pytest.MonkeyPatch, imported: Callable[..., Any]
) -> None:
    module = imported("vllm.models.of_a_test", AutoModel=transformers.AutoModel)
    _name_remote_towers(type("Model", (), {"__module__": module.__name__}))
    values = {"vision_config": {"model_type": "radio"}, "encoder": {"model_type": "radio", "patch_size": 16}}
    config = ConfigurationSource(None, "", values, SETTINGS).make(Attempt()).hf_config
    for part in (config.vision_config, config.encoder):
        with pytest.raises(NoRecipe, match="remote code of the checkpoint: transformers has no model of type 'radio'"):
            module.AutoModel.from_config(part, trust_remote_code=False)
    monkeypatch.setattr(transformers.AutoModel, "from_config", lambda config, **kwargs: (config, kwargs))
    known = transformers.CLIPVisionConfig()
    assert module.AutoModel.from_config(known, dtype=None) == (known, {"dtype": None})
    assert module.AutoModel.__name__ == "AutoModel"


@pytest.mark.parametrize("calls", [(1, 1, 3, 2), (1, 1, 1, 3)], ids=str)
def test_several_ready_embeddings_are_several(calls: tuple[int, ...]) -> None:
    """The third call of an automatic recipe has one item."""
    cases = tuple(Case(f"{count} items", "image", tuple(range(count))) for count in calls)
    assert _several_items(Session("", (4,), 4, 0, cases), "image") == (0, 1, 2)


SIZES = [survey.Measured(inputs.Size(side, side), side) for side in (8, 12)]


class Embeds:
    """A model and its processor: `take` says what comes of precomputed embeddings of these sizes, and in which form."""

    def __init__(self, take: Any, field: bool = True) -> None:
        self.take, self.field = take, field

    def items(self, way: Any, model: Any, modality: str, sizes: Any, generator: Any) -> Any:
        if not self.field:
            return [], []
        rows = [torch.full((size.width, 2), 1.0) for size in (sizes[:1] * len(sizes) if way.equal else sizes)]
        return [(way.listed, row) for row in rows], rows

    def embed(self, items: Any, modality: str) -> Any:
        return self.take({len(row) for _, row in items}, items[0][0]) or [row for _, row in items]


def _raise(error: Exception) -> Any:
    raise error


def refused(error: Exception, *, several: bool = False) -> Embeds:
    """A model that raises; with `several`, only for embeddings of several sizes."""
    return Embeds(lambda sizes, listed: _raise(error) if len(sizes) > 1 or not several else None)


NO_PIXELS = "Required field 'pixel_values' is missing"
NO_PATH = "Image embeddings are not supported for this path."
ROWS = survey.NoMatrices("rows for items", "")
OTHERS = survey.Ready(problem="it does not give them back as they are, in one batch")
#: A model, what is found of its precomputed embeddings, and what is said of them.
READY: dict[str, tuple[Embeds, Any, list[str]]] = {
    "taken": (Embeds(lambda sizes, listed: None), survey.Ready(), []),
    "listed": (
        Embeds(lambda sizes, listed: None if listed else _raise(ValueError("rank"))), survey.Ready(listed=True), [],
    ),
    "of one size": (
        refused(ValueError("shapes"), several=True), survey.Ready(equal=True),
        ["precomputed embeddings of images of one size: of several, ValueError: shapes"],
    ),
    "no field": (Embeds(None, field=False), None, ["the processor has no field `image_embeds`"]),
    "refused": (
        refused(AssertionError("Model does not support them.")), None,
        ["the model refuses them (AssertionError: Model does not support them.)"],
    ),
    "pixels asked for": (refused(ValueError(NO_PIXELS)), None, [f"the model refuses them (ValueError: {NO_PIXELS})"]),
    "another shape": (
        refused(RuntimeError("mat1 and mat2")), None,
        ["the pristine model raises for them (RuntimeError: mat1 and mat2)"],
    ),
    "not supported": (refused(ValueError(NO_PATH)), None, [f"the model refuses them (ValueError: {NO_PATH})"]),
    "rows for items": (refused(ROWS), None, ["the model refuses them (NoMatrices: rows for items)"]),
    "rows for several items": (
        refused(ROWS, several=True), survey.Ready(equal=True),
        ["precomputed embeddings of images of one size: of several, NoMatrices: rows for items"],
    ),
    "others": (Embeds(lambda sizes, listed: [torch.zeros(8, 2)]), OTHERS, []),
    "not of what was given": (
        Embeds(lambda sizes, listed: [torch.ones(n, 2).cumsum(0) for n in (12, 8, 12, 8)]), OTHERS, [],
    ),
    "projected": (Embeds(lambda sizes, listed: [torch.rand(n, 2) for n in (12, 8, 12, 8)]), survey.Ready(), []),
}  # fmt: skip


@pytest.mark.parametrize("name", READY)
def test_ready_embeddings_are_never_left_out_in_silence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the processor's fields and the model itself say that it takes none; what else fails is a problem."""
    model, expected, said = READY[name]

    def items(way: Any, *args: Any) -> Any:
        return model.items(way, *args)

    monkeypatch.setattr(survey.Ready, "items", items)
    monkeypatch.setattr(survey.inputs, "grouped", lambda items, modality: [{}])
    facts = survey.Facts(0)
    assert survey._ready(model, "image", SIZES, facts) == expected  # type: ignore[arg-type]
    assert [*facts.basis, *facts.no_embeds.values()] == said
    assert survey.Facts.from_json(facts.to_json()) == facts


def test_a_recipe_that_makes_no_ready_embeddings_fails_or_says_so() -> None:
    case = Case("a", "image", (1, 2))
    session = Session("one", (4,), 2, 0, (case, case, case))
    recipe = SimpleNamespace(sessions=lambda: (session,), no_embeds={})
    bench: Any = SimpleNamespace(
        modalities=["image", "video"], recipe=recipe, checks=[], not_run=[], refused_embeds={"video": "none arrives"},
        lab=SimpleNamespace(where_raised=lambda error: "x"),
    )  # fmt: skip
    recipe.embeds_inputs = lambda *args: _raise(NoRecipe("none could be made", "write a recipe"))
    check_image_embeds(bench)
    assert bench.not_run == ["precomputed embeddings of videos: none arrives"]
    assert [(check.passed, check.code, check.detail) for check in bench.checks] == [
        (False, "VCG668", "none could be made")
    ] * 2
    recipe.embeds_inputs = lambda *args: None
    check_image_embeds(bench)
    assert len(bench.checks) == 2
    bench.refused_embeds.clear()
    bench.modalities, bench.not_run = ["image"], bench.not_run[1:2]
    recipe.embeds_inputs = lambda *args: {"image_embeds": None}
    recipe.fields = lambda inputs: {"pixel_values": None}
    check_image_embeds(bench)
    assert len(bench.checks) == 2
    assert bench.not_run == [
        "precomputed embeddings of images: the recipe makes none",
        "precomputed embeddings of images: the processor has no field `image_embeds`",
    ]


def test_ready_embeddings_are_of_the_modality_under_check() -> None:
    cases = [Case("three", modality, (modality,) * 3) for modality in ("video", "video", "image")]
    assert _several_items(Session("", (4,), 4, 0, tuple(cases)), "video") == ("video",) * 3


@pytest.mark.parametrize(
    ("tokens", "budgets"), [(4, (4, 8)), (32, (32, 64)), (5, (8, 16)), (10**5, (10**5, 10**5))], ids=str
)
def test_budgets_are_in_the_ports_own_tokens(tokens: int, budgets: tuple[int, ...]) -> None:
    """An item of four embeddings, of which a graph holds `tokens`."""
    session = Session("two budgets", (4, 8), 4, 0, (Case("a", "image", (1,)), Case("b", "video", (1,))))

    def specs(given: Any) -> list[Any]:
        assert given == "inputs"
        return [SimpleNamespace(output_tokens=tokens)]

    bench: Any = SimpleNamespace(
        modalities=["image"],
        recipe=SimpleNamespace(tokens=lambda modality, item: 4, min_budget=4),
        inputs={case_key(session, session.cases[0]): "inputs"},
        host=SimpleNamespace(get_encoder_cudagraph_item_specs=specs),
    )
    (found,) = widened(bench, (session,))
    assert found.budgets == tuple(sorted(set(budgets)))
    assert found.cases == session.cases
    bench.host = SimpleNamespace()  # what a wrong port raises
    assert widened(bench, (session,)) == (session,)


def test_nothing_of_a_test_stays() -> None:
    assert "vit_huge_patch16_224_vision_config" not in _RELEASE


class ImageProcessor:
    """Its arguments are those of a constructor, of a call and of a table, as with the classes of transformers."""

    valid_kwargs = SimpleNamespace(
        __annotations__={
            "do_crop": "bool | None",
            "max_pixels": "int",
            "do_resize": bool,
            "max_frames": float,
            "size": Any,
        }
    )
    size: Any = {"shortest_edge": 3136, "longest_edge": 1003520}  # noqa: RUF012
    use_thumbnail = True

    def __init__(self, patch_size: int = 14, use_thumbnail: bool = False) -> None: ...

    def preprocess(self, images: Any, min_tiles: int = 2, num_crops: int = 4, fill: int = 3) -> None: ...


def test_other_values_of_a_processors_arguments() -> None:
    """Switches first, then counts, then bounds; what is geometry or no number stays."""
    whole = SimpleNamespace(image_processor=ImageProcessor())
    processor = SimpleNamespace(info=SimpleNamespace(get_hf_processor=lambda max_dynamic_patch=12, **kwargs: whole))
    processor.info.get_hf_processor.__defaults__ = (12,)

    assert list(other_arguments(processor, "image", 200_000)) == [
        {"use_thumbnail": False},
        {"do_crop": True},
        {"max_dynamic_patch": 6},
        {"max_dynamic_patch": 3},
        {"min_tiles": 8},
        {"min_tiles": 4},
        {"num_crops": 2},
        {"num_crops": 1},
        {"max_pixels": 50_000},
        {"max_pixels": 100_000},
        {"size": {"shortest_edge": 12544, "longest_edge": 1003520}},
        {"size": {"shortest_edge": 6272, "longest_edge": 1003520}},
        {"size": {"shortest_edge": 3136, "longest_edge": 50_000}},
        {"size": {"shortest_edge": 3136, "longest_edge": 100_000}},
    ]
    assert list(other_arguments(processor, "video", 1)) == [{"max_dynamic_patch": 6}, {"max_dynamic_patch": 3}]


def test_a_function_that_chooses_a_processor_is_all_that_is_known_of_it() -> None:
    def choose(info: Any) -> Any:
        return info

    factory = SimpleNamespace(info=choose, processor=Session)
    assert list(lineage(SimpleNamespace(_processor_factory=factory))) == [choose, Session, object]


def test_a_language_model_of_a_whole_configuration_knows_its_text() -> None:
    text = transformers.PretrainedConfig(hidden_size=96)
    whole = transformers.PretrainedConfig(text_config=text, scale=2)
    config = _LanguageConfig(whole)
    assert (config.hidden_size, config.scale) == (96, 2)
    assert isinstance(config.anything, LanguageModel)


class Tower:
    """A model whose method reads a value, and another one that may be missing."""

    __module__ = "vllm.model_executor.models.of_a_test"

    def positions(self, config: Any) -> Any:
        return config.vision_config.spatial_merge_size, getattr(config.vision_config, "use_sink", False)


def test_what_a_port_may_read_of_the_tower_is_there(imported: Callable[..., Any]) -> None:
    imported(Tower.__module__)
    tower = transformers.PretrainedConfig(patch_size=14)
    made = Configuration(transformers.PretrainedConfig(vision_config=tower), "a test")
    made.add_read(Tower)
    assert made.guessed == ["vision_config.spatial_merge_size"]
    assert tower.spatial_merge_size == 2
    assert not hasattr(tower, "use_sink")
    made.add_read(Tower)
    assert made.guessed == ["vision_config.spatial_merge_size"]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (
            {"pixel_values": ("np", 3, "ps", "ps"), "image_grid_hws": ("ni", 2)},
            [Patches("image", "pixel_values", "image_grid_hws", (3, "ps", "ps"))],
        ),
        (
            {"pixel_values_videos": ("np", "cps"), "video_grid_thw": ("nv", 3)},
            [Patches("video", "pixel_values_videos", "video_grid_thw")],
        ),
        ({"pixel_values": ("np", "cps"), "image_grid_thw": ("ni", 3), "patch_positions": ("np", 3)}, []),
        ({"pixel_values": ("bn", 3, "h", "w")}, []),
        ({"image_embeds": ("nf", "hs"), "image_grid_thw": ("ni", 3)}, []),
    ],
    ids=["images", "videos", "further inputs", "no grid", "no pixels"],
)
def test_only_patches_and_their_grid_are_guessed(fields: dict[str, Any], found: list[Patches]) -> None:
    assert list(_patches(fields)) == found


def test_guessed_patches_have_the_shape_that_the_model_says() -> None:
    rows, grids = torch.arange(8.0 * 12).reshape(8, 12), torch.tensor([[1, 2, 4]])
    asked: list[Any] = []

    class Part:
        valid_kwargs = SimpleNamespace(__annotations__={"size": int})

        def __call__(self, media: Any, **kwargs: Any) -> Any:
            asked.append((media, kwargs))
            return {"pixel_values": rows, "image_grid_thw": grids}

    wanted = Patches("image", "pixels", "image_grid_hws", (3, "ps", "ps"))
    processor = GuessedProcessor(make_tokenizer(), [wanted], lambda modality: Part())
    made = processor("<image> b", ["an image"], videos=[], size=4, truncation=False)
    # vLLM before 0.29 takes out the tokens of one text.
    assert len(made["input_ids"]) == 1
    assert make_tokenizer().decode(made["input_ids"][0]) == "<image> b"
    assert processor(["a", "b"])["input_ids"] == [processor("a")["input_ids"][0], processor("b")["input_ids"][0]]
    assert "input_ids" not in processor(images=["an image"])
    del asked[1:]
    assert asked == [(["an image"], {"size": 4, "return_tensors": "pt"})]
    assert made["pixels"].shape == (8, 3, 2, 2)
    assert made["image_grid_hws"].tolist() == [[2, 4]]
    assert torch.equal(made["pixels"].reshape(8, 12), rows)


def test_a_processor_gets_tokens_that_it_has_no_default_of() -> None:
    class Asking:
        def __init__(self, tokenizer: Any) -> None:
            self.boa_token = getattr(tokenizer, "boa_token", None)
            self.image_token = getattr(tokenizer, "image_token", "<image_soft_token>")

    tokenizer = make_tokenizer()
    ProcessorMaker(None, Configuration(None, "a test"), tokenizer)._teach_tokens(Asking)
    made = Asking(tokenizer)
    assert (made.boa_token, made.image_token) == ("<boa>", "<image_soft_token>")
    assert "<boa>" in tokenizer.get_vocab()


def test_a_part_that_is_none_is_guessed_where_the_models_code_reads_it() -> None:
    whole = transformers.PretrainedConfig(text_config=None, vocabulary_map=None)
    configuration = Configuration(whole, "a test")

    def build(config: Any) -> Any:
        return config.text_config.hidden_size

    def translate(config: Any) -> Any:
        return config.vocabulary_map.get(1)

    def missed(step: Callable[[Any], Any]) -> BaseException:
        with pytest.raises(AttributeError) as caught:
            step(whole)
        return caught.value

    none = missed(build)
    assert configuration.repair(none)
    assert configuration.guessed == ["text_config"]
    assert not configuration.repair(none), "it was none again"
    assert configuration.repair(missed(build)), "the part is there, and lacks the value"
    assert build(whole) == 96
    assert not configuration.repair(missed(translate)), "nothing says what a map is"


@pytest.mark.parametrize(
    ("name", "value"), [("image_newline_idx", 9), ("layer_norm_epsilon", 1e-6), ("layer_idx", None)]
)
def test_a_value_is_guessed_where_its_name_says_what_it_is(name: str, value: Any) -> None:
    whole = transformers.PretrainedConfig()
    known = Configuration(whole, "a test").repair(AttributeError("missed", name=name, obj=whole))
    assert (known, getattr(whole, name, None)) == (value is not None, value)


class Spread:
    def __init__(
        self, width: int, layers: int, output_dim: int = 512, quant_config: Any = None, **rest: Any
    ) -> None: ...


@pytest.mark.parametrize(
    "call", ["Spread(**config.visual, quant_config=None)", "Spread(config.visual)", "Other(**config.visual)"]
)
def test_the_arguments_of_a_class_are_guessed(call: str, imported: Callable[..., Any]) -> None:
    """A dictionary that a model gives a class has its required arguments, and the language model its columns."""
    imported("a_model_of_arguments", f"def build(config):\n    {call}\n", Spread=Spread)
    whole = transformers.PretrainedConfig()
    configuration = Configuration(whole, "a test", module="a_model_of_arguments")
    configuration.add_guessed(["hidden_size"])
    known = configuration.repair(AttributeError("missed", name="visual", obj=whole))
    assert known == call.startswith("Spread(**")
    assert (whole.hidden_size, getattr(whole, "visual", 0)) == ((512, {"width": 64, "layers": 3}) if known else (64, 0))


@pytest.mark.parametrize(("prefix", "entries"), [("IMG", 2), ("IMG", None), ("", 2)])
def test_a_vocabulary_has_a_token_for_each_entry_of_a_codebook(
    prefix: str, entries: int | None, imported: Callable[..., Any]
) -> None:
    asked = f"[n for k, n in self.vocab_map.items() if k.startswith({prefix!r})], vocab_map.get('<image>')"
    module = imported("a_model_of_tokens", asked)
    whole = transformers.PretrainedConfig(num_embeddings=entries)
    configuration = Configuration(whole, "a test", module=module.__name__)
    known = configuration.repair(AttributeError("missed", name="vocabulary_map", obj=whole))
    assert known == bool(prefix and entries)
    assert getattr(whole, "vocabulary_map", None) == ({"<image>": 5, "IMG0>": 10, "IMG1>": 11} if known else None)


def test_a_missing_value_is_said_with_those_that_the_code_knows(imported: Callable[..., Any]) -> None:
    asked = "if config.kind == 'mlp' or kind in ('linear', 'mlp') or kind > 1: ..."
    module = imported("a_model_that_compares", asked)
    configuration = Configuration(transformers.PretrainedConfig(), "a test", module=module.__name__)

    def make(attempt: Attempt) -> Any:
        try:
            configuration.hf_config.kind  # noqa: B018
        except AttributeError as error:
            failure = survey.Failure("model", error)
        failure.configuration = configuration
        raise failure

    with pytest.raises(NoRecipe) as caught:
        survey.survey(make, ConfigurationSource(None, "", None, SETTINGS))
    assert caught.value.help.startswith("give the value (the code knows mlp, linear), as --set kind=VALUE")


def test_tags_around_an_image_are_those_of_its_placeholder() -> None:
    def placeholder(modality: str, index: int) -> str:
        return {"image": f"Picture {index}: <img></img>"}[modality]

    tokenizer = make_tokenizer()
    maker = ProcessorMaker(SimpleNamespace(get_placeholder_str=placeholder), Configuration(None, "a test"), tokenizer)
    for name in ("image_start_tag", "image_end_tag", "image_pad_tag"):
        assert maker.repair(AttributeError("missed", name=name, obj=tokenizer))
    assert (tokenizer.image_start_tag, tokenizer.image_end_tag, tokenizer.image_pad_tag) == (
        "<img>",
        "</img>",
        "<image_pad>",
    )
    assert not maker.repair(AttributeError("missed", name="sound_start_tag", obj=tokenizer))


def test_what_is_missed_of_a_part_of_a_processor_is_the_towers() -> None:
    from transformers.image_processing_base import ImageProcessingMixin

    tower = transformers.PretrainedConfig(image_size=112)
    configuration = Configuration(transformers.PretrainedConfig(vision_config=tower), "a test")
    maker = ProcessorMaker(None, configuration, make_tokenizer())
    part = ImageProcessingMixin()
    for name in ("image_size", "max_num_tiles"):
        error = AttributeError("missed", name=name, obj=part)
        assert maker.repair(error)
        assert not maker.repair(error)  # it was missed again
    assert not maker.repair(AttributeError("unknown", name="unheard_of", obj=part))
    assert not maker.repair(AttributeError("another's", name="image_size", obj=tower))
    maker._fitted(part)
    assert (part.image_size, part.max_num_tiles) == (112, 4)
    assert configuration.guessed == ["the processor's image_size", "the processor's max_num_tiles"]
    configuration.add_guessed(configuration.guessed[:1])  # another process learns them from its own processor
    assert len(configuration.guessed) == 2
