"""The four places of a port: model class, generation test, docs table, example list.

Everything is read from the tree through anchors; nothing is applied here. A place that the tree does not have by
nature (a package alone has no tests) is left out with a note; a place that it should have and has not is an error
of the anchor.
"""

from __future__ import annotations

import dataclasses
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from scaffold.descriptor import PackedPort, ReentryPort
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit.operations import PutMethods, ReplaceMethod
from scaffold.plan.entries import plan_entries
from scaffold.plan.file_plans import Fact, FilePlan, Plan
from scaffold.plan.heirs import plan_heirs
from scaffold.plan.manager import EMBEDS, FRAMES, Check, plan_manager
from scaffold.plan.methods import left_out, refusal, render_methods, without_embeds, without_paths
from scaffold.plan.model_file import beside_bases, other_encoder, plan_mixin, plan_model
from scaffold.plan.names import check_names
from scaffold.plan.processor import check_processor
from scaffold.plan.question import QUESTION, plan_question
from scaffold.plan.towers import TowerPlan, plan_tower, port_in
from scaffold.plan.views import claims_frames
from scaffold.protocol import absent_reason, find_model
from scaffold.tower import attention_leaves_rows
from scaffold.tower.paths import refuses_embeds

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import ProtocolProfile, SourceTree


def plan_changes(port: AnyPort, tree: SourceTree, profile: ProtocolProfile, *, replace: bool = False) -> Plan:
    """The edits that port `port` into `tree`.

    Raises `DiagnosticError`: VCG437 or VCG441 when the protocol cannot express it, VCG42x when an anchor is missing or
    ambiguous, VCG520 when the class implements the protocol by other code than ours and `replace` was not asked for. A
    port of ours in another state (`Present.CHANGED`) is planned as its replacement: who writes asks for `replace`.
    """
    whole, port = port, port_in(port, tree, profile.dialect)
    if problem := refusal(port, profile.dialect):
        raise DiagnosticError(problem)
    notes = [*left_out(port, profile.dialect), *_left_to_adapter(whole, port)]
    given, port = port, without_paths(port, profile.dialect)
    model = find_model(tree, port.module, port.class_name)
    tower = plan_tower(port, tree, model, profile.dialect)
    refused = _refuses_embeds(port, tree)
    wanted = _asked_of_manager(port, tree, profile, tower, refused)
    managed, checks = plan_manager(tree, profile, wanted)
    known = dataclasses.replace(tower.facts, manager_bounds=FRAMES in checks)
    rendered = without_embeds(port) if EMBEDS in checks or refused else port
    notes += check_names(port, tree, model)
    module, _, class_name = (port.model.mixin or "").rpartition(".")
    named = find_model(tree, module, class_name) if port.model.mixin else None
    methods = beside_bases(tree, profile, model, render_methods(rendered, profile, known), named)
    if tree.package is not None and methods.mixin is not None:
        beside = dataclasses.replace(methods.mixin, folder=f"{PurePosixPath(model.path).parent}/")
        methods = dataclasses.replace(methods, mixin=beside)
    heirs = plan_heirs(port, tree, profile, tower, methods, replace=replace)
    other = other_encoder(port, tree, model)
    ported, present, left = plan_model(tree, profile, model, methods, tower.edits.get(model.path, ()), replace, other)
    files = [dataclasses.replace(ported, edits=(*ported.edits, *heirs.edits.get(model.path, ())))]
    files += [plan_mixin(tree, methods.mixin)] if methods.mixin else []
    for path in dict.fromkeys([*heirs.edits, *tower.edits]):
        if path != model.path:
            edits = (*heirs.edits.get(path, ()), *tower.edits.get(path, ()))
            files.append(FilePlan(path, edits, _why(port, tower, path, path in heirs.edits)))
    if any(isinstance(edit, PutMethods) and QUESTION in edit.source for file in files for edit in file.edits):
        asked = plan_question(tree)
        files += [asked] if isinstance(asked, FilePlan) else []
        notes += [asked] if isinstance(asked, Diagnostic) else []
    files += managed
    _refuse_foreign(port, tree, files)
    notes += [*tower.notes, *heirs.notes, *left, *other]
    if methods.mixin is not None and all(note.code != "VCG466" for note in notes):
        notes.append(_runs_again(given))
    facts = [
        Fact("protocol", profile.generation.name, f"{profile.interfaces_module}, line {profile.line}"),
        Fact("model", model.class_name, f"{model.path}:{model.line}"),
        *tower.evidence,
        *check_processor(port, tree),
    ]
    entries = plan_entries(port, tree, heirs.architectures)
    files += entries.files
    facts += entries.facts
    notes += entries.notes
    reason = absent_reason(tree)
    if reason is not None and tree.package is None:
        notes.append(
            Diagnostic(
                "VCG426",
                f"only the model class is ported: {reason}",
                help="port a checkout or a release for tests, docs and examples",
                severity=Severity.INFO,
            )
        )
    return Plan(
        port,
        profile,
        methods,
        present,
        tuple(files),
        tuple(notes),
        tuple(facts),
        tower.split,
        tower.way,
        tower.facts.extraction,
        tower.facts.sharding,
        (*managed, *entries.shared),
    )


def _refuses_embeds(port: AnyPort, tree: SourceTree) -> bool:
    """Whether no request of a model, or of its heirs, brings the precomputed embeddings that the port names."""
    keys = {key for _, key in (*port.keys, *port.further_keys)}
    named = [modality for modality in port.modalities if f"{modality}_embeds" in keys]
    return bool(named) and all(refuses_embeds(tree, port.module, port.class_name, one) for one in named)


def _asked_of_manager(
    port: AnyPort, tree: SourceTree, profile: ProtocolProfile, tower: TowerPlan, refused: bool
) -> list[Check]:
    """The checks that a port leaves to the manager, from 0.31 on. No request has embeddings that are `refused`.

    Before, spare sequences cover the rows behind a batch, and more frames would take those. Ports that re-enter share
    a class with those of other trees.
    """
    if attention_leaves_rows(tree):
        return []
    frames = claims_frames(port, profile.dialect) and tower.facts.attention_fills_zeros
    explicit = not isinstance(port, ReentryPort) or tower.facts.extraction is not None
    embeds = explicit and not refused and port.embeds in {f"{modality}_embeds" for modality in port.modalities}
    return [*([FRAMES] if frames else []), *([EMBEDS] if embeds else [])]


def _left_to_adapter(whole: AnyPort, port: AnyPort) -> list[Diagnostic]:
    """That items run eagerly which a port in this tree would run the model's code twice for: VCG447."""
    return [
        Diagnostic(
            "VCG447",
            f"items of {name} run eagerly: a port of theirs would run the model's code twice",
            whole.span(f"modalities.{name}"),
            "nothing to do in a tree; the plugin's adapter has graphs of them",
            Severity.INFO,
        )
        for name in whole.modalities
        if name not in port.modalities
    ]


def _runs_again(port: AnyPort) -> Diagnostic:
    """Why a port has no explicit form, where the code of the model is not the reason: VCG466."""
    if port.explicit is not None:
        reason = "before 0.27 an item has no number of tokens of its own, by which explicit ports count units"
    elif isinstance(port.in_tree, PackedPort):
        reason = "the tower of this release has no method for its metadata, by which a port could capture it whole"
    elif port.in_tree is not None:
        reason = "before 0.27 an item has no number of tokens of its own, by which explicit ports count units"
    elif "explicit" in type(port).by_key:
        reason = "the descriptor has no section `explicit`, which needs code of that form"
    else:
        reason = f"the layout `{port.layout}` has no other form"
    return Diagnostic(
        "VCG466",
        f"the port runs the model's code again for each batch: {reason}",
        port.span("layout" if port.explicit is None else "explicit"),
        severity=Severity.INFO,
    )


def _why(port: AnyPort, tower: TowerPlan, path: str, has_optout: bool) -> str:
    """Why a file beside the model's own changes."""
    if has_optout:
        return f"keep a subclass of {port.class_name} out"
    if isinstance(port, PackedPort):
        splits = any(not isinstance(edit, ReplaceMethod) or edit.name != "__init__" for edit in tower.edits[path])
        what = "split the tower of" if splits else "keep in `__init__` what is read by the port of"
    else:
        what = "cut out the encoder of" if tower.way is not None else "pass a parameter to the tower of"
    return f"{what} {port.class_name}"


def _refuse_foreign(port: AnyPort, tree: SourceTree, files: list[FilePlan]) -> None:
    """Raise VCG499 for changes outside of the package that a run is for: vLLM's own files stay as they are."""
    if tree.package is None:
        return
    instead = ", or ship adapters, which change no file: `new DESCRIPTOR --into FOLDER`" if port.reenters else ""
    problems = [
        Diagnostic(
            "VCG499",
            f"this port would change a file of vLLM: {file.reason}",
            tree.span(file.path),
            f"override in the package what {port.class_name} has from there, or port vLLM's own class in its tree, "
            f"without --package: subclasses inherit that port{instead}",
        )
        for file in files
        if (file.edits or file.source is not None) and tree.beside(file.path) is None
    ]
    if problems:
        raise DiagnosticError(problems)
