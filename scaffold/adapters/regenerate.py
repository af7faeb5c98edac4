"""One regeneration: which descriptors, what has drifted, what is to be written, and what the user must decide first."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.adapters import manifest as manifests
from scaffold.adapters.bases import find_base, keep_bases, merge
from scaffold.adapters.drift import Comparison, Finding, Kind, compare_outputs, read_file, sha256
from scaffold.adapters.manifest import SHIPPED, Entry, Manifest, read_manifest
from scaffold.changes import FileChange
from scaffold.diagnostics import Diagnostic, Severity, Span

if TYPE_CHECKING:
    from scaffold.adapters.outputs import Output, Outputs, Source

DEFAULT_FOLDER = Path("generated")
_SHOWN_LINES = 40


class Choice(str, Enum):
    """What happens to hand-edited files. Without a choice nothing is written."""

    REFUSE = "refuse"
    TAKE_GENERATED = "take-generated"
    ADOPT = "adopt"
    MERGE = "merge"


@dataclass(frozen=True)
class Regeneration:
    """A planned run. `drift` is what `--check` reports, `conflicts` what stops a run that writes.

    `changes` is empty when there are conflicts, except for merges with marks in them, which are written and stay
    conflicts. `files` and `descriptors` are what was compared.
    """

    folder: Path
    files: int
    descriptors: int
    drift: tuple[Diagnostic, ...]
    conflicts: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    changes: tuple[FileChange, ...]
    bases: tuple[bytes, ...]

    @property
    def summary(self) -> str:
        return f"checked {self.files} files from {self.descriptors} descriptors"

    @property
    def nothing(self) -> Diagnostic:
        """The error of a run that looked at no file: a check that cannot fail. It exits with 3."""
        return Diagnostic(
            "VCG535",
            f"nothing to generate: {self.descriptors} descriptors give no adapter",
            help="name a descriptor, for example `vitcg-scaffold regen internvl`",
        )

    def notes_to_show(self, *, check: bool) -> tuple[Diagnostic, ...]:
        """`--check` has the files that are not ours among its drift already."""
        return tuple(note for note in self.notes if not (check and note.code == "VCG532"))


def plan_regeneration(folder: Path, references: Sequence[str] = (), *, choice: Choice = Choice.REFUSE) -> Regeneration:
    """Render what `folder` should hold and compare. Writes nothing.

    `references` are descriptors (files or shipped names) to look at; without any it is everything that the folder's
    manifest names, or, without a manifest, everything that is shipped. Raises `DiagnosticError` for a descriptor that
    is wrong (VCG1xx to VCG3xx), a manifest that cannot be trusted (VCG534), a file that cannot be read (VCG543).
    """
    from scaffold.adapters.outputs import render_outputs

    found = read_manifest(folder)
    before = found if found is not None else Manifest(() if references else (SHIPPED,))
    wanted = [_normalised(folder, reference) for reference in references]
    selection = _selection(before.descriptors, wanted)
    sources = [_load(folder, reference) for reference in _expanded(selection)]
    outputs = render_outputs(sources)
    names = frozenset(wanted) if wanted and SHIPPED not in wanted else None
    looked_at = [source for source in sources if names is None or source.reference in names]
    chosen = [output for output in outputs.files if names is None or output.descriptor in {None, *names}]
    known = frozenset(output.path for output in outputs.files)
    comparison = compare_outputs(folder, chosen, before, known=known, names=names)
    made = [output for output in chosen if output.descriptor is not None]
    return _Planner(folder, before, selection, comparison, chosen, choice, names).plan(
        files=len(chosen) if made else 0, descriptors=len(looked_at), notes=tuple(_notes(outputs, looked_at))
    )


def publish_regeneration(regeneration: Regeneration, *, label: str) -> None:
    """Write the planned changes, all or nothing, and keep what later merges need."""
    from scaffold.publish import publish_changes

    if regeneration.changes:
        regeneration.folder.mkdir(parents=True, exist_ok=True)
        publish_changes(regeneration.folder, regeneration.changes, label=label)
        keep_bases(regeneration.folder, regeneration.bases)


class _Planner:
    """Turns findings into diagnostics and changes. One use."""

    def __init__(
        self,
        folder: Path,
        before: Manifest,
        selection: tuple[str, ...],
        comparison: Comparison,
        outputs: Sequence[Output],
        choice: Choice,
        names: frozenset[str] | None,
    ) -> None:
        self._folder = folder
        self._before = before
        self._selection = selection
        self._comparison = comparison
        self._outputs = outputs
        self._choice = choice
        self._names = names
        self._changes: list[FileChange] = []
        self._conflicts: list[Diagnostic] = []
        self._adopted: dict[str, str | None] = {path: _adopted(before, path) for path in comparison.adopted}

    def plan(self, *, files: int, descriptors: int, notes: tuple[Diagnostic, ...]) -> Regeneration:
        drift = [self._drift(finding) for finding in self._comparison.findings]
        kept: set[str] = set()
        for finding in self._comparison.findings:
            if finding.kind is Kind.FOREIGN:
                notes = (*notes, replace(self._drift(finding), severity=Severity.WARNING))
            elif finding.kind is not Kind.EDITED:
                self._changes.append(self._overwrite(finding))
            elif not self._settle(finding):
                kept.add(finding.path)
        after = self._manifest(kept)
        data, disk = after.encode(), read_file(self._folder, manifests.NAME)
        if files and data != disk:
            self._changes.append(FileChange(manifests.NAME, disk, data))
            if not drift:  # otherwise it follows from the files
                drift.append(self._manifest_drift(disk))
        written_anyway = self._choice is Choice.MERGE and all(item.code == "VCG536" for item in self._conflicts)
        return Regeneration(
            folder=self._folder,
            files=files,
            descriptors=descriptors,
            drift=tuple(drift),
            conflicts=tuple(self._conflicts),
            notes=notes,
            changes=tuple(self._changes) if files and (not self._conflicts or written_anyway) else (),
            bases=tuple(output.content for output in self._outputs),
        )

    # -- what is written -------------------------------------------------------------------------------------------

    def _overwrite(self, finding: Finding) -> FileChange:
        after = finding.expected.content if finding.expected is not None else None
        return FileChange(finding.path, finding.disk, after)

    def _settle(self, finding: Finding) -> bool:
        """Do what was chosen with a hand-edited file. False: it stays, and so does its entry in the manifest."""
        assert finding.disk is not None
        if self._choice is Choice.TAKE_GENERATED:
            self._changes.append(self._overwrite(finding))
            return True
        if finding.expected is None or self._choice is Choice.REFUSE:
            self._conflicts.append(self._edited(finding))
            return False
        if self._choice is Choice.ADOPT:
            if b"\n<<<<<<< " in finding.disk and b"\n>>>>>>> " in finding.disk:
                self._conflicts.append(self._unresolved(finding, "still has conflict marks", "resolve them, then"))
                return False
            self._adopted[finding.path] = sha256(finding.disk)
            return True
        return self._merge(finding)

    def _merge(self, finding: Finding) -> bool:
        assert finding.disk is not None
        assert finding.expected is not None
        base = find_base(self._folder, finding)
        if base is None:
            self._conflicts.append(self._lost_base(finding))
            return False
        merged, conflicts = merge(base, finding.disk, finding.expected.content)
        if merged != finding.disk:
            self._changes.append(FileChange(finding.path, finding.disk, merged))
        if conflicts:
            count = f"{conflicts} conflict{'' if conflicts == 1 else 's'}"
            self._conflicts.append(
                self._unresolved(finding, f"was merged with {count}, marked in the file", "resolve them, then")
            )
        elif merged != finding.expected.content:
            self._adopted[finding.path] = sha256(merged)
        return True

    def _manifest(self, kept: set[str]) -> Manifest:
        """The entries of this run, and those of files that it did not look at or that stay as they are."""
        touched = {output.path for output in self._outputs}
        gone = {finding.path for finding in self._comparison.findings if finding.expected is None}
        entries = {
            entry.path: entry
            for entry in self._before.entries
            if entry.path in kept
            or (entry.path not in touched | gone and self._names is not None and entry.descriptor not in self._names)
        }
        for output in self._outputs:
            if output.path not in kept:
                entries[output.path] = Entry(
                    output.path,
                    sha256(output.content),
                    output.descriptor,
                    output.generation,
                    output.protocol,
                    self._adopted.get(output.path),
                )
        return Manifest(self._selection, tuple(entries.values()))

    # -- what is said ----------------------------------------------------------------------------------------------

    def _display(self, path: str) -> str:
        return (self._folder / path).as_posix()

    def _span(self, path: str, line: int = 1) -> Span:
        return Span(self._display(path), line, 1, line, 1)

    def _command(self, descriptor: str | None, option: str = "") -> str:
        into = "" if self._folder == DEFAULT_FOLDER else f" --into {shlex.quote(str(self._folder))}"
        name = f" {descriptor}" if descriptor is not None and descriptor.isidentifier() else ""
        return f"vitcg-scaffold regen{into}{option}{name}"

    def _drift(self, finding: Finding) -> Diagnostic:
        shown, path = self._display(finding.path), finding.path
        descriptor = _descriptor(finding)
        repair = f"run `{self._command(descriptor)}`"
        if finding.kind is Kind.CHANGED:
            assert finding.expected is not None
            assert finding.disk is not None
            line, difference = _difference(finding.disk, finding.expected.content, "on disk", "generated")
            message = f"{shown} is out of date: the descriptor or the tool has changed since it was generated"
            return Diagnostic("VCG530", message, self._span(path, line), repair, notes=difference)
        if finding.kind is Kind.MISSING:
            return Diagnostic("VCG531", f"{shown} is missing", self._span(path), repair)
        if finding.kind is Kind.EXTRA:
            message = f"{shown} is left over: no descriptor asks for it any more"
            return Diagnostic("VCG532", message, self._span(path), f"run `{self._command(None)}`, which removes it")
        if finding.kind is Kind.FOREIGN:
            message = f"{shown} is no generated file"
            return Diagnostic(
                "VCG532",
                message,
                self._span(path),
                f"move it out of {self._folder.as_posix()}, or remove it: `rm {shlex.quote(shown)}`",
            )
        return self._edited(finding)

    def _edited(self, finding: Finding) -> Diagnostic:
        assert finding.disk is not None
        shown = self._display(finding.path)
        descriptor = _descriptor(finding)
        base, label = find_base(self._folder, finding), "generated before"
        if base is None and finding.expected is not None:
            base, label = finding.expected.content, "generated now (what was edited is lost)"
        line, difference = (1, ()) if base is None else _difference(base, finding.disk, label, "your edit")
        if finding.expected is None:
            message = f"{shown} was edited by hand, and no descriptor asks for it any more"
            ways = f"move your edit elsewhere, then `{self._command(None, ' --take-generated')}` removes the file"
        else:
            message = f"{shown} was edited by hand"
            ways = (
                f"drop the edit with `{self._command(descriptor, ' --take-generated')}`, "
                "keep the edit with --adopt, or carry it over to what is generated now with --merge"
            )
        return Diagnostic("VCG533", message, self._span(finding.path, line), ways, notes=difference)

    def _unresolved(self, finding: Finding, what: str, how: str) -> Diagnostic:
        assert finding.expected is not None
        command = self._command(finding.expected.descriptor, " --adopt")
        message = f"{self._display(finding.path)} {what}"
        return Diagnostic("VCG536", message, self._span(finding.path), f"{how} run `{command}`")

    def _lost_base(self, finding: Finding) -> Diagnostic:
        assert finding.expected is not None
        command = self._command(finding.expected.descriptor, " --take-generated")
        return Diagnostic(
            "VCG537",
            f"{self._display(finding.path)} cannot be merged: what was generated before your edit is lost",
            self._span(finding.path),
            f"keep your version with --adopt, or save it, run `{command}` and edit again",
            notes=("looked for in this run's output, in .vitcg-scaffold/bases and in git's index and history",),
        )

    def _manifest_drift(self, disk: bytes | None) -> Diagnostic:
        shown = self._display(manifests.NAME)
        what = "is missing" if disk is None else "does not fit the files"
        code = "VCG531" if disk is None else "VCG530"
        return Diagnostic(code, f"{shown} {what}", self._span(manifests.NAME), f"run `{self._command(None)}`")


def _adopted(manifest: Manifest, path: str) -> str | None:
    entry = manifest.entry(path)
    return entry.adopted if entry is not None else None


def _descriptor(finding: Finding) -> str | None:
    origin = finding.expected or finding.entry
    return origin.descriptor if origin is not None else None


def _difference(old: bytes, new: bytes, old_label: str, new_label: str) -> tuple[int, tuple[str, ...]]:
    """The first changed line of `new`, and a unified difference of at most `_SHOWN_LINES` lines."""
    before, after = (content.decode("utf-8", errors="replace").splitlines() for content in (old, new))
    lines = list(difflib.unified_diff(before, after, old_label, new_label, n=1, lineterm=""))
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
    """What the folder is generated from after this run. `shipped` covers every shipped name."""
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
    port = load_descriptor(place if place is not None else reference)
    return Source(reference, port, port.warnings)


def _notes(outputs: Outputs, looked_at: Sequence[Source]) -> Iterator[Diagnostic]:
    """The warnings of the descriptors, and one note a descriptor for the generations that it has no adapter for."""
    for source in looked_at:
        yield from source.warnings
        reasons: dict[str, list[str]] = {}
        for entry in outputs.refused:
            if entry.source is source:
                reasons.setdefault(entry.reason, []).append(entry.generation.name)
        for reason, generations in reasons.items():
            yield Diagnostic(
                "VCG542",
                f"{source.name} has no adapter for {', '.join(generations)}: {reason}",
                source.spec.span("layout"),
                "see `vitcg-scaffold explain VCG542`",
                Severity.INFO,
            )
