"""Draw results of `manager_gpu.py` as an SVG. `pages.py` makes the picture of the docs. For any other files:

    python benchmarks/manager_plot.py RESULT.json ... PLOT.svg

Each row of the files is one workload: time relative to an exact graph (1.0 is the practical limit). The heading is
that of the first file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SERIES = (("eager_ms", "eager", "#999"), ("vllm_ms", "vLLM's manager", "#c33"), ("ours_ms", "ours, default", "#06c"),
          ("ours_fitted_ms", "ours, fitted ladder", "#2a2"))  # fmt: skip
LIMIT = 2.0


def draw(data: dict[str, Any]) -> str:
    """One line per workload, one dot per series. Dots beyond the limit become numbers."""
    left, top, row_height, width = 250, 56, 18, 860
    rows = data["rows"]
    height = top + row_height * len(rows) + 40

    def x(ratio: float) -> float:
        return left + (width - left - 60) * (min(ratio, LIMIT) - 0.95) / (LIMIT - 0.95)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="10" y="18" font-size="13">Time of a call relative to an exact graph '
        f"({data['machine']}, vLLM {data['versions']['vllm']}, {data['date']})</text>"
    ]
    for place, (_, label, colour) in enumerate(SERIES):
        out.append(f'<circle cx="{left + 130 * place}" cy="34" r="4" fill="{colour}"/>')
        out.append(f'<text x="{left + 8 + 130 * place}" y="38">{label}</text>')
    for tick in (1.0, 1.25, 1.5, 1.75, 2.0):
        out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 8}" y2="{height - 30}" stroke="#ddd"/>')
        out.append(f'<text x="{x(tick):.1f}" y="{height - 14}" text-anchor="middle">{tick}</text>')
    for place, row in enumerate(rows):
        y = top + row_height * place + 6
        out.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{row["model"]}: {row["workload"]}</text>')
        beyond = []
        for key, _, colour in SERIES:
            ratio = row[key] / row["exact_ms"]
            if ratio > LIMIT:
                beyond.append(f'<tspan fill="{colour}">{ratio:.1f} </tspan>')
            else:
                out.append(f'<circle cx="{x(ratio):.1f}" cy="{y}" r="4" fill="{colour}" fill-opacity="0.85"/>')
        out.append(f'<text x="{width - 50}" y="{y + 4}">{"".join(beyond)}</text>')
    return "\n".join([*out, "</svg>\n"])


def together(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows of all, under the heading of the first."""
    return {**results[0], "rows": [row for result in results for row in result["rows"]]}


if __name__ == "__main__":
    *sources, target = map(Path, sys.argv[1:])
    results = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
    target.write_text(draw(together(results)), encoding="utf-8")
