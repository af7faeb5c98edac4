"""Drafts an item of sound for a port of rows: how its frames become rows, and which of these attend to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scaffold.draft.common import pixel_keys, sizes_of_items
from scaffold.draft.locate import Subject
from scaffold.draft.numbers import attributes, expressions, put_number
from scaffold.draft.sheet import Sheet, SourceLine, beyond
from scaffold.watch import Batch, Recording

_BINS, _SOUND = re.compile(r"\.(num_mel_bins|n_mels)$"), re.compile(r"audio|speech|whisper")
#: Frames that become one row: each convolution of a stride of two halves them.
_STRIDES = (1, 2, 4, 8, 16)
#: Rows of the items that a port starts with.
_TRIED = (1, 2, 3, 6, 8)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Frames that are convolved together, as an attribute says it: `text` of `size` frames, `stride` for a row."""

    text: str
    size: int
    stride: int

    def rows(self, frames: int) -> int:
        whole, rest = divmod(frames, self.size)
        return whole * self.whole + -(-rest // self.stride)

    @property
    def whole(self) -> int:
        """Rows of a whole chunk."""
        return -(-self.size // self.stride)


def put_frames(
    subject: Subject, recording: Recording, batches: Sequence[Batch], path: str, place: SourceLine,
    sequences: Sequence[tuple[int, ...]], sheet: Sheet,
) -> str:  # fmt: skip
    """Fill in `item` and its `let`: how frames become the `sequences` of rows that attention in `path` is told of.

    The result is the input with the spectrum. Raises VCG483 where nothing says it.
    """

    def refused(what: str) -> Exception:
        return beyond(subject.tree, place, what)

    # Qwen3-Omni's mask is of floating point, too, and beside it: an entry of its own for each item.
    given = sorted(pixel_keys(batches[0]))
    keys = [key for key in given if not _is_of_frames(batches[0], key)] or given
    counts = sizes_of_items(batches, keys[0]) if len(keys) == 1 and batches[0].kind(keys[0]) else None
    if counts is None:
        raise refused(f"no input says how many frames of `{'`, `'.join(keys)}` an item has")
    [key] = keys
    told = [leaf for batch in batches for leaf in batch.inputs if leaf.at == counts]
    if any(leaf.device == "cuda" for leaf in told):
        raise refused(f"`{counts}` says the frames of each item on the GPU: the processor does not keep it on the host")
    frames = [[int(n) for n in leaf.value] for leaf in told if isinstance(leaf.value, list)]
    shapes = [batch.given(key)[0].shape for batch in batches]
    axes = [axis for axis in range(2) if all(one[axis] == sum(n) for one, n in zip(shapes, frames, strict=True))]
    if any(len(one) != 2 for one in shapes) or len(axes) != 1:
        raise refused(f"`{key}` is no spectrum whose frames lie behind each other: {shapes[0]}")
    own = re.compile(rf"^self\.{re.escape(path)}\.")
    numbers = {name: n for name, n in attributes(recording.numbers, re.compile(""), own).items() if n > 0}
    longest = max(map(max, sequences))
    chunks = next((one for one in _chunks(numbers) if _explains(one, longest, frames, sequences)), None)
    if chunks is None:
        seen = f"{frames[0]} frames, {list(sequences[0])} rows"
        raise refused(f"the rows that attention gets of each item follow from no chunk of its frames ({seen})")
    if [leaf.shape[0] for batch in batches for leaf in batch.results] != [
        chunks.rows(n) for one in frames for n in one
    ]:
        raise refused("an item has another number of embeddings than rows")
    stride, more = chunks.stride, chunks.stride - 1
    multiples = {name: n for name, n in numbers.items() if n % chunks.size == 0}
    form = f"(chunk + {more}) // {stride} * (a // chunk)"
    windows = expressions(longest, [form], a=multiples, chunk={"chunk": chunks.size})
    if not windows or not any(len(s) > len(n) for s, n in zip(sequences, frames, strict=True)):
        raise refused(f"no attribute says how many rows attend to each other: at most {longest} in the recording")
    others = {leaf.key for batch in batches for leaf in batch.inputs} - {key, counts}
    whole = {name for name in others if all(_is_of_frames(batch, name) for batch in batches)}
    if others - whole:
        raise refused(
            f"the model gets `{'`, `'.join(sorted(others - whole))}` with `{key}`, which is nothing of frames"
        )
    bins = shapes[0][1 - axes[0]]
    put_number(recording, bins, "let.bins", "the rows of a spectrum", _BINS, _SOUND, sheet)
    shown = f"{chunks.size} in the recording"
    sheet.put("let.chunk", chunks.text, why=f"the frames that are convolved together: {shown}")
    text = f"{stride} * h * w"
    sheet.put("item.shape", ["bins", text] if axes[0] else [text, "bins"], place, why=f"{stride} frames become a row")
    sheet.put(f"item.values.{counts}", [text], why="the frames of each item")
    for name in sorted(whole):
        sheet.put(f"item.zeros.{name}", [text], why="a number for each frame")
    rows = f"h // chunk * ((chunk + {more}) // {stride}) + (h % chunk + {more}) // {stride}"
    sheet.put("item.frames.rows", rows, place, why="so many rows as attention gets of each item")
    sheet.put("item.frames.window", windows[0], place, why="the longest sequence of attention")
    sheet.put("item.merge", 1, why="each row is a token")
    return key


def _chunks(numbers: Mapping[str, int]) -> Iterator[_Chunks]:
    """Chunks that the model may convolve: of so many frames as an attribute says, or of twice as many."""
    for name, n in numbers.items():
        for stride in reversed(_STRIDES):
            for text, size in ((f"2 * {name}", 2 * n), (name, n)):
                chunks = _Chunks(text, size, stride)
                if all(chunks.rows(stride * rows) == rows for rows in _TRIED):
                    yield chunks


def _explains(
    chunks: _Chunks, window: int, frames: Sequence[Sequence[int]], sequences: Sequence[tuple[int, ...]]
) -> bool:
    """Whether the rows of such chunks, in windows, are the sequences of every batch."""
    return all(
        [min(window, rows - start) for rows in map(chunks.rows, given) for start in range(0, rows, window)] == [*found]
        for given, found in zip(frames, sequences, strict=True)
    )


def _is_of_frames(batch: Batch, name: str) -> bool:
    """Whether an input has numbers for each item, perhaps padded, and nothing beside them."""
    leaves = batch.given(name)
    apart = len(leaves) == len(batch.items) and all(len(leaf.shape) == 1 for leaf in leaves)
    whole = len(leaves) == 1 and len(leaves[0].shape) == 2 and leaves[0].shape[0] == len(batch.items)
    return apart or whole
