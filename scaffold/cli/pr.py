"""`vitcg-scaffold pr`: the description of a pull request, and the contribution rules that can be checked offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import descriptor_argument, examples, open_target, target_option
from scaffold.cli.output import write_output
from scaffold.diagnostics import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaffold.verify.numeric import NumericReport


@click.command(
    "pr",
    epilog=examples(
        "pr internvl --vllm ./vllm-0.22.0 -o pr.md", "pr internvl --vllm ~/src/vllm --benchmark bench.json"
    ),
)
@descriptor_argument()
@target_option(required=True)
@click.option("--base", metavar="PATH|RELEASE", help="The tree before the port [what the last `new` found].")
@click.option("--recipe", type=click.Path(exists=True, dir_okay=False, resolve_path=True), help="As for `verify`.")
@click.option("--benchmark", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A result of `bench`.")
@click.option("--no-verify", is_flag=True, help="Leave the numerical proof out, and say so in the text.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the text there [stdout].")
@click.pass_obj
def command(
    console: Console,
    descriptor: str,
    vllm: str,
    base: str | None,
    recipe: str | None,
    benchmark: Path | None,
    no_verify: bool,
    output: Path | None,
) -> None:
    """Describe the port of DESCRIPTOR that stands in a vLLM tree as a pull request.

    Run it after `new`. The text has the headings of the tree's own template: purpose, design notes from the descriptor,
    test plan, the numerical proof (run now, against the tree before the port), and a benchmark's table if one is given.
    The rules of the tree's contributing guide that need no network are checked; exit 1 if one is broken, 6 if the
    proof fails. Nothing in the tree is changed.
    """
    import tempfile

    from scaffold.cli.bench import read_benchmark
    from scaffold.pull_request import check_rules, describe_change, find_change, prove_change, pull_request_title
    from scaffold.workflow import load_spec

    spec = load_spec(descriptor)
    tree = open_target(console, vllm).tree
    before = open_target(console, base).tree if base is not None else None
    measured = None if benchmark is None else read_benchmark(benchmark)
    with tempfile.TemporaryDirectory(prefix="vitcg-pr-") as scratch:
        change = find_change(spec, tree, before, Path(scratch))
        reports: Sequence[NumericReport] = () if no_verify else prove_change(change, spec, recipe, console.note)
    text = describe_change(
        change,
        spec,
        reports=reports,
        benchmark=measured,
        command=f"vitcg-scaffold verify {descriptor} --vllm . --tail all",
    )
    console.note(f"Title: {pull_request_title(spec)}")
    results = list(check_rules(change))
    for result in results:
        console.note(str(result))
    if output is None:
        console.document(text)
    else:
        write_output(output, text)
        console.note(f"Written: {output}")
    for report in reports:
        console.report(report.diagnostics())
    if not all(report.passed for report in reports):
        raise click.exceptions.Exit(Exit.PROOF)
    if any(result.passed is False for result in results):
        raise click.exceptions.Exit(Exit.DRIFT)
