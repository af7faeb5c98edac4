"""Which recipe a descriptor gets, and recipes that a contributor writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaffold.descriptor import shipped_names
from scaffold.diagnostics import DiagnosticError
from scaffold.verify.numeric import NumericOptions, NumericRequest, check_numerics
from scaffold.verify.numeric.recipes import AUTOMATIC, KNOWN, is_recipe, recipe_of
from scaffold.workflow import choose_recipe, load_port, prove_numerics

#: The first session of InternVL, which has images and videos, small and large ones.
MINE = """
from scaffold.verify.numeric.recipes.internvl import RECIPE as SHIPPED


class Mine(type(SHIPPED)):
    def sessions(self):
        return super().sessions()[:1]


RECIPE = Mine()
"""


def test_the_recipe_is_that_of_the_model() -> None:
    gemma, intern = "Gemma3ForConditionalGeneration", "InternVLChatModel"
    assert recipe_of("internvl", "internvl", intern) == "internvl"
    assert recipe_of("my_draft", "gemma3_mm", gemma) == "gemma3_mm"
    assert recipe_of("my_draft", "vllm.models.gemma3_mm", gemma) == "gemma3_mm"
    assert recipe_of("my_draft", "unknown", gemma) is None
    for name in ("minimax_m3", "kimi_k3"):  # a package has the model's name, its module is `model`
        port = load_port(name)
        assert recipe_of("my_draft", port.module, port.class_name) == name
    assert not is_recipe("my_draft")
    assert not is_recipe("no/such/file.py")


def test_a_recipe_is_not_that_of_another_model_in_its_module() -> None:
    for name in ("glm4_1v", "my_draft"):
        assert recipe_of(name, "glm4_1v", "Glm4vMoeForConditionalGeneration") is None
    for name in shipped_names():
        port = load_port(name)
        assert not is_recipe(name) or recipe_of(name, port.module, port.class_name) == name


def test_known_values_of_a_checkpoint_are_taken(tmp_path: Path) -> None:
    """Ovis reads a tokenizer's configuration that no class has. What the user gives wins; others have none."""
    port = load_port("internvl")
    ovis = port.replace(model=port.model.replace(architecture="Ovis"))
    assert choose_recipe(port, AUTOMATIC)[1].config == ""
    assert Path(choose_recipe(ovis, AUTOMATIC)[1].config) == KNOWN / "Ovis.json"
    assert choose_recipe(ovis, AUTOMATIC, str(tmp_path))[1].config == str(tmp_path)
    for file in KNOWN.iterdir():
        assert "model_type" in json.loads(file.read_text()), file


@pytest.mark.trees
@pytest.mark.lab
def test_the_lab_refuses_a_model_of_another_class(release_tree: Any) -> None:
    """GLM-4.1V has a port by upstream, which would be checked in the place of its sibling's."""
    request = NumericRequest(release_tree("0.33.0").root, {}, "glm4_1v", ("image",), options=NumericOptions(short=True))
    sibling = replace(request, class_name="Glm4vMoeForConditionalGeneration")
    base = replace(request, class_name="Glm4vForConditionalGeneration")

    refused, checked = check_numerics(sibling), check_numerics(base)

    assert refused.failure is not None
    assert refused.failure.code == "VCG668"
    assert "builds Glm4vForConditionalGeneration, and the port is in Glm4vMoeFor" in refused.failure.message
    assert checked.failure is None
    assert checked.hits > 0


@pytest.mark.trees
@pytest.mark.lab
def test_a_recipe_may_be_a_file(release_tree: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    tree = release_tree("0.22.0")
    port = load_port("internvl").replace(file="my_draft.yaml")
    assert port.name == "my_draft"

    (mine,) = prove_numerics(port, tree, recipe=str(file))
    (shipped,) = prove_numerics(port, tree)

    assert mine.passed, "\n".join(mine.lines())
    assert shipped.passed, "\n".join(shipped.lines())
    assert 0 < len(mine.checks) < len(shipped.checks)

    file.write_text("RECIPE = 1\n")
    (broken,) = prove_numerics(port, tree, recipe=str(file))
    assert not broken.passed
    assert broken.failure is not None
    assert "has no `RECIPE` that is a" in broken.failure.message


def test_no_recipe_says_how_to_write_one(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("")
    with pytest.raises(DiagnosticError) as error:
        check_numerics(NumericRequest(tmp_path, {}, "my_draft"))
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "VCG659"
    assert "--recipe FILE.py" in str(diagnostic.help)


def test_a_processor_that_cannot_be_asked_names_the_method_to_write() -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    from scaffold.verify.numeric.recipes.internvl import RECIPE as SHIPPED

    class Processor:
        def _get_mm_fields_config(self, inputs: Any, arguments: Any) -> Any:
            return self.info.get_tokenizer()  # type: ignore[attr-defined]

    class Mine(type(SHIPPED)):  # type: ignore[misc]
        def load_class(self, host: str | None = None) -> Any:
            return SimpleNamespace(_processor_factory=SimpleNamespace(processor=Processor))

    with pytest.raises(RuntimeError, match=r"Processor\._get_mm_fields_config .* let the recipe's `on_host\(inputs\)`"):
        Mine().on_host({"pixel_values": None})
