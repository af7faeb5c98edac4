"""Results of `vitcg-scaffold bench` on their page: tables, and the pictures beside them.

A result is a file that `bench -o` wrote, kept as `results/bench_NAME_MODEL.json`.
"""

from __future__ import annotations

from measured import NAMES, RESULTS, Block, File, Part, load

from scaffold.measure.benchreport import Benchmark, to_markdown, to_svg

PAGE = "docs/bench.md"


def benchmarks() -> dict[str, Benchmark]:
    """The results by the name of their file, in the order of the models."""
    files = sorted(path.stem for path in RESULTS.glob("bench_*.json"))
    found = {name: Benchmark.from_json(load(name)) for name in files}
    order = list(NAMES)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[1].model), item[0])))


def parts() -> list[Part]:
    found = benchmarks()
    pictures = [File(f"docs/{name}.svg", to_svg(result)) for name, result in found.items()]
    texts = (
        f"## {NAMES[result.model]}\n\n{to_markdown(result)}\n![time over an exact graph]({name}.svg)"
        for name, result in found.items()
    )
    return [Block(PAGE, "bench", "\n\n".join(texts)), *pictures]
