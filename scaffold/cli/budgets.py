"""`vitcg-scaffold budgets`: from a recorded trace of batch sizes to the ladder of token budgets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffold.cli.console import Console
from scaffold.cli.options import examples
from scaffold.cli.output import write_output

if TYPE_CHECKING:
    from scaffold.diagnostics import Diagnostic
    from scaffold.runtime.trace import CurvePoint, Trace, TraceError

#: Graphs that the table goes up to. A graph takes about 3.5 MiB and 20 to 40 ms of start-up on an H200.
MOST = 64
#: Rows of the table; the curve has every number of graphs.
_SHOWN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_CODES = {"json": "VCG801", "form": "VCG802", "version": "VCG803", "size": "VCG804"}


@click.command("budgets", epilog=examples("budgets --trace sizes.json", "budgets --trace sizes.json --plot waste.svg"))
@click.option(
    "--trace", "traces", type=click.Path(path_type=Path), multiple=True, required=True,
    help="Read a trace that a server recorded (repeatable; several are added up).",
)  # fmt: skip
@click.option("--graphs", type=click.IntRange(min=1), help="Allow at most so many graphs [as many as pay, at most 64].")
@click.option(
    "--keep", type=click.IntRange(min=1), multiple=True, metavar="TOKENS",
    help="Keep this budget in every ladder (repeatable). The manager keeps the model's smallest and largest one.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the ladders and the curves as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write waste against the number of graphs as an SVG.")
@click.pass_obj
def command(
    console: Console, traces: tuple[Path, ...], graphs: int | None, keep: tuple[int, ...], as_json: bool,
    plot: Path | None,
) -> None:  # fmt: skip
    """Fit the ladder of token budgets to recorded traffic: the best ladder of each path, and what more graphs buy.

    A budget is the number of tokens that a graph was captured for. A batch runs on the smallest one that holds it. The
    graph also computes the tokens that the batch does not fill; waste is their share of all computed tokens.
    """
    from scaffold.runtime.trace import knee, waste_curve

    trace = _read(traces)
    curves = {}
    chosen = {}
    for path, sizes in sorted(trace.paths.items()):
        seen = {size for size, count in sizes.items() if count}
        if not seen:
            continue
        distinct = len(seen | set(keep))
        if graphs is not None and graphs < (needed := len({*keep, max(seen)})):
            raise click.BadParameter(f"{needed} budgets are to be kept", param_hint="--graphs")
        most = min(graphs or max(MOST, len(keep) + 1), distinct)
        curves[path] = waste_curve(sizes, range(1, most + 1), always=keep)
        chosen[path] = curves[path][-1] if graphs is not None else knee(curves[path])
    if not curves:
        from scaffold.diagnostics import DiagnosticError

        names = " and ".join(map(str, traces))
        raise DiagnosticError.of("VCG805", f"there is no batch in {names}", help="record some traffic first")
    if plot is not None:
        from scaffold.measure.pictures import budget_curves

        write_output(plot, budget_curves(curves))
    if as_json:
        console.document(json.dumps(_facts(traces, trace, curves, chosen), indent=2) + "\n")
    else:
        console.block("\n".join(_table(traces, trace, curves, chosen)))
    if plot is not None:
        console.note(f"plot written to {plot}")


def _read(files: Sequence[Path]) -> Trace:
    """All traces added up. Raises DiagnosticError with what is wrong in any of them."""
    from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
    from scaffold.runtime.trace import Trace, TraceError

    merged = Trace()
    wrong: list[Diagnostic] = []
    for file in files:
        try:
            text = file.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            before, byte = error.object[: error.start].decode("utf-8"), error.object[error.start]
            span = Span.at(str(file), before, len(before))
            wrong.append(Diagnostic("VCG800", f"byte 0x{byte:02x} is not UTF-8", span, "save it as UTF-8"))
            continue
        except OSError as error:
            message = f"{file}: {error.strerror or error}"
            wrong.append(Diagnostic("VCG800", message, Span(str(file), 1, 1, 1, 1), "give a file that a server wrote"))
            continue
        try:
            merged.merge(Trace.from_json(text))
        except TraceError as error:
            wrong.append(_diagnose(error, str(file), text))
    if wrong:
        raise DiagnosticError(wrong)
    return merged


def _diagnose(error: TraceError, file: str, text: str) -> Diagnostic:
    from scaffold.diagnostics import Diagnostic, Span

    start, end = (error.at, error.at + 1) if error.at is not None else find_key(text, error.place)
    helps = {
        "version": "record again with this release, or use the one that wrote the file",
        "json": "copy the file again; the server replaces it in one step",
    }
    code = _CODES[error.kind]
    help = helps.get(error.kind, f"see `vitcg-scaffold explain {code}` for what a trace looks like")
    span = Span.at(file, text, min(start, len(text)), max(end - start, 1))
    return Diagnostic(code, str(error), span, help)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def find_key(text: str, place: Sequence[str]) -> tuple[int, int]:
    """The offsets of the last key with this way of keys from the top of a JSON text; (0, 1) for the top itself."""
    found = (0, 1)
    if not place:  # also of a text that nobody has read to its end
        return found
    way: list[str | None] = []
    key = (0, 0)
    expects_key = False
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in "{[":
            way.append(None)
            expects_key = word == "{"
        elif word in "}]":
            way.pop()
            expects_key = False
        elif word == ",":
            expects_key = True
        elif word == ":":
            expects_key = False
            if way == list(place):
                found = key
        elif expects_key and word[0] == '"':
            way[-1], key = json.loads(word), token.span()
    return found


def _others(sizes: dict[int, int]) -> dict[str, tuple[int, float]]:
    """The two ladders that need no trace: how many of their budgets this traffic uses, and their waste."""
    from scaffold.runtime.budgets import fitting_budget, octave_ladder, powers_of_two, waste

    low, high = min(sizes), max(sizes)
    start = 1 << (low.bit_length() - 1)
    ladders = {
        "default": octave_ladder(low, high),
        "powers of two": powers_of_two(start, 1 << (high - 1).bit_length()),
    }
    return {
        name: (len({fitting_budget(ladder, size) for size in sizes}), waste(sizes, ladder))
        for name, ladder in ladders.items()
    }


def _seen(trace: Trace, path: str) -> dict[int, int]:
    return {size: count for size, count in trace.sizes(path).items() if count}


def _facts(
    files: Sequence[Path], trace: Trace, curves: dict[str, list[CurvePoint]], chosen: dict[str, CurvePoint]
) -> dict[str, Any]:
    paths = {}
    for path, curve in curves.items():
        sizes = _seen(trace, path)
        paths[path] = {
            "batches": sum(sizes.values()),
            "sizes": len(sizes),
            "graphs": len(chosen[path].ladder),
            "waste": chosen[path].waste,
            "ladder": list(chosen[path].ladder),
            "curve": [{"graphs": point.graphs, "waste": point.waste} for point in curve],
            "without_trace": {n: {"graphs": g, "waste": w} for n, (g, w) in _others(sizes).items()},
        }
    return {"version": 1, "traces": [str(file) for file in files], "paths": paths}


def _table(
    files: Sequence[Path], trace: Trace, curves: dict[str, list[CurvePoint]], chosen: dict[str, CurvePoint]
) -> list[str]:
    out: list[str] = []
    for path, curve in curves.items():
        sizes, pick = _seen(trace, path), chosen[path]
        out.append(
            f"Path {path}: {sum(sizes.values())} batches of {len(sizes)} sizes, {min(sizes)} to {max(sizes)} tokens"
        )
        out.append("\n  graphs    waste")
        for point in curve:
            if point.graphs in _SHOWN or point in (pick, curve[-1]):
                mark = "  <- this ladder" if point is pick else ""
                out.append(f"  {point.graphs:>6}  {point.waste:>7.2%}{mark}")
        out.append("")
        for name, (used, share) in _others(sizes).items():
            out.append(f"  without a trace, {name}: {share:.2%} with {used} graphs in use")
        out.append("\n  " + " ".join(map(str, pick.ladder)) + "\n")
    most = max(len(point.ladder) for point in chosen.values())
    names: Any = str(files[0]) if len(files) == 1 else [str(file) for file in files]
    setting = json.dumps({"encoder_graphs": {"trace": names, "graphs": most}})
    out.append("Use it in a server with our manager, which reads the trace itself:")
    on = json.dumps({"cudagraph_mm_encoder": True})
    out.append(f"  vllm serve MODEL --compilation-config {shlex.quote(on)} --additional-config {shlex.quote(setting)}")
    if len(curves) == 1:
        (pick,) = chosen.values()
        own = json.dumps({"cudagraph_mm_encoder": True, "encoder_cudagraph_token_budgets": list(pick.ladder)})
        out.append("Or in any vLLM, by its own option:")
        out.append(f"  vllm serve MODEL --compilation-config {shlex.quote(own)}")
    return out
