"""Looks up the names of a descriptor in a tree: what its calls reach, what its paths read, and the keys of its inputs.

Static proofs say nothing about names: code that calls a method that is not there parses, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scaffold.descriptor.expressions import Attribute, Call, walk
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.syntax import find_method
from scaffold.tower.paths import NEAR, Answer, Found, ModelPaths

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort, Port
    from scaffold.descriptor.schema import Use
    from scaffold.protocol import ModelAnchor, SourceTree

_CORRECT = "correct the name in the descriptor"
#: Keys whose names a tree may lack: a release without the feature needs no gate, and a tower may have no switch and no
#: dtype of its own.
_MAY_BE_ABSENT = ("gates.", "data_parallel.", "pixels.dtype")


def check_names(port: AnyPort, tree: SourceTree, model: ModelAnchor) -> list[Diagnostic]:
    """Warnings about names that no source confirms (VCG463).

    Raises VCG464 for calls of anything but the model's parts and methods, and for names that are not there.
    """
    paths = ModelPaths(tree, model.path, model.class_name)
    found = [*_uses(port, paths, model), *_inputs(port, paths, tree)]
    found = list(dict.fromkeys(found))
    if wrong := [problem for problem in found if problem.severity is Severity.ERROR]:
        raise DiagnosticError(wrong)
    return found


def misspelt_names(port: Port, tree: SourceTree, model: ModelAnchor, keys: Sequence[str]) -> Iterator[Diagnostic]:
    """Names in the calls and paths of these keys that are not there, where another one is nearly the same (VCG464)."""
    paths = ModelPaths(tree, model.path, model.class_name)
    for use in port.uses:
        if use.at in keys:
            found = (one for one in _use(use, paths, model) if one.severity is Severity.ERROR)
            yield from (one for one in found if (one.help or "").startswith(NEAR))


def _uses(port: AnyPort, paths: ModelPaths, model: ModelAnchor) -> Iterator[Diagnostic]:
    for use in port.uses:
        if use.at.startswith(_MAY_BE_ABSENT) or use.scope == "part":
            continue  # `cut` looks up what a loop and an encoder are
        # The way to the encoder has found the call of a cut, with its arguments, in the model's own code.
        yield from _use(use, paths, model, but=use.value if use.scope == "cut" else None)


def _use(use: Use, paths: ModelPaths, model: ModelAnchor, but: object = None) -> Iterator[Diagnostic]:
    """The problems of a call or an expression, without those of the name of the call `but`."""
    if isinstance(use.value, Call):
        for call in use.value.calls():
            at = use.node.span_of(call.start, call.start + len(call.path))
            if call is not but:
                yield from _problem(paths.call(call.path), call.path, at, "calls", model)
            for value in call.values():
                if isinstance(value, Attribute):
                    place = use.node.span_of(value.start, value.end)
                    yield from _value(paths, value.path, place, "passes", model)
    else:
        for node in walk(use.value.root):
            if isinstance(node, Attribute):
                yield from _value(paths, node.path, use.node.span_of(node.start, node.end), "reads", model)


def _value(paths: ModelPaths, path: str, at: Span, verb: str, model: ModelAnchor) -> Iterator[Diagnostic]:
    """The problems of a path that the descriptor reads, or passes to a call. It leads to no method."""
    yield from _problem(paths.value(path), path, at, verb, model)
    if paths.is_method(path):
        yield Diagnostic(
            "VCG464", f"the descriptor {verb} `{path}`, which is a method", at, "name a part of the model or a value"
        )


def _problem(found: Found, path: str, at: Span, verb: str, model: ModelAnchor) -> Iterator[Diagnostic]:
    asked_by = f"the class is {model.path}:{model.class_name}"
    if found.answer is Answer.MISSING:
        what = f"the descriptor {verb} `{path}`, and {found.holder} has no `{found.name}`"
        yield Diagnostic("VCG464", what, at, found.hint or _CORRECT, notes=(asked_by,))
    elif found.answer is Answer.NO_PART:
        what = f"the descriptor {verb} `{path}`, which is neither a method of {found.holder} nor a part that it makes"
        yield Diagnostic("VCG464", what, at, "name a part of the model, or one of its methods", notes=(asked_by,))
    elif found.answer is Answer.UNKNOWN:
        what = f"`{path}` could not be checked: no source that was read says what {found.holder} has"
        help = found.hint or f"make sure that `{found.name}` is there: a value of the checkpoint's configuration may be"
        yield Diagnostic("VCG463", what, at, help, Severity.WARNING)


def _inputs(port: AnyPort, paths: ModelPaths, tree: SourceTree) -> Iterator[Diagnostic]:
    """Keys of inputs in the processor's field configuration, and functions that ports take from other modules."""
    for at, key in (*port.keys, *port.further_keys):
        found = paths.keyword(key) if at.endswith(".embeds") else paths.field(key)
        if found.answer is Answer.MISSING and key.endswith("_embeds"):
            read = paths.keyword(key)  # a model may take precomputed embeddings that its processor declares nowhere
            found = read if read.answer is Answer.KNOWN else found
        if found.answer is Answer.MISSING:
            yield Diagnostic(
                "VCG464",
                f"the field configuration of {found.holder} has no `{key}`",
                port.span(at),
                found.hint or _CORRECT,
            )
        elif found.answer is Answer.UNKNOWN:
            yield Diagnostic(
                "VCG463",
                f"the input `{key}` could not be checked: {found.holder} makes its fields in a way that is not read",
                port.span(at),
                found.hint or "make sure that the processor has it",
                Severity.WARNING,
            )
    if port.frames_info:
        yield from _info(paths.info_method(port.frames_info), port.span("budget.frames.info"))
    tokens = port.tokens_made
    if tokens is not None:
        file = port.tokens_module.replace(".", "/") + ".py"
        if not tree.exists(file) or find_method(tree.parse(file), tokens.function) is None:
            message = f"{tree.display(file)} defines no function `{tokens.function}`"
            yield Diagnostic("VCG464", message, port.span("item.tokens.function"), _CORRECT)
        elif not paths.uses(file, tokens.function, called=True):
            message = f"neither the model nor its processor calls `{tokens.function}` of {tree.display(file)}"
            help = "name the function by which the processor makes the input"
            yield Diagnostic("VCG464", message, port.span("item.tokens.function"), help)
    processor = port.processor
    if processor is not None:
        file = port.processor_module.replace(".", "/") + ".py"
        if tree.exists(file) and not paths.uses(file, processor.class_, called=False):
            message = f"neither the model nor its processor names `{processor.class_}` of {tree.display(file)}"
            yield Diagnostic("VCG464", message, port.span("processor.class"), "name the image processor of the model")


def _info(found: Found, at: Span) -> Iterator[Diagnostic]:
    if found.answer is Answer.MISSING:
        yield Diagnostic("VCG464", f"{found.holder} has no method `{found.name}`", at, found.hint or _CORRECT)
