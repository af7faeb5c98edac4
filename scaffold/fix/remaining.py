"""The meaning of checks that no rule repairs: no defect, known upstream, or a defect that needs a hand.

A check that fails does not always show a defect that somebody can meet. The reasons are here, once, for the command and
for the text of a pull request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from scaffold.verify.numeric import Check

#: Attention kernel, modality and name of a check.
Key = tuple[str, str, str]


class Kind(Enum):
    """How much a failing check means."""

    NO_DEFECT = "no defect"
    UPSTREAM = "open upstream"
    DEFECT = "needs a hand"


@dataclass(frozen=True)
class Remaining:
    """Failing checks that are one matter: their code and kind, how many, on which kernels, and why."""

    kind: Kind
    code: str
    names: tuple[str, ...]
    count: int
    kernels: tuple[str, ...]
    said: str

    def __str__(self) -> str:
        names = self.names[0] + (f" (and {len(self.names) - 1} more)" if self.names[1:] else "")
        return f"{self.code}, {self.count} checks on {', '.join(self.kernels)}: {names}: {self.said}"


def remaining(failing: Mapping[Key, Check]) -> tuple[Remaining, ...]:
    """Failing checks in groups: defects first, then what is open upstream, then what is none."""
    found: dict[tuple[Kind, str, str], list[tuple[str, str]]] = {}
    for (kernel, modality, name), check in failing.items():
        kind, reason = judge(check)
        said = reason or check.detail
        found.setdefault((kind, check.code, said), []).append((kernel, f"{modality} {name}"))
    groups = [
        Remaining(kind, code, _once(name for _, name in checks), len(checks), _once(one for one, _ in checks), said)
        for (kind, code, said), checks in found.items()
    ]
    order = [Kind.DEFECT, Kind.UPSTREAM, Kind.NO_DEFECT]
    return tuple(sorted(groups, key=lambda group: order.index(group.kind)))


def _once(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def judge(check: Check) -> tuple[Kind, str]:
    """The kind of a failing check, and the reason; no reason for a defect, whose detail says what is wrong."""
    for kind, reason, applies in _JUDGEMENTS:
        if applies(check):
            return kind, reason
    return Kind.DEFECT, ""


def _budget_below_an_item(check: Check) -> bool:
    detail = check.detail.lower()
    return check.code == "VCG654" and check.name.endswith(": capture") and "minimum budget" in detail


def too_many_frames(check: Check) -> bool:
    more = "one frame more than a graph holds" in check.name
    return check.code == "VCG666" or (check.code == "VCG654" and more)


_JUDGEMENTS = (
    (
        Kind.NO_DEFECT,
        "the results are right; the port only chooses eager code where a graph could serve, or the other way round",
        lambda check: check.code == "VCG657",
    ),
    (
        Kind.NO_DEFECT,
        "nobody serves a context shorter than one item, and the message of the start-up says what is wrong",
        lambda check: check.code == "VCG662",
    ),
    (
        Kind.NO_DEFECT,
        "the budgets are below one item, and the message of the start-up says so",
        _budget_below_an_item,
    ),
    (
        Kind.UPSTREAM,
        "precomputed embeddings raise, in many ports at once (vllm-project/vllm#58122)",
        lambda check: check.code == "VCG660",
    ),
    (
        Kind.UPSTREAM,
        "a batch of more frames than a graph holds raises, in many ports at once (vllm-project/vllm#43403)",
        too_many_frames,
    ),
)
