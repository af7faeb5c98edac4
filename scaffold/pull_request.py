"""The description of a pull request, from what is in a tree and what was run; and rules that can be checked offline.

Two values pass through: `PortChange` (which files a port changed, with their bytes before and after) and `RuleResult`
(one rule of the target's contribution guide). The form of the text is the target's own: its pull request template names
the headings, and the checklist below them is left for the contributor to tick.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.changes import FileChange
from scaffold.descriptor import PackedPort, PathsPort
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
    """A port that stands in a tree. `base` is the tree before it: the root of a pristine one."""

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


def find_change(spec: AnyPort, tree: SourceTree, base: SourceTree | None, scratch: Path) -> PortChange:
    """The port of `spec` in `tree`, against `base` or against what the last `new` of this model found there.

    Raises `DiagnosticError`: VCG511 when the port is not in the tree, or is not what the tool generates today; VCG512
    when nothing says what the tree held before.
    """
    from scaffold.publish import published_changes
    from scaffold.verify.numeric.overlay import build_overlay
    from scaffold.workflow import prepare_port

    port = prepare_port(spec, tree, replace=True)
    if port.changed:
        paths = ", ".join(change.path for change in port.changed)
        raise DiagnosticError(
            Diagnostic(
                "VCG511",
                f"the tree does not hold the generated port of {spec.name}: {paths} would change",
                spec.span("model"),
                f"run `vitcg-scaffold new {spec.name} --vllm ...` first, or look at the difference with --diff",
            )
        )
    if base is not None:
        paths_changed = [file.path for file in port.plan.files]
        changes = [FileChange(path, base.read_bytes(path), tree.read_bytes(path)) for path in paths_changed]
        files = tuple(change for change in changes if not change.is_noop)
        root = base.root
    else:
        files = published_changes(tree.root, f"new {spec.name}")
        root = scratch / "base"
        build_overlay(tree.root, {change.path: change.before or b"" for change in files}, root)
    if not files:
        raise DiagnosticError(
            Diagnostic(
                "VCG512",
                f"nothing tells what {tree.label} held before the port of {spec.name}",
                spec.span("model"),
                "name the tree before the port: --base PATH, or --base RELEASE",
            )
        )
    return PortChange(port.plan, tree, root, files)


def prove_change(
    change: PortChange, spec: AnyPort, recipe: str | None = None, progress: Callable[[str], None] | None = None
) -> list[NumericReport]:
    """The numerical proof of the changed files against the tree before them, with every attention kernel."""
    from dataclasses import replace

    from scaffold.verify.numeric import check_numerics_all
    from scaffold.workflow import numeric_requests, tails_of

    overlay = {file.path: file.after for file in change.files if file.after and file.path.startswith("vllm/")}
    requests = numeric_requests(spec, change.tree, tails=tails_of(spec, change.tree), as_is=True, recipe=recipe)
    return list(
        check_numerics_all(
            [replace(request, tree=change.base, overlay=overlay) for request in requests], progress=progress
        )
    )


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


def pull_request_title(spec: AnyPort) -> str:
    """A title with the tags that the guide asks for."""
    return f"[Model][Multimodal] Support encoder CUDA graphs for {spec.class_name}"


def describe_change(
    change: PortChange,
    spec: AnyPort,
    *,
    reports: Sequence[NumericReport] = (),
    benchmark: Benchmark | None = None,
    command: str = "",
) -> str:
    """The description in Markdown, under the headings of the tree's own template."""
    purpose = list(_purpose(spec, change))
    plan = list(_test_plan(spec, change, command))
    result = [*_verification(reports), *_benchmark(benchmark)]
    notes = list(_design_notes(spec, change))
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


def _purpose(spec: AnyPort, change: PortChange) -> Iterator[str]:
    kinds = " and ".join(spec.modalities)
    yield (
        f"Run the vision encoder of `{spec.class_name}` as CUDA graphs ({kinds}), by implementing "
        "`SupportsEncoderCudaGraph`."
    )
    yield ""
    for file in change.plan.files:
        if file.path in change.added:
            yield f"- {file.reason}: `{file.path}` (+{change.added[file.path]} lines)"
    if change.plan.split is not None:
        yield "- eager results stay bit-identical: statements of the tower were moved, none was changed"


def _design_notes(spec: AnyPort, change: PortChange) -> Iterator[str]:
    yield f"- Layout `{spec.layout}`; protocol generation `{change.plan.profile.generation.name}`, read from this tree."
    if isinstance(spec, PathsPort):
        for path in (spec.single, spec.many):
            yield f"- Path `{path.name}`: `{path.count.text}` tiles an item, `{path.tokens.text}` tokens each."
    else:
        yield f"- An item has `{spec.item.rows.text}` input rows and `{spec.item.tokens.text}` output tokens."
    if isinstance(spec, PackedPort):
        if spec.buffers:
            yield f"- Buffers {', '.join(f'`{name}`' for name in spec.buffers)}: zeros behind a batch."
        for set_ in spec.sequences:
            assert set_.count is not None, "`PackedPort.sequences` are complete"
            assert set_.longest is not None, "`PackedPort.sequences` are complete"
            yield (
                f"- Attention sequences `{set_.name}` (one a {set_.unit}): at most `{set_.count.text}`, none "
                f"longer than `{set_.longest.text}` rows, which is the bound that is frozen at the capture."
            )
    if spec.gate is not None:
        yield f"- Off unless `{spec.gate.text}`."
    yield "- What no graph holds (tokens, items, frames, ready embeddings) runs eagerly."


def _test_plan(spec: AnyPort, change: PortChange, command: str) -> Iterator[str]:
    yield "```sh"
    for path in change.added:
        if path.startswith("tests/"):
            yield f"pytest {path} -k {spec.name}"
    if command:
        yield command
    yield "```"


def _verification(reports: Sequence[NumericReport]) -> Iterator[str]:
    if not reports:
        yield "<!-- the numerical proof was not run: run `vitcg-scaffold verify` -->"
        return
    yield "Numerical proof on the CPU: the real classes, tiny, with random weights and emulated graphs, driven by this"
    yield "tree's own manager, against `embed_multimodal` of the tree before the change:"
    yield ""
    yield "| attention kernel | modality | comparisons equal | largest relative error |"
    yield "| --- | --- | --- | --- |"
    for report in reports:
        for modality in dict.fromkeys(check.modality for check in report.checks):
            checks = [check for check in report.checks if check.modality == modality]
            worst = max((check.max_rel for check in checks if check.max_rel is not None), default=0.0)
            passed = sum(check.passed for check in checks)
            yield f"| {report.tail} | {modality} | {passed} of {len(checks)} | {worst:.3g} |"
    for report in reports:
        yield f"\n{report.lines()[-1]} ({report.tail})"


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
