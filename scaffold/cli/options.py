"""Options and small steps that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from scaffold.cli.console import Console
    from scaffold.protocol import Target

_Command = TypeVar("_Command", bound=Callable[..., Any])


def target_option(*, required: bool) -> Callable[[_Command], _Command]:
    """`--vllm PATH | RELEASE | installed`."""
    return click.option(
        "--vllm",
        metavar="PATH|RELEASE|installed",
        required=required,
        help="The vLLM tree: a checkout, a release such as 0.22.0 (fetched once, by name), or the installed package.",
    )


def open_target(console: Console, text: str) -> Target:
    """Resolve `--vllm`, drawing progress while a release is fetched."""
    from scaffold.protocol import resolve_target

    return resolve_target(text, progress=console.progress(f"Fetching vLLM {text}"))
