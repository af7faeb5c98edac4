"""Writes what the repository does not hold before a package of it is built: adapters of older generations.

Editable installations run it too, so a checkout has all adapters after `make setup`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AdaptersHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Render everything, refuse other digests than the manifest's, replace the files that differ."""
        sys.path.insert(0, self.root)
        try:
            from scaffold.adapters.regenerate import plan_regeneration
        finally:
            sys.path.remove(self.root)
        folder = Path(self.root) / "generated"
        plan = plan_regeneration(folder)
        edited = [change.path for change in plan.older if change.path in plan.edited]
        if edited or not plan.kept:
            what = f"{edited[0]} was edited by hand" if edited else "adapters of older generations have other digests"
            raise RuntimeError(f"{folder}: {what} (`vitcg-scaffold new --all --check` shows the difference)")
        for change in plan.older:
            place = folder / change.path
            if change.after is None:
                place.unlink()
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(change.after)
