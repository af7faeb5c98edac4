"""The description of a pull request, from what is in a tree and what was run; and rules that can be checked offline.

Two values pass through: `PortChange` (which files a port changed, with their bytes before and after) and `RuleResult`
(one rule of the target's contribution guide). The form of the text is the target's own: its pull request template names
the headings, and the checklist below them is left for the contributor to tick.
"""

from __future__ import annotations

import ast
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.changes import FileChange, line_opcodes
from scaffold.descriptor import EDITOR_LINE, RowsPort
from scaffold.descriptor.port import ENCODE_METHOD
from scaffold.descriptor.sections import Explicit
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit import PutMethods
from scaffold.files import read_regular
from scaffold.plan.views import PackedView
from scaffold.protocol.profile import PROTOCOL

if TYPE_CHECKING:
    from scaffold.cut import Extraction
    from scaffold.descriptor import AnyPort
    from scaffold.measure.benchreport import Benchmark
    from scaffold.plan import Plan
    from scaffold.protocol import SourceTree
    from scaffold.verify.numeric import NumericReport
    from scaffold.workflow import PreparedPort

TEMPLATE = ".github/PULL_REQUEST_TEMPLATE.md"
_CI = ".buildkite"
#: Where trees of 2026 say what a description must have.
_RULES = "AGENTS.md"
#: The code of a file that is not in the tree's format.
_FORMAT = "VCG621"
#: Notes that a reviewer should read: subclasses that inherit the port, encoder calls that are not cut, what stays and
#: which explanations go where the port replaces another one.
_TOLD = ("VCG428", "VCG447", "VCG522", "VCG523")
#: Added lines in the package above which vLLM asks for an RFC first (contributing guide, "Notes for Large Changes").
RFC_LINES = 500
#: Added lines in the package above which a reviewer wants the size justified (`pr-checklist`, "Complexity").
COMPLEX_LINES = 250
#: Questions of vLLM's rules for contributors that no tool can answer.
_OPEN = {
    "Not a duplicate": "say what you found: `gh pr list --repo vllm-project/vllm --state open --search "
    '"encoder cuda graph {module}"` and `gh issue list --repo vllm-project/vllm --search "{class_}"`',
    "Model evaluation": "give an accuracy of the checkpoint with and without `cudagraph_mm_encoder`, or say why not",
    "AI assistance": "say whether it was used, and for what; {origin}",
}


#: The author's part of a replacement's text.
_WHY = (
    "run `vitcg-scaffold verify {port} --as-is` on the tree before the change, and name the checks that fail there; "
    "`vitcg-scaffold fix` repairs some of them in the code that the tree has"
)


@dataclass(frozen=True)
class PortChange:
    """A port that is in a tree, as it was prepared for the tree before it.

    `base` is the root of the tree before it, if a user named one. Otherwise `files` alone say what was before.
    """

    prepared: PreparedPort
    tree: SourceTree
    base: Path | None
    files: tuple[FileChange, ...]

    @property
    def plan(self) -> Plan:
        return self.prepared.plan

    @property
    def replaces(self) -> bool:
        """Whether the tree had a port of the model before."""
        return any(isinstance(edit, PutMethods) and edit.remove for file in self.plan.files for edit in file.edits)

    @cached_property
    def added(self) -> Mapping[str, int]:
        """Lines that each file gained, by path."""
        return {change.path: _added_lines(change) for change in self.files}


@dataclass(frozen=True)
class RuleResult:
    """One rule. `passed` is None where it cannot be judged here, and then `detail` says what is left to do."""

    rule: str
    passed: bool | None
    detail: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAIL", None: "open"}[self.passed]
        return f"{mark:>4}  {self.rule}" + (f": {self.detail}" if self.detail else "")


# -- what was changed --------------------------------------------------------------------------------------------------


def find_change(port: AnyPort, prepared: PreparedPort, tree: SourceTree, base: SourceTree | None) -> PortChange:
    """The changes that `port` made in `tree`, against `base` or what the last `new` of this model found there.

    `prepared` is the port planned for `tree`, in the place of an earlier one.

    Raises `DiagnosticError`: VCG511 when the port is not in the tree, or is not what the tool generates today; VCG512
    when nothing says what the tree held before.
    """
    from scaffold.publish import published_changes
    from scaffold.workflow import prepare_port

    if prepared.changed:
        paths = ", ".join(change.path for change in prepared.changed)
        words = ["new", port.reference, "--vllm", tree.label, *(["--reenter"] if prepared.plan.reenters else [])]
        again = shlex.join(["vitcg-scaffold", *words])
        raise DiagnosticError(
            Diagnostic(
                "VCG511",
                f"the tree does not hold the generated port of {port.name}: {paths} would change",
                port.span("model"),
                f"run `{again}` first, or look at the difference with --diff",
            )
        )
    if base is not None:
        paths_changed = [file.path for file in prepared.plan.files]
        changes = [FileChange(path, _bytes(base, path), tree.read_bytes(path)) for path in paths_changed]
        files = tuple(change for change in changes if not change.is_noop)
    else:
        files = published_changes(tree.root, f"new {port.name}")
    if not files:
        raise DiagnosticError(
            Diagnostic(
                "VCG512",
                f"nothing tells what {tree.label} held before the port of {port.name}",
                port.span("model"),
                "name the tree before the port: --base PATH, or --base RELEASE",
            )
        )
    before = tree.with_files({change.path: change.before for change in files if change.before is not None})
    return PortChange(prepare_port(port, before, replace=True), tree, base.root if base is not None else None, files)


def _bytes(tree: SourceTree, path: str) -> bytes | None:
    return tree.read_bytes(path) if tree.exists(path) else None


# -- the numerical proof -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProofOnRecord:
    """The last findings of `verify` for these files: nothing of the tree is run for it.

    `missing` are the attention kernels and modalities of the port that it has no comparison of. `basis` is what else
    the result depends on, and `outdated` says what of it is another one now: then there are no reports. Nor are there
    where the tree has `others`: files of the package that differ from the base and are not of the port.
    """

    reports: tuple[NumericReport, ...]
    missing: tuple[str, ...]
    basis: Mapping[str, str] = field(default_factory=dict)
    outdated: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def beside(self) -> str:
        """The first of the others, and how many more there are."""
        return self.others[0] + (f" (with {len(self.others) - 1} more)" if self.others[1:] else "")

    def rule(self, command: str) -> RuleResult:
        """As one of the rules, open where something was not run on these files; `command` runs it."""
        rule = "the numerical proof of these files passed"
        if self.others:
            what = f"not proven: {self.beside} differs from the base, too"
            return RuleResult(rule, None, f"{what}; name with --base the tree before the port")
        if self.outdated:
            return RuleResult(rule, None, f"not proven: {'; '.join(self.outdated)}; run `{command}`")
        if not self.reports:
            return RuleResult(rule, None, f"none is on record; run `{command}`")
        if not all(report.passed for report in self.reports):
            return RuleResult(rule, False, f"the last one failed: `{command}`")
        if self.missing:
            return RuleResult(rule, None, f"not run: {', '.join(self.missing)}; run `{command}`")
        values = self.basis.get("--set")
        return RuleResult(rule, True, f"with --set {values}" if values else "")


def find_proof(change: PortChange, port: AnyPort) -> ProofOnRecord:
    """The last result of `verify` for the changed files and the tree before them."""
    from scaffold.verify.proofs import Basis, find_other_changes, identify_proof
    from scaffold.verify.proofs import find_proof as find_kept
    from scaffold.workflow import tails_of

    before = {file.path: file.before or b"" for file in change.files}
    after = {file.path: file.after for file in change.files if file.after}
    if change.base is not None and (others := find_other_changes(change.tree.root, before, change.base)):
        return ProofOnRecord((), (), others=tuple(others))
    kept = find_kept(identify_proof(port.name, change.tree.root, before, after))
    reports = () if kept is None else kept.reports
    facts: Mapping[str, str] = {}
    if kept is not None:
        then = kept.basis
        real = any(report.machine for report in reports)
        now = Basis.today(then.recipe, then.config, then.remote_code, port.verify, values=then.values, real=real)
        if outdated := then.differences(now):
            return ProofOnRecord((), (), outdated=outdated)
        facts = then.facts
    done = {(report.tail, check.modality) for report in reports if not report.machine for check in report.checks}
    missing = [
        f"{tail} {modality}"
        for tail in tails_of(port, change.tree)
        for modality in port.modalities
        if (tail, modality) not in done
    ]
    return ProofOnRecord(reports, tuple(missing), facts)


# -- the target's rules ------------------------------------------------------------------------------------------------


def check_rules(change: PortChange) -> Iterator[RuleResult]:
    """The rules of vLLM's contributing guide that can be judged without a network, in its order."""
    python = [file for file in change.files if file.path.endswith(".py") and file.after]
    yield from _style_rules(change, python)
    headers = [file.path for file in python if "SPDX-License-Identifier" not in (_text(file.after) or "")[:400]]
    yield RuleResult("every Python file starts with the licence header", not headers, ", ".join(headers))
    for folder, rule in (("tests/", "the change has tests"), ("docs/", "what users can run is documented")):
        added = [path for path in change.added if path.startswith(folder)]
        stands = [f"{file.path} has it already" for file in change.plan.files if file.path.startswith(folder)]
        detail = ", ".join(added or stands) or f"no file below {folder} is changed"
        yield RuleResult(rule, bool(added or stands), detail)
    size = sum(lines for path, lines in change.added.items() if path.startswith("vllm/"))
    rule = f"at most {RFC_LINES} added lines in the package, else an RFC comes first"
    yield RuleResult(rule, size <= RFC_LINES, str(size))
    if size > COMPLEX_LINES:
        yield RuleResult(f"more than {COMPLEX_LINES} added lines in the package are justified", None, str(size))
    yield from _ci_rules(change)
    yield from _git_rules(change)


def _style_rules(change: PortChange, python: Sequence[FileChange]) -> Iterator[RuleResult]:
    """The verdict of ruff with the tree's settings, on the format of those files only that had it before."""
    from scaffold.verify.style import check_style, is_formatted

    root = change.tree.root
    found = [
        diagnostic
        for file in python
        for diagnostic in check_style(_text(file.before), _text(file.after) or "", file.path, root)
    ]
    errors = [diagnostic for diagnostic in found if diagnostic.severity is Severity.ERROR]
    defaults = [diagnostic for diagnostic in found if diagnostic.severity is not Severity.ERROR]
    lint = [str(diagnostic) for diagnostic in errors if diagnostic.code != _FORMAT]
    yield RuleResult(
        "`ruff check` of the changed files, with the tree's settings, reports nothing new",
        False if lint else None if defaults else True,
        "; ".join(lint or dict.fromkeys(diagnostic.message for diagnostic in defaults)),
    )
    layout = [str(diagnostic) for diagnostic in errors if diagnostic.code == _FORMAT]
    before = ((file.path, _text(file.before)) for file in python)
    unjudged = [path for path, text in before if text is not None and not is_formatted(text, path, root)]
    open_points = [f"{path} was not formatted before" for path in unjudged] or [item.message for item in defaults[:1]]
    yield RuleResult(
        "`ruff format --check` of the changed files, with the tree's settings, is clean",
        False if layout else None if open_points else True,
        "; ".join(layout or open_points),
    )


def _ci_rules(change: PortChange) -> Iterator[RuleResult]:
    """Whether a step of the target's CI runs what the change adds to a test file."""
    pipelines = [_readable(path) for path in sorted((change.tree.root / _CI).rglob("*.y*ml"))]
    for file in change.files:
        if not pipelines or not file.path.startswith("tests/"):
            continue
        name = file.path.removeprefix("tests/")
        runs = re.compile(rf"(?<!--ignore )(?<!--ignore=)\b{re.escape(name)}")
        commands = [
            line.strip().removeprefix("- ")
            for pipeline in pipelines
            for line in pipeline.splitlines()
            # Not one pattern: it would search the rest of a line once for each `pytest` in it.
            if (call := re.search(r"pytest\b", line)) and runs.search(line, call.end())
        ]
        marks = [re.search(r" -m '?\"?(\w+)", command) for command in commands]
        added = set(re.findall(r"\bpytest\.mark\.(\w+)", "".join(_added_text(file))))
        selected = any(mark is None or mark[1] in added for mark in marks)
        wanted = " or ".join(dict.fromkeys(mark[1] for mark in marks if mark))
        detail = f"every step selects `{wanted}`, and the entry has no such mark" if commands else f"none names {name}"
        yield RuleResult("a step of CI runs the new test entry", True if selected else None, "" if selected else detail)


def _git_rules(change: PortChange) -> Iterator[RuleResult]:
    """Sign-off and strangers in the change, where the tree is a checkout."""
    from scaffold.git import ask_git
    from scaffold.publish import changed_files

    sign_off = "commits carry Signed-off-by (DCO)"
    try:
        changed = changed_files(change.tree.root)
    except (DiagnosticError, FileNotFoundError):
        changed = None
    if changed is None:
        yield RuleResult(sign_off, None, "this tree is no git checkout; commit with `git commit -s`")
        return
    if changed:
        mixed = sorted(set(changed) - set(change.added))
        yield RuleResult("nothing else is changed in the checkout", not mixed, ", ".join(mixed[:5]))
        yield RuleResult(sign_off, None, "the port is not committed yet; commit with `git commit -s`")
        return
    commits = {
        ask_git(change.tree.root, "rev-list", "-1", "--abbrev-commit", "--format=%B", "HEAD", "--", path)
        for path in change.added
    }
    if None in commits:
        yield RuleResult(sign_off, None, "git does not say in which commits the port is")
        return
    heads = [commit.partition(b"\n") for commit in commits if commit]  # the first line is `commit ID`
    unsigned = sorted(head.decode().split()[1] for head, _, message in heads if b"Signed-off-by:" not in message)
    yield RuleResult(sign_off, not unsigned, ", ".join(unsigned))


# -- the text ----------------------------------------------------------------------------------------------------------


def _readable(path: Path) -> str:
    """A file of a stranger's tree; no text where there is none, or no regular file."""
    try:
        return read_regular(path).decode("utf-8", "replace")
    except OSError:
        return ""


def pull_request_title(port: AnyPort, change: PortChange) -> str:
    """A title with the tags that the guide asks for."""
    what = "Replace the encoder CUDA graph methods of" if change.replaces else "Support encoder CUDA graphs for"
    return f"[Model][Multimodal] {what} {port.class_name}"


def describe_change(
    change: PortChange,
    port: AnyPort,
    *,
    proof: ProofOnRecord,
    benchmark: Benchmark | None = None,
) -> str:
    """The description in Markdown, under the headings of the tree's own template."""
    purpose = list(_purpose(port, change))
    plan = list(_test_plan(port, change))
    result = [*_verification(proof, change), *_benchmark(port, benchmark)]
    notes = [*_design_notes(port, change), *_worse(change)]
    sections = {
        "Purpose": [*purpose, "", *notes],
        "Test Plan": plan,
        "Test Result": result,
        "Overview": purpose[:1],
        "Claims": purpose[2:],
        "Validation": [*plan, "", *result],
        "Details": notes,
    }
    return under_headings(change.tree, sections)


def under_headings(tree: SourceTree, sections: Mapping[str, Sequence[str]]) -> str:
    """A description under the headings of the tree's own template, with a comment where nothing is known."""
    headings, rest = _template(tree)
    lines: list[str] = []
    for heading in headings:
        lines += [f"## {heading}", "", *sections.get(heading, ["<!-- please fill in -->"]), ""]
    return "\n".join(lines) + (f"\n{rest}\n" if rest else "")


def _template(tree: SourceTree) -> tuple[list[str], str]:
    """The headings of the tree's template and what follows them; the usual headings where a tree has none."""
    head, rule, rest = _readable(tree.root / TEMPLATE).partition("\n---\n")
    headings = [line[3:].strip() for line in head.splitlines() if line.startswith("## ")]
    return headings or ["Purpose", "Test Plan", "Test Result"], f"---\n{rest}".rstrip() if rule else ""


def _purpose(port: AnyPort, change: PortChange) -> Iterator[str]:
    kinds = " and ".join(port.modalities)
    if change.replaces:
        yield f"Replace the implementation of `{PROTOCOL}` in `{port.class_name}` ({kinds})."
    else:
        yield f"Run the vision encoder of `{port.class_name}` as CUDA graphs ({kinds}), by implementing `{PROTOCOL}`."
    yield ""
    if change.replaces:
        yield f"<!-- say why: {_WHY.format(port=shlex.quote(_name(port)))} -->"
    for file in change.plan.files:
        if file.path in change.added:
            lines = change.added[file.path]
            yield f"- {file.reason}: `{file.path}` (+{lines} line{'s' * (lines != 1)})"
    if change.plan.split is not None:
        yield "- eager results stay bit-identical: statements of the tower were moved, none was changed"


def _design_notes(port: AnyPort, change: PortChange) -> Iterator[str]:
    """Decisions, in the words of the generated code: they come from the view that it was rendered from."""
    view = change.plan.methods.view
    yield f"- Layout `{port.layout}`; protocol generation `{change.plan.profile.generation.name}`, read from this tree."
    if isinstance(port.explicit, Explicit) and change.plan.extraction is not None:
        yield from _extracted(port.explicit, change.plan.extraction)
    elif isinstance(port, RowsPort) and port.explicit is not None and change.plan.extraction is not None:
        before, after = port.explicit.before, port.explicit.after
        yield f"- The graph holds the call of `{port.encoder}`. `{before}` is what stands in front of it."
        yield f"- `{after}` is the statements behind the tower, moved as they were. Eager code calls both."
    else:
        yield from (f"- {sentence}" for sentence in change.plan.port.holds)
    if isinstance(view, PackedView):
        for sequences in view.sets:
            yield (
                f"- Attention sequences `{sequences.offsets}`: a graph holds `{sequences.count}`, none longer than "
                f"`{sequences.longest}` rows, which is the bound that the capture freezes."
            )
            if view.cover_rows:
                yield (
                    f"- `{sequences.spare}` sequences more cover the rows behind a batch, so that none of them is long."
                )
    yield "- What no graph holds (tokens, items, frames, precomputed embeddings) runs eagerly."
    for note in change.prepared.notes:
        if note.severity is not Severity.INFO or note.code in _TOLD:
            yield f"- {note.message}{':' if note.notes else '.'}"
            yield from (f"  - {detail}" for detail in note.notes)
    if mixin := change.plan.methods.mixin:
        brings = "This port brings it" if mixin.path in change.added else "An earlier port brought it"
        yield f"- `{mixin.class_name}` has the other methods of the protocol, for every model of this kind. {brings}."
    methods = len(ast.parse(change.plan.methods.source).body)
    size = sum(lines for path, lines in change.added.items() if path.startswith("vllm/"))
    yield f"- Size: {size} lines are added in the package, for {methods} methods of the protocol and their helpers."
    yield from open_points(change.tree, port, "the port was generated from a descriptor by rules")


def _extracted(explicit: Explicit, extraction: Extraction) -> Iterator[str]:
    """The methods that an explicit port makes of the model's own."""
    yield f"- The graph holds `{ENCODE_METHOD}`, which is `{explicit.call.text}` of the model's own code."
    if extraction.after is not None:
        yield f"- `{extraction.after}` is the statements behind it, moved as they were. Eager code calls both."
    yield f"- A unit takes `{explicit.tokens.text}` tokens of a budget: the rows that a graph gives of it."


def _worse(change: PortChange) -> Iterator[str]:
    """Costs of a port, and cases without graphs, under a heading of their own."""
    view = change.plan.methods.view
    worse = []
    if view.gate is not None:
        worse.append(f"- No graphs unless `{view.gate}`.")
    if view.encoder_gate is not None:
        worse.append(f"- Nothing is captured unless `{view.encoder_gate}`, which vLLM asks first, and warns.")
    if change.plan.reenters:
        worse.append("- For each batch that is replayed the model's code runs twice, so that the host has more work.")
    if worse:
        yield from ("", "### What gets worse", "", *worse)


def open_points(tree: SourceTree, port: AnyPort, origin: str) -> Iterator[str]:
    """Points that a tree with rules for contributors asks for and that no tool can answer; `origin` of the change."""
    if (tree.root / _RULES).is_file():
        names = {"module": port.module.rpartition(".")[2], "class_": port.class_name, "origin": origin}
        yield from (f"- {name}: <!-- {ask.format(**names)} -->" for name, ask in _OPEN.items())


def _test_plan(port: AnyPort, change: PortChange) -> Iterator[str]:
    """The commands for a reviewer. One who has the tool has its descriptors; another one is part of the text."""
    yield "```sh"
    for path in change.added:
        if path.startswith("tests/"):
            yield f"pytest {path} -k {shlex.quote(' or '.join(entry.key for entry in port.tests))}"
    own = None if port.shipped else Path(port.file)
    yield shlex.join(["vitcg-scaffold", "verify", _name(port), "--vllm", ".", "--tail", "all"])
    yield "```"
    if own is not None:
        yield from ("", "<details>", f"<summary>The descriptor, <code>{own.name}</code></summary>", "")
        # The first line of a draft leads the author's editor to a file of the author's machine.
        lines = _readable(own).rstrip("\n").split("\n")
        shared = lines[1:] if lines[0].startswith(EDITOR_LINE) else lines
        yield from ("````yaml", *shared, "````", "", "</details>")


def _name(port: AnyPort) -> str:
    """A descriptor as a reviewer's command takes it."""
    return port.name if port.shipped else Path(port.file).name


def _verification(proof: ProofOnRecord, change: PortChange) -> Iterator[str]:
    if proof.others:
        yield f"Not proven: {proof.beside} differs from the tree before the port, too."
        return
    if proof.outdated:
        yield f"Not proven: the last numerical proof was of something else ({'; '.join(proof.outdated)})."
        return
    if not proof.reports:
        yield "The numerical proof was not run on these files."
        return
    yield "Numerical proof with the real classes, tiny, and random weights, driven by this tree's own manager, against"
    yield "`embed_multimodal` of the tree before the change. The CPU emulates graphs:"
    yield ""
    yield "| attention kernel | modality | comparisons equal | largest relative error |"
    yield "| --- | --- | --- | --- |"
    for report in proof.reports:
        kernel = "real CUDA graphs" if report.machine else report.tail
        for modality in dict.fromkeys(check.modality for check in report.checks):
            checks = [check for check in report.checks if check.modality == modality]
            worst = max((check.max_rel for check in checks if check.max_rel is not None), default=0.0)
            passed = sum(check.passed for check in checks)
            yield f"| {kernel} | {modality} | {passed} of {len(checks)} | {worst:.3g} |"
    for report in proof.reports:
        yield f"\n{report.verdict}" + ("" if report.machine else f" ({report.tail})")
    yield "\nThese bytes ran. In a checkout of this change, `sha256sum --check` takes the lines:"
    yield from ("", "```text", *_digests(change), "```")
    if proof.basis:
        yield "\nIt was run with " + ", ".join(f"{name} `{value}`" for name, value in proof.basis.items()) + "."
    if proof.missing:
        yield f"\nNot run: {', '.join(proof.missing)}."


def _digests(change: PortChange) -> Iterator[str]:
    """The files that the lab ran: a reviewer can tell them from a later state of the branch."""
    for file in change.files:
        if file.path.startswith("vllm/") and file.after:
            yield f"{hashlib.sha256(file.after).hexdigest()}  {file.path}"


def _benchmark(port: AnyPort, benchmark: Benchmark | None) -> Iterator[str]:
    yield ""
    if benchmark is None:
        way = f"run `vitcg-scaffold bench {shlex.quote(port.reference)}` on a GPU, pass its result with --benchmark"
        yield f"<!-- no benchmark was given: {way} -->"
        return
    from scaffold.measure.benchreport import to_markdown

    yield to_markdown(benchmark)


def changed_lines(change: FileChange) -> tuple[int, int]:
    """Lines that a file gained and lost."""
    return _added_lines(change), _added_lines(FileChange(change.path, change.after, change.before))


def _added_lines(change: FileChange) -> int:
    return sum(1 for _ in _added_text(change))


def _added_text(change: FileChange) -> Iterator[str]:
    before, after = ((_text(content) or "").splitlines(keepends=True) for content in (change.before, change.after))
    for tag, _, _, start, end in line_opcodes(before, after):
        if tag != "equal":
            yield from after[start:end]


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8")
