"""The processor of the test's checkpoint, as code of the checkpoint: patches of images of any size, as Qwen2-VL's."""

import numpy as np
import torch
from transformers import ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

PATCH, MERGE, FRAMES = 14, 2, 2


class KananaVImageProcessor(BaseImageProcessor):
    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(self, min_pixels=3136, max_pixels=1003520, **kwargs):
        super().__init__(**kwargs)
        self.min_pixels, self.max_pixels = min_pixels, max_pixels

    def __call__(self, image):
        size = smart_resize(image.height, image.width, PATCH * MERGE, self.min_pixels, self.max_pixels)
        height, width = (side // PATCH for side in size)
        pixels = torch.from_numpy(np.array(image.resize(size[::-1])) / 127.5 - 1).permute(2, 0, 1).float()
        patches = pixels.view(3, height // MERGE, MERGE, PATCH, width // MERGE, MERGE, PATCH)
        rows = patches.permute(1, 4, 2, 5, 0, 3, 6).reshape(height * width, 3, 1, PATCH**2)
        tokens = (1, height // MERGE, width // MERGE)
        return {
            "pixel_values": rows.expand(-1, -1, FRAMES, -1).reshape(height * width, -1),
            "image_meta": {"vision_grid_thw": (1, height, width), "image_token_thw": tokens},
        }


class KananaVProcessor(ProcessorMixin):
    attributes = ["image_processor", "tokenizer"]  # noqa: RUF012
    image_processor_class = "AutoImageProcessor"
    tokenizer_class = "AutoTokenizer"

    def __init__(self, image_processor, tokenizer, **kwargs):
        super().__init__(image_processor, tokenizer)
