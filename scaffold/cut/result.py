"""Whether what an entry makes reaches the caller of `embed_multimodal` as it is."""

from __future__ import annotations

import ast

from scaffold.syntax import FunctionNode, parents_of, values_of

#: Calls that make a sequence of embeddings, methods that add embeddings to one, and calls that ask about them.
_SEQUENCES = ("tuple", "list")
_ADDING = ("append", "extend")
_ASKING = ("len", "isinstance")


def find_change(function: FunctionNode, entry: str) -> ast.AST | None:
    """Where `function` does more with a call of `entry` than return its result, perhaps in a sequence.

    The function itself if it does not call `entry`. A port calls the entry in the place of `embed_multimodal`, so
    whatever that does afterwards would be lost: PaliGemma of 0.22 scales its embeddings there.
    """
    uses = _Uses(function)
    pending: list[ast.AST] = [
        node for node in uses.parents if isinstance(node, ast.Call) and ast.unparse(node.func) == entry
    ]
    if not pending:
        return function
    names: set[str] = set()
    while pending:
        node = pending.pop()
        try:
            name = uses.kept_in(node)
        except _ChangedError as error:
            return error.where
        if name and name not in names:
            names.add(name)
            pending += [use for use in uses.parents if isinstance(use, ast.Name) and use.id == name]
    return None


class _ChangedError(Exception):
    def __init__(self, where: ast.AST) -> None:
        self.where = where


class _Uses:
    def __init__(self, function: FunctionNode) -> None:
        self.parents = parents_of(function)

    def kept_in(self, node: ast.AST) -> str | None:
        """The variable that a value gets into, if any. Raises `_ChangedError` where something else is made of it."""
        parent = self.parents[node]
        match parent:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                return name
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()) if self._is_sequence(parent.target):
                return name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _ADDING:
                return name
            case ast.BinOp(left=left, op=ast.Add(), right=right) if self._is_sequence(left) or self._is_sequence(right):
                return self.kept_in(parent)
            case ast.Call(func=ast.Name(id=called)) if called in _SEQUENCES:
                return self.kept_in(parent)
            case ast.IfExp(test=test) if node is not test:
                return self.kept_in(parent)
            case ast.Starred() | ast.Tuple() | ast.List():
                return self.kept_in(parent)
            case ast.Call(func=ast.Name(id=called)) if called in _ASKING:
                return None
            case ast.Attribute(attr=method) if method in _ADDING:
                return None  # something is added to it
            case ast.Return() | ast.Compare() | ast.If() | ast.IfExp() | ast.UnaryOp(op=ast.Not()):
                return None
        raise _ChangedError(parent)

    def _is_sequence(self, node: ast.AST) -> bool:
        """Whether it is a list or tuple, or a variable that is one at first: adding to it changes no embedding."""
        if isinstance(node, ast.Name):
            made = values_of(node.id, dict.fromkeys(self.parents.values()))
            return any(self._is_sequence(value) for value in made if not isinstance(value, ast.Name))
        called = node.func if isinstance(node, ast.Call) else None
        return isinstance(node, ast.Tuple | ast.List) or (isinstance(called, ast.Name) and called.id in _SEQUENCES)
