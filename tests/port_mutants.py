"""Mistakes planted into a generated port: each replaces a fragment of the file, and must be reported with a code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaffold.verify.numeric import NumericReport, NumericRequest, check_numerics_all


@dataclass(frozen=True)
class Mutant:
    """`says` is what a contributor must be told of the cause."""

    name: str
    before: str
    after: str
    code: str
    says: str = ""
    #: A second fragment, where one alone leaves a second look at the same mistake.
    also: tuple[str, str] = ("", "")


def id_of(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "-")


def mixin_of(request: NumericRequest, path: str) -> str:
    """The file that the port shares with others; its own file without one."""
    return next((path for path in request.overlay if "encoder_cudagraph_" in path), path)


def reports_of(request: NumericRequest, path: str, mutants: Sequence[Mutant]) -> dict[str, NumericReport]:
    """The report of each mutant of the file `path` of a port, or of its mixin, from one import of its release."""
    requests = []
    for mutant in mutants:
        place = path if mutant.before in request.overlay[path].decode() else mixin_of(request, path)
        right = request.overlay[place].decode()
        for fragment in (mutant.before, mutant.also[0]):
            assert fragment in right, f"{mutant.name}: a fragment is not in the generated {place}"
        changed = right.replace(mutant.before, mutant.after)
        changed = changed.replace(*mutant.also) if mutant.also[0] else changed
        assert changed != right, mutant.name
        requests.append(replace(request, overlay={**request.overlay, place: changed.encode()}))
    return dict(zip((mutant.name for mutant in mutants), check_numerics_all(requests), strict=True))
