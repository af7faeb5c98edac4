"""`vitcg-scaffold new`: the whole way, from a descriptor to a proven change of a vLLM tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.differences import show_differences
from scaffold.cli.options import open_target, target_option
from scaffold.diagnostics import Exit

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec
    from scaffold.protocol import SourceTree
    from scaffold.workflow import Port


@click.command("new")
@click.argument("descriptor")
@target_option(required=False)
@click.option("--diff", "mode", flag_value="diff", help="Show the change; write nothing.")
@click.option("--check", "mode", flag_value="check", help="Exit 1 if anything would change; write nothing.")
@click.option("--replace", is_flag=True, help="Swap an existing, hand-written implementation for the generated one.")
@click.option("--allow-dirty", is_flag=True, help="Edit files that have uncommitted changes.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the working copy of a release goes [./vllm-RELEASE], or, without --vllm, the adapter [./generated].",
)
@click.pass_obj
def command(
    console: Console,
    descriptor: str,
    vllm: str | None,
    mode: str | None,
    replace: bool,
    allow_dirty: bool,
    into: Path | None,
) -> None:
    """Generate the encoder CUDA graph port of DESCRIPTOR into a vLLM tree.

    DESCRIPTOR is a YAML file or the name of a shipped one (internvl, qwen2_vl, ...). The port is four edits: the model
    class, the generation test, the docs table and the example list. It is proven before anything is written, written
    all or nothing, and undone by `vitcg-scaffold revert`.

    With a RELEASE, a working copy is made first, in ./vllm-RELEASE; --diff and --check look at the pristine release
    and make none. Without --vllm, stand-alone adapters for every protocol generation go to ./generated.
    """
    from scaffold.workflow import load_spec, prepare_port

    spec = load_spec(descriptor)
    if vllm is None:
        _generate_adapters(console, descriptor, mode, into or Path("generated"))
        return

    target = open_target(console, vllm)
    tree = target.tree if mode else _working_copy(console, target.tree, into)
    port = prepare_port(spec, tree, replace=replace)
    console.report(port.notes)
    if mode == "diff":
        show_differences(console, port.changed)
        _summarise(console, port, "would change")
    elif mode == "check":
        _summarise(console, port, "would change")
        if port.changed:
            raise click.exceptions.Exit(Exit.DRIFT)
    else:
        _publish(console, tree, spec, port, allow_dirty)


def _working_copy(console: Console, tree: SourceTree, into: Path | None) -> SourceTree:
    """The tree to write into: the tree itself, or a copy of a cached release, which is never written."""
    from scaffold.protocol import open_tree, unpack_release

    if not tree.read_only or tree.release is None or tree.installed:
        return tree
    destination = into or Path(f"vllm-{tree.release}")
    if not destination.exists():
        console.note(f"Making a working copy of vLLM {tree.release} in {destination}")
        unpack_release(tree.release, destination)
    return open_tree(destination)


def _publish(console: Console, tree: SourceTree, spec: AdapterSpec, port: Port, allow_dirty: bool) -> None:
    from scaffold.publish import publish_changes, require_clean

    if not allow_dirty:
        require_clean(tree.root, [change.path for change in port.changed])
    publish_changes(tree.root, port.changed, label=f"new {spec.name}")
    _summarise(console, port, "changed")
    if port.changed:
        console.note(f"Undo with: vitcg-scaffold revert {tree.label}")


def _summarise(console: Console, port: Port, verb: str) -> None:
    """One line a file, with the reason; then what was proven."""
    changed = {change.path for change in port.changed}
    for file in port.plan.files:
        state = verb if file.path in changed else "unchanged"
        console.result(f"{state:>12}  {file.path}  ({file.reason})")
    generation = port.plan.profile.generation
    console.note(
        f"{port.plan.spec.name}: protocol {generation.name}, {len(changed)} of {len(port.plan.files)} files {verb}, "
        "all static proofs passed"
        if changed
        else f"{port.plan.spec.name}: nothing to do, the tree has this port already"
    )


def _generate_adapters(console: Console, descriptor: str, mode: str | None, folder: Path) -> None:
    """Without a tree: the stand-alone adapters of one descriptor, as `regen` makes them."""
    from scaffold.adapters import plan_regeneration, publish_regeneration
    from scaffold.cli.regen import require_something, show_written

    plan = plan_regeneration(folder, [descriptor])
    if require_something(console, plan):
        raise click.exceptions.Exit(Exit.DESCRIPTOR)
    console.report([*plan.notes, *plan.conflicts])
    if mode == "diff":
        show_differences(console, plan.changes)
    elif mode is None:
        publish_regeneration(plan, label=f"new {descriptor}")
    show_written(console, plan, "would change" if mode else "changed")
    if plan.conflicts:
        raise click.exceptions.Exit(Exit.CONFLICT)
    if mode == "check" and plan.changes:
        raise click.exceptions.Exit(Exit.DRIFT)
