"""The split of a tower that runs already: same bits, one instance changed, and nothing changed when it is refused."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tower_scene import small_source

from scaffold.diagnostics import DiagnosticError
from scaffold.tower import METADATA_METHOD, split_at_load

BODY = """
pos = self.lookup(grid_thw)
x = self.patch_embed(x) + pos
cu_seqlens = self.offsets(grid_thw)
max_seqlen = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
for block in self.blocks:
    x = block(x, cu_seqlens, max_seqlen)
return x
"""
CHILD = """
lengths = [t * h * w for t, h, w in grid_thw]
return self.embeddings(self.patch_embed(x), lengths, scale=2.0)
"""
LOOP = """
parts, start = [], 0
for t, h, w in grid_thw:
    parts.append(x[start : start + t * h * w].flip(0))
    start += t * h * w
return torch.cat(parts)
"""
SUPER = BODY.replace("x = self.patch_embed(x) + pos", "x = super().__call__ and self.patch_embed(x) + pos")
SUBCLASSES = """

class Named(Tower):
    pass


class Own(Tower):
    def forward(self, x, grid_thw):
        return x


class Model:
    def embed(self, pixels, grid):
        return self.visual(pixels, grid)


class Normalising(Model):
    def embed(self, pixels, grid):
        pixels = self.input_norm(pixels, self.visual.dtype)
        return self.visual(pixels, grid)
"""
GRID = [[1, 2, 2], [2, 1, 3]]
WANTED: dict[str, Any] = {"data": "x", "metadata": ["grid_thw"], "keys": ["pos"], "parameters": []}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """`make(body)`: an imported module of its own with the small tower, and two subclasses of it."""
    names: list[str] = []

    def load(body: str) -> ModuleType:
        name = f"small_tower_{len(names)}"
        path = tmp_path / f"{name}.py"
        path.write_text(small_source(body) + SUBCLASSES)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in names:
        del sys.modules[name]


def pixels() -> torch.Tensor:
    return torch.randn(10, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["Tower", "Named"])
@pytest.mark.parametrize(("body", "keys"), [(BODY, ["pos", "cu_seqlens", "max_seqlen"]), (CHILD, [])])
def test_eager_is_the_same_and_metadata_comes_apart(
    make: Callable[[str], ModuleType], name: str, body: str, keys: list[str]
) -> None:
    """Also where the method is a base's, and where a child module has to be split with it."""
    module = make(body)
    tower, other = getattr(module, name)(), getattr(module, name)()
    before = tower(pixels(), GRID)

    split_at_load(tower, **{**WANTED, "keys": keys})

    assert torch.equal(tower(pixels(), GRID), before)
    metadata = tower.prepare_encoder_metadata(GRID)
    assert set(keys) <= metadata.keys()
    assert metadata
    assert torch.equal(tower(pixels(), None, encoder_metadata=metadata), before)
    # Another grid's metadata is really what is used, and no other tower changed.
    assert not torch.equal(tower(pixels(), None, encoder_metadata=tower.prepare_encoder_metadata([[1, 10, 1]])), before)
    assert type(other) is getattr(module, name)
    assert not hasattr(other, METADATA_METHOD)
    assert isinstance(tower, getattr(module, name))
    assert type(tower).__name__ == name
    assert METADATA_METHOD not in vars(module)


def test_metadata_has_the_names_that_are_asked_for(make: Callable[[str], ModuleType]) -> None:
    tower = make(BODY).Tower()
    before = tower(pixels(), GRID)
    wanted = {"keys": ["pos_embeds", "cu_seqlens", "max_seqlen"], "names": {"pos": "pos_embeds"}}

    split_at_load(tower, **{**WANTED, **wanted})

    metadata = tower.prepare_encoder_metadata(GRID)
    assert "pos_embeds" in metadata
    assert "pos" not in metadata
    assert torch.equal(tower(pixels(), None, encoder_metadata=metadata), before)


def test_second_tower_gets_the_same_class(make: Callable[[str], ModuleType]) -> None:
    module = make(BODY)
    towers = [module.Tower(), module.Tower()]
    for tower in towers:
        split_at_load(tower, **WANTED)

    assert type(towers[0]) is type(towers[1])


def test_split_tower_is_left_alone(make: Callable[[str], ModuleType]) -> None:
    tower = make(BODY).Tower()
    split_at_load(tower, **WANTED)
    split = type(tower)

    split_at_load(tower, **WANTED, entry="anything")

    assert type(tower) is split


def test_tracebacks_and_sources_show_the_new_lines(make: Callable[[str], ModuleType]) -> None:
    tower = make(BODY).Tower()
    split_at_load(tower, **WANTED)

    assert "def prepare_encoder_metadata" in inspect.getsource(tower.prepare_encoder_metadata)
    with pytest.raises(TypeError) as caught:
        tower.prepare_encoder_metadata([1])
    assert "pos = self.lookup(grid_thw)" in "".join(traceback.format_exception(caught.value))


def replace_forward(module: ModuleType) -> None:
    module.Tower.forward = lambda self, x, grid_thw: x


def lose_source(module: ModuleType) -> None:
    Path(str(module.__file__)).unlink()


def change_source(module: ModuleType) -> None:
    """The file is not what was imported any more: an update under a running process."""
    path = Path(str(module.__file__))
    path.write_text("\n" + path.read_text())


def nothing(module: ModuleType) -> None:
    pass


@pytest.mark.parametrize(
    ("body", "name", "prepare", "changes", "reason"),
    [
        (BODY, "Tower", nothing, {"keys": ["pos", "window_index"]}, "has no metadata named window_index"),
        (BODY, "Tower", nothing, {"parameters": ["max_windows"]}, "takes no max_windows"),
        (BODY, "Tower", nothing, {"data": "pixels"}, "VCG451"),
        (BODY, "Own", nothing, {}, "no split that is proven"),
        (BODY, "Tower", replace_forward, {}, "something replaced it"),
        (BODY, "Tower", change_source, {}, "something replaced it"),
        (BODY, "Tower", lose_source, {}, "is not there"),
        (LOOP, "Tower", nothing, {}, "VCG452"),
        (SUPER, "Tower", nothing, {}, "uses `super`"),
    ],
)
def test_refused_tower_stays_as_it_is(
    make: Callable[[str], ModuleType],
    body: str,
    name: str,
    prepare: Callable[[ModuleType], None],
    changes: dict[str, Any],
    reason: str,
) -> None:
    module = make(body)
    tower = getattr(module, name)()
    prepare(module)
    classes = [type(part) for part in tower.modules()]

    with pytest.raises(DiagnosticError) as caught:
        split_at_load(tower, **{**WANTED, **changes})

    assert caught.value.diagnostics[0].code == "VCG462"
    assert f"{module.__name__}.{name} cannot be used by this adapter" in str(caught.value)
    assert reason in str(caught.value)
    assert [type(part) for part in tower.modules()] == classes


ALL = ["pos", "cu_seqlens", "max_seqlen"]


@pytest.mark.parametrize(
    ("body", "model", "changes", "reason"),
    [
        (BODY, "Model", {}, None),
        (BODY, "Model", {"keys": ALL[:2]}, "its metadata have max_seqlen, which the descriptor does not name"),
        (BODY, "Model", {"keys": [*ALL, "windows"]}, "it has no metadata named windows"),
        (BODY, "Model", {"parameters": ["max_windows"]}, "its metadata method takes no max_windows"),
        (BODY, "Normalising", {}, "it makes self.input_norm({pixels}, self.visual.dtype) of pixels before its tower"),
        (LOOP, "Model", {}, "VCG452"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_a_tower_of_which_nothing_is_recorded_is_read(
    make: Callable[[str], ModuleType], body: str, model: str, changes: dict[str, Any], reason: str | None, again: bool
) -> None:
    """As a port into a tree reads it, also where it is split already."""
    module = make(body)
    tower = module.Tower()
    if again and body != LOOP:
        split_at_load(tower, **WANTED)
    wanted = WANTED | {"keys": ALL, "grid": "list", "pixels": (getattr(module, model), "visual")} | changes

    if reason is None:
        split_at_load(tower, **wanted)
        assert set(ALL) == tower.prepare_encoder_metadata(GRID).keys()
        return
    with pytest.raises(DiagnosticError) as caught:
        split_at_load(tower, **wanted)
    assert caught.value.diagnostics[0].code == "VCG462"
    assert reason in str(caught.value)


def test_split_that_is_not_proven_is_not_used(
    make: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof runs on what is about to be used, and its answer counts."""
    from scaffold.tower import running

    tower = make(BODY).Tower()
    put = running._put
    monkeypatch.setattr(running, "_put", lambda text, edit: put(text, edit).replace("+ pos", "- pos"))

    with pytest.raises(DiagnosticError, match="VCG64"):
        split_at_load(tower, **WANTED)
    assert not hasattr(tower, METADATA_METHOD)
