"""Descriptors of models that the cut serves, and what their ways are in vLLM 0.33."""

from __future__ import annotations

from dataclasses import dataclass

PARSED = "self._process_image_input(self._parse_and_validate_image_input(**inputs))"
TEXT = """\
schema: 1
model: {{module: {module}, class: {name}}}
layout: cut
modalities:
{modalities}
fields: {{{fields}}}
pixels: {{shape: [3, 28, 28]}}
forward: {{call: "{call}"{further}}}
output: {{hidden_size: 64}}
"""
#: A mask of the patches of each unit.
MASK = ", with: {mask: {shape: [2, 2], dtype: bool}}"


@dataclass(frozen=True)
class Model:
    """`way` are the methods on the way, each with the number of encoder calls in it.

    `entry` is that of images, `video` that of videos, `further` what `forward` says beside the call. `encode` is the
    type of the parameter, and `cut` what a cut call becomes. `fields` are the inputs of the model's processor.
    """

    module: str
    name: str
    call: str
    way: dict[str, int]
    entry: str = PARSED
    video: str = ""
    further: str = ""
    encode: str = "Callable[[torch.Tensor], torch.Tensor] | None = None"
    cut: str = ""
    fields: tuple[str, ...] = ("pixel_values",)

    def text(self, **other: str) -> str:
        values = {"module": self.module, "name": self.name, "call": self.call, "further": self.further}
        entry, video = other.pop("entry", self.entry), other.pop("video", self.video)
        lines = [f"  image: {{pixels: {self.fields[0]}, entry: {entry}}}"] if entry else []
        lines += [f"  video: {{pixels: pixel_values_videos, entry: {video}}}"] if video else []
        fields = ", ".join(f"{field}: batched" for field in self.fields)
        return TEXT.format(modalities="\n".join(lines), fields=fields, **(values | other))


LLAVA_NEXT = Model(
    "llava_next",
    "LlavaNextForConditionalGeneration",
    "self._image_pixels_to_features(self.vision_tower, pixels)",
    {"_process_image_input": 0, "_process_image_pixels": 2},
    fields=("pixel_values", "image_sizes"),
)
MODELS = [
    LLAVA_NEXT,
    # The call lies in a submodule.
    Model(
        "phi3v",
        "Phi3VForCausalLM",
        "self.vision_embed_tokens.get_img_features(pixels)",
        {"_process_image_input": 0, "forward": 1},
        fields=("pixel_values", "image_sizes"),
    ),
    # The arguments are listed in a docstring, which must list the new one.
    Model(
        "cohere2_vision",
        "Cohere2VisionForConditionalGeneration",
        "self.vision_tower(pixels)",
        {"_process_image_input": 1},
    ),
    # The call is an argument of another one.
    Model(
        "colultravbert",
        "ColUltraVBertForRetrieval",
        "self.vision_model(pixels)",
        {"embed_multimodal": 1},
        "self.embed_multimodal(**inputs)",
    ),
    # The public method loops over the items itself.
    Model(
        "moondream3",
        "Moondream3ForCausalLM",
        "self.vision(pixels)",
        {"embed_multimodal": 0, "_encode_image_input": 1},
        "self.embed_multimodal(**inputs)",
    ),
    Model(
        "molmo2",
        "Molmo2ForConditionalGeneration",
        "self.vision_backbone.encode_image(pixels)",
        {"_process_image_input": 0, "forward": 1},
    ),
    # Images and videos come to the same call on ways of their own, under a name that each method gives the tower.
    Model(
        "llava_onevision",
        "LlavaOnevisionForConditionalGeneration",
        "self.vision_tower(pixels, feature_select_strategy=self.config.vision_feature_select_strategy)",
        {
            "_image_pixels_to_features": 1,
            "_process_image_pixels": 0,
            "_process_image_input": 0,
            "_video_pixels_to_features": 1,
            "_process_video_pixels": 0,
        },
        video="self._process_video_pixels(self._parse_and_validate_video_input(**inputs))",
        fields=("pixel_values", "image_sizes", "pixel_values_videos"),
    ),
    Model(
        "llava_next_video",
        "LlavaNextVideoForConditionalGeneration",
        "self._video_pixels_to_features(self.vision_tower, pixels)",
        {"_process_video_pixels": 2},
        entry="",
        video="self._process_video_pixels(self._parse_and_validate_video_input(**inputs))",
        fields=("pixel_values_videos",),
    ),
    # The encoder takes a mask of each unit's patches, by keyword and by position.
    Model(
        "aria",
        "AriaForConditionalGeneration",
        "self.vision_tower(pixel_values=pixels, patch_attention_mask=mask)",
        {"_process_image_input": 1},
        further=MASK,
        encode="Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None",
        cut="else encode(pixel_values, patch_attention_mask)",
    ),
    Model(
        "phi4mm",
        "Phi4MMForCausalLM",
        "self.vision_encoder.get_img_features(pixels, mask)",
        {"_process_image_input": 0, "forward": 1},
        further=MASK,
        encode="Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None",
        cut="else encode(pixel_values, image_attention_mask.bool().flatten(0, 1))",
        fields=("input_image_embeds",),
    ),
    # A list of layers, of which the model uses some.
    Model(
        "granite4_vision",
        "Granite4VisionForConditionalGeneration",
        "self._get_vision_hidden_states(pixels)",
        {"embed_multimodal": 0, "_get_all_layer_features": 1},
        "self.embed_multimodal(**inputs)",
        further=", layers: [{table: self._deepstack_layer_map, column: 0}, self._spatial_vision_layer]",
        encode="Callable[[torch.Tensor], dict[int, torch.Tensor]] | None = None",
        cut="else encode(pixel_values)",
        fields=("pixel_values", "image_sizes"),
    ),
]
