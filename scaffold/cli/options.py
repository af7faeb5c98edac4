"""Options and small steps that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from scaffold.cli.console import Console
    from scaffold.protocol import Target

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: The program's name, as a shell knows it.
PROGRAM = "vitcg-scaffold"

#: Releases that completion offers after `--vllm`; any other is taken as well.
_RELEASES = tuple(f"0.{minor}.0" for minor in range(33, 19, -1))


def target_option(*, required: bool) -> Callable[[_Command], _Command]:
    """`--vllm PATH | RELEASE | installed`."""
    return click.option(
        "--vllm",
        metavar="PATH|RELEASE|installed",
        required=required,
        shell_complete=_complete_target,
        help="Use this vLLM tree: a checkout or another folder with the package, a release such as 0.22.0 (fetched "
        "once), or the installed package.",
    )


def descriptor_argument(name: str = "descriptor", **settings: Any) -> Callable[[_Command], _Command]:
    """A descriptor's file or shipped name; completion offers both."""

    def locate(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        """Tell the console where shipped descriptors are, so that it can show their lines."""
        if not ctx.resilient_parsing:
            from scaffold.descriptor.load import shipped_path

            for reference in value if isinstance(value, tuple) else (value,):
                path = shipped_path(reference)
                if path is not None and not Path(reference).is_file():
                    ctx.obj.places[path.name] = path
        return value

    return click.argument(name, shell_complete=_complete_descriptor, callback=locate, **settings)


class _RecipePath(click.Path):
    """A Python file, or the word for the automatic recipe."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from scaffold.verify.numeric.recipes import AUTOMATIC

        return value if value == AUTOMATIC else super().convert(value, param, ctx)


def _values(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """Values by name, those of parts nested. A value that is no JSON is text."""
    import json
    from contextlib import suppress

    values: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        *parts, name = key.strip().split(".")
        if not equals or not all((*parts, name)):
            raise click.BadParameter(f"`{text}` is not KEY=VALUE", ctx, parameter)
        inner = values
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[name] = value
        with suppress(ValueError):
            inner[name] = json.loads(value)
    return values


def check_trusted(trust_remote_code: bool, given: str | Path | None) -> None:
    """Raises click.UsageError where `--trust-remote-code` has no folder whose code it could run."""
    if trust_remote_code and not (given and Path(given).is_dir()):
        raise click.UsageError("--trust-remote-code runs the code of a checkpoint: name its folder, --config FOLDER.")


def examples(*lines: str) -> str:
    """The end of a command's help: examples that click leaves on lines of their own."""
    return "\b\nExample:\n" + "\n".join(f"  {PROGRAM} {line}" for line in lines)


def open_target(console: Console, text: str, package: str | None = None) -> Target:
    """Resolve `--vllm` and `--package`, drawing progress while a release is fetched."""
    from scaffold.protocol import resolve_target, with_package

    with console.progress(f"Fetching vLLM {text}") as progress:
        target = resolve_target(text, progress=progress)
    console.places[target.tree.label.rstrip("/")] = target.tree.root
    if package is not None:
        target = with_package(target, package)
        console.places[target.tree.home_label.rstrip("/")] = target.tree.home
    return target


def target_words(vllm: str, package: str | None) -> list[str]:
    """The options that name a target, for the command that comes next."""
    return ["--vllm", vllm, *(["--package", package] if package is not None else [])]


def command_line(*words: str | Path) -> str:
    """The call of this program with these arguments, as it can be pasted into a shell."""
    from shlex import join

    return join([PROGRAM, *map(str, words)])


def _complete_target(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _completions(incomplete, ("installed", *_RELEASES), "dir")


def _complete_descriptor(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from scaffold.descriptor import shipped_names

    # Bash shows either words or paths, and fish no path before a letter: files of the folder are words there, too.
    zsh = os.environ.get("_VITCG_SCAFFOLD_COMPLETE", "").startswith("zsh")
    files = [] if zsh else sorted(path.name for path in Path().glob("[!.]*.y*ml"))
    return _completions(incomplete, [*files, *shipped_names()], "file")


def complete_model(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Architectures of the tree of `--vllm`, else of the newest release in the cache. Nothing is fetched."""
    from scaffold.diagnostics import DiagnosticError
    from scaffold.protocol.cache import cached_tree
    from scaffold.protocol.registry import multimodal_names
    from scaffold.protocol.target import as_version, resolve_target
    from scaffold.protocol.tree import SourceTree

    given = ctx.params.get("vllm")
    for text in (given,) if given else _RELEASES:
        version = as_version(text)
        root = cached_tree(version) if version else None
        if version and root is None:
            continue
        try:
            tree = SourceTree(root, text, version) if root is not None else resolve_target(text).tree
            return _completions(incomplete, multimodal_names(tree), "file")
        except DiagnosticError:
            break
    return _completions(incomplete, (), "file")


def _completions(incomplete: str, words: Iterable[str], path: str) -> list[CompletionItem]:
    """Words and paths. Bash forgets all words before the paths, so they are first; zsh drops an empty value."""
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(incomplete or "./", type=path),
        *(CompletionItem(one) for one in words if one.startswith(incomplete)),
    ]


#: Options that several commands have.
package_option = click.option(
    "--package",
    metavar="FOLDER|NAME",
    shell_complete=lambda ctx, parameter, incomplete: _completions(incomplete, (), "dir"),
    help="Port a model of this package, a folder or an installed one, that uses the vLLM of --vllm.",
)
recipe_option = click.option(
    "--recipe",
    metavar="FILE.py|automatic",
    type=_RecipePath(exists=True, dir_okay=False, resolve_path=True),
    help="Build the tiny model by this Python file, or automatically [the shipped recipe, else automatically].",
)
config_option = click.option(
    "--config",
    metavar="FILE|FOLDER",
    type=click.Path(exists=True, resolve_path=True),
    help="Build the tiny model by this config.json, or by a checkpoint's folder: its own processor then makes the "
    "inputs.",
)
set_option = click.option(
    "--set",
    "values",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_values,
    help="Give the tiny model's configuration this value, such as text_config.head_dim=32 (repeatable).",
)
trust_option = click.option(
    "--trust-remote-code", is_flag=True, help="Run the Python code in the folder that --config names."
)
