"""Descriptor expressions and calls as Python source, in the words of one generated method."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from scaffold.render.environment import Code

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.descriptor.expressions import Expression

#: Local variables of a method, in order of definition: name and value.
Lets: TypeAlias = tuple[tuple[str, Code], ...]

#: The predefined names of the descriptor language, as the protocol's own parameters.
CAPACITIES = {"b": "token_budget", "B": "max_batch_size", "F": "max_frames_per_batch"}


@dataclass(frozen=True)
class Names:
    """The meaning of each name of the descriptor's expressions in generated code; `lets` are a port's own."""

    lets: tuple[tuple[str, Expression], ...]
    bindings: Mapping[str, str]

    @classmethod
    def of(cls, port: AnyPort, lets: tuple[tuple[str, Expression], ...] = ()) -> Names:
        """The `let` names of `port`, or of one of its modalities, each spelled out, plus the capacities."""
        return cls(lets or port.lets, CAPACITIES).localised()[0]

    def code(self, expression: Expression) -> Code:
        return Code(expression.python(self.bindings))

    def localised(self, *expressions: Expression | None, longest: int | None = None) -> tuple[Names, Lets]:
        """Names for one method in which a `let` that `expressions` use more than once is a local variable.

        So is a number, which says nothing without its name, and one that is longer than `longest` characters when
        spelled out, with those that it is made of. Returns the names and the variables with their values, in order of
        definition.
        """
        uses = Counter(name for expression in expressions if expression for name in _used_names(expression))
        local = {name for name, count in uses.items() if count > 1 or self.bindings.get(name, "").isdigit()}
        if longest is not None:
            table = dict(self.lets)
            long = [name for name in uses if name in table and len(self.bindings[name]) > longest]
            local.update(long, *(_needed(self.lets, table[name]) for name in long))
        # Each name that a local needs itself is spelled out, unless it is local too and comes first.
        bindings, lines = dict(CAPACITIES), []
        for name, expression in self.lets:
            bindings[name] = expression.python(bindings)
            if name in local:
                lines.append((name, Code(bindings[name])))
                bindings[name] = name
        return Names(self.lets, bindings), tuple(lines)


def _needed(lets: tuple[tuple[str, Expression], ...], expression: Expression) -> set[str]:
    """The `let` names that an expression is made of, directly or through others. A `let` uses those above it only."""
    needed = set(expression.names)
    for name, value in reversed(lets):
        if name in needed:
            needed |= value.names
    return needed & dict(lets).keys()


def _used_names(expression: Expression) -> list[str]:
    """Each use of a name, in the order of the text."""
    from scaffold.descriptor.expressions import Name, walk

    return [node.name for node in walk(expression.root) if isinstance(node, Name)]


def identifiers(source: str) -> list[str]:
    """Every word of Python source that may be a name, comments and strings included, in the order of the text."""
    return re.findall(r"[A-Za-z_][A-Za-z0-9_]*", source)
