"""Kanana-V: packed patches of images through Qwen2-VL's layers, whose loop collects the hidden states of each."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.packed import GRID_TOWER, MERGE, PackedGrid


class KananaV(PackedGrid):
    """Images only. The model reads one of the hidden states, here the one that the last layer gets."""

    module = "kanana_v"
    host_class = "KananaVForConditionalGeneration"
    modalities = ("image",)
    grid = "vision_grid_thw"
    has_edges = False  # the release asks the processor of the checkpoint for its function of sizes
    takes_embeds = False  # the model takes pixels only

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code
        from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig

        vision = Qwen2VLVisionConfig(
            **GRID_TOWER, depth=3, embed_dim=48, hidden_size=self.hidden_size, hidden_act="quick_gelu", mlp_ratio=2
        )
        projector = PretrainedConfig(
            encoder_hidden_size=48,
            hidden_size=48,
            output_hidden_size=self.hidden_size,
            depth=1,
            mlp_depth=2,
            merge_size=MERGE,
            pos_emb=True,
            pos_emb_size=64,
            feature_layer_index=-2,
        )
        text = PretrainedConfig(hidden_size=self.hidden_size)
        return PretrainedConfig(vision_config=vision, projector_config=projector, text_config=text)


RECIPE = KananaV()
