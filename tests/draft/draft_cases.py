"""The models that drafting is shown on: release before the port, what has to be answered by hand, and right answers.

Run as a script it writes the table of `docs/init.md` from what the drafts of this tree ask.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scaffold.descriptor import kinds
from scaffold.draft import Draft, draft_descriptor
from scaffold.protocol import SourceTree, resolve_target

DOCUMENT = Path(__file__).parents[2] / "docs" / "init.md"
START, END = "<!-- table: made by tests/draft/draft_cases.py -->", "<!-- end of table -->"


@dataclass(frozen=True)
class Case:
    """`answers` are those that make the draft complete. A model with `hooks` does what no field of a descriptor says:
    its draft names them as questions, and no answer makes a port of it."""

    name: str
    release: str
    architecture: str
    answers: dict[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()

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
            "attention.sequences.window.count": "min(b, max(B, F) + ceil_div(b, window))",
            "attention.sequences.window.longest": "(window * m) ** 2",
            "budget.min": "64",
        },
    ),
    # No pristine tree speaks the protocol: 0.20 has the model's port already, which drafting does not look at.
    Case(
        "Qwen3-VL",
        "0.20.0",
        "Qwen3VLForConditionalGeneration",
        {"buffers.pos_embeds.kind": "rows", "budget.min": "64"},
    ),
    Case("InternVL", "0.22.0", "InternVLChatModel", {"let.k": "self.num_image_token"}),
    Case(
        "Step3-VL",
        "0.21.0",
        "Step3VLForConditionalGeneration",
        {
            "processor.values.tile": "patch_size",
            "paths.global.tokens": _SQUARE.format(side="side"),
            "paths.local.tokens": _SQUARE.format(side="tile"),
        },
    ),
)

UPSTREAM = (
    Case("GLM-4.1V", "0.23.0", "Glm4vForConditionalGeneration", {"budget.min": "64"}),
    Case(
        "Kimi-VL",
        "0.23.0",
        "KimiVLForConditionalGeneration",
        hooks=("forward", "tower_region", "packed_merge"),
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
    Case("LFM2-VL", "0.23.0", "Lfm2VlForConditionalGeneration", hooks=("select", "replay", "forward")),
)

CASES = CORE + UPSTREAM


def draft(case: Case, tree: SourceTree, *, answered: bool) -> Draft:
    return draft_descriptor(tree, case.architecture, case.answers if answered else {})


def table_row(case: Case, found: Draft) -> str:
    """What a draft of the case asks: keys of values, and how many hooks."""
    asked = [question.key for question in found.questions]
    values = [key for key in asked if not key.startswith("hooks.")]
    count = str(len(values)) + (f", {len(asked) - len(values)} hooks" if found.obstacles else "")
    return f"| {case.name} | {case.release} | {count} | {', '.join(f'`{key}`' for key in values)} |"


def obstacle_rows(case: Case, found: Draft) -> Iterator[str]:
    """What the model does and no field says, one row each."""
    for obstacle in found.obstacles:
        place = str(obstacle.place).rpartition("/")[2]
        hooks = ", ".join(f"`{name}` ({kinds.HOOKS[name].catalogue})" for name in obstacle.hooks)
        yield f"| {case.name} | {obstacle.reason} | `{place}` | {hooks} |"


def table(trees: dict[str, SourceTree]) -> str:
    """The table of all cases, and that of what no field says."""
    drafts = [(case, draft_descriptor(trees[case.release], case.architecture)) for case in CASES]
    head = "| model | vLLM | questions | what |\n| --- | --- | --- | --- |"
    beyond = "| model | what no field says | where | hook |\n| --- | --- | --- | --- |"
    rows = [row for case, found in drafts for row in obstacle_rows(case, found)]
    return "\n".join([head, *(table_row(case, found) for case, found in drafts), "", beyond, *rows])


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
