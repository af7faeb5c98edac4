"""From a tree and the name of a model to the text of a descriptor with its open questions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.worth import worth
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.draft.bases import beside, unfollowed_bases
from scaffold.draft.cut import NoEncoder, draft_cut
from scaffold.draft.evaluate import Evaluator
from scaffold.draft.inputs import Beyond, ModalityInputs, beyond, read_inputs
from scaffold.draft.integration import draft_integration, file_name
from scaffold.draft.locate import locate, registered_name
from scaffold.draft.modules import Part, assigned, joined_features, model_path
from scaffold.draft.objects import Objects
from scaffold.draft.packed import draft_packed
from scaffold.draft.reentry import language_width
from scaffold.draft.rows import NoRows, TooEarly, draft_rows
from scaffold.draft.rows import too_early as without_rows
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.split import gate_of
from scaffold.draft.subject import Subject
from scaffold.draft.tiles import against_tiles, draft_tiles, last_linear
from scaffold.draft.unportable import refuse_unportable, too_early
from scaffold.draft.values import BatchInputs, Op, SourceLine
from scaffold.draft.watched import seen
from scaffold.draft.watched_crops import draft_watched_crops
from scaffold.draft.watched_cut import draft_watched_cut
from scaffold.draft.watched_loop import draft_watched_loop
from scaffold.draft.watched_packed import draft_watched_packed
from scaffold.draft.watched_rows import draft_watched_rows
from scaffold.protocol import read_protocol, tree_name
from scaffold.protocol.dialect import Postprocess
from scaffold.protocol.profile import PROTOCOL
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import find_method, last_name
from scaffold.tower.source import Program
from scaffold.watch import Recording

__all__ = ["Draft", "NoDraft", "draft_descriptor", "draft_recorded", "inherited_port", "interview", "refuse_model"]


class NoDraft(DiagnosticError):
    """No layout fits the model. `start` is a text with what is known of it: no descriptor yet, since its layout is open
    and every reason is above it."""

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

    @property
    def complete(self) -> bool:
        return not self.open


@dataclass(frozen=True, slots=True)
class _Filled:
    """A sheet with everything but `schema`, `model` and `integration`, and the modalities that it serves."""

    sheet: Sheet
    modalities: tuple[str, ...]
    notes: tuple[Diagnostic, ...]
    tower: Part | None = None


def draft_descriptor(
    tree: SourceTree,
    reference: str,
    answers: Mapping[str, str] | None = None,
    layout: str | None = None,
    recording: Recording | None = None,
) -> Draft:
    """Draft a descriptor of `reference` (an architecture, FILE or FILE:CLASS) of `tree`: from a recording of its run.

    Without one, or where it gives no draft, from the source. `answers` by the key of a question take the place of its
    `TODO`. Without a `layout` the better of those that can express the model is taken. Pure but for reading the tree.
    Raises VCG480 to VCG482 when there is no such model, `NoDraft` (VCG483) with everything about it that no descriptor
    expresses. Where a base cannot be followed, that is the reason (VCG497).
    """
    subject = _subject(tree, reference)
    refuse_unportable(subject)
    unseen: tuple[Diagnostic, ...] = ()
    if recording is not None:
        try:
            return draft_recorded(tree, reference, recording, answers, layout)
        except DiagnosticError as error:
            unseen = tuple(error.diagnostics)
    try:
        filled = _best(subject, answers or {}, layout)
    except DiagnosticError as error:
        found = tuple(dict.fromkeys((*unseen, *_dated(subject, error))))
        refused = any(problem.code == "VCG483" for problem in found)
        found = tuple(_unfollowed(subject, found)) or found
        if refused:
            raise NoDraft(found, _start(subject, found)) from None
        raise DiagnosticError(found) from None  # a model without images and videos has nothing to start from
    notes = (*filled.notes, *(_instead(problem) for problem in unseen[:1]))
    return _finished(subject, replace(filled, notes=notes))


def draft_recorded(
    tree: SourceTree,
    reference: str,
    recording: Recording,
    answers: Mapping[str, str] | None = None,
    layout: str | None = None,
) -> Draft:
    """Draft a descriptor from what a model did, in the first layout that fits. Raises as `draft_descriptor` does."""
    subject = _subject(tree, reference)
    refused: list[Diagnostic] = []
    cuts = _speaks_cuts(tree)
    for name, why, draft in _WATCHED:
        if layout not in (None, name) or (name in _CUTS and not cuts):
            continue
        sheet = Sheet(dict(answers or {}))
        _put_model(subject, sheet)
        try:
            found = draft(subject, recording, sheet)
        except Beyond as met:
            sheet.obstacles += met.diagnostics
            found = None
        refused += sheet.obstacles
        if found is not None and not sheet.obstacles:
            sheet.put("layout", name, why=why)
            return _finished(subject, _Filled(sheet, *found), "a recording")
    reason = seen(recording) if cuts else "this release has no graphs of cuts"
    raise DiagnosticError(refused or beyond(tree, subject.model.place, reason).diagnostics)


def refuse_model(tree: SourceTree, reference: str) -> None:
    """Raise VCG480 to VCG483 for a reference to no model, or to one that no layout will ever express."""
    refuse_unportable(_subject(tree, reference))


def _subject(tree: SourceTree, reference: str) -> Subject:
    program = Program(tree)
    return Subject(tree, program, locate(tree, program, reference))


def _unfollowed(subject: Subject, why: Iterable[Diagnostic] = ()) -> list[Diagnostic]:
    model = subject.model
    return unfollowed_bases(subject.tree, subject.program, (model.owner, model.processor, model.info), why)


def _instead(unseen: Diagnostic) -> Diagnostic:
    """That the sources gave a draft, since the recording gives none."""
    reason = unseen.message.removeprefix("the model is beyond the layouts: ")
    what = f"drafted from the sources, since the recording of the model's run gives no draft: {reason}"
    return Diagnostic("VCG489", what, unseen.span, "", Severity.INFO)


#: Layouts whose graphs hold the encoder alone, which not every protocol can express.
_CUTS = ("cut", "crops")
#: Layouts that a recording is drafted as, the one to prefer first. Each says None, perhaps with obstacles, of a model
#: that is not of its kind.
_WATCHED = (
    ("packed", "rows of all items and their grid enter one part; graphs hold the whole of it", draft_watched_packed),
    ("cut", "units of one shape enter one call", draft_watched_cut),
    ("crops", "one call gets whole images and crops of them", draft_watched_crops),
    ("cut", "units that the model pads to the longest go through its layers", draft_watched_loop),
    ("rows", "one call gets the patches of all images, and where those of each end", draft_watched_rows),
)


def _finished(subject: Subject, filled: _Filled, basis: str = "the sources") -> Draft:
    """The draft of a sheet that has its layout; `basis` is what it was drafted from."""
    tree, model = subject.tree, subject.model
    sheet, notes = filled.sheet, filled.notes
    _put_model(subject, sheet)
    if filled.tower is not None:
        sheet.put("model.tower", filled.tower.name, filled.tower.place)
    draft_integration(sheet, subject, filled.modalities)
    port, mixin = _has_port(subject), _mixin(subject)
    title = [
        f"{model.class_name}: drafted from {basis} of {tree_name(tree)}. Comments name the line that shows a value.",
        *([f"{port.message}, which was not looked at: `new` replaces it with --replace."] if port else []),
        *([f"`new` writes the methods that its base {mixin} leaves to it, and no other."] if mixin else []),
        *(["What says TODO is open: `vitcg-scaffold validate` lists it."] if sheet.open else []),
    ]
    unused = tuple(key for key in sheet.answers if key not in sheet.used)
    name, text = file_name(model.file), sheet.text(title)
    gain = _worth(text, name) if not sheet.open else None
    return Draft(
        name,
        text,
        tuple(sheet.questions),
        sheet.open,
        unused,
        (*notes, *map(beside, _unfollowed(subject)), *(note for note in (port, gain) if note is not None)),
    )


def _put_model(subject: Subject, sheet: Sheet) -> None:
    model = subject.model
    sheet.put("schema", 1)
    sheet.put("model.module", model.module, model.found)
    sheet.put("model.class", model.class_name, model.place)
    if (registered := registered_name(subject.tree, model)) is not None:
        sheet.put("model.architecture", *registered)


def _start(subject: Subject, against: tuple[Diagnostic, ...]) -> str:
    """The facts on a model that no layout fits. Its layout is open: no command takes the text for a descriptor."""
    sheet = Sheet({})
    _put_model(subject, sheet)
    reasons = []
    for found in against:
        reason = found.message.removeprefix("the model is beyond the layouts: ")
        at = f"{SourceLine(subject.tree.relative(found.span.file), found.span.line)}: " if found.span else ""
        reasons.append("; ".join((f"{at}{reason}", *found.notes)))
    sheet.ask(Question("layout", "no layout fits the model as it is written", (), tuple(reasons)))
    names: list[str] = []
    with suppress(DiagnosticError):  # the reasons above say what cannot be read of the inputs
        for modality in read_inputs(subject.tree, subject.program, subject.model).modalities:
            names.append(modality.name)
            sheet.put(f"modalities.{modality.name}.pixels", modality.pixels, modality.field.place)
    draft_integration(sheet, subject, tuple(names or ["image"]))
    inputs: list[str] = []
    with suppress(DiagnosticError):
        inputs = [f"input `{key}`: {one.kind} ({one.place})" for key, one in subject.fields.items() if one.modality]
    title = (
        f"{subject.model.class_name}: what the sources of {tree_name(subject.tree)} show. No layout fits, so this is "
        "no port.",
        "Change the lines below and run `init` again, or write the sections of a layout by hand:",
        "`vitcg-scaffold validate --schema` has their keys, docs/concepts.md says what each layout can express.",
        *inputs,
    )
    return sheet.text(title)


def _dated(subject: Subject, refusal: DiagnosticError) -> tuple[Diagnostic, ...]:
    """The reasons of a refusal, with the layouts that the protocol of the tree lacks: the model is not to blame."""
    notes: tuple[str, ...] = ()
    with suppress(DiagnosticError):  # `new` says what is wrong with the protocol
        notes = too_early(read_protocol(subject.tree).dialect)
    return tuple(
        replace(found, notes=(*found.notes, *notes)) if found.code == "VCG483" else found
        for found in refusal.diagnostics
    )


def _worth(text: str, name: str) -> Diagnostic | None:
    """Where graphs of a drafted port stop paying off. An answer that is no value is for `validate` to say."""
    try:
        return worth(load_descriptor_text(text, f"{name}.yaml"))
    except DiagnosticError:
        return None


def inherited_port(tree: SourceTree, reference: str) -> Diagnostic | None:
    """That the port of a base serves a model, so that nothing is to be done; None where it may need one of its own.

    That is so where the model's own code is on the way from `embed_multimodal` to the encoder. Raises VCG480 to VCG482.
    """
    subject = _subject(tree, reference)
    holder = _port_holder(subject)
    if holder is None or holder is subject.model.owner[1]:
        return None
    evaluator = Evaluator(subject.program, subject.model.owner, deep=True)
    evaluator.method("embed_multimodal", **{"**": BatchInputs()})
    entered = {id(function) for _, function in evaluator.trace.visited}
    for _, cls in subject.program.lineage(subject.model.owner):
        if cls is holder:
            break
        if any(id(node) in entered for node in cls.body):
            return None
    name = subject.model.class_name
    return Diagnostic(
        "VCG485",
        f"{name} inherits the port of {holder.name}: nothing is to be done",
        subject.tree.span(subject.model.file, subject.model.place.line),
        f"vLLM captures its encoder with the methods of {holder.name}. If {name} makes another tower, check the port "
        "with `verify`, or draft one of its own: add --force",
        Severity.INFO,
    )


def _port_holder(subject: Subject) -> ast.ClassDef | None:
    """The class that speaks the protocol: the model's, or its nearest base that does. A mixin alone is none."""
    classes = [cls for _, cls in subject.program.lineage(subject.model.owner) if cls.name != PROTOCOL]
    if not any(map(_says_config, classes)):
        return None
    # A host of a mixin, which lists the protocol, has this method alone.
    return next((cls for cls in classes if _says_config(cls) or _lists_protocol(cls)), None)


def _mixin(subject: Subject) -> str | None:
    """The base that has methods of the protocol, and leaves to the model what a graph captures."""
    if _port_holder(subject) is not None:
        return None
    return next((cls.name for _, cls in subject.program.lineage(subject.model.owner) if _lists_protocol(cls)), None)


def _says_config(cls: ast.ClassDef) -> bool:
    return find_method(cls, "get_encoder_cudagraph_config") is not None


def _lists_protocol(cls: ast.ClassDef) -> bool:
    return any(last_name(base) == PROTOCOL for base in cls.bases)


def _has_port(subject: Subject) -> Diagnostic | None:
    """That the class, or the nearest of its bases that does, speaks the protocol already."""
    holder = _port_holder(subject)
    if holder is None:
        return None
    own = holder is subject.model.owner[1]
    module, _ = next(one for one in subject.program.lineage(subject.model.owner) if one[1] is holder)
    return Diagnostic(
        "VCG485",
        f"{subject.model.class_name} {'has a port already' if own else f'inherits the port of {holder.name}'}",
        subject.tree.span(module.file, holder.lineno),
        "`new` replaces it with --replace"
        if own
        else f"port {holder.name} for all its subclasses; `new` gives this one its own with --replace",
        Severity.WARNING,
    )


def interview(
    tree: SourceTree,
    reference: str,
    answers: Mapping[str, str],
    ask: Callable[[Question], str | None],
    layout: str | None = None,
    refuse: Callable[[Diagnostic], None] | None = None,
    recording: Recording | None = None,
) -> Draft:
    """Draft `reference` and ask what is open, one question at a time: an answer may raise further ones.

    `ask` gives the answer, None where the question stays open. `refuse` is told why an answer cannot be, and the
    question is asked again; without it the answer stays. Raises what `draft_descriptor` raises.
    """
    given = dict(answers)
    put_off: set[str] = set()
    draft = draft_descriptor(tree, reference, given, layout, recording)
    while True:
        question = next((question for question in draft.open if question.key not in put_off), None)
        if question is None:
            return draft
        answer = ask(question)
        if answer is None:
            put_off.add(question.key)
            continue
        answered = draft_descriptor(tree, reference, given | {question.key: answer}, layout, recording)
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


def _best(subject: Subject, answers: Mapping[str, str], layout: str | None) -> _Filled:
    """The draft of a layout, or of the one that fits a model best.

    A tower that can be split is captured as a whole, and tiles whose rows are the embeddings need no second pass over
    the model's code. Otherwise a cut is the better one: it has no formula that can be wrong.
    """
    tree = subject.tree
    if layout == "cut":
        return _cut(subject, answers, "asked for")
    if layout == "crops":
        raise beyond(tree, subject.model.place, "crops are drafted from a run alone")
    if layout == "rows":
        return _last_of(subject, answers, (), "asked for")
    refused: tuple[Diagnostic, ...] = ()
    items, reason = None, ""
    try:
        items, reason = _of_items(subject, answers)
    except DiagnosticError as error:
        beyond_layouts = any(problem.code == "VCG483" for problem in error.diagnostics)
        if layout is not None or not beyond_layouts or not _speaks_cuts(tree):
            raise
        refused = _against("the layouts packed, tiles and paths", error)
        reason = f"not packed, tiles or paths: {refused[0].message.partition(': ')[2]}"
    if items is not None and layout not in (None, items.sheet.value("layout")):
        raise beyond(tree, subject.model.place, f"it is drafted as `{items.sheet.value('layout')}`, not as `{layout}`")
    tiles = items is not None and items.sheet.value("layout") == "tiles"
    asked = _open_to(items) if items is not None and tiles else (0, 0)
    simple = not reason and asked <= (0, 1)
    if items is not None and (layout is not None or simple or not _speaks_cuts(tree)):
        return items
    try:
        cut = _cut(subject, answers, reason or _many(*asked))
    except DiagnosticError as error:
        if items is not None:
            return items
        if not isinstance(error, NoEncoder):
            refused = (*refused, *_against("the layout cut", error))
        return _last_of(subject, answers, refused)
    return items if items is not None and not reason and _open_to(cut) >= asked else cut


def _open_to(filled: _Filled) -> tuple[int, int]:
    """How many questions of a draft nobody can answer without a candidate, and how many there are at all.

    Each question is one more value that may be wrong.
    """
    questions = filled.sheet.questions
    hard = [question for question in filled.sheet.open if not question.candidates]
    return len(hard), len(questions)


def _many(hard: int, asked: int) -> str:
    values = "a value without a candidate" if hard else f"{asked} values"
    return f"the layout `tiles` would leave {values} open"


def _speaks_cuts(tree: SourceTree) -> bool:
    """Whether the protocol of a tree can express a cut: one with a hook for results."""
    try:
        return read_protocol(tree).dialect.postprocess is not Postprocess.NONE
    except DiagnosticError:
        return False


def _cut(subject: Subject, answers: Mapping[str, str], reason: str) -> _Filled:
    sheet = Sheet(dict(answers))
    cut = draft_cut(subject, sheet)
    if sheet.obstacles:
        raise DiagnosticError(sheet.obstacles)
    sheet.put("layout", "cut", why=reason)
    return _Filled(sheet, tuple(cut.modalities), cut.notes)


def _last_of(
    subject: Subject,
    answers: Mapping[str, str],
    refused: tuple[Diagnostic, ...],
    reason: str = "",
) -> _Filled:
    """The draft of rows. Raises what was refused before, and why rows are no way out."""
    try:
        return _rows(subject, answers, reason)
    except DiagnosticError as error:
        # The reason against rows is no news where a release has none.
        if isinstance(error, NoRows) or (without_rows(subject.tree) and not isinstance(error, TooEarly)):
            raise DiagnosticError(refused or error.diagnostics) from None
        raise DiagnosticError(tuple(dict.fromkeys((*refused, *_against("the layout rows", error))))) from None


def _against(layouts: str, refusal: DiagnosticError) -> tuple[Diagnostic, ...]:
    """The reasons of a refusal, each with the layouts that it rules out: one line may rule out several ways."""
    note = f"so {layouts} cannot be used"
    errors = [problem for problem in dict.fromkeys(refusal.diagnostics) if problem.severity is Severity.ERROR]
    return tuple(replace(problem, notes=(*problem.notes, note)) for problem in errors)


def _rows(
    subject: Subject,
    answers: Mapping[str, str],
    reason: str,
) -> _Filled:
    sheet = Sheet(dict(answers))
    rows = draft_rows(replace(subject, into_parts=True), sheet)
    if sheet.obstacles:
        raise DiagnosticError(sheet.obstacles)
    sheet.put("layout", "rows", why=reason or rows.reason)
    return _Filled(sheet, rows.modalities, rows.notes)


def _of_items(subject: Subject, answers: Mapping[str, str]) -> tuple[_Filled, str]:
    """The draft of a layout that cuts the encoder's output into items, and what speaks against it."""
    inputs = read_inputs(subject.tree, subject.program, subject.model)
    sheet = Sheet(dict(answers))
    first = inputs.modalities[0]
    notes = inputs.notes
    modalities = inputs.modalities
    try:
        if first.layout == "packed":
            packed = draft_packed(subject, inputs, sheet)
            tower, modalities, notes = packed.tower, packed.modalities, (*notes, *packed.notes)
        else:
            tower = draft_tiles(subject, inputs, sheet)
    except Beyond as met:
        sheet.obstacles += met.diagnostics
    if sheet.obstacles:
        raise DiagnosticError(sheet.obstacles)
    why = {
        "packed": f"rows of all items, cut by the product of `{first.sizes}`; graphs hold the whole tower",
        "tiles": f"whole tiles, cut by `{first.sizes}`, whose rows are the embeddings",
        "paths": f"one `{first.pixels}` and `{first.sizes}` of `{first.more}` an item",
    }
    sheet.put("layout", first.layout, first.field.place, why=why[first.layout])
    for modality in modalities:
        _modality(sheet, modality)
    counted = inputs.fields[first.more] if first.more else first.field
    sheet.put("sizes.columns", first.columns, counted.place, why=f"a row of `{first.sizes}`")
    _output(sheet, subject, tower, first)
    gate = gate_of(subject.program, subject.model.owner, inputs.trace.visited)
    if gate is not None:
        sheet.put("gates.modalities", gate[0], gate[1], why="pruning edits embeddings after the encoder")
    against = against_tiles(inputs) if first.layout == "tiles" else ""
    names = tuple(modality.name for modality in modalities)
    return _Filled(sheet, names, notes, tower if first.layout == "packed" else None), against


def _modality(sheet: Sheet, modality: ModalityInputs) -> None:
    at = f"modalities.{modality.name}"
    if modality.layout != "paths":
        sheet.put(f"{at}.pixels", modality.pixels, modality.field.place)
    sheet.put(f"{at}.sizes", modality.sizes, (modality.sizes_field or modality.field).place)
    if modality.embeds is not None:
        sheet.put(f"{at}.embeds", modality.embeds.key, modality.embeds.place)


def _output(sheet: Sheet, subject: Subject, tower: Part, first: ModalityInputs) -> None:
    """The width of the embeddings: the tower's own, that of the last layer, or that of the language model."""
    key = "output.hidden_size"
    outer = first.encoded[0].call
    own = assigned(subject.program, tower.cls, "out_hidden_size") if tower.cls else None
    if outer.name == f"self.{tower.name}" and own is not None:
        sheet.put(key, f"self.{tower.name}.out_hidden_size", own[1])
        return
    alone = first.layout == "packed" and outer.name == f"self.{tower.name}"
    joined = joined_features(subject.program, tower) if alone else None
    if joined is not None:
        what = "columns of the encoder's output: the tower puts several results beside each other"
        sheet.ask(Question(key, what, tuple(_joined_widths(subject.objects)), (str(joined),)))
        return
    linear = last_linear(subject.program, subject.model.owner, outer)
    path = model_path(subject.program, subject.model.owner, linear[0]) if linear else None
    if linear is not None and path is not None:
        sheet.put(key, path, linear[1], why="the last layer's output")
        return
    language = language_width(subject)
    if language is not None:
        sheet.put(key, *language, why="embeddings are as wide as the language model")
        return
    kept = assigned(subject.program, subject.model.owner, "config")
    if kept is not None and ast.unparse(kept[0]) == "text_config":
        sheet.put(
            key, "self.config.hidden_size", kept[1], why="the model keeps the language model's configuration alone"
        )
        return
    candidates = (
        Candidate("self.config.hidden_size", "the language model's width, with a flat configuration"),
        Candidate("self.config.text_config.hidden_size", "the language model's width, with a nested configuration"),
    )
    if "text_config" in subject.model.owner[0].text:
        candidates = candidates[::-1]
    sheet.ask(Question(key, "columns of the encoder's output", candidates, (_place_of(outer),)))


def _joined_widths(objects: Objects) -> Iterator[Candidate]:
    """Attributes with the width of one result of the tower, and with a multiple of it for the further results."""
    kept = objects.attributes("self")
    for name, width in kept.items():
        if not isinstance(width, Op) or not width.name.endswith(("hidden_size", "out_hidden_size")):
            continue
        for other, value in kept.items():
            if isinstance(value, Op) and value.name == "*" and width in value.args:
                why = "the width of one result, and that of the others"
                yield Candidate(f"self.{name} + self.{other}", why, objects.place(f"self.{other}"))


def _place_of(call: Op) -> str:
    return str(call.place or "")
