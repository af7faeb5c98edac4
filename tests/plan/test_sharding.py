"""The parameter that keeps a model's data parallelism off: which methods get it, where none can, and that it proves."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
from changed_ports import port_of

from scaffold.cut import prove_sharding
from scaffold.protocol import SourceTree
from scaffold.protocol.target import resolve_package
from scaffold.workflow import load_port, prepare_port

MODELS = "vllm/model_executor/models/"
NAME = "use_data_parallel"


def changed(tree: SourceTree, module: str, before: str, after: str) -> SourceTree:
    path = f"{MODELS}{module}.py"
    text = tree.read(path)
    assert before in text
    return dataclasses.replace(tree, _cache={("bytes", path): text.replace(before, after).encode()})


def methods_of(tree: SourceTree, name: str) -> list[str]:
    sharding = prepare_port(load_port(name), tree, replace=True).plan.sharding
    return [] if sharding is None else [f"{owner}.{method}" for _, owner, method in sharding.methods]


@pytest.mark.trees
@pytest.mark.parametrize(
    ("name", "release", "found"),
    [
        # Mono-InternVL's tower has no switch; a model calls it as it calls the other one.
        ("internvl", "0.22.0", ["InternVisionModel", "InternVisionPatchModel", "InternVLChatModel.extract_feature"]),
        ("internvl", "0.33.0", ["InternVisionModel", "InternVLChatModel.extract_feature"]),
        ("step3_vl", "0.33.0", ["Step3VLForConditionalGeneration", "Step3VisionTransformer", "Step3p7", "StepVL"]),
    ],
)
def test_every_method_on_the_way_to_a_switch_gets_it(name: str, release: str, found: list[str], release_tree) -> None:
    methods = methods_of(release_tree(release), name)

    assert len(methods) == len(found)
    assert all(method.startswith(wanted) for method, wanted in zip(methods, found, strict=True)), methods


TOWER = "vit_embeds = self.vision_model(pixel_values=pixel_values)"


@pytest.mark.trees
@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        pytest.param("internvl", "return InternVisionModel(", "return make_tower(", id="of no known class"),
        pytest.param("internvl", "self.vision_model = ", "self.vision_model = tower or ", id="of no call"),
        pytest.param("internvl", "self.vision_model = ", "self.tower = ", id="not made"),
        pytest.param("internvl", TOWER, f"{NAME} = 1; {TOWER}", id="the name is used"),
        pytest.param("intern_vit", "if self.use_data_parallel:", "if self.shards:", id="no reader"),
    ],
)
def test_elsewhere_the_switch_is_turned_off_around_the_tower(module, before, after, release_tree) -> None:
    prepared = prepare_port(load_port("internvl"), changed(release_tree("0.33.0"), module, before, after), replace=True)

    assert prepared.plan.sharding is None
    assert "patch.object" in prepared.plan.methods.source


@pytest.mark.trees
def test_a_package_s_port_changes_no_tower_of_vllm(release_tree, tmp_path: Path) -> None:
    tree = release_tree("0.33.0")
    home = tmp_path / "acme"
    home.mkdir()
    (home / "__init__.py").write_text("")
    text = tree.read(f"{MODELS}internvl.py").replace("from .", "from vllm.model_executor.models.")
    (home / "internvl.py").write_text(text)
    port = port_of("internvl", {"model.module": "acme.internvl"})

    prepared = prepare_port(port, resolve_package(tree, str(home)), replace=True)

    assert [change.path for change in prepared.changed] == ["acme/internvl.py"]
    assert "patch.object" in prepared.plan.methods.source


BEFORE = '''\
class Tower:
    def forward(self, pixels):
        """Encode.

        Args:
            pixels: Tiles.
        """
        if self.use_data_parallel:
            return shard(pixels)
        return self.look(pixels)

    def look(self, pixels):
        return self.encoder(pixels)
'''
GUARD = "        if use_data_parallel is None:\n            use_data_parallel = self.use_data_parallel\n"
READ = "        if use_data_parallel:\n"
AFTER = (
    BEFORE.replace("pixels):", "pixels, use_data_parallel: bool | None = None):")
    .replace("            pixels: Tiles.\n", "            pixels: Tiles.\n            use_data_parallel: Whether.\n")
    .replace("        if self.use_data_parallel:\n", f"{GUARD}{READ}")
    .replace("self.encoder(pixels)", "self.encoder(pixels, use_data_parallel=use_data_parallel)")
)
BOTH = frozenset({("Tower", "forward"), ("Tower", "look")})


def problems(before: str, after: str) -> int:
    ast.parse(after)
    found = prove_sharding(before, after, BOTH, NAME, "tower.py")
    assert {problem.code for problem in found} <= {"VCG646"}
    return len(found)


def test_without_the_parameter_the_methods_are_what_they_were() -> None:
    assert problems(BEFORE, AFTER) == 0
    assert problems(AFTER, AFTER) == 0  # of an earlier port


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("bool | None = None", "bool | None = False"),
        (GUARD, ""),
        (GUARD, GUARD * 2),
        (GUARD, GUARD.replace("is None", "is not None")),
        (GUARD, GUARD.replace("= self.use", "= not self.use")),
        (f"{GUARD}{READ}", f"{READ}            pass\n{GUARD}{READ}"),
        (READ, "        if not use_data_parallel:\n"),
        (READ, "        if self.other:\n"),
        ("use_data_parallel=use_data_parallel)", "use_data_parallel=True)"),
        ("use_data_parallel=use_data_parallel)", "other=use_data_parallel)"),
        ("return self.look(pixels)", "return self.look(pixels, use_data_parallel=use_data_parallel)"),
        ("return shard(pixels)", "return shard(pixels + 1)"),
        ("def look", "def see"),
    ],
)
def test_another_change_is_found(right: str, wrong: str) -> None:
    assert right in AFTER
    assert problems(BEFORE, AFTER.replace(right, wrong)) > 0
