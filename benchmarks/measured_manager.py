"""docs/measured/manager.md: the results of `manager_gpu.py`, and the plot of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from measured import NAMES, Page, by_model, exists, load, mean, over, picture, sheet, table, text_page

from scaffold.measure.pictures import BLUE, GREEN, GREY, RED, ratio_dots

#: Bounds of `execute()` over an exact graph: the mean with the default and with a fitted ladder, and the worst.
TARGETS = {"ours/exact": 1.03, "ours_fitted/exact": 1.015}
WORST = 1.08

#: Runs with another attention backend.
BACKENDS = {"TRITON_ATTN": "manager_h200_triton", "FLASHINFER": "manager_h200_flashinfer"}

LADDERS = {"ours": "default ladder", "ours_fitted": "fitted ladder"}


def rows() -> list[dict[str, Any]]:
    """Every workload of the page's table."""
    return load("manager_h200")["rows"]


def models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Model -> heading of its column, and its results, in the order of the pages."""
    found = load("manager_h200")["models"]
    return {name: (NAMES[name], found[name]) for name in NAMES if name in found}


def over_exact(kind: str) -> list[float]:
    """Geometric means of the models' image workloads: the time of a call over that of an exact graph."""
    return [measured["summary"][f"{kind}/exact"] for name, (_, measured) in models().items() if ":" not in name]


def pages() -> list[Page]:
    # The result keeps no name of the backend of a whole run; its rows do.
    (backend,) = {row["backend"] for row in rows()}
    text = text_page("manager", ["manager_h200", *filter(exists, BACKENDS.values())], globals() | {"backend": backend})
    return [text, picture("manager_h200", drawn(load("manager_h200")))]


def drawn(result: Mapping[str, Any]) -> str:
    """Each workload: the time of a call with each manager over that of an exact graph."""
    keys = {"eager": "eager_ms", "vLLM's manager": "vllm_ms", "ours, default": "ours_ms",
            "ours, fitted ladder": "ours_fitted_ms"}  # fmt: skip
    found = [
        (f"{NAMES[row['model']]}: {row['workload']}", {name: row[key] / row["exact_ms"] for name, key in keys.items()})
        for row in result["rows"]
    ]
    title = f"{result['machine']}, vLLM {result['versions']['vllm']}, {result['date']}"
    return ratio_dots(title, found, dict(zip(keys, (GREY, RED, BLUE, GREEN), strict=True)))


def starts() -> str:
    """Graphs, seconds and memory of the start, vLLM's and ours."""
    columns = (
        ("model", "{name}"),
        ("graphs, vLLM / ours", "{budgets[vllm]} / {graphs[at start]}"),
        ("seconds, vLLM / ours", "{capture_s[vllm]:.2f} / {capture_s[ours]:.2f}"),
        ("graph memory, vLLM / ours, MiB", "{start_memory_mb[vllm]:.0f} / {start_memory_mb[ours]:.0f}"),
    )
    return sheet(columns, ({"model": name, **measured} for name, (_, measured) in models().items()))


def memory_of_graphs() -> str:
    """MiB of one more graph for each model."""

    def one_more(row: Mapping[str, Any]) -> str:
        more = row["budgets"]["ours"] - row["graphs"]["at start"]
        return f"{(row['graph_memory_mb']['ours'] - row['start_memory_mb']['ours']) / more:.1f}"

    columns = (
        ("model", "{name}"), ("one more graph, MiB", one_more), ("at start-up, MiB", "{start_memory_mb[ours]:.0f}"),
        ("vLLM's graphs, MiB", "{graph_memory_mb[vllm]:.0f}"),
    )  # fmt: skip
    return sheet(columns, ({"model": name, **measured} for name, (_, measured) in models().items()))


def icons() -> str:
    """Inputs below the smallest budget of the models, on their own graphs."""
    small = [row for found in by_model(rows()).values() for row in found if "56x56" in row["workload"]]
    columns = (
        ("model", "{name}"), ("input", "{workload}"), ("tokens", "{tokens}"),
        ("budget of ours", lambda row: row["ours_budgets"][0].rpartition("/")[2]),
        ("vLLM", over("vllm_ms", "exact_ms")), ("ours", over("ours_ms", "exact_ms")),
        ("ours, fitted ladder", over("ours_fitted_ms", "exact_ms")),
    )  # fmt: skip
    return sheet(columns, small)


def ratios(columns: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """The table of the page on the runtime, one column per model."""

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

    rows = [
        ["vLLM / exact (worst)", *of_exact("vllm", 2)],
        ["ours / exact, default ladder (worst)", *of_exact("ours", 3)],
        ["ours / exact, fitted ladder (worst)", *of_exact("ours_fitted", 3)],
        ["ours / eager, worst workload, default ladder", *of_eager("ours")],
        ["ours / eager, worst workload, fitted ladder", *of_eager("ours_fitted")],
        ["noise", *(f"{measured['summary']['noise']:.3f}" for _, measured in columns.values())],
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
    said = []
    labels = {"vllm": "vLLM's manager", "ours": "ours with the default ladder", "ours_fitted": "ours with a fitted one"}
    for kind, label in labels.items():
        ratios = [row[f"{kind}_ms"] / row["exact_ms"] for row in rows()]
        said.append(f"{label} {mean(ratios):.3f} (worst {max(ratios):.2f})")
    return f"A call takes this share of an exact graph, the mean over {len(rows())} workloads: {', '.join(said)}."


def not_reached() -> Iterator[str]:
    """A line for each model and target that the main run misses."""
    found = by_model(load("manager_h200")["rows"])
    for name, measured in load("manager_h200")["models"].items():
        summary, label = measured["summary"], NAMES[name]
        for key, target in TARGETS.items():
            kind = key.split("/")[0]
            if round(summary[key], 4) > target:
                yield f"{label}, {LADDERS[kind]}: {summary[key]:.3f} of an exact graph in the mean, not {target}."
            for row in found[name]:
                if (ratio := row[f"{kind}_ms"] / row["exact_ms"]) > WORST:
                    yield f"{label}, {row['workload']}, {LADDERS[kind]}: {ratio:.3f} of an exact graph."
                if row["workload"] in summary[f"{kind} slower than eager"]:
                    over = row[f"{kind}_ms"] / max(row["eager_ms"], row["eager_again_ms"])
                    yield (
                        f"{label}, {row['workload']}, {LADDERS[kind]}: {over:.3f} of eager, more than the noise of "
                        f"{summary['noise']:.3f}."
                    )


def other_backends() -> Iterator[str]:
    """A line for each backend with a run of its own."""
    for backend, name in BACKENDS.items():
        if not exists(name):
            continue
        for model, measured in load(name)["models"].items():
            summary = measured["summary"]
            yield (
                f"{backend}, {NAMES[model]} (`{name}.json`): vLLM {summary['vllm/exact']:.2f} of an exact graph, "
                f"ours {summary['ours/exact']:.3f}, fitted {summary['ours_fitted/exact']:.3f}; of eager at worst "
                f"{summary['ours/eager worst']:.3f} and {summary['ours_fitted/eager worst']:.3f}."
            )


def right() -> str:
    """The differences of our outputs to eager's."""
    differing = [row for row in rows() if row["ours_error"]]
    text = f"{len(rows()) - len(differing)} of {len(rows())} workloads gave what eager gave, bit for bit."
    for row in differing:
        ours, theirs = f"{row['ours_error']:.4f}", f"{row['vllm_error']:.4f}"
        text += (
            f" {NAMES[row['model']]}, {row['workload']}, differs by {ours} of the largest value, and vLLM's manager by "
            f"{theirs}."
        )
    return text
