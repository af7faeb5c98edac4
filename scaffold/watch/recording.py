"""The recording of a model's run: plain values, without torch."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from math import prod
from typing import Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands. `file` is relative to the tree, or to the folder of installed packages.

    Lines count from 1, columns from 0 in bytes of UTF-8, as in `ast`. Python 3.10 does not tell columns: there, the
    place is a whole line.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a tensor: an input (`pixel_values`, `pixel_values[1]`) or the result of a call (`#7`).

    `how`: `same` (the same elements in the same memory), `view` (of its memory), and in other memory `concatenation`
    (all elements of a list), `copy`, or `cast` (to another dtype).
    """

    of: str
    how: str

    @property
    def key(self) -> str:
        """The input that it is, or is in."""
        return self.of.partition("[")[0]

    @property
    def call(self) -> int | None:
        """The number of the call whose result it is, or is in: 7 of `#7`, `#7[0]` and `#7last_hidden_state`."""
        found = re.match(r"#(\d+)", self.of)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value among arguments, results or variables. `at` is its name and what leads into it, such as `grids[0]`.

    A tensor has shape, dtype and device (`cuda`, or `cpu` for what the runner leaves on the host). `value` is that of
    numbers, text, lists of numbers, and integer tensors of few elements; None for all others.
    """

    at: str
    type: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    value: Any = None
    sources: tuple[Source, ...] = ()

    @property
    def key(self) -> str:
        """The input that it is, or is in."""
        return self.at.partition("[")[0]

    @property
    def grid(self) -> list[list[int]]:
        """The rows of a grid, each of which may be in a table of its own; none of any other value."""
        value = self.value if isinstance(self.value, list) else []
        if all(isinstance(row, list) and len(row) == 1 and isinstance(row[0], list) for row in value):
            value = [row[0] for row in value]
        whole = all(isinstance(row, list) and all(type(one) is int for one in row) for row in value)
        return value if whole else []

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that each entry of a grid says; none of any other value."""
        return tuple(map(prod, self.grid))

    @property
    def made_by(self) -> list[int]:
        """The numbers of the calls whose results a tensor is, or is in."""
        return [source.call for source in self.sources if source.call is not None]

    @property
    def is_tensor(self) -> bool:
        return self.type == "Tensor"


@dataclass(frozen=True, slots=True)
class Frame:
    """A function while it waits for one call. `caller` is the index of the frame that called it, None for the entry.

    `text` is the call, at `place`. `values` are the function's variables at that moment: what is alive across the call.
    `part` is the part of the model that `self` is: empty for the model itself, None for no part. `results` are what a
    called function of Python gives; those of a part alone are in its `Call`.
    """

    caller: int | None
    part: str | None
    function: str
    first_line: int
    place: Place
    text: str
    values: tuple[Leaf, ...]
    results: tuple[Leaf, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a part of the model, from a frame, inside another call. Arguments go by the names of parameters."""

    part: str
    cls: str
    frame: int | None
    inside: int | None
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """How the processor cuts an input into items, also one that is not in this batch.

    `lengths` are those of the items along axis `dim` of a flat one.
    """

    key: str
    modality: str
    kind: str
    lengths: tuple[int, ...]
    dim: int
    on_host: bool


@dataclass(frozen=True, slots=True)
class Left:
    """A parameter or buffer that vLLM's loader leaves on the host, and that gets to the device in a batch.

    `made` is the line that made it. `inside` are the parts and methods of the model that run while it, or what is
    computed of it, is read: `self.embed_multimodal`, `self.positions`.
    """

    of: str
    made: str
    inside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """One call of `embed_multimodal` on `items`. `calls` are in their order, `results` the embeddings of the items."""

    modality: str
    items: tuple[str, ...]
    inputs: tuple[Leaf, ...]
    fields: tuple[Field, ...]
    frames: tuple[Frame, ...]
    calls: tuple[Call, ...]
    results: tuple[Leaf, ...]
    left: tuple[Left, ...] = ()

    def given(self, key: str) -> list[Leaf]:
        """The tensors of an input: itself, or those in it."""
        return [leaf for leaf in self.inputs if leaf.key == key]

    def kind(self, key: str) -> str:
        """How the processor cuts an input into items; empty of one that it does not declare."""
        return next((field.kind for field in self.fields if field.key == key), "")

    def lengths(self, key: str) -> tuple[int, ...]:
        """The lengths of the items of a flat input; none of any other."""
        return next((field.lengths for field in self.fields if field.key == key), ())

    def runs(self, part: str, within: range | None = None) -> list[int]:
        """The numbers of the calls of a part, of all calls or of those `within`."""
        return [n for n, call in enumerate(self.calls) if call.part == part and (within is None or n in within)]

    def chain(self, frame: int | None) -> list[int]:
        """The indices of the frames from the entry to one, that included."""
        return [*self.chain(self.frames[frame].caller), frame] if frame is not None else []

    def way(self, call: Call) -> tuple[Frame, ...]:
        """The frames from the entry to a call."""
        return tuple(self.frames[index] for index in self.chain(call.frame))


@dataclass(frozen=True, slots=True)
class Repeated:
    """A list of parts of one class, such as the layers of an encoder."""

    name: str
    cls: str
    count: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A model's runs on two batches or more of each modality. `missing` has modalities without one, with the reason.

    `configuration` is the one in use, `basis` where it is from, `guessed` its values that nothing says. `numbers` are
    integers, and lists of them, that the model's parts and their configurations hold: `self.config.image_size`.
    `placeholders` are the texts that stand for an item of each modality in a prompt.
    """

    module: str
    class_name: str
    configuration: Mapping[str, Any]
    basis: tuple[str, ...]
    guessed: tuple[str, ...]
    numbers: Mapping[str, int | list[int]]
    placeholders: Mapping[str, str]
    repeated: tuple[Repeated, ...]
    batches: tuple[Batch, ...]
    missing: Mapping[str, str]

    def of(self, modality: str) -> tuple[Batch, ...]:
        return tuple(batch for batch in self.batches if batch.modality == modality)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        made = _read(cls, data)
        assert isinstance(made, Recording)
        return made


def _read(kind: Any, data: Any) -> Any:
    """A value of this type from what JSON holds of it."""
    if isinstance(kind, types.UnionType):
        return data if data is None else _read(get_args(kind)[0], data)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], item) for item in data)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{field.name: _read(hints[field.name], data[field.name]) for field in fields(kind)})
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
