"""A stand-in for a processor that the checkpoint brings as remote code, for models that say what it makes.

vLLM's models describe their inputs by name and shape (`TensorSchema`). Where these are the inputs that a public
processor makes, patches of images and their grids, that one takes the place of the checkpoint's, and its results get
the shape of the description. Which pixel is in which patch may differ from the checkpoint's: a proof compares two
results for the same inputs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from scaffold.verify.numeric.automatic.configuration import MODELS, lineage

_GRID = re.compile(r"(image|video)_grid_(thw|hws?)")
#: Inputs of SigLIP 2: patches of every image, padded to one number.
_PADDED = frozenset(("pixel_values", "pixel_attention_mask", "spatial_shapes"))


@dataclass(frozen=True, slots=True)
class Patches:
    """How a model wants the patches of one modality: names of both inputs, and sizes of a patch, if not one row."""

    modality: str
    pixels: str
    grid: str
    sizes: tuple[int | str, ...] = ()

    def of(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs from those of a public processor, which gives rows and `(time, height, width)`."""
        rows = made["pixel_values" if self.modality == "image" else "pixel_values_videos"]
        grids = made[f"{self.modality}_grid_thw"]
        if self.sizes:
            channels, height, width = self.sizes
            side = round((rows.shape[-1] / 3) ** 0.5)
            sides = (size if isinstance(size, int) else side for size in (height, width))
            rows = rows.reshape(len(rows), channels if isinstance(channels, int) else 3, *sides)
        return {self.pixels: rows, self.grid: grids if self.grid.endswith("thw") else grids[:, 1:]}


class GuessedProcessor:
    """Images and videos; of a text only its tokens, which vLLM before 0.29 takes out of the result."""

    image_token, video_token = "<image>", "<video>"

    def __init__(self, tokenizer: Any, wanted: Sequence[Patches], part: Callable[[str], Any]) -> None:
        self.tokenizer = tokenizer
        self.image_token_id, self.video_token_id = map(tokenizer.convert_tokens_to_ids, ("<image>", "<video>"))
        self._wanted = {patches.modality: patches for patches in wanted}
        for modality in self._wanted or ("image",):
            setattr(self, f"{modality}_processor", part(modality))

    def __call__(self, text: Any = None, images: Any = None, videos: Any = None, **kwargs: Any) -> Any:
        from transformers import BatchFeature

        made: dict[str, Any] = {}
        if text is not None:
            made["input_ids"] = [self.tokenizer.encode(one) for one in ([text] if isinstance(text, str) else text)]
        for modality, media in (("image", images), ("video", videos)):
            if media:
                part = getattr(self, f"{modality}_processor")
                known = {name: kwargs[name] for name in kwargs.keys() & part.valid_kwargs.__annotations__.keys()}
                found = part(media, **{**known, "return_tensors": "pt"})
                made |= self._wanted[modality].of(found) if self._wanted else found
        return BatchFeature(made)


def guessed_processor(host: type, tokenizer: Any, fitted: Callable[[Any], Any], side: Callable[[str], Any]) -> Any:
    """A stand-in for the processor of a model that describes inputs as public processors make them; else None.

    `fitted` gives a part the tower's geometry, and `side` asks for a length of the tower by its name.
    """
    import transformers

    schemas = list(_schemas(host))
    wanted = [patches for fields in schemas for patches in _patches(fields)]
    padded = [fields for fields in schemas if fields.keys() == _PADDED]
    if not wanted and not padded:
        return None

    def part(modality: str) -> Any:
        name = {"image": "Qwen2VLImageProcessor", "video": "Qwen2VLVideoProcessor"}[modality]
        made = fitted(getattr(transformers, name if wanted else "Siglip2ImageProcessor")())
        if wanted:
            made.temporal_patch_size = side("temporal_patch_size") or 1
        return made

    return GuessedProcessor(tokenizer, wanted, part)


def _schemas(host: type) -> Iterator[dict[str, tuple[int | str, ...]]]:
    """The inputs that the modules of a model describe: the dimensions of each, by name."""
    from vllm.utils.tensor_schema import TensorSchema, TensorShape

    found: dict[type, None] = {}
    for owner in (host, *lineage(host)):
        if owner.__module__.startswith(MODELS):
            for value in vars(sys.modules[owner.__module__]).values():
                if isinstance(value, type) and issubclass(value, TensorSchema) and value is not TensorSchema:
                    found[value] = None
    for schema in found:
        hints = {name: get_args(hint) for name, hint in get_type_hints(schema, include_extras=True).items()}
        shapes = {name: next((a for a in said if isinstance(a, TensorShape)), None) for name, said in hints.items()}
        yield {name: shape.dims for name, shape in shapes.items() if shape is not None}


def _patches(fields: Mapping[str, tuple[int | str, ...]]) -> Iterator[Patches]:
    """Rows of patches and their grid, where nothing else is an input."""
    grid = next(filter(_GRID.fullmatch, fields), None)
    pixels = next((name for name in fields if name.startswith("pixel_values")), None)
    found = _GRID.fullmatch(grid or "")
    if found is not None and grid and pixels and fields.keys() == {grid, pixels}:
        _, *sizes = fields[pixels]
        if len(sizes) in (1, 3):
            yield Patches(found[1], pixels, grid, tuple(sizes) if len(sizes) == 3 else ())
