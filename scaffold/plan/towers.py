"""Plans the changes of the tower and of the model class that a port needs beside the protocol methods.

A pristine tower is split; one that is split already is used as it is, after a look at what its metadata method returns
and takes. The `__init__` of the model class may get statements more. It keeps the model's configuration where the port
takes the number of frames from it and the class has neither that nor vLLM's. It keeps the captured
offsets where the manager pads no batch to them.
"""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from scaffold.descriptor import CutPort, PackedPort, ReentryPort
from scaffold.descriptor.expressions import Call, Expression, path_names
from scaffold.descriptor.port import LONGEST
from scaffold.descriptor.sections import ExplicitRows
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.edit.operations import AddImport, Edit, ReplaceMethod
from scaffold.plan.code import CAPACITIES
from scaffold.plan.cut import extraction_facts, is_data_parallel, plan_way, way_facts
from scaffold.plan.file_plans import Fact
from scaffold.plan.methods import MODELS
from scaffold.plan.processor import known_constants
from scaffold.plan.views import DATA_PARALLEL, TreeFacts, counter_of
from scaffold.protocol import find_model, find_subclasses
from scaffold.syntax import (
    FunctionNode,
    assigned_to,
    call_name,
    dotted,
    find_method,
    has_attribute,
    import_source,
    is_cast,
    last_name,
    made_by,
    self_attribute,
    sets,
    statements,
)
from scaffold.tower import (
    Kind,
    attention_leaves_rows,
    conversion_of_pixels,
    made_of_pixels,
    misfits,
    own_attention_leaves_rows,
    slice_tower,
    split_tower,
)
from scaffold.tower.names import mentions
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.cut import Extraction, Sharding, Way
    from scaffold.cut.extract import Prepared
    from scaffold.descriptor import AnyPort, PathsPort, TilesPort
    from scaffold.protocol import Dialect, ModelAnchor, SourceTree
    from scaffold.tower import Parameter, TowerSlice, TowerSplit
    from scaffold.tower.source import Module, Owner

#: vLLM's hook that runs mypy, with the folders that it leaves out.
_TYPE_CHECK = "tools/pre_commit/mypy.py"

#: vLLM's functions that share an item's work.
_SHARDED = "run_dp_sharded"

#: The attribute with the offsets of each captured graph, where the manager pads no buffer (until 0.22).
_OFFSETS = "_encoder_cudagraph_offsets"

#: vLLM's functions that pad the offsets of a batch with empty sequences, and of a batch of FlashInfer's.
_PADDING = ("_pad_cumulative_seqlens_buffer", "_pad_flashinfer_cu_seqlens_buffer")

#: Where they are, if not beside a tower.
_PADDING_FILE = f"{MODELS}qwen2_5_vl.py"

#: A class and its bases in the tree, the nearest first, each with its module.
Family: TypeAlias = "tuple[Owner, ...]"


@dataclass(frozen=True)
class TowerPlan:
    """Edits by file, the split among them (None: nothing to split), and what was learnt of the tree.

    `class_name` is the tower's class, None for a port that asks its tower for no metadata.
    """

    edits: dict[str, tuple[Edit, ...]]
    split: TowerSplit | None
    facts: TreeFacts
    evidence: tuple[Fact, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    way: Way | None = None
    class_name: str | None = None


def port_in(port: AnyPort, tree: SourceTree, dialect: Dialect) -> AnyPort:
    """The port of a model for this tree: another one, where the tower has a method for its metadata already, or of
    images alone, where the protocol has explicit ports."""
    other = port.in_tree
    if isinstance(other, PackedPort):
        with suppress(DiagnosticError):
            model = find_model(tree, port.module, port.class_name)
            if slice_of(other, tree, model).already_split:
                return other
    elif isinstance(other, CutPort) and dialect.paths.value == "named":
        return other
    return port


def plan_tower(port: AnyPort, tree: SourceTree, model: ModelAnchor, dialect: Dialect | None = None) -> TowerPlan:
    """The tower's part of a port. Raises VCG45x when the tower cannot be split, VCG429 when it does not fit.

    `dialect`: the protocol of a port in a tree; None for an adapter.
    """
    program = Program(tree)
    family = tuple(program.lineage(program.owner(model.path, model.class_name)))
    facts, notes = _gate(port, model, family)
    facts = replace(
        facts,
        checks_types=_checks_types(tree),
        in_tree=True,
        constants=known_constants(port, tree),
        shares_items=_shares_items(port, program, family, tree),
        cross_attends=_cross_attends(family),
        embeds_nothing=_embeds_nothing(family),
        embeds_are_cast=port.embeds is not None and any(is_cast(owner, port.embeds) for _, owner in family),
        optional=_optional(family),
        on_host=_on_host(family),
    )
    _check_elements(port, family, tree)
    if isinstance(port, ReentryPort):
        from scaffold.cut import Extraction, Form, cut_edits, find_extraction, find_layers, find_looped_layers

        way = plan_way(port, tree, model)
        if isinstance(port, CutPort):
            facts = replace(facts, has_input_dtype=_has_input_dtype(port.pixels.dtype, "self", program, family))
        if port.explicit is not None:
            [entry] = {modality.entry for modality in port.modalities.values()}
            if isinstance(port.explicit, ExplicitRows):
                form = Form(entry, None, port.explicit.after, port.span("explicit"))
                before, filled = port.explicit.before, not attention_leaves_rows(tree)
                if port.explicit.layers is not None:
                    types = _types(port.explicit)
                    found = find_looped_layers(tree, way, form, before, port.explicit.layers, filled, types)
                else:
                    found = find_layers(tree, family, way, form, before, filled)
                if isinstance(found, Extraction) and found.prepared is not None:
                    _check_arguments(port, port.explicit, found.prepared)
                    padding = _padding(program, family[0][0], model.path, flashinfer=port.flashinfer)
                    facts = replace(facts, padding=padding)
            else:
                assert isinstance(port, CutPort)
                explicit, beside = port.explicit, tuple(port.beside)
                form = Form(entry, explicit.call, explicit.after, port.span("explicit"), beside, explicit.items)
                found = find_extraction(tree, family, way, form)
            if isinstance(found, Extraction):
                gated = facts.has_gate and not _shards_nothing(port, program, family)
                copies = _copies(port, program, family, tree, found)
                facts = replace(facts, extraction=found, has_gate=gated, copies=copies)
                return TowerPlan(found.by_file(), None, facts, extraction_facts(way, found), notes, way)
            notes = (*notes, found)
        facts = replace(
            facts,
            attention_fills_zeros=not attention_leaves_rows(tree),
            input_classes=tuple(_input_classes(port, program, family[0])),
        )
        return TowerPlan(cut_edits(tree, way, port.returns), None, facts, way_facts(way), (*notes, *way.notes), way)
    if not isinstance(port, PackedPort):
        facts = replace(facts, converted=_converted(port, family))
        sharding = _sharding(port, tree, model, program)
        if sharding is None:
            return TowerPlan({}, None, facts, notes=notes)
        passed = tuple(Fact(f"gets {sharding.name}", f"{owner}.{name}", path) for path, owner, name in sharding.methods)
        return TowerPlan(sharding.edits, None, replace(facts, sharding=sharding), passed, notes)
    tower = _slice(port, tree, model, family, program)
    module, owner = program.owner(tower.file, tower.class_name)
    facts = replace(
        facts,
        has_input_dtype=_has_input_dtype(port.pixels.dtype, f"self.{port.tower}", program, [(module, owner)]),
        has_vllm_config=_has(family, "vllm_config"),
        has_multimodal_config=_keeps_inputs(family, typed=facts.checks_types),
        attention_fills_zeros=not (attention_leaves_rows(tree) or own_attention_leaves_rows(tree, tower.file)),
        has_lengths=bool(port.lengths & set(tower.keys)),
        info_class=_info_class(port.frames_info, program, family[0]) if port.frames_info else None,
        normalised=_normalised(port, family, tree.span(model.path, model.line)),
        counters=frozenset(name for name in map(counter_of, port.attention) if _counts(program, (module, owner), name)),
        device_bounds=tuple(_device_bounds(tower)),
    )
    if facts.attention_fills_zeros:  # elsewhere the rows behind a batch need sequences
        flashinfer = port.flashinfer and facts.has_lengths is not False
        facts = replace(facts, padding=_padding(program, module, model.path, flashinfer=flashinfer))
    frames = port.sequences[0].unit != "item"
    split = None if tower.already_split else split_tower(tower, frames=frames)
    if split is not None:
        facts = replace(facts, sync_guard=_sync_guard(tree), waits=tuple(_waits(tower)))
    parameters = split.method_parameters if split else tower.method_parameters
    _check_fit(port, tower, parameters, tree.span(tower.file, owner.lineno))
    edits: defaultdict[str, list[Edit]] = defaultdict(list)
    if split is not None:
        for part in split.edits:
            edits[part.file] += [AddImport(module, name) for module, name in part.imports]
            edits[part.file].append(ReplaceMethod(part.class_name, part.replaces, part.source))
    inits = _Inits(port, program, tree, family)
    knows = facts.has_vllm_config or _has(family, "model_config")
    # In a package, all changes of vLLM's own classes are refused together (VCG499).
    keep = inits.keep_everywhere if tree.package is None else inits.keep
    if port.frames_info and not knows and not keep("model_config", "vllm_config.model_config"):
        raise DiagnosticError.of(
            "VCG419",
            f"{model.class_name}, or a subclass of it, keeps no configuration to ask for the number of frames",
            tree.span(model.path, model.line),
            "give budget.frames as an expression instead of a method of the processing info",
        )
    if dialect is not None and not dialect.padding_logics:
        kept = inits.keep_everywhere(_OFFSETS, "{}", "dict[int, dict[str, torch.Tensor]]")
        facts = replace(facts, keeps_offsets=kept)
    for path, edit in inits.edits():
        edits[path].append(edit)
    state = "split already, used as it is" if tower.already_split else f"split: {len(tower.crossings)} values move"
    evidence = (
        Fact("tower", f"{tower.class_name}, {state}", tower.file),
        Fact("metadata", ", ".join(tower.keys), f"{tower.metadata_method or 'prepare_encoder_metadata'}"),
    )
    files = {path: tuple(items) for path, items in edits.items()}
    return TowerPlan(files, split, facts, evidence, notes, class_name=tower.class_name)


def _sharding(port: TilesPort | PathsPort, tree: SourceTree, model: ModelAnchor, program: Program) -> Sharding | None:
    """The methods that get a parameter for the switches of a port; None where a run may not change one of them."""
    from scaffold.cut import find_sharding

    if not port.switches:
        return None
    heirs = find_subclasses(tree, dotted(model.path), model.class_name)
    found = find_sharding(
        tree,
        program.owner(model.path, model.class_name),
        [program.owner(heir.path, heir.class_name) for heir in heirs],
        port.forward.call.python({"pixels": "pixels"}),
        port.switches,
    )
    foreign = tree.package is not None and found is not None and any(tree.beside(path) is None for path in found.edits)
    return None if foreign else found


def _types(explicit: ExplicitRows) -> dict[str, str]:
    """The types of the variables that layers in a loop read."""
    types = dict.fromkeys([*explicit.rows, explicit.offsets], "torch.Tensor") | {
        explicit.longest: "torch.Tensor | None"
    }
    return types | ({explicit.rotary: "tuple[torch.Tensor, torch.Tensor]"} if explicit.rotary else {})


def _check_arguments(port: ReentryPort, explicit: ExplicitRows, layers: Prepared) -> None:
    """Raise VCG443 for a variable of `explicit` that the encoder's call does not read, and for one that it misses."""
    read = {node.id for node in ast.walk(layers.encode) if isinstance(node, ast.Name)} & {*layers.made, LONGEST}
    keys = [key for key in ("rotary", "offsets", "longest", "lengths") if getattr(explicit, key) is not None]
    said = {name: f"rows.{name}" for name in explicit.rows} | {getattr(explicit, key): key for key in keys}
    at = [(key, f"the encoder's call reads no `{name}`") for name, key in said.items() if name not in read]
    at += [("before", f"the encoder's call reads `{name}`, which is no buffer") for name in sorted(read - said.keys())]
    if at:
        fix = f"name each of {', '.join(f'`{name}`' for name in sorted(read))} once, and no other"
        raise DiagnosticError([Diagnostic("VCG443", text, port.span(f"explicit.{key}"), fix) for key, text in at])


def _shards_nothing(port: ReentryPort, program: Program, family: Family) -> bool:
    """Whether data parallelism alone is a port's gate, and no class that the model's files name shards an item's work.

    Then the manager's own sharding serves an explicit port: it hands each rank whole items and gathers embeddings. A
    layer that ranks share would mix them; the lab looks for such layers in all that a graph holds (VCG670).
    """
    if port.gate is None or port.gate.text != DATA_PARALLEL:
        return False
    from scaffold.cut import splits_weights

    named = [program.resolve(module, name) for module, _ in family for name in (*module.imports, *module.classes)]
    code = [owner for _, owner in [*family, *filter(None, named)]]
    return not any(
        splits_weights(node) or (isinstance(node, ast.Name) and node.id.startswith(_SHARDED))
        for one in code
        for node in ast.walk(one)
    )


def _copies(port: AnyPort, program: Program, family: Family, tree: SourceTree, found: Extraction) -> bool:
    """Whether embeddings may be views of what a graph gives, in the model or in a class that inherits its port."""
    from scaffold.cut import gives_own_memory, returns_own_memory

    heirs = find_subclasses(tree, port.module, port.class_name)
    ported = [program.owner(heir.path, heir.class_name) for heir in heirs if heir.class_name not in port.model.optout]
    post = port.explicit.post if isinstance(port.explicit, ExplicitRows) else None
    if post is not None:
        return not all(gives_own_memory(program, owner, post) for owner in (family[0], *ported))
    return found.after is not None and not all(
        returns_own_memory(program, owner, found) for owner in (family[0], *ported)
    )


def _on_host(family: Family) -> frozenset[str]:
    """The fields that a processor keeps on the host, and that classes of parsed inputs know as tensors alone."""
    modules = {module.file: module.tree for module, _ in family}.values()
    kept: set[str] = set()
    types: defaultdict[str, list[str]] = defaultdict(list)
    for node in (node for tree in modules for node in ast.walk(tree)):
        match node:
            case ast.keyword(arg=str(name), value=ast.Call(keywords=given)):
                kept |= {name for one in given if one.arg == "keep_on_cpu"}
            case ast.AnnAssign(target=ast.Name(name), annotation=note):
                types[name].append(ast.unparse(note))
    return frozenset(
        name for name in kept if types[name] and all("Tensor" in one and "list[" not in one for one in types[name])
    )


def _optional(family: Family) -> frozenset[str]:
    """The attributes that may be None: `self.vision: Tower | None`, `self.vision = Tower() if enabled else None`."""

    def may_be_none(node: ast.stmt) -> bool:
        match node:
            case ast.Assign(value=ast.IfExp(body=ast.Constant(None)) | ast.IfExp(orelse=ast.Constant(None))):
                return True
            case ast.AnnAssign(annotation=note):
                return ast.unparse(note).endswith("| None") or ast.unparse(note).startswith("Optional[")
        return False

    found = [node for _, owner in family for node in statements(owner) if may_be_none(node)]
    return frozenset(filter(None, (self_attribute(target) for node in found for target in assigned_to(node))))


def _padding(program: Program, tower: Module, path: str, *, flashinfer: bool) -> tuple[tuple[str, str], ...]:
    """vLLM's functions that pad offsets: all that a port in the file `path` needs and may import, or none.

    Those of a tower's own module come first.
    """
    wanted = _PADDING if flashinfer else _PADDING[:1]
    for module in (tower, program.module(_PADDING_FILE)):
        if module is None or not set(wanted) <= module.functions.keys():
            continue
        if path == module.file or path not in _imported_models(program, module):
            beside = module.file != path and module.file.startswith(MODELS) and path.startswith(MODELS)
            source = f".{dotted(module.file.removeprefix(MODELS))}" if beside else dotted(module.file)
            return tuple((source, name) for name in wanted)
    return ()


def _imported_models(program: Program, module: Module) -> set[str]:
    """The files of vLLM's models that a module imports, and those import: none of them may import the module."""
    seen: set[str] = set()
    pending = [module]
    while pending:
        for name, member in pending.pop().imports.values():
            for dots in (name, f"{name}.{member}"):
                file = f"{dots.replace('.', '/')}.py"
                found = program.module(file) if file.startswith(MODELS) and file not in seen else None
                if found is not None:
                    seen.add(file)
                    pending.append(found)
    return seen


def _sync_guard(tree: SourceTree) -> str | None:
    """The module of `gpu_sync_allowed`, in which vLLM's check of a step allows to wait for the GPU (0.28 on)."""
    path = "vllm/utils/gpu_sync_debug.py"
    return dotted(path) if tree.exists(path) and "\ndef gpu_sync_allowed(" in tree.read(path) else None


def _checks_types(tree: SourceTree) -> bool:
    """Whether the tree's own checks read the types of model files. They left out all or some of them before 0.32."""
    return tree.exists(_TYPE_CHECK) and "vllm/model_executor/models" not in tree.read(_TYPE_CHECK)


def _info_class(method: str, program: Program, owner: Owner) -> tuple[str, str] | None:
    """Where the processing info that a model is registered with has a method from: a module and a class of the tree."""
    module, node = owner
    given = [
        keyword.value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and last_name(decorator.func) == "register_processor"
        for keyword in decorator.keywords
        if keyword.arg == "info"
    ]
    info = program.resolve(module, ast.unparse(given[0])) if given else None
    if info is None or not isinstance(info[1], ast.ClassDef):
        return None
    found = program.method((info[0], info[1]), method)
    if found is None:
        return None
    home, name = dotted(found[0].file), found[1].name
    # The model's file may have the class from another module, which has it from its home itself.
    imports = (node for node in module.tree.body if isinstance(node, ast.ImportFrom))
    from_where = [import_source(module.file, node) for node in imports if any(a.name == name for a in node.names)]
    return (from_where[0] if from_where else home, name)


def _input_classes(port: ReentryPort, program: Program, owner: Owner) -> Iterator[tuple[str, str]]:
    """The class of parsed inputs that the entry of a modality takes, where the method that parses may give another."""
    for name, modality in port.modalities.items():
        call = modality.entry
        if not call.args or not isinstance(call.args[0], Call):
            continue
        entry, parse = (program.method(owner, path.removeprefix("self.")) for path in (call.path, call.args[0].path))
        taken = entry and entry[2].args.args[1].annotation
        if entry is None or parse is None or not isinstance(taken, ast.Name) or parse[2].returns is None:
            continue
        known = program.resolve(entry[0], taken.id)
        given = {ast.unparse(node) for node in ast.walk(parse[2].returns) if isinstance(node, ast.Name)}
        if entry[0] is owner[0] and known and isinstance(known[1], ast.ClassDef) and taken.id not in given:
            yield name, taken.id


def slice_of(port: PackedPort, tree: SourceTree, model: ModelAnchor) -> TowerSlice:
    """The slice of the tower that the descriptor names. Raises VCG419 or VCG45x."""
    program = Program(tree)
    return _slice(port, tree, model, tuple(program.lineage(program.owner(model.path, model.class_name))), program)


def _slice(port: PackedPort, tree: SourceTree, model: ModelAnchor, family: Family, program: Program) -> TowerSlice:
    named = port.split.class_
    path, class_name = (_home(program, family, named), named) if named else _tower_class(port, tree, model, family)
    return slice_tower(
        tree,
        path,
        class_name,
        entry=port.split.entry,
        data=(port.split.data,),
        metadata=port.split.metadata,
        names=dict(port.split.names),
    )


def _device_bounds(tower: TowerSlice) -> list[str]:
    """Bounds of sequences that a tower to be split, or a part of it, computes on its device."""
    own = [one.key for one in tower.crossings if one.kind is Kind.HOST_BOUND and one.host is False]
    return own + [key for child in tower.children for key in _device_bounds(child.slice)]


def _waits(tower: TowerSlice) -> dict[str, None]:
    """Reasons for which the moved statements of a tower still wait for the GPU, each once."""
    return {hazard.what: None for hazard in tower.hazards if hazard.moved and hazard.waits}


def _home(program: Program, family: Family, named: str) -> str:
    """The nearest file of the model class and its bases that defines or imports a class; the model's, if none does."""
    files = [module.file for module, _ in family]
    return next((module.file for module, _ in family if program.resolve(module, named)), files[0])


def _gate(port: AnyPort, model: ModelAnchor, family: Family) -> tuple[TreeFacts, tuple[Diagnostic, ...]]:
    """Leave the gate out where the release does not have the feature that it asks about."""
    if port.gate is None:
        return TreeFacts(), ()
    wanted = ((path, path_names(path)[1]) for path in port.gate.attributes)
    missing = sorted(path for path, name in wanted if not any(has_attribute(owner, name) for _, owner in family))
    if not missing:
        return TreeFacts(), ()
    note = Diagnostic(
        "VCG429",
        f"{model.class_name} has no {', '.join(missing)} in this tree; the gate is left out",
        port.span("gates.modalities"),
        "nothing to do if the release lacks the feature; otherwise correct the attribute's name",
        Severity.WARNING,
    )
    return TreeFacts(has_gate=False), (note,)


def _tower_class(port: PackedPort, tree: SourceTree, model: ModelAnchor, family: Family) -> tuple[str, str]:
    """The file and the class of `self.TOWER = Class(...)` in the model class or its nearest base that has it."""
    for module, owner in family:
        found = made_by(owner, port.tower)
        if found is not None:
            return module.file, found
    raise DiagnosticError.of(
        "VCG419",
        f"{model.class_name} does not assign self.{port.tower} from a class",
        tree.span(model.path, model.line),
        "name the class under tower.class in the descriptor, or correct model.tower",
        notes=(f"asked for by {port.span('model.tower')}",),
    )


def _check_fit(port: PackedPort, tower: TowerSlice, parameters: Sequence[Parameter], place: Span) -> None:
    """The metadata method has what the generated methods use: keys, parameters of capacities, the form of the grid."""
    wanted = [name for names in port.tower_parameters for name in names]
    problems = misfits(
        tower, parameters, keys=port.tower_keys, lengths=port.lengths, wanted=wanted, grid=port.split.grid
    )
    if problems:
        raise DiagnosticError.of(
            "VCG418",
            f"{tower.class_name} does not fit the descriptor: {'; '.join(problems)}",
            place,
            "compare `buffers` and `attention` with `vitcg-scaffold inspect`",
            notes=(f"asked for by {port.span('buffers')} and {port.span('tower.grid')}",),
        )


def _check_elements(port: AnyPort, family: Family, tree: SourceTree) -> None:
    """No expression takes for a number what the model class itself takes apart: `h, w = self.config.image_size`."""
    apart: dict[str, tuple[str, int]] = {}
    for module, owner in family:
        for node in ast.walk(owner):
            unpacked = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
            element = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
            if isinstance(node, (ast.Assign, ast.Subscript)) and (unpacked or element):
                apart.setdefault(ast.unparse(node.value), (module.file, node.lineno))
    problems = [
        Diagnostic(
            "VCG419",
            f"`{path}` is a list, not a number: {family[0][1].name} takes it apart",
            tree.span(*apart[path]),
            f"read one of its elements: {path}[0]",
            notes=(f"asked for by {port.span(use.at)}",),
        )
        for use in port.uses
        if isinstance(use.value, Expression)
        for path in sorted(use.value.attributes & apart.keys())
    ]
    if problems:
        raise DiagnosticError(problems)


def _counts(program: Program, tower: Owner, name: str) -> bool:
    """Whether the tower has this method, with the parameters that the generated call has."""
    found = program.method(tower, name)
    return found is not None and [arg.arg for arg in found[2].args.args] == ["self", *CAPACITIES.values()]


def _has_input_dtype(dtype: str | None, holder: str, program: Program, family: Sequence[Owner]) -> bool:
    """Whether the `holder`, one of these classes, has the attribute of `pixels.dtype`: `input_norm.input_dtype`.

    The holder's attribute alone is not enough: 0.30 has an `input_norm` without an `input_dtype`.
    """
    path = (dtype or "").removeprefix(f"{holder}.").split(".")
    if len(path) != 2:
        return False
    values = (
        (module, node.value)
        for module, owner in family
        for node in statements(owner)
        if isinstance(node, ast.Assign) and sets(node, path[0])
    )
    names = {(module, name) for module, value in values for name in mentions(value)}
    makers = [found[1] for module, name in names if (found := program.resolve(module, name))]
    return any(isinstance(maker, ast.ClassDef) and _declares(maker, path[1]) for maker in makers)


def _declares(owner: ast.ClassDef, attribute: str) -> bool:
    return has_attribute(owner, attribute) or any(
        isinstance(part, ast.Name) and part.id == attribute for part in ast.walk(owner)
    )


def _normalised(port: PackedPort, family: Family, place: Span) -> str:
    """The expression for the pixels that the model's methods hand to the tower; `{pixels}` stands for those they get.

    Raises VCG429 where the methods differ.
    """
    found = made_of_pixels([owner for _, owner in family], port.tower)
    if len(found) > 1:
        raise DiagnosticError.of(
            "VCG429",
            f"the methods of the model make different things of the pixels: {', '.join(sorted(found))}",
            place,
            "let all of them normalise pixels in one way, or move it into the tower",
        )
    return next(iter(found), "{pixels}")


def _converted(port: TilesPort | PathsPort, family: Family) -> str:
    """The conversion of pixels in the model's methods before the call of the port that takes them first."""
    called = {
        call.path
        for call in port.forward.call.calls()
        if "pixels" in [getattr(arg, "name", "") for arg in call.args[:1]]
    }
    return conversion_of_pixels([owner for _, owner in family], called)


def _shares_items(port: AnyPort, program: Program, family: Family, tree: SourceTree) -> bool:
    """Whether ranks may share the items of a batch: the class, or one that inherits its port, says that it can."""
    heirs = (program.owner(heir.path, heir.class_name) for heir in find_subclasses(tree, port.module, port.class_name))
    return any(is_data_parallel(node) for _, owner in (*family, *heirs) for node in owner.body)


def _cross_attends(family: Family) -> bool:
    """Whether `forward` gets the features of an encoder beside the tokens of the decoder, as Whisper's does."""
    forward = _nearest(family, "forward")
    return forward is not None and any(argument.arg == "encoder_outputs" for argument in forward.args.args)


def _embeds_nothing(family: Family) -> bool:
    """Whether the nearest `embed_multimodal` says that it may return None."""
    method = _nearest(family, "embed_multimodal")
    returns = ast.unparse(method.returns) if method is not None and method.returns is not None else ""
    return "None" in returns or "Optional" in returns


def _nearest(family: Family, name: str) -> FunctionNode | None:
    """The method of a class, or of its nearest base that has one."""
    methods = (find_method(owner, name) for _, owner in family)
    return next((method for method in methods if method is not None), None)


def _keeps_inputs(family: Family, *, typed: bool) -> bool:
    """Whether a class keeps the configuration of its inputs; `typed`: as one that is never None."""
    owner = next((owner for _, owner in family if has_attribute(owner, "multimodal_config")), None)
    if owner is None or not typed:
        return owner is not None
    return any(call_name(node) == "get_multimodal_config" for node in ast.walk(owner))


def _has(family: Family, attribute: str) -> bool:
    return any(has_attribute(member, attribute) for _, member in family)


@dataclass(frozen=True)
class ConfiguringInit:
    """An `__init__` that keeps the model's configuration, its file's text, and the last statement that keeps it."""

    file: str
    class_name: str
    text: str
    node: FunctionNode
    anchor: ast.stmt

    def keep(self, statements: Sequence[str]) -> ReplaceMethod:
        """The edit that puts more statements behind it."""
        lines, after = self.text.splitlines(), self.anchor.end_lineno or self.anchor.lineno
        first = min([self.node.lineno, *(node.lineno for node in self.node.decorator_list)])
        more = [f"{' ' * self.anchor.col_offset}{statement}" for statement in statements]
        source = "\n".join([*lines[first - 1 : after], *more, *lines[after : self.node.end_lineno]])
        return ReplaceMethod(self.class_name, "__init__", textwrap.dedent(source) + "\n")


class _Inits:
    """The statements that the `__init__` of a model, and those of its subclasses, get more."""

    def __init__(self, port: PackedPort, program: Program, tree: SourceTree, family: Family) -> None:
        heirs = find_subclasses(tree, port.module, port.class_name)
        ported = [heir for heir in heirs if heir.class_name not in port.model.optout]
        self.tree = tree
        self.families = [family, *(tuple(program.lineage(program.owner(h.path, h.class_name))) for h in ported)]
        self.statements: dict[ConfiguringInit, list[str]] = {}

    def keep(self, attribute: str, value: str) -> bool:
        """Whether the model can keep a value, which then is kept."""
        return self._keep([_configuring_init(self.families[0])], f"self.{attribute} = {value}")

    def keep_everywhere(self, attribute: str, value: str, annotation: str = "") -> bool:
        """Whether the model and each subclass with its port can, or do; none of them does where one cannot."""
        if any(find_method(owner, attribute) for family in self.families for _, owner in family):
            return False  # a property of an earlier port, which could not
        found = [_configuring_init(family) for family in self.families if not _has(family, attribute)]
        foreign = [one for one in found if one and self.tree.package is not None and not self.tree.beside(one.file)]
        kind = f": {annotation}" if annotation else ""
        return not found or (not foreign and self._keep(found, f"self.{attribute}{kind} = {value}"))

    def _keep(self, found: Sequence[ConfiguringInit | None], statement: str) -> bool:
        changes = [init for init in found if init is not None]
        if len(changes) < len(found):
            return False
        for init in dict.fromkeys(changes):
            self.statements.setdefault(init, []).append(statement)
        return True

    def edits(self) -> Iterator[tuple[str, Edit]]:
        """An edit for each, with its file."""
        return ((init.file, init.keep(statements)) for init, statements in self.statements.items())


def _configuring_init(family: Family) -> ConfiguringInit | None:
    """The nearest `__init__` that keeps the configuration.

    A class whose `__init__` does not hand on to that of its base ends the search.
    """
    for module, owner in family:
        init = find_method(owner, "__init__")
        if init is None:
            continue
        kept = [node for name in ("config", "model_config") for node in init.body if sets(node, name)]
        if kept and sets(kept[0], "config"):
            return ConfiguringInit(module.file, owner.name, module.text, init, kept[-1])
        if not any(isinstance(node, ast.Expr) and "super().__init__(" in ast.unparse(node) for node in init.body):
            return None
    return None
