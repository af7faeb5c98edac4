"""Reads the protocol of one tree: its methods, its data classes, its manager, its generation and its dialect.

It reads syntax trees only and never imports vLLM.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.dialect import Dialect, derive_dialect, inspect_manager
from scaffold.protocol.generations import GENERATIONS, Generation, match_generation
from scaffold.protocol.signatures import DataClass, Field, Method, Parameter, ParameterKind, ProtocolShape
from scaffold.protocol.tree import SourceTree, module_file, source_lines
from scaffold.syntax import (
    FunctionNode,
    SourceLines,
    call_name,
    declared_parameters,
    dotted,
    find_class,
    import_source,
    last_name,
    parse_expression,
    top_level,
)

PROTOCOL = "SupportsEncoderCudaGraph"
MANAGER = "EncoderCudaGraphManager"
INTERFACES = "vllm/model_executor/models/interfaces.py"
_MANAGER_FILE = "vllm/v1/worker/encoder_cudagraph.py"


@dataclass(frozen=True, slots=True)
class ProtocolSource:
    """The protocol of a tree, before the comparison with known generations.

    `interfaces`, `defs` and `manager` are paths relative to the tree's root.
    """

    shape: ProtocolShape
    interfaces: str
    line: int
    defs: str
    manager: str


@dataclass(frozen=True, slots=True)
class ProtocolProfile:
    """The protocol of one tree. `defs_module`, `manager_module` and `interfaces_module` are dotted import names."""

    release: str | None
    methods: tuple[Method, ...]
    dataclasses: tuple[DataClass, ...]
    interfaces_module: str
    defs_module: str
    manager_module: str
    fingerprint: str
    generation: Generation
    dialect: Dialect
    line: int

    def method(self, name: str) -> Method | None:
        return next((method for method in self.methods if method.name == name), None)

    def known_method(self, name: str) -> Method | None:
        """The method whose oldest name is `name`, whatever this generation calls it."""
        return self.method(self.generation.renamed.get(name, name))

    @property
    def uncalled(self) -> frozenset[str]:
        """Methods of the protocol that vLLM no longer calls, so that no class needs them."""
        called = {
            "get_input_modality": self.dialect.modality_called,
            "get_max_frames_per_video": self.dialect.frames_method,
        }
        return frozenset(self.generation.renamed.get(name, name) for name, is_called in called.items() if not is_called)


def tree_name(tree: SourceTree) -> str:
    """A tree's vLLM, as people call it: by its release, or as a fork with a number of its own."""
    return own_version(tree) or f"vLLM {tree.release or ''}".rstrip()


def own_version(tree: SourceTree) -> str:
    """A name, with the protocol, for a tree whose version is none of vLLM's; empty for all others.

    A snapshot between two releases may speak the protocol of the next one, under the number of the last.
    """
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(tree.release or "")
        generation = read_protocol(tree).generation
    except (InvalidVersion, DiagnosticError):
        return ""
    later = [one for one in GENERATIONS if Version(one.first) > Version(generation.first)]
    is_older = (version.major, version.minor + 1) < Version(generation.first).release[:2]
    is_newer = bool(later) and version >= Version(later[0].first)
    own = f"a vLLM of its own version {tree.release}, protocol {generation.name}"
    return own if is_older or is_newer else ""


def read_protocol(tree: SourceTree) -> ProtocolProfile:
    """Read, fingerprint and match the protocol of `tree`.

    Raises DiagnosticError:

    * VCG410 to VCG412: a file is missing, not UTF-8, or not Python.
    * VCG413: there is no protocol.
    * VCG414: its definitions module is not in the tree (0.19).
    * VCG415: its generation is unknown; the message has the difference.
    * VCG416: there is no manager.
    * VCG417: the protocol or its data classes have an unexpected form.
    """
    source = read_source(tree)
    fingerprint = source.shape.fingerprint()
    generation = match_generation(source.shape, fingerprint, tree, source.interfaces, source.line)
    return ProtocolProfile(
        release=tree.release,
        methods=source.shape.methods,
        dataclasses=source.shape.dataclasses,
        interfaces_module=dotted(source.interfaces),
        defs_module=dotted(source.defs),
        manager_module=dotted(source.manager),
        fingerprint=fingerprint,
        generation=generation,
        dialect=derive_dialect(
            source.shape, inspect_manager(tree.parse(source.manager), generation.renamed), generation.renamed
        ),
        line=source.line,
    )


def known_profile(generation: Generation) -> ProtocolProfile:
    """The profile of a known generation, without any tree. `read_protocol` gives the same for each of its releases.

    It differs in `release` (None), `line` (0), and the spelling of annotations (canonical, see `signatures`).
    """
    shape, modules = generation.shape, generation.modules
    return ProtocolProfile(
        release=None,
        methods=shape.methods,
        dataclasses=shape.dataclasses,
        interfaces_module=modules["protocol"],
        defs_module=modules["definitions"],
        manager_module=modules["manager"],
        fingerprint=generation.fingerprint,
        generation=generation,
        dialect=derive_dialect(shape, generation.manager, generation.renamed),
        line=0,
    )


def read_source(tree: SourceTree) -> ProtocolSource:
    """The protocol of `tree`, of whatever generation. Raises as `read_protocol`, except VCG415."""
    return tree.cached(("protocol", ""), lambda: _read_source(tree))


def _read_source(tree: SourceTree) -> ProtocolSource:
    interfaces, node = _find_protocol(tree)
    text = source_lines(tree, interfaces)
    methods = tuple(_read_method(item, text) for item in node.body if isinstance(item, FunctionNode))
    if not methods:
        raise DiagnosticError.of(
            "VCG417",
            f"`{PROTOCOL}` in `{interfaces}` has no methods",
            span=tree.span(interfaces, node.lineno),
            help="finish the edit of this class, or restore the file from git",
        )
    defs = _find_defs(tree, interfaces, node)
    defs_module = tree.parse(defs)
    dataclasses = tuple(_read_dataclasses(defs_module, source_lines(tree, defs)))
    if not dataclasses:
        raise DiagnosticError.of(
            "VCG417",
            f"`{defs}` has no data classes, but `{PROTOCOL}` takes its types from it",
            span=tree.span(defs),
            help="finish the edit of this file, or restore it from git",
        )
    shape = ProtocolShape(
        bases=tuple(text.source(base) for base in node.bases),
        attributes=tuple(_read_fields(node, text)),
        methods=methods,
        dataclasses=dataclasses,
    )
    return ProtocolSource(
        shape=shape,
        interfaces=interfaces,
        line=node.lineno,
        defs=defs,
        manager=_find_manager(tree),
    )


def _find_protocol(tree: SourceTree) -> tuple[str, ast.ClassDef]:
    """The file and the class of the protocol: the known file first, then any file of the package that defines it."""
    node = find_class(tree.parse(INTERFACES), PROTOCOL)
    if node is not None:
        return INTERFACES, node
    for relpath in tree.containing("vllm", ".py", [f"class {PROTOCOL}"]):
        node = find_class(tree.parse(relpath), PROTOCOL)
        if node is not None:
            return relpath, node
    release = f"vLLM {tree.release}" if tree.release else "this tree"
    raise DiagnosticError.of(
        "VCG413",
        f"{release} has no protocol `{PROTOCOL}`: it cannot run vision encoders in CUDA graphs",
        span=tree.span(INTERFACES),
        help="use vLLM 0.20.0 or newer, for example `--vllm 0.33.0`",
        notes=(f"searched `{INTERFACES}`, then every Python file under `vllm/`",),
    )


def _find_defs(tree: SourceTree, interfaces: str, protocol: ast.ClassDef) -> str:
    """The file of the data classes, from the protocol's own import."""
    wanted = {
        name
        for method in protocol.body
        if isinstance(method, FunctionNode)
        for name in _annotation_names(method)
        if name.startswith("Encoder")
    }
    imports = [
        node
        for node in top_level(tree.parse(interfaces).body)
        if isinstance(node, ast.ImportFrom) and any(alias.name in wanted for alias in node.names)
    ]
    if not imports:
        raise DiagnosticError.of(
            "VCG417",
            f"`{interfaces}` imports none of the types that `{PROTOCOL}` uses"
            + (f" ({', '.join(sorted(wanted))})" if wanted else ""),
            span=tree.span(interfaces, protocol.lineno),
            help="restore that import: it leads to the module with the definitions",
        )
    node = imports[0]
    module = import_source(interfaces, node)
    relpath = module_file(tree, module)
    if relpath is not None:
        return relpath
    elsewhere = tuple(tree.containing("vllm", ".py", ["class EncoderCudaGraphConfig"]))
    release = f"vLLM {tree.release}" if tree.release else "this tree"
    notes = (f"the classes are in `{', '.join(elsewhere)}`, which nothing in the tree imports",) if elsewhere else ()
    raise DiagnosticError.of(
        "VCG414",
        f"{release} cannot enable encoder CUDA graphs: it imports `{module}`, a module that is not in it",
        span=tree.span(interfaces, node.lineno, node.col_offset + 1),
        help="use vLLM 0.20.0 or newer; 0.19.0 and 0.19.1 were released with this import broken",
        notes=notes,
    )


def _find_manager(tree: SourceTree) -> str:
    if tree.exists(_MANAGER_FILE) and find_class(tree.parse(_MANAGER_FILE), MANAGER) is not None:
        return _MANAGER_FILE
    for relpath in tree.containing("vllm", ".py", [f"class {MANAGER}"]):
        if find_class(tree.parse(relpath), MANAGER) is not None:
            return relpath
    raise DiagnosticError.of(
        "VCG416",
        f"the tree has `{PROTOCOL}` but no class `{MANAGER}` that would call it",
        span=tree.span(_MANAGER_FILE),
        help="check that the tree is complete",
        notes=(f"searched `{_MANAGER_FILE}`, then every Python file under `vllm/`",),
    )


def _annotation_names(method: FunctionNode) -> Iterator[str]:
    """Every name in the annotations of a method, quoted ones included."""
    annotations = [item.annotation for item in ast.walk(method.args) if isinstance(item, ast.arg)] + [method.returns]
    for annotation in annotations:
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                try:
                    quoted = parse_expression(node.value)
                except SyntaxError:
                    continue
                yield from (inner.id for inner in ast.walk(quoted) if isinstance(inner, ast.Name))


def _read_method(node: FunctionNode, text: SourceLines) -> Method:
    arguments, defaults = node.args, dict(declared_parameters(node))
    declared = (
        (ParameterKind.POSITIONAL_ONLY, arguments.posonlyargs),
        (ParameterKind.POSITIONAL_OR_KEYWORD, arguments.args),
        (ParameterKind.VAR_POSITIONAL, [arguments.vararg]),
        (ParameterKind.KEYWORD_ONLY, arguments.kwonlyargs),
        (ParameterKind.VAR_KEYWORD, [arguments.kwarg]),
    )
    return Method(
        name=node.name,
        parameters=tuple(
            Parameter(item.arg, kind, text.optional(item.annotation), text.optional(defaults.get(item)))
            for kind, items in declared
            for item in items
            if item is not None
        ),
        returns=text.optional(node.returns),
        has_default=not all(_is_stub(statement) for statement in node.body),
        decorators=tuple(text.source(item) for item in node.decorator_list),
        is_async=isinstance(node, ast.AsyncFunctionDef),
    )


def _is_stub(statement: ast.stmt) -> bool:
    """A docstring, `...` or `pass`, or `raise NotImplementedError`: nothing that a model could inherit."""
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return isinstance(statement.value.value, str) or statement.value.value is ...
    return isinstance(statement, ast.Pass)


def _read_dataclasses(module: ast.Module, text: SourceLines) -> Iterator[DataClass]:
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            if (call_name(decorator) or last_name(decorator)) == "dataclass":
                frozen = any(ast.unparse(item) == "frozen=True" for item in getattr(decorator, "keywords", ()))
                yield DataClass(node.name, tuple(_read_fields(node, text)), frozen)


def _read_fields(node: ast.ClassDef, text: SourceLines) -> Iterator[Field]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield Field(item.target.id, text.source(item.annotation), text.optional(item.value))
