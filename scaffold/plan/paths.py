"""Values for the two-path layout: tiles of two kinds, each encoded on its own, put together item by item.

Every item has one tile on the first path (the whole image, small) and any number of tiles on the second one (its
parts, perhaps none). Where the protocol has paths, each kind is captured by itself. Where it has none, one graph
encodes both kinds and puts the rows in order, through an index that is a buffer of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaffold.descriptor.spec import derived_capture
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.plan.code import Names
from scaffold.render import Code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scaffold.descriptor.spec import AdapterSpec
    from scaffold.protocol import Dialect

#: The paths of the releases that know exactly two of them, by three fields of the config.
_DUAL = ("global", "local")


@dataclass(frozen=True)
class PathView:
    """One path in the words of the generated code; `tokens` and `rows` are local variables of its methods."""

    name: str
    pixels: str
    count: Code
    shape: Code
    tokens: Code
    rows: Code

    @property
    def word(self) -> Code:
        """The name as a part of identifiers and of comments; the descriptor's rules make it a plain word."""
        return Code(self.name)

    @property
    def tokens_name(self) -> Code:
        return Code(f"{self.name}_tokens")

    @property
    def rows_name(self) -> Code:
        return Code(f"{self.name}_rows")

    @property
    def tiles_name(self) -> Code:
        return Code(f"{self.name}_tiles")

    @property
    def pixels_name(self) -> Code:
        return Code(f"{self.name}_pixels")

    @property
    def count_name(self) -> Code:
        return Code(f"num_{self.name}")


def refusal(spec: AdapterSpec, dialect: Dialect) -> tuple[str, str] | None:
    """Why this layout cannot speak for `spec`: the field of the descriptor and what the layout needs there."""
    paths = spec.paths
    if len(paths) != 2 or not paths[0].one_per_item or paths[0].zero_ok:
        return "paths", "two paths are known, of which the first has `count: 1`"
    single, many = paths
    if many.count.text != spec.columns[0] or not many.zero_ok:
        return f"paths.{many.name}", f"its `count` has to be `{spec.columns[0]}`, with `zero_ok: true`"
    if dialect.paths.value == "dual" and (single.name, many.name) != _DUAL:
        return "paths", f"this release has two paths, which are named {' and '.join(_DUAL)}"
    if sorted(part.path or "" for part in spec.assemble) != sorted((single.name, many.name)) or any(
        part.grid for part in spec.assemble
    ):
        return "post.assemble", "each path is named once, without separators"
    if spec.budget.min != single.tokens:
        return "budget.min", f"the smallest item is one tile of {single.name}: leave the field out"
    helpers = {helper.name for helper in spec.helpers}
    for path in paths:
        if path.capture != derived_capture(path.count, path.tokens):
            return f"paths.{path.name}.capture", "the number of captured tiles follows from their tokens"
        if path.call is not None:
            return f"paths.{path.name}.call", "both paths are encoded by the call of `forward`"
        if any(expression.functions & helpers for expression in (path.rows, *path.shape)):
            return f"paths.{path.name}", "helpers are for `tokens` only"
    return None


def path_values(spec: AdapterSpec, dialect: Dialect) -> dict[str, Any]:
    """What `templates/paths` needs beyond the values of all layouts. Raises VCG437 where the layout does not fit."""
    reason = refusal(spec, dialect)
    if reason is not None:
        field, needed = reason
        raise DiagnosticError(
            Diagnostic(
                "VCG437",
                f"{spec.class_name}: the two-path layout does not fit: {needed}",
                spec.span(field),
                "change the field, or write the methods of this model by hand",
            )
        )
    single, many = spec.paths
    # A helper is a function inside of the method that uses it, and reads there as in the descriptor.
    formulas = [helper.value for helper in spec.helpers]
    tokens, token_lets = Names.of(spec).localised(spec, *formulas, *formulas, single.tokens, many.tokens)
    rows, row_lets = Names.of(spec).localised(spec, single.rows, many.rows)
    shapes, shape_lets = Names.of(spec).localised(spec, *single.shape, *many.shape)
    views = tuple(
        PathView(
            name=path.name,
            pixels=path.pixels,
            count=Names.of(spec).code(path.count),
            shape=_joined(shapes.code(side) for side in path.shape),
            tokens=tokens.code(path.tokens),
            rows=rows.code(path.rows),
        )
        for path in spec.paths
    )
    ordered = [next(view for view in views if view.name == part.path) for part in spec.assemble]
    assert spec.forward.call is not None, "no path has a call of its own"
    call = spec.forward.call.python({"pixels": "pixels"})
    return {
        "single": views[0],
        "many": views[1],
        "ordered": ordered,
        "tiles_of_item": _joined(
            f"{view.tiles_name}[i]" if view is views[0] else f"*{view.tiles_name}[start : start + {view.count}]"
            for view in ordered
        ),
        "token_lets": token_lets,
        "row_lets": row_lets,
        "shape_lets": shape_lets,
        "helpers": tuple(
            (helper.name, _joined(f"{arg}: int" for arg in helper.args), tokens.code(helper.value))
            for helper in spec.helpers
        ),
        "budget_min": Code("self._get_encoder_cudagraph_tile_tokens()[0]"),
        "sizes_doc": Code(f"Number of {many.name} tiles of each item."),
        "container": Code("values" if dialect.values else "buffers"),
        "buffer_keys": _buffer_keys(spec, dialect),
        "forward": Code(f"{call}.flatten(0, 1)" if spec.forward.flatten else call),
        "switches": switches_of(spec),
    }


def _buffer_keys(spec: AdapterSpec, dialect: Dialect) -> list[str]:
    """Recorded buffers; the pixels that `input_key_by_modality` names are none, the rest of the inputs are."""
    keys = [path.pixels for path in spec.paths if dialect.values or path is not spec.paths[0]]
    return [*keys, "row_index"] if dialect.paths.value == "none" else keys


def switches_of(spec: AdapterSpec) -> Code:
    """Attributes that are False while the manager's forwards run, as pairs of an owner and a name."""
    pairs = (path.rpartition(".") for path in spec.data_parallel_switches)
    return _joined(f'({owner}, "{name}")' for owner, _, name in pairs)


def _joined(parts: Iterable[str]) -> Code:
    return Code(", ".join(parts))
