"""Images, videos and audio through the model's own processor, grouped as the release's runner groups them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """The size that one item is made from. `frames` is 0 for an image. `own` items come with a request of their own.

    An audio is `width` samples long and has no height.

    Processors pad the items of one request to the largest, and the runner puts items of several requests into one
    batch, so that both have to be tried. A `changed` item is an own one whose request has other arguments.
    """

    width: int
    height: int
    frames: int = 0
    own: bool = False
    changed: bool = False

    def __str__(self) -> str:
        if not self.height:
            return f"{self.width} samples"
        return f"{self.width}x{self.height}" + (f"x{self.frames}" if self.frames else "")

    @property
    def key(self) -> tuple[int, int, int, bool]:
        return self.width, self.height, self.frames, self.changed


def random_media(size: Size, generator: torch.Generator) -> Any:
    """An image, a video with its metadata, or the samples of an audio, at the rate that the processor expects."""
    from PIL import Image

    if not size.height:
        return (torch.randn(size.width, generator=generator) / 8).numpy()
    shape = (size.frames or 1, size.height, size.width, 3)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).numpy()
    if not size.frames:
        return Image.fromarray(pixels[0])
    return pixels, {
        "fps": 2.0,
        "duration": size.frames / 2,
        "total_num_frames": size.frames,
        "frames_indices": list(range(size.frames)),
        "video_backend": "opencv",
        "do_sample_frames": False,
    }


def negative(media: Any, quadrant: int) -> Any:
    """The same image or video with one quadrant turned into its negative, or an audio with one quarter made quiet.

    The negative of a sound has the same spectrum.
    """
    import numpy as np
    from PIL import Image

    if isinstance(media, np.ndarray):
        samples = media.copy()
        np.array_split(samples, 4)[quadrant][:] /= 8
        return samples
    pixels = np.array(media if isinstance(media, Image.Image) else media[0])
    height, width = pixels.shape[-3:-1]
    rows = slice(0, height // 2) if quadrant < 2 else slice(height // 2, height)
    columns = slice(0, width // 2) if quadrant % 2 == 0 else slice(width // 2, width)
    pixels[..., rows, columns, :] = 255 - pixels[..., rows, columns, :]
    return Image.fromarray(pixels) if isinstance(media, Image.Image) else (pixels, media[1])


def process(
    processor: Any, modality: str, media: Sequence[Any], arguments: Mapping[str, Any] = MappingProxyType({})
) -> list[Any]:
    """The items that the release's processor makes of the media of one request, without a prompt.

    `arguments` are the request's `mm_processor_kwargs`.
    """
    from vllm.multimodal.inputs import MultiModalKwargsItems

    parsed = processor.info.parse_mm_data({modality: list(media)}, validate=False)
    made = applied(processor, parsed, arguments)
    fields = processor._get_mm_fields_config(made, dict(arguments))
    return list(MultiModalKwargsItems.from_hf_inputs(made, fields)[modality])


def applied(processor: Any, parsed: Any, arguments: Mapping[str, Any]) -> Any:
    """The inputs that the release's processor makes of media: before 0.29, its method makes a prompt, too."""
    main = processor._apply_hf_processor_main
    if "prompt" in inspect.signature(main).parameters:
        return processor._apply_hf_processor_mm_only(parsed, dict(arguments), {})
    return main(parsed, dict(arguments))


def process_requests(
    processor: Any,
    modality: str,
    sizes: Sequence[Size],
    media: Sequence[Any],
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> list[Any]:
    """The items of several sizes: neighbours share a request, `own` items do not. `changed` ones have `arguments`."""
    items: list[Any] = []
    shared: list[Any] = []
    for size, medium in zip(sizes, media, strict=True):
        if size.own or size.changed:
            items += _of_one_request(processor, modality, shared)
            items += process(processor, modality, [medium], arguments if size.changed else {})
            shared = []
        else:
            shared.append(medium)
    return items + _of_one_request(processor, modality, shared)


def _of_one_request(processor: Any, modality: str, media: Sequence[Any]) -> list[Any]:
    """The items of one request, or of a request each where the processor cannot take several media at once."""
    try:
        made = process(processor, modality, media) if media else []
    except Exception:
        if len(media) == 1:
            raise
        made = []
    if len(made) == len(media):
        return made
    return [item for medium in media for item in process(processor, modality, [medium])]


def grouped(items: Iterable[Any], modality: str) -> list[dict[str, Any]]:
    """The keyword arguments of `embed_multimodal`, one dictionary for each batch that the runner makes of the items."""
    from vllm.multimodal.utils import group_and_batch_mm_kwargs

    return [dict(kwargs) for _, _, kwargs in group_and_batch_mm_kwargs([(modality, item) for item in items])]


def kept_on_host(items: Iterable[Any]) -> set[str]:
    """Names of the inputs that the runner leaves on the host."""
    return {key for item in items for key, element in item.items() if element.field.keep_on_cpu}


def signature(item: Any) -> str:
    """The shapes of an item: two sizes with the same shapes take the same way through a model."""
    return repr(sorted((key, _shapes(element.data)) for key, element in item.items()))


def volume(item: Any) -> int:
    """Numbers in an item, for its cost."""
    return sum(_volume(element.data) for element in item.values())


def _shapes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape) if value.is_floating_point() else (tuple(value.shape), value.flatten().tolist())
    return [_shapes(element) for element in value] if isinstance(value, (list, tuple)) else None


def _volume(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.numel())
    return sum(map(_volume, value)) if isinstance(value, (list, tuple)) else 0
