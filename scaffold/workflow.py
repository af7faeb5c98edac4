"""One run from descriptor to proven changes, in memory: what `new`, `plan`, and `verify` share.

The stages do the work; this module only orders them and passes their values on. Nothing here writes to a tree.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from scaffold.changes import FileChange
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.protocol.tree import module_file
from scaffold.syntax import FunctionNode, assigned_to, dotted, parse

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.plan import Plan
    from scaffold.protocol import SourceTree
    from scaffold.verify import PlannedFile
    from scaffold.verify.numeric import Automatic, NumericReport, NumericRequest, Tail


NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Folders of a tree whose files no model runs.
_BESIDE_PACKAGES = ("tests/", "examples/")
_REPORT_IT = "this is a bug of vitcg-scaffold or of a snippet of yours: report it with the descriptor and these files"


@dataclass(frozen=True)
class PreparedPort:
    """A planned, rendered and proven port of one model into one tree."""

    plan: Plan
    changes: tuple[FileChange, ...]
    notes: tuple[Diagnostic, ...]

    @property
    def changed(self) -> tuple[FileChange, ...]:
        return tuple(change for change in self.changes if not change.is_noop)

    @property
    def package(self) -> tuple[FileChange, ...]:
        """The changes of the release's package: all that a model runs."""
        return tuple(change for change in self.changed if runs(change.path))


def find_drift(prepared: PreparedPort, tree: SourceTree) -> Diagnostic | None:
    """VCG511 with the first line where a port of ours in the tree is not what the descriptor generates today.

    None where the class has that port, none, or one of somebody else.
    """
    from scaffold.plan import Present

    port = prepared.plan.port
    if prepared.plan.present not in (Present.CHANGED, Present.GENERATED) or not prepared.package:
        return None
    change = prepared.package[0]
    there, made = ((data or b"").decode("utf-8").splitlines(keepends=True) for data in (change.before, change.after))
    words = [port.reference, "--vllm", tree.label, *(["--package", tree.home_label] if tree.package else [])]
    prove, write = (
        shlex.join(["vitcg-scaffold", *command])
        for command in (["verify", *words, "--as-is"], ["new", *words, "--replace"])
    )
    return _drift(
        f"the port of {port.class_name} in the tree is not the one that {Path(port.file).name} generates",
        (tree, change.path, 1),
        (there, made),
        f"`{prove}` proves the tree's, `{write}` writes the generated one, and "
        "`git checkout {file}` drops an edit that is not committed",
    )


def _drift(
    message: str, at: tuple[SourceTree, str, int], lines: tuple[Sequence[str], Sequence[str]], way: str
) -> Diagnostic:
    """VCG511 at the first of the tree's lines, which start there `at`, that is not generated so."""
    from scaffold.changes import line_opcodes

    (tree, path, line), (there, made) = at, lines
    _, first, last, start, end = next(codes for codes in line_opcodes(there, made) if codes[0] != "equal")
    place = tree.span(path, line + min(first, max(len(there) - 1, 0)))
    return Diagnostic(
        "VCG511",
        message,
        place,
        way.replace("{file}", place.file),
        notes=(
            f"the tree has `{there[first].strip()}`" if first < last else "the tree has nothing here",
            f"generated is `{made[start].strip()}`" if start < end else "nothing is generated here",
        ),
    )


def find_edited(
    port: AnyPort, tree: SourceTree, base: SourceTree | None = None, planned: PreparedPort | None = None
) -> Diagnostic | None:
    """VCG511 with the first line where somebody edited what an earlier run added to the tree, and which a plan of today
    takes for upstream's own: an entry of the test, or a method that holds the model's own code.

    `base` is the tree before the port. Without it what the last run found is, and without a run nothing is compared.
    `planned` is the port for that tree, where somebody has planned it already.
    """
    from scaffold.edit.snippets import same_meaning
    from scaffold.publish import published_changes

    before = base
    if before is None and planned is None:
        found = published_changes(tree.home, f"new {port.name}")
        before = tree.with_files({change.path: change.before for change in found if change.before is not None})
        if not found:
            return None
    if planned is None:
        assert before is not None
        planned = prepare_port(port, before, replace=True)
    for change in planned.changed:
        if not change.path.endswith(".py") or not tree.exists(change.path):
            continue
        old, made = ((text or b"").decode("utf-8") for text in (change.before, change.after))
        own, parts, there = _definitions(old), _definitions(made), _definitions(tree.read(change.path))
        for name in [name for name in parts if name not in own and name in there]:
            # A plan of today compares the methods of the protocol itself.
            if name.rpartition(".")[2] in planned.plan.methods.names or same_meaning(there[name], parts[name]):
                continue
            lines = [
                text.splitlines()[(node.lineno or 1) - 1 : node.end_lineno]
                for text, node in ((tree.read(change.path), there[name]), (made, parts[name]))
            ]
            return _drift(
                f"`{name}` in the tree is not what {Path(port.file).name} generates",
                (tree, change.path, there[name].lineno),
                (lines[0], lines[1]),
                "put the generated line back, or let the descriptor say it; `git checkout {file}` drops an edit that "
                "is not committed",
            )
    return None


def _definitions(text: str) -> dict[str, ast.stmt | ast.expr]:
    """The functions and methods of a module, and the entries of its dictionaries, by their names."""
    found: dict[str, ast.stmt | ast.expr] = {}
    for node in parse(text).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                found |= {f"{name}.{one.name}": one for one in body if isinstance(one, FunctionNode)}
            case ast.FunctionDef(name=name):
                found[name] = node
            case (
                ast.Assign(value=ast.Dict(keys=keys, values=values))
                | ast.AnnAssign(value=ast.Dict(keys=keys, values=values))
            ):
                (target, *_) = map(ast.unparse, assigned_to(node))
                entries = zip(keys, values, strict=True)
                found |= {f"{target}[{key.value!r}]": one for key, one in entries if isinstance(key, ast.Constant)}
    return found


class RefusedResult(DiagnosticError):
    """A proof refused our own result. `changes` are the refused files, for a look at what went wrong; `advice` is the
    next step.
    """

    def __init__(
        self, diagnostics: Sequence[Diagnostic], changes: tuple[FileChange, ...], advice: str = _REPORT_IT
    ) -> None:
        super().__init__(diagnostics)
        self.changes = changes
        self.advice = advice


def load_port(reference: str, *, report: Callable[[Sequence[Diagnostic]], None] | None = None) -> AnyPort:
    """The port that the descriptor `reference` (a file or a shipped name) describes.

    `report` is handed the descriptor's warnings. Raises `DiagnosticError` when it has errors.
    """
    from scaffold.descriptor import load_descriptor

    port = load_descriptor(reference)
    if report is not None and port.warnings:
        report(port.warnings)
    return port


def prepare_port(port: AnyPort, tree: SourceTree, *, replace: bool = False, shared: bool = False) -> PreparedPort:
    """Plan, render and prove `port` for `tree`, or what it brings for all models alone, where only this is `shared`.

    Raises `DiagnosticError`: VCG4xx when the tree is not understood, VCG5xx when it has an implementation that only
    `replace` may swap, VCG6xx when a proof refuses our own result.
    """
    from scaffold.edit import apply_edits
    from scaffold.plan import lost_explanations, plan_changes
    from scaffold.protocol import read_protocol
    from scaffold.verify import PlannedFile, format_changed, verify_changes

    profile = read_protocol(tree)
    plan = plan_changes(port, tree, profile, replace=replace)
    if shared:  # the notes are about the port
        plan = changed(plan, files=plan.shared, notes=(), split=None, way=None, sharding=None)
    planned: list[PlannedFile] = []
    changes: list[FileChange] = []
    lost: list[Diagnostic] = []
    mixin = plan.methods.mixin.source if plan.methods.mixin else None
    for file in plan.files:
        if file.source is not None and not tree.exists(file.path):
            text = format_changed(None, file.source, path=file.path, config_root=tree.home)
            planned.append(PlannedFile(file.path, None, text, (), tree.home))
            changes.append(FileChange(file.path, None, text.encode("utf-8")))
            continue
        before = tree.read(file.path)
        if not file.edits:
            # The place is as it should be: nothing to prove.
            changes.append(FileChange(file.path, tree.read_bytes(file.path), tree.read_bytes(file.path)))
            continue
        edited = apply_edits(before, file.edits, path=file.path, display=tree.display(file.path)).text
        after = format_changed(before, edited, path=file.path, config_root=tree.home)
        planned.append(
            PlannedFile(
                path=file.path,
                before=before,
                after=after,
                edits=file.edits,
                config_root=tree.home,
                class_name=file.class_name,
                profile=profile if file.class_name else None,
                mixin=mixin,
                given=plan.methods.given,
            )
        )
        changes.append(FileChange(file.path, tree.read_bytes(file.path), after.encode("utf-8")))
        if replace and file.path.endswith(".py") and dotted(file.path) != profile.manager_module:
            lost += lost_explanations(before, after, tree.display(file.path))
    found = (*_prove_split(plan, tree), *_prove_cut(plan, planned), *verify_changes(planned))
    if any(diagnostic.severity is Severity.ERROR for diagnostic in found):
        _require_compiles(planned, tree)
        raise RefusedResult(found, tuple(change for change in changes if not change.is_noop))
    return PreparedPort(plan, tuple(changes), (*plan.notes, *lost, *found))


def _require_compiles(planned: Sequence[PlannedFile], tree: SourceTree) -> None:
    """Raise VCG412 for a file that Python parsed and would not compile: no result of it can be right."""
    for file in planned:
        if file.before is not None and file.path.endswith(".py"):
            try:
                compile(file.before.removeprefix("\ufeff"), file.path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                place = tree.span(file.path, max(getattr(error, "lineno", None) or 1, 1))
                message = f"`{file.path}` is not valid Python: {getattr(error, 'msg', None) or error}"
                raise DiagnosticError.of("VCG412", message, place, "repair the file and run again") from None


def _prove_split(plan: Plan, tree: SourceTree) -> tuple[Diagnostic, ...]:
    """The split on its own, before the other edits of its files: every statement moved, none changed."""
    if plan.split is None:
        return ()
    from scaffold.edit import apply_edits
    from scaffold.edit.operations import ReplaceMethod
    from scaffold.tower import prove_split

    found: list[Diagnostic] = []
    for path in dict.fromkeys(edit.file for edit in plan.split.edits):
        before = tree.read(path)
        edits = [
            ReplaceMethod(edit.class_name, edit.replaces, edit.source) for edit in plan.split.edits if edit.file == path
        ]
        after = apply_edits(before, edits, path=path, display=tree.display(path)).text
        found += prove_split(before, after, plan.split, path)
    return tuple(found)


def _prove_cut(plan: Plan, planned: Sequence[PlannedFile]) -> tuple[Diagnostic, ...]:
    """The methods on the way to the encoder, which are what they were without their new parameters, or with the methods
    that were made of parts of them in their place."""
    found: list[Diagnostic]
    from scaffold.cut import PreparedLoop, prove_cut, prove_extraction, prove_sharding

    texts = {file.path: (file.before or "", file.after) for file in planned}
    if plan.sharding is not None:
        found = []
        for path in plan.sharding.edits:
            methods = frozenset(place[1:] for place in plan.sharding.methods if place[0] == path)
            found += prove_sharding(*texts[path], methods, plan.sharding.name, path)
        return tuple(found)
    if plan.way is None:
        return ()
    loop = plan.extraction.prepared if plan.extraction is not None else None
    if plan.extraction is not None and not isinstance(loop, PreparedLoop):
        own = {place for place in plan.extraction.methods if place[0] in {edit.file for edit in plan.extraction.edits}}
        return tuple(
            problem
            for path in sorted({path for path, _, _ in own})
            for problem in prove_extraction(
                *texts[path],
                frozenset(place[1:] for place in own if place[0] == path),
                plan.extraction.after,
                path,
                plan.extraction.prepared.before if plan.extraction.prepared else None,
                plan.extraction.loop.name if plan.extraction.loop else None,
            )
        )
    found = []
    changed = plan.extraction.methods if plan.extraction is not None else [one.place for one in plan.way.changed]
    before, parameters = (
        (loop.before, loop.parameters) if isinstance(loop, PreparedLoop) else (None, plan.way.parameters)
    )
    for path in dict.fromkeys(path for path, _, _ in changed):
        methods = frozenset(place[1:] for place in changed if place[0] == path)
        file = next(file for file in planned if file.path == path)
        assert file.before is not None, "a way leads through files that are there"
        found += prove_cut(file.before, file.after, methods, path, parameters, before)
    return tuple(found)


def keep_refused(error: RefusedResult) -> Diagnostic:
    """Put the refused files into a new temporary folder, never into the tree, and say where."""
    import tempfile

    try:
        folder = Path(tempfile.mkdtemp(prefix="vitcg-refused-"))
        for change in error.changes:
            target = folder / change.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(change.after or b"")
    except OSError as problem:
        kept, advice = (
            f"the refused files could not be kept: {problem}",
            "make room in the temporary folder (TMPDIR) and run again",
        )
    else:
        kept, advice = f"nothing was written to the tree; the refused files are in {folder}", error.advice
    return Diagnostic("VCG624", kept, help=advice, severity=Severity.INFO)


def prove_numerics(port: AnyPort, tree: SourceTree, **options: Any) -> list[NumericReport]:
    """Run `port` in the CPU lab with the options of `numeric_requests`: one report an attention kernel (`tail`)."""
    from scaffold.verify.numeric import check_numerics_all

    return list(check_numerics_all(numeric_requests(port, tree, **options)))


def failures_of(port: AnyPort, reports: Sequence[NumericReport]) -> list[Diagnostic]:
    """Everything that is wrong in reports, each failure once, at the key of the descriptor that it names."""
    found = dict.fromkeys(problem for report in reports for problem in report.diagnostics())
    return [_placed(port, problem) for problem in found]


def _placed(port: AnyPort, problem: Diagnostic) -> Diagnostic:
    """A failure that names a method, an attribute or an input of the descriptor, with the place there."""
    from scaffold.descriptor.expressions import Call, path_names

    if problem.span is None and "columns of the embeddings failed" in problem.message:
        said = "give `output.hidden_size` the width of the model's embeddings: ranks without items return that many"
        return changed(problem, span=port.span("output.hidden_size"), help=said)
    quoted = set(re.findall(r"['`\"](\w+)['`\"]", problem.message))
    for use in port.uses if problem.span is None else ():
        called = [call.path for call in use.value.calls()] if isinstance(use.value, Call) else use.value.attributes
        if quoted.intersection(name for path in called for name in path_names(path)[1:]):
            said = f"`{use.at}: {use.node.value}`"
            return changed(problem, span=use.node.span, notes=(*problem.notes, f"the descriptor says {said}"))
    for at in port.spans if problem.span is None else ():
        if at.startswith("fields.") and at.rpartition(".")[2] in quoted:
            return changed(problem, span=port.span(at), notes=(*problem.notes, f"the descriptor says `{at}`"))
    return problem


def tails_of(port: AnyPort, tree: SourceTree) -> tuple[Tail, ...]:
    """The attention kernels that a port must be right with.

    FlashInfer's wants the lengths of sequences beside their offsets, which not every release's tower makes
    (Qwen2.5-VL's from 0.22 on); elsewhere that backend raises, with and without graphs. A port of rows that runs the
    model's code twice holds no offsets in two sections.
    """
    path = module_file(tree, port.module) if port.flashinfer else None  # None, too, where the tree lacks the model
    if path is None:
        serves = False
    elif port.packs_rows:
        serves = not prepare_port(port, tree, replace=True).plan.reenters
    else:
        serves = "maybe_compute_seq_lens(" in tree.read(path)
    return ("fa2", "fa3", "cudnn") if serves else ("fa2", "fa3")


def numeric_requests(
    port: AnyPort,
    tree: SourceTree,
    *,
    tails: Sequence[Tail] = ("fa3",),
    modalities: Sequence[str] = (),
    as_is: bool = False,
    recipe: str | None = None,
    config: str | None = None,
    values: Mapping[str, Any] = NOTHING,
    trust_remote_code: bool = False,
) -> list[NumericRequest]:
    """The requests of `verify` to the lab, one per kernel (`tail`). Requests of one tree share its import.

    `recipe` is a file, AUTOMATIC, or None for the shipped one, and the automatic one where none is shipped. `config` is
    the checkpoint's `config.json` or folder, and `values` are more of its values, those of parts nested: only the
    automatic recipe reads them. A port that the tree already has is
    compared with what `new` found there; where nothing tells that, it is checked as it is.

    Raises VCG511 for a tree that has the port in another state: what is proven must be what is there.
    """
    from scaffold.publish import published_changes
    from scaffold.verify.numeric import NumericOptions, NumericRequest

    overlay: dict[str, bytes] = {}
    before: dict[str, bytes] = {}
    counts_units = single = gated = False
    in_tree = True
    if not as_is:
        prepared = prepare_port(port, tree, replace=True)
        if (drift := find_drift(prepared, tree)) is not None:
            raise DiagnosticError(drift)
        counts_units, single = prepared.plan.counts_units, prepared.plan.single
        gated, in_tree = prepared.plan.methods.view.gate is not None, not prepared.plan.reenters
        port, changes = prepared.plan.port, prepared.package
        if not changes:
            changes = published_changes(tree.home, f"new {port.name}")
            before = {change.path: change.before or b"" for change in changes if runs(change.path)}
        overlay = {change.path: change.after for change in changes if change.after and runs(change.path)}
    label, automatic = choose_recipe(port, recipe, config, modalities, trust_remote_code, values)
    options = NumericOptions(
        image_embeds=True,  # the recipe knows whether the model takes them, whatever a port says
        data_parallel_switch=bool(port.switches) or (counts_units and not gated),
        min_budget_above_max=True,
        long_context=bool(port.tower) and not as_is,
        frames_above_capacity=True,
        edges=True,
        counts_units=counts_units,
        single=single,
        in_tree=in_tree,
        refused_embeds=_refused_embeds(tree, port.module, port.class_name),
        timeout_s=_time_limit(automatic),
    )
    return [
        NumericRequest(
            tree=tree.root,
            beside=folders_beside(tree),
            overlay=overlay,
            recipe=label,
            class_name=port.class_name,
            automatic=automatic,
            modalities=tuple(modalities) or tuple(port.modalities),
            release=_release(tree),
            tail=tail,
            options=options,
            before=before,
        )
        for tail in tails
    ]


def subclass_requests(port: AnyPort, tree: SourceTree, asked: NumericRequest) -> list[NumericRequest]:
    """Requests for the classes that inherit the port of `asked` and that vLLM serves: each with a model of its own."""
    from scaffold.protocol import find_subclasses
    from scaffold.protocol.registry import read_registry
    from scaffold.verify.numeric import Automatic
    from scaffold.verify.numeric.recipes import known_configuration, recipe_of

    served = read_registry(tree)
    requests = []
    for heir in find_subclasses(tree, port.module, port.class_name):
        module = heir.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        # The registry may name the package around a module.
        names = [
            name
            for name, one in served.items()
            if one.class_name == heir.class_name and f"{module}.".startswith(f"{one.dotted}.")
        ]
        if not names or heir.class_name in port.model.optout:
            continue
        recipe = recipe_of(names[0], module, heir.class_name)
        config = known_configuration(names)
        automatic = None if recipe else Automatic(module, heir.class_name, config, modalities=asked.modalities)
        requests.append(
            changed(
                asked,
                recipe=recipe or f"{heir.class_name} with an automatic recipe",
                automatic=automatic,
                options=changed(
                    asked.options,
                    inherited=True,
                    refused_embeds=_refused_embeds(tree, module, heir.class_name),
                    timeout_s=_time_limit(automatic),
                ),
            )
        )
    return requests


def _release(tree: SourceTree) -> str:
    """The release that a report names, or what the tree is instead."""
    from scaffold.protocol import own_version

    return own_version(tree) or tree.release or ""


def short_request(prepared: PreparedPort, tree: SourceTree) -> NumericRequest:
    """The request of `new` to the lab before it writes: the first calls of a proof of this change, on one kernel."""
    from scaffold.verify.numeric import NumericOptions, NumericRequest

    port = prepared.plan.port
    label, automatic = choose_recipe(port)
    return NumericRequest(
        tree=tree.root,
        beside=folders_beside(tree),
        overlay={change.path: change.after for change in prepared.package if change.after},
        recipe=label,
        class_name=port.class_name,
        automatic=automatic,
        modalities=tuple(port.modalities),
        release=_release(tree),
        options=NumericOptions(
            short=True,
            image_embeds=automatic is not None,
            counts_units=prepared.plan.counts_units,
            single=prepared.plan.single,
            in_tree=not prepared.plan.reenters,
            refused_embeds=_refused_embeds(tree, port.module, port.class_name),
            timeout_s=_time_limit(automatic),
        ),
    )


def _refused_embeds(tree: SourceTree, module: str, class_name: str) -> dict[str, dict[str, str]]:
    """Why the processor of a class refuses precomputed embeddings, by modality; a recipe may build another class."""
    from scaffold.descriptor.port import MODALITIES
    from scaffold.protocol import find_model
    from scaffold.tower.paths import ModelPaths

    paths = ModelPaths(tree, find_model(tree, module, class_name).path, class_name)
    return {class_name: {modality: why for modality in MODALITIES if (why := paths.refused_embeds(modality))}}


def recording_request(
    tree: SourceTree,
    model: str,
    *,
    recipe: str | None = None,
    config: str | None = None,
    values: Mapping[str, Any] = NOTHING,
    trust_remote_code: bool = False,
    modalities: Sequence[str] = (),
) -> NumericRequest:
    """The request to the lab for a recording of `model`, an architecture, FILE or FILE:CLASS of the tree.

    Without `modalities`, it is one of images and videos, and of sound where the model has neither.
    """
    from scaffold.draft import file_name, locate
    from scaffold.verify.numeric import Automatic, NumericOptions, NumericRequest
    from scaffold.verify.numeric.recipes import AUTOMATIC, known_configuration, recipe_of

    found = locate(tree, model)
    name = file_name(found.file)
    chosen = recipe or (None if config or values or modalities else recipe_of(name, found.module, found.class_name))
    automatic = None
    if chosen in (None, AUTOMATIC):
        automatic = Automatic(
            module=found.module,
            host_class=found.class_name,
            config=config or known_configuration(found.architectures),
            trust_remote_code=trust_remote_code,
            set=dict(values),
            modalities=tuple(modalities) or ("image", "video"),
        )
    return NumericRequest(
        tree=tree.root,
        beside=folders_beside(tree),
        overlay={},
        recipe=name if automatic else chosen or name,
        class_name=found.class_name,
        automatic=automatic,
        release=_release(tree),
        options=NumericOptions(timeout_s=_time_limit(automatic)),
    )


def folders_beside(tree: SourceTree) -> tuple[tuple[str, Path], ...]:
    """The packages beside vLLM's, with their folders, for the lab."""
    beside = tree.package
    return tuple((name, beside.root / name) for name in sorted(beside.names)) if beside is not None else ()


def _time_limit(automatic: Automatic | None) -> float:
    """Seconds: the sizes of an automatic recipe are the processor's, not tiny."""
    return 600.0 if automatic else 240.0


def choose_recipe(
    port: AnyPort,
    recipe: str | None = None,
    config: str | None = None,
    modalities: Sequence[str] = (),
    trust_remote_code: bool = False,
    values: Mapping[str, Any] = NOTHING,
) -> tuple[str, Automatic | None]:
    """The recipe that builds the model: its name or file, or a label and the settings of an automatic one."""
    from scaffold.descriptor.load import shipped_path
    from scaffold.descriptor.sections import Verify
    from scaffold.verify.numeric import Automatic
    from scaffold.verify.numeric.recipes import AUTOMATIC, known_configuration, recipe_of

    chosen = recipe or (None if config or values or port.verify else recipe_of(port.name, port.module, port.class_name))
    if chosen is not None and chosen != AUTOMATIC:
        return chosen, None
    said = port.verify or Verify()
    if said.config and not config:
        config = str((shipped_path(port.name) or Path(port.file)).parent / said.config)
    settings = Automatic(
        module=port.module,
        host_class=port.class_name,
        config=config or known_configuration([port.architecture]),
        trust_remote_code=trust_remote_code,
        set=_merged(said.set, values),
        keep=said.keep,
        images=tuple((width, height) for width, height in said.images),
        modalities=tuple(modalities) or tuple(port.modalities),
    )
    return f"{port.name} with an automatic recipe", settings


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with others over them."""
    both = {
        name: _merged(old[name], value) if isinstance(value, Mapping) and isinstance(old.get(name), Mapping) else value
        for name, value in new.items()
    }
    return {**old, **both}


def runs(path: str) -> bool:
    """Whether a changed file is of a package, so that a model runs it: a tree has tests, docs and examples beside."""
    return path.endswith(".py") and not path.startswith(_BESIDE_PACKAGES)
