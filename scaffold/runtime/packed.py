"""An adapter for a plain torch tower on packed rows. Such a tower needs nothing else to be captured.

The tower is called as `tower(rows, attend)`, where `attend(q, k, v)` is variable-length attention within each image. An
image is a run of rows; `rows_per_token` rows become one output token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from scaffold.runtime.adapter import (
    AxisKeys,
    BufferSpec,
    EncoderDescription,
    GraphKey,
    Inputs,
    Item,
    Limits,
    scatter_rows,
)
from scaffold.runtime.attention import AttentionBackend, choose_attention

RunTower = Callable[[torch.Tensor, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]], torch.Tensor]


class PackedAdapter:
    """Inputs are `{"rows": [sum(lengths), ...], "lengths": [rows of each image]}`.

    `row` is any tensor with the shape, type and device of one row; `width` is the size of an output token;
    `attention_width` is heads times head dimension (only FlashInfer counts in it).
    """

    def __init__(
        self,
        tower: RunTower,
        *,
        width: int,
        row: torch.Tensor,
        rows_per_token: int = 1,
        attention: AttentionBackend | str = "auto",
        attention_width: int | None = None,
    ) -> None:
        self._tower = tower
        self._width = width
        self._row = row
        self._per_token = rows_per_token
        self.attention = choose_attention(attention) if isinstance(attention, str) else attention
        self._attention_width = attention_width or width

    def describe(self) -> EncoderDescription:
        return EncoderDescription(
            self._width, buffers={"rows": BufferSpec(is_data=True), **self.attention.buffers("rows")}
        )

    def is_raw(self, inputs: Inputs) -> bool:
        return "rows" in inputs

    def embed(self, inputs: Inputs) -> Sequence[torch.Tensor]:
        tokens = [n // self._per_token for n in inputs["lengths"]]
        return list(self.eager(inputs, "default").split(tokens))

    def signature(self, inputs: Inputs) -> Hashable | None:
        return tuple(inputs["lengths"])

    def items(self, inputs: Inputs) -> list[Item]:
        for length in inputs["lengths"]:
            if length % self._per_token or length <= 0:
                raise ValueError(f"an image of {length} rows is no whole number of tokens of {self._per_token} rows")
        return [Item(n, n // self._per_token) for n in inputs["lengths"]]

    def select(self, inputs: Inputs, indices: Sequence[int]) -> tuple[Inputs, AxisKeys]:
        parts = inputs["rows"].split(list(inputs["lengths"]))
        rows = torch.cat([parts[i] for i in indices])
        return {"rows": rows, "lengths": [inputs["lengths"][i] for i in indices]}, ()

    def whole(self, inputs: Inputs) -> tuple[Inputs, AxisKeys]:
        return inputs, ()

    def passes_through(self, inputs: Inputs) -> bool:
        return True

    def capture_values(self, key: GraphKey, limits: Limits) -> dict[str, torch.Tensor]:
        total = key.budget * self._per_token
        # As many sequences as items, and one for the padded rows. The longest may take everything.
        sequences = min(limits.items, total) + 1
        lengths = [total - sequences + 1] + [1] * (sequences - 1)
        metadata = self.attention.metadata(lengths, self._attention_width)
        metadata["longest"] = torch.tensor(total, dtype=torch.int32)
        rows = torch.zeros((total, *self._row.shape), dtype=self._row.dtype, device=self._row.device)
        return {"rows": rows, **self._placed(metadata)}

    def replay_values(self, inputs: Inputs, limits: Limits, path: str) -> dict[str, torch.Tensor]:
        return {"rows": inputs["rows"], **self.attention.metadata(inputs["lengths"], self._attention_width)}

    def _placed(self, metadata: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: v if v.ndim == 0 else v.to(self._row.device) for name, v in metadata.items()}

    def forward(self, values: dict[str, Any], path: str) -> torch.Tensor:
        return self._tower(values["rows"], partial(self.attention, values=values))

    def eager(self, inputs: Inputs, path: str) -> torch.Tensor:
        metadata = self._placed(self.attention.metadata(inputs["lengths"], self._attention_width))
        return self.forward({"rows": inputs["rows"], **metadata}, path)

    def output_rows(self, path: str, tokens: int) -> int | None:
        return tokens

    def finish(
        self,
        outputs: dict[str, torch.Tensor],
        indices: Sequence[int],
        items: Sequence[Item],
        results: dict[int, torch.Tensor],
        inputs: Inputs,
        eager: Sequence[str],
    ) -> None:
        scatter_rows(outputs["default"], indices, items, results)
