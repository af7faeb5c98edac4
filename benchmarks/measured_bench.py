"""docs/measured/bench.md: results of `vitcg-scaffold bench`, tables and the pictures beside them.

A result is a file that `bench -o` wrote, kept as `results/bench_NAME_MODEL.json`.
"""

from __future__ import annotations

from measured import NAMES, RESULTS, Page, load, picture, text_page

from scaffold.measure.benchreport import Benchmark, to_markdown
from scaffold.measure.pictures import benchmark_dots


def benchmarks() -> dict[str, Benchmark]:
    """The results by the name of their file, in the order of the models."""
    files = sorted(path.stem for path in RESULTS.glob("bench_*.json"))
    found = {name: Benchmark.from_json(load(name)) for name in files}
    order = list(NAMES)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[1].model), item[0])))


def pages() -> list[Page]:
    found = benchmarks()
    pictures = [picture(name, benchmark_dots(result)) for name, result in found.items()]
    texts = [
        part
        for name, result in found.items()
        for part in (
            f"## {NAMES[result.model]}",
            to_markdown(result),
            f"![time of a call over an exact graph]({name}.svg)",
        )
    ]
    return [text_page("bench", found, {"texts": texts}), *pictures]
