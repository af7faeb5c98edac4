"""Compare generated ports with upstream's hand-written ones of the same models, by their code and by running both.

    python benchmarks/compare_upstream.py           # write docs/measured/upstream.md
    python benchmarks/compare_upstream.py --check   # exit 1 if it is not what the releases and the templates say
    python benchmarks/compare_upstream.py --run     # run upstream's ports of RELEASE in the CPU lab first, 3 minutes

The comparison covers every shipped model that RELEASE has a hand-written port of: what the classes declare, lines, the
lab's findings and the known defects. `benchmarks/results/upstream_RELEASE.json` has the findings in upstream's ports;
the matrix has those in ours. The known defects are those that `tests/lab/test_packed_defects.py` sees in each release.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import importlib
import io
import json
import re
import sys
import tokenize
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix import tree_of

if TYPE_CHECKING:
    from scaffold.edit.operations import PutMethods
    from scaffold.plan.file_plans import FilePlan
    from scaffold.plan.methods import Mixin
    from scaffold.workflow import PreparedPort

RELEASE = "0.33.0"
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / f"upstream_{RELEASE}.json"
DEFECTS = ROOT / "tests" / "lab" / "test_packed_defects.py"
PAGE = ROOT / "docs" / "measured" / "upstream.md"
#: Right results without a replay: no defect.
EAGER = "VCG657"
_CONFIG = "get_encoder_cudagraph_config"


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: no comment, docstring or blank line."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


@dataclass(frozen=True)
class Port:
    """One implementation: what it declares and handles, and its lines without blank ones (`code`: without comments).

    `mixin` is the class that it shares with other models: its name, lines and lines of code, which are not counted.
    """

    modalities: frozenset[str]
    buffers: frozenset[str]
    padded: frozenset[str]
    paths: frozenset[str]
    axes: bool
    embeddings: frozenset[str]
    flashinfer: bool
    off_with_pruning: bool
    ranks_apart: bool
    methods: frozenset[str]
    helpers: frozenset[str]
    lines: int
    code: int
    mixin: tuple[str, int, int] | None = None


def ported_models() -> list[str]:
    """The shipped models that the release has a hand-written port of."""
    from scaffold.descriptor.load import shipped_names

    return [name for name in shipped_names() if upstreams_class(name) is not None]


def upstreams_class(name: str) -> tuple[str, str] | None:
    """The file and the class that the release has its port in: the model's own, one that it inherits, or a subclass."""
    from scaffold.protocol import find_model, find_subclasses
    from scaffold.tower.source import Program
    from scaffold.workflow import load_port

    port, tree = load_port(name), tree_of(RELEASE)
    model = find_model(tree, port.module, port.class_name)
    program = Program(tree)
    method = program.method(program.owner(model.path, model.class_name), _CONFIG)
    if method is not None:
        home, owner, _ = method
        return home.file, owner.name
    # A class whose subclasses have towers of their own leaves its port to one of them, which others inherit.
    heirs = find_subclasses(tree, port.module, port.class_name)
    found = [heir for heir in heirs if find_model(tree, heir.path, heir.class_name).protocol_methods]
    return (found[0].path, found[0].class_name) if found else None


def both_ports(name: str) -> tuple[Port, Port]:
    """Upstream's port of the release, and ours in its place."""
    from scaffold.edit.operations import DropDefinition
    from scaffold.workflow import load_port, prepare_port

    port, tree = load_port(name), tree_of(RELEASE)
    prepared = prepare_port(port, tree, replace=True)
    file, block = methods_put(prepared)
    dropped = {edit.name for edit in file.edits if isinstance(edit, DropDefinition)}
    found = upstreams_class(name)
    assert found is not None, "it is compared"
    path, class_name = found
    theirs = {*block.remove, *dropped} or set(methods_of(tree.read(path), class_name))
    mixin = prepared.plan.methods.mixin
    demanded = {method.name for method in prepared.plan.profile.methods}
    own = own_port(prepared)
    return (
        describe(tree.read(path), class_name, theirs, demanded),
        replace(own, methods=own.methods | mixin.methods & demanded, mixin=measured(mixin)) if mixin else own,
    )


def methods_put(prepared: PreparedPort) -> tuple[FilePlan, PutMethods]:
    """The model's file of a planned port, and the methods that go into its class."""
    from scaffold.edit.operations import PutMethods

    file, name = prepared.plan.files[0], prepared.plan.port.class_name
    (block,) = [edit for edit in file.edits if isinstance(edit, PutMethods) and edit.class_name == name]
    return file, block


def own_port(prepared: PreparedPort) -> Port:
    """The generated port of a model, as its file has it."""
    file, block = methods_put(prepared)
    after = next((change.after or b"").decode() for change in prepared.changes if change.path == file.path)
    ours = {node.name for node in ast.parse(block.source).body if isinstance(node, ast.FunctionDef)}
    return describe(after, block.class_name, ours, {method.name for method in prepared.plan.profile.methods})


def measured(mixin: Mixin) -> tuple[str, int, int]:
    """The name of a class that models share, its lines without blank ones, and those of them that are code."""
    [owner] = [node for node in ast.parse(mixin.source).body if isinstance(node, ast.ClassDef)]
    text = mixin.source.splitlines()
    numbers = {number for number in lines_of(owner) if text[number - 1].strip()}
    return mixin.class_name, len(numbers), len(numbers & code_lines(mixin.source))


def describe(source: str, class_name: str, names: set[str], demanded: set[str]) -> Port:
    """The implementation that consists of these definitions: methods of the class, and whatever else has the name."""
    tree, text = ast.parse(source), source.splitlines()
    own = {method: node for method, node in methods_of(source, class_name).items() if method in names}
    # A helper of the tower has a name of its own; a method of another class that has one of ours is no part of it.
    beside = {name: node for node in ast.walk(tree) if (name := defined(node)) in names - own.keys()}
    parts: dict[str, ast.stmt] = {**own, **beside}
    numbers = {number for node in parts.values() for number in lines_of(node) if text[number - 1].strip()}
    config = own[_CONFIG]
    said = strings_of(*own.values())
    return Port(
        modalities=frozenset(strings_of(config) & {"image", "video"}),
        buffers=frozenset(strings_of(keyword(config, "buffer_keys"))),
        padded=frozenset(strings_of(keyword(config, "padding_logics"))),
        paths=frozenset(strings_of(keyword(config, "paths"))),
        axes=ast.unparse(keyword(config, "capture_axes")) != "()",
        embeddings=frozenset(word for word in said if word.endswith("_embeds") and word != "pos_embeds"),
        # FlashInfer wants the lengths of sequences beside their offsets.
        flashinfer=any(word.startswith("sequence_lengths") for word in strings_of(keyword(config, "buffer_keys"))),
        off_with_pruning="is_multimodal_pruning_enabled" in ast.unparse(config),
        ranks_apart=any("use_data_parallel" in ast.unparse(node) for node in parts.values()),
        methods=frozenset(own.keys() & demanded),
        helpers=frozenset(parts.keys() - demanded),
        lines=len(numbers),
        code=len(numbers & code_lines(source)),
    )


def methods_of(source: str, class_name: str) -> dict[str, ast.FunctionDef]:
    owner = next(node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == class_name)
    assert isinstance(owner, ast.ClassDef)
    return {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}


def defined(node: ast.AST) -> str:
    """The name of a function, or of the attribute that a statement sets."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return target.attr if isinstance(target, ast.Attribute) else ""


def lines_of(node: ast.stmt) -> range:
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or node.lineno) + 1)


def keyword(function: ast.FunctionDef, name: str) -> ast.AST:
    """The value that a call in the function gives for a keyword; an empty tuple where none does."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    found = [item.value for call in calls for item in call.keywords if item.arg == name]
    return found[0] if found else ast.Tuple([])


def strings_of(*nodes: ast.AST) -> set[str]:
    constants = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Constant))
    return {part.value for part in constants if isinstance(part.value, str)}


def run(name: str) -> dict[str, Any]:
    """The faults that the lab finds in upstream's own port of a model; `file` tells which source it ran."""
    from scaffold.workflow import load_port, prove_numerics

    tree = tree_of(RELEASE)
    (report,) = prove_numerics(load_port(name), tree, as_is=True, tails=("fa2",))
    assert report.failure is None, report.failure
    found = upstreams_class(name)
    assert found is not None, "it is compared"
    path, _ = found
    return {
        "file": hashlib.sha256(tree.read_bytes(path)).hexdigest()[:16],
        "checks": len(report.checks),
        "replays": report.hits,
        "negative_lengths": report.negative_lengths,
        "failed": sorted([check.code, check.modality, check.name] for check in report.checks if not check.passed),
    }


def keep(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def known_defects() -> dict[str, list[str]]:
    """The defects of DEFECTS by model, in the newest release. Its tests look for each of them in every release."""
    sys.path.insert(0, str(DEFECTS.parent))
    module = importlib.import_module(DEFECTS.stem)
    minor = int(RELEASE.split(".")[1])
    found: dict[str, list[str]] = {}
    for defect in module.DEFECTS:
        for model, releases in defect.releases.items():
            if minor in releases:
                found.setdefault(model, []).append(defect.name.partition(" ")[2])
    return found


def each_model() -> list[str]:
    """The part of the page on every model."""
    from scaffold.descriptor.load import shipped_names

    results = json.loads(RESULTS.read_text("utf-8"))["models"]
    defects, models = known_defects(), ported_models()
    assert results.keys() == set(models), "run `python benchmarks/compare_upstream.py --run`"
    found = {name: both_ports(name) for name in models}
    lines = [
        f"vLLM {RELEASE} has a hand-written port of {len(models)} shipped models, and none of "
        f"{', '.join(f'`{name}`' for name in shipped_names() if name not in found)}.",
        "",
        "| model | lines, upstream | of it code | ours | of it code | checks of the lab | upstream's fail |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    shared = sorted({ours.mixin for _, ours in found.values() if ours.mixin})
    said = ", ".join(f"`{name}` ({number} lines, {code} of them code)" for name, number, code in shared)
    lines[2:2] = [f"Models whose encoder alone is captured share a class that the table leaves out: {said}.", ""]
    lines += [row(name, *ports, results[name]) for name, ports in found.items()]
    for name, ports in found.items():
        lines += ["", *section(name, *ports, results[name], defects.get(name, []))]
    return lines


def row(name: str, theirs: Port, ours: Port, result: dict[str, Any]) -> str:
    """The line of one model in the table."""
    return (
        f"| `{name}` | {theirs.lines} | {theirs.code} | {ours.lines} | {ours.code} "
        f"| {result['checks']} | {sum(code != EAGER for code, _, _ in result['failed'])} |"
    )


def section(name: str, theirs: Port, ours: Port, result: dict[str, Any], defects: list[str]) -> list[str]:
    """The heading of one model, and how both ports of it differ."""
    return [f"## {name}", "", *differences(theirs, ours), *failures(result, defects)]


#: A field of Port, and what a port has that has more in it.
FEATURES = {
    "modalities": "modalities",
    "buffers": "recorded buffers",
    "padded": "buffers with padding of their own",
    "paths": "paths",
    "axes": "graphs for each of several shapes of one input (`capture_axes`)",
    "embeddings": "precomputed embeddings as inputs",
    "flashinfer": "lengths of sequences for FlashInfer",
    "off_with_pruning": "no graphs while pruning is on",
    "ranks_apart": "no data parallelism inside of a graph",
    "methods": "protocol methods of its own",
    "helpers": "helpers",
}


def differences(theirs: Port, ours: Port) -> list[str]:
    """The features that only one of the two has."""
    lines: list[str] = []
    for label, one, other in (("Only upstream's", theirs, ours), ("Only ours", ours, theirs)):
        parts = []
        for name, words in FEATURES.items():
            mine, its = getattr(one, name), getattr(other, name)
            if isinstance(mine, bool):
                parts += [words] if mine and not its else []
            elif mine - its:
                parts.append(f"{words} ({', '.join(f'`{item}`' for item in sorted(mine - its))})")
        lines += [f"* {label}: {'; '.join(parts) or 'nothing'}."]
    return lines


def failures(result: dict[str, Any], defects: list[str]) -> list[str]:
    """The faults that the lab finds in upstream's port, by code, and those that the tests see in it."""
    from scaffold.diagnostics.catalogue import all_codes

    lines = []
    codes: dict[str, dict[str, list[str]]] = {}
    for code, modality, check in result["failed"]:
        # Without the budgets that it ran with, and without the number of a call.
        case = re.sub(r", call \d+$", "", check).rpartition(": ")[2]
        codes.setdefault(code, {}).setdefault(case, []).append(modality)
    for code, cases in codes.items():
        is_slower = code == EAGER
        title = all_codes()[code].title
        lines.append(
            "* Upstream's runs eagerly what ours replays, or the other way round:"
            if is_slower
            else f"* Upstream's fails ({code}, {title}):"
        )
        lines += [f"    * {case} ({', '.join(dict.fromkeys(modalities))})" for case, modalities in cases.items()]
    if result["negative_lengths"]:
        lines.append(f"* Upstream's replays {result['negative_lengths']} sequences of negative length.")
    if defects:
        lines += ["* Upstream's has these known defects:", *(f"    * {defect}" for defect in defects)]
    return lines or ["* The lab finds nothing wrong with upstream's."]


HEAD = """\
<!-- made by benchmarks/compare_upstream.py from the releases and the templates: do not edit -->

# Upstream's ports, model by model

A port is its protocol methods with all that only they use. Lines are those of the release's file, without blank ones.
A script reads the differences from the code of both ports. The failures are from a run of upstream's own code in the
CPU lab.
[Compared with upstream](../compared-with-upstream.md) says what is better and what is worse.
"""


def render() -> str:
    """The page."""
    return "\n".join([HEAD, *each_model()]).strip() + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not current")
    options.add_argument("--run", nargs="*", metavar="MODEL", help="run upstream's ports in the CPU lab first [all]")
    arguments = options.parse_args()
    if arguments.run is not None:
        results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"release": RELEASE, "models": {}}
        for name in arguments.run or ported_models():
            results["models"][name] = found = run(name)
            keep(results)
            print(name, len(found["failed"]), "of", found["checks"], "checks fail", flush=True)
    page, new = PAGE.read_text("utf-8") if PAGE.exists() else "", render()
    if arguments.check:
        print(*difflib.unified_diff(page.splitlines(), new.splitlines(), lineterm="", n=0), sep="\n")
        return int(page != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
