"""The target's own style: format changed lines only, and report only what the edit made worse.

ruff runs with the configuration that applies to the file in the target tree (`--stdin-filename`), on text, never on
files. A tree without ruff settings is formatted with ruff's defaults, which are vLLM's. Those defaults also replace a
configuration that the installed ruff does not understand (rules that were removed since, a pinned version), and a
warning says so.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scaffold.changes import line_opcodes
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.files import read_regular

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found]  # pragma: no cover (Python 3.10)

#: Rules without a usable configuration of the target: real errors and the order of imports.
_FALLBACK_RULES = "E4,E5,E7,E9,F,I"
#: The rule on the order of imports.
_IMPORTS = "I001"
_TIMEOUT_SECONDS = 60
_BOM = "\ufeff"
_CONFIG_ERROR = 2
#: Settings that may extend each other.
_MAX_EXTENDED = 20
#: Bytes of settings, and dots in a line of them: a key of 40,000 parts cost a run 14 s.
_MAX_BYTES, _MAX_DOTS = 1_000_000, 200
#: The variables that ruff gets. It would put others into paths where the settings say so.
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of ruff: standard output, and why the target's configuration was not used (None if it was)."""

    output: str
    fallback_reason: str | None


#: Put imports in the target's order, and change nothing else.
_SORT = ("check", "--fix-only", "--exit-zero", "--select", _IMPORTS)


def format_changed(before: str | None, after: str, *, path: str, config_root: Path) -> str:
    """`after` in the target's format; if the file was not in it, only the changed lines are.

    `path` is relative to `config_root`, the tree's root. A new file has `before` None.
    Anything but Python is returned as it is. Errors: VCG623 (ruff cannot be run).
    """
    if not path.endswith(".py") or before == after:
        return after
    if after.startswith(_BOM):  # ruff drops it
        plain = None if before is None else before.removeprefix(_BOM)
        return _BOM + format_changed(plain, after.removeprefix(_BOM), path=path, config_root=config_root)
    if before is None:  # where a package has other first-party modules than vLLM's tree
        after = _run_ruff(_SORT, after, path, config_root).output
    formatted = _run_ruff(("format",), after, path, config_root).output
    if before is None or formatted == after or is_formatted(before, path, config_root):
        return formatted
    changed = _changed_lines(before, after)
    text = _take_hunks(after, formatted, changed)
    return _format_ranges(after, changed, path, config_root) if text is None else text


def is_formatted(text: str, path: str, config_root: Path) -> bool:
    """Whether the target's `ruff format` leaves a file as it is. Errors: VCG623."""
    plain = text.removeprefix(_BOM)
    return _run_ruff(("format",), plain, path, config_root).output == plain


def check_style(before: str | None, after: str, path: str, config_root: Path) -> tuple[Diagnostic, ...]:
    """Complaints of the target's `ruff check` and `ruff format` about `after` that they did not have about `before`.

    No diagnostics, or VCG620 (a rule), VCG621 (changed lines are not in the target's format), VCG622 (warning: the
    target's configuration could not be used). Errors: VCG623.
    """
    if not path.endswith(".py") or before == after:
        return ()
    _ruff_binary()  # before the threads: `sysconfig`, which it asks, fills its table without a lock
    with ThreadPoolExecutor(2) as pool:  # ruff is another process: both runs overlap
        layout = pool.submit(format_changed, before, after, path=path, config_root=config_root)
        violations, fallback_reason = _check(after, path, config_root)
        formatted = layout.result()
    found = []
    if fallback_reason is not None:
        help_text = "the run goes on; check the change with the target's own pre-commit hooks"
        message = f"ruff does not accept the target's settings, its defaults were used: {fallback_reason}"
        found.append(Diagnostic("VCG622", message, Span(path, 1, 1, 1, 1), help_text, Severity.WARNING))
    if violations and before is not None:
        known = Counter(violation.key for violation in _check(before, path, config_root)[0])
        violations = list(_beyond(violations, known))
    found += [violation.diagnostic(path) for violation in violations]
    # Only a file that was in the target's format says what its lines have to look like: a formatter takes statements
    # as a whole, and in any other file each of them has lines that are not ours.
    if formatted != after and (before is None or is_formatted(before, path, config_root)):
        line = next(
            n for n, (a, b) in enumerate(zip([*_lines(after), ""], [*_lines(formatted), ""], strict=False), 1) if a != b
        )
        found.append(
            Diagnostic("VCG621", "the changed lines are not in the target's format", Span(path, line, 1, line, 1), _BUG)
        )
    return tuple(found)


_BUG = (
    "this is a defect of vitcg-scaffold, nothing was written: please report it with the descriptor and the vLLM release"
)


@dataclass(frozen=True, slots=True)
class _Violation:
    rule: str
    message: str
    line: int
    column: int
    source: str

    @property
    def key(self) -> tuple[str, str]:
        """The part of a violation that stays when lines above it move. Messages do not: they may quote line numbers.

        A block of imports out of order is reported at its first line, which an edit may change and leave the block so.
        """
        return self.rule, "" if self.rule == _IMPORTS else self.source

    def diagnostic(self, path: str) -> Diagnostic:
        message = f"the result breaks the target's rule {self.rule}: {self.message}"
        span = Span(path, self.line, self.column, self.line, self.column)
        return Diagnostic("VCG620", message, span, _BUG, notes=(self.source,) if self.source else ())


def _beyond(violations: list[_Violation], known: Counter[tuple[str, str]]) -> Iterator[_Violation]:
    """The violations that are not among the known ones, each known one counted once."""
    left = known.copy()
    for violation in violations:
        if left[violation.key]:
            left[violation.key] -= 1
        else:
            yield violation


def _check(text: str, path: str, config_root: Path) -> tuple[list[_Violation], str | None]:
    answer = _run_ruff(
        ("check", "--output-format", "json", "--no-fix", "--exit-zero"), text.removeprefix(_BOM), path, config_root
    )
    lines = _lines(text.removeprefix(_BOM))
    violations = []
    for item in json.loads(answer.output or "[]"):
        row = item["location"]["row"]
        source = lines[row - 1].strip() if row <= len(lines) else ""
        rule = item["code"] or item.get("name") or "syntax"
        violations.append(_Violation(rule, item["message"], row, item["location"]["column"], source))
    return violations, answer.fallback_reason


def _lines(text: str) -> list[str]:
    return list(io.StringIO(text, newline=""))


# -- ruff -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _ruff_binary() -> str:
    try:
        from ruff.__main__ import find_ruff_bin  # type: ignore[import-untyped]

        return str(find_ruff_bin())
    except (ImportError, FileNotFoundError) as error:
        raise unavailable(f"it is not installed in this environment ({error})") from None


def unavailable(
    reason: str, help_text: str = "reinstall vitcg-scaffold; ruff is one of its dependencies"
) -> DiagnosticError:
    return DiagnosticError.of("VCG623", f"ruff cannot be run: {reason}", help=help_text)


@dataclass(frozen=True, slots=True)
class _Settings:
    """The tree's own ruff settings for a folder: whether there are any, and why they cannot be used."""

    found: bool = False
    reason: str | None = None


@lru_cache(maxsize=64)
def _settings(folder: Path, config_root: Path) -> _Settings:
    """The tree's own settings of ruff. Settings above its root are somebody else's.

    All that ruff would open is regular: it would wait for a pipe. Those are the settings of each folder up to the
    root, what they extend, and every `pyproject.toml` above, which may tell the version of Python. Errors: VCG626.
    """
    found = _Settings()
    for above in (folder, *folder.parents):
        inside = above.is_relative_to(config_root)
        for name in (".ruff.toml", "ruff.toml", "pyproject.toml") if inside else ("pyproject.toml",):  # in ruff's order
            file = above / name
            if not file.exists():
                continue
            if not inside:
                if not file.is_file():
                    raise _unusable(file, "it is not a regular file")
                continue
            settings = _follow_settings(file)
            found = found if found.found else settings
    return found


def _follow_settings(file: Path) -> _Settings:
    """Read settings, what they extend, and so on, as ruff does. Errors: VCG626.

    ruff puts variables of its environment into a path. Such a path is refused: no tree decides which are read.
    """
    for extends in range(_MAX_EXTENDED):
        text = _read_settings(file)
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            return _Settings(True, f"Failed to parse {file.name}: {error}")
        if file.name == "pyproject.toml":
            tool = values.get("tool")
            values = tool.get("ruff") if isinstance(tool, dict) else None
            if values is None:
                return _Settings(extends > 0)
        extended = values.get("extend") if isinstance(values, dict) else None
        if not isinstance(extended, str):
            return _Settings(True)
        if "$" in extended:
            raise _unusable(file, f"the path in `extend` cannot be followed: `{extended}`")
        file = file.parent / (Path(extended).expanduser() if extended.startswith("~/") else extended)
    raise _unusable(file, f"more than {_MAX_EXTENDED} settings extend each other")


def _read_settings(file: Path) -> str:
    try:
        text = read_regular(file, limit=_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise _unusable(file, error.strerror or str(error)) from None
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise _unusable(file, f"a line has more than {_MAX_DOTS} dots")
    return text


def _unusable(file: Path, reason: str) -> DiagnosticError:
    return DiagnosticError.of(
        "VCG626",
        f"the tree's ruff settings cannot be used: {reason}",
        Span(str(file), 1, 1, 1, 1),
        "repair this file, or the `extend` of the settings that lead to it, and run again",
    )


@lru_cache(maxsize=64)  # a text that came in the target's format is asked about twice: by its maker and by its judge
def _run_ruff(command: tuple[str, ...], text: str, path: str, config_root: Path) -> _Answer:
    """One run over `text`; with the defaults if the target's settings are rejected. Errors: VCG623."""
    defaults = ("--isolated", *(("--select", _FALLBACK_RULES) if command[0] == "check" and command != _SORT else ()))
    settings = _settings((config_root / path).parent, config_root)
    reason = settings.reason
    if settings.found and reason is None:
        done = _call(command, (), text, path, config_root)
        if done.returncode != _CONFIG_ERROR:
            return _Answer(done.stdout, None)
        reason = _reason(done.stderr)
    done = _call(command, defaults, text, path, config_root)
    if done.returncode == _CONFIG_ERROR:  # not the settings: the text itself, or ruff
        raise unavailable(_reason(done.stderr))
    return _Answer(done.stdout, reason)


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return "; ".join(line.removeprefix("Cause: ") for line in lines[:4]) or "no reason given"


def _call(
    command: tuple[str, ...], options: tuple[str, ...], text: str, path: str, config_root: Path
) -> subprocess.CompletedProcess[str]:
    return call_ruff([*command, *options, "--stdin-filename", path, "-"], config_root, path, text)


def call_ruff(options: Sequence[str], folder: Path, what: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """One run of ruff in a folder, with `text` as its input. A message names `what` it runs on. Errors: VCG623."""
    arguments = [_ruff_binary(), *options, "--no-cache", "--quiet"]
    try:
        done = subprocess.run(
            arguments,
            input=text.encode("utf-8"),
            capture_output=True,
            cwd=folder,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except OSError as error:
        raise unavailable(str(error)) from None
    except subprocess.TimeoutExpired:
        advice = "give it more of the machine, or look for what it waits for: `ruff format --diff` in the tree"
        raise unavailable(f"it took more than {_TIMEOUT_SECONDS} s on {what}", advice) from None
    # Decoded by hand: text mode would turn CR LF into LF.
    return subprocess.CompletedProcess(
        arguments, done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")
    )


# -- changed lines ----------------------------------------------------------------------------------------------------


def _changed_lines(before: str, after: str) -> set[int]:
    """Indices of the lines of `after` that an edit touched; where it only took lines away, the lines around the gap."""
    changed: set[int] = set()
    for tag, _, _, first, last in line_opcodes(_lines(before), _lines(after)):
        if tag != "equal":
            changed.update(range(first, last) if last > first else (first - 1, first))
    return changed


def _take_hunks(after: str, formatted: str, changed: set[int]) -> str | None:
    """`after` with those of the formatter's changes that touch changed lines, None if they cannot be told apart.

    A change elsewhere means that the file was not in the target's format before; that is not ours to repair. Blank
    lines that the formatter adds or removes right beside a changed line belong to the edit.
    """
    old, new = _lines(after), _lines(formatted)
    beside = changed | {line + 1 for line in changed} | {line - 1 for line in changed}
    result: list[str] = []
    for tag, a, b, c, d in line_opcodes(old, new):
        is_blank = not "".join(old[a:b] + new[c:d]).strip()
        touched = beside if is_blank and b > a else changed
        take = tag != "equal" and any(line in touched for line in (range(a, b) if b > a else (a - 1, a)))
        if take and any(line not in changed and old[line].strip() for line in range(a, b)):
            return None
        result += new[c:d] if take else old[a:b]
    text = "".join(result)
    return text if _same_code(text, formatted) else None


@lru_cache(maxsize=16)  # formatting asks, and the check that nothing is left to format asks again
def _same_code(left: str, right: str) -> bool:
    """Whether the syntax trees are equal. It compares no statements with the same text, which are nearly all."""
    if left == right:
        return True
    try:
        statements = [list(_statements(text)) for text in (left, right)]
    except SyntaxError:
        return False
    return len(statements[0]) == len(statements[1]) and all(
        one == other or ast.dump(node) == ast.dump(its) for (one, node), (other, its) in zip(*statements, strict=True)
    )


def _statements(text: str) -> Iterator[tuple[object, ast.stmt]]:
    """The statements of a module, each behind what decides its tree: its lines, and the columns that it has of them."""
    lines = _lines(text)
    for node in ast.parse(text).body:
        first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
        yield (lines[first - 1 : node.end_lineno], node.col_offset, node.end_col_offset), node


def _format_ranges(after: str, changed: set[int], path: str, config_root: Path) -> str:
    """One run of ruff for each block of changed lines, from the last to the first, so that line numbers stay right.

    Slower than `_take_hunks`, and for files that are far from the target's format only.
    """
    count = len(_lines(after))
    blocks: list[list[int]] = []
    for line in sorted(changed & set(range(count))):
        if blocks and blocks[-1][-1] == line - 1:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    for block in reversed(blocks):
        limits = f"--range={block[0] + 1}:1-{block[-1] + 2}:1"
        after = _run_ruff(("format", limits), after, path, config_root).output
    return after
