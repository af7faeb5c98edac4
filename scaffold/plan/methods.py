"""The source of the generated methods: a view of the port through the templates of its layout."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaffold.descriptor import ReentryPort
from scaffold.diagnostics import Diagnostic, Severity
from scaffold.plan.code import identifiers
from scaffold.plan.views import (
    CutView,
    LayersView,
    LoopView,
    ReentryView,
    SizedView,
    TreeFacts,
    UnitsView,
    View,
    make_view,
)
from scaffold.render import render_template
from scaffold.syntax import self_attribute
from scaffold.tower.slicing import UPLOAD

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import Dialect, ModelAnchor, ProtocolProfile

#: Where vLLM keeps its models.
MODELS = "vllm/model_executor/models/"

#: The classes that ports share: template, module and name. Units of several shapes have paths.
_UNITS_MIXIN = ("cut/mixin.py.jinja", "encoder_cudagraph_units", "EncoderUnitsMixin")
_PATHS_MIXIN = ("cut/paths.py.jinja", "encoder_cudagraph_paths", "EncoderPathsMixin")
_ROWS_MIXIN = ("rows/mixin.py.jinja", "encoder_cudagraph_rows", "EncoderRowsMixin")

#: The paths of the releases that know exactly two of them, by three fields of the config.
_DUAL = ("global", "local")


@dataclass(frozen=True)
class Mixin:
    """A class with the methods that all ports of a layout have in common, in a module of its own beside the models.

    `source` is the module's text, the same for all models of a tree.
    """

    module: str
    class_name: str
    source: str
    folder: str = MODELS

    @property
    def path(self) -> str:
        """Where it lies: in vLLM's tree beside all models, whatever model was ported first, else beside the model."""
        return f"{self.folder}{self.module}.py"

    @property
    def methods(self) -> frozenset[str]:
        owner = ast.parse(self.source).body[-1]
        assert isinstance(owner, ast.ClassDef)
        return frozenset(node.name for node in owner.body if isinstance(node, ast.FunctionDef))


@dataclass(frozen=True)
class Methods:
    """A rendered block of methods, the view that it was made from, and the names that it needs: `(module, name)`.

    The protocol's methods that are not in it are those of the `mixin`, or of classes of the tree that the model's class
    inherits from, which have those that are `given`. `base` is such a class that it gets.
    """

    source: str
    view: View
    imports: tuple[tuple[str, str], ...]
    mixin: Mixin | None = None
    given: frozenset[str] = frozenset()
    base: ModelAnchor | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(node.name for node in ast.parse(self.source).body if isinstance(node, ast.FunctionDef))

    @property
    def brought(self) -> frozenset[str]:
        """The names of all methods that the class has with the port, by itself or from a class that comes with it."""
        return self.names | self.given | (self.mixin.methods if self.mixin is not None else frozenset())


def refusal(port: AnyPort, dialect: Dialect) -> Diagnostic | None:
    """Why a protocol cannot express a port: VCG437, VCG441, VCG442, VCG446. For each port there is one that can."""
    if port.packs_rows and not dialect.padding_logics:
        return Diagnostic(
            "VCG446",
            "this release fills the offsets behind a batch with zeros, and rows find their buffers when a model starts",
            port.span("layout"),
            "port the model into 0.23 or later",
        )
    if port.reenters and dialect.postprocess.value == "none":
        return Diagnostic(
            "VCG442",
            "this release cuts the output of a graph into embeddings, and a cut makes features that are none yet",
            port.span("layout"),
            "port the model into 0.22 or later",
        )
    if port.after is not None and dialect.postprocess.value == "none":
        return Diagnostic(
            "VCG441",
            "this release has no hook for what runs after a replay: its manager takes graph outputs as embeddings",
            port.span("post.call"),
            "port the model into 0.22 or later",
        )
    if dialect.paths.value == "dual" and port.path_names not in ((), _DUAL):
        return Diagnostic(
            "VCG437",
            f"the two paths of this release are named {' and '.join(_DUAL)}",
            port.span("paths"),
            "rename the paths of the descriptor, the one with one tile for each item first",
        )
    return None


def without_paths(port: AnyPort, dialect: Dialect) -> AnyPort:
    """The part of a port that a protocol can express: without named paths, units of the first modality alone, or whole
    images without their crops; and no explicit port, since an item then has no number of tokens of its own.
    """
    return port if dialect.paths.value == "named" else port.without_paths()


def without_embeds(port: AnyPort) -> AnyPort:
    """The port where the tree's manager leaves precomputed embeddings to the runner, by vLLM's names for them."""
    if isinstance(port, ReentryPort):
        named = {f"{modality}_embeds" for modality in port.modalities}
        return port.replace(fields={key: kind for key, kind in port.fields.items() if key not in named})
    given = {name: modality and modality.replace(embeds=None) for name, modality in port.modalities.items()}
    return port.replace(modalities=given)


def left_out(port: AnyPort, dialect: Dialect) -> list[Diagnostic]:
    """Notes on what `without_paths` leaves to the model's own code: VCG447."""
    expressible = without_paths(port, dialect)
    others = (name for name in port.modalities if name not in expressible.modalities)
    left = {f"items of {name}": f"modalities.{name}.let" for name in others}
    if expressible.whole:
        left["crops"] = "crops.pixels"
    return [
        Diagnostic(
            "VCG447",
            f"{units} run eagerly: their units have another shape, and ports of this release name no paths",
            port.span(place),
            "port the model into 0.27 or later",
            Severity.INFO,
        )
        for units, place in left.items()
    ]


def render_methods(port: AnyPort, profile: ProtocolProfile, facts: TreeFacts) -> Methods:
    """All protocol methods of `port` for the dialect of `profile`, as a block without indentation."""
    port = without_paths(port, profile.dialect)
    view = make_view(port, profile, facts)
    mixin = _mixin(view)
    names = _names(view) | ({"mixin": mixin.class_name} if mixin else {})
    layout = "cut" if isinstance(view, CutView) else "units" if isinstance(view, UnitsView) else port.layout
    form = "explicit" if isinstance(view, LayersView) else "looped" if isinstance(view, LoopView) else "model"
    source = render_template(f"{layout}/{form}.py.jinja", **names)
    if facts.checks_types:
        source = _asserting(source, facts.optional)
    words = set(identifiers(source))
    importable = dict(view.signature.importable)
    if port.processor is not None:
        importable[port.processor.class_] = port.processor_module
    if port.tokens_made is not None:
        importable[port.tokens_made.function] = port.tokens_module
    if isinstance(view, SizedView) and view.switches:
        # Elsewhere, `patch` is a patch.
        importable["patch"] = "unittest.mock"
    if isinstance(view, LoopView):
        importable |= {"accumulate": "itertools", UPLOAD[1]: UPLOAD[0]}
    if facts.sync_guard is not None and facts.waits:
        importable["gpu_sync_allowed"] = facts.sync_guard
    if facts.info_class is not None:
        module, name = facts.info_class
        importable[name] = module
    importable |= {name: module for module, name in facts.padding}
    imports = tuple(sorted((module, name) for name, module in importable.items() if name in words))
    return Methods(source, view, imports, mixin)


def _asserting(source: str, optional: frozenset[str]) -> str:
    """The methods, each of which first asserts what it reads of attributes that may be None: mypy asks for it."""
    lines = source.splitlines(keepends=True)
    for method in reversed([node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]):
        used = {
            name
            for node in ast.walk(method)
            for part in (getattr(node, "value", None), getattr(node, "func", None))
            if isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Return)
            and isinstance(part, ast.Attribute)
            and (name := self_attribute(part)) in optional
        }
        first = method.body[ast.get_docstring(method) is not None].lineno - 1
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        lines[first:first] = [f"    assert self.{name} is not None\n" for name in sorted(used)]
    return "".join(lines)


def _mixin(view: View) -> Mixin | None:
    if not isinstance(view, ReentryView):
        return None
    units = _PATHS_MIXIN if view.has_paths else _UNITS_MIXIN
    template, module, class_name = units if isinstance(view, CutView) else _ROWS_MIXIN
    return Mixin(module, class_name, render_template(template, class_name=class_name, **_names(view)))


def _names(view: View) -> dict[str, Any]:
    """Fields and properties of a view by their names."""
    return {name: getattr(view, name) for name in dir(view) if not name.startswith("_")}
