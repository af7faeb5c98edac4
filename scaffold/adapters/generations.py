"""The page of differences: what each generation of the protocol changes in the adapters, method by method.

Adapters of neighbouring generations have nine of ten lines in common. The page has the tenth: for each two neighbours
the lines that differ, once, with the models that have this difference.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from scaffold.render import Code, render_template

if TYPE_CHECKING:
    from scaffold.protocol import Generation

_GOES, _COMES = "goes", "comes"
#: Adapter sources by model, one mapping a generation.
Texts = Mapping[str, Mapping[str, str]]


def render_differences(generations: Sequence[Generation], adapters: Texts) -> str:
    """The page for the adapters of `generations`, which are in their order: generation -> model -> formatted source."""
    steps = []
    for left, right in pairwise(generations):
        before, after = adapters[left.name], adapters[right.name]
        both = sorted(before.keys() & after.keys())
        found = {model: dict(_differences(before[model], after[model])) for model in both}
        groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for model in both:
            for place, lines in found[model].items():
                groups.setdefault((place, lines), []).append(model)
        order = list(dict.fromkeys(place for place, _ in groups))
        ordered = sorted(groups.items(), key=lambda group: (order.index(group[0][0]), -len(group[1])))
        same = [model for model in both if not found[model]]
        steps.append(
            {
                "left": Code(left.name),
                "right": Code(right.name),
                "first": Code(right.first),
                "moved": Code(
                    "\n".join(
                        f"* {place} {lines[0]}: {_listed(models, both)}"
                        for (place, lines), models in ordered
                        if lines in ((_GOES,), (_COMES,))
                    )
                ),
                "anchor": _anchor(f"{left.name} to {right.name}: vLLM {right.first}"),
                "changes": [
                    {"name": Code(place), "anchor": _anchor(f"{place} in {right.name}"), "groups": changes}
                    for place in order
                    if (
                        changes := [
                            {"models": _listed(models, both), "lines": [Code(line) for line in lines]}
                            for (of, lines), models in ordered
                            if of == place and lines not in ((_GOES,), (_COMES,))
                        ]
                    )
                ],
                "same": _listed(same, both) if same else None,
                "new": Code(", ".join(sorted(after.keys() - before.keys()))),
            }
        )
    return render_template("adapter/generations.md.jinja", steps=steps)


def _anchor(heading: str) -> Code:
    """The name of a heading in links, as forges make it."""
    return Code(re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-"))


def _listed(models: Sequence[str], both: Sequence[str]) -> Code:
    return Code("all models" if len(models) == len(both) > 1 else ", ".join(models))


def _differences(before: str, after: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The differences of two adapters, by place: the imports, or a method. One that only one of them has is named."""
    left, right = dict(_places(before)), dict(_places(after))
    for place in dict.fromkeys([*left, *right]):
        if place not in right:
            yield place, (_GOES,)
        elif place not in left:
            yield place, (_COMES,)
        elif left[place] != right[place]:
            lines = [*difflib.unified_diff(left[place], right[place], n=1, lineterm="")][3:]
            yield place, tuple("" if line.startswith("@@") else line.rstrip() for line in lines)


def _places(source: str) -> Iterator[tuple[str, list[str]]]:
    """The parts of an adapter with their lines, without the module's docstring, which names the generation."""
    lines, tree = source.splitlines(), ast.parse(source)
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    yield "imports", [line for node in imports for line in lines[node.lineno - 1 : node.end_lineno]]
    named = [(_name(node), node) for node in owner.body]
    for place, node in named:
        first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
        yield place, [line[4:] for line in lines[first - 1 : node.end_lineno]]


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"`{node.name}`"
    if isinstance(node, ast.AnnAssign):
        return f"`{ast.unparse(node.target)}`"
    return f"`{ast.unparse(node.targets[0])}`" if isinstance(node, ast.Assign) else "docstring"
