"""vLLM's documentation of its models: the tables that name the models of an architecture."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from scaffold.protocol.tree import SourceTree

#: The tables of models that generate, and of those that only pool.
_TABLES = ("docs/models/supported_models.md", "docs/models/pooling_models/embed.md",
           "docs/models/pooling_models/token_embed.md", "docs/models/pooling_models/scoring.md",
           "docs/models/pooling_models/classify.md")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ListedModels:
    """One row of these tables: `families` are the names of the models, `text` is all of it."""

    path: str
    line: int
    families: tuple[str, ...]
    text: str


def listed_models(tree: SourceTree, architectures: Collection[str]) -> Iterator[ListedModels]:
    """The rows of any of the architectures, in the order of the pages."""
    for path in _TABLES:
        for number, row in enumerate(tree.read(path).splitlines() if tree.exists(path) else (), start=1):
            _, named, models, *_ = [*row.split("|"), "", ""] if row.startswith("| `") else ("", "", "")
            if not set(re.findall(r"`([^`]+)`", named)).isdisjoint(architectures):
                families = (name.strip() for name in models.split(","))
                yield ListedModels(path, number, tuple(name for name in families if name), row)
