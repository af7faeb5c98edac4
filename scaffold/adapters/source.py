"""The source of one adapter class, made from the same rendered methods as a port into a tree.

An adapter class is a subclass of the release's own class, which may implement the protocol itself; a port changes that
class. So nothing of the release's implementation may shine through: `super()` in a protocol method would reach it and
becomes the protocol class by name, unless the mixin has the method, which comes before the release's class. And a
method that the adapter leaves to the protocol's default is bound to that default. An adapter has no constructor: a
model of the release's own class is adapted when a manager is about to be made for it (`scaffold.tower.adapt`). The
changes that a port makes beside the protocol methods are made then, in `_adapt_encoder`.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scaffold.adapters.towers import known_tower
from scaffold.descriptor import PackedPort, ReentryPort
from scaffold.plan.methods import render_methods, without_paths
from scaffold.protocol.profile import PROTOCOL
from scaffold.render import Code, render_template
from scaffold.tower.names import mentions

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.plan.methods import Mixin
    from scaffold.protocol import ProtocolProfile


def render_adapter(port: AnyPort, profile: ProtocolProfile) -> tuple[str, Mixin | None]:
    """The module of one adapter and that of its mixin, which lies beside it: before formatting, without headers."""
    port = without_paths(port, profile.dialect)
    answer = known_tower(port, profile.generation)
    facts = answer.facts
    assert facts is not None, "the generation was refused"
    if port.reenters:  # A mixin is that of every model of the generation, and right for either answer.
        facts = replace(facts, attention_fills_zeros=False)
    methods = render_methods(port, profile, facts)
    shared = methods.mixin.methods if methods.mixin else frozenset()
    block = name_defaults(methods.source, {method.name for method in profile.methods}, shared)
    tree = ast.parse(block)
    defined = methods.names | shared
    inherited = {method.name for method in profile.methods if method.has_default} - defined - profile.uncalled
    package, _, module = port.module.rpartition(".")
    imports = {(package, module), (profile.interfaces_module, PROTOCOL), *methods.imports}
    if answer.splits:
        imports.add(("scaffold.tower", "split_at_load"))
    cut = _cut(port) if isinstance(port, ReentryPort) else None
    if cut:
        imports.add(("scaffold.cut", "cut_at_load"))
    keeps_model_config = answer.keeps_model_config and "self.model_config" in block
    if keeps_model_config:
        imports.add(("typing", "Any"))
    loaded = mentions(tree)
    generation = profile.generation
    text = render_template(
        "adapter/model.py.jinja",
        first=Code(generation.first),
        last=Code(generation.last),
        generation=Code(generation.name),
        protocol=Code(PROTOCOL),
        class_name=port.class_name,
        architecture=port.architecture,
        module=module,
        mixin=methods.mixin,
        modules=[name for name in ("torch",) if name in loaded],
        imports=sorted(imports),
        inherited=sorted(inherited),
        tower=port.tower,
        split=_split(port) if answer.splits and isinstance(port, PackedPort) else None,
        unread=_unread(port) if answer.unread and isinstance(port, PackedPort) else None,
        cut=cut,
        keeps_model_config=keeps_model_config,
        methods=Code(textwrap.indent(block.strip("\n"), "    ")),
    )
    return text, methods.mixin


def _cut(port: ReentryPort) -> dict[str, Any]:
    """The arguments of `cut_at_load`."""
    entries = dict.fromkeys(modality.entry.path for modality in port.modalities.values())
    encoder = port.encoder
    call = encoder if isinstance(encoder, str) else encoder.python()
    further = {"loop": port.loop, "through": port.through, "per_item": port.per_item}
    return {"entries": list(entries), "call": call, **{name: value for name, value in further.items() if value}}


def _split(port: PackedPort) -> dict[str, Any]:
    """The arguments of `split_at_load`."""
    entry = {} if port.split.entry == "forward" else {"entry": port.split.entry}
    names = {"names": dict(port.split.names)} if port.split.names else {}
    return {
        **entry,
        "data": port.split.data,
        "metadata": list(port.split.metadata),
        "keys": port.tower_keys,
        "parameters": [name for names in port.tower_parameters for name in names],
        **names,
    }


def _unread(port: PackedPort) -> dict[str, Any]:
    """Further arguments of `split_at_load`, for a tower of which nothing is recorded."""
    return {"lengths": sorted(port.lengths), "grid": port.split.grid}


def name_defaults(block: str, methods: set[str], shared: frozenset[str] = frozenset()) -> str:
    """`super().m(a)` for a protocol method `m` as `SupportsEncoderCudaGraph.m(self, a)`; nothing else is touched, nor
    is a call of what is `shared`: the mixin's.

    Any other use of `super` would mean the release's class, which a port into a tree does not: our own mistake.
    """
    places: list[tuple[int, int]] = []
    starts = [0]
    for line in block.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = block.encode()
    calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    named = [node for node in calls if _super_method(node) in methods - shared]
    kept = [node for node in calls if _super_method(node) in shared]
    uses = sum(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(ast.parse(block)))
    assert uses == len(named) + len(kept), "a template uses super() for something else than a default of the protocol"
    for node in named:
        assert isinstance(node.func, ast.Attribute)
        owner = node.func.value
        assert owner.end_lineno is not None
        assert owner.end_col_offset is not None
        first = starts[owner.lineno - 1] + owner.col_offset
        places.append((first, starts[owner.end_lineno - 1] + owner.end_col_offset))
    for first, last in sorted(places, reverse=True):
        opening = data.index(b"(", last)
        comma = b"" if data[opening + 1 : opening + 2] == b")" else b", "
        data = data[:first] + PROTOCOL.encode() + data[last : opening + 1] + b"self" + comma + data[opening + 1 :]
    return data.decode()


def _super_method(node: ast.Call) -> str | None:
    """`m` of `super().m(...)`."""
    function = node.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Call):
        return None
    owner = function.value
    bare = isinstance(owner.func, ast.Name) and owner.func.id == "super" and not owner.args and not owner.keywords
    return function.attr if bare else None
