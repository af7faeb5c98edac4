"""Reads modules of a tree as AST and finds classes, methods and imported names in them. Never imports the tree."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scaffold.diagnostics import DiagnosticError, Span
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import (
    FunctionNode,
    SourceLines,
    assigned_to,
    call_name,
    import_source,
    name_path,
    plain_base,
    self_attribute,
    sets,
    top_level,
)

_HOLD_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
#: Methods of `current_platform` that are true on no GPU of NVIDIA, whose graphs these are.
_OTHER_PLATFORMS = {"is_rocm", "is_xpu", "is_cpu", "is_tpu"}
#: Packages whose base classes hold no code of a model, and modules of vLLM that say what a model is.
_GENERAL = {*sys.stdlib_module_names, "torch", "typing_extensions"}
_INTERFACES = ("vllm.model_executor.models.interfaces", "vllm.multimodal.")


@dataclass(eq=False)
class Module:
    """One parsed file. `shown` is its path for people; `imports` maps a name to (dotted module, member or None)."""

    file: str
    shown: str
    text: str
    tree: ast.Module
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, FunctionNode] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def span(self, node: ast.AST) -> Span:
        """Where a node stands."""
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0) + 1
        end_line = getattr(node, "end_lineno", None) or line
        end_column = (getattr(node, "end_col_offset", None) or column) + 1
        end_line, end_column = max((end_line, end_column), (line, column))
        return Span(self.shown, line, column, end_line, end_column)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The source text of a node."""
        return self._lines.segment(node) or ast.unparse(node)

    @cached_property
    def top_classes(self) -> dict[str, ast.ClassDef]:
        """The classes as `find_class` finds them, for who asks for one after the other."""
        return {node.name: node for node in top_level(self.tree.body) if isinstance(node, ast.ClassDef)}

    @cached_property
    def bindings(self) -> dict[str, list[str | tuple[str, str]]]:
        """The bindings of names by imports and `NAME = other.Name`, in their order: a path, or (dotted module, member).

        An empty path is a value that has none. `*` has the modules whose names all come in. Branches for type checkers
        alone do not run.
        """
        found: dict[str, list[str | tuple[str, str]]] = {}
        for node in top_level(self.tree.body, at_run_time=True):
            if isinstance(node, ast.ImportFrom):
                home = import_source(self.file, node)
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, []).append((home, alias.name))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                named = ".".join(name_path(plain_base(node.value)))
                for target in assigned_to(node):
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(named)
        return found

    @cached_property
    def _lines(self) -> SourceLines:
        return SourceLines(self.text)


#: A class with its module.
Owner = tuple[Module, ast.ClassDef]
#: A method with its class, which is in this module.
Method = tuple[Module, ast.ClassDef, FunctionNode]


def index_module(source: SourceTree, file: str) -> Module:
    """Parse one file of the tree and index its classes, functions and imports.

    Raises VCG410 to VCG412 as `SourceTree.parse` does.
    """
    tree = source.parse(file)
    module = Module(file, source.display(file), read_text(source, file), tree)
    for node in _statements(tree):
        # The first import of a name counts: not that of an `else` or an `except`, nor one of a function for itself.
        if isinstance(node, ast.Import):
            for alias in node.names:
                module.imports.setdefault(alias.asname or alias.name.split(".")[0], (alias.name, None))
        elif isinstance(node, ast.ImportFrom):
            base = import_source(file, node)
            for alias in node.names:
                module.imports.setdefault(alias.asname or alias.name, (base, alias.name))
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            module.classes[statement.name] = statement
        elif isinstance(statement, FunctionNode):
            module.functions[statement.name] = statement
    return module


def read_text(tree: SourceTree, file: str) -> str:
    """The text of a file without a byte order mark; lines end with a line feed, as `ast` counts them."""
    return tree.read(file).removeprefix("\ufeff").replace("\r\n", "\n")


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, outer ones first, as `ast.walk` has them: nine of ten nodes are expressions, which it enters.

    Statements under `if ...is_rocm():` and the like come to no GPU of NVIDIA: those of its `else` do.
    """
    pending = deque[ast.AST](tree.body)
    while pending:
        node = pending.popleft()
        yield node
        elsewhere = isinstance(node, ast.If) and call_name(node.test) in _OTHER_PLATFORMS
        children = node.orelse if elsewhere and isinstance(node, ast.If) else ast.iter_child_nodes(node)
        inner = (child for child in children if isinstance(child, _HOLD_STATEMENTS))
        pending.extend(inner)


@dataclass(frozen=True)
class Callee:
    """A function or method, with its module. A method has the class that defines it, and that of the look-up."""

    module: Module
    definer: Owner | None
    function: FunctionNode
    holder: Owner | None


class Program:
    """The modules of one tree, parsed on demand and kept."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._modules: dict[str, Module | None] = {}
        self._attributes: dict[tuple[int, str, bool], Owner | None] = {}
        self._bases: dict[int, list[Owner]] = {}
        self._methods: dict[tuple[int, str], Method | None] = {}

    def module(self, file: str) -> Module | None:
        """The module at `file`, or None when the tree has no such file."""
        if file not in self._modules:
            try:
                self._modules[file] = (
                    self._tree.cached(("module", file), lambda: index_module(self._tree, file))
                    if self._tree.exists(file)
                    else None
                )
            except DiagnosticError:
                self._modules[file] = None
        return self._modules[file]

    def owner(self, file: str, name: str) -> Owner:
        """The class of that name in a file that has it."""
        module = self.module(file)
        assert module is not None, file
        node = module.top_classes.get(name)
        assert node is not None, name
        return module, node

    def class_at(self, dotted: str) -> Owner | None:
        """The class of the tree with this path of its module and its name."""
        module, _, name = dotted.rpartition(".")
        home = self._module_of(module)
        return self.resolve_class(home, name) if home else None

    def resolve(self, module: Module, name: str) -> tuple[Module, ast.ClassDef | FunctionNode] | None:
        """The class or function that `name` means in `module`, following imports inside the tree.

        Also `alias.Name` of an imported module, other names of a class, and names that an import of `*` brings. The
        first of several bindings counts whose class or function the tree has.
        """
        return self._resolve(module, name, set())

    def resolve_class(self, module: Module, name: str) -> Owner | None:
        """The class that `name` means in `module`, None for anything else."""
        found = self.resolve(module, name) if name else None
        return (found[0], found[1]) if found is not None and isinstance(found[1], ast.ClassDef) else None

    def _resolve(
        self, module: Module, name: str, seen: set[tuple[str, str]]
    ) -> tuple[Module, ast.ClassDef | FunctionNode] | None:
        if (module.file, name) in seen:
            return None
        seen.add((module.file, name))
        holder, _, member = name.rpartition(".")
        if holder:
            home = self.imported_module(module, holder)
            return self._resolve(home, member, seen) if home is not None else None
        if name in module.classes:
            return module, module.classes[name]
        if name in module.functions:
            return module, module.functions[name]
        target = self.imported(module, name)
        found = self._resolve(*target, seen) if target is not None else None
        if found is None and name in module.top_classes:
            return module, module.top_classes[name]
        everything = module.bindings.get("*", []) if not name.startswith("_") else []
        for bound in (*module.bindings.get(name, []), *everything) if found is None else ():
            if isinstance(bound, str):
                found = self._resolve(module, bound, seen) if bound else None
            elif (home := self._module_of(bound[0])) is not None:
                found = self._resolve(home, name if bound[1] == "*" else bound[1], seen)
            if found is not None:
                break
        return found

    def _module_of(self, dotted: str) -> Module | None:
        """The module of the tree with this dotted name."""
        base = dotted.replace(".", "/")
        return next(filter(None, (self.module(path) for path in (f"{base}.py", f"{base}/__init__.py"))), None)

    def imported(self, module: Module, name: str) -> tuple[Module, str] | None:
        """The module of the tree from which `module` imports `name`, and its name there."""
        dotted, member = module.imports.get(name, ("", None))
        target = self._module_of(dotted) if member is not None else None
        return (target, member) if target is not None and member is not None else None

    def imported_module(self, module: Module, path: str) -> Module | None:
        """The module of the tree that `path` means in `module`: an alias, or the dotted name of an `import`."""
        first, *inner = path.split(".")
        dotted, member = module.imports.get(first, ("", None))
        whole = [dotted, member, *inner] if member is not None else [dotted, *inner]
        # `import a.b` binds `a`, and `import a.b as c` binds `a.b`: the index keeps `a.b` for both.
        for name in (".".join(filter(None, whole)), path if dotted else ""):
            found = self._module_of(name) if name else None
            if found is not None:
                return found
        return None

    def lineage(self, owner: Owner) -> Iterator[Owner]:
        """A class and its bases in the tree, each before its own bases, from left to right."""
        pending, seen = [owner], set()
        while pending:
            module, node = pending.pop(0)
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield module, node
            pending[:0] = self.bases((module, node))

    def bases(self, owner: Owner) -> list[Owner]:
        """The bases of a class that are in the tree, from left to right."""
        module, node = owner
        if id(node) not in self._bases:
            found = (self.resolve_class(module, ".".join(name_path(plain_base(base)))) for base in node.bases)
            self._bases[id(node)] = [base for base in found if base is not None]
        return self._bases[id(node)]

    def unfollowed(self, owner: Owner) -> Iterator[tuple[Module, ast.ClassDef, ast.expr]]:
        """Bases of a class, and of its bases, that are no class of the tree, each with the class that names it.

        Without those of Python, of torch, and of vLLM's interfaces: they hold no code of a model.
        """
        for module, node in self.lineage(owner):
            for base in node.bases:
                name = ".".join(name_path(plain_base(base)))
                known = self.resolve_class(module, name) is not None
                if not known and not (name and self._is_general(module, name, set())):
                    yield module, node, base

    def _is_general(self, module: Module, name: str, seen: set[str]) -> bool:
        """Whether a name that the tree does not define is of a package without code of a model, or bound nowhere."""
        first, _, _ = name.partition(".")
        if first in module.imports:
            package = module.imports[first][0]
            return package.partition(".")[0] in _GENERAL or package.startswith(_INTERFACES)
        if first in seen:
            return False
        seen.add(first)
        bound = [one for one in module.bindings.get(first, []) if isinstance(one, str)]
        if bound:
            return bool(bound[0]) and self._is_general(module, bound[0], seen)
        return "*" not in module.bindings or hasattr(builtins, name)

    def entered(self, owner: Owner, name: str) -> list[FunctionNode]:
        """The methods of a class that its method `name` may run, and that one: all that one of these names."""
        found: dict[str, FunctionNode] = {}
        names = [name]
        while names:
            one = names.pop()
            method = self.method(owner, one) if one not in found else None
            if method is not None:
                found[one] = method[2]
                named = (self_attribute(node) for node in ast.walk(method[2]) if isinstance(node, ast.Attribute))
                names += [attribute for attribute in named if attribute is not None]
        return list(found.values())

    def method(self, owner: Owner, name: str) -> Method | None:
        """The method `name` of a class or of its bases in the tree.

        A look-up keeps its result for each class on its way, since callers ask heirs of heirs one after the other.
        """
        heir_of: dict[int, int] = {}
        pending, found, at = [(owner, 0)], None, 0
        while pending and found is None:
            one, heir = pending.pop()
            at = id(one[1])
            if at in heir_of:
                continue
            heir_of[at] = heir
            if (at, name) in self._methods:
                found = self._methods[at, name]
                continue
            found = self.own_method(one, name)
            pending += [(base, at) for base in reversed(self.bases(one))]
        self._methods.update(((one, name), None) for one in heir_of)
        while at and found is not None:
            self._methods[at, name] = found
            at = heir_of[at]
        return found

    def own_method(self, owner: Owner, name: str) -> Method | None:
        """The method `name` of a class itself."""
        module, node = owner
        for statement in node.body:
            if isinstance(statement, FunctionNode) and statement.name == name:
                return module, node, statement
            borrowed = self._borrowed(module, statement, name)
            if borrowed is not None:
                return borrowed
        return None

    def _borrowed(self, module: Module, statement: ast.stmt, name: str) -> Method | None:
        """The method that `NAME = Other.method` in the body of a class takes over from another class."""
        if not isinstance(statement, ast.Assign) or [ast.unparse(target) for target in statement.targets] != [name]:
            return None
        value = statement.value
        if isinstance(value, ast.Call) and len(value.args) == 1 and ast.unparse(value.func) == "staticmethod":
            value = value.args[0]
        path = name_path(value)
        owner = self.resolve_class(module, path[0]) if len(path) == 2 else None
        return self.method(owner, path[1]) if owner is not None else None

    def callee(self, module: Module, owner: Owner | None, path: Sequence[str]) -> Callee | None:
        """The function that a call of `f`, `self.f`, `cls.f` or `Class.f` reaches, also of an imported module.

        The call is in a method of `owner` or a function of `module`. None for anything else, and for what is not in
        the tree.
        """
        if not path:
            return None
        if path[0] in ("self", "cls"):
            holder = owner if len(path) == 2 else None
        else:
            found = self.resolve(module, ".".join(path))
            if found is not None and not isinstance(found[1], ast.ClassDef):
                return Callee(found[0], None, found[1], None)
            holder = self.resolve_class(module, ".".join(path[:-1]))
        method = self.method(holder, path[-1]) if holder is not None else None
        return Callee(method[0], (method[0], method[1]), method[2], holder) if method is not None else None

    def run_by(
        self, path: Sequence[str], class_of: Callable[[Sequence[str]], Owner | None]
    ) -> tuple[Method, Owner, Sequence[str]] | None:
        """The method that a call of a part of an object runs, with the class and the path of the part that has it.

        The last name is a method of the part before it, or a part whose `forward` runs.
        """
        for part, name in ((path[:-1], path[-1]), (path, "forward")):
            holder = class_of(part)
            if holder is not None and (found := self.method(holder, name)) is not None:
                return found, holder, part
        return None

    def part_class(self, owner: Owner, path: Sequence[str]) -> Owner | None:
        """The class of a part of an object, by the attributes that lead to it; also where a function says it."""
        holder: Owner | None = owner
        for name in path:
            holder = holder and self.attribute_class(holder, name, returned=True)
        return holder

    def members(self, owner: Owner) -> frozenset[str]:
        """Names of methods and properties of a class and its bases in the tree."""
        body = (statement for _, node in self.lineage(owner) for statement in node.body)
        return frozenset(statement.name for statement in body if isinstance(statement, FunctionNode))

    def attribute_class(self, owner: Owner, attribute: str, *, returned: bool = False) -> Owner | None:
        """The class of `self.<attribute>`, read from `__init__` (also the element class of an `nn.ModuleList`).

        `returned`: also where a function makes it and says its class as what it returns. That is enough to find a call,
        not to say what a method gives: `get_rope` returns subclasses, too.
        """
        key = (id(owner[1]), attribute, returned)
        if key not in self._attributes:
            self._attributes[key] = self._attribute_class(owner, attribute, returned)
        return self._attributes[key]

    def _attribute_class(self, owner: Owner, attribute: str, returned: bool) -> Owner | None:
        for member in self.lineage(owner):
            init = self.own_method(member, "__init__")
            if init is None:
                continue
            made = self._set_to(owner, init[0], init[2], attribute, returned)
            calls = (call_name(node) for node in ast.walk(init[2]) if isinstance(node, ast.Call))
            if made is not None or "__init__" not in calls:
                return made
        return None

    def _set_to(
        self, owner: Owner, module: Module, function: FunctionNode, attribute: str, returned: bool
    ) -> Owner | None:
        """The class of what a method of `owner` sets an attribute to."""
        for node in ast.walk(function):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            if sets(node, attribute):
                for call in (part for part in ast.walk(node.value) if isinstance(part, ast.Call)):
                    made = self._result_of(owner, module, call.func, returned)
                    if made is not None:
                        return made
        return None

    def _result_of(self, owner: Owner, module: Module, maker: ast.expr, returned: bool) -> Owner | None:
        """The class of the object that a call in a method of `owner` gives."""
        if isinstance(maker, ast.Name):
            found = self.resolve(module, maker.id)
            if returned and found is not None and not isinstance(found[1], ast.ClassDef):
                returns = found[1].returns
                return self.resolve_class(found[0], returns.id) if isinstance(returns, ast.Name) else None
            return self.resolve_class(module, maker.id)
        if not returned or not isinstance(maker, ast.Attribute):
            return None
        method = self_attribute(maker)
        made = self.made_by(owner, method) if method is not None else None
        return made or self.made_of(module, ast.unparse(maker))

    def made_of(self, module: Module, path: str) -> Owner | None:
        """The class of the tree that makes an object where `Class(...)` is called, or a method that only hands on."""
        name, _, maker = path.partition(".")
        owner = self.resolve_class(module, name)
        if owner is None:
            return None
        method = self.method(owner, maker) if maker else None
        return owner if not maker or (method is not None and _only_makes(method[2])) else None

    def made_by(self, owner: Owner, name: str) -> Owner | None:
        """The one class of the tree of which every `return` of a method gives an object that the method makes."""
        found = self.method(owner, name)
        if found is None:
            return None
        given: dict[str, list[ast.expr]] = {}
        for node in ast.walk(found[2]):
            if isinstance(node, ast.Assign):
                given.setdefault(ast.unparse(node.targets[0]), []).append(node.value)
        values = [node.value for node in ast.walk(found[2]) if isinstance(node, ast.Return)]
        # A variable is what it is set to, if only once.
        for index, value in enumerate(values):
            set_to = given.get(value.id, []) if isinstance(value, ast.Name) else []
            values[index] = set_to[0] if len(set_to) == 1 else value
        names = {ast.unparse(value.func) if isinstance(value, ast.Call) else "" for value in values}
        return self.resolve_class(found[0], names.pop()) if len(names) == 1 else None


def _only_makes(method: FunctionNode) -> bool:
    """Whether all that a class method does is hand its arguments to the class."""
    cls, *names = [parameter.arg for parameter in method.args.args] or [""]
    text = f"return {cls}({', '.join(names)})"
    decorators = [ast.unparse(decorator) for decorator in method.decorator_list]
    body = [ast.unparse(node) for node in method.body if not isinstance(node, ast.Expr)]
    return decorators == ["classmethod"] and body == [text]
