"""Build models at the sizes of configuration files on the CPU, and run them on calls of their own processors.

    python tests/measure/run_subject.py TREE MODELS.json

MODELS.json: `{name: {"module", "class", "config": path or null, "tokens": [...]}}`. Prints one JSON object: of each
model the shapes of its vision parameters, the source of its sizes, and of each size in tokens the image and what the
port announced and the model gave; or the error of building it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import prepare_release, vllm_on_cpu


def main() -> int:
    prepare_release(Path(sys.argv[1]))
    import torch

    from scaffold.measure.subject import NoSubject, Subject

    report = {}
    with vllm_on_cpu(), torch.inference_mode():
        for name, given in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")).items():
            config = Path(given["config"]) if given["config"] else None
            subject = Subject(name.partition(":")[0], given["module"], given["class"], ("image",), config)
            try:
                report[name] = run(subject, given["tokens"])
            except NoSubject as error:
                report[name] = {"error": str(error), "help": error.help}
    print(json.dumps(report))
    return 0


def run(subject, sizes):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.measure.subject import NoSubject

    host, _ = subject.build(torch.device("cpu"), torch.float32, videos=True)
    found = {}
    for size in sizes:
        images = subject.sizes_of(size)
        inputs = subject.call(images, 0)
        announced = [int(spec.output_tokens) for spec in host.get_encoder_cudagraph_item_specs(inputs)]
        out = host.embed_multimodal(**inputs)
        found[size] = {"images": images, "announced": announced, "shapes": [list(one.shape) for one in out]}
    shapes = {name: list(p.shape) for name, p in host.named_parameters() if not name.startswith("language_model")}
    calls = {"several": [(224, 224), (112, 336)], "videos": [(56, 112, 4), (56, 56, 2)]}
    if subject.name == "qwen2_vl":
        calls["large"] = [(1120, 1120)]
    served = {}
    for name, items in calls.items():
        try:
            served[name] = [len(one) for one in host.embed_multimodal(**subject.call(items, 1))]
        except NoSubject as error:
            served[name] = str(error)
    from vllm.multimodal import MULTIMODAL_REGISTRY

    info = type(MULTIMODAL_REGISTRY.get_processing_info(None)).__name__
    return {"info": info, "sizes": found, "parameters": shapes, "source": subject.sizes, **served}


if __name__ == "__main__":
    sys.exit(main())
