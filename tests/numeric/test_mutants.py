"""A lab that cannot fail is worthless: small faults in the releases' own implementations are rejected, each for its
own reason, and files that only look different are accepted.

A mutant is made by replacing a fragment of the release's file. What the original behaviour is stays in the release.
"""

from __future__ import annotations

from typing import Any

import pytest
from port_mutants import Mutant, cases, is_rejected, reports_of

from scaffold.verify.numeric import NumericReport, NumericRequest

pytestmark = [pytest.mark.trees, pytest.mark.lab]

RELEASE = "0.33.0"

#: Our own method, appended to the host class (the last class of its file): it forgets to copy out of the graph.
ALIASING = """
    def postprocess_encoder_output(
        self, outputs, indices, per_item_out_tokens, dest, clone=False, batch_mm_kwargs=None
    ):
        start = 0
        for index in indices:
            end = start + per_item_out_tokens[index]
            dest[index] = outputs["default"][start:end]
            start = end
"""


CAPACITY = "token_budget // self.num_image_token, 1"
AFTER_TOWER = "vit_embeds = self.mlp1(vit_embeds)"

INTERNVL = (
    Mutant("a new comment", "# -- SupportsEncoderCudaGraph", "# -- supports encoder graphs", ""),
    Mutant("a larger capture", CAPACITY, "token_budget // self.num_image_token + 2, 1", ""),
    Mutant("wrong item order", "for i in indices", "for i in sorted(indices)", "VCG650"),
    Mutant("wrong cumulative offsets", "cum_patches[-1] + n)", "cum_patches[-1] + 1)", "VCG650"),
    Mutant("one token too few per item", "n * self.num_image_token,", "n * self.num_image_token - 1,", "VCG650"),
    Mutant("missing flatten", "return out.view(-1, self.config.text_config.hidden_size)", "return out", "VCG650"),
    Mutant("stale buffer", '{"pixel_values_flat": mm_kwargs[pv_key]}', "{}", "VCG650"),
    Mutant("swapped modality key", 'if modality == "image" else', 'if modality == "video" else', "VCG654"),
    Mutant("swapped eager input", '== "image":\n            pixel', '!= "image":\n            pixel', "VCG654"),
    Mutant("too small a capture", CAPACITY, "token_budget // self.num_image_token - 1, 1", "VCG654"),
    Mutant("a modality is not listed", 'modalities=["image", "video"]', 'modalities=["image"]', "VCG657"),
    Mutant("aliased output", "", ALIASING, "VCG658"),
    Mutant(
        "an item in the captured part",
        AFTER_TOWER,
        "vit_embeds = self.mlp1(vit_embeds * float(vit_embeds.max().item() > -1e9))",
        "VCG652",
    ),
    Mutant(
        "a branch on data in the captured part",
        AFTER_TOWER,
        "vit_embeds = self.mlp1(vit_embeds if vit_embeds.sum() < 1e9 else -vit_embeds)",
        "VCG652",
    ),
    Mutant(
        "data from the host in the captured part",
        AFTER_TOWER,
        "vit_embeds = self.mlp1(vit_embeds * torch.tensor([1.0], device=vit_embeds.device))",
        "VCG653",
    ),
    Mutant("eager values changed", "vit_embeds[:, 1:, :]", "vit_embeds[:, 1:, :] * 1.0000001", "VCG651"),
    Mutant("a parameter was renamed", "self.mlp1", "self.mlp2", "VCG664"),
    Mutant("it does not parse", "def extract_feature(self", "def extract_feature(self,,", "VCG654"),
)

REPLAY_VALUES = 'values = metadata | {\n            "pixel_values": self'

QWEN25 = (
    Mutant("wrong max_seqlen", "token_budget * (spatial_merge_size**2)", "token_budget", "VCG650"),
    Mutant("too small max_seqlen of windows", "vit_merger_window_size**2 * (", "vit_merger_window_size * (", "VCG650"),
    Mutant("floor instead of ceil", "(token_budget + max_batch_size - 1) //", "token_budget //", "VCG654"),
    Mutant("wrong cumulative offsets", "patches_per_item = [t * h * w", "patches_per_item = [h * w", "VCG650"),
    Mutant("wrong permutation back", '_indices"] = reverse_indices', '_indices"] = window_index', "VCG650"),
    Mutant("stale window offsets", REPLAY_VALUES, f'metadata.pop("cu_window_seqlens"); {REPLAY_VALUES}', "VCG650"),
    Mutant(
        "max_seqlen on the device",
        "torch.tensor(max_seqlen_full_val, dtype=torch.int32)",
        "torch.tensor(max_seqlen_full_val, dtype=torch.int32, device=device)",
        "VCG652",
    ),
    Mutant("indices left on the host", "window_index = async_tensor_h2d(window_index, device)", "pass", "VCG653"),
)

RECIPES = {"internvl": INTERNVL, "qwen2_5_vl": QWEN25}
CASES = [
    pytest.param(recipe, *case.values, id=f"{recipe}: {case.values[0].name}", marks=case.marks)
    for recipe, mutants in RECIPES.items()
    for case in cases(mutants, "VCG651", "VCG664")  # `test_port_mutants.py` has one of each other code
]


@pytest.fixture(scope="module")
def reports(release_tree: Any, asked: list[Mutant]) -> dict[str, dict[str, NumericReport]]:
    """All mutants of the release, from one import of it."""
    tree = release_tree(RELEASE).root
    return {
        recipe: reports_of(NumericRequest(tree, {}, recipe), f"vllm/model_executor/models/{recipe}.py", mutants, asked)
        for recipe, mutants in RECIPES.items()
    }


@pytest.mark.parametrize(("recipe", "mutant"), CASES)
def test_faults_are_rejected_for_their_reason(
    recipe: str, mutant: Mutant, reports: dict[str, dict[str, NumericReport]]
) -> None:
    report = reports[recipe][mutant.name]
    assert is_rejected(report, mutant) if mutant.code else report.passed, "\n".join(report.lines())
