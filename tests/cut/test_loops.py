"""The loop over an encoder's layers as a method: on real classes of vLLM 0.33, and every reason against one."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted
from proven import assert_right

from scaffold.adapters.source import render_adapter
from scaffold.cut import cut_at_load, prove_cut
from scaffold.cut.loops import find_misfit, outline
from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import GENERATIONS, known_profile
from scaffold.workflow import prepare_port, prove_numerics

RELEASE = "0.33.0"
MODELS = "vllm/model_executor/models"
#: Descriptors with a loop: what the new method reads, and the lines of the loop.
LOOPS = {
    "paddleocr_vl": ("hidden_states, cu_seqlens, rotary_pos_emb, max_seqlen", "for encoder_layer in self.layers:"),
    "dots_ocr": ("hidden_states, cu_seqlens, rotary_pos_emb, max_seqlen", "for blk in self.blocks:"),
}
REENTERS: dict[str, Any] = {"explicit": None}
#: Isaac has a call of its encoder; the loop in it can be recorded as well.
ISAAC = {"forward.loop": "self.layers"}
ISAAC_FILE = f"{MODELS}/isaac.py"
ISAAC_RECIPE = str(Path(__file__).with_name("isaac_rows.py"))


# -- static -----------------------------------------------------------------------------------------------------------


@pytest.mark.trees
@pytest.mark.parametrize("model", LOOPS)
def test_the_loop_becomes_a_method(model: str, release_tree: Any) -> None:
    port = prepare_port(port_of(model, REENTERS), release_tree(RELEASE))
    [change] = [change for change in port.changed if change.path == f"{MODELS}/{model}.py"]
    before, after = ((text or b"").decode() for text in (change.before, change.after))
    arguments, header = LOOPS[model]
    flat = " ".join(after.split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")
    assert flat.count(f"hidden_states = (self.forward_layers if encode is None else encode)({arguments})") == 1
    assert (before.count(header), after.count(header)) == (1, 1)
    method = flat.partition("def forward_layers(self, hidden_states: torch.Tensor, ")[2]
    assert method.partition('"""')[0].endswith(") -> torch.Tensor: ")
    assert method.partition(header)[2].partition("def ")[0].count("return hidden_states") == 1
    assert ".forward_layers\n" in after.partition("def _captured_encoder(")[2]
    # `a(x).b(y)` are two calls that start in the same place; one of them leads to the encoder.
    assert ".squeeze(0, encode" not in after


@pytest.mark.trees
@pytest.mark.parametrize("model", LOOPS)
def test_a_second_port_finds_the_method(model: str, release_tree: Any) -> None:
    port, path = port_of(model, REENTERS), f"{MODELS}/{model}.py"
    [change] = [change for change in prepare_port(port, release_tree(RELEASE)).changed if change.path == path]
    tree = release_tree(RELEASE).with_files({path: change.after or b""})
    assert [again for again in prepare_port(port, tree, replace=True).changed if again.path == path] == []


@pytest.mark.trees
def test_layers_that_take_the_longest_sequence_are_told_it(release_tree: Any) -> None:
    """Kimi-VL's layers ask the GPU for it where they get none, which in the model's own code is always."""
    changed = prepare_port(port_of("kimi_vl"), release_tree(RELEASE), replace=True).changed
    [after] = [(change.after or b"").decode() for change in changed if change.before is None]
    assert 'if call.arguments.get("max_seqlen", 0) is None:' in after
    assert 'call.arguments["max_seqlen"] = torch.tensor(num_rows, dtype=torch.int32)' in after


@pytest.mark.trees
@pytest.mark.parametrize(
    ("model", "changes", "place", "message"),
    [
        ("dots_ocr", {"forward.loop": "self.layers"}, "dots_ocr.yaml:9", "does not lead to a loop over `self.layers`"),
        ("dots_ocr", {"forward.encoder": "self.vision"}, "dots_ocr.yaml:9", "does not lead to a loop"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    model: str, changes: dict[str, Any], place: str, message: str, release_tree: Any
) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of(model, changes), release_tree(RELEASE), replace=True)
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG443"
    assert message in problem.message
    assert place in str(problem.span)


@pytest.mark.trees
def test_an_adapter_does_the_same_when_a_model_is_made() -> None:
    text, _ = render_adapter(port_of("dots_ocr"), known_profile(GENERATIONS[-1]))
    assert "loop='self.blocks'" in text or 'loop="self.blocks"' in text
    assert "return self.vision_tower.forward_layers\n" in text


VIT = f"{MODELS}/kimi_k25_vit.py"


@pytest.mark.trees
@pytest.mark.parametrize("model", ["kimi_k25", "kimi_k3"])
def test_a_way_may_lead_through_a_function_of_a_module(model: str, release_tree: Any) -> None:
    """It gets the tower as an argument. What shards the items over ranks stays as it is: graphs are off there."""
    port = prepare_port(port_of(model), release_tree(RELEASE), replace=True)
    assert sum(not station.class_name for station in port.plan.way.stations) == 1
    changes = {change.path: change for change in port.changed}
    assert f"{MODELS}/vision.py" not in changes
    before, after = ((text or b"").decode() for text in (changes[VIT].before, changes[VIT].after))
    old, new = (text.partition("def vision_tower_forward(")[2].partition("\nclass ")[0] for text in (before, after))
    parameter = "    encode: Callable[..., torch.Tensor] | None = None,\n"
    assert new == old.replace("bool,\n)", f"bool,\n{parameter})").replace(
        "=encoder_metadata,\n", "=encoder_metadata,\n            encode=encode,\n"
    )
    ways = frozenset((one.class_name, one.function) for one in port.plan.way.changed if one.file == VIT)
    assert ("", "vision_tower_forward") in ways
    assert prove_cut(before, after, ways, VIT) == ()
    made, none = ("grid_thw_list = grid_thw.tolist()\n        encoder_m", "grid_thw_list = []\n        encoder_m")
    other = after.replace(made, none)
    [problem] = prove_cut(before, other, ways, VIT)
    assert "`vision_tower_forward` does something else" in problem.message


@pytest.mark.trees
def test_chunks_that_ranks_share_need_a_gate(release_tree: Any) -> None:
    """Frames may become fewer tokens than their rows say, and ranks gather by tokens."""
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("kimi_k25", {"gates": None}), release_tree(RELEASE), replace=True)
    [problem] = caught.value.diagnostics
    assert (problem.code, "gates: {modalities: not self.use_data_parallel}" in (problem.help or "")) == ("VCG445", True)


TINY = """\
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), nn.Identity()])

    def forward(self, x, scale):
        for layer in self.layers:
            x = layer(x) * scale
        return -x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def run(self, x):
        return self.encoder(x, 3)
"""


def test_a_running_model_gets_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    (tmp_path / "tiny_loop.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = import_module("tiny_loop").Model
    model = cls()
    cut_at_load(model, cls, entries=["self.run"], call="self.encoder", loop="self.layers")
    assert (model.run(2), model.encoder.forward_layers(2, 10)) == (-18, 200)
    assert model.run(2, encode=lambda x, scale: x + scale) == -5
    assert not hasattr(cls().encoder, "forward_layers")
    with pytest.raises(DiagnosticError, match="VCG462"):
        cut_at_load(cls(), cls, entries=["self.run"], call="self.encoder", loop="self.blocks")


FUNCTION = """

def run(model, x):
    return model(x, 3)


class Other(Model):
    def run(self, x):
        return run(self.encoder, x)
"""


def other_model(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class `Other` of a module with this name, whose way to the encoder leads through a function."""
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    (folder / f"{name}.py").write_text(TINY + FUNCTION)
    monkeypatch.syspath_prepend(str(folder))
    return import_module(name).Other


def test_a_function_of_a_running_model_stays_as_it_is_for_its_other_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = other_model(tmp_path, "tiny_function", monkeypatch)
    module = sys.modules["tiny_function"]
    old, model = module.run, cls()
    cut_at_load(model, cls, entries=["self.run"], call="self.encoder", loop="self.layers")
    assert model.run(2) == cls().run(2) == -18
    assert model.run(2, encode=lambda x, scale: x + scale) == -5
    assert module.run is old
    assert "encode" not in inspect.signature(old).parameters


@pytest.mark.parametrize("gone", [False, True])
def test_a_function_that_something_has_replaced_is_left_alone(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"tiny_other_function_{gone}"
    cls = other_model(tmp_path, name, monkeypatch)
    if gone:
        monkeypatch.delattr(sys.modules[name], "run")
    else:
        monkeypatch.setattr(sys.modules[name], "run", lambda model, x: 0)
    with pytest.raises(DiagnosticError, match=r"is not (what was imported|the one of its source)"):
        cut_at_load(cls(), cls, entries=["self.run"], call="self.encoder", loop="self.layers")


METHOD = """\
def forward(self, x, cu, states=None, *, flag):
    y = x + 1
    if flag:
        z = cu
    out = []
    {prefix}for layer in {layers}:
        {body}
    return y, out, {after}
"""


def of(
    body: str = "y = layer(y, cu)", *, layers: str = "self.layers", after: str = "0", prefix: str = ""
) -> tuple[ast.FunctionDef, ast.For]:
    text = METHOD.format(body=body, layers=layers, after=after, prefix=prefix)
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    return function, next(node for node in ast.walk(function) if isinstance(node, ast.For))


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("y = layer(y, cu)", ("y", "cu")),
        ("y = layer(cu, y)", ("y", "cu")),
        ("y = torch.relu(layer(y)) if flag else y", ("y", "flag")),
        ("k = cu; y = layer(y, k, states)", ("y", "cu", "states")),
        ("y = layer(y, *[c for c in cu])", ("y", "cu")),
        ("y = y + layer(y)\n        if flag: continue", ("y", "flag")),
    ],
)
def test_what_a_loop_reads(body: str, arguments: tuple[str, ...]) -> None:
    function, loop = of(body)
    assert find_misfit(function, loop) is None
    found = outline(function, loop)
    assert (found.arguments, found.result) == (arguments, "y")


BRANCHES = """\
def forward(self, y, a):
    if a:
        b = 1
    else:
        c = y
        for layer in self.layers:
            y = layer(y, c)
    return y
"""


def test_a_loop_may_stand_in_a_branch() -> None:
    [function] = ast.parse(BRANCHES).body
    assert isinstance(function, ast.FunctionDef)
    loop = next(node for node in ast.walk(function) if isinstance(node, ast.For))
    assert find_misfit(function, loop) is None
    assert outline(function, loop).arguments == ("y", "c")


COMPREHENSION = """\
def forward(self, y, kinds):
    some = {made}
    for kind, layer in zip(kinds, self.layers):
        y = layer(y, kind)
    return y, some
"""


@pytest.mark.parametrize(
    ("made", "fits"),
    [
        ("any(kind for kind in kinds)", True),
        ("[kind for kind in kinds if kind]", True),
        ("{kind: layer for kind, layer in kinds}", True),
        ("[a for kind in kinds for a in {kind}]", True),
        ("[a for a in kind]", False),
        ("[kind for kind in kind]", False),
        ("(any(kind for kind in kinds), kind)", False),
    ],
)
def test_names_of_a_comprehension_are_its_own(made: str, fits: bool) -> None:
    text = COMPREHENSION.format(made=made)
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    [loop] = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    assert (find_misfit(function, loop) is None) == fits
    call = "y = (self.forward_layers if encode is None else encode)(y, kinds)"
    after = (
        text.replace("kinds):", "kinds, encode=None):", 1).partition("    for")[0]
        + f"    {call}\n    return y, some\n"
        + 'def forward_layers(self, y, kinds):\n    """Layers."""\n'
        + "    for kind, layer in zip(kinds, self.layers):\n        y = layer(y, kind)\n    return y\n"
    )
    before, after = (f"class A:\n{indent(part, '    ')}" for part in (text, after))
    problems = prove_cut(before, after, frozenset({("A", "forward")}), "a.py")
    assert [problem.code for problem in problems] == ([] if fits else ["VCG646"])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (of("return y"), "it returns"),
        (of("y = layer(y)\n        if flag: break"), "it ends early"),
        (of("y = yield layer(y)"), "it yields"),
        (of("y = layer(y)\n        self.last = y"), "it changes `self.last`"),
        (of("y = layer(y)\n        states[0] = y"), "it changes `states[0]`"),
        (of("y += layer(y)"), "it changes `y` in place"),
        (of("y = layer(y)\n        out.append(y)"), "`out.append(y)` has an effect beside the features"),
        (of("y = layer(y, lambda: cu)"), "it has definitions or deletions of its own"),
        (of("y = layer(y)\n        del cu"), "it has definitions or deletions of its own"),
        (of("y = layer(y)\n        out = out + [y]"), "it hands on `y`, `out`, and a graph gives one tensor"),
        (of("y = layer(y)\n        cu = cu + 1"), "it hands on `y`, `cu`, and a graph gives one tensor"),
        (of("w = layer(x)"), "it hands on nothing, and a graph gives one tensor"),
        (of("y = layer(x)"), "`y`, which is used behind it, does not go from layer to layer"),
        (of("y = layer(y, z)"), "`z` may have no value before it"),
        (of("y = layer(y)", after="layer"), "it hands on `layer`, `y`, and a graph gives one tensor"),
        (
            of("    y = layer(y, cu)", prefix="with cu:\n        "),
            "it runs inside of another loop, of `try` or of `with`",
        ),
        (
            of("    y = layer(y, cu)", prefix="while cu:\n        "),
            "it runs inside of another loop, of `try` or of `with`",
        ),
    ],
)
def test_what_no_method_of_its_own_can_be(given: tuple[ast.FunctionDef, ast.For], reason: str) -> None:
    misfit = find_misfit(*given)
    assert misfit is not None
    assert misfit.reason == reason
    assert misfit.node in ast.walk(given[1])


# -- the proof --------------------------------------------------------------------------------------------------------


BEFORE = """\
class A:
    def forward(self, x, cu):
        y = x + 1
        table = cu
        spare = cu
        for index, layer in enumerate(self.layers):
            now = cu
            y = layer(y, now, table, index)
        return self.norm(y)
"""
AFTER = """\
class A:
    def forward(self, x, cu, encode=None):
        y = x + 1
        table = cu
        spare = cu
        y = (self.forward_layers if encode is None else encode)(y, cu, table)
        return self.norm(y)

    def forward_layers(self, y: torch.Tensor, cu, table) -> torch.Tensor:
        \"\"\"The layers.\"\"\"
        for index, layer in enumerate(self.layers):
            now = cu
            y = layer(y, now, table, index)
        return y
"""
FORWARD = frozenset({("A", "forward")})


def test_a_moved_loop_is_proven() -> None:
    assert prove_cut(BEFORE, AFTER, FORWARD, "a.py") == ()
    named = AFTER.replace("(self, y: torch.Tensor, cu, table) -> torch.Tensor", "(self, y, cu: int, table: Any)")
    assert prove_cut(BEFORE, named, FORWARD, "a.py") == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(y, cu, table)\n        return", "(y, cu, spare)\n        return"),  # another value
        ("(y, cu, table)\n        return", "(y, table, cu)\n        return"),  # another order
        ("y = (self.forward_layers", "spare = (self.forward_layers"),  # the result lands elsewhere
        ("(self, y: torch.Tensor, cu, table)", "(self, y: torch.Tensor, table, cu)"),
        ("(self, y: torch.Tensor, cu, table)", "(self, y: torch.Tensor, cu, table=None)"),
        ("(self, y: torch.Tensor, cu, table)", "(self, y: torch.Tensor, cu, *table)"),
        ("(self, y: torch.Tensor, cu, table)", "(own, y: torch.Tensor, cu, table)"),
        ("    def forward_layers", "    @cache\n    def forward_layers"),
        ("            y = layer(y, now", "            y = layer(y, cu"),  # another statement
        ("enumerate(self.layers)", "enumerate(self.others)"),  # another loop
        ("        return y\n", "        return now\n"),
        ("        return y\n", "        return self.norm(y)\n"),
        ("        return y\n", ""),
        ('        """The layers."""\n', '        """The layers."""\n        y = y + 1\n'),
        ("        return self.norm(y)", "        y = self.forward_layers(y, cu, table)\n        return self.norm(y)"),
        ("    def forward_layers", "    def run_layers"),
    ],
)
def test_another_move_is_refused(old: str, new: str) -> None:
    after = AFTER.replace(old, new, 1)
    assert after != AFTER
    ast.parse(after)
    assert [problem.code for problem in prove_cut(BEFORE, after, FORWARD, "a.py")] == ["VCG646"]


@pytest.mark.parametrize(
    "loop",
    [
        "for layer in self.layers:\n            y = layer(y, cu, spare)",  # a live-in value left out: a global there
        "for layer in self.layers:\n            return layer(y, cu, table)",
        "for layer in self.layers:\n            y, spare = layer(y, cu, table)",  # a second result is lost
        "for layer in self.layers:\n            y, cu = layer(y, cu, table)",
        "for layer in self.layers:\n            spare = layer(y, cu, table)",
        "while self.layers:\n            y = layer(y, cu, table)",
    ],
)
def test_a_loop_that_means_something_else_in_its_method_is_refused(loop: str) -> None:
    """Put back it would give the same text; its names would not be the same."""
    text = (
        "for index, layer in enumerate(self.layers):\n            now = cu\n            y = layer(y, now, table, index)"
    )
    before, after = (which.replace(text, loop) for which in (BEFORE, AFTER))
    assert (before != BEFORE, after != AFTER) == (True, True)
    assert [problem.code for problem in prove_cut(before, after, FORWARD, "a.py")] == ["VCG646"]


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
def test_a_recorded_loop_equals_the_pristine_tree(release_tree: Any) -> None:
    port = port_of("isaac", ISAAC)
    [report] = prove_numerics(port, release_tree(RELEASE), tails=("fa3",), recipe=ISAAC_RECIPE)
    assert_right(report, 15, 3)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("model", [*LOOPS, "kimi_k25", "kimi_k3", "muse_glimmer"])
def test_the_port_of_a_loop_equals_the_pristine_tree(model: str, release_tree: Any) -> None:
    """By the automatic recipe, the last three by their own: nothing makes Kimi's processors, and Muse's are large."""
    [report] = prove_numerics(port_of(model), release_tree(RELEASE), tails=("fa3",))
    assert_right(report, 15, 3)


LAYERS = "for encoder_layer in self.layers:"
MUTANTS = (
    Mutant("a value left out", "cu_seqlens, max_seqlen\n", "cu_seqlens, None\n", "VCG654"),
    Mutant("another loop", LAYERS, "for encoder_layer in self.layers[:-1]:", "VCG650"),
    Mutant("rows in another order", 'leaf.movedim(axis, 0), sample', 'leaf.movedim(axis, 0).flip(0), sample', "VCG650"),
    Mutant("offsets are not padded", "dst[len(src) :] = src[-1]", "pass", "VCG665"),
)  # fmt: skip


test_a_wrong_loop_is_rejected = planted(
    MUTANTS, ISAAC_FILE, RELEASE, "isaac", ISAAC, recipe=ISAAC_RECIPE, sampled=False
)
