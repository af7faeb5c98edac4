"""Count what a generated port changes beside what upstream's hand-written port of the same model changed.

    python benchmarks/compare_upstream.py           # write docs/measured/upstream.md
    python benchmarks/compare_upstream.py --check   # exit 1 if it is not what the releases and the templates say

Upstream's port is the difference between the last release without it and the first release with it. In the model's
file that is the whole difference of the two releases (read once by eye: nothing else changed there). The three lists
hold many models, so there only the model's own entry is counted, on both sides alike: an entry of the test with the
functions that came with it, a row of the table, a name in the example's list. Blank lines are not counted anywhere.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "measured" / "upstream.md"
LIST = "MODELS_SUPPORT_VIT_CUDA_GRAPH"


@dataclass(frozen=True)
class Comparison:
    """A model, the last release without upstream's port, and the first with it."""

    model: str
    before: str
    after: str


COMPARISONS = (Comparison("internvl", "0.22.0", "0.23.0"), Comparison("qwen2_vl", "0.21.0", "0.22.0"))


@dataclass(frozen=True)
class Count:
    """Lines of a change, without blank ones. `code` are the added lines that are neither comment nor docstring."""

    added: int
    removed: int
    code: int


@dataclass(frozen=True)
class Table:
    """One comparison: a row a file, and the places in the model's file."""

    title: str
    rows: tuple[tuple[str, Count, Count], ...]
    both: tuple[str, ...]
    upstream_only: tuple[str, ...]
    ours_only: tuple[str, ...]


def compare(comparison: Comparison, *, same_protocol: bool = False) -> Table:
    """Our port into the release that had none; with `same_protocol`, in the place of upstream's in the next one."""
    from scaffold.protocol import find_docs_table, find_example_list, find_model, find_test_registry, resolve_target
    from scaffold.workflow import load_port, prepare_port

    spec = load_port(comparison.model)
    before, after = (resolve_target(release).tree for release in (comparison.before, comparison.after))
    ours = prepare_port(spec, after if same_protocol else before, replace=same_protocol)
    texts = {change.path: (change.after or b"").decode() for change in ours.changes}
    model = find_model(before, spec.module, spec.class_name).path
    test, docs, example = (find(before).path for find in (find_test_registry, find_docs_table, find_example_list))
    (entry_of_ours,), (name,) = spec.tests, spec.examples
    old = before.read(model)
    rows = [(model, count(old, after.read(model)), count(old, texts[model]))]
    for path, entry in (
        (test, lambda text: test_entry(before.read(test), text, entry_of_ours.key)),
        (docs, lambda text: [line for line in text.splitlines() if f"`{spec.class_name}`" in line]),
        (example, lambda text: example_entry(text, name)),
    ):
        mine, theirs = entry(texts[path]), entry(after.read(path))
        assert mine, f"no entry of ours in {path}"
        assert theirs, f"no entry of upstream's in {path}"
        rows.append((path, *(Count(len(lines), 0, len(code_of(lines, path))) for lines in (theirs, mine))))
    places_of = [changed_places(old, text) for text in (after.read(model), texts[model])]
    # Names of the model's own class go without it.
    places = [{name.removeprefix(f"{spec.class_name}.") for name in names} for names in places_of]
    where = f"ours in its place on {comparison.after}" if same_protocol else f"ours on {comparison.before}"
    return Table(
        f"{comparison.model}: upstream's port, {comparison.before} to {comparison.after}; {where}",
        tuple(rows),
        tuple(sorted(places[0] & places[1])),
        tuple(sorted(places[0] - places[1])),
        tuple(sorted(places[1] - places[0])),
    )


def count(old: str, new: str) -> Count:
    """Lines added and removed; a changed line is one of each."""
    before, after = old.splitlines(), new.splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    added, removed = set(), set()
    for tag, first, last, start, end in matcher.get_opcodes():
        if tag != "equal":
            removed.update(i for i in range(first, last) if before[i].strip())
            added.update(i for i in range(start, end) if after[i].strip())
    return Count(len(added), len(removed), len({i + 1 for i in added} & code_lines(new)))


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


def code_of(lines: list[str], path: str) -> list[str]:
    return [line for line in lines if not (path.endswith(".py") and line.lstrip().startswith("#"))]


def test_entry(before: str, text: str, key: str) -> list[str]:
    """Lines of the model's entry in the generation test, and of the functions that it uses and `before` has not."""
    tree, lines = ast.parse(text), text.splitlines()
    known = {node.name for node in ast.parse(before).body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == key and isinstance(value, ast.Call):
                    used = {inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name)}
                    functions = [
                        item for item in tree.body if isinstance(item, ast.FunctionDef) and item.name in used - known
                    ]
                    spans = [(item.lineno, item.end_lineno) for item in functions] + [(name.lineno, value.end_lineno)]
                    found = [line for first, last in spans for line in lines[first - 1 : last]]
                    return [line for line in found if line.strip()]
    return []


def example_entry(text: str, key: str) -> list[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == LIST:
            assert isinstance(node.value, ast.List)
            return [item.value for item in node.value.elts if isinstance(item, ast.Constant) and item.value == key]
    return []


def changed_places(old: str, new: str) -> set[str]:
    """Methods, class headers and imports that differ: `Class.method`, `class Class`, `imports`."""
    before, after = places(old), places(new)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def places(source: str) -> dict[str, str]:
    found = {"imports": ""}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found["imports"] += ast.unparse(node) + "\n"
        elif isinstance(node, ast.ClassDef):
            found[f"class {node.name}"] = ", ".join(map(ast.unparse, [*node.bases, *node.decorator_list]))
            for item in node.body:
                name = getattr(item, "name", None)
                found[f"{node.name}.{name}" if name else f"body of {node.name}"] = ast.unparse(item)
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = ast.unparse(node)
    return found


HEAD = """\
<!-- made by benchmarks/compare_upstream.py from the releases and the templates: do not edit -->

# Lines beside upstream's

InternVL was ported by hand between vLLM 0.22 and 0.23, Qwen2-VL between 0.21 and 0.22. The tool generates both ports
into the last release without them. A script counts the lines of both and reads the places from the syntax trees.
[Compared with upstream](../compared-with-upstream.md) says what is better and what is worse.

"Ours on" the older release speaks that release's protocol. "In its place" is `--replace` on the newer release: the same
protocol as upstream's, counted from the same older file. Blank lines do not count. *code* are the added lines without
comments and docstrings.
"""


def render() -> str:
    """The page."""
    lines = [HEAD]
    for comparison in COMPARISONS:
        for same_protocol in (False, True):
            table = compare(comparison, same_protocol=same_protocol)
            lines += [
                f"## {table.title}",
                "",
                "| file | upstream | of it code | ours | of it code |",
                "| --- | --- | --- | --- | --- |",
            ]
            for path, theirs, mine in table.rows:
                cells = [f"+{item.added} -{item.removed} | {item.code}" for item in (theirs, mine)]
                lines.append(f"| `{Path(path).name}` | {' | '.join(cells)} |")
            sums = [
                Count(*(sum(getattr(row[side], name) for row in table.rows) for name in ("added", "removed", "code")))
                for side in (1, 2)
            ]
            cells = [f"+{item.added} -{item.removed} | {item.code}" for item in sums]
            lines += [f"| all | {' | '.join(cells)} |", ""]
            for label, names in (
                ("Changed by both", table.both),
                ("By upstream only", table.upstream_only),
                ("By ours only", table.ours_only),
            ):
                lines.append(f"{label}: {', '.join(f'`{name}`' for name in names) or 'nothing'}.")
                lines.append("")
    return "\n".join(lines).strip() + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not current")
    arguments = options.parse_args()
    page, new = PAGE.read_text("utf-8") if PAGE.exists() else "", render()
    if arguments.check:
        print(*difflib.unified_diff(page.splitlines(), new.splitlines(), lineterm="", n=0), sep="\n")
        return int(page != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
