"""Looks up paths of a model (`self.visual.spatial_merge_size`) in the source of its classes.

One look-up for the calls and for the values of a descriptor. Classes of configurations are read where the tree or the
installed transformers has them. Nothing is imported.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

from scaffold.protocol import find_model, find_subclasses
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import (
    FunctionNode,
    annotations_of,
    assigned_to,
    decorator_names,
    last_name,
    name_path,
    plain_base,
    self_attribute,
    sets,
    statements,
)
from scaffold.tower.embeds import refused_embeds
from scaffold.tower.source import Module, Owner, Program

#: How a hint begins that has names which are nearly the one that is not there.
NEAR = "did you mean"
#: Bases that bring no attribute of a model.
_CONFIGURATIONS = ("PreTrainedConfig", "PretrainedConfig")
#: The class of one input's field, whose code has no keys.
_FIELD = "MultiModalFieldConfig"
#: Sizes of torch's and vLLM's layers, whose classes are not read.
_SIZES = {"in_features", "out_features", "in_channels", "out_channels", "input_size", "output_size", "kernel_size"}
_PLAIN_BASES = {"Module", "ABC", "Protocol", "Generic", "object", *_CONFIGURATIONS}


#: Attributes and texts.
_NAMES = re.compile(r"\.([A-Za-z_]\w*)|[\"']([A-Za-z_]\w*)[\"']")


class Answer(Enum):
    KNOWN = "known"
    MISSING = "missing"
    #: It is there, and nothing that a call may reach.
    NO_PART = "no part"
    #: No source that could be read says whether it is there.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Found:
    """The answer for a path. `name` is the part of it that decides, `holder` what has it or not, `near` like names."""

    answer: Answer
    name: str = ""
    holder: str = ""
    near: tuple[str, ...] = ()

    @property
    def hint(self) -> str | None:
        return f"{NEAR} {' or '.join(f'`{name}`' for name in self.near)}?" if self.near else None


_KNOWN = Found(Answer.KNOWN)


@dataclass(frozen=True)
class _Class:
    """A class with the program that resolves its names: the tree's, or that of an installed package."""

    program: Program
    owner: Owner

    @property
    def name(self) -> str:
        return self.owner[1].name

    @property
    def attributes(self) -> frozenset[str]:
        """Names that the class and its bases define or set, and the keys of a configuration."""
        names = {name for _, node in self.program.lineage(self.owner) for name in _defined(node)}
        return frozenset(names | (self._base.attributes if self._base is not None else set()))

    def has_part(self, name: str) -> bool:
        """Whether there is a method of that name, or one sets an attribute to something that it makes by a call."""
        method = self.method(name)
        if method is not None:
            return not _gives_a_value(method)
        nodes = (node for _, cls in self.program.lineage(self.owner) for node in ast.walk(cls))
        values = (node.value for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign) and sets(node, name))
        made = (ast.unparse(call.func) for value in values if value for call in _calls_in(value))
        return any(not hasattr(builtins, maker) for maker in made)

    def method(self, name: str) -> FunctionNode | None:
        """A method of the class or of its bases; of transformers' class for a configuration."""
        found = self.program.method(self.owner, name)
        if found is not None:
            return found[2]
        return self._base.method(name) if self._base is not None else None

    @property
    def _base(self) -> _Class | None:
        """Transformers' class of configurations, for a class of one, since no program resolves it."""
        base = _installed("transformers.configuration_utils", _CONFIGURATIONS[0]) if self.is_configuration else None
        return base if base is not None and base.owner[1] is not self.owner[1] else None

    @property
    def is_configuration(self) -> bool:
        lineage = self.program.lineage(self.owner)
        return any(last_name(base) in _CONFIGURATIONS for _, node in lineage for base in node.bases)

    @property
    def is_whole(self) -> bool:
        """Whether all bases were read, so that what is not in `attributes` is not there."""
        for module, node in self.program.lineage(self.owner):
            for base in map(plain_base, node.bases):
                found = self.program.resolve(module, base.id) if isinstance(base, ast.Name) else None
                if found is None and last_name(base) not in _PLAIN_BASES:
                    return False
            if any(isinstance(item, FunctionNode) and item.name == "__getattr__" for item in node.body):
                return False
        return True


def _gives_a_value(method: FunctionNode) -> bool:
    return bool(decorator_names(method) & {"property", "cached_property"})


def _calls_in(value: ast.expr) -> Iterator[ast.Call]:
    return (node for node in ast.walk(value) if isinstance(node, ast.Call))


@cache
def _defined(node: ast.ClassDef) -> frozenset[str]:
    names = {item.name for item in node.body if isinstance(item, FunctionNode | ast.ClassDef)}
    for item in node.body:
        for target in assigned_to(item):
            if isinstance(target, ast.Name):
                names.add(target.id)
                value = getattr(item, "value", None)
                if target.id in ("attribute_map", "sub_configs") and isinstance(value, ast.Dict):
                    names |= {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}
        if isinstance(item, FunctionNode) and item.name == "__init__":
            names |= {argument.arg for argument in (*item.args.args, *item.args.kwonlyargs)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and self_attribute(part):
            names.add(part.attr)
    return frozenset(names)


def refuses_embeds(tree: SourceTree, module: str, class_name: str, modality: str) -> bool:
    """Whether the processors of a model and of all its heirs refuse precomputed embeddings of a modality."""
    model = find_model(tree, module, class_name)
    served = [(model.path, class_name)]
    served += [(heir.path, heir.class_name) for heir in find_subclasses(tree, module, class_name)]
    return all(ModelPaths(tree, path, name).refused_embeds(modality) for path, name in served)


class ModelPaths:
    """The paths of one model class of a tree."""

    def __init__(self, tree: SourceTree, path: str, class_name: str) -> None:
        self._tree = tree
        self._program = Program(tree)
        self._model = _Class(self._program, self._program.owner(path, class_name))

    @property
    def names(self) -> frozenset[str]:
        """Names that the model's class and its bases in the tree define or set."""
        return self._model.attributes

    def call(self, path: str) -> Found:
        """Whether a path leads to a part of the model, or to a method that a class of the tree defines.

        A method of another package's class counts only where the model's own code calls it.
        """
        *above, last = path.split(".")[1:]
        holder = self._holder(above)
        if isinstance(holder, Found):
            return holder
        if path in self._called or (holder is not None and holder.has_part(last)):
            return _KNOWN
        if holder is not None and last in holder.attributes:
            return Found(Answer.NO_PART, last, holder.name)
        if holder is None:
            return Found(Answer.MISSING, last, f"`{'.'.join(('self', *above))}`, whose class is not in the tree")
        return _missing(holder, last)

    def is_method(self, path: str) -> bool:
        """Whether a path leads to a method of a class that can be read."""
        *above, last = path.partition("[")[0].split(".")[1:]
        holder = self._holder(above)
        if not isinstance(holder, _Class):  # a configuration, or a part that a configuration has
            holder = self._model
            for name in above:
                holder = self._below(holder, name) if holder is not None and name in holder.attributes else None
        found = holder.method(last) if holder is not None else None
        return found is not None and not _gives_a_value(found)

    def _holder(self, names: Sequence[str]) -> _Class | Found | None:
        """The class of the tree that a part of the model is of; None for one of another package."""
        holder: _Class | None = self._model
        for name in names:
            if holder is not None and name not in holder.attributes:
                return _missing(holder, name)
            made = holder and self._program.attribute_class(holder.owner, name, returned=True)
            holder = _Class(self._program, made) if made else None
        return holder

    def value(self, path: str) -> Found:
        """Whether a path leads to something. The names that the model's own code reads count as known."""
        holder: _Class | None = self._model
        at = "self"
        for name in path.partition("[")[0].split(".")[1:]:
            if holder is not None and name in holder.attributes:
                holder = self._below(holder, name)
            elif name in _SIZES or name in self._mentioned or name in self._mentioned_near:
                holder = None
            else:
                return self._unknown(holder, name, at)
            at = f"{at}.{name}"
        return _KNOWN

    def _unknown(self, holder: _Class | None, name: str, at: str) -> Found:
        """A checkpoint's configuration may have more than its class: only a near miss is wrong there."""
        if holder is not None and holder.is_whole:
            found = _missing(holder, name)
            if found.near or not holder.is_configuration:
                return found
        return Found(Answer.UNKNOWN, name, f"`{at}`", tuple(get_close_matches(name, self._mentioned, 2, 0.8)))

    def field(self, key: str) -> Found:
        """Whether the processor makes an input, by the texts of its field configuration."""
        processor = self._registered("")
        texts, sure = self._fields
        if key in texts:
            return _KNOWN
        if processor is not None and sure and processor.is_whole:
            return Found(Answer.MISSING, key, processor.name, tuple(get_close_matches(key, texts, 2, 0.6)))
        return self.keyword(key)

    def keyword(self, key: str) -> Found:
        """Whether the model's own code names an input."""
        if key in self._mentioned:
            return _KNOWN
        return Found(Answer.UNKNOWN, key, "the processor", tuple(get_close_matches(key, self._mentioned, 2, 0.8)))

    def info_method(self, name: str) -> Found:
        """Whether the processing info that the model is registered with has a method."""
        info = self._registered("info")
        if info is None:
            return Found(Answer.UNKNOWN, name, "the processing info")
        return _KNOWN if name in info.attributes else _missing(info, name)

    def refused_embeds(self, modality: str) -> str:
        """Why the processor refuses precomputed embeddings of a modality, empty where nothing shows that it does."""
        processor, info = self._registered(""), self._registered("info")
        if processor is None:
            return ""
        return refused_embeds(self._program, processor.owner, info.owner if info is not None else None, modality)

    def uses(self, file: str, name: str, *, called: bool) -> bool:
        """Whether the files of the model's class, of its processor and of their bases name a function or a class of a
        file of the tree. `called`: they call it.
        """
        registered = (self._registered(what) for what in ("", "info", "dummy_inputs"))
        owners = [self._model, *(one for one in registered if one is not None)]
        modules = {module.file: module for one in owners for module, _ in one.program.lineage(one.owner)}
        return any(self._names(module, file, name, called) for module in modules.values())

    def _names(self, module: Module, file: str, name: str, called: bool) -> bool:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call if called else (ast.Name, ast.Attribute)):
                path = name_path(node.func if isinstance(node, ast.Call) else node)
                last = module.imports.get(path[-1], ("", None))[1] or path[-1] if path else ""
                found = self._program.resolve(module, ".".join(path)) if last == name else None
                if found is not None and found[0].file == file:
                    return True
        return False

    # -- the model's own words

    @cached_property
    def _files(self) -> tuple[Module, ...]:
        return tuple({module.file: module for module, _ in self._program.lineage(self._model.owner)}.values())

    @cached_property
    def _mentioned(self) -> frozenset[str]:
        """Attributes and texts in the files of the model's class and of its bases."""
        return frozenset(name for module in self._files for name in _names_in(module.text))

    @cached_property
    def _mentioned_near(self) -> frozenset[str]:
        """The same for the modules of the tree that these files import from beside them: towers and layers."""
        found: set[str] = set()
        for module in self._files:
            folder = module.file.rpartition("/")[0].replace("/", ".")
            for source in sorted({source for source, _ in module.imports.values() if source.startswith(folder)}):
                file = f"{source.replace('.', '/')}.py"
                if self._tree.exists(file):
                    found.update(_names_in(self._tree.read(file)))
        return frozenset(found)

    @cached_property
    def _called(self) -> frozenset[str]:
        """Paths that methods of the model call."""
        bodies = (node for _, node in self._program.lineage(self._model.owner))
        calls = (part for node in bodies for part in ast.walk(node) if isinstance(part, ast.Call))
        return frozenset(".".join(path) for call in calls if (path := name_path(call.func))[:1] == ["self"])

    # -- classes

    def _below(self, holder: _Class, name: str) -> _Class | None:
        """The class of an attribute."""
        for member in holder.program.lineage(holder.owner):
            found = holder.program.own_method(member, name)
            if found is not None:
                return None  # what a property gives is not read
            for item in member[1].body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == name:
                    return self._named(holder.program, member[0], item.annotation)
                if isinstance(item, ast.Assign) and [ast.unparse(one) for one in item.targets] == ["sub_configs"]:
                    parts = item.value if isinstance(item.value, ast.Dict) else ast.Dict([], [])
                    keys = [key.value if isinstance(key, ast.Constant) else None for key in parts.keys]
                    if name in keys:
                        return self._named(holder.program, member[0], parts.values[keys.index(name)])
        return self._given(holder, name) or self._made(holder, name)

    def _made(self, holder: _Class, name: str) -> _Class | None:
        """The class of what methods set an attribute to, if the first class that sets it does so once."""
        for _, node in holder.program.lineage(holder.owner):
            if count := sum(sets(part, name) for part in statements(node)):
                made = holder.program.attribute_class(holder.owner, name, returned=True) if count == 1 else None
                return _Class(holder.program, made) if made else None
        return None

    def _given(self, holder: _Class, name: str) -> _Class | None:
        """The class of an attribute that a constructor sets to something that it was given, by what it says of it."""
        for member in holder.program.lineage(holder.owner):
            init = holder.program.own_method(member, "__init__")
            if init is None:
                continue
            module, _, function = init
            said = annotations_of(function)
            for node in statements(function):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    said[node.target.id] = node.annotation
            for node in statements(function):
                path = name_path(node.value) if isinstance(node, ast.Assign) and sets(node, name) else []
                annotation = said.get(path[0]) if path else None
                cls = self._named(holder.program, module, annotation) if annotation is not None else None
                for part in path[1:]:
                    cls = cls and self._below(cls, part)
                if cls is not None:
                    return None if cls.name in _CONFIGURATIONS else cls
        return self._hf_config() if holder is self._model and name in ("config", "hf_config") else None

    def _hf_config(self) -> _Class | None:
        """The class that the model's processing info asks for as its configuration."""
        info = self._registered("info")
        method = self._program.method(info.owner, "get_hf_config") if info else None
        for node in ast.walk(method[2]) if method else ():
            if isinstance(node, ast.Call) and last_name(node.func) == "get_hf_config" and len(node.args) == 1:
                return self._named(self._program, method[0], node.args[0]) if method else None
        return None

    def _named(self, program: Program, module: Module, annotation: ast.expr) -> _Class | None:
        """The class that a text or an annotation names: `X`, `"X"`, `X | None`."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.Name(annotation.value)
        while isinstance(annotation, ast.BinOp):
            annotation = annotation.left
        if not isinstance(annotation, ast.Name):
            return None
        if program.resolve(module, annotation.id) is not None:
            found = program.resolve_class(module, annotation.id)
            return _Class(program, found) if found is not None else None
        source, member = module.imports.get(annotation.id, ("", None))
        return _installed(source, member) if member and source.partition(".")[0] == "transformers" else None

    # -- the processor

    def _registered(self, what: str) -> _Class | None:
        """The class that the model is registered with: its processor, or what a keyword of `register_processor` has."""
        for module, node in self._program.lineage(self._model.owner):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and last_name(decorator.func) == "register_processor":
                    keywords = {keyword.arg: keyword.value for keyword in decorator.keywords}
                    given = keywords.get(what) if what else next(iter(decorator.args), None)
                    found = self._program.resolve_class(module, given.id) if isinstance(given, ast.Name) else None
                    return _Class(self._program, found) if found is not None else None
        return None

    @cached_property
    def _fields(self) -> tuple[frozenset[str], bool]:
        """The texts and keywords of the field configuration, and whether no key is put together at run time."""
        texts: set[str] = set()
        processor = self._registered("")
        found = [
            (one, method)
            for one in (self._program.lineage(processor.owner) if processor else ())
            if (method := self._program.own_method(one, "_get_mm_fields_config")) is not None
        ]
        sure = [self._read(method[0], one, method[2], texts, 4) for one, method in found]
        return frozenset(texts), bool(texts) and all(sure)

    def _read(self, module: Module, owner: Owner, function: FunctionNode, texts: set[str], depth: int) -> bool:
        """Collect the texts of a function and of those of the tree that it calls; whether that is all of them."""
        whole = True
        for node in ast.walk(function):
            if isinstance(node, ast.JoinedStr):
                whole = False
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            if isinstance(node, ast.Call):
                texts |= {keyword.arg for keyword in node.keywords if keyword.arg}
                callee = self._program.callee(module, owner, name_path(node.func))
                if callee is not None and callee.definer is not None and callee.definer[1].name == _FIELD:
                    continue
                if callee is not None and callee.function is not function and depth:
                    whole &= self._read(callee.module, owner, callee.function, texts, depth - 1)
        return whole


def _names_in(text: str) -> Iterator[str]:
    return (one or two for one, two in _NAMES.findall(text))


def _missing(holder: _Class, name: str) -> Found:
    return Found(Answer.MISSING, name, holder.name, _like(name, holder.attributes))


def _like(name: str, known: frozenset[str]) -> tuple[str, ...]:
    """At most two names that are nearly this one, else names with all words of it: `_parse_image_input` is a part of
    `_parse_and_validate_image_input`."""
    words = {word for word in name.split("_") if word}
    near = get_close_matches(name, known, 2, 0.7)
    return tuple(near or sorted(one for one in known if len(words) > 1 and words <= set(one.split("_")))[:2])


@cache
def _transformers() -> SourceTree | None:
    """The folder that the installed transformers lies in."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parents[1]
    return SourceTree(root, str(root), None, installed=True)


@cache
def _installed(source: str, member: str) -> _Class | None:
    """A class of the installed transformers, also one that the package's top exports."""
    tree = _transformers()
    if tree is None:
        return None
    program = Program(tree)
    files = [f"{source.replace('.', '/')}.py"]
    if source == "transformers":
        spelled = member.lower()
        models = [folder.name for folder in (tree.root / "transformers/models").iterdir()]
        fitting = [name for name in models if spelled.startswith(name.replace("_", ""))]
        files = [
            f"transformers/models/{name}/configuration_{name}.py" for name in sorted(fitting, key=len, reverse=True)
        ]
    for file in files:
        module = program.module(file)
        if module is not None and member in module.classes:
            return _Class(program, (module, module.classes[member]))
    return None
