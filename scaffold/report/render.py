"""The public function of the package: one list of diagnostics, four formats."""

from __future__ import annotations

from collections.abc import Iterable

from scaffold.diagnostics import Diagnostic
from scaffold.report.listing import Sources, in_repository

#: Names of the formats, the default first.
FORMATS = ("text", "json", "github", "sarif")


def render_diagnostics(
    diagnostics: Iterable[Diagnostic],
    *,
    format: str,
    color: bool = False,
    sources: Sources | None = None,
    exit_code: int | None = None,
    more: bool = False,
    folder: str = "",
) -> str:
    """All diagnostics in one format. The text ends with a newline unless it is empty.

    `color` matters for `text` only. `sources` gives the text of a file for source lines, and gets at most one call per
    file. `exit_code` is that of the process, which JSON reports, if it does not follow from the diagnostics. With
    `more`, others follow in this run, and text has no line that counts them. `folder` is where the command ran, below
    the root of the repository: GitHub finds the files of annotations and alerts from there alone. Raises `ValueError`
    for an unknown format.
    """
    listed = list(diagnostics)
    if format == "text":
        from scaffold.report.text import render_text

        return render_text(listed, color=color, sources=sources or (lambda _: None), more=more)
    if format in ("github", "sarif"):
        listed = [in_repository(diagnostic, folder) for diagnostic in listed]
    if format == "github":
        from scaffold.report.github import render_github

        return render_github(listed)
    if format == "json":
        from scaffold.report.json import render_json

        return render_json(listed, exit_code)
    if format == "sarif":
        from scaffold.report.sarif import render_sarif

        return render_sarif(listed)
    raise ValueError(f"unknown format {format!r}, expected one of {', '.join(FORMATS)}")
