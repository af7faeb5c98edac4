"""A recording for people: the calls of each batch below the frames that they came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from scaffold.watch.recording import Batch, Field, Frame, Leaf, Recording

#: A part inside one of several in a list, or any but the first of these.
_FURTHER = re.compile(r"\.\d+\.|\.[1-9]\d*$")
_WIDTH = 100


def show_recording(recording: Recording) -> Iterator[str]:
    """Lines: the model, then each batch. It shows the first part of each list, from outside."""
    yield f"{recording.module}:{recording.class_name}"
    yield from (f"  {line}" for line in recording.basis)
    yield from (f"  {one.count} parts `{one.name}`, each a {_short(one.cls)}" for one in recording.repeated)
    yield from (f"  no {modality}s: {reason}" for modality, reason in recording.missing.items())
    for batch in recording.batches:
        yield ""
        yield from _batch(batch)


def _batch(batch: Batch) -> Iterator[str]:
    yield f"{len(batch.items)} {batch.modality}s: {', '.join(batch.items)}"
    fields = {field.key: field for field in batch.fields}
    for leaf in batch.inputs:
        declared = fields.get(re.split(r"[\[.]", leaf.at)[0])
        yield f"  {_leaf(leaf)}{f' | {_field(declared)}' if declared else ''}"
    shown: set[int] = set()
    for number, call in enumerate(batch.calls):
        if not _FURTHER.search(call.part):
            chain = batch.chain(call.frame)
            for depth, frame in enumerate(chain, start=1):
                if frame not in shown:
                    yield f"{'  ' * depth}{_frame(batch.frames[frame])}"
            shown.update(chain)
            indent = "  " * (len(chain) + 1)
            yield f"{indent}#{number} {call.part}: {_short(call.cls)}({_all(call.arguments)})"
            yield f"{indent}{' ' * len(str(number))}= {_all(call.results)}"
    yield f"  embeddings: {_all(batch.results)}"
    yield from (f"  left on the host by vLLM's loader: {one.of} ({one.made})" for one in batch.left)


def _frame(frame: Frame) -> str:
    text = " ".join(frame.text.split())
    return f"{frame.place} {frame.function}: {text if len(text) <= _WIDTH else text[:_WIDTH] + ' ...'}"


def _all(leaves: Sequence[Leaf]) -> str:
    shown = [_leaf(leaf) for leaf in leaves if leaf.is_tensor or leaf.value is not None]
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def _leaf(leaf: Leaf) -> str:
    at = f"{leaf.at} " if leaf.at else ""
    if not leaf.is_tensor:
        text = repr(leaf.value)
        return f"{at}{text if len(text) <= _WIDTH else text[:_WIDTH] + ' ...'}"
    told = [f"{source.how} of {source.of}" for source in leaf.sources if (source.of, source.how) != (leaf.at, "same")]
    values = f" = {leaf.value}" if leaf.value is not None and len(str(leaf.value)) <= _WIDTH else ""
    host = " on the host" if leaf.device == "cpu" else ""
    origin = f" ({', '.join(told)})" if told else ""
    return f"{at}{list(leaf.shape)} {leaf.dtype}{host}{values}{origin}"


def _field(field: Field) -> str:
    lengths = f", items of {', '.join(map(str, field.lengths))}" if field.lengths else ""
    return f"{field.kind}{lengths}{', on the host' if field.on_host else ''}"


def _short(cls: str) -> str:
    return cls.rpartition(".")[2]
