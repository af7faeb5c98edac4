"""`--config` of `profile` and `bench`: towers of the sizes of a checkpoint's `config.json`, on real classes."""

import copy
import json
from pathlib import Path

import pytest
from checkpoint_folders import MOST_PIXELS, write_qwen2_vl
from release_process import last_line, run_script

ROOT = Path(__file__).resolve().parents[2]

#: With the keys of the published files; the numbers are small, and unlike those of any preset.
FILES = {
    "qwen2_5_vl": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_size": 48,
        "num_hidden_layers": 36, "torch_dtype": "bfloat16", "rope_scaling": {"type": "mrope"}, "vocab_size": 151936,
        "vision_config": {
            "depth": 3, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 84, "num_heads": 4, "in_chans": 3,
            "out_hidden_size": 48, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
            "window_size": 112, "fullatt_block_indexes": [1], "tokens_per_second": 2, "temporal_patch_size": 2,
        },
    },
    "qwen2_vl": {
        "model_type": "qwen2_vl", "hidden_size": 48, "vision_start_token_id": 151652,
        "vision_config": {
            "depth": 3, "embed_dim": 64, "mlp_ratio": 3, "num_heads": 4, "in_chans": 3, "hidden_size": 48,
            "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
        },
    },
    "qwen3_vl": {
        "model_type": "qwen3_vl", "image_token_id": 151655, "tie_word_embeddings": False,
        "text_config": {"hidden_size": 48, "num_hidden_layers": 36, "model_type": "qwen3_vl_text"},
        "vision_config": {
            "deepstack_visual_indexes": [0, 2], "depth": 3, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 64,
            "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 84, "model_type": "qwen3_vl",
            "num_heads": 4, "num_position_embeddings": 144, "out_hidden_size": 48, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
    },
    "internvl": {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "auto_map": {"AutoModel": "x.Y"},
        "downsample_ratio": 0.5, "select_layer": -1, "ps_version": "v2", "force_image_size": 112,
        "llm_config": {"hidden_size": 48, "architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"},
        "vision_config": {
            "architectures": ["InternVisionModel"], "attention_dropout": 0.0, "drop_path_rate": 0.0, "dropout": 0.0,
            "hidden_act": "gelu", "hidden_size": 64, "image_size": 112, "initializer_factor": 1.0,
            "initializer_range": 0.02, "intermediate_size": 84, "layer_norm_eps": 1e-06, "model_type": "intern_vit_6b",
            "norm_type": "rms_norm", "num_attention_heads": 4, "num_channels": 3, "num_hidden_layers": 3,
            "patch_size": 14, "qk_normalization": True, "qkv_bias": False, "return_dict": True,
            "torch_dtype": "bfloat16", "transformers_version": "4.37.2", "use_bfloat16": True, "use_flash_attn": True,
        },
    },
    "step3_vl": {
        "model_type": "step3_vl", "understand_projector_stride": 2, "projector_bias": False, "image_token_id": 128001,
        "text_config": {"hidden_size": 48, "num_hidden_layers": 61, "vocab_size": 128815},
        "vision_config": {
            "hidden_size": 64, "output_hidden_size": 32, "image_size": 728, "intermediate_size": 84,
            "num_attention_heads": 4, "num_hidden_layers": 3, "num_channels": 3, "patch_size": 14,
            "hidden_act": "quick_gelu", "layer_norm_eps": 1e-05, "model_type": "step3_vision_encoder",
        },
    },
}  # fmt: skip
#: A model of videos alone.
VIDEOS = {
    "model_type": "llava_next_video", "spatial_pool_mode": "average", "spatial_pool_stride": 2,
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 84, "num_attention_heads": 4,
        "num_hidden_layers": 3, "image_size": 336, "patch_size": 14, "projection_dim": 32,
    },
    "text_config": {"model_type": "llama", "hidden_size": 48, "num_attention_heads": 4, "vocab_size": 999},
}  # fmt: skip
SIZES = [20, 60]
#: The weights that show the file's numbers: MLP, depth, and the width that the language model reads.
EXPECTED = {
    "qwen2_5_vl": {"visual.blocks.2.mlp.down_proj.weight": [64, 84], "visual.merger.mlp.2.weight": [48, 256]},
    "qwen2_vl": {"visual.blocks.2.mlp.fc2.weight": [64, 192], "visual.merger.mlp.2.weight": [48, 256]},
    "qwen3_vl": {"visual.blocks.2.mlp.linear_fc2.weight": [64, 84], "visual.merger.linear_fc2.weight": [48, 256],
                 "visual.deepstack_merger_list.1.linear_fc2.weight": [48, 256]},
    "internvl": {"vision_model.encoder.layers.2.mlp.fc2.weight": [64, 84], "mlp1.3.weight": [48, 48],
                 "vision_model.encoder.layers.0.attn.q_norm.weight": [64]},
    "step3_vl": {"vision_model.transformer.layers.2.mlp.fc2.weight": [64, 84], "vit_large_projector.weight": [48, 64]},
}  # fmt: skip

pytestmark = [pytest.mark.trees, pytest.mark.lab]


CLASSES = {
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration", "internvl": "InternVLChatModel",
    "step3_vl": "Step3VLForConditionalGeneration", "gemma3_mm": "Gemma3ForConditionalGeneration",
    "llava_next_video": "LlavaNextVideoForConditionalGeneration",
}  # fmt: skip


@pytest.fixture(scope="module")
def report(release_tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("configured")
    configs = dict(FILES)
    configs["llava_next_video"] = VIDEOS
    configs["internvl:incomplete"] = copy.deepcopy(FILES["internvl"])
    del configs["internvl:incomplete"]["vision_config"]["intermediate_size"]
    checkpoint = write_qwen2_vl(folder / "checkpoint", FILES["qwen2_vl"])
    given = {  # first, because the others take the place of vLLM's loaders
        "qwen2_vl:folder": {
            "module": "qwen2_vl", "class": CLASSES["qwen2_vl"], "config": str(checkpoint), "tokens": SIZES[:1]
        }
    }  # fmt: skip
    for name, config in configs.items():
        model = name.partition(":")[0]
        file = folder / f"{name}.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        sizes = SIZES if model != "llava_next_video" else []
        given[name] = {"module": model, "class": CLASSES[model], "config": str(file), "tokens": sizes}
    given["qwen2_vl:late"] = given["qwen2_vl:folder"]
    given["gemma3_mm"] = {"module": "gemma3_mm", "class": CLASSES["gemma3_mm"], "config": None, "tokens": SIZES}
    file = folder / "models.json"
    file.write_text(json.dumps(given), encoding="utf-8")
    done = run_script(Path(__file__).with_name("run_subject.py"), release_tree("0.33.0").root, str(file))
    assert done.returncode == 0, done.stderr[-3000:]
    return last_line(done)


@pytest.mark.parametrize("name", FILES)
def test_the_tower_has_the_sizes_of_the_file(report, name):
    shapes = report[name]["parameters"]
    assert {key: shapes.get(key) for key in EXPECTED[name]} == EXPECTED[name]
    assert not any(".3." in key and "mlp1" not in key for key in shapes)  # three layers
    assert f"({name}.json)" in report[name]["source"]


@pytest.mark.parametrize("name", FILES)
def test_calls_of_about_the_asked_size(report, name):
    for size in SIZES:
        found = report[name]["sizes"][str(size)]
        assert [shape[0] for shape in found["shapes"]] == found["announced"]
        assert len(found["announced"]) == 1
    assert len(report[name]["several"]) == 2


def test_a_folders_own_processor_makes_the_inputs(report):
    assert report["qwen2_vl"]["large"] == [35**2]  # the limit of the processor's class
    [tokens] = report["qwen2_vl:folder"]["large"]
    assert 100 < tokens <= MOST_PIXELS // 28**2
    assert "(checkpoint/config.json)" in report["qwen2_vl:folder"]["source"]
    assert report["qwen2_vl:late"]["error"] == "this process makes processors itself"


def test_ports_can_ask_for_frames(report):
    assert report["qwen2_vl"]["info"] == "Qwen2VLProcessingInfo"


def test_defaults_that_contradict_each_other_are_refused(report):
    """A tile of Gemma 3 has 256 tokens, and the default tower gives 196 patches to pool them from."""
    assert report["gemma3_mm"]["error"].startswith("it does not run at the sizes of Gemma3Config")
    assert report["gemma3_mm"]["help"] == "give the checkpoint's own values with --config config.json"


@pytest.mark.parametrize("name", FILES)
def test_videos_where_the_processor_takes_them(report, name):
    videos = report[name]["videos"]
    if name in ("internvl", "step3_vl"):
        assert videos == "its processor takes no videos"
    else:
        assert len(videos) == 2
        assert videos[0] >= videos[1] > 0


def test_a_model_of_videos_alone(report):
    assert report["llava_next_video"]["several"] == "its processor takes no images"
    assert report["llava_next_video"]["videos"] == [4 * 144, 2 * 144]


def test_a_file_that_lacks_a_size_is_refused(report):
    assert report["internvl:incomplete"] == {
        "error": "nothing says vision_config.intermediate_size",
        "help": "give the checkpoint's own values with --config config.json",
    }
