"""Writes down the calls of every part of a model. Runs in the process that has the model."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.watch.recording import Batch, Call, Field, Frame, Leaf, Left, Place, Repeated, Source

#: Elements of an integer tensor, or numbers in lists, whose values are kept; depth of values inside values.
_FEW, _DEEP = 256, 4
#: Frames of torch and of this tool say nothing of the model.
_OTHERS = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/")
_PACKAGES = "/site-packages/"


@dataclass
class Recorder:
    """Records batches of one model. `root` is the tree that its code is in.

    `on_device` says whether a tensor is where the runner puts it. Inside `unwatched`, tensors are looked at unnoticed.
    """

    host: nn.Module
    root: Path
    on_device: Callable[[torch.Tensor], bool]
    unwatched: Callable[[], AbstractContextManager[None]]
    _run: _Run | None = None

    def left(self, name: str, made: str, moved: bool) -> None:
        """Note a read of a tensor that the loader leaves on the host, and whether what is read gets to the device."""
        if self._run is not None:
            self._run.note_left(name, made, moved)

    def repeated(self) -> tuple[Repeated, ...]:
        """The lists and sequences of parts of one class."""
        found = []
        for name, part in self.host.named_modules():
            listed = isinstance(part, nn.ModuleList) or (isinstance(part, nn.Sequential) and len(part) > 1)
            if listed and len({type(one) for one in part}) == 1:
                found.append(Repeated(name, _class(part[0]), len(part)))
        return tuple(found)

    def placeholders(self) -> dict[str, str]:
        """The text of the first item of each modality in a prompt, empty where a model's processor puts it there."""
        method: Any = self.host.get_placeholder_str
        found = {}
        # A model without such a method has that of vLLM's protocol, which says nothing.
        for modality in ("image", "video") if not method.__qualname__.startswith("Supports") else ():
            with suppress(Exception):  # the model has no such items
                found[modality] = method(modality, 1) or ""
        return found

    def numbers(self) -> dict[str, int | list[int]]:
        """Integers and short lists of them in parts outside of lists, and in the configurations that these hold."""
        found: dict[str, int | list[int]] = {}

        def look(path: str, value: Any, depth: int) -> None:
            held = entries(value) if depth < _DEEP else None
            if held is not None:
                for name in held:
                    with suppress(Exception):  # of a value that layers have, and the whole has not
                        look(f"{path}.{name}", getattr(value, name), depth + 1)
            elif isinstance(value, dict) and depth and depth < _DEEP:
                for name in [name for name in value if isinstance(name, str)]:
                    look(f"{path}['{name}']", value[name], depth + 1)
            elif isinstance(value, int) and not isinstance(value, bool):
                found[path] = value
            elif isinstance(value, (list, tuple)) and 0 < len(value) <= _DEEP and all(type(n) is int for n in value):
                found[path] = list(value)

        for name, part in self.host.named_modules():
            if not any(word.isdigit() for word in name.split(".")):
                for key, value in vars(part).items():
                    if not key.startswith("_"):
                        look(".".join(filter(None, ("self", name, key))), value, 0)
        return found

    def record(
        self, modality: str, items: Sequence[Any], inputs: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> Batch:
        """One call of `embed_multimodal`; `fields` are the processor's configurations by the names of inputs."""
        run = self._run = _Run(self, inputs)
        with self.unwatched():
            given = tuple(run.leaves("", dict(inputs)))
        with torch.inference_mode(), run.watched():
            results = self.host.embed_multimodal(**inputs)
        with self.unwatched():
            return Batch(
                modality,
                tuple(map(str, items)),
                given,
                tuple(_field(key, declared) for key, declared in fields.items()),
                tuple(run.frames),
                tuple(run.calls),
                tuple(run.leaves("", list(results))),
                tuple(run.left()),
            )


@dataclass
class _Run:
    """One call of the model while it is recorded. Whatever was seen stays alive, so that no memory is used twice."""

    recorder: Recorder
    inputs: Mapping[str, Any]
    frames: list[Frame] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    _stack: list[int] = field(default_factory=list)
    #: The frames of the last call, outermost first: the frame, its instruction, its index.
    _chain: list[tuple[FrameType, int, int]] = field(default_factory=list)
    _known: dict[int, list[tuple[str, torch.Tensor]]] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)
    _parts: dict[int, str] = field(default_factory=dict)
    #: Functions that wait for a call, each with the index of the frame that called it.
    _waited: dict[FrameType, int] = field(default_factory=dict)
    #: Tensors that the loader leaves on the host with the parts and methods that read them, and those that are moved.
    _left: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    _moved: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._parts = {id(part): name for name, part in self.recorder.host.named_modules()}
        for key, value in self.inputs.items():
            for path, tensor in _tensors(key, value):
                self._known.setdefault(_memory(tensor), []).append((path, tensor))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, every part's `forward` tells its calls: vLLM's compiled classes call it without torch's hooks."""
        parts = [(name, part) for name, part in self.recorder.host.named_modules() if name]
        saved = [(part, vars(part).get("forward")) for _, part in parts]
        for name, part in parts:
            part.forward = self._telling(name, part, part.forward)
        profiled = sys.getprofile()
        sys.setprofile(self._returned)
        try:
            yield
        finally:
            sys.setprofile(profiled)
            for part, own in saved:
                if own is None:
                    del part.forward
                else:
                    part.forward = own

    def _telling(self, name: str, part: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def tell(*args: Any, **kwargs: Any) -> Any:
            with self.recorder.unwatched():
                frame, inside = self._frame(sys._getframe(1)), self._stack[-1] if self._stack else None
                given = [leaf for at, value in _bound(forward, args, kwargs) for leaf in self.leaves(at, value)]
                index = len(self.calls)
                self.calls.append(Call(name, _class(part), frame, inside, tuple(given), ()))
                self._stack.append(index)
                self._alive.append((args, kwargs))
            result = forward(*args, **kwargs)
            with self.recorder.unwatched():
                self._stack.pop()
                self.calls[index] = replace(self.calls[index], results=tuple(self.leaves("", result)))
                whole = isinstance(result, (torch.Tensor, Mapping, list, tuple))
                held = [("", result)] if whole else _inside("", result)
                for path, tensor in (one for at, part in held for one in _tensors(at, part)):
                    self._known.setdefault(_memory(tensor), []).append((f"#{index}{path}", tensor))
                self._alive.append(result)
            return result

        return tell

    def _returned(self, frame: FrameType, event: str, result: Any) -> None:
        """Note the result of a function that waited for calls, at the frame that waited for it."""
        index = self._waited.pop(frame, None) if event == "return" else None
        if index is not None:
            with self.recorder.unwatched():
                self.frames[index] = replace(self.frames[index], results=tuple(self.leaves("", result)))
                self._alive.append(result)

    def note_left(self, name: str, made: str, moved: bool) -> None:
        inside = self._left.setdefault((name, made), {})
        if moved:
            self._moved.add((name, made))
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            owner, method = frame.f_locals.get("self"), frame.f_code.co_name
            if id(owner) in self._parts and self._file(frame) is not None:
                part = ".".join(filter(None, ("self", self._parts[id(owner)])))
                inside[part if method == "forward" else f"{part}.{method}"] = None
            frame = frame.f_back

    def left(self) -> Iterator[Left]:
        for one, inside in self._left.items():
            if one in self._moved:
                yield Left(*one, tuple(inside))

    # -- frames --------------------------------------------------------------------------------------------------------

    def _frame(self, innermost: FrameType | None) -> int | None:
        """The index of the frame that calls; those that wait since the last call keep theirs."""
        waiting: list[FrameType] = []
        while innermost is not None:
            if self._file(innermost) is not None:
                waiting.append(innermost)
            innermost = innermost.f_back
        waiting.reverse()
        chain: list[tuple[FrameType, int, int]] = []
        for depth, frame in enumerate(waiting):
            known = self._chain[depth] if depth < len(self._chain) else None
            # The same execution of a call: what it called still runs. A part that is called again is seen by itself.
            inner = waiting[depth + 1] if depth + 1 < len(waiting) else None
            other = self._chain[depth + 1][0] if depth + 1 < len(self._chain) else inner
            if known is not None and known[:2] == (frame, frame.f_lasti) and inner is not None and inner is other:
                chain.append(known)
                continue
            caller = chain[-1][2] if chain else None
            place = self._place(frame)
            code = frame.f_code
            values = [
                leaf for name, value in frame.f_locals.items() if name != "self" for leaf in self.leaves(name, value)
            ]
            function = getattr(code, "co_qualname", code.co_name)
            part = self._parts.get(id(frame.f_locals.get("self")))
            text = _text(frame, place)
            self.frames.append(Frame(caller, part, function, code.co_firstlineno, place, text, tuple(values)))
            chain.append((frame, frame.f_lasti, len(self.frames) - 1))
            if caller is not None:
                self._waited[frame] = caller
        self._chain = chain
        return chain[-1][2] if chain else None

    def _file(self, frame: FrameType) -> str | None:
        """The file of a frame, relative to the tree or to the installed packages; None for torch and the lab."""
        file = frame.f_code.co_filename
        if file.startswith(f"{self.recorder.root}/"):
            return file[len(str(self.recorder.root)) + 1 :]
        if _PACKAGES in file and not file.startswith(_OTHERS):
            return file.rpartition(_PACKAGES)[2]
        return None

    def _place(self, frame: FrameType) -> Place:
        file = self._file(frame) or ""
        if sys.version_info >= (3, 11):
            line, end, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
            if line is not None and end is not None and column is not None and end_column is not None:
                return Place(file, line, column, end, end_column)
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).rstrip("\n").encode()
        return Place(file, frame.f_lineno, len(text) - len(text.lstrip()), frame.f_lineno, len(text))

    # -- values --------------------------------------------------------------------------------------------------------

    def leaves(self, at: str, value: Any, depth: int = 0) -> Iterator[Leaf]:
        """The tensors, numbers and texts in a value."""
        if isinstance(value, torch.Tensor):
            few = not value.is_floating_point() and not value.is_complex() and value.numel() <= _FEW
            yield Leaf(
                at,
                "Tensor",
                tuple(value.shape),
                str(value.dtype).removeprefix("torch."),
                "cuda" if self.recorder.on_device(value) else "cpu",
                value.tolist() if few else None,
                tuple(self._sources(value)),
            )
        elif value is None or isinstance(value, (bool, int, float, str)) or _plain(value, _FEW):
            yield Leaf(at, type(value).__name__, value=value if not isinstance(value, str) else value[:_FEW])
        elif depth < _DEEP and not isinstance(value, nn.Module):
            for path, inner in _inside(at, value):
                yield from self.leaves(path, inner, depth + 1)

    def _sources(self, tensor: torch.Tensor) -> Iterator[Source]:
        """The inputs whose memory it is, the last call that gave this memory, else inputs with its elements."""
        found = self._known.get(_memory(tensor), []) if tensor.numel() else []
        given = [(name, other) for name, other in found if not name.startswith("#")]
        for name, other in (*given, *[entry for entry in found if entry[0].startswith("#")][-1:]):
            yield Source(name, "same" if _same(tensor, other) else "view")
        for key, value in self.inputs.items() if not found and tensor.numel() > 1 else ():
            parts = [*_tensors(key, value)]
            if sum(part.numel() for _, part in parts) == tensor.numel():
                whole = (
                    torch.cat([part.reshape(-1) for _, part in parts])
                    if len({p.dtype for _, p in parts}) == 1
                    else None
                )
                if whole is not None and torch.equal(whole.to(tensor.dtype), tensor.reshape(-1)):
                    cast = whole.dtype != tensor.dtype
                    yield Source(key, "cast" if cast else "concatenation" if len(parts) > 1 else "copy")
                continue
            for path, part in parts:
                if part.shape == tensor.shape and torch.equal(part.to(tensor.dtype), tensor):
                    yield Source(path, "cast" if part.dtype != tensor.dtype else "copy")


def entries(value: Any) -> dict[str, Any] | None:
    """The values of a configuration, of Transformers or a namespace that a recipe made; None for all else."""
    if hasattr(value, "to_dict"):
        return dict(value.to_dict())
    return vars(value) if isinstance(value, SimpleNamespace) else None


def _bound(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of a call by the names of its parameters."""
    try:
        yield from inspect.signature(forward).bind(*args, **kwargs).arguments.items()
    except (TypeError, ValueError):
        yield from ((f"args[{index}]", value) for index, value in enumerate(args))
        yield from kwargs.items()


def _inside(at: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values in a list, a mapping, or an object that holds tensors, such as vLLM's schemas of inputs."""
    if isinstance(value, Mapping):
        yield from ((f"{at}.{key}" if at else str(key), inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{at}[{index}]", inner) for index, inner in enumerate(value[:_FEW]))
    elif type(value).__module__.startswith(("vllm.", "transformers.")):
        names = (*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ()))
        for name in names:
            inner = getattr(value, name, None)
            if any(True for _ in _tensors("", inner)):
                yield f"{at}.{name}", inner


def _plain(value: Any, most: int) -> bool:
    """Whether a value is a list of numbers, of lists of numbers, and so on."""
    if not isinstance(value, (list, tuple)) or not value or len(value) > most:
        return False
    return all(isinstance(one, (int, float)) or _plain(one, most) for one in value)


def _tensors(at: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield at, value
    elif isinstance(value, (Mapping, list, tuple)):
        for path, inner in _inside(at, value):
            yield from _tensors(path, inner)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_place = one.data_ptr() == other.data_ptr() and one.dtype == other.dtype
    return bool(same_place and one.shape == other.shape and one.stride() == other.stride())


def _class(part: nn.Module) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _text(frame: FrameType, place: Place) -> str:
    """The source of a call."""
    lines = linecache.getlines(frame.f_code.co_filename)[place.line - 1 : place.end_line]
    text = "".join(lines).encode()
    behind = len(lines[-1].encode()) - place.end_column if lines else 0
    return text[place.column : len(text) - behind].decode(errors="replace")


def _field(key: str, declared: Any) -> Field:
    """A field as the processor declares it."""
    kind = type(declared.field).__name__.removeprefix("MultiModal").removesuffix("Field").lower()
    slices = getattr(declared.field, "slices", ())
    dim = int(getattr(declared.field, "dim", 0))
    lengths = [one if isinstance(one, slice) else next((part for part in one if part.stop), one[0]) for one in slices]
    return Field(
        key,
        declared.modality,
        kind,
        tuple(int(one.stop) - int(one.start or 0) for one in lengths if one.stop is not None),
        dim,
        bool(getattr(declared.field, "keep_on_cpu", False)),
    )
