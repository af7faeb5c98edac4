"""Run with a tool that knows the invented generation: `python run_drill.py TREE`. Prints one JSON object.

Ports the five models into the tree in memory, with all static proofs; proves one of them in the CPU lab against the
tree's own manager; and renders the adapters that need no record of the tower.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

from scaffold.adapters.outputs import Source, render_outputs
from scaffold.protocol import open_tree, read_protocol
from scaffold.workflow import load_port, prepare_port, prove_numerics

MODELS = ("internvl", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "step3_vl")


def main(root: Path) -> None:
    tree = open_tree(root)
    ports = {}
    for name in MODELS:
        spec = load_port(name)
        port = prepare_port(spec, tree, replace=True)
        model = next(file for file in port.plan.files if file.class_name)
        after = next(change.after for change in port.changes if change.path == model.path)
        assert after is not None
        owner = next(
            node for node in ast.parse(after).body if isinstance(node, ast.ClassDef) and node.name == spec.class_name
        )
        ports[name] = {
            "files": [change.path for change in port.changed],
            "errors": [note.code for note in port.notes if note.severity.value == "error"],
            "methods": {
                node.name: [argument.arg for argument in node.args.args]
                for node in owner.body
                if isinstance(node, ast.FunctionDef)
            },
        }
    (report,) = prove_numerics(load_port("qwen2_vl"), tree)
    made = render_outputs([Source(name, load_port(name)) for name in ("internvl", "step3_vl")])
    print(
        json.dumps(
            {
                "generation": read_protocol(tree).generation.name,
                "ports": ports,
                "lab": {"passed": report.passed, "hits": report.hits, "misses": report.misses, "text": report.lines()},
                "adapters": sorted({output.generation.name for output in made.files if output.generation}),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
