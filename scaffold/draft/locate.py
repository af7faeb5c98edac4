"""From an architecture or a file to the model class, and from there to its processor and processing info."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.sheet import SourceLine
from scaffold.protocol.generations import GENERATIONS
from scaffold.protocol.registry import MULTIMODAL, REGISTRY, RegisteredModel, read_registry, registry_lines
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import (
    FunctionNode,
    assigned_to,
    bind_call,
    call_name,
    find_class,
    find_method,
    name_path,
    plain_base,
    top_level,
    values_of,
)
from scaffold.tower.names import mentions
from scaffold.tower.source import Module, Owner, Program

_MODELS = "vllm/model_executor/models"
#: Tables of models that generate text. Those of the others only pool.
_GENERATING = (MULTIMODAL, "_TEXT_GENERATION_MODELS")
_REGISTER = "register_processor"
_EMBED = "embed_multimodal"
#: Tables of the registry with architectures that left vLLM: name -> last release, name -> the plugin that has it.
_PREVIOUS, _PLUGINS = "_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS"
#: The part of an architecture's name that most of them share.
_TASK = re.compile(r"(?<=.)(For[A-Z]\w*|ChatModel|Model)$")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model class of a tree and what its processor is made of. `found` is where its architecture, or it, stands.

    `architectures` has the given name, the class's own and those of the registry, in this order, and whether each
    generates text. `module` is as a descriptor names it: bare below the models folder, dotted elsewhere.
    """

    tree: SourceTree
    program: Program
    architectures: Mapping[str, bool]
    module: str
    owner: Owner
    found: SourceLine
    processor: Owner
    processor_place: SourceLine
    info: Owner | None

    @property
    def file(self) -> str:
        return self.owner[0].file

    @property
    def class_name(self) -> str:
        return self.owner[1].name

    @property
    def place(self) -> SourceLine:
        return SourceLine(self.file, self.owner[1].lineno)

    def assigned(self) -> Iterator[tuple[Module, ast.expr, ast.expr]]:
        """The targets of assignments in the model's class and its bases, each with its module and its value."""
        for module, cls in self.program.lineage(self.owner):
            for node in ast.walk(cls):
                value = getattr(node, "value", None)
                yield from ((module, target, value) for target in assigned_to(node) if value is not None)


def locate(tree: SourceTree, reference: str) -> Subject:
    """The model that `reference` means: an architecture of the registry, `FILE` or `FILE:CLASS`.

    A file below the models folder may go by its name alone, with `.py` or without, and an architecture by what no other
    has in its name. Raises VCG480 (no such architecture), VCG481 (no multimodal model class), VCG482 (a file of another
    tree), VCG497 (a base that cannot be followed, where no other code of the class has what is looked for).
    """
    program = Program(tree)
    given, _, cls = reference.partition(":")
    name = given.removesuffix(".py")
    if name.isidentifier() and not tree.exists(given) and tree.exists(f"{_MODELS}/{name}.py"):
        reference = f"{_MODELS}/{name}.py{':' * bool(cls)}{cls}"
    reference = _in_package(tree, reference)
    if "/" in reference or "\\" in reference or reference.partition(":")[0].endswith(".py"):
        owner, found = _by_file(tree, program, reference)
    else:
        reference = _architecture(tree, reference)
        owner, found = _by_architecture(tree, program, reference)
    module, class_name = owner[0], owner[1].name
    if program.method(owner, _EMBED) is None:
        problem = Diagnostic(
            "VCG481",
            f"`{class_name}` is no multimodal model: it has no `{_EMBED}`",
            tree.span(module.file, owner[1].lineno),
            "name a class with `embed_multimodal` and a processor that is registered with MULTIMODAL_REGISTRY",
        )
        raise DiagnosticError(unfollowed_bases(tree, program, [owner]) or [problem])
    makers = ((module, cls) for cls in module.classes.values() if class_name in served_classes((module, cls)))
    found_processors = (_processor(program, one) for one in (owner, *makers))
    registered = next((one for one in found_processors if one is not None), None)
    if registered is None:
        raise DiagnosticError(unfollowed_bases(tree, program, [owner]) or [_without_processor(tree, program, owner)])
    processor, info, place = registered
    names = _names(tree, program, owner)
    if reference in names:
        names = {reference: names[reference]} | names
    path = Path(module.file)
    name = path.stem if path.parent.as_posix() == _MODELS else ".".join(path.with_suffix("").parts)
    return Subject(tree, program, names, name, owner, found, processor, place, info)


def unfollowed_bases(
    tree: SourceTree, program: Program, owners: Iterable[Owner | None], why: Iterable[Diagnostic] = ()
) -> list[Diagnostic]:
    """One VCG497 for each base that is not in the tree, with the reasons why the rest tells too little as notes."""
    notes = tuple(f"without it: {one.message.removeprefix('the model is beyond the layouts: ')}" for one in why)
    found: dict[tuple[str, int], Diagnostic] = {}
    for owner in owners:
        for module, cls, base in program.unfollowed(owner) if owner is not None else ():
            text = ast.unparse(base)
            package = _package(module, (name_path(plain_base(base)) or [""])[0])
            lost = f"is code of `{package}`, which the tree does not have" if package else "is made at run time"
            found[module.file, base.lineno] = Diagnostic(
                "VCG497",
                f"the base `{text}` of `{cls.name}` cannot be followed: it {lost}",
                tree.span(module.file, base.lineno),
                "name its package with --package, or copy its file into the tree and import it from there"
                if package
                else "write the base as a class that the file defines or imports",
                notes=notes,
            )
    return list(found.values())


def _package(module: Module, name: str) -> str:
    """The module that a name of a file comes from, also under another name; empty if the file makes its value."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        if name in module.imports or name not in module.bindings:
            return module.imports.get(name, module.imports.get("*", ("", None)))[0]
        bound = module.bindings[name][0]
        name = bound.partition(".")[0] if isinstance(bound, str) else ""
    return ""


def _in_package(tree: SourceTree, reference: str) -> str:
    """FILE:CLASS of a class of the package beside the tree: its models are in no registry of vLLM's."""
    if tree.package is None or not reference.isidentifier():
        return reference
    folders = (tree.containing(package, ".py", [f"class {reference}"]) for package in tree.packages[1:])
    files = [relpath for folder in folders for relpath in folder]
    found = [relpath for relpath in files if find_class(tree.parse(relpath), reference) is not None]
    return f"{found[0]}:{reference}" if len(found) == 1 else reference


def _names(tree: SourceTree, program: Program, owner: Owner) -> dict[str, bool]:
    """A class's own name and those of the registry, and whether the registry has it among models that generate text."""
    known = read_registry(tree) if tree.exists(REGISTRY) else {}
    named = ((name, entry) for name, entry in known.items() if entry.class_name == owner[1].name)
    found = {
        name: entry.table in _GENERATING
        for name, entry in named
        if program.class_at(f"{entry.dotted}.{entry.class_name}") == owner
    }
    return {owner[1].name: any(found.values())} | found


def registered_name(subject: Subject) -> tuple[str, SourceLine] | None:
    """The architecture of a class that the registry has under another name than its own; the first of several."""
    known = read_registry(subject.tree) if subject.tree.exists(REGISTRY) else {}
    names = [name for name in subject.architectures if name in known]
    if not names or subject.class_name in names:
        return None
    return names[0], SourceLine(REGISTRY, known[names[0]].line)


def served_classes(owner: Owner) -> set[str]:
    """The classes that a class makes in the place of its own: those of its module in a table that `__new__` reads."""
    module, cls = owner
    new = find_method(cls, "__new__")
    read = mentions(new) if new is not None else set()
    tables = (table for name in read for table in values_of(name, module.tree.body))
    return {name for table in tables for name in mentions(table)} & module.classes.keys()


def _without_processor(tree: SourceTree, program: Program, owner: Owner) -> Diagnostic:
    """Why a class has no processor: nothing registers one, or what does so cannot be followed."""
    name, others = owner[1].name, []
    for module, decorator in _decorators(program, owner):
        call = _registration(program, module, decorator)
        if call is not None:
            return Diagnostic(
                "VCG481",
                f"`{name}` registers the processor `{ast.unparse(call.node.args[0])}`, whose class cannot be found",
                tree.span(module.file, decorator.lineno),
                "define or import the class at the top level of its module, where `init` looks for it, or write the "
                "descriptor by hand",
            )
        called = call_name(decorator) or ast.unparse(decorator)
        if called != "runtime_checkable":  # of a protocol, not of a model
            others.append(f"{module.file}:{decorator.lineno} has `@{called}` instead")
    return Diagnostic(
        "VCG481",
        f"`{name}` has no processor: no decorator of the class or its bases calls `{_REGISTER}`",
        tree.span(owner[0].file, owner[1].lineno),
        f"decorate the class with MULTIMODAL_REGISTRY.{_REGISTER}, or name the class that has it: "
        "a draft model of speculative decoding has none, its main model has",
        notes=tuple(others),
    )


def architectures(tree: SourceTree) -> list[str]:
    """Every architecture of the registry whose class is a multimodal model, in the registry's order."""
    program = Program(tree)
    listed = read_registry(tree).items()
    owners = [(name, program.class_at(f"{entry.dotted}.{entry.class_name}")) for name, entry in listed]
    return [name for name, owner in owners if owner is not None and _is_model(program, owner)]


def _is_model(program: Program, owner: Owner) -> bool:
    """Whether a class is a multimodal model."""
    return program.method(owner, _EMBED) is not None and _processor(program, owner) is not None


def _architecture(tree: SourceTree, name: str) -> str:
    """The architecture of the registry that a name means: itself, or the one that has only its task in addition."""
    known = read_registry(tree)
    if name in known:
        return name
    if (gone := _removed(tree, name)) is not None:
        raise DiagnosticError(gone)
    meant = [one for one, entry in known.items() if entry.table == MULTIMODAL and _TASK.sub("", one) == name]
    if len(meant) != 1:
        raise DiagnosticError(_unknown(tree, name, known))
    return meant[0]


def _by_architecture(tree: SourceTree, program: Program, name: str) -> tuple[Owner, SourceLine]:
    entry = read_registry(tree)[name]
    found = program.class_at(f"{entry.dotted}.{entry.class_name}")
    if entry.table != MULTIMODAL and (found is None or program.method(found, _EMBED) is None):
        message = f"`{name}` is not multimodal: the registry lists it under `{entry.table}`"
        help_text = "name a model with a vision encoder: only that can get encoder graphs"
        raise DiagnosticError.of("VCG481", message, tree.span(REGISTRY, entry.line), help_text)
    if found is None:
        message = f"`{name}` should be the class `{entry.class_name}` of `{entry.dotted}`, which is not in the tree"
        help_text = "check that the tree is complete, or name the model's file"
        raise DiagnosticError.of("VCG481", message, tree.span(REGISTRY, entry.line), help_text)
    return found, SourceLine(REGISTRY, entry.line)


def _removed(tree: SourceTree, name: str) -> Diagnostic | None:
    """That the tree's registry keeps an architecture as one that left vLLM."""
    for table, key, value in registry_lines(tree):
        if key.value != name or table not in (_PREVIOUS, _PLUGINS) or not isinstance(value, ast.Constant):
            continue
        listed = str(value.value)
        if table == _PREVIOUS:
            oldest = GENERATIONS[0].first
            message = f"`{name}` left vLLM: {listed} was its last release"
            help_text = f"draft it from that release: `--vllm {listed}`"
            if release_order(listed) < release_order(oldest):
                graphs = f"encoder CUDA graphs came with vLLM {oldest}"
                help_text = f"there is nothing to port: {graphs}, after the model had left"
        else:
            message = f"`{name}` left vLLM: the plugin at {listed} has it"
            help_text = "port it in the plugin's source, by hand: this tool edits vLLM's own tree only"
        return Diagnostic("VCG480", message, tree.span(REGISTRY, key.lineno), help_text)
    return None


def release_order(release: str) -> tuple[int, ...]:
    """A release as numbers, which compare as releases do."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def _unknown(tree: SourceTree, name: str, known: dict[str, RegisteredModel]) -> Diagnostic:
    """That no registry of the tree has an architecture, and which of its names are meant perhaps."""
    # FILE:CLASS of a class in the models folder that another one makes: it has no architecture.
    files = sorted((tree.root / _MODELS).glob("*.py")) if name.isidentifier() else []
    near = [
        f"{file.stem}:{name}"
        for file in files
        if re.search(rf"^class {name}\b", tree.read(f"{_MODELS}/{file.name}"), re.M)
    ]
    if not near:
        multimodal = {arch: _stem(arch) for arch, entry in known.items() if entry.table == MULTIMODAL}
        # Half of each name is `ForConditionalGeneration`: with it, all names are near to each other.
        stems = get_close_matches(_stem(name), multimodal.values(), n=3)
        near = [arch for arch, stem in multimodal.items() if stem in stems or (not stems and _stem(name) in stem)]
        near = sorted(near, key=lambda arch: -SequenceMatcher(None, name, arch).ratio())[:3]
    help_text = "give the name in `architectures` of the checkpoint's config.json, or the model's file"
    if near:
        help_text = f"did you mean {' or '.join(f'`{item}`' for item in near)}?"
    return Diagnostic("VCG480", f"`{name}` is no architecture of this tree", tree.span(REGISTRY), help_text)


def _stem(architecture: str) -> str:
    """The part of the name that tells an architecture from others: `qwen2vl` of `Qwen2VLForConditionalGeneration`."""
    return "".join(character for character in _TASK.sub("", architecture).lower() if character.isalnum())


def _by_file(tree: SourceTree, program: Program, reference: str) -> tuple[Owner, SourceLine]:
    path, _, class_name = reference.rpartition(":") if ".py:" in reference else (reference, "", "")
    file = _inside(tree, path)
    module = program.module(file)
    if module is None:
        tree.parse(file)  # raises what is wrong with it
    assert module is not None, "it parses"
    classes = {name: node for name, node in module.classes.items() if _is_model(program, (module, node))}
    own = [name for name, node in classes.items() if any(getattr(part, "name", "") == _EMBED for part in node.body)]
    chosen = own if len(own) == 1 else list(classes)
    name = chosen[0] if not class_name and len(chosen) == 1 else class_name
    if name in module.top_classes:
        return (module, module.top_classes[name]), SourceLine(file, module.top_classes[name].lineno)
    if not class_name and not chosen:
        lost = unfollowed_bases(tree, program, ((module, node) for node in module.classes.values()))
        if lost:
            raise DiagnosticError(lost)
    near = get_close_matches(class_name, classes, n=3) if class_name else chosen
    what = f"no class `{class_name}`"
    if not class_name:
        what = f"{len(chosen) or 'no'} multimodal model class{'es' * (len(chosen) > 1)}"
    help_text = "name a file with a class that has `embed_multimodal` and a registered processor"
    if near:
        help_text = f"name one of them: {', '.join(f'{path}:{name}' for name in near)}"
    raise DiagnosticError.of("VCG481", f"`{file}` defines {what}", tree.span(file), help_text)


def _inside(tree: SourceTree, path: str) -> str:
    """The file of a package relative to the folder that holds it, given that way or as a path on disk."""
    given = Path(path)
    relative = ""
    if not given.is_absolute() and ".." not in given.parts and tree.exists(given.as_posix()):
        relative = given.as_posix()
    else:
        for root in dict.fromkeys((tree.root, tree.home)):
            with suppress(ValueError):
                relative = given.resolve().relative_to(root.resolve()).as_posix()
    found = bool(relative) and tree.exists(relative)
    if found and relative.partition("/")[0] in tree.packages:
        return relative
    if found:
        problem, help_text = "belongs to another package than `vllm` in", "name its package with --package"
    elif given.is_file():
        problem, help_text = "is no file of", "give `--vllm` the tree that holds the file, or `--package` its package"
    else:
        problem, help_text = "is neither a file nor one of", f"name a file such as {_MODELS}/internvl.py"
    raise DiagnosticError(Diagnostic("VCG482", f"`{path}` {problem} the tree `{tree.label}`", help=help_text))


def _processor(program: Program, owner: Owner) -> tuple[Owner, Owner | None, SourceLine] | None:
    """Processor class and info class of the registering decorator of the class or of its nearest base."""
    for module, decorator in _decorators(program, owner):
        call = _registration(program, module, decorator)
        processor = call.made(program, call.node.args[0]) if call is not None else None
        if call is not None and processor is not None:
            info = next((keyword.value for keyword in call.node.keywords if keyword.arg == "info"), None)
            about = call.made(program, info) if info is not None else None
            return processor, about, SourceLine(module.file, decorator.lineno)
    return None


def _decorators(program: Program, owner: Owner) -> Iterator[tuple[Module, ast.expr]]:
    """The decorators of a class and of its bases: those above it, and calls of its module: `register(...)(Model)`."""
    for module, cls in program.lineage(owner):
        yield from ((module, decorator) for decorator in cls.decorator_list)
        for node in top_level(module.tree.body):
            call = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
            if isinstance(call, ast.Call) and [ast.unparse(value) for value in call.args] == [cls.name]:
                yield module, call.func


@dataclass(frozen=True, slots=True)
class _Registration:
    """A call of `register_processor`, its module, and what the parameters of the function around it stand for."""

    module: Module
    node: ast.Call
    given: Mapping[str, tuple[Module, ast.expr]]

    def made(self, program: Program, named: ast.expr) -> Owner | None:
        """The class that an argument means."""
        module, named = self.given.get(ast.unparse(named), (self.module, named))
        return _made_class(program, module, named)


def _registration(program: Program, module: Module, decorator: ast.expr) -> _Registration | None:
    """The call of `register_processor` that a decorator is, or that is in what it names: a function, or a value."""
    home, within, given = module, decorator, dict[str, tuple[Module, ast.expr]]()
    called = decorator if isinstance(decorator, ast.Call) and call_name(decorator) != _REGISTER else None
    path = ".".join(name_path(called.func if called is not None else decorator))
    function = program.resolve(module, path) if path else None
    nodes: list[ast.AST] = [within]
    if function is not None and isinstance(function[1], FunctionNode):
        home, nodes = function[0], [function[1]]
        if called is not None and not any(isinstance(one, ast.Starred) for one in called.args):
            keywords = {one.arg: one.value for one in called.keywords if one.arg is not None}
            bound = bind_call(function[1], called.args, keywords)
            given = {name: (module, value) for name, value in bound.given.items()}
    elif path.isidentifier():
        nodes += values_of(path, top_level(module.tree.body))
    for node in (inner for one in nodes for inner in ast.walk(one)):
        if isinstance(node, ast.Call) and call_name(node) == _REGISTER and node.args:
            return _Registration(home, node, given)
    return None


def _made_class(program: Program, module: Module, named: ast.expr) -> Owner | None:
    """The class that a name means, `C` of `C[T]`; of a function that makes one of several the last, its plain case."""
    found = program.resolve(module, ast.unparse(plain_base(named)))
    if found is None:
        return None
    if isinstance(found[1], ast.ClassDef):
        return found[0], found[1]
    returns = sorted(
        (node for node in ast.walk(found[1]) if isinstance(node, ast.Return)), key=lambda node: node.lineno
    )
    made = (node.value.func for node in returns if isinstance(node.value, ast.Call))
    classes = [_made_class(program, found[0], name) for name in made]
    return next((cls for cls in reversed(classes) if cls is not None), None)
