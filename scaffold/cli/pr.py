"""`vitcg-scaffold pr`: the description of a pull request, and the contribution rules that can be checked offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import command_line, descriptor_argument, examples, open_target, target_option, target_words
from scaffold.cli.output import write_output
from scaffold.cli.reentry import reenter_option, refuse_reentry
from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.report.plain import lines_of

if TYPE_CHECKING:
    from scaffold.pull_request import RuleResult


@click.command(
    "pr",
    epilog=examples(
        "pr internvl --vllm ./vllm-0.22.0 -o pr.md", "pr internvl --vllm ~/src/vllm --benchmark bench.json"
    ),
)
@descriptor_argument()
@target_option(required=True)
@click.option(
    "--base",
    metavar="PATH|RELEASE",
    help="Compare with this tree, the one before the port [what `new` found].",
)
@click.option("--shared", is_flag=True, help="Describe what `new --shared` wrote: a pull request of its own.")
@reenter_option("Describe a port that runs the model's code twice (VCG466), for a fork of vLLM.")
@click.option(
    "--benchmark",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Add the table of this result of `bench`.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the text to this file [stdout]."
)
@click.pass_obj
def command(
    console: Console,
    descriptor: str,
    vllm: str,
    base: str | None,
    shared: bool,
    reenter: bool,
    benchmark: Path | None,
    output: Path | None,
) -> None:
    """Describe the port of DESCRIPTOR in a vLLM tree as a pull request.

    Run it after `new` and `verify`. The text has the headings of the tree's own template: purpose, design notes from
    the generated code, test plan, the last result of `verify` for exactly these files, and a benchmark's table if you
    give one. Comments mark what only you can say. A port with edits by hand needs a `verify --as-is` of its files that
    passed; the text then tells both. `pr` checks the rules of the tree's contributing guide that need no
    network, and exits with 1 if the change breaks one or the proof failed. It changes nothing in the tree and runs none
    of its code.
    """
    from scaffold.cli.bench import read_benchmark
    from scaffold.pull_request import (
        RuleResult,
        check_rules,
        describe_change,
        describe_shared,
        find_change,
        find_proof,
        pull_request_title,
        shared_title,
    )
    from scaffold.workflow import find_drift, find_edited, load_port, prepare_port

    port = load_port(descriptor)
    tree = open_target(console, vllm).tree
    before = open_target(console, base).tree if base is not None else None
    if shared and benchmark is not None:
        raise click.UsageError("--shared describes no port, so that no --benchmark goes with it.")
    prepared = prepare_port(port, tree, replace=True, shared=shared)
    port = prepared.plan.port if port.in_tree is not None else port
    if shared:
        change = find_change(port, prepared, tree, before, shared=True)
        console.note(f"Title: {shared_title(change)}")
        _write(console, describe_shared(change), [*check_rules(change)], output)
        return
    if not reenter:
        refuse_reentry(port, prepared.plan, descriptor, target_words(vllm, None))
    measured = None if benchmark is None else read_benchmark(benchmark)
    change = find_change(port, prepared, tree, before)
    proof = find_proof(change, port)
    if change.edited and not proof.passed and (drift := find_drift(prepared, tree)) is not None:
        raise DiagnosticError(drift)
    text = describe_change(change, port, proof=proof, benchmark=measured)
    console.note(f"Title: {pull_request_title(port, change)}")
    how = [vllm, "--as-is"] if change.edited else [base or vllm]
    verify = command_line("verify", descriptor, "--vllm", *how, "--tail", "all")
    results = [*check_rules(change), proof.rule(verify)]
    if not change.edited and (edited := find_edited(port, tree, planned=change.prepared)) is not None:
        results.append(RuleResult("the change is what the descriptor generates", None, f"{edited.message}; say why"))
    if any(file.edits for file in change.plan.shared):
        run = command_line("new", descriptor, "--vllm", vllm, "--shared")
        said = f"on the tree before the port `{run}` writes what ports share alone: send that first"
        results.append(RuleResult("a pull request has one aim", None, said))
    _write(console, text, results, output)


def _write(console: Console, text: str, results: Sequence[RuleResult], output: Path | None) -> None:
    """The rules as notes, then the text; exits with 1 if a rule is broken."""
    for result in results:
        console.note(str(result))
    if output is None:
        console.document(lines_of(text))
    else:
        write_output(output, lines_of(text))
        console.note(f"Written: {output}")
    if any(result.passed is False for result in results):
        raise click.exceptions.Exit(Exit.DRIFT)
