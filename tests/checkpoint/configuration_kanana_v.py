"""The configuration's class of the test's checkpoint, as code of the checkpoint."""

from transformers import LlamaConfig, PretrainedConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig


class KananaVConfig(PretrainedConfig):
    model_type = "kanana-1.5-v"

    def __init__(self, vision_config=None, projector_config=None, text_config=None, **kwargs):
        self.vision_config = Qwen2VLVisionConfig(**(vision_config or {}))
        self.projector_config = PretrainedConfig(**(projector_config or {}))
        self.text_config = LlamaConfig(**(text_config or {}))
        super().__init__(**kwargs)
