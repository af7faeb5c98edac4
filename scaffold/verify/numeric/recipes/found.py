"""The recipe of a request, in the process that builds the model: a shipped one, a file's, or the automatic one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from scaffold.verify.numeric.recipes.base import Recipe
from scaffold.verify.numeric.reports import Automatic


def requested_recipe(request: Mapping[str, Any]) -> Recipe:
    """The recipe of a request, as a child process gets it; the same object each time."""
    if request["automatic"] is None:
        return load_recipe(request["recipe"])
    return _automatic_recipe(json.dumps(request["automatic"]))


@cache
def _automatic_recipe(settings: str) -> Recipe:
    from scaffold.verify.numeric.automatic.recipe import AutomaticRecipe

    return AutomaticRecipe(Automatic(**json.loads(settings)))


def load_recipe(name: str) -> Recipe:
    """A recipe: the name of a shipped one, or a Python file. Raises TypeError for another `RECIPE`."""
    module = _load_file(Path(name)) if name.endswith(".py") else import_module(f"{__package__}.{name}")
    recipe = getattr(module, "RECIPE", None)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"{name} has no `RECIPE` that is a {Recipe.__module__}.Recipe")
    return recipe


@cache
def _load_file(path: Path) -> ModuleType:
    # Not as an import, which would take bytecode beside it for that of any file of the same time and size.
    module = ModuleType(f"recipe_{path.stem}")
    module.__file__ = str(path)
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    return module
