"""Entry point `vllm.general_plugins`: vLLM calls `register` in every process that it starts.

It must be cheap there, do the same however often it runs, and never raise. So it imports neither torch nor CUDA: a
registry entry loads an adapter when vLLM loads that model, and a hook replaces the manager when vLLM imports it.
`VITCG_DISABLE`, `VITCG_MODE` and `VITCG_MODELS` control it (`docs/reference/settings.md`).
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.abc
import importlib.machinery
import inspect
import logging
import multiprocessing
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import vitcg_adapters

logger = logging.getLogger("scaffold.plugin")

DISABLE, MODE, MODELS = "VITCG_DISABLE", "VITCG_MODE", "VITCG_MODELS"
#: Mode -> (use adapters, use our manager).
MODES = {"all": (True, True), "adapters": (True, False), "manager": (False, True)}
#: The first supported release. Older releases are untested with the plugin.
OLDEST = (0, 23)
MANAGER_MODULE = "vllm.v1.worker.encoder_cudagraph"
#: vLLM's second model runner. The constants below are the release from which it serves models with dense language
#: models by default, and the release from which it captures encoder graphs.
V2_RUNNER_MODULE = "vllm.v1.worker.gpu.model_runner"
V2_BY_DEFAULT_SINCE, V2_CAPTURES_SINCE = (0, 25), (0, 28)
V2_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"

#: Names that Python itself puts into a class.
_MACHINERY = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol", "__subclasshook__", "__annotate_func__"})
_OFF = frozenset({"", "0", "false", "no", "off"})
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls of the environment. `models` are names of descriptors or architectures; empty means all."""

    disabled: bool = False
    mode: str = "all"
    models: frozenset[str] = frozenset()

    @property
    def adapters(self) -> bool:
        """Whether adapters replace vLLM's model classes."""
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
    return Controls(environ.get(DISABLE, "").strip().lower() not in _OFF, mode, models)


def without_adapter(controls: Controls, generation: str) -> dict[str, str | None]:
    """Names in `VITCG_MODELS` without an adapter of this generation, each with the nearest name that has one."""
    architectures = vitcg_adapters.ADAPTERS[generation]
    known = {*architectures, *architectures.values()}
    unknown = sorted(controls.models - known)
    return {name: next(iter(difflib.get_close_matches(name, known, 1)), None) for name in unknown}


def generation_of(release: str) -> str | None:
    """The protocol generation of a vLLM version, None when it is not supported. Patch releases count as their minor."""
    number = minor_of(release)
    generation: str | None = None if number is None or number < OLDEST else vitcg_adapters.generation_of(release)
    return generation


def supported_releases() -> str:
    """The range of supported releases, in words."""
    newest = max(minor_of(last) or () for _, last in vitcg_adapters.RELEASES.values())
    return f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, newest))}"


def minor_of(release: str) -> tuple[int, ...] | None:
    """Major and minor number of a release; None where it has none."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else None


def register() -> None:
    """Register the adapters of the installed release, and replace vLLM's manager by ours."""
    try:
        _join_vllms_log()
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
    registered = register_adapters(generation, controls) if controls.adapters else []
    if controls.manager:
        replace_manager(controls.models)
    if (minor_of(vllm.__version__) or ()) < V2_CAPTURES_SINCE:
        watch_v2_runner()
    if controls.adapters:
        for name, close in without_adapter(controls, generation).items():
            hint = f"; did you mean {close!r}?" if close else ""
            _warn(f"{MODELS} names {name!r}, which has no adapter for vLLM {vllm.__version__}{hint}")
    logger.debug("adapters of %s for %s; manager: %s", generation, registered, "ours" if controls.manager else "vLLM's")


# -- adapters


@dataclass(frozen=True)
class AdaptedModel:
    """A registry entry. It passes every inspection to vLLM's own entry, so that vLLM caches no wrong answer.

    vLLM caches inspections by the file that holds the class. The file of an adapter stays the same when a user
    upgrades vLLM, and vLLM would use the old answers.
    """

    original: Any
    generation: str
    architecture: str

    def inspect_model_cls(self) -> Any:
        """vLLM's inspection of its own class. A checked adapter would give the same answers."""
        return self.original.inspect_model_cls()

    def load_model_cls(self) -> type[Any]:
        """The adapter. If anything is wrong with it, vLLM's own class, with a warning."""
        own: type[Any] = self.original.load_model_cls()
        try:
            adapter: type[Any] = vitcg_adapters.adapter_for(self.generation, self.architecture)
            check_adapter(adapter, own, self.generation)
        except Exception as error:
            _warn(
                f"the adapter for {self.architecture} cannot be used, so vLLM's own class serves: "
                f"{type(error).__name__}: {error}",
                error,
                here=True,
            )
            return own
        served = f"{self.architecture} is served by {adapter.__module__}, for vLLM's encoder CUDA graphs"
        _tell(logging.INFO, served, here=True)
        return adapter


def register_adapters(generation: str, controls: Controls) -> list[str]:
    """Let vLLM's registry load adapters for their architectures. Returns the architectures; imports no model."""
    from vllm.model_executor.models.registry import ModelRegistry

    entries: dict[str, AdaptedModel] = {}
    for architecture, module in vitcg_adapters.ADAPTERS[generation].items():
        entry = ModelRegistry.models.get(architecture)
        if not controls.wants(module, architecture):
            continue
        home = str(getattr(entry, "module_name", ""))
        if isinstance(entry, AdaptedModel):
            entries[architecture] = entry
        elif home.partition(".")[0] == "vllm":  # and has the adapter's own class, which is checked when it loads
            entries[architecture] = AdaptedModel(entry, generation, architecture)
        else:
            logger.info("%s is not vLLM's own class here: it has no adapter", architecture)
    ModelRegistry.models.update(entries)
    return list(entries)


def check_adapter(adapter: type[Any], own: type[Any], generation: str) -> None:
    """Raise ValueError unless the adapter equals this vLLM's own class in everything but the protocol's methods.

    So an adapter changes nothing when encoder graphs are off: everything else that vLLM calls is vLLM's own code. A
    generated constructor runs vLLM's own and splits the tower. The split proves that eager results stay the same.
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
        if name == "__init__" and str(getattr(value, "__module__", "")).startswith(f"{vitcg_adapters.__name__}."):
            harmless = True
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


# -- manager


def replace_manager(models: frozenset[str]) -> None:
    """Replace vLLM's manager by ours: now if vLLM has imported it, else when vLLM imports it.

    We replace it in its module, since every runner takes the class from there: `gpu_model_runner` when it creates a
    manager, and the V2 runner's `model_states.interface` at its import (from 0.28).
    """
    _after_import(MANAGER_MODULE, lambda module: _put_manager(module, models))


def _put_manager(module: ModuleType, models: frozenset[str]) -> None:
    try:
        from scaffold.runtime.vllm import install
        from scaffold.runtime.vllm.served import ServedManager, served_manager

        original = module.EncoderCudaGraphManager
        if not issubclass(original, ServedManager):
            install(served_manager(original, models), original)
    except Exception as error:
        _warn(f"encoder graphs run with vLLM's own manager: {error}", error, here=True)


# -- the runner that captures nothing


def watch_v2_runner() -> None:
    """Log a warning when a user asks for encoder graphs and vLLM makes its V2 runner, which captures none yet."""
    _after_import(V2_RUNNER_MODULE, _watch_runner)


def _watch_runner(module: ModuleType) -> None:
    runner = module.GPUModelRunner
    original = runner.__init__
    if getattr(original, "is_watched", False):
        return

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        if getattr(vllm_config.compilation_config, "cudagraph_mm_encoder", False):
            _warn(no_graphs_in_v2(), here=True)
        original(self, vllm_config, *arguments, **named)

    __init__.is_watched = True  # type: ignore[attr-defined]
    runner.__init__ = __init__


def no_graphs_in_v2() -> str:
    """The reason why there are no graphs, and what to do."""
    since = ".".join(map(str, V2_CAPTURES_SINCE))
    return (
        f"vLLM's V2 model runner captures no encoder graphs before {since}, and every image runs eager: "
        f"start vLLM with {V2_SWITCH}=0"
    )


# -- imports to come


def _after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with a module of vLLM: now if it is imported, else after its import. A second call adds nothing."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    elif not any(isinstance(finder, _AfterImport) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(name, then))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` after the import of vLLM's module."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None and spec.loader is not None:
                try:
                    self._run_after(spec.loader)
                except Exception as error:  # a fault of ours must not fail vLLM's import
                    _warn(f"encoder graphs run with vLLM's own manager: {error}", error, here=True)
                return spec  # type: ignore[no-any-return]
        return None

    def _run_after(self, loader: Any) -> None:
        execute, then = loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                then(module)
            except Exception as error:  # nor must this one
                logger.debug("%s is not what it was", self.name, exc_info=error)

        loader.exec_module = exec_module


# -- log


class _VllmsLog(logging.Handler):
    """Hands our records to vLLM's logger, which vLLM sets up later than it loads plugins (from 0.32), or again."""

    def emit(self, record: logging.LogRecord) -> None:
        theirs = logging.getLogger("vllm")
        if theirs.isEnabledFor(record.levelno):
            theirs.handle(record)


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
