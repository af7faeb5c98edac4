"""What decides on a cut, one change of a small model at a time: call, entry, units, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffold.descriptor import CutPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import Draft, draft_descriptor
from scaffold.protocol import SourceTree

FILE = "vllm/model_executor/models/small.py"
MODEL = """
class Layers(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_layers)])


class Tower(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embeddings = nn.Conv2d(3, config.hidden_size, config.patch_size)
        self.encoder = Layers(config)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embeddings(pixel_values))


class PixelInputs(TensorSchema):
    type: Literal["pixel_values"]
    data: Annotated[torch.Tensor, TensorShape("bn", 3, "h", "w")]


class SmallProcessor(BaseMultiModalProcessor):
    def _get_mm_fields_config(self, hf_inputs, hf_processor_mm_kwargs):
        return dict(
            pixel_values=MultiModalFieldConfig.batched("image"),
            image_sizes=MultiModalFieldConfig.batched("image"),
        )


@MULTIMODAL_REGISTRY.register_processor(SmallProcessor)
class Small(nn.Module, SupportsMultiModal):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        with self._mark_tower_model(vllm_config, "image"):
            self.vision_tower = Tower(config.vision_config)
        with self._mark_language_model(vllm_config):
            self.language_model = make_model(vllm_config=vllm_config, hf_config=config.text_config)

    def _parse_and_validate_image_input(self, **kwargs: object):
        pixel_values = kwargs.pop("pixel_values", None)
        image_sizes = kwargs.pop("image_sizes", None)
        if pixel_values is None:
            return None
        size = self.config.vision_config.image_size
        return PixelInputs(type="pixel_values", data=pixel_values, resolve_bindings={"h": size, "w": size})

    def _encode(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.vision_tower(pixel_values).float()

    def _process_image_input(self, image_input):
        features = self._encode(image_input["data"])
        return [self._assemble(one) for one in features]

    def _assemble(self, features):
        return features.flatten(0, 1)

    def embed_multimodal(self, **kwargs: object):
        image_input = self._parse_and_validate_image_input(**kwargs)
        if image_input is None:
            return []
        return self._process_image_input(image_input)
"""
USUAL = "self._process_image_input(self._parse_and_validate_image_input(**inputs))"
ALL = "self.embed_multimodal(**inputs)"
RETURN = "return self._process_image_input(image_input)"
SIDE = "self.config.vision_config.image_size"


@pytest.fixture
def draft(tmp_path: Path):
    """`draft((old, new), ...)`: the draft of the model with these changes; each old text must be there."""

    def call(*changes: tuple[str, str], **answers: str) -> Draft:
        text = MODEL
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        tree = SourceTree(root=tmp_path, label="tree", release=None, read_only=True)
        return draft_descriptor(tree, FILE, answers, "cut")

    return call


def port_of(found: Draft) -> CutPort:
    port = load_descriptor_text(found.text, "small.yaml")
    assert isinstance(port, CutPort)
    return port


def test_the_small_model(draft):
    found = draft()
    port = port_of(found)
    assert found.questions == ()
    assert port.forward.call.text == "self._encode(pixels)"
    assert port.modalities["image"].entry.text == USUAL
    assert port.let["side"].text == SIDE
    assert port.output.hidden_size.text == "self.config.text_config.hidden_size"
    assert dict(port.fields) == {"pixel_values": "batched", "image_sizes": "batched"}
    assert port.gates is None


def test_a_processor_may_be_registered_after_the_class(draft):
    above = ("@MULTIMODAL_REGISTRY.register_processor(SmallProcessor)\n", "")
    below = "Small = MULTIMODAL_REGISTRY.register_processor(SmallProcessor)(Small)"
    assert (
        port_of(draft(above, (f"{RETURN}\n", f"{RETURN}\n\n\n{below}\n"))).forward.call.text == "self._encode(pixels)"
    )


ENCODE = 'features = self._encode(image_input["data"])'
TOWER = "return self.vision_tower(pixel_values).float()"
#: changes -> the captured call
CALLS = {
    "no wrapper": ([(ENCODE, 'features = self.vision_tower(image_input["data"])')], "self.vision_tower(pixels)"),
    "by keyword": (
        [(ENCODE, 'features = self.vision_tower(pixel_values=image_input["data"])')],
        "self.vision_tower(pixel_values=pixels)",
    ),
    "a tower as an argument": (
        [
            ("def _encode(self, pixel_values: torch.Tensor)", "def _encode(self, tower, pixel_values: torch.Tensor)"),
            (TOWER, "return tower(pixel_values)"),
            ("self._encode(image", "self._encode(self.vision_tower, image"),
        ],
        "self._encode(self.vision_tower, pixels)",
    ),
    "a wrapper that needs sizes": (
        [
            ("def _encode(self, pixel_values: torch.Tensor)", "def _encode(self, pixel_values: torch.Tensor, sizes)"),
            ('"data"])', '"data"], image_input["sizes"])'),
            ("data=pixel_values,", "data=pixel_values, sizes=image_sizes,"),
        ],
        "self.vision_tower(pixels)",
    ),
    "a wrapper that gives a list": (
        [("def _encode(self, pixel_values: torch.Tensor) -> torch.Tensor", "def _encode(self, pixel_values) -> list")],
        "self.vision_tower(pixels)",
    ),
    "a wrapper that splits": (
        [(TOWER, "return self.vision_tower(pixel_values).split(1)")],
        "self.vision_tower(pixels)",
    ),
    "a wrapper of what another package makes": (
        [("Tower(config.vision_config)", "AutoModel.from_config(config.vision_config)"), (").float()", ").features")],
        "self._encode(pixels)",
    ),
    "a class of another package": (
        [("class Layers", "from seer import Eye\n\n\nclass Layers"), ("= Tower(config.vision", "= Eye(config.vision")],
        "self._encode(pixels)",
    ),
    "a part of a part": (
        [
            (
                "class PixelInputs",
                "class Outer(nn.Module):\n    def __init__(self, config):\n        self.vit = Tower(config)\n\n"
                "    def forward(self, pixel_values, sizes):\n        return self.vit(pixel_values)\n\n\n"
                "class PixelInputs",
            ),
            ("Tower(config.vision_config)\n        with", "Outer(config.vision_config)\n        with"),
            (TOWER, "return self.vision_tower(pixel_values, self.sizes)"),
            (
                "def _encode(self, pixel_values: torch.Tensor) -> torch.Tensor",
                "def _encode(self, pixel_values) -> list",
            ),
            ("pixel_values, self.sizes", "pixel_values, pixel_values.shape"),
        ],
        "self.vision_tower.vit(pixels)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_captured(name, draft):
    changes, call = CALLS[name]
    assert port_of(draft(*changes)).forward.call.text == call


#: changes -> the entry
ENTRIES = {
    "as a tuple": ([(RETURN, "return tuple(self._process_image_input(image_input))")], USUAL),
    "collected": (
        [(RETURN, "found = ()\n        found += tuple(self._process_image_input(image_input))\n        return found")],
        USUAL,
    ),
    "with the inputs": (
        [
            (RETURN, "return self._process_image_input(image_input, **kwargs)"),
            ("(self, image_input)", "(self, image_input, **kw)"),
        ],
        "self._process_image_input(self._parse_and_validate_image_input(**inputs), **inputs)",
    ),
    "of a loop over modalities": (
        [
            (
                RETURN,
                'for modality in ("image",):\n            if modality == "image":\n                '
                "return self._process_image_input(image_input)",
            )
        ],
        USUAL,
    ),
    "something is added": (
        [(RETURN, "return [self.bos + one for one in self._process_image_input(image_input)]")],
        ALL,
    ),
    "features are used otherwise": (
        [
            (
                RETURN,
                "found = self._process_image_input(image_input)\n        self.last = found[0]\n        return found",
            )
        ],
        ALL,
    ),
    "it depends on the input": (
        [
            (
                RETURN,
                "if isinstance(image_input, PixelInputs):\n            return self._process_image_input(image_input)\n"
                "        return self._process_other(image_input)",
            )
        ],
        ALL,
    ),
    "it depends on the model": (
        [
            (
                RETURN,
                "return self._process_other(image_input) if self.other else self._process_image_input(image_input)",
            )
        ],
        ALL,
    ),
    "another way returns before": (
        [(RETURN, "if self.other:\n            return self._process_other(image_input)\n        " + RETURN)],
        ALL,
    ),
    "the encoder is called there": (
        [(RETURN, 'return [self._assemble(one) for one in self._encode(image_input["data"])]')],
        ALL,
    ),
    "an input that is not parsed": (
        [(RETURN, 'return self._process_image_input({"data": kwargs["pixel_values"]})')],
        ALL,
    ),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_where_it_enters(name, draft):
    changes, entry = ENTRIES[name]
    assert port_of(draft(*changes)).modalities["image"].entry.text == entry


BOUND = ', resolve_bindings={"h": size, "w": size}'
#: changes -> `let` and the shape
UNITS = {
    "two sides": (
        [('"w": size', '"w": self.config.vision_config.other_size')],
        {"height": SIDE, "width": "self.config.vision_config.other_size"},
        ["3", "height", "width"],
    ),
    "of a constant": (
        [
            ('"h": size, "w": size', '"h": DEFAULT.image_size, "w": DEFAULT.image_size'),
            ("class Layers", "DEFAULT = Config(image_size=336)\n\n\nclass Layers"),
        ],
        {"side": "336"},
        ["3", "side", "side"],
    ),
    "what the encoder is built for": (
        [(BOUND, ""), ("self.embeddings = nn", "self.image_size = config.image_size\n        self.embeddings = nn")],
        {"side": SIDE},
        ["3", "side", "side"],
    ),
    "an element that a part keeps": (
        [(BOUND, ""), ("self.embeddings = nn", "self.image_size = config.sizes[0]\n        self.embeddings = nn")],
        {"side": "self.vision_tower.image_size"},
        ["3", "side", "side"],
    ),
    "what the model reads": (
        [(BOUND, ""), ("self.config = config\n", "self.config = config\n        side = config.force_image_size\n")],
        {"side": "self.config.force_image_size"},
        ["3", "side", "side"],
    ),
    "no annotation": (
        [
            ('PixelInputs(type="pixel_values", data=pixel_values' + BOUND + ")", '{"data": pixel_values}'),
            ("self.embeddings = nn", "self.image_size = config.image_size\n        self.embeddings = nn"),
        ],
        {"side": SIDE},
        ["3", "side", "side"],
    ),
    "tiles of an item": (
        [('TensorShape("bn", 3,', 'TensorShape("bn", "np", 3,')],
        {"side": SIDE},
        ["3", "side", "side"],
    ),
}


@pytest.mark.parametrize("name", UNITS)
def test_units(name, draft):
    changes, let, shape = UNITS[name]
    found = draft(*changes)
    port = port_of(found)
    assert found.questions == ()
    assert {key: value.text for key, value in port.let.items()} == let
    assert [part.text for part in port.pixels.shape] == shape


#: changes -> the questions, with the first candidate of each
QUESTIONS = {
    "a side that nothing says": (
        [(BOUND, ""), ("        size = self.config.vision_config.image_size\n", "")],
        {"let.side": None},
    ),
    "a side that the module reads somewhere": (
        [
            ("size = self.config.vision_config.image_size", "size = 0"),
            (BOUND, ""),
            ("    def _assemble", "    def info(self):\n        return self.config.tile_size\n\n    def _assemble"),
        ],
        {"let.side": "self.config.tile_size"},
    ),
    "a side that the module reads if there is one": (
        [
            ("size = self.config.vision_config.image_size", 'size = getattr(self.config, "image_size", 224)'),
            (BOUND, ""),
        ],
        {"let.side": "self.config.image_size"},
    ),
    "flat patches that the model makes": (
        [
            ('PixelInputs(type="pixel_values", data=pixel_values' + BOUND + ")", '{"data": pixel_values}'),
            ('self._encode(image_input["data"])', 'self._encode(image_input["data"].view(2, -1, 588))'),
        ],
        {"let.width": None, "let.rows": None},
    ),
    "channels without a number": ([('TensorShape("bn", 3,', 'TensorShape("bn", "c",')], {"let.c": "3"}),
    "flat patches": (
        [('TensorShape("bn", 3, "h", "w")', 'TensorShape("bn", "np", "pd")')],
        {"let.pd": None, "let.np": None},
    ),
    "flat patches that the encoder counts": (
        [
            ('TensorShape("bn", 3, "h", "w")', 'TensorShape("bn", "np", "pd")'),
            ("self.embeddings = nn", "self.num_patches = config.num_patches\n        self.embeddings = nn"),
        ],
        {"let.pd": None},
    ),
    "a language model without a configuration": (
        [("hf_config=config.text_config", "hf_config=config.get_text_config()")],
        {"output.hidden_size": "self.language_model.config.hidden_size"},
    ),
    "a data-parallel encoder": (
        [("    def _assemble", "    supports_encoder_tp_data = True\n\n    def _assemble")],
        {"gates.modalities": "not self.use_data_parallel"},
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(name, draft):
    changes, asked = QUESTIONS[name]
    found = draft(*changes)
    first = {question.key: (*(found.value for found in question.candidates), None)[0] for question in found.questions}
    assert first == asked


#: The tower gives its layers.
LISTED = (
    "pixel_values: torch.Tensor) -> torch.Tensor:\n        return self.encoder",
    "pixel_values) -> list[torch.Tensor]:\n        return self.encoder",
)


class TestForms:
    def test_units_behind_a_batch_axis(self, draft):
        port = port_of(draft((ENCODE, 'features = self._encode(image_input["data"].unsqueeze(0))[0]')))
        assert (port.forward.call.text, port.forward.axis) == ("self._encode(pixels)", 1)

    def test_a_part_of_a_tuple(self, draft):
        port = port_of(
            draft((ENCODE, 'pooled, features = self.vision_tower(image_input["data"])'), ("self.encoder(self", "(self"))
        )
        assert port.forward.result == ("_", "features")

    @pytest.mark.parametrize(
        ("rows", "channels"),
        {
            "features.flatten(2).permute(0, 2, 1)": 1,
            "features.contiguous().flatten(2).transpose(1, 2)": 1,
            "features.reshape(len(features), self.config.width, 9).permute(0, 2, 1).contiguous()": 1,
            "self.projector(features.flatten(2).permute(0, 2, 1))": 1,
            "features.permute(0, 2, 1)": 0,
            "features.flatten(1).permute(0, 2, 1)": 0,
            "features.flatten(2).permute(0, 1, 2)": 0,
            "self.projector(features).flatten(2).permute(0, 2, 1)": 0,
        }.items(),
    )
    def test_maps_with_their_channels_first(self, draft, rows, channels):
        body = f'features = self._encode(image_input["data"])\n        features = {rows}'
        assert port_of(draft((ENCODE, body))).forward.channels == channels

    @pytest.mark.parametrize(
        ("body", "result"),
        {
            'features = self.vision_tower(image_input["data"]).last': "last",
            'out = self.vision_tower(image_input["data"])\n        features = out.last * len(out.last)': "last",
            'features = self.vision_tower(image_input["data"])[0]': ("features",),
            'features = self.vision_tower(image_input["data"])[1][:, 4:]': ("_", "features"),
        }.items(),
    )
    def test_a_part_of_what_another_package_gives(self, draft, body, result):
        tower = ("Tower(config.vision_config)", "AutoModel.from_config(config.vision_config)")
        port = port_of(draft(tower, (ENCODE, body)))
        assert (port.forward.call.text, port.forward.result) == ("self.vision_tower(pixels)", result)

    @pytest.mark.parametrize(
        ("used", "layers"),
        {
            "self.assemble(states[-2], states[self.last])": "[self.last]",
            "[states[self.last] + states[3]]": "[self.last, 3]",
            "[states[layer] for layer in self.used]": None,
            "states": None,
        }.items(),
    )
    def test_layers_of_a_list(self, used, layers, draft):
        changes = [LISTED, (ENCODE, f'states = self.vision_tower(image_input["data"])\n        features = {used}')]
        if layers is None or "-2" in used:
            with pytest.raises(DiagnosticError, match="gives a list or tuple, not one tensor"):
                draft(*changes)
        else:
            assert f"  layers: {layers}" in draft(*changes).text

    def test_layers_of_a_table(self, draft):
        loop = (
            'states = self.vision_tower(image_input["data"])\n        features = []\n'
            "        for i, (target, layer) in enumerate(self.table):\n            features.append(states[layer])"
        )
        text = draft(LISTED, (ENCODE, loop)).text
        assert "  layers: [{table: self.table, column: 1}]" in text

    @pytest.mark.parametrize(
        ("joined", "times"),
        {
            # loops over the model's own lists, each with one result for an entry
            "cat([made[i] for i in range(len(made))], dim=-1)": " * (len(self.table) + len(self.last))",
            "cat([one for one in made], dim=-1)": " * (len(self.table) + len(self.last))",
            # not beside each other, not all of them, or another number of them than the lists have
            "cat([one for one in made], dim=0)": "",
            "stack([one for one in made], dim=-1)": "",
            "cat([one for one in made if one is not None], dim=-1)": "",
            "cat([one for one in image_input], dim=-1)": "",
            "cat([one for one in made[1:]], dim=-1)": "",
            "cat(made, dim=-1)": "",
        }.items(),
    )
    @pytest.mark.parametrize(
        ("loop", "counts"),
        {
            "for layer in self.last:\n            made.append(states[3] + layer)": True,
            "for layer in self.last:\n            if layer:\n                made.append(states[3])": False,
            "for layer in self.last:\n            made.append(layer)\n            if i:\n                break": False,
            "for layer in self.last[1:]:\n            made.append(states[3])": False,
            "for layer in self.last:\n            made.extend(states[3])": False,
            "made.append(states[3])": False,
        }.items(),
    )
    def test_results_beside_each_other(self, joined, times, loop, counts, draft):
        """As many times the language model's width as lists of the model have entries; the first candidate says it."""
        body = (
            'states = self.vision_tower(image_input["data"])\n        made = []\n'
            "        for i, (layer, target) in enumerate(self.table):\n            made.append(states[layer])\n"
            f"        {loop}\n        features = torch.{joined}"
        )
        [question] = draft(LISTED, (ENCODE, body)).questions
        [candidate] = question.candidates
        assert question.key == "output.hidden_size"
        assert candidate.value == f"self.config.text_config.hidden_size{times if counts else ''}"

    @pytest.mark.parametrize(("made", "candidates"), [("is_dynamic(config)", ["not self.dynamic"]), ("True", [])])
    def test_items_that_are_cut_in_two_ways(self, draft, made, candidates):
        """The model may have an attribute for what its processor asks."""
        [question] = draft(
            (
                "class SmallProcessor",
                "class Info(BaseProcessingInfo):\n    @property\n    def dynamic_tiles(self):\n"
                "        return is_dynamic(self.get_hf_config())\n\n\nclass SmallProcessor",
            ),
            ("register_processor(SmallProcessor)", "register_processor(SmallProcessor, info=Info)"),
            (
                "        return dict(\n            pixel_values=MultiModalFieldConfig.batched",
                "        if self.info.dynamic_tiles:\n            pixels = MultiModalFieldConfig.batched('image')\n"
                "        else:\n            tiles = hf_inputs['num_tiles']\n"
                "            pixels = MultiModalFieldConfig.flat_from_sizes('image', tiles)\n"
                "        return dict(\n            num_tiles=MultiModalFieldConfig.batched('image'),\n"
                "            pixel_values=pixels,\n            more=MultiModalFieldConfig.batched",
            ),
            ("self.config = config\n", f"self.config = config\n        self.dynamic = {made}\n"),
        ).questions
        assert question.key == "gates.modalities"
        assert [candidate.value for candidate in question.candidates] == candidates

    def test_a_switch_of_the_encoder(self, draft):
        port = port_of(
            draft(
                ("    def _assemble", "    supports_encoder_tp_data = True\n\n    def _assemble"),
                (
                    "self.config = config\n",
                    'self.config = config\n        self.sharded = mm.mm_encoder_tp_mode == "data"\n',
                ),
            )
        )
        assert port.gates is not None
        assert port.gates.modalities.text == "not self.sharded"

    def test_the_whole_configuration(self, draft):
        port = port_of(draft((", hf_config=config.text_config", "")))
        assert port.output.hidden_size.text == "self.config.hidden_size"


VIDEO = """
            frames=MultiModalFieldConfig.batched("video"),
        )
"""
VIDEO_INPUT = """
    def embed_multimodal(self, **kwargs: object):
        frames = kwargs.pop("frames", None)
        if frames is not None:
            return self.encode_video(frames)
"""
WITH_VIDEO = [
    ("\n        )\n\n\n@MULTI", VIDEO + "\n\n@MULTI"),
    ("\n    def embed_multimodal(self, **kwargs: object):\n", VIDEO_INPUT),
]


class TestModalities:
    def test_the_call_that_both_have(self, draft):
        changes = [
            *WITH_VIDEO,
            (
                "    def _assemble",
                "    def encode_video(self, frames):\n        return self.vision_tower(frames)\n\n    def _assemble",
            ),
        ]
        port = port_of(draft(*changes))
        assert list(port.modalities) == ["image", "video"]
        assert port.forward.call.text == "self.vision_tower(pixels)"

    def test_one_without_the_call_is_left_out(self, draft):
        other = (
            "self.vision_tower = Tower(config.vision_config)",
            "self.vision_tower = Tower(config.vision_config)\n"
            "            self.video_tower = Tower(config.video_config)",
        )
        changes = [
            *WITH_VIDEO,
            other,
            (
                "    def _assemble",
                "    def encode_video(self, frames):\n        return self.video_tower(frames)\n\n    def _assemble",
            ),
        ]
        found = draft(*changes)
        assert list(port_of(found).modalities) == ["image"]
        assert list(port_of(found).fields) == ["pixel_values", "image_sizes"]
        assert [note.code for note in found.notes] == ["VCG484", "VCG487"]
        assert "`self._encode(pixels)` is not on its way" in found.notes[0].message


FIELD = 'pixel_values=MultiModalFieldConfig.batched("image")'
#: changes -> what is said, and words of its line
REFUSED = {
    "a mask": (
        [
            ("def _encode(self, pixel_values: torch.Tensor)", "def _encode(self, pixel_values, mask)"),
            (TOWER, "return self.vision_tower(pixel_values, mask)"),
            ('"data"])', '"data"], image_input["mask"])'),
            ("data=pixel_values,", "data=pixel_values, mask=image_sizes,"),
        ],
        "`self.vision_tower`, which runs the encoder, gets `image_sizes` besides the pixels",
        TOWER[7:20],
    ),
    "a constant that is no attribute": (
        [(ENCODE, 'features = self.vision_tower(image_input["data"], 0.5)')],
        "is called with an argument that is neither an attribute of the model nor a literal",
        "self.vision_tower(",
    ),
    "a list of images": (
        [("pixel_values: torch.Tensor", "pixel_values: list[torch.Tensor]")],
        "`self._encode`, which runs the encoder, takes a list of images, whose sizes may differ",
        "self._encode(",
    ),
    "an object of which it takes two parts": (
        [
            ("Tower(config.vision_config)", "timm.create_model(config.vision_config)"),
            (ENCODE, 'out = self.vision_tower(image_input["data"])\n        features = out.last + out.first'),
        ],
        "gives an object of which the model takes `.last`, not a tensor",
        "self.vision_tower(",
    ),
    "one of several": (
        [
            ("Tower(config.vision_config)", "timm.create_model(config.vision_config)"),
            (ENCODE, 'features = self.vision_tower(image_input["data"])[-1]'),
        ],
        "gives an object of which the model takes `[-1]`, not a tensor",
        "self.vision_tower(",
    ),
    "no encoder": (
        [(TOWER, "return pixel_values.float()")],
        "no call that runs an encoder on raw pixels was found on the way from `embed_multimodal`",
        "class Small",
    ),
    "an encoder without layers": (
        [("self.encoder = Layers(config)", "self.encoder = nn.Identity()")],
        "`self.vision_tower` gets the pixels, and no layers were found in it",
        TOWER,
    ),
    "an encoder that is missing": (
        [("class Layers", "from .eye import Eye\n\n\nclass Layers"), ("= Tower(config.vision", "= Eye(config.vision")],
        "`self.vision_tower` gets the pixels, and its class is not in the tree",
        TOWER,
    ),
    "sizes that the model does not get": (
        [(FIELD, 'pixel_values=MultiModalFieldConfig.flat_from_sizes("image", hf_inputs.get("tiles"))')],
        "items of `pixel_values` are told apart by `tiles`, which the model does not get",
        "pixel_values=",
    ),
    "sizes that are computed": (
        [(FIELD, 'pixel_values=MultiModalFieldConfig.flat_from_sizes("image", hf_inputs["image_sizes"].prod(-1))')],
        "the sizes of `pixel_values` are computed where the processor describes its inputs",
        "pixel_values=",
    ),
    "two inputs of pixels": (
        [
            (
                'features = self._encode(image_input["data"])',
                'features = self._encode(image_input["data"]) + self._encode(image_input["more"])',
            ),
            ("data=pixel_values,", "data=pixel_values, more=image_sizes,"),
        ],
        "`pixel_values` and `image_sizes` go through the encoder, and a cut captures units of one input",
        "self._encode(",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, draft, tmp_path):
    changes, reason, source = REFUSED[name]
    with pytest.raises(DiagnosticError) as error:
        draft(*changes)
    [found] = [problem for problem in error.value.diagnostics if reason in problem.message]
    assert found.code == "VCG483"
    assert found.span is not None
    assert source in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()[found.span.line - 1]


# -- masks beside the pixels -----------------------------------------------------------------------------------------

MASKED = (
    ("image_sizes=MultiModalFieldConfig", "pixel_mask=MultiModalFieldConfig"),
    ('    data: Annotated[torch.Tensor, TensorShape("bn", 3, "h", "w")]', """\
    data: Annotated[torch.Tensor, TensorShape("bn", 3, "h", "w")]
    mask: Annotated[torch.Tensor, TensorShape("bn", "h", "w")]"""),
    ('image_sizes = kwargs.pop("image_sizes", None)', 'mask = kwargs.pop("pixel_mask", None)'),
    ("data=pixel_values,", "data=pixel_values, mask=mask,"),
    ("def _encode(self, pixel_values: torch.Tensor)", "def _encode(self, pixel_values: torch.Tensor, mask)"),
    ("self.vision_tower(pixel_values)", "self.vision_tower(pixel_values, mask)"),
)  # fmt: skip
#: what the encoder gets -> shape of it for one unit; None where the source does not tell it
MASKS = {
    'image_input["mask"].bool()': ("side", "side"),
    '(image_input["mask"] > 0).to(torch.bool).contiguous()': ("side", "side"),
    'image_input["mask"].unfold(1, self.config.p, self.config.p).any(dim=-1).bool()': ("side // self.config.p", "side"),
    'image_input["mask"].unfold(1, self.config.p, self.config.q).any(dim=-1).bool()': None,
    'image_input["mask"].sum().bool()': None,
    'image_input["mask"].roll(1, 2).bool()': None,
}


@pytest.mark.parametrize("mask", MASKS)
def test_the_shape_of_a_mask(mask, draft):
    found = draft(*MASKED, ('self._encode(image_input["data"])', f'self._encode(image_input["data"], {mask})'))
    shape = MASKS[mask]
    if shape is None:
        assert [question.key for question in found.questions] == ["forward.with.mask.shape"]
        return
    port = port_of(found)
    assert port.forward.call.text == "self._encode(pixels, mask)"
    [(name, entry)] = port.forward.with_.items()
    assert (name, tuple(part.text for part in entry.shape), entry.dtype) == ("mask", shape, "bool")


def test_what_is_no_mask_hinders(draft):
    with pytest.raises(DiagnosticError) as error:
        draft(*MASKED, ('self._encode(image_input["data"])', 'self._encode(image_input["data"], image_input["mask"])'))
    assert "gets `pixel_mask` besides the pixels" in str(error.value)
