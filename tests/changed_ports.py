"""Shipped ports with some keys changed, as a user would change them: in the YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.load import shipped_path

#: Descriptors that are not shipped, for tests of a layout.
UNSHIPPED = {path.stem: path for path in sorted((Path(__file__).parent / "cut").glob("*.yaml"))}
#: Descriptors that `init --yes` drafted, for tests of what comes after a draft. Their first lines say from what.
DRAFTED = {path.stem: path for path in sorted((Path(__file__).parent / "drafts").glob("*.yaml"))}


def path_of(model: str) -> Path:
    """The descriptor of a model, a shipped one or one for tests."""
    return Path(str(shipped_path(model) or (UNSHIPPED | DRAFTED)[model]))


def document_of(model: str) -> dict[str, Any]:
    """The descriptor of a model as plain data."""
    data: dict[str, Any] = yaml.safe_load(path_of(model).read_text("utf-8"))
    return data


def put(data: Any, where: tuple[str | int, ...], value: Any) -> Any:
    """A copy of a document with another value at a place; None takes the key away."""
    if not where:
        return value
    step, rest = where[0], where[1:]
    if isinstance(data, list):
        return [put(item, rest, value) if index == int(step) else item for index, item in enumerate(data)]
    if value is None and not rest:
        return {key: item for key, item in data.items() if key != step}
    return {**data, step: put(data.get(step), rest, value)}


def text_of(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def port_of(model: str, changes: dict[str, Any] | None = None) -> Any:
    """The port of a shipped descriptor with other values by dotted path; None takes a key away.

    `{"model.optout": ["Other"], "gates": None}`
    """
    data = document_of(model)
    for path, value in (changes or {}).items():
        data = put(data, tuple(path.split(".")), value)
    return load_descriptor_text(text_of(data), f"{model}.yaml")
