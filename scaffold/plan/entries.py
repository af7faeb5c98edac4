"""What a port adds outside the model file: the generation test's entry, the docs row, the example's name."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import TYPE_CHECKING, Any

from scaffold.render import Code, pyrepr, render_template

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec, TestSpec
    from scaffold.protocol import RegistryAnchor, TableAnchor

#: Columns of the docs table whose mark does not depend on the model's modalities.
_MULTI_PATH_COLUMNS = ("Dual-Path Graph", "Multi-Path Graph")
_MODALITY_COLUMNS = {"CG for Image": "image", "CG for Video": "video"}


def chat_template(test: TestSpec) -> str | None:
    """The module function that wraps a prompt in the model's chat template, or None if the model needs none."""
    if test.template_name is None or test.template_text is None:
        return None
    return render_template("test/template.py.jinja", name=test.template_name, text=Code(_fstring(test.template_text)))


def test_entry(test: TestSpec, anchor: RegistryAnchor) -> str:
    """The entry's value, with those arguments only that this release's entry class has."""
    modalities = list(test.modalities)
    known = {field.name for field in anchor.entry_fields}
    fields: dict[str, Any] = {
        "model": test.model,
        # Image and video is the default of every release.
        "modalities": None if modalities == ["image", "video"] else modalities,
        "num_video_frames": test.num_video_frames,
        "image_prompt": _prompt(test, test.image_prompt),
        "video_prompt": _prompt(test, test.video_prompt),
        "needs_video_metadata": test.needs_video_metadata,
        "dtype": test.dtype,
        "max_model_len": test.max_model_len,
        "max_tokens": test.max_tokens,
        "max_num_seqs": test.max_num_seqs,
        "vllm_runner_kwargs": _runner_arguments(test, known),
        "compilation_config_overrides": dict(test.compilation_overrides) or None,
        "marks": _marks(test, known),
        "skip": True if test.skip is True else None,
    }
    given = [
        (name, value if isinstance(value, Code) else pyrepr(value))
        for name, value in fields.items()
        if value is not None and name in known
    ]
    return render_template("test/entry.py.jinja", entry_class=anchor.entry_class, fields=given)


def docs_row(spec: AdapterSpec, table: TableAnchor) -> tuple[str, ...]:
    """Cells of the model's row, in the table's own columns and marks."""
    names = {modality.name for modality in spec.modalities}
    cells: list[str] = []
    for column in table.columns:
        if column == "Architecture":
            cells.append(f"`{spec.class_name}`")
        elif column == "Models":
            cells.append(", ".join(f"`{name}`" for name in spec.docs_models))
        elif column in _MODALITY_COLUMNS:
            cells.append(table.yes if _MODALITY_COLUMNS[column] in names else table.no)
        elif column in _MULTI_PATH_COLUMNS:
            cells.append(table.yes if len(spec.paths) > 1 else table.no)
        else:
            # A column that a future release may add: a person must look at it.
            cells.append("")
    return tuple(cells)


def _prompt(test: TestSpec, prompt: str | None) -> Code | None:
    if prompt is None:
        return None
    # Without a template around it the literal shares its line with the field's name.
    literal = wrapped(prompt, 60 if test.template_name is None else 66)
    return literal if test.template_name is None else Code(f"{test.template_name}({literal})")


def wrapped(text: str, width: int = 66) -> Code:
    """A string literal; a long one in several parts, broken after a space or a special token (`<|image_pad|>`).

    No formatter breaks a string, and lines of more than 88 columns are against vLLM's rules.
    """
    return Code(" ".join(pyrepr(part) for part in _parts(text, width)))


def _parts(text: str, width: int) -> list[str]:
    parts, part = [], ""
    for piece in re.split(r"(?<=[ >])", text):
        if part and piece and len(part) + len(piece) > width:
            parts.append(part)
            part = ""
        part += piece
    return [*parts, part]


def _marks(test: TestSpec, known: Set[str]) -> Code | None:
    """The field `skip` takes no reason, and releases before 0.24 do not have it: a mark does for both."""
    marks = ["pytest.mark.core_model"] if test.core_model else []
    if isinstance(test.skip, str):
        marks.append(f"pytest.mark.skip(reason={pyrepr(test.skip)})")
    elif test.skip and "skip" not in known:
        marks.append("pytest.mark.skip")
    return Code(f"[{', '.join(marks)}]") if marks else None


def _runner_arguments(test: TestSpec, known: Set[str]) -> Code | None:
    arguments: dict[str, Any] = dict(test.runner_kwargs)
    budgets = test.compilation_overrides.get("encoder_cudagraph_token_budgets")
    if budgets and "compilation_config_overrides" not in known:
        # Before 0.22 an entry has no settings of the compilation; no budget is above the tokens of a step.
        arguments.setdefault("max_num_batched_tokens", max(budgets))
    parts = [f"{pyrepr(name)}: {pyrepr(value)}" for name, value in arguments.items()]
    if test.dummy_arch is not None:
        parts.append('"load_format": "dummy"')
        overrides = "".join(f", {name}={pyrepr(value)}" for name, value in test.dummy_overrides.items())
        parts.append(f'"hf_overrides": partial(dummy_hf_overrides, model_arch={pyrepr(test.dummy_arch)}{overrides})')
    return Code("{" + ", ".join(parts) + "}") if parts else None


def _fstring(text: str) -> str:
    """`text` with one `{content}` slot as an f-string literal, in several parts if it is long."""
    literals = []
    for part in _parts(text, 66):
        before, slot, after = part.partition("{content}")
        literal = pyrepr(before + "\0" * bool(slot) + after)
        braced = "f" + literal.replace("{", "{{").replace("}", "}}").replace("\\x00", "{content}")
        literals.append(braced if slot else literal)
    return literals[0] if len(literals) == 1 else f"({' '.join(literals)})"
