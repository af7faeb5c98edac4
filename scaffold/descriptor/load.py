"""Loads a descriptor from a file or by a shipped name. The only module of this package that touches the disk."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from scaffold.descriptor.port import AnyPort, read_port
from scaffold.descriptor.questions import find_questions, without_answers
from scaffold.descriptor.rules import check_rules
from scaffold.descriptor.schema import Reader, nearest, suggest
from scaffold.descriptor.source import (
    MAX_BYTES,
    MappingNode,
    Node,
    SequenceNode,
    decode_source,
    parse_source,
    too_large,
)
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.files import read_regular

_SHIPPED = Path(__file__).parent / "shipped"
#: Descriptors of shipped models with another layout for trees whose tower has a method for its metadata.
_IN_TREE = _SHIPPED / "in_tree"
#: How the first line of a draft begins, which leads an editor to the schema on its author's machine.
EDITOR_LINE = "# yaml-language-server:"


def shipped_names() -> tuple[str, ...]:
    """Names of the descriptors that come with the tool, in alphabetical order."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


def schema_file() -> Path:
    """The JSON Schema as a file: inside the wheel, or among the pages of a checkout."""
    packaged = Path(__file__).parent / "descriptor.schema.json"
    return packaged if packaged.is_file() else Path(__file__).parents[2] / "docs/reference/descriptor.schema.json"


def shipped_path(name: str) -> Path | None:
    """The file of a descriptor that comes with the tool, None when there is none of that name."""
    return _SHIPPED / f"{name}.yaml" if name in shipped_names() else None


def load_descriptor(reference: str | Path) -> AnyPort:
    """Read the port that a descriptor describes, from a path, or a shipped one by its bare name.

    Raises `DiagnosticError` with everything that is wrong with it, in the order of the text.
    """
    path = _resolve(reference)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", path.stem):
        raise DiagnosticError.of(
            "VCG114",
            f"a descriptor cannot be called `{path.stem}`: the generated files and messages have its name",
            Span(str(path), 1, 1, 1, 1),
            help="rename the file: letters without accents, digits, `_`, `-` and `.`",
        )
    file = str(path) if path.parent != _SHIPPED else f"{path.stem}.yaml"
    try:
        data = read_regular(path, limit=MAX_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise DiagnosticError(too_large(file)) from None
        raise DiagnosticError(_unreadable(str(reference), error.strerror or str(error))) from None
    text, problems = decode_source(data, file)
    if text is None:
        raise DiagnosticError(problems)
    loaded: AnyPort = load_descriptor_text(text, file).replace(shipped=path.parent == _SHIPPED)
    if loaded.shipped and (beside := _IN_TREE / path.name).is_file():
        text = beside.read_text("utf-8")
        in_tree = load_descriptor_text(text, f"{_IN_TREE.name}/{path.name}").replace(shipped=True)
        loaded = loaded.replace(in_tree=in_tree)
    return loaded


def load_descriptor_text(text: str, file: str) -> AnyPort:
    """The same from text; `file` is what diagnostics call it. Pure. Raises `DiagnosticError`."""
    root, problems = parse_source(text, file)
    if root is None:
        raise DiagnosticError(problems)
    reader = Reader(file, _helper_arities(root), problems)
    reader.spans[""] = root.span
    port = read_port(root, reader)
    questions = find_questions(root, text, file)
    if port is not None:
        problems += _without_guesses(check_rules(port, reader), [*problems, *questions])
    problems = [*without_answers(problems, questions), *questions]
    problems = sorted(dict.fromkeys(problems), key=lambda entry: (entry.span or Span(file, 1, 1, 1, 1), entry.code))
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise DiagnosticError(problems)
    loaded: AnyPort = port.replace(file=file, spans=reader.spans, warnings=tuple(problems), uses=tuple(reader.uses))
    return loaded


def _without_guesses(found: list[Diagnostic], problems: list[Diagnostic]) -> list[Diagnostic]:
    """Drop complaints about unused names if an unreadable part may use them."""
    return [problem for problem in found if problem.code != "VCG305"] if problems else found


def _resolve(reference: str | Path) -> Path:
    path = Path(reference)
    if path.is_file():
        return path
    shipped = shipped_path(str(reference))
    if shipped is not None:
        return shipped
    if path.is_dir():
        raise DiagnosticError(_unreadable(str(reference), "it is a directory"))
    names = shipped_names()
    raise DiagnosticError.of(
        "VCG100", f"no descriptor `{reference}`: neither a file nor a shipped name", help=_instead(path, names)
    )


def _instead(path: Path, names: tuple[str, ...]) -> str:
    """The help: a YAML file of the same folder with nearly that name, else a shipped descriptor."""
    files = sorted(one.name for one in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    beside = nearest(path.name, files) or next((one for one in files if Path(one).stem == path.name), None)
    if beside is not None:
        return f"did you mean `{path.with_name(beside)}`?"
    if len(path.parts) == 1:
        return suggest(path.stem, names)
    return f"check the path; shipped descriptors are: {', '.join(names)}"


def _unreadable(reference: str, reason: str) -> Diagnostic:
    return Diagnostic("VCG100", f"cannot read the descriptor `{reference}`: {reason}", help="name a readable YAML file")


def _helper_arities(root: Node) -> dict[str, int]:
    """Names and numbers of arguments of the helpers, which expressions need to be parsed."""
    helpers = root.get("helpers") if isinstance(root, MappingNode) else None
    arities = {}
    for entry in helpers.entries if isinstance(helpers, MappingNode) else ():
        args = entry.value.get("args") if isinstance(entry.value, MappingNode) else None
        arities[entry.key.value] = len(args.items) if isinstance(args, SequenceNode) else 1
    return arities
