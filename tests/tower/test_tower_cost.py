"""What a tower costs to slice: twice as much source, at most twice as many steps and a little."""

from __future__ import annotations

import ast

import pytest
from tower_scene import MODULE, small_tree

from scaffold.tower import slice_tower


def choices(depth: int) -> str:
    return "x + g" if depth == 0 else f"({choices(depth - 1)} if flag else {choices(depth - 1)})"


#: Expressions with 2 to the power of n parts.
SOURCES = {
    "nested choices": lambda n: f"self.patch_embed(x + {choices(n)})",
    "a list of choices": lambda n: "self.patch_embed(x), [" + ", ".join(["x + g if flag else x"] * 2**n) + "]",
    "a sum on each line": lambda n: "x" + "".join(f"\ny{i} = y * g[0]" for i in range(2**n)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_steps_grow_with_the_source(tmp_path, monkeypatch, source) -> None:
    steps = []
    plain = ast.iter_child_nodes
    for size in (6, 7):
        tree = small_tree(tmp_path / str(size), f"g = self.lookup(grid_thw)\ny = {source(size)}\nreturn y")
        count = 0

        def counted(node):
            nonlocal count
            count += 1
            return plain(node)

        with monkeypatch.context() as patch:
            patch.setattr(ast, "iter_child_nodes", counted)
            slice_tower(tree, MODULE, "Tower", entry="forward", data=("x",), metadata=("grid_thw",))
        steps.append(count)
    assert steps[1] < 2.3 * steps[0]
