"""Profiles as Markdown and as a picture (SVG, no plotting library)."""

from __future__ import annotations

import html
from collections.abc import Sequence

from scaffold.measure.model import KernelClass, Profile

_COLOURS = {
    KernelClass.PRODUCT: "#0868ac",
    KernelClass.ATTENTION: "#43a2ca",
    KernelClass.NORM: "#d95f0e",
    KernelClass.ACTIVATION: "#fe9929",
    KernelClass.ROTARY: "#8c6bb1",
    KernelClass.CAST: "#c51b8a",
    KernelClass.COPY: "#e34a33",
    KernelClass.ELEMENTWISE: "#a6761d",
    KernelClass.OTHER: "#888888",
}
#: Findings that one table shows.
_MOST = 12


def title_of(profile: Profile) -> str:
    """Model, size, and whether the tower was tuned."""
    recording = profile.recording
    workload = f", {recording.workload}" if recording.workload else ""
    return f"{recording.model}, {recording.tokens} tokens{workload}"


def to_markdown(profiles: Sequence[Profile]) -> str:
    """One section per profile: the sum, the classes, the findings."""
    out = ["# Where the vision tower's time goes", ""]
    for profile in profiles:
        out += _section(profile)
    return "\n".join(out).rstrip() + "\n"


def _section(profile: Profile) -> list[str]:
    recording, ceilings = profile.recording, profile.recording.ceilings
    floor, spent = profile.floor_ms, recording.graph_ms or profile.kernel_ms
    versions = ", ".join(f"{name} {value}" for name, value in recording.versions.items())
    graph = f"as a CUDA graph {recording.graph_ms:.2f} ms, " if recording.graph_ms is not None else ""
    out = [
        f"## {title_of(profile)}",
        "",
        f"{versions}. Ceilings of this machine in this run: matrix products {ceilings.tflops:.0f} TFLOP/s (bf16), "
        f"copies {ceilings.tbytes:.2f} TB/s.",
        "",
        f"Kernels {profile.kernel_ms:.2f} ms, {graph}floor {floor:.2f} ms: {spent / floor:.2f} times the floor."
        if floor
        else f"Kernels {profile.kernel_ms:.2f} ms.",
        "",
        "| class | ms | share | launches | floor, ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    for total in profile.totals:
        least = "" if total.floor_ms is None else f"{total.floor_ms:.2f}"
        share = total.ms / profile.kernel_ms
        out.append(f"| {total.kind.value} | {total.ms:.2f} | {share:.0%} | {total.launches} | {least} |")
    out += ["", "| what | module | ms | expected gain, ms | remedy | detail |", "| --- | --- | --- | --- | --- | --- |"]
    for finding in profile.findings[:_MOST]:
        detail = finding.detail if len(finding.detail) <= 100 else finding.detail[:97] + "..."
        cells = (finding.what, f"`{finding.module}`", f"{finding.ms:.2f}", f"{finding.gain_ms:.2f}", finding.remedy)
        out.append("| " + " | ".join((*cells, detail.replace("|", "/"))) + " |")
    if len(profile.findings) > _MOST:
        rest = profile.findings[_MOST:]
        out.append(f"| {len(rest)} smaller ones | | {sum(f.ms for f in rest):.2f} | "
                   f"{sum(f.gain_ms for f in rest):.2f} | | |")  # fmt: skip
    if not profile.findings:
        out[-2:] = ["Nothing to gain was found."]
    return [*out, ""]


def to_svg(profiles: Sequence[Profile], width: int = 760) -> str:
    """One bar per profile, cut into classes, with a mark at the floor."""
    left, right, bar, step, top = 220, 70, 26, 52, 20
    longest = max((p.kernel_ms for p in profiles), default=1.0) or 1.0
    kinds = [kind for kind in KernelClass if any(t.kind is kind for p in profiles for t in p.totals)]
    legend_rows = -(-len(kinds) // 5)
    height = top + step * len(profiles) + 30 + 18 * legend_rows

    def x(ms: float) -> float:
        return left + (width - left - right) * ms / longest

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for place, profile in enumerate(profiles):
        y = top + step * place
        out.append(
            f'<text x="{left - 8}" y="{y + bar / 2 + 4:.0f}" text-anchor="end">{html.escape(title_of(profile))}</text>'
        )
        at = 0.0
        for total in sorted(profile.totals, key=lambda t: kinds.index(t.kind)):
            label = f"{total.kind.value}: {total.ms:.2f} ms"
            out.append(
                f'<rect x="{x(at):.1f}" y="{y}" width="{max(x(at + total.ms) - x(at), 0.5):.1f}" height="{bar}" '
                f'fill="{_COLOURS[total.kind]}"><title>{label}</title></rect>'
            )
            at += total.ms
        out.append(f'<text x="{x(at) + 6:.1f}" y="{y + bar / 2 + 4:.0f}">{at:.2f} ms</text>')
        if profile.floor_ms:
            mark = x(profile.floor_ms)
            out.append(
                f'<line x1="{mark:.1f}" x2="{mark:.1f}" y1="{y - 4}" y2="{y + bar + 4}" stroke="#000" '
                'stroke-dasharray="3 2"/>'
                f'<text x="{mark:.1f}" y="{y + bar + 14}" text-anchor="middle">floor {profile.floor_ms:.2f}</text>'
            )
    for place, kind in enumerate(kinds):
        row, column = divmod(place, 5)
        y, at_x = top + step * len(profiles) + 14 + 18 * row, 16 + column * (width - 32) / 5
        out.append(f'<rect x="{at_x:.0f}" y="{y}" width="10" height="10" fill="{_COLOURS[kind]}"/>')
        out.append(f'<text x="{at_x + 14:.0f}" y="{y + 9}">{kind.value}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
