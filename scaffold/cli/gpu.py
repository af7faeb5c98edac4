"""Shared by the commands that need a GPU: the measured model, what this machine lacks, JSON files as input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scaffold.cli.console import Console
from scaffold.cli.options import trust_option
from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.measure import Items
    from scaffold.measure.subject import Subject

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _sizes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The numbers of sizes: as many as the option's example has."""
    example = _EXAMPLES[str(param.name)]
    form = "x".join([r"([1-9]\d{0,4})"] * len(example.split("x")))
    found = [re.fullmatch(form, value) for value in values]
    for value, match in zip(values, found, strict=True):
        if match is None:
            raise click.BadParameter(f"{value!r} is no size such as {example}", ctx, param)
    return tuple(tuple(map(int, match.groups())) for match in found if match)


_EXAMPLES = {"images": "1280x720", "videos": "640x360x16"}


def model_options(command: _Command) -> _Command:
    """The options of a measured model: sizes of the tower and of its calls, the attention, and whose port it is."""
    for option in (
        click.option(
            "--replace", is_flag=True, help="Measure the port of DESCRIPTOR in the place of an implementation."
        ),
        click.option("--backend", default="FLASH_ATTN", show_default=True, help="Use this attention backend of vLLM."),
        click.option(
            "--tokens",
            "sizes",
            type=click.IntRange(1),
            multiple=True,
            help="Measure one square image of about so many output tokens (repeatable).",
        ),
        click.option(
            "--video",
            "videos",
            metavar="WIDTHxHEIGHTxFRAMES",
            callback=_sizes,
            multiple=True,
            help="Measure one video of so many pixels and frames (repeatable) [no call may have a video].",
        ),
        click.option(
            "--image",
            "images",
            metavar="WIDTHxHEIGHT",
            callback=_sizes,
            multiple=True,
            help="Measure one image of so many pixels (repeatable) [a usual mix].",
        ),
        click.option(
            "--config",
            "configuration",
            type=click.Path(path_type=Path),
            metavar="FILE|FOLDER",
            help="Take the sizes from this config.json, or from a checkpoint's folder: its own processor then makes "
            "the inputs [a known checkpoint's, or the defaults of the configuration's class].",
        ),
        trust_option,
    ):
        command = option(command)
    return command


@contextmanager
def measured(
    console: Console, port: Any, configuration: Path | None, trust_remote_code: bool, replace: bool
) -> Iterator[Subject]:
    """The model of a port in the installed vLLM. Raises VCG473 where it cannot be built at real sizes."""
    from scaffold.measure.installed import installed_vllm

    with installed_vllm(port, replace, console.note):
        from scaffold.measure.subject import NoSubject, Subject

        try:
            modalities = tuple(port.modalities)
            yield Subject(port.name, port.module, port.class_name, modalities, configuration, trust_remote_code)
        except NoSubject as error:
            raise DiagnosticError.of("VCG473", f"{port.name}: {error}", help=error.help) from error


def workloads(images: Items, videos: Items, sizes: Sequence[int]) -> Mapping[str, Items]:
    """One for each image and video; a usual mix of images where no option names any."""
    from scaffold.measure import WORKLOADS

    named = {"x".join(map(str, item)): [item] for item in (*images, *videos)}
    return named if named or sizes else WORKLOADS


def require_gpu(what: str, way_out: str) -> None:
    """Raises VCG470 with what is missing: torch, a GPU, or vLLM."""
    from scaffold.measure import missing

    if lacking := missing():
        help = f"run it where the model is served, or {way_out}"
        raise DiagnosticError.of("VCG470", f"{what} needs a GPU, and {lacking}", help=help)


def read_json(file: Path, code: str, wanted: str) -> Any:
    """A JSON file; raises `code` when it cannot be read as one."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise DiagnosticError.of(code, f"{file}: {reason}", help=f"give {wanted}") from error


def check_configuration(file: Path | None) -> None:
    """Raises VCG471 where the file or folder that `--config` names has no configuration."""
    if file is not None and file.is_dir():
        file = file / "config.json"
    if file is not None and not isinstance(read_json(file, "VCG471", "a model's config.json"), dict):
        raise DiagnosticError.of("VCG471", f"{file}: not a JSON object", help="give a model's config.json")
