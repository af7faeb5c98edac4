"""Entry point `vllm.general_plugins`: vLLM calls `register` in every process that it starts.

It must be cheap there, do the same however often it runs, and never raise. So it imports neither torch nor CUDA, and
changes no class. All that it does waits for the one question that both runners of every release ask before they make a
manager: `supports_encoder_cudagraph(model)`. An operator who asks for no encoder graphs has vLLM as it is.
`VITCG_DISABLE`, `VITCG_MODE`, `VITCG_MODELS` and `VITCG_CPU` control it (`docs/reference/settings.md`).
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import logging
import multiprocessing
import os
import re
import sys
import textwrap
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import vitcg_adapters

logger = logging.getLogger("scaffold.plugin")

PREFIX = "VITCG_"
DISABLE, MODE, MODELS, CPU = "VITCG_DISABLE", "VITCG_MODE", "VITCG_MODELS", "VITCG_CPU"
#: Each variable that the plugin, its manager or the command reads.
VARIABLES = frozenset({DISABLE, MODE, MODELS, CPU, "VITCG_ENCODER_GRAPHS", "VITCG_METRICS_DIR", "VITCG_CACHE_DIR"})
#: Mode -> (use adapters, use our manager).
MODES = {"all": (True, True), "adapters": (True, False), "manager": (False, True)}
#: The release from which vLLM's second model runner serves models with dense language models by default, and the ones
#: from which it captures encoder graphs: in a server, and in an instance that only encodes.
V2_BY_DEFAULT_SINCE, V2_CAPTURES_SINCE, ENCODER_ONLY_SINCE = (0, 25), (0, 28), (0, 31)
V2_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"

#: Names that Python itself puts into a class.
_MACHINERY = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol", "__subclasshook__", "__annotate_func__"})
_OFF = frozenset({"", "0", "false", "no", "off"})
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls of the environment. `models` are names of descriptors or architectures; empty means all.

    `cpu`: serve the CPU platform, too, where graphs are recorded and slower than eager. For tests.
    """

    disabled: bool = False
    mode: str = "all"
    models: frozenset[str] = frozenset()
    cpu: bool = False

    @property
    def adapters(self) -> bool:
        """Whether models of vLLM's own classes are adapted."""
        return not self.disabled and MODES[self.mode][0]

    @property
    def manager(self) -> bool:
        """Whether our manager replaces vLLM's."""
        return not self.disabled and MODES[self.mode][1]

    def wants(self, *names: str) -> bool:
        """Whether the controls mean a model of one of these names."""
        return not self.models or not self.models.isdisjoint(names)


def read_controls(environ: Mapping[str, str]) -> Controls:
    """The controls in an environment. Raises ValueError for an unknown mode."""
    mode = environ.get(MODE, "").strip() or "all"
    if mode not in MODES:
        close = difflib.get_close_matches(mode, MODES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{MODE} is one of {', '.join(MODES)}, not {mode!r}{hint}")
    models = frozenset(name.strip() for name in environ.get(MODELS, "").split(",")) - {""}
    return Controls(_is_on(environ, DISABLE), mode, models, _is_on(environ, CPU))


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() not in _OFF


def misspelt_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each variable whose name is almost one of ours. Others, such as Kubernetes' own, may be."""
    known = {name.removeprefix(PREFIX): name for name in VARIABLES}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            for close in difflib.get_close_matches(name.removeprefix(PREFIX), known, 1, cutoff=0.7):
                yield f"{name} does nothing; did you mean {known[close]}?"


def without_adapter(controls: Controls, generation: str) -> dict[str, str | None]:
    """Names in `VITCG_MODELS` without an adapter of this generation, each with the nearest name that has one."""
    tables = adapters_of(generation), adapters_of(generation, sound=True)
    known = {name for table in tables for name in (*table, *table.values())}
    unknown = sorted(controls.models - known)
    return {name: next(iter(difflib.get_close_matches(name, known, 1)), None) for name in unknown}


def generation_of(release: str) -> str | None:
    """The protocol generation of a vLLM version, None when it is not supported. Patch releases count as their minor."""
    number = minor_of(release)
    generation: str | None = None if number is None else vitcg_adapters.generation_of(release)
    return generation


def supported_releases() -> str:
    """The range of supported releases, in words."""
    oldest = min(minor_of(first) or () for first, _ in vitcg_adapters.RELEASES.values())
    newest = max(minor_of(last) or () for _, last in vitcg_adapters.RELEASES.values())
    return f"{'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"


def minor_of(release: str) -> tuple[int, ...] | None:
    """Major and minor number of a release; None where it has none."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else None


def register() -> None:
    """Wait for a runner of the installed release that is about to make a manager."""
    try:
        _join_vllms_log()
        for sentence in misspelt_variables(os.environ):
            _warn(sentence)
        _register(read_controls(os.environ))
    except Exception as error:
        _warn(f"vitcg-scaffold is not active and vLLM runs untouched: {error}", error)


def _register(controls: Controls) -> None:
    if controls.disabled:
        logger.debug("vitcg-scaffold is switched off by %s", DISABLE)
        return
    import vllm

    generation = generation_of(vllm.__version__)
    if generation is None:
        _warn(
            f"vitcg-scaffold does not support vLLM {vllm.__version__} (it supports {supported_releases()}): "
            "vLLM runs untouched"
        )
        return
    wait_for_runners(generation, controls)
    if controls.manager:
        _show_counters()
    watch_configurations(minor_of(vllm.__version__) or ())
    if controls.adapters:
        for name, close in without_adapter(controls, generation).items():
            hint = f"; did you mean {close!r}?" if close else ""
            _warn(
                f"{MODELS} names {name!r}, which has no adapter for vLLM {vllm.__version__}. A class of that name "
                f"keeps vLLM's own port, or the one that it inherits{hint}"
            )
    logger.debug("adapters of %s: %s; manager: %s", generation, controls.adapters, controls.manager)


# -- a runner asks


def wait_for_runners(generation: str, controls: Controls) -> None:
    """Be called whenever a runner asks whether its model supports encoder graphs.

    The V1 runner takes the function from its module when it asks, the V2 runner when it is imported (0.28 and later).
    """
    from vllm.model_executor.models import interfaces

    original = interfaces.supports_encoder_cudagraph
    if hasattr(original, "asks_the_plugin"):
        return

    @functools.wraps(original)
    def supports_encoder_cudagraph(model: Any) -> Any:
        if not isinstance(model, type):
            before_manager(model, generation, controls)
        return original(model)

    supports_encoder_cudagraph.asks_the_plugin = True  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "vllm" or not isinstance(module, ModuleType):
            continue  # None stands for a module that must not be imported
        if vars(module).get("supports_encoder_cudagraph") is original:
            module.supports_encoder_cudagraph = supports_encoder_cudagraph  # type: ignore[attr-defined]


def before_manager(model: Any, generation: str, controls: Controls) -> None:
    """Adapt a model for which a manager is about to be made, and let that manager be ours. It raises nothing."""
    try:
        reason = why_not_here(controls)
        if reason is not None:
            _warn(f"vLLM runs untouched: {reason}", here=True)
            return
        if controls.adapters:
            adapt_model(model, generation, controls)
        serve_managers(controls)
    except Exception as error:
        _warn(f"encoder graphs run with vLLM's own manager: {type(error).__name__}: {error}", error, here=True)


def why_not_here(controls: Controls) -> str | None:
    """Why the plugin leaves this process alone; None if it serves it."""
    from vllm.platforms import current_platform as platform

    if not platform.is_cuda() and not (controls.cpu and platform.is_cpu()):
        return f"vitcg-scaffold serves NVIDIA GPUs only, and vLLM's platform here is {type(platform).__name__}"
    if not _is_first_stage():
        return "a later pipeline stage encodes no images"
    return None


def _is_first_stage() -> bool:
    """Whether this process is of the first pipeline stage, which alone encodes. The V1 runner captures on all."""
    from vllm.distributed import parallel_state

    try:
        return bool(parallel_state.get_pp_group().is_first_rank)
    except AssertionError:  # no groups, so no stages
        return True


# -- adapters


#: The same model for its encoder of sound, where its class has graphs for images. It shares the modules.
_heard: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def adapters_of(generation: str, *, sound: bool = False) -> Mapping[str, str]:
    """Architecture -> module of the adapters for images and videos, or for sound."""
    # A package that an earlier release of ours wrote knows no sound.
    tables = getattr(vitcg_adapters, "SOUND", {}) if sound else vitcg_adapters.ADAPTERS
    found: Mapping[str, str] = tables.get(generation, {})
    return found


def adapt_model(model: Any, generation: str, controls: Controls) -> None:
    """Let a model of vLLM's own class be of its adapter. If anything is in the way, the model stays as it is, with a
    warning.

    An adapter of sound takes the class where no other one speaks the protocol. Beside one, only our manager serves it.
    """
    own: Any = type(model)
    if own.__module__.startswith(f"{vitcg_adapters.__name__}.") or model in _heard:
        return
    before = dict(vars(model))
    _adapt(model, own, generation, controls, sound=False)
    if not getattr(model, "supports_encoder_cudagraph", False):
        _adapt(model, own, generation, controls, sound=True)
    elif adapters_of(generation, sound=True):
        heard = object.__new__(own)
        vars(heard).update(before)
        if _adapt(heard, own, generation, controls, sound=True):
            _heard[model] = heard


def _adapt(model: Any, own: Any, generation: str, controls: Controls, *, sound: bool) -> bool:
    """Let a model be of its adapter of one kind. Whether it now is."""
    adapters = adapters_of(generation, sound=sound)
    architecture = architecture_of(own, adapters) if adapters else None
    if architecture is None or not controls.wants(adapters[architecture], architecture):
        return False
    try:
        named = {"sound": True} if sound else {}
        adapter: Any = vitcg_adapters.adapter_for(generation, architecture, **named)
        if not issubclass(adapter, own):
            logger.info("%s is not vLLM's own class here: it has no adapter", architecture)
            return False
        check_adapter(adapter, own, generation)
        check_model(model, sound=sound)
        from scaffold.tower import adapt

        adapt(model, adapter)
    except Exception as error:
        what = "its sound runs eagerly" if sound else "vLLM's own class serves"
        _warn(
            f"the adapter for {architecture} cannot be used, so {what}: {type(error).__name__}: {error}",
            error,
            here=True,
        )
        return False
    served = f"{architecture} is served by {adapter.__module__}, for vLLM's encoder CUDA graphs"
    _tell(logging.INFO, f"{served} of its sound" if sound else served, here=True)
    return True


def architecture_of(own: Any, architectures: Collection[str]) -> str | None:
    """The architecture of the adapter for a class: its name, or the one under which vLLM's registry knows it."""
    if own.__name__ in architectures:
        return str(own.__name__)
    from vllm.model_executor.models.registry import ModelRegistry

    for name in architectures:
        if getattr(ModelRegistry.models.get(name), "class_name", None) == own.__name__:
            return str(name)
    return None


@functools.cache  # once, before a manager watches the adapter's `load_weights`
def check_adapter(adapter: type[Any], own: type[Any], generation: str) -> None:
    """Raise ValueError unless the adapter equals this vLLM's own class in everything but the protocol's methods.

    So an adapter changes nothing but encoder graphs: everything else that vLLM calls is vLLM's own code.
    """
    from vllm.model_executor.models.interfaces import SupportsEncoderCudaGraph

    from scaffold.runtime.vllm.dialect import installed_dialect

    spoken = "v" + installed_dialect().generation.replace(".", "_")
    if spoken != generation:
        raise ValueError(f"this vLLM speaks protocol {spoken}, the adapter {generation}")
    if not issubclass(adapter, own):
        raise ValueError(f"{adapter.__module__}.{adapter.__qualname__} is no subclass of vLLM's class")
    protocol = {name for name in vars(SupportsEncoderCudaGraph) if not name.startswith("__")}
    known = {*own.__mro__, *SupportsEncoderCudaGraph.__mro__}
    for name, value in [item for part in adapter.__mro__ if part not in known for item in vars(part).items()]:
        harmless = name.startswith("__") and not isinstance(value, FunctionType)  # __module__, __doc__ and the like
        if name not in protocol and name not in _MACHINERY and not harmless and hasattr(own, name):
            raise ValueError(f"it replaces {name!r}, which is none of the protocol's methods")
    for part in adapter.__mro__:
        if part not in known and part is not object:
            _check_calls(part, own)


#: Calls of generated code that lead out of the model: both read.
_READING = frozenset({"parameters", "multimodal_config.get_limit_per_prompt"})


def _check_calls(part: type[Any], own: type[Any]) -> None:
    """Raise ValueError if methods of an adapter call what a configuration has, or what torch's classes bring along.

    An adapter is generated code with the calls of a descriptor in it. Here the classes that they lead to are there.
    """
    package = own.__module__.partition(".")[0]
    mine, brought = set[str](), set[str]()
    for base in own.__mro__:
        (mine if base.__module__.partition(".")[0] == package else brought).update(vars(base))
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(part)))):
        path: list[str] = []
        called = node.func if isinstance(node, ast.Call) else None
        while isinstance(called, ast.Attribute):
            path.insert(0, called.attr)
            called = called.value
        if not path or not isinstance(called, ast.Name) or called.id != "self" or ".".join(path) in _READING:
            continue
        first, *rest = path
        if (first in brought and first not in mine) or brought.intersection(rest):
            raise ValueError(f"it calls self.{'.'.join(path)}, which is no method of the model")
        if any(name.endswith("config") for name in path):
            raise ValueError(f"it calls self.{'.'.join(path)}, which belongs to a configuration")


def check_model(model: Any, *, sound: bool = False) -> None:
    """Raise ValueError for a model whose tower vLLM left out, or whose way to it somebody changed: a replay would not
    run that change."""
    from scaffold.runtime.vllm.refusal import left_out

    missing = left_out(model, sound=sound)
    if missing is not None:
        raise ValueError(f"vLLM left {missing} out of this model")
    for name in methods_on_the_way(type(model)):
        if name in vars(model) or not all(_is_of_vllm(code) for code in _codes(type(model), name)):
            raise ValueError(f"something replaced its method {name}")


#: Where encoding begins, in the order of releases.
_ENCODING = ("embed_multimodal", "get_multimodal_embeddings")


def methods_on_the_way(cls: type[Any]) -> list[str]:
    """Methods of a class that encoding may call: by the names in their code, from method to method."""
    found: list[str] = [name for name in _ENCODING if hasattr(cls, name)]
    for name in found:  # which grows
        for code in _codes(cls, name):
            found += [n for n in dict.fromkeys(code.co_names) if n not in found and list(_codes(cls, n))]
    return found


def _codes(cls: type[Any], name: str) -> Iterator[CodeType]:
    """The code of a method, that of the functions in it, and of those that it wraps."""
    value = next((vars(part)[name] for part in cls.__mro__ if name in vars(part)), None)
    value = value.fget if isinstance(value, property) else value
    value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    while value is not None:
        codes = [value.__code__] if hasattr(value, "__code__") else []
        for code in codes:  # which grows
            yield code
            codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        value = getattr(value, "__wrapped__", None)


def _is_of_vllm(code: CodeType) -> bool:
    """Whether code is vLLM's own, or one of torch's decorators."""
    import torch
    import vllm

    homes = [Path(module.__file__).parent for module in (vllm, torch)]
    return any(home in Path(code.co_filename).parents for home in homes)


# -- manager


def serve_managers(controls: Controls) -> None:
    """Let vLLM's manager class make ours. A subclass of it, another project's manager, makes itself as ever."""
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

    stock: Any = EncoderCudaGraphManager
    if "__new__" in vars(stock):  # ours already, or one that somebody else has put there
        return

    def __new__(cls: type[Any], *arguments: Any, **named: Any) -> Any:
        made = make_manager(controls, *arguments, **named) if cls is stock and (arguments or named) else None
        return object.__new__(cls) if made is None else made

    stock.__new__ = staticmethod(__new__)


def make_manager(controls: Controls, vllm_config: Any, device: Any, dtype: Any, model: Any) -> Any:
    """Our manager, or two of vLLM's own for two encoders; None where one of vLLM's own serves: by the controls, or for
    a model that is not chosen."""
    if getattr(model, "model_config", model) is None:
        model.model_config = vllm_config.model_config
    heard = _heard.get(model)
    sees = controls.wants(type(model).__name__, type(model).__module__.rpartition(".")[2])
    if heard is None and not (controls.manager and sees):
        return None
    try:
        from scaffold.runtime.vllm.served import ServedManager
    except Exception as error:
        _warn(f"encoder graphs run with vLLM's own manager: {error}", error, here=True)
        return None
    make: Any = ServedManager if controls.manager else _vllms_manager
    if heard is None:
        return make(vllm_config, device, dtype, model)
    from scaffold.runtime.vllm.encoders import BothManagers
    from scaffold.runtime.vllm.settings import for_sound

    seen = make(vllm_config, device, dtype, model) if sees else None
    sound = make(for_sound(vllm_config), device, dtype, heard)
    return sound if seen is None else BothManagers(seen, sound)


def _vllms_manager(*arguments: Any) -> Any:
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

    made = object.__new__(EncoderCudaGraphManager)  # its `__new__` asks us
    made.__init__(*arguments)
    return made


# -- what switches graphs off in silence


def watch_configurations(release: tuple[int, ...]) -> None:
    """Log a warning for each reason why a configuration that asks for encoder graphs gets none, or not all."""
    from vllm.config import VllmConfig

    original = VllmConfig.__post_init__
    if hasattr(original, "tells_reasons"):
        return

    @functools.wraps(original)
    def __post_init__(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        try:
            for reason in reasons_for_eager(self, release):
                _warn(reason)
        except Exception as error:
            logger.debug("this configuration is not what it was", exc_info=error)

    __post_init__.tells_reasons = True  # type: ignore[attr-defined]
    VllmConfig.__post_init__ = __post_init__


def reasons_for_eager(config: Any, release: tuple[int, ...]) -> list[str]:
    """Why images run eager with a configuration that asks for encoder graphs."""
    compilation, model = config.compilation_config, config.model_config
    multimodal = getattr(model, "multimodal_config", None)
    if not getattr(compilation, "cudagraph_mm_encoder", False) or multimodal is None:
        return []
    is_v2 = bool(config.use_v2_model_runner)
    mode = getattr(compilation.cudagraph_mode, "name", None)
    reasons = []
    if model.enforce_eager:
        reasons.append("--enforce-eager: vLLM captures no encoder graphs, and every image runs eager")
    elif is_v2 and release < V2_CAPTURES_SINCE:
        reasons.append(no_graphs_in_v2())
    elif is_v2 and release < ENCODER_ONLY_SINCE and getattr(config, "is_mm_encoder_only", multimodal.mm_encoder_only):
        since = ".".join(map(str, ENCODER_ONLY_SINCE))
        reasons.append(
            f"vLLM captures no encoder graphs in an encoder-only instance before {since}, and every image runs eager"
        )
    elif not is_v2 and mode == "NONE":
        reasons.append(
            "cudagraph_mode is NONE: vLLM's V1 model runner captures no encoder graphs either, and every image runs "
            "eager"
        )
    if config.parallel_config.pipeline_parallel_size > 1 and not is_v2:
        reasons.append(
            "pipeline parallelism: images are encoded on the first stage alone; the graphs that vLLM's V1 model runner "
            "captures on the others are never replayed, and are left as they are"
        )
    return reasons


def no_graphs_in_v2() -> str:
    """The reason why there are no graphs, and what to do."""
    since = ".".join(map(str, V2_CAPTURES_SINCE))
    return (
        f"vLLM's V2 model runner captures no encoder graphs before {since}, and every image runs eager: "
        f"start vLLM with {V2_SWITCH}=0"
    )


# -- log


class _VllmsLog(logging.Handler):
    """Hands our records to vLLM's logger, which vLLM sets up later than it loads plugins (from 0.32), or again."""

    def emit(self, record: logging.LogRecord) -> None:
        theirs = logging.getLogger("vllm")
        if theirs.isEnabledFor(record.levelno):
            theirs.handle(record)


def _show_counters() -> None:
    """Let this process's metrics have the counters of its workers. Graphs do not depend on that."""
    from scaffold.runtime.vllm.metrics import show_workers

    try:
        show_workers()
    except Exception as error:
        _warn(f"the counters of encoder graphs are not among vLLM's metrics: {error}", error)


def _join_vllms_log() -> None:
    ours = logging.getLogger("scaffold")
    if not any(isinstance(handler, _VllmsLog) for handler in ours.handlers):
        ours.addHandler(_VllmsLog())
        ours.setLevel(logging.DEBUG)
        ours.propagate = False


def _warn(message: str, error: BaseException | None = None, *, here: bool = False) -> None:
    _tell(logging.WARNING, message, here=here)
    if error is not None:
        logger.debug("where it happened", exc_info=error)


def _tell(level: int, message: str, *, here: bool = False) -> None:
    """Log a message once, in the process that the user started: vLLM's further processes come to the same result.

    A message about a loaded model (`here`) comes from the process that loads it. With an engine process of its own, as
    by default, the user's process loads neither a model nor the manager.
    """
    if message not in _told:
        _told.add(message)
        shown = here or multiprocessing.parent_process() is None
        logger.log(level if shown else logging.DEBUG, "%s", message)
