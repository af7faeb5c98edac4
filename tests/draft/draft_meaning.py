"""What a descriptor means, as values that can be compared: expressions by what they compute, not by how they read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from scaffold.descriptor.expressions import Call, EvaluationError, Expression
from scaffold.descriptor.spec import AdapterSpec

#: How an adapter is called and where it is entered is not what it does.
_NO_MEANING = {"name", "file", "spans", "lets", "helpers", "tests", "docs_models", "examples"}
_FREE = ("t", "h", "w", "n", "b", "B", "F")
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


def meaning(spec: AdapterSpec) -> dict[str, Any]:
    """Every field of a spec by its dotted path."""
    found: dict[str, Any] = {}
    for field in fields(spec):
        if field.name not in _NO_MEANING:
            found |= dict(_walk(field.name, getattr(spec, field.name), spec))
    return found


def differences(left: AdapterSpec, right: AdapterSpec) -> dict[str, tuple[Any, Any]]:
    """Fields that differ in meaning, with both values."""
    one, two = meaning(left), meaning(right)
    keys = sorted(one.keys() | two.keys())
    return {key: (one.get(key), two.get(key)) for key in keys if one.get(key) != two.get(key)}


def _walk(at: str, value: Any, spec: AdapterSpec) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Expression):
        yield at, _computes(value, spec)
    elif isinstance(value, Call):
        yield at, value.python()
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _walk(f"{at}.{field.name}", getattr(value, field.name), spec)
    elif isinstance(value, tuple) and any(is_dataclass(item) or isinstance(item, tuple) for item in value):
        for index, item in enumerate(value):
            name = getattr(item, "name", index)
            yield from _walk(f"{at}.{name}", item, spec)
    else:
        yield at, value


def _computes(expression: Expression, spec: AdapterSpec) -> tuple[int | bool | str, ...]:
    results: list[int | bool | str] = []
    for seed in range(_SAMPLES):
        values = _Anything(seed)
        functions: dict[str, Callable[..., Any]] = {}
        for helper in spec.helpers:
            functions[helper.name] = _helper(helper.args, helper.value, values, functions)
        try:
            for name, let in spec.lets:
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
