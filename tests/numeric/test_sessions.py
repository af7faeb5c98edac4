"""The bench of the lab: what sessions on one host share, and what they must not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs the `cpu` extra")


def empty_config():
    """Of an engine."""
    model = SimpleNamespace(multimodal_config=SimpleNamespace(limits={}))
    return SimpleNamespace(compilation_config=SimpleNamespace(), model_config=model, scheduler_config=SimpleNamespace())


def test_a_manager_finds_nothing_that_an_earlier_one_left():
    """Ports for 0.20 to 0.22 keep captured offsets on the model, by budget: those of another session are not its."""
    from scaffold.verify.numeric.session import Bench

    host = torch.nn.Linear(2, 2)
    host.made_by_the_model = 1
    bench = Bench(None, host, SimpleNamespace(), None, (), {}, {})
    host.left_by_a_manager = {64: "offsets"}

    bench.forget_managers()

    assert not hasattr(host, "left_by_a_manager")
    assert host.made_by_the_model == 1
    assert host(torch.ones(2)).shape == (2,)


#: What a manager for a context of 63 tokens does: budgets of the host, what is raised, shape of the result -> the code.
SHORT_CONTEXTS = {
    "the smallest budget exceeds the largest": ((64, 63), ValueError("Invalid budget range"), (4, 32), "VCG662"),
    "a constructor is wrong": ((63, 63), TypeError("unexpected keyword argument"), (4, 32), "VCG654"),
    "the result has another shape": ((63, 63), None, (2, 2, 32), "VCG650"),
    "all is well": ((63, 63), None, (4, 32), ""),
}


@pytest.mark.parametrize("name", SHORT_CONTEXTS)
def test_only_budgets_are_a_matter_of_budgets(name):
    from scaffold.verify.numeric.recipes.base import Case, Session
    from scaffold.verify.numeric.session import Bench, check_min_budget_above_max

    budgets, error, shape, code = SHORT_CONTEXTS[name]
    embedded = torch.arange(128.0).view(4, 32)
    host = torch.nn.Linear(2, 2)
    host.get_encoder_cudagraph_budget_range = lambda config: budgets
    host.embed_multimodal = lambda **inputs: [embedded]

    def start(bench, session, context):
        assert context == 63
        if error is not None:
            raise error
        return SimpleNamespace(execute=lambda inputs: [embedded.view(shape)])

    session = Session("one", (64,), 1, None, (Case("an item", "image", ((8, 8),)),))
    recipe = SimpleNamespace(min_budget=64, sessions=lambda: (session,), make_inputs=lambda *given: {})
    lab = SimpleNamespace(where_raised=lambda error: "manager.py:1")
    bench = Bench(lab, host, empty_config(), recipe, ("image",), {}, {}, start=start)

    check_min_budget_above_max(bench)

    [check] = bench.checks
    assert (check.passed, check.passed or check.code) == (not code, code or True)


#: What a port says of an item of 4 tokens, its claim on the default path, and its largest budget for 63 tokens, whether
#: its graphs hold other rows than the recipe counts -> the budgets for one of 8, and what the item takes of them.
COUNTED = {
    "tokens": (4, 4, 63, False, 8, 4),
    "patches": (4, 16, 252, False, 32, 16),
    "patches of items alone": (4, 16, 63, False, 8, 4),
    "patches of budgets alone": (4, 4, 252, False, 8, 4),
    "no path of that name": (4, 0, 63, False, 8, 4),
    "half the rows": (2, 2, 63, True, 4, 2),
    "half the rows, in patches": (2, 8, 252, True, 16, 8),
}


@pytest.mark.parametrize("name", COUNTED)
def test_budgets_are_in_what_a_port_counts(name):
    """A port is taken at its word where its items and its largest budget agree."""
    from scaffold.verify.numeric.recipes.base import Case, Session, configure
    from scaffold.verify.numeric.session import Bench, case_key, fitted

    tokens, claim, most, counts_units, budget, taken = COUNTED[name]
    host = torch.nn.Linear(2, 2)
    spec = SimpleNamespace(output_tokens=tokens, get_path_output_tokens={"default": claim}.__getitem__)
    host.get_encoder_cudagraph_item_specs = lambda inputs: [spec]
    host.get_encoder_cudagraph_budget_range = lambda config: (1, most)
    session = Session("one", (8,), 1, None, (Case("an item", "image", (4,)),))
    recipe = SimpleNamespace(learns=False, tokens=lambda modality, item: item)
    config = empty_config()
    configure(config, None, ("image",), 63)
    bench = Bench(None, host, config, recipe, ("image",), {case_key(session, session.cases[0]): {}}, {})

    [found] = fitted(bench, (session,), counts_units)

    assert (found.budgets, bench.tokens("image", 4)) == ((budget,), taken)
    del host.get_encoder_cudagraph_item_specs  # what a wrong port raises
    assert fitted(bench, (session,), counts_units)[0].cases == session.cases


#: What a port that counts units is, and whether its class takes a data-parallel encoder -> is the check made?
DATA_PARALLEL = {
    "an explicit port of a class that shards": (True, True, True),
    "an explicit port of a class that vLLM never shards": (True, False, False),
    "a port with switches of its own": (False, False, True),
}


@pytest.mark.parametrize("name", DATA_PARALLEL)
def test_data_parallelism_is_tried_where_vllm_can_switch_it_on(name, monkeypatch):
    """A tower of another model's file may shard, and Skywork-R1V's class says nothing of it."""
    from scaffold.verify.numeric import session

    explicit, supported, made = DATA_PARALLEL[name]
    host = torch.nn.Linear(2, 2)
    host.supports_encoder_tp_data = supported
    host.use_data_parallel = False
    seen = []
    monkeypatch.setattr(session, "run_session", lambda bench, group: seen.append(bench.host.use_data_parallel))
    recipe = SimpleNamespace(sessions=lambda: ("one",))
    bench = session.Bench(None, host, SimpleNamespace(), recipe, ("image",), {}, {}, counts_units=explicit)

    session.check_data_parallel_switch(bench)

    assert seen == [True] * made
    assert [check.name for check in bench.checks] == ["data parallelism stays outside"] * made
    assert host.use_data_parallel is False


@pytest.mark.parametrize(
    ("supported", "always", "passed"),
    [(True, True, [True]), (True, False, []), (False, True, [])],
    ids=["asked for", "not asked for", "no class that shards"],
)
def test_a_model_without_split_layers_passes_where_the_check_is_asked_for(supported, always, passed):
    """`fix` asks it of a repair that keeps a layer whole. Others have as many checks as they had."""
    from scaffold.verify.numeric import session

    host = torch.nn.Linear(2, 2)
    host.supports_encoder_tp_data = supported
    bench = session.Bench(None, host, SimpleNamespace(), None, ("image",), {}, {})

    session.check_shared_layers(bench, lambda: (host, None), always)

    assert [check.passed for check in bench.checks] == passed
    assert {(check.name, check.detail) for check in bench.checks} <= {
        ("data parallelism shares no layer", "no layer is split over ranks")
    }


def test_a_model_that_cannot_be_built_for_ranks_has_no_check_of_split_layers():
    """So nothing says that a repair mended one."""
    from scaffold.verify.numeric import session

    host = torch.nn.Linear(2, 2)
    host.supports_encoder_tp_data = True
    bench = session.Bench(None, host, SimpleNamespace(), None, ("image",), {}, {})

    session.check_shared_layers(bench, lambda: (host, 1 // 0), True)

    assert (bench.checks, len(bench.not_run)) == ([], 1)


def test_a_port_is_told_of_two_ranks_where_it_says_its_graphs():
    """It may have none there. What runs is whole, since the lab has one rank."""
    from scaffold.verify.numeric import session

    layers = [SimpleNamespace(tp_size=1), SimpleNamespace(tp_size=1)]

    assert session._of_two_ranks(layers, lambda: [layer.tp_size for layer in layers]) == [2, 2]
    with pytest.raises(ZeroDivisionError):
        session._of_two_ranks(layers, lambda: 1 // 0)
    assert [layer.tp_size for layer in layers] == [1, 1]
