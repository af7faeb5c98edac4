"""`vitcg-scaffold plan`: what `new` would do, edit by edit, and what was derived from the tree."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.options import (
    command_line,
    descriptor_argument,
    examples,
    open_target,
    package_option,
    target_option,
    target_words,
)
from scaffold.cli.reentry import say_unwritten, with_adapter
from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.edit.operations import Edit
    from scaffold.protocol import SourceTree

#: Seconds between two looks at a descriptor that is watched.
_PAUSE = 0.05


@click.command("plan", epilog=examples("plan internvl --vllm 0.22.0 -v", "plan mymodel.yaml --vllm ~/vllm --watch"))
@descriptor_argument()
@target_option(required=True)
@package_option
@click.option("--replace", is_flag=True, help="Plan the swap of an existing implementation.")
@click.option("-v", "--verbose", is_flag=True, help="Show what was derived from the tree, with its place.")
@click.option("--watch", is_flag=True, help="Plan again after each change of the descriptor, until Ctrl-C.")
@click.pass_obj
def command(
    console: Console, descriptor: str, vllm: str, package: str | None, replace: bool, verbose: bool, watch: bool
) -> None:
    """Show what `new` would change in a vLLM tree, and why. Writes nothing.

    With --watch the tree is read once: start again after a change there.
    """
    from scaffold.workflow import load_port

    words = target_words(vllm, package)
    if not watch:
        port = load_port(descriptor, report=console.report)
        _show(console, port, open_target(console, vllm, package).tree, descriptor, words, replace, verbose)
        return
    if not console.is_text:
        raise click.UsageError("--watch prints plan after plan, and a machine format is one document.")
    file = Path(descriptor)
    if not file.is_file():
        raise click.UsageError(f"--watch waits for changes of a file, and `{descriptor}` is none.")
    tree = open_target(console, vllm, package).tree
    for _ in _changes(file):
        begun = time.monotonic()
        try:
            _show(console, load_port(descriptor, report=console.report), tree, descriptor, words, replace, verbose)
        except DiagnosticError as error:
            console.report(error.diagnostics)
        console.note(f"Planned in {time.monotonic() - begun:.2f} s. Waiting for a change of {descriptor}; Ctrl-C ends.")
        # The tree's syntax trees stay for good. A collection that goes through them takes longer than a plan (0.3 s for
        # Kimi-K3), so it runs now, and later ones leave them out.
        gc.collect()
        gc.freeze()


def _changes(file: Path) -> Iterator[None]:
    """Once at once, and after each change. An editor may replace the file, which is then missing for a moment."""
    seen = None
    while True:
        with suppress(FileNotFoundError):
            facts = file.stat()
            now = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if now != seen:
                seen = now
                yield
        time.sleep(_PAUSE)


def _show(
    console: Console,
    port: AnyPort,
    tree: SourceTree,
    descriptor: str,
    words: Sequence[str],
    replace: bool,
    verbose: bool,
) -> None:
    from scaffold.plan import Present, plan_changes
    from scaffold.protocol import read_protocol

    profile = read_protocol(tree)
    plan = plan_changes(port, tree, profile, replace=replace)
    console.report(with_adapter(plan.notes, port, plan, descriptor, words))
    console.result(f"{port.name} on {tree.label}: protocol {profile.generation.name}")
    if verbose:
        for fact in plan.facts:
            console.result(f"  {fact.name} = {fact.value}  ({fact.evidence})")
    for file in plan.files:
        console.result("")
        console.result(file.path)
        console.result(f"  {file.reason}")
        for edit in file.edits:
            console.result(f"  - {_describe(edit)}")
    say_unwritten(console, plan)
    if not plan.reenters:
        changed = plan.present is Present.CHANGED  # `verify` refuses this tree before it has the generated port
        prove = command_line("verify", descriptor, *words)
        write = command_line("new", descriptor, *words, *(["--replace"] if replace or changed else []))
        first, second = (write, prove) if changed else (prove, write)
        console.note(f"Next: `{first}`, then `{second}`")


def _describe(edit: Edit) -> str:
    """An edit in a few words; long texts by their number of lines."""
    from scaffold import edit as to

    match edit:
        case to.AddImport(module, name) | to.DropImport(module, name):
            drop = "drop " if isinstance(edit, to.DropImport) else ""
            return f"{drop}import {module}" if name is None else f"{drop}from {module} import {name}"
        case to.DropTypingImport(module):
            return f"drop what only types import from {module}"
        case to.DropDefinition(name, owner):
            return f"drop {f'{owner}.' * bool(owner)}{name}"
        case to.AddBase(class_name, base):
            return f"{base} becomes a base of {class_name}"
        case to.PutMethods(class_name, source):
            return f"methods of {class_name}, {_lines(source)}"
        case to.PutFunction(source):
            return f"{source.partition(chr(10))[0].rstrip(':')}, {_lines(source)}"
        case to.ReplaceMethod(class_name, name, source):
            return f"{class_name}.{name} changes, {_lines(source)}"
        case to.ReplaceFunction(name, source):
            return f"{name} changes, {_lines(source)}"
        case to.AddDictEntry(variable, key, source):
            return f"{variable} gets `{key}`, {_lines(source)}"
        case to.AddListEntry(variable, value):
            return f"{variable} gets `{value}`"
        case to.AddTableRow(_, _, cells):
            return f"a row of the table: {' | '.join(cells)}"


def _lines(source: str) -> str:
    count = len(source.splitlines())
    return f"{count} line{'s' * (count != 1)}"
