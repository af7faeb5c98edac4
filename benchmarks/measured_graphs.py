"""docs/measured/graphs.md: the proofs of `graphs_gpu.py` on real graphs."""

from __future__ import annotations

from measured import NAMES, RESULTS, Page, PageError, load, table, text_page
from measured_ports import release

MANAGERS = ("vLLM's manager", "our manager")


def but(names: list[str]) -> str:
    """The models that the lab could not run on the GPU of the newest result, if any."""
    missing = [NAMES[row["model"]] for row in load(names[0])["rows"] if row["outcome"] == "failed"]
    if any(row["real"]["checks"] for row in load(names[0])["rows"] if row["outcome"] == "failed"):
        raise PageError("docs/measured/graphs.md says that no port failed a comparison, and one did")
    return f" but that of {', '.join(missing)}, which the lab cannot build in half precision," if missing else ""


def pages() -> list[Page]:
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
    names = [path.stem for path in RESULTS.glob("graphs_*.json")]
    names.sort(key=lambda name: release(load(name)["versions"]), reverse=True)
    for result in map(load, names):
        for row in sorted(result["rows"], key=lambda row: list(NAMES).index(row["model"])):
            real = row.get("real", {"groups": {}, "replayed": 0})  # a refused port has none
            groups = real["groups"]
            replays = {
                manager: [value for name, value in groups.items() if name.endswith(f"real graphs, {manager}")]
                for manager in MANAGERS
            }
            if any(value["largest_error"] for name, value in groups.items() if "eager on the GPU" in name):
                raise PageError(
                    f"docs/measured/graphs.md says that no port changes eager results, and that of {row['model']} does"
                )
            errors = [max((value["largest_error"] for value in found), default=None) for found in replays.values()]
            lines.append(
                [
                    ".".join(result["versions"]["vllm"].split(".")[:2]),
                    NAMES[row["model"]],
                    str(sum(value["compared"] for found in replays.values() for value in found)),
                    str(real["replayed"]),
                    *("" if error is None else f"{error:.4f}" for error in errors),
                    "did not run" if row["outcome"] == "failed" else row["outcome"],
                ]
            )
    return [text_page("graphs", names, {"but": but(names), "ports": table(head, lines)})]
