"""What the lab must report of a port that is right."""

from __future__ import annotations

from scaffold.verify.numeric import NumericReport


def assert_right(report: NumericReport, hits: int, misses: int = 0) -> None:
    """Everything agrees, and so many items at least were replayed and ran eagerly: little that ran proves little."""
    text = "\n".join(report.lines())
    assert report.passed, text
    assert report.hits >= hits, text
    assert report.misses >= misses, text
