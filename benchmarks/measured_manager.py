"""Numbers of `manager_gpu.py` on the pages, and the plot of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import manager_plot
from measured import NAMES, Block, File, Part, Sentence, by_model, exists, load, mean, table

#: What is wanted of `execute()` over an exact graph: the mean with the default and with a fitted ladder, and the worst.
TARGETS = {"ours/exact": 1.03, "ours_fitted/exact": 1.015}
WORST = 1.08

#: Runs with another attention backend.
BACKENDS = {"TRITON_ATTN": "manager_h200_triton", "FLASHINFER": "manager_h200_flashinfer"}

LADDERS = {"ours": "default ladder", "ours_fitted": "fitted ladder"}


def rows() -> list[dict[str, Any]]:
    """Every workload that the page's table is made of."""
    return load("manager_h200")["rows"]


def models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Model -> heading of its column, and what was measured, in the order of the pages."""
    found = load("manager_h200")["models"]
    return {name: (NAMES[name], found[name]) for name in NAMES if name in found}


def over_exact(kind: str) -> list[float]:
    """Geometric means of the models' image workloads: the time of a call over that of an exact graph."""
    return [measured["summary"][f"{kind}/exact"] for name, (_, measured) in models().items() if ":" not in name]


def parts() -> list[Part]:
    named = [NAMES[name] for name in models() if ":" not in name]
    means = [f"{named[0]} {{}} against vLLM's {{}}", *(f"{name} {{}} against {{}}" for name in named[1:])]
    pairs = zip(over_exact("ours"), over_exact("vllm"), strict=True)
    return [
        Block("docs/runtime.md", "manager", ratios(models())),
        Block("docs/runtime.md", "all", over_all()),
        Block("docs/runtime.md", "not reached", "\n".join(not_reached()) or "Every model reaches these bounds."),
        Block("docs/runtime.md", "other backends", "\n".join(other_backends())),
        Block("docs/runtime.md", "right", right()),
        File("docs/runtime_h200.svg", manager_plot.draw(load("manager_h200"))),
        Sentence(
            "docs/measured.md",
            f"(geometric mean, vLLM 0.33, FLASH_ATTN): {', '.join(means)}.",
            tuple(f"{value:.2f}" for both in pairs for value in both),
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


def over_all() -> str:
    """Every workload of the table in one mean."""
    text = f"Over all {len(rows())} workloads the geometric means are"
    labels = {"vllm": "vLLM", "ours": "ours with the default ladder", "ours_fitted": "with a fitted one"}
    for kind, label in labels.items():
        ratios = [row[f"{kind}_ms"] / row["exact_ms"] for row in rows()]
        text += f"{',' if kind != 'vllm' else ''}\n{label} {mean(ratios):.3f} (worst {max(ratios):.2f})"
    return text + "."


def not_reached() -> Iterator[str]:
    """A line for each model and target that is missed, of the main run."""
    found = by_model(load("manager_h200")["rows"])
    for name, measured in load("manager_h200")["models"].items():
        summary, label = measured["summary"], NAMES[name]
        for key, target in TARGETS.items():
            kind = key.split("/")[0]
            if round(summary[key], 4) > target:
                yield f"* {label}, {LADDERS[kind]}: {summary[key]:.3f} of an exact graph in the mean, not {target}."
            for row in found[name]:
                if (ratio := row[f"{kind}_ms"] / row["exact_ms"]) > WORST:
                    yield f"* {label}, {row['workload']}, {LADDERS[kind]}: {ratio:.3f} of an exact graph."
                if row["workload"] in summary[f"{kind} slower than eager"]:
                    over = row[f"{kind}_ms"] / max(row["eager_ms"], row["eager_again_ms"])
                    yield (
                        f"* {label}, {row['workload']}, {LADDERS[kind]}: {over:.3f} of eager, more than the noise of "
                        f"{summary['noise']:.3f}."
                    )


def other_backends() -> Iterator[str]:
    """A line for each backend that was measured on its own."""
    for backend, name in BACKENDS.items():
        if not exists(name):
            continue
        for model, measured in load(name)["models"].items():
            summary = measured["summary"]
            yield (
                f"* {backend}, {NAMES[model]} (`{name}.json`): vLLM {summary['vllm/exact']:.2f} of an exact graph,\n"
                f"  ours {summary['ours/exact']:.3f}, fitted {summary['ours_fitted/exact']:.3f}; of eager at worst "
                f"{summary['ours/eager worst']:.3f} and {summary['ours_fitted/eager worst']:.3f}."
            )


def right() -> str:
    """How far our outputs were from eager's."""
    differing = [row for row in rows() if row["ours_error"]]
    text = f"Of {len(rows())} workloads, {len(rows()) - len(differing)} gave what eager gave, bit for bit"
    for row in differing:
        ours, theirs = f"{row['ours_error']:.4f}", f"{row['vllm_error']:.4f}"
        text += (
            f";\n{NAMES[row['model']]}, {row['workload']} differs by {ours} of the largest value, vLLM's by {theirs}"
        )
    return text + "."
