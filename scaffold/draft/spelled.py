"""Values of the configuration that the code of a model and of its processor reads, as a descriptor writes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scaffold.draft.locate import Subject
from scaffold.syntax import FunctionNode, has_attribute, values_of

#: The configuration in code, and what is in its place where nothing is assigned to a name.
_CONFIG = dict.fromkeys(("config", "self.get_hf_config()", "vllm_config.model_config.hf_config"), "self.config")
#: The configuration of the text: vLLM's attribute with what a method of the model's configuration gives.
TEXT, _ASKED = "self.model_config.hf_text_config", "self.config.get_text_config()"


def widths_read(subject: Subject) -> Iterator[str]:
    """The widths that methods of the model's class and its bases read, in the order of their code."""
    family = [owner for _, owner in subject.program.lineage(subject.owner)]
    held = any(has_attribute(owner, "model_config") for owner in family)
    for method in (node for owner in family for node in owner.body if isinstance(node, FunctionNode)):
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and node.attr in ("hidden_size", "d_model"):
                text = _spelled(node, method)
                yield text.replace(_ASKED, TEXT) if held else text


def may_lack_text(subject: Subject) -> bool:
    """Whether the model's class asks if its configuration has one of the text: a checkpoint's own may be flat."""
    asked = {f"hasattr({config}, 'text_config')" for config in ("config", "self.config")}
    family = [owner for _, owner in subject.program.lineage(subject.owner)]
    return any(ast.unparse(node) in asked for owner in family for node in ast.walk(owner) if isinstance(node, ast.Call))


def sides_of_images(subject: Subject, axis: str) -> Iterator[str]:
    """A side of images, `h` or `w`: what a processor gets where a request says none, and what the model checks."""
    family = [*(subject.program.lineage(subject.info) if subject.info else ()), *subject.program.lineage(subject.owner)]
    for method in (node for _, owner in family for node in owner.body if isinstance(node, FunctionNode)):
        for node in ast.walk(method):
            match node:
                case ast.Call(func=ast.Attribute(attr="setdefault"), args=[ast.Constant(value="image_size"), side]):
                    yield _spelled(side, method)
                case ast.keyword(arg="resolve_bindings", value=ast.Dict(keys=keys, values=sides)):
                    said = zip(keys, sides, strict=True)
                    yield from (_spelled(side, method) for key, side in said if getattr(key, "value", None) == axis)


def _spelled(node: ast.expr, function: FunctionNode) -> str:
    """An expression of a function, with the only value of each variable in its place."""

    class Spell(ast.NodeTransformer):
        def visit(self, one: ast.AST) -> ast.AST:
            if isinstance(one, ast.expr) and (known := _CONFIG.get(ast.unparse(one))):
                return ast.parse(known, mode="eval").body
            made = values_of(one.id, ast.walk(function)) if isinstance(one, ast.Name) else []
            return self.visit(made[0]) if len(made) == 1 else self.generic_visit(one)

    return ast.unparse(Spell().visit(ast.parse(ast.unparse(node), mode="eval").body))
