"""No descriptor changes a file of its user: for each layout and each key, what may call something is refused.

What counts is the file system: the folder of each test has files that a call could overwrite, add to or remove.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_scene import contents

from scaffold.descriptor.inherited import METHODS
from scaffold.descriptor.load import shipped_path
from scaffold.verify.numeric import check_numerics
from scaffold.workflow import load_port, numeric_requests

pytestmark = pytest.mark.trees

#: A shipped model of each layout, in a release that has it without a port.
LAYOUTS = {
    "tiles": ("gemma3_mm", "0.24.0"),
    "packed": ("qwen2_5_vl", "0.22.0"),
    "paths": ("step3_vl", "0.23.0"),
    "cut": ("llava", "0.24.0"),
    "rows": ("kimi_vl", "0.24.0"),
    "crops": ("deepseek_ocr", "0.24.0"),
}
#: Keys with a call, a path or an expression, where a model of the layout has them.
KEYS = (
    "forward.call", "forward.encoder", "forward.loop", "forward.through", "forward.unit", "forward.layers",
    "eager.call", "post.call", "modalities.image.entry", "let.extra", "gates.modalities", "item.rows", "item.tokens",
    "item.merge", "item.shape", "item.values", "output.hidden_size", "pixels.shape", "pixels.dtype", "capture.rows",
    "capture.side_limit", "budget.min", "budget.frames", "crops.shape", "paths.global.tokens", "helpers.extra",
    "data_parallel.switches", "tower.entry", "processor",
)  # fmt: skip
#: Texts that would change a file, the place of `pixels` or `**inputs` in the way of the data.
HOSTILE = (
    'self.config.to_json_file("witness.txt")',
    "self.config.to_json_file('witness.txt')",
    'self.vision_tower({data}, self.config.to_json_file("witness.txt"))',
    "self.vision_tower({data}, self.config.save_pretrained(path='new'))",
    "self.vision_tower(self.config.to_json_file({data}))",
    "self.vision_tower({data}, self.get_submodule('vision_tower'))",
    "self.register_forward_hook({data})",
    "self.vision_tower.apply({data})",
    "self.vision_tower({data}, self.config.push_to_hub)",
    "self.vision_tower({data}, hook=self.load_state_dict)",
    "self.lm_head.weight.tofile({data})",
    "self.hf_config.to_json_file({data})",
    "self.text_config.to_json_string({data})",
    "self.vision_tower({data}, self.clear())",
    "self.vision_tower({data}).tofile('witness.txt')",
    "self.vision_tower({data})[0].tofile('witness.txt')",
    "self.__class__.__init__({data})",
    "open('witness.txt', 'w').close()",
    "self.tokenizer.save_vocabulary({data})",
    "self.config.to_json_file",
    "{{{{ self.config.to_json_file('witness.txt') }}}}",
)


def described(name: str) -> dict[str, Any]:
    path = shipped_path(name)
    assert path is not None
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def hostile(layout: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Descriptors of a layout, each with one hostile text under one key."""
    for key in KEYS:
        *above, last = key.split(".")
        for text in HOSTILE:
            found = described(LAYOUTS[layout][0])
            place = found
            for name in above:
                place = place.setdefault(name, {}) if key.endswith(".extra") else place.get(name, {})
            if not isinstance(place, dict) or (last not in place and last != "extra"):
                break
            value = text.format(data="**inputs" if last == "entry" else "pixels")
            old = place.get(last)
            place[last] = (
                {**old, next(iter(old)): value}
                if isinstance(old, dict)
                else [value, *old[1:]]
                if isinstance(old, list)
                else {"args": ["a"], "value": value}
                if key == "helpers.extra"
                else value
            )
            yield f"{key}: {value}", found


@pytest.fixture
def here(run) -> Path:
    """The current folder with files of the user."""
    folder = Path.cwd()
    (folder / "witness.txt").write_text("mine\n")
    (folder / "pixels").write_text("mine\n")
    (folder / "new").mkdir()
    return folder


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_hostile_call_under_any_key_is_refused_and_changes_nothing(run, here, layout, step):
    """By default each key gets some texts, other ones than its neighbours."""
    cases = list(hostile(layout))
    files = []
    for number, (_, descriptor) in enumerate(cases):
        files.append(here / f"case{number}.yaml")
        files[-1].write_text(yaml.safe_dump(descriptor))
    before = contents(here)
    assert step == 1 or len(HOSTILE) % step

    codes = {case: run("validate", file).code for (case, _), file in [*zip(cases, files, strict=True)][::step]}

    # To an expression `self.config.to_json_file` is an attribute: it is read, and nothing is called.
    reads = {case for case, code in codes.items() if code == 0}
    assert all(case.endswith(": self.config.to_json_file") for case in reads), reads
    assert not any(case.partition(":")[0].endswith(("call", "entry", "encoder", "through")) for case in reads)
    assert len(codes) >= 5 * len(HOSTILE) // step
    assert contents(here) == before
    for file in files[:: len(HOSTILE)]:
        assert run("new", file, "--vllm", LAYOUTS[layout][1], "--into", here / "copy").code == 3
        assert run("new", file, "--into", here / "adapters").code in (3, 6)
    assert contents(here) == before


@pytest.mark.parametrize(
    "call",
    [
        "self.multi_modal_projector(self.vision_tower.store(pixels))",
        "self.multi_modal_projector(self.language_model.dump_everything(pixels))",
        "self.multi_modal_projector.cache_to_disk(pixels)",
        "self.exporter(self.vision_tower(pixels))",
    ],
)
def test_what_no_class_of_the_tree_defines_is_refused_with_the_tree(run, here, call):
    """`validate` knows no names of a model; `new` looks them up before it runs or writes anything."""
    descriptor = described("gemma3_mm")
    descriptor["forward"]["call"] = call
    file = here / "case.yaml"
    file.write_text(yaml.safe_dump(descriptor))
    before = contents(here)

    done = run("new", file, "--vllm", "0.24.0", "--into", here / "copy")

    assert (done.code, "VCG464" in done.err) == (4, True)
    assert contents(here) == before


@pytest.mark.lab
def test_what_verify_says_of_the_configuration_changes_nothing(here, release_tree):
    """Values of a configuration are data for the model's own code: here, paths in every value that holds text."""
    descriptor = described("gemma3_mm")
    descriptor["verify"] = {"set": {"problem_type": "witness.txt", "transformers_version": "witness.txt"}}
    file = here / "case.yaml"
    file.write_text(yaml.safe_dump(descriptor))
    before = contents(here)

    (request,) = numeric_requests(load_port(str(file)), release_tree("0.24.0"))
    report = check_numerics(replace(request, options=replace(request.options, short=True)))

    assert report.hits > 0
    assert contents(here) == before


def test_the_methods_that_no_call_reaches_are_those_of_the_installed_packages():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for cls in (torch.nn.Module, transformers.PretrainedConfig):
        public = {name for name in dir(cls) if callable(getattr(cls, name)) and not name.startswith("_")}
        assert public <= METHODS, json.dumps(sorted(public - METHODS))
