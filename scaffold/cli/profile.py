"""`vitcg-scaffold profile`: where the GPU time of a vision tower goes, and what can be had back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffold.cli.console import Console
from scaffold.cli.gpu import measured, model_options, open_port, read_json, show_result, workloads
from scaffold.cli.options import descriptor_argument, examples
from scaffold.cli.output import write_output

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
    from scaffold.measure.analyse import analyse
    from scaffold.measure.pictures import kernel_bars
    from scaffold.measure.report import to_markdown

    if recording is not None:
        recordings = read_json(recording, "VCG472", "a file that --save wrote", _parse)
    else:
        way_out = "give --recording FILE to read an earlier run anywhere"
        port = open_port(console, descriptor, configuration, trust_remote_code, "a profile", way_out)
        asked = workloads(images or (() if sizes or videos else ((1288, 728),)), videos, sizes)
        with measured(console, port, configuration, trust_remote_code, replace) as subject:
            from scaffold.measure.runs import run_profile

            recordings = run_profile(subject, asked, sizes, tuned, backend, console.note)
    profiles = [analyse(one) for one in recordings]
    if save is not None:
        write_output(save, json.dumps([one.to_json() for one in recordings]) + "\n")
    show_result(console, to_markdown(profiles), markdown, svg, lambda: kernel_bars(profiles))


def _parse(found: Any) -> list[Recording]:
    from scaffold.measure.profiles import Recording

    if not isinstance(found, list) or not found:
        raise ValueError("it holds no list of recordings")
    return [Recording.from_json(one) for one in found]
