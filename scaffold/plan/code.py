"""Descriptor expressions and calls as Python source, in the words of one generated method."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaffold.render.environment import Code

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.descriptor.expressions import Expression

#: The predefined names of the descriptor language, as the protocol's own parameters.
CAPACITIES = {"b": "token_budget", "B": "max_batch_size", "F": "max_frames_per_batch"}


@dataclass(frozen=True)
class Names:
    """What each name of the descriptor's expressions stands for in generated code."""

    bindings: Mapping[str, str]

    @classmethod
    def of(cls, port: AnyPort) -> Names:
        """The `let` names of `port`, each spelled out, plus the capacities."""
        bindings = dict(CAPACITIES)
        for name, expression in port.lets:
            bindings[name] = expression.python(bindings)
        return cls(bindings)

    def code(self, expression: Expression) -> Code:
        return Code(expression.python(self.bindings))

    def localised(
        self, port: AnyPort, *expressions: Expression | None, longest: int | None = None
    ) -> tuple[Names, tuple[tuple[str, Code], ...]]:
        """Names for one method in which a `let` that `expressions` use more than once is a local variable.

        So is one that is longer than `longest` characters when spelled out, with those that it is made of. Returns the
        names and the variables with their values, in order of definition.
        """
        uses = Counter(name for expression in expressions if expression for name in _used_names(expression))
        local = {name for name, count in uses.items() if count > 1}
        if longest is not None:
            table = dict(port.lets)
            long = [name for name in uses if name in table and len(self.bindings[name]) > longest]
            local.update(long, *({let for let, _ in port.lets_for(table[name])} for name in long))
        # What a local needs itself is spelled out, unless it is local too and stands above.
        bindings, lines = dict(CAPACITIES), []
        for name, expression in port.lets:
            bindings[name] = expression.python(bindings)
            if name in local:
                lines.append((name, Code(bindings[name])))
                bindings[name] = name
        return Names(bindings), tuple(lines)


def _used_names(expression: Expression) -> list[str]:
    """Each use of a name, in the order of the text."""
    from scaffold.descriptor.expressions import Name, walk

    return [node.name for node in walk(expression.root) if isinstance(node, Name)]


def identifiers(source: str) -> list[str]:
    """Every word of Python source that may be a name, comments and strings included, in the order of the text."""
    return re.findall(r"[A-Za-z_][A-Za-z0-9_]*", source)
