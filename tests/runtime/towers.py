"""Small towers with every kind of buffer, and kernels that behave as badly as real ones may.

`strict_attention` has the semantics of FlashAttention 3: rows that no sequence covers are left unwritten, rows behind
the captured longest sequence too, and a value row of NaN spoils everything, since zero times NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from scaffold.runtime import (
    BufferKind,
    BufferSpec,
    EncoderDescription,
    GraphKey,
    Item,
    Limits,
    PathSpec,
    scatter_rows,
)

WIDTH = 8
MERGE = 2  # rows a token
CPU = torch.device("cpu")


def segments(offsets: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequence of each row, and its place in it, computed without reading offsets on the host."""
    at = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    sequence = (at[:, None] >= offsets[None, 1:]).sum(1)
    starts = offsets[sequence.clamp(max=offsets.shape[0] - 2)]
    return sequence, at - starts


def strict_attention(x: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    """Self-attention within each sequence; what a kernel would not write is left as it is in fresh memory."""
    sequence, place = segments(offsets, x.shape[0])
    covered = (sequence < offsets.shape[0] - 1) & (place < longest)
    same = sequence[:, None] == sequence[None, :]
    scores = (x @ x.T) / x.shape[1]
    # A real kernel never reads scores of other sequences, so NaN there is masked before the softmax ...
    weights = torch.softmax(torch.where(same, scores, torch.full_like(scores, -1e9)), dim=1)
    # ... but it does multiply the value rows of its tile by zero.
    return torch.where(covered[:, None], weights @ x, torch.empty_like(x))


class PackedTower:
    """Items are grids `(h, w)` in tokens; each token has `MERGE` rows. Attention reads offsets (and, with two
    sections, a second copy of them)."""

    def __init__(self, *, two_section: bool = False, device: torch.device = CPU) -> None:
        generator = torch.Generator().manual_seed(0)
        self.device = device
        self.embed_in = torch.randn(4, WIDTH, generator=generator).to(device)
        self.mix = torch.randn(WIDTH, WIDTH, generator=generator).to(device) / 3
        self.two_section = two_section
        self.calls = {"items": 0, "eager": 0, "embed": 0, "replay_values": 0, "select": 0, "capture_values": 0}
        self.seen_empty = False
        self.extra_buffers: dict[str, BufferSpec] = {}

    # -- description

    def describe(self) -> EncoderDescription:
        return EncoderDescription(
            output_width=WIDTH,
            modalities=("image", "video"),
            buffers={
                "pixels": BufferSpec(is_data=True),
                "position": BufferSpec(),
                "order": BufferSpec(BufferKind.PERMUTATION),
                "inverse": BufferSpec(BufferKind.PERMUTATION),
                "offsets": BufferSpec(BufferKind.CUMULATIVE, rows_of="pixels", bound="longest"),
                "sections": BufferSpec(BufferKind.TWO_SECTION),
                "lengths": BufferSpec(BufferKind.LENGTHS),
                "real": BufferSpec(BufferKind.MASK),
                "longest": BufferSpec(BufferKind.BOUND),
                **self.extra_buffers,
            },
        )

    def is_raw(self, inputs: Mapping[str, Any]) -> bool:
        return "pixels" in inputs

    def embed(self, inputs: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        self.calls["embed"] += 1
        if "embeds" in inputs:
            return list(inputs["embeds"])
        return [self.eager(self.select(inputs, [i])[0], "default") for i in range(len(inputs["grids"]))]

    def signature(self, inputs: Mapping[str, Any]) -> Hashable | None:
        return tuple(inputs["grids"])

    def quick_signature(self, inputs: Mapping[str, Any]) -> Hashable | None:
        return self.signature(inputs) if self.is_raw(inputs) else None

    def passes_through(self, inputs: Mapping[str, Any]) -> bool:
        return True

    def items(self, inputs: Mapping[str, Any]) -> list[Item]:
        self.calls["items"] += 1
        return [Item(cost=t * h * w * MERGE, tokens=t * h * w) for t, h, w in inputs["grids"]]

    def select(self, inputs: Mapping[str, Any], indices: Sequence[int]) -> tuple[Mapping[str, Any], tuple[()]]:
        self.calls["select"] += 1
        rows = [t * h * w * MERGE for t, h, w in inputs["grids"]]
        starts = [sum(rows[:i]) for i in range(len(rows))]
        pixels = torch.cat([inputs["pixels"][starts[i] : starts[i] + rows[i]] for i in indices])
        return {"pixels": pixels, "grids": [inputs["grids"][i] for i in indices]}, ()

    def whole(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[()]]:
        return inputs, ()

    # -- metadata

    def metadata(self, grids: Sequence[tuple[int, int, int]]) -> dict[str, torch.Tensor]:
        """Unpadded metadata. A sequence is a frame; rows of a frame are visited backwards by attention."""
        self.seen_empty |= not grids
        frames = [h * w * MERGE for t, h, w in grids for _ in range(t)]
        total = sum(frames)
        ends = torch.tensor([0, *frames], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        order = torch.cat([torch.arange(int(e) - n, int(e)).flip(0) for e, n in zip(ends[1:], frames, strict=True)])
        position = torch.cat(
            [torch.linspace(0, 1, h * w * MERGE)[:, None].expand(-1, WIDTH) for t, h, w in grids for _ in range(t)]
        )
        return {
            "position": position.contiguous(),
            "order": order,
            "inverse": torch.argsort(order),
            "offsets": ends,
            "sections": torch.cat([ends * WIDTH, ends]),
            "lengths": torch.tensor(frames, dtype=torch.int32),
            "real": torch.ones(total, dtype=torch.bool),
            "longest": torch.tensor(max(frames), dtype=torch.int32),
        }

    def capture_values(self, key: GraphKey, limits: Limits) -> dict[str, torch.Tensor]:
        self.calls["capture_values"] += 1
        rows = key.budget * MERGE
        sequences = 2 * max(limits.items, limits.frames) + 2
        values = self.metadata([(1, 1, key.budget)])
        tail = torch.full((sequences,), rows, dtype=torch.int32)
        values["offsets"] = torch.cat([values["offsets"], tail])
        values["sections"] = torch.cat([values["sections"][:2], tail * WIDTH, values["sections"][2:], tail])
        values["lengths"] = torch.cat([values["lengths"], torch.zeros(sequences, dtype=torch.int32)])
        values = {n: v if v.ndim == 0 else v.to(self.device) for n, v in values.items()}
        return {"pixels": torch.zeros(rows, 4, device=self.device), **values}

    def replay_values(self, inputs: Mapping[str, Any], limits: Limits, path: str) -> dict[str, torch.Tensor]:
        self.calls["replay_values"] += 1
        return {"pixels": inputs["pixels"], **self.metadata(inputs["grids"])}

    # -- tower

    def forward(self, values: dict[str, Any], path: str = "default") -> torch.Tensor:
        pixels = values["pixels"]
        longest = int(values["longest"])
        x = pixels @ self.embed_in + values["position"]
        # One exactly when lengths and mask are padded right: real rows over real rows.
        unit = values["lengths"].sum() / torch.where(values["real"], 1.0, 0.0).sum()
        x = x[values["order"]] * unit
        for _ in range(2):
            if self.two_section:
                half = values["sections"].shape[0] // 2
                queries, _ = segments(values["sections"][:half] // WIDTH, x.shape[0])
                keys, _ = segments(values["sections"][half:], x.shape[0])
                same = queries[:, None] == keys[None, :]
                scores = torch.where(same, (x @ x.T) / WIDTH, torch.full((), -1e9, device=x.device))
                x = x + torch.softmax(scores, dim=1) @ x @ self.mix
            else:
                x = x + strict_attention(x, values["offsets"], longest) @ self.mix
        x = torch.tanh(x)[values["inverse"]]
        return x.reshape(-1, MERGE, WIDTH).mean(1)

    def eager(self, inputs: Mapping[str, Any], path: str = "default") -> torch.Tensor:
        self.calls["eager"] += 1
        metadata = {n: v if v.ndim == 0 else v.to(self.device) for n, v in self.metadata(inputs["grids"]).items()}
        return self.forward({"pixels": inputs["pixels"], **metadata}, path)

    def output_rows(self, path: str, tokens: int) -> int | None:
        return tokens

    def finish(self, outputs, indices, items, results, inputs, eager) -> None:  # type: ignore[no-untyped-def]
        scatter_rows(outputs["default"], indices, items, results)

    # -- calls for tests

    def call(self, grids: Sequence[tuple[int, int, int]], seed: int = 0) -> dict[str, Any]:
        """Random pixels for some grids."""
        rows = sum(t * h * w * MERGE for t, h, w in grids)
        pixels = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed)).to(self.device)
        return {"pixels": pixels, "grids": [tuple(g) for g in grids]}


GLOBAL_TOKENS, LOCAL_TOKENS = 4, 2


class TileTower:
    """Two paths: one global tile an item, and local tiles, as Step3-VL. Its `finish` returns views, as Step3's does.

    With `axes`, one path and tiles of two sizes, as MiniCPM-V: the size is a capture axis.
    """

    def __init__(self, *, axes: tuple[int, ...] = ()) -> None:
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.randn(16, WIDTH, generator=generator)
        self.axes = axes
        self.eager_calls: list[str] = []

    def describe(self) -> EncoderDescription:
        if self.axes:
            return EncoderDescription(WIDTH, buffers={"tiles": BufferSpec(is_data=True)}, axes=(self.axes,))
        return EncoderDescription(
            WIDTH,
            buffers={"tiles": BufferSpec(is_data=True), "local": BufferSpec(is_data=True)},
            paths={"global": PathSpec(GLOBAL_TOKENS), "local": PathSpec(LOCAL_TOKENS, may_be_idle=True)},
        )

    def is_raw(self, inputs: Mapping[str, Any]) -> bool:
        return "tiles" in inputs

    def embed(self, inputs: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        results: dict[int, torch.Tensor] = {}
        items = self.items(inputs)
        for i in range(len(items)):
            batch, _ = self.select(inputs, [i])
            outputs = {p: self._tower(batch[k], p) for p, k in self._keys().items() if len(batch[k])}
            self.finish(outputs, [i], items, results, batch, ())
        return [results[i] for i in range(len(items))]

    def _keys(self) -> dict[str, str]:
        return {"default": "tiles"} if self.axes else {"global": "tiles", "local": "local"}

    def signature(self, inputs: Mapping[str, Any]) -> Hashable | None:
        return (tuple(inputs["counts"]), tuple(inputs["tiles"].shape))

    def items(self, inputs: Mapping[str, Any]) -> list[Item]:
        if self.axes:
            return [Item(n, n * GLOBAL_TOKENS) for n in inputs["counts"]]
        return [
            Item(1 + n, GLOBAL_TOKENS + n * LOCAL_TOKENS, {"global": GLOBAL_TOKENS, "local": n * LOCAL_TOKENS})
            for n in inputs["counts"]
        ]

    def select(self, inputs: Mapping[str, Any], indices: Sequence[int]) -> tuple[Mapping[str, Any], tuple[Any, ...]]:
        counts = inputs["counts"]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        cut = [slice(starts[i], starts[i] + counts[i]) for i in indices]
        if self.axes:
            batch = {"tiles": torch.cat([inputs["tiles"][c] for c in cut]), "counts": [counts[i] for i in indices]}
            return batch, (inputs["tiles"].shape[-1],)
        return {
            "tiles": inputs["tiles"][list(indices)],
            "local": torch.cat([inputs["local"][c] for c in cut]),
            "counts": [counts[i] for i in indices],
        }, ()

    def whole(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[Any, ...]]:
        return inputs, (inputs["tiles"].shape[-1],) if self.axes else ()

    def capture_values(self, key: GraphKey, limits: Limits) -> dict[str, torch.Tensor]:
        if self.axes:
            side = key.axes[0]
            return {"tiles": torch.zeros(key.budget // GLOBAL_TOKENS, side, side)}
        if key.path == "global":
            return {"tiles": torch.zeros(min(limits.items, key.budget // GLOBAL_TOKENS), 4, 4)}
        return {"local": torch.zeros(key.budget // LOCAL_TOKENS, 4, 4)}

    def replay_values(self, inputs: Mapping[str, Any], limits: Limits, path: str) -> dict[str, torch.Tensor]:
        name = self._keys()[path]
        return {name: inputs[name]}

    def _tower(self, tiles: torch.Tensor, path: str) -> torch.Tensor:
        tokens = LOCAL_TOKENS if path == "local" else GLOBAL_TOKENS
        flat = torch.nn.functional.adaptive_avg_pool2d(tiles[:, None], 4).flatten(1)
        features = torch.tanh(flat @ self.weight)
        ramp = torch.arange(1, tokens + 1, dtype=features.dtype)
        return (features[:, None, :] * ramp[None, :, None]).reshape(-1, WIDTH)

    def forward(self, values: dict[str, Any], path: str = "default") -> torch.Tensor:
        return self._tower(values[self._keys()[path]], path)

    def eager(self, inputs: Mapping[str, Any], path: str = "default") -> torch.Tensor:
        self.eager_calls.append(path)
        return self._tower(inputs[self._keys()[path]], path)

    def output_rows(self, path: str, tokens: int) -> int | None:
        return None  # the post-processing may read what it likes

    def finish(self, outputs, indices, items, results, inputs, eager) -> None:  # type: ignore[no-untyped-def]
        if self.axes:
            scatter_rows(outputs["default"], indices, items, results)
            return
        taken = 0
        for place, (index, count) in enumerate(zip(indices, inputs["counts"], strict=True)):
            parts = []
            if count:
                parts.append(outputs["local"][taken : taken + count * LOCAL_TOKENS])
                taken += count * LOCAL_TOKENS
            parts.append(outputs["global"][place * GLOBAL_TOKENS : (place + 1) * GLOBAL_TOKENS])
            results[index] = torch.cat(parts) if len(parts) > 1 else parts[0]  # a view of the graph's output

    def call(self, counts: Sequence[int], seed: int = 0, side: int = 4) -> dict[str, Any]:
        """Random tiles."""
        generator = torch.Generator().manual_seed(seed)
        if self.axes:
            return {"tiles": torch.randn(sum(counts), side, side, generator=generator), "counts": list(counts)}
        return {
            "tiles": torch.randn(len(counts), 4, 4, generator=generator),
            "local": torch.randn(sum(counts), 4, 4, generator=generator),
            "counts": list(counts),
        }
