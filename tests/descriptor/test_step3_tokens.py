"""Tokens of a Step3-VL tile against the convolutions of both towers that the descriptor serves, read from the release.

StepVL inherits the port and has convolutions with padding: its tokens follow another formula, which gives the same
numbers but for grids of 4k + 1 patches a side. Upstream's own port has the parent's formula, too.
"""

from __future__ import annotations

import ast

import pytest
from changed_ports import port_of

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import SourceTree
from scaffold.workflow import load_port

pytestmark = pytest.mark.trees

MODELS = "vllm/model_executor/models"
PROCESSOR = "vllm/transformers_utils/processors/step3_vl.py"
PATCH = 14
#: Of the published checkpoints of both classes: StepVL's code has it in its convolutions.
STRIDE = 2


def convolution(tree: SourceTree, module: str, name: str) -> tuple[int, int, int]:
    """Kernel, stride and padding of `self.NAME = Conv2dLayer(...)`; a stride that is no number is `STRIDE`."""
    for node in ast.walk(tree.parse(f"{MODELS}/{module}.py")):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
            assert isinstance(node.value, ast.Call)
            given = {keyword.arg: keyword.value for keyword in node.value.keywords}
            stride = given["stride"]
            number = ast.literal_eval(stride) if isinstance(stride, ast.Constant) else STRIDE
            padding = ast.literal_eval(given["padding"]) if "padding" in given else 0
            return ast.literal_eval(given["kernel_size"]), number, padding
    raise AssertionError(name)


def tokens_of(tree: SourceTree, module: str, names: tuple[str, str], side: int) -> int:
    """What two convolutions leave of `side` patches squared."""
    for name in names:
        kernel, stride, padding = convolution(tree, module, name)
        side = (side + 2 * padding - kernel) // stride + 1
    return side**2


def formula(pixels: int) -> int:
    """The descriptor's own expression."""
    [helper] = load_port("step3_vl").helpers.values()
    return int(helper.value.evaluate({"size": pixels, "patch_size": PATCH, "stride": STRIDE}))


def processor_defaults(tree: SourceTree) -> dict[str, int]:
    for node in ast.walk(tree.parse(PROCESSOR)):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names = [argument.arg for argument in node.args.args][-len(node.args.defaults) :]
            if "num_patch_feature_size" in names:
                values = dict(zip(names, node.args.defaults, strict=True))
                return {name: value.value for name, value in values.items() if isinstance(value, ast.Constant)}
    raise AssertionError("no processor")


@pytest.mark.parametrize("release", ["0.20.0", "0.33.0"])
class TestTokens:
    def test_step3_is_the_formula(self, release, release_tree):
        tree = release_tree(release)
        for side in range(3, 200):
            of_tower = tokens_of(tree, "step3_vl", ("vit_downsampler", "vit_downsampler2"), side)
            assert formula(side * PATCH) == of_tower, side

    def test_stepvl_is_but_for_grids_of_one_more_than_fours(self, release, release_tree):
        tree = release_tree(release)
        differ = {
            side
            for side in range(3, 200)
            if formula(side * PATCH) != tokens_of(tree, "step_vl", ("vit_downsampler1", "vit_downsampler2"), side)
        }
        assert differ == {side for side in range(3, 200) if side % 4 == 1}

    def test_the_processor_makes_no_such_grid(self, release, release_tree):
        """Its sizes are fixed: 52 and 36 patches a side, and as many placeholders as the formula says."""
        given = processor_defaults(release_tree(release))
        for pixels, tokens in (("image_size", "num_image_feature_size"), ("patch_size", "num_patch_feature_size")):
            assert given[pixels] // PATCH % 4 != 1
            assert formula(given[pixels]) == given[tokens]


def test_a_package_s_model_names_modules_of_that_package_alone() -> None:
    def load(processor: str) -> object:
        return port_of("step3_vl", {"model.module": "acme.models.step", "processor.module": processor})

    assert load("acme.processing")
    with pytest.raises(DiagnosticError) as caught:
        load("acme_too.processing")
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG309"]
    assert "name a module below acme or vllm" in (caught.value.diagnostics[0].help or "")
