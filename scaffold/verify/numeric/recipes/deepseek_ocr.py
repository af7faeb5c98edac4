"""DeepSeek-OCR: a whole image through SAM and CLIP for each item, and its crops, which are of another shape."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import nn

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TOWER, Case, Item, Recipe, Session


def small_sam(**settings: Any) -> nn.Module:
    """SAM of two narrow layers, one of them over all patches; its neck's 256 columns are fixed."""
    encoder: Any = import_module("vllm.model_executor.models.deepencoder")
    made: nn.Module = encoder.ImageEncoderViT(
        **{"window_size": 14, "use_rel_pos": True, **settings},
        **{"depth": 2, "embed_dim": 16, "num_heads": 1, "mlp_ratio": 2, "global_attn_indexes": (1,)},
    )
    return made


class Image(NamedTuple):
    """An item: its grid of crops, the side of the whole image where it is another one, and whether all crops are zeros.

    An image of one crop has none.
    """

    width: int
    height: int
    side: int = 0
    blank: bool = False

    @property
    def crops(self) -> int:
        return self.width * self.height if self.width * self.height > 1 else 0


class DeepseekOCR(Recipe):
    """Sides are the release's own: features of a whole image are 16 x 16, those of a crop 10 x 10."""

    module = "deepseek_ocr"
    host_class = "DeepseekOCRForCausalLM"
    modalities = ("image",)
    min_budget = 256

    #: Columns of each encoder.
    width = 48
    whole, crop = 1024, 640
    columns = 2
    #: The side of whole images of another mode; None where the encoders take no other.
    other: int | None = 512

    @property
    def stand_ins(self) -> dict[str, Any]:  # type: ignore[override]
        from transformers import CLIPVisionConfig

        small = {**TOWER, "hidden_size": self.width}
        return {
            "build_sam_vit_b": lambda: small_sam(last_conv_output=self.width),
            "CLIPVisionConfig": lambda **given: CLIPVisionConfig(**given | small),
        }

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config

        return DeepseekVLV2Config(
            tile_tag="2D",
            vision_config={"image_size": self.whole},
            projector_config={
                "projector_type": "linear",
                "input_dim": self.width * self.columns,
                "n_embed": self.hidden_size,
            },
            language_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1, "vocab_size": 99},
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        side = items[0].side or self.whole
        crops = [torch.randn(item.crops, 3, self.crop, self.crop, generator=generator) for item in items]
        return {
            "pixel_values": torch.randn(len(items), 3, side, side, generator=generator),
            "images_crop": torch.cat([item * (not image.blank) for item, image in zip(crops, items, strict=True)]),
            "images_spatial_crop": torch.tensor([(item.width, item.height) for item in items]),
        }

    def tokens(self, modality: str, item: Item) -> int:
        whole, crop = (item.side or self.whole) // 64, self.crop // 64
        return int(whole**2 + item.crops * crop**2)

    def sessions(self) -> tuple[Session, ...]:
        none, wide, tall, square, large = Image(1, 1), Image(2, 1), Image(1, 3), Image(2, 2), Image(3, 3)
        mixes = (
            *calls.usual("image", (square, wide, none), none, (none, tall, wide), (none, square, wide, none, tall)),
            Case("equal numbers of crops, other grids", "image", (Image(3, 1), tall)),
            Case("no crops", "image", (none, none)),
            Case("an image above all budgets", "image", (large,), may_go_eager=True),
            Case("an image above all budgets among others", "image", (none, large, wide), may_go_eager=True),
        )
        # The model leaves them out, so its encoders get fewer crops than the images have.
        mixes += (Case("crops of zeros", "image", (wide, Image(1, 3, blank=True), none)),)
        if self.other is not None:
            mode = Image(1, 1, self.other), Image(2, 1, self.other)
            mixes += (Case("another resolution", "image", mode, may_go_eager=True),)
        # No graph holds a whole image.
        few = (
            Case("crops alone", "image", (wide,), may_go_eager=True),
            Case("crops alone, for some", "image", (none, wide), may_go_eager=True),
        )
        counts = tuple(
            Case(f"{count} images", "image", (none, wide, none)[:count], group="1 to 3 images") for count in range(1, 4)
        )
        # Whole images fill 256 tokens, so these hold one and three of them, and a few crops.
        return (
            calls.manager((300, 880), 3, mixes),
            calls.manager((800,), 8, counts),
            calls.manager((200,), 1, few),
        )


RECIPE = DeepseekOCR()
