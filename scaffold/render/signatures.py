"""Method headers and calls in the words of the user's own tree, so that a generated method conforms by construction.

The protocol's names, parameters, defaults and annotations come from its profile; a template writes only the body. It
says each method by the name that it had first. So a new name changes no template, nor does a parameter that no body
needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.protocol.signatures import ParameterKind
from scaffold.render.environment import Code

if TYPE_CHECKING:
    from scaffold.protocol import Method, Parameter, ProtocolProfile

#: Where names come from that generated methods use, besides the data classes of the protocol's own module.
_SOURCES = {
    "Any": "typing",
    "Callable": "collections.abc",
    "Hashable": "collections.abc",
    "Signature": "inspect",
    "SimpleNamespace": "types",
    "accumulate": "itertools",
    "cached_property": "functools",
    "cdiv": "vllm.utils.math_utils",
    "suppress": "contextlib",
    "wraps": "functools",
    "TreeSpec": "torch.utils._pytree",
    "tree_flatten": "torch.utils._pytree",
    "tree_unflatten": "torch.utils._pytree",
    "MultiModalEmbeddings": "vllm.model_executor.models.interfaces",
    "VllmConfig": "vllm.config",
    "init_logger": "vllm.logger",
    "AttentionBackendEnum": "vllm.v1.attention.backends.registry",
    "MULTIMODAL_REGISTRY": "vllm.multimodal",
}


_STARS = {ParameterKind.VAR_POSITIONAL: "*", ParameterKind.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class Signatures:
    """Names, headers and calls of the protocol's methods, for templates."""

    profile: ProtocolProfile

    def header(self, name: str) -> Code:
        """`def name(self, ...) -> ...:`, on one line; the target's own formatter breaks it."""
        method = self._method(name)
        parameters = tuple(
            replace(item, annotation=item.annotation and _unquoted(item.annotation)) for item in method.parameters
        )
        returns = f" -> {_unquoted(method.returns)}" if method.returns else ""
        return Code(f"def {method.name}({replace(method, parameters=parameters).signature_source()}){returns}:")

    def name(self, name: str) -> Code:
        """The name of the method in this tree."""
        return Code(self._method(name).name)

    def forward(self, name: str) -> Code:
        """`name(a, b, c=c)`: a call that passes on every parameter, as from an override to the default."""
        return self.call(name, **{item.name: item.name for item in self._method(name).parameters[1:]})

    def call(self, name: str, **values: str) -> Code:
        """`name(a, b, c=c)`: a call with these values (code) for the parameters of these names.

        A parameter that this tree does not have is left out: some generations need a value, others know none. Raises
        VCG440 when the tree demands one that is not given.
        """
        method = self._method(name)
        parts: list[str] = []
        positional = True
        for parameter in method.parameters[1:]:
            stars = _STARS.get(parameter.kind)
            if stars is not None:
                parts += [stars + values[parameter.name]] if parameter.name in values else []
            elif parameter.name not in values:
                positional = False
                if parameter.default is None:
                    raise DiagnosticError(self._demanded(method, parameter))
            elif positional and parameter.kind is not ParameterKind.KEYWORD_ONLY:
                parts.append(values[parameter.name])
            else:
                parts.append(f"{parameter.name}={values[parameter.name]}")
        return Code(f"{method.name}({', '.join(parts)})")

    def _demanded(self, method: Method, parameter: Parameter) -> Diagnostic:
        return Diagnostic(
            "VCG440",
            f"`{method.name}` of protocol {self.profile.generation.name} demands `{parameter.name}`, "
            "which the generated code does not give",
            help="give it where the template calls the method: `signature.call` in templates/",
        )

    def parameter(self, name: str, index: int) -> Code:
        """The name that this tree gives to a parameter (0 is the first one after self)."""
        return Code(self._method(name).parameters[index + 1].name)

    def has(self, name: str) -> bool:
        """Whether the tree's protocol has the method; some stay in it for releases after their last call."""
        return self.profile.known_method(name) is not None

    @property
    def importable(self) -> dict[str, str]:
        """Name to module, of everything that generated methods may need from elsewhere."""
        return _SOURCES | {entry.name: self.profile.defs_module for entry in self.profile.dataclasses}

    def _method(self, name: str) -> Method:
        method = self.profile.known_method(name)
        assert method is not None, f"the protocol has no {name}: ask `has` first"
        return method


def _unquoted(annotation: str) -> str:
    """Annotations of imported names need no quotes; the planner imports all of them."""
    return annotation.replace('"', "").replace("'", "")
