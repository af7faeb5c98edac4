"""Models that nobody shipped: their drafts become ports that pass every static proof.

The tree's own ruff rules are among them.
"""

from __future__ import annotations

import pytest
from changed_ports import DRAFTED, port_of

from scaffold.cli.app import main
from scaffold.plan import plan_changes
from scaffold.protocol import read_protocol

pytestmark = pytest.mark.trees

#: A stored draft and its release.
MODELS = {
    "a tower that is split where docstrings are checked": ("mimo_v2_omni", "0.33.0"),
    "a file that does not import torch": ("qianfan_ocr_tiles", "0.32.0"),
    "a cut whose methods are in such a file": ("qianfan_ocr_cut", "0.33.0"),
    "an inherited constructor": ("glm4v_moe", "0.22.0"),
    "a constructor that runs its base's": ("glm_ocr", "0.22.0"),
}


@pytest.mark.parametrize(("model", "release"), MODELS.values(), ids=MODELS)
def test_a_drafted_model_becomes_a_port(release_tree, capsys, model: str, release: str) -> None:
    tree = str(release_tree(release).root)
    with pytest.raises(SystemExit) as done:
        # QianfanOCR inherits InternVL's port.
        main(["new", str(DRAFTED[model]), "--vllm", tree, "--diff", "--replace"])
    output = capsys.readouterr()
    assert done.value.code == 0, output.err
    assert f" {port_of(model).class_name}(" in output.out


@pytest.mark.parametrize(("model", "release", "waits"), [("dots_ocr_packed", "0.33.0", 1), ("qwen2_vl", "0.21.0", 0)])
def test_a_replay_copies_no_bound_from_the_gpu(release_tree, model: str, release: str, waits: int) -> None:
    """The tower of dots.ocr computes `max_seqlen` there. It computes its positions, too: no table limits an image. What
    its statements wait for otherwise, vLLM's check of a step has to allow, where the release has one."""
    tree = release_tree(release)
    methods = plan_changes(port_of(model), tree, read_protocol(tree)).methods
    source = methods.source
    assert source.count("with gpu_sync_allowed():") == waits
    assert [name for module, name in methods.imports if module == "vllm.utils.gpu_sync_debug"] == waits * [
        "gpu_sync_allowed"
    ]
    assert source.count('del metadata["max_seqlen"]') == waits
    assert source.count("grid_thw = [[1, m, token_budget * m]]") == waits
    assert source.count("max_batch_size=max_batch_size") == waits
