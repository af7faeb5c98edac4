"""The adapter protocol: everything that the manager must know about an encoder, and nothing more.

The manager never looks into a model. It asks an adapter for sizes, for buffer values and for forward passes. Rows are
the tower's inputs (patches), tokens are its outputs. An item is one image or one video.
This module knows torch only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Protocol

import torch

#: Keyword inputs of one call, in the model's own layout. Only the adapter knows their contents.
Inputs = Mapping[str, Any]

AxisKeys = tuple[Hashable, ...]

#: Writes `source` into the whole of `target`, tail included.
PadFunction = Callable[[torch.Tensor, torch.Tensor], None]


class BufferKind(Enum):
    """How the runtime pads a buffer of a graph. Each kind has one tested padder in `padding`."""

    #: One entry per row or tile, then zeros.
    ROWS = "rows"
    #: Offsets `[0, a, a+b, ...]`; the tail repeats the last one, or describes the padded rows (`BufferSpec.rows_of`).
    CUMULATIVE = "cumulative"
    #: Two `CUMULATIVE` halves in one tensor (FlashInfer's cuDNN prefill: Q/K/O offsets, then V offsets).
    TWO_SECTION = "two_section"
    #: Lengths of sequences; a padded sequence is empty.
    LENGTHS = "lengths"
    #: A permutation of rows; padded rows stay where they are.
    PERMUTATION = "permutation"
    #: A scalar on the host that the capture freezes (`max_seqlen`): never copied, and a replay must not exceed it.
    BOUND = "bound"
    #: True where a row is real.
    MASK = "mask"


def holds_pixels(tensor: torch.Tensor) -> bool:
    """Whether a data buffer has the type of pixels: floating point, or bytes where the model itself scales them."""
    return tensor.is_floating_point() or tensor.dtype is torch.uint8


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One named input of the captured forward.

    `is_data` marks pixels: every call copies them from its inputs, and no plan keeps them. `rows_of` names the buffer
    whose rows a `CUMULATIVE` buffer counts. The padded rows then get sequences of their own, of at most `bound` rows
    each, so that attention writes every row it reads. `pad` overrides the padder of the kind. `owned` makes the capture
    use the adapter's own tensor, for a padder that looks addresses up.
    """

    kind: BufferKind = BufferKind.ROWS
    is_data: bool = False
    rows_of: str | None = None
    bound: str | None = None
    pad: PadFunction | None = None
    owned: bool = False


@dataclass(frozen=True, slots=True)
class PathSpec:
    """One part of the encoder with graphs of its own (a global view, local tiles)."""

    min_budget: int | None = None
    may_be_idle: bool = False


@dataclass(frozen=True, slots=True)
class EncoderDescription:
    """The facts about an encoder that stay the same for the life of a manager."""

    output_width: int
    modalities: tuple[str, ...] = ("image",)
    buffers: Mapping[str, BufferSpec] = field(default_factory=dict)
    paths: Mapping[str, PathSpec] = field(default_factory=lambda: {"default": PathSpec()})
    #: The encoder's own axes, and `Room` after them where it takes images and videos.
    axes: tuple[tuple[Hashable, ...], ...] = ()

    def buffer(self, name: str) -> BufferSpec:
        """The spec of a buffer; an undeclared one holds rows."""
        return self.buffers.get(name, _ROWS)


_ROWS = BufferSpec()


@dataclass(frozen=True, slots=True)
class Item:
    """Sizes of one image or video: `cost` for balancing (rows), `tokens` returned, tokens per path."""

    cost: int
    tokens: int
    path_tokens: Mapping[str, int] | None = None

    def tokens_on(self, path: str) -> int:
        """Tokens that this item takes on a path."""
        return self.tokens if self.path_tokens is None else self.path_tokens.get(path, 0)


class GraphKey(NamedTuple):
    """The path, budget (in tokens) and capture-axis keys of a graph."""

    path: str
    budget: int
    axes: AxisKeys = ()

    def __str__(self) -> str:
        axes = f" axes={list(self.axes)}" if self.axes else ""
        return f"{self.path}/{self.budget}{axes}"


class Room(str, Enum):
    """A capture axis of encoders that take images and videos: the sequences that a graph has room for.

    A graph for frames has room for a sequence in each of its tokens, since the smallest frame is one token. Attention
    spends time on each sequence, empty or not, and images need only one each. So images have graphs of their own.
    """

    ITEMS = "items"
    FRAMES = "frames"

    def __str__(self) -> str:
        return self.value

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Limits:
    """Capacities besides tokens: items and video frames in one replay (0 frames: images only)."""

    items: int
    frames: int = 0

    def within(self, axes: AxisKeys) -> Limits:
        """The limits of a graph with these axis keys: no frames where it has room for items alone."""
        return replace(self, frames=0) if Room.ITEMS in axes else self


class OtherCall(Exception):
    """The model calls its encoder in another way than a replay of the whole batch could serve."""


#: Replays a path on the values of its buffers: `(path, values, rows, tokens) -> the first rows of its output`, or None
#: where this path runs eagerly. Raises `OtherCall` where no graph holds the values.
Replay = Callable[[str, Mapping[str, torch.Tensor | None], int, int], torch.Tensor | None]
#: Runs the model's own code once, with a replay where it calls its encoder: `(inputs, replay) -> embeddings by item`,
#: or None where it needs other features than those. Raises `OtherCall`.
Around = Callable[[Inputs, Replay], Sequence[torch.Tensor] | None]


class EncoderAdapter(Protocol):
    """The methods that the manager calls. All tensors of one call live on the tower's device, sizes live on the host.

    An adapter may have seven more. `watched()` gives tensors whose addresses the debug mode checks.
    `passes_through(inputs)` tells whether `whole` gives the tensors of all inputs of this signature as they are.
    `quick_signature(inputs)` gives the signature of inputs that are raw and pass through, with less work than
    `signature`, or None. `around` is described at `Around`; a model whose own code surrounds its encoder has it.
    `encodes_apart` then tells whether that code calls the encoder for each item; None where only a call can tell. And
    `keeps_tables` tells whether the adapter keeps what that code computes for a size, of `keep_at_most(nbytes)` bytes.
    """

    def describe(self) -> EncoderDescription:
        """Modalities, paths, axes and buffers."""

    def is_raw(self, inputs: Inputs) -> bool:
        """Whether the inputs hold pixels. If not (precomputed embeddings), the manager calls `embed`."""

    def embed(self, inputs: Inputs) -> Sequence[torch.Tensor]:
        """The model's own complete eager embedding: one tensor per item, in order."""

    def signature(self, inputs: Inputs) -> Hashable | None:
        """Everything that sizes and metadata depend on. None: the manager must not keep a plan for these inputs."""

    def items(self, inputs: Inputs) -> Sequence[Item]:
        """Sizes of every item, in order."""

    def select(self, inputs: Inputs, indices: Sequence[int]) -> tuple[Inputs, AxisKeys]:
        """The inputs of some items, and the capture-axis keys that they need. Never called with no indices."""

    def whole(self, inputs: Inputs) -> tuple[Inputs, AxisKeys]:
        """The same as `select` with every item in order, but without any copy."""

    def capture_values(self, key: GraphKey, limits: Limits) -> Mapping[str, torch.Tensor | None]:
        """Valid values of every buffer for a full graph. Shapes are the capacities of the graph."""

    def replay_values(self, inputs: Inputs, limits: Limits, path: str) -> Mapping[str, torch.Tensor | None]:
        """Values for these inputs, unpadded or padded. None or absent: the buffer keeps its contents."""

    def forward(self, values: dict[str, Any], path: str) -> torch.Tensor:
        """The tower on buffers only: the forward that a graph captures."""

    def eager(self, inputs: Inputs, path: str) -> torch.Tensor:
        """The tower on inputs, in the same format as `forward`, without padded rows."""

    def output_rows(self, path: str, tokens: int) -> int | None:
        """How many leading rows of `forward`'s output belong to `tokens` tokens. None: keep all of them."""

    def finish(
        self,
        outputs: dict[str, torch.Tensor],
        indices: Sequence[int],
        items: Sequence[Item],
        results: dict[int, torch.Tensor],
        inputs: Inputs,
        eager: Sequence[str],
    ) -> None:
        """Put one tensor per item into `results`. `outputs` belong to the caller: they never alias graph memory.

        `items` are all items of the call, `indices` those of this batch, `eager` the paths that ran eager.
        """


def scatter_rows(
    output: torch.Tensor, indices: Sequence[int], items: Sequence[Item], results: dict[int, torch.Tensor]
) -> None:
    """The plain `finish`: cut the output of one batch into its items.

    An item that runs alone may claim more tokens than it has: some ports keep it out of graphs in this way.
    """
    sizes = [items[i].tokens for i in indices]
    if len(sizes) == 1:
        results[indices[0]] = output[: sizes[0]]
        return
    used = sum(sizes)
    rows = output if output.shape[0] == used else output[:used]
    results.update(zip(indices, rows.split(sizes), strict=True))
