"""The source of the generated methods: descriptor and dialect become the values that a layout's template needs.

A template holds the words of the code, this module the decisions. One function a layout; what all layouts share is in
`_shared`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scaffold.descriptor.expressions import Expression, Function, parse_expression
from scaffold.plan.code import CAPACITIES, Names, identifiers
from scaffold.plan.paths import path_values, refusal, switches_of
from scaffold.render import Code, Signatures, pyrepr, render_template

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec, ForwardSpec, SequenceSpec
    from scaffold.protocol import Dialect, ProtocolProfile


@dataclass(frozen=True)
class Methods:
    """A rendered block of methods, and the names that it needs: `(module, name)` pairs."""

    source: str
    imports: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TreeFacts:
    """What the generated code has to know of the tree beyond its protocol; None means that it cannot be known.

    `has_input_dtype`: the tower has the attribute of `pixels.dtype`. `has_gate`: the class has what the gate reads.
    `has_vllm_config`: the class keeps vLLM's configuration; subclasses with an `__init__` of their own keep what it
    keeps, and not what a port adds to it. `attention_fills_zeros`: attention's output is zero-filled while a graph is
    captured (0.31 on), so that rows of no sequence hold no NaN.
    """

    has_input_dtype: bool | None = None
    has_gate: bool = True
    has_vllm_config: bool = False
    attention_fills_zeros: bool = False


def can_render(spec: AdapterSpec, profile: ProtocolProfile) -> bool:
    """Whether there are templates for the layout of `spec` in the dialect of `profile`."""
    if spec.after is not None and profile.dialect.postprocess.value == "none":
        return False
    return spec.layout in _LAYOUTS and (not spec.paths or refusal(spec, profile.dialect) is None)


def render_methods(spec: AdapterSpec, profile: ProtocolProfile, facts: TreeFacts = TreeFacts()) -> Methods:
    """All protocol methods of `spec` for the dialect of `profile`, as a block without indentation."""
    signatures = Signatures(profile)
    layout = "paths" if spec.paths else spec.layout
    values = _shared(spec, profile, signatures, facts) | _LAYOUTS[layout](spec, profile.dialect, facts)
    source = render_template(f"{layout}/model.py.jinja", **values)
    return Methods(source, _imports(source, spec, signatures))


def _shared(spec: AdapterSpec, profile: ProtocolProfile, signatures: Signatures, facts: TreeFacts) -> dict[str, Any]:
    names = Names.of(spec)
    modalities = spec.modalities
    embeds = next((modality.embeds for modality in modalities if modality.embeds), None)
    key = "self._get_encoder_cudagraph_keys(mm_kwargs)[0]" if len(modalities) > 1 else pyrepr(modalities[0].pixels)
    # Where a batch of ready embeddings is replayed (and the result dropped), it has no pixels to copy.
    replayed_without_pixels = embeds is not None and not profile.dialect.zero_path_tokens
    return {
        "spec": spec,
        "dialect": profile.dialect,
        "signature": signatures,
        "modalities": modalities,
        "modality_names": [modality.name for modality in modalities],
        "pixel_keys": {modality.name: modality.pixels for modality in modalities},
        "pixels_buffer": modalities[0].pixels,
        "embeds": embeds,
        "gate": names.code(spec.gate) if spec.gate and facts.has_gate else None,
        "hidden_size": names.code(spec.hidden_size),
        "padding_logics": {},
        "has_frames": False,
        "budget_min": names.code(spec.budget.min),
        "budget_lets": (),
        "rows": names.code(spec.item.rows),
        "tokens": names.code(spec.item.tokens),
        "size_names": Code(", ".join(spec.columns)),
        "sizes_type": Code("list[int]" if len(spec.columns) == 1 else "list[list[int]]"),
        **(_pixel_shape(spec) if not spec.paths else {}),
        "eager_pixels": Code(f"mm_kwargs[{key}]"),
        "replay_pixels": Code(f"mm_kwargs.get({key})" if replayed_without_pixels else f"mm_kwargs[{key}]"),
    }


def _pixel_shape(spec: AdapterSpec) -> dict[str, Any]:
    """The shape of one row; a `let` name that it uses twice becomes a local variable of the method."""
    assert spec.pixels is not None, "rule of the layouts with one pixel tensor"
    names, lets = Names.of(spec).localised(spec, *spec.pixels.shape)
    return {"pixel_shape": Code(", ".join(names.code(side) for side in spec.pixels.shape)), "pixel_lets": lets}


#: A `let` that is longer than this, spelled out, gets lines of its own in the methods of the tiles layout.
_LONGEST = 60


def _tiles(spec: AdapterSpec, dialect: Dialect, facts: TreeFacts) -> dict[str, Any]:
    """Fixed-size tiles, dense attention inside each: the pixels are the only buffer."""
    names = Names.of(spec)
    rows = names.code(spec.item.rows)
    one_each = rows == spec.columns[0]
    assert spec.capture.rows is not None, "rule of the tiles layout"
    budget_names, budget_lets = names.localised(spec, spec.budget.min, longest=_LONGEST)
    token_names, token_lets = names.localised(spec, spec.item.tokens, longest=_LONGEST)
    row_names, row_lets = names.localised(spec, spec.capture.rows, longest=_LONGEST)
    above = {name for name, _ in row_lets}
    return {
        "sizes_doc": Code("Number of tiles of each item."),
        "buffer_keys": [spec.modalities[0].pixels] if dialect.values else [],
        "rows_of_items": Code("sizes" if one_each else f"[{rows} for {', '.join(spec.columns)} in sizes]"),
        "budget_min": budget_names.code(spec.budget.min),
        "budget_lets": budget_lets,
        "tokens": token_names.code(spec.item.tokens),
        "token_lets": token_lets,
        "capture_rows": row_names.code(spec.capture.rows),
        "row_lets": row_lets,
        "shape_lets": tuple(let for let in _pixel_shape(spec)["pixel_lets"] if let[0] not in above),
        "forward": _bound_call(spec.forward, {"pixels": "pixels"}),
        "switches": switches_of(spec),
    }


_EMPTY = Code()


@dataclass(frozen=True)
class SequenceView:
    """A set of attention sequences in the capture method: its local variable, and the metadata method's parameters.

    The names of the parameters are those of vLLM's own towers, which a split tower gets too. `spare` is how many
    sequences more cover the rows behind a batch.
    """

    variable: str
    capacity: str
    override: str
    count: Code = _EMPTY
    longest: Code = _EMPTY
    spare: Code = _EMPTY


def sequence_views(spec: AdapterSpec) -> tuple[SequenceView, ...]:
    """The sets of `spec` in order; the first is the main one, whose sequences are frames or items."""
    main = "max_batch_size" if spec.attention.sequences[0].unit == "item" else "max_frames_per_batch"
    return tuple(
        SequenceView("num_seqs", main, "max_seqlen_override")
        if index == 0
        else SequenceView(
            f"num_{set_.name}_seqs", f"max_{set_.name}_seqs_per_batch", f"max_seqlen_{set_.name}_override"
        )
        for index, set_ in enumerate(spec.attention.sequences)
    )


def _packed(spec: AdapterSpec, dialect: Dialect, facts: TreeFacts) -> dict[str, Any]:
    """Rows of all items behind each other; metadata that the tower computes from the grids."""
    assert spec.metadata is not None, "rule of the packed layout"
    assert spec.item.merge is not None, "rule of the packed layout"
    height, width = spec.item.merge
    item_names, item_lets = Names.of(spec).localised(spec, spec.item.tokens)
    side_limit = spec.capture.side_limit
    assert side_limit is not None, "rule of the strip grid"
    sequences = spec.attention.sequences
    capture_names, capture_lets = Names.of(spec).localised(
        spec, height, width, *(set_.longest for set_ in sequences), *(set_.count for set_ in sequences)
    )
    has_hook = dialect.postprocess.value != "none"
    takes_embeds = any(modality.embeds for modality in spec.modalities)
    merge_h, merge_w = capture_names.code(height), capture_names.code(width)
    offsets = [set_.offsets for set_ in sequences]
    owner = Code(f"self.{spec.tower}" if spec.metadata.on == "tower" else "self")
    pixels = spec.modalities[0].pixels
    metadata_keys = [buffer.name for buffer in spec.buffers if buffer.source == "metadata"]
    inputs = f'inputs["{pixels}"]' if dialect.values else f'mm_kwargs["{pixels}"]'
    sizes = "torch.tensor(sizes)" if spec.metadata.grid == "tensor" else "sizes"
    return {
        "buffer_keys": [pixels, *metadata_keys] if dialect.values else metadata_keys,
        "padding_logics": dict.fromkeys(offsets, "self._pad_offsets"),
        "has_frames": True,
        "offset_keys": offsets,
        "frames": Names.of(spec).code(spec.budget.frames) if spec.budget.frames else None,
        "frames_info": spec.budget.frames_info,
        "model_config": Code("self.vllm_config.model_config" if facts.has_vllm_config else "self.model_config"),
        **_packed_keys(spec),
        # What no graph can serve: ready embeddings, and more frames than captured sequences.
        "may_go_eager": _counts_frames(spec) or takes_embeds,
        # Those of them that the manager replays all the same, since it is told of items alone (their frames together
        # may be too many) or sizes results by what it is told (embeddings under data parallelism).
        "drops_replays": has_hook and (_counts_frames(spec) or (takes_embeds and not dialect.zero_path_tokens)),
        "rows_spelled": Names.of(spec).code(spec.item.rows),
        "after": _bound_call(spec.after, {"output": "output[:num_rows]", "sizes": sizes}) if spec.after else None,
        "tokens": item_names.code(spec.item.tokens),
        "rows": item_names.code(spec.item.rows),
        "item_lets": item_lets,
        "num_seqs": Code(f"sum({_only('t', spec.columns)} in self._get_encoder_cudagraph_sizes(mm_kwargs))"),
        "has_hook": has_hook,
        "container": Code("values" if dialect.values else "buffers"),
        "capture_lets": capture_lets,
        "side_limit": capture_names.code(side_limit),
        "merge_h": merge_h,
        "merge_w": merge_w,
        "rows_per_token": Code(f"{merge_h}**2" if merge_h == merge_w else f"{merge_h} * {merge_w}"),
        "sets": tuple(
            replace(
                view,
                count=_count(set_.count, capture_names, has_hook=has_hook, main=index == 0),
                longest=capture_names.code(set_.longest),
                spare=capture_names.code(_spare(set_, view.variable, height, width)),
            )
            for index, (view, set_) in enumerate(zip(sequence_views(spec), sequences, strict=True))
        ),
        "metadata_owner": owner,
        "metadata_method": spec.metadata.method,
        "captured_grid": Code("torch.tensor(grid)" if spec.metadata.grid == "tensor" else "grid"),
        "replayed_grid": Code(sizes),
        "pixel_dtype": _pixel_dtype(spec, facts),
        "flashinfer": "FLASHINFER" in spec.attention.backends,
        "cover_rows": not facts.attention_fills_zeros,
        "frames_bound": _counts_frames(spec),
        "frame_names": Code(", ".join(name if name == "t" else "_" for name in spec.columns)),
        **_filler(spec),
        "forward": _bound_call(spec.forward, {"pixels": inputs, "metadata": "inputs" if dialect.values else "buffers"}),
        "eager": _bound_call(spec.eager, {"pixels": "mm_kwargs[pixels_key]", "sizes": sizes}),
    }


def _packed_keys(spec: AdapterSpec) -> dict[str, Any]:
    """The keys of each modality's inputs. Where only some modalities take ready embeddings, the others have no key."""
    if not any(modality.embeds for modality in spec.modalities):
        keys: list[tuple[str | None, ...]] = [(modality.pixels, modality.sizes) for modality in spec.modalities]
        return {"keys": keys, "keys_type": Code("tuple[str, str]"), "ready": Code("False")}
    keys = [(modality.pixels, modality.embeds, modality.sizes) for modality in spec.modalities]
    embeds = "str" if all(modality.embeds for modality in spec.modalities) else "str | None"
    ready = Code("self._get_encoder_cudagraph_keys(mm_kwargs)[1] in mm_kwargs")
    return {"keys": keys, "keys_type": Code(f"tuple[str, {embeds}, str]"), "ready": ready}


#: Rows of one tile of FlashAttention's kernels.
_TILE_ROWS = parse_expression("128")


def _has_own_bound(sequences: SequenceSpec) -> bool:
    """Whether the longest sequence of a set (a window) does not depend on the budget.

    A kernel computes no more rows of a sequence than the bound that was captured with it, so this is also the most that
    a sequence behind the batch may have; elsewhere it is one kernel tile, which costs next to nothing.
    """
    return not sequences.longest.names & CAPACITIES.keys()


def _spare(sequences: SequenceSpec, captured: str, height: Expression, width: Expression) -> Expression:
    """How many sequences cover the rows behind any batch, beside its own, at most `captured`.

    Each of its own has a token or more, so the more of them there are, the fewer rows are left.
    """
    per_token = "height ** 2" if height == width else "height * width"
    return parse_expression(f"max(b - {captured}, 0) * {per_token} // filler + 1").substitute(
        {
            "height": height,
            "width": width,
            "filler": sequences.longest if _has_own_bound(sequences) else _TILE_ROWS,
        }
    )


def _filler(spec: AdapterSpec) -> dict[str, Any]:
    """The least length of the sequences that cover the rows behind a batch; the captured number of them is the rest."""
    bounded = [set_.longest for set_ in spec.attention.sequences if _has_own_bound(set_)]
    if not bounded:
        return {"filler_rows": Code(_TILE_ROWS.python()), "filler_lets": ()}
    names, lets = Names.of(spec).localised(spec, *bounded, *bounded)
    return {"filler_rows": names.code(bounded[0]), "filler_lets": lets}


def _counts_frames(spec: AdapterSpec) -> bool:
    """Whether the main set has a sequence for each frame of an item."""
    return spec.attention.sequences[0].unit == "frame" and "t" in spec.columns


def _only(name: str, columns: tuple[str, ...]) -> str:
    """`t for t, _, _`: a loop over sizes that reads one column."""
    return f"{name} for {', '.join(column if column == name else '_' for column in columns)}"


def _count(count: Expression, names: Names, *, has_hook: bool, main: bool) -> Code:
    """Captured number of sequences.

    The captured grid itself has a sequence a strip. Without a hook for results a batch of too many frames cannot be
    sent to eager execution; with video the budget then is the bound, since no frame and no window has less than one
    token.
    """
    code = names.code(count)
    if main:
        is_max = isinstance(count.root, Function) and count.root.name == "max"
        among = code.removeprefix("max(").removesuffix(")") if is_max else code
        code = Code(f"max({among}, len(grid))")
    return code if has_hook else Code(f"(token_budget if max_frames_per_batch else {code})")


def _pixel_dtype(spec: AdapterSpec, facts: TreeFacts) -> Code:
    """Since 0.32 a tower may take uint8 pixels; whether this tree's does is a fact of the tree."""
    path = spec.pixels.dtype if spec.pixels else None
    if path is None or facts.has_input_dtype is False:
        return Code("dtype")
    if facts.has_input_dtype:
        return Code(f"{path} or dtype")
    owner, _, name = path.rpartition(".")
    grand, _, attribute = owner.rpartition(".")
    return Code(f'getattr(getattr({grand}, "{attribute}", None), "{name}", None) or dtype')


_LAYOUTS: dict[str, Callable[[AdapterSpec, Dialect, TreeFacts], dict[str, Any]]] = {
    "tiles": _tiles,
    "packed": _packed,
    "paths": lambda spec, dialect, facts: path_values(spec, dialect),
}


def _bound_call(forward: ForwardSpec, bindings: dict[str, str]) -> Code:
    assert forward.call is not None, "rule of the layouts that have a template"
    call = forward.call.python(bindings)
    return Code(f"{call}.flatten(0, 1)" if forward.flatten else call)


def _imports(source: str, spec: AdapterSpec, signatures: Signatures) -> tuple[tuple[str, str], ...]:
    """Every importable name that the rendered block mentions."""
    words = set(identifiers(source))
    importable = signatures.importable
    if spec.processor is not None:
        importable |= {spec.processor.class_name: spec.processor.module}
    return tuple(sorted((module, name) for name, module in importable.items() if name in words))
