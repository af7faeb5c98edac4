"""The description of a pull request, from what is in a tree and what was run; and rules that can be checked offline.

Two values pass through: `PortChange` (which files a port changed, with their bytes before and after) and `RuleResult`
(one rule of the target's contribution guide). The form of the text is the target's own: its pull request template names
the headings, and the checklist below them is left for the contributor to tick.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.changes import FileChange
from scaffold.descriptor import CutPort, PackedPort, PathsPort, RowsPort
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.measure.benchreport import Benchmark
    from scaffold.plan import Plan
    from scaffold.protocol import SourceTree
    from scaffold.verify.numeric import NumericReport

TEMPLATE = ".github/PULL_REQUEST_TEMPLATE.md"
#: Added lines in the package above which vLLM asks for an RFC first (contributing guide, "Notes for Large Changes").
RFC_LINES = 500


@dataclass(frozen=True)
class PortChange:
    """A port that stands in a tree. `base` is the root of the tree before it, but for what `files` had before."""

    plan: Plan
    tree: SourceTree
    base: Path
    files: tuple[FileChange, ...]

    @property
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


def find_change(port: AnyPort, tree: SourceTree, base: SourceTree | None) -> PortChange:
    """What `port` changed in `tree`, against `base` or against what the last `new` of this model found there.

    Raises `DiagnosticError`: VCG511 when the port is not in the tree, or is not what the tool generates today; VCG512
    when nothing says what the tree held before.
    """
    from scaffold.publish import published_changes
    from scaffold.workflow import prepare_port

    prepared = prepare_port(port, tree, replace=True)
    if prepared.changed:
        paths = ", ".join(change.path for change in prepared.changed)
        raise DiagnosticError(
            Diagnostic(
                "VCG511",
                f"the tree does not hold the generated port of {port.name}: {paths} would change",
                port.span("model"),
                f"run `vitcg-scaffold new {port.name} --vllm ...` first, or look at the difference with --diff",
            )
        )
    if base is not None:
        paths_changed = [file.path for file in prepared.plan.files]
        changes = [FileChange(path, base.read_bytes(path), tree.read_bytes(path)) for path in paths_changed]
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
    return PortChange(prepared.plan, tree, (base or tree).root, files)


# -- the numerical proof -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProofOnRecord:
    """What `verify` found last for these files: nothing of the tree is run for it.

    `missing` are the attention kernels and modalities of the port that it has no comparison of.
    """

    reports: tuple[NumericReport, ...]
    missing: tuple[str, ...]

    def rule(self, command: str) -> RuleResult:
        """As one of the rules, open where something was not run on these files; `command` runs it."""
        rule = "the numerical proof of these files passed"
        if not self.reports:
            return RuleResult(rule, None, f"none is on record; run `{command}`")
        if not all(report.passed for report in self.reports):
            return RuleResult(rule, False, f"the last one failed: `{command}`")
        if self.missing:
            return RuleResult(rule, None, f"not run: {', '.join(self.missing)}; run `{command}`")
        return RuleResult(rule, True)


def find_proof(change: PortChange, port: AnyPort) -> ProofOnRecord:
    """The last result of `verify` for the changed files and the tree before them."""
    from scaffold.verify.proofs import find_reports, identify_proof
    from scaffold.workflow import tails_of

    before = {file.path: file.before or b"" for file in change.files}
    after = {file.path: file.after for file in change.files if file.after}
    reports = find_reports(identify_proof(port.name, change.base, before, after))
    done = {(report.tail, check.modality) for report in reports if not report.machine for check in report.checks}
    missing = [
        f"{tail} {modality}"
        for tail in tails_of(port, change.tree)
        for modality in port.modalities
        if (tail, modality) not in done
    ]
    return ProofOnRecord(reports, tuple(missing))


# -- the target's rules ------------------------------------------------------------------------------------------------


def check_rules(change: PortChange) -> Iterator[RuleResult]:
    """The rules of vLLM's contributing guide that can be judged without a network, in its order."""
    from scaffold.verify.style import check_style

    python = [file for file in change.files if file.path.endswith(".py") and file.after]
    found = [
        diagnostic
        for file in python
        for diagnostic in check_style(_text(file.before), _text(file.after) or "", file.path, change.tree.root)
        if diagnostic.severity is Severity.ERROR
    ]
    yield RuleResult("the linter's configuration of the tree is satisfied", not found, "; ".join(map(str, found)))
    headers = [file.path for file in python if "SPDX-License-Identifier" not in (_text(file.after) or "")[:400]]
    yield RuleResult("every Python file starts with the licence header", not headers, ", ".join(headers))
    tests = [path for path in change.added if path.startswith("tests/")]
    yield RuleResult("the change has tests", bool(tests), ", ".join(tests) or "no file below tests/ is changed")
    docs = [path for path in change.added if path.startswith("docs/")]
    detail = ", ".join(docs) or "no file below docs/ is changed"
    yield RuleResult("what users can run is documented", bool(docs), detail)
    size = sum(lines for path, lines in change.added.items() if path.startswith("vllm/"))
    rule = f"at most {RFC_LINES} added lines in the package, else an RFC comes first"
    yield RuleResult(rule, size <= RFC_LINES, str(size))
    yield from _git_rules(change)


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


def pull_request_title(port: AnyPort) -> str:
    """A title with the tags that the guide asks for."""
    return f"[Model][Multimodal] Support encoder CUDA graphs for {port.class_name}"


def describe_change(
    change: PortChange,
    port: AnyPort,
    *,
    proof: ProofOnRecord,
    benchmark: Benchmark | None = None,
    command: str,
) -> str:
    """The description in Markdown, under the headings of the tree's own template."""
    purpose = list(_purpose(port, change))
    plan = list(_test_plan(port, change, command))
    result = [*_verification(proof), *_benchmark(benchmark)]
    notes = list(_design_notes(port, change))
    sections = {
        "Purpose": [*purpose, "", *notes],
        "Test Plan": plan,
        "Test Result": result,
        "Overview": purpose[:1],
        "Claims": purpose[1:],
        "Validation": [*plan, "", *result],
        "Details": notes,
    }
    headings, rest = _template(change.tree)
    lines: list[str] = []
    for heading in headings:
        lines += [f"## {heading}", "", *sections.get(heading, ["<!-- please fill in -->"]), ""]
    return "\n".join(lines) + (f"{rest}\n" if rest else "")


def _template(tree: SourceTree) -> tuple[list[str], str]:
    """The headings of the tree's template and what follows them; the usual headings where a tree has none."""
    path = tree.root / TEMPLATE
    if not path.is_file():
        return ["Purpose", "Test Plan", "Test Result"], ""
    head, rule, rest = path.read_text(encoding="utf-8").partition("\n---\n")
    headings = re.findall(r"^## (.+?)\s*$", head, re.MULTILINE)
    return headings or ["Purpose", "Test Plan", "Test Result"], f"---\n{rest}".rstrip() if rule else ""


def _purpose(port: AnyPort, change: PortChange) -> Iterator[str]:
    kinds = " and ".join(port.modalities)
    yield (
        f"Run the vision encoder of `{port.class_name}` as CUDA graphs ({kinds}), by implementing "
        "`SupportsEncoderCudaGraph`."
    )
    yield ""
    for file in change.plan.files:
        if file.path in change.added:
            yield f"- {file.reason}: `{file.path}` (+{change.added[file.path]} lines)"
    if change.plan.split is not None:
        yield "- eager results stay bit-identical: statements of the tower were moved, none was changed"


def _design_notes(port: AnyPort, change: PortChange) -> Iterator[str]:
    yield f"- Layout `{port.layout}`; protocol generation `{change.plan.profile.generation.name}`, read from this tree."
    if isinstance(port, PathsPort):
        for path in (port.single, port.many):
            yield f"- Path `{path.name}`: `{path.count.text}` tiles an item, `{path.tokens.text}` tokens each."
    elif isinstance(port, CutPort):
        yield f"- The graph holds `{port.forward.call.text}` alone; the model's own code assembles its features."
        yield "- An item that holds no units of the captured shape is left to the model's own code."
    elif isinstance(port, RowsPort):
        yield f"- The graph holds `{port.forward.encoder}` alone; the model's own code assembles its features."
        yield "- What the encoder takes is recorded at start-up. A call that has anything else in it runs eagerly."
    else:
        yield f"- An item has `{port.item.rows.text}` input rows and `{port.item.tokens.text}` output tokens."
    if isinstance(port, PackedPort):
        if port.buffers:
            yield f"- Buffers {', '.join(f'`{name}`' for name in port.buffers)}: zeros behind a batch."
        for set_ in port.sequences:
            assert set_.count is not None, "`PackedPort.sequences` are complete"
            assert set_.longest is not None, "`PackedPort.sequences` are complete"
            yield (
                f"- Attention sequences `{set_.name}` (one a {set_.unit}): at most `{set_.count.text}`, none "
                f"longer than `{set_.longest.text}` rows, which is the bound that is frozen at the capture."
            )
    if port.gate is not None:
        yield f"- Off unless `{port.gate.text}`."
    yield "- What no graph holds (tokens, items, frames, ready embeddings) runs eagerly."


def _test_plan(port: AnyPort, change: PortChange, command: str) -> Iterator[str]:
    yield "```sh"
    for path in change.added:
        if path.startswith("tests/"):
            yield f"pytest {path} -k {port.name}"
    yield command
    yield "```"


def _verification(proof: ProofOnRecord) -> Iterator[str]:
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
    if proof.missing:
        yield f"\nNot run: {', '.join(proof.missing)}."


def _benchmark(benchmark: Benchmark | None) -> Iterator[str]:
    yield ""
    if benchmark is None:
        yield "<!-- no benchmark was given: run `vitcg-scaffold bench` on a GPU, pass its result with --benchmark -->"
        return
    from scaffold.measure.benchreport import to_markdown

    yield to_markdown(benchmark)


def _added_lines(change: FileChange) -> int:
    before, after = ((_text(content) or "").splitlines() for content in (change.before, change.after))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return sum(j2 - j1 for tag, _, _, j1, j2 in matcher.get_opcodes() if tag in ("insert", "replace"))


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8")
