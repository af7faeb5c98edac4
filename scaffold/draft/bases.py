"""Bases of a model or of its processor whose code cannot be read: then nothing that is missing is the model's fault."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import name_path, plain_base
from scaffold.tower.source import Module, Owner, Program


def unfollowed_bases(
    tree: SourceTree, program: Program, owners: Iterable[Owner | None], why: Iterable[Diagnostic] = ()
) -> list[Diagnostic]:
    """One VCG497 for each base that is not in the tree, with the reasons why the rest tells too little as notes."""
    notes = tuple(f"without it: {one.message.removeprefix('the model is beyond the layouts: ')}" for one in why)
    found: dict[tuple[str, int], Diagnostic] = {}
    for owner in owners:
        for module, cls, base in program.unfollowed(owner) if owner is not None else ():
            text = ast.unparse(base)
            package = _package(module, (name_path(plain_base(base)) or [""])[0])
            lost = f"is code of `{package}`, which the tree does not have" if package else "is made at run time"
            found[module.file, base.lineno] = Diagnostic(
                "VCG497",
                f"the base `{text}` of `{cls.name}` cannot be followed: it {lost}",
                tree.span(module.file, base.lineno),
                "name its package with --package, or copy its file into the tree and import it from there"
                if package
                else "write the base as a class that the file defines or imports",
                notes=notes,
            )
    return list(found.values())


def _package(module: Module, name: str) -> str:
    """The module that a name of a file comes from, also under another name; empty if the file makes its value."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        if name in module.imports or name not in module.bindings:
            return module.imports.get(name, module.imports.get("*", ("", None)))[0]
        bound = module.bindings[name][0]
        name = bound.partition(".")[0] if isinstance(bound, str) else ""
    return ""


def beside(problem: Diagnostic) -> Diagnostic:
    """The note on a draft that goes without a base."""
    what = f"{problem.message}. What it overrides was not looked at"
    return replace(problem, message=what, severity=Severity.WARNING)
