"""What `graphs_gpu.py` proved on real graphs, on the page."""

from __future__ import annotations

from measured import NAMES, RESULTS, Block, PageError, Part, load, table
from measured_ports import release

PAGE = "docs/measured.md"
MANAGERS = ("vLLM's manager", "our manager")


def parts() -> list[Part]:
    head = [
        "vLLM",
        "model",
        "calls compared on real graphs",
        "items replayed",
        "largest error, vLLM's manager",
        "ours",
        "",
    ]
    lines = []
    results = [load(path.stem) for path in RESULTS.glob("graphs_*.json")]
    for result in sorted(results, key=lambda result: release(result["versions"]), reverse=True):
        for row in sorted(result["rows"], key=lambda row: list(NAMES).index(row["model"])):
            real = row.get("real", {"groups": {}, "replayed": 0})  # a port that was refused has none
            groups = real["groups"]
            replays = {
                manager: [value for name, value in groups.items() if name.endswith(f"real graphs, {manager}")]
                for manager in MANAGERS
            }
            if any(value["largest_error"] for name, value in groups.items() if "eager on the GPU" in name):
                raise PageError(f"{PAGE} says that no port changes eager results, and that of {row['model']} does")
            errors = [max((value["largest_error"] for value in found), default=None) for found in replays.values()]
            lines.append(
                [
                    ".".join(result["versions"]["vllm"].split(".")[:2]),
                    NAMES[row["model"]],
                    str(sum(value["compared"] for found in replays.values() for value in found)),
                    str(real["replayed"]),
                    *("" if error is None else f"{error:.4f}" for error in errors),
                    row["outcome"],
                ]
            )
    return [Block(PAGE, "graphs", table(head, lines))]
