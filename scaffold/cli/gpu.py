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
from scaffold.cli.options import check_trusted, trust_option
from scaffold.cli.output import write_output
from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.measure import Items
    from scaffold.measure.subject import Subject

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Parsed = TypeVar("_Parsed")


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
    console: Console, port: AnyPort, configuration: Path | None, trust_remote_code: bool, replace: bool
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


def open_port(
    console: Console, descriptor: str, configuration: Path | None, trust_remote_code: bool, what: str, way_out: str
) -> AnyPort:
    """The port to measure. Raises VCG471 for what is no configuration, and VCG470 with what this machine lacks."""
    from scaffold.measure import missing
    from scaffold.workflow import load_port

    port = load_port(descriptor, report=console.report)
    if configuration is not None:
        file = configuration / "config.json" if configuration.is_dir() else configuration
        read_json(file, "VCG471", "a model's config.json", _require_object)
    check_trusted(trust_remote_code, configuration)
    if lacking := missing():
        help = f"run it where the model is served, or {way_out}"
        raise DiagnosticError.of("VCG470", f"{what} needs a GPU, and {lacking}", help=help)
    return port


def _require_object(found: Any) -> None:
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")


def read_json(file: Path, code: str, wanted: str, parse: Callable[[Any], _Parsed]) -> _Parsed:
    """The value that `parse` makes of a JSON file. Raises `code` where that fails, and where the file is no JSON."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise DiagnosticError.of(code, f"{file}: {reason}", help=f"give {wanted}") from error
    try:
        return parse(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise DiagnosticError.of(code, f"{file} is not {wanted}: {reason}", help=f"give {wanted}") from error


def show_result(
    console: Console, text: str, markdown: Path | None, svg: Path | None, picture: Callable[[], str]
) -> None:
    """The picture in its file, if the user names one, and the text in its own or for the user."""
    if svg is not None:
        write_output(svg, picture())
    if markdown is not None:
        write_output(markdown, text)
    else:
        console.block(text.rstrip())
