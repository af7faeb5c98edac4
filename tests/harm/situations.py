"""Situations that a server can be in, each run once without and once with the plugin, on a release's own classes.

    python tests/harm/situations.py TREE RELEASE [--one] [SITUATION...] [-- MODEL...]

Prints JSON objects, the last of which has everything: situation -> model ("" where a situation is of no one model) ->
what came of it without and with the plugin. With `--one`, one model runs in a situation that does not need every model.
`test_harm.py` compares them, and `benchmarks/harm.py` makes the table of docs/measured/harm.md.

A situation is a function with the mark `@situation(...)`. It does what vLLM does in that situation with the release's
own code, and returns facts that can be compared: JSON values, by name. It is called in a fork of its own: whatever it
changes is gone afterwards. A fact `error` means that the server did not start.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import os
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import reloading
from release_process import prepare_release, vllm_on_cpu

Facts = dict[str, Any]

#: Models of most situations, but with VITCG_SLOW=1: a port of the release's own, a cut, and a tower that is split.
REPRESENTATIVES = ("qwen2_vl", "llava_next", "ernie45_vl")
#: What the forks would each import: the first before all of them, the others only before those with the plugin, so that
#: what an import of ours changes shows.
IMPORTED_ONCE = ("vllm.v1.worker.gpu_model_runner", "scaffold.workflow")
OURS_IMPORTED_ONCE = (
    "scaffold.plugin", "scaffold.cut.load", "scaffold.runtime.vllm.served", "scaffold.runtime.tuning.tower",
)  # fmt: skip
#: What a server has only with the plugin. The rest of ours makes the models here.
OF_THE_PLUGIN = ("scaffold.plugin", "scaffold.runtime", "scaffold.cut", "vitcg_adapters.")
#: Classes that a GPU gets, of architectures for which the CPU gets one that refuses to be built.
ON_A_GPU = {"DeepseekV4ForConditionalGeneration": "vllm.models.deepseek_v4.common.vl_model"}
#: What vLLM makes of a model: all of it, without towers (limits of 0, text only, V2's later stages), or without the
#: language model.
WHOLE, LEFT_OUT, ENCODER_ONLY = "whole", "left out", "encoder only"
#: Where adapters begin on their way to the encoder; the first that a class has is changed by "other plugins".
ENTRIES = ("_process_image_input", "_process_vision_input", "get_multimodal_embeddings", "embed_multimodal")
#: Towers that take the inner size of their MLPs from no `vision_config`, or (Llama 4) have it in their adapter, too:
#: they are reloaded in the sizes of their recipes, and no tuning widens them.
OF_ONE_SIZE = (
    "deepseek_ocr", "deepseek_ocr2", "deepseek_v4", "deepseek_v41", "deepseek_vl2", "mllama4", "molmo2",
    "nano_nemotron_vl", "phi3v", "pixtral",
)  # fmt: skip


@dataclass(frozen=True)
class Situation:
    """`models`: every model with an adapter, some of them, or none (the function takes no model).

    `free`: facts that may differ with the plugin: whose class and whose manager serve.
    """

    name: str
    run: Callable[..., Facts]
    models: str = "all"
    free: tuple[str, ...] = ()
    #: Whose manager must serve with the plugin: the other half of the comparison, or a plugin that did nothing would
    #: pass.
    must_serve: str = ""
    since: tuple[int, int] = (0, 23)
    until: tuple[int, int] = (0, 99)
    #: Without this, the CPU of the tests stands for the platform that the plugin serves.
    on_cpu: bool = True
    #: What vLLM says where it does not start itself; a situation that fails in another way shows nothing.
    refusal: str = ""
    #: A variable of the environment and its value: a control of the plugin.
    control: tuple[str, str] | None = None


#: An adapter and our manager may serve; or our manager alone, the release's own port, as vLLM's manager would.
SERVED, OUR_MANAGER = ("class", "manager"), ("manager",)
SITUATIONS: dict[str, Situation] = {}


def situation(name: str, **options: Any) -> Callable[[Callable[..., Facts]], Callable[..., Facts]]:
    """Note a function as a situation of this name."""

    def note(run: Callable[..., Facts]) -> Callable[..., Facts]:
        SITUATIONS[name] = Situation(name, run, **options)
        return run

    return note


# -- a server: model, manager and answers, by the release's own code


class Server:
    """One model of a release with the sizes of its recipe, and what vLLM's runner does with it."""

    def __init__(self, name: str) -> None:
        from scaffold.workflow import load_port

        self.name = name
        self.recipe = import_module(f"scaffold.verify.numeric.recipes.{name}").RECIPE
        #: What a request has: images, or what a model has in their place (Kimi-K2.5).
        self.modality = "image" if "image" in self.recipe.modalities else self.recipe.modalities[0]
        port = load_port(name)
        self.architecture = port.architecture
        self.own: Any = self.recipe.load_class()
        self.config: Any = None
        self.model: Any = None
        self.manager: Any = None
        self.state = WHOLE
        self.graphs = True
        self.eager = False
        #: Shapes of the tower's parameters as they were made, for those that are reloaded.
        self.shapes: dict[str, Any] = {}
        self.after_init: Callable[[Any], None] = lambda model: None

    @property
    def entry(self) -> str:
        """The method that other plugins change."""
        return next(name for name in ENTRIES if hasattr(self.own, name))

    def load(self) -> Any:
        """Make the model of the class that vLLM's registry loads, as its loader does."""
        from scaffold.verify.numeric.recipes import base

        cls = load_class(self.architecture, self.own)
        self.model, self.config = build(self.recipe, self.own, self.state)
        if cls is not self.own:
            self.model.__class__ = cls  # none of them has a constructor of its own
        base.configure(self.config, self.recipe.sessions()[0], self.recipe.modalities)
        self.config.compilation_config.cudagraph_mm_encoder = self.graphs
        self.config.model_config.enforce_eager = self.eager
        self.config.model_config.served_model_name = "a-model"
        self.after_init(self.model)
        return self.model

    def make_manager(self, runner: str = "V1") -> Any:
        """The manager that the release's runner makes for the model, None where it makes none."""
        make = {"V1": self._make_in_v1, "V2": self._make_in_v2}[runner]
        self.manager = make()
        return self.manager

    def _make_in_v1(self) -> Any:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        return GPUModelRunner._create_encoder_cudagraph_manager(self.runner())

    def runner(self) -> Any:
        """What a V1 runner has that makes a manager."""
        import torch

        return SimpleNamespace(
            compilation_config=self.config.compilation_config, vllm_config=self.config, supports_mm_inputs=True,
            get_model=lambda: self.model, device=torch.device("cpu"), dtype=torch.float32,
            encoder_cudagraph_manager=None, is_pooling_model=False,
        )  # fmt: skip

    def _make_in_v2(self) -> Any:
        from unittest.mock import patch

        import torch
        from vllm.v1.worker.gpu.model_states import interface

        config = self.config
        config.scheduler_config.max_num_seqs = 8
        config.model_config.get_inputs_embeds_size = lambda: self.recipe.hidden_size
        config.observability_config = None
        made: list[Any] = []
        with patch.object(interface, "EncoderRunner", lambda **named: made.append(named["cudagraph_manager"])):
            state = type("State", (interface.ModelState,), {})
            state.__abstractmethods__ = frozenset()
            state(config, self.model, SimpleNamespace(), torch.device("cpu"))
        return made[0]

    def encode(self, name: str = "") -> list[Any]:
        """A batch of images, by the graphs where the runner would ask the manager, else by the model itself.

        `name`: part of the name of the recipe's case. Of each output come some 100 values from all over it: the first
        ones of Molmo2 are of text.
        """
        import torch

        cases = self.recipe.sessions()[0].cases
        case = next(case for case in cases if case.modality == self.modality and name in case.name)
        inputs = self.recipe.make_inputs(self.modality, case.items[:1], torch.Generator().manual_seed(0))
        with torch.inference_mode():
            outputs = None
            is_ours = self.manager is not None and origin(self.manager) == "ours"
            if is_ours and self.manager.supports_modality(self.modality):
                outputs = self.manager.execute(dict(inputs))
            if outputs is None:
                outputs = self.model.embed_multimodal(**inputs)
        return [tensor.double().flatten()[:: tensor.numel() // 64 | 1].tolist() for tensor in outputs]

    def facts(self) -> Facts:
        has_given_up = getattr(self.manager, "fault", None) is not None
        manager = "ours, without graphs" if has_given_up else origin(self.manager)
        return {"class": kind_of(self.model, self.own), "manager": manager}


@functools.cache
def build(recipe: Any, cls: type[Any], state: str) -> tuple[Any, Any]:
    """A tiny model of a class by its own constructor, and its configuration.

    Made once, before the forks.
    """
    import torch

    from scaffold.verify.numeric.recipes import base
    from scaffold.verify.numeric.recipes.base import process_weights

    original, own_load_class = base.engine_config, recipe.load_class

    def engine_config(*arguments: Any) -> Any:
        made = original(*arguments)
        multimodal = made.model_config.multimodal_config
        if state == LEFT_OUT:
            multimodal.get_limit_per_prompt = lambda modality: 0
        multimodal.mm_encoder_only = state == ENCODER_ONLY
        return made

    torch.manual_seed(0)
    base.engine_config = engine_config
    try:
        recipe.load_class = lambda host=None: cls
        model, config = recipe.build()
    finally:
        base.engine_config = original
        recipe.load_class = own_load_class
    model.eval().requires_grad_(False)
    if state != LEFT_OUT:
        base.randomise(model, 0)
        process_weights(model)
    return model, config


def kind_of(model: Any, own: type[Any]) -> str:
    """Whose class a model is of: "vllm", "adapter", or its name."""
    if type(model) is own:
        return "vllm"
    module = type(model).__module__
    return "adapter" if module.startswith("vitcg_adapters.") else f"{module}.{type(model).__qualname__}"


def origin(manager: Any) -> str:
    """Whose manager it is: "none", "vllm", "ours", or its module."""
    if manager is None:
        return "none"
    module = type(manager).__module__
    return {"vllm": "vllm", "scaffold": "ours"}.get(module.partition(".")[0], module)


def load_class(architecture: str, own: type[Any]) -> type[Any]:
    from vllm.model_executor.models.registry import ModelRegistry

    entry = ModelRegistry.models[architecture]
    if architecture in ON_A_GPU and hasattr(entry, "module_name"):
        entry = SimpleNamespace(load_model_cls=lambda: own)
    return entry.load_model_cls()


# -- models


def started(server: Server, runner: str = "V1", **changes: Any) -> Facts:
    """As vLLM starts a server. `changes` are of the attributes of `Server`."""
    vars(server).update(changes)
    server.load()
    server.make_manager(runner)
    return server.facts()


situation("graphs asked for", free=SERVED, must_serve="ours")(started)
situation("graphs asked for, V2 runner", models="some", free=SERVED, must_serve="ours", since=(0, 28))(
    functools.partial(started, runner="V2")
)
situation("VITCG_DISABLE=1", models="some", control=("VITCG_DISABLE", "1"))(started)
situation("VITCG_MODELS=another_model", models="some", control=("VITCG_MODELS", "another_model"))(started)
situation("graphs not asked for", models="some")(functools.partial(started, graphs=False))
situation("--enforce-eager, V2 runner", models="some", since=(0, 28))(
    functools.partial(started, runner="V2", eager=True)
)


@situation("tower left out, graphs off (limit 0, --language-model-only)", models="some")
def tower_left_out(server: Server) -> Facts:
    return {**started(server, state=LEFT_OUT, graphs=False), "missing": missing_layers(server.model)}


@situation("tower left out, graphs asked for", free=SERVED, refusal="but the image limit is 0")
def tower_left_out_with_graphs(server: Server) -> Facts:
    kind = started(server, state=LEFT_OUT)["class"]
    if origin(server.manager) == "ours":
        server.manager.capture(graph_pool=None)
        # Some models of vLLM (DeepSeek-V4) have their tower whatever the limits are.
        assert not (missing_layers(server.model) and server.manager.get_cumulative_stats()["num_budgets"])
    return {"class": kind, "manager": origin(server.manager), "missing": missing_layers(server.model)}


def missing_layers(model: Any) -> list[str]:
    """Parts that vLLM left out."""
    from vllm.model_executor.models.utils import StageMissingLayer

    return sorted(name for name, module in model.named_modules() if isinstance(module, StageMissingLayer))


# -- other plugins


class Other:
    """Another plugin, which changes a method of vLLM's class and counts its calls."""

    def __init__(self, server: Server) -> None:
        self.calls = 0
        self.name = server.entry
        self.original = getattr(server.own, self.name)

    def plain(self) -> Callable[..., Any]:
        def _changed(model: Any, *arguments: Any, **named: Any) -> Any:
            self.calls += 1
            return self.original(model, *arguments, **named)

        return _changed

    def wrapped(self) -> Callable[..., Any]:
        return functools.wraps(self.original)(self.plain())


def served_with(server: Server, other: Other) -> Facts:
    """As the server starts and answers one request: with vLLM's own graphs nobody counts."""
    facts = started(server)
    if facts["manager"] == "vllm":
        return facts
    if facts["manager"] == "ours":
        server.manager.capture(graph_pool=None)
    other.calls = 0
    return {**facts, "outputs": server.encode(), "calls": other.calls}


@situation("method replaced by a plain function", models="some", free=OUR_MANAGER)
def plain_function(server: Server) -> Facts:
    other = Other(server)
    setattr(server.own, other.name, other.plain())
    return served_with(server, other)


@situation("method wrapped with functools.wraps", models="some", free=OUR_MANAGER)
def wrapped_function(server: Server) -> Facts:
    other = Other(server)
    setattr(server.own, other.name, other.wrapped())
    return served_with(server, other)


@situation("method wrapped after the model was made", models="some", free=OUR_MANAGER)
def wrapped_later(server: Server) -> Facts:
    other = Other(server)
    server.after_init = lambda model: setattr(server.own, other.name, other.wrapped())
    return served_with(server, other)


@situation("method set on the instance", models="some", free=OUR_MANAGER)
def on_the_instance(server: Server) -> Facts:
    other = Other(server)
    server.after_init = lambda model: setattr(model, other.name, types.MethodType(other.wrapped(), model))
    return served_with(server, other)


@situation("class replaced by a subclass", models="some", free=OUR_MANAGER)
def subclass(server: Server) -> Facts:
    from vllm.model_executor.models.registry import ModelRegistry

    other = Other(server)
    sys.modules["other_plugin"] = types.ModuleType("other_plugin")
    theirs = type(server.own.__name__, (server.own,), {other.name: other.wrapped(), "__module__": "other_plugin"})
    ModelRegistry.register_model(server.architecture, theirs)
    return served_with(server, other)


# -- managers of other projects


def other_managers() -> dict[str, Callable[..., Any]]:
    """Subclasses of vLLM's manager as public projects have them, and how each is made: other constructors and hooks."""
    import torch
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

    cpu, dtype = torch.device("cpu"), torch.float32

    class Tpu(EncoderCudaGraphManager):
        """As tpu-inference: takes a runner and parameters."""

        def __init__(self, vllm_config: Any, vllm_runner: Any, vllm_model: Any, params_and_buffers: Any) -> None:
            super().__init__(vllm_config=vllm_config, device=cpu, dtype=dtype, model=vllm_model)

    class TorchTpu(EncoderCudaGraphManager):
        """As vllm_torchtpu: three arguments."""

        def __init__(self, vllm_config: Any, device: Any, vllm_model: Any) -> None:
            super().__init__(vllm_config=vllm_config, device=device, dtype=dtype, model=vllm_model)
            self.compiled = dict.fromkeys(self.token_budgets)

    class Ascend(EncoderCudaGraphManager):
        """As vllm-ascend: captures each budget by itself."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.captured: list[int] = []

        def _capture_budget_graph(self, token_budget: int, *further: Any, **named: Any) -> None:
            self.captured.append(token_budget)
            if hasattr(self, "_get_graph_set"):  # as the method of these releases does, which its caller relies on
                self._get_graph_set(named.get("path", "default"))

    class Omni(Ascend):
        """As vllm-omni: a subclass of a subclass, with a replay of its own."""

        def _run_budget_graph(self, *arguments: Any, **named: Any) -> Any:
            return "omni"

    return {
        "tpu-inference": lambda config, model: Tpu(
            vllm_config=config, vllm_runner=None, vllm_model=model, params_and_buffers={}
        ),
        "vllm_torchtpu": lambda config, model: TorchTpu(config, cpu, model),
        "vllm-ascend": lambda config, model: Ascend(config, cpu, dtype, model),
        "vllm-omni": lambda config, model: Omni(vllm_config=config, device=cpu, dtype=dtype, model=model),
    }


@situation("manager subclassed by another project", models="none")
def subclassed_managers() -> Facts:
    """Defined before and after a runner has made the stock class."""
    import torch
    from vllm.v1.worker import encoder_cudagraph

    server = Server("qwen2_vl")
    server.load()
    before = other_managers()
    server.make_manager()
    model = build(server.recipe, server.own, WHOLE)[0]
    facts: Facts = {}
    torch.cuda.graph_pool_handle = lambda: (0, 1)
    for when, makers in (("before", before), ("after", other_managers())):
        for project, make in makers.items():
            made = make(server.config, model)
            parts = [part.__name__ for part in type(made).__mro__]
            if hasattr(made, "captured"):
                made.capture(**({"graph_pool": None} if "graph_pool" in capture_parameters(made) else {}))
            facts[f"{project} {when}"] = [parts, getattr(made, "captured", None), made.token_budgets]
    stock = encoder_cudagraph.EncoderCudaGraphManager
    facts["stock"] = [stock.__module__, stock.__qualname__, sorted(n for n in vars(stock) if n != "__new__")]
    return facts


def capture_parameters(manager: Any) -> set[str]:
    import inspect

    return set(inspect.signature(manager.capture).parameters)


# -- platforms


def on_platform(name: str) -> Callable[[Server], Facts]:
    def run(server: Server) -> Facts:
        from vllm.platforms import current_platform
        from vllm.platforms.interface import PlatformEnum

        server.load()
        type(current_platform)._enum = getattr(PlatformEnum, name)
        if deepencoder := sys.modules.get("vllm.model_executor.models.deepencoder"):
            # The towers of DeepSeek-OCR have a Triton kernel for such platforms, and this is a CPU.
            deepencoder.current_platform = SimpleNamespace(is_cuda_alike=lambda: False)  # type: ignore[attr-defined]
        server.make_manager()
        return server.facts()

    return run


for _name, _title in {
    "XPU": "XPU", "OOT": "NPU and other platforms of plugins", "TPU": "TPU", "ROCM": "ROCm", "CPU": "CPU",
    "UNSPECIFIED": "an unknown platform",
}.items():  # fmt: skip
    situation(f"platform: {_title}", models="some", on_cpu=False)(on_platform(_name))
situation("platform: CUDA", models="some", on_cpu=False, free=SERVED, must_serve="ours")(on_platform("CUDA"))


# -- configurations


@situation("cudagraph_mode NONE, V1 runner", models="some")
def cudagraph_mode_none(server: Server) -> Facts:
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    server.load()
    server.config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    runner = server.runner()
    captured = GPUModelRunner.capture_model(runner)
    server.manager = runner.encoder_cudagraph_manager
    return {**server.facts(), "captured": captured}


@situation("later pipeline stage, V1 runner", models="some")
def later_stage(server: Server) -> Facts:
    from vllm.distributed import parallel_state

    server.load()
    parallel_state._PP = SimpleNamespace(is_first_rank=False, is_last_rank=True, rank_in_group=1, world_size=2)
    server.make_manager()
    return server.facts()


@situation("encoder-only instance", models="some", free=SERVED, must_serve="ours")
def encoder_only(server: Server) -> Facts:
    return {**started(server, state=ENCODER_ONLY), "missing": missing_layers(server.model)}


@situation("encoder-only instance, whose runner captures nothing", models="none", since=(0, 29), until=(0, 30))
def encoder_only_captures_nothing() -> Facts:
    from vllm.v1.worker.mm_encoder_model_runner import MMEncoderModelRunner

    return {"captured": MMEncoderModelRunner.capture_model(SimpleNamespace())}


# -- serving


def served(server: Server, change: Callable[[Server], None] = lambda server: None) -> Facts:
    """Answers before and after a change of a running server."""
    server.make_manager()
    facts = server.facts()
    if facts["manager"] == "ours":
        server.manager.capture(graph_pool=None)
    elif facts["manager"] == "vllm":  # it cannot capture here: what the runner does without graphs
        server.manager = None
    first = server.encode()
    change(server)
    return {**facts, "outputs": [*first, *server.encode()]}


@situation("requests with images", models="some", free=SERVED, must_serve="ours")
def requests(server: Server) -> Facts:
    server.load()
    return served(server)


situation("VITCG_MODE=adapters", models="some", free=SERVED, must_serve="vllm", control=("VITCG_MODE", "adapters"))(
    requests
)
situation("VITCG_MODE=manager", models="some", free=OUR_MANAGER, control=("VITCG_MODE", "manager"))(requests)


@situation("V1 runner that profiles the memory of graphs with a manager of its own", models="some", free=SERVED)
def profiled(server: Server) -> Facts:
    """The statistics of the server before it are what they were, and nothing of that manager is left."""
    from multiprocessing.util import _run_finalizers
    from unittest.mock import MagicMock

    import torch
    from vllm.v1.worker import encoder_cudagraph, gpu_model_runner

    server.load()
    # vLLM's own cannot capture on a CPU.
    encoder_cudagraph.EncoderCudaGraphManager.capture = lambda manager, graph_pool: None
    torch.cuda.mem_get_info = torch.accelerator.get_memory_info = lambda *device: (2**30, 2**34)
    torch.accelerator.synchronize = torch.accelerator.empty_cache = lambda *device: None
    gpu_model_runner.graph_capture = lambda **named: contextlib.nullcontext()
    gpu_model_runner.current_platform = MagicMock(graph_pool_handle=lambda: (0, 1))
    made: list[Any] = []

    def make() -> Any:
        manager = server.make_manager()
        if manager is not None:
            made.append(weakref.ref(manager))
        server.manager = None
        return manager

    runner = MagicMock(
        **vars(server.runner()), _create_encoder_cudagraph_manager=make, _freeze_gc=contextlib.nullcontext
    )
    runner.cudagraph_dispatcher.get_capture_descs.return_value = []
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, f"{name}.json") for name in ("stats", "record")}
        for path in files.values():
            path.write_text("of the server before", encoding="utf-8")
        server.config.additional_config = {"encoder_graphs": {name: str(path) for name, path in files.items()}}
        gpu_model_runner.GPUModelRunner.profile_cudagraph_memory(runner)
        runner.reset_mock()
        gc.unfreeze()
        gc.collect()
        left = sum(manager() is not None for manager in made)
        _run_finalizers()
        kept = [path.read_text(encoding="utf-8") for path in files.values()]
        return {**served(server), "left": left, "files": kept}


# -- new weights


def reload(server: Server, is_checkpoint_format: bool) -> None:
    """As a trainer gives a server new weights: by the release's own runner, and the loaders of its layers."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    model = server.model
    generator = torch.Generator().manual_seed(1)
    weights = [(name, torch.randn(shape, generator=generator) / 8) for name, shape in server.shapes.items()]
    model.load_weights = functools.partial(reloading.load_parts, model)
    reset = dict.fromkeys(("reset_lora_state", "reset_encoder_cache", "reset_mm_cache"), lambda: None)
    config = SimpleNamespace(dtype=torch.float32, quantization=None)
    runner = SimpleNamespace(
        vllm_config=SimpleNamespace(model_config=config, load_config=None, lora_config=None), model_config=config,
        lora_config=None, get_model=lambda: model, **reset,
    )  # fmt: skip
    with reloading.kept_buffers(model), torch.no_grad():
        GPUModelRunner.reload_weights(runner, weights, is_checkpoint_format=is_checkpoint_format)


def reloaded(server: Server, change: Callable[[Server], None]) -> Facts:
    """Answers with old and new weights, of a tower whose layers a tuning widens where it can."""
    from vllm.model_executor.model_loader.reload import layerwise

    is_widened = server.name not in OF_ONE_SIZE
    if is_widened:
        sizes = server.recipe.model_config()
        reloading.shrink(sizes.vision_config)
        server.recipe.model_config = lambda: sizes
    build.cache_clear()
    server.load()
    layerwise.record_metadata_for_reloading(server.model)  # as vLLM does when it has made a model
    named = server.model.named_parameters()
    server.shapes = {name: value.shape for name, value in named if "language_model" not in name}
    assert is_widened == any(reloading.INNER in shape for shape in server.shapes.values())
    moved: list[str] = []
    on_meta: list[str] = []

    def watched(server: Server) -> None:
        """A graph reads the memory that the parameters have when it is captured."""
        places = {name: value.data_ptr() for name, value in server.model.named_parameters()}
        change(server)
        for name, value in server.model.named_parameters():
            moved.extend([name] if value.data_ptr() != places[name] else [])
            on_meta.extend([name] if value.is_meta else [])

    facts = served(server, watched)
    before, after = facts["outputs"][: len(facts["outputs"]) // 2], facts["outputs"][len(facts["outputs"]) // 2 :]
    assert before != after, "the new weights change no output"
    return {**facts, "moved": moved, "on meta": on_meta}


for _format, _is_checkpoint in {"checkpoint": True, "kernel": False}.items():
    situation(f"weights reloaded, {_format} format", models="some", free=SERVED, must_serve="ours")(
        functools.partial(reloaded, change=functools.partial(reload, is_checkpoint_format=_is_checkpoint))
    )


@situation("sleep: weights discarded and reloaded (level 2)", models="some", free=SERVED, must_serve="ours")
def discarded_and_reloaded(server: Server) -> Facts:
    """Level 2 keeps the buffers, and the memory of the weights comes back with anything in it."""

    def discard_and_reload(server: Server) -> None:
        for parameter in server.model.parameters():
            parameter.data.fill_(float("nan"))
        reload(server, is_checkpoint_format=True)

    return reloaded(server, discard_and_reload)


# -- kernels that cannot run


def break_kernels(server: Server) -> None:
    """Whatever kernel of ours a tuned tower calls raises from now on; without the plugin there are none."""

    def raising(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("no kernel image is available for execution on the device")

    if with_plugin := sys.modules.get("scaffold.runtime.tuning.kernels"):
        for name in [name for name in vars(with_plugin) if name.endswith("_reference")]:
            setattr(with_plugin, name, raising)


@situation("tuned kernel that cannot run", models="none", free=SERVED, must_serve="ours")
def kernel_fails() -> Facts:
    server = Server("qwen2_vl")
    break_kernels(server)
    server.load()
    return served(server)


@situation("tuned kernel that fails once graphs are captured", models="none", free=SERVED, must_serve="ours")
def kernel_fails_later() -> Facts:
    """A graph has its kernels, but an image above all budgets runs eager, with those that the tower calls now."""
    server = Server("qwen2_vl")
    server.load()
    facts = served(server, break_kernels)
    large = server.encode("above all budgets")
    if "scaffold.plugin" in sys.modules:
        assert server.manager.tuned is not None
        assert any(outcome.applied for outcome in server.manager.tuned.outcomes), "no kernel of ours is in this tower"
    return {**facts, "outputs": [*facts["outputs"], *large, *server.encode()]}


@situation("images above all budgets", models="none", free=SERVED, must_serve="ours")
def above_all_budgets() -> Facts:
    """They run eager, and the log says so once."""
    server = Server("qwen2_vl")
    server.load()
    module = sys.modules.get("scaffold.runtime.vllm.served")
    if module is not None:
        module.LOG_EVERY = -1.0  # after each batch
    with warnings_of_ours() as said:
        facts = served(server)
        before = list(said)
        large = [value for _ in range(2) for value in server.encode("above all budgets")]
    if module is not None:
        (warning,) = said
        assert not before, before
        assert warning.startswith(f"images of more than {max(server.manager.token_budgets)} tokens have no graph")
        assert "encoder_cudagraph_token_budgets" in warning
    return {**facts, "outputs": [*facts["outputs"], *large]}


@situation("LoRA on the tower", models="some", free=SERVED)
def lora(server: Server) -> Facts:
    server.load()
    server.config.lora_config = SimpleNamespace(enable_tower_connector_lora=True)
    return served(server)


@situation("sleep: weights discarded and put back in place (levels 1 and 2)", models="some", free=SERVED)
def sleep(server: Server) -> Facts:
    def discard_and_restore(server: Server) -> None:
        tensors = [*server.model.parameters(), *server.model.buffers()]
        saved = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor.data.fill_(float("nan") if tensor.is_floating_point() else 0)
        for tensor, value in zip(tensors, saved, strict=True):
            tensor.data.copy_(value)

    server.load()
    server.config.model_config.enable_sleep_mode = True
    return served(server, discard_and_restore)


@situation("files that cannot be written (stats, record)", models="some", free=SERVED)
def unwritable_files(server: Server) -> Facts:
    server.load()
    server.config.additional_config = {
        "encoder_graphs": {"stats": "/proc/none/stats.json", "record": str(Path(os.devnull) / "sizes.json")}
    }

    def save(server: Server) -> None:
        if server.manager is not None:
            server.manager.save()

    return served(server, save)


@situation("two engines in one process", models="none", free=SERVED)
def two_engines() -> Facts:
    outputs = []
    servers = [Server(name) for name in ("qwen2_vl", "internvl", "qwen2_vl")]
    for server in servers:
        build.cache_clear()
        server.load()
        outputs += served(server)["outputs"]
    for server in servers:
        outputs += server.encode()
    return {"outputs": outputs}


# -- running


@contextlib.contextmanager
def warnings_of_ours() -> Iterator[list[str]]:
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logging.getLogger("scaffold").addHandler(listener)
    try:
        yield said
    finally:
        logging.getLogger("scaffold").removeHandler(listener)


def run_one(what: Situation, model: str, release: str, with_plugin: bool) -> Facts:
    """The facts of a situation, in this process."""
    import vllm

    vllm.__version__ = release  # an unpacked sdist does not know
    os.environ["VITCG_CPU"] = "1" if what.on_cpu else ""
    if what.control is not None:
        os.environ[what.control[0]] = what.control[1]
    arguments: list[Any] = []
    with warnings_of_ours() as said:
        try:
            if with_plugin:
                from scaffold import plugin

                plugin.register()
            if model:
                arguments = [Server(model)]
            facts = what.run(*arguments)
        except Exception as error:
            facts = {"error": f"{type(error).__name__}: {error}"}
    facts["warnings" if with_plugin else "imported"] = said if with_plugin else imported_of_the_plugin()
    return facts


def imported_of_the_plugin() -> list[str]:
    return sorted(name for name in sys.modules if name.startswith(OF_THE_PLUGIN))


def run_without(what: Situation, model: str, release: str) -> Facts:
    """The facts of a situation in a process that has nothing of the plugin, before and after."""
    before = imported_of_the_plugin()
    facts = in_a_fork(functools.partial(run_one, what, model, release, with_plugin=False))
    if imported := facts.pop("imported", before):
        raise AssertionError(f"{what.name}: a process without the plugin has {imported}")
    return facts


def run_all_with(wanted: list[Situation], model: str, release: str) -> dict[str, Facts]:
    """The facts of situations by their names, each in a process with the plugin."""
    for module in OURS_IMPORTED_ONCE:
        import_module(module)
    return {what.name: in_a_fork(functools.partial(run_one, what, model, release, with_plugin=True)) for what in wanted}


def in_a_fork(action: Callable[[], Facts]) -> Facts:
    """A process that ends so leaves what it removes at its end: its temporary folder is one of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return _in_a_fork(action, folder)


def _in_a_fork(action: Callable[[], Facts], folder: str) -> Facts:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        tempfile.tempdir = folder
        try:
            text = json.dumps(action()).encode()
            with os.fdopen(write, "wb") as pipe:
                pipe.write(text)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process died"}


def chosen(what: Situation, models: tuple[str, ...], release: str, representatives: tuple[str, ...]) -> list[str]:
    """The models of a situation in a release; [""] where it is of no one model."""
    number = minor_of(release)
    if not what.since <= number <= what.until:
        return []
    if what.models == "none":
        return [""]
    return [name for name in models if what.models == "all" or name in representatives]


def one_of(what: Situation, models: tuple[str, ...], release: str) -> tuple[str, ...]:
    """One representative that the release has, another one in each release of the sample."""
    candidates = [name for name in REPRESENTATIVES if name in models]
    place = list(SITUATIONS).index(what.name) + minor_of(release)[1] // 3
    return (candidates[place % len(candidates)],) if candidates else ()


def minor_of(release: str) -> tuple[int, int]:
    major, minor, *_ = release.split(".")
    return int(major), int(minor)


def main() -> int:
    only_one = "--one" in sys.argv
    tree, release, *rest = (argument for argument in sys.argv[1:] if argument != "--one")
    split = rest.index("--") if "--" in rest else len(rest)
    names, models = " ".join(rest[:split]), " ".join(rest[split + 1 :])
    os.environ.setdefault("VITCG_ENCODER_GRAPHS", json.dumps({"calibration_ms": 0, "trials": 0, "steps": 1}))
    prepare_release(Path(tree))
    # A fusion of all-reduces, which MiniMax-M3's decoder imports, asks for compiled operators. It is optional.
    sys.modules["vllm.compilation.passes.fusion.allreduce_rms_fusion"] = None  # type: ignore[assignment]
    import vitcg_adapters

    from scaffold.verify.numeric.attention import set_tail

    adapters = vitcg_adapters.ADAPTERS[vitcg_adapters.generation_of(release)]
    known = tuple(models.split()) or tuple(dict.fromkeys(adapters.values()))
    every = os.environ.get("VITCG_SLOW") == "1"
    found: dict[str, dict[str, Any]] = {}
    with vllm_on_cpu():
        set_tail("fa3")
        for module in IMPORTED_ONCE:
            import_module(module)
        wanted = [what for what in SITUATIONS.values() if names in ("", what.name)]
        for model in ("", *known):
            if model:
                recipe = import_module(f"scaffold.verify.numeric.recipes.{model}").RECIPE
                for state in (WHOLE, LEFT_OUT):
                    build(recipe, recipe.load_class(), state)
                gc.collect()
                gc.freeze()
            mine = []
            for what in wanted:
                some = known if every else one_of(what, known, release) if only_one else REPRESENTATIVES
                if model in chosen(what, known, release, some):
                    mine.append(what)
            with_plugin = in_a_fork(functools.partial(run_all_with, mine, model, release))
            for what in mine:
                sides = {"without": run_without(what, model, release), "with": with_plugin[what.name]}
                found.setdefault(what.name, {})[model] = sides
            print(json.dumps(found), flush=True)  # so far: the last line has everything
    return 0


if __name__ == "__main__":
    sys.exit(main())
