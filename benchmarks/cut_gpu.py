"""Measure cut encoders on one GPU: eager, vLLM's manager, ours, and the limit of a graph of the encoder.

    # where the tool is installed: draft each model, port it, and write its module
    python benchmarks/cut_gpu.py --generate FOLDER --vllm 0.33.0
    # on the GPU host, with that release of vLLM importable
    python benchmarks/cut_gpu.py --ports FOLDER --out RESULT.json

`init --yes` drafts the descriptors. The vision classes are the release's own at real sizes, with random weights in
bfloat16. `eager` is `embed_multimodal`; both managers have their default budgets, ours without tuning. `limit` replays
a graph of exactly the units of a call, and then runs the model's own assembly: no manager can beat it.

The benchmark compares every result with eager first, twice in both orders; a wrong one of ours fails the run. The scale
is `alone_error`, the difference of eager to itself when each item comes alone. Calls and ways take turns. A time is the
whole call between two waits for the device, the median over all turns but the first twenty. In those our manager has
idle moments to capture graphs for the sizes that it has seen, and then tries which way is faster where it is close.

DeepSeek-OCR's kernel reads a global variable, which later versions of Triton allow only with
TRITON_ALLOW_NON_CONSTEXPR_GLOBALS=1.

For a model that upstream has ported with the whole tower in a graph, `whole` times that port beside the cut, with the
same weights, in both managers.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_result import ByModel, load_file

#: Grids of patches `(height, width)` of models that take images of any size.
GRIDS = {
    "448x448": [(32, 32)],
    "1036x756": [(74, 54)],
    "4 mixed": [(32, 32), (74, 54), (16, 24), (46, 80)],
    "8 x 364x560": [(26, 40)] * 8,
}
#: Image sizes `(height, width)` of the calls of models that cut an image into tiles.
SIZES = {
    "1 image, 3 tiles": [(336, 672)],
    "1 image, 5 tiles": [(672, 672)],
    "4 images, 16 tiles": [(336, 672), (672, 672), (672, 672), (672, 336)],
    "8 images, 24 tiles": [(336, 672)] * 8,
}
COUNTS = {"1 image": 1, "4 images": 4, "8 images": 8, "16 images": 16}
#: Grids of crops `(height, width)` of models that also encode the whole image.
TILINGS = {
    "1 image, 2 crops": [(1, 1)],
    "1 image, 7 crops": [(2, 3)],
    "4 images, 8 crops": [(1, 1)] * 4,
    "4 images, 24 crops": [(1, 3), (2, 3), (2, 3), (2, 2)],
}
#: Grids of crops `(width, height)` of pages; one crop is none.
PAGES = {
    "1 page": [(1, 1)],
    "1 page, 4 crops": [(2, 2)],
    "4 pages, 8 crops": [(1, 1), (2, 2), (1, 1), (2, 2)],
    "4 pages, 24 crops": [(2, 3)] * 4,
}
#: Grids of patches `(height, width)` of the tiles of each image: a small one, and large ones with a thumbnail.
TILED = {
    "1 image": [[(30, 34)]],
    "1 image, 5 tiles": [[(32, 32)] * 4 + [(30, 34)]],
    "4 mixed, 13 tiles": [[(30, 34)], [(32, 32)] * 4 + [(30, 34)], [(16, 20)], [(32, 32)] * 5 + [(24, 40)]],
    "8 images": [[(26, 38)]] * 8,
}
#: Slices `(height, width)` in patches.
SLICED = {
    "1 image, 1 slice": [[(32, 32)]],
    "1 image, 5 slices": [[(28, 36), *[(31, 33)] * 4]],
    "4 images, 12 slices": [[(28, 36), *[(31, 33)] * 2]] * 4,
    "8 images, 8 slices": [[(30, 34)]] * 8,
}
#: Seconds of the sounds of a call.
SOUNDS = {"1 sound, 5 s": [5], "1 sound, 10 s": [10], "1 sound, 30 s": [30], "4 sounds, 33 s": [10, 4, 12, 7],
          "8 sounds, 80 s": [10] * 8}  # fmt: skip
#: Widths, layers and heads of the towers of CLIP and Pixtral, and of SigLIP.
VIT_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
#: Tokens that the scheduler batches.
CONTEXT = 16384
TURNS = 25
#: Turns that do not count. In the first of them our manager captures; a trial of both ways takes up to 16 calls.
IDLE_TURNS, WARM_TURNS = 5, 20


@dataclass(frozen=True)
class Subject:
    """One model: its architecture, configuration at real sizes, and inputs of its calls."""

    architecture: str
    module: str
    config: Callable[[], Any]
    calls: dict[str, Any]
    inputs: Callable[[Any, Callable[..., Any]], dict[str, Any]]
    #: Stand-ins besides those of `Recipe`, for a language model that it does not leave out by itself.
    stand_ins: Callable[[], dict[str, Any]] = dict
    #: The release has a port that captures the whole tower.
    whole: bool = False
    modalities: tuple[str, ...] = ("image",)

    @property
    def dotted(self) -> str:
        """The module with its package."""
        return self.module if "." in self.module else f"vllm.model_executor.models.{self.module}"


def _llava_next() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaNextConfig

    return LlavaNextConfig(vision_config=_clip(CLIPVisionConfig), text_config=LlamaConfig(hidden_size=4096))


def _clip(cls: Any) -> Any:
    return cls(**VIT_LARGE, image_size=336, patch_size=14, projection_dim=768)


def _llava_onevision() -> Any:
    """The sizes of the checkpoint of 0.5B."""
    from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig

    vision = SiglipVisionConfig(**SIGLIP, image_size=384, patch_size=14, vision_use_head=False)
    return LlavaOnevisionConfig(vision_config=vision, text_config=Qwen2Config(hidden_size=896))


def _nano_nemotron_vl() -> Any:
    """The sizes of Nemotron Nano VL 12B, whose images are tiles of one shape."""
    from transformers import PretrainedConfig

    tower = {"model": "vit_huge_patch16_224", "cpe_max_size": 2048, "register_multiple": 8, "teachers": []}
    config = PretrainedConfig(
        force_image_size=512, patch_size=16, downsample_ratio=0.5, template="", ps_version="v2", use_thumbnail=True,
        image_tag_type="internvl", vit_hidden_size=1280, projector_hidden_size=20480, norm_mean=[0.5] * 3,
        norm_std=[0.5] * 3,
    )  # fmt: skip
    config.vision_config = PretrainedConfig(args=tower, patch_size=16, preferred_resolution=[512, 512])
    config.text_config = PretrainedConfig(hidden_size=4480, architectures=["NemotronHForCausalLM"])
    return config


def _llava() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    return LlavaConfig(vision_config=_clip(CLIPVisionConfig), text_config=LlamaConfig(hidden_size=4096))


def _paligemma() -> Any:
    from transformers import GemmaConfig, PaliGemmaConfig, SiglipVisionConfig

    vision = SiglipVisionConfig(**SIGLIP, image_size=224, patch_size=14, projection_dim=2048, vision_use_head=False)
    return PaliGemmaConfig(vision_config=vision, text_config=GemmaConfig(hidden_size=2048), projection_dim=2048)


def _blip2() -> Any:
    from transformers import Blip2Config, Blip2QFormerConfig, Blip2VisionConfig, OPTConfig

    return Blip2Config(
        vision_config=Blip2VisionConfig().to_dict(),
        qformer_config=Blip2QFormerConfig().to_dict(),
        text_config=OPTConfig(hidden_size=2560).to_dict(),
    )


def _phi3v() -> Any:
    from transformers import PretrainedConfig

    return PretrainedConfig(
        hidden_size=3072,
        vocab_size=32064,
        img_processor={"image_dim_out": 1024, "num_img_tokens": 144, "name": "clip_vision_model"},
        embd_layer={"use_hd_transform": True, "with_learnable_separator": True, "hd_transform_order": "sub_glb"},
    )


def _mistral3() -> Any:
    from transformers import Mistral3Config, MistralConfig, PixtralVisionConfig

    vision = PixtralVisionConfig(**VIT_LARGE, image_size=1540, patch_size=14)
    return Mistral3Config(vision_config=vision, text_config=MistralConfig(hidden_size=5120), spatial_merge_size=2)


def _kimi_vl() -> Any:
    from vllm.transformers_utils.configs.kimi_vl import KimiVLConfig

    merged = {"merge_kernel_size": (2, 2), "init_pos_emb_height": 64, "init_pos_emb_width": 64}
    return KimiVLConfig(vision_config={**SIGLIP, "patch_size": 14, **merged}, text_config={"hidden_size": 2048})


def _siglip_rows() -> Any:
    """Keye and PaddleOCR-VL: patches of SigLIP's size, with rotary positions beside the learned ones."""
    from transformers import PretrainedConfig

    sizes = {"patch_size": 14, "image_size": 384, "num_channels": 3, "spatial_merge_size": 2}
    vision = PretrainedConfig(**SIGLIP, **sizes, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6)
    config = PretrainedConfig(hidden_size=4096)
    config.vision_config = vision
    return config


def _idefics3() -> Any:
    from transformers import Idefics3Config, LlamaConfig

    text = LlamaConfig(hidden_size=4096, pad_token_id=0)
    vision = {**SIGLIP, "image_size": 364, "patch_size": 14}
    return Idefics3Config(vision_config=vision, text_config=text, scale_factor=2, tie_word_embeddings=False)


def _moondream3() -> Any:
    from vllm.transformers_utils.configs.moondream3 import Moondream3Config

    return Moondream3Config()


def _text_model() -> dict[str, Any]:
    """Stands in for Moondream 3's language model, which embeds a token in front of each image."""
    import torch
    from manager_gpu import DEVICE, DTYPE

    from scaffold.verify.numeric.host import LanguageModel

    class Text(LanguageModel):  # type: ignore[misc]
        def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(input_ids), _moondream3().hidden_size, device=DEVICE, dtype=DTYPE)

    return {"Moondream3TextModel": Text}


def _deepseek_ocr(columns: int) -> Callable[[], Any]:
    def config() -> Any:
        from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config

        return DeepseekVLV2Config(
            tile_tag="2D",
            vision_config={"image_size": 1024},
            projector_config={"projector_type": "linear", "input_dim": columns, "n_embed": 1280},
            language_config={"hidden_size": 1280, "num_hidden_layers": 1, "vocab_size": 99},
        )

    return config


def _deepseek_vl2() -> Any:
    from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config

    return DeepseekVLV2Config(
        tile_tag="2D",
        vision_config={"image_size": 384, "patch_size": 14, "width": 1152, "layers": 27, "heads": 16},
        projector_config={"input_dim": 1152, "n_embed": 2048},
        language_config={"hidden_size": 2048, "num_hidden_layers": 1, "vocab_size": 99},
    )


def _tiles_of_grids(side: int) -> Callable[[Sequence[tuple[int, int]], Callable[..., Any]], dict[str, Any]]:
    """The whole image, and its crops, of grids (width, height)."""

    def inputs(grids: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
        import torch

        tiles = sum(width * height + 1 for width, height in grids)
        return {"pixel_values": noise(tiles, 3, side, side), "images_spatial_crop": torch.tensor(grids)}

    return inputs


def _lfm2_vl() -> Any:
    from transformers.models.lfm2_vl.configuration_lfm2_vl import Lfm2VlConfig

    # The context of an engine's run, which the tower does not ask for.
    module: Any = importlib.import_module("vllm.model_executor.models.lfm2_vl")
    module.set_forward_context = lambda *_: nullcontext()
    vision = {**SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 256, "patch_size": 16}
    text = {"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 1}
    return Lfm2VlConfig(vision_config=vision, text_config=text, downsample_factor=2, projector_hidden_size=2560)


def _tiled(images: Sequence[Sequence[tuple[int, int]]], noise: Callable[..., Any]) -> dict[str, Any]:
    """Tiles padded to one number of patches, with their sizes on the host."""
    import torch

    tiles = [tile for image in images for tile in image]
    pixels = noise(len(tiles), max(height * width for height, width in tiles), 3 * 16 * 16)
    counts = torch.tensor([len(image) for image in images])
    return {"pixel_values": pixels, "spatial_shapes": torch.tensor(tiles), "num_patches": counts}


def _deepseek_v4() -> Any:
    """The sizes that vLLM's configuration of DeepSeek-V4.1 has by default; 24 layers, of which it has no default."""
    from transformers import DeepseekV4Config

    return DeepseekV4Config(
        hidden_size=4096, num_hidden_layers=1, vision_dim=1024, vision_inter_dim=2816, vision_n_layers=24,
        vision_n_heads=16, vision_patch_size=14, vision_downsample_ratio=3, vision_rope_theta=10000.0,
    )  # fmt: skip


def _ordered_rows(grids: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
    """Patches of all images, and the order of each image's tokens."""
    import torch

    tokens = [(-(-height // 3), -(-width // 3)) for height, width in grids]
    return {
        "patches": noise(sum(height * width for height, width in grids), 3, 14, 14),
        "vit_grid": torch.tensor(grids),
        "llm_grid": torch.tensor(tokens),
        "perm": torch.cat([torch.arange(height * width).flip(0) for height, width in tokens]),
    }


def _minicpmv() -> Any:
    from transformers import Idefics2Config, PretrainedConfig

    vision = Idefics2Config().vision_config
    vision.update({**SIGLIP, "image_size": 980, "patch_size": 14})
    config = PretrainedConfig(
        version=2.6, hidden_size=3584, vocab_size=99, image_size=448, query_num=64, drop_vision_last_layer=False
    )
    config.vision_config = vision
    return config


def _ernie_text() -> dict[str, Any]:
    """Stands in for PaddleOCR-VL's language model, whose layers the model looks through."""
    from scaffold.verify.numeric.host import LanguageModel

    class Text(LanguageModel):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.model.layers = ()

    return {"Ernie4_5ForCausalLM": Text}


def _minicpm_texts() -> dict[str, Any]:
    """Stand-ins for the language models of all versions."""
    from scaffold.verify.numeric.recipes.minicpmv import RECIPE

    return dict(RECIPE.stand_ins)


def _sliced(images: Sequence[Sequence[tuple[int, int]]], noise: Callable[..., Any]) -> dict[str, Any]:
    """Slices as rows of patches, of one length each."""
    import torch
    from manager_gpu import DEVICE

    return {
        "pixel_values": [[noise(3, 14, 14 * height * width) for height, width in image] for image in images],
        "image_sizes": torch.tensor([(14 * image[0][1], 14 * image[0][0]) for image in images]),
        "tgt_sizes": [torch.tensor(image, device=DEVICE) for image in images],
    }


def _pages(side: int) -> Callable[[Sequence[tuple[int, int]], Callable[..., Any]], dict[str, Any]]:
    """Whole pages, and crops of some of them."""

    def inputs(grids: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
        import torch

        crops = sum(width * height for width, height in grids if width * height > 1)
        return {
            "pixel_values": noise(len(grids), 3, 1024, 1024),
            "images_crop": noise(crops, 3, side, side),
            "images_spatial_crop": torch.tensor(grids),
        }

    return inputs


def _crops(tilings: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
    """The whole image, and a grid of crops of it."""
    import torch

    images = [noise(1 + height * width, 3, 378, 378) for height, width in tilings]
    equal = len({len(image) for image in images}) == 1
    return {"pixel_values": torch.stack(images) if equal else images, "tilings": torch.tensor(tilings)}


def _grids(grids: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
    import torch

    images = [noise(3, 14 * height, 14 * width) for height, width in grids]
    return {"pixel_values": torch.stack(images) if len(set(grids)) == 1 else images}


def _rows(grids: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
    """Patches of all images, one after the other."""
    import torch
    from manager_gpu import DEVICE

    rows = sum(height * width for height, width in grids)
    return {"pixel_values": noise(rows, 3, 14, 14), "image_grid_hws": torch.tensor(grids, device=DEVICE)}


def _gridded_rows(grids: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
    """Patches of all images, one after the other, with a grid on the host for each."""
    import torch

    rows = sum(height * width for height, width in grids)
    grid = torch.tensor([[1, height, width] for height, width in grids])
    return {"pixel_values": noise(rows, 3, 14, 14), "image_grid_thw": grid}


def _masked_tiles(counts: Sequence[int], noise: Callable[..., Any]) -> dict[str, Any]:
    """Tiles without padding: the whole images and their crops."""
    import torch
    from manager_gpu import DEVICE

    tiles = sum(counts)
    mask = torch.ones(tiles, 364, 364, dtype=torch.int64, device=DEVICE)
    sizes = torch.tensor(counts, device=DEVICE)
    return {"pixel_values": noise(tiles, 3, 364, 364), "pixel_attention_mask": mask, "num_patches": sizes}


def _tiles(side: int) -> Callable[[Sequence[tuple[int, int]], Callable[..., Any]], dict[str, Any]]:
    """Tiles of images whose sides are multiples of 336, which is `side` here, with the whole image as one more."""

    def inputs(sizes: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
        import torch

        images = [noise(height // 336 * (width // 336) + 1, 3, side, side) for height, width in sizes]
        equal = len({len(image) for image in images}) == 1
        sides = torch.tensor(sizes) // 336 * side
        return {"pixel_values": torch.stack(images) if equal else images, "image_sizes": sides}

    return inputs


def _flat_tiles(sizes: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
    """Tiles of all images, one after the other."""
    import torch

    counts = [height // 336 * (width // 336) + 1 for height, width in sizes]
    return {"pixel_values_flat": noise(sum(counts), 3, 512, 512), "image_num_patches": torch.tensor(counts)}


def _padded(sizes: Sequence[tuple[int, int]], noise: Callable[..., Any]) -> dict[str, Any]:
    """Pad every image to 16 crops, with the whole image as one more, as the checkpoint's processor does."""
    import torch

    return {"pixel_values": noise(len(sizes), 17, 3, 336, 336), "image_sizes": torch.tensor(sizes)}


def _qwen2_audio() -> Any:
    """The sizes of Qwen2-Audio 7B, whose tower is Whisper's large one."""
    from transformers import Qwen2AudioConfig

    return Qwen2AudioConfig()


def _qwen3_asr(layers: int, heads: int, columns: int) -> Callable[[], Any]:
    """A model whose tower has so many layers and heads of 64, and whose language model has so many columns."""

    def config() -> Any:
        from vllm.transformers_utils.configs.qwen3_asr import Qwen3ASRConfig

        audio = {
            "d_model": 64 * heads, "encoder_layers": layers, "encoder_attention_heads": heads,
            "encoder_ffn_dim": 256 * heads, "n_window": 50, "n_window_infer": 800, "output_dim": columns,
        }  # fmt: skip
        return Qwen3ASRConfig(thinker_config={"audio_config": audio, "text_config": {"hidden_size": columns}})

    return config


#: Values that the class reads of a tower of images; transformers has two of them no longer.
_NO_IMAGES = {"depth": 1, "image_size": 768, "apply_vit_abs_pos_embed": True}


def _qwen3_omni() -> Any:
    """The sizes of the tower of sound of Qwen3-Omni 30B-A3B. vLLM leaves that of images out, since none may come."""
    from transformers import Qwen3OmniMoeConfig

    audio = {
        "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "n_window": 50,
        "n_window_infer": 800, "output_dim": 2048,
    }  # fmt: skip
    return Qwen3OmniMoeConfig(
        thinker_config={"audio_config": audio, "vision_config": _NO_IMAGES, "text_config": {"hidden_size": 2048}}
    )


def _qwen3_texts() -> dict[str, Any]:
    """Stand-ins for the language models."""
    from scaffold.verify.numeric.host import LanguageModel

    return {"Qwen3ForCausalLM": LanguageModel, "Qwen3MoeLLMForCausalLM": LanguageModel}


def _chunks(seconds: Sequence[int], noise: Callable[..., Any]) -> dict[str, Any]:
    """Spectrograms of 30 seconds each, with a mask of the frames that have sound."""
    import torch
    from manager_gpu import DEVICE

    mask = (torch.arange(3000) < 100 * torch.tensor(seconds)[:, None]).long()
    return {"input_features": noise(len(seconds), 128, 3000), "feature_attention_mask": mask.to(DEVICE)}


def _sounds(seconds: Sequence[int], noise: Callable[..., Any]) -> dict[str, Any]:
    """Spectrograms of all sounds, one after the other."""
    import torch

    frames = torch.tensor([100 * each for each in seconds])
    return {
        "input_audio_features": noise(128, int(frames.sum())),
        "audio_feature_lengths": frames,
        "feature_attention_mask": (torch.arange(int(frames.max())) < frames[:, None]).long(),
    }


def _square(side: int) -> Callable[[int, Callable[..., Any]], dict[str, Any]]:
    return lambda count, noise: {"pixel_values": noise(count, 3, side, side)}


SUBJECTS = {
    "llava_next": Subject("LlavaNextForConditionalGeneration", "llava_next", _llava_next, SIZES, _tiles(336)),
    "llava_onevision": Subject("LlavaOnevisionForConditionalGeneration", "llava_onevision", _llava_onevision, SIZES,
                               _tiles(384)),
    "nano_nemotron_vl": Subject("NemotronH_Nano_VL_V2", "nano_nemotron_vl", _nano_nemotron_vl, SIZES, _flat_tiles),
    "llava": Subject("LlavaForConditionalGeneration", "llava", _llava, COUNTS, _square(336)),
    "mistral3": Subject("Mistral3ForConditionalGeneration", "mistral3", _mistral3, GRIDS, _grids),
    "paligemma": Subject("PaliGemmaForConditionalGeneration", "paligemma", _paligemma, COUNTS, _square(224)),
    "blip2": Subject("Blip2ForConditionalGeneration", "blip2", _blip2, COUNTS, _square(224)),
    "phi3v": Subject("Phi3VForCausalLM", "phi3v", _phi3v, {"1 image": [(336, 672)], "4 images": [(336, 672)] * 4},
                     _padded),
    "moondream3": Subject("Moondream3ForCausalLM", "moondream3", _moondream3, TILINGS, _crops, _text_model),
    "deepseek_ocr": Subject("DeepseekOCRForCausalLM", "deepseek_ocr", _deepseek_ocr(2048), PAGES, _pages(640),
                            whole=True),
    "deepseek_ocr2": Subject("DeepseekOCR2ForCausalLM", "deepseek_ocr2", _deepseek_ocr(896), PAGES, _pages(768)),
    "deepseek_vl2": Subject("DeepseekVLV2ForCausalLM", "deepseek_vl2", _deepseek_vl2, TILINGS, _tiles_of_grids(384),
                            whole=True),
    "lfm2_vl": Subject("Lfm2VLForConditionalGeneration", "lfm2_vl", _lfm2_vl, TILED, _tiled, whole=True),
    "deepseek_v4": Subject("DeepseekV4ForConditionalGeneration", "vllm.models.deepseek_v4.common.vl_model",
                           _deepseek_v4, GRIDS, _ordered_rows),
    "minicpmv": Subject("MiniCPMV", "minicpmv", _minicpmv, SLICED, _sliced, _minicpm_texts),
    "kimi_vl": Subject("KimiVLForConditionalGeneration", "kimi_vl", _kimi_vl, GRIDS, _rows, whole=True),
    "keye": Subject("KeyeForConditionalGeneration", "keye", _siglip_rows, GRIDS, _gridded_rows),
    "paddleocr_vl": Subject("PaddleOCRVLForConditionalGeneration", "paddleocr_vl", _siglip_rows, GRIDS, _gridded_rows,
                            _ernie_text),
    "idefics3": Subject("Idefics3ForConditionalGeneration", "idefics3", _idefics3,
                        {"1 image, 1 tile": [1], "1 image, 5 tiles": [5], "4 images, 20 tiles": [5] * 4,
                         "4 mixed, 17 tiles": [1, 5, 10, 1]}, _masked_tiles, whole=True),
    "qwen2_audio": Subject("Qwen2AudioForConditionalGeneration", "qwen2_audio", _qwen2_audio, SOUNDS, _chunks,
                           modalities=("audio",)),
    "qwen3_asr": Subject("Qwen3ASRForConditionalGeneration", "qwen3_asr", _qwen3_asr(18, 14, 1024), SOUNDS, _sounds,
                         _qwen3_texts, modalities=("audio",)),
    "qwen3_asr_1_7b": Subject("Qwen3ASRForConditionalGeneration", "qwen3_asr", _qwen3_asr(24, 16, 2048), SOUNDS,
                              _sounds, _qwen3_texts, modalities=("audio",)),
    "qwen3_omni": Subject("Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_thinker", _qwen3_omni, SOUNDS,
                          _sounds, _qwen3_texts, modalities=("audio",)),
}  # fmt: skip


def generate(folder: Path, release: str, reentrant: bool, models: Sequence[str]) -> None:
    """Draft and port some models, and write its module into `folder`; `reentrant` makes no port explicit."""
    from scaffold.descriptor import CutPort, RowsPort
    from scaffold.descriptor.load import shipped_names
    from scaffold.protocol import resolve_target
    from scaffold.workflow import load_port, prepare_port

    tree = resolve_target(release).tree
    folder.mkdir(parents=True, exist_ok=True)
    for name in models:
        subject = SUBJECTS[name]
        draft = folder / f"{name}.yaml"
        command = [
            sys.executable,
            "-m",
            "scaffold.cli",
            "init",
            f"{subject.module}:{subject.architecture}",
            "--vllm",
            release,
            "--yes",
        ]
        port = load_port(name) if name in shipped_names() else None
        if port is None:
            layout = ["--layout", "rows" if subject.calls is GRIDS else "cut"]
            encoder = ["--audio"] if subject.modalities == ("audio",) else layout
            subprocess.run([*command, *encoder, "--force", "-o", str(draft)], check=True)
            port = load_port(str(draft))
        if reentrant and isinstance(port, CutPort | RowsPort):
            port = port.replace(explicit=None, in_tree=None)
        for change in prepare_port(port, tree, replace=True).changed:
            if change.path.startswith("vllm/") and change.after is not None:
                module = change.path.removesuffix(".py").replace("/", ".")
                (folder / f"{name}@{module}.py").write_bytes(change.after)


def load_ported(folder: Path, name: str) -> None:
    """Replace the release's own modules by the ported ones. The model's module imports the others, so it comes last."""
    for file in sorted(folder.glob(f"{name}@*.py"), key=lambda file: file.stem.endswith(f"@{SUBJECTS[name].dotted}")):
        module = file.stem.partition("@")[2]
        with suppress(ModuleNotFoundError):  # a package that imports its models must have done so
            importlib.import_module(module)
        load_file(module, file)


def build(name: str, ports: Path | None) -> tuple[Any, SimpleNamespace]:
    """The host with random weights on the GPU, and its configuration. Without `ports` it is the release's own."""
    if ports is not None:
        load_ported(ports, name)
    return build_host(SUBJECTS[name])


def build_host(subject: Subject) -> tuple[Any, SimpleNamespace]:
    """The host of a subject, of the class that its module has now, and its configuration."""
    import torch
    from manager_gpu import DEVICE, DTYPE

    from scaffold.verify.numeric.recipes.base import Recipe, randomise

    made = type(
        "Real",
        (Recipe,),
        {
            "load_class": lambda self, host=None: Recipe.load_class(self, f"{subject.dotted}:{subject.architecture}"),
            "module": subject.module, "host_class": subject.architecture, "modalities": subject.modalities,
            "min_budget": 1, "stand_ins": subject.stand_ins(),
            "model_config": lambda self: subject.config(), "make_inputs": None, "tokens": None, "sessions": None,
            "embeds_inputs": None,
        },
    )()  # fmt: skip
    torch.set_default_dtype(DTYPE)
    try:
        with DEVICE:
            host, config = made.build()
    finally:
        torch.set_default_dtype(torch.float32)
    config.model_config.dtype = DTYPE
    config.model_config.max_model_len = config.scheduler_config.max_num_batched_tokens = CONTEXT
    config.compilation_config.encoder_cudagraph_token_budgets = []
    config.compilation_config.encoder_cudagraph_max_vision_items_per_batch = 0
    config.compilation_config.encoder_cudagraph_max_frames_per_batch = None
    host = host.to("cpu").to(torch.float32)
    randomise(host, 0)
    return host.to(DEVICE, DTYPE).eval().requires_grad_(False), config


def alone_error(host: Any, inputs: dict[str, Any], want: list[Any]) -> float:
    """The difference of eager to itself when each item comes alone, as managers split batches.

    Matrix products of other sizes run other kernels, and random weights make roundings larger from layer to layer.
    """
    import torch
    from manager_gpu import error_of

    with torch.inference_mode():
        found = [
            next(iter(host.embed_multimodal(**host.select_encoder_cudagraph_items(inputs, [index]))))
            for index in range(len(want))
        ]
    return error_of(found, want)


def limit(host: Any, inputs: dict[str, Any], items: int) -> Callable[[], Any]:
    """A call that replays a graph of exactly these items, and runs the model's own assembly."""
    import torch

    shapes = getattr(host, "_encoder_cudagraph_features", None)
    by_path = isinstance(shapes, dict)
    graphs, kept = {}, []
    with torch.inference_mode():
        for path in shapes if by_path else ("default",):
            values = host.prepare_encoder_cudagraph_replay_buffers(inputs, items, 0, path).values
            if not values:  # no item has units of this path
                continue
            values = {key: value.clone() for key, value in values.items()}
            for _ in range(2):
                host.encoder_cudagraph_forward(values, path)
            torch.cuda.synchronize()
            graphs[path] = graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = host.encoder_cudagraph_forward(values, path)
            kept.append((path, values, output))  # the inputs must live as long as the graph

    def call() -> Any:
        for graph in graphs.values():
            graph.replay()
        outputs = {path: output.clone() for path, _, output in kept}
        if shapes is None:  # an explicit port
            results: dict[int, Any] = {}
            host.postprocess_encoder_output(outputs, list(range(items)), [], results, batch_mm_kwargs=inputs)
            return [results[index] for index in range(items)]
        if by_path:
            features = {path: output.view(-1, *shapes[path]) for path, output in outputs.items()}
            return host._assemble_encoder_output(features, inputs)
        return host._assemble_encoder_output(outputs["default"], inputs)

    return call


def replays_for(manager: Any, inputs: dict[str, Any]) -> bool:
    """Whether our manager replays a graph for this call."""
    before = manager.stats.hits
    manager.execute(dict(inputs))
    return bool(manager.stats.hits > before)


def measure(name: str, ports: Path, backend: str) -> dict[str, Any]:
    import torch
    from manager_gpu import DEVICE, DTYPE, capture_measured, error_of, in_turns
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager as Theirs

    from scaffold.runtime.vllm import EncoderCudaGraphManager as Ours

    subject = SUBJECTS[name]
    whole = build(name, None) if subject.whole else None  # before the ported modules take the place of the release's
    host, config = build(name, ports)
    hosts = {"": (host, config), **({"whole_": whole} if whole else {})}
    for _, settings in hosts.values():
        settings.additional_config = {"encoder_graphs": {"tuning": "off"}}
    generator = torch.Generator(DEVICE).manual_seed(1)

    def noise(*shape: int) -> Any:
        return torch.randn(shape, device=DEVICE, dtype=DTYPE, generator=generator)

    calls = {label: subject.inputs(items, noise) for label, items in subject.calls.items()}
    with torch.inference_mode():
        want = {label: [t.clone() for t in host.embed_multimodal(**inputs)] for label, inputs in calls.items()}
    managers, captured = {}, {}
    for prefix, (model, settings) in hosts.items():
        for manager, cls in (("vllm", Theirs), ("ours", Ours)):
            way = prefix + manager
            managers[way], captured[way] = capture_measured(
                lambda cls=cls, model=model, settings=settings: cls(settings, DEVICE, DTYPE, model)
            )
    errors: dict[tuple[str, str], float] = {}
    for way, manager in managers.items():
        for labels in (list(calls), list(calls)[::-1]):
            for label in labels:
                found = error_of(manager.execute(dict(calls[label])), want[label])
                errors[label, way] = max(errors.get((label, way), 0.0), found)
    actions: dict[tuple[str, str], Callable[[], Any]] = {}
    for label, inputs in calls.items():
        actions[label, "eager"] = lambda i=inputs: host.embed_multimodal(**i)
        actions[label, "limit"] = limit(host, inputs, len(want[label]))
        for way, manager in managers.items():
            actions[label, way] = lambda m=manager, i=inputs: m.execute(dict(i))

    def after_turn(turn: int) -> None:
        if turn < IDLE_TURNS:  # a worker does this while nothing waits
            for way, manager in managers.items():
                if way.endswith("ours"):
                    manager.capture_when_idle()

    def skip(key: tuple[str, str], turn: int) -> bool:
        return turn < WARM_TURNS - 1 and not key[1].endswith("ours")

    medians = in_turns(actions, TURNS, WARM_TURNS, after_turn, skip)
    rows = []
    for label, inputs in calls.items():
        units = sum(spec.input_size for spec in host.get_encoder_cudagraph_item_specs(inputs))
        times = {f"{way}_ms": round(medians[label, way], 3) for way in ("eager", "limit", *managers)}
        wrong = {f"{way}_error": errors[label, way] if errors[label, way] < 1e9 else None for way in managers}
        wrong["alone_error"] = alone_error(host, inputs, want[label])
        replays = replays_for(managers["ours"], inputs)
        row = {"model": name, "backend": backend, "call": label, "units": units, "replays": replays}
        rows.append({**row, **times, **wrong})
        print(rows[-1], flush=True)
    for manager in managers.values():
        manager.clear()
    return {"rows": rows, "captured": captured}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--generate", type=Path, metavar="FOLDER")
    options.add_argument("--vllm", default="0.33.0", metavar="RELEASE")
    options.add_argument("--reentrant", action="store_true", help="with --generate: make no port explicit")
    options.add_argument("--ports", type=Path, metavar="FOLDER")
    options.add_argument("--out", type=Path)
    options.add_argument("--backend", default="FLASH_ATTN")
    options.add_argument("--models", default=",".join(SUBJECTS))
    arguments = options.parse_args()
    if arguments.generate:
        generate(arguments.generate, arguments.vllm, arguments.reentrant, arguments.models.split(","))
        return 0
    from manager_gpu import load_recipes

    from scaffold.verify.numeric.cpu_imports import MissingPackages
    from scaffold.verify.numeric.real import start_vllm

    load_recipes()
    sys.meta_path.append(MissingPackages())
    context = start_vllm(arguments.backend)
    result = ByModel(arguments.out)
    wrong = 0
    for name in arguments.models.split(","):
        part = result.add(name, lambda name=name: measure(name, arguments.ports, arguments.backend))
        wrong += sum(row["ours_error"] is None or row["ours_error"] > 0.05 for row in part["rows"]) if part else 0
    context.__exit__(None, None, None)
    return 1 if wrong or result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
