"""One answer of the lab serves every test that asks for it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from scaffold.verify import numeric
from scaffold.verify.numeric import NumericReport, NumericRequest


@pytest.fixture(scope="session")
def known_reports() -> dict[str, NumericReport]:
    return {}


@pytest.fixture
def check_once(known_reports: dict[str, NumericReport], monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_numerics_all` runs a request once: several tests of this folder look at the proof of one model on one
    release, each at other properties of it."""
    run = numeric.check_numerics_all

    def check(requests: Iterable[NumericRequest], **options: object) -> tuple[NumericReport, ...]:
        wanted = {repr(request): request for request in requests}
        missing = [key for key in wanted if key not in known_reports]
        known_reports.update(zip(missing, run([wanted[key] for key in missing], **options), strict=True))
        return tuple(known_reports[key] for key in wanted)

    monkeypatch.setattr(numeric, "check_numerics_all", check)
