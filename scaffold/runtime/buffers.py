"""Static memory that graphs share: one arena per data buffer, one for the metadata of large graphs, one staging ring.

A CUDA graph freezes addresses, not owners. Only one graph runs at a time and every replay rewrites its own inputs, so
the buffers of different budgets may overlap. In vLLM every graph has buffers of its own: 41 graphs of Qwen2.5-VL need
3.0 GB there, and 53 need 1.8 GB with shared maximal buffers (H200, reference run).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scaffold.runtime.adapter import BufferKind, BufferSpec, EncoderDescription, GraphKey
from scaffold.runtime.backend import GraphBackend
from scaffold.runtime.padding import PADDERS, PadContext, cumulative_slots, exceeds

#: Metadata of at most `OWN_BYTES` have memory of their own while all of these together take no more than `OWN_TOTAL`.
#: That memory keeps the metadata of the graph's last call, so a size that comes again copies no metadata, whatever ran
#: between. This saves about 15 us of 2 to 4 ms on an H200. Large graphs would not notice, and 48 of Qwen3-VL would take
#: 800 MB.
OWN_BYTES, OWN_TOTAL = 4 << 20, 64 << 20

#: Alignment of each metadata buffer inside the metadata arena, in bytes; kernels load at most 16 bytes at once.
ALIGNMENT = 256


def nbytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a contiguous copy."""
    return int(tensor.numel() * tensor.element_size())


def carve(arena: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A contiguous view of the shape and type of `like` in a flat byte arena."""
    return arena[offset : offset + nbytes_of(like)].view(like.dtype).view(like.shape)


class Arena:
    """Flat bytes that grow only before their first use; larger graphs after that get an arena of their own."""

    def __init__(self, backend: GraphBackend) -> None:
        self._backend = backend
        self.memory: torch.Tensor | None = None
        self._wanted = 0
        #: Bytes at the start of `memory` that may not be zero.
        self.dirty = 0
        #: The blob that the arena holds a copy of now, by identity.
        self.holds: object | None = None

    def reserve(self, nbytes: int) -> None:
        """Note that some graph will need `nbytes` bytes."""
        self._wanted = max(self._wanted, nbytes)

    def take(self, nbytes: int) -> torch.Tensor | None:
        """The arena if `nbytes` fit, or None."""
        if self.memory is None:
            self.memory = self._backend.empty(max(self._wanted, nbytes)).zero_()
        return self.memory if self.memory.numel() >= nbytes else None

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self.memory is None else self.memory.numel()


@dataclass(frozen=True, slots=True)
class Slot:
    """One metadata buffer inside a blob."""

    name: str
    offset: int
    #: A shape and a type without memory. The capture value must not stay alive: 83 graphs of Qwen3-VL would keep 1.3 GB
    #: of position embeddings.
    like: torch.Tensor
    spec: BufferSpec
    context: PadContext
    #: The capture value on the host, for an adapter's own padder. Such a padder may read its target: the last captured
    #: offset is the number of rows. In vLLM's manager the target is the graph's own buffer, which still holds that
    #: value. A call without a value for this buffer writes it as it is, since a padder may fail with nothing to pad.
    initial: torch.Tensor | None = None


class Layout:
    """The places of one graph's metadata in a blob. Every replay copies one contiguous blob and nothing else.

    Separate copies cost about 5 us of host time each; Qwen2.5-VL has eight metadata buffers, and vLLM zero-fills each
    one before it copies: 16 launches.
    """

    def __init__(self, metadata: Mapping[str, torch.Tensor], contexts: Mapping[str, tuple[BufferSpec, PadContext]]):
        self.slots: dict[str, Slot] = {}
        offset = 0
        for name, tensor in metadata.items():
            spec, context = contexts[name]
            like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            initial = tensor.detach().to("cpu", copy=True) if spec.pad is not None else None
            self.slots[name] = Slot(name, offset, like, spec, context, initial)
            offset += -(-nbytes_of(tensor) // ALIGNMENT) * ALIGNMENT
        self.nbytes = offset

    def view(self, blob: torch.Tensor, name: str) -> torch.Tensor:
        """One buffer of a blob."""
        slot = self.slots[name]
        return carve(blob, slot.offset, slot.like)

    def write(self, blob: torch.Tensor, values: Mapping[str, torch.Tensor | None], staging: StagingRing) -> list[str]:
        """Pad every value into a device blob, with one host-to-device copy for all values on the host.

        Returns the names without a value: their old contents stay.
        """
        on_host = [n for n in self.slots if (v := values.get(n)) is not None and v.device.type == "cpu"]
        on_device = [n for n in self.slots if (v := values.get(n)) is not None and v.device.type != "cpu"]
        if blob.device.type == "cpu":
            on_host, on_device = [], on_host + on_device
        if on_host:
            low = self.slots[on_host[0]].offset
            last = self.slots[on_host[-1]]
            high = last.offset + nbytes_of(last.like)
            with staging.borrow(high - low) as host:
                for name in on_host:
                    slot = self.slots[name]
                    self._pad(slot, carve(host, slot.offset - low, slot.like), values[name])
                blob[low:high].copy_(host, non_blocking=True)
        for name in on_device:
            self._pad(self.slots[name], self.view(blob, name), values[name])
        return [n for n in self.slots if values.get(n) is None]

    @staticmethod
    def _pad(slot: Slot, target: torch.Tensor, value: torch.Tensor | None) -> None:
        assert value is not None
        if target.ndim == 0:
            target.copy_(value.reshape(()), non_blocking=True)
        elif slot.spec.pad is not None:
            assert slot.initial is not None
            target.copy_(slot.initial, non_blocking=True)
            if value is not slot.initial:
                slot.spec.pad(target, value)
        else:
            PADDERS[slot.spec.kind](target, value, slot.context)


class StagingRing:
    """Two pinned buffers in turn. The ring reuses one when the copy out of it is done; the host rarely has to wait."""

    def __init__(self, backend: GraphBackend) -> None:
        self._backend = backend
        self._buffers: list[torch.Tensor | None] = [None, None]
        self._done: list[object | None] = [None, None]
        self._turn = 0

    def borrow(self, nbytes: int) -> _Loan:
        """A host buffer of at least `nbytes`, as a context: leave it after you have issued the copy."""
        return _Loan(self, nbytes)

    def _take(self, nbytes: int) -> torch.Tensor:
        self._turn ^= 1
        buffer = self._buffers[self._turn]
        self._backend.wait(self._done[self._turn])
        if buffer is None or buffer.numel() < nbytes:
            buffer = self._buffers[self._turn] = self._backend.staging(nbytes + nbytes // 4)
        return buffer[:nbytes]

    def _give(self) -> None:
        self._done[self._turn] = self._backend.mark()


class _Loan:
    def __init__(self, ring: StagingRing, nbytes: int) -> None:
        self._ring, self._nbytes = ring, nbytes

    def __enter__(self) -> torch.Tensor:
        return self._ring._take(self._nbytes)

    def __exit__(self, *_: object) -> None:
        self._ring._give()


@dataclass(slots=True)
class GraphBuffers:
    """The static inputs of one graph: views into the shared arenas, and the values that the capture froze."""

    key: GraphKey
    layout: Layout
    metadata: torch.Tensor
    metadata_arena: Arena
    data: dict[str, torch.Tensor]
    data_arenas: dict[str, Arena]
    owned: dict[str, torch.Tensor]
    bounds: dict[str, torch.Tensor]
    absent: tuple[str, ...]
    specs: dict[str, BufferSpec]
    contexts: dict[str, PadContext]

    def forward_values(self) -> dict[str, torch.Tensor | None]:
        """The arguments of the captured forward."""
        values: dict[str, torch.Tensor | None] = dict.fromkeys(self.absent)
        values.update(self.bounds)
        values.update((name, self.layout.view(self.metadata, name)) for name in self.layout.slots)
        values.update(self.owned)
        values.update(self.data)
        return values

    def misfit(self, values: Mapping[str, torch.Tensor | None]) -> str | None:
        """The name of a value that this graph cannot hold, or of data that it needs and does not get, or None."""
        for name, value in values.items():
            if value is None:
                continue
            captured = self.data.get(name)
            if captured is None:
                captured = self.bounds.get(name)
            if captured is None:
                captured = self.owned.get(name)
            if captured is None:
                slot = self.layout.slots.get(name)
                if slot is None:
                    continue  # the capture did not read it
                captured = slot.like
            spec = self.specs[name]
            if exceeds(spec.kind, captured, value):
                return name
            if spec.kind is BufferKind.CUMULATIVE and spec.rows_of and not self._tail_fits(name, value, values):
                return name
        return next((name for name in self.data if values.get(name) is None), None)

    def _tail_fits(self, name: str, value: torch.Tensor, values: Mapping[str, torch.Tensor | None]) -> bool:
        """Whether the free slots of an offsets buffer can cover the padded rows."""
        spec, context = self.specs[name], self.contexts[name]
        rows = values.get(spec.rows_of or "")
        if rows is None or context.end is None:
            return True
        captured = self.layout.slots[name].like
        needed = cumulative_slots(context.end - rows.shape[0], context.longest)
        return bool(captured.shape[0] - value.shape[0] >= needed)


class SharedBuffers:
    """All static memory of one manager."""

    def __init__(self, backend: GraphBackend, description: EncoderDescription) -> None:
        self._backend = backend
        self._description = description
        self._data: dict[str, Arena] = {}
        self._metadata = Arena(backend)
        self._extra: list[Arena] = []
        self._own_bytes = 0
        self.staging = StagingRing(backend)

    @property
    def nbytes(self) -> int:
        """Device bytes held in arenas."""
        return sum(a.nbytes for a in (*self._data.values(), self._metadata, *self._extra))

    def reserve(self, values: Mapping[str, torch.Tensor | None]) -> None:
        """Announce a graph: arenas get the size of the largest announced graph."""
        data, metadata, _, _ = self._sort(values)
        for name, tensor in data.items():
            self._data.setdefault(name, Arena(self._backend)).reserve(nbytes_of(tensor))
        self._metadata.reserve(sum(-(-nbytes_of(t) // ALIGNMENT) * ALIGNMENT for t in metadata.values()))

    def bind(self, key: GraphKey, values: Mapping[str, torch.Tensor | None]) -> GraphBuffers:
        """Give a graph its views, filled with the capture values."""
        data, metadata, owned, bounds = self._sort(values)
        specs = {name: self._description.buffer(name) for name in values}
        contexts = {}
        for name, spec in specs.items():
            rows = values.get(spec.rows_of) if spec.rows_of else None
            bound = values.get(spec.bound) if spec.bound else None
            contexts[name] = PadContext(
                end=None if rows is None else rows.shape[0], longest=None if bound is None else int(bound)
            )
        layout = Layout(metadata, {name: (specs[name], contexts[name]) for name in metadata})
        arena, memory = self._metadata_memory(layout.nbytes)
        views, arenas = {}, {}
        for name, tensor in data.items():
            shared = self._data.setdefault(name, Arena(self._backend))
            bytes_ = shared.take(nbytes_of(tensor))
            if bytes_ is None:
                shared = Arena(self._backend)
                self._extra.append(shared)
                bytes_ = shared.take(nbytes_of(tensor))
            assert bytes_ is not None
            views[name], arenas[name] = carve(bytes_, 0, tensor), shared
        buffers = GraphBuffers(
            key, layout, memory[: layout.nbytes], arena, views, arenas, owned, bounds,
            tuple(n for n, v in values.items() if v is None), specs, contexts,
        )  # fmt: skip
        buffers_fill(buffers, values)
        return buffers

    def _metadata_memory(self, nbytes: int) -> tuple[Arena, torch.Tensor]:
        own = nbytes <= OWN_BYTES and self._own_bytes + nbytes <= OWN_TOTAL
        memory = None if own else self._metadata.take(nbytes)
        if memory is not None:
            return self._metadata, memory
        arena = Arena(self._backend)
        memory = arena.take(nbytes)
        assert memory is not None
        self._extra.append(arena)
        self._own_bytes += nbytes if own else 0
        return arena, memory

    def release(self, buffers: GraphBuffers) -> None:
        """Give back the memory that only this graph had."""
        arena = buffers.metadata_arena
        if arena in self._extra and arena.nbytes <= OWN_BYTES:
            self._own_bytes -= min(arena.nbytes, self._own_bytes)
        for own in (arena, *buffers.data_arenas.values()):
            if own in self._extra:
                self._extra.remove(own)

    def _sort(self, values: Mapping[str, torch.Tensor | None]) -> tuple[dict[str, torch.Tensor], ...]:
        data, metadata, owned, bounds = {}, {}, {}, {}
        for name, value in values.items():
            spec = self._description.buffer(name)
            if value is None:
                continue
            if spec.kind is BufferKind.BOUND and value.device.type == "cpu":
                bounds[name] = value
            elif spec.owned:
                owned[name] = value
            elif spec.is_data:
                data[name] = value
            else:
                metadata[name] = value
        return data, metadata, owned, bounds


def buffers_fill(buffers: GraphBuffers, values: Mapping[str, torch.Tensor | None]) -> None:
    """Write full-size values into the static buffers of a graph, as they are (no padding is needed)."""
    for name, slot in buffers.layout.slots.items():
        value = values.get(name)
        if value is not None:
            carve(buffers.metadata, slot.offset, slot.like).copy_(value)
    buffers.metadata_arena.holds = None
    for name, view in buffers.data.items():
        value = values.get(name)
        if value is not None:
            view.copy_(value)
            buffers.data_arenas[name].dirty = max(buffers.data_arenas[name].dirty, nbytes_of(view))


def rows_bytes(view: torch.Tensor, rows: int) -> int:
    """Bytes of the first `rows` rows of a contiguous view."""
    return int(rows * math.prod(view.shape[1:]) * view.element_size())
