"""Writes the split that a slice describes: the metadata method, and `forward` without the statements that moved.

Moved statements keep their text. Padding, overrides and device placement are around them. They act only when the caller
asks for it with an argument, so that an eager call computes what it always did, bit for bit.

* Cumulative offsets are padded by repeating the last one (empty sequences). Maxima and lengths are computed from those
  of the grid: a maximum is the same, and whoever owns a buffer of lengths pads it with zeros.
* A 0-dim int32 tensor on the host, in rows, overrides a host bound (`max_seqlen`): attention reads it on the host when
  the graph is captured, and a device tensor would put a synchronisation there.
* A value that is None stays None.
* Offsets are made on the host, where no step waits for the GPU, and go to the device at the end. So does an index that
  a method of the class makes on the host and looks up in a table of the device. Both need vLLM's function for it.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.syntax import FunctionNode, find_class, find_method, first_line
from scaffold.tower.names import mentions, stores
from scaffold.tower.parts import (
    ChildSlice,
    Crossing,
    Form,
    Hazard,
    Kind,
    Label,
    MethodEdit,
    Parameter,
    Piece,
    Place,
    Replacement,
    TowerSlice,
    TowerSplit,
    flatten,
)
from scaffold.tower.slicing import METADATA_ARGUMENT, METADATA_METHOD, UPLOAD, uploads_itself
from scaffold.tower.text import SourceText, dedent, indent

#: vLLM's own line length (ruff's default).
_WIDTH = 88


def split_tower(tower: TowerSlice, *, frames: bool = True) -> TowerSplit:
    """Rewrite a sliced tower.

    Gives one edit for each class that changes, children first. Without `frames` the main sequences are items, and the
    metadata methods take no number of frames. Raises `DiagnosticError` VCG458 when the slice has
    nothing to split, or when the result cannot be written safely.
    """
    if tower.already_split:
        raise _refuse(tower, "the tower is split already", "use its metadata method as it is", None)
    if not tower.keys:
        raise _refuse(
            tower, "the tower has no metadata: nothing crosses", "no split is needed; capture it as it is", None
        )
    left = [hazard for hazard in tower.hazards if not hazard.moved and hazard.label == Label.META]
    if left:
        raise DiagnosticError([_left_behind(tower, hazard) for hazard in left])
    splitter = _Splitter(tower, child=False, frames=frames)
    edits = _edits(splitter)
    twice = next((key for key in tower.keys if tower.keys.count(key) > 1), None)
    if twice is not None:
        raise _refuse(tower, f"two values would have the key `{twice}`", "rename one of the variables", None)
    return TowerSplit(tower, tuple(edits), splitter.method_parameters())


def _left_behind(tower: TowerSlice, hazard: Hazard) -> Diagnostic:
    """A dependence on the grid's values that the split would leave in the captured part."""
    via = f" (reached through {' -> '.join(hazard.via)})" if hazard.via else ""
    return Diagnostic(
        "VCG460",
        f"`{tower.class_name}.{tower.entry}` would still do this while it is captured: {hazard.what}{via}",
        Span(hazard.file, hazard.line, 1, hazard.line, 2),
        f"{hazard.reason}; compute it from the grid outside of the captured part, or pass a tensor",
        notes=(f"`{hazard.text}`",),
    )


def _edits(splitter: _Splitter) -> list[MethodEdit]:
    """Those of a tower's children, its own, and those of its methods that look up what is on the host."""
    tower = splitter.tower
    edits: list[MethodEdit] = []
    for child in tower.children:
        edits += _edits(_Splitter(child.slice, child=True, frames=splitter.frames))
    edits.append(splitter.edit())
    return edits + [_upload_edit(tower, function) for function in dict.fromkeys(one.function for one in tower.uploads)]


def _upload_edit(tower: TowerSlice, function: FunctionNode) -> MethodEdit:
    """A method with its indices uploaded in front of where it looks them up."""
    source = SourceText(tower.source)
    lines = tower.source.split("\n")[: function.end_lineno]
    uploads = [upload for upload in tower.uploads if upload.function is function]
    added = [f"{one.index} = {UPLOAD[1]}({one.index}, {one.table}.device)" for one in uploads]
    for text, one in sorted(zip(added, uploads, strict=True), key=lambda pair: -pair[1].statement.lineno):
        lines.insert(one.statement.lineno - 1, source.indentation_of(one.statement) + text)
    text = dedent("\n".join(lines[first_line(function) - 1 :]), source.indentation_of(function)) + "\n"
    return MethodEdit(
        tower.file, tower.class_name, function.name, (), text, ((function.name, tuple(added)),), (UPLOAD,)
    )


def _refuse(tower: TowerSlice, message: str, help_text: str, node: ast.AST | None) -> DiagnosticError:
    span = None
    if node is not None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        span = Span(tower.shown, line, column, line, column + 1)
    return DiagnosticError(Diagnostic("VCG458", f"{message} (`{tower.class_name}.{tower.entry}`)", span, help_text))


@dataclass(frozen=True)
class _Offsets:
    """One cumulative crossing and its parameters."""

    crossing: Crossing
    capacity: str
    stem: str  # "" for the main one, "window_" for `cu_window_seqlens`


@dataclass(eq=False)
class _Writer:
    """Lines of one function, with what the split added to them."""

    text: str = ""
    added: list[str] = field(default_factory=list)

    def keep(self, text: str) -> None:
        """The user's own text."""
        self.text += text[1:] if text.startswith("\n") and self.text.endswith("\n\n") else text

    def add(self, text: str, indentation: str) -> None:
        """Statements of ours."""
        block = textwrap.dedent(text).strip("\n")
        self.text += indent(block, indentation) + "\n"
        self.added.extend(ast.unparse(node) for node in ast.parse(block).body)

    def blank(self) -> None:
        """An empty line, unless there is one or nothing is before it."""
        if self.text and not self.text.endswith("\n\n") and not self.text.rstrip(" ").endswith(":\n"):
            self.text += "\n"


class _Splitter:
    """Writes the two functions of one class."""

    def __init__(self, tower: TowerSlice, *, child: bool, frames: bool) -> None:
        self.tower = tower
        self.child = child
        self.frames = frames
        self.capacity = "max_frames_per_batch" if frames else "max_batch_size"
        self.source = SourceText(tower.source)
        self.function = _function(tower)
        self.indentation = self.source.indentation_of(self.function)
        self.body_indentation = self.source.indentation_of(self.function.body[0])
        self.taken = mentions(self.function)
        self.taken |= {parameter.name for parameter in tower.parameters}
        self.offsets = self._name_offsets()
        self.torch = _alias(tower.source, "torch") or "torch"
        self.stay_replacements = [Replacement(child.call, self._child_call(child)) for child in tower.children]
        self.stay_replacements += [Replacement(node, "None") for node in tower.dead_arguments]
        for call in tower.shortened:
            arguments = [self.source.expression(node, self.stay_replacements) for node in call.args[:-1]]
            shorter = f"{self.source.expression(call.func)}({', '.join(arguments)})"
            self.stay_replacements.append(Replacement(call, shorter))
        self.put_off: dict[str | None, str] = {}  # comments of uploads that go to the end
        self._check_reserved()

    def _of(self, child: ChildSlice) -> _Splitter:
        return _Splitter(child.slice, child=True, frames=self.frames)

    # ------------------------------------------------------------------ names

    def _name_offsets(self) -> tuple[_Offsets, ...]:
        cumulative = [c for c in self.tower.crossings if c.kind in (Kind.CUMULATIVE, Kind.TWO_SECTION)]
        main = next((c for c in cumulative if c.name == "cu_seqlens"), cumulative[0] if cumulative else None)
        result = []
        for crossing in cumulative:
            if crossing is main:
                result.append(_Offsets(crossing, self.capacity, ""))
            else:
                stem = crossing.name.removeprefix("cu_").replace("_seqlens", "").replace("seqlens", "") or crossing.name
                result.append(_Offsets(crossing, f"max_{stem}_seqs_per_batch", f"{stem}_"))
        return tuple(result)

    def _override(self, bound: Crossing) -> str:
        stem = next((o.stem for o in self.offsets if o.crossing.name == bound.source), "")
        return f"max_seqlen_{stem}override"

    def _bounds(self) -> list[Crossing]:
        return [crossing for crossing in self.tower.crossings if crossing.kind is Kind.HOST_BOUND]

    def method_parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the metadata method, without `self`."""
        by_name = {parameter.name: parameter for parameter in self.tower.parameters}
        result = [Parameter(name, by_name[name].annotation, None) for name in self.tower.metadata]
        result += [Parameter(p.name, p.annotation, p.default, True) for p in self.tower.constants]
        integer = "int | None"
        counts, overrides = self._capacities()
        if not self.child or counts:
            counts = [self.capacity, *counts]
        if not self.child or overrides:
            overrides = ["max_seqlen_override", *overrides]
        result += [Parameter(name, integer, "None", True) for name in dict.fromkeys((*counts, *overrides))]
        result.append(Parameter("device", f"{self.torch}.device | None", "None", True))
        return tuple(result)

    def _capacities(self) -> tuple[list[str], list[str]]:
        """Parameters that pad offsets, and those that bound their sequences, here or in a child."""
        counts = [offsets.capacity for offsets in self.offsets]
        overrides = [self._override(bound) for bound in self._bounds()]
        for child in self.tower.children:
            more = self._of(child)._capacities()
            counts, overrides = counts + more[0], overrides + more[1]
        return counts, overrides

    def _handed_down(self, child: ChildSlice) -> list[str]:
        """The capacities that a child's metadata method takes: offsets are padded in the class that makes them."""
        takes = self._of(child)
        fixed = {*child.slice.metadata, *(parameter.name for parameter in child.slice.constants), "device"}
        return [parameter.name for parameter in takes.method_parameters() if parameter.name not in fixed]

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        return name

    def _check_reserved(self) -> None:
        own = {parameter.name for parameter in self.method_parameters()} - set(self.tower.metadata) - {"device"}
        own -= {parameter.name for parameter in self.tower.constants}
        clash = sorted((own | {METADATA_ARGUMENT}) & self.taken)
        if clash:
            raise _refuse(
                self.tower,
                f"the tower uses the name `{clash[0]}` itself",
                "rename the variable; the metadata method takes a parameter of that name",
                self.function,
            )
        if METADATA_METHOD in self.tower.class_members:
            raise _refuse(
                self.tower,
                f"the class has a method `{METADATA_METHOD}` already",
                f"remove it, or let `{self.tower.entry}` take `{METADATA_ARGUMENT}` so that it is recognised",
                self.function,
            )

    # ------------------------------------------------------------------ the edit

    def edit(self) -> MethodEdit:
        """Both functions of this class."""
        method, forward = self._method(), self._forward()
        source = dedent(method.text.rstrip("\n") + "\n\n" + forward.text.rstrip("\n") + "\n", self.indentation)
        added = ((METADATA_METHOD, tuple(method.added)), (self.tower.entry, tuple(forward.added)))
        return MethodEdit(
            self.tower.file,
            self.tower.class_name,
            self.tower.entry,
            (METADATA_METHOD,),
            source.strip("\n") + "\n",
            added,
            (UPLOAD,) if self.tower.on_host else (),
        )

    # ------------------------------------------------------------------ the metadata method

    def _method(self) -> _Writer:
        writer, statements = _Writer(), _Writer()
        ind, body = self.indentation, self.body_indentation
        inner = ind + "    "
        lines = [f"{ind}def {METADATA_METHOD}(", f"{inner}self,"]
        starred = False
        for parameter in self.method_parameters():
            if parameter.keyword_only and not starred:
                lines.append(f"{inner}*,")
                starred = True
            lines.append(f"{inner}{_declare(parameter)},")
        lines.append(f"{ind}) -> {self._metadata_type()}:")
        writer.keep("\n".join(lines) + "\n")
        moved = _Writer()
        self._emit_moved(moved, self.tower.pieces, self._first_line(), top=True)
        for offsets in self.offsets:
            if offsets.crossing.pad_before is None:
                self._emit_padding(moved, offsets)
        placement = _Writer()
        self._emit_placement(placement)
        if self._uses_device(moved, placement):
            home = "self.device" if "device" in self.tower.class_members else "next(self.parameters()).device"
            statements.add(f"if device is None:\n    device = {home}", body)
        for crossing in self.tower.crossings:
            if not crossing.always:
                statements.add(f"{crossing.name} = None", body)
        for part in (moved, placement):
            if part.text:
                statements.blank()
                statements.keep(part.text.lstrip("\n"))
        statements.added += moved.added + placement.added
        statements.blank()
        entries = [f'    "{c.key}": {c.name},' for c in self.tower.crossings]
        entries += [f"    **{self._child_metadata(child)}," for child in self.tower.children]
        statements.add("return {\n" + "\n".join(entries) + "\n}", body)
        writer.keep(indent(self._docstring(), body) + "\n" + statements.text)
        writer.added += statements.added
        return writer

    def _metadata_type(self) -> str:
        nullable = any(crossing.nullable for crossing in _all_crossings(self.tower))
        return f"dict[str, {self.torch}.Tensor{' | None' if nullable else ''}]"

    def _uses_device(self, moved: _Writer, placement: _Writer) -> bool:
        replaced = any(one.text == "device" or "device=device" in one.text for one in self.tower.declassified)
        return replaced or any("device" in text for text in [*moved.added, *placement.added])

    def _first_line(self) -> int:
        """The last line before the first statement of the body that is no docstring."""
        body = self.function.body
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            return first.end_lineno or first.lineno
        return self.source.header_end(self.function)

    def _emit_moved(self, writer: _Writer, pieces: Iterable[Piece], above: int, *, top: bool) -> bool:
        """Write the moved part of a body; gives whether it has one."""
        wrote = False
        for piece in pieces:
            indentation = self.source.indentation_of(piece.node)
            if top:
                for offsets in self.offsets:
                    if offsets.crossing.pad_before is piece.node:
                        self._emit_padding(writer, offsets)
            name = uploads_itself(piece.node)
            if name in self.tower.on_host:  # at the end: what follows from it is computed on the host, too
                comments, _, _ = self._text(piece.node, above, ()).rpartition(f"{indentation}{name} =")
                self.put_off[name] = comments
            elif piece.place in (Place.MOVE, Place.BOTH):
                text = self._text(piece.node, above, self.tower.declassified)
                if any(_contains(piece.node, one.node) for one in self.tower.declassified):
                    text = _joined(text)
                writer.keep(text)
                wrote = True
            elif piece.place is Place.SPLIT:
                wrote |= self._emit_block(writer, piece, above, moved=True)
            elif piece.place is Place.STAY:
                wrote |= self._emit_children(writer, piece, indentation)
            above = piece.node.end_lineno or above
            if top:
                self._emit_after(writer, piece)
        return wrote

    def _text(self, node: ast.stmt, above: int, replacements: Sequence[Replacement]) -> str:
        """The lines of a statement, with the comments between it and line `above`."""
        if not self.source.is_alone(node):
            raise _refuse(self.tower, "a statement shares a line with another", "write it on lines of its own", node)
        return self.source.statement(node, above, replacements)

    def _emit_block(self, writer: _Writer, piece: Piece, above: int, *, moved: bool) -> bool:
        """Write one side of a split block: its header, and the bodies of that side."""
        node = piece.node
        assert isinstance(node, ast.If)
        indentation = self.source.indentation_of(node)
        body, orelse = _Writer(), _Writer()
        emit = self._emit_moved if moved else self._emit_staying
        emit(body, piece.bodies[0], self.source.header_end(node), top=False)
        if node.orelse:
            emit(orelse, piece.bodies[1], node.orelse[0].lineno - 1, top=False)
        if not body.text and not orelse.text:
            return False
        writer.keep(self.source.header(node, above))
        if body.text:
            writer.keep(body.text.lstrip("\n"))
            writer.added += body.added
        else:
            writer.add("pass", indentation + "    ")
        if orelse.text:
            if not self.source.is_elif(node.orelse):
                writer.keep(f"{indentation}else:\n")
            writer.keep(orelse.text.lstrip("\n"))
            writer.added += orelse.added
        return True

    def _emit_children(self, writer: _Writer, piece: Piece, indentation: str) -> bool:
        """The metadata of the child modules that a staying statement calls."""
        wrote = False
        for child in self.tower.children:
            if child.statement is piece.node:
                arguments = [self.source.expression(e, self.tower.declassified) for _, e in child.arguments]
                arguments += self._child_constants(child)
                arguments += [f"{name}={name}" for name in self._handed_down(child)]
                arguments.append("device=device")
                call = f"{self._child_metadata(child)} = self.{child.attribute}.{METADATA_METHOD}"
                writer.add(_wrapped(call, arguments, len(indentation)), indentation)
                wrote = True
        return wrote

    def _emit_after(self, writer: _Writer, piece: Piece) -> None:
        """Overrides right after the statement that makes a value."""
        inside = {id(node) for node in ast.walk(piece.node)}
        for crossing in self.tower.crossings:
            if crossing.definer is None or id(crossing.definer) not in inside:
                continue
            if crossing.kind is Kind.HOST_BOUND:
                parameter = self._override(crossing)
                condition = f"{parameter} is not None"
                if crossing.nullable:
                    condition += f" and {crossing.name} is not None"
                value = _wrapped(
                    f"{crossing.name} = {self.torch}.tensor",
                    [parameter, f"dtype={self.torch}.int32"],
                    len(self.body_indentation) + 4,
                )
                writer.add(f"if {condition}:\n" + indent(value, "    "), self.body_indentation)

    def _emit_padding(self, writer: _Writer, offsets: _Offsets) -> None:
        crossing, name = offsets.crossing, offsets.crossing.name
        if crossing.plain_form is not Form.TENSOR or crossing.kind is Kind.TWO_SECTION:
            raise _refuse(
                self.tower,
                f"`{name}` is cumulative, but it is not clear where its offsets are finished",
                "build it as cumulative sum with a zero in front, in statements of its own",
                crossing.definer,
            )
        count = offsets.capacity
        missing = f"{count} + 1 - len({name})"
        tail = self._fresh("empty_seqs")
        expand = _wrapped(f"{tail} = {name}[-1:].expand", [missing], len(self.body_indentation) + 4)
        lines = [expand, f"{name} = {self.torch}.cat([{name}, {tail}])"]
        writer.blank()
        if not offsets.stem:
            writer.keep(f"{self.body_indentation}# Empty sequences fill up the captured number of sequences.\n")
        body = "\n".join(indent(line, "    ") for line in lines)
        given, fewer = f"{count} is not None", f"len({name}) <= {count}"
        header = f"if {given} and {fewer}:"
        if len(self.body_indentation) + len(header) > _WIDTH:
            header = f"if (\n    {given}\n    and {fewer}\n):"
        writer.add(f"{header}\n{body}", self.body_indentation)
        writer.blank()

    def _emit_placement(self, writer: _Writer) -> None:
        """Put what may still be on the host where the graph reads it. Moving to where it is already does nothing."""
        for crossing in self.tower.crossings:
            if crossing.kind is Kind.HOST_BOUND or crossing.host is False:
                continue
            indentation = len(self.body_indentation) + (4 if crossing.nullable else 0)
            keywords = ["device=device", "non_blocking=True"]
            line = _wrapped(f"{crossing.name} = {crossing.name}.to", keywords, indentation)
            if crossing.name in self.tower.on_host:
                line = _wrapped(f"{crossing.name} = {UPLOAD[1]}", [crossing.name, "device"], indentation)
                writer.keep(self.put_off.get(crossing.name, ""))
            if crossing.nullable:
                line = f"if {crossing.name} is not None:\n" + indent(line, "    ")
            writer.add(line, self.body_indentation)

    def _docstring(self) -> str:
        lines = ['"""Compute encoder metadata outside the CUDA graph.', "", "Args:"]
        for name in self.tower.metadata:
            lines += _argument(name, "Grid of each item, in patches.")
        for parameter in self.tower.constants:
            lines += _argument(parameter.name, f"As in `{self.tower.entry}`.")
        described: set[str] = {"device"}
        for offsets in self.offsets:
            described.add(offsets.capacity)
            text = f"If set, pad `{offsets.crossing.name}` to this many sequences by repeating the last offset."
            lines += _argument(offsets.capacity, text)
        for bound in self._bounds():
            override = self._override(bound)
            if override not in described:
                described.add(override)
                lines += _argument(override, f"If set, use this as `{bound.name}`, in rows.")
        described |= {parameter.name for parameter in self.tower.constants}
        for parameter in self.method_parameters():
            if parameter.keyword_only and parameter.name not in described:
                takers = [
                    f"`self.{c.attribute}`" for c in self.tower.children if parameter.name in self._handed_down(c)
                ]
                used = f"As for {' and '.join(takers)}, which gets it." if takers else "Unused by this tower."
                lines += _argument(parameter.name, used)
        lines += _argument("device", "Where the tensors go; the device of the weights by default.")
        *most, last = [f"`{key}`" for key in self.tower.keys]
        names = f"{', '.join(most)} and {last}" if most else last
        wrapped = textwrap.wrap(f"Dict with {names}.", _WIDTH - 12, initial_indent="    ", subsequent_indent="    ")
        lines += ["", "Returns:", *wrapped]
        # From 0.31 on, vLLM's ruff asks for an empty line after the last section; no release forbids it.
        return "\n".join([*lines, "", '"""'])

    # ------------------------------------------------------------------ forward

    def _forward(self) -> _Writer:
        writer = _Writer()
        writer.keep(self._signature())
        first = self.function.body[0]
        spaced = False  # an empty line below the docstring is kept, and none is made: rule D202 from 0.31 on
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            writer.keep(self._text(first, self.function.lineno, ()))
            spaced = not self.source.lines[first.end_lineno or first.lineno].strip()
        self.bound: set[str] = set()
        self.announced = False
        part = _Writer()
        self._emit_staying(part, self.tower.pieces, self._first_line(), top=True)
        writer.keep(("\n" if spaced else "") + part.text.lstrip("\n"))
        writer.added += part.added
        return writer

    def _signature(self) -> str:
        ind = self.indentation
        inner = ind + "    "
        lines = [f"{ind}def {self.tower.entry}(", f"{inner}self,"]
        positional = [parameter for parameter in self.tower.parameters if not parameter.keyword_only]
        optional_from = len(positional)
        if self.child:
            while optional_from and (
                positional[optional_from - 1].default is not None
                or positional[optional_from - 1].name in self.tower.metadata
            ):
                optional_from -= 1
        for index, parameter in enumerate(positional):
            annotation, default = parameter.annotation, parameter.default
            if parameter.name in self.tower.metadata:
                if _is_widened(annotation):
                    annotation = f"{annotation} | None"
                if default is None and index >= optional_from:
                    default = "None"
            lines.append(f"{inner}{_declare(Parameter(parameter.name, annotation, default))},")
        vararg = self.function.args.vararg
        lines.append(f"{inner}*{ast.unparse(vararg)}," if vararg is not None else f"{inner}*,")
        for parameter in self.tower.parameters:
            if parameter.keyword_only:
                lines.append(f"{inner}{_declare(parameter)},")
        lines.append(f"{inner}{METADATA_ARGUMENT}: {self._metadata_type()} | None = None,")
        if self.function.args.kwarg is not None:
            lines.append(f"{inner}**{ast.unparse(self.function.args.kwarg)},")
        returns = f" -> {ast.unparse(self.function.returns)}" if self.function.returns is not None else ""
        lines.append(f"{ind}){returns}:")
        return "\n".join(lines) + "\n"

    def _emit_staying(self, writer: _Writer, pieces: Iterable[Piece], above: int, *, top: bool) -> None:
        for piece in pieces:
            if top:
                self._emit_bindings(writer, piece)
            if piece.place in (Place.STAY, Place.BOTH):
                writer.keep(self._text(piece.node, above, self.stay_replacements))
            elif piece.place is Place.SPLIT:
                self._emit_block(writer, piece, above, moved=False)
            above = piece.node.end_lineno or above

    def _emit_bindings(self, writer: _Writer, piece: Piece) -> None:
        """In front of the first statement that reads metadata: get all of it that nothing else writes."""
        inside = {id(node) for node in ast.walk(piece.node)}
        used = [c for c in self.tower.crossings if any(id(user) in inside for user in c.users)]
        children = [child for child in self.tower.children if id(child.statement) in inside]
        if not used and not children:
            return
        indentation = self.body_indentation
        wanted = list(used)
        if not self.announced:
            self.announced = True
            arguments = list(self.tower.metadata) + [f"{p.name}={p.name}" for p in self.tower.constants]
            call = _wrapped(f"{METADATA_ARGUMENT} = self.{METADATA_METHOD}", arguments, len(indentation) + 4)
            # A caller with metadata gives None, which the metadata method does not take.
            widened = [p.name for p in self.tower.parameters if p.name in arguments and _is_widened(p.annotation)]
            body = "\n".join([*(f"assert {name} is not None" for name in widened), call])
            writer.blank()
            writer.add(f"if {METADATA_ARGUMENT} is None:\n" + indent(body, "    "), indentation)
            written = {
                name for leaf in flatten(self.tower.pieces) if leaf.place is Place.STAY for name in stores(leaf.node)
            }
            wanted += [c for c in self.tower.crossings if c not in used and c.name not in written]
            wanted.sort(key=self.tower.crossings.index)
        for crossing in wanted:
            if crossing.name not in self.bound:
                self.bound.add(crossing.name)
                line = f'{crossing.name} = {METADATA_ARGUMENT}["{crossing.key}"]'
                if len(indentation) + len(line) > _WIDTH:
                    line = f'{crossing.name} = {METADATA_ARGUMENT}[\n    "{crossing.key}"\n]'
                writer.add(line, indentation)

    # ------------------------------------------------------------------ children

    def _child_call(self, child: ChildSlice) -> str:
        """The call of a split child without its metadata arguments."""
        metadata = {id(expression) for _, expression in child.arguments}
        call = child.call
        arguments = list(call.args)
        while arguments and id(arguments[-1]) in metadata:
            arguments.pop()
        texts = ["None" if id(arg) in metadata else self.source.expression(arg) for arg in arguments]
        texts += [
            f"{keyword.arg}={self.source.expression(keyword.value)}"
            for keyword in call.keywords
            if id(keyword.value) not in metadata
        ]
        texts.append(f"{METADATA_ARGUMENT}={METADATA_ARGUMENT}")
        return f"{self.source.expression(call.func)}({', '.join(texts)})"

    def _child_metadata(self, child: ChildSlice) -> str:
        """The variable of the metadata method that holds a child's metadata."""
        return self._fresh(f"{child.attribute}_metadata")

    def _child_constants(self, child: ChildSlice) -> list[str]:
        given = [(p.name, child.given[p.name]) for p in child.slice.constants if p.name in child.given]
        return [f"{name}={self.source.expression(expression)}" for name, expression in given]


# ---------------------------------------------------------------------- helpers


def _all_crossings(tower: TowerSlice) -> list[Crossing]:
    """Those of the tower and of its children."""
    return [*tower.crossings, *(crossing for child in tower.children for crossing in _all_crossings(child.slice))]


@lru_cache(maxsize=4)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _function(tower: TowerSlice) -> FunctionNode:
    """The entry function's own node: the pieces were cut from it."""
    owner = find_class(_parsed(tower.source), tower.class_name)
    function = find_method(owner, tower.entry) if owner is not None else None
    assert function is not None, tower.class_name
    assert function.lineno <= tower.pieces[0].node.lineno <= (function.end_lineno or 0)
    return function


def _alias(source: str, module: str) -> str | None:
    for node in _parsed(source).body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == module:
                    return alias.asname or alias.name
    return None


def _is_widened(annotation: str | None) -> bool:
    """Whether the new function takes None for a parameter of the grid, where the old one did not."""
    if annotation is None or annotation.startswith(("'", '"', "Optional[")):
        return False
    return "None" not in annotation.split(" | ")


def _declare(parameter: Parameter) -> str:
    text = parameter.name
    if parameter.annotation is not None:
        text += f": {parameter.annotation}"
    if parameter.default is not None:
        text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
    return text


def _argument(name: str, text: str) -> list[str]:
    return textwrap.wrap(f"{name}: {text}", _WIDTH - 16, initial_indent="    ", subsequent_indent="        ")


def _wrapped(call: str, arguments: list[str], indentation: int) -> str:
    """`call(arguments)` on one line, or as the formatter breaks it."""
    line = f"{call}({', '.join(arguments)})"
    if indentation + max(len(part) for part in line.split("\n")) <= _WIDTH:
        return line
    inner = f"    {', '.join(arguments)}"
    if "\n" not in inner and indentation + len(inner) <= _WIDTH:
        return f"{call}(\n{inner}\n)"
    return f"{call}(\n" + "".join(indent(argument, "    ") + ",\n" for argument in arguments) + ")"


def _contains(statement: ast.stmt, node: ast.AST) -> bool:
    return any(inner is node for inner in ast.walk(statement))


def _joined(text: str) -> str:
    """A call that a shorter argument lets fit on one line, written there, as the formatter would."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) < 3 or not lines[-3].endswith("(") or lines[-1].strip() != ")" or lines[-2].endswith(","):
        return text
    line = lines[-3] + lines[-2].strip() + ")"
    return "\n".join([*lines[:-3], line]) + "\n" if len(line) <= _WIDTH else text
