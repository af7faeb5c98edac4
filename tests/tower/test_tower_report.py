"""The text that `vitcg-scaffold inspect` prints."""

from __future__ import annotations

from pathlib import Path

from tower_scene import MODULE, slice_small, small_source

from scaffold.tower import tower_report

BODY = """
sizes = torch.tensor(grid_thw).tolist()
x = self.patch_embed(x)
pos = self.lookup(sizes)
cu = self.offsets(sizes)
bound = (cu[1:] - cu[:-1]).max() if flag else None
x = self.embeddings(x, [t * h * w for t, h, w in sizes]) + pos
for block in self.blocks:
    x = block(x, cu, bound)
if x.sum() > 0:
    x = x * 2
return x
"""


def test_report_names_crossings_children_and_hazards(tmp_path: Path) -> None:
    lines = [line.strip() for line in tower_report(slice_small(tmp_path, BODY)).splitlines()]
    source = small_source(BODY).splitlines()

    def line_of(text: str) -> int:
        return next(number for number, line in enumerate(source, 1) if text in line)

    assert lines[0] == f"{MODULE}: Tower.forward"
    assert "data: x    metadata: grid_thw" in lines
    assert "pos    rows - one entry per row of pixels; zero padding" in lines
    assert "cu     cumulative - offsets of sequences; padded by repeating the last one" in lines
    wanted = "bound  host bound - a number on the host, fixed when the graph is captured; from `cu`; may be None"
    assert wanted in lines
    call = line_of("self.embeddings(x, [")
    assert f"child module `embeddings`, called at line {call}, is split as well:" in lines
    assert "passed on to the metadata method: flag" in lines
    assert "1 hazards stay in the captured part" in lines
    assert f"tree/{MODULE}:{line_of('x.sum() > 0')}: branch on data" in lines
    assert f"tree/{MODULE}:{line_of('.tolist()')}: .tolist()" in lines


def test_verbose_report_lists_every_statement_once(tmp_path: Path) -> None:
    tower = slice_small(tmp_path, BODY)
    text = tower_report(tower, verbose=True)
    source = tower.source.splitlines()
    for line in {*tower.moved_lines, *tower.staying_lines}:
        assert text.count(f"{line:>5}  {source[line - 1].strip()}") == 1


def test_report_of_a_tower_without_metadata(tmp_path: Path) -> None:
    text = tower_report(slice_small(tmp_path, "return self.patch_embed(x)"))
    assert "nothing crosses: the tower has no metadata" in text
    assert "nothing that stays endangers a capture" in text
