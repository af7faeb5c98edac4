"""`vitcg-scaffold fix`: the smallest proven repair of a port that a tree has already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from scaffold.cli.console import Console
from scaffold.cli.differences import show_differences
from scaffold.cli.options import command_line, descriptor_argument, examples, open_target, recipe_option, target_option
from scaffold.cli.output import write_output
from scaffold.cli.place import find_place, name_undo, publish_at, require_clean_place
from scaffold.cli.watching import StatusLine
from scaffold.diagnostics import Diagnostic, DiagnosticError, Exit, Severity
from scaffold.report.plain import lines_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaffold.changes import FileChange
    from scaffold.fix import Fix
    from scaffold.protocol import SourceTree
    from scaffold.verify.numeric import Tail


@click.command(
    "fix",
    epilog=examples("fix kimi_vl --vllm 0.33.0 --diff", "fix kimi_vl --vllm ~/src/vllm --text pr.md"),
)
@descriptor_argument("model")
@target_option(required=True)
@click.option("--diff", is_flag=True, help="Print the repair as a patch on stdout; do not write it.")
@click.option("--check", is_flag=True, help="Exit 1 if there is a repair; do not write it.")
@click.option(
    "--tail",
    type=click.Choice(["fa2", "fa3", "cudnn", "all"]),
    default="all",
    help="Emulate this attention kernel, as in `verify`, or all that the model may have [all].",
)
@recipe_option
@click.option(
    "--with-open", is_flag=True, help="Also write repairs that an open pull request of vLLM has: not to be sent again."
)
@click.option("--allow-dirty", is_flag=True, help="Edit files that have uncommitted changes.")
@click.option(
    "--text",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the description of a pull request for the repair to this file.",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    help="Put a release's working copy here [./vllm-RELEASE].",
)
@click.pass_obj
def command(
    console: Console,
    model: str,
    vllm: str,
    diff: bool,
    check: bool,
    tail: Tail | Literal["all"],
    recipe: str | None,
    with_open: bool,
    allow_dirty: bool,
    text: Path | None,
    into: Path | None,
) -> None:
    """Repair the encoder CUDA graphs that a vLLM tree has already for MODEL, in a few lines.

    MODEL is a descriptor's file or the name of a shipped one, whose model has a port in the tree: use `new` where it
    has none. `fix` runs the checks of `verify --as-is`, and has rules for known faults. It keeps a repair only if a
    failing check passes with it, no other check changes, and eager results stay the same bits. Repairs that an open
    pull request of vLLM has are proven and named, and not written without --with-open.

    Runs the tree's code, tiny, on the CPU (needs the `cpu` extra): a release's own, or that of the folder. With a
    RELEASE the repair goes into a working copy, ./vllm-RELEASE, as with `new`. `revert` undoes it.

    Exits with 0 where no rule repairs what fails, and names it.
    """
    from scaffold.fix import apply_repairs, find_repairs, fix_port
    from scaffold.protocol import TargetKind, find_model
    from scaffold.publish import require_finished
    from scaffold.workflow import load_port, tails_of

    if diff and check:
        raise click.UsageError("--diff and --check exclude each other: --diff exits with 0, --check with 1.")
    port = load_port(model, report=console.report)
    target = open_target(console, vllm)
    place = find_place(target, into, writes=not (diff or check))
    require_finished(place.tree.root)
    # A working copy may be anybody's folder: the release is run in its place, and has to have the same file.
    tree = target.tree if target.kind is TargetKind.RELEASE else place.tree
    if tail != "all" and tail not in tails_of(port, tree):
        raise click.BadParameter(f"this release's tower, or its descriptor, is not for {tail}", param_hint="--tail")
    if not (diff or check or allow_dirty):
        found = [one for one in find_repairs(tree, port.module, port.class_name) if with_open or not one.thread]
        files = {change.path for change in apply_repairs(tree, found)}
        require_clean_place(console, place, sorted({*files, find_model(tree, port.module, port.class_name).path}))
    with StatusLine(console) as status:

        def tell(line: str) -> None:
            status.status("")
            console.note(f"{port.name}: {line}")

        tails = () if tail == "all" else (tail,)
        fix = fix_port(port, tree, tails=tails, recipe=recipe, with_open=with_open, watch=status, tell=tell)
    changes = _for_copy(fix, place.tree)
    if diff:
        show_differences(console, changes)
    name = place.tree.label
    if not diff and not check:
        name = publish_at(console, place, changes, label=f"fix {port.name}", allow_dirty=allow_dirty)
    _summarise(console, fix, changes, "would change" if diff or check else "changed")
    _name_left(console, fix)
    if text is not None and fix.changes:
        _write_text(console, fix, text)
    if check and changes:
        _name_pending(console, fix, command_line(*(word for word in console.words if word != "--check")))
        raise click.exceptions.Exit(Exit.DRIFT)
    if changes and not diff:
        name_undo(console, name)


def _for_copy(fix: Fix, copy: SourceTree) -> tuple[FileChange, ...]:
    """The changes that are left for a working copy of the release that was run.

    Its files of unit tests may have others. Raises VCG526 where it has another version of any other file: the proof
    says nothing of that.
    """
    from scaffold.fix.unit_tests import put_tests

    tests = [repair.test for repair in fix.proven.repairs if repair.test]
    tree, files = fix.tree, {test.path for test in tests}
    changes = [change for change in fix.changes if change.path not in files]
    others = [change for change in changes if copy.read_bytes(change.path) not in (change.before, change.after)]
    if others:
        raise DiagnosticError(
            Diagnostic(
                "VCG526",
                f"{change.path} is not the file of {tree.label}, which was run",
                copy.span(change.path),
                f"run the code of this folder: --vllm {copy.label}",
            )
            for change in others
        )
    left = [change for change in changes if copy.read_bytes(change.path) == change.before]
    return (*left, *put_tests(copy, tests))


def _summarise(console: Console, fix: Fix, changes: Sequence[FileChange], verb: str) -> None:
    """A line for each repair and file, the checks before and after, and what fails in the end."""
    from scaffold.fix import Kind
    from scaffold.pull_request import changed_lines

    proven = fix.proven
    for kept in proven.kept:
        console.result(f"{kept.repair.name}: {kept.repair.so} ({kept.repair.span}); mends {len(kept.mended)} checks")
    for change in fix.changes:
        added, removed = changed_lines(change)
        state = verb if change.path in {one.path for one in changes} else "unchanged"
        console.result(f"{state:>12}  {change.path}  (+{added} -{removed} lines)")
    now = sum(key in proven.after.defects for key in proven.before.checks)
    console.result(
        f"{fix.port.name}: {len(proven.before.defects)} of {len(proven.before.checks)} checks failed, "
        f"{now} fail with the repair; {proven.after.eager} eager results are the same bits"
        if proven.kept
        else f"{fix.port.name}: nothing to repair, {now} of {len(proven.before.checks)} checks fail"
    )
    for repair in proven.repairs:
        if repair.thread:
            console.note(f"{repair.thread} is an open pull request that mends this ({repair.name}): send no other")
    if fix.heirs:
        console.note(f"These classes run the repaired methods, too, and were not run: {', '.join(fix.heirs)}")
    left = [one for one in proven.remaining if one.kind is not Kind.NO_DEFECT]
    if left:
        console.report(
            [
                Diagnostic(
                    "VCG528",
                    f"no rule repairs {sum(one.count for one in left)} failing checks of {fix.port.name}",
                    fix.tree.span(_model_file(fix)),
                    "mend the defects among them by hand; `verify --as-is` shows every comparison",
                    Severity.WARNING,
                    tuple(f"{one.kind.value}: {one}" for one in left),
                )
            ]
        )
    for one in proven.remaining:
        if one.kind is Kind.NO_DEFECT:
            console.note(f"No defect: {one}")


def _name_left(console: Console, fix: Fix) -> None:
    """The repairs that are not written, and how to write them all the same."""
    for one in fix.proven.left:
        console.result(f"not written: {one.repair.name}; mends {len(one.mended)} checks; {one.place}")
    if fix.proven.left:
        run = command_line(*(word for word in console.words if word != "--check"), "--with-open")
        console.note(f"Send no other pull request for it. To write it into a tree of your own: {run}")


def _model_file(fix: Fix) -> str:
    from scaffold.protocol import find_model

    return find_model(fix.tree, fix.port.module, fix.port.class_name).path


def _write_text(console: Console, fix: Fix, text: Path) -> None:
    from scaffold.fix import describe_fix, fix_title

    run = command_line("verify", fix.port.name, "--vllm", ".", "--as-is", "--tail", "all")
    write_output(text, lines_of(describe_fix(fix, command=run)))
    console.note(f"Title: {fix_title(fix)}")
    console.note(f"Written: {text}")


def _name_pending(console: Console, fix: Fix, run: str) -> None:
    """The verdict of `--check`: for machines a diagnostic for each repair, for people the command that writes them."""
    if not console.is_text:
        console.report(
            [
                Diagnostic(
                    "VCG527",
                    f"{repair.name}: {repair.what}",
                    repair.span,
                    f"run `{run}`: {repair.so}",
                    Severity.WARNING,
                )
                for repair in fix.proven.repairs
            ]
        )
    console.note(f"To repair: {run}")
