"""`vitcg-scaffold profile`: where the GPU time of a vision tower goes, and what can be had back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffold.cli.console import Console
from scaffold.cli.gpu import check_configuration, measured, model_options, read_json, require_gpu, workloads
from scaffold.cli.options import check_trusted, descriptor_argument, examples
from scaffold.cli.output import write_output
from scaffold.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from scaffold.measure.profiles import Recording


@click.command(
    "profile",
    epilog=examples(
        "profile qwen2_5_vl --image 1288x728 --tuned --markdown profile.md --svg profile.svg",
        "profile qwen2_5_vl --recording run.json",
    ),
)
@descriptor_argument()
@model_options
@click.option("--tuned", is_flag=True, help="Profile the tuned tower, too.")
@click.option("--recording", type=click.Path(path_type=Path), help="Read recordings instead of using a GPU.")
@click.option("--save", type=click.Path(path_type=Path), help="Keep the recordings in this file.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the report to this file.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write the picture to this file.")
@click.pass_obj
def command(
    console: Console,
    descriptor: str,
    configuration: Path | None,
    trust_remote_code: bool,
    images: tuple[tuple[int, ...], ...],
    videos: tuple[tuple[int, ...], ...],
    sizes: tuple[int, ...],
    backend: str,
    replace: bool,
    tuned: bool,
    recording: Path | None,
    save: Path | None,
    markdown: Path | None,
    svg: Path | None,
) -> None:
    """Profile the vision tower of DESCRIPTOR on this machine's GPU: no weights, no network.

    The installed vLLM's own classes run at real sizes with random weights, with the port of DESCRIPTOR where they have
    none. The report compares kernel time by class with a floor: the time of the operations and bytes of the matrix
    products, at rates measured in the same run. It names misaligned sizes, unfused norms, casts and copies with their
    module and their cost.
    """
    if recording is not None:
        recordings = _read(recording)
    else:
        from scaffold.workflow import load_port

        port = load_port(descriptor, report=console.report)
        check_configuration(configuration)
        check_trusted(trust_remote_code, configuration)
        require_gpu("a profile", "give --recording FILE to read an earlier run anywhere")
        asked = workloads(images or (() if sizes or videos else ((1288, 728),)), videos, sizes)
        with measured(console, port, configuration, trust_remote_code, replace) as subject:
            from scaffold.measure.runs import run_profile

            recordings = run_profile(subject, asked, sizes, tuned, backend, console.note)
    from scaffold.measure.analyse import analyse
    from scaffold.measure.report import to_markdown

    profiles = [analyse(one) for one in recordings]
    text = to_markdown(profiles)
    if save is not None:
        write_output(save, json.dumps([one.to_json() for one in recordings]) + "\n")
    if svg is not None:
        from scaffold.measure.pictures import kernel_bars

        write_output(svg, kernel_bars(profiles))
    if markdown is not None:
        write_output(markdown, text)
    else:
        console.block(text)


def _read(file: Path) -> list[Recording]:
    from scaffold.measure.profiles import Recording

    found = read_json(file, "VCG472", "a file that --save wrote")
    if not isinstance(found, list) or not found:
        why = f"{file} is no recording: it holds no list of them"
        raise DiagnosticError.of("VCG472", why, help="give a file that --save wrote")
    try:
        return [Recording.from_json(one) for one in found]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        why = f"{file} is no recording: {type(error).__name__}: {error}"
        raise DiagnosticError.of("VCG472", why, help="give a file that --save wrote") from error
