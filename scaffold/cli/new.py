"""`vitcg-scaffold new`: the whole way, from a descriptor to a proven change of a vLLM tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.adapters import generate_adapters
from scaffold.cli.console import Console
from scaffold.cli.differences import show_differences
from scaffold.cli.options import (
    command_line,
    descriptor_argument,
    examples,
    open_target,
    package_option,
    target_option,
    target_words,
)
from scaffold.cli.place import Place, find_place, name_undo, publish_at, require_clean_place
from scaffold.cli.reentry import reenter_option, refuse_reentry, say_unwritten, with_adapter
from scaffold.cli.watching import StatusLine
from scaffold.diagnostics import Diagnostic, DiagnosticError, Exit, Severity

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree, Target
    from scaffold.workflow import PreparedPort


@click.command(
    "new",
    epilog=examples(
        "new internvl --vllm 0.22.0 --diff",
        "new my_model.yaml --vllm ~/src/vllm",
        "new my_model.yaml --vllm . --check --format github",
        "new --all --check",
    ),
)
@descriptor_argument("descriptors", nargs=-1, metavar="[DESCRIPTOR]...")
@target_option(required=False)
@package_option
@click.option("--all", "everything", is_flag=True, help="Without --vllm: all descriptors of the folder's manifest.")
@click.option("--diff", is_flag=True, help="Print the change as a patch on stdout; write nothing.")
@click.option("--check", is_flag=True, help="Exit 1 if anything would change; write nothing.")
@click.option(
    "--base",
    metavar="PATH|RELEASE",
    help="With --check of a tree: compare with this one, the one before the port [what `new` found].",
)
@click.option("--replace", is_flag=True, help="Swap an existing, hand-written implementation for the generated one.")
@reenter_option("Write a port that runs the model's code twice for each batch (VCG466), for a fork of vLLM.")
@click.option(
    "--shared",
    is_flag=True,
    help="Write what ports share alone, a pull request to send first: checks of vLLM's manager, a comparison in tests.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Run the code of a folder, too, for the short numerical proof before anything is written.",
)
@click.option("--static", is_flag=True, help="Write without the numerical proof.")
@click.option("--no-verify", "was_static", is_flag=True, hidden=True)
@click.option("--allow-dirty", is_flag=True, help="Edit files that have uncommitted changes.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    help="Put a release's working copy here [./vllm-RELEASE] or, without --vllm, the adapters [./generated].",
)
@click.pass_obj
def command(
    console: Console,
    descriptors: tuple[str, ...],
    vllm: str | None,
    package: str | None,
    everything: bool,
    diff: bool,
    check: bool,
    base: str | None,
    replace: bool,
    reenter: bool,
    shared: bool,
    verify: bool,
    static: bool,
    was_static: bool,
    allow_dirty: bool,
    into: Path | None,
) -> None:
    """Generate the encoder CUDA graph port of DESCRIPTOR into a vLLM tree.

    DESCRIPTOR is a YAML file or the name of a shipped one (internvl, qwen2_vl, ...). The port changes the model, the
    generation test, the docs table and the example, and the files of a tower that it splits. `new` proves it first,
    then writes all files or none; `vitcg-scaffold revert` undoes it. A port that would run the model's code twice is
    refused (VCG466) without --reenter: the plugin serves such a model.

    The last proof is numerical: it runs the model, tiny, on the CPU (needs the `cpu` extra). `new` runs the code of a
    release and of the installed package, and that of a folder only with --verify. It runs none with --static.

    With a RELEASE, the port goes into a working copy, ./vllm-RELEASE, which `new` makes if there is none. --diff and
    --check look at the pristine release, unless --into names a copy.

    Without --vllm, `new` makes stand-alone adapters in ./generated, for every generation that the plugin serves: those
    of each DESCRIPTOR (`shipped` for all shipped ones), or with --all those of each descriptor in the folder's
    manifest. It overwrites every file that differs, but no hand edit that is not committed. --check reports changed,
    missing and extra files.
    """
    from scaffold.plan import Present
    from scaffold.publish import require_finished
    from scaffold.workflow import RefusedResult, find_drift, find_edited, load_port, prepare_port

    if diff and check:
        raise click.UsageError("--diff and --check exclude each other: --diff exits with 0, --check with 1.")
    if base is not None and not (check and vllm):
        raise click.UsageError("--base is the tree that --check of a tree compares with: it needs --check and --vllm.")
    mode = "diff" if diff else "check" if check else None
    if verify and (mode or vllm is None):
        raise click.UsageError("--verify goes with a tree that `new` writes to; `verify` alone writes nothing.")
    static = static or was_static
    if verify and static:
        raise click.UsageError("--verify and --static exclude each other: a proof, or none.")
    if everything and (vllm is not None or descriptors):
        raise click.UsageError("--all takes its descriptors from the manifest of a folder of adapters: no other word.")
    if reenter and vllm is None:
        raise click.UsageError("--reenter is for a port in a tree: adapters may run a model's code again.")
    if shared and (vllm is None or package is not None):
        raise click.UsageError("--shared is for vLLM's own tree: name it with --vllm, without --package.")
    if vllm is None:
        if check and allow_dirty:
            raise click.UsageError("--check writes nothing: leave out --allow-dirty.")
        if not everything and not descriptors:
            raise click.UsageError("Missing argument 'DESCRIPTOR': a YAML file, or a shipped name such as internvl.")
        generate_adapters(console, descriptors, mode, into or Path("generated"), allow_dirty=allow_dirty)
        return
    if len(descriptors) != 1:
        raise click.UsageError("a tree gets one port in a run: name one DESCRIPTOR.")

    (descriptor,) = descriptors
    port = load_port(descriptor, report=console.report)
    target = open_target(console, vllm, package)
    place = find_place(target, into, writes=mode is None)
    require_finished(place.tree.home)
    try:
        prepared = prepare_port(port, place.tree, replace=replace)
    except RefusedResult as error:
        if mode is None:
            raise
        raise DiagnosticError(error.diagnostics) from None  # only a run that writes keeps the refused files
    if replace and package is None and not shared:
        _name_fix(console, descriptor, vllm, prepared, place)
    words = target_words(vllm, package)
    if prepared.package and not (reenter or mode == "diff"):
        refuse_reentry(port, prepared.plan, descriptor, words)
    swaps = prepared.plan.present is Present.CHANGED and not replace
    if (drift := find_drift(prepared, place.tree)) is not None:
        if mode is None and swaps:
            raise DiagnosticError(drift)
        console.report([changed(drift, severity=Severity.WARNING)] if mode is not None else [])
    written = prepare_port(port, place.tree, replace=replace, shared=True) if shared else prepared
    console.report(with_adapter(written.notes, port, written.plan, descriptor, words))
    if mode == "diff":
        show_differences(console, written.changed)
        _summarise(console, written, "would change")
        _name_missing(console, written)
        if not reenter:
            say_unwritten(console, prepared.plan)
    elif mode == "check":
        if not written.changed and not shared:
            before = open_target(console, base, package).tree if base is not None else None
            if (edited := find_edited(port, place.tree, before)) is not None:
                console.report([changed(edited, severity=Severity.WARNING)])
                raise click.exceptions.Exit(Exit.DRIFT)
        _summarise(console, written, "would change")
        _name_missing(console, written)
        options = ["--replace"] * (replace or swaps) + ["--reenter"] * reenter + ["--shared"] * shared
        options += ["--into", str(into)] if into is not None else []
        _require_nothing(console, written, command_line("new", descriptor, *words, *options))
    else:
        run = partial(_next_run, descriptor, vllm, package)
        # The shared part is proven with the port that it is for.
        _publish(console, run, target, place, (prepared, written), None if static else verify, allow_dirty=allow_dirty)
        _name_missing(console, written)


def _name_fix(console: Console, descriptor: str, vllm: str, prepared: PreparedPort, place: Place) -> None:
    """Say that `fix` may repair what is replaced, where a rule that it writes finds its place there."""
    from scaffold.fix import find_repairs

    port = prepared.plan.port
    repairs = find_repairs(place.tree, port.module, port.class_name) if prepared.package else ()
    names = [f"`{repair.name}`" for repair in repairs if not repair.thread]
    if names:
        run = command_line("fix", descriptor, "--vllm", vllm, "--diff")
        console.note(f"The port that goes may need a few lines only ({', '.join(names)}). To see them: {run}")


def _next_run(descriptor: str, vllm: str, package: str | None, command: str, label: str) -> str:
    """A command for what was written to the tree `label`."""
    return command_line(command, descriptor, *target_words(label if package is None else vllm, package))


def _publish(
    console: Console,
    run: Callable[[str, str], str],
    target: Target,
    place: Place,
    ports: tuple[PreparedPort, PreparedPort],  # the whole, and what is written of it
    verify: bool | None,  # None: no proof
    *,
    allow_dirty: bool,
) -> None:
    prepared, written = ports
    if not allow_dirty:
        require_clean_place(console, place, [change.path for change in written.changed])
    unproven = _prove_numerically(console, target, place, prepared, verify)
    shared = written.plan.only_shared
    name = f"new {prepared.plan.port.name}" + " --shared" * shared
    label = publish_at(console, place, written.changed, label=name, allow_dirty=allow_dirty)
    _summarise(console, written, "changed")
    if written.changed and shared:
        console.note(f"Text of a pull request: {run('pr', label)} --shared")
        console.note(f"Commit this first. Then the port: {run('new', label)}")
        name_undo(console, label)
    elif prepared.changed and not shared:
        if unproven:
            console.note(f"Proven statically only: {unproven}. To prove it numerically: {run('verify', label)}")
        else:
            console.note(f"Next, the whole numerical proof: {run('verify', label)}")
        if place.tree.package is None:
            console.note(f"Then the text of a pull request: {run('pr', label)}")
        name_undo(console, label)


def _prove_numerically(
    console: Console, target: Target, place: Place, prepared: PreparedPort, asked: bool | None
) -> str:
    """Run the short proof; the reason where it did not take place, empty where it passed or has nothing to prove.

    It runs the tree's code. Unasked, `new` runs none but a release's own and that of the installed package; `asked` is
    None for no proof. Raises RefusedResult where the proof shows that the port is wrong, or stops although the
    descriptor says how to make the model; DiagnosticError where it cannot run and has to.
    """
    from importlib.util import find_spec

    from scaffold.protocol import TargetKind
    from scaffold.verify.numeric import UNDECIDED, check_numerics_all
    from scaffold.workflow import RefusedResult, failures_of, short_request

    if not prepared.package:
        return ""
    if asked is None:
        return "--static was given"
    tree = place.tree
    if not asked:
        if target.kind is TargetKind.RELEASE and (tree is target.tree or _is_port_of(target.tree, prepared)):
            tree = target.tree
        elif target.kind is not TargetKind.INSTALLED:
            return "`new` runs the code of a folder only with --verify"
        if find_spec("torch") is None:
            return "torch is not installed here (it comes with the `cpu` extra)"
    with StatusLine(console) as status:
        (report,) = check_numerics_all([short_request(prepared, tree)], watch=status)
    if report.failure is not None and report.failure.code in UNDECIDED:
        if asked:
            raise DiagnosticError(report.failure)
        port = prepared.plan.port
        if port.verify is not None:  # else a descriptor could switch the proof off
            stopped = Diagnostic(
                "VCG647",
                "the numerical proof stopped, and the descriptor says how to make the model for it",
                port.span("verify"),
                "mend this section, or delete it",
            )
            raise RefusedResult([stopped, report.failure], prepared.changed, "to write without the proof: --static")
        return report.failure.message.partition("\n")[0][:200]
    if not report.passed:
        raise RefusedResult(
            failures_of(prepared.plan.port, [report]),
            prepared.changed,
            "mend the descriptor: `verify` shows every comparison; --static writes these files all the same",
        )
    console.note(f"short numerical proof: {report.verdict}")
    return ""


def _is_port_of(release: SourceTree, prepared: PreparedPort) -> bool:
    """Whether the release itself gets these files, byte for byte: a working copy may hold code of somebody else."""
    from scaffold.workflow import prepare_port

    own = prepare_port(prepared.plan.port, release, replace=True).package
    return [(change.path, change.after) for change in own] == [
        (change.path, change.after) for change in prepared.package
    ]


def _require_nothing(console: Console, prepared: PreparedPort, run: str) -> None:
    """The verdict of `--check`: one diagnostic per file that would change, for machines; exit 1 if there are any.

    `run` is the command that would change them.
    """
    if not prepared.changed:
        return
    reasons = {file.path: file.reason for file in prepared.plan.files}
    if not console.is_text:
        console.report(
            [
                Diagnostic(
                    "VCG521",
                    f"{change.path} would change: {reasons[change.path]}",
                    prepared.plan.port.span("model"),
                    help=f"run `{run}` to change it, or add --diff to see how",
                    severity=Severity.WARNING,
                )
                for change in prepared.changed
            ]
        )
    console.note(f"To change them: {run}")
    raise click.exceptions.Exit(Exit.DRIFT)


def _summarise(console: Console, prepared: PreparedPort, verb: str) -> None:
    """One line per file, with the reason; then the proofs."""
    changed = {change.path for change in prepared.changed}
    for file in prepared.plan.files:
        state = verb if file.path in changed else "unchanged"
        console.result(f"{state:>12}  {file.path}  ({file.reason})")
    generation = prepared.plan.profile.generation
    has = "what ports share" if prepared.plan.only_shared else "this port"
    console.note(
        f"{prepared.plan.port.name}: protocol {generation.name}, "
        f"{len(changed)} of {len(prepared.plan.files)} files {verb}, all static proofs passed"
        if changed
        else f"{prepared.plan.port.name}: nothing to do, the tree has {has} already"
    )


def _name_missing(console: Console, prepared: PreparedPort) -> None:
    """Name the places that a reviewer will ask for, last of all, so that nobody overlooks them."""
    missing = [
        note for note in prepared.notes if note.code in ("VCG427", "VCG524") and note.severity is not Severity.INFO
    ]
    if missing:
        console.note("Still missing from this port:")
    for note in missing:
        console.note(f"  - {note.message}")
        console.note(f"    {note.help}")
