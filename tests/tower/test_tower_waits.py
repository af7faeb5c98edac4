"""What a split keeps from the GPU: offsets are made on the host, and indices of tables are uploaded without a wait."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tower_scene import MODULE, apply_imports, apply_split, run_module, small_source

from scaffold.protocol.tree import SourceTree
from scaffold.tower import TowerSplit, prove_split, slice_tower, split_at_load, split_tower

UTILS = "vllm/utils/torch_utils.py"
UPLOADS = """\
def async_tensor_h2d(data: list | torch.Tensor, device=None):
    assert data.is_cpu
    return data.to(device)
"""
LISTS = UPLOADS.replace(" | torch.Tensor", "")
END = """
for block in self.blocks:
    x = block(x, cu_seqlens, max_seqlen)
return x
"""
BOUND = "max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()\n"
MADE = """
sizes = torch.tensor(grid_thw, device=x.device)
lengths = torch.repeat_interleave(sizes[:, 1] * sizes[:, 2], sizes[:, 0])
cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
"""
LONGEST = "max_seqlen = torch.tensor([h * w for t, h, w in grid_thw], device=x.device).max()\n"
MOVED = """
lengths = torch.tensor([h * w for t, h, w in grid_thw for _ in range(t)])
cu_seqlens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)).to(device=self.device)
"""
PUT_OFF = """
cu_seqlens = self.offsets(grid_thw)
# Attention reads them there.
cu_seqlens = async_tensor_h2d(cu_seqlens, x.device)
"""
ON_HOST = {
    "a tensor of the grid": MADE + BOUND + END,
    "offsets that move": MOVED + BOUND + END,
    "an upload in front of the bound": PUT_OFF + BOUND + END,
}
STAYS = {
    "rows follow from it, too": MADE + BOUND + "pos = self.table[sizes.sum()]\nx = x + pos\n" + END,
    "a copy that does not block": MOVED.replace("=self.device", "=self.device, non_blocking=True") + BOUND + END,
    "an upload under a condition": PUT_OFF.replace("# Att", "if flag:\n    # Att").replace(
        "\ncu_seqlens = async", "\n    cu_seqlens = async"
    )
    + BOUND
    + END,
    "a method makes them on the device": "cu_seqlens = self.placed(grid_thw)\n" + BOUND + END,
    "nothing follows but a bound": "cu_seqlens = self.offsets(grid_thw)\n" + LONGEST + END,
}
PLACED = """\
    def placed(self, grid_thw):
        ends = torch.tensor([t * h * w for t, h, w in grid_thw], device=self.device).cumsum(0, dtype=torch.int32)
        return F.pad(ends, (1, 0))

"""
ANGLES = "pos = self.angles(grid_thw)\nreturn self.patch_embed(x) + pos"
INDEXED = """\
    def angles(self, grid_thw):
        ids = [torch.arange(t * h * w) for t, h, w in grid_thw]
        ids = torch.cat(ids)
        table = self.table * 2
        first = table[ids]
        return first + table[ids]

"""
IN_LOOP = """\
    def angles(self, grid_thw):
        rows = []
        for t, h, w in grid_thw:
            ids = torch.arange(t * h * w)
            table = self.table * 2
            angles = table[ids]
            rows.append(angles)
        return torch.cat(rows)

"""
UPLOAD = "ids = async_tensor_h2d(ids, table.device)"
LEFT = {
    "the index is read otherwise": INDEXED.replace("+ table[ids]", "+ ids[:, None]"),
    "the index is read in the next round": IN_LOOP.replace(
        "angles = table", "rows.append(ids[:0, None] * table[:1])\n            angles = table"
    ),
    "the index is made in another block": IN_LOOP.replace(
        "            ids =", "            if t:\n                ids ="
    ).replace("angles = table[ids]", "angles = table[ids]"),
    "no variable has the table": INDEXED.replace("table[ids]", "self.table[ids]"),
    "no variable has the index": INDEXED.replace(
        "table[ids]", "table[torch.cat([torch.arange(t * h * w) for t, h, w in grid_thw])]"
    ),
    "it is made on the same line": INDEXED.replace(
        "ids = torch.cat(ids)\n        table = self.table * 2\n        first",
        "table = self.table * 2\n        ids = torch.cat(ids); first",
    ),
}
IMPORT = "from vllm.utils.torch_utils import async_tensor_h2d\n"
GRID = [[1, 2, 2], [2, 1, 3]]


def source_of(body: str, methods: str = "") -> str:
    source = small_source(body)
    if "async_tensor_h2d" in body:
        source = source.replace("import torch\n", f"import torch\n{IMPORT}", 1)
    return source.replace(
        "    def forward(self, x, grid_thw, flag", f"{methods}    def forward(self, x, grid_thw, flag"
    )


def split_of(folder: Path, source: str, utils: str | None = UPLOADS) -> TowerSplit:
    for path, text in ((MODULE, source), *([(UTILS, utils)] if utils else [])):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return split_tower(slice_tower(SourceTree(root=folder, label="tree", release=None), MODULE, "Tower"))


def waits(split: TowerSplit) -> set[str]:
    return {hazard.what for hazard in split.slice.hazards if hazard.waits}


def same_embeddings(before: str, after: str) -> None:
    torch = pytest.importorskip("torch")
    helper = "import torch\n" + UPLOADS
    old, new = (run_module(f"{text.replace(IMPORT, '')}\n\n{helper}", "text").Tower() for text in (before, after))
    new.load_state_dict(old.state_dict())
    pixels = torch.randn(10, 4)
    metadata = new.prepare_encoder_metadata(GRID)
    assert torch.equal(new(pixels, GRID), old(pixels, GRID))
    assert torch.equal(new(pixels, None, encoder_metadata=metadata), old(pixels, GRID))


@pytest.mark.parametrize("name", ON_HOST)
def test_offsets_and_their_bound_are_made_on_the_host(name: str, tmp_path: Path) -> None:
    before = source_of(ON_HOST[name])
    split = split_of(tmp_path, before)
    after = apply_split(before, split, MODULE)

    assert prove_split(before, after, split) == ()
    assert split.slice.on_host == {"cu_seqlens"}
    assert {one.name: one.host for one in split.slice.crossings} == {"cu_seqlens": True, "max_seqlen": True}
    assert waits(split) == set()
    method = split.edits[0].source.split("def forward")[0]
    assert method.count("async_tensor_h2d") == 1
    end = method.split("cu_seqlens = torch.cat([cu_seqlens, empty_seqs])\n")[1]
    assert "    cu_seqlens = async_tensor_h2d(cu_seqlens, device)\n" in end, "padding is in front of the upload"
    assert ("# Attention reads them there.\n    cu_seqlens = async" in end) == ("front" in name)
    assert apply_imports(after, split, MODULE).count(IMPORT) == 1
    same_embeddings(before, after)


@pytest.mark.parametrize("name", STAYS)
def test_what_more_follows_from_stays_on_the_device(name: str, tmp_path: Path) -> None:
    before = source_of(STAYS[name], PLACED)
    split = split_of(tmp_path, before)
    after = apply_split(before, split, MODULE)

    assert prove_split(before, after, split) == ()
    assert split.slice.on_host == set()
    assert '"cpu"' not in after
    same_embeddings(before, after)


@pytest.mark.parametrize("utils", [None, "import torch\n", LISTS])
def test_a_tree_that_uploads_no_tensors_keeps_its_statements(utils: str | None, tmp_path: Path) -> None:
    before = source_of(MADE + BOUND + "pos = self.angles(grid_thw)\nx = x + pos\n" + END, INDEXED)
    split = split_of(tmp_path, before, utils)

    assert "async_tensor_h2d" not in apply_split(before, split, MODULE)
    assert waits(split) == {
        "host index of a device table",
        "repeat_interleave() with computed repeats",
        "tensor() of host data",
    }


@pytest.mark.parametrize("methods", [INDEXED, IN_LOOP])
def test_an_index_is_uploaded_once_in_front_of_its_use(methods: str, tmp_path: Path) -> None:
    before = source_of(ANGLES, methods)
    split = split_of(tmp_path, before)
    after = apply_split(before, split, MODULE)

    assert prove_split(before, after, split) == ()
    assert waits(split) == set()
    place = methods.split(" = table[ids]", maxsplit=1)[0].rpartition("\n")[2]
    assert after.count(UPLOAD) == 1
    assert f"{UPLOAD}\n{place} = table[ids]" in after
    same_embeddings(before, after)


@pytest.mark.parametrize("name", LEFT)
def test_another_index_waits_as_before(name: str, tmp_path: Path) -> None:
    before = source_of(ANGLES, LEFT[name])
    split = split_of(tmp_path, before)

    assert len(split.edits) == 1
    assert waits(split) == {"host index of a device table"}
    same_embeddings(before, apply_split(before, split, MODULE))


FIRST = "        first = table[ids]\n"
LOOKED_UP = "            angles = table[ids]\n"
#: A method, the line that the upload is put in front of, and the upload.
WRONG_UPLOADS = {
    "to another device": (INDEXED, FIRST, "ids = async_tensor_h2d(ids, self.device)"),
    "for another table": (INDEXED, FIRST, "ids = async_tensor_h2d(ids, rows.device)"),
    "of another value": (INDEXED, FIRST, "ids = async_tensor_h2d(ids + 1, table.device)"),
    "in front of another statement": (INDEXED, "        table = self.table * 2\n", UPLOAD),
    "of what a round did not make": (
        IN_LOOP.replace("            ids =", "            if t:\n                ids ="),
        LOOKED_UP,
        UPLOAD,
    ),
    "of what is read otherwise": (LEFT["the index is read otherwise"], FIRST, UPLOAD),
    "of what the next round reads": (
        IN_LOOP.replace("            ids =", "            t = len(ids)\n            ids ="),
        LOOKED_UP,
        UPLOAD,
    ),
}


@pytest.mark.parametrize("name", WRONG_UPLOADS)
def test_proof_refuses_an_upload_that_could_change_eager(name: str, tmp_path: Path) -> None:
    methods, place, upload = WRONG_UPLOADS[name]
    before = source_of(ANGLES, methods)
    split = split_of(tmp_path, source_of(ANGLES, INDEXED))
    assert methods.count(place) == 1
    indentation = " " * (len(place) - len(place.lstrip()))
    source = textwrap.dedent(methods.replace(place, f"{indentation}{upload}\n{place}"))
    bad = replace(split.edits[1], source=source, added=(("angles", (upload,)),))
    split = replace(split, edits=(split.edits[0], bad))
    problems = prove_split(before, apply_split(before, split, MODULE), split)
    assert [problem.code for problem in problems] == ["VCG641"]
    assert "`Tower.angles` has more than uploads" in problems[0].message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"        {UPLOAD}\n", ""),
        (UPLOAD, f"{UPLOAD}\n        {UPLOAD}"),
        ("return first + table", "return first * table"),
        ("def angles(self, grid_thw)", "def other(self, grid_thw)"),
    ],
)
def test_proof_refuses_a_damaged_method(old: str, new: str, tmp_path: Path) -> None:
    before = source_of(ANGLES, INDEXED)
    split = split_of(tmp_path, before)
    after = apply_split(before, split, MODULE)
    assert after.count(old) == 1
    assert "VCG641" in {problem.code for problem in prove_split(before, after.replace(old, new), split)}


@pytest.mark.parametrize("name", ON_HOST)
def test_proof_refuses_offsets_that_stay_on_the_host(name: str, tmp_path: Path) -> None:
    before = source_of(ON_HOST[name])
    split = split_of(tmp_path, before)
    edit, line = split.edits[0], "cu_seqlens = async_tensor_h2d(cu_seqlens, device)"
    added = tuple((where, tuple(text for text in texts if text != line)) for where, texts in edit.added)
    bad = replace(split, edits=(replace(edit, source=edit.source.replace(f"    {line}\n", ""), added=added),))
    problems = prove_split(before, apply_split(before, bad, MODULE), bad)
    assert [problem.code for problem in problems] == ["VCG641"]
    assert "`cu_seqlens` is made on the host and stays there" in problems[0].message


def test_proof_refuses_an_upload_of_what_was_not_made_on_the_host(tmp_path: Path) -> None:
    before = source_of(ON_HOST["a tensor of the grid"])
    split = split_of(tmp_path, before)
    bad = replace(split, slice=replace(split.slice, on_host=frozenset()))
    assert "VCG641" in {problem.code for problem in prove_split(before, apply_split(before, bad, MODULE), bad)}


@pytest.mark.parametrize(
    ("parameters", "call"),
    [
        ("rows, grid=None", "self.plain(x)"),
        ("rows, grid", "self.plain(x, None)"),
        ("rows, grid=()", "self.plain(x, None)"),
        ("rows, grid=None, scale=2", "self.plain(x)"),
    ],
)
def test_an_argument_without_effect_goes_where_it_is_none_by_default(
    parameters: str, call: str, tmp_path: Path
) -> None:
    body = "pos = self.lookup(grid_thw)\nsizes = torch.tensor(grid_thw)\nx = self.plain(x, sizes)\nreturn x + pos"
    before = source_of(body).replace(
        "def forward(self, rows, grid):\n        return rows * 2",
        f"def forward(self, {parameters}):\n        return rows * 2",
    )
    split = split_of(tmp_path, before)
    after = apply_split(before, split, MODULE)

    assert prove_split(before, after, split) == ()
    assert f"x = {call}\n" in after
    same_embeddings(before, after)


def test_a_tower_that_runs_gets_what_its_methods_upload_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    before = source_of(MADE + BOUND + "pos = self.angles(grid_thw)\nx = x + pos\n" + END, INDEXED)
    split_of(tmp_path, before)
    helper = ModuleType("vllm.utils.torch_utils")
    exec("import torch\n" + UPLOADS, vars(helper))
    module = ModuleType("vllm.model_executor.models.small")
    module.__file__ = str(tmp_path / MODULE)
    exec(compile(before, module.__file__, "exec"), vars(module))
    module.Tower.__module__ = module.__name__
    for name in ("vllm", "vllm.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for one in (helper, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    tower, pixels = module.Tower(), torch.randn(10, 4)
    expected = tower(pixels, GRID)

    split_at_load(tower, data="x", metadata=["grid_thw"], keys=["cu_seqlens", "max_seqlen", "pos"], parameters=[])

    assert torch.equal(tower(pixels, GRID), expected)
    assert "async_tensor_h2d" not in vars(module)
