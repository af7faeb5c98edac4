"""`vitcg-scaffold inspect` without a model: the protocol that was read from a tree."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

from scaffold.cli.console import Console

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree


def show_protocol(console: Console, tree: SourceTree, *, as_json: bool) -> None:
    """The generation, methods, data classes and dialect."""
    from scaffold.protocol import own_version, read_protocol

    profile = read_protocol(tree)
    dialect = {field.name: getattr(profile.dialect, field.name) for field in fields(profile.dialect)}
    if as_json:
        facts = {
            "tree": tree.label,
            "release": profile.release,
            "generation": profile.generation.name,
            "fingerprint": profile.fingerprint,
            "modules": {
                "protocol": profile.interfaces_module,
                "definitions": profile.defs_module,
                "manager": profile.manager_module,
            },
            "methods": [str(method) for method in profile.methods],
            "dataclasses": {entry.name: [str(field) for field in entry.fields] for entry in profile.dataclasses},
            "dialect": dialect,
        }
        console.document(json.dumps(facts, indent=2) + "\n")
        return
    generation = profile.generation
    console.result(f"{tree.label}: protocol {generation.name} (vLLM {generation.first} to {generation.last})")
    if own := own_version(tree):
        console.result(f"  version      {own}")
    console.result(f"  fingerprint  {profile.fingerprint}")
    console.result(f"  protocol     {profile.interfaces_module}")
    console.result(f"  definitions  {profile.defs_module}")
    console.result(f"  manager      {profile.manager_module}")
    console.block("\nMethods")
    for method in profile.methods:
        console.result(f"  {'  ' if method.has_default else '* '}{method}")
    console.block("  (* must be implemented)\n\nData classes")
    for entry in profile.dataclasses:
        console.result(f"  {entry.name}")
        for field in entry.fields:
            console.result(f"    {field}")
    console.block("\nDialect")
    for name, value in dialect.items():
        console.result(f"  {name:<24} {getattr(value, 'value', value)}")
