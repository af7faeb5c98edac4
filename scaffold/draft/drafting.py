"""From a recording of a model's run to the text of a descriptor with its open questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.port import MODALITIES
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.draft.common import SOUND, omitted, other_encoder, pixel_keys, put_fields, seen
from scaffold.draft.crops import draft_crops
from scaffold.draft.cut import draft_cut, draft_images
from scaffold.draft.gates import put_gate
from scaffold.draft.integration import draft_integration, file_name
from scaffold.draft.left import left_out, refuse_left
from scaffold.draft.locate import Subject, locate, registered_name, unfollowed_bases
from scaffold.draft.loop import draft_layers, draft_loop
from scaffold.draft.numbers import put_width
from scaffold.draft.packed import draft_packed
from scaffold.draft.ported import fitting_mixin, for_adapters_alone, has_port, hosted_mixin
from scaffold.draft.rows import CHUNK, draft_rows
from scaffold.draft.sheet import Beyond, Question, Sheet, SourceLine, beyond
from scaffold.draft.tiles import draft_tiles
from scaffold.draft.unportable import lacking, offered, refuse_unportable
from scaffold.protocol import tree_name
from scaffold.protocol.tree import SourceTree
from scaffold.watch import Recording


class NoDraft(DiagnosticError):
    """A model gets no draft. `start` is a text with what is known of it: no descriptor, since its layout is open, with
    every reason above it."""

    def __init__(self, diagnostics: Iterable[Diagnostic], start: str) -> None:
        super().__init__(diagnostics)
        self.start = start


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


def draft_descriptor(
    tree: SourceTree,
    reference: str,
    recording: Recording,
    answers: Mapping[str, str] | None = None,
    layout: str | None = None,
    *,
    adapter: bool = False,
) -> Draft:
    """Draft a descriptor of `reference` (an architecture, FILE or FILE:CLASS) of `tree` from a recording of its run.

    `answers` by the key of a question take the place of its `TODO`. Without a `layout` the first that fits is taken.
    One for an `adapter` has all modalities, also where a port in a tree would run the model's code twice for them. So
    has one whose shipped descriptor is for adapters alone.
    Pure but for reading the tree. Raises VCG480 to VCG482 when there is no such model, and `NoDraft` with everything
    about it that no descriptor expresses (VCG483), or why it has not run (VCG489). Where a base cannot be followed,
    that is the reason (VCG497).
    """
    subject = locate(tree, reference)
    refuse_unportable(subject)
    if not recording.batches:
        why = f"the model ran on nothing: {'; '.join(recording.missing.values())}"
        raise _no_draft(subject, [_not_run(subject, why)], recording)
    refused: list[Diagnostic] = []
    missing = lacking(tree)
    for name, why, draft in _LAYOUTS:
        if layout not in (None, name) or name in missing:
            continue
        # Where the shipped descriptor is for adapters alone, a port of images takes longer than eager (Nemotron).
        if draft is draft_images and (adapter or for_adapters_alone(subject)):
            continue
        sheet = Sheet(dict(answers or {}))
        _put_model(subject, sheet)
        found = False
        try:
            found = draft(subject, recording, sheet)
        except Beyond as met:
            sheet.obstacles += met.diagnostics
        if found:
            sheet.put("layout", name, why=why)
            _put_rest(subject, recording, sheet)
            refuse_left(subject, recording, sheet)
        refused += sheet.obstacles
        if found and not sheet.obstacles:
            return _finished(subject, recording, sheet, alone=draft is draft_images)
    refused = refused or list(beyond(tree, subject.place, seen(recording)).diagnostics)
    # The layouts that the protocol of the tree lacks: the model is not to blame.
    later = tuple(f"{kind.name} came with vLLM {kind.first}" for kind in dict.fromkeys(missing.values()))
    refused = [replace(one, notes=(*one.notes, *later)) if one.code == "VCG483" else one for one in refused]
    raise _no_draft(subject, dict.fromkeys(refused), recording)


def undrafted(tree: SourceTree, reference: str, reasons: Iterable[Diagnostic] = ()) -> NoDraft:
    """That a model which did not run gets no draft, with what is known of it. Without a reason: nothing may run."""
    subject = locate(tree, reference)
    return _no_draft(subject, tuple(reasons) or (_not_run(subject, "nothing may be run"),), None)


def _no_draft(subject: Subject, reasons: Iterable[Diagnostic], recording: Recording | None) -> NoDraft:
    """With the reasons, or the bases that cannot be followed, where there are any, and what is known of the model."""
    against = tuple(_unfollowed(subject, reasons)) or tuple(reasons)
    return NoDraft(against, _start(subject, against, recording))


def _not_run(subject: Subject, reason: str) -> Diagnostic:
    return Diagnostic(
        "VCG489",
        f"no draft: {reason}",
        subject.tree.span(subject.file, subject.place.line),
        "a draft says what a run showed: build the model with --recipe, --config or --set, or write the descriptor by "
        "hand, from the file that -o FILE leaves",
    )


def refuse_model(tree: SourceTree, reference: str) -> None:
    """Raise VCG480 to VCG483 for a reference to no model, or to one that no layout will ever express."""
    refuse_unportable(locate(tree, reference))


def _unfollowed(subject: Subject, why: Iterable[Diagnostic] = ()) -> list[Diagnostic]:
    return unfollowed_bases(subject.tree, subject.program, (subject.owner, subject.processor, subject.info), why)


def _draft_explicit_cut(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """A cut whose port runs no code of the model twice: its port is smaller than one of tiles."""
    return draft_cut(subject, recording, sheet) and sheet.has("explicit.call")


#: Layouts whose descriptor says how each input lies in a batch.
_FIELDS = ("cut", "crops", "rows")
#: Layouts whose items have as many rows as the processor makes, however it cuts its input.
_COUNTED = ("packed", "rows")
#: Layouts that are drafted, the one to prefer first, each with what a run shows of its models. A draft fills in the
#: sections of its layout but `model`, `layout`, `fields`, `output`, `gates` and `integration`, and says whether the
#: model is of its kind. Obstacles say why it nearly is.
_LAYOUTS = (
    ("packed", "rows of all items and their grid enter one part; graphs hold the whole of it", draft_packed),
    ("cut", "units of one shape enter one call", _draft_explicit_cut),
    ("tiles", "whole tiles, whose rows are the embeddings", draft_tiles),
    ("cut", "images are units of one shape that enter one call", draft_images),
    ("cut", "units of one shape enter one call", draft_cut),
    ("crops", "one call gets whole images and crops of them", draft_crops),
    ("cut", "units that the model pads to the longest go through its layers", draft_loop),
    ("cut", "chunks of sound go through an encoder's layers", draft_layers),
    ("rows", "one call gets the patches of all images, and where those of each end", draft_rows),
)


def _put_rest(subject: Subject, recording: Recording, sheet: Sheet) -> None:
    """Fill in what all layouts have alike: how inputs lie in a batch, the width of embeddings, and the gate."""
    layout, batches = sheet.value("layout"), [recording.of(name) for name in sheet.pixels]
    for one in batches if layout in _FIELDS else ():
        put_fields(subject, one, sheet)
    if not sheet.has("output.hidden_size"):
        put_width(subject, recording, batches[0][0], sheet)
    # The frames of a chunk may become fewer tokens than its rows say.
    if layout not in _COUNTED or CHUNK in sheet.pixels:
        put_gate(subject, [sheet.value(key) for key in sheet.keys("") if key.endswith(".pixels")], sheet)


def _finished(subject: Subject, recording: Recording, sheet: Sheet, *, alone: bool) -> Draft:
    """The draft of a sheet that has its layout; `alone`: an adapter could have graphs of videos, too."""
    tree = subject.tree
    # A chunk is an image where a test of the port brings one.
    draft_integration(sheet, subject, tuple("image" if name == CHUNK else name for name in sheet.pixels), recording)
    of_two = SOUND in sheet.pixels and bool(other_encoder(subject, sheet.pixels))
    # Those are of images: a port of sound is beside them.
    port, mixin = (None, None) if of_two else (has_port(subject), hosted_mixin(subject))
    fits = port is None and mixin is None and sheet.value("layout") == "packed"
    if fits and (proposed := fitting_mixin(subject, sheet.pixels.values())) is not None:
        name, place, why = proposed
        sheet.put("model.mixin", name, place, why=why)
    title = [
        f"{subject.class_name}: drafted from a run in {tree_name(tree)}. Comments name the line that shows a value.",
        *([f"{port.message}, which was not looked at: `new` replaces it with --replace."] if port else []),
        *([f"`new` writes the methods that its base {mixin} leaves to it, and no other."] if mixin else []),
        *(["What says TODO is open: `vitcg-scaffold validate` lists it."] if sheet.open else []),
    ]
    asked = {question.key for question in sheet.questions}
    return Draft(
        file_name(subject.file) + f"_{SOUND}" * of_two,
        sheet.text(title),
        tuple(sheet.questions),
        sheet.open,
        tuple(key for key in sheet.answers if key not in asked),
        (
            *_beyond_context(subject, recording, sheet),
            *left_out(subject, recording, sheet),
            *omitted(subject, recording, sheet.pixels, sheet.value("layout"), alone=alone),
            *(
                replace(one, message=f"{one.message}. What it overrides was not looked at", severity=Severity.WARNING)
                for one in _unfollowed(subject)
            ),
            *([port] if port is not None else []),
        ),
    )


def _beyond_context(subject: Subject, recording: Recording, sheet: Sheet) -> Iterator[Diagnostic]:
    """That vLLM chooses no budget which holds an item of an encoder-decoder (VCG467). An explicit port does."""
    crossed = SOUND in sheet.pixels and recording.configuration.get("is_encoder_decoder")
    if not crossed or sheet.has("explicit.call"):
        return
    tokens = max(leaf.shape[0] for leaf in recording.of(SOUND)[0].results)
    yield Diagnostic(
        "VCG467",
        f"an item has {tokens} tokens in the recording, and vLLM chooses no budget above the context, which counts the "
        "decoder's tokens alone",
        subject.tree.span(subject.file, subject.place.line),
        f"give vLLM budgets: --compilation-config '{{\"encoder_cudagraph_token_budgets\": [{tokens}]}}'",
        Severity.WARNING,
    )


def _put_model(subject: Subject, sheet: Sheet) -> None:
    sheet.put("schema", 1)
    sheet.put("model.module", subject.module, subject.found)
    sheet.put("model.class", subject.class_name, subject.place)
    if (registered := registered_name(subject)) is not None:
        sheet.put("model.architecture", *registered)


def _start(subject: Subject, against: tuple[Diagnostic, ...], recording: Recording | None) -> str:
    """The facts on a model that gets no draft. Its layout is open: no command takes the text for a descriptor."""
    sheet = Sheet({})
    _put_model(subject, sheet)
    reasons = []
    for found in against:
        reason = found.message.removeprefix("the model is beyond the layouts: ")
        at = f"{SourceLine(subject.tree.relative(found.span.file), found.span.line)}: " if found.span else ""
        reasons.append("; ".join((f"{at}{reason}", *found.notes)))
    batches = recording.batches if recording is not None else ()
    what = "no layout fits the model as it is written" if batches else "nothing shows it, since the model did not run"
    sheet.ask("layout", what, (), *reasons)
    inputs: dict[str, str] = {}
    known = {batch.modality for batch in batches} or offered(subject)
    names = [name for name in MODALITIES if name in known] or ["image"]
    for batch in batches:
        inputs |= {field.key: f"input `{field.key}`: {field.kind}, of {field.modality}" for field in batch.fields}
        keys = sorted(pixel_keys(batch))
        if keys and batch.modality in names and not sheet.has(f"modalities.{batch.modality}.pixels"):
            sheet.put(f"modalities.{batch.modality}.pixels", keys[0], why="the first input of floating point")
    draft_integration(sheet, subject, tuple(names), recording)
    how = "Change the lines below and run `init` again" if batches else "Build it with --recipe, --config or --set"
    title = (
        f"{subject.class_name}: what {tree_name(subject.tree)} tells of it. It has no layout: this is no port.",
        f"{how}, or write the sections of a layout by hand:",
        "`vitcg-scaffold validate --schema` has their keys, docs/concepts.md says what each layout can express.",
        *inputs.values(),
    )
    return sheet.text(title)


def interview(
    tree: SourceTree,
    reference: str,
    recording: Recording,
    answers: Mapping[str, str],
    ask: Callable[[Question], str | None],
    layout: str | None = None,
    refuse: Callable[[Diagnostic], None] | None = None,
    *,
    adapter: bool = False,
) -> Draft:
    """Draft `reference` and ask what is open, one question at a time: an answer may raise further ones.

    `ask` gives the answer, None where the question stays open. `refuse` is told why an answer cannot be, and the
    question is asked again; without it the answer stays. Raises what `draft_descriptor` raises.
    """
    given = dict(answers)
    put_off: set[str] = set()
    draft = draft_descriptor(tree, reference, recording, given, layout, adapter=adapter)
    while True:
        question = next((question for question in draft.open if question.key not in put_off), None)
        if question is None:
            return draft
        answer = ask(question)
        if answer is None:
            put_off.add(question.key)
            continue
        answered = draft_descriptor(tree, reference, recording, given | {question.key: answer}, layout, adapter=adapter)
        known = _problems(draft)
        wrong = next((one for one in _problems(answered) if one not in known), None)
        if refuse is not None and wrong is not None:
            refuse(wrong)
        else:
            given[question.key] = answer
            draft = answered


def _problems(draft: Draft) -> tuple[Diagnostic, ...]:
    """Errors of a draft other than open questions, without their places: these move with every answer."""
    try:
        load_descriptor_text(draft.text, f"{draft.name}.yaml")
    except DiagnosticError as error:
        return tuple(replace(one, span=None) for one in error.diagnostics if one.code != "VCG390" and one.exit)
    return ()
