"""Tells whether graphs of a port pay for long calls, from its descriptor and from measurements.

A graph saves the launches of the encoder's kernels. It has nothing to save in a call of the encoder with so many rows
(patches of all units) that its kernels take longer than their launches. `tests/descriptor/test_worth.py` compares the
numbers with `benchmarks/results/cut_h200.json`.
"""

from __future__ import annotations

from scaffold.descriptor.port import Port
from scaffold.diagnostics import Diagnostic, Severity

#: Rows of a call of the encoder below which it was at least `GAIN` times as fast as eager, and above which at most 1.2
#: times.
FEW_ROWS, MANY_ROWS, GAIN = 2000, 8000, 1.9


def worth(port: Port) -> Diagnostic | None:
    """A note where graphs of a port stop paying off; None where nothing about its items says that they do."""
    if port.mask:
        return Diagnostic(
            "VCG487",
            "graphs gain little where attention adds a mask: its kernels take longer than their launches",
            port.span(f"forward.with.{port.mask}"),
            "on an H200 a call of MiniCPM-V took as long as eager, from one slice on: docs/measured/cuts.md",
            Severity.INFO,
        )
    if not port.long_calls:
        return None
    return Diagnostic(
        "VCG487",
        f"graphs gain little in long calls: {port.long_calls}",
        port.span("layout"),
        f"a call of the encoder with fewer than {FEW_ROWS} rows (patches of all its units) was at least {GAIN} times "
        f"as fast as eager on an H200, one with more than {MANY_ROWS} at most 1.2 times: docs/measured/cuts.md",
        Severity.INFO,
    )
