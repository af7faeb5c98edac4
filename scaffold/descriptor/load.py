"""From a file or a shipped name to a descriptor. The only module of this package that touches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaffold.descriptor import kinds
from scaffold.descriptor.model import Descriptor
from scaffold.descriptor.questions import find_questions, without_answers
from scaffold.descriptor.rules import check_rules
from scaffold.descriptor.schema import Reader, Section, section_schema, suggest
from scaffold.descriptor.source import MAX_BYTES, MappingNode, Node, SequenceNode, decode_source, parse_source
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.files import read_regular

_SHIPPED = Path(__file__).parent / "shipped"

#: Gives the bytes of a file that lies beside the descriptor; raises OSError.
ReadHook = Callable[[str], bytes]


def shipped_names() -> tuple[str, ...]:
    """Names of the descriptors that come with the tool, in alphabetical order."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


def shipped_path(name: str) -> Path | None:
    """The file of a descriptor that comes with the tool, None when there is none of that name."""
    return _SHIPPED / f"{name}.yaml" if name in shipped_names() else None


def load_descriptor(reference: str | Path) -> Descriptor:
    """Read a descriptor from a path, or a shipped one by its bare name.

    Raises `DiagnosticError` with everything that is wrong with it, in the order of the text.
    """
    path = _resolve(reference)
    file = str(path) if path.parent != _SHIPPED else f"{path.stem}.yaml"
    try:
        data = read_regular(path, limit=MAX_BYTES + 1)
    except OSError as error:
        raise DiagnosticError(_unreadable(str(reference), error.strerror or str(error))) from None
    text, problems = decode_source(data, file)
    if text is None:
        raise DiagnosticError(problems)

    def read_hook(name: str) -> bytes:
        return read_regular(path.parent / name, limit=kinds.MAX_HOOK_BYTES + 1)

    return load_descriptor_text(text, file, read_hook=read_hook)


def load_descriptor_text(text: str, file: str, *, read_hook: ReadHook | None = None) -> Descriptor:
    """Read a descriptor from text; `file` is what diagnostics call it. Pure, unless `read_hook` is given.

    With `read_hook` the files of hooks are read and checked. Raises `DiagnosticError`.
    """
    root, problems = parse_source(text, file)
    if root is None:
        raise DiagnosticError(problems)
    reader = Reader(file, _helper_arities(root), problems)
    reader.spans[""] = root.span
    descriptor = Section(Descriptor).read(root, "", reader)
    questions = find_questions(root, text, file)
    sources: dict[str, str] = {}
    if descriptor is not None:
        problems += _without_guesses(check_rules(descriptor, reader), [*problems, *questions])
        if read_hook is not None:
            sources = _read_hooks(descriptor, reader, read_hook)
    problems = [*without_answers(problems, questions), *questions]
    problems = sorted(dict.fromkeys(problems), key=lambda entry: (entry.span or Span(file, 1, 1, 1, 1), entry.code))
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise DiagnosticError(problems)
    loaded: Descriptor = descriptor.replace(
        file=file,
        spans=reader.spans,
        warnings=tuple(problems),
        uses=tuple(reader.uses),
        hook_sources=sources,
    )
    return loaded


def _without_guesses(found: list[Diagnostic], problems: list[Diagnostic]) -> list[Diagnostic]:
    """Without unused names if what uses them may be what could not be read."""
    return [problem for problem in found if problem.code != "VCG305"] if problems else found


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a descriptor, for an editor's YAML server and for documentation."""
    definitions: dict[str, Any] = {}
    schema = section_schema(Descriptor, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vitcg-scaffold descriptor",
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


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
    raise DiagnosticError(
        Diagnostic(
            "VCG100",
            f"no descriptor `{reference}`: neither a file nor a shipped name",
            help=suggest(path.stem, names)
            if str(reference) == path.name
            else f"check the path; shipped descriptors are: {', '.join(names)}",
        )
    )


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


def _read_hooks(descriptor: Descriptor, reader: Reader, read_hook: ReadHook) -> dict[str, str]:
    """Sources of all hooks, each checked: it exists, is small, parses and defines the function."""
    import ast

    sources: dict[str, str] = {}
    for name, hook in (descriptor.hooks or {}).items():
        if hook is None or hook.file is None:
            continue
        span = reader.spans.get(f"hooks.{name}.file") or reader.place(f"hooks.{name}")
        try:
            data = read_hook(hook.file)
        except OSError as error:
            reason = error.strerror or str(error)
            reader.report(
                "VCG354", f"cannot read `{hook.file}`: {reason}", span, "hook files lie beside the descriptor"
            )
            continue
        if len(data) > kinds.MAX_HOOK_BYTES:
            reader.report(
                "VCG357", f"`{hook.file}` has more than {kinds.MAX_HOOK_BYTES:,} bytes", span, "a hook is one function"
            )
            continue
        try:
            source = data.decode("utf-8")
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            reader.report("VCG355", f"`{hook.file}` is not valid Python{where}: {reason}", span, "correct the file")
            continue
        kind = kinds.HOOKS[name]
        function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
        wanted = f"def {name}({', '.join(kind.parameters) if kind.parameters else '...'}):"
        if function is None:
            reader.report("VCG356", f"`{hook.file}` does not define `{name}`", span, f"write {wanted}")
            continue
        parameters = tuple(
            arg.arg for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        )
        if kind.parameters is not None and parameters != kind.parameters:
            reader.report(
                "VCG356",
                f"`{name}` in `{hook.file}` has the parameters ({', '.join(parameters)})",
                span,
                f"write {wanted}",
            )
            continue
        sources[name] = source
    return sources
