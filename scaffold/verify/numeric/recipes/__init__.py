"""One module per model: how to build its real vision classes tiny, and which inputs tell a right port from a wrong one.

A recipe knows the model, never the protocol: budgets, items and oracles are the session's business. Recipe modules
import torch and vLLM inside their methods, so that a parent without either can list `RECIPES`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
#: Recipes that are shipped, by their names: the modules here that hold a `RECIPE`.
RECIPES = tuple(sorted(path.stem for path in _FOLDER.glob("*.py") if "\nRECIPE = " in path.read_text("utf-8")))

#: Says on a command line that the lab builds the model by itself (`scaffold.verify.numeric.automatic`).
AUTOMATIC = "automatic"

#: ARCHITECTURE.json: the values of a checkpoint's `config.json` that its tower needs.
KNOWN = Path(__file__).parents[1] / "known"


def recipe_of(name: str, module: str, class_name: str) -> str | None:
    """The shipped recipe for a descriptor, by its own name, else by the model's module or a package around it.

    A module may have several models. A recipe builds one, and says nothing about a port of another: None then.
    """
    named = (name, *reversed(module.split(".")))
    return next((one for one in named if one in RECIPES and class_name in classes_of(one)), None)


@cache
def classes_of(recipe: str) -> frozenset[str]:
    """The classes whose ports a shipped recipe proves: read in its source, since it imports torch."""
    tree = ast.parse((_FOLDER / f"{recipe}.py").read_text(encoding="utf-8"))
    return frozenset(
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if {target.id for target in node.targets if isinstance(target, ast.Name)} & {"host_class", "port_class"}
    )


def known_configuration(architectures: Iterable[str]) -> str:
    """The file with a checkpoint's values for the first architecture that has one; no text where there is none.

    Neither vLLM nor transformers holds these values, and without them the automatic recipe builds no model.
    """
    files = (KNOWN / f"{name}.json" for name in architectures)
    return next((str(file) for file in files if file.is_file()), "")


def is_recipe(reference: str) -> bool:
    """Whether this is a shipped recipe's name, or a Python file, which has to hold a `RECIPE`."""
    return reference in RECIPES or (reference.endswith(".py") and Path(reference).is_file())
