"""Descriptors in, the files of `generated/` out: pure, apart from one run of ruff over text.

For each descriptor an adapter a generation, a test in the CPU lab, a docs page and an example; for all of them the
packages that hold the adapters. A generation that cannot be spoken without a tree is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from scaffold.adapters.header import add_header, spec_hash
from scaffold.adapters.layout import format_sources
from scaffold.adapters.support import refusal
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.render import Code, render_template

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.descriptor.model import TestEntry
    from scaffold.protocol import Generation

PACKAGE = "vitcg_adapters"
_NAMES = {"image": "images", "video": "videos"}
_COLUMNS = ("Architecture", "Models", "CG for Image", "CG for Video", "Multi-Path Graph")
_ATTRIBUTES = "* text eol=lf linguist-generated\n"


@dataclass(frozen=True)
class Source:
    """A descriptor as the manifest names it (a shipped name, or a path relative to the folder), and its port."""

    reference: str
    port: AnyPort
    warnings: tuple[Diagnostic, ...] = ()

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
    def command(self) -> str:
        return f"vitcg-scaffold regen {self.reference}" if self.is_shipped else "vitcg-scaffold regen"

    @cached_property
    def spec_hash(self) -> str:
        return spec_hash(self.port)


@dataclass(frozen=True)
class GeneratedFile:
    """One file of the folder. What it was made from is None for a file that serves several descriptors."""

    path: str
    content: bytes
    descriptor: str | None = None
    generation: str | None = None


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


@dataclass(frozen=True)
class _Draft:
    """A file before formatting and without its header."""

    path: str
    text: str
    source: Source | None = None
    generation: Generation | None = None


def render_outputs(sources: Sequence[Source]) -> Outputs:
    """All files of `sources`, sorted by path.

    Raises `DiagnosticError`: VCG540 (two descriptors of one name), VCG541 (a name that is no module name), VCG6xx
    (a proof refused our own result).
    """
    from scaffold.protocol import GENERATIONS

    _check_names(sources)
    drafts: list[_Draft] = []
    refused: list[Refused] = []
    table: dict[str, dict[str, str]] = {}
    for source in sorted(sources, key=lambda source: source.name):
        spoken: list[Generation] = []
        missing: list[Refused] = []
        for generation in GENERATIONS:
            reason = refusal(source.port, generation)
            if reason is not None:
                missing.append(Refused(source, generation, reason))
                continue
            spoken.append(generation)
            drafts.append(_adapter(source, generation))
            table.setdefault(generation.name, {})[source.port.class_name] = source.name
        refused += missing
        if spoken:
            drafts += _companions(source, spoken, missing)
    if table:
        drafts += _packages({generation: table[generation] for generation in sorted(table, key=_generation_order)})
    texts = format_sources({draft.path: draft.text for draft in drafts})
    files = [_finish(draft, texts[draft.path]) for draft in drafts]
    return Outputs(tuple(sorted(files, key=lambda output: output.path)), tuple(refused))


def _adapter(source: Source, generation: Generation) -> _Draft:
    from scaffold.adapters.source import render_adapter
    from scaffold.protocol import known_profile
    from scaffold.verify.conformance import prove_conformance

    profile, path = known_profile(generation), f"{PACKAGE}/{generation.name}/{source.name}.py"
    text = render_adapter(source.port, profile)
    found = prove_conformance(text, source.port.class_name, profile, path)
    if found:
        raise DiagnosticError(found)
    return _Draft(path, text, source, generation)


def _companions(source: Source, spoken: Sequence[Generation], refused: Sequence[Refused]) -> list[_Draft]:
    """Test, docs page and example of one model."""
    from scaffold.verify.numeric import RECIPES

    port, drafts = source.port, [_Draft(f"docs/{source.name}.md", _docs(source, spoken, refused), source)]
    if source.name in RECIPES:
        releases = [
            (generation.name, release)
            for generation in spoken
            for release in dict.fromkeys((generation.first, generation.last))
        ]
        text = render_template(
            "adapter/test.py.jinja",
            class_name=port.class_name,
            releases=releases,
            file=f"{source.name}.py",
            recipe=source.name,
            # Managers of several paths do not count a path that ran eagerly as a miss.
            several_paths=port.layout == "paths",
        )
        drafts.append(_Draft(f"tests/test_{source.name}.py", text, source))
    if port.tests:
        drafts.append(_Draft(f"examples/{source.name}.py", _example(source, port.tests[0], spoken), source))
    return drafts


def _docs(source: Source, spoken: Sequence[Generation], refused: Sequence[Refused]) -> str:
    from scaffold.plan.entries import docs_row
    from scaffold.protocol import TableAnchor

    port = source.port
    anchor = TableAnchor("", 0, 0, _COLUMNS, (), yes="✅︎", no="❌")
    rows = (_COLUMNS, ("---",) * len(_COLUMNS), docs_row(port, anchor))
    return render_template(
        "docs/model.md.jinja",
        class_name=port.class_name,
        modalities=Code(" and ".join(_NAMES[name] for name in port.modalities)),
        table=[Code(f"| {' | '.join(row)} |") for row in rows],
        adapters=[_row(generation, f"{PACKAGE}.{generation.name}.{source.name}") for generation in spoken],
        refused=[{**_row(entry.generation, ""), "reason": Code(entry.reason)} for entry in refused],
    )


def _row(generation: Generation, module: str) -> dict[str, Code]:
    return {
        "first": Code(generation.first),
        "last": Code(generation.last),
        "generation": Code(generation.name),
        "module": Code(module),
    }


def _example(source: Source, test: TestEntry, spoken: Sequence[Generation]) -> str:
    prompts: dict[str, str] = {
        modality: (test.template.text if test.template else "{content}").replace("{content}", prompt)
        for modality, prompt in (("image", test.image_prompt), ("video", test.video_prompt))
        if prompt is not None
    }
    from scaffold.plan.entries import wrapped

    options = dict(test.runner_kwargs)
    options.pop("load_format", None)  # the test may do without weights, a user does not
    return render_template(
        "example/offline.py.jinja",
        class_name=source.port.class_name,
        file=Code(f"{source.name}.py"),
        first=Code(spoken[0].first),
        last=Code(spoken[-1].last),
        # A test may run a checkpoint of another architecture, which another class serves.
        model=test.model if test.dummy_arch in (None, source.port.class_name) else None,
        prompts=[(modality, wrapped(prompt)) for modality, prompt in prompts.items()],
        default_modality="image" if "image" in prompts else next(iter(prompts), "image"),
        budgets=list(test.compilation_overrides.get("encoder_cudagraph_token_budgets", ())),
        video="video" in prompts,
        num_frames=test.num_video_frames or 16,
        needs_metadata=bool(test.needs_video_metadata),
        max_model_len=test.max_model_len or 8192,
        options=sorted(options.items()),
    )


def _packages(table: Mapping[str, Mapping[str, str]]) -> list[_Draft]:
    from scaffold.protocol import generation_by_name

    releases = {name: (generation_by_name(name).first, generation_by_name(name).last) for name in table}
    package = render_template("adapter/package.py.jinja", adapters=table, releases=releases)
    drafts = [_Draft(".gitattributes", _ATTRIBUTES), _Draft(f"{PACKAGE}/__init__.py", package)]
    for name in table:
        generation = generation_by_name(name)
        text = render_template("adapter/generation.py.jinja", first=Code(generation.first), last=Code(generation.last))
        drafts.append(_Draft(f"{PACKAGE}/{name}/__init__.py", text))
    return drafts


def _finish(draft: _Draft, text: str) -> GeneratedFile:
    """The file with its header, and what the manifest says about it."""
    source = draft.source
    content = add_header(
        draft.path,
        text,
        source=source.file if source else "the list of adapters",
        command=source.command if source else "vitcg-scaffold regen",
        spec=source.spec_hash if source else spec_hash(text),
    )
    return GeneratedFile(
        draft.path,
        content.encode("utf-8"),
        source.reference if source else None,
        draft.generation.name if draft.generation else None,
    )


def _generation_order(name: str) -> int:
    from scaffold.protocol import GENERATIONS

    return [generation.name for generation in GENERATIONS].index(name)


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
