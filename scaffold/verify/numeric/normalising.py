"""Raw pixels: what an engine gives a model that normalises pixels itself, from vLLM 0.28 on.

There such a class says `supports_mm_device_do_normalize`, and an engine then switches the processor's own rescaling and
normalising off unless a user objects. The pixels arrive as bytes, and a module of the model normalises them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

#: Names of the modules that stand where pixels are normalised: 0.28 to 0.30, and since 0.31 where that is switched off.
_NORMS = ("FusedInputNorm", "IdentityInputNorm")
#: A mean and a deviation for each channel, all different, so that a normalisation left out, doubled or in another order
#: shows. They are CLIP's.
_MEAN = [0.48145466, 0.4578275, 0.40821073]
_STD = [0.26862954, 0.26130258, 0.27577711]


def takes_raw_pixels(host: nn.Module) -> bool:
    """Whether an engine gives the model raw pixels by default."""
    return bool(getattr(type(host), "supports_mm_device_do_normalize", False))


@contextmanager
def normalising(host: nn.Module, config: SimpleNamespace) -> Iterator[int]:
    """Inside, the host normalises pixels as in an engine's default mode. Gives the number of modules that do it."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    multimodal = config.model_config.multimodal_config
    device = next(host.parameters()).device
    found = [
        (parent, name, norm)
        for parent in host.modules()
        for name, norm in parent.named_children()
        if type(norm).__name__ in _NORMS
    ]
    object.__setattr__(multimodal, "mm_device_do_normalize", True)
    try:
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device=device.type))):
            for parent, name, norm in found:
                setattr(parent, name, _normaliser(norm).to(device))
        yield len(found)
    finally:
        object.__setattr__(multimodal, "mm_device_do_normalize", False)
        for parent, name, norm in found:
            setattr(parent, name, norm)


def _normaliser(norm: nn.Module) -> nn.Module:
    """The release's own module that normalises, for the one that leaves pixels as they are."""
    home = vars(sys.modules[type(norm).__module__])
    maker = home.get("FusedMMInputNorm") or home["FusedInputNorm"]
    made = maker(image_mean=_MEAN, image_std=_STD, rescale_factor=1 / 255)
    assert isinstance(made, nn.Module)
    return made.eval()


def raw_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a batch with its pixels as bytes. All other inputs are whole numbers, or have one dimension."""

    def raw(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 1:
            return (value * 64 + 128).clamp(0, 255).to(torch.uint8)
        return [raw(element) for element in value] if isinstance(value, list) else value

    return {key: raw(value) for key, value in inputs.items()}
