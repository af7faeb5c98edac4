"""Drafts the tile layouts: one pixel tensor cut by a count of tiles, or two that are captured as paths."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from scaffold.draft.convolutions import positions
from scaffold.draft.inputs import (
    Encoded,
    ModalityInputs,
    ModelInputs,
    NotACall,
    beyond,
    call_text,
    innermost,
    schema_of,
)
from scaffold.draft.layers import first_layer
from scaffold.draft.locate import Located
from scaffold.draft.modules import Part, assigned, chain_path, model_path, outer_path, part_of
from scaffold.draft.objects import Objects
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import Walker
from scaffold.draft.subject import Subject
from scaffold.draft.values import Items, Mapped, Op, Plain, Ref, SourceLine, Term, inputs_of, walk_value
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import FunctionNode, call_name, name_path, positional_parameters, required_parameters
from scaffold.tower.source import Module, Owner, Program

#: Names under which models keep the tokens of a tile.
_TOKENS = re.compile(r"num_image_tokens?|image_seq_len|tokens_per_(image|tile|chunk|patch)|image_token_len", re.ASCII)
_SIZES = re.compile(r"^(tile|crop|patch|image)_?size$")
_FEATURES = re.compile(r"num_\w*feature_size|num_\w*tokens?|\w*seq_len(gth)?")
#: Operations that put rows of tiles together or apart.
_ROWS = {"+", "tuple", "list", ".split", "torch.split", "[]", "each", "slice", ".unsqueeze", "zip", "enumerate"}
#: Calls that make rows of tokens from tiles of tokens.
_JOINS = {".flatten", ".view", ".reshape"}
_SIDES = ("image_size", "crop_size", "tile_size")
_LETTERS = {
    "T": ("temporal_patch_size",),
    "H": ("patch_size",),
    "W": ("patch_size",),
    "C": ("n_channels", "num_channels", "in_channels"),
}
_SHARDED = "run_dp_sharded"
_PROCESSORS = "vllm.transformers_utils.processors"


def draft_tiles(subject: Subject, inputs: ModelInputs, sheet: Sheet) -> Part:
    """Fill in all sections of a model of tiles but its modalities. Returns the tower. Raises VCG483."""
    first = inputs.modalities[0]
    call = innermost(subject.program, subject.model.owner, first.encoded[0].call)
    tower = part_of(subject.program, subject.model.owner, call.name.removeprefix("self.").partition(".")[0])
    if tower is None:
        raise beyond(subject.tree, call.place, f"`{call.name}`, which gets the pixels, is no part that the model makes")
    if first.layout == "paths":
        _paths(subject, inputs, sheet, first, tower)
    else:
        _tiles(subject, inputs, sheet, first, tower)
    switches = dict(_switches(subject.program, subject.model.owner, first, tower))
    if switches:
        sheet.put("data_parallel.switches", list(switches), *switches.values(), why="shards the pixels by itself")
    return tower


def _tiles(
    subject: Subject,
    inputs: ModelInputs,
    sheet: Sheet,
    first: ModalityInputs,
    tower: Part,
) -> None:
    sheet.put("item.rows", "n", first.field.place, why=f"`{first.sizes}` tiles an item")
    sheet.put("item.tokens", "n * k")
    shape = _tile_shape(subject, inputs, sheet, tower, first.pixels, "pixels.shape", "side")
    if shape is not None:
        sheet.put("pixels.shape", shape[0], *shape[1:])
    place = first.encoded[0].place
    joined = any(op.name in _JOINS for op in _around(inputs.result, first.encoded[0].call))
    if joined:
        sheet.ask(
            Question(
                "let.k",
                "the tokens of one tile: rows of the encoder's output for it",
                (*_token_candidates(subject.program, subject.model), *_shuffled(subject, tower, sheet)),
                (f"{place}: the call that makes them", *_info_formulas(subject.program, subject.model)),
            )
        )
    else:
        sheet.put("let.k", 1, place, why="the result is cut by the number of tiles and handed out: a row each")
    sheet.put("capture.rows", "b // k", why="as many tiles as fit")
    sheet.put("budget.min", "k", why="one tile")
    _forward(subject.tree, inputs, sheet, first.encoded, joined=joined)


def _forward(
    tree: SourceTree, inputs: ModelInputs, sheet: Sheet, encoded: tuple[Encoded, ...], *, joined: bool = True
) -> None:
    """The recorded call. `joined`: the model makes [tiles * tokens, hidden] of what it gives."""
    texts = []
    for root in encoded:
        try:
            texts.append(call_text(root.call, {root.pixels[0]: "pixels"}))
        except NotACall as problem:
            place = problem.part.place if problem.part is not None and problem.part.place else root.place
            raise beyond(tree, place, problem.reason) from None
    if len(set(texts)) > 1:
        raise beyond(tree, encoded[1].place, f"the paths run `{texts[0]}` and `{texts[1]}`")
    sheet.put("forward.call", texts[0], encoded[0].place)
    if not joined:
        return
    splits = [split.place for split in inputs.trace.splits if id(encoded[0].call) in map(id, walk_value(split.args[0]))]
    sheet.put("forward.flatten", True, *splits[:1], why="items are cut out of [tiles, tokens, hidden]")


def against_tiles(inputs: ModelInputs) -> str:
    """Why tiles are not the layout to prefer, nothing if they are: rows of tiles that are the embeddings of an item."""
    root = inputs.modalities[0].encoded[0].call
    changed = next((op for op in _around(inputs.result, root) if not _keeps_rows(op)), None)
    if changed is None:
        return ""
    return f"`{changed.name.lstrip('.')}` stands between the tiles and the embeddings ({changed.place})"


def _around(value: Term, root: Op) -> list[Op]:
    """Operations on the result of a call until it is part of a value, outermost first."""
    if value is root:
        return []
    parts: Sequence[Term] = ()
    if isinstance(value, Op):
        parts = value.operands
    elif isinstance(value, Items):
        parts = value.values
    elif isinstance(value, Mapped):
        parts = list(value.entries.values())
    inside = next((part for part in parts if any(inner is root for inner in walk_value(part))), None)
    if inside is None:
        return []
    return [*([value] if isinstance(value, Op) else []), *_around(inside, root)]


def _keeps_rows(op: Op) -> bool:
    """Whether an operation leaves the rows of [tiles, tokens, hidden] what they are, in their order."""
    if op.name == ".flatten":
        return op.args[1:] == (Plain(0), Plain(1))
    if op.name in (".view", ".reshape"):
        return op.args[1:2] == (Plain(-1),)
    return op.name in _ROWS


# --- paths ----------------------------------------------------------------------------------------------------------


def _paths(
    subject: Subject,
    inputs: ModelInputs,
    sheet: Sheet,
    first: ModalityInputs,
    tower: Part,
) -> None:
    program, model = subject.program, subject.model
    assert first.more is not None, "what makes it paths"
    keys = {"global": first.pixels, "local": first.more}
    patch = _patch_size(program, model, tower)
    if patch is not None:
        sheet.put("let.patch", *patch, why="stride of the patch embedding")
    objects = Objects(program, model.owner)
    way = Walker(program, model.owner, objects, into_parts=True).root
    for name, key in keys.items():
        at = f"paths.{name}"
        one = name == "global"
        sheet.put(f"{at}.count", 1 if one else "n", inputs.fields[key].place, why="one an item" if one else first.sizes)
        root = next(root for root in first.encoded if root.pixels[0] == key)
        side = "side" if one else "tile_side"
        left = positions(objects, way, key, side, ("patch", patch[0])) if patch is not None else None
        why = "what the convolutions behind the patches leave of an image's side"
        formula = [Candidate(left, why, root.place)] if left is not None else []
        sheet.ask(
            Question(
                f"{at}.tokens",
                f"output tokens of one unit of `{key}`",
                (*formula, *_constants(program, model, name)),
                (f"{root.place}: the call that makes them",),
            )
        )
        sheet.put(f"{at}.pixels", key, root.place)
        shape = _tile_shape(subject, inputs, sheet, tower if one else None, key, f"{at}.shape", side)
        if shape is not None:
            sheet.put(f"{at}.shape", shape[0], *shape[1:])
        if patch is not None and shape is not None:
            sheet.put(f"{at}.rows", f"({side} // patch) ** 2", patch[1], why="patches of one unit")
    _forward(subject.tree, inputs, sheet, first.encoded)
    order = _order(inputs.result, keys)
    if order is None:
        candidates = (
            Candidate("[local, global]", "tiles first"),
            Candidate("[global, local]", "the whole image first"),
        )
        sheet.ask(Question("post.assemble", "the order of the paths' outputs in an item", candidates))
    else:
        sheet.put("post.assemble", order[0], order[1], why="the order in which an item is put together")


def _order(result: Term, keys: dict[str, str]) -> tuple[list[str], SourceLine | None] | None:
    """Paths in the order in which the parts of an item are concatenated."""
    for part in walk_value(result):
        if isinstance(part, Op) and part.name in ("torch.cat", "torch.concat") and isinstance(part.args[0], Items):
            found = [
                name for value in part.args[0].values for name, key in keys.items() if inputs_of(value)[:1] == (key,)
            ]
            if sorted(found) == sorted(keys):
                return found, part.place
    return None


# --- shapes and tokens ----------------------------------------------------------------------------------------------


def _tile_shape(
    subject: Subject,
    inputs: ModelInputs,
    sheet: Sheet,
    tower: Part | None,
    key: str,
    at: str,
    side: str,
) -> tuple[list[str], SourceLine] | None:
    """Channels and sides of a tile from the annotated shape of the input. Asks for what it does not say.

    A side is what the model binds it to when it checks its input, else what the tower is built for.
    """
    program, model = subject.program, subject.model
    found = schema_of(program, model.owner[0], inputs.trace, key)
    if found is None or len(found[0]) != 4:
        annotated = f"{found[1]}: the annotated shape, ({', '.join(map(str, found[0]))})" if found else ""
        look = tuple(filter(None, (annotated, first_layer(program, model.owner, tower) if tower else "")))
        what = "shape of one tile, as a list such as [3, side, side]"
        sheet.ask(Question(at, what, tuple(_unpacked(program, model, tower)) if tower else (), look))
        return None
    (_, channels, height, width), place, table = found
    if isinstance(channels, int):
        first = str(channels)
    else:
        path = outer_path(program, model.owner, tower, str(channels)) if tower else None
        first = path[0] if path else ""
    high, wide = _binding(table, str(height)), _binding(table, str(width))
    sides = [side, side]
    if high is not None and (height == width or (wide is not None and high[0] == wide[0])):
        sheet.put(f"let.{side}", *high, why="what the model checks its input against")
    elif high is not None and wide is not None and side == "side":
        sides = ["height", "width"]
        for name, bound in zip(sides, (high, wide), strict=True):
            sheet.put(f"let.{name}", *bound, why="what the model checks its input against")
    else:
        built = _built_for(program, model, tower) if tower else None
        if built is not None:
            sheet.put(f"let.{side}", built[0], built[1], why="what the tower is built for")
        else:
            _ask_side(subject, sheet, side, place)
    if not first:
        candidates = (Candidate(f"[3, {side}, {side}]", "colour channels, and the side above"),)
        look = (f"{place}: the channels are called `{channels}`, and nothing in the model says how many they are",)
        sheet.ask(Question(at, "shape of one tile", candidates, look))
        return None
    return [first, *sides], place


def _unpacked(program: Program, model: Located, tower: Part) -> Iterator[Candidate]:
    """The shape that an encoder takes apart (`n, T, H, W, C = x.shape`), by what it keeps for these letters."""
    cls, path, seen = tower.cls, f"self.{tower.name}", set[int]()
    cls = cls or program.attribute_class(model.owner, tower.name)
    while cls is not None and id(cls[1]) not in seen:
        seen.add(id(cls[1]))
        method, parts = program.method(cls, "forward"), []
        for node in ast.walk(method[2]) if method else ():
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Assign) and isinstance(target, ast.Tuple) and _is_shape(node.value):
                names = [_letter(program, cls, ast.unparse(part).upper()) for part in target.elts[1:]]
                if names and all(names) and method:
                    text = f"[{', '.join(f'{path}.{name}' for name in names)}]"
                    yield Candidate(text, "what the encoder takes apart", SourceLine(method[0].file, node.lineno))
                    return
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                parts.append(ast.unparse(node.value.func).removeprefix("self."))
        inner = part_of(program, cls, parts[-1]) if parts and "." not in parts[-1] else None
        cls, path = (inner.cls, f"{path}.{inner.name}") if inner is not None else (None, path)


def _is_shape(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name)


def _letter(program: Program, cls: Owner, letter: str) -> str | None:
    """The attribute of a class that a dimension's letter stands for."""
    return next((name for name in _LETTERS.get(letter, ()) if assigned(program, cls, name) is not None), None)


def _patch_size(program: Program, model: Located, tower: Part) -> tuple[str, SourceLine] | None:
    """Where the model finds the side of a patch: what a convolution of the tower has as kernel and as stride."""
    pending: list[tuple[Part, ...]] = [(tower,)]
    while pending:
        parts = pending.pop(0)
        cls = parts[-1].cls
        init = program.method(cls, "__init__") if cls is not None else None
        for node in ast.walk(init[2]) if init and cls else ():
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.value.keywords}
            kernel = given.get("kernel_size", "")
            if kernel.endswith("patch_size") and given.get("stride") == kernel and init and cls:
                found = assigned(program, cls, kernel.removeprefix("self."))
                text = ast.unparse(found[0]) if found and kernel.startswith("self.") else kernel
                path = chain_path(program, model.owner, parts, text)
                return (path, SourceLine(init[0].file, node.lineno)) if path else None
            target = node.targets[0]
            inner = part_of(program, cls, target.attr) if isinstance(target, ast.Attribute) and cls else None
            if inner is not None and inner.cls is not None and len(parts) < 3:
                pending.append((*parts, inner))
    return None


def _binding(table: Mapped, name: str) -> tuple[str, SourceLine | None] | None:
    """The binding of a side where the model checks its input: a path, or an element of one, and its place."""
    bindings = table.entries.get("resolve_bindings")
    value = bindings.entries.get(name) if isinstance(bindings, Mapped) else None
    element = value.args[1] if isinstance(value, Op) and value.name == "[]" else None
    whole = value.args[0] if isinstance(value, Op) and isinstance(element, Plain) else value
    if not isinstance(whole, Ref) or not whole.path.startswith("self."):
        return None
    return f"{whole.path}[{element.value}]" if isinstance(element, Plain) else whole.path, whole.place


def _built_for(program: Program, model: Located, tower: Part) -> tuple[str, SourceLine] | None:
    for name in _SIDES:
        path = outer_path(program, model.owner, tower, name)
        if path is not None:
            return path
    return None


def _ask_side(subject: Subject, sheet: Sheet, side: str, place: SourceLine) -> None:
    """The side of tiles that only the image processor knows: a value of it, or a number."""
    program = subject.program
    processor = _image_processor(program, subject.model)
    init = program.method(processor[0], "__init__") if processor else None
    if processor is None or (init is not None and required_parameters(init[2])):
        given = tuple(_given_sides(program, subject.model))
        sheet.ask(Question(f"let.{side}", f"the side of a tile, in pixels ({place})", given))
        return
    owner, _ = processor
    candidates = tuple(
        Candidate(name, f"attribute of {owner[1].name}{value}", line)
        for name, value, line in _attributes(program, owner)
        if _SIZES.match(name)
    )
    sheet.put("processor.module", _processor_module(owner[0]), processor[1])
    sheet.put("processor.class", owner[1].name, SourceLine(owner[0].file, owner[1].lineno))
    ordered = sorted(candidates, key=lambda candidate: "image" in candidate.value)
    look = (f"{place}: the tile's shape is not bound to the configuration",)
    sheet.ask(
        Question(
            f"processor.values.{side}",
            "the attribute of the image processor with the side of a tile",
            tuple(ordered),
            look,
        )
    )


def _given_sides(program: Program, model: Located) -> Iterator[Candidate]:
    """Values that the processing info makes its image processor with, as paths of the model. The last part of `A or B`
    comes first: every configuration has it."""
    method = program.method(model.info, "get_image_processor") if model.info else None
    local: dict[str, ast.expr] = {}
    found: list[ast.expr] = []
    for node in ast.walk(method[2]) if method else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            local[node.targets[0].id] = node.value
        elif isinstance(node, ast.Call) and call_name(node) == "setdefault" and len(node.args) == 2:
            key, value = node.args
            if isinstance(key, ast.Constant) and key.value in _SIDES:
                found += reversed(value.values) if isinstance(value, ast.BoolOp) else [value]
    for value in found:
        names, known = name_path(value), dict(local)
        while names and names[0] in known and (behind := name_path(known.pop(names[0]))):
            names = [*behind, *names[1:]]
        path = model_path(program, model.owner, ".".join(names)) if names else None
        if path is not None and method is not None:
            yield Candidate(path, "what the image processor is made with", SourceLine(method[0].file, value.lineno))


def _processor_module(module: Module) -> str:
    dotted = module.file.removesuffix(".py").replace("/", ".")
    return dotted.removeprefix(f"{_PROCESSORS}.")


def _image_processor(program: Program, model: Located) -> tuple[Owner, SourceLine] | None:
    """The class that the processing info returns as image processor, if the tree defines it."""
    method = program.method(model.info, "get_image_processor") if model.info else None
    for node in ast.walk(method[2]) if method else ():
        if method and isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            found = program.resolve(method[0], ast.unparse(node.value.func))
            if found is not None and isinstance(found[1], ast.ClassDef):
                return (found[0], found[1]), SourceLine(method[0].file, node.lineno)
    return None


def _attributes(program: Program, owner: Owner) -> Iterator[tuple[str, str, SourceLine]]:
    """Attributes that `__init__` sets from a parameter: name, ` = default` or nothing, place."""
    init = program.method(owner, "__init__")
    if init is None:
        return
    args = init[2].args
    names = positional_parameters(init[2])
    defaults = dict(zip(reversed(names), (ast.unparse(value) for value in reversed(args.defaults)), strict=False))
    for node in ast.walk(init[2]):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    default = defaults.get(node.value.id)
                    yield target.attr, f" = {default}" if default else "", SourceLine(init[0].file, node.lineno)


def _constants(program: Program, model: Located, path: str) -> Iterator[Candidate]:
    """Numbers of tokens that the image processor keeps, those of this path first."""
    processor = _image_processor(program, model)
    found = [
        Candidate(value.removeprefix(" = "), f"default of {name}", place)
        for name, value, place in (_attributes(program, processor[0]) if processor else ())
        if _FEATURES.fullmatch(name) and value.removeprefix(" = ").isdigit()
    ]
    word = "image" if path == "global" else "patch"
    yield from sorted(found, key=lambda candidate: word not in candidate.why)


def _token_candidates(program: Program, model: Located) -> Iterator[Candidate]:
    """Attributes and configuration entries that are named like the tokens of a tile."""
    seen: set[str] = set()
    init = program.method(model.owner, "__init__")
    for node in ast.walk(init[2]) if init else ():
        if not isinstance(node, ast.Assign) or init is None:
            continue
        for target in node.targets:
            text = ast.unparse(target)
            if text.startswith("self.") and _TOKENS.search(text) and text not in seen:
                seen.add(text)
                yield Candidate(text, "set by the model", SourceLine(init[0].file, node.lineno))
    for node in ast.walk(model.owner[0].tree):
        if (
            isinstance(node, ast.Attribute)
            and _TOKENS.search(node.attr)
            and ast.unparse(node.value) in ("config", "self.config")
        ):
            text = f"self.config.{node.attr}"
            if text not in seen:
                seen.add(text)
                yield Candidate(text, "read from the configuration", SourceLine(model.file, node.lineno))


def _shuffled(subject: Subject, tower: Part, sheet: Sheet) -> Iterator[Candidate]:
    """As many tokens as a pixel shuffle by a fraction leaves of a tile's patches."""
    patch = _patch_size(subject.program, subject.model, tower)
    objects = Objects(subject.program, subject.model.owner)
    for path, value in objects.kept(f"self.{tower.name}"):
        ratio = objects.text(value) if path.endswith("shuffle_ratio") else None
        if ratio is not None and sheet.has("let.side"):
            side = patch[0] if patch else f"{ratio.rpartition('.')[0]}.patch_size"
            why = "the patches of a side, times the ratio of the pixel shuffle"
            yield Candidate(f"round(side // {side} * {ratio}) ** 2", why, objects.place(path))
            return


def _info_formulas(program: Program, model: Located) -> Iterator[str]:
    """Formulas that the processing info has for the tokens of a part of an image."""
    if model.info is None:
        return
    for node in model.info[1].body:
        if isinstance(node, FunctionNode) and re.search(r"per_(chunk|tile|patch|crop)|num_image_token$", node.name):
            returns = [part for part in ast.walk(node) if isinstance(part, ast.Return) and part.value is not None]
            if returns and returns[-1].value is not None:
                text = ast.unparse(returns[-1].value)
                place = SourceLine(model.info[0].file, returns[-1].lineno)
                yield f"{place}: {node.name} of the processing info returns `{text}`"


# --- data parallelism -----------------------------------------------------------------------------------------------


def _switches(program: Program, owner: Owner, first: ModalityInputs, tower: Part) -> Iterator[tuple[str, SourceLine]]:
    """Switches of the model's own data parallelism inside the recorded call: `if self.X: run_dp_sharded_...`."""
    pending: list[tuple[str, Owner, str]] = []
    for root in first.encoded:
        for part in walk_value(root.call):
            if isinstance(part, Op) and part.name.startswith("self."):
                pending.append(("self", owner, part.name.removeprefix("self.")))
    if tower.cls is not None:
        pending.append((f"self.{tower.name}", tower.cls, "forward"))
    seen: set[tuple[str, str]] = set()
    while pending:
        prefix, cls, name = pending.pop(0)
        method = program.method(cls, name)
        if method is None or (prefix, name) in seen:
            continue
        seen.add((prefix, name))
        for node in ast.walk(method[2]):
            if isinstance(node, ast.If) and _SHARDED in ast.unparse(ast.Module(node.body, [])):
                text = ast.unparse(node.test)
                if text.startswith("self."):
                    yield f"{prefix}{text.removeprefix('self')}", SourceLine(method[0].file, node.lineno)
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self."):
                callee = ast.unparse(node.func).removeprefix("self.")
                inner = part_of(program, cls, callee) if "." not in callee else None
                if inner is not None and inner.cls is not None:
                    pending.append((f"{prefix}.{callee}", inner.cls, "forward"))
                elif "." not in callee:
                    pending.append((prefix, cls, callee))


def last_linear(program: Program, owner: Owner, call: Op) -> tuple[str, SourceLine] | None:
    """The output width of the linear layer that a method of the model ends with, as its constructor states it."""
    method = program.method(owner, call.name.removeprefix("self."))
    calls = [
        node
        for node in (ast.walk(method[2]) if method else ())
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).count(".") == 1
        and ast.unparse(node.func).startswith("self.")
    ]
    last = max(calls, key=lambda node: node.lineno, default=None)
    part = part_of(program, owner, ast.unparse(last.func).removeprefix("self.")) if last else None
    if part is None or part.made is None or ast.unparse(part.made.func) != "nn.Linear" or len(part.made.args) < 2:
        return None
    return ast.unparse(part.made.args[1]), part.place
