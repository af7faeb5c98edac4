"""Build towers from configuration files on the CPU, and run them on one call each.

    python tests/tuning/run_configured.py TREE CONFIGS.json

CONFIGS.json: `{model: {"config": ..., "tokens": [...]}}`. Prints one JSON object: of each model the shapes of its
vision parameters, and of each size the tokens that were announced and that came out, or the error that building raised.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import prepare_release

from scaffold.verify.numeric.cpu_imports import patch_vllm, start_distributed


def main() -> int:
    prepare_release(Path(sys.argv[1]))
    import torch

    patch_vllm()
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    from scaffold.measure import towers

    towers.DEVICE, towers.DTYPE = torch.device("cpu"), torch.float32
    report = {}
    current = VllmConfig(device_config=DeviceConfig(device="cpu"))
    with tempfile.TemporaryDirectory() as scratch, set_current_vllm_config(current), torch.inference_mode():
        start_distributed(Path(scratch))
        for name, given in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")).items():
            try:
                report[name] = run(towers.Subject(name.partition(":")[0], given["config"]), given["tokens"])
            except ValueError as error:
                report[name] = {"error": str(error)}
    print(json.dumps(report))
    return 0


def run(subject, sizes):  # type: ignore[no-untyped-def]
    host, _ = subject.build()
    found = {}
    for size in sizes:
        inputs = subject.call(subject.items_of(size), 0)
        announced = [int(spec.output_tokens) for spec in host.get_encoder_cudagraph_item_specs(inputs)]
        out = host.embed_multimodal(**inputs)
        found[size] = {"announced": announced, "shapes": [list(one.shape) for one in out]}
    shapes = {name: list(p.shape) for name, p in host.named_parameters() if not name.startswith("language_model")}
    return {"sizes": found, "parameters": shapes}


if __name__ == "__main__":
    sys.exit(main())
