"""Runs the pristine and the split tower of a release on the CPU and compares them bit for bit.

A child process, because a release's `vllm` package can be imported once only. Arguments: the release's folder, and a
JSON object with `model` (a key of `TOWERS`), `text` (of the module after the split), `capacities` (arguments of
the metadata method), `cumulative`, `bounds` and `per_row` (keys), and `rows` (of a padded run). Standard
output, last line: a JSON object whose `results` have one entry a grid.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import release_process

MODELS = "vllm.model_executor.models"


def _qwen2_vl(module: Any) -> Any:
    return module.Qwen2VisionTransformer(
        SimpleNamespace(
            patch_size=4, temporal_patch_size=2, spatial_merge_size=2, in_channels=3, hidden_size=48, embed_dim=32,
            depth=3, num_heads=2, mlp_ratio=2,
        )
    )  # fmt: skip


def _qwen2_5_vl(module: Any) -> Any:
    return module.Qwen2_5_VisionTransformer(
        SimpleNamespace(
            patch_size=4, temporal_patch_size=2, spatial_merge_size=2, in_channels=3, hidden_size=32, depth=4,
            num_heads=2, out_hidden_size=48, window_size=16, fullatt_block_indexes=[1, 3], intermediate_size=64,
            hidden_act="silu",
        )
    )  # fmt: skip


def _qwen3_omni(module: Any) -> Any:
    return module.Qwen3Omni_VisionTransformer(
        SimpleNamespace(
            patch_size=4, temporal_patch_size=2, spatial_merge_size=2, in_channels=3, hidden_size=32, depth=3,
            num_heads=2, out_hidden_size=48, image_size=32, apply_vit_abs_pos_embed=True,
            deepstack_visual_indexes=[0, 1], intermediate_size=64, hidden_act="gelu_pytorch_tanh",
        )
    )  # fmt: skip


def _glm4_1v(module: Any) -> Any:
    return module.Glm4vVisionTransformer(
        None,
        SimpleNamespace(
            patch_size=4, temporal_patch_size=2, spatial_merge_size=2, in_channels=3, hidden_size=32, depth=3,
            num_heads=2, out_hidden_size=48, image_size=32, intermediate_size=64, rms_norm_eps=1e-5,
        ),
    )  # fmt: skip


def _ernie45_vl(module: Any) -> Any:
    return module.Ernie4_5_VisionTransformer(
        SimpleNamespace(
            patch_size=4, spatial_merge_size=2, in_channels=3, hidden_size=32, embed_dim=32, depth=3, num_heads=2,
            mlp_ratio=2, hidden_act="quick_gelu",
        )
    )  # fmt: skip


#: How to build each tower, how many numbers a row of pixels has, and how its grid is given.
TOWERS: dict[str, tuple[Callable[[Any], Any], int, tuple[str, ...]]] = {
    "qwen2_vl": (_qwen2_vl, 3 * 2 * 4 * 4, ("list", "tensor")),
    "qwen2_5_vl": (_qwen2_5_vl, 3 * 2 * 4 * 4, ("list",)),
    "qwen3_omni_moe_thinker": (_qwen3_omni, 3 * 2 * 4 * 4, ("tensor",)),
    "glm4_1v": (_glm4_1v, 3 * 2 * 4 * 4, ("list", "tensor")),
    "ernie45_vl": (_ernie45_vl, 3 * 4 * 4, ("tensor",)),
}

GRIDS = ([[1, 4, 4]], [[1, 6, 10]], [[2, 4, 6], [1, 8, 4]], [[3, 10, 6], [1, 2, 2], [2, 6, 6]])


def _load_split(name: str, text: str, directory: Path) -> Any:
    """The changed module under a name of its own beside the pristine one, so that both exist in one process."""
    path = directory / f"{name}_split.py"
    path.write_text(text)
    full = f"{MODELS}.{name}_split"
    spec = importlib.util.spec_from_file_location(full, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    return module


def _padded_run(
    torch: Any, tower: Any, pixels: Any, metadata: dict[str, Any], request: dict[str, Any], size: int
) -> Any:
    """The tower on `size` rows of which only the first carry pixels, as a captured graph would see them.

    What no kernel writes is NaN, and the last key/value tile of a sequence is loaded whole (FlashAttention 3).
    """
    from scaffold.verify.numeric import attention

    rows = pixels.shape[0]
    filled = dict(metadata)
    for key in request["per_row"]:
        value = metadata[key]
        tail = value.new_zeros(value.shape[0] * (size - rows) // rows, *value.shape[1:])
        filled[key] = torch.cat([value, tail])
    real = torch.empty_like

    def poisoned(tensor: Any, **options: Any) -> Any:
        result = real(tensor, **options)
        return result.fill_(float("nan")) if result.is_floating_point() else result

    torch.empty_like = poisoned
    attention.set_tail("fa3")
    try:
        return tower(torch.cat([pixels, pixels.new_zeros(size - rows, pixels.shape[1])]), None, encoder_metadata=filled)
    finally:
        torch.empty_like = real
        attention.set_tail("fa2")


def main() -> None:
    request = json.loads(sys.argv[2])
    release_process.prepare_release(Path(sys.argv[1]))
    import torch

    from scaffold.verify.numeric import attention
    from scaffold.verify.numeric.recipes.base import process_weights, randomise

    attention.set_tail("fa2")
    name = request["model"]
    build, width, forms = TOWERS[name]
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        release_process.vllm_on_cpu(),
        torch.no_grad(),
    ):
        pristine = importlib.import_module(f"{MODELS}.{name}")
        split = _load_split(name, request["text"], Path(scratch))
        old, new = build(pristine).eval(), build(split).eval()
        randomise(old, 1)
        new.load_state_dict(old.state_dict(), strict=True)
        for tower in (old, new):
            process_weights(tower)
        for form in forms:
            for grid in GRIDS:
                rows = sum(t * h * w for t, h, w in grid)
                pixels = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))
                sizes: Any = torch.tensor(grid) if form == "tensor" else grid
                copy: Any = torch.tensor(grid) if form == "tensor" else [list(item) for item in grid]
                expected, got = old(pixels.clone(), sizes), new(pixels.clone(), copy)
                metadata = new.prepare_encoder_metadata(copy)
                given = new(pixels.clone(), None, encoder_metadata=metadata)
                padded = new.prepare_encoder_metadata(copy, **request["capacities"])
                with_padding = new(pixels.clone(), None, encoder_metadata=padded)
                output = _padded_run(torch, new, pixels, padded, request, request["rows"])
                valid = output[: expected.shape[0]]
                tail = [bool(torch.isfinite(valid).all()), torch.equal(valid, expected)]
                results.append(
                    {
                        "grid": grid,
                        "form": form,
                        "finite": bool(torch.isfinite(expected).all()),
                        "spread": float(expected.float().std()),
                        "eager": torch.equal(expected, got),
                        "given": torch.equal(expected, given),
                        "padded": torch.equal(expected, with_padding),
                        "lengths": {key: len(padded[key]) for key in request["cumulative"]},
                        "tails": {key: padded[key].tolist() for key in request["cumulative"]},
                        "tail": tail,
                        "plain": {key: metadata[key].tolist() for key in request["cumulative"]},
                        "bounds": {
                            key: [padded[key].item(), padded[key].device.type, str(padded[key].dtype), padded[key].ndim]
                            for key in request["bounds"]
                        },
                        "keys": sorted(metadata),
                    }
                )
    print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
