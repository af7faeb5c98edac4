"""docs/measured/harm.md: each situation of a server in each release, without and with the plugin."""

from __future__ import annotations

from collections import Counter

from measured import Page, load, table, text_page


def pages() -> list[Page]:
    releases = load("harm")["releases"]
    dates = sorted({found["date"] for found in releases.values()})
    return [text_page("harm", ("harm",), {"situations": situations(), "first": dates[0], "last": dates[-1]})]


def situations() -> str:
    """A line for each situation, a column for each release."""
    releases = load("harm")["releases"]
    names = dict.fromkeys(name for found in releases.values() for name in found["situations"])
    rows = []
    for name in names:
        cells = [found["situations"].get(name) for found in releases.values()]
        rows.append([name, *(in_words(cell) for cell in cells)])
    return table(["situation", *(release.removesuffix(".0") for release in releases)], rows)


def in_words(verdicts: dict[str, str] | None) -> str:
    """`31 served` of the verdicts by model, or nothing where the release has no such situation."""
    counts = Counter((verdicts or {}).values())
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "-"
