"""From a tree and the name of a model to the text of a descriptor with its open questions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.inputs import Beyond, ModalityInputs, read_inputs
from scaffold.draft.integration import draft_integration
from scaffold.draft.locate import Located, locate
from scaffold.draft.modules import Part, assigned, model_path
from scaffold.draft.packed import draft_packed, gate_of
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.tiles import draft_tiles, last_linear
from scaffold.draft.values import Op, Place
from scaffold.protocol.tree import SourceTree
from scaffold.tower.source import Program

__all__ = ["Draft", "draft_descriptor"]


@dataclass(frozen=True, slots=True)
class Draft:
    """`name` is what a file of it is called, `text` its YAML. `questions` are all that were asked, `open` those without
    an answer, `unused` the keys of answers that no question asked for."""

    name: str
    text: str
    questions: tuple[Question, ...]
    open: tuple[Question, ...]
    unused: tuple[str, ...]
    notes: tuple[Diagnostic, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.open


def draft_descriptor(tree: SourceTree, reference: str, answers: Mapping[str, str] | None = None) -> Draft:
    """Draft a descriptor of `reference` (an architecture, FILE or FILE:CLASS) from its source in `tree`.

    `answers` by the key of a question take the place of its `TODO`. Pure but for reading the tree. Raises VCG480 to
    VCG482 when there is no such model, VCG483 with everything about it that no descriptor expresses.
    """
    program = Program(tree)
    model = locate(tree, program, reference)
    inputs = read_inputs(tree, program, model)
    sheet = Sheet(dict(answers or {}))
    first = inputs.modalities[0]
    notes = inputs.notes
    modalities = inputs.modalities
    try:
        if first.layout == "packed":
            packed = draft_packed(tree, program, model, inputs, sheet)
            tower, modalities, notes = packed.tower, packed.modalities, (*notes, *packed.notes)
        else:
            tower = draft_tiles(tree, program, model, inputs, sheet)
    except Beyond as met:
        sheet.obstacles += met.diagnostics
    if sheet.obstacles:
        raise DiagnosticError(sheet.obstacles)
    _model(sheet, model, tower, first)
    for modality in modalities:
        _modality(sheet, modality)
    counted = inputs.fields[first.more] if first.more else first.field
    sheet.put("sizes.columns", first.columns, counted.place, why=f"a row of `{first.sizes}`")
    _output(sheet, program, model, tower, first)
    gate = gate_of(program, model.owner, inputs.trace)
    if gate is not None:
        sheet.put("gates.modalities", gate[0], gate[1], why="pruning edits embeddings after the encoder")
    draft_integration(sheet, tree, model, tuple(modality.name for modality in modalities))
    release = f" {tree.release}" if tree.release else ""
    ported = any("SupportsEncoderCudaGraph" in ast.unparse(base) for base in model.owner[1].bases)
    title = [
        f"{model.class_name}: drafted from the sources of vLLM{release}. Comments name the line that shows a value.",
        *(
            ["The class has a port already, which was not looked at: `new` replaces it with --replace."]
            if ported
            else []
        ),
        *(["What says TODO is open: `vitcg-scaffold validate` lists it."] if sheet.open else []),
    ]
    unused = tuple(key for key in sheet.answers if key not in sheet.used)
    return Draft(
        model.file.rpartition("/")[2].removesuffix(".py"),
        sheet.text(title),
        tuple(sheet.questions),
        sheet.open,
        unused,
        notes,
    )


def _model(sheet: Sheet, model: Located, tower: Part, first: ModalityInputs) -> None:
    sheet.put("schema", 1)
    sheet.put("model.module", model.module, model.found)
    sheet.put("model.class", model.class_name, model.place)
    if first.layout == "packed":
        sheet.put("model.tower", tower.name, tower.place)
    why = {
        "packed": f"rows of all items behind each other, cut by the product of `{first.sizes}`",
        "tiles": f"whole tiles, cut by `{first.sizes}`",
        "paths": f"one `{first.pixels}` and `{first.sizes}` of `{first.more}` an item",
    }
    sheet.put("layout", first.layout, first.field.place, why=why[first.layout])


def _modality(sheet: Sheet, modality: ModalityInputs) -> None:
    at = f"modalities.{modality.name}"
    if modality.layout != "paths":
        sheet.put(f"{at}.pixels", modality.pixels, modality.field.place)
    sheet.put(f"{at}.sizes", modality.sizes, (modality.sizes_field or modality.field).place)
    if modality.embeds is not None:
        sheet.put(f"{at}.embeds", modality.embeds.key, modality.embeds.place)


def _output(sheet: Sheet, program: Program, model: Located, tower: Part, first: ModalityInputs) -> None:
    """The width of the embeddings: the tower's own, that of the last layer, or that of the language model."""
    key = "output.hidden_size"
    outer = first.encoded[0].call
    own = assigned(program, tower.cls, "out_hidden_size") if tower.cls else None
    if outer.name == f"self.{tower.name}" and own is not None:
        sheet.put(key, f"self.{tower.name}.out_hidden_size", own[1])
        return
    linear = last_linear(program, model.owner, outer)
    path = model_path(program, model.owner, linear[0]) if linear else None
    if linear is not None and path is not None:
        sheet.put(key, path, linear[1], why="the last layer's output")
        return
    language = _language_config(program, model)
    if language is not None:
        sheet.put(key, f"{language[0]}.hidden_size", language[1], why="embeddings are as wide as the language model")
        return
    candidates = (
        Candidate("self.config.hidden_size", "the language model's width, with a flat configuration"),
        Candidate("self.config.text_config.hidden_size", "the language model's width, with a nested configuration"),
    )
    if "text_config" in model.owner[0].text:
        candidates = candidates[::-1]
    sheet.ask(Question(key, "columns of the encoder's output", candidates, (_place_of(outer),)))


def _place_of(call: Op) -> str:
    return str(call.place or "")


def _language_config(program: Program, model: Located) -> tuple[str, Place] | None:
    """The configuration that the language model is made of: `hf_config=` of its constructor, or the one replaced."""
    found = assigned(program, model.owner, "language_model")
    if found is None:
        return None
    for node in ast.walk(found[0]):
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "hf_config"]
            if ast.unparse(node.func).endswith(".with_hf_config"):
                given += node.args[:1]
            for value in given:
                path = model_path(program, model.owner, ast.unparse(value))
                if path is not None:
                    return path, Place(found[1].file, value.lineno)
    return None
