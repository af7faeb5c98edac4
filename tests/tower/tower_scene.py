"""Small towers for the slicer: one class, one `forward` body a case, in a tree of its own.

The module needs torch and numpy only, so that a case can also be run, before and after its split.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from scaffold.edit import apply_edits
from scaffold.edit.operations import AddImport, ReplaceMethod
from scaffold.protocol.tree import SourceTree
from scaffold.tower import TowerSlice, TowerSplit, slice_tower

MODULE = "vllm/model_executor/models/small.py"

HEAD = '''\
"""A tower small enough to read."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x, cu_seqlens, max_seqlen=None):
        return self.proj(x) * (cu_seqlens[-1] - cu_seqlens[0]) / (cu_seqlens[1:] - cu_seqlens[:-1]).sum()


class Embeddings(nn.Module):
    """Adds a position to each row; the positions follow from lengths that arrive as a list."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.arange(400.0).reshape(100, 4))

    def forward(self, rows, lengths, scale=1.0):
        ids = torch.cat([torch.arange(n) for n in lengths])
        positions = self.table[ids].to(rows.device)
        return rows + positions * scale


class Outer(nn.Module):
    """Does nothing with the lengths but to hand them on to a child of its own."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.inner = Embeddings()

    def forward(self, rows, lengths):
        return self.inner(self.proj(rows), lengths)


class Attention(nn.Module):
    def forward(self, x, cu_seqlens, max_seqlen):
        return x * cu_seqlens[-1] / max_seqlen


class Layer(nn.Module):
    """Finds out the longest sequence by itself, unless it is told."""

    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x, cu_seqlens, longest=None):
        if longest is None:
            longest = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
        return self.attn(x, cu_seqlens, max_seqlen=longest)


class Deep(nn.Module):
    """Makes its own offsets of the grid."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, rows, grid):
        ends = torch.tensor([t * h * w for t, h, w in grid]).cumsum(0, dtype=torch.int32)
        cu_seqlens = F.pad(ends, (1, 0))
        max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
        return self.block(rows, cu_seqlens, max_seqlen)


class Told(nn.Module):
    """Gets offsets, and finds out the longest sequence by itself."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, rows, cu_seqlens, grid):
        places = torch.cat([torch.arange(t * h * w) for t, h, w in grid])
        max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
        return self.block(rows * places[:, None], cu_seqlens, max_seqlen)


class Plain(nn.Module):
    """Takes the grid and does nothing with it."""

    def forward(self, rows, grid):
        return rows * 2


class Merger(nn.Module):
    """Cuts its rows by the grid, in a loop: a graph cannot hold it."""

    def forward(self, rows, grid):
        parts, start = [], 0
        for t, h, w in grid:
            parts.append(rows[start : start + t * h * w].flip(0))
            start += t * h * w
        return torch.cat(parts)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.spatial_merge_size = 2
        self.use_positions = True
        self.full = [1]
        self.patch_embed = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.arange(400.0).reshape(100, 4))
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.embeddings = Embeddings()
        self.plain = Plain()
        self.deep = Deep()
        self.told = Told()
        self.merger = Merger()
        self.outer = Outer()
        self.layers = nn.ModuleList([Layer() for _ in range(2)])

    @property
    def device(self):
        return self.patch_embed.weight.device

    @property
    def dtype(self):
        return self.patch_embed.weight.dtype

    def pos_ids(self, grid_thw):
        return torch.cat([torch.arange(t * h * w) for t, h, w in grid_thw])

    def lookup(self, grid_thw):
        return self.table[self.pos_ids(grid_thw)]

    def offsets(self, grid_thw):
        ends = torch.tensor([t * h * w for t, h, w in grid_thw]).cumsum(0, dtype=torch.int32)
        return F.pad(ends, (1, 0))

    @staticmethod
    def invert_permutation(perm):
        inverse = torch.empty_like(perm)
        inverse[perm] = torch.arange(perm.numel())
        return inverse

    def forward(self, x, grid_thw, flag=True):
'''


def small_source(body: str) -> str:
    """The module whose tower's `forward` has this body."""
    return HEAD + textwrap.indent(textwrap.dedent(body).strip("\n") + "\n", " " * 8)


def small_tree(tmp_path: Path, body: str) -> SourceTree:
    """A tree that holds one small tower."""
    path = tmp_path / MODULE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(small_source(body))
    return SourceTree(root=tmp_path, label="tree", release=None)


def slice_small(tmp_path: Path, body: str, name: str = "Tower", **options: Any) -> TowerSlice:
    """Slice the small tower with this body."""
    return slice_tower(small_tree(tmp_path, body), MODULE, name, **options)


def texts(tower: TowerSlice, lines: tuple[int, ...]) -> list[str]:
    """Stripped source lines."""
    source = tower.source.splitlines()
    return [source[line - 1].strip() for line in lines]


def apply_split(source: str, split: TowerSplit, file: str) -> str:
    """The file after the split, written by the tool's own editor."""
    edits = [ReplaceMethod(e.class_name, e.replaces, e.source) for e in split.edits if e.file == file]
    return apply_edits(source, edits, path=file).text


def apply_imports(source: str, split: TowerSplit, file: str) -> str:
    """The file with what its new methods need of other modules."""
    edits = [AddImport(*name) for e in split.edits if e.file == file for name in e.imports]
    return apply_edits(source, edits, path=file).text


def run_module(text: str, name: str) -> ModuleType:
    """The module that `text` defines."""
    module = ModuleType(name)
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module
