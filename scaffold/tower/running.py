"""Other methods for the classes of a model that runs, in the namespaces of the modules that they come from.

A stand-alone adapter changes a model of the installed vLLM before a manager is made for it, and that model alone. The
source of the class that runs is read, edited and proven like that of a tree, and the result becomes a subclass.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import FunctionNode, find_class, find_method, first_line
from scaffold.tower.parts import MethodEdit
from scaffold.tower.source import read_text

_HELP = (
    "port the model into a vLLM tree (`vitcg-scaffold new MODEL --vllm TREE`), or run the release's own class "
    "without encoder CUDA graphs"
)


@dataclass(frozen=True)
class ReplacedFunction:
    """A function of a module and the new one, which only new methods call: other callers keep the old one."""

    module: Any
    old: Callable[..., Any]
    new: Callable[..., Any]

    @property
    def is_running(self) -> bool:
        """Whether the module still has the old one, so that nobody else replaced it."""
        return vars(self.module).get(self.old.__name__) is self.old


@dataclass(frozen=True, eq=False)
class Replaced:
    """A class of the release, and its new methods. The first of them replaces `old`, and they call new `functions`."""

    owner: type[Any]
    methods: dict[str, Callable[..., Any]]
    old: Any
    functions: tuple[ReplacedFunction, ...] = ()

    @property
    def name(self) -> str:
        """The method that is replaced."""
        return next(iter(self.methods))

    def run_by(self, cls: type[Any]) -> bool:
        """Whether instances of `cls` run the replaced method, not one of a class between."""
        return issubclass(cls, self.owner) and getattr(cls, self.name) is getattr(self.owner, self.name)

    def check(self, module: Any) -> None:
        """Refuse a module of the class whose method somebody replaced since it was read: on the class, between, or on
        the module itself."""
        if not isinstance(module, self.owner):
            return
        is_read = vars(self.owner).get(self.name) is self.old and all(one.is_running for one in self.functions)
        if not is_read or not self.run_by(type(module)) or self.name in vars(module):
            raise refused(self.owner, f"{self.owner.__name__}.{self.name} is not the one of its source: {_REPLACED}")


NO_FUNCTIONS: Mapping[str, ReplacedFunction] = MappingProxyType({})
_REPLACED = "something replaced it"


def adapt(model: Any, adapter: type[Any]) -> None:
    """Let `model`, of a release's own class, be of its subclass `adapter`, which may change parts of it.

    Raises whatever the adapter cannot do with this model; `model` is then as it was.
    """
    own: Any = type(model)
    if not issubclass(adapter, own):
        raise ValueError(f"{adapter.__module__}.{adapter.__qualname__} is no subclass of {own.__qualname__}")
    model.__class__ = adapter
    try:
        if hasattr(adapter, ADAPT):
            getattr(model, ADAPT)()
    except BaseException:
        model.__class__ = own
        raise


#: The method of adapters that change parts of their model.
ADAPT = "_adapt_encoder"


def give_methods(model: Any, replaced: Sequence[Replaced]) -> None:
    """Let `model` and its submodules run the new methods. Other models keep their classes as they are.

    Raises VCG462 where somebody else replaced one of the old methods; nothing is changed then.
    """
    changes = []
    for module in model.modules():
        for one in replaced:
            one.check(module)
        old: Any = type(module)
        new = subclass(old, tuple(replaced))
        if new is not old:
            changes.append((module, new))
    for module, new in changes:
        module.__class__ = new


def edited_files(tree: SourceTree, edits: Sequence[MethodEdit]) -> dict[str, tuple[str, str]]:
    """Each file that `edits` change, before and after."""
    files: dict[str, tuple[str, str]] = {}
    for edit in edits:
        before, after = files.get(edit.file) or (read_text(tree, edit.file),) * 2
        files[edit.file] = (before, _put(after, edit))
    return files


def tree_of(owner: type[Any]) -> tuple[SourceTree, str]:
    """The folder that the class's top package lies in, as a tree, and the class's file in it."""
    module = sys.modules.get(owner.__module__)
    found = getattr(module, "__file__", None)
    path = Path(found) if found else None
    relative = Path(*owner.__module__.split(".")).with_suffix(".py")
    if path is None or path.parts[-len(relative.parts) :] != relative.parts or not path.is_file():
        raise refused(owner, f"the source of its module {owner.__module__} is not there")
    root = path.parents[len(relative.parts) - 1]
    return SourceTree(root, str(root), None, installed=True), relative.as_posix()


def _put(text: str, edit: MethodEdit) -> str:
    """`text` with the lines of one method replaced."""
    old = _function(ast.parse(text), edit)
    lines = text.split("\n")
    new = textwrap.indent(edit.source.rstrip("\n"), " " * old.col_offset).split("\n")
    return "\n".join([*lines[: first_line(old) - 1], *new, *lines[old.end_lineno or old.lineno :]])


def compiled(
    owner: type[Any],
    tree: SourceTree,
    edit: MethodEdit,
    after: str,
    functions: Mapping[str, ReplacedFunction] = NO_FUNCTIONS,
) -> Replaced:
    """The class that an edit names, and its new methods, which call the new `functions` by the names of the old ones.

    Tracebacks show their lines.
    """
    module = _imported(edit.file)
    cls = getattr(module, edit.class_name, None)
    if module is None or not isinstance(cls, type):
        raise refused(owner, f"{edit.class_name} of {edit.file} is not what was imported")
    running = vars(cls).get(edit.replaces, cls)
    _check_running(owner, tree, edit, module, running)
    names = (edit.replaces, *edit.adds)
    parsed = ast.parse(after)
    methods: list[ast.stmt] = [_method(parsed, edit.class_name, name) for name in names]
    called: list[ReplacedFunction] = []
    for node in (inner for method in methods for inner in ast.walk(method)):
        if isinstance(node, ast.Name) and node.id in ("super", "__class__"):
            raise refused(owner, f"{edit.class_name}.{edit.replaces} uses `{node.id}`, which means another class")
        name = node.id if isinstance(node, ast.Name) else ""
        if name in functions:
            if vars(module).get(name) is not functions[name].old:
                raise refused(owner, f"`{name}` of {edit.file} is not what was imported")
            called.append(functions[name])
    # In a class of its old name, so that private names are the old ones; nothing lands in the module.
    known = {name: getattr(import_module(home), name) for home, name in edit.imports}
    known |= {name: function.new for name, function in functions.items()}
    block = ast.ClassDef(edit.class_name, bases=[], keywords=[], body=methods, decorator_list=[])
    if sys.version_info >= (3, 12):
        block.type_params = []
    made = _made(block, module, after, known)
    return Replaced(cls, {name: vars(made)[name] for name in names}, running, tuple(called))


def compiled_function(owner: type[Any], tree: SourceTree, edit: MethodEdit, after: str) -> ReplacedFunction:
    """The function that an edit names, old and new."""
    module = _imported(edit.file)
    old = getattr(module, edit.replaces, None)
    if module is None or old is None:
        raise refused(owner, f"{edit.replaces} of {edit.file} is not what was imported")
    _check_running(owner, tree, edit, module, old)
    return ReplacedFunction(module, old, _made(_function(ast.parse(after), edit), module, after, {}))


def _imported(file: str) -> Any:
    """The module of a file of the tree; None where nothing has imported it."""
    return sys.modules.get(file.removesuffix(".py").replace("/", "."))


def _check_running(owner: type[Any], tree: SourceTree, edit: MethodEdit, module: Any, running: Any) -> None:
    """Refuse code that is not the one of its source, and a wrapper that the source does not have: it would be lost."""
    before = _function(ast.parse(read_text(tree, edit.file)), edit)
    inner, wrappers = running, 0
    while hasattr(inner, "__wrapped__"):
        inner, wrappers = inner.__wrapped__, wrappers + 1
    code = getattr(inner, "__code__", None)
    is_source = code is not None and code.co_firstlineno == first_line(before) and _same_file(code.co_filename, module)
    if not is_source or wrappers > len(before.decorator_list):
        name = f"{edit.class_name}.{edit.replaces}" if edit.class_name else edit.replaces
        raise refused(owner, f"{name} is not the one of its source: {_REPLACED}")


def _made(node: ast.ClassDef | FunctionNode, module: Any, text: str, known: Mapping[str, Any]) -> Any:
    """The class or function of a definition in the namespace of `module`, where the names of `known` mean others."""
    maker = ast.parse(f"def make({', '.join(known)}):\n    return {node.name}\n").body[0]
    assert isinstance(maker, ast.FunctionDef)
    maker.body.insert(0, node)
    filename = f"{module.__file__} (edited)"
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    module_of_it = ast.fix_missing_locations(ast.Module([maker], []))
    exec(compile(module_of_it, filename, "exec", flags=flags, dont_inherit=True), vars(module), made)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return made["make"](**known)


@cache
def subclass(cls: type[Any], replaced: tuple[Replaced, ...]) -> type[Any]:
    """`cls` with the new methods, or `cls` itself where it runs none of the replaced ones."""
    methods: dict[str, Any] = {}
    for one in replaced:
        methods |= one.methods if one.run_by(cls) else {}
    if not methods:
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), names | methods)


def _function(tree: ast.Module, edit: MethodEdit) -> FunctionNode:
    """The method or function that an edit replaces."""
    if edit.class_name:
        return _method(tree, edit.class_name, edit.replaces)
    return next(node for node in tree.body if isinstance(node, FunctionNode) and node.name == edit.replaces)


def _method(tree: ast.Module, class_name: str, name: str) -> FunctionNode:
    owner = find_class(tree, class_name)
    found = find_method(owner, name) if owner is not None else None
    assert found is not None, f"{class_name}.{name} was found before"
    return found


def _same_file(filename: str, module: Any) -> bool:
    return Path(filename).name == Path(module.__file__).name


def refused(owner: type[Any], reason: str, *because: Diagnostic) -> DiagnosticError:
    message = f"the class {owner.__module__}.{owner.__name__} cannot be used by this adapter: {reason}"
    return DiagnosticError([Diagnostic("VCG462", message, help=_HELP), *because])
