"""Fields of a descriptor that nothing is generated from yet: a port that left them out would be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from scaffold.descriptor.kinds import KINDS
from scaffold.diagnostics import Diagnostic

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec


def unread_fields(spec: AdapterSpec) -> Iterator[str]:
    """Dotted paths of what `spec` says and no template reads."""
    yield from (f"hooks.{hook.name}" for hook in spec.hooks)
    if spec.requires:
        yield "requires"
    if spec.more_columns:
        yield "sizes.also"
    if spec.item.eager_if is not None:
        yield "item.eager_if"
    yield from (f"modalities.{entry.name}.only_if" for entry in spec.modalities if entry.only_if is not None)
    for buffer in spec.buffers:  # their kind says how they are padded, captured and where they live
        kind = KINDS[buffer.kind]
        if (buffer.pad.rule, buffer.residency) != (kind.pads[0], kind.residencies[0]):
            yield f"buffers.{buffer.name}.{'pad' if buffer.pad.rule != kind.pads[0] else 'residency'}"
        if f"buffers.{buffer.name}.capture" in spec.spans:
            yield f"buffers.{buffer.name}.capture"


def refuse_unread(spec: AdapterSpec) -> list[Diagnostic]:
    """One diagnostic for each of these fields."""
    return [
        Diagnostic(
            "VCG442",
            f"nothing is generated from `{path}` yet",
            spec.span(path),
            "the port would be made as if it were not there: say it otherwise, or write that part of the port by hand",
        )
        for path in unread_fields(spec)
    ]
