"""Rows behind the last sequence of a padded batch, and what to do about them on releases before 0.31.

A varlen attention kernel writes the rows of its sequences and no others. In a padded replay the rows behind the last
offset therefore keep what the memory held. FlashAttention 3 and 4 let them reach valid rows: they load the last
key/value tile of the last sequence whole and mask its scores, but multiply its value rows by a probability of zero, and
0 * NaN is NaN. From 0.31 on, vLLM zero-fills the attention output while it captures. Before, something must be done.

* (a) Cover the rows by sequences. Nothing is zero-filled, no shared file of the tree changes, and it is right for every
  kernel that writes the rows of its sequences. Cost: attention inside the padding. One sequence over L padding rows
  costs L * L, which can double a replay; short ones cost next to nothing, but each is one more sequence to launch.
* (b) Zero-fill the output of every layer. Cost: one memset of the whole output a layer, whatever the padding. It needs
  a change of the attention wrapper, which all models of the tree share, or of the data statements of the tower, which
  the split promises not to touch.

A model's own attention may leave them unwritten in any release: there, too, (a) is what a port does.

Chosen: (a), where the offsets are padded (`templates/common/offsets.py.jinja`): the rows are dealt out to sequences of
a kernel tile (128 rows) or of a window, and to no more of them than are needed. FlashInfer's two-section offsets are
left alone, and Triton's kernel masks its loads, so that unwritten rows stay where they are.
"""

from __future__ import annotations

import ast

from scaffold.protocol.tree import SourceTree
from scaffold.syntax import FunctionNode, call_name
from scaffold.tower.names import parameters_of

_WRAPPERS = "vllm/v1/attention/ops/vit_attn_wrappers.py"
#: Calls that make memory and write nothing into it.
_UNFILLED = {"empty", "empty_like", "new_empty"}


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


def own_attention_leaves_rows(tree: SourceTree, file: str) -> bool:
    """Whether a model's file has attention of its own that leaves such rows unwritten: no wrapper fills its memory.

    It gets the offsets of sequences and makes its output with `torch.empty` or a relative of it (MiMo-V2-Omni).
    """
    for function in (node for node in ast.walk(tree.parse(file)) if isinstance(node, FunctionNode)):
        made = {call_name(node) for node in ast.walk(function)}
        if made & _UNFILLED and any("cu_seqlens" in name for name in parameters_of(function)):
            return True
    return False


def _is_out(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "out"
