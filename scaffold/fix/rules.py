"""The rules: where a tree's own port is wrong in a known way, and the smallest edit that mends it.

A rule reads the syntax tree of a method. It gives exact places of the file, and the text to put there, in the names of
the method. It judges nothing: `answers` says which failing checks it is for, and only a run of the checks decides
whether it is kept (`scaffold.fix.proof`). A keyword that a rule adds has a default, and overriding methods of
subclasses get it as well.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from scaffold.edit import AddImport
from scaffold.fix.remaining import too_many_frames
from scaffold.fix.repair import Place, Port, Repair, TextEdit, find_heirs, put
from scaffold.fix.unit_tests import Layer
from scaffold.plan import manager
from scaffold.protocol import SourceTree, find_model, read_protocol
from scaffold.protocol.profile import PROTOCOL
from scaffold.syntax import FunctionNode, call_name, self_attribute
from scaffold.tower.paths import ModelPaths
from scaffold.tower.source import Method, Owner, Program
from scaffold.verify.numeric import Check
from scaffold.verify.numeric.reports import FROZEN, ROUND_UP, SECTIONS, captured_short

#: Methods of the protocol and parameters of theirs; no release has others.
CAPTURE = "prepare_encoder_cudagraph_capture_inputs"
REPLAY = "prepare_encoder_cudagraph_replay_buffers"
ITEM_SPECS = "get_encoder_cudagraph_item_specs"
SELECT = "select_encoder_cudagraph_items"
EAGER = "encoder_eager_forward"
FORWARD = "encoder_cudagraph_forward"
CONFIG = "get_encoder_cudagraph_config"
POSTPROCESS = "postprocess_encoder_output"
METHODS = (CONFIG, ITEM_SPECS, SELECT, CAPTURE, REPLAY, FORWARD, EAGER, POSTPROCESS)
BUDGET, ITEMS, FRAMES, CLONE = "token_budget", "max_batch_size", "max_frames_per_batch", "clone"

#: The parameter of metadata methods for the bound of a sequence that a capture freezes.
_BOUND = "max_seqlen_override"

#: vLLM's name for an encoder whose items, or parts of items, are shared out among ranks.
_SWITCH = "use_data_parallel"

#: vLLM's option for the most items of a batch, `max_batch_size` here.
_LIMIT = "encoder_cudagraph_max_vision_items_per_batch"

#: Precomputed embeddings of what an encoder of images takes.
_EMBEDS = ("image_embeds", "video_embeds")


def find_repairs(tree: SourceTree, module: str, class_name: str) -> tuple[Repair, ...]:
    """The repairs whose places are in the methods of this class, in the order in which they are tried.

    The methods may be those of a base. A repair of what stops the capture or a replay comes before the others, whose
    checks it may hide. Raises VCG420 and VCG424 as `find_model`.
    """
    program = Program(tree)
    owner = _with_port(tree, program, program.owner(find_model(tree, module, class_name).path, class_name))
    found = {name: program.method(owner, name) for name in METHODS}
    # A method of the protocol itself is none of the port.
    methods = {name: method for name, method in found.items() if method is not None and method[1].name != PROTOCOL}
    port = Port(tree, program, owner, methods)
    return tuple(repair for rule in _RULES if (repair := rule(port)) is not None)


def _with_port(tree: SourceTree, program: Program, owner: Owner) -> Owner:
    """The class itself, or the one subclass that has the port for some versions of the model."""
    if program.method(owner, CAPTURE) is not None:
        return owner
    heirs = find_heirs(tree, program, owner)
    found = {method[:2] for heir in heirs if (method := program.method(heir, CAPTURE)) is not None}
    return found.pop() if len(found) == 1 else owner


# -- the rules ---------------------------------------------------------------------------------------------------------


def _capture_rounds_up(port: Port) -> Repair | None:
    """`token_budget // max_batch_size` in the capture: items of one size fill less than the budget, and one may need
    all of it.
    """
    capture = port.function(CAPTURE)
    places = [node for node in map(_quotient, ast.walk(capture)) if node is not None and _is(node.right, ITEMS)]
    if not places:
        return None
    *_, statement = (one for one in ast.walk(capture) if isinstance(one, ast.stmt) and places[0] in ast.walk(one))
    comment = port.insert(CAPTURE, statement, ["# Use ceil: one item may need the whole budget."])
    return port.repair(
        "capture rounds up",
        CAPTURE,
        [*(put(node, f"cdiv({BUDGET}, {ITEMS})") for node in places), comment],
        "the capture shares its budget out among items and rounds down, so a replay that fills the budget is longer "
        "than the graph's buffers and raises",
        f"`{BUDGET} // {ITEMS}` rounds up",
        lambda check: check.code == "VCG654" and ROUND_UP in check.detail,
        imports=(AddImport("vllm.utils.math_utils", "cdiv"),),
    )


def _rows_by_budget(port: Port) -> Repair | None:
    """`min(token_budget // tokens, max_batch_size)` where an item may have several rows of a buffer: only the budget
    limits those. Their number gets the name that the processor's field has.
    """
    capture = port.function(CAPTURE)
    for node in ast.walk(capture):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        limit = node.value
        quotients = [argument for argument in limit.args if _quotient(argument)]
        items = [argument for argument in limit.args if _is(argument, ITEMS)]
        if call_name(limit) != "min" or (len(limit.args), len(quotients), len(items)) != (2, 1, 1):
            continue
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        buffers = tuple(key for name in names for key in _buffers_of_length(capture, name))
        if not buffers:
            continue
        kept = port.text(CAPTURE, quotients[0])
        comment = port.insert(CAPTURE, node, ["# An image may have several crops: only the budget limits them."])
        return port.repair(
            "rows by budget alone",
            CAPTURE,
            [put(limit, kept), comment, *_renamed(port, names)],
            f"the capture gives {' and '.join(f'`{key}`' for key in buffers)} at most one row an item, and an item may "
            f"have several: a replay raises where the limit of items (`{_LIMIT}`) is below the rows of a full budget",
            f"`{kept}` alone counts the rows",
            partial(_is_short, buffers),
            cost=f"`{_LIMIT}` no longer bounds the captured rows: a graph encodes as many as its budget allows",
        )
    return None


def _renamed(port: Port, names: Sequence[str]) -> list[TextEdit]:
    """A number of the capture by the name of the one field of numbers that the item specs read."""
    specs, capture = port.function(ITEM_SPECS), port.function(CAPTURE)
    keys = {node.slice.value for node in ast.walk(specs)
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)}  # fmt: skip
    fields = [key for key in keys if isinstance(key, str) and key.startswith("num_")]
    found = [node for node in ast.walk(capture) if isinstance(node, ast.Name)]
    if len(names) != 1 or len(fields) != 1 or fields[0] in {node.id for node in found}:
        return []
    return [put(node, fields[0]) for node in found if node.id == names[0]]


def _pad_as_captured(port: Port) -> Repair | None:
    """Two calls of one metadata method in the replay, for images and for videos, that pad to different numbers of
    sequences. The graph's buffers have room for both, so one of them is padded short and the manager's zeros follow.
    """
    pads = [
        (call, keyword)
        for call in _calls(port.function(REPLAY))
        for keyword in call.keywords
        if keyword.arg in (ITEMS, FRAMES) and _is(keyword.value, keyword.arg)
    ]
    if len(pads) != 2 or pads[0][0] is pads[1][0] or {keyword.arg for _, keyword in pads} != {ITEMS, FRAMES}:
        return None
    method, other = (ast.dump(call.func) for call, _ in pads)
    both = [call for call in _calls(port.function(CAPTURE)) if {ITEMS, FRAMES} <= {one.arg for one in call.keywords}]
    if method != other or method not in {ast.dump(call.func) for call in both}:
        return None
    larger = f"max({ITEMS}, {FRAMES})"
    [value] = (keyword.value for _, keyword in pads if keyword.arg == FRAMES)
    return port.repair(
        "pad as captured",
        REPLAY,
        _one_call(port, value, larger) or [put(keyword.value, larger) for _, keyword in pads],
        "the capture has offsets for the larger limit, of items or of frames, and a replay fills those of one: the "
        "manager leaves zeros behind, so that a length is negative and FlashInfer's sections move",
        f"both pad to `{larger}`, as the capture does",
        lambda check: check.code == "VCG665" or SECTIONS in check.detail,
    )


def _one_call(port: Port, value: ast.expr, larger: str) -> list[TextEdit]:
    """One call with the larger number in the place of two branches that are the same but for it; empty for others.

    A name that the branches alone asked for goes, too.
    """
    replay = port.function(REPLAY)
    for node in replay.body:
        inside = [one for one in ast.walk(node) if isinstance(one, ast.stmt)]
        tests = [one.test for one in inside if isinstance(one, ast.If)]
        calls = [one for one in inside if not isinstance(one, (ast.If, ast.Raise))]
        said = {ast.unparse(one).replace(FRAMES, ITEMS) for one in calls}
        if not isinstance(node, ast.If) or (len(calls), len(said)) != (2, 1):
            continue
        [call] = (one for one in calls if value in ast.walk(one))
        asked, read = _names(*tests), _names(replay)
        gone = [one for one in replay.body if isinstance(one, ast.Assign) and _is_last(one.targets, asked, read)]
        above = (
            "# The capture has offsets for the larger of both, and the manager would",
            "# fill the rest of a shorter list with zeros.",
        )
        return [
            TextEdit((node.lineno, node.col_offset), (call.lineno, call.col_offset), b""),
            put(value, larger),
            TextEdit(_end(call), _end(node), b""),
            port.insert(REPLAY, node, above),
            *(TextEdit((one.lineno, 0), ((one.end_lineno or 0) + 1, 0), b"") for one in gone),
        ]
    return []


def _end(node: ast.stmt | ast.expr | ast.arg) -> Place:
    return node.end_lineno or 0, node.end_col_offset or 0


def _names(*nodes: ast.AST) -> Counter[str]:
    """How often each name is read."""
    names = (one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name))
    return Counter(one.id for one in names if isinstance(one.ctx, ast.Load))


def _is_last(targets: Sequence[ast.expr], asked: Counter[str], read: Counter[str]) -> bool:
    """Whether nothing but the branches reads what a statement sets."""
    return all(isinstance(one, ast.Name) and 0 < asked[one.id] == read[one.id] for one in targets)


def _bound_in_rows(port: Port) -> Repair | None:
    """The capture freezes the longest sequence at the budget, which counts output tokens, while attention has rows.

    The item specs say how many rows make a token. Their divisors must be what the capture's own names are.
    """
    capture = port.function(CAPTURE)
    factor = _rows_of_a_token(port.function(ITEM_SPECS), capture)
    edits = [
        put(keyword.value, f"{BUDGET} * {factor}")
        for node in ast.walk(capture)
        for keyword in (node.keywords if isinstance(node, ast.Call) else ())
        if keyword.arg == _BOUND and _is(keyword.value, BUDGET)
    ]
    if not factor or not edits:
        return None
    return port.repair(
        "bound in rows",
        CAPTURE,
        edits,
        "the capture freezes the longest attention sequence at the budget, which counts output tokens, and a token is "
        "made of several rows",
        f"the bound is `{BUDGET} * {factor}`",
        lambda check: FROZEN in check.detail,
    )


def _copy_on_clone(port: Port) -> Repair | None:
    """`torch.cat(parts) if len(parts) > 1 else parts[0]`: a single part is a view of the graph's output, which the next
    replay overwrites, although `clone` asks for a copy.
    """
    method = port.function(POSTPROCESS)
    if CLONE not in {parameter.arg for parameter in method.args.args} or any(_is(n, CLONE) for n in ast.walk(method)):
        return None
    for node in ast.walk(method):
        if not isinstance(node, ast.IfExp) or not isinstance(node.body, ast.Call) or not node.body.args:
            continue
        parts = ast.unparse(node.body.args[0])
        joined = call_name(node.body) == "cat" and ast.unparse(node.test) == f"len({parts}) > 1"
        if joined and ast.unparse(node.orelse) == f"{parts}[0]":
            return port.repair(
                "copy on clone",
                POSTPROCESS,
                [put(node.test, f"{port.text(POSTPROCESS, node.test)} or {CLONE}")],
                f"a result of one part is a view of the graph's memory, although `{CLONE}` asks for a copy: the next "
                "replay changes it",
                f"one part is copied, too, where `{CLONE}` is set",
                lambda check: check.code == "VCG658",
            )
    return None


def _embeddings_run_eagerly(port: Port) -> Repair | None:
    """Precomputed embeddings have no pixels, for which every method of a port asks."""
    code = "".join(ast.unparse(method) for *_, method in port.methods.values())
    fields = _embeds_fields(port)
    if not fields or CAPTURE not in port.methods or any(name in code for name in fields):
        return None
    return _by_the_manager(
        port,
        manager.EMBEDS,
        "embeddings run eagerly",
        "precomputed embeddings raise, because every method asks for pixels",
        "the manager leaves them to the runner, which calls `embed_multimodal`",
        lambda check: check.code == "VCG660",
    )


def _many_frames_run_eagerly(port: Port) -> Repair | None:
    """A graph has as many sequences as it was captured with, and the manager bounds no frames of a batch."""
    if not any(FRAMES in {one.arg for one in call.keywords} for call in _calls(port.function(CAPTURE))):
        return None
    return _by_the_manager(
        port,
        manager.FRAMES,
        "many frames run eagerly",
        "a batch of more frames than a graph holds raises",
        "the manager runs it eagerly",
        too_many_frames,
    )


def _by_the_manager(
    port: Port, check: manager.Check, name: str, what: str, so: str, answers: Callable[[Check], bool]
) -> Repair | None:
    """The check of vLLM's manager that a port of ours brings: it mends all ports at once."""
    missing = manager.find_missing(port.tree, read_protocol(port.tree), check)
    if not isinstance(missing, manager.Missing):
        return None
    module, owner, _ = port.methods[CAPTURE]
    edits = [
        edit
        for path, lines in ((missing.path, missing.lines), (manager.MANAGER_TESTS, missing.tests))
        for edit in port.put_lines(path, lines)
    ]
    place = port.tree.span(missing.path, max(missing.lines), missing.method.col_offset + 5)
    return Repair(name, module.file, owner.name, (), place, tuple(edits), what, so, answers, check.thread)


def _finished_once(port: Port) -> Repair | None:
    """The manager finishes an eager result as it finishes a graph's, so an eager forward must end where a graph does.

    The last call of the eager forward is the first of the post-processing, and none of the graph's forward.
    """
    eager = port.function(EAGER)
    finished, captured = (
        {ast.dump(call.func) for call in _calls(port.function(one))} for one in (POSTPROCESS, FORWARD)
    )
    last = eager.body[-1].value if eager.body and isinstance(eager.body[-1], ast.Return) else None
    if not isinstance(last, ast.Call) or not last.args or ast.dump(last.func) not in finished - captured:
        return None
    edits = [put(last, port.text(EAGER, last.args[0]))]
    # Sizes were moved to the device for that call. The encoder gets them where the processor has put them.
    moved = {argument.id for argument in last.args[1:] if isinstance(argument, ast.Name)}
    for node in eager.body:
        value = node.value if isinstance(node, ast.Assign) and {*map(ast.unparse, node.targets)} <= moved else None
        if isinstance(value, ast.Call) and call_name(value) == "async_tensor_h2d" and value.args:
            edits.append(put(value, port.text(EAGER, value.args[0])))
    method = port.text(EAGER, last.func)
    return port.repair(
        "finished once",
        (EAGER, POSTPROCESS),
        [*edits, port.comment(EAGER, f"# As in a graph: `{POSTPROCESS}` runs the rest.")],
        f"`{method}` runs twice on an eager result: in the eager forward and in `{POSTPROCESS}`",
        "the eager forward ends where a graph does",
        lambda check: check.code in ("VCG650", "VCG654"),
    )


def _no_sharding_inside(port: Port) -> Repair | None:
    """The manager has given each rank its own items. A forward that shares them out once more encodes a part of them,
    and gathers the parts of other ranks' items. So each method on the way to vLLM's switch gets a parameter that turns
    the sharing off.
    """
    from scaffold.cut import find_sharding

    if not port.methods.keys() >= {FORWARD, EAGER}:
        return None
    heirs = find_heirs(port.tree, port.program, port.owner)
    entries = _entries(port, heirs)
    code = ", ".join(map(ast.unparse, _calls(entries[0][2])))
    parts = {
        name for call in ast.walk(port.owner[1]) if isinstance(call, ast.Call) and (name := self_attribute(call.func))
    }
    for part in sorted(parts):
        switches = [f"self.{_SWITCH}", f"self.{part}.{_SWITCH}"]
        found = find_sharding(port.tree, port.owner, heirs, f"({code})", switches) if code else None
        if found is not None:
            break
    else:
        return None
    edits = [
        edit
        for module, _, method in entries
        for statement in ast.walk(method)
        if isinstance(statement, (ast.Assign, ast.Return))
        for call in ast.walk(statement)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in found.calls
        for edit in (
            _argument(module.file, call, f"{_SWITCH}=False"),
            *port.comment_on(module, statement, "# The manager has distributed the items over the ranks."),
        )
    ]
    for (path, class_name, name), calls in found.forwards.items():
        method = port.program.own_method(port.program.owner(path, class_name), name)
        assert method is not None, name
        given = method[2].args
        if given.vararg or given.kwarg or _SWITCH in {getattr(node, "arg", None) for node in ast.walk(method[2])}:
            return None
        edits += _with_parameter(path, method[2], calls)
    return port.repair(
        "no sharding inside",
        (FORWARD, EAGER),
        edits,
        "with data parallelism the encoder shares out again the items that the manager has given to a rank: ranks "
        "whose batches have one size mix embeddings of different images without an error, and others wait for each "
        "other",
        f"the keyword `{_SWITCH}` turns the sharing off",
        lambda check: check.code == "VCG661",
    )


def _no_layer_split(port: Port) -> Repair | None:
    """A linear layer of a part of the model is split over ranks with data parallelism, too: it lacks the `disable_tp`
    that the other layers of its module have. It gets the same call, or the variable that its method has for it.
    """
    from scaffold.cut import splits_weights

    family = list(port.program.lineage(port.owner))
    made = dict.fromkeys((module, call_name(call) or "") for module, owner in family for call in _calls(owner))
    parts = [found for module, name in made if (found := port.program.resolve(module, name)) is not None]
    split = [
        (home, part, method, node)
        for home, part in parts
        for method in part.body
        if isinstance(part, ast.ClassDef) and isinstance(method, ast.FunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and splits_weights(node.value)
    ]
    if len(split) != 1 or FORWARD not in port.methods:
        return None
    [(home, part, method, node)] = split
    layer, said = self_attribute(node.targets[0]), _said_by_siblings(home.tree)
    if layer is None or len(said) != 1 or not isinstance(node.value, ast.Call):
        return None
    [switch] = said
    given = next((name for name, call in _calls_by_name(method).items() if call == switch), switch)
    return port.repair(
        "no layer split over ranks",
        FORWARD,
        [_argument(home.file, node.value, f"disable_tp={given}")],
        f"with data parallelism each rank encodes items of its own, and `{layer}` of `{part.name}` is split over "
        "ranks, as no layer of the tower is: ranks whose batches have one size mix embeddings of different images "
        "without an error, and others wait for each other",
        f"`disable_tp={given}` keeps it whole, as the tower's layers are",
        lambda check: check.code == "VCG670",
        cost=f"with data parallelism each rank holds all weights of `{layer}`, and eager results may differ in their "
        "last bits, since no rank computes a part of them any more",
        layer=Layer((home, part, method), layer, switch.removesuffix("()")),
    )


def _said_by_siblings(module: ast.Module) -> set[str]:
    """The calls without arguments that the layers of a module take `disable_tp` from; empty for anything else."""
    found: set[str] = set()
    for method in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
        named = _calls_by_name(method)
        given = [one.value for call in _calls(method) for one in call.keywords if one.arg == "disable_tp"]
        found |= {named.get(text := ast.unparse(value), text) for value in given}
    return found if all(text.endswith("()") and text[:-2].isidentifier() for text in found) else set()


def _calls_by_name(method: FunctionNode) -> dict[str, str]:
    """The names that a method sets once, to a call, and the call."""
    set_to = Counter(n.id for n in ast.walk(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return {
        target.id: ast.unparse(node.value)
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and set_to[target.id] == 1
    }


def _entries(port: Port, heirs: Sequence[Owner]) -> list[Method]:
    """Both forwards, or the method that nothing but them calls."""
    forwards = [port.methods[FORWARD], port.methods[EAGER]]
    inside = Counter(self_attribute(call.func) for *_, method in forwards for call in _calls(method))
    classes = [port.owner[1], *(node for _, node in heirs)]
    names = (node for owner in classes for node in ast.walk(owner) if isinstance(node, ast.Attribute))
    everywhere = Counter(map(self_attribute, names))
    helpers = [port.program.method(port.owner, name) for name in inside if name and inside[name] == everywhere[name]]
    found = [helper for helper in helpers if helper is not None]
    return found if len(found) == len(inside) == 1 else forwards


def _argument(path: str, call: ast.Call, text: str) -> TextEdit:
    """One more argument behind the others of a call."""
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    if not given:
        end = (call.end_lineno or 0, (call.end_col_offset or 0) - 1)
        return TextEdit(end, end, text.encode(), path)
    return _behind(path, max(given, key=lambda node: (node.lineno, node.col_offset)), text)


def _with_parameter(path: str, method: FunctionNode, calls: frozenset[str]) -> Iterator[TextEdit]:
    """The keyword of a method that turns the switch off, what it guards, and the calls that pass it."""
    last = max(
        ast.walk(method.args), key=lambda node: (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
    )
    assert isinstance(last, (ast.expr, ast.arg)), "a parameter or its default"
    yield _behind(path, last, f"{'' if method.args.kwonlyargs else '*, '}{_SWITCH}: bool = True")
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and self_attribute(node) == _SWITCH:
            yield replace(put(node, f"({_SWITCH} and self.{_SWITCH})"), path=path)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in calls:
            yield _argument(path, node, f"{_SWITCH}={_SWITCH}")


def _behind(path: str, node: ast.expr | ast.arg, text: str) -> TextEdit:
    return TextEdit(_end(node), _end(node), f", {text}".encode(), path)


def _embeds_fields(port: Port) -> list[str]:
    """The processor's fields of precomputed embeddings, if it takes any. The model's module declares them, or one that
    it imports."""
    paths = ModelPaths(port.tree, port.owner[0].file, port.owner[1].name)
    imported = (port.program.module(f"{home.replace('.', '/')}.py") for home, _ in port.owner[0].imports.values())
    for module in (port.owner[0], *imported):
        found = [key for node in ast.walk(module.tree) for key in _fields(node) if key in _EMBEDS] if module else []
        if found:
            return [key for key in found if not paths.refused_embeds(key.removesuffix("_embeds"))]
    return []


def _fields(node: ast.AST) -> Iterator[str]:
    """Names of fields: `dict(name=MultiModalFieldConfig.kind(...))`, or the same as a literal."""
    given: list[tuple[object, ast.expr]] = []
    if isinstance(node, ast.Call):
        given = [(one.arg, one.value) for one in node.keywords]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        given = [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant)]
    for name, value in given:
        kind = value.func if isinstance(value, ast.Call) else None
        if isinstance(name, str) and isinstance(kind, ast.Attribute) and _is(kind.value, "MultiModalFieldConfig"):
            yield name


_RULES = (
    _capture_rounds_up,
    _rows_by_budget,
    _pad_as_captured,
    _bound_in_rows,
    _copy_on_clone,
    _finished_once,
    _no_sharding_inside,
    _no_layer_split,
    _embeddings_run_eagerly,
    _many_frames_run_eagerly,
)


# -- questions to a method ---------------------------------------------------------------------------------------------


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _quotient(node: ast.AST) -> ast.BinOp | None:
    """`token_budget // ...`, None for any other node."""
    divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    return node if isinstance(node, ast.BinOp) and divides and _is(node.left, BUDGET) else None


def _is_short(buffers: Sequence[str], check: Check) -> bool:
    """Whether a replay failed because one of these buffers is too short for it."""
    short = any(captured_short(key) in check.detail for key in buffers)
    return check.code == "VCG654" and ROUND_UP in check.detail and short


def _buffers_of_length(method: FunctionNode, name: str) -> Iterator[str]:
    """The keys of dictionaries whose values come from a call with `name` as the first argument."""
    made = {
        target.id
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args
        for target in node.targets
        if isinstance(target, ast.Name) and _is(node.value.args[0], name)
    }
    for node in ast.walk(method):
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(value, ast.Name) and value.id in made:
                yield str(key.value)


def _calls(method: FunctionNode | ast.ClassDef) -> list[ast.Call]:
    return [node for node in ast.walk(method) if isinstance(node, ast.Call)]


def _rows_of_a_token(specs: FunctionNode, capture: FunctionNode) -> str:
    """The rows of an output token, in the capture's names; empty where the methods do not say.

    `input_size=h * w` and `output_tokens=(h // kh) * (w // kw)` say `kh * kw`.
    """
    for node in ast.walk(specs):
        given = {one.arg: one.value for one in node.keywords} if isinstance(node, ast.Call) else {}
        if not {"input_size", "output_tokens"} <= given.keys():
            continue
        rows = [ast.dump(one) for one in _factors(given["input_size"])]
        divisors = []
        for factor in _factors(given["output_tokens"]):
            divided = isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.FloorDiv)
            left = ast.dump(factor.left if isinstance(factor, ast.BinOp) and divided else factor)
            if left not in rows:
                return ""
            rows.remove(left)
            if isinstance(factor, ast.BinOp) and divided:
                divisors.append(factor.right)
        there = {value: name for name, value in _values(capture).items()}
        here = _values(specs)
        names = [there.get(here.get(one.id, ("", 0))) if isinstance(one, ast.Name) else None for one in divisors]
        if rows or not names or None in names:
            return ""
        same = len(names) == 2 and names[0] == names[1]
        return f"({names[0]}**2)" if same else " * ".join(map(str, names))
    return ""


def _factors(node: ast.expr) -> list[ast.expr]:
    """The factors of a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _values(method: FunctionNode) -> dict[str, tuple[str, int]]:
    """The names that a method sets once: what they are set to, and which part of it."""
    found: dict[str, list[tuple[str, int]]] = {}
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for index, name in enumerate(names):
                    if isinstance(name, ast.Name):
                        part = index if isinstance(target, ast.Tuple) else -1
                        found.setdefault(name.id, []).append((ast.dump(node.value), part))
    return {name: values[0] for name, values in found.items() if len(values) == 1}
