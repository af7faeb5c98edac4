"""Method headers in the words of the user's own tree, so that a generated method conforms by construction.

The protocol's parameters, defaults and annotations come from its profile; a template writes only the body. A new
optional parameter in the next vLLM release therefore needs no change of any template.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaffold.render.environment import Code

if TYPE_CHECKING:
    from scaffold.protocol import Method, ProtocolProfile

#: Where names come from that generated methods use, besides the data classes of the protocol's own module.
_SOURCES = {
    "Any": "typing",
    "Hashable": "collections.abc",
    "cached_property": "functools",
    "VllmConfig": "vllm.config",
    "AttentionBackendEnum": "vllm.v1.attention.backends.registry",
    "MULTIMODAL_REGISTRY": "vllm.multimodal",
}


@dataclass(frozen=True)
class Signatures:
    """Headers and call arguments of the protocol's methods, for templates."""

    profile: ProtocolProfile

    def header(self, name: str) -> Code:
        """`def name(self, ...) -> ...:`, on one line; the target's own formatter breaks it."""
        method = self._method(name)
        returns = f" -> {_unquoted(method.returns)}" if method.returns else ""
        return Code(f"def {name}({self._parameters(method)}){returns}:")

    def arguments(self, name: str) -> Code:
        """The same parameters as a call passes them on: `a, b, c`."""
        return Code(", ".join(parameter.name for parameter in self._method(name).parameters[1:]))

    def parameter(self, name: str, index: int) -> Code:
        """The name that this tree gives to a parameter (0 is the first one after self)."""
        return Code(self._method(name).parameters[index + 1].name)

    def has(self, name: str) -> bool:
        """Whether the tree's protocol has the method; some stay in it for releases after their last call."""
        return any(method.name == name for method in self.profile.methods)

    @property
    def importable(self) -> dict[str, str]:
        """Name to module, of everything that generated methods may need from elsewhere."""
        return _SOURCES | {entry.name: self.profile.defs_module for entry in self.profile.dataclasses}

    def _method(self, name: str) -> Method:
        return next(method for method in self.profile.methods if method.name == name)

    @staticmethod
    def _parameters(method: Method) -> str:
        parts: list[str] = []
        for parameter in method.parameters:
            text = parameter.name
            if parameter.annotation:
                text += f": {_unquoted(parameter.annotation)}"
            if parameter.default is not None:
                text += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
            parts.append(text)
        return ", ".join(parts)


def _unquoted(annotation: str) -> str:
    """Annotations of imported names need no quotes; the planner imports all of them."""
    return annotation.replace('"', "").replace("'", "")
