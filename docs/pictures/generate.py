"""Draws the pictures of the pages from the code's own numbers: ladders, and the known protocol generations.

    python docs/pictures/generate.py [--check]

`--check` exits 1 if a picture is not what the code says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from scaffold.measure.pictures import chart
from scaffold.protocol.generations import GENERATIONS
from scaffold.runtime.budgets import fitting_budget, octave_ladder, powers_of_two

HERE = Path(__file__).parent
INK, PALE, BLUE, ORANGE, GREEN = "#24292f", "#d0d7de", "#0969da", "#bc4c00", "#1a7f37"
FONT = "font-family='ui-sans-serif,system-ui,sans-serif'"


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    return {
        "waste.svg": waste(),
        "capture.svg": capture(),
        "generations.svg": generations(),
        "terminal.svg": terminal(),
    }


# -- a terminal --------------------------------------------------------------------------------------------------------

#: Added lines of the patch that the picture shows.
SHOWN = 10


def terminal(release: str = "0.22.0") -> str:
    """What `new internvl --diff` prints: lines that the port adds (no line of vLLM's own), and what was proven."""
    from scaffold.cli.differences import unified_difference
    from scaffold.protocol import resolve_target
    from scaffold.workflow import load_port, prepare_port

    port = prepare_port(load_port("internvl"), resolve_target(release).tree)
    model = port.changed[0]
    added = [line for line in unified_difference(model) if line.startswith("+") and not line.startswith("+++")]
    start = next(i for i, line in enumerate(added) if "def get_encoder_cudagraph_config" in line)
    lines = [
        (f"$ vitcg-scaffold new internvl --vllm {release} --diff", "#e6edf3"),
        (f"--- a/{model.path}", "#8b949e"),
        (f"+++ b/{model.path}", "#8b949e"),
        *((line, "#7ee787") for line in added[start : start + SHOWN]),
        (f"   ... {len(added) - SHOWN} more lines, and {len(port.changed) - 1} more files", "#8b949e"),
        *((f"would change  {file.path}  ({file.reason})", "#e6edf3") for file in port.plan.files),
        (
            f"{port.plan.port.name}: protocol {port.plan.profile.generation.name}, {len(port.changed)} of "
            f"{len(port.plan.files)} files would change, all static proofs passed",
            "#79c0ff",
        ),
    ]
    height = 40 + 17 * len(lines)
    width = 32 + round(7.53 * max(len(line) for line, _ in lines))  # what a monospace font of 12.5 needs at most
    parts = [
        *(f"<circle cx='{20 + 18 * i}' cy='16' r='5' fill='{colour}'/>" for i, colour in enumerate(DOTS)),
        *(
            f"<text x='16' y='{44 + 17 * i}' xml:space='preserve' font-family='monospace' font-size='12.5' "
            f"fill='{colour}'>{escape(line)}</text>"
            for i, (line, colour) in enumerate(lines)
        ),
    ]
    return svg(width, height, parts, background="#0d1117")


DOTS = ("#ff5f56", "#ffbd2e", "#27c93f")


# -- waste of padding --------------------------------------------------------------------------------------------------


def waste() -> str:
    """Share of a replay that is padding, over the size of a batch: vLLM's powers of two, and the default ladder."""
    low, high = 64, 4096
    sizes = [round(low * (high / low) ** (i / 600)) for i in range(601)]
    ladders = {"powers of two": powers_of_two(low, high), "32 steps for each doubling": octave_ladder(low, high)}

    def draw(figure: Any, axes: Any) -> None:
        for (name, ladder), colour in zip(ladders.items(), (ORANGE, BLUE), strict=True):
            axes.plot(sizes, [100 * share(ladder, size) for size in sizes], color=colour, linewidth=1, label=name)
        axes.set(xlabel="tokens of a batch", ylabel="padding, % of the budget", xscale="log", ylim=(0, 50))
        octaves = powers_of_two(low, high)
        axes.set_xticks(octaves, map(str, octaves))
        axes.set_xticks((), minor=True)
        axes.set_xlim(low, high)
        axes.grid()
        figure.legend(loc="outside upper left", ncols=2)

    return chart(3.4, draw)


def share(ladder: Sequence[int], tokens: int) -> float:
    budget = fitting_budget(ladder, tokens)
    assert budget is not None
    return 1 - tokens / budget


# -- what runs where ---------------------------------------------------------------------------------------------------


def capture() -> str:
    """Which part of an encoder call runs on the host before each replay, and which is inside the graph."""
    parts = [text(20, 26, "One encoder call", size=15, weight=600)]
    parts += box(20, 50, 170, 166, "inputs", ["pixels", "grid_thw", "(sizes of the items)"], PALE)
    parts += box(
        240, 50, 220, 74, "before each replay", ["metadata from sizes:", "offsets, positions, permutations"], ORANGE
    )
    parts += box(
        240, 142, 220, 74, "buffers of fixed address", ["copy in, pad by kind", "(rows, offsets, lengths)"], GREEN
    )
    parts += box(
        510, 50, 230, 166, "inside the graph", ["patch embedding", "blocks with attention", "merger / projector"], BLUE
    )
    parts += [arrow(190, 87, 236, 87), arrow(350, 124, 350, 138), arrow(190, 179, 236, 179), arrow(460, 179, 506, 179)]
    parts += box(
        20,
        246,
        720,
        62,
        "hazards: what must not be inside",
        ["a value read back from the device, a shape that depends on data, a copy from the host, a write to state"],
        PALE,
    )
    return svg(760, 320, parts)


def box(x: float, y: float, width: float, height: float, title: str, lines: Iterable[str], colour: str) -> list[str]:
    parts = [
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='none' stroke='{colour}' "
        "stroke-width='2'/>",
        text(x + 12, y + 22, title, weight=600),
    ]
    return parts + [text(x + 12, y + 42 + 18 * i, line) for i, line in enumerate(lines)]


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{INK}' stroke-width='1.5' marker-end='url(#head)'/>"


# -- generations -------------------------------------------------------------------------------------------------------


def generations() -> str:
    """The generations that the tool knows, and what each one changed in the protocol's methods."""
    parts = [text(20, 26, "Generations of the protocol, and what each one changed", size=15, weight=600)]
    before: dict[str, object] = {}
    y = 46
    for generation in GENERATIONS:
        methods = {method.name: method.parameters for method in generation.shape.methods}
        changes = {
            "new": sorted(methods.keys() - before.keys()),
            "gone": sorted(before.keys() - methods.keys()),
            "other parameters": sorted(
                name for name in methods.keys() & before.keys() if methods[name] != before[name]
            ),
        }
        lines = [f"{len(methods)} methods" + ("" if not before or any(changes.values()) else "; other containers")]
        for label, names in changes.items():
            if before and names:
                lines += wrap(", ".join(map(brief, names)), 92, initial_indent=f"{label}: ", subsequent_indent="    ")
        parts += [
            f"<rect x='20' y='{y}' width='120' height='46' rx='6' fill='none' stroke='{BLUE}' stroke-width='2'/>",
            text(80, y + 20, generation.name, anchor="middle", weight=600),
            text(
                80,
                y + 37,
                " to ".join(dict.fromkeys((short(generation.first), short(generation.last)))),
                anchor="middle",
                size=11,
            ),
        ]
        parts += [text(160, y + 14 + 15 * i, line, size=11) for i, line in enumerate(lines)]
        y += max(62, 24 + 15 * len(lines))
        before = dict(methods)
    return svg(760, y, parts)


def brief(method: str) -> str:
    """A method's name without what all of them have in common."""
    return method.removeprefix("get_").replace("encoder_cudagraph_", "")


def short(release: str) -> str:
    return release.rpartition(".")[0]


# -- SVG ---------------------------------------------------------------------------------------------------------------


def text(
    x: float, y: float, content: str, *, size: int = 12, colour: str = INK, anchor: str = "start", weight: int = 400
) -> str:
    return (
        f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{escape(content)}</text>"
    )


def svg(width: int, height: int, parts: Iterable[str], background: str = "#ffffff") -> str:
    """With a background of its own, a picture is legible on a light page and on a dark one."""
    head = (
        "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0,0 L8,4 L0,8 z' fill='{INK}'/></marker></defs>"
    )
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
            f"width='{width}' height='{height}'>",
            f"<rect width='{width}' height='{height}' rx='8' fill='{background}'/>",
            head,
            *parts,
            "</svg>",
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    stale = []
    for name, content in pictures().items():
        path = HERE / name
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(content, encoding="utf-8")
    for name in stale:
        print(f"{'outdated' if '--check' in arguments else 'written'}: docs/pictures/{name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
