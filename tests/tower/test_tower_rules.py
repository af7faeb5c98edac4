"""Each slicing rule on a small tower: what crosses, moves and stays; and that the split tower computes the same."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captured import captured
from ruff.__main__ import find_ruff_bin
from tower_scene import MODULE, apply_split, run_module, slice_small, small_source, texts

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.tree import SourceTree
from scaffold.tower import TowerSlice, TowerSplit, prove_split, slice_tower, split_tower

#: name -> (body of forward, {key: kind}, texts that must be among the moved lines, texts among the staying lines)
RULES: dict[str, tuple[str, dict[str, str], list[str], list[str]]] = {
    "metadata after data moves in front of it": (
        """
        x = self.patch_embed(x)
        pos = self.lookup(grid_thw)
        x = x + pos
        return x
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw)"],
        ["x = self.patch_embed(x)", "x = x + pos", "return x"],
    ),
    "device and dtype of data are not data": (
        """
        x = self.patch_embed(x)
        pos = self.lookup(grid_thw).to(device=x.device, dtype=x.dtype)
        return x + pos
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw).to(device=x.device, dtype=x.dtype)"],
        ["return x + pos"],
    ),
    "the shape of data stays and is no metadata": (
        """
        rows = x.shape[0]
        pos = self.lookup(grid_thw)
        x = self.patch_embed(x).reshape(rows, -1)
        return x + pos
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw)"],
        ["rows = x.shape[0]", "x = self.patch_embed(x).reshape(rows, -1)"],
    ),
    "isinstance does not make what it guards depend on metadata": (
        """
        if isinstance(grid_thw, list):
            sizes = grid_thw
        else:
            sizes = grid_thw.tolist()
        pos = self.lookup(sizes)
        return self.patch_embed(x) + pos
        """,
        {"pos": "rows"},
        ["if isinstance(grid_thw, list):"],
        ["return self.patch_embed(x) + pos"],
    ),
    "is None does not either": (
        """
        bound = (self.offsets(grid_thw)[1:] - self.offsets(grid_thw)[:-1]).max() if self.use_positions else None
        cu = self.offsets(grid_thw)
        if bound is not None:
            x = self.patch_embed(x)
        for block in self.blocks:
            x = block(x, cu, bound)
        return x
        """,
        {"bound": "host_bound", "cu": "cumulative"},
        ["cu = self.offsets(grid_thw)"],
        ["x = self.patch_embed(x)", "for block in self.blocks:"],
    ),
    "a choice per layer stays in the loop": (
        """
        cu_full = self.offsets(grid_thw)
        cu_part = self.offsets([[1, 1, 1]] + list(grid_thw))
        for number, block in enumerate(self.blocks):
            if number in self.full:
                cu_now = cu_full
            else:
                cu_now = cu_part
            x = block(x, cu_now)
        return x
        """,
        {"cu_full": "cumulative", "cu_part": "cumulative"},
        ["cu_full = self.offsets(grid_thw)"],
        ["for number, block in enumerate(self.blocks):"],
    ),
    "a mixed block under configuration is split in two": (
        """
        if self.use_positions:
            pos = self.lookup(grid_thw)
            x = x + pos
        else:
            x = x * 2
        return self.patch_embed(x)
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw)"],
        ["x = x + pos", "x = x * 2", "return self.patch_embed(x)"],
    ),
    "a value of one branch is None on the other": (
        """
        if self.use_positions:
            pos = self.lookup(grid_thw)
        x = self.patch_embed(x)
        if self.use_positions:
            x = x + pos
        return x
        """,
        {"pos": "rows"},
        ["if self.use_positions:"],
        ["x = self.patch_embed(x)", "x = x + pos"],
    ),
    "elif stays elif on both sides": (
        """
        if self.full == [7]:
            pos = self.lookup(grid_thw) * 3
            x = x + pos
        elif self.use_positions:
            # this comment goes with its statement
            half = self.lookup(grid_thw) / 2
            x = x - half
        else:
            x = x * 2
        return self.patch_embed(x)
        """,
        {"pos": "rows", "half": "rows"},
        ["pos = self.lookup(grid_thw) * 3", "half = self.lookup(grid_thw) / 2"],
        ["x = x + pos", "x = x - half", "x = x * 2"],
    ),
    "a with block of data stays whole": (
        """
        pos = self.lookup(grid_thw)
        with torch.no_grad():
            x = self.patch_embed(x)
            x = x + pos
        return x
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw)"],
        ["with torch.no_grad():"],
    ),
    "a list built by append is a value of its loop": (
        """
        x = self.patch_embed(x)
        parts = []
        ends = [torch.tensor([0], dtype=torch.int32)]
        last = 0
        for t, h, w in grid_thw:
            parts.append(self.table[torch.arange(t * h * w)])
            ends.append(torch.tensor([h * w] * t).cumsum(0).to(torch.int32) + last)
            last = last + t * h * w
        pos = torch.cat(parts)
        cu = torch.cat(ends)
        for block in self.blocks:
            x = block(x + pos, cu)
        return x
        """,
        {"pos": "rows", "cu": "cumulative"},
        ["parts = []", "for t, h, w in grid_thw:", "pos = torch.cat(parts)"],
        ["x = self.patch_embed(x)", "for block in self.blocks:"],
    ),
    "lengths of offsets": (
        """
        cu = self.offsets(grid_thw)
        lengths = cu[1:] - cu[:-1]
        for block in self.blocks:
            x = block(x, cu, lengths)
        return x
        """,
        {"cu": "cumulative", "lengths": "lengths"},
        ["cu = self.offsets(grid_thw)", "lengths = cu[1:] - cu[:-1]"],
        ["for block in self.blocks:"],
    ),
    "a list of data under constant control stays": (
        """
        cu = self.offsets(grid_thw)
        features = []
        for number, block in enumerate(self.blocks):
            x = block(x, cu)
            if number in self.full:
                features.append(x)
        return torch.cat([x] + features, dim=1)
        """,
        {"cu": "cumulative"},
        ["cu = self.offsets(grid_thw)"],
        ["features = []", "return torch.cat([x] + features, dim=1)"],
    ),
    "a part that depends on the loop's own variable stays": (
        """
        tables = torch.stack([self.lookup(grid_thw), self.lookup(grid_thw) * 2])
        for number in range(2):
            x = x + tables[number]
        return x
        """,
        {"tables": "rows"},
        ["tables = torch.stack([self.lookup(grid_thw), self.lookup(grid_thw) * 2])"],
        ["for number in range(2):"],
    ),
    "a constant goes to both sides": (
        """
        scale = self.spatial_merge_size * 2
        pos = self.lookup(grid_thw) * scale
        x = self.patch_embed(x) * scale
        return x + pos
        """,
        {"pos": "rows"},
        ["scale = self.spatial_merge_size * 2", "pos = self.lookup(grid_thw) * scale"],
        ["scale = self.spatial_merge_size * 2", "x = self.patch_embed(x) * scale"],
    ),
    "a parameter with a default is passed on": (
        """
        pos = self.lookup(grid_thw) if flag else self.lookup(grid_thw) * 2
        return self.patch_embed(x) + pos
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw) if flag else self.lookup(grid_thw) * 2"],
        ["return self.patch_embed(x) + pos"],
    ),
    "a name that is data first and metadata later": (
        """
        pos = self.patch_embed(x)
        x = x + pos
        pos = self.lookup(grid_thw)
        return x + pos
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw)"],
        ["pos = self.patch_embed(x)", "x = x + pos", "return x + pos"],
    ),
    "try and except whose body is metadata moves as one": (
        """
        try:
            sizes = grid_thw.tolist()
        except AttributeError:
            sizes = grid_thw
        pos = self.lookup(sizes)
        return self.patch_embed(x) + pos
        """,
        {"pos": "rows"},
        ["try:"],
        ["return self.patch_embed(x) + pos"],
    ),
    "a permutation and its inverse": (
        """
        order = torch.arange(sum(t * h * w for t, h, w in grid_thw)).flip(0)
        back = self.invert_permutation(order)
        x = self.patch_embed(x)[order]
        return x[back, :]
        """,
        {"order": "permutation", "back": "permutation"},
        ["back = self.invert_permutation(order)"],
        ["x = self.patch_embed(x)[order]", "return x[back, :]"],
    ),
    "a child module gets host values of the grid": (
        """
        lengths = [t * h * w for t, h, w in grid_thw]
        x = self.embeddings(x, lengths, scale=2.0)
        return self.patch_embed(x)
        """,
        {"positions": "rows"},
        ["lengths = [t * h * w for t, h, w in grid_thw]"],
        ["x = self.embeddings(x, lengths, scale=2.0)"],
    ),
    "a variable is called as a child's metadata would be": (
        """
        lengths = [t * h * w for t, h, w in grid_thw]
        embeddings_metadata = self.lookup(grid_thw)
        x = self.embeddings(x, lengths, scale=2.0)
        return self.patch_embed(x) + embeddings_metadata
        """,
        {"embeddings_metadata": "rows", "positions": "rows"},
        ["embeddings_metadata = self.lookup(grid_thw)"],
        ["return self.patch_embed(x) + embeddings_metadata"],
    ),
    "a child of a child gets host values of the grid": (
        """
        lengths = [t * h * w for t, h, w in grid_thw]
        return self.outer(self.patch_embed(x), lengths)
        """,
        {"positions": "rows"},
        ["lengths = [t * h * w for t, h, w in grid_thw]"],
        ["return self.outer(self.patch_embed(x), lengths)"],
    ),
    "an argument that a child ignores is dropped": (
        """
        x = self.plain(x, grid_thw)
        pos = self.lookup(grid_thw)
        return self.patch_embed(x) + pos
        """,
        {"pos": "rows"},
        ["pos = self.lookup(grid_thw)"],
        ["x = self.plain(x, grid_thw)"],
    ),
    "the outputs of layers are kept in a list": (
        """
        chosen = self.full
        cu_seqlens = self.offsets(grid_thw)
        x = self.patch_embed(x)
        kept = []
        for number, block in enumerate(self.blocks):
            x = block(x, cu_seqlens)
            if chosen is not None and number in chosen:
                kept.append(x)
        if chosen is not None:
            joined = [x]
            for index, part in enumerate(kept):
                part = self.plain(part, None) + index
                joined.append(part)
            x = torch.cat(joined, dim=1)
        return x
        """,
        {"cu_seqlens": "cumulative"},
        ["cu_seqlens = self.offsets(grid_thw)"],
        ["chosen = self.full", "kept = []", "for index, part in enumerate(kept):"],
    ),
    "offsets that a child makes": (
        """
        x = self.patch_embed(x)
        return self.deep(x, grid_thw)
        """,
        {"cu_seqlens": "cumulative", "max_seqlen": "host_bound"},
        [],
        ["x = self.patch_embed(x)"],
    ),
    "offsets that a child gets": (
        """
        x = self.patch_embed(x)
        ends = self.offsets(grid_thw)
        return self.told(x, ends, grid_thw)
        """,
        {"cu_seqlens": "cumulative", "max_seqlen": "host_bound", "places": "rows"},
        ["ends = self.offsets(grid_thw)"],
        ["x = self.patch_embed(x)"],
    ),
    "state of the module is written by metadata": (
        """
        self.cached = self.lookup(grid_thw)
        pos = self.cached * 2
        return self.patch_embed(x) + pos
        """,
        {"pos": "rows"},
        ["self.cached = self.lookup(grid_thw)", "pos = self.cached * 2"],
        ["return self.patch_embed(x) + pos"],
    ),
}

GRIDS: tuple[Any, ...] = ([[1, 2, 2]], [[2, 2, 4], [1, 4, 2], [3, 2, 2]])


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str, tmp_path: Path) -> None:
    body, keys, moved, staying = RULES[name]
    tower = slice_small(tmp_path, body)
    assert _kinds(tower) == keys
    assert set(tower.keys) == set(keys)
    assert [line for line in moved if line not in texts(tower, tower.moved_lines)] == []
    assert [line for line in staying if line not in texts(tower, tower.staying_lines)] == []


def _kinds(tower: TowerSlice) -> dict[str, str]:
    """The kinds of all crossings by their keys, those of children and of their children included."""
    kinds = {crossing.key: crossing.kind.value for crossing in tower.crossings}
    for child in tower.children:
        kinds |= _kinds(child.slice)
    return kinds


@pytest.mark.parametrize("name", RULES)
def test_split_of_rule_is_a_move_and_computes_the_same(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    body = RULES[name][0]
    split = split_tower(slice_small(tmp_path, body))
    before = small_source(body)
    after = apply_split(before, split, MODULE)
    assert [d.message for d in prove_split(before, after, split)] == []
    (tmp_path / MODULE).write_text(after)
    again = slice_tower(SourceTree(root=tmp_path, label="tree", release=None), MODULE, "Tower")
    assert again.already_split
    assert set(again.keys) == set(split.slice.keys), "a second port would not find the metadata of the first one"
    old, new = run_module(before, "before").Tower(), run_module(after, "after").Tower()
    new.load_state_dict(old.state_dict())
    for grid in GRIDS:
        rows = sum(t * h * w for t, h, w in grid)
        pixels = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
        with torch.no_grad():
            expected = old(pixels.clone(), grid)
            assert torch.equal(new(pixels.clone(), grid), expected)
            metadata = new.prepare_encoder_metadata(grid)
            assert set(metadata) == set(split.slice.keys)
            assert torch.equal(new(pixels.clone(), None, encoder_metadata=metadata), expected)


@pytest.mark.parametrize("name", ["offsets that a child makes", "offsets that a child gets"])
def test_capacities_reach_the_child_whose_offsets_they_pad(name: str, tmp_path: Path) -> None:
    """A parent that kept them to itself made a port that every static proof accepted."""
    pytest.importorskip("torch")
    body = RULES[name][0]
    split = split_tower(slice_small(tmp_path, body))
    after = apply_split(small_source(body), split, MODULE)
    tower = run_module(after, "after").Tower()
    metadata = tower.prepare_encoder_metadata([[1, 2, 2]], max_frames_per_batch=3, max_seqlen_override=64)
    assert metadata["cu_seqlens"].tolist() == [0, 4, 4, 4]
    assert metadata["max_seqlen"].item() == 64
    assert [problem.code for problem in prove_split(small_source(body), _kept(after), _kept_split(split))] == ["VCG641"]


@pytest.mark.parametrize("name", ["offsets that a child makes", "offsets that a child gets"])
def test_a_tower_of_images_takes_no_number_of_frames(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = RULES[name][0]
    split = split_tower(slice_small(tmp_path, body), frames=False)
    after = apply_split(small_source(body), split, MODULE)
    assert "max_frames_per_batch" not in after
    assert prove_split(small_source(body), after, split) == ()
    tower = run_module(after, "after").Tower()
    assert tower.prepare_encoder_metadata([[1, 2, 2]], max_batch_size=3)["cu_seqlens"].tolist() == [0, 4, 4, 4]
    kept = prove_split(small_source(body), _kept(after), _kept_split(split))
    assert [problem.code for problem in kept] == ["VCG641"]


@pytest.mark.parametrize(
    ("annotation", "told"), [("list[list[int]]", True), ("list[list[int]] | None", False), ("'Grid'", False)]
)
def test_the_metadata_method_gets_a_grid_where_the_new_function_may_have_none(
    annotation: str, told: bool, tmp_path: Path
) -> None:
    """vLLM's type check asks for it: the old function took no None, and a caller with metadata has no grid."""
    body = "pos = self.lookup(grid_thw)\nreturn self.patch_embed(x) + pos"
    tower = slice_small(tmp_path, body)
    typed = tuple(replace(p, annotation=annotation) if p.name == "grid_thw" else p for p in tower.parameters)
    split = split_tower(replace(tower, parameters=typed))
    assert ("assert grid_thw is not None" in apply_split(small_source(body), split, MODULE)) is told


def _kept(text: str) -> str:
    """What a parent that keeps the capacities to itself would write."""
    for name in ("max_batch_size", "max_frames_per_batch", "max_seqlen_override"):
        text = re.sub(rf"\s*\b{name}={name},", "", text)
    return text


def _kept_split(split: TowerSplit) -> TowerSplit:
    changed = [
        replace(edit, added=tuple((name, tuple(map(_kept, texts))) for name, texts in edit.added))
        for edit in split.edits
    ]
    return replace(split, edits=tuple(changed))


#: name -> (body, code, a part of the line that is blamed, a part of the message)
REFUSALS: dict[str, tuple[str, str, str, str]] = {
    "an early return on metadata": (
        """
        if sum(t * h * w for t, h, w in grid_thw) == 0:
            return x.new_zeros(0)
        return self.patch_embed(x) + self.lookup(grid_thw)
        """,
        "VCG452",
        "if sum(t * h * w for t, h, w in grid_thw) == 0:",
        "a branch on metadata touches data",
    ),
    "a check of metadata against the shape of data": (
        """
        assert sum(t * h * w for t, h, w in grid_thw) == x.shape[0], "rows and grid differ"
        return self.patch_embed(x) + self.lookup(grid_thw)
        """,
        "VCG453",
        "assert sum(t * h * w",
        "a statement mixes metadata with the shape of data",
    ),
    "loop over the grid cuts data": (
        """
        parts, start = [], 0
        for t, h, w in grid_thw:
            parts.append(self.patch_embed(x[start : start + t * h * w]))
            start += t * h * w
        return torch.cat(parts)
        """,
        "VCG452",
        "for t, h, w in grid_thw:",
        "a loop over metadata touches data",
    ),
    "a list that metadata fills": (
        """
        kept = []
        for t, h, w in grid_thw:
            kept.append(x * t)
        for part in kept:
            x = x + part
        return x
        """,
        "VCG452",
        "for t, h, w in grid_thw:",
        "a loop over metadata touches data",
    ),
    "a list that a branch on metadata fills": (
        """
        cu_seqlens, kept = self.offsets(grid_thw), []
        kept = []
        for block in self.blocks:
            if len(grid_thw) > 1:
                kept.append(block(x, cu_seqlens))
        for part in kept:
            x = x + part
        return x
        """,
        "VCG452",
        "for part in kept:",
        "a loop over metadata touches data",
    ),
    "a list that metadata cuts": (
        """
        cu_seqlens = self.offsets(grid_thw)
        kept = []
        for block in self.blocks:
            kept.append(block(x, cu_seqlens))
        kept = kept[: len(grid_thw)]
        for part in kept:
            x = x + part
        return x
        """,
        "VCG452",
        "for part in kept:",
        "a loop over metadata touches data",
    ),
    "branch on the grid's values": (
        """
        if len(grid_thw) > 1:
            x = x * 2
        return self.patch_embed(x)
        """,
        "VCG452",
        "if len(grid_thw) > 1:",
        "a branch on metadata touches data",
    ),
    "metadata sized by the pixels": (
        """
        mask = torch.zeros(x.shape[0]) + self.offsets(grid_thw)[-1]
        return self.patch_embed(x) * mask[:, None]
        """,
        "VCG453",
        "mask = torch.zeros(x.shape[0])",
        "the shape of data",
    ),
    "metadata from a list that data also fills": (
        """
        parts = []
        for block in self.blocks:
            x = block(x, self.offsets(grid_thw))
            parts.append(self.lookup(grid_thw))
        pos = torch.cat(parts)
        return x + pos[: x.shape[0]]
        """,
        "VCG454",
        "parts = []",
        "`parts` collects values of metadata and of data",
    ),
    "metadata from the last step of a loop over data": (
        """
        for block in self.blocks:
            x = block(x, self.offsets(grid_thw))
            last = self.lookup(grid_thw)
        pos = last * 2
        return x + pos
        """,
        "VCG454",
        "pos = last * 2",
        "metadata reads `last`",
    ),
    "data written into metadata": (
        """
        pos = self.lookup(grid_thw)
        pos += self.patch_embed(x)
        return pos
        """,
        "VCG455",
        "pos += self.patch_embed(x)",
        "in place",
    ),
    "metadata changed in place after data used it": (
        """
        pos = self.lookup(grid_thw)
        x = x + pos
        pos[0] = 7.0
        return self.patch_embed(x) + pos
        """,
        "VCG455",
        "pos[0] = 7.0",
        "after data has used it",
    ),
    "one block makes two values": (
        """
        if flag:
            pos = self.lookup(grid_thw)
            x = x + pos
            pos = pos * 2
            x = x + pos
        return self.patch_embed(x)
        """,
        "VCG455",
        "pos = pos * 2",
        "`pos` gets a value after data has used another one",
    ),
    "a Python number reaches data": (
        """
        total = int(sum(t * h * w for t, h, w in grid_thw))
        return self.patch_embed(x)[:total]
        """,
        "VCG456",
        "return self.patch_embed(x)[:total]",
        "`total` is a Python value",
    ),
    "the grid itself reaches data": (
        """
        x = self.patch_embed(x)
        return x * len(grid_thw)
        """,
        "VCG456",
        "return x * len(grid_thw)",
        "`grid_thw`",
    ),
    "metadata inside of a data expression": (
        """
        parts = [self.table[torch.arange(t * h * w)] for t, h, w in grid_thw]
        return self.patch_embed(x) + torch.cat(parts)
        """,
        "VCG456",
        "return self.patch_embed(x) + torch.cat(parts)",
        "`torch.cat(parts)` follows from the grid, and no variable holds it",
    ),
    "metadata that an attribute holds": (
        """
        self.pos = self.lookup(grid_thw)
        return self.patch_embed(x) + self.pos
        """,
        "VCG456",
        "return self.patch_embed(x) + self.pos",
        "`self.pos` follows from the grid",
    ),
    "a later value of metadata": (
        """
        pos = self.lookup(grid_thw)
        x = x + pos
        pos = pos * 2
        return self.patch_embed(x) + pos
        """,
        "VCG455",
        "pos = pos * 2",
        "`pos` gets a value after data has used another one",
    ),
    "a with block of both": (
        """
        with torch.no_grad():
            pos = self.lookup(grid_thw)
            x = self.patch_embed(x) + pos
        return x
        """,
        "VCG452",
        "with torch.no_grad():",
        "a `with` block has statements of metadata and of data",
    ),
    "a child cuts its rows by the grid": (
        """
        return self.merger(self.patch_embed(x), grid_thw)
        """,
        "VCG457",
        "return self.merger(",
        "child module `merger`",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name: str, tmp_path: Path) -> None:
    body, code, line, message = REFUSALS[name]
    with pytest.raises(DiagnosticError) as caught:
        slice_small(tmp_path, body)
    first = caught.value.diagnostics[0]
    assert first.code == code
    assert message in first.message
    assert first.help
    assert first.span is not None
    assert first.span.file == f"tree/{MODULE}"
    assert line in small_source(body).splitlines()[first.span.line - 1]


#: Parameters and classes that are not there: (arguments of `slice_tower`, code, message)
NAMES: dict[str, tuple[dict[str, Any], str, str]] = {
    "data": ({"data": ("pixels",)}, "VCG451", "no parameter `pixels`; it takes x, grid_thw, flag"),
    "metadata": ({"metadata": ("grid_thv",)}, "VCG451", "no parameter `grid_thv`"),
    "unnamed": ({"metadata": ()}, "VCG451", "`grid_thw` of `Tower.forward` is neither data nor metadata"),
    "entry": ({"entry": "encode"}, "VCG450", "no method `encode`"),
}

#: A class that is not there: (name, parameters, way out)
CLASSES = (
    ("Towr", ("x", "grid_thw"), "did you mean `Tower`? A descriptor may leave `tower.class` out"),
    ("Encoder", ("x", "grid_thw"), "whose `forward` takes `x` and `grid_thw`; here these are `Tower`."),
    ("Encoder", (), "whose `forward` takes two arguments; here these are `Block`,"),
    ("Encoder", ("pixels",), "no class here has a `forward` that takes `pixels`"),
)


@pytest.mark.parametrize(("name", "parameters", "way_out"), CLASSES)
def test_a_wrong_class_has_a_way_out(name: str, parameters: tuple[str, ...], way_out: str, tmp_path: Path) -> None:
    data, metadata = parameters[:1], parameters[1:]
    with pytest.raises(DiagnosticError) as caught:
        slice_small(tmp_path, "return x", name, data=data, metadata=metadata)
    (found,) = caught.value.diagnostics
    assert (found.code, way_out in (found.help or "")) == ("VCG450", True), found.help


@pytest.mark.parametrize("name", NAMES)
def test_wrong_names(name: str, tmp_path: Path) -> None:
    options, code, message = NAMES[name]
    with pytest.raises(DiagnosticError) as caught:
        slice_small(tmp_path, "return x", **options)
    assert caught.value.diagnostics[0].code == code
    assert message in caught.value.diagnostics[0].message


#: What a layer does that is not told the longest sequence: attention would read it from the device during a capture.
BOUND = "`max_seqlen` computed beside the attention that gets it"

#: name -> (body, what, moved): one hazard each, in the part that the last column says
HAZARDS: dict[str, tuple[str, str, bool]] = {
    "tolist": (
        "s = torch.tensor(grid_thw).tolist()\np = self.lookup(s)\nreturn self.patch_embed(x) + p",
        ".tolist()",
        True,
    ),
    "item of data": ("return self.patch_embed(x) * x.sum().item()", ".item()", False),
    "branch on data": ("if x.sum() > 0:\n    x = x * 2\nreturn self.patch_embed(x)", "branch on data", False),
    "boolean index": ("return self.patch_embed(x)[x[:, 0] > 0]", "boolean index", False),
    "nonzero": ("return self.patch_embed(x)[torch.nonzero(x[:, 0])]", "nonzero()", False),
    "host index": ("p = self.table[self.pos_ids(grid_thw)]\nreturn x + p", "host index of a device table", True),
    "host copy": ("c = self.offsets(grid_thw).to(self.device)\nreturn x * c[-1]", ".to(device) of a host tensor", True),
    "host data": ("c = torch.tensor(grid_thw)\nreturn x * c[0]", "tensor() of host data", True),
    "state": ("self.last = self.patch_embed(x)\nreturn self.last", "write to the module's state", False),
    "repeats": (
        "g = torch.tensor(grid_thw)\nr = torch.repeat_interleave(g[:, 1], g[:, 0])\nreturn x + r[0]",
        "repeat_interleave() with computed repeats",
        True,
    ),
    "cpu": ("return self.patch_embed(x).cpu()", ".cpu()", False),
    "a bound in a layer": (
        "cu = self.offsets(grid_thw).to(self.device)\nfor layer in self.layers:\n    x = layer(x, cu)\nreturn x",
        BOUND,
        False,
    ),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_hazard(name: str, tmp_path: Path) -> None:
    body, what, moved = HAZARDS[name]
    tower = slice_small(tmp_path, body)
    found = [hazard for hazard in tower.hazards if hazard.what == what]
    assert found, [hazard.what for hazard in tower.hazards]
    assert {hazard.moved for hazard in found} == {moved}
    for hazard in found:
        assert tower.source.splitlines()[hazard.line - 1].strip() == hazard.text


@pytest.mark.parametrize(("argument", "is_hazard"), [("num_warps", False), ("num_stages", False), ("width", True)])
def test_how_fast_a_kernel_runs_is_no_hazard(argument: str, is_hazard: bool, tmp_path: Path) -> None:
    """Where sizes decide it, the graph keeps what it was captured with."""
    launch = f"kernel[8](x, {argument}=2 if wide else 4)"
    body = f"wide = torch.tensor(grid_thw)[0, 0] > 8\n{launch}\nreturn self.patch_embed(x)"
    tower = slice_small(tmp_path, body)
    found = [hazard.what for hazard in tower.hazards if hazard.what.startswith("branch on")]
    assert bool(found) == is_hazard


@pytest.mark.parametrize(
    "cu",
    [
        "cu = self.offsets(grid_thw)",  # on the host
        "cu = self.offsets(grid_thw).to(self.device)\nm = (cu[1:] - cu[:-1]).max()",
    ],
)
def test_a_bound_that_attention_can_read_is_no_hazard(tmp_path: Path, cu: str) -> None:
    told = ", m" if "m =" in cu else ""
    tower = slice_small(tmp_path, f"{cu}\nfor layer in self.layers:\n    x = layer(x, cu{told})\nreturn x")
    assert [hazard for hazard in tower.hazards if hazard.what == BOUND] == []


@pytest.mark.parametrize("blank", [False, True], ids=["", "an empty line below the docstring"])
@pytest.mark.parametrize("name", RULES)
def test_split_of_rule_keeps_docstrings_in_style(name: str, blank: bool, tmp_path: Path) -> None:
    """vLLM's ruff has pydocstyle's rules from 0.31 on. Only an empty line that was there before may be there after."""
    docstring = '"""Run.\n\nArgs:\n    x: Pixels.\n\n"""\n' + "\n" * blank
    tower = slice_small(tmp_path, docstring + textwrap.dedent(RULES[name][0]).strip("\n"))
    before = docstring_faults(tower.source, tmp_path)

    after = docstring_faults(apply_split(tower.source, split_tower(tower), MODULE), tmp_path)

    assert set(before) == ({"D202"} if blank else set())
    assert after == before


def docstring_faults(text: str, folder: Path) -> list[str]:
    """The docstring rules of 0.31 and later that `text` breaks."""
    rules = ["--select=D", "--ignore=D1,D203,D205,D209,D213,D301,D400,D401,D404,D415,D417"]
    command = [find_ruff_bin(), "check", "--isolated", "--no-cache", "--output-format=json", *rules, "-"]
    done = captured(command, input=text, cwd=folder)
    return sorted(item["code"] for item in json.loads(done.stdout))


def test_proof_refuses_an_addition_that_could_change_eager(tmp_path: Path) -> None:
    body = RULES["metadata after data moves in front of it"][0]
    split = split_tower(slice_small(tmp_path, body))
    extra = "pos = pos * 2"
    edit = split.edits[0]
    assert edit.added[0][0] == "prepare_encoder_metadata"
    bad_edit = replace(
        edit,
        source=edit.source.replace("    return {", f"    {extra}\n    return {{", 1),
        added=((edit.added[0][0], (*edit.added[0][1], extra)), *edit.added[1:]),
    )
    bad = replace(split, edits=(bad_edit,))
    before = small_source(body)
    problems = prove_split(before, apply_split(before, bad, MODULE), bad)
    assert [problem.code for problem in problems] == ["VCG641"]
    assert extra in problems[0].message


@pytest.mark.parametrize(
    ("body", "names", "keys"),
    [
        ("pos = self.lookup(grid_thw)\nreturn self.patch_embed(x) + pos", {"pos": "pos_embeds"}, ("pos_embeds",)),
        (RULES["a child module gets host values of the grid"][0], {"positions": "pos_embeds"}, ("pos_embeds",)),
        ("pos = self.lookup(grid_thw)\nreturn self.patch_embed(x) + pos", {"other": "pos_embeds"}, ("pos",)),
    ],
)
def test_variables_get_the_names_that_are_asked_for(
    tmp_path: Path, body: str, names: dict[str, str], keys: tuple[str, ...]
) -> None:
    """Keys only: the user's statements keep their variables, and the renamed split is proven like any other."""
    split = split_tower(slice_small(tmp_path, body, names=names))
    before = small_source(body)
    after = apply_split(before, split, MODULE)

    assert split.slice.keys == keys
    assert prove_split(before, after, split, MODULE) == ()
    (crossing,) = split.slice.crossings or split.slice.children[0].slice.crossings
    assert f'"{keys[0]}": {crossing.name},' in after
    assert f'{crossing.name} = encoder_metadata["{keys[0]}"]' in after


def test_two_variables_cannot_have_one_name(tmp_path: Path) -> None:
    body = "a = self.lookup(grid_thw)\nb = self.pos_ids(grid_thw)\nreturn (self.patch_embed(x) + a) * b[:, None]"
    with pytest.raises(DiagnosticError) as caught:
        split_tower(slice_small(tmp_path, body, names={"a": "b"}))
    assert "two values would have the key `b`" in caught.value.diagnostics[0].message


#: Slices that are clean, and no split is written: (body, code, a part of the message)
UNWRITABLE = {
    "no metadata": ("return self.patch_embed(x)", "VCG458", "the tower has no metadata: nothing crosses"),
    "a block on one line": (
        "pos = self.lookup(grid_thw)\nif flag: pos = pos * 2; x = x + pos\nreturn x",
        "VCG458",
        "a statement shares a line with another",
    ),
    "offsets in two sections": (
        "cu = self.offsets(grid_thw)\ncu = torch.cat([cu, cu * 2])\nreturn self.patch_embed(x) * cu[-1]",
        "VCG458",
        "it is not clear where its offsets are finished",
    ),
    "offsets without a zero in front": (
        "ends = torch.tensor([t * h * w for t, h, w in grid_thw]).cumsum(0)\nreturn self.patch_embed(x) * ends[-1]",
        "VCG458",
        "it is not clear where its offsets are finished",
    ),
    "a name of ours": (
        "encoder_metadata = self.lookup(grid_thw)\nreturn x + encoder_metadata",
        "VCG458",
        "the tower uses the name `encoder_metadata` itself",
    ),
    "a host value left in a child": (
        "g = torch.tensor(grid_thw)\nreturn self.merger(self.patch_embed(x), g)",
        "VCG460",
        "iteration over a tensor (reached through Merger.forward)",
    ),
    "layers that find their bound": (
        HAZARDS["a bound in a layer"][0],
        "VCG460",
        f"{BOUND} (reached through Layer.forward)",
    ),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_unwritable(name: str, tmp_path: Path) -> None:
    body, code, message = UNWRITABLE[name]
    tower = slice_small(tmp_path, body)
    with pytest.raises(DiagnosticError) as caught:
        split_tower(tower)
    first = caught.value.diagnostics[0]
    assert (first.code, message in first.message) == (code, True)
    assert first.help
