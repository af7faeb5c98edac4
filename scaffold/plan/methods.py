"""The source of the generated methods: descriptor and dialect become the values that a layout's template needs.

A template holds the words of the code, this module the decisions. One function a layout; what all layouts share is in
`_shared`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaffold.plan.code import Names
from scaffold.render import Code, Signatures, pyrepr, render_template

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec
    from scaffold.protocol import Dialect, ProtocolProfile


@dataclass(frozen=True)
class Switch:
    """An attribute that is False while the manager's forwards run: `owner` is code, `name` the attribute."""

    owner: Code
    name: str


@dataclass(frozen=True)
class Methods:
    """A rendered block of methods, and the names that it needs: `(module, name)` pairs."""

    source: str
    imports: tuple[tuple[str, str], ...]


def render_methods(spec: AdapterSpec, profile: ProtocolProfile) -> Methods:
    """All protocol methods of `spec` for the dialect of `profile`, as a block without indentation."""
    signatures = Signatures(profile)
    values = _shared(spec, profile, signatures) | _LAYOUTS[spec.layout](spec, profile.dialect)
    source = render_template(f"{spec.layout}/model.py.jinja", **values)
    return Methods(source, _imports(source, signatures))


def _shared(spec: AdapterSpec, profile: ProtocolProfile, signatures: Signatures) -> dict[str, Any]:
    names = Names.of(spec)
    modalities = spec.modalities
    embeds = next((modality.embeds for modality in modalities if modality.embeds), None)
    key = "self._get_encoder_cudagraph_keys(mm_kwargs)[0]" if len(modalities) > 1 else pyrepr(modalities[0].pixels)
    # Where a batch of ready embeddings is replayed (and the result dropped), it has no pixels to copy.
    replayed_without_pixels = embeds is not None and not profile.dialect.zero_path_tokens
    return {
        "spec": spec,
        "dialect": profile.dialect,
        "signature": signatures,
        "modalities": modalities,
        "modality_names": [modality.name for modality in modalities],
        "pixel_keys": {modality.name: modality.pixels for modality in modalities},
        "pixels_buffer": modalities[0].pixels,
        "embeds": embeds,
        "gate": names.code(spec.gate) if spec.gate else None,
        "hidden_size": names.code(spec.hidden_size),
        "budget_min": names.code(spec.budget.min),
        "rows": names.code(spec.item.rows),
        "tokens": names.code(spec.item.tokens),
        "size_names": Code(", ".join(spec.columns)),
        "sizes_type": Code("list[int]" if len(spec.columns) == 1 else "list[list[int]]"),
        **_pixel_shape(spec, names),
        "eager_pixels": Code(f"mm_kwargs[{key}]"),
        "replay_pixels": Code(f"mm_kwargs.get({key})" if replayed_without_pixels else f"mm_kwargs[{key}]"),
    }


def _pixel_shape(spec: AdapterSpec, names: Names) -> dict[str, Any]:
    """The shape of one row; a `let` name that it uses twice becomes a local variable of the method."""
    assert spec.pixels is not None, "rule of the layouts with one pixel tensor"
    uses = Counter(name for side in spec.pixels.shape for name in side.names)
    local = [name for name, count in uses.items() if count > 1 and name in dict(spec.lets)]
    kept = Names({**names.bindings, **{name: name for name in local}})
    return {
        "pixel_shape": Code(", ".join(kept.code(side) for side in spec.pixels.shape)),
        "pixel_lets": tuple((name, Code(names.bindings[name])) for name in local),
    }


def _tiles(spec: AdapterSpec, dialect: Dialect) -> dict[str, Any]:
    """Fixed-size tiles, dense attention inside each: the pixels are the only buffer."""
    names = Names.of(spec)
    rows = names.code(spec.item.rows)
    one_each = rows == spec.columns[0]
    assert spec.capture.rows is not None, "rule of the tiles layout"
    return {
        "sizes_doc": Code("Number of tiles of each item."),
        "buffer_keys": [spec.modalities[0].pixels] if dialect.values else [],
        "rows_of_items": Code("sizes" if one_each else f"[{rows} for {', '.join(spec.columns)} in sizes]"),
        "capture_rows": names.code(spec.capture.rows),
        "forward": _call(spec),
        "switches": tuple(_switch(path) for path in spec.data_parallel_switches),
    }


_LAYOUTS = {"tiles": _tiles}


def _switch(path: str) -> Switch:
    owner, _, name = path.rpartition(".")
    return Switch(Code(owner), name)


def _call(spec: AdapterSpec) -> Code:
    assert spec.forward.call is not None, "rule of the tiles layout"
    call = spec.forward.call.python({"pixels": "pixels"})
    return Code(f"{call}.flatten(0, 1)" if spec.forward.flatten else call)


def _imports(source: str, signatures: Signatures) -> tuple[tuple[str, str], ...]:
    """Every importable name that the rendered block mentions."""
    import re

    words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", source))
    return tuple(sorted((module, name) for name, module in signatures.importable.items() if name in words))
