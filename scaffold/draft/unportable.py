"""Models that get no draft, each for one reason: said before anything else is looked at.

A release without the graphs of a layout is refused before it is fetched.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.locate import Subject, release_order, served_classes
from scaffold.draft.sheet import SourceLine, beyond
from scaffold.protocol import GENERATIONS, Dialect, Postprocess, known_profile, read_protocol
from scaffold.protocol.target import as_version
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import FunctionNode, find_method

_TRANSFORMERS = "vllm/model_executor/models/transformers/"
_RAW_ONLY = "supports_multimodal_raw_input_only"


def refuse_unportable(subject: Subject) -> None:
    """Raise VCG483 for a model whose encoder is not this class's, or not vLLM's."""
    if subject.file.startswith(_TRANSFORMERS):
        what = "its encoder is code of Hugging Face Transformers, which vLLM runs as it is: none is in the tree"
        raise beyond(subject.tree, subject.place, what)
    for module, target, value in subject.assigned():
        if isinstance(target, ast.Name) and target.id == _RAW_ONLY and ast.unparse(value) == "True":
            what = "its inputs go into the model as they are, and nothing is encoded before it"
            raise beyond(subject.tree, SourceLine(module.file, target.lineno), what)
    for node in subject.owner[1].body:
        if isinstance(node, FunctionNode) and node.name == "__new__":
            file = subject.module if "." not in subject.module else subject.file
            names = ", ".join(f"`init {file}:{name}`" for name in sorted(served_classes(subject.owner)))
            names = names or "`init FILE:CLASS`"
            what = f"`{subject.class_name}` makes models of other classes; draft the one that is served"
            raise beyond(subject.tree, SourceLine(subject.file, node.lineno), f"{what}: {names}")


def offered(subject: Subject) -> frozenset[str]:
    """The modalities that requests may have, in some configuration at least."""
    found: set[str] = set()
    for _, owner in subject.program.lineage(subject.info) if subject.info else ():
        limits = find_method(owner, "get_supported_mm_limits")
        keys = [key for node in ast.walk(limits) if isinstance(node, ast.Dict) for key in node.keys] if limits else []
        found |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
        if limits is not None and None not in keys:  # it spreads no dictionary of its base (MiniCPM-o)
            break
    return frozenset(found)


def refuse_release(vllm: str, layout: str | None) -> str:
    """Raise VCG413, VCG414, VCG442 or VCG446 for a release that has no graphs of a layout (None: of any layout).

    The result says which layouts a release lacks where `layout` is None: empty if it has all.
    """
    version = as_version(vllm)
    if version is None:
        return ""
    oldest = GENERATIONS[0].first
    if release_order(version) < release_order(oldest):
        code = "VCG413" if release_order(version) < (0, 19) else "VCG414"
        what, first = "encoder CUDA graphs that can be enabled", oldest
    else:
        spoken = [one for one in GENERATIONS if release_order(one.first) <= release_order(version)][-1]
        dialect = known_profile(spoken).dialect
        missing = _missing(dialect)
        if layout is None and missing:
            since = ", ".join(f"{name} ({later.first})" for name, later in missing.items())
            return f"vLLM {version} is older than these layouts, which need the release in brackets or later: {since}"
        if layout is None or layout not in missing:
            return ""
        code, what, first = missing[layout].code, f"graphs of {missing[layout].name}", missing[layout].first
    problem = Diagnostic(code, f"vLLM {version} has no {what}", help=f"draft the model from {first} or later")
    raise DiagnosticError(problem)


def lacking(tree: SourceTree) -> dict[str, Later]:
    """The layouts that the protocol of a tree cannot express, each with its kind of graphs."""
    dialect = dialect_of(tree)
    return _missing(dialect) if dialect is not None else {}


def _missing(dialect: Dialect) -> dict[str, Later]:
    return {name: later for name, later in _LATER.items() if not later.speaks(dialect)}


def dialect_of(tree: SourceTree) -> Dialect | None:
    """The dialect of a tree's protocol; None where `new` says what is wrong with it."""
    with suppress(DiagnosticError):
        return read_protocol(tree).dialect
    return None


@dataclass(frozen=True, slots=True)
class Later:
    """A kind of graphs that not all generations can express, and the code that says so."""

    name: str
    code: str
    speaks: Callable[[Dialect], bool]

    @property
    def first(self) -> str:
        return next(one.first for one in GENERATIONS if self.speaks(known_profile(one).dialect))


_CUTS = Later("cuts", "VCG442", lambda dialect: dialect.postprocess is not Postprocess.NONE)
_ROWS = Later("rows", "VCG446", lambda dialect: dialect.padding_logics)
_LATER = {"cut": _CUTS, "crops": _CUTS, "rows": _ROWS}
