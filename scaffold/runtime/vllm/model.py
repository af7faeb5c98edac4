"""A vLLM model as an `EncoderAdapter`. It speaks every generation of the protocol through the manager's own methods.

Two facts make plans memoisable: selecting all items gives the inputs themselves, and metadata do not depend on pixels.
The adapter assumes neither. It measures the one on the first call of each kind, the other before a plan is used again.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import torch

from scaffold.runtime.adapter import (
    Around,
    AxisKeys,
    BufferKind,
    BufferSpec,
    EncoderDescription,
    GraphKey,
    Inputs,
    Item,
    Limits,
    PathSpec,
    Replay,
    Room,
    holds_pixels,
    scatter_rows,
)
from scaffold.runtime.vllm.around import around, encodes_apart, warm_up
from scaffold.runtime.vllm.dialect import ManagerDialect
from scaffold.runtime.vllm.tables import KeptTables, interpolates

logger = logging.getLogger("scaffold.runtime.vllm")

#: The output of a port without an eager forward: the model's own code makes the results of such a batch.
_NO_EAGER_FORWARD = torch.empty(0)
#: Integer tensors up to this size describe sizes (grids, counts) and are part of a call's signature.
SIZE_NUMEL = 4096
#: A kind of inputs. The facts of its first call hold for the others.
Kind = frozenset[tuple[str, Hashable]]
#: Two facts of a kind of inputs: selecting all items gives the inputs themselves, and metadata do not depend on pixels.
#: The second is None until a plan would serve another call.
Facts = tuple[bool, bool | None]
#: The type of each input that holds pixels, and None for one that holds sizes, in their order.
Types = tuple[torch.dtype | None, ...]
#: So many calls of new sizes tell nothing of pixels: the short way to a plan begins behind that question.
MOST_UNPROVEN = 256
#: The longest side, in patches, of an image that we ask a model for. One image of a whole budget is a strip, one token
#: high. vLLM's rotary tables have so many positions, and on a GPU an index beyond them ends the process.
LONGEST_SIDE = 8192


def _is_pixels(tensor: torch.Tensor) -> bool:
    return tensor.ndim >= 2 and holds_pixels(tensor)


def _is_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds pixels rather than sizes."""
    return _is_pixels(tensor) or bool(tensor.numel() > SIZE_NUMEL)


def _kind(inputs: Inputs) -> Kind:
    """The names of inputs, each with whether it holds data, sizes, or a list of both."""
    return frozenset([(name, _holds_data(value)) for name, value in inputs.items()])


def _holds_data(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return _is_data(value)
    return frozenset(map(_holds_data, value)) if isinstance(value, (list, tuple)) else None


def _frozen(value: Any) -> Hashable:
    """Nested lists as tuples."""
    if type(value) is not list:
        return value  # type: ignore[no-any-return]
    return tuple([_frozen(v) for v in value]) if value and type(value[0]) is list else tuple(value)


def sync_allowed() -> AbstractContextManager[Any]:
    """vLLM's own permission to read sizes from the device, where a release has one (0.26)."""
    return _sync_permission()()


@cache
def _sync_permission() -> Callable[[], AbstractContextManager[Any]]:
    try:
        from vllm.utils.gpu_sync_debug import gpu_sync_allowed
    except ImportError:
        return contextlib.nullcontext
    return gpu_sync_allowed  # type: ignore[no-any-return]


def _describe(value: Any) -> Hashable:
    """A hashable copy of everything but pixels. Raises TypeError for a value without one."""
    if isinstance(value, torch.Tensor):
        shape = value.shape
        if _is_data(value):
            return ("data", shape, value.dtype)
        if value.is_cpu:
            return ("sizes", len(shape), repr(value.tolist()))
        with sync_allowed():
            return ("sizes", len(shape), repr(value.tolist()))
    if isinstance(value, (list, tuple)):
        return tuple(map(_describe, value))
    if isinstance(value, Mapping):
        return tuple((k, _describe(v)) for k, v in value.items())
    hash(value)
    return value  # type: ignore[no-any-return]


def _replace_data(value: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return make(value) if _is_data(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_replace_data(v, make) for v in value)
    return value


def _noise(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return torch.rand_like(tensor) + 0.5
    return torch.randint(0, 2, tensor.shape, device=tensor.device).to(tensor.dtype)


def _same(a: Any, b: Any) -> bool:
    """Equal in content; a tensor equals a list of the same numbers, or of its parts."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a is b:
            return True
        alike = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        return bool(alike and torch.equal(a, b))
    for whole, parts in ((a, b), (b, a)):
        # Not by numbers: pixels have millions.
        if isinstance(whole, torch.Tensor) and whole.ndim and isinstance(parts, (list, tuple)) and _are_tensors(parts):
            return len(whole) == len(parts) and all(map(_same, whole, parts))
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        a, b = (v.tolist() if isinstance(v, torch.Tensor) else v for v in (a, b))
        return bool(_plain(a) == _plain(b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _are_tensors(values: Sequence[Any]) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _fitted(kind: BufferKind, one: torch.Tensor, many: torch.Tensor, rows: int, rounded: int) -> torch.Tensor | None:
    """`one`, the value of a buffer for one image of `rows` rows, with room for as many sequences as `many` has.

    None if the two differ in anything but rounded rows and the number of sequences.
    """
    if one.ndim != many.ndim or one.dtype != many.dtype or one.shape[1:] != many.shape[1:]:
        return None
    if one.ndim == 0:
        return one if bool(one == many) else None
    free = many.shape[0] - one.shape[0]
    if kind is BufferKind.CUMULATIVE or kind is BufferKind.LENGTHS:
        if free < 0:
            return None
        tail = one[-1:] if kind is BufferKind.CUMULATIVE else torch.zeros_like(one[-1:])
        return torch.cat([one, *[tail] * free])
    if kind is BufferKind.TWO_SECTION or one.shape[0] * rounded != many.shape[0] * rows:
        return None
    return one


class _Buffers(Mapping[str, BufferSpec]):
    """Specs of buffers by name. The protocol gives names and hooks, not kinds; the names are the field's."""

    def __init__(self, hooks: Mapping[str, Any], two_section: bool) -> None:
        self._hooks, self._two_section = hooks, two_section
        self._known: dict[str, BufferSpec] = {}

    def __getitem__(self, name: str) -> BufferSpec:
        if name not in self._known:
            self._known[name] = self._infer(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def _infer(self, name: str) -> BufferSpec:
        hook = self._hooks.get(name)
        # Some hooks look addresses up (Kimi-K2.5, 0.30 and 0.31): they must see the tensor that the model made.
        owned = hook is not None and "data_ptr" in getattr(getattr(hook, "__code__", None), "co_names", ())
        if "max_seqlen" in name or name.endswith("max_len"):
            return BufferSpec(BufferKind.BOUND)
        if "pixel" in name:
            return BufferSpec(BufferKind.ROWS, is_data=not owned, pad=hook, owned=owned)
        if name.startswith(("cu_", "offsets")) or "cu_seqlens" in name or "cu_window" in name:
            # vLLM's default fills offsets with zeros: a sequence of negative length (Qwen2-VL, Qwen3-VL, GLM-4.1V).
            kind = BufferKind.TWO_SECTION if self._two_section else BufferKind.CUMULATIVE
            return BufferSpec(kind, pad=hook, owned=owned)
        if "sequence_lengths" in name or "seq_lens" in name:
            return BufferSpec(BufferKind.LENGTHS, pad=hook, owned=owned)
        return BufferSpec(BufferKind.ROWS, pad=hook, owned=owned)


def own_axes(axes: AxisKeys) -> AxisKeys:
    """The axis keys that the model declared."""
    return tuple([axis for axis in axes if not isinstance(axis, Room)])


def sharding_parts(model: Any) -> list[torch.nn.Module]:
    """The parts of a model that spread items over the ranks themselves."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [part for part in parts if getattr(part, "use_data_parallel", None) is True]


@contextmanager
def without_sharding(sharding: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Keep these parts from spreading items over the ranks that the manager has spread already.

    With `mm_encoder_tp_mode="data"`, InternVL, MiniCPM-V and Step3-VL (to 0.33) gather inside their forward. Ranks
    that replay different batches, or none, would then wait for each other or mix their outputs.
    """
    on = [part for part in sharding if part.use_data_parallel]  # none where a call around has turned them off
    for part in on:
        part.use_data_parallel = False
    try:
        yield
    finally:
        for part in on:
            part.use_data_parallel = True


def observe(model: Any) -> None:
    """Let a port of rows find out how its model calls the encoder, on a batch of its own: no rank has a part of it."""
    with without_sharding(sharding_parts(model)):
        getattr(model, "_encoder_cudagraph_call", None)


class VllmAdapter:
    """Speaks one generation. `owner` is the drop-in manager; the adapter calls its replaceable steps."""

    def __init__(self, owner: Any, dialect: ManagerDialect) -> None:
        self.owner = owner
        self.dialect = dialect
        self.model = owner.model
        self.config = owner.config
        self.tables = KeptTables(self.model)
        self._buffer_keys = frozenset(getattr(self.config, "buffer_keys", ()))
        self._facts: dict[Kind, Facts] = {}
        #: By kind of inputs whose metadata may depend on pixels: the signatures of its calls.
        self._unproven: dict[Kind, set[Hashable]] = {}
        #: The names that a selection of all items keeps, and the axis keys of such inputs.
        self._kept: dict[Kind, tuple[tuple[str, ...], AxisKeys]] = {}
        self._has_rooms = tuple(Room) in owner.axes
        #: By input names in their order, of kinds whose metadata do not depend on pixels.
        self._types: dict[tuple[str, ...], Types] = {}
        self._specs: _Buffers | None = None
        #: Rows per token of models that pack rows, by path.
        self._rows_per_token: dict[str, int] = {}
        self._reads_freely = _sync_permission() is contextlib.nullcontext
        self._flashinfer = attention_backend(self.model) == "FLASHINFER"
        self.plain_post = self._has_plain_post()
        #: None where the protocol's own hooks give the values of a replay.
        self.around = self._around()
        #: Whether its code around the encoder may interpolate positions, which `tables` then keeps.
        self.keeps_tables = self.around is not None and interpolates(self.model)
        #: Whether the code around the encoder calls it for each item; None where nothing says so.
        self.encodes_apart = encodes_apart(self.model)

    def _around(self) -> Around | None:
        run = around(self.model, getattr(self.config, "buffer_keys", ()))
        if run is None:
            return None

        def run_with_tables(inputs: Inputs, replay: Replay) -> Sequence[torch.Tensor] | None:
            with self._without_nested_sharding(), self.tables:
                return run(inputs, replay)

        return run_with_tables

    def keep_at_most(self, nbytes: int) -> None:
        """Bound the memory of interpolated positions."""
        self.tables.forget()
        self.tables.most_bytes = nbytes if self.keeps_tables else 0

    def warm_up(self, *, alone: bool) -> None:
        """Run what calls run outside of graphs, while nobody waits; the model's code only where its rank is `alone`.

        Torch compiles `prod` of integers, with which models and ports read grids on the device, at its first use in a
        process: 0.7 to 1 s of the first image of Kimi-VL, on an H100. The first comparison (`_is_pure`) loads a kernel,
        and so does its noise: 40 and 29 ms on an H200.
        """
        grid = torch.ones(2, dtype=torch.int64, device=self.owner.device)
        torch.equal(grid, grid.prod().expand(2))
        _noise(torch.ones(2, dtype=self.owner.dtype, device=self.owner.device))
        if not alone:
            return
        try:
            with torch.inference_mode(), self.tables:
                warm_up(self.model)
        except Exception as error:  # the model's own code may not take zeros
            logger.debug("the model does not run on zeros", exc_info=error)

    # -- description

    def describe(self) -> EncoderDescription:
        config = self.config
        paths = {path: PathSpec(may_be_idle=0 in ladder) for path, ladder in self.owner._ladders().items()}
        if self._specs is None:
            self._specs = _Buffers(config.padding_logics, self._flashinfer)
        return EncoderDescription(
            output_width=config.out_hidden_size,
            modalities=tuple(config.modalities),
            buffers=self._specs,
            paths=paths,
            axes=self.owner.axes,
        )

    def rooms_of(self, inputs: Inputs) -> tuple[Room, ...]:
        """The axis key of inputs, where images have graphs of their own. Inputs of unknown names may be frames."""
        if not self._has_rooms:
            return ()
        images = any("image" in name for name in inputs) and not any("video" in name for name in inputs)
        return (Room.ITEMS if images else Room.FRAMES,)

    def _has_plain_post(self) -> bool:
        """Whether the model's post-processing is the protocol's own, which cuts the rows into items."""
        return inherits(self.model, "postprocess_encoder_output")

    def watched(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of the model, for the address check of the debug mode."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return dict(named)

    # -- sizes

    def is_raw(self, inputs: Inputs) -> bool:
        for name in inputs:
            # A recorded buffer holds pixels, whatever its name: Phi-4-multimodal's is `input_image_embeds`.
            if name.endswith("_embeds") and name not in self._buffer_keys and inputs[name] is not None:
                return False
        return True

    def embed(self, inputs: Inputs) -> Sequence[torch.Tensor]:
        with self._without_nested_sharding(), self.tables:
            return list(self.model.embed_multimodal(**inputs))

    def signature(self, inputs: Inputs) -> Hashable | None:
        quick = self.quick_signature(inputs)
        if quick is not None:
            return quick
        kind = _kind(inputs)
        identity, pure = self._facts.get(kind) or self._measure(kind, inputs)
        if pure is False:
            return None
        types = self._types_of(inputs) if identity and tuple(inputs) not in self._types else None
        signature = None if types is None else self._of_types(inputs, types)
        if signature is None:
            try:
                signature = tuple([(name, _describe(value)) for name, value in inputs.items()])
            except TypeError:
                return None
        if pure is None:
            # A plan serves its own call in any case: a request of new sizes need not wait for the answer.
            first = self._unproven.setdefault(kind, set())
            if signature not in first and len(first) < MOST_UNPROVEN:
                first.add(signature)
                return signature
            pure = self._is_pure(inputs)
            self._facts[kind] = (identity, pure)
            del self._unproven[kind]
        if pure and types is not None:
            self._types[tuple(inputs)] = types
        return signature if pure else None

    @staticmethod
    def _types_of(inputs: Inputs) -> Types | None:
        """The types of inputs by which `_of_types` knows them, if they hold nothing but pixels and small tensors."""
        values = tuple(inputs.values())
        if not all(isinstance(value, torch.Tensor) and _is_pixels(value) == _is_data(value) for value in values):
            return None
        return tuple([value.dtype if _is_pixels(value) else None for value in values])

    def quick_signature(self, inputs: Inputs) -> Hashable | None:
        """The signature of inputs whose names and types were seen before, or None.

        It is half of our Python before a replay. In cold caches an attribute of a tensor takes 2 us, `tolist` 6, and
        `repr` of its result 3 more than a tuple. `signature` examines every input; this function looks its names up.
        """
        types = self._types.get(tuple(inputs))
        return None if types is None else self._of_types(inputs, types)

    def _of_types(self, inputs: Inputs, types: Types) -> Hashable | None:
        """The signature of inputs of these types; None where they have others, or vLLM forbids to read their sizes."""
        key: list[Hashable] = [tuple(inputs)]
        try:
            for value, pixels in zip(inputs.values(), types, strict=True):
                if pixels is not None:
                    shape = value.shape
                    if value.dtype is not pixels or len(shape) < 2:
                        return None
                    key.append(shape)
                elif self._reads_freely or value.is_cpu:
                    key.append(_frozen(value.tolist()))
                else:
                    return None
        except AttributeError:  # not a tensor this time
            return None
        return tuple(key)

    def passes_through(self, inputs: Inputs) -> bool:
        """Whether `whole` gives these inputs as they are."""
        return self._facts.get(_kind(inputs), (False, False))[0]

    def items(self, inputs: Inputs) -> list[Item]:
        return [self._item(spec) for spec in self.owner._get_item_specs(inputs)]

    def _item(self, spec: Any) -> Item:
        tokens = int(spec.output_tokens)
        if self.dialect.named_paths:
            paths = {path: int(count) for path, count in spec.path_output_tokens.items()} or None
        elif self.dialect.dual_path and self.config.enable_dual_path_graph:
            paths = {"global": int(spec.global_output_tokens), "local": int(spec.local_output_tokens)}
        else:
            paths = None
        return Item(int(spec.input_size), tokens, paths)

    def select(self, inputs: Inputs, indices: Sequence[int]) -> tuple[Inputs, AxisKeys]:
        selected, axes = self.owner._select_items(inputs, list(indices))
        return selected, (*axes, *self.rooms_of(inputs))

    def whole(self, inputs: Inputs) -> tuple[Inputs, AxisKeys]:
        kind = _kind(inputs)
        if self._facts.get(kind, (False, False))[0]:
            names, axes = self._kept[kind]
            return {name: inputs[name] for name in names}, axes
        return self.select(inputs, range(len(self.items(inputs))))

    # -- measurements on the first call of a kind

    def _measure(self, kind: Kind, inputs: Inputs) -> Facts:
        """The facts on inputs of this kind that cost no metadata."""
        if "_select_items" in self.owner.__dict__ or "_get_item_specs" in self.owner.__dict__:
            return False, False
        count = len(self.items(inputs))
        if count == 0:
            return False, False
        selected, axes = self.owner._select_items(inputs, list(range(count)))
        identity = not axes and all(name in inputs and _same(selected[name], inputs[name]) for name in selected)
        if identity:
            self._kept[kind] = tuple(selected), self.rooms_of(inputs)
        # Plans of a port that is run around its encoder hold no metadata.
        facts = self._facts[kind] = (identity, None if self.around is None else True)
        return facts

    def _is_pure(self, inputs: Inputs) -> bool:
        """Whether metadata come out the same with other pixels: with noise, and with zeros.

        It costs a few metadata computations, before a plan of this kind is used for a second call.
        One item answers for each path, the smallest: a request waits, and may be of one item anyway. The metadata of
        large images take 10 ms of the GPU (Kimi-VL's positions).
        """
        items, limits = self.items(inputs), self.owner._limits()
        for path in self.owner._ladders():
            sizes = [(item.tokens_on(path), index) for index, item in enumerate(items) if item.tokens_on(path)]
            if not sizes:
                continue
            one = self.owner._select_items(inputs, [min(sizes)[1]])[0]
            mine = self.replay_values(one, limits, path)
            for make in (_noise, torch.zeros_like):
                other = {name: _replace_data(value, make) for name, value in one.items()}
                try:
                    theirs = self.replay_values(other, limits, path)
                except Exception:  # Idefics3 drops images of zeros before its encoder, and then fails without any
                    return False
                if mine.keys() != theirs.keys():
                    return False
                for name, value in mine.items():
                    if value is None or any(value is v for v in one.values()):
                        continue
                    if not _same(value, theirs[name]):
                        return False
        return True

    # -- buffers and tower

    def packs_rows(self, path: str, budget: int, limits: Limits) -> bool:
        """Whether a graph of one token has as many rows as each token of `budget` has."""
        one = replace(limits, items=1)
        try:
            rows = [
                self._data_rows(self._ask_capture_values(GraphKey(path, b, self._first_axes()), one))
                for b in (1, budget)
            ]
        except Exception:  # a model may refuse a batch that is smaller than a tile
            return False
        return rows[0] is not None and rows[0] > 0 and rows[1] == rows[0] * budget

    def _first_axes(self) -> AxisKeys:
        return tuple(axis[0] for axis in self.describe().axes)

    def _data_rows(self, values: Mapping[str, torch.Tensor | None]) -> int | None:
        """Rows of the pixels, or where none are captured, of all that is; None where these numbers differ."""
        specs = self.describe().buffers
        given = {name: value for name, value in values.items() if value is not None and value.ndim}
        data = [value for name, value in given.items() if specs[name].is_data]
        rows = {len(v) for v in data or [v for name, v in given.items() if specs[name].kind is BufferKind.ROWS]}
        return rows.pop() if len(rows) == 1 and len(data) <= 1 else None

    def capture_values(self, key: GraphKey, limits: Limits) -> dict[str, torch.Tensor | None]:
        values = self._without_rounding(key, self._ask_capture_values(key, limits.within(key.axes)))
        return self._in_buckets(values) if self._flashinfer else values

    def _in_buckets(self, values: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
        """Round bounds of sequence lengths up to a bucket, as the tower's metadata do with FlashInfer.

        Models give the capture the bare bound (0.23 to 0.33). Almost every replay has a larger bound and would run
        eager.
        """
        from vllm.model_executor.layers.attention.mm_encoder_attention import bucket_flashinfer_max_seqlen

        specs = self.describe().buffers
        return {
            name: torch.tensor(bucket_flashinfer_max_seqlen(int(value)), dtype=value.dtype)
            if value is not None and specs[name].kind is BufferKind.BOUND and value.device.type == "cpu"
            else value
            for name, value in values.items()
        }

    def _ask_capture_values(self, key: GraphKey, limits: Limits) -> dict[str, torch.Tensor | None]:
        dialect = self.dialect
        arguments: list[Any] = [key.budget, limits.items, limits.frames, self.owner.device, self.owner.dtype]
        if dialect.path_argument:
            arguments.append(key.path)
        if dialect.axes:
            arguments.append(own_axes(key.axes))
        return dict(self.model.prepare_encoder_cudagraph_capture_inputs(*arguments).values)

    def _without_rounding(
        self, key: GraphKey, values: dict[str, torch.Tensor | None]
    ) -> dict[str, torch.Tensor | None]:
        """Capture values with no more rows than the budget has.

        Models divide a budget evenly over items (and frames) and round up: 1196 tokens become 1200 for eight images, or
        1216 with frames. A graph computes those rows for nothing, and matrix products of other sizes may take slower
        kernels. With them, calls were 4 % above an exact graph for 1196 tokens of Qwen3-VL and 1732 of Qwen2-VL (fitted
        ladders); without them, in another run, 1 % above and 1 % below. One image has no remainder, so we take its
        values and extend its offsets to as many sequences as before. If anything else differs, the model's values stay.
        """
        specs = self.describe().buffers
        data = [name for name, value in values.items() if value is not None and specs[name].is_data]
        if len(data) != 1:
            return values
        pixels = values[data[0]]
        assert pixels is not None
        if pixels.ndim == 0 or pixels.shape[0] in (0, self._rows_per_token.get(key.path, 0) * key.budget):
            return values  # no remainder
        if key.budget * round((pixels.shape[0] / key.budget) ** 0.5) > LONGEST_SIDE:
            return values
        try:
            single = self._ask_capture_values(key, Limits(1, 0))
            rows = single[data[0]].shape[0]  # type: ignore[union-attr]
        except Exception:  # a model may refuse a batch of one, or of no frames
            return values
        if rows == 0 or rows % key.budget or rows > pixels.shape[0] or single.keys() != values.keys():
            return values  # a tile of many tokens
        self._rows_per_token[key.path] = rows // key.budget
        if rows == pixels.shape[0]:
            return values
        exact: dict[str, torch.Tensor | None] = {}
        for name, many in values.items():
            one = single[name]
            if one is None and many is None:
                exact[name] = None
                continue
            if one is None or many is None or specs[name].owned:
                return values
            fitted = _fitted(specs[name].kind, one, many, rows, pixels.shape[0])
            if fitted is None:
                return values
            exact[name] = fitted
        return exact

    def replay_values(self, inputs: Inputs, limits: Limits, path: str) -> dict[str, torch.Tensor | None]:
        limits = limits.within(self.rooms_of(inputs))
        arguments: list[Any] = [inputs, limits.items, limits.frames]
        if self.dialect.path_argument:
            arguments.append(path)
        return dict(self.model.prepare_encoder_cudagraph_replay_buffers(*arguments).values)

    def forward(self, values: dict[str, Any], path: str) -> torch.Tensor:
        keywords = {"path": path} if self.dialect.path_argument else {}
        with zero_filled_attention(), self._without_nested_sharding():
            return self.model.encoder_cudagraph_forward(values, **keywords)

    def eager(self, inputs: Inputs, path: str) -> torch.Tensor:
        dual = self.dialect.dual_path and self.config.enable_dual_path_graph
        keywords = {"path": path} if self.dialect.named_paths or dual else {}
        with self._without_nested_sharding(), self.tables:
            output = self.model.encoder_eager_forward(inputs, **keywords)
        # DeepSeek-VL2 (0.33) inherits the protocol's empty method.
        return _NO_EAGER_FORWARD if output is None else output

    @cached_property
    def _sharding(self) -> list[torch.nn.Module]:
        """Found once: a model has hundreds of parts, and each call would look at all."""
        return sharding_parts(self.model) if self.owner.use_dp else []

    def _without_nested_sharding(self) -> AbstractContextManager[None]:
        return without_sharding(self._sharding)

    def output_rows(self, path: str, tokens: int) -> int | None:
        return tokens if self.plain_post else None

    def finish(
        self,
        outputs: dict[str, torch.Tensor],
        indices: Sequence[int],
        items: Sequence[Item],
        results: dict[int, torch.Tensor],
        inputs: Inputs,
        eager: Sequence[str],
    ) -> None:
        dialect = self.dialect
        if self.plain_post:
            scatter_rows(outputs["default"], indices, items, results)
            return
        if any(outputs[path] is _NO_EAGER_FORWARD for path in eager):
            results.update(zip(indices, self.embed(inputs), strict=True))
            return
        tokens = [item.tokens for item in items]
        hook = self.model.postprocess_encoder_output
        if dialect.named_paths:
            # `clone` is for outputs in graph memory; ours never are.
            hook(outputs, list(indices), tokens, results, clone=False, batch_mm_kwargs=inputs)
        elif dialect.dual_path and self.config.enable_dual_path_graph:
            # Call it when both paths ran eager, too: the release's own code for that case adds up the wrong items.
            hook(
                outputs["global"],
                list(indices),
                [item.tokens_on("global") for item in items],
                results,
                clone=False,
                batch_mm_kwargs=inputs,
                local_output=outputs.get("local"),
            )
        elif eager and not len(outputs["default"]):
            # A port that cuts the encoder out: without a graph, the model's own code makes the results.
            results.update(zip(indices, self.embed(inputs), strict=True))
        elif eager:
            scatter_rows(outputs["default"], indices, items, results)  # before 0.27 eager results are final
        else:
            hook(outputs["default"], list(indices), tokens, results, clone=False, batch_mm_kwargs=inputs)


def inherits(model: Any, method: str) -> bool:
    """Whether a method of a model is the protocol's own."""
    if method in getattr(model, "__dict__", {}):
        return False
    owner = next((cls for cls in type(model).__mro__ if method in vars(cls)), None)
    return owner is not None and owner.__name__ == "SupportsEncoderCudaGraph"


def attention_backend(model: Any) -> str | None:
    """The name of the tower's attention backend, or None if it does not say."""
    modules = getattr(model, "modules", None)
    if modules is None or not isinstance(model, torch.nn.Module):
        return None
    for module in modules():
        backend = getattr(module, "attn_backend", None)
        if backend is not None:
            return str(getattr(backend, "name", backend))
    return None


@contextmanager
def zero_filled_attention() -> Iterator[None]:
    """Let FlashAttention write into zeros while capturing, in releases whose wrapper does not do so (up to 0.30).

    FlashAttention 3 leaves rows unwritten that no sequence covers. The next layer multiplies those rows by probability
    zero, and zero times a NaN that another graph left in the pool is NaN: 0.26 gives NaN for every padded replay on an
    H200.
    """
    if not _needs_zero_fill():
        yield
        return
    try:
        from vllm.v1.attention.backends import fa_utils
    except ImportError:  # no FlashAttention here, so nothing calls it
        yield
        return
    original = getattr(fa_utils, "flash_attn_varlen_func", None)
    if original is None:
        yield
        return

    def zero_filled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is None:
            kwargs["out"] = torch.zeros((q.shape[0], q.shape[1], v.shape[-1]), dtype=q.dtype, device=q.device)
        return original(q, k, v, *args, **kwargs)

    fa_utils.flash_attn_varlen_func = zero_filled
    try:
        yield
    finally:
        fa_utils.flash_attn_varlen_func = original


_ZERO_FILL: list[bool] = []


def _needs_zero_fill() -> bool:
    if not _ZERO_FILL:
        try:
            from vllm.v1.attention.ops import vit_attn_wrappers

            source = inspect.getsource(vit_attn_wrappers.flash_attn_maxseqlen_wrapper)
            _ZERO_FILL.append("is_current_stream_capturing" not in source)
        except (ImportError, AttributeError, OSError):
            _ZERO_FILL.append(False)
    return _ZERO_FILL[0]
