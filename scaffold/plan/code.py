"""Descriptor expressions and calls as Python source, in the words of one generated method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaffold.render.environment import Code

if TYPE_CHECKING:
    from scaffold.descriptor.expressions import Expression
    from scaffold.descriptor.spec import AdapterSpec

#: The predefined names of the descriptor language, as the protocol's own parameters.
CAPACITIES = {"b": "token_budget", "B": "max_batch_size", "F": "max_frames_per_batch"}


@dataclass(frozen=True)
class Names:
    """What each name of the descriptor's expressions stands for in generated code."""

    bindings: Mapping[str, str]

    @classmethod
    def of(cls, spec: AdapterSpec) -> Names:
        """The `let` names of `spec`, each spelled out, plus the capacities."""
        bindings = dict(CAPACITIES)
        for name, expression in spec.lets:
            bindings[name] = expression.python(bindings)
        return cls(bindings)

    def code(self, expression: Expression) -> Code:
        return Code(expression.python(self.bindings))
