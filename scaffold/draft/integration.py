"""Drafts the test, documentation and example entries from what the tree says of the model elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scaffold.draft.locate import Located
from scaffold.draft.sheet import Sheet
from scaffold.draft.values import Place
from scaffold.protocol.tree import SourceTree

_CHECKPOINTS = "tests/models/registry.py"
_TABLE = "docs/models/supported_models.md"
_PLACEHOLDER = "get_placeholder_str"
_PROMPTS = {"image": "What is in this image?", "video": "Describe this video in one sentence."}


def draft_integration(sheet: Sheet, tree: SourceTree, model: Located, modalities: tuple[str, ...]) -> None:
    """Fill in `integration` as far as the tree has tests and documentation of the model.

    A chat template is nothing that sources tell reliably: the test entry gets the model's placeholder and a question.
    """
    checkpoint = _checkpoint(tree, model.class_name)
    placeholders = dict(_placeholders(model))
    if checkpoint is not None and all(name in placeholders for name in modalities if name in _PROMPTS):
        at = "integration.test"
        name, keywords, place = checkpoint
        sheet.put(f"{at}.key", model.file.rpartition("/")[2].removesuffix(".py"))
        sheet.put(f"{at}.model", name, place)
        for modality in modalities:
            if modality in _PROMPTS:
                text, where = placeholders[modality]
                sheet.put(
                    f"{at}.{modality}_prompt", f"{text}{_PROMPTS[modality]}", where, why="without a chat template"
                )
        if keywords.get("trust_remote_code") is True:
            sheet.put(f"{at}.runner_kwargs.trust_remote_code", True, place)
    families = _families(tree, model.class_name)
    if families is not None:
        sheet.put("integration.docs.models", families[0], families[1])


def _checkpoint(tree: SourceTree, class_name: str) -> tuple[str, dict[str, object], Place] | None:
    """The checkpoint that vLLM's own tests use for an architecture, the last entry of the file for it."""
    if not tree.exists(_CHECKPOINTS):
        return None
    found = None
    for node in ast.walk(tree.parse(_CHECKPOINTS)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == class_name and isinstance(value, ast.Call):
                    first = value.args[0] if value.args else None
                    if isinstance(first, ast.Constant) and (found is None or key.lineno > found[2].line):
                        given: dict[str, object] = {
                            keyword.arg: keyword.value.value
                            for keyword in value.keywords
                            if keyword.arg and isinstance(keyword.value, ast.Constant)
                        }
                        found = (str(first.value), given, Place(_CHECKPOINTS, key.lineno))
    return found


def _placeholders(model: Located) -> Iterator[tuple[str, tuple[str, Place]]]:
    """What stands for an item in a prompt: `if modality.startswith("image"): return "<image>"`."""
    for node in ast.walk(model.owner[1]):
        if isinstance(node, ast.FunctionDef) and node.name == _PLACEHOLDER:
            for test in ast.walk(node):
                if not isinstance(test, ast.If):
                    continue
                names = [part.value for part in ast.walk(test.test) if isinstance(part, ast.Constant)]
                returned = test.body[0] if test.body else None
                if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Constant):
                    for name in names:
                        yield str(name), (str(returned.value.value), Place(model.file, returned.lineno))


def _families(tree: SourceTree, class_name: str) -> tuple[list[str], Place] | None:
    """The models that the documentation's table lists for an architecture."""
    if not tree.exists(_TABLE):
        return None
    for number, line in enumerate(tree.read(_TABLE).splitlines(), start=1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 2 and cells[0].startswith(f"`{class_name}`"):
            names = [name.strip() for name in cells[1].split(",") if name.strip()]
            return (names, Place(_TABLE, number)) if names else None
    return None
