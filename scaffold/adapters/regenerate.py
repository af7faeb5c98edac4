"""One regeneration: which descriptors, what has drifted, and what is to be written."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.adapters import manifest as manifests
from scaffold.adapters.drift import compare_outputs, is_edited, is_foreign, read_file
from scaffold.adapters.manifest import SHIPPED, Manifest, read_manifest
from scaffold.changes import FileChange, unified_lines
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span

if TYPE_CHECKING:
    from scaffold.adapters.outputs import Outputs, Source

DEFAULT_FOLDER = Path("generated")
_SHOWN_LINES = 40
#: Where a manifest has its descriptors. Digests follow.
_DESCRIPTORS_LINE = 3


@dataclass(frozen=True)
class Regeneration:
    """A planned run. `drift` is what `--check` reports, `changes` is what a run writes.

    `summary` counts what was compared. `edited` are the paths of `changes` that hold a hand edit. `left` are files of
    the folder that are not ours: no run removes them.
    `older` are the changes of older generations where the folder does not keep those (`Manifest.built`), `kept` whether
    they have the digests that the manifest states.
    `nothing` is the error of a run that looked at no file: a check that cannot fail. It exits with 3.
    """

    folder: Path
    summary: str
    drift: tuple[Diagnostic, ...] = ()
    left: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    changes: tuple[FileChange, ...] = ()
    edited: tuple[str, ...] = ()
    older: tuple[FileChange, ...] = ()
    kept: bool = True
    nothing: Diagnostic | None = None


def _counted(files: int, descriptors: int) -> str:
    return f"{files} file{'s' * (files != 1)} from {descriptors} descriptor{'s' * (descriptors != 1)}"


def plan_regeneration(folder: Path, references: Sequence[str] = ()) -> Regeneration:
    """Render what `folder` should hold and compare. Writes nothing.

    `references` are descriptors (files or shipped names) to look at; without any it is everything that the folder's
    manifest names. Raises `DiagnosticError` for a descriptor that is wrong (VCG1xx to VCG3xx), a manifest that cannot
    be trusted (VCG534), a file that cannot be read (VCG543).
    """
    from scaffold.adapters.outputs import is_older, render_outputs

    found = read_manifest(folder)
    if found is None and not references:
        return Regeneration(folder, _counted(0, 0), nothing=_no_manifest(folder))
    before = found if found is not None else Manifest(())
    wanted = [_normalised(folder, reference) for reference in references]
    selection = _selection(before.descriptors, wanted)
    sources = [_load(folder, reference) for reference in _expanded(selection)]
    outputs = render_outputs(sources, built=before.built is not None)
    names = frozenset(wanted) if wanted and SHIPPED not in wanted else None
    looked_at = [source for source in sources if names is None or source.reference in names]
    chosen = [output for output in outputs.files if names is None or output.descriptor in {None, *names}]
    notes = tuple(_notes(outputs, looked_at))
    if all(output.descriptor is None for output in chosen):
        nothing = Diagnostic(
            "VCG535",
            f"nothing to generate: {len(looked_at)} descriptors give no adapter",
            help=_into_tree(looked_at[0]) if looked_at else "name one: `vitcg-scaffold new DESCRIPTOR`",
        )
        return Regeneration(folder, _counted(0, len(looked_at)), notes=notes, nothing=nothing)
    differences = compare_outputs(
        folder,
        {output.path: output.text.encode() for output in chosen},
        known=frozenset(output.path for output in outputs.files),
        origins=None if names is None else frozenset(source.file for source in looked_at),
    )
    manifest = Manifest(selection)
    if before.built is not None:
        older = {output.path: output.text.encode() for output in outputs.files if is_older(output.path)}
        manifest = replace(
            manifest, built={path: hashlib.sha256(content).hexdigest() for path, content in older.items()}
        )
    changes = [change for change in differences if not is_foreign(change)]
    edited = tuple(change.path for change in changes if is_edited(change))
    # `--all` would not make what the manifest does not name yet.
    added = shlex.join(references) if set(selection) != set(before.descriptors) else None
    reporter = _Reporter(folder, {output.path: output.descriptor for output in chosen}, added)
    reported = [
        reporter.drift(change)
        for change in differences
        if change.before is not None or change.path not in (manifest.built or ())
    ]
    data, disk = manifest.encode(), read_file(folder, manifests.NAME)
    if data != disk:
        changes.append(FileChange(manifests.NAME, disk, data))
        reported.append(reporter.drift(changes[-1]))
    more = f" (the folder has {len(outputs.files)} from {len(sources)})" * (len(sources) > len(looked_at))
    return Regeneration(
        folder=folder,
        summary=_counted(len(chosen), len(looked_at)) + more,
        drift=tuple(reported),
        left=tuple(replace(reporter.drift(one), severity=Severity.WARNING) for one in differences if is_foreign(one)),
        notes=notes,
        changes=tuple(changes),
        edited=edited,
        older=tuple(change for change in changes if before.built is not None and is_older(change.path)),
        kept=before.built == manifest.built,
    )


def _no_manifest(folder: Path) -> Diagnostic:
    """That nothing tells the descriptors of a folder: most often nothing was generated there yet."""
    own = sorted(path.as_posix() for path in Path("descriptors").glob("*.y*ml"))
    into = "" if folder == DEFAULT_FOLDER else f" --into {shlex.quote(str(folder))}"
    names = " ".join(map(shlex.quote, own)) or "DESCRIPTOR.yaml"
    return Diagnostic(
        "VCG535",
        f"`{folder.as_posix()}/{manifests.NAME}` is missing, and no descriptor was named: nothing to compare with",
        help=f"generate once, and commit the folder: `vitcg-scaffold new{into} {names}`",
    )


def publish_regeneration(
    regeneration: Regeneration, *, label: str, allow_dirty: bool = False
) -> tuple[Diagnostic, ...]:
    """Write the planned changes, all or nothing; returns notes for the user.

    Raises `DiagnosticError` VCG507 for a hand edit that git could not give back, unless `allow_dirty`.
    """
    from scaffold.publish import publish_changes, require_clean

    if not regeneration.changes:
        return ()
    regeneration.folder.mkdir(parents=True, exist_ok=True)
    # Only what a hand has written is lost; the rest, some run of ours writes again.
    folder, edited = regeneration.folder, regeneration.edited
    notes = require_clean(folder, edited, folder) if edited and not allow_dirty else ()
    publish_changes(folder, regeneration.changes, label=label)
    return notes


@dataclass(frozen=True)
class _Reporter:
    """Says what has drifted. `descriptors` tells which descriptor an output is made of.

    `added` are the words for descriptors that the manifest does not name yet: a repair must name them.
    """

    folder: Path
    descriptors: Mapping[str, str | None]
    added: str | None = None

    def drift(self, change: FileChange) -> Diagnostic:
        shown = (self.folder / change.path).as_posix()
        repair = f"run `{self._command(self.descriptors.get(change.path))}`"
        if change.after is None:
            return self._extra(shown, change)
        if change.before is None:
            return Diagnostic("VCG531", f"{shown} is missing", _span(shown), repair)
        line, difference = _difference(change.before, change.after)
        code = "VCG530"
        if change.path == manifests.NAME:
            message = f"{shown} does not name what the folder is generated from"
            if line > _DESCRIPTORS_LINE:
                message = f"{shown} has other digests: adapters of an older generation have changed"
        elif is_edited(change):
            code, message = "VCG533", f"{shown} was edited by hand"
            repair = (
                f"change the descriptor or the template instead; {repair}, which overwrites the edit: version control "
                "protects it, an edit that is not committed is refused"
            )
        else:
            message = f"{shown} is out of date: the descriptor or the tool has changed since it was generated"
        return Diagnostic(code, message, _span(shown, line), repair, notes=difference)

    def _extra(self, shown: str, change: FileChange) -> Diagnostic:
        if not is_foreign(change):
            message = f"{shown} is left over: no descriptor asks for it any more"
            return Diagnostic("VCG532", message, _span(shown), f"run `{self._command(None)}`, which removes it")
        message = (
            f"{shown} is no generated file, or one that was edited by hand and that no descriptor asks for any more"
        )
        help = f"move it out of {self.folder.as_posix()}, or remove it: `rm {shlex.quote(shown)}`"
        return Diagnostic("VCG532", message, _span(shown), help)

    def _command(self, descriptor: str | None) -> str:
        into = "" if self.folder == DEFAULT_FOLDER else f" --into {shlex.quote(str(self.folder))}"
        name = descriptor if descriptor is not None and descriptor.isidentifier() else "--all"
        return f"vitcg-scaffold new{into} {self.added or name}"


def _span(path: str, line: int = 1) -> Span:
    return Span(path, line, 1, line, 1)


def _difference(disk: bytes, expected: bytes) -> tuple[int, tuple[str, ...]]:
    """The first line that differs, and a unified difference of at most `_SHOWN_LINES` lines."""
    before, after = (content.decode("utf-8", errors="replace").splitlines() for content in (disk, expected))
    lines = [*unified_lines(before, after, ("on disk", "generated"), context=1)]
    first = next((n for n, (a, b) in enumerate(zip(before, after, strict=False), 1) if a != b), None)
    line = first or max(min(len(before), len(after)), 1)
    if len(lines) > _SHOWN_LINES:
        lines = [*lines[:_SHOWN_LINES], f"... {len(lines) - _SHOWN_LINES} more lines"]
    return line, tuple(lines)


# -- descriptors ------------------------------------------------------------------------------------------------------


def _normalised(folder: Path, reference: str) -> str:
    """A descriptor as the manifest names it: a shipped name, or a path relative to the folder."""
    from scaffold.descriptor.load import load_descriptor, shipped_path

    path, shipped = Path(reference), shipped_path(Path(reference).stem)
    if reference == SHIPPED or (shipped is not None and reference == shipped.stem and not path.is_file()):
        return reference
    if not path.is_file():
        load_descriptor(reference)  # says what is wrong with it
    if shipped is not None and path.resolve() == shipped.resolve():
        return shipped.stem
    return Path(os.path.relpath(os.path.realpath(reference), os.path.realpath(folder))).as_posix()


def _selection(before: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """The names that the folder is generated from after this run. `shipped` covers every shipped name."""
    names = {*before, *wanted}
    if SHIPPED in names:
        names = {name for name in names if name == SHIPPED or name.endswith((".yaml", ".yml"))}
    return tuple(sorted(names))


def _expanded(selection: Sequence[str]) -> Iterator[str]:
    from scaffold.descriptor.load import shipped_names

    for name in selection:
        if name == SHIPPED:
            yield from shipped_names()
        else:
            yield name


def _load(folder: Path, reference: str) -> Source:
    """Wherever the command runs: a file named like a shipped descriptor must not take its place."""
    from scaffold.adapters.outputs import Source
    from scaffold.descriptor import load_descriptor
    from scaffold.descriptor.load import shipped_path

    is_file = reference.endswith((".yaml", ".yml"))
    place = Path(os.path.relpath(folder / reference)) if is_file else shipped_path(reference)
    if is_file and place is not None and not place.exists():
        raise DiagnosticError(_no_descriptor(folder, reference, place))
    return Source(reference, load_descriptor(place if place is not None else reference))


def _no_descriptor(folder: Path, reference: str, place: Path) -> Diagnostic:
    """That a descriptor is gone which the folder was generated from: deleted, or moved."""
    manifest = (folder / manifests.NAME).as_posix()
    into = "" if folder == DEFAULT_FOLDER else f" --into {shlex.quote(str(folder))}"
    return Diagnostic(
        "VCG100",
        f"no descriptor `{place.as_posix()}`, which {manifest} names",
        _span(manifest, _DESCRIPTORS_LINE),
        f"put it back; or delete {json.dumps(reference)} from {manifest}, and run `vitcg-scaffold new{into} --all`",
    )


def _notes(outputs: Outputs, looked_at: Sequence[Source]) -> Iterator[Diagnostic]:
    """The warnings of the descriptors, and one note for all that lack adapters for the same generations and reason."""
    lacking: dict[tuple[str, tuple[str, ...]], list[Source]] = {}
    for source in looked_at:
        yield from source.port.warnings
        reasons: dict[str, list[str]] = {}
        for entry in outputs.refused:
            if entry.source is source:
                reasons.setdefault(entry.reason, []).append(entry.generation.name)
        for reason, generations in reasons.items():
            lacking.setdefault((reason, tuple(generations)), []).append(source)
    for (reason, without), sources in lacking.items():
        names, verb = ", ".join(source.name for source in sources), "has" if len(sources) == 1 else "have"
        yield Diagnostic(
            "VCG542",
            f"{names} {verb} no adapter for {', '.join(without)}: {reason}",
            sources[0].port.span("layout"),
            _into_tree(sources[0]),
            Severity.INFO,
        )


def _into_tree(source: Source) -> str:
    """The command that ports a model without an adapter."""
    target = "--vllm TREE" if source.port.module.partition(".")[0] == "vllm" else "--vllm RELEASE --package FOLDER"
    where, option = (" into a fork", " --reenter") if source.port.reenters else ("", "")
    name = source.reference if source.is_shipped else source.port.file
    return f"port it{where}, where the model's code tells: `vitcg-scaffold new {shlex.quote(name)} {target}{option}`"
