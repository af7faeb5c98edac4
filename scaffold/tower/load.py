"""Splits the tower of the installed vLLM when a model is made: what a stand-alone adapter does about a pristine tower.

An adapter is generated without a tree and carries none of vLLM's statements. So the statements come from the class that
runs: its module is sliced and split like that of a tree, the split is proven, and the result becomes a subclass of the
tower's class, which this one tower gets. Other models keep the class as it is.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import FunctionNode, find_class, find_method, first_line
from scaffold.tower.model import MethodEdit, TowerSplit
from scaffold.tower.proof import prove_split
from scaffold.tower.slicing import METADATA_METHOD, slice_tower
from scaffold.tower.splitting import split_tower

_HELP = (
    "port the model into a vLLM tree (`vitcg-scaffold new MODEL --vllm TREE`), or run the release's own class "
    "without encoder CUDA graphs"
)


@dataclass(frozen=True, eq=False)
class _Replaced:
    """A class of the release, and its methods after the split; the first of them is the one that is replaced."""

    owner: type[Any]
    methods: dict[str, Callable[..., Any]]

    def run_by(self, cls: type[Any]) -> bool:
        """Whether instances of `cls` run the replaced method, not one of a class between."""
        name = next(iter(self.methods))
        return issubclass(cls, self.owner) and getattr(cls, name) is getattr(self.owner, name)


def split_at_load(
    tower: Any,
    *,
    entry: str = "forward",
    data: str,
    metadata: Sequence[str],
    keys: Sequence[str],
    parameters: Sequence[str],
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Give `tower` (a module that was just made) a metadata method, unless its class has one.

    `data` and `metadata` are names of the parameters of `entry`; `keys` and `parameters` are what the caller will ask
    of the metadata method, and `names` the variables whose keys are called otherwise. Raises `DiagnosticError` VCG462
    when the class's source is not there, is not what runs, cannot be split, or when its split is not proven; `tower` is
    as it was then.
    """
    owner: Any = type(tower)
    if getattr(owner, METADATA_METHOD, None) is None:
        replaced = _split(owner, entry, data, tuple(metadata), tuple(keys), tuple(names.items()))
        _require_parameters(_subclass(owner, replaced), parameters)
        for module in tower.modules():
            old: Any = type(module)
            module.__class__ = _subclass(old, replaced)
    else:
        _require_parameters(owner, parameters)


@cache
def _split(
    owner: type[Any],
    entry: str,
    data: str,
    metadata: tuple[str, ...],
    keys: tuple[str, ...],
    names: tuple[tuple[str, str], ...],
) -> tuple[_Replaced, ...]:
    """The methods of the proven split, compiled in the namespaces of the modules that they come from."""
    tree, file = _tree_of(owner)
    try:
        found = slice_tower(tree, file, owner.__name__, entry=entry, data=(data,), metadata=metadata, names=dict(names))
        split = split_tower(found)
        missing = sorted(set(keys) - set(split.keys))
        if missing:
            raise _refused(owner, f"its split has no metadata named {', '.join(missing)}")
        after = {file: _prove(tree, split, file) for file in dict.fromkeys(edit.file for edit in split.edits)}
    except DiagnosticError as error:
        if error.diagnostics[0].code == "VCG462":
            raise
        raise _refused(owner, "its source has no split that is proven", *error.diagnostics) from None
    return tuple(_compiled(owner, tree, edit, after[edit.file]) for edit in split.edits)


def _tree_of(owner: type[Any]) -> tuple[SourceTree, str]:
    """The folder that the class's top package lies in, as a tree, and the class's file in it."""
    module = sys.modules.get(owner.__module__)
    found = getattr(module, "__file__", None)
    path = Path(found) if found else None
    relative = Path(*owner.__module__.split(".")).with_suffix(".py")
    if path is None or path.parts[-len(relative.parts) :] != relative.parts or not path.is_file():
        raise _refused(owner, f"the source of its module {owner.__module__} is not there")
    root = path.parents[len(relative.parts) - 1]
    return SourceTree(root, str(root), None, read_only=True, installed=True), relative.as_posix()


def _prove(tree: SourceTree, split: TowerSplit, file: str) -> str:
    """The file after the split. Raises with VCG64x when it is not a pure move."""
    before = _text(tree, file)
    after = before
    for edit in split.edits:
        if edit.file == file:
            after = _put(after, edit)
    problems = prove_split(before, after, split, file)
    if problems:
        raise DiagnosticError(problems)
    return after


def _text(tree: SourceTree, file: str) -> str:
    """As the slicer reads it: without a byte order mark, lines end with a line feed."""
    return tree.read(file).removeprefix("\ufeff").replace("\r\n", "\n")


def _put(text: str, edit: MethodEdit) -> str:
    """`text` with the lines of one method replaced."""
    old = _method(ast.parse(text), edit.class_name, edit.replaces)
    lines = text.split("\n")
    new = textwrap.indent(edit.source.rstrip("\n"), " " * old.col_offset).split("\n")
    return "\n".join([*lines[: first_line(old) - 1], *new, *lines[old.end_lineno or old.lineno :]])


def _compiled(owner: type[Any], tree: SourceTree, edit: MethodEdit, after: str) -> _Replaced:
    """The class that an edit names, and its new methods. Tracebacks show their lines."""
    module = sys.modules.get(edit.file.removesuffix(".py").replace("/", "."))
    cls = getattr(module, edit.class_name, None)
    if module is None or not isinstance(cls, type):
        raise _refused(owner, f"{edit.class_name} of {edit.file} is not what was imported")
    before = _method(ast.parse(_text(tree, edit.file)), edit.class_name, edit.replaces)
    running = inspect.unwrap(vars(cls).get(edit.replaces, cls))
    code = getattr(running, "__code__", None)
    if code is None or code.co_firstlineno != first_line(before) or not _same_file(code.co_filename, module):
        raise _refused(owner, f"{edit.class_name}.{edit.replaces} is not the one of its source: something replaced it")
    names = (edit.replaces, *edit.adds)
    parsed = ast.parse(after)
    methods: list[ast.stmt] = [_method(parsed, edit.class_name, name) for name in names]
    for node in (inner for method in methods for inner in ast.walk(method)):
        if isinstance(node, ast.Name) and node.id in ("super", "__class__"):
            raise _refused(owner, f"{edit.class_name}.{edit.replaces} uses `{node.id}`, which means another class")
    # In a class of its old name, so that private names are the old ones; nothing lands in the module.
    block = ast.ClassDef(edit.class_name, bases=[], keywords=[], body=methods, decorator_list=[])
    block.lineno, block.end_lineno, block.col_offset, block.end_col_offset = methods[0].lineno, methods[0].lineno, 0, 0
    if sys.version_info >= (3, 12):
        block.type_params = []
    filename = f"{module.__file__} (split)"
    flags = __future__.annotations.compiler_flag
    made: dict[str, Any] = {}
    exec(compile(ast.Module([block], []), filename, "exec", flags=flags, dont_inherit=True), vars(module), made)
    linecache.cache[filename] = (len(after), None, after.splitlines(keepends=True), filename)
    return _Replaced(cls, {name: vars(made[edit.class_name])[name] for name in names})


@cache
def _subclass(cls: type[Any], replaced: tuple[_Replaced, ...]) -> type[Any]:
    """`cls` with the new methods, or `cls` itself where it runs none of the replaced ones."""
    methods: dict[str, Any] = {}
    for one in replaced:
        methods |= one.methods if one.run_by(cls) else {}
    if not methods:
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), names | methods)


def _require_parameters(owner: type[Any], wanted: Sequence[str]) -> None:
    taken = inspect.signature(getattr(owner, METADATA_METHOD)).parameters
    missing = [name for name in wanted if name not in taken]
    if missing:
        raise _refused(owner, f"its {METADATA_METHOD} takes no {', '.join(missing)}")


def _method(tree: ast.Module, class_name: str, name: str) -> FunctionNode:
    owner = find_class(tree, class_name)
    found = find_method(owner, name) if owner is not None else None
    assert found is not None, f"{class_name}.{name} was found before"
    return found


def _same_file(filename: str, module: Any) -> bool:
    return Path(filename).name == Path(module.__file__).name


def _refused(owner: type[Any], reason: str, *because: Diagnostic) -> DiagnosticError:
    message = f"the tower {owner.__module__}.{owner.__name__} cannot be used by this adapter: {reason}"
    return DiagnosticError([Diagnostic("VCG462", message, help=_HELP), *because])
