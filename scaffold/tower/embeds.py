"""Whether requests may bring precomputed embeddings, by the source of a processor. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scaffold.syntax import FunctionNode, call_name
from scaffold.tower.source import Owner, Program

#: How the classes of items that hold media are called, and the class whose parser takes embeddings and nothing beside.
_MEDIA, _BASE = "ProcessorItems", "BaseProcessingInfo"


def refused_embeds(program: Program, processor: Owner, info: Owner | None, modality: str) -> str:
    """Why a processor refuses every request with precomputed embeddings of a modality; empty where nothing shows it.

    It replaces their part of the prompt by items of media alone: `get_items` raises for others. Or it cuts them by
    another input (`flat_from_sizes`), and vLLM's own parser takes none beside them.
    """
    updates = program.method(processor, "_get_prompt_updates")
    if updates is not None and any(_asks_for_media(one, modality) for one in _replacements(updates[2], modality)):
        return f"its processor takes items of media alone (`get_items` of `{modality}`)"
    fields = program.method(processor, "_get_mm_fields_config")
    parser = program.method(info, "get_data_parser") if info is not None else None
    if fields is not None and parser is not None and parser[1].name == _BASE and _is_cut(fields[2], modality):
        return f"its processor cuts `{modality}_embeds` by an input that no request brings with them"
    return ""


def _replacements(updates: FunctionNode, modality: str) -> Iterator[FunctionNode]:
    """The functions that give what a prompt has in the place of an item."""
    names = set()
    for call in (node for node in ast.walk(updates) if isinstance(node, ast.Call)):
        given = {one.arg: ast.unparse(one.value) for one in call.keywords}
        if given.get("modality") == repr(modality):
            names.add(given.get("replacement"))
    yield from (node for node in ast.walk(updates) if isinstance(node, FunctionNode) and node.name in names)


def _asks_for_media(function: FunctionNode, modality: str) -> bool:
    """Whether a function asks for items of media before it decides on anything."""
    for node in function.body:
        match getattr(node, "value", None):
            case ast.Call(func=ast.Attribute(attr="get_items"), args=[ast.Constant(value=asked), kinds]):
                named = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                if asked == modality and all(ast.unparse(one).endswith(_MEDIA) for one in named):
                    return True
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr):
            return False
    return False


def _is_cut(fields: FunctionNode, modality: str) -> bool:
    """Whether a field configuration cuts embeddings by sizes, and looks at no embeddings itself."""
    key = f"{modality}_embeds"
    cut = any(
        isinstance(node, ast.keyword) and node.arg == key and call_name(node.value) == "flat_from_sizes"
        for node in ast.walk(fields)
    )
    return cut and all(getattr(node, "value", None) != key for node in ast.walk(fields))
