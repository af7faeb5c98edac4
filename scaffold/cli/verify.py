"""`vitcg-scaffold verify`: the numerical proof of a port with a release's real classes, on the CPU and on a GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import click

from scaffold.cli.console import Console
from scaffold.cli.options import (
    check_trusted,
    command_line,
    config_option,
    descriptor_argument,
    examples,
    open_target,
    package_option,
    recipe_option,
    set_option,
    target_option,
    target_words,
    trust_option,
)
from scaffold.cli.watching import StatusLine
from scaffold.diagnostics import DiagnosticError, Exit

if TYPE_CHECKING:
    from scaffold.verify.numeric import NumericReport, NumericRequest, Property, Tail


@click.command(
    "verify",
    epilog=examples("verify internvl --vllm 0.22.0 --tail all", "verify internvl --vllm installed --device cuda"),
)
@descriptor_argument()
@target_option(required=True)
@package_option
@click.option(
    "--tail",
    type=click.Choice(["fa2", "fa3", "cudnn", "all"]),
    default="fa3",
    show_default=True,
    help="Emulate this attention kernel: FlashAttention 2 or 3 (which lets rows after a sequence's end matter), "
    "FlashInfer's, or all that the model may have.",
)
@click.option("--modality", "modalities", multiple=True, help="Check only this modality (repeatable).")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="Run real CUDA graphs too: where possible (auto), never (cpu), or always (cuda, which fails without a GPU).",
)
@recipe_option
@config_option
@set_option
@trust_option
@click.option("--as-is", is_flag=True, help="Check the tree's own implementation instead of the generated one.")
@click.option("--subclasses", is_flag=True, help="Prove the port in each class that inherits it, too.")
@click.option("-v", "--verbose", is_flag=True, help="Also print one line per comparison.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
@click.pass_obj
def command(
    console: Console,
    descriptor: str,
    vllm: str,
    package: str | None,
    tail: Tail | Literal["all"],
    modalities: tuple[str, ...],
    device: str,
    recipe: str | None,
    config: str | None,
    values: dict[str, Any],
    trust_remote_code: bool,
    as_is: bool,
    subclasses: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Prove the port of DESCRIPTOR numerically on a vLLM tree: no weights, no network, and no GPU needed.

    Runs the tree's code: its real classes with tiny random weights, driven by its own manager on emulated CUDA graphs.
    Every result must equal that of the pristine tree's `embed_multimodal`: several items, small after large, the edges
    of the processor's range, above all budgets. Unwritten memory is filled with NaN. Needs the `cpu` extra.

    With a GPU and the same release installed, `verify` also compares real CUDA graphs, of the release's manager and of
    ours, with eager results.

    A port in the tree is compared with the files that `new` found there. `pr` uses the result.
    """
    from scaffold.protocol import find_model
    from scaffold.verify.numeric import Missing, check_numerics_all, check_real_graphs, find_installed
    from scaffold.verify.proofs import Basis, KeptProof, identify_proof, keep_proof
    from scaffold.workflow import failures_of, load_port, numeric_requests, subclass_requests, tails_of

    port = load_port(descriptor, report=console.report)
    tree = open_target(console, vllm, package).tree
    every = tails_of(port, tree)
    if tail == "cudnn" and tail not in every:
        reason = "this release's tower, or its descriptor, is not for FLASHINFER; use fa2, fa3 or all"
        raise click.BadParameter(reason, param_hint="--tail")
    requests = numeric_requests(
        port,
        tree,
        tails=every if tail == "all" else (tail,),
        modalities=modalities,
        as_is=as_is,
        recipe=recipe,
        config=config,
        values=values,
        trust_remote_code=trust_remote_code,
    )
    asked, own = requests[0], len(requests)
    if subclasses:
        requests += subclass_requests(port, tree, asked)
        if len(requests) == own:
            console.note(f"vLLM serves no class that inherits from {port.class_name}")
    check_trusted(trust_remote_code, asked.automatic.config if asked.automatic else None)
    installed = Missing("--device cpu was asked for") if device == "cpu" else find_installed(asked)
    if device == "cuda" and isinstance(installed, Missing):
        help_text = "run it where this release of vLLM serves models, or leave --device out for the CPU proof alone"
        raise DiagnosticError.of("VCG470", f"real CUDA graphs cannot be run: {installed.reason}", help=help_text)
    if not (asked.overlay or as_is):
        console.note("No record shows the tree before this port: it is compared with itself alone. --vllm TREE-BEFORE")
        console.note("compares it with the unchanged model, and `new --check` tells whether this tree holds that port.")
    if asked.overlay and not asked.before and find_model(tree, port.module, port.class_name).protocol_methods:
        as_it_is = command_line("verify", descriptor, *target_words(vllm, package), "--as-is")
        console.note(
            f"The tree has a port of somebody else: the generated one takes its place. For the tree's own: {as_it_is}"
        )

    def depends_on() -> tuple[str, Basis]:
        """The name of the files that run, and everything else that the result depends on."""
        identity = identify_proof(port.name, asked.tree, asked.before, asked.overlay)
        given, trusted = (asked.automatic.config, trust_remote_code) if asked.automatic else ("", False)
        said = values if asked.automatic else {}
        real = not isinstance(installed, Missing)
        return identity, Basis.today(asked.recipe, given, trusted, port.verify, values=said, real=real)

    begun = depends_on()
    shown = _Shown(console, verbose, as_json)
    with shown:
        reports = list(check_numerics_all(requests, watch=shown))
        reports, inherited = reports[:own], reports[own:]
        if isinstance(installed, Missing):
            shown.line(f"real CUDA graphs were not run: {installed.reason}")
        else:
            shown.begin(f"{asked.recipe} on {asked.release}, real CUDA graphs")
            reports.append(check_real_graphs(asked, installed, watch=shown))
            shown.ended(reports[-1])
    if tree.package is not None:
        pass  # `pr` is for changes of vLLM
    elif depends_on() != begun:
        console.note("`pr` cannot quote this result: the tree, or what else it depends on, changed during the run")
    else:
        identity, basis = begun
        try:
            keep_proof(identity, KeptProof(basis, tuple(reports)))
        except OSError as error:
            console.note(f"`pr` cannot quote this result: {error}")
    reports += inherited  # `pr` speaks of the model itself
    if as_json:
        console.document(json.dumps([report.document() for report in reports], indent=2) + "\n")
    console.report(failures_of(port, reports))
    if config is None and any(report.guessed for report in reports):
        console.note("Give the checkpoint's values with --config config.json: they may differ from the guessed ones.")
    failed = [report for report in reports if not report.passed]
    if failed:
        raise click.exceptions.Exit(max(Exit.PROOF if r.failure is None else r.failure.exit for r in failed))


class _Shown(StatusLine):
    """One line per property after its last comparison; on a terminal also the current comparison."""

    def __init__(self, console: Console, verbose: bool, as_json: bool) -> None:
        super().__init__(console)
        self._console = console
        self._verbose = verbose
        self._as_json = as_json
        self._seen: set[tuple[str, str]] = set()
        self._basis: set[str] = set()

    def started(self, request: NumericRequest) -> None:
        self.begin(request.title)

    def begin(self, title: str) -> None:
        """The lines that follow belong to another run."""
        self._seen.clear()
        self._compared = 0
        self.line(title)
        self.status("imports vLLM")

    def note(self, text: str) -> None:
        if self._verbose:
            self.status("")
            self._console.note(text)
        else:
            self.status(text)

    def basis(self, text: str) -> None:
        if text not in self._basis:
            self._basis.add(text)
            self.line(f"  {text}")

    def settled(self, found: Property) -> None:
        key = found.modality, found.name
        if key not in self._seen:
            self._seen.add(key)
            self.line(f"  {found}")

    def ended(self, report: NumericReport) -> None:
        for found in report.properties():
            self.settled(found)
        if self._verbose:
            for line in report.lines()[1:-1]:
                self.line(line)
        elif report.failure is not None:
            self.line(f"  {report.failure.code} {report.failure.message}")
        if not self._verbose:
            for what in report.not_run:
                self.line(f"  not run: {what}")
        self.line(report.verdict)

    def line(self, text: str) -> None:
        """A line of the result; a note where stdout holds JSON."""
        self.status("")
        if self._as_json:
            self._console.note(text)
        else:
            self._console.result(text)
