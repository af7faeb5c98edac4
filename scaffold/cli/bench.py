"""`vitcg-scaffold bench`: eager, exact graphs, vLLM's manager and ours, side by side on this machine's GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.gpu import measured, model_options, open_port, read_json, show_result, workloads
from scaffold.cli.options import descriptor_argument, examples
from scaffold.cli.output import write_output

if TYPE_CHECKING:
    from scaffold.measure.benchreport import Benchmark


@click.command(
    "bench",
    epilog=examples(
        "bench qwen2_5_vl -o bench.json --markdown bench.md --svg bench.svg",
        "bench my_model.yaml --config path/to/config.json --image 1280x720 --image 448x448",
        "bench qwen2_5_vl --result bench.json --svg bench.svg",
    ),
)
@descriptor_argument()
@model_options
@click.option("--rounds", type=click.IntRange(3), default=20, show_default=True, help="Time so many calls of each.")
@click.option("--result", type=click.Path(path_type=Path), help="Read an earlier result instead of using a GPU.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Keep the result in this file, for `pr`.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the table to this file [stdout].")
@click.option("--svg", type=click.Path(path_type=Path), help="Write the picture to this file.")
@click.pass_obj
def command(
    console: Console,
    descriptor: str,
    configuration: Path | None,
    trust_remote_code: bool,
    images: tuple[tuple[int, ...], ...],
    videos: tuple[tuple[int, ...], ...],
    sizes: tuple[int, ...],
    backend: str,
    replace: bool,
    rounds: int,
    result: Path | None,
    output: Path | None,
    markdown: Path | None,
    svg: Path | None,
) -> None:
    """Measure the encoder of DESCRIPTOR on this machine's GPU: no weights, no network.

    The installed vLLM's own implementation, or the port of DESCRIPTOR where it has none, runs at real sizes with
    random weights: eagerly, as a graph captured for exactly each input, with vLLM's manager and with ours. `bench`
    first compares each result with the eager one. Table and picture name the machine and the versions, ready for a
    pull request. Nothing is written to vLLM.
    """
    from scaffold.measure.benchreport import to_markdown
    from scaffold.measure.pictures import benchmark_dots

    if result is not None:
        benchmark = read_benchmark(result)
    else:
        way_out = "give --result FILE to read an earlier one anywhere"
        port = open_port(console, descriptor, configuration, trust_remote_code, "a benchmark", way_out)
        with measured(console, port, configuration, trust_remote_code, replace) as subject:
            from scaffold.measure.bench import run_bench

            benchmark = run_bench(subject, workloads(images, videos, sizes), sizes, rounds, backend, console.note)
    if output is not None:
        write_output(output, json.dumps(benchmark.to_json(), indent=1) + "\n")
    show_result(console, to_markdown(benchmark), markdown, svg, lambda: benchmark_dots(benchmark))


def read_benchmark(path: Path) -> Benchmark:
    """An earlier result. Raises VCG513."""
    from scaffold.measure.benchreport import Benchmark

    return read_json(path, "VCG513", "a result of `bench -o`", Benchmark.from_json)
