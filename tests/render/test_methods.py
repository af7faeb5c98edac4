"""The rendered methods in every dialect: headers are the protocol's, names are bound, each generation is spoken."""

from __future__ import annotations

import ast
import builtins
import dataclasses
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from changed_ports import port_of

from scaffold.descriptor import shipped_names
from scaffold.plan.methods import Methods, refusal, render_methods
from scaffold.plan.views import TreeFacts
from scaffold.protocol import GENERATIONS as KNOWN
from scaffold.protocol import ProtocolProfile
from scaffold.protocol.profile import known_profile
from scaffold.workflow import load_port

GENERATIONS = {generation.name: generation for generation in KNOWN}
FACTS = {
    "unknown": TreeFacts(),
    "older": TreeFacts(has_input_dtype=False, has_gate=False),
    "newer": TreeFacts(has_input_dtype=True, attention_fills_zeros=True),
}


def render(model: str, generation: str, facts: TreeFacts = FACTS["unknown"]) -> Methods:
    return render_methods(load_port(model), profile_of(generation), facts)


def profile_of(generation: str) -> ProtocolProfile:
    return known_profile(GENERATIONS[generation])


def functions(methods: Methods) -> dict[str, ast.FunctionDef]:
    """The generated methods, those that a mixin brings first."""
    body = ast.parse(methods.source).body
    if methods.mixin:
        [owner] = [node for node in ast.parse(methods.mixin.source).body if isinstance(node, ast.ClassDef)]
        body = [*owner.body, *body]
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def module_names(source: str) -> set[str]:
    """What a module imports and assigns."""
    nodes = ast.parse(source).body
    imports = [alias for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    return {alias.asname or alias.name for alias in imports} | {ast.unparse(target) for target in targets}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("model", shipped_names())
@pytest.mark.parametrize("facts", FACTS)
def test_methods_are_the_protocols(model, generation, facts):
    profile = profile_of(generation)
    if refusal(load_port(model), profile.dialect):
        pytest.skip("the protocol has no place for what the model needs")
    methods = render(model, generation, FACTS[facts])
    found = functions(methods)

    required = {method.name for method in profile.methods if not method.has_default} - profile.uncalled
    assert required <= found.keys()
    known = {method.name: method for method in profile.methods}
    for name, node in found.items():
        if name not in known:
            assert name.startswith("_"), name
            continue
        wanted = [(parameter.name, parameter.default) for parameter in known[name].parameters]
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]
        assert [argument.arg for argument in arguments] == [word for word, _ in wanted]
        assert [ast.unparse(default) for default in defaults] == [text for _, text in wanted if text is not None]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("model", shipped_names())
@pytest.mark.parametrize("facts", FACTS)
def test_every_name_is_bound(model, generation, facts):
    """By an import that the plan adds, by the method itself, or by what every model file of vLLM has."""
    if refusal(load_port(model), profile_of(generation).dialect):
        pytest.skip("the protocol has no place for what the model needs")
    methods = render(model, generation, FACTS[facts])
    imported = {name for _, name in methods.imports} | {"torch"} | set(dir(builtins))
    mixin = module_names(methods.mixin.source) | set(dir(builtins)) if methods.mixin else set()
    own = {node.name for node in ast.parse(methods.source).body if isinstance(node, ast.FunctionDef)}

    for node in functions(methods).values():
        bound = {item.arg for item in ast.walk(node) if isinstance(item, ast.arg)}
        bound |= {
            item.name for item in ast.walk(node) if isinstance(item, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler))
        }
        bound |= {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
        bound |= {
            (alias.asname or alias.name).split(".")[0]
            for item in ast.walk(node)
            if isinstance(item, (ast.Import, ast.ImportFrom))
            for alias in item.names
        }
        read = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
        assert read - bound - (imported if node.name in own else mixin) == set(), node.name


@pytest.mark.parametrize(
    ("first", "last", "model", "text"),
    [
        # What a generation has from its first release on; older ones must not speak it.
        ("v0_22", "v0_30", "internvl", "def get_encoder_cudagraph_item_specs("),
        ("v0_22", "v0_30", "internvl", "EncoderItemSpec("),
        ("v0_23", "v0_30", "internvl", "values={"),
        ("v0_23", "v0_30", "qwen2_5_vl", "padding_logics="),
        ("v0_24", "v0_30", "internvl", "path: str"),
        ("v0_30", "v0_30", "internvl", "axis_keys"),
        # What has gone since.
        ("v0_20", "v0_20", "internvl", "def get_encoder_cudagraph_num_items("),
        ("v0_20", "v0_22", "internvl", "input_key_by_modality="),
        ("v0_20", "v0_22", "internvl", "buffers="),
    ],
)
def test_dialect_is_spoken_in_its_generations(first, last, model, text):
    names = list(GENERATIONS)

    spoken = [name for name in names if text in render(model, name).source]

    assert spoken == names[names.index(first) : names.index(last) + 1]


@pytest.mark.parametrize(
    ("model", "facts", "has", "lacks"),
    [
        ("qwen2_5_vl", "unknown", "getattr(getattr(self.visual", "input_dtype or dtype"),
        ("qwen2_5_vl", "newer", "self.visual.input_norm.input_dtype or dtype", "getattr(getattr("),
        ("qwen2_5_vl", "older", "dtype", "input_dtype"),
        ("qwen2_5_vl", "unknown", "is_multimodal_pruning_enabled", "\x00"),
        ("qwen2_5_vl", "older", "modalities=", "is_multimodal_pruning_enabled"),
        ("qwen2_5_vl", "unknown", "num_seqs += max(token_budget - num_seqs, 0)", "\x00"),
        ("qwen2_5_vl", "newer", "_pad_cu_seqlens", "num_seqs +="),
    ],
)
def test_what_the_tree_decides(model, facts, has, lacks):
    source = render(model, "v0_30", FACTS[facts]).source

    assert has in source
    assert lacks not in source


@pytest.mark.parametrize(
    ("model", "changes", "has", "lacks"),
    [
        ("qwen2_5_vl", {"pixels.dtype": None}, "dtype", "input_dtype"),
        (
            "qwen2_vl",
            {"model.tower": "eyes"},
            "self.eyes.prepare_encoder_metadata(",
            "self.visual.prepare_encoder_metadata(",
        ),
        ("qwen2_vl", {"tower.grid": "tensor"}, "torch.tensor(grid_thw)", "\x00"),
        ("internvl", {"forward.flatten": False}, "self.extract_feature(", ".flatten(0, 1)"),
        (
            "internvl",
            {"data_parallel": None},
            "def encoder_cudagraph_forward",
            "use_data_parallel",
        ),
    ],
)
def test_what_the_descriptor_decides(model, changes, has, lacks):
    source = render_methods(port_of(model, changes), profile_of("v0_30"), FACTS["unknown"]).source

    assert has in source
    assert lacks not in source


@pytest.mark.parametrize("model", ["internvl", "step3_vl"])
def test_switches_are_off_inside_of_the_tower_and_afterwards_as_before(model):
    """Several of them, on or off, and one that this tower does not have; also where the tower raises."""
    paths = ("self.use_data_parallel", "self.tower.use_data_parallel", "self.other.shards")
    changes = {"data_parallel.switches": list(paths), "forward": {"call": "self.look(pixels)"}}
    port = port_of(model, changes)
    source = "from __future__ import annotations\n" + render_methods(port, profile_of("v0_30"), FACTS["unknown"]).source
    names: dict[str, Any] = {"cached_property": property, "patch": patch}
    exec(source, names)
    self = SimpleNamespace(
        use_data_parallel=True, tower=SimpleNamespace(use_data_parallel=True), other=SimpleNamespace()
    )

    def state():
        return self.use_data_parallel, self.tower.use_data_parallel, vars(self.other)

    seen = []
    self.look = lambda pixels: seen.append(state()) or 1 / pixels
    for pixels in (1, 0):
        with suppress(ZeroDivisionError):
            names["_encode_tiles"](self, pixels)
        assert state() == (True, True, {})
    self.tower.use_data_parallel = False
    names["_encode_tiles"](self, 1)

    assert seen == [(False, False, {})] * 3
    assert state() == (True, False, {})


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (None, 'modalities=["image"],'),
        ("self.on", 'modalities=["image"] if self.on else [],'),
        ("not self.off", 'modalities=[] if self.off else ["image"],'),
        ("self.on and not self.off", 'modalities=["image"] if self.on and not self.off else [],'),
        ("not (self.off and self.far)", 'modalities=[] if self.off and self.far else ["image"],'),
        (
            "not self.off and not (self.far and self.wide)",
            'modalities=[] if self.off or (self.far and self.wide) else ["image"],',
        ),
    ],
)
def test_a_gate_of_negations_says_when_it_is_closed(gate, said):
    """As vLLM's own ports do: `[] if self.is_multimodal_pruning_enabled else [...]`."""
    changes = {"gates": {"modalities": gate} if gate else None}

    source = render_methods(port_of("mllama4", changes), profile_of("v0_30"), FACTS["unknown"]).source

    assert said in " ".join(source.split())


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("gate", "facts", "may_be_empty"),
    [
        ("not self.use_data_parallel", TreeFacts(), False),
        ("not self.use_data_parallel", TreeFacts(has_gate=False), True),  # the release has no such attribute
        ("not self.off", TreeFacts(), True),
        (None, TreeFacts(), True),
        (None, TreeFacts(shares_items=False), False),
    ],
)
def test_no_code_for_a_rank_without_items_where_no_rank_has_graphs(generation, gate, facts, may_be_empty):
    """The runner first asks the manager for the modality, and there is none: no batch is ever selected."""
    port = port_of("mllama4", {"gates": {"modalities": gate} if gate else None})

    source = render_methods(port, profile_of(generation), facts).source

    assert (":0]" in source) is may_be_empty
    assert ("A rank may get no item" in source) is may_be_empty


def test_sequences_are_counted_by_their_unit():
    """A sequence a frame is checked before a replay; a sequence an item is not, since the manager counts items.

    Since 0.27 a video says how much of a graph its frames take, and nothing is to be checked.
    """
    by_frame = render("qwen2_vl", "v0_24").source
    by_item = render_methods(
        port_of("qwen2_vl", {"attention.full.unit": "item"}), profile_of("v0_24"), FACTS["unknown"]
    ).source

    assert "num_frames = sum(t for t, _, _ in grid_thw)" in by_frame
    assert "num_frames = " not in by_item
    assert "num_frames = " not in render("qwen2_vl", "v0_30").source


@pytest.mark.parametrize(("columns", "captured"), [(["t", "h", "w"], "1, m, min("), (["h", "w"], "m, min(")])
def test_a_captured_image_has_the_columns_of_the_sizes(columns, captured):
    """One frame is a column of sizes that have one."""
    frames = "t * " if "t" in columns else ""
    changes = {
        "modalities.video": None,
        "sizes.columns": columns,
        "item": {"rows": f"{frames}h * w", "tokens": f"{frames}(h // m) * (w // m)"},
        "attention.full.unit": "item",
        "budget.frames": None,
        "integration": None,
    }
    capture = functions(render_methods(port_of("qwen2_vl", changes), profile_of("v0_30"), FACTS["unknown"]))
    source = ast.unparse(capture["prepare_encoder_cudagraph_capture_inputs"])

    assert f"grid_{''.join(columns)} = [[{captured}" in source


def test_names_that_the_shape_uses_twice_are_local():
    """A `let` name that only the shape of the pixels uses: the capture method defines it before it is used."""
    port = port_of("qwen2_vl", {"pixels.shape": ["side * side", "channels"]})

    capture = functions(render_methods(port, profile_of("v0_30"), FACTS["unknown"]))
    source = ast.unparse(capture["prepare_encoder_cudagraph_capture_inputs"])

    assert "side = self.visual.patch_embed.patch_size" in source
    assert source.index("side = ") < source.index("side * side")


def test_parameters_keep_the_names_of_the_tree():
    """A new parameter of the protocol needs no template: headers come from the profile."""
    profile = profile_of("v0_30")
    methods = []
    for method in profile.methods:
        if method.name == "get_encoder_cudagraph_budget_range":
            first, second = method.parameters
            more = dataclasses.replace(second, name="phase", annotation='"str | None"', default="None")
            plain = dataclasses.replace(second, name="extra", annotation=None, default="1")
            methods.append(dataclasses.replace(method, parameters=(first, second, more, plain), returns=None))
        else:
            methods.append(method)

    source = render_methods(
        load_port("internvl"), dataclasses.replace(profile, methods=tuple(methods)), FACTS["unknown"]
    ).source

    assert "vllm_config: VllmConfig, phase: str | None = None, extra=1):" in source


def test_no_comment_follows_a_bracket():
    """A comment inside of a value moves behind the bracket that the formatter puts around it."""
    folder = Path(__file__).parents[2] / "generated/vitcg_adapters"
    lines = [line.strip() for path in folder.rglob("*.py") for line in path.read_text("utf-8").splitlines()]

    assert len(lines) > 1000
    assert [line for line in lines if line.startswith((")", "]", "}")) and "#" in line] == []


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("model", shipped_names())
def test_what_a_capture_keeps_is_there_before_it(model, generation):
    """A manager may capture no graph of a path, and asks for its items all the same (Step3-VL of 0.26 raised).

    So all state lives in properties, which have a type, a docstring and a first value, or in attributes that the class
    has with a type and a first value. No method asks whether one is there.
    """
    if refusal(load_port(model), profile_of(generation).dialect):
        pytest.skip("the protocol has no place for what the model needs")
    methods = render(model, generation)
    found = functions(methods)
    nodes = [node for function in found.values() for node in ast.walk(function)]
    kept = [node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    asked = [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(("hasattr(self,", "getattr(self, '_"))
    ]
    given = [node for node in ast.parse(methods.source).body if isinstance(node, ast.AnnAssign) and node.value]
    assert set(kept) <= {ast.unparse(node.target) for node in given}
    assert asked == []
    for name, function in found.items():
        if "vars(self)" in ast.unparse(function):
            assert ast.unparse(function).startswith("@property"), name
            attribute = name.replace("encoder_cudagraph", "captured")  # another name: who starts anew deletes it
            assert f"return vars(self).setdefault('{attribute}', " in ast.unparse(function)
            assert ast.get_docstring(function), name
            assert function.returns, name


@pytest.mark.parametrize("model", shipped_names())
def test_private_methods_say_what_they_take_and_give(model):
    """Every parameter and result of a private method has a type, and all but the shortest say what they do."""
    for name, function in functions(render(model, "v0_30")).items():
        if name.startswith("_"):
            untyped = [item.arg for item in function.args.args if item.arg != "self" and item.annotation is None]
            assert untyped == [], name
            assert function.returns is not None, name
            assert ast.get_docstring(function) or len(function.body) <= 2, name


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (None, "max(max_batch_size, max_frames, len(grid_thw))"),
        ("B + F", "max(max_batch_size + max_frames, len(grid_thw))"),
        ("B * 2 + 1", "max(max_batch_size * 2 + 1, len(grid_thw))"),
    ],
)
def test_the_frames_of_a_count_are_those_that_the_budget_bounds(count, said):
    """No hook of 0.20 and 0.21 can drop a replay, so a graph there holds as many frames as tokens."""
    port = port_of("qwen2_vl", {"attention.full.count": count})
    source = " ".join(render_methods(port, profile_of("v0_20"), FACTS["unknown"]).source.split())

    assert f"num_seqs = {said} " in source
    assert "max_frames = token_budget " in source


def test_the_class_of_a_processing_info_is_named_where_types_are_checked():
    port = load_port("qwen2_vl")
    checked = TreeFacts(checks_types=True, info_class=("vllm.models.infos", "SomeInfo"))

    named, unnamed, unchecked = (
        render_methods(port, profile_of("v0_24"), facts)
        for facts in (checked, TreeFacts(checks_types=True), TreeFacts(info_class=checked.info_class))
    )

    assert "assert isinstance(info, SomeInfo)" in named.source
    assert ("vllm.models.infos", "SomeInfo") in named.imports
    assert "info: Any = " in unnamed.source
    assert "SomeInfo" not in unchecked.source
    assert not [name for _, name in unchecked.imports if name == "SomeInfo"]
