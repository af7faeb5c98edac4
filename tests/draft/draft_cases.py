"""The models that drafting is shown on: release before the port, what has to be answered by hand, and right answers.

Run as a script it writes the table of `docs/init.md` from what the drafts of this tree ask.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft import Draft, draft_descriptor
from scaffold.protocol import SourceTree, resolve_target

DOCUMENT = Path(__file__).parents[2] / "docs" / "init.md"
START, END = "<!-- table: made by tests/draft/draft_cases.py -->", "<!-- end of table -->"


@dataclass(frozen=True)
class Case:
    """`answers` are those that make the draft complete. `beyond` are the reasons for which a model gets no draft, each
    with the end of the path of its file and words of the line there."""

    name: str
    release: str
    architecture: str
    answers: dict[str, str] = field(default_factory=dict)
    beyond: tuple[tuple[str, str, str], ...] = ()

    @property
    def id(self) -> str:
        return f"{self.architecture}-{self.release}"


_SQUARE = "(({side} // patch - 2) // self.config.understand_projector_stride // 2 + 1) ** 2"

CORE = (
    Case("Qwen2-VL", "0.21.0", "Qwen2VLForConditionalGeneration", {"budget.min": "64"}),
    Case(
        "Qwen2.5-VL",
        "0.20.0",
        "Qwen2_5_VLForConditionalGeneration",
        {
            "attention.window.count": "min(b, max(B, F) + ceil_div(b, window))",
            "attention.window.longest": "(window * m) ** 2",
            "budget.min": "64",
        },
    ),
    # No pristine tree speaks the protocol: 0.20 has the model's port already, which drafting does not look at.
    Case(
        "Qwen3-VL",
        "0.20.0",
        "Qwen3VLForConditionalGeneration",
        {"buffers": "[pos_embeds, rotary_pos_emb_cos, rotary_pos_emb_sin]", "budget.min": "64"},
    ),
    Case("InternVL", "0.22.0", "InternVLChatModel", {"let.k": "self.num_image_token"}),
    Case(
        "Step3-VL",
        "0.21.0",
        "Step3VLForConditionalGeneration",
        {
            "processor.values.tile_side": "patch_size",
            "paths.global.tokens": _SQUARE.format(side="side"),
            "paths.local.tokens": _SQUARE.format(side="tile_side"),
        },
    ),
)

UPSTREAM = (
    Case("GLM-4.1V", "0.23.0", "Glm4vForConditionalGeneration", {"budget.min": "64"}),
    Case(
        "Kimi-VL",
        "0.23.0",
        "KimiVLForConditionalGeneration",
        {"item.merge": "self.config.vision_config.merge_kernel_size[0]"},
    ),
    Case(
        "Llama 4",
        "0.23.0",
        "Llama4ForConditionalGeneration",
        {
            "let.k": "round(side // self.config.vision_config.patch_size "
            "* self.config.vision_config.pixel_shuffle_ratio) ** 2"
        },
    ),
    Case("Gemma 3", "0.24.0", "Gemma3ForConditionalGeneration", {"let.k": "self.config.mm_tokens_per_image"}),
    Case(
        "ERNIE-4.5-VL",
        "0.26.0",
        "Ernie4_5_VLMoeForConditionalGeneration",
        {
            "budget.min": "64",
            "capture.side_limit": "8192",
            "eager.call": "self._vision_forward(pixels, sizes)",
            "output.hidden_size": "self.config.hidden_size",
        },
    ),
    Case("LFM2-VL", "0.23.0", "Lfm2VlForConditionalGeneration"),
    # The last release whose attention gets a mask.
    Case(
        "Pixtral",
        "0.28.0",
        "PixtralForConditionalGeneration",
        beyond=(
            ("`images` arrives as one tensor an item, of any shape", "pixtral.py", "images=MultiModal"),
            (
                "`self.vision_encoder`, which runs the encoder, takes a list of images, whose sizes may differ",
                "pixtral.py",
                "self.vision_encoder(",
            ),
            (
                "the layers of `self.vision_encoder.transformer` run an attention of their own, of which nothing shows "
                "where sequences end",
                "pixtral.py",
                "self.transformer(",
            ),
        ),
    ),
    # No release has a port of it.
    Case(
        "openPangu-VL",
        "0.33.0",
        "OpenPanguVLForConditionalGeneration",
        beyond=(
            (
                "`self.visual` (OpenPanguVisionTransformer) cannot be split: a statement mixes metadata with the shape "
                "of data (`OpenPanguVisionTransformer.forward`)",
                "openpangu_vl.py",
                "rotary_pos_emb.reshape(",
            ),
            *(
                (
                    f"`self.visual`, which runs the encoder, gets `{grid}` besides the pixels: only pixels may come "
                    "from the batch",
                    "openpangu_vl.py",
                    "self.visual(",
                )
                for grid in ("image_grid_thw", "video_grid_thw")
            ),
            (
                "the loop over the layers in `OpenPanguVisionTransformer.forward` cannot be captured: "
                "`intermediates.append(ln_hs)` has an effect beside the features",
                "openpangu_vl.py",
                "intermediates.append(",
            ),
        ),
    ),
)

CASES = CORE + UPSTREAM
DRAFTED = tuple(case for case in CASES if not case.beyond)
BEYOND = tuple(case for case in CASES if case.beyond)


def draft(case: Case, tree: SourceTree, *, answered: bool) -> Draft:
    return draft_descriptor(tree, case.architecture, case.answers if answered else {})


def refusal(case: Case, tree: SourceTree) -> list[Diagnostic]:
    """Everything for which `init` refuses the model."""
    try:
        draft_descriptor(tree, case.architecture)
    except DiagnosticError as error:
        return list(error.diagnostics)
    raise AssertionError(f"{case.id} is drafted")


def table_row(case: Case, found: Draft) -> str:
    """What a draft of the case asks."""
    asked = [question.key for question in found.questions]
    return f"| {case.name} | {case.release} | {len(asked)} | {', '.join(f'`{key}`' for key in asked)} |"


def refusal_rows(case: Case, found: list[Diagnostic]) -> Iterator[str]:
    """What the model does and no descriptor says, one row each."""
    for problem in found:
        assert problem.span is not None, "a reason is one of a line"
        place = f"{problem.span.file.rpartition('/')[2]}:{problem.span.line}"
        yield f"| {case.name} | {case.release} | {problem.message.partition(': ')[2]} | `{place}` |"


def table(trees: dict[str, SourceTree]) -> str:
    """The table of all drafts, and that of what no descriptor says."""
    head = "| model | vLLM | questions | what |\n| --- | --- | --- | --- |"
    rows = [table_row(case, draft_descriptor(trees[case.release], case.architecture)) for case in DRAFTED]
    beyond = "| model | vLLM | why it is refused | where |\n| --- | --- | --- | --- |"
    refused = [row for case in BEYOND for row in refusal_rows(case, refusal(case, trees[case.release]))]
    return "\n".join([head, *rows, "", beyond, *refused])


def with_table(document: str, text: str) -> str:
    """The document with the table between its two marks."""
    before, _, rest = document.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{text}\n\n{END}{after}"


def main() -> int:
    trees = {case.release: resolve_target(case.release).tree for case in CASES}
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), table(trees)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
