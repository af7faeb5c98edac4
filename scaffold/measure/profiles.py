"""The parts of a profile: small frozen values, no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class KernelClass(str, Enum):
    """The purpose of a kernel in the tower."""

    PRODUCT = "matrix product"
    ATTENTION = "attention"
    NORM = "norm"
    ACTIVATION = "activation"
    ROTARY = "rotary"
    CAST = "cast"
    COPY = "copy"
    ELEMENTWISE = "element-wise"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One launch: its time on the device, the torch operator and the module that launched it.

    `shapes` are those of the operator's tensor arguments; `call` numbers the calls of modules, so that two kernels with
    the same number belong to one call of the innermost module.
    """

    name: str
    us: float
    op: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    module: str = ""
    module_class: str = ""
    call: int = -1


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call: its sequences' lengths, heads, and lanes of a head."""

    module: str
    lengths: tuple[int, ...]
    heads: int
    lanes: int

    @property
    def operations(self) -> int:
        """Multiplications and additions of the two matrix products."""
        return 4 * self.heads * self.lanes * sum(n * n for n in self.lengths)

    def bytes(self, size: int) -> int:
        """Queries, keys, values and the result, once each, at `size` bytes per number."""
        return 4 * self.heads * self.lanes * size * sum(self.lengths)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The machine's rates in the same run: bf16 matrix products, and copying (bytes read plus written)."""

    tflops: float
    tbytes: float

    def ms(self, operations: float, bytes_moved: float) -> float:
        """The least time under both bounds."""
        return max(operations / (self.tflops * 1e9), bytes_moved / (self.tbytes * 1e9))


@dataclass(frozen=True, slots=True)
class Recording:
    """One profiled forward of a tower. `graph_ms` is the same forward as a replayed CUDA graph."""

    model: str
    workload: str
    tokens: int
    ceilings: Ceilings
    kernels: tuple[KernelRecord, ...]
    attention: tuple[AttentionCall, ...] = ()
    graph_ms: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        # Recordings of 0.1 have the types of arguments, too.
        kept = ({name: value for name, value in k.items() if name != "types"} for k in data["kernels"])
        kernels = tuple(KernelRecord(**{**k, "shapes": tuple(map(tuple, k["shapes"]))}) for k in kept)
        attention = tuple(AttentionCall(**{**a, "lengths": tuple(a["lengths"])}) for a in data["attention"])
        return cls(**{**data, "ceilings": Ceilings(**data["ceilings"]), "kernels": kernels, "attention": attention})


@dataclass(frozen=True, slots=True)
class ClassTotal:
    """All kernels of one class. `floor_ms` is None for classes whose work may be avoidable."""

    kind: KernelClass
    ms: float
    launches: int
    floor_ms: float | None


@dataclass(frozen=True, slots=True)
class AvoidableCost:
    """Avoidable time: what, in which module (layers as `*`), how much, and how to get it back."""

    what: str
    module: str
    detail: str
    ms: float
    gain_ms: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The analysis of one recording."""

    recording: Recording
    totals: tuple[ClassTotal, ...]
    findings: tuple[AvoidableCost, ...]

    @property
    def kernel_ms(self) -> float:
        return sum(total.ms for total in self.totals)

    @property
    def floor_ms(self) -> float:
        """The time of matrix products and attention at the ceilings; everything else counts as free."""
        return sum(total.floor_ms or 0.0 for total in self.totals)


def pattern_of(module: str) -> str:
    """A module's path with its numbers as `*`: the same place in every layer."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


Events = Sequence[Mapping[str, Any]]
