"""Model directories that vLLM can serve without weights and without a network.

    python benchmarks/model_directory.py qwen2_vl DIRECTORY [--scale tiny|real]

Configurations come from transformers' own classes (Step3-VL: vLLM's, InternVL: a few lines of remote code, as its
checkpoints do), the tokenizer is trained from one sentence, the processor's files are the few values that processors
read. There are no weights: load with `load_format="dummy"`. `tiny` is for a CPU in a test; `real` has the sizes of a
published checkpoint, which `REAL` names.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SENTENCE = "What is in this picture? A cat sits on the mat, and 3 dogs look at it. user assistant"
VOCABULARY = 384
#: The checkpoints whose sizes `scale="real"` has.
REAL = {
    "qwen2_vl": "Qwen2-VL-2B",
    "qwen2_5_vl": "Qwen2.5-VL-3B",
    "mistral3": "Ministral-3-3B",
    "llava_next": "LLaVA-v1.6-Mistral-7B",
}

_QWEN_IMAGE, _QWEN_VIDEO = "<|image_pad|>", "<|video_pad|>"
_QWEN_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", _QWEN_IMAGE, _QWEN_VIDEO,
)  # fmt: skip
_INTERNVL_TOKENS = (*_QWEN_TOKENS, "<img>", "</img>", "<IMG_CONTEXT>", "<image>", "<video>")
_MISTRAL3_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
_LLAVA_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>")
_STEP3_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<im_start>", "<im_end>", "<im_patch>", "<patch_start>", "<patch_end>", "<patch_newline>",
)  # fmt: skip

_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'video' %}VIDEO{% elif part['type'] == 'text' %}\
{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_INTERNVL_CODE = '''"""What AutoConfig finds for this directory: any field, two parts."""

from transformers import PretrainedConfig, Qwen2Config


class Vision(PretrainedConfig):
    model_type = "intern_vit_6b"


class Config(PretrainedConfig):
    model_type = "internvl_chat"
    has_no_defaults_at_init = True

    def __init__(self, vision_config=None, llm_config=None, **kwargs):
        self.vision_config = Vision(**(vision_config or {}))
        self.llm_config = Qwen2Config(**(llm_config or {}))
        super().__init__(**kwargs)
'''


@dataclass(frozen=True)
class Model:
    """The parts of a prompt of one model."""

    architecture: str
    tokens: Sequence[str]
    image: str
    video: str | None
    processor: str | None = None
    #: Whether vLLM must be told to run the directory's own configuration class.
    remote_code: bool = False

    def prompt(self, images: int = 0, videos: int = 0) -> str:
        """A chat turn with so many placeholders."""
        media = self.image * images + (self.video or "") * videos
        return f"<|im_start|>user\n{media}What is in this picture?<|im_end|>\n<|im_start|>assistant\n"


_QWEN = {
    "tokens": _QWEN_TOKENS,
    "image": f"<|vision_start|>{_QWEN_IMAGE}<|vision_end|>",
    "video": f"<|vision_start|>{_QWEN_VIDEO}<|vision_end|>",
}
MODELS: dict[str, Model] = {
    "qwen2_vl": Model("Qwen2VLForConditionalGeneration", processor="Qwen2VLProcessor", **_QWEN),  # type: ignore[arg-type]
    "qwen2_5_vl": Model("Qwen2_5_VLForConditionalGeneration", processor="Qwen2_5_VLProcessor", **_QWEN),  # type: ignore[arg-type]
    "qwen3_vl": Model("Qwen3VLForConditionalGeneration", processor="Qwen3VLProcessor", **_QWEN),  # type: ignore[arg-type]
    "internvl": Model("InternVLChatModel", _INTERNVL_TOKENS, "<image>", "<video>", remote_code=True),
    "step3_vl": Model("Step3VLForConditionalGeneration", _STEP3_TOKENS, "<im_patch>", None),
    "mistral3": Model(
        "Mistral3ForConditionalGeneration", _MISTRAL3_TOKENS, "[IMG]", None, processor="PixtralProcessor"
    ),
    "llava_next": Model(
        "LlavaNextForConditionalGeneration", _LLAVA_TOKENS, "<image>", None, processor="LlavaNextProcessor"
    ),
}


def write_model(name: str, directory: Path, scale: str = "tiny") -> Path:
    """Fill `directory` with everything but weights; returns it."""
    model = MODELS[name]
    directory.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(directory, model)
    config = _config(name, scale, ids)
    config |= {"architectures": [model.architecture], "torch_dtype": "float32" if scale == "tiny" else "bfloat16"}
    _write(directory / "config.json", config)
    eos = {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
    _write(directory / "generation_config.json", eos)
    if model.processor is not None:
        write = {"mistral3": _write_mistral3_processor, "llava_next": _write_llava_processor}
        write.get(name, _write_qwen_processor)(directory, name, model.processor, scale)
    if model.remote_code:
        (directory / "configuration_internvl_chat.py").write_text(_INTERNVL_CODE, encoding="utf-8")
    template = _TEMPLATE.replace("IMAGE", model.image).replace("VIDEO", model.video or "")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _write_tokenizer(directory: Path, model: Model) -> dict[str, int]:
    """A byte-level BPE tokenizer that can spell everything; ids of the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(model.tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SENTENCE], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": [t for t in model.tokens if t not in ("<|im_end|>", "<|endoftext|>")],
        "model_max_length": 32768,
        **({"processor_class": model.processor} if model.processor else {}),
    }
    _write(directory / "tokenizer_config.json", settings)
    return {token: int(tokenizer.token_to_id(token)) for token in model.tokens}


def _write_qwen_processor(directory: Path, name: str, processor: str, scale: str) -> None:
    patch, side = (16, 32) if name == "qwen3_vl" else (14, 28)
    # vLLM profiles with the largest image, and a CPU is slow: few tokens in a test. 1920x1080 has 2691.
    most = 64 if scale == "tiny" else 4096
    common = {
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 4 * side * side, "longest_edge": most * side * side},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": processor,
    }
    frames = {"min_frames": 2, "max_frames": 8} if scale == "tiny" else {"min_frames": 4, "max_frames": 768}
    video = "Qwen3VLVideoProcessor" if name == "qwen3_vl" else "Qwen2VLVideoProcessor"
    _write(directory / "preprocessor_config.json", common | {"image_processor_type": "Qwen2VLImageProcessor"})
    _write(directory / "video_preprocessor_config.json", common | frames | {"video_processor_type": video})


def _write_mistral3_processor(directory: Path, name: str, processor: str, scale: str) -> None:
    vision = _VISION[name, scale]
    images = {
        "image_processor_type": "PixtralImageProcessor",
        "processor_class": processor,
        "patch_size": vision["patch_size"],
        "size": {"longest_edge": vision["image_size"]},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    _write(directory / "preprocessor_config.json", images)
    both = {"processor_class": processor, "patch_size": vision["patch_size"], "spatial_merge_size": 2}
    _write(directory / "processor_config.json", both)


def _write_llava_processor(directory: Path, name: str, processor: str, scale: str) -> None:
    vision = _VISION[name, scale]
    side = vision["image_size"]
    images = {
        "image_processor_type": "LlavaNextImageProcessor",
        "processor_class": processor,
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
        "image_grid_pinpoints": _llava_pinpoints(side),
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    _write(directory / "preprocessor_config.json", images)
    both = {
        "processor_class": processor,
        "patch_size": vision["patch_size"],
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,  # the class token of CLIP, which "default" leaves out
        "image_token": "<image>",
    }
    _write(directory / "processor_config.json", both)


def _llava_pinpoints(side: int) -> list[list[int]]:
    """Height and width of the layouts of tiles that the checkpoint has."""
    return [[side * rows, side * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]


def _config(name: str, scale: str, ids: dict[str, int]) -> dict[str, Any]:
    if name == "mistral3":
        return _mistral3_config(scale, ids)
    if name == "llava_next":
        return _llava_config(scale, ids)
    if name == "internvl":
        return _internvl_config(ids)
    if name == "step3_vl":
        return _step3_config(ids)
    return _qwen_config(name, scale, ids)


def _qwen_config(name: str, scale: str, ids: dict[str, int]) -> dict[str, Any]:
    import transformers

    vision, text = _QWEN_SIZES[name, scale]
    kind = {"qwen2_vl": "Qwen2VLConfig", "qwen2_5_vl": "Qwen2_5_VLConfig", "qwen3_vl": "Qwen3VLConfig"}[name]
    width = text["hidden_size"] // text["num_attention_heads"]
    sections = [width // 2 - 2 * (width * 3 // 16), width * 3 // 16, width * 3 // 16]
    rope: dict[str, Any] = {"rope_type": "default", "type": "default", "mrope_section": sections}
    rope["rope_theta"] = 1_000_000.0
    if name == "qwen3_vl":
        rope["mrope_interleaved"] = True
    config = getattr(transformers, kind)(
        vision_config=vision,
        text_config={
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 32768,
            "rope_parameters": rope,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            **text,
        },
        image_token_id=ids[_QWEN_IMAGE],
        video_token_id=ids[_QWEN_VIDEO],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    return dict(config.to_dict())


_TINY_TEXT = {
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
_QWEN_SIZES: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    ("qwen2_vl", "tiny"): (
        {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2},
        _TINY_TEXT,
    ),
    ("qwen2_5_vl", "tiny"): (
        {
            "depth": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 128,
            "fullatt_block_indexes": [1], "window_size": 56, "tokens_per_second": 2,
        },
        _TINY_TEXT,
    ),
    ("qwen3_vl", "tiny"): (
        {
            "depth": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 128,
            "num_position_embeddings": 64, "deepstack_visual_indexes": [1],
        },
        _TINY_TEXT | {"head_dim": 64},
    ),
    ("qwen2_vl", "real"): (
        {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "mlp_ratio": 4},
        {
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
            "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
        },
    ),
    ("qwen2_5_vl", "real"): (
        {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
            "fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112, "tokens_per_second": 2,
        },
        {
            "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
            "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
        },
    ),
}  # fmt: skip


#: Pixtral's tower, and CLIP ViT-L/14 at 336 pixels.
_VISION: dict[tuple[str, str], dict[str, Any]] = {
    ("mistral3", "tiny"): {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 112, "patch_size": 14,
    },
    ("mistral3", "real"): {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "image_size": 1540, "patch_size": 14,
    },
    ("llava_next", "tiny"): {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2,
        "image_size": 56, "patch_size": 14, "projection_dim": 64,
    },
    ("llava_next", "real"): {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "image_size": 336, "patch_size": 14, "projection_dim": 768,
    },
}  # fmt: skip
_MISTRAL_TEXT: dict[tuple[str, str], dict[str, Any]] = {
    ("mistral3", "tiny"): _TINY_TEXT | {"head_dim": 64},
    ("llava_next", "tiny"): _TINY_TEXT | {"head_dim": 64},
    ("mistral3", "real"): {
        "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
    },
    ("llava_next", "real"): {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32064,
    },
}  # fmt: skip


def _mistral_text(name: str, scale: str, ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "mistral", "vocab_size": VOCABULARY, "max_position_embeddings": 32768, "sliding_window": None,
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "tie_word_embeddings": False,
        **_MISTRAL_TEXT[name, scale],
    }  # fmt: skip


def _mistral3_config(scale: str, ids: dict[str, int]) -> dict[str, Any]:
    import transformers

    config = transformers.Mistral3Config(
        vision_config={"model_type": "pixtral", **_VISION["mistral3", scale]},
        text_config=_mistral_text("mistral3", scale, ids),
        image_token_index=ids["[IMG]"],
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    return dict(config.to_dict())


def _llava_config(scale: str, ids: dict[str, int]) -> dict[str, Any]:
    import transformers

    vision = _VISION["llava_next", scale]
    config = transformers.LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", **vision},
        text_config=_mistral_text("llava_next", scale, ids),
        image_token_index=ids["<image>"],
        image_grid_pinpoints=_llava_pinpoints(vision["image_size"]),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    return dict(config.to_dict())


def _internvl_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "internvl_chat",
        "auto_map": {"AutoConfig": "configuration_internvl_chat.Config"},
        "select_layer": -1,
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "force_image_size": None,
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 4,
        "dynamic_image_size": True,
        "use_thumbnail": True,
        "tie_word_embeddings": False,
        "vision_config": {
            "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_channels": 3, "image_size": 112, "patch_size": 14, "qkv_bias": True, "qk_normalization": False,
            "hidden_act": "gelu", "norm_type": "layer_norm", "layer_norm_eps": 1e-6, "initializer_factor": 1.0,
        },
        "llm_config": {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCABULARY,
            "max_position_embeddings": 32768, "tie_word_embeddings": False,
            "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], **_TINY_TEXT,
        },
    }  # fmt: skip


def _step3_config(ids: dict[str, int]) -> dict[str, Any]:
    """The processor fixes 169 tokens per image and 81 per tile of 504 pixels, so patches are as in the checkpoint."""
    return {
        "model_type": "step3_vl",
        "understand_projector_stride": 2,
        "projector_bias": False,
        "image_token_id": ids["<im_patch>"],
        "tie_word_embeddings": False,
        "vision_config": {
            "model_type": "step3_vision_encoder", "hidden_size": 64, "intermediate_size": 96, "output_hidden_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 728, "patch_size": 14,
        },
        "text_config": {
            "architectures": ["Step3TextForCausalLM"], "model_type": "step3_text", "vocab_size": VOCABULARY,
            "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2, "num_attention_groups": 1,
            "num_hidden_layers": 2, "head_dim": 64, "share_q_dim": 64, "max_seq_len": 8192,
            "max_position_embedding": 8192, "moe_num_experts": 2, "moe_top_k": 1, "moe_intermediate_size": 64,
            "share_expert_dim": 64,
            "moe_layers_enum": "99",  # no such layer: every layer is dense
            "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"],
        },
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", choices=MODELS)
    options.add_argument("directory", type=Path)
    options.add_argument("--scale", choices=("tiny", "real"), default="tiny")
    arguments = options.parse_args()
    write_model(arguments.model, arguments.directory, arguments.scale)


if __name__ == "__main__":
    main()
