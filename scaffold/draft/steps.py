"""The way of a model's pixels, as a tree of calls: from `embed_multimodal` through methods and parts.

A `PartCall` is one call on inputs. The walk goes into methods, and into parts of the model whose other arguments come
from the batch, too; a part that gets one tensor of pixels and constants is left as the call that it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from scaffold.draft.evaluate import Evaluator, Scope
from scaffold.draft.inputs import strip
from scaffold.draft.objects import Objects
from scaffold.draft.values import (
    BatchInputs,
    Closure,
    Input,
    Items,
    Mapped,
    Op,
    Plain,
    Ref,
    SourceLine,
    Term,
    inputs_of,
    walk_value,
)
from scaffold.draft.waits import run_by, waits
from scaffold.syntax import annotations_of, assigned_to, bind_call, call_name, name_path, parents_of, self_attribute
from scaffold.tower.names import loads
from scaffold.tower.source import Owner, Program

#: Attributes of a tensor besides its methods.
_OF_TENSORS = {"shape", "dtype", "device", "ndim", "data", "T", "mT", "is_cuda", "requires_grad"}
#: Calls that make several values of one.
_SEVERAL = {"tuple", "list", ".split", "torch.split", ".unbind", "torch.unbind", ".chunk", "torch.chunk", ".tolist"}
_SPLITS = {".split", "torch.split"}
#: Calls that give booleans in another form.
_SAME_BOOLEANS = {".flatten", ".contiguous", ".to"}
_TENSOR = re.compile(r"(^|\| ?)(torch\.)?(Float)?Tensor")
_CONTAINERS = re.compile(r"\b(list|tuple|dict|List|Tuple|Dict|Iterable|Sequence)\b")


@dataclass(eq=False, slots=True)
class PartCall:
    """One call of a part or method of the model, by its path from the model on.

    `caller` is the function around it, `entered` what was evaluated for it, `module` whether a part is called
    and no method. `result` is its value.
    """

    path: str
    args: tuple[Term, ...]
    keywords: dict[str, Term]
    node: ast.Call
    caller: Closure
    place: SourceLine
    parent: PartCall | None
    module: bool = False
    encoder: bool = False
    children: list[PartCall] = field(default_factory=list)
    entered: Closure | None = None
    returned: list[Term] = field(default_factory=list)
    result: Term = field(default_factory=lambda: Plain(None))

    @property
    def given(self) -> dict[int | str, Term]:
        """Arguments by position or keyword."""
        return dict(enumerate(self.args)) | dict(self.keywords)

    @property
    def units(self) -> Term | None:
        """The one argument that comes from the inputs and is no mask, None if there are several or none."""
        found = [value for value in self.given.values() if _of_batch(value) and not _is_mask(value)]
        return found[0] if len(found) == 1 else None

    @property
    def masks(self) -> dict[str, Term]:
        """Arguments beside the units that have an entry for each of them, by the names that a descriptor's call has."""
        found = {str(key): value for key, value in self.given.items() if _is_mask(value)}
        if len(found) == 1:
            return {"mask": next(iter(found.values()))}
        return {name if name.isidentifier() else f"mask_{name}": value for name, value in found.items()}

    @property
    def text(self) -> str | None:
        """The call as a descriptor says it, with `pixels` in the place of the units; None if it cannot."""
        names = {id(value): name for name, value in self.masks.items()}
        parts = []
        for key, value in self.given.items():
            text = "pixels" if value is self.units else names.get(id(value)) or self._constant(key, value)
            if text is None:
                return None
            parts.append(text if isinstance(key, int) else f"{key}={text}")
        return f"{self.path}({', '.join(parts)})" if self.units is not None else None

    def _constant(self, key: int | str, value: Term) -> str | None:
        """An argument that is one for each batch: what is a literal stands as one in the text, or it may be another."""
        nodes = dict(enumerate(self.node.args)) | {keyword.arg: keyword.value for keyword in self.node.keywords}
        named = isinstance(value, Plain) and isinstance(nodes.get(key), ast.Name)
        return None if named else constant(value)

    @property
    def axis(self) -> int:
        """The axis of the units: 1 behind a batch axis that the model has put before them."""
        units = strip(self.units) if self.units is not None else None
        added = {".unsqueeze": Plain(0), "[]": Plain(None)}
        return int(isinstance(units, Op) and units.name in added and units.args[1:] == (added[units.name],))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of a result that the caller takes apart, `features` for the only one that it uses.

        An entry of a result is a part of it where nothing says what the callee gives, and not the first item's.
        """
        above = parents_of(self.caller.node).get(id(self.node))
        index = (
            above.slice.value if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Constant) else None
        )
        if isinstance(index, int) and self.entered is None and not self.axis:
            return (*("_",) * index, "features")
        target = above.targets[0] if isinstance(above, ast.Assign) else None
        names = [ast.unparse(part) for part in target.elts] if isinstance(target, (ast.Tuple, ast.List)) else []
        read = loads(self.caller.node)
        used = [name for name in names if name in read]
        return tuple("features" if name in used else "_" for name in names) if len(used) == 1 else ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers that the caller takes of what is annotated as a list, as a descriptor says them; none if it does
        anything else with it."""
        if self.parts or self.entered is None or not _is_several(self.entered.node.returns):
            return ()
        parents = parents_of(self.caller.node)
        above = parents.get(id(self.node))
        names = {to.id for to in assigned_to(above) if isinstance(to, ast.Name)} if above is not None else set()
        uses = (node for node in ast.walk(self.caller.node) if isinstance(node, ast.Name) and node.id in names)
        taken = [parents.get(id(node)) for node in uses if isinstance(node.ctx, ast.Load)]
        found = [
            layer_of(self.caller.node, node.slice, self.caller.receiver) if isinstance(node, ast.Subscript) else None
            for node in taken
        ]
        return tuple(dict.fromkeys(text for text in found if text)) if found and all(found) else ()

    @property
    def attribute(self) -> str | None:
        """The attribute of a result that is no tensor, where the caller takes no other part of it."""
        found = set(_taken(self))
        return found.pop().strip("`.") if len(found) == 1 and all(part.startswith("`.") for part in found) else None

    @property
    def several(self) -> bool:
        """Whether the result may be a list, by its annotation, and the model takes entries of it by their number."""
        returns = self.entered.node.returns if self.entered is not None else None
        if returns is None or not _CONTAINERS.search(ast.unparse(returns)):
            return False
        above = (part for step in self.up() for part in walk_value(step.result))
        return any(isinstance(part, Op) and part.name == "[]" and part.args[0] is self.result for part in above)

    @property
    def raw(self) -> bool:
        """Whether the units are a tensor of pixels that no part of the model has computed on."""
        return self.units is not None and self.is_raw(self.units)

    @staticmethod
    def is_raw(value: Term) -> bool:
        """Whether a value is a tensor of the inputs that no part of the model has computed on, or has its shape."""
        if isinstance(value, Op) and value.name in (".view", ".reshape") and len(value.args) == 2:
            shape = value.args[1]
            if isinstance(shape, Op) and shape.name == ".shape" and inputs_of(shape) == inputs_of(value):
                return PartCall.is_raw(shape.args[0])
        return not isinstance(value, (Mapped, Items, BatchInputs)) and bool(inputs_of(value)) and not computed(value)

    @property
    def encodes(self) -> bool:
        """Whether an encoder runs in it."""
        return self.encoder or any(step.encodes for step in self.children)

    def walk(self) -> Iterator[PartCall]:
        """The step and all below, in the order of the text."""
        yield self
        for step in self.children:
            yield from step.walk()

    def up(self) -> Iterator[PartCall]:
        """The step and those that it is a part of, up to the root."""
        yield self
        if self.parent is not None:
            yield from self.parent.up()


def computed(value: Term) -> bool:
    """Whether a part of the model has made a value of inputs."""
    return any(isinstance(part, Op) and part.name.startswith("self.") and inputs_of(part) for part in walk_value(value))


def constant(value: Term) -> str | None:
    """An argument that a descriptor's call can have beside the units: an attribute of the model or a literal."""
    if isinstance(value, Plain):
        plain = value.value is None or isinstance(value.value, (bool, int, str))
        return repr(value.value) if plain else None
    return value.path if isinstance(value, Ref) and value.path.startswith("self.") else None


def _of_batch(value: Term) -> bool:
    return any(isinstance(part, (Input, BatchInputs)) for part in walk_value(value))


def _is_mask(value: Term) -> bool:
    """Whether a value of the inputs is made of booleans, one or more for each unit."""
    if not inputs_of(value) or computed(value):
        return False
    while isinstance(value, Op) and value.name in _SAME_BOOLEANS and value.args:
        value = value.args[0]
    return isinstance(value, Op) and value.name in (".bool", "Compare")


def against(step: PartCall) -> str | None:
    """Why a call on pixels cannot be captured; None if it can."""
    pixels = pixels_of(step)
    others = [value for value in step.given.values() if _of_batch(value) and value is not pixels]
    if step.units is not None:
        others = []
    if others:
        own = inputs_of(pixels) if pixels is not None else ()
        keys = dict.fromkeys(key for value in others for key in inputs_of(value) if key not in own)
        if not keys:
            return "gets several values that are computed from the pixels: only one may come from the batch"
        return f"gets `{'`, `'.join(keys)}` besides the pixels: only pixels may come from the batch"
    if step.text is None:
        return "is called with an argument that is neither an attribute of the model nor a literal"
    if _takes_list(step):
        return "takes a list of images, whose sizes may differ"
    if step.parts or step.layers:
        return None
    if _several(step):
        return "gives a list or tuple, not one tensor"
    part = next(_taken(step), None)
    if part is not None and step.attribute is None:
        return f"gives an object of which the model takes {part}, not a tensor"
    return None


def pixels_of(step: PartCall) -> Term | None:
    """The argument that holds the pixels, among several that come from the batch: the first that is named so."""
    if step.units is not None:
        return step.units
    found = [value for value in step.given.values() if _of_batch(value)]
    named = [value for value in found if any(is_pixels(key) for key in inputs_of(value)[:1])]
    return next(iter(named or found), None)


def is_pixels(key: str) -> bool:
    """Whether an input is called as pixels are."""
    return "pixel_values" in key or key in ("images", "patches")


def asks_for_rank(step: PartCall) -> bool:
    """Whether the callee decides by the number of dimensions of its units."""
    if step.entered is None:
        return False
    name, function = _units_of(step)
    return any(
        isinstance(node, ast.Compare) and ast.unparse(node.left) in (f"{name}.dim()", f"{name}.ndim")
        for node in ast.walk(function)
    )


def _units_of(step: PartCall) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The parameter of the callee that its units come to, if any, and the callee."""
    assert step.entered is not None
    function = step.entered.node
    bound = bind_call(function, step.args, step.keywords, skip_first=True).given
    return next((name for name, value in bound.items() if value is step.units), ""), function


def _takes_list(step: PartCall) -> bool:
    """Whether the callee says that its units are a list."""
    if step.entered is None:
        return False
    name, function = _units_of(step)
    return _is_several(annotations_of(function).get(name))


def _is_several(annotation: ast.expr | None) -> bool:
    """Whether an annotation says several tensors and not one."""
    text = ast.unparse(annotation) if annotation is not None else ""
    return bool(_CONTAINERS.search(text)) and not _TENSOR.search(text)


def _several(step: PartCall) -> bool:
    """Whether the callee says that it gives more than one tensor: by its annotation, or by what it returns."""
    if step.entered is None:
        return False
    return _is_several(step.entered.node.returns) or any(
        isinstance(value, (Items, Mapped)) or (isinstance(value, Op) and value.name in _SEVERAL)
        for value in step.returned
    )


def layer_of(function: ast.AST, index: ast.expr, receiver: str = "self") -> str | None:
    """A layer that is an attribute of the model or a number, or a column of a table that the method goes over."""
    if isinstance(index, ast.Constant) and isinstance(index.value, int):
        return str(index.value)
    path = name_path(index)
    if path[:1] == ["self"] and len(path) > 1:
        return ".".join([receiver, *path[1:]])
    for loop in ast.walk(function) if isinstance(index, ast.Name) else ():
        if not isinstance(loop, ast.For):
            continue
        row, table = loop.target, loop.iter
        if call_name(table) == "enumerate" and isinstance(table, ast.Call) and isinstance(row, ast.Tuple):
            row, table = row.elts[1], table.args[0]
        names = [ast.unparse(part) for part in row.elts] if isinstance(row, ast.Tuple) else []
        attribute = self_attribute(table)
        if attribute and ast.unparse(index) in names:
            return f"{{table: {receiver}.{attribute}, column: {names.index(ast.unparse(index))}}}"
    return None


def _taken(step: PartCall) -> Iterator[str]:
    """The parts that the caller takes of a result that is no tensor: `.last_hidden_state`, or one of several."""
    parents = parents_of(step.caller.node)
    above = parents.get(id(step.node))
    names: set[str] = set()
    if isinstance(above, ast.Attribute):
        yield from _attribute(above, parents)
    elif isinstance(above, ast.Subscript) and isinstance(above.slice, (ast.Constant, ast.UnaryOp)) and not step.axis:
        yield f"`[{ast.unparse(above.slice)}]`"  # of a batch axis that was put before the units it takes the only one
    elif isinstance(above, ast.Assign):
        if any(isinstance(target, (ast.Tuple, ast.List)) for target in above.targets):
            yield "one of several"
        names = {target.id for target in above.targets if isinstance(target, ast.Name)}
    for node in ast.walk(step.caller.node):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield from _attribute(node, parents)


def _attribute(node: ast.Attribute, parents: dict[int, ast.AST]) -> Iterator[str]:
    above = parents.get(id(node))
    called = isinstance(above, ast.Call) and above.func is node
    if not called and node.attr not in _OF_TENSORS:
        yield f"`.{node.attr}`"


class Walker(Evaluator):
    """Evaluates `embed_multimodal` and keeps its calls: `root` is that of `embed_multimodal` itself.

    `cuts` are splits of any tensor. With `into_parts` it also goes into parts without an encoder that get raw pixels.
    """

    def __init__(self, program: Program, owner: Owner, objects: Objects, *, into_parts: bool = False) -> None:
        super().__init__(program, owner)
        self._objects, self._into_parts = objects, into_parts
        self.cuts: list[Op] = []
        self._callers: list[Closure] = []
        found = program.method(owner, "embed_multimodal")
        assert found is not None, "what makes it a model"
        module, definer, node = found
        entry = Closure(module, (module, definer), node, {}, bound=True)
        call = ast.parse("self.embed_multimodal(**kwargs)", mode="eval").body
        assert isinstance(call, ast.Call)
        self.root = PartCall(
            "self.embed_multimodal", (), {"**": BatchInputs()}, call, entry, SourceLine(module.file, node.lineno), None
        )
        self.root.entered = entry
        self._step = self.root
        self.root.result = self._call(entry, [], {"**": BatchInputs()}, 0)

    def _is_absent(self, value: Term) -> bool | None:
        """A batch has the inputs of one modality, so that each of them may be absent."""
        return super()._is_absent(value) or (None if isinstance(value, Input) else False)

    def _branch(self, node: ast.If, frame: Scope) -> bool:
        """An `else` does not see what its `if` has assigned: two parses of an input are two ways."""
        if self._truth(node.test, frame) is not None:
            return super()._branch(node, frame)
        variables = frame.variables
        before = dict(variables)
        left = self._block(node.body, frame)
        body = {} if left else dict(variables)
        variables.clear()
        variables.update(before)
        other = self._block(node.orelse, frame)
        changed = {name: value for name, value in variables.items() if before.get(name) is not value}
        variables.update(body | changed)
        return left and other

    def _chosen(self, values: list[Term]) -> Term:
        """The one with pixels of several parsed inputs: precomputed embeddings never come to an encoder."""
        parsed: list[Term] = [
            value for value in values if isinstance(value, Mapped) and any(map(is_pixels, inputs_of(value)))
        ]
        return super()._chosen(parsed or values)

    def _returned(self, function: Closure, args: list[Term], keywords: dict[str, Term], depth: int) -> list[Term]:
        self._callers.append(function)
        found = super()._returned(function, args, keywords, depth)
        self._callers.pop()
        found = [value for value in found if not self._is_ready(value)] or found
        if function is self._step.entered:
            self._step.returned = found
        return found

    def _is_ready(self, value: Term) -> bool:
        """Whether a value is a parsed input of precomputed embeddings, which a batch of pixels has not."""
        parts = list(walk_value(value)) if isinstance(value, Mapped) else []
        return any(isinstance(part, Input) and Evaluator._is_absent(self, part) for part in parts)

    def _target(self, path: str, frame: Scope) -> Term | None:
        if not path.startswith("self."):
            return super()._target(path, frame)
        return run_by(self._program, self._objects, path)

    def _apply(self, function: Term, args: list[Term], keywords: dict[str, Term], node: ast.Call, frame: Scope) -> Term:
        made = Op("", tuple(args), tuple(keywords.items()))
        if not isinstance(function, Ref) or not function.path.startswith("self.") or not _of_batch(made):
            found = super()._apply(function, args, keywords, node, frame)
            if isinstance(found, Op) and found.name in _SPLITS:
                self.cuts.append(found)
            return found
        place = self._place(node, frame)
        step = PartCall(function.path, tuple(args), keywords, node, self._callers[-1], place, self._step)
        target = self._target(function.path, frame)
        step.entered = target if isinstance(target, Closure) else None
        step.module = step.entered is None or step.entered.receiver == step.path
        holder = function.path.rpartition(".")[0]
        outside = step.entered is None and holder != "self" and self._objects.outside(holder)
        foreign = step.raw and self._objects.foreign(step.path) is not None
        step.encoder = step.module and (outside or foreign or self._objects.encodes(step.path))
        self._step.children.append(step)
        step.result = Op(step.path, step.args, tuple(keywords.items()), place)
        if step.entered is not None and self._goes_into(step):
            self._step = step
            inside = self._call(step.entered, args, keywords, frame.depth + 1)
            if step.encoder or not step.module:  # of any other part the call says where a value comes from
                step.result = inside
            assert step.parent is not None, "set above"
            self._step = step.parent
        return step.result

    def _goes_into(self, step: PartCall) -> bool:
        """Not into a part without an encoder, nor into one that can be captured as it is."""
        if self._into_parts and any(inputs_of(value) and not computed(value) for value in step.given.values()):
            return True
        whole = step.raw and against(step) is None and not self.waits(step)
        return not step.module or (step.encoder and not whole)

    def waits(self, step: PartCall) -> bool:
        """Whether a part waits for values in what it runs, where a graph cannot."""
        return step.entered is not None and waits(self._program, self._objects, step.entered)
