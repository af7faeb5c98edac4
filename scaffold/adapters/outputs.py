"""Descriptors in, the files of `generated/` out: pure, apart from one run of ruff over text.

For each descriptor an adapter a generation; for all of them the packages that hold the adapters, a test in the CPU lab
and a page that lists them. A generation that cannot be spoken without a tree is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from scaffold.adapters.header import add_header, spec_hash
from scaffold.adapters.layout import format_sources
from scaffold.adapters.towers import no_adapter, unfit_releases
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.render import Code, render_template

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import Generation, TableAnchor

PACKAGE = "vitcg_adapters"
_COLUMNS = ("Architecture", "Models", "CG for Image", "CG for Video", "Multi-Path Graph")
_ATTRIBUTES = "* text eol=lf linguist-generated\n"


@dataclass(frozen=True, eq=False)
class Source:
    """A descriptor as the manifest names it (a shipped name, or a path relative to the folder), and its port."""

    reference: str
    port: AnyPort

    @property
    def name(self) -> str:
        """The module's name, and the stem of every file that is made of it."""
        return self.port.name

    @property
    def file(self) -> str:
        """The name of the descriptor's file, as headers state it."""
        return PurePosixPath(self.port.file).name

    @property
    def is_shipped(self) -> bool:
        return "/" not in self.reference and not self.reference.endswith((".yaml", ".yml"))

    @property
    def is_sound(self) -> bool:
        """Whether it is of sound alone: a model may have such an adapter beside that of its images and videos."""
        return set(self.port.modalities) == {"audio"}

    @property
    def command(self) -> str:
        return f"vitcg-scaffold new {self.reference if self.is_shipped else '--all'}"

    @cached_property
    def spec_hash(self) -> str:
        """The hash of all that adapters read: not of the form that a port has in a tree."""
        return spec_hash(self.port.replace(explicit=None))


@dataclass(frozen=True)
class GeneratedFile:
    """One file of the folder. `source` and `generation` are None for a file that serves several descriptors."""

    path: str
    text: str
    source: Source | None = None
    generation: Generation | None = None

    @property
    def descriptor(self) -> str | None:
        return self.source.reference if self.source else None


@dataclass(frozen=True)
class Refused:
    """A generation that a descriptor has no adapter for."""

    source: Source
    generation: Generation
    reason: str


@dataclass(frozen=True)
class Outputs:
    files: tuple[GeneratedFile, ...]
    refused: tuple[Refused, ...]


def is_older(path: str) -> bool:
    """Whether a file of the folder belongs to another generation than the newest."""
    from scaffold.protocol import SERVED

    parts = path.split("/")
    return parts[0] == PACKAGE and len(parts) > 2 and parts[1] != SERVED[-1].name


def render_outputs(sources: Sequence[Source], *, built: bool = False) -> Outputs:
    """All files of `sources`, sorted by path; with `built`, git ignores those of older generations.

    Raises `DiagnosticError`: VCG540 (two descriptors of one name or architecture), VCG541 (a name that is no module
    name), VCG6xx (a proof refused our own result).
    """
    from scaffold.protocol import SERVED

    _check_names(sources)
    drafts: list[GeneratedFile] = []
    refused: list[Refused] = []
    for source in sorted(sources, key=lambda source: source.name):
        for generation in SERVED:
            reason = no_adapter(source.port, generation)
            if reason is not None:
                refused.append(Refused(source, generation, reason))
            else:
                drafts += _adapter(source, generation)
    drafts = list(dict.fromkeys(drafts))
    assert len({draft.path for draft in drafts}) == len(drafts), "a mixin has two texts"
    generations = [one for one in SERVED if any(draft.generation is one for draft in drafts)]
    spoken: dict[Source, list[Generation]] = {}
    for draft in drafts:
        if draft.source is not None and draft.generation is not None:
            spoken.setdefault(draft.source, []).append(draft.generation)
    _check_architectures(spoken)
    if spoken and built:
        folders = sorted({draft.path.rpartition("/")[0] for draft in drafts if is_older(draft.path)})
        drafts.append(GeneratedFile(".gitignore", "".join(f"/{folder}/\n" for folder in folders)))
    if spoken:
        drafts += _companions(spoken, generations, refused)
    texts = format_sources({draft.path: draft.text for draft in drafts})
    files = [replace(draft, text=_with_header(draft, texts[draft.path])) for draft in drafts]
    return Outputs(tuple(sorted(files, key=lambda output: output.path)), tuple(refused))


def _adapter(source: Source, generation: Generation) -> list[GeneratedFile]:
    """The adapter, and the mixin that it shares with others of its generation."""
    from scaffold.adapters.source import render_adapter
    from scaffold.protocol import known_profile
    from scaffold.verify.conformance import prove_conformance

    profile, path = known_profile(generation), f"{PACKAGE}/{generation.name}/{source.name}.py"
    text, mixin = render_adapter(source.port, profile)
    found = prove_conformance(text, source.port.class_name, profile, path, mixin.source if mixin else None)
    if found:
        raise DiagnosticError(found)
    shared = [GeneratedFile(f"{PACKAGE}/{generation.name}/{mixin.module}.py", mixin.source)] if mixin else []
    return [GeneratedFile(path, text, source, generation), *shared]


def _companions(
    spoken: Mapping[Source, Sequence[Generation]], generations: Sequence[Generation], refused: Sequence[Refused]
) -> list[GeneratedFile]:
    """The files that all adapters share: their packages, the test and the page that lists them."""
    from scaffold.verify.numeric import RECIPES

    releases = {one.name: (one.first, one.last) for one in generations}
    tested = {source.name: [one.name for one in known] for source, known in spoken.items() if source.name in RECIPES}
    unfit = [
        (source.name, release)
        for source, known in spoken.items()
        for one in known
        for release in unfit_releases(source.port, one)
        if source.name in tested and release in releases[one.name]
    ]
    drafts = [
        GeneratedFile(".gitattributes", _ATTRIBUTES),
        GeneratedFile(f"{PACKAGE}/__init__.py", _package(spoken, releases)),
        GeneratedFile("docs/adapters.md", _docs(spoken, generations, refused)),
    ]
    for one in generations:
        text = render_template("adapter/generation.py.jinja", first=Code(one.first), last=Code(one.last))
        drafts.append(GeneratedFile(f"{PACKAGE}/{one.name}/__init__.py", text))
    if tested:
        several_paths = [source.name for source in spoken if source.name in tested and source.port.layout == "paths"]
        text = render_template(
            "adapter/test.py.jinja", releases=releases, models=tested, several_paths=several_paths, unfit=unfit
        )
        drafts.append(GeneratedFile("tests/test_every_adapter.py", text))
    return drafts


def _package(spoken: Mapping[Source, Sequence[Generation]], releases: Mapping[str, tuple[str, str]]) -> str:
    def table(*, sound: bool) -> dict[str, dict[str, str]]:
        return {
            name: {
                source.port.architecture: source.name
                for source, known in spoken.items()
                if source.is_sound is sound and name in {g.name for g in known}
            }
            for name in releases
        }

    return render_template(
        "adapter/package.py.jinja", adapters=table(sound=False), sound=table(sound=True), releases=releases
    )


def _docs(
    spoken: Mapping[Source, Sequence[Generation]], generations: Sequence[Generation], refused: Sequence[Refused]
) -> str:
    from scaffold.plan.entries import docs_row
    from scaffold.protocol import TableAnchor

    anchor = TableAnchor("", 0, _COLUMNS, (), yes="✅︎", no="❌")
    columns = (*_COLUMNS, "Module", *(f"`{one.name}`" for one in generations))
    rows = [columns, ("---",) * len(columns)]
    for source, known in spoken.items():
        marks = (_mark(source.port, one, anchor) if one in known else anchor.no for one in generations)
        rows.append((*docs_row(source.port, anchor), f"`{source.name}`", *marks))
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in refused:
        reasons.setdefault((entry.source.name, entry.reason), []).append(f"`{entry.generation.name}`")
    return render_template(
        "docs/adapters.md.jinja",
        table=[Code(f"| {' | '.join(row)} |") for row in rows],
        releases=[Code(f"| `{one.name}` | {one.first} to {one.last} |") for one in generations],
        refused=[Code(f"{name}, {', '.join(names)}: {reason}") for (name, reason), names in reasons.items()],
    )


def _mark(port: AnyPort, generation: Generation, anchor: TableAnchor) -> str:
    """The mark of an adapter, with what alone has graphs and the releases that it has none for."""
    from scaffold.plan.methods import without_paths
    from scaffold.protocol import known_profile

    unfit = unfit_releases(port, generation)
    expressible = without_paths(port, known_profile(generation).dialect)
    served = list(expressible.modalities) if len(expressible.modalities) < len(port.modalities) else []
    if expressible.whole:
        served = ["whole images"]
    limits = [f"{', '.join(served)} only"] if served else []
    limits += [f"not {', '.join(unfit)}"] if unfit else []
    return f"{anchor.yes} ({'; '.join(limits)})" if limits else anchor.yes


def _with_header(draft: GeneratedFile, text: str) -> str:
    source = draft.source
    return add_header(
        draft.path,
        text,
        source=source.file if source else "the list of adapters",
        command=source.command if source else "vitcg-scaffold new --all",
        spec=source.spec_hash if source else spec_hash(text),
    )


def _check_names(sources: Sequence[Source]) -> None:
    import keyword

    found = []
    seen: dict[str, Source] = {}
    for source in sources:
        if not source.name.isidentifier() or not source.name.isascii() or keyword.iskeyword(source.name):
            found.append(
                Diagnostic(
                    "VCG541",
                    f"`{source.name}` cannot be the name of a Python module",
                    source.port.span(""),
                    "rename the descriptor's file: letters, digits and underscores, as in `my_model.yaml`",
                )
            )
        other = seen.setdefault(source.name, source)
        if other is not source:
            found.append(
                Diagnostic(
                    "VCG540",
                    f"`{other.reference}` and `{source.reference}` would both write `{source.name}.py`",
                    source.port.span(""),
                    "rename one of the two descriptor files, or generate into another folder with --into",
                )
            )
    if found:
        raise DiagnosticError(found)


def _check_architectures(spoken: Mapping[Source, Sequence[Generation]]) -> None:
    """Raise VCG540 where a generation has two adapters of one architecture: vLLM has one class for it.

    A manager of ours serves an adapter of its sound beside the other one.
    """
    seen: dict[tuple[str, str, bool], Source] = {}
    found: dict[str, Diagnostic] = {}
    for source, generations in spoken.items():
        for generation in generations:
            other = seen.setdefault((generation.name, source.port.architecture, source.is_sound), source)
            if other is not source:
                found[source.name] = Diagnostic(
                    "VCG540",
                    f"`{other.reference}` and `{source.reference}` both port `{source.port.architecture}`",
                    source.port.span("model.class"),
                    "leave one of the two out: delete its file, or generate it into another folder with --into",
                )
    if found:
        raise DiagnosticError(list(found.values()))
