"""`inspect` on real towers: what crosses, what it is, and which lines endanger a capture."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.trees

GLM = "glm4_1v:Glm4vVisionTransformer"


def test_tower_of_a_descriptor(run):
    done = run("inspect", "qwen2_5_vl", "--vllm", "0.20.0")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        "vllm/model_executor/models/qwen2_5_vl.py: Qwen2_5_VisionTransformer.forward\n"
        "  data: x    metadata: grid_thw\n\n  crosses the cut\n"
    )
    assert "hazards leave it with the metadata" in done.out
    assert run("inspect", "qwen2_5_vl", "--vllm", "0.20.0", "-v").out.count("\n") > done.out.count("\n")


def test_tower_without_a_descriptor(run, release_tree):
    """Parameters are found by their names; each hazard stands on the line that is named."""
    done = run("inspect", GLM, "--vllm", "0.22.0", "--json")

    facts = json.loads(done.out)
    assert (done.code, facts["class"], facts["data"], facts["metadata"]) == (
        0,
        "Glm4vVisionTransformer",
        ["x"],
        ["grid_thw"],
    )
    kinds = {crossing["key"]: crossing["kind"] for crossing in facts["crossings"]}
    assert kinds == {
        "rotary_pos_emb_cos": "rows",
        "rotary_pos_emb_sin": "rows",
        "cu_seqlens": "cumulative",
        "max_seqlen": "host_bound",
    }
    assert [child["attribute"] for child in facts["children"]] == ["embeddings"]
    tree = release_tree("0.22.0")
    assert facts["hazards"]
    for hazard in facts["hazards"]:
        path = hazard["file"].removeprefix("vllm-0.22.0/")
        assert hazard["text"] in tree.read(path).splitlines()[hazard["line"] - 1]
    for crossing in facts["crossings"]:
        assert crossing["evidence"], crossing["key"]


@pytest.mark.parametrize(
    ("arguments", "code", "diagnostic", "said"),
    [
        (["internvl"], 4, "VCG450", "names no tower to split"),
        (["no_such_model"], 3, "VCG100", "neither a file nor a shipped name"),
        (["internvl"], 4, "VCG450", "such as `inspect qwen2_vl:Qwen2VisionTransformer`"),
        (["glm4_1v:Glm4vVisionTransformr"], 4, "VCG450", "did you mean `Glm4vVisionTransformer`"),
        (["glm4_1w:Glm4vVisionTransformer"], 4, "VCG420", "glm4_1v"),
        ([GLM, "--entry", "run"], 4, "VCG450", "with `inspect --entry`; the class has `forward`"),
        ([GLM, "--metadata", "grid"], 4, "VCG451", "`grid`"),
        ([GLM, "--data", "pixels"], 4, "VCG451", "`pixels`"),
    ],
)
def test_what_cannot_be_sliced(run, arguments, code, diagnostic, said):
    done = run("inspect", *arguments, "--vllm", "0.22.0")

    assert (done.code, done.out) == (code, "")
    assert f"error[{diagnostic}]" in done.err
    assert said in done.err


def test_a_tower_of_another_file(run):
    """The model's module imports the class, and a user knows the model's module."""
    done = run("inspect", "kimi_vl:MoonVitPretrainedModel", "--vllm", "0.22.0")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("vllm/model_executor/models/moonvit.py: MoonVitPretrainedModel.forward\n")
    assert "data: pixel_values    metadata: grid_hw\n" in done.out
