"""Drafts the test, documentation and example entries from what the tree says of the model elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from scaffold.diagnostics import DiagnosticError
from scaffold.draft.locate import Located
from scaffold.draft.sheet import Sheet
from scaffold.draft.values import SourceLine
from scaffold.protocol import find_example_list, find_test_registry
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import strings

_CHECKPOINTS = "tests/models/registry.py"
_TABLE = "docs/models/supported_models.md"
_PLACEHOLDER = "get_placeholder_str"
#: Short, so that a test entry without a template keeps to vLLM's line length.
_PROMPTS = {"image": "What is this?", "video": "What happens?"}


@dataclass(frozen=True, slots=True)
class _Example:
    key: str
    file: str
    function: ast.FunctionDef


@dataclass(frozen=True, slots=True)
class _Template:
    """`text` has one {content}; `gap` stands between placeholder and question."""

    text: str
    gap: str
    place: SourceLine


def draft_integration(sheet: Sheet, tree: SourceTree, model: Located, modalities: tuple[str, ...]) -> None:
    """Fill in `integration` where the tree has tests and documentation of the model.

    The chat template is that of the model's offline example; without one a prompt is placeholder and question.
    """
    checkpoint = _checkpoint(tree, model.class_name)
    placeholders = dict(_placeholders(model))
    example = _example(tree, model.class_name)
    template = _template(example, placeholders) if example else None
    if checkpoint is not None and all(name in placeholders for name in modalities if name in _PROMPTS):
        at = "integration.test"
        name, keywords, place = checkpoint
        sheet.put(f"{at}.key", model.file.rpartition("/")[2].removesuffix(".py"))
        sheet.put(f"{at}.model", name, place)
        for modality in modalities:
            if modality in _PROMPTS:
                text, where = placeholders[modality]
                gap, why = (template.gap, "") if template else ("", "without a chat template")
                sheet.put(f"{at}.{modality}_prompt", f"{text}{gap}{_PROMPTS[modality]}", where, why=why)
        if template is not None:
            sheet.put(f"{at}.template.name", f"{sheet.value(f'{at}.key')}_chat_template")
            sheet.put(f"{at}.template.text", template.text, template.place, why="the prompt of the offline example")
        marked = _core_models(tree)
        if marked is not None:
            sheet.put(f"{at}.core_model", True, marked, why="as most entries there")
        if keywords.get("trust_remote_code") is True:
            sheet.put(f"{at}.runner_kwargs.trust_remote_code", True, place)
    families = _families(tree, model.class_name)
    if families is not None:
        sheet.put("integration.docs.models", families[0], families[1])
    if example is not None:
        sheet.put("integration.example", example.key, SourceLine(example.file, example.function.lineno))


def _core_models(tree: SourceTree) -> SourceLine | None:
    """The generation test, if most of its entries carry marks: `core_model` is the one that they have."""
    try:
        registry = find_test_registry(tree)
    except DiagnosticError:
        return None
    entries = registry.entries if registry is not None else ()
    marked = [entry for entry in entries if "marks" in entry.keywords]
    core = registry is not None and "core_model" in tree.read(registry.path) and 2 * len(marked) > len(entries)
    return SourceLine(registry.path, registry.line) if registry is not None and core else None


def _checkpoint(tree: SourceTree, class_name: str) -> tuple[str, dict[str, object], SourceLine] | None:
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
                        found = (str(first.value), given, SourceLine(_CHECKPOINTS, key.lineno))
    return found


def _placeholders(model: Located) -> Iterator[tuple[str, tuple[str, SourceLine]]]:
    """The text that stands for an item in a prompt: `if modality.startswith("image"): return "<image>"`."""
    for node in ast.walk(model.owner[1]):
        if isinstance(node, ast.FunctionDef) and node.name == _PLACEHOLDER:
            for test in ast.walk(node):
                if not isinstance(test, ast.If):
                    continue
                names = [part.value for part in ast.walk(test.test) if isinstance(part, ast.Constant)]
                returned = test.body[0] if test.body else None
                if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Constant):
                    for name in names:
                        # None: the processor puts the image before the prompt by itself.
                        text = str(returned.value.value or "")
                        yield str(name), (text, SourceLine(model.file, returned.lineno))


def _families(tree: SourceTree, class_name: str) -> tuple[list[str], SourceLine] | None:
    """The models that the documentation's table lists for an architecture."""
    if not tree.exists(_TABLE):
        return None
    for number, line in enumerate(tree.read(_TABLE).splitlines(), start=1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 2 and cells[0].startswith(f"`{class_name}`"):
            names = [name.strip() for name in cells[1].split(",") if name.strip()]
            return (names, SourceLine(_TABLE, number)) if names else None
    return None


def _example(tree: SourceTree, class_name: str) -> _Example | None:
    """The offline example that loads a checkpoint of the architecture, if exactly one does."""
    try:
        anchor = find_example_list(tree)
    except DiagnosticError:
        return None
    known = _known_checkpoints(tree, class_name)
    if anchor is None or not known:
        return None
    module = tree.parse(anchor.path)
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                function = functions.get(value.id) if isinstance(value, ast.Name) else None
                name = key.value if isinstance(key, ast.Constant) else None
                if function is not None and name in anchor.example_keys and known & strings(function):
                    found.append(_Example(str(name), anchor.path, function))
    return found[0] if len(found) == 1 else None


def _known_checkpoints(tree: SourceTree, class_name: str) -> set[str]:
    """Checkpoints of the architecture in the tests' registry and in the documentation's table."""
    known: set[str] = set()
    if tree.exists(_CHECKPOINTS):
        for node in ast.walk(tree.parse(_CHECKPOINTS)):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == class_name:
                        known |= strings(value)
    if tree.exists(_TABLE):
        for line in tree.read(_TABLE).splitlines():
            if line.startswith(f"| `{class_name}`"):
                known |= set(re.findall(r"`([^`]+/[^`]+)`", line))
    return {name for name in known if name.count("/") == 1}


def _template(example: _Example, placeholders: dict[str, tuple[str, SourceLine]]) -> _Template | None:
    """The prompt of an example with {content} where placeholder and question stand."""
    image = placeholders.get("image")
    prompt = next(
        (node for node in ast.walk(example.function) if isinstance(node, ast.JoinedStr) and "question" in _names(node)),
        None,
    )
    if image is None or prompt is None or not _names(prompt) <= {"question", "placeholder"}:
        return None
    if "placeholder" in _names(prompt) and image[0] not in strings(example.function):
        return None
    text = "".join(
        str(part.value)
        if isinstance(part, ast.Constant)
        else {"question": "\0", "placeholder": image[0]}[ast.unparse(part.value)]
        for part in prompt.values
        if isinstance(part, (ast.Constant, ast.FormattedValue))
    )
    content = re.search(re.escape(image[0]) + r"(\s*)\0", text)
    whole = f"{text[: content.start()]}{{content}}{text[content.end() :]}" if content else ""
    if content is None or whole == "{content}" or "{" in text or "}" in text:
        return None
    return _Template(whole, content.group(1), SourceLine(example.file, prompt.lineno))


def _names(node: ast.JoinedStr) -> set[str]:
    return {ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue)}
