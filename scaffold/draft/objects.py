"""The parts of a model, by what its constructors say: classes, configurations and sizes, found on demand.

`Objects` evaluates `__init__` of a class with arguments that only have names, and that of a part with what the model
gives it. So `self.vision_tower.config` of a tower is `self.config.vision_config` of the model, through functions that
make a tower, local names and base classes.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from scaffold.descriptor.expressions import ExpressionError, parse_expression
from scaffold.draft.evaluate import Evaluator, Scope
from scaffold.draft.values import Closure, Made, Op, Plain, Ref, SourceLine, Term, walk_value
from scaffold.tower.source import Module, Owner, Program

_DEPTH = 6
#: Layers of a transformer, by what makes them.
_LAYERS = ("ModuleList", "make_layers")
#: A part without a class of its own, which holds others.
_BARE = ("nn.Module", "torch.nn.Module")
#: One of two values, by a condition that the source does not decide.
_EITHER = "either"
#: Functions whose result says what their argument says.
_COPIES = ("deepcopy", "copy.deepcopy", "copy.copy")
#: The packages whose code a tree has, or that make no encoders.
_OWN = {"vllm", "torch", *sys.stdlib_module_names}
#: Functions and classes of other packages that make whole encoders.
_ENCODER = re.compile(r"AutoModel|AutoBackbone|create_model|^(timm|open_clip)\b|^transformers\b.*:.*(Model|Encoder)\b")


class Objects:
    """The parts of a model class, by their path from `self` on."""

    def __init__(self, program: Program, owner: Owner) -> None:
        self._program, self._owner = program, owner
        self._parts: dict[str, _Constructor] = {}

    def cls(self, path: str) -> Owner | None:
        """The class of a part if it is in the tree; that of the model for `self`."""
        if path == "self":
            return self._owner
        value = self.value(path)
        if isinstance(value, Ref) and value.path.startswith("self.") and value.path != path:
            return self.cls(value.path)
        made = _made(value)
        if made is not None:
            return made.owner
        parent, _, name = path.rpartition(".")
        return self._part(parent).declared.get(name) if self._knows(parent) else None

    def value(self, path: str) -> Term | None:
        """The value that the constructor of a part's owner sets it to; None if no constructor in the tree sets it."""
        parent, _, name = path.rpartition(".")
        return self._part(parent).attributes.get(name) if self._knows(parent) else None

    def attributes(self, path: str) -> Mapping[str, Term]:
        """The attributes that the constructor of a part sets."""
        return self._part(path).attributes if self._knows(path) else {}

    def place(self, path: str) -> SourceLine | None:
        """Where a part is set."""
        parent, _, name = path.rpartition(".")
        return self._part(parent).places.get(name) if self._knows(parent) else None

    def outside(self, path: str) -> bool:
        """Whether a part is an encoder by its name alone, which another package than vLLM's makes."""
        value = self.value(path)
        return value is not None and any(map(_is_encoder, walk_value(value)))

    def foreign(self, path: str) -> str | None:
        """The class or function of another package that makes a part, as `package:name`; none of it is in the tree."""
        made = _inner(self.value(path))
        return made.name if isinstance(made, Op) and ":" in made.name else None

    def text(self, value: Term | None) -> str | None:
        """A value as an attribute path of the model, or a number; None if the model does not keep it."""
        if isinstance(value, Plain):
            return str(value.value) if isinstance(value.value, int) and not isinstance(value.value, bool) else None
        if isinstance(value, Ref):
            return value.path if value.path.startswith("self.") else None
        for name, kept in self.attributes("self").items():
            if value is not None and not isinstance(kept, Plain) and kept == value:
                return f"self.{name}"
        if not isinstance(value, Op):
            return None
        inner = self.text(value.args[0]) if value.args else None
        if inner is None or value.name in _COPIES:
            return inner
        if value.name.startswith(".") and value.name[1:].isidentifier() and len(value.args) == 1:
            return f"{inner}{value.name}"
        if value.name == "[]" and isinstance(value.args[1], Plain):
            return said(f"{inner}[{value.args[1].value!r}]")
        return None

    def part_reads(self, path: str) -> Sequence[Term]:
        """Attributes that the constructor of a part reads."""
        return self._part(path).read if self._knows(path) else ()

    def reads(self, path: str) -> Iterator[Term]:
        """Attributes that the constructors of a part and of its parts read, the outer ones first."""
        for part in self._visited(path):
            yield from part.read

    def kept(self, path: str) -> Iterator[tuple[str, Term]]:
        """The attributes that the constructors of a part and of its parts set, each with its path."""
        for part in self._visited(path):
            for name, value in part.attributes.items():
                yield f"{part.path}.{name}", value

    def taken(self, path: str) -> Iterator[Term]:
        """Elements that the constructors of a part and of its parts take of a value."""
        for value in self._visited(path):
            yield from value.elements

    def encodes(self, path: str, depth: int = 0) -> bool:
        """Whether a part has layers of its own or in a part of it, or comes from a package that makes encoders."""
        if self.outside(path):
            return True
        for name, kept in self.attributes(path).items():
            if self.outside(f"{path}.{name}"):
                return True
            if any(isinstance(part, Op) and part.name.endswith(_LAYERS) for part in walk_value(kept)):
                return True
            if _made(kept) is not None and depth < _DEPTH and self.encodes(f"{path}.{name}", depth + 1):
                return True
        return False

    def _visited(self, path: str, depth: int = 0) -> Iterator[_Constructor]:
        """The constructor of a part and those of its parts, the outer ones first; of the model its own alone."""
        if depth < _DEPTH and self._knows(path):
            yield self._part(path)
            for name, kept in self.attributes(path).items() if path != "self" else ():
                if _made(kept) is not None:
                    yield from self._visited(f"{path}.{name}", depth + 1)

    def _knows(self, path: str) -> bool:
        return path == "self" or (path.startswith("self.") and path.count(".") <= _DEPTH and self.cls(path) is not None)

    def _part(self, path: str) -> _Constructor:
        if path not in self._parts:
            cls = self.cls(path)
            assert cls is not None, "asked before"
            self._parts[path] = _Constructor(self._program, cls, path)
            self._parts[path].run(_made(self.value(path)) if path != "self" else None)
        return self._parts[path]


def _made(value: Term | None) -> Made | None:
    """The object that a value is, if its class is in the tree."""
    inner = _inner(value)
    return inner if isinstance(inner, Made) else None


def _inner(value: Term | None) -> Term | None:
    """A value behind methods that give it back (`.to(dtype)`); of two possible ones the first."""
    while isinstance(value, Op) and value.args and (value.name.startswith(".") or value.name == _EITHER):
        value = value.args[0]
    return value


def _tells(value: Term) -> bool:
    """Whether the result of a function says more than its call: an object, a literal or a part of an argument."""
    parts = list(walk_value(value))
    if any(isinstance(part, Made) or _is_encoder(part) for part in parts):
        return True
    return all(
        isinstance(part, Plain) or (isinstance(part, Op) and (part.name == "parameter" or part.name.startswith(".")))
        for part in parts
    )


def _is_encoder(value: Term) -> bool:
    name = value.name if isinstance(value, Op) else value.path if isinstance(value, Ref) else ""
    return _ENCODER.search(name) is not None


def _qualified(module: Module, path: str) -> str:
    """A name that a module imports from another package, as `package:name`; any other name as it is."""
    first, dot, rest = path.partition(".")
    package, member = module.imports.get(first, ("", None))
    if not package or package.partition(".")[0] in _OWN:
        return path
    return f"{package}:{member or ''}{dot if member else ''}{rest}"


def said(text: str) -> str | None:
    """An expression, if the language of descriptors has it."""
    try:
        parse_expression(text)
    except ExpressionError:
        return None
    return text


class _Constructor(Evaluator):
    """`__init__` of one part. `declared` are classes that only an annotation tells, `read` attributes that it reads,
    `elements` what it takes of them by an index or by unpacking."""

    def __init__(self, program: Program, cls: Owner, path: str) -> None:
        super().__init__(program, cls, deep=True)
        self.path = path
        self.attributes: dict[str, Term] = {}
        self.places: dict[str, SourceLine] = {}
        self._depths: dict[str, int] = {}
        self.read: list[Term] = []
        self.elements: list[Term] = []
        self.declared: dict[str, Owner] = {}

    def run(self, made: Made | None) -> None:
        """Evaluate it with the arguments of the call that makes the part, or with names alone."""
        found = self._program.method(self._cls, "__init__")
        if found is None:
            return
        closure = Closure(found[0], (found[0], found[1]), found[2], {}, bound=True, receiver=self.path)
        self._call(closure, list(made.args) if made else [], dict(made.keywords) if made else {}, 0)

    def _call(self, function: Closure, args: list[Term], keywords: dict[str, Term], depth: int) -> Term:
        """The first of several things that a function may make: they differ in class and not in configuration."""
        if depth > _DEPTH:
            return Op("too deep", ())
        values = [value for value in self._returned(function, args, keywords, depth) if value != Plain(None)]
        objects = [value for value in values if isinstance(value, Made)]
        return (objects or values[-1:] or [Plain(None)])[0]

    def _value(self, node: ast.expr, frame: Scope) -> Term:
        if isinstance(node, ast.IfExp) and self._truth(node.test, frame) is None:
            values = [self._value(part, frame) for part in (node.body, node.orelse)]
            known = [value for value in values if value != Plain(None)]
            return Op(_EITHER, tuple(known)) if len(known) == 2 and known[0] != known[1] else (known or values)[0]
        return super()._value(node, frame)

    def _statement(self, node: ast.stmt, frame: Scope) -> bool:
        if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.annotation, ast.Name):
            name = ast.unparse(node.target).removeprefix("self.")
            found = self._program.resolve(frame.module, node.annotation.id)
            if found is not None and isinstance(found[1], ast.ClassDef):
                self.declared[name] = (found[0], found[1])
        return super()._statement(node, frame)

    def _subscript(self, node: ast.Subscript, frame: Scope) -> Term:
        self.elements.append(found := super()._subscript(node, frame))
        return found

    def _assign(self, target: ast.expr, value: Term, frame: Scope) -> None:
        if isinstance(target, ast.Tuple):
            self.elements.append(Op("[]", (value, Plain(0))))
        super()._assign(target, value, frame)
        if not isinstance(target, ast.Attribute):
            return
        holder = self._value(target.value, frame)
        known = self.attributes.get(target.attr, Plain(None))
        # A class replaces a part of its base; of two ways through one function the first counts.
        replaced = isinstance(value, Made) and frame.depth < self._depths.get(target.attr, 0)
        if isinstance(holder, Ref) and holder.path == self.path and (known == Plain(None) or replaced):
            self.attributes[target.attr] = value
            self.places[target.attr] = self._place(target, frame)
            self._depths[target.attr] = frame.depth
        elif isinstance(holder, Op) and holder.name in _BARE and isinstance(target.value, ast.Attribute):
            name = ast.unparse(target).removeprefix("self.")
            self.attributes[name], self.places[name] = value, self._place(target, frame)

    def _attribute(self, value: Term, node: ast.Attribute, frame: Scope) -> Term:
        """The value that an attribute was set to before, where that is one of the constructor's own values."""
        if isinstance(value, Ref) and value.path == self.path:
            known = self.attributes.get(node.attr)
            if isinstance(known, Op):
                return known
        found = super()._attribute(value, node, frame)
        self.read.append(found)
        return found

    def _apply(self, function: Term, args: list[Term], keywords: dict[str, Term], node: ast.Call, frame: Scope) -> Term:
        """A method without arguments is told from an attribute by its parentheses."""
        found = super()._apply(function, args, keywords, node, frame)
        if isinstance(function, Op) and isinstance(found, Op) and found.name == function.name and not node.args:
            return Op(f"{found.name}()", found.args, found.keywords, found.place)
        return found

    def _target(self, path: str, frame: Scope) -> Term | None:
        holder, _, name = path.rpartition(".")
        if holder != self.path:
            return super()._target(path, frame)
        found = self._program.method(self._cls, name)
        if found is None:
            return None
        return Closure(found[0], (found[0], found[1]), found[2], {}, bound=True, receiver=self.path)

    def _apply_named(
        self, path: str, args: list[Term], keywords: dict[str, Term], place: SourceLine, frame: Scope
    ) -> Term:
        holder, _, _ = path.rpartition(".")
        if holder == self.path:
            target = self._target(path, frame)
            return (
                self._call(target, args, keywords, frame.depth + 1)
                if isinstance(target, Closure)
                else Op(path, tuple(args), tuple(keywords.items()), place)
            )
        made = self._program.made_of(frame.module, path)
        if made is not None:
            return Made(made, tuple(args), tuple(keywords.items()), place)
        value = super()._apply_named(path, args, keywords, place, frame)
        if _tells(value):
            return value
        return Op(_qualified(frame.module, path), tuple(args), tuple(keywords.items()), place)
