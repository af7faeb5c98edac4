"""A lab that cannot fail is worthless: mistakes planted into a generated port are rejected for their own reasons, and
changes that only look different are accepted. The message names the cause, not only the symptom.

Each mutant replaces a fragment of the generated file. `says` is what a contributor must be told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from port_mutants import Mutant, cases, is_rejected, reports_of

from scaffold.verify.numeric import NumericReport, check_numerics
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]


FORWARD = 'return self.visual(inputs["pixel_values"], None, encoder_metadata=inputs)'
METADATA = 'values = {**metadata, "pixel_values": mm_kwargs[pixels_key]}'

QWEN25 = (
    Mutant(
        "max_seqlen counts tokens",
        "max_seqlen_override=token_budget * m**2",
        "max_seqlen_override=token_budget",
        "VCG650",
        "(4 times as many), but max_seqlen was frozen",
    ),
    Mutant(
        "max_seqlen of windows counts tokens",
        "max_seqlen_window_override=(window * m) ** 2",
        "max_seqlen_window_override=window**2",
        "VCG650",
        "(4 times as many), but max_seqlen was frozen",
    ),
    Mutant(
        "offsets are padded with zeros",
        '"cu_seqlens": pad_cu_seqlens,\n                "cu_window_seqlens": pad_cu_seqlens,\n',
        "",
        "VCG665",
        "sequences of negative length",
    ),
    Mutant(
        "too few sequences for the frames",
        "max(max_batch_size, max_frames, len(grid_thw))",
        "max(max_batch_size, max_frames // 8, len(grid_thw))",
        "VCG657",
        "fit the budgets",
    ),
    Mutant(
        "too few rows: floor instead of ceil",
        "pixel_values = torch.zeros(\n            token_budget * m**2,",
        "pixel_values = torch.zeros(\n            (token_budget - 1) * m**2,",
        "VCG654",
        "capture",
    ),
    Mutant(
        "swapped modality keys",
        'if "video_grid_thw" in mm_kwargs',
        'if "video_grid_thw" not in mm_kwargs',
        "VCG654",
        "KeyError: 'video_grid_thw'",
    ),
    Mutant(
        "metadata left on the host",
        "window_index = async_tensor_h2d(window_index, device)",
        "pass",
        "VCG653",
        "copy in capture: aten::index at",
    ),
    Mutant(
        "a sync in the captured part",
        FORWARD,
        'limit = int(inputs["cu_seqlens"].max())\n'
        '        return self.visual(inputs["pixel_values"][:limit], None, encoder_metadata=inputs)',
        "VCG652",
        "host sync: aten::",
    ),
    Mutant(
        "an output that aliases the graph",
        "    def prepare_encoder_cudagraph_capture_inputs(\n",
        "    def postprocess_encoder_output(self, outputs, indices, tokens, dest, clone=False, batch_mm_kwargs=None):\n"
        "        super().postprocess_encoder_output(outputs, indices, tokens, dest, False, batch_mm_kwargs)\n\n"
        "    def prepare_encoder_cudagraph_capture_inputs(\n",
        "VCG658",
        "it aliases the graph's memory",
    ),
    Mutant(
        "one stale buffer",
        METADATA,
        'values = {k: v for k, v in metadata.items() if k != "window_index"}\n'
        '        values["pixel_values"] = mm_kwargs[pixels_key]',
        "VCG650",
        "buffer 'window_index' gets no value for a replay, so it is stale",
    ),
    Mutant(
        "items in another order",
        "*(items[i] for i in indices)",
        "*(items[i] for i in sorted(indices))",
        "VCG650",
        "selected for items",
    ),
    Mutant(
        "padding loses the batch's last offset",
        "    dst.zero_()\n    dst[:n].copy_(src)\n",
        "    dst[: n - 1].copy_(src[:-1])\n",
        "VCG650",
        "differs from the replay's value from entry",
    ),
    Mutant(
        "the metadata of another grid",
        "metadata = self.visual.prepare_encoder_metadata(grid_thw)\n",
        "metadata = self.visual.prepare_encoder_metadata([[t, w, h] for t, h, w in grid_thw])\n",
        "VCG650",
        "even without padding and without a graph: look at the metadata",
    ),
    Mutant(
        "wrong permutation back",
        '["reverse_indices"] = reverse_indices',
        '["reverse_indices"] = window_index',
        "VCG650",
    ),
    Mutant(
        "max_seqlen on the device",
        "torch.tensor(max_seqlen_full_val, dtype=torch.int32)",
        "torch.tensor(max_seqlen_full_val, dtype=torch.int32, device=device)",
        "VCG652",
    ),
    Mutant(
        "one token too few",
        "output_tokens=t * (h // m) * (w // m),",
        "output_tokens=t * (h // m) * (w // m) - 1,",
        "VCG650",
        "cut out wrongly",
    ),
    Mutant(
        "positions of the capture are kept",
        FORWARD,
        'kept = self.__dict__.setdefault("_kept", {})\n'
        '        cos = kept.setdefault(len(inputs["pixel_values"]), inputs["rotary_pos_emb_cos"].clone())\n'
        '        metadata = {**inputs, "rotary_pos_emb_cos": cos}\n'
        '        return self.visual(inputs["pixel_values"], None, encoder_metadata=metadata)',
        "VCG650",
        "was frozen when it was captured",
    ),
    Mutant(
        "the minimum budget is not clamped",
        "return min(64, max_budget), max_budget",
        "return 64, max_budget",
        "VCG662",
        "min_budget=64 > max_budget=63",
    ),
    Mutant(
        "a modality is not listed",
        'else ["image", "video"]',
        'else ["image"]',
        "VCG657",
        "does not list the modality",
    ),
)

AFTER_TOWER = "vit_embeds = self.mlp1(vit_embeds)"

INTERNVL = (
    Mutant("a new comment", "# -- SupportsEncoderCudaGraph", "# -- supports encoder graphs"),
    Mutant(
        "a larger capture", "max(token_budget // self.num_image_token", "max(token_budget // self.num_image_token + 2"
    ),
    Mutant("missing flatten", "use_data_parallel=False).flatten(0, 1)", "use_data_parallel=False)", "VCG650"),
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
    Mutant("it does not parse", "def extract_feature(", "def extract_feature(,", "VCG654"),
)

#: On 0.26 attention leaves rows that no sequence covers unwritten, so they matter there.
QWEN25_TAIL = (
    Mutant(
        "rows behind a batch are not covered",
        "dst[n:] = torch.minimum(src[-1] + length * steps, dst[-1])",
        "dst[n:] = src[-1]",
        "VCG650",
        "rows behind the batch, which no attention sequence covers, reach valid ones",
    ),
)

#: What only calls at the edges of the processor's range show: without them these ports pass.
QWEN25_CLAIMS = (
    Mutant(
        "a frame claims one token too few",
        "max(tokens, t * frame_tokens)",
        "max(tokens, t * min(frame_tokens, 7))",
        "VCG654",
        "a replay brings",
    ),
    Mutant(
        "frames that are too many together claim no share",
        "frame_tokens = max(frame_tokens, share)",
        "pass",
        "VCG654",
        "more frames than the user's limit",
    ),
)
#: The manager runs what a graph has no room for eagerly, where it should not.
QWEN25_EDGES = (
    Mutant(
        "frames that end in a partial window are forgotten",
        "token_budget, max_batch_size, max_frames\n",
        "token_budget, 1, 0\n",
        "VCG657",
        "fit the budgets",
    ),
)
#: Before 0.31 a port itself serves precomputed embeddings.
QWEN25_EMBEDS = (
    Mutant(
        "precomputed embeddings go to the graph",
        "if embeds_key in mm_kwargs:\n                # Claim",
        "if False:\n                # Claim",
        "VCG660",
        "precomputed embeddings",
    ),
)
INTERNVL_EMBEDS = (
    Mutant(
        "embeddings of another type for ranks to gather",
        "return embeds.to(next(self.parameters()).dtype)",
        "return embeds",
        "VCG660",
        "ranks without items have torch.float32",
    ),
)
INTERNVL_EDGES = (
    Mutant(
        "no room for the thumbnail of an image of 12 tiles",
        "max_tiles = max(token_budget // self.num_image_token, 1)",
        "max_tiles = min(max(token_budget // self.num_image_token, 1), 12)",
        "VCG654",
        "the largest item, 13 tiles",
    ),
)

QWEN3_FLASHINFER = (
    Mutant(
        "two sections of offsets are filled as one",
        "attn_backend == AttentionBackendEnum.FLASHINFER\n            else _pad",
        "attn_backend == AttentionBackendEnum.TORCH_SDPA\n            else _pad",
        "VCG654",
        "its values at row",
    ),
)

MINICPMV = (
    Mutant(
        "the mask does not hide the padding",
        "value=lowest",
        "value=0.0",
        "VCG650",
    ),
    Mutant(
        "a mask of the capture",
        "return encode(units, mask)[:, :num_rows]",
        "return encode(units, torch.zeros_like(mask))[:, :num_rows]",
        "VCG650",
    ),
    Mutant(
        # A result that keeps its padding is no mistake here: the resampler up to 4.0 masks it itself.
        "the padding is taken for the result",
        "return encode(units, mask)[:, :num_rows]",
        "return encode(units, mask)[:, -num_rows:]",
        "VCG650",
    ),
    Mutant(
        "a longer slice is cut",
        "length, device",
        "unit[-1], device",
        "VCG650",
        also=("if padding[1] < 0:", "if False:"),
    ),
    Mutant(
        "videos are taken for images",
        'items.get("video_pixel_values") or items.get("pixel_values", [])',
        'items.get("pixel_values", [])',
        "VCG657",
    ),
)

QWEN2_RAW_PIXELS = (
    Mutant(
        "raw pixels reach the tower",
        'self.input_norm(inputs["pixel_values"], self.visual.dtype)',
        'inputs["pixel_values"]',
        "VCG669",
        "normalise pixels in the port",
    ),
    Mutant(
        "raw pixels reach the tower in eager calls",
        "self.input_norm(mm_kwargs[pixels_key], self.visual.dtype)",
        "mm_kwargs[pixels_key]",
        "VCG669",
        "normalise pixels in the port",
    ),
)

#: release, model, attention tail, with edges -> the mutants of its port.
Key = tuple[str, str, str, bool]
TABLE: dict[Key, tuple[Mutant, ...]] = {
    ("0.33.0", "qwen2_5_vl", "fa2", False): QWEN25,
    ("0.33.0", "qwen2_5_vl", "fa2", True): QWEN25_EDGES,
    ("0.30.0", "qwen2_5_vl", "fa2", True): QWEN25_CLAIMS,
    ("0.30.0", "qwen2_5_vl", "fa2", False): QWEN25_EMBEDS,
    ("0.33.0", "internvl", "fa2", False): INTERNVL,
    ("0.33.0", "internvl", "fa2", True): INTERNVL_EDGES,
    ("0.30.0", "internvl", "fa2", False): INTERNVL_EMBEDS,
    ("0.33.0", "qwen3_vl", "cudnn", False): QWEN3_FLASHINFER,
    ("0.26.0", "qwen2_5_vl", "fa3", False): QWEN25_TAIL,
    ("0.33.0", "minicpmv", "fa2", False): MINICPMV,
    ("0.29.0", "qwen2_vl", "fa2", False): QWEN2_RAW_PIXELS,
}
CASES = [
    pytest.param(key, *case.values, id=f"{key[0]}: {case.values[0].name}", marks=case.marks)
    for key, mutants in TABLE.items()
    for case in cases(mutants, *({one.code for one in mutants} if mutants is QWEN25 else ()))
]
ON_EDGES = [case for case in CASES if case.values[0][-1]]


@pytest.fixture(scope="module")
def reports(release_tree: Any, asked: list[Mutant]) -> Callable[[Key, Mutant, bool], NumericReport]:
    """All mutants of a port, from one import of its release, with calls at the edges or without."""

    @cache
    def run(key: Key, edges: bool) -> dict[str, NumericReport]:
        release, model, tail, _ = key
        (request,) = numeric_requests(load_port(model), release_tree(release), tails=(tail,))
        request = replace(request, options=replace(request.options, edges=edges))
        return reports_of(request, f"vllm/model_executor/models/{model}.py", TABLE[key], asked)

    return lambda key, mutant, edges: run(key, edges)[mutant.name]


@pytest.mark.parametrize(("key", "mutant"), ON_EDGES)
def test_only_the_edges_show_these(
    key: Key, mutant: Mutant, reports: Callable[[Key, Mutant, bool], NumericReport]
) -> None:
    report = reports(key, mutant, False)
    assert report.passed, "\n".join(report.lines())


@pytest.mark.parametrize(("key", "mutant"), CASES)
def test_a_mistake_is_rejected_and_its_cause_is_named(
    key: Key, mutant: Mutant, reports: Callable[[Key, Mutant, bool], NumericReport]
) -> None:
    report = reports(key, mutant, key[-1])
    assert is_rejected(report, mutant) if mutant.code else report.passed, "\n".join(report.lines())


@pytest.mark.parametrize("edges", [False, True])
def test_a_port_needs_the_checks_of_the_manager(release_tree: Any, edges: bool) -> None:
    (request,) = numeric_requests(load_port("qwen2_5_vl"), release_tree("0.33.0"), tails=("fa2",))
    overlay = {path: text for path, text in request.overlay.items() if not path.endswith("/encoder_cudagraph.py")}
    assert len(overlay) == len(request.overlay) - 1
    bare = replace(request, overlay=overlay, options=replace(request.options, edges=edges))

    failed = [check for check in check_numerics(bare).checks if not check.passed]

    assert {check.code for check in failed} == {"VCG660", "VCG666", *(("VCG654",) if edges else ())}
    assert all("a replay brings" in check.detail for check in failed if check.code != "VCG660")
    assert all("precomputed embeddings" in check.name for check in failed if check.code == "VCG660")
