"""Fixed vocabularies: buffer kinds with their padding, hooks, layouts, attention backends.

A buffer's kind decides how its tail is filled at replay, what it holds at capture and where it lives. Each of the three
is written once, here, with its reason; a descriptor may override the padding within what the kind allows and can never
leave it open. Every wrong-output defect of padding in vLLM's own implementations is a kind that nobody had named.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BufferKind:
    """`pads[0]` is the default. `capture` says what the buffer holds while the graph is recorded."""

    name: str
    meaning: str
    pads: tuple[str, ...]
    capture: str
    residencies: tuple[str, ...]
    reason: str


#: Ways to fill the part of a captured buffer that a replay does not use.
PADS: dict[str, str] = {
    "zero": "zeros",
    "repeat_last": "the last value again: sequences of length 0",
    "sections": "each of the two halves repeats its own last value",
    "rows_total": "the number of captured rows: one more sequence swallows the padding rows",
    "fill": "a given value",
    "axis": "zeros, with the prefix copied along another axis than the first",
    "scalar": "nothing to fill: one host value",
}

KINDS: dict[str, BufferKind] = {
    kind.name: kind
    for kind in (
        BufferKind(
            "rows",
            "one entry for each input row: pixels, rotary tables, position embeddings",
            ("zero", "fill", "axis"),
            "grid",
            ("device",),
            "Padding rows belong to no sequence, so any finite value is right, and zeros cannot overflow.",
        ),
        BufferKind(
            "cumulative",
            "offsets of sequences, ascending from 0: cu_seqlens",
            ("repeat_last", "rows_total"),
            "grid",
            ("device",),
            "Repeating the last offset makes the unused sequences empty. Zeros would give one of negative length.",
        ),
        BufferKind(
            "two_section",
            "two arrays of offsets in one tensor, as FlashInfer's cuDNN attention takes them",
            ("sections",),
            "grid",
            ("device",),
            "Each half is ascending on its own and has to repeat its own last value.",
        ),
        BufferKind(
            "lengths",
            "one length for each sequence",
            ("zero",),
            "grid",
            ("device", "host"),
            "An unused sequence has length 0.",
        ),
        BufferKind(
            "permutation",
            "indices of rows: window order, merge order, gather indices",
            ("zero", "fill"),
            "grid",
            ("device",),
            "Padding entries gather row 0, which always exists; their results are cut off.",
        ),
        BufferKind(
            "host_bound",
            "a scalar that kernels read on the host while they are recorded: max_seqlen, in rows",
            ("scalar",),
            "bound",
            ("host",),
            "The value at capture stays for ever, so it is the largest that any replay can need; on the device it "
            "would be copied to the host inside the graph.",
        ),
        BufferKind(
            "mask",
            "0 or 1 for each row or position",
            ("zero", "fill"),
            "ones",
            ("device",),
            "A padding position is masked; at capture all positions are valid, so that no branch on it is skipped.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class HookKind:
    """A method that a person writes because no rule gives it. `signature` lists its parameters, `*` for any."""

    name: str
    catalogue: str
    purpose: str
    signature: str

    @property
    def parameters(self) -> tuple[str, ...] | None:
        return None if self.signature == "*" else tuple(self.signature.split())


#: The only places where a descriptor may refer to hand-written Python.
HOOKS: dict[str, HookKind] = {
    hook.name: hook
    for hook in (
        HookKind(
            "position_embeddings",
            "H1",
            "position embeddings that the tower computes only inside its forward",
            "self grid",
        ),
        HookKind("metadata_region", "H2", "metadata whose statements cannot be moved as they are", "self grid"),
        HookKind("packed_merge", "H3", "patch merging as one gather over packed rows", "self grid"),
        HookKind("tower_region", "H4", "a part of the tower that must be replaced", "self x"),
        HookKind(
            "assemble", "H5", "the final tokens of an item: newlines, separators, typed spans", "self outputs sizes"
        ),
        HookKind("after_replay", "H6", "a module that runs outside the graph on the valid rows", "self output sizes"),
        HookKind("forward", "H7", "a graph forward that is not the tower's forward", "self pixels metadata"),
        HookKind("select", "H8", "re-packing of inputs when items are selected", "self mm_kwargs indices"),
        HookKind("replay", "H8", "re-packing of inputs before a replay", "self mm_kwargs"),
        HookKind("axis_resolve", "H9", "the key of a capture axis for given inputs", "self mm_kwargs"),
        HookKind("axis_capture", "H9", "the input shape for one key of a capture axis", "self key b B F"),
        HookKind("gate", "H10", "a condition for graphs that no expression can state", "self"),
        HookKind("helper", "H11", "whole-number arithmetic that no expression can state", "*"),
        HookKind("pad", "H12", "padding along several axes", "destination source"),
        HookKind("gather_indices", "H13", "gather indices over padded rows", "self sizes"),
        HookKind("model_forward", "H14", "a forward written for a tower that cannot be edited", "self pixels metadata"),
    )
}

#: Largest hook file: a hook is one method, not a module.
MAX_HOOK_BYTES = 32 * 1024

LAYOUTS: dict[str, str] = {
    "packed": "patch rows of all items behind each other, sizes as a grid",
    "tiles": "fixed-size tiles, a number of tiles for each item",
    "padded": "items padded to a common shape",
    "ragged": "items of different shapes in a list",
}

#: Meaning of one row of the size key, with the layouts that it fits.
COLUMNS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("n",): ("tiles", "padded", "ragged"),
    ("h", "w"): ("packed", "padded", "ragged"),
    ("t", "h", "w"): ("packed", "padded", "ragged"),
    ("tw", "th"): ("tiles",),
}

MODALITIES: dict[str, str] = {
    "image": "still images",
    "video": "videos: an item is several frames",
    "vision_chunk": "images and video chunks under one key",
}

BACKENDS: dict[str, str] = {
    "FLASH_ATTN": "FlashAttention",
    "FLASHINFER": "FlashInfer with cuDNN; its offsets come in two sections",
    "TRITON_ATTN": "Triton",
    "ROCM_AITER_FA": "AITER FlashAttention on ROCm",
}

#: Names that every expression about a batch may use.
BATCH_NAMES: dict[str, str] = {
    "b": "the token budget of the graph",
    "B": "the largest number of items of a batch",
    "F": "the largest number of video frames of a batch",
}
