"""CUDA graphs, emulated on the CPU: a tape of operators that is replayed on the storages it was recorded with.

Two modes watch everything that a manager does (`Lab.watch`):

* `_Placement` (functions) keeps apart what would live on the GPU and what would live on the host. All tensors are CPU
  tensors; a storage is *device* memory when it belongs to the model, was made with the lab's device, or was computed
  from device memory. `Tensor.device` answers accordingly, so that model code which copies "to `x.device`" works.
* `_Recorder` (operators) records, while a graph is being captured, each operator that touches device memory.

Semantics kept from the real thing:

* Python values and host tensors are read once, at capture; a replay never runs Python or host operators.
* Storages are fixed. A replay writes the results of an operator into the storage of the recorded result. Storages, not
  schemas, show which tensors alias which: `reshape`, `contiguous` and `to` may or may not copy.
* Uninitialised memory is poisoned with NaN when it is allocated and again in each replay, where the allocation of a
  real graph would hold the leftovers of another one. Everything a graph computes is poisoned before it is replayed and
  after it was captured (a real capture computes nothing).
* An operation that a real capture refuses (a host sync, a shape that depends on data, a copy from pageable memory) is
  noted as a hazard with its line, and recording goes on so that one run shows all of them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS
from scaffold.verify.numeric.left import left_on_host
from scaffold.verify.numeric.reports import LEFT, ObservedHazard

#: Stands for the GPU: not equal to `torch.device("cpu")`, and accepted by every factory function.
DEVICE = torch.device("cpu", 0)
HOST = torch.device("cpu")

_UNINITIALISED = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
#: Operators that may read host tensors of more than zero dimensions together with device tensors.
_CROSSES_DEVICES = frozenset(("aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::index_put"))

#: Composite operators that return a Python value or a shape computed from data. They reach a dispatch mode whole in
#: inference mode, and their tags do not say what is inside.
_SYNCS = frozenset(f"aten::{name}" for name in ("is_nonzero", "item", "equal", "allclose"))
_SHAPED_BY_DATA = frozenset(f"aten::{name}" for name in ("argwhere", "nonzero_numpy"))


def poison(tensor: torch.Tensor) -> None:
    """Fill memory with values that cannot pass unnoticed: NaN, the largest integer, or True."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


class Lab:
    """The state that modes and graphs share in one child process."""

    def __init__(self, tree_roots: Iterable[str]) -> None:
        self._tree_prefixes = tuple(root.rstrip(os.sep) + os.sep for root in tree_roots)
        self._device_storages: dict[int, StorageWeakRef] = {}
        #: Tensors that the loader leaves on the host, and results of these: the tensor's name and where it is made.
        self._left: dict[int, tuple[StorageWeakRef, tuple[str, str]]] = {}
        self._hazards: Counter[tuple[str, str, str, str]] = Counter()
        self._internal = 0
        #: Told of each read of such a tensor, by name and line, and of whether what is read gets to the device.
        self.on_left: Callable[[str, str, bool], None] = lambda name, made, moved: None
        self.graph: EmulatedGraph | None = None
        self.pending_device = False

    # -- placement -------------------------------------------------------------------------------------------------

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Declare that a tensor's storage is device memory."""
        storage = tensor.untyped_storage()
        # The weak reference keeps a later storage from reusing the key.
        self._device_storages[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def place_model(self, host: torch.nn.Module) -> None:
        """Declare that a model was made on the device: its memory, and what its modules kept of where it lies.

        A tensor that vLLM's loader leaves on the host stays there.
        """
        left = left_on_host(host)
        for name, tensor in (*host.named_parameters(), *host.named_buffers()):
            if name in left:
                self._leave(tensor, (name, left[name]))
            else:
                self.place(tensor)
        for module in host.modules():
            kept = [name for name, value in vars(module).items() if isinstance(value, torch.device)]
            # MoonViT keeps the platform's name of it, which is the host's here, and makes its table of angles there.
            if vars(module).get("device") == "cpu":
                kept.append("device")
                for tensor in tensors_in(list(vars(module).values())):
                    self.place(tensor)
            for name in kept:
                setattr(module, name, DEVICE)

    def on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._device_storages

    def _leave(self, tensor: torch.Tensor, origin: tuple[str, str]) -> None:
        storage = tensor.untyped_storage()
        self._left[storage._cdata] = StorageWeakRef(storage), origin

    def read_left(self, tensors: Iterable[torch.Tensor], *, moved: bool) -> tuple[str, str] | None:
        """The name and line of what the loader left on the host, if one of these was computed of it."""
        if not self._left:
            return None
        found = (self._left.get(tensor.untyped_storage()._cdata) for tensor in tensors)
        origin = next((entry[1] for entry in found if entry is not None), None)
        if origin is not None:
            self.on_left(*origin, moved)
        return origin

    def follow_left(self, inputs: Iterable[torch.Tensor], result: Any) -> None:
        """The result that the host computes of such a tensor is there for the same reason."""
        if (origin := self.read_left(inputs, moved=False)) is not None:
            for tensor in tensors_in(result):
                self._leave(tensor, origin)

    # -- hazards ---------------------------------------------------------------------------------------------------

    def note(self, kind: str, operation: str, of: Iterable[torch.Tensor] = ()) -> None:
        """Note a hazard, `of` the tensors on the host that get to the device in it."""
        left = self.read_left(of, moved=True)
        if left is not None:
            kind, operation = LEFT, f"{operation} of `{left[0]}`, which vLLM's loader leaves there ({left[1]})"
        stage = "capture" if self.graph is not None else "run"
        self._hazards[(kind, operation, self._where(), stage)] += 1

    def _where(self) -> str:
        """The innermost line of the tree under test that is being executed."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            line = self._line(frame.f_code.co_filename, frame.f_lineno)
            if line is not None:
                return line
            frame = frame.f_back
        return "outside the tree"

    def where_raised(self, error: BaseException) -> str:
        """The innermost line of the tree under test in an exception's traceback."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [self._line(frame.filename, frame.lineno or 0) for frame in frames]
        return next((line for line in reversed(lines) if line is not None), "outside the tree")

    def _line(self, filename: str, number: int) -> str | None:
        for prefix in self._tree_prefixes:
            if filename.startswith(prefix):
                return f"{filename[len(prefix) :]}:{number}"
        return None

    def hazards(self) -> tuple[ObservedHazard, ...]:
        """All that were noted. A tensor of the model's own is first: it may be why there are others."""
        ordered = sorted(self._hazards.items(), key=lambda one: (one[0][0] != LEFT, one))
        return tuple(ObservedHazard(*key, count=count) for key, count in ordered)

    # -- modes -----------------------------------------------------------------------------------------------------

    @property
    def internal(self) -> bool:
        return self._internal > 0

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """The lab's own tensor work: not recorded, not judged."""
        self._internal += 1
        try:
            yield
        finally:
            self._internal -= 1

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """`unwatched`, and the modes are not even asked: half the time of a replay went into them."""
        with self.unwatched(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            yield

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Run a manager's code: `torch.cuda` graphs are emulated, placement and uninitialised memory are watched."""
        replaced = {
            "CUDAGraph": lambda *args, **kwargs: EmulatedGraph(self),
            "graph": _GraphContext,
            "is_current_stream_capturing": lambda: self.graph is not None,
            "graph_pool_handle": lambda: (0, 0),
            "synchronize": lambda device=None: None,
        }
        saved = {name: getattr(torch.cuda, name) for name in replaced}
        for name, value in replaced.items():
            setattr(torch.cuda, name, value)
        try:
            with _Placement(self), _Recorder(self):
                yield
        finally:
            for name, value in saved.items():
                setattr(torch.cuda, name, value)


class _GraphContext:
    """`torch.cuda.graph(graph, pool=..., stream=..., ...)`."""

    def __init__(self, cuda_graph: EmulatedGraph, pool: Any = None, stream: Any = None, **unused: Any) -> None:
        self._graph = cuda_graph

    def __enter__(self) -> None:
        self._graph.capture_begin()

    def __exit__(self, *exc_info: object) -> None:
        self._graph.capture_end()


class EmulatedGraph:
    """`torch.cuda.CUDAGraph`: begins, ends and replays one tape."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._steps: list[Callable[[], None]] = []
        self._computed: list[torch.Tensor] = []

    def capture_begin(self, *unused: Any, **also_unused: Any) -> None:
        assert self._lab.graph is None, "a capture is under way"
        self._lab.graph = self

    def capture_end(self) -> None:
        self._lab.graph = None
        with self._lab.switched_off():
            _poison_all(self._computed)

    def replay(self) -> None:
        with self._lab.switched_off(), torch.inference_mode():
            _poison_all(self._computed)
            for step in self._steps:
                step()

    def reset(self) -> None:
        self._steps.clear()
        self._computed.clear()

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Append one executed operator. Views cost nothing at replay: another operator writes their storage."""
        known = {leaf.untyped_storage()._cdata for leaf in tensors_in((args, kwargs))}
        outputs = tensors_in(result)
        fresh = [index for index, tensor in enumerate(outputs) if tensor.untyped_storage()._cdata not in known]
        if func._schema.name in _UNINITIALISED:
            self._computed += outputs
            self._steps.append(partial(_poison_all, outputs))
            return
        if not fresh and not func._schema.is_mutable:
            return
        self._computed += [outputs[index] for index in fresh]

        def step() -> None:
            again = tensors_in(func(*args, **kwargs))
            for index in fresh:
                _overwrite(outputs[index], again[index])

        self._steps.append(step)


def _poison_all(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        # By storage: an operator's result may be an expanded view of what it computed.
        poison(torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()))


def _overwrite(recorded: torch.Tensor, computed: torch.Tensor) -> None:
    if (
        recorded.stride() == computed.stride()
        and recorded.untyped_storage().size() == computed.untyped_storage().size()
    ):
        recorded.untyped_storage().copy_(computed.untyped_storage())  # also right for overlapping strides
    else:
        recorded.copy_(computed)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results: they are in lists and tuples at most.

    torch's own `tree_leaves` takes five times as long, which was a tenth of a check.
    """
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [tensor for part in tree for tensor in tensors_in(part)]


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator: poisons allocations, spreads placement, notes hazards, feeds the tape."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        lab = self._lab
        if lab.internal:
            return func(*args, **kwargs)
        name = func._schema.name
        if name in PYTHON_OPERATORS:
            with self:
                return PYTHON_OPERATORS[name](*args, **kwargs)
        inputs = tensors_in((args, kwargs))
        device_inputs = [tensor for tensor in inputs if lab.on_device(tensor)]
        touches_device = bool(device_inputs) or (not inputs and lab.pending_device)
        if device_inputs:
            self._judge(name, func, args, kwargs, inputs)
        result = func(*args, **kwargs)
        if name in _UNINITIALISED:
            with lab.unwatched():
                for tensor in tensors_in(result):
                    poison(tensor)
        if touches_device:
            known = {tensor.untyped_storage()._cdata for tensor in inputs}
            for tensor in tensors_in(result):
                if tensor.untyped_storage()._cdata not in known:
                    lab.place(tensor)
            if lab.graph is not None:
                lab.graph.record(func, args, kwargs, result)
        else:
            lab.follow_left(inputs, result)
        return result

    def _judge(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]
    ) -> None:
        """Note what CUDA would refuse: always for mixed devices, in a capture for syncs and copies from the host."""
        lab = self._lab
        host = [tensor for tensor in inputs if tensor.ndim > 0 and not lab.on_device(tensor)]
        if host and name not in _CROSSES_DEVICES:
            lab.note("placement", f"{name} of device and host tensors", host)
        if lab.graph is None:
            lab.read_left(host, moved=True)
            return
        if host:
            lab.note("copy in capture", name, host)
        if name == "aten::index" and not any(
            tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_in((args[1:], kwargs))
        ):
            return
        if name in _SYNCS or torch.Tag.data_dependent_output in func.tags:
            lab.note("host sync", name)
        elif self._has_dynamic_shape(name, func, args, kwargs):
            lab.note("dynamic shape", name)

    def _has_dynamic_shape(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if name == "aten::repeat_interleave":
            by_tensor = "Tensor" in func._overloadname
            return by_tensor and kwargs.get("output_size") is None
        if name == "aten::where":
            return len(args) == 1
        return name in _SHAPED_BY_DATA or torch.Tag.dynamic_output_shape in func.tags


#: Functions whose first argument is the tensor that is moved.
_MOVES = {"to", "cpu", "cuda", "type", "type_as"}
_READS = {"tolist", "numpy", "__array__"}
_FROM_DATA = {"tensor", "as_tensor", "asarray", "scalar_tensor"}


class _Placement(TorchFunctionMode):  # type: ignore[misc]
    """Sees every torch function, also those that do nothing to a CPU tensor: `.to(device)`, `.cpu()`, `.tolist()`."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        lab = self._lab
        if lab.internal:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._get(func, args)
        if isinstance(func, torch._ops.OpOverloadPacket | torch._ops.OpOverload):
            body = PYTHON_OPERATORS.get(_operator_name(func))
            if body is not None:
                with self:
                    return body(*args, **kwargs)
            return func(*args, **kwargs)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and name in _MOVES:
            return self._move(func, name, first, args, kwargs)
        if first is not None and name in _READS and lab.on_device(first):
            return self._read(func, name, args, kwargs)
        if name in _FROM_DATA:
            return self._from_data(func, name, args, kwargs)
        outer, lab.pending_device = lab.pending_device, kwargs.get("device") == DEVICE
        try:
            return func(*args, **kwargs)
        finally:
            lab.pending_device = outer

    def _get(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Properties: a device tensor says so."""
        attribute = getattr(func.__self__, "__name__", "")
        if attribute in ("device", "is_cpu") and self._lab.on_device(args[0]):
            return DEVICE if attribute == "device" else False
        return func(*args)

    def _read(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name != "tolist":
            self._lab.note("placement", f"Tensor.{name} of a device tensor")
        elif self._lab.graph is not None:
            self._lab.note("host sync", f"Tensor.{name}")
        with self._lab.unwatched():
            return func(*args, **kwargs)

    def _from_data(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source_on_device = bool(args) and isinstance(args[0], torch.Tensor) and self._lab.on_device(args[0])
        to_device = kwargs.get("device") == DEVICE
        result = func(*args, **kwargs)
        # There is nothing to copy into an empty tensor, such as a cache of transformers before its first token.
        if to_device and not source_on_device and self._lab.graph is not None and result.numel():
            self._lab.note("copy in capture", f"torch.{name}", tensors_in(args))
        if to_device or (source_on_device and kwargs.get("device") is None):
            self._lab.place(result)
        return result

    def _move(self, func: Any, name: str, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lab = self._lab
        source = lab.on_device(tensor)
        target = source
        if name in ("cpu", "cuda"):
            target = name == "cuda"
        elif name == "type_as":
            target = lab.on_device(args[1])
        elif name == "to":
            others = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, torch.Tensor)]
            devices = [torch.device(value) for value in (*args[1:], kwargs.get("device")) if _names_device(value)]
            if others:
                target = lab.on_device(others[0])
            elif devices:
                target = devices[0] == DEVICE or devices[0].type == "cuda"
        if source == target:
            # The same memory space: only a dtype or layout can change. A CPU tensor must not see the lab's index.
            plain = tuple(HOST if _names_device(value) else value for value in args[1:])
            named = {key: HOST if _names_device(value) else value for key, value in kwargs.items()}
            return tensor if name in ("cpu", "cuda") else func(tensor, *plain, **named)
        if lab.graph is not None:
            lab.note("copy in capture" if target else "host sync", f"Tensor.{name}", [tensor] if target else ())
        elif target:
            lab.read_left([tensor], moved=True)
        with lab.unwatched():
            plain = tuple(HOST if _names_device(value) else value for value in args[1:])
            named = {key: HOST if _names_device(value) else value for key, value in kwargs.items()}
            moved = tensor if name in ("cpu", "cuda") else func(tensor, *plain, **named)
            if moved.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                moved = moved.clone()
        return lab.place(moved) if target else moved


def _names_device(value: Any) -> bool:
    return isinstance(value, torch.device | str) or (isinstance(value, int) and not isinstance(value, bool))


def _operator_name(func: Any) -> str:
    return str(func._qualified_op_name if hasattr(func, "_qualified_op_name") else func._schema.name)
