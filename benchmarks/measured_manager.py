"""Numbers of `manager_gpu.py` on the pages.

Step3-VL is measured in a run of its own: its column is of `manager_h200_step3.json` where the main file has none.
"""

from __future__ import annotations

from typing import Any

from measured import NAMES, Block, Part, Sentence, exists, load, table


def models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Model -> heading of its column, and what was measured, in the order of the pages."""
    found = {name: (NAMES[name], measured) for name, measured in load("manager_h200")["models"].items()}
    if "step3_vl" not in found and exists("manager_h200_step3"):
        result = load("manager_h200_step3")
        found["step3_vl"] = ("Step3-VL (earlier)", result["models"]["step3_vl"])
        # Eager was measured once in that run, and there is no comparison of the fitted ladder with it.
        worst = max(row["ours_fitted_ms"] / row["eager_ms"] for row in result["rows"])
        found["step3_vl"][1]["summary"].setdefault("ours_fitted/eager worst", worst)
    return {name: found[name] for name in NAMES if name in found}


def over_exact(kind: str) -> list[float]:
    """Geometric means of the models' image workloads: the time of a call over that of an exact graph."""
    return [measured["summary"][f"{kind}/exact"] for name, (_, measured) in models().items() if ":" not in name]


def parts() -> list[Part]:
    named = [NAMES[name] for name in models() if ":" not in name]
    means = [f"{named[0]} {{}} against vLLM's {{}}", *(f"{name} {{}} against {{}}" for name in named[1:])]
    pairs = zip(over_exact("ours"), over_exact("vllm"), strict=True)
    small = next(row for row in load("manager_h200")["rows"] if row["model"] == "qwen2_5_vl")
    return [
        Block("docs/runtime.md", "manager", ratios(models())),
        Sentence(
            "docs/measured.md",
            f"(geometric mean, vLLM 0.33, FLASH_ATTN): {', '.join(means)}.",
            tuple(f"{value:.2f}" for both in pairs for value in both),
        ),
        Sentence(
            "docs/concepts.md",
            f"tower of Qwen2.5-VL takes {{}} ms eagerly for an image of {small['workload']}, and {{}} ms as a graph",
            (f"{small['eager_ms']:.0f}", f"{small['exact_ms']:.1f}"),
        ),
    ]


def ratios(columns: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """The table of the page on the runtime, a model a column."""

    def of_exact(kind: str, digits: int) -> list[str]:
        found = [measured["summary"] for _, measured in columns.values()]
        return [f"{one[f'{kind}/exact']:.{digits}f} ({one[f'{kind}/exact worst']:.2f})" for one in found]

    def of_eager(kind: str) -> list[str]:
        return [f"{measured['summary'][f'{kind}/eager worst']:.3f}" for _, measured in columns.values()]

    def memory(key: str, side: str) -> list[str]:
        return [
            f"{measured[key][side]:.0f} "
            f"({measured['graphs']['at start'] if key == 'start_memory_mb' else measured['budgets'][side]})"
            for _, measured in columns.values()
        ]

    def both(key: str, form: str) -> list[str]:
        return [f"{measured[key]['vllm']:{form}} / {measured[key]['ours']:{form}}" for _, measured in columns.values()]

    noise = [measured["summary"].get("noise") for _, measured in columns.values()]
    rows = [
        ["vLLM / exact (worst)", *of_exact("vllm", 2)],
        ["ours / exact, default ladder (worst)", *of_exact("ours", 3)],
        ["ours / exact, fitted ladder (worst)", *of_exact("ours_fitted", 3)],
        ["ours / eager, worst workload, default ladder", *of_eager("ours")],
        ["ours / eager, worst workload, fitted ladder", *of_eager("ours_fitted")],
        ["noise", *("" if value is None else f"{value:.3f}" for value in noise)],
        ["graph memory, vLLM's budgets, MiB", *memory("graph_memory_mb", "vllm")],
        ["graph memory, ours, MiB", *memory("graph_memory_mb", "ours")],
        ["graph memory at start-up, ours, MiB", *memory("start_memory_mb", "ours")],
        ["start-up, vLLM / ours, s", *both("capture_s", ".2f")],
        ["capture a graph, vLLM / ours, ms", *both("capture_ms_per_graph", ".0f")],
        ["host work a call, vLLM / ours, ms", *both("host_ms", ".2f")],
    ]
    return table(["", *(heading for heading, _ in columns.values())], rows)
