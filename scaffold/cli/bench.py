"""`vitcg-scaffold bench`: eager, exact graphs, vLLM's manager and ours, side by side on this machine's GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffold.cli.console import Console
from scaffold.cli.gpu import misfit, read_configuration, require_gpu, sized_model, tower_options
from scaffold.cli.options import descriptor_argument, examples
from scaffold.cli.output import write_output
from scaffold.diagnostics import Diagnostic, DiagnosticError

if TYPE_CHECKING:
    from scaffold.measure.benchreport import Benchmark


@click.command(
    "bench",
    epilog=examples(
        "bench qwen2_5_vl -o bench.json --markdown bench.md --svg bench.svg",
        "bench qwen2_5_vl --tokens 64 --tokens 256 --tokens 1196",
        "bench qwen2_5_vl --result bench.json --svg bench.svg",
    ),
)
@descriptor_argument()
@tower_options
@click.option(
    "--tokens",
    "sizes",
    type=click.IntRange(1),
    multiple=True,
    help="Measure calls of so many tokens (repeatable) [a usual mix].",
)
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
    sizes: tuple[int, ...],
    rounds: int,
    backend: str,
    result: Path | None,
    output: Path | None,
    markdown: Path | None,
    svg: Path | None,
) -> None:
    """Measure the encoder of DESCRIPTOR on this machine's GPU: no weights, no network.

    The installed vLLM's own implementation (or our adapter where it has none) runs at real sizes with random weights:
    eagerly, as a graph captured for exactly each input, with vLLM's manager and with ours. `bench` first compares
    each result with the eager one. Table and picture name the machine and the versions, ready for a pull request.

    Real sizes are known for qwen2_5_vl, qwen2_vl, qwen3_vl, internvl and step3_vl.
    """
    from scaffold.measure.benchreport import to_markdown, to_svg

    if result is not None:
        benchmark = read_benchmark(result)
    else:
        name = sized_model(descriptor)
        given = read_configuration(configuration)
        require_gpu("a benchmark", "give --result FILE to read an earlier one anywhere")
        benchmark = _run(console, name, given, sizes, rounds, backend)
    if output is not None:
        write_output(output, json.dumps(benchmark.to_json(), indent=1) + "\n")
    if svg is not None:
        write_output(svg, to_svg(benchmark))
    if markdown is not None:
        write_output(markdown, to_markdown(benchmark))
    else:
        console.result(to_markdown(benchmark).rstrip())


def _run(console: Console, name: str, given: Any, sizes: tuple[int, ...], rounds: int, backend: str) -> Benchmark:
    from scaffold.measure.bench import run_bench

    try:
        return run_bench(name, given, sizes, rounds, backend, console.note)
    except ValueError as error:
        raise misfit(name, error) from error


def read_benchmark(path: Path) -> Benchmark:
    """An earlier result. Raises VCG513."""
    from scaffold.measure.benchreport import Benchmark

    try:
        return Benchmark.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DiagnosticError(
            Diagnostic("VCG513", f"{path} is no benchmark result: {reason}", help="make one with `bench -o` on a GPU")
        ) from error
