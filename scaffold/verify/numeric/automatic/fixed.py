"""Towers whose sizes are written in code: a constant beside the model's class, or a row of a table by timm's names.

They are made small together with the configuration, so that what names their old width follows it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from scaffold.verify.numeric.automatic.shrink import Tree, is_channels

_ROW = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
#: Sizes as the release has them, by what `fixed_towers` calls them: an attempt before may have replaced them.
_RELEASE: dict[str, Tree] = {}


@dataclass(frozen=True, slots=True)
class FixedTower:
    """Sizes of a tower that no configuration holds, and how others are put in their place."""

    sizes: Tree
    install: Callable[[Tree], None]


def fixed_towers(module: str, values: Tree) -> Iterator[tuple[str, FixedTower]]:
    """Towers of fixed size that this module has, or that these values name; each by a name that says what it is."""
    from transformers import PretrainedConfig

    names = vars(sys.modules[module]) if module in sys.modules else {}
    for name, value in names.items():
        if isinstance(value, PretrainedConfig):
            yield _fixed(f"{name}_vision_config", value.to_dict, partial(_replace, names, name, type(value).from_dict))
        elif isinstance(value, dict) and any(is_channels(key, number) for key, number in value.items()):
            yield _fixed(f"{name}_vision_config", value.copy, partial(_replace, names, name, dict))
    with suppress(ImportError):  # of releases with this tower
        table = import_module("vllm.transformers_utils.configs.radio").VIT_TIMM_DIM_BY_NAME
        for name in sorted(table.keys() & set(_strings(values))):
            row: Tree = dict(zip(_ROW, table[name], strict=True))
            yield _fixed(f"{name}_vision_config", row.copy, partial(_replace_row, table, name))


def _fixed(name: str, sizes: Callable[[], Tree], install: Callable[[Tree], None]) -> tuple[str, FixedTower]:
    if name not in _RELEASE:
        _RELEASE[name] = sizes()
    return name, FixedTower(copy.deepcopy(_RELEASE[name]), install)


def _replace(names: dict[str, Any], name: str, make: Callable[[Tree], Any], sizes: Tree) -> None:
    names[name] = make(sizes)


def _replace_row(table: dict[str, Any], name: str, sizes: Tree) -> None:
    table[name] = tuple(sizes[key] for key in _ROW)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else ():
        yield from _strings(part)
