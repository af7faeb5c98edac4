"""An adapter whose code calls what is not the model's is not used: checked with real classes when it is loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import cpu_wheel
import pytest

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs the `cpu` extra"),
]

CHILD = """
import importlib.util, sys
from pathlib import Path
from vllm.model_executor.models.gemma3_mm import Gemma3ForConditionalGeneration as own
from scaffold.plugin import _check_calls
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    spec.loader.exec_module(module)
    try:
        _check_calls(module.Gemma3ForConditionalGeneration, own)
        print("used")
    except ValueError as error:
        print(error)
"""
CALL = "self.vision_tower(pixel_values)"
REFUSED = {
    "self.vision_tower(pixel_values, self.config.to_json_file(pixel_values))": "to_json_file, which belongs",
    "self.apply(pixel_values)": "self.apply, which is no method of the model",
    "self.vision_tower.load_state_dict(pixel_values)": "self.vision_tower.load_state_dict, which is no method",
}


def test_hostile_calls_of_an_adapter(tmp_path):
    spec = importlib.util.find_spec("vitcg_adapters")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "v0_30/gemma3_mm.py").read_text(encoding="utf-8")
    assert CALL in text
    files = [tmp_path / f"adapter{number}.py" for number in range(len(REFUSED) + 1)]
    for file, call in zip(files, [CALL, *REFUSED], strict=True):
        file.write_text(text.replace(CALL, call))

    (tmp_path / "child.py").write_text(CHILD)
    done = cpu_wheel.run_python(
        tmp_path / "child.py", *map(str, files), env=cpu_wheel.environment(tmp_path / "env"), timeout=900
    )

    said = done.stdout.splitlines()
    assert said[:1] == ["used"], done.stderr
    for line, message in zip(said[1:], REFUSED.values(), strict=True):
        assert message in line
