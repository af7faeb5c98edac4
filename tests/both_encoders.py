"""Descriptors of both encoders of Qwen3-Omni, as `init` and `init --audio` draft them, and their adapters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from changed_ports import document_of

from scaffold.adapters.outputs import Source, render_outputs
from scaffold.descriptor import load_descriptor

MODEL = {
    "module": "qwen3_omni_moe_thinker",
    "class": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "architecture": "Qwen3OmniMoeForConditionalGeneration",
}


def descriptors() -> dict[str, dict[str, Any]]:
    """Those of Qwen3-Omni's images and sound: as Qwen3-VL's and Qwen3-ASR's, which have its towers."""
    seen, heard = document_of("qwen3_vl"), document_of("qwen3_asr")
    del seen["integration"], seen["gates"], seen["attention"]["full"]["lengths"], heard["verify"]
    seen["pixels"] = {"shape": ["self.visual.patch_embed.proj.input_size"]}
    seen["buffers"].append("sequence_lengths")
    seen["output"] = {"hidden_size": "self.visual_dim + self.multiscale_dim"}
    seen["tower"] |= {"class": "Qwen3Omni_VisionTransformer", "grid": "tensor"}
    return {"seen": seen | {"model": MODEL | {"tower": "visual"}}, "sound": heard | {"model": MODEL}}


def write_adapters(folder: Path, descriptors: Iterable[Path]) -> None:
    """Write a package of adapters into `folder`."""
    sources = [Source(f"../{file.name}", load_descriptor(file)) for file in descriptors]
    for output in render_outputs(sources).files:
        (folder / output.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / output.path).write_bytes(output.text.encode())
