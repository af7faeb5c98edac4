"""Drafts of a loop over layers: the models that have one, and what decides, one change of a small model at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffold.descriptor import RowsPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, draft_descriptor, interview
from scaffold.protocol import SourceTree
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

ROOT = Path(__file__).parents[2]
RELEASE = "0.33.0"
#: architecture -> the descriptor by hand, questions, what a draft says in other words
DRAFTED = {
    "PaddleOCRVLForConditionalGeneration": ("paddleocr_vl", ["item.merge"], {}),
    "DotsOCRForCausalLM": (
        "dots_ocr",
        [],
        {"vision_tower.out_hidden_size": "config.vision_config.hidden_size",
         "vision_tower.spatial_merge_size": "config.vision_config.spatial_merge_size"},
    ),
}  # fmt: skip


def in_words(text: str, words: dict[str, str]) -> str:
    """A text without its layout, and with other words for what some mean."""
    text = "".join(text.split()).replace("(self.config", "self.config")
    for said, meant in words.items():
        text = text.replace(said, meant)
    return text


@pytest.mark.parametrize("architecture", DRAFTED)
def test_the_port_is_the_one_written_by_hand(architecture, release_tree):
    """Which passes its numeric proof: tests/cut/test_loops.py."""
    name, questions, words = DRAFTED[architecture]
    tree = release_tree(RELEASE)
    draft = interview(tree, architecture, {}, lambda question: question.candidates[0].value)
    assert [question.key for question in draft.questions] == questions
    ports = [
        load_descriptor_text(text, f"{name}.yaml")
        for text in (draft.text, (ROOT / f"tests/cut/{name}.yaml").read_text("utf-8"))
    ]
    assert all(isinstance(port, RowsPort) for port in ports)
    drafted, by_hand = (
        {
            change.path: in_words((change.after or b"").decode(), words)
            for change in prepare_port(port, tree).changed
            if change.path.startswith("vllm/")
        }
        for port in ports
    )
    assert drafted == by_hand


# -- one change at a time ----------------------------------------------------------------------------------------------

FILE = "vllm/model_executor/models/small.py"
MODEL = """
class Layer(nn.Module):
    def forward(self, x, cu_seqlens):
        return self.attn(x, cu_seqlens)


class Tower(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.conv = nn.Conv2d(3, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size)
        self.layers = nn.ModuleList([Layer() for _ in range(config.num_layers)])

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).flatten(1)
        cu_seqlens = make_offsets(grid)
        for layer in self.layers:
            x = layer(x, cu_seqlens)
        return x


class ImageInputs(TensorSchema):
    pixel_values: Annotated[torch.Tensor, TensorShape("np", 3, "patch_size", "patch_size")]
    image_grid_thw: Annotated[torch.Tensor, TensorShape("ni", 3)]


class SmallProcessor(BaseMultiModalProcessor):
    def _get_mm_fields_config(self, hf_inputs, hf_processor_mm_kwargs):
        sizes = hf_inputs["image_grid_thw"].prod(-1)
        return dict(
            pixel_values=MultiModalFieldConfig.flat_from_sizes("image", sizes),
            image_grid_thw=MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        )


@MULTIMODAL_REGISTRY.register_processor(SmallProcessor)
class Small(nn.Module, SupportsMultiModal):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.visual = Tower(config.vision_config)
        with self._mark_language_model(vllm_config):
            self.language_model = make_model(vllm_config=vllm_config, hf_config=config.text_config)

    def _parse_and_validate_image_input(self, **kwargs: object):
        pixel_values = kwargs.pop("pixel_values", None)
        image_grid_thw = kwargs.pop("image_grid_thw", None)
        if pixel_values is None:
            return None
        return ImageInputs(pixel_values=pixel_values, image_grid_thw=image_grid_thw)

    def _process_image_input(self, image_input):
        features = self.visual(image_input["pixel_values"], image_input["image_grid_thw"])
        sizes = image_input["image_grid_thw"].prod(-1) // self.config.merge_size**2
        return self.assemble(features, image_input["image_grid_thw"]).split(sizes.tolist())

    def embed_multimodal(self, **kwargs: object):
        image_input = self._parse_and_validate_image_input(**kwargs)
        if image_input is None:
            return []
        return self._process_image_input(image_input)
"""


@pytest.fixture
def draft(tmp_path: Path):
    """`draft((old, new), ...)`: the draft of rows with these changes of the small model."""

    def call(*changes: tuple[str, str]) -> Draft:
        text = MODEL
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        attention = tmp_path / "vllm/v1/attention/ops/vit_attn_wrappers.py"
        attention.parent.mkdir(parents=True, exist_ok=True)
        attention.write_text("def run(q):\n    return attend(q, out=torch.zeros_like(q))\n", encoding="utf-8")
        tree = SourceTree(root=tmp_path, label="tree", release=None, read_only=True)
        return draft_descriptor(tree, FILE, {}, "rows")

    return call


def port_of(draft: Draft) -> RowsPort:
    port = load_descriptor_text(draft.text, "draft.yaml")
    assert isinstance(port, RowsPort)
    return port


def test_the_small_model(draft):
    port = port_of(draft())
    assert (port.forward.encoder, port.forward.loop) == ("self.visual", "self.layers")
    assert [side.text for side in port.item.shape] == ["h * w", "3", "p", "p"]
    assert (port.let["p"].text, port.item.merge.text) == (
        "self.config.vision_config.patch_size",
        "self.config.merge_size",
    )
    assert port.output.hidden_size.text == "self.config.text_config.hidden_size"


CONVOLUTION = "kernel_size=config.patch_size, stride=config.patch_size"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("TensorShape(\"np\", 3, \"patch_size\", \"patch_size\")", 'TensorShape("np", "cps")')], "3 * p ** 2"),
        ([(CONVOLUTION, CONVOLUTION.replace("config.patch_size", "(config.patch_size, config.patch_size)"))], "p, p]"),
        ([("in self.layers", "in enumerate(self.layers)"), ("for layer", "for _, layer")], "loop: self.layers"),
        ([("self.conv = ", "self.out_hidden_size = config.out\n        self.conv = ")], "self.visual.out_hidden_size"),
        ([("return ImageInputs(", "self.config.vision_config.merge_size\n        return ImageInputs("),
          (" // self.config.merge_size**2", "")], "TODO"),
    ],
)  # fmt: skip
def test_what_decides(changes, said, draft):
    assert said in draft(*changes).text


LOOP = "            x = layer(x, cu_seqlens)\n"
REFUSED = {
    "cannot be captured: it returns": [(LOOP, LOOP + "            return x\n")],
    "`max_seqlen` computed beside the attention that gets it": [
        ("return self.attn(x, cu_seqlens)",
         "longest = (cu_seqlens[1:] - cu_seqlens[:-1]).max()\n        return self.attn(x, max_seqlen=longest)"),
    ],
    # Nothing of this says more than that there are no rows.
    "no part of the model": [(LOOP, f"            if layer.windowed:\n    {LOOP}")],
    "no part of the model encodes": [("kernel_size=config.patch_size", "kernel_size=3")],
    "no part of the model encodes rows": [("for layer in self.layers", "for layer in make(self)")],
    "items of `pixel_values` are told apart by `image_grid_thw`": [("batched(\"image\", keep", "flat(\"image\", keep")],
    "no part of the model encodes rows that other": [
        ("        features = self.visual(image_input[\"pixel_values\"], image_input[\"image_grid_thw\"])\n",
         "        for grid in image_input[\"image_grid_thw\"]:\n"
         "            features = self.visual(image_input[\"pixel_values\"], grid)\n"),
    ],
    "no part of the model encodes rows that other parts": [
        ("image_grid_thw=MultiModal", "image_sizes=MultiModalFieldConfig.batched(\"image\"),\n            "
         "image_grid_thw=MultiModal"),
        ("        if pixel_values is None:\n            return None",
         "        _ = kwargs.pop(\"image_sizes\", None)\n        if pixel_values is None:\n            return None"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason, draft):
    with pytest.raises(DiagnosticError) as error:
        draft(*REFUSED[reason])
    assert {problem.code for problem in error.value.diagnostics} == {"VCG483"}
    assert reason in str(error.value)
