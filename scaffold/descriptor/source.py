"""Turns YAML text into nodes with positions. It finds everything that is wrong with the text as YAML (`VCG1xx`).

The module knows nothing of descriptors. It composes its own nodes from PyYAML's events. A descriptor needs less than
YAML offers (no anchors, tags or documents), and more than `compose` gives (limits, every duplicate key, the place of a
character inside a scalar). It uses libyaml where PyYAML has it; the messages do not depend on that. (PyYAML's own
parser refuses a few texts that libyaml takes, such as a plain `a?` in braces.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scaffold.diagnostics import Diagnostic, Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A descriptor is about one page; a larger file is no descriptor.
MAX_BYTES = 128 * 1024
MAX_NODES = 5_000
MAX_DEPTH = 16

#: Characters that YAML forbids, and those that it counts as line breaks but editors do not.
_BAD_CHARACTER = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

#: A line may begin block collections at its indicators, and at a key after them.
_INDICATORS = re.compile(r"[ \t]*(?:[-?:](?:[ \t]+|$))*")
_KEY = re.compile(r"[^#].*?:(?:[ \t]|$)")
#: Brackets, and what may hide one. Behind `[`, `{`, `,` and `: ` a quote opens a quoted value, and ` #` a comment, if
#: the bracket before them is one. Else what is skipped may be anything, so it holds no brackets but pairs of them.
_GROUP = r"""[\[{][^"'#\\\[\]{}\n]*[\]}]"""
_QUOTED = rf"""(?:\s*(?:"(?:[^"\\\[\]{{}}]|\\[^\[\]{{}}]|{_GROUP})*"|'(?:[^'\[\]{{}}]|{_GROUP})*'))?"""
_FLOW = re.compile(
    rf"""(?P<open>[\[{{]){_QUOTED}|(?P<close>[\]}}])|(?:,|:\s){_QUOTED}|(?<=\s)#[^\[{{\n]*$|["'#]""", re.M
)


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """One scalar. `style` is None for a plain one, else the character that opens it."""

    value: str
    style: str | None
    span: Span
    #: Offset in the line of each character of the value, plus one past the end; None if it is spread over lines.
    columns: Sequence[int] | None = field(default=None, compare=False, repr=False)

    @property
    def plain(self) -> bool:
        return self.style is None

    def span_of(self, start: int, end: int) -> Span:
        """The place of `value[start:end]` in the file; the whole scalar if that is not known."""
        if self.columns is None:
            return self.span
        last = len(self.columns) - 1
        first = self.columns[min(start, last)]
        stop = self.columns[min(end, last)]
        return Span(self.span.file, self.span.line, first + 1, self.span.line, max(stop, first + 1) + 1)


@dataclass(frozen=True, slots=True)
class SequenceNode:
    items: tuple[Node, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Entry:
    key: ScalarNode
    value: Node


@dataclass(frozen=True, slots=True)
class MappingNode:
    """Entries in text order. The first of duplicate keys stays; the others are reported."""

    entries: tuple[Entry, ...]
    span: Span

    def get(self, key: str) -> Node | None:
        return next((entry.value for entry in self.entries if entry.key.value == key), None)


Node = ScalarNode | SequenceNode | MappingNode


def decode_source(data: bytes, file: str) -> tuple[str | None, list[Diagnostic]]:
    """Decode UTF-8 bytes. The text is None if reading on makes no sense."""
    if len(data) > MAX_BYTES:
        return None, [too_large(file)]
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        help = "save the file as UTF-8"
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            help = "the file looks like UTF-16; save it as UTF-8"
        span = Span.at(file, before, len(before))
        return None, [Diagnostic("VCG102", f"byte 0x{data[error.start]:02x} is not UTF-8", span, help)]


def normalise_text(text: str) -> str:
    """The text without byte order mark and with `\\n` line ends: what all positions refer to."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def parse_source(text: str, file: str) -> tuple[Node | None, list[Diagnostic]]:
    """The nodes of one YAML document, and its faults. The node is None if nothing is readable."""
    text = normalise_text(text)
    if len(text) > MAX_BYTES:
        return None, [too_large(file)]
    bad = _BAD_CHARACTER.search(text)
    if bad is not None:
        at = Span.at(file, text, bad.start())
        name = f"U+{ord(bad.group()):04X}"
        return None, [Diagnostic("VCG104", f"the character {name} is not allowed in a descriptor", at, "delete it")]
    too_deep = _find_too_deep(text, file)
    return (None, [too_deep]) if too_deep else _Composer(text, file).compose()


def _find_too_deep(text: str, file: str) -> Diagnostic | None:
    """Report a text that may nest too deeply for a parser. It finds an upper bound of the depth in one pass.

    Nested block collections begin in growing columns, and a sequence may begin in the column of its key. So there are
    at most two for each column in which any line begins one. A bracket counts as open until it is certainly closed: no
    text since its opening may be a quote or a comment that hides the closing bracket. In brackets `a: b` is a mapping,
    too.
    """
    columns: set[int] = set()
    for number, line in enumerate(text.split("\n"), 1):
        indicators = _INDICATORS.match(line)
        assert indicators is not None, "it may be empty"
        begins = [at for at, character in enumerate(indicators.group()) if character in "-?:"]
        for at in (*begins, indicators.end()) if _KEY.match(line, indicators.end()) else begins:
            columns.add(at)
            if len(columns) > MAX_DEPTH:
                message = f"values begin in more than {MAX_DEPTH} columns"
                return Diagnostic("VCG108", message, Span(file, number, at + 1, number, at + 2), "no field needs that")
    unclosed: list[bool] = []  # whether all text since the opening bracket is clear
    for token in _FLOW.finditer(text):
        if token["open"]:
            unclosed.append(True)
            if len(unclosed) > MAX_DEPTH:
                where = Span.at(file, text, token.start())
                help = "no field needs that; close those before, in comments and prompts, too"
                return Diagnostic("VCG108", f"more than {MAX_DEPTH} brackets are open here", where, help)
        elif token["close"] and unclosed and unclosed[-1]:
            unclosed.pop()
        elif unclosed and token.group() in ("'", '"', "#"):
            unclosed[-1] = False
    return None


def too_large(file: str) -> Diagnostic:
    return Diagnostic(
        "VCG105",
        f"the file has more than {MAX_BYTES:,} bytes",
        Span(file, 1, 1, 1, 1),
        "a descriptor is about one page of YAML; is this the right file?",
    )


class _StopComposing(Exception):
    """The document cannot be read further; the last problem says why."""


class _Composer:
    """Events to nodes, with limits and without anchors, tags and further documents."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.file = file
        self.problems: list[Diagnostic] = []
        self.count = 0

    def compose(self) -> tuple[Node | None, list[Diagnostic]]:
        import yaml

        try:
            self.events: Iterator[Any] = yaml.parse(self.text, Loader=_loader())
            return self.document(), self.problems
        except _StopComposing:
            return None, self.problems
        except (yaml.YAMLError, ValueError) as error:  # ValueError: PyYAML's own, of an escape of no character
            return None, [*self.problems, self.syntax_error(error)]

    def document(self) -> Node | None:
        import yaml

        event = self.advance()
        while isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent)):
            event = self.advance()
        if isinstance(event, yaml.StreamEndEvent):
            help = "start with `schema: 1`, or let `vitcg-scaffold init` draft it from the model's source"
            self.report("VCG106", "the descriptor is empty", Span(self.file, 1, 1, 1, 1), help)
            return None
        root = self.node(event)
        event = self.advance()
        while not isinstance(event, yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                self.report(
                    "VCG107", "a second document starts here", self.span(event), "write one file for each model"
                )
                raise _StopComposing
            event = self.advance()
        return root

    def report(self, code: str, message: str, span: Span, help: str | None = None, *notes: str) -> None:
        self.problems.append(Diagnostic(code, message, span, help, notes=notes))

    def advance(self) -> Any:
        return next(self.events)

    def node(self, event: Any) -> Node:
        import yaml

        self.count += 1
        if self.count > MAX_NODES:
            self.report("VCG105", f"the descriptor has more than {MAX_NODES:,} values", self.span(event), "shorten it")
            raise _StopComposing
        if isinstance(event, yaml.AliasEvent):
            self.report_anchor(event, f"`*{event.anchor}` refers to another part of the file")
            return ScalarNode("", "*", self.span(event))
        if event.anchor is not None:
            self.report_anchor(event, f"`&{event.anchor}` marks an anchor")
        if event.tag is not None and event.tag != "!":
            message = f"the tag `{event.tag.replace('tag:yaml.org,2002:', '!!')}` is not allowed"
            self.report("VCG112", message, self.span(event), "delete it; types are fixed")
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(item := self.advance(), yaml.SequenceEndEvent):
                items.append(self.node(item))
            return SequenceNode(tuple(items), self.span(event, item))
        return self.mapping(event)

    def report_anchor(self, event: Any, what: str) -> None:
        help = "write the value out where it is used; names for expressions belong under `let`"
        self.report("VCG109", f"{what}, which descriptors do not have", self.span(event), help)

    def mapping(self, event: Any) -> MappingNode:
        import yaml

        entries: list[Entry] = []
        seen: dict[str, Span] = {}
        while not isinstance(key_event := self.advance(), yaml.MappingEndEvent):
            key = self.node(key_event)
            value = self.node(self.advance())
            if not isinstance(key, ScalarNode) or key.style in ("*", "|", ">"):
                if not (isinstance(key, ScalarNode) and key.style == "*"):
                    self.report("VCG111", "a key must be a plain word", key.span, "write `name: value`")
            elif key.value in seen:
                first = f"first given at {seen[key.value]}"
                self.report("VCG110", f"the key `{key.value}` is given twice", key.span, "delete one of the two", first)
            else:
                seen[key.value] = key.span
                entries.append(Entry(key, value))
        return MappingNode(tuple(entries), self.span(event, key_event))

    def span(self, first: Any, last: Any = None) -> Span:
        start, end = first.start_mark, (last or first).end_mark
        line, column, end_line, end_column = start.line, start.column, end.line, end.column
        if line >= len(self.lines):  # the place of something missing at the end of the text
            line, column = len(self.lines) - 1, len(self.lines[-1])
        # Block collections and block scalars end at the start of the next token: go back to the last text.
        end_line = min(end_line, len(self.lines) - 1)
        while end_line > line and not self.lines[end_line][:end_column].strip():
            end_line -= 1
            end_column = len(self.lines[end_line].rstrip())
        end_line, end_column = max((end_line, end_column), (line, column))
        return Span(self.file, line + 1, column + 1, end_line + 1, end_column + 1)

    def scalar(self, event: Any) -> ScalarNode:
        style = event.style or None
        span = self.span(event)
        if not event.value.isascii() and re.search("[\ud800-\udfff]", event.value):  # libyaml refuses the escape itself
            self.report("VCG101", "not valid YAML: an escape stands for no character", span)
            raise _StopComposing
        columns = None
        if span.line == span.end_line and style not in ("|", ">"):
            raw = self.lines[span.line - 1]
            columns = _columns_of(raw, span.column - 1, span.end_column - 1, style, len(event.value))
        return ScalarNode(event.value, style, span, columns)

    def syntax_error(self, error: Any) -> Diagnostic:
        """One message for both parsers: where libyaml stopped, the pure parser gives the words.

        It reads to that place and no further: behind an unknown directive it reads on where libyaml does not.
        """
        import yaml

        if _loader() is not yaml.SafeLoader:
            mark: Any = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            last = mark.index if mark is not None else 0
            try:
                for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
                    if event.start_mark is not None and event.start_mark.index > last:
                        break
            except yaml.YAMLError as pure:
                error = pure
            except ValueError:  # an escape of no character: libyaml has words for that
                pass
        problem = str(getattr(error, "problem", None) or "the text is not YAML")
        context = getattr(error, "context", None)
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if "end of stream" in problem or "<stream end>" in problem:
            # The place of the opening bracket helps more than the end of the file.
            mark = getattr(error, "context_mark", None) or mark
        line, column = (mark.line, mark.column) if mark is not None else (0, 0)
        line = min(line, len(self.lines) - 1)
        column = min(column, len(self.lines[line]))
        span = Span(self.file, line + 1, column + 1, line + 1, column + 2)
        for number in (line, line - 1):
            indent = re.match(r"[ \t]*", self.lines[number]) if number >= 0 else None
            if indent is not None and "\t" in indent.group():
                where = indent.group().index("\t")
                place = Span(self.file, number + 1, where + 1, number + 1, where + 2)
                return Diagnostic("VCG103", "a tab is used for indentation", place, "indent with spaces")
        message = f"{context}: {problem}" if context else problem
        return Diagnostic("VCG101", f"not valid YAML: {message}", span, _syntax_help(problem, self.lines[line]))


def _syntax_help(problem: str, line: str) -> str:
    if "mapping values are not allowed" in problem:
        return "quote a value that contains `: `, or check the indentation"
    if "cannot start any token" in problem:
        return "quote a value that starts with a special character"
    if "quoted scalar" in problem or "end of stream" in problem:
        return "a quote is not closed"
    if line.count("[") != line.count("]") or line.count("{") != line.count("}"):
        return "a bracket or brace is not closed"
    return "check the indentation and the brackets of this line and of the line above"


def _columns_of(line: str, start: int, end: int, style: str | None, length: int) -> Sequence[int] | None:
    """For each character of a one-line scalar's value the column (from 0) of the character that wrote it."""
    if style is None:
        return range(start, end + 1) if end - start == length else None
    columns: list[int] = []
    at = start + 1
    widths = {"x": 4, "u": 6, "U": 10}
    while at < end - 1:
        columns.append(at)
        if style == "'" and line[at] == "'":
            at += 2
        elif style == '"' and line[at] == "\\":
            at += widths.get(line[at + 1], 2)
        else:
            at += 1
    columns.append(end - 1)
    return tuple(columns) if len(columns) == length + 1 else None


def _loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
