"""The model's configuration: its class, found by asking the release, and its values, of the class or of a file.

The sources in their order; all but the last name a class, so that nothing is guessed.

1. A checkpoint's folder: the class that an engine reads it with. Its file alone: the class of its `model_type`.
2. The type that the model's processing information asks for.
3. The annotation of `config` in the host's `__init__`.
4. The tables of architectures of transformers.
5. The same questions to the class that the host inherits from.
6. The table of configurations of vLLM, by name.
7. An empty configuration, to which the lab adds what the model's code reads (`repair`), from a table of usual values.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import linecache
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any, get_origin

from scaffold.syntax import name_path
from scaffold.verify.numeric.automatic.checkpoint import Checkpoint
from scaffold.verify.numeric.automatic.fixed import fixed_towers
from scaffold.verify.numeric.automatic.refusal import NoRecipe
from scaffold.verify.numeric.automatic.shrink import LAYERS, Level, parts_of, role_of, shrink
from scaffold.verify.numeric.cpu_imports import PACKAGES, of_tree

#: Prefixes of modules that hold models.
MODELS = ("vllm.model_executor.models.", "vllm.models.", *(f"{name}." for name in sorted(PACKAGES - {"vllm"})))

#: The file of a checkpoint that holds its configuration.
CONFIG = "config.json"
#: Name among guessed values of a processor that the checkpoint brings.
PROCESSOR = "the processor"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to make a configuration small. `geometry` is another image and patch size than the class's defaults, and
    with it the windows of sound are another number of frames.

    Without a level nothing is made smaller.
    """

    level: Level | None = Level.UNEQUAL
    geometry: tuple[int, int] | None = None
    empty: bool = False

    def __str__(self) -> str:
        words = [self.level.value] if self.level and self.level is not Level.UNEQUAL else []
        if self.geometry:
            words.append(f"image {self.geometry[0]}, patch {self.geometry[1]}, windows of {_FRAMES[-1]} frames")
        return ", ".join(words)


@dataclass
class Configuration:
    """A small configuration, where it is from, and which values were guessed."""

    hf_config: Any
    source: str
    guessed: list[str] = field(default_factory=list)
    #: The class of a tower's configuration that the model's module imports; None for any other tower.
    tower: type | None = None
    #: Module in whose namespace the host's class stands.
    module: str = ""

    def repair(self, error: BaseException) -> bool:
        """Add the attribute that an `AttributeError` missed, or the value that was None where it looked for one.

        False where it is not one of a configuration. `getattr` with a default never raises, so that the model's own
        defaults win.
        """
        name, owner = getattr(error, "name", None), getattr(error, "obj", 0)
        if isinstance(error, AttributeError) and owner is None:
            found = missing_value(self, error)
            if found is None or found.path in self.guessed:
                return False
            *parents, name = found.path.split(".")
            owner = reduce(getattr, parents, self.hf_config)
        if not (isinstance(error, AttributeError) and name and _is_config(owner)):
            return False
        try:
            self._add(owner, name)
        except KeyError:
            return False
        return True

    def add_guessed(self, paths: Sequence[str]) -> None:
        """Add what an earlier configuration missed, so that this one misses nothing later."""
        for path in paths:
            if path in self.guessed or path.startswith(PROCESSOR):
                continue
            owner = self.hf_config
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            self._add(owner, name)

    def add_read(self, host: type) -> None:
        """Add what a model's methods read of its tower's configuration, but for names that may be missing.

        The model need not come there; a port may, since every checkpoint says it.
        """
        tower = getattr(self.hf_config, "vision_config", None)
        if _is_config(tower):
            methods = {name for cls in host.__mro__ for name in vars(cls)}
            source = "".join(ast.unparse(tree) for tree, _ in method_trees(host, methods))
            for name in sorted(set(re.findall(r"\bvision_config\.(\w+)", source)) & USUAL.keys()):
                if not hasattr(tower, name) and f"'{name}'" not in source:
                    self._add(tower, name)

    def _add(self, owner: Any, name: str) -> None:
        setattr(owner, name, self._guess(owner, name))
        self.guessed.append(f"{self.path_of(owner)}{name}")

    def _guess(self, owner: Any, name: str) -> Any:
        """A usual value. Raises KeyError where the name says nothing."""
        language = role_of((self.path_of(owner),)) == "text"
        if name == "vision_config":
            return _guessed_tower(self.tower)
        if name.endswith(("_config", "_cfg")):
            return _empty({"model_type": "qwen2"} if role_of((name,)) == "text" else None)
        if name == "force_image_size":  # of the tower that encodes the tiles
            side = getattr(self.vision(), "image_size", _SIDE)
            # Some models take one side of a pair when they are built, which an earlier guess came after.
            return side[0] if isinstance(side, (list, tuple)) else side
        if name == "hidden_size" and (language or owner is self.hf_config is not self.vision()):
            return 96
        if name == "hidden_act" and (language or owner is self.hf_config):
            return "silu"
        if name in USUAL:
            return USUAL[name]
        if name.endswith("hidden_size"):
            vision = next((part for path, part in self.parts() if role_of(path) == "vision"), None)
            if re.search("pixel|vis|vit|image|mm_", name) and getattr(vision, "hidden_size", None):
                return vision.hidden_size  # type: ignore[union-attr]
            return 96
        if name.endswith(("_token_id", "_token_index")) or re.fullmatch(r"image\w*_idx", name):
            return 9
        if re.fullmatch(r"vocab\w*_map", name):
            return self._vocabulary(name)
        return self._arguments(owner, name)

    def _vocabulary(self, name: str) -> dict[str, int]:
        """A map of tokens to their numbers, with one for each entry of the codebook that a tower finds images in.

        The model's module says which tokens it asks for, and how the names of the entries' begin: numbers, and one
        character that ends them, follow.
        """
        source = ast.unparse(self._tree()[0])
        begins = re.findall(r"for (\w+), \w+ in [\w.]*map\.items\(\) if \1\.startswith\('(\w+)'\)", source)
        entries = self.find("num_embeddings")
        if not begins or not entries:
            raise KeyError(name)
        tokens = dict.fromkeys(re.findall(r"map\.get\('([^']+)'\)", source), USUAL["image_token_id"])
        return tokens | {f"{begin}{index}>": 10 + index for _, begin in begins for index in range(entries)}

    def compared(self, name: str) -> list[str]:
        """The texts that the model's module compares a value of this name with."""
        compares = (node for node in ast.walk(self._tree()[0]) if isinstance(node, ast.Compare))
        found = (node.comparators for node in compares if (name_path(node.left) or ("",))[-1] == name)
        constants = (one for given in found for value in given for one in ast.walk(value))
        texts = (one.value for one in constants if isinstance(one, ast.Constant) and isinstance(one.value, str))
        return list(dict.fromkeys(texts))

    def _tree(self) -> tuple[ast.Module, dict[str, Any]]:
        """The model's module as a tree, and its namespace."""
        names = vars(sys.modules[self.module]) if self.module in sys.modules else {}
        return ast.parse("".join(linecache.getlines(names.get("__file__") or ""))), names

    def _arguments(self, owner: Any, name: str) -> dict[str, Any]:
        """A dictionary that the model's module gives a class as its arguments: those without a default, by name.

        A language model that was guessed gets the columns that this class has by default.
        """
        tree, names = self._tree()
        for node in ast.walk(tree):
            spread = (
                [keyword.value for keyword in node.keywords if not keyword.arg] if isinstance(node, ast.Call) else []
            )
            if any((name_path(value) or ("",))[-1] == name for value in spread):
                cls = names[ast.unparse(node.func)]  # type: ignore[attr-defined]
                given = {keyword.arg for keyword in node.keywords}  # type: ignore[attr-defined]
                parameters = [one for one in inspect.signature(cls).parameters.values() if one.name not in given]
                columns = next((one.default for one in parameters if one.name in _COLUMNS), None)
                if isinstance(columns, int) and f"{self.path_of(owner)}hidden_size" in self.guessed:
                    owner.hidden_size = columns
                return {
                    one.name: USUAL[one.name]
                    for one in parameters
                    if one.default is one.empty and one.kind is not one.VAR_KEYWORD
                }
        raise KeyError(name)

    def parts(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """The configuration and those inside it, with their paths."""
        yield from _parts(self.hf_config, ())

    def path_of(self, owner: Any) -> str:
        """The dotted path of a part, with a dot behind it; empty for the whole."""
        path = next((path for path, part in self.parts() if part is owner), ())
        return "".join(f"{name}." for name in path)

    def vision(self) -> Any:
        """The part that describes the vision tower; the whole where no part does."""
        named = [(path, part) for path, part in self.parts() if path and role_of(path) == "vision"]
        sized = [part for _, part in named if getattr(part, "patch_size", None)]
        return next(iter(sized or [part for _, part in named]), self.hf_config)

    def find(self, name: str) -> Any:
        """The value of this name in the configuration or a part of it; None where none has one."""
        for _, part in self.parts():
            value = getattr(part, name, None)
            if value is not None:
                return value
        return None

    def widths(self) -> str:
        """The widths of the parts, for readers."""
        found = []
        for path, part in self.parts():
            width = next((v for n in ("hidden_size", "embed_dim", "width", "d_model") if (v := getattr(part, n, 0))), 0)
            if isinstance(width, int) and width:
                found.append(f"{'.'.join(path) or 'model'} {width}")
        return ", ".join(found)


def _guessed_tower(cls: Any) -> Any:
    """A small configuration of a tower, of this class with its defaults."""
    from transformers import SiglipVisionConfig

    if cls in (None, SiglipVisionConfig):
        return SiglipVisionConfig(
            hidden_size=64, intermediate_size=80, num_hidden_layers=LAYERS, num_attention_heads=2, image_size=_SIDE,
            patch_size=14,
        )  # fmt: skip
    language = {"hidden_size": 2048, "num_attention_heads": 16}
    tree = {"vision_config": cls().to_dict(), "text_config": language}
    shrink(tree)
    return cls.from_dict(tree["vision_config"])


def _parts(config: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, config
    for key, value in list(vars(config).items()):
        if _is_config(value) and len(path) < 4:
            yield from _parts(value, (*path, key))


def _is_config(value: Any) -> bool:
    from transformers import PretrainedConfig

    return isinstance(value, PretrainedConfig)


def _empty(values: Mapping[str, Any] | None = None) -> Any:
    """A configuration without a class; what looks like one inside becomes one, as remote code would make it."""
    from transformers import PretrainedConfig

    made = PretrainedConfig()
    for key, value in (values or {}).items():
        named = key.endswith(("_config", "_cfg")) and not key.startswith("processor")
        part = isinstance(value, dict) and (named or "model_type" in value)
        setattr(made, key, _empty(value) if part else value)
    return made


# -- values ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigurationSource:
    """The source of a model's configurations, in attempts that differ in how they are shrunk."""

    cls: type | None
    how: str
    values: dict[str, Any] | None
    settings: Any
    tower: type | None = None
    #: Module in whose namespace the host's class stands.
    module: str = ""
    #: The folder that has the model's processor, too.
    checkpoint: Checkpoint | None = None

    def attempts(self) -> tuple[Attempt, ...]:
        if self.cls is None and self.values is None:
            return (Attempt(empty=True),)
        levels = tuple(map(Attempt, Level))
        if self.values is not None:
            return levels
        # Defaults of a class may contradict each other, in their geometry first, or have types that do not fit.
        others = Attempt(geometry=(448, 14)), Attempt(geometry=(896, 14))
        # Given values are of the class: a guess has a place for any.
        return levels[0], *others, *levels[1:], *(() if self.settings.set else (Attempt(empty=True),))

    def make(self, attempt: Attempt) -> Configuration:
        """A small configuration. Raises what the configuration's class raises."""
        if attempt.empty:
            # Models read the number of tiles with a default of one, with which cutting them is not tried.
            some = {name: USUAL[name] for name in ("max_dynamic_patch",) if name not in self.settings.set}
            made = _empty({**some, **self.settings.set})
            none = "no class of its configuration was found" if self.cls is None else f"no {self.cls.__name__} runs"
            return Configuration(made, none, list(some), self.tower, self.module)
        tree = copy.deepcopy(self.values) if self.values is not None else _default_values(self.cls)
        if attempt.geometry:
            for path, part in parts_of(tree):
                if role_of(path) == "vision" and {"image_size", "patch_size"} <= part.keys():
                    part["image_size"], part["patch_size"] = attempt.geometry
                if part.keys() >= set(_WINDOWS):
                    part.update(zip(_WINDOWS, _FRAMES, strict=True))
        if attempt.level is not None:
            fixed = dict(fixed_towers(self.module, tree))
            tree.update({name: tower.sizes for name, tower in fixed.items()})
            shrink(tree, attempt.level, frozenset(self.settings.keep))
            for name, tower in fixed.items():
                tower.install(tree.pop(name))
        _merge(tree, self.settings.set, known=self.values is None)
        hf_config = self._object(tree)
        _put(hf_config, self.settings.set)
        name = self.cls.__name__ if self.cls else "a configuration without a class"
        made = Configuration(hf_config, f"{name} ({self.how})", tower=self.tower, module=self.module)
        if self.settings.set:
            made.source += f", with {', '.join(self.settings.set)} set"
        return made

    def _object(self, tree: dict[str, Any]) -> Any:
        if self.cls is None:
            return _empty(tree)
        if self.values is not None:
            return self.cls.from_dict(tree)  # type: ignore[attr-defined]
        made = self.cls()
        parts = [name for name, part in vars(made).items() if _is_config(part)]
        with suppress(AttributeError, TypeError, ValueError):
            read = self.cls.from_dict(tree)  # type: ignore[attr-defined]
            if all(_is_config(getattr(read, name, None)) for name in parts):
                return read
        # Some classes do not read what they write, refuse fewer layers (Bailing's), or keep a part as a dictionary.
        _complete(made)
        _assign(made, tree)
        return made


def _assign(config: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        old = getattr(config, name, None)
        if _is_config(old) and isinstance(value, dict):
            _assign(old, value)
        elif type(old) is type(value) and old != value:
            setattr(config, name, value)


def _merge(tree: dict[str, Any], values: Mapping[str, Any], known: bool, path: str = "") -> None:
    """Put values into a tree. With `known` keys, a name that is not there and that no code reads is a slip."""
    for name, value in values.items():
        if known and name not in tree and not _is_read(name):
            raise NoRecipe(
                f"the configuration has no `{path}{name}`, and no module that the model imports reads it",
                "correct the name in --set or below `verify.set`",
            )
        if isinstance(value, Mapping) and isinstance(tree.get(name), dict):
            _merge(tree[name], value, known, f"{path}{name}.")
        else:
            tree[name] = value


def _put(config: Any, values: Mapping[str, Any]) -> None:
    """Set values that a class does not take from a tree, because it has no such key or another type there."""
    for name, value in values.items():
        old = getattr(config, name, None)
        if _is_config(old) and isinstance(value, Mapping):
            _put(old, value)
        elif not hasattr(config, name) or old is None:
            setattr(config, name, value)


def _is_read(name: str) -> bool:
    """Whether the source of a module of models, of which the lab imports what a model imports, has this word."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    files = (getattr(module, "__file__", None) for key, module in list(sys.modules.items()) if key.startswith(MODELS))
    return any(word.search(Path(file).read_text(encoding="utf-8")) for file in files if file)


@dataclass(frozen=True, slots=True)
class MissingValue:
    """A value of the configuration that code reads at `place` and that is not there, or is None."""

    path: str
    place: str
    absent: bool

    def __str__(self) -> str:
        return f"{self.place} reads `{self.path}`, " + (
            "which the configuration lacks" if self.absent else "which is None in the configuration"
        )


def missing_value(configuration: Configuration, error: BaseException) -> MissingValue | None:
    """The value of a configuration whose absence is the cause of an exception; None where it is another one."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    for cause in reversed(causes):
        frames = [frame for frame in traceback.walk_tb(cause.__traceback__) if not _is_getter(frame[0])]
        if not frames:
            continue
        name, owner = getattr(cause, "name", None), getattr(cause, "obj", None)
        if isinstance(cause, AttributeError) and name and _is_config(owner):
            return MissingValue(f"{configuration.path_of(owner)}{name}", _place(*frames[-1]), absent=True)
        if "NoneType" in str(cause):
            # The value may be an argument by now: it is read where a caller waits.
            for frame, line in reversed(frames):
                for config, read in _nones(frame, line, configuration):
                    return MissingValue(f"{configuration.path_of(config)}{read}", _place(frame, line), absent=False)
    return None


def _place(frame: FrameType, line: int) -> str:
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{line}"


def _is_getter(frame: FrameType) -> bool:
    """Whether a frame is of the class of all configurations, whose methods get the attributes."""
    return Path(frame.f_code.co_filename).name == "configuration_utils.py"


def _nones(frame: FrameType, line: int, configuration: Configuration) -> Iterator[tuple[Any, str]]:
    """The values in a line of a frame that are None in a configuration: it, and the name there.

    A variable of such a value has its name in most models.
    """
    parts = [part for _, part in configuration.parts()]
    with suppress(OSError, SyntaxError):
        source = "".join(linecache.getlines(frame.f_code.co_filename))
        there = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        # The innermost one: a call of several lines runs at its first.
        for node in ast.walk(there[-1]) if there else ():
            if isinstance(node, ast.Attribute):
                path = name_path(node.value)
                value = frame.f_locals.get(path[0]) if path else None
                for name in path[1:]:
                    value = getattr(value, name, None)
                if _is_config(value) and getattr(value, node.attr, 0) is None:
                    yield value, node.attr
            elif isinstance(node, ast.Name) and frame.f_locals.get(node.id, 0) is None:
                yield from ((part, node.id) for part in parts if getattr(part, node.id, 0) is None)


def _default_values(cls: Any) -> dict[str, Any]:
    """Defaults of a class, with those of parts whose default is None, but for audio."""
    made = cls()
    _complete(made)
    values: dict[str, Any] = made.to_dict()
    return values


def _complete(config: Any) -> None:
    for key, value in list(vars(config).items()):
        if value == key and key in USUAL:  # a class whose default is the attribute's name
            setattr(config, key, USUAL[key])
    for key, cls in getattr(type(config), "sub_configs", {}).items():
        if getattr(config, key, None) is None and not re.search("audio|speech|video", key):
            known = isinstance(cls, type) and cls.__name__ not in ("AutoConfig", "PreTrainedConfig", "PretrainedConfig")
            with suppress(Exception):
                # A part of any class: the whole has a type for one that does not say its own.
                setattr(config, key, cls() if known else getattr(type(config)(**{key: {}}), key))
        if _is_config(getattr(config, key, None)):
            _complete(getattr(config, key))


def find_configuration(host: type, settings: Any) -> ConfigurationSource:
    """The class and the values for a host class. `settings.config` is the checkpoint's file or folder, or empty."""
    if not settings.config:
        cls, how = _find_class(host)
        return ConfigurationSource(cls, how, None, settings, _tower_class(host), host.__module__)
    given = Path(settings.config)
    file = given / CONFIG if given.is_dir() else given
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoRecipe(f"{file} cannot be read: {error}", f"give the checkpoint's own {CONFIG}") from None
    if not isinstance(values, dict):
        raise NoRecipe(f"{file} holds no object", f"give the checkpoint's own {CONFIG}")
    # vLLM's loader renames parts that a checkpoint calls otherwise than vLLM's models do: InternVL's `llm_config`.
    for old, new in importlib.import_module("vllm.transformers_utils.config")._CONFIG_ATTRS_MAPPING.items():
        if old in values:
            values.setdefault(new, copy.deepcopy(values[old]))
    if given.is_dir():
        checkpoint = Checkpoint(given, settings.trust_remote_code)
        cls, how = checkpoint.config_class(), f"{given.name}/{CONFIG}"
        return ConfigurationSource(cls, how, values, settings, _tower_class(host), host.__module__, checkpoint)
    cls = _class_of_type(values.get("model_type"))
    if cls is None and values.get("model_type"):
        # The checkpoint brings the class as remote code; transformers may have another one for the architecture.
        cls = next((found for way in (_asked_for, _annotated) if (found := way(host)[0])), None)
    elif cls is None:
        cls, _ = _find_class(host)
    return ConfigurationSource(cls, given.name, values, settings, _tower_class(host), host.__module__)


# -- classes -----------------------------------------------------------------------------------------------------------


def _usable(cls: Any) -> bool:
    from transformers import PretrainedConfig

    return isinstance(cls, type) and issubclass(cls, PretrainedConfig) and cls is not PretrainedConfig


def _class_of_type(model_type: str | None) -> type | None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    for table in (_CONFIG_REGISTRY, CONFIG_MAPPING):
        if model_type in table:
            found = table[model_type]
            return found if _usable(found) else None
    return None


def _find_class(host: type) -> tuple[type | None, str]:
    for cls in host.__mro__:
        if cls is not host and "_processor_factory" not in vars(cls):
            continue
        suffix = "" if cls is host else f", as for {cls.__name__}"
        for way in (_asked_for, _annotated, _in_tables):
            found, how = way(cls)
            if found is not None:
                return found, how + suffix
    return _by_name(host)


class _Asked(Exception):
    """Ends the question, once the type is known."""


class _RecordingContext:
    def __init__(self) -> None:
        self.types: list[Any] = []

    def get_hf_config(self, asked: Any = None, *rest: Any) -> Any:
        self.types += asked if isinstance(asked, tuple) else [asked]
        raise _Asked

    def __getattr__(self, name: str) -> Any:
        raise _Asked


def _asked_for(host: Any) -> tuple[type | None, str]:
    factory = getattr(host, "_processor_factory", None)
    context = _RecordingContext()
    with suppress(Exception):
        factory.info(context).get_hf_config()  # type: ignore[union-attr]
    found = next(filter(_usable, context.types), None)
    return found, f"asked for by {factory.info.__name__}" if found else ""  # type: ignore[union-attr]


def _annotated(host: type) -> tuple[type | None, str]:
    for tree, names in init_trees(host):
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and node.value is not None and "hf_config" in ast.unparse(node.value):
                found = names.get(ast.unparse(node.annotation).strip("'\""))
                if _usable(found):
                    return found, f"annotated in {host.__name__}"
    return None, ""


def lineage(host: Any) -> Iterator[Any]:
    """The classes that describe a model's inputs, its processing information's and its processor's, with their bases.

    Some models give functions that choose a class: a function is all that is known of those before it is called.
    """
    factory = host._processor_factory
    for made in (factory.info, get_origin(factory.processor) or factory.processor):
        yield from made.__mro__ if isinstance(made, type) else (made,)


def init_trees(host: type) -> Iterator[tuple[ast.AST, dict[str, Any]]]:
    """Every `__init__` of a model's class and its bases, with the namespace of its module."""
    return method_trees(host, {"__init__"})


def method_trees(host: type, wanted: Set[str]) -> Iterator[tuple[ast.AST, dict[str, Any]]]:
    """Every method of these names of a model's class and its bases, with the namespace of its module."""
    for base in host.__mro__:
        for name in sorted(wanted & vars(base).keys()) if base.__module__.startswith(MODELS) else ():
            with suppress(OSError, SyntaxError, TypeError):
                source = textwrap.dedent(inspect.getsource(vars(base)[name]))
                yield ast.parse(source), vars(sys.modules[base.__module__])


def _in_tables(host: type) -> tuple[type | None, str]:
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.model_executor.models import registry

    entries = registry._MULTIMODAL_MODELS.items()
    served = {name for name, entry in entries if _is_in(host, entry[0]) and entry[1] == host.__name__}
    for table_name, table in vars(modeling_auto).items():
        if not table_name.endswith("MAPPING_NAMES"):
            continue
        for model_type, names in table.items():
            if served & {names} if isinstance(names, str) else served & set(names):
                with suppress(Exception):
                    return CONFIG_MAPPING[model_type], "transformers' table of architectures"
    return None, ""


def _is_in(host: type, module: str) -> bool:
    """Whether a class is in the module that the registry names, or in a package of that name."""
    dotted = module if of_tree(module) else f"{MODELS[0]}{module}"
    return f"{host.__module__}.".startswith(f"{dotted}.")


def _by_name(host: type) -> tuple[type | None, str]:
    """vLLM's own classes only: transformers' of a similar name are as often of another model."""
    configs = importlib.import_module("vllm.transformers_utils.configs")

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    stem = re.sub(r"(ForConditionalGeneration|ForCausalLM|ChatModel|Model|ForActionPrediction)$", "", host.__name__)
    wanted = (plain(stem), plain(host.__module__.rpartition(".")[2]))
    # Where there are two, the shorter one is of the language model.
    for likely in (*(f"{name}vl" for name in wanted), *wanted):
        for name in configs.__all__:
            if plain(name.removesuffix("Config")) == likely and _usable(getattr(configs, name)):
                return getattr(configs, name), "vLLM's class of this name"
    return None, "none"


def _tower_class(host: type) -> type | None:
    """The one class of a tower's configuration that the module of the host or of a base names."""
    for cls in host.__mro__:
        if cls.__module__.startswith(MODELS):
            names = vars(sys.modules[cls.__module__])
            found = {value for name, value in names.items() if name.endswith("VisionConfig") and _usable(value)}
            if len(found) == 1:
                tower: type = found.pop()
                return tower
    return None


def repaired(step: Callable[[], Any], *menders: Any) -> Any:
    """Run a step again and again while one of `menders` can add what it misses."""
    for _ in range(60):
        try:
            return step()
        except Exception as error:
            causes: list[BaseException] = [error]
            while cause := causes[-1].__cause__ or causes[-1].__context__:
                causes.append(cause)
            if not any(mender.repair(cause) for cause in causes for mender in menders):
                raise
    raise RuntimeError("the configuration misses more than 60 values")


#: Half of the frames that are convolved together, and those that attend to each other: one and eight seconds of sound,
#: which processors count by.
_WINDOWS, _FRAMES = ("n_window", "n_window_infer"), (50, 800)
#: Columns of what a tower gives to the language model, as an argument of its class.
_COLUMNS = ("output_dim", "out_hidden_size", "output_hidden_size")
#: Pixels of a side of a guessed tower's image.
_SIDE = 112
#: Usual values of a configuration's attributes, by name: for configurations that no class and no file describes.
USUAL: dict[str, Any] = {
    # towers
    "hidden_size": 64, "embed_dim": 64, "width": 64, "intermediate_size": 80, "mlp_ratio": 2,
    "num_hidden_layers": LAYERS, "depth": LAYERS, "layers": LAYERS, "num_layers": LAYERS, "num_attention_heads": 2,
    "num_heads": 2, "heads": 2, "num_key_value_heads": 2, "head_dim": 32, "kv_channels": 32, "num_channels": 3,
    "in_channels": 3, "image_size": 56, "patch_size": 14, "image_patch_size": 14, "temporal_patch_size": 2,
    "spatial_merge_size": 2, "window_size": 112, "out_hidden_size": 96, "output_dim": None,
    "default_output_length": 280, "layer_norm_eps": 1e-6, "layer_norm_epsilon": 1e-6,
    "rms_norm_eps": 1e-6,
    "norm_type": "layer_norm", "hidden_act": "gelu", "qkv_bias": True, "attention_bias": True,
    "mlp_bias": True, "use_bias": False, "qk_normalization": False, "use_qk_norm": False, "attention_dropout": 0.0,
    "hidden_dropout_prob": 0.0, "dropout": 0.0, "drop_path_rate": 0.0, "initializer_factor": 1.0,
    "initializer_range": 0.02, "embed_std": 0.02, "layer_scale_init_value": 0.1, "ls_init_value": None,
    "is_causal": False, "post_norm": True, "use_cls_token": False, "use_abs_posemb": True,
    "use_absolute_position_embeddings": True, "use_rope2d": True, "use_ln_pre": True, "use_ln_post": False,
    "use_mask_token": False, "apply_vit_abs_pos_embed": True,
    "use_mean_pooling": True, "use_sink": False, "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [1], "num_position_embeddings": 64, "tokens_per_second": 2, "original_rope": True,
    # connectors
    "downsample_ratio": 0.5, "ps_version": "v2", "select_layer": -1, "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default", "projector_hidden_act": "gelu", "multimodal_projector_bias": True,
    "projector_bias": False, "projection_dropout": 0.0, "mm_hidden_size": 64, "mm_vision_tower": "vit",
    "spatial_conv_size": 2, "temporal_conv_size": 2, "use_temporal_conv": True, "query_num": 16,
    "visual_vocab_size": 64, "tile_tag": "2D", "global_view_pos": "head", "use_msac": False,
    # tiles
    "use_thumbnail": True, "dynamic_image_size": True, "min_dynamic_patch": 1,
    "max_dynamic_patch": 4, "max_num_tiles": 4, "template": "internvl2_5",
    # language
    "vocab_size": 1024, "embedding_size": 1024, "max_position_embeddings": 4096, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "weight_tying": False, "architectures": ["Qwen2ForCausalLM"],
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "model_type": "qwen2", "image_token_id": 5, "image_token_index": 5, "video_token_id": 6,
    "vision_start_token_id": 7, "vision_end_token_id": 8,
}  # fmt: skip
