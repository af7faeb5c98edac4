"""Profiles as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from scaffold.measure.profiles import Profile

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
