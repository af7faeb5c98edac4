"""Rows behind the last sequence of a padded batch, and what to do about them on releases before 0.31.

A varlen attention kernel writes the rows of its sequences and no others. In a padded replay the rows behind the last
offset therefore keep what the memory held, and FlashAttention 3 and 4 let them reach valid rows: the last key/value
tile of the last sequence is loaded whole, its scores are masked, but its value rows are multiplied by a probability of
zero, and 0 * NaN is NaN. vLLM zero-fills the attention output while it captures from 0.31 on; before, something must
be done.

* (a) Cover the rows by sequences. Nothing is zero-filled, no shared file of the tree changes, and it is right for every
  kernel that writes the rows of its sequences. Cost: attention inside the padding. One sequence over L padding rows
  costs L * L, which can double a replay; cut into k pieces it costs L * L / k, and each piece is one more (mostly
  empty) sequence for the launch grid.
* (b) Zero-fill the output of every layer. Cost: one memset of the whole output a layer, whatever the padding. It needs
  a change of the attention wrapper, which all models of the tree share, or of the data statements of the tower, which
  the split promises not to touch.

Chosen: (a), inside the captured forward of the model, on the offsets on the device. There the number of captured rows
is known from the pixels' shape, which no host-side hook of the older protocols tells; it costs a few tiny kernels once
a replay, not once a layer; and it serves towers that were split by hand as well. A piece is an eighth of the captured
rows N, so at half padding the tail costs 4 * (N / 8) ** 2, a quarter of what the valid half costs as one sequence, and
at most 8 sequences are added; where a window bound asks for shorter pieces there are more, since a row beyond the baked
bound is not written. FlashInfer's two-section offsets are left alone (the method declines every backend but
FlashAttention), and Triton's kernel masks its loads, so that unwritten rows stay where they are.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from scaffold.protocol.tree import SourceTree
from scaffold.tower.model import Kind, TowerSlice

_WRAPPERS = "vllm/v1/attention/ops/vit_attn_wrappers.py"


def attention_leaves_rows(tree: SourceTree) -> bool:
    """Whether this tree's FlashAttention wrapper leaves rows outside of all sequences unwritten while it captures.

    Read from the wrapper: from 0.31 on it hands the kernel an output of zeros. True when the wrapper cannot be read.
    """
    if not tree.exists(_WRAPPERS):
        return True
    for node in ast.walk(tree.parse(_WRAPPERS)):
        if not isinstance(node, (ast.Assign, ast.keyword)):
            continue
        value = node.value
        named = node.arg == "out" if isinstance(node, ast.keyword) else any(_is_out(t) for t in node.targets)
        if named and isinstance(value, ast.Call) and ast.unparse(value.func) in ("torch.zeros", "torch.zeros_like"):
            return False
    return True


def _is_out(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "out"


def tail_pairs(tower: TowerSlice) -> tuple[tuple[str, str | None], ...]:
    """Each key of cumulative offsets with the key of the host bound that limits its sequences (None: no bound)."""
    bounds = [crossing for crossing in tower.crossings if crossing.kind is Kind.HOST_BOUND]
    pairs = []
    for crossing in tower.crossings:
        if crossing.kind in (Kind.CUMULATIVE, Kind.TWO_SECTION):
            own = [b.key for b in bounds if b.source in (crossing.name, crossing.key)]
            own += [b.key for b in bounds if b.source is None]
            pairs.append((crossing.key, own[0] if own else None))
    return tuple(pairs)


def render_tail_cover(
    pairs: Sequence[tuple[str, str | None]], *, tower: str = "self.visual", name: str = "_cover_padding_rows"
) -> str:
    """Source of a method of the model class, `name(self, metadata, num_rows) -> dict`, to be called while capturing.

    `pairs` as from `tail_pairs`, `tower` an expression for the tower. The result has the same entries, offsets extended
    so that every one of the `num_rows` captured rows lies in a sequence no longer than its bound.
    """
    assert pairs, "a tower without offsets needs no cover"
    entries = "".join(f"        ({key!r}, {bound!r}),\n".replace("'", '"') for key, bound in pairs)
    return f'''\
def {name}(
    self,
    metadata: dict[str, torch.Tensor | None],
    num_rows: int,
) -> dict[str, torch.Tensor | None]:
    """Put the padding rows of a captured graph into sequences of their own.

    FlashAttention writes the rows of its sequences only. What is left in the
    others, NaN perhaps, reaches valid rows in the next layer.
    """
    if {tower}.attn_backend.name not in ("FLASH_ATTN", "ROCM_AITER_FA"):
        return metadata
    covered = dict(metadata)
    for key, bound in (
{entries}    ):
        offsets = covered.get(key)
        if offsets is None:
            continue
        # Short sequences: attention is quadratic in their length. None may
        # be longer than the captured bound.
        length = max(128, -(-num_rows // 8))
        limit = None if bound is None else covered.get(bound)
        if limit is not None:
            length = max(1, min(length, int(limit)))
        steps = torch.arange(
            length,
            num_rows + length,
            length,
            dtype=offsets.dtype,
            device=offsets.device,
        )
        tail = (offsets[-1:] + steps).clamp(max=num_rows)
        covered[key] = torch.cat([offsets, tail])
    return covered
'''
