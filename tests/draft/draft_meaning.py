"""What a descriptor means, as values that can be compared: expressions by what they compute, not by how they read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scaffold.descriptor import AnyPort, PackedPort, PathsPort
from scaffold.descriptor.expressions import Call, EvaluationError, Expression
from scaffold.descriptor.schema import Record

#: What only names expressions or is said of a port elsewhere: how it is entered is not what it does.
_NO_MEANING = {"schema", "let", "helpers", "integration"}
_SAMPLES = 12


class _Anything(dict[str, Any]):
    """A number for every name and attribute path that is asked for, the same one each time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> int:
        self[key] = random.Random(f"{self.seed} {key}").randint(2, 97)
        return self[key]


def meaning(port: AnyPort) -> dict[str, Any]:
    """Every value of a port by its dotted path, with what follows from those that are not written."""
    found: dict[str, Any] = {"class": type(port).__name__}
    for key, declared in port.by_key.items():
        if key not in _NO_MEANING:
            found |= dict(_walk(key, getattr(port, declared.name), port))
    if isinstance(port, PackedPort):
        found |= dict(_walk("item.merge", port.merge, port))
        for entry in port.sequences:
            found |= dict(_walk(f"attention.{entry.name}", entry, port))
        found["buffers"] = sorted(port.buffers)
    return found


def differences(left: AnyPort, right: AnyPort) -> dict[str, tuple[Any, Any]]:
    """Values that differ in meaning, both of them."""
    one, two = meaning(left), meaning(right)
    keys = sorted(one.keys() | two.keys())
    return {key: (one.get(key), two.get(key)) for key in keys if one.get(key) != two.get(key)}


def _walk(at: str, value: Any, port: AnyPort) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Expression):
        yield at, _computes(value, port)
    elif isinstance(value, Call):
        yield at, value.python()
    elif isinstance(value, Record):
        for key, declared in value.by_key.items():
            if key != "why":  # a person's reason for it
                yield from _walk(f"{at}.{key}", getattr(value, declared.name), port)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _walk(f"{at}.{key}", entry, port)
    elif isinstance(value, tuple) and any(isinstance(item, (Expression, Record)) for item in value):
        for index, item in enumerate(value):
            yield from _walk(f"{at}.{index}", item, port)
    else:
        yield at, value


def _computes(expression: Expression, port: AnyPort) -> tuple[int | bool | str, ...]:
    results: list[int | bool | str] = []
    for seed in range(_SAMPLES):
        values = _Anything(seed)
        functions: dict[str, Callable[..., Any]] = {}
        for name, helper in (port.helpers if isinstance(port, PathsPort) else {}).items():
            functions[name] = _helper(helper.args, helper.value, values, functions)
        try:
            for name, let in port.lets:
                values[name] = let.evaluate(values, functions)
            results.append(expression.evaluate(values, functions))
        except EvaluationError as error:
            results.append(type(error).__name__)
    return tuple(results)


def _helper(
    names: tuple[str, ...], value: Expression, values: _Anything, functions: dict[str, Callable[..., Any]]
) -> Callable[..., Any]:
    def call(*arguments: int) -> int | bool:
        inner = _Anything(values.seed)
        inner.update(values)
        inner.update(zip(names, arguments, strict=True))
        return value.evaluate(inner, functions)

    return call
