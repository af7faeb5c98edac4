"""The view of a vLLM tree: its sources, its protocol, and the anchors of a port.

It reads syntax trees and never imports vLLM. The package loads a name at its first use, so that its import is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffold.protocol.anchors import (
        ListAnchor,
        ModelAnchor,
        RegistryAnchor,
        Subclass,
        TableAnchor,
        absent_reason,
        find_docs_table,
        find_eager,
        find_example_list,
        find_model,
        find_module,
        find_subclasses,
        find_test_registry,
    )
    from scaffold.protocol.dialect import Dialect, Postprocess
    from scaffold.protocol.generations import GENERATIONS, SERVED, Generation
    from scaffold.protocol.profile import ProtocolProfile, known_profile, own_version, read_protocol, tree_name
    from scaffold.protocol.releases import stable_releases, unpack_release
    from scaffold.protocol.signatures import Method, Parameter
    from scaffold.protocol.target import Target, TargetKind, open_tree, resolve_target, with_package
    from scaffold.protocol.tree import SourceTree

_HOMES = {
    "anchors": (
        "ListAnchor",
        "ModelAnchor",
        "RegistryAnchor",
        "Subclass",
        "TableAnchor",
        "absent_reason",
        "find_docs_table",
        "find_eager",
        "find_example_list",
        "find_model",
        "find_module",
        "find_subclasses",
        "find_test_registry",
    ),
    "dialect": ("Dialect", "Postprocess"),
    "generations": ("GENERATIONS", "SERVED", "Generation"),
    "profile": ("ProtocolProfile", "known_profile", "own_version", "read_protocol", "tree_name"),
    "releases": ("stable_releases", "unpack_release"),
    "signatures": ("Method", "Parameter"),
    "target": ("Target", "TargetKind", "open_tree", "resolve_target", "with_package"),
    "tree": ("SourceTree",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "GENERATIONS",
    "SERVED",
    "Dialect",
    "Generation",
    "ListAnchor",
    "Method",
    "ModelAnchor",
    "Parameter",
    "Postprocess",
    "ProtocolProfile",
    "RegistryAnchor",
    "SourceTree",
    "Subclass",
    "TableAnchor",
    "Target",
    "TargetKind",
    "absent_reason",
    "find_docs_table",
    "find_eager",
    "find_example_list",
    "find_model",
    "find_module",
    "find_subclasses",
    "find_test_registry",
    "known_profile",
    "open_tree",
    "own_version",
    "read_protocol",
    "resolve_target",
    "stable_releases",
    "tree_name",
    "unpack_release",
    "with_package",
]


def __getattr__(name: str) -> Any:
    try:
        module = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)
