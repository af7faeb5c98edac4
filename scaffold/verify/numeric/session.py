"""Runs the release's own encoder-graph manager on a recipe's inputs and compares what it returns with an oracle."""

from __future__ import annotations

import gc
import inspect
import itertools
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.automatic.refusal import NoRecipe
from scaffold.verify.numeric.cpu_imports import of_tree
from scaffold.verify.numeric.diagnosis import Witness, explain, first_difference
from scaffold.verify.numeric.graphs import DEVICE, Lab, tensors_in
from scaffold.verify.numeric.normalising import normalising, raw_inputs, takes_raw_pixels
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, configure
from scaffold.verify.numeric.reports import Check

#: Largest accepted error, relative to the largest oracle value. Splitting a batch changes the order of additions in
#: float32 matrix products (about 1e-6); a wrong row, offset or buffer is off by more than 1e-2.
TOLERANCE = 1e-4

#: Tokens of a context above those that servers have; a graph may be asked to hold as many.
LONG_CONTEXT = 32768

#: How a check is named whose manager could not capture its graphs.
_CAPTURE = ": capture"
#: Attributes of a port's own.
_OWN = "_encoder_cudagraph"

Inputs = dict[str, Any]
Embeddings = list[torch.Tensor]


@dataclass
class Bench:
    """One host on one lab, and what was measured so far. `inputs` and `oracle` have one entry per case."""

    lab: Lab
    host: nn.Module
    config: SimpleNamespace
    recipe: Recipe
    modalities: Sequence[str]
    inputs: Mapping[str, Inputs]
    oracle: Mapping[str, Embeddings]
    checks: list[Check] = field(default_factory=list)
    #: Kinds of inputs that were not tried, each with the reason.
    not_run: list[str] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    #: Items that were replayed and that were requested, by modality.
    served: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Tokens that the port counts for the smallest item, and its embeddings, by modality.
    smallest: dict[str, tuple[int, int]] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    #: Whether a graph holds whole units, each of as many rows as the port counts for it.
    counts_units: bool = False
    #: Whether the port is for a tree. The plugin itself looks for layers that ranks share.
    in_tree: bool = True
    #: Why no request brings precomputed embeddings, by modality.
    refused_embeds: Mapping[str, str] = field(default_factory=dict)
    #: Whether an item is one unit, so that a graph holds no more of them than a batch has items.
    single: bool = False
    #: Tokens of a port's budgets for one of the recipe's.
    scale: Fraction = Fraction(1)
    #: How much of a budget a token takes: several where a port counts patches, which it merges.
    unit: Fraction = Fraction(1)
    #: Makes a captured manager for a session; None: the release's own on emulated graphs.
    start: Callable[[Bench, Session | None, int], ManagerRun] | None = None
    #: Called after each case, with its property.
    say: Callable[[str], None] = lambda text: None
    #: Attributes of the host as it was made.
    _own: frozenset[str] = field(init=False)
    #: The ones that a port made for a manager to fill.
    _empty: list[dict[Any, Any]] = field(init=False)

    def __post_init__(self) -> None:
        made = vars(self.host)
        self._own = frozenset(made)
        self._empty = [value for name, value in made.items() if name.startswith(_OWN) and value == {}]

    def forget_managers(self) -> None:
        """The host as it was made: an engine gives a model one manager, so that none finds what an earlier one left."""
        for name in vars(self.host).keys() - self._own:
            delattr(self.host, name)
        for kept in self._empty:
            kept.clear()
        gc.collect()  # a manager and its recorded graphs are cycles: gigabytes where a model has large images

    def tokens(self, modality: str, item: Item) -> int:
        """The tokens of a budget that an item takes."""
        return math.ceil(self.recipe.tokens(modality, item) * self.scale * self.unit)

    def add(self, check: Check, case: Case) -> None:
        """Keep a check of a case."""
        self.checks.append(replace(check, group=case.group or case.name, source=case.source))
        self.say(f"{case.modality}: {case.group or case.name}")

    def manager_run(self, session: Session | None, context: int = 4096) -> ManagerRun:
        """A manager that captured its graphs, with the limits of `session`."""
        return (self.start or ManagerRun)(self, session, context)


def sessions_of(recipe: Recipe, edges: bool, short: bool = False) -> tuple[Session, ...]:
    """The managers and calls of a check, with those at the edges of the processor's range last; of a short one, the
    first manager alone.
    """
    return recipe.sessions()[:1] if short else (*recipe.sessions(), *(recipe.edge_sessions() if edges else ()))


def wanted_cases(sessions: Iterable[Session], modalities: Sequence[str]) -> Iterable[tuple[Session, Case]]:
    """Every case of the modalities under check, in the order it is run."""
    for session in sessions:
        for case in session.cases:
            if case.modality in modalities:
                yield session, case


def case_key(session: Session, case: Case) -> str:
    return f"{session.name}: {case.modality} {case.name}"


def make_inputs(recipe: Recipe, sessions: Iterable[Session], modalities: Sequence[str]) -> dict[str, Inputs]:
    """Inputs of every case, by key."""
    generator = torch.Generator().manual_seed(0)
    return {
        case_key(session, case): recipe.make_inputs(case.modality, case.items, generator)
        for session, case in wanted_cases(sessions, modalities)
    }


def embed(host: Any, inputs: Mapping[str, Any]) -> Embeddings:
    """The tree's own answer without graphs: one tensor per item."""
    with torch.inference_mode():
        return [tensor.detach().clone() for tensor in host.embed_multimodal(**copy_inputs(inputs))]


def copy_inputs(inputs: Mapping[str, Any]) -> Inputs:
    """A fresh copy that the code under test may keep or spoil."""

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        return [copy(element) for element in value] if isinstance(value, list) else value

    return {key: copy(value) for key, value in inputs.items()}


def place_inputs(lab: Lab, recipe: Recipe, inputs: Mapping[str, Any]) -> Inputs:
    """A copy of the inputs, each marked as being where the runner would put it."""
    placed, on_host = copy_inputs(inputs), recipe.on_host(inputs)
    for key, value in placed.items():
        for tensor in tensors_in(value) if key not in on_host else ():
            lab.place(tensor)
    return placed


def compare(
    name: str,
    modality: str,
    got: Sequence[Any],
    want: Embeddings,
    *,
    code: str = "VCG650",
    tolerance: float = TOLERANCE,
) -> Check:
    """One check of a list of embeddings, item by item."""
    if len(got) != len(want):
        return Check(name, modality, False, detail=f"{len(got)} results for {len(want)} items", code=code)
    worst_abs, worst_rel, detail = 0.0, 0.0, ""
    for index, (result, oracle) in enumerate(zip(got, want, strict=True)):
        if not isinstance(result, torch.Tensor) or result.shape != oracle.shape:
            shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            detail = f"item {index} is {shape}, expected {tuple(oracle.shape)}"
            return Check(name, modality, False, detail=detail, code=code)
        if oracle.numel() == 0:
            continue
        wrong_rows = int((~torch.isfinite(result)).any(dim=-1).sum())
        if wrong_rows:
            detail = f"item {index}: {wrong_rows} of {len(oracle)} rows are not finite"
            return Check(name, modality, False, math.nan, math.nan, detail, code)
        error = float((result.double() - oracle.double()).abs().max())
        relative = error / max(float(oracle.abs().max()), 1e-12)
        if relative > worst_rel:
            detail = f"item {index}"
        worst_abs, worst_rel = max(worst_abs, error), max(worst_rel, relative)
    passed = worst_rel <= tolerance
    return Check(name, modality, passed, worst_abs, worst_rel, "" if passed else detail, code)


class ManagerRun:
    """One real manager on emulated graphs. A subclass says what else it may run on."""

    def __init__(self, bench: Bench, session: Session | None, context: int = 4096) -> None:
        self._lab = bench.lab
        self._recipe = bench.recipe
        self._host = bench.host
        self._tolerance = bench.tolerance
        self._witness = Witness(bench.lab, bench.host)
        bench.forget_managers()
        configure(bench.config, session, bench.modalities, context)
        #: The warnings of vLLM and the model meanwhile: a port says there why it has no graphs.
        self.warnings: list[str] = []
        #: Whether the manager left the last call to the runner.
        self.declined = False
        with self._watched(), self._witness.capturing(), _warnings(self.warnings):
            self.manager = self._captured(bench)

    def _watched(self) -> AbstractContextManager[None]:
        """The context of everything that the manager does."""
        return self._lab.watch()

    def _captured(self, bench: Bench) -> Any:
        from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

        manager = EncoderCudaGraphManager(bench.config, DEVICE, torch.float32, bench.host)
        capture(manager, (0, 0))
        return manager

    def _placed(self, inputs: Mapping[str, Any]) -> Inputs:
        """A copy of the inputs, each where the runner would put it."""
        return place_inputs(self._lab, self._recipe, inputs)

    def execute(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Do what the runner does for one batch of one modality."""
        placed = self._placed(inputs)
        with self._watched(), self._dropped_replays(), torch.inference_mode():
            given = self.manager.execute(placed)
            self.declined = given is None
            return list(self._host.embed_multimodal(**placed) if given is None else given)

    @contextmanager
    def _dropped_replays(self) -> Iterator[None]:
        """Count as eager what a port lets the model embed itself after a replay: of that one it uses nothing."""
        hits, misses = self.manager.graph_hits, self.manager.graph_misses
        own, embed = 0, self._host.embed_multimodal

        def counted(**inputs: Any) -> Any:
            nonlocal own
            results = embed(**inputs)
            own += len(results)
            return results

        self._host.embed_multimodal = counted
        try:
            yield
        finally:
            del self._host.embed_multimodal
        # A manager of several paths counts no miss where all paths of an item are idle.
        dropped = min(max(own - (self.manager.graph_misses - misses), 0), self.manager.graph_hits - hits)
        self.manager.graph_hits -= dropped
        self.manager.graph_misses += dropped

    def explain(self, inputs: Mapping[str, Any], want: Embeddings) -> str:
        """Serve a call again and say which step of it deviates first; empty if no step shows it."""
        counters = self.counters
        replays = self._witness.observe(self.manager, lambda: self.execute(inputs))
        self.manager.graph_hits, self.manager.graph_misses = counters
        return explain(self._host, replays, want, self._tolerance)

    @property
    def counters(self) -> tuple[int, int]:
        """Items replayed and items run eagerly so far, as the manager counts them."""
        return self.manager.graph_hits, self.manager.graph_misses

    def counters_since(self, before: tuple[int, int]) -> tuple[int, int]:
        return self.counters[0] - before[0], self.counters[1] - before[1]


def capture(manager: Any, graph_pool: Any) -> None:
    """Let a manager capture its graphs; before 0.24 it has no pool of its own."""
    if "graph_pool" in inspect.signature(manager.capture).parameters:
        manager.capture(graph_pool=graph_pool)
    else:
        manager.capture()


@contextmanager
def _warnings(kept: list[str]) -> Iterator[None]:
    """Keep each different warning in vLLM's log, whether or not the log is shown."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (text := record.getMessage()) not in kept:
                kept.append(text)

    logger, handler = logging.getLogger("vllm"), Kept(logging.WARNING)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def run_session(bench: Bench, session: Session) -> None:
    """Capture one manager, serve its cases in order, and compare each result twice: at once, and after all others.

    The second comparison finds results that alias a graph's memory, which a later replay overwrites.
    """
    cases = [case for case in session.cases if case.modality in bench.modalities]
    if not cases:
        return
    try:
        run = bench.manager_run(session)
    except Exception as error:
        bench.checks.append(_raised(bench, f"{session.name}{_CAPTURE}", cases[0].modality, error))
        return
    if bench.counts_units:
        bench.add(check_counted_rows(bench, run, session, cases[0]), cases[0])
    kept: list[tuple[int, list[Any], Embeddings]] = []
    for case in cases:
        name = f"{session.name}: {case.name}"
        if not run.manager.supports_modality(case.modality):
            detail = "; ".join(["the configuration does not list the modality", *run.warnings])
            bench.add(Check(name, case.modality, False, detail=detail, code="VCG657"), case)
            continue
        key = case_key(session, case)
        before = run.counters
        try:
            results = run.execute(bench.inputs[key])
        except Exception as error:
            check = _raised(bench, name, case.modality, error)
            cause = run.explain(bench.inputs[key], bench.oracle[key])
            bench.add(replace(check, detail=f"{check.detail}; {cause}") if cause else check, case)
            continue
        check = compare(name, case.modality, results, bench.oracle[key], tolerance=bench.tolerance)
        if not check.passed:
            check = _explained(bench, check, run, results, key)
        else:
            counted = run.counters_since(before)
            limit = getattr(run.manager, "max_frames_per_batch", None)
            if session.max_frames is not None or bench.recipe.frames(case.items) <= (limit or math.inf):
                check = _judge_way(check, bench, session, case, counted)
            replayed, asked = bench.served.get(case.modality, (0, 0))
            bench.served[case.modality] = replayed + counted[0], asked + len(case.items)
            kept.append((len(bench.checks), results, bench.oracle[key]))
        bench.add(check, case)
    for index, results, want in kept:
        check = bench.checks[index]
        again = compare(check.name, check.modality, results, want, code="VCG658", tolerance=bench.tolerance)
        if not again.passed:
            detail = f"it aliases the graph's memory: later items changed it; {again.detail}"
            bench.checks[index] = replace(again, detail=detail, group=check.group, source=check.source)
    bench.hits += run.counters[0]
    bench.misses += run.counters[1]


def check_counted_rows(bench: Bench, run: ManagerRun, session: Session, case: Case) -> Check:
    """The rows of a graph must be those of the units that its budget counts.

    A port that counts too many for a unit is right, but its graphs hold fewer units than their budgets allow. With data
    parallelism, the manager gathers an item's embeddings by the tokens that the port counts for it.
    """
    name, key = f"{session.name}: rows of a unit", case_key(session, case)
    specs = bench.host.get_encoder_cudagraph_item_specs(copy_inputs(bench.inputs[key]))
    counted = specs[0].output_tokens // specs[0].input_size
    for graph in run.manager.budget_graphs["default"].values():
        rows = graph.output_buffer.numel() // graph.output_buffer.shape[-1]
        units = max(graph.token_budget // counted, 1)
        if bench.single:
            units = min(units, run.manager.max_batch_size)
        if rows != units * counted:
            detail = f"a graph gives {rows} rows for {units} units; the port counts {counted} for each"
            return Check(name, case.modality, False, detail=detail, code="VCG657")
    tokens, embeddings = [spec.output_tokens for spec in specs], [len(tensor) for tensor in bench.oracle[key]]
    if getattr(bench.host, "supports_encoder_tp_data", False) and tokens != embeddings:
        detail = f"data parallelism gathers {tokens} rows of items that have {embeddings}"
        return Check(name, case.modality, False, detail=detail, code="VCG661")
    return Check(name, case.modality, True)


def fitted(bench: Bench, sessions: Sequence[Session], counts_units: bool) -> tuple[Session, ...]:
    """The sessions with budgets in what the port counts."""
    return widened(bench, sessions) if bench.recipe.learns else scaled(bench, sessions, counts_units)


#: Largest budget that sessions are widened to: capturing it takes seconds. vLLM's default on large GPUs is no larger.
_WIDEST = 16384


def widened(bench: Bench, sessions: Sequence[Session]) -> tuple[Session, ...]:
    """For a recipe that knows only the embeddings of an item.

    A graph may hold the features before they are merged, which are several times as many. Budgets decide what is
    replayed, never what is right, so that the port may be asked.
    """
    factor = 1
    for session, case in wanted_cases(sessions, bench.modalities):
        with suppress(Exception):  # what a wrong port raises here, it raises in its session, too
            specs = bench.host.get_encoder_cudagraph_item_specs(bench.inputs[case_key(session, case)])
            for item, spec in zip(case.items, specs, strict=True):
                counted = spec.output_tokens, bench.recipe.tokens(case.modality, item)
                factor = max(factor, -(-counted[0] // counted[1]))
                bench.smallest[case.modality] = min(counted, bench.smallest.get(case.modality, counted))
    low = bench.recipe.min_budget * factor

    def wide(budget: int) -> int:
        return max(min(budget * factor, _WIDEST), min(low, budget * factor))

    return tuple(
        replace(session, budgets=tuple(sorted({wide(budget) for budget in session.budgets}))) for session in sessions
    )


def scaled(bench: Bench, sessions: Sequence[Session], counts_units: bool) -> tuple[Session, ...]:
    """For a recipe that counts the tokens of an item.

    The graphs of an explicit port of a cut hold the projector, too, which may make fewer rows of a unit. A port that
    counts its budgets in patches says so of its largest budget as of its items; one that says it of items alone is
    wrong.
    """
    with suppress(Exception):  # what a wrong port raises here, it raises in its session, too
        session, case = next(iter(wanted_cases(sessions, bench.modalities)))
        [spec, *_] = bench.host.get_encoder_cudagraph_item_specs(copy_inputs(bench.inputs[case_key(session, case)]))
        if counts_units:
            bench.scale = Fraction(spec.output_tokens, bench.recipe.tokens(case.modality, case.items[0]))
        limit = min(bench.config.scheduler_config.max_num_batched_tokens, bench.config.model_config.max_model_len)
        unit = Fraction(bench.host.get_encoder_cudagraph_budget_range(bench.config)[1], limit)
        if spec.get_path_output_tokens("default") == spec.output_tokens * unit:
            bench.unit = unit
    factor = bench.scale * bench.unit
    return tuple(replace(one, budgets=tuple(math.ceil(budget * factor) for budget in one.budgets)) for one in sessions)


def _explained(bench: Bench, check: Check, run: ManagerRun, results: Sequence[Any], key: str) -> Check:
    """The failed check with the first row that differs and the likely cause."""
    want = bench.oracle[key]
    where = first_difference(results, want, bench.tolerance) or check.detail
    cause = run.explain(bench.inputs[key], want)
    return replace(check, detail=f"{where}; {cause}" if cause else where)


def _raised(bench: Bench, name: str, modality: str, error: Exception, code: str = "VCG654") -> Check:
    """An exception is the result of one check; it must not hide the others."""
    where = bench.lab.where_raised(error)
    return Check(name, modality, False, detail=f"{type(error).__name__}: {error} at {where}", code=code)


def _judge_way(check: Check, bench: Bench, session: Session, case: Case, counted: tuple[int, int]) -> Check:
    """Right values are not enough: what fits a budget must have been replayed."""
    hits, misses = counted
    fitting = sum(bench.tokens(case.modality, item) <= max(session.budgets) for item in case.items)
    oversized = len(case.items) - fitting
    if case.may_go_eager or ((hits > 0) == (fitting > 0) and (misses > 0) == (oversized > 0)):
        return check
    detail = f"{hits} items replayed and {misses} eager; {fitting} fit the budgets and {oversized} do not"
    return replace(check, passed=False, detail=detail, code="VCG657")


def check_eager_identity(bench: Bench, sessions: Iterable[Session]) -> None:
    """The changed tree's own `embed_multimodal` must be bit-identical to the pristine one's."""
    for session, case in wanted_cases(sessions, bench.modalities):
        key = case_key(session, case)
        got = embed(bench.host, bench.inputs[key])
        name = f"eager unchanged: {session.name}: {case.name}"
        check = compare(name, case.modality, got, bench.oracle[key], code="VCG651", tolerance=0.0)
        bench.checks.append(replace(check, group="eager results unchanged, bit for bit"))


def check_replayed(bench: Bench, modalities: Sequence[str]) -> None:
    """At least one item of each modality must have been replayed, or the graphs were not proved at all.

    For recipes that do not know which items a port's graphs can hold. Only ranks that have no items use the number of
    columns that the port names, so it is compared here.
    """
    named = getattr(bench.host.get_encoder_cudagraph_config(), "out_hidden_size", None)
    columns = {tensor.shape[-1] for tensors in bench.oracle.values() for tensor in tensors}
    if named is not None:
        detail = f"the port says {named}, embeddings have {', '.join(map(str, sorted(columns)))}"
        bench.checks.append(Check("columns of the embeddings", "all", columns == {named}, detail=detail))
    for modality in modalities:
        replayed, asked = bench.served.get(modality, (0, 0))
        detail = f"{replayed} of {asked} items were replayed"
        tokens, embeddings = bench.smallest.get(modality, (0, 0))
        if tokens != embeddings:
            detail += f"; an item of {embeddings} embeddings takes {tokens} tokens of a budget"
        if modality in bench.recipe.missing:
            detail = f"no inputs could be made: {bench.recipe.missing[modality]}"
        elif modality not in bench.recipe.modalities:
            detail = "the model's processor does not offer this modality"
        # Budgets were widened for the port; those of a server are not.
        passed = replayed > 0 and tokens <= _WIDEST
        bench.checks.append(Check("items replayed", modality, passed, detail=detail, code="VCG657"))


def check_raw_pixels(bench: Bench, session: Session, placed: Callable[[Inputs], Inputs] = copy_inputs) -> None:
    """Pixels that the model normalises itself, which an engine leaves to it by default (from 0.28 on).

    With the limits of `session`, and against the changed tree's own eager results; `check_eager_identity` ties those to
    the pristine tree. `placed` puts inputs where the model runs.
    """
    if not takes_raw_pixels(bench.host):
        return
    cases = []
    for modality in bench.modalities:
        several = _several_items(session, modality)
        large = (
            item
            for case in session.cases
            for item in case.items
            if case.modality == modality and bench.tokens(modality, item) > max(session.budgets)
        )
        for name, items in (
            ("several items", several),
            ("one item", several[:1]),
            ("an item above all budgets", tuple(itertools.islice(large, 1))),
        ):
            if items:
                group = "raw pixels, normalised by the model"
                cases.append(Case(f"raw pixels, {name}", modality, items, may_go_eager=True, group=group))
    generator = torch.Generator().manual_seed(7)
    inputs = {
        case_key(session, case): raw_inputs(bench.recipe.make_inputs(case.modality, case.items, generator))
        for case in cases
    }
    with normalising(bench.host, bench.config) as modules:
        if not modules:
            bench.not_run.append("raw pixels: nothing in the model is known to normalise them")
            return
        if bench.start is None:
            bench.lab.place_model(bench.host)
        bench.forget_managers()
        oracle = {key: embed(bench.host, placed(value)) for key, value in inputs.items()}
        # It says nothing of its calls, which the announced number of calls does not count.
        inner = replace(bench, checks=[], hits=0, misses=0, served={}, inputs=inputs, oracle=oracle, say=lambda _: None)
        run_session(inner, replace(session, cases=tuple(cases)))
    # A port that is wrong with all pixels has no defect of its own with these.
    code = "VCG650" if any(not check.passed and check.code == "VCG650" for check in bench.checks) else "VCG669"
    bench.checks += [replace(check, code=code) if check.code == "VCG650" else check for check in inner.checks]
    for modality, (replayed, asked) in inner.served.items():
        # Items of a call that failed count as not served.
        right = all(check.passed for check in inner.checks if check.modality == modality)
        if right and not replayed and bench.served.get(modality, (0, 0))[0]:
            detail = f"none of {asked} items with raw pixels was replayed"
            bench.checks.append(Check("raw pixels replayed", modality, False, detail=detail, code="VCG657"))


# -- optional checks ---------------------------------------------------------------------------------------------------


def check_image_embeds(bench: Bench) -> None:
    """Precomputed embeddings come back as `embed_multimodal` returns them (catalogue A7)."""
    generator = torch.Generator().manual_seed(7)
    session = bench.recipe.sessions()[0]
    for modality in bench.modalities:
        if modality in bench.refused_embeds:
            bench.not_run.append(f"precomputed embeddings of {modality}s: {bench.refused_embeds[modality]}")
            continue
        several = _several_items(session, modality)
        refused = bench.recipe.no_embeds.get(modality, "the recipe makes none")
        for name, items in (("several items", several), ("one item", several[:1])):
            label = f"precomputed embeddings, {name}"
            try:
                inputs = bench.recipe.embeds_inputs(modality, items, generator)
                if inputs is not None and (field := f"{modality}_embeds") not in bench.recipe.fields(inputs):
                    # vLLM drops what the processor has no field for: no user can hand them over.
                    refused, inputs = f"the processor has no field `{field}`", None
            except Exception as error:
                if isinstance(error, NoRecipe):  # the port is not to blame
                    check = Check(label, modality, False, detail=str(error), code="VCG668")
                else:
                    check = _raised(bench, label, modality, error, "VCG660")
                bench.checks.append(replace(check, group="precomputed embeddings"))
                continue
            if inputs is None:
                bench.not_run.append(f"precomputed embeddings of {modality}s: {refused}")
                break

            def attempt(label: str = label, modality: str = modality, inputs: Inputs = inputs) -> Check:
                want = embed(bench.host, inputs)
                try:
                    run = bench.manager_run(session)
                except Exception as error:  # no embeddings were given to it yet
                    return _raised(bench, label, modality, error)
                return compare(label, modality, run.execute(inputs), want, code="VCG660")

            _attempt(bench, label, modality, "VCG660", attempt, group="precomputed embeddings")
            if items is several and _is_gathered(bench):
                _check_gathered(bench, session, modality, inputs)


def _is_gathered(bench: Bench) -> bool:
    """Whether data-parallel ranks gather what the manager gives: the class takes that mode, and has graphs in it."""
    if not bench.in_tree or not getattr(bench.host, "supports_encoder_tp_data", False):
        return False
    with _data_parallel(bench.host):
        return bool(bench.host.get_encoder_cudagraph_config().modalities)


def _check_gathered(bench: Bench, session: Session, modality: str, inputs: Inputs) -> None:
    """Embeddings of another type come back in the model's, as those of other ranks do: one collective has one type.

    vLLM casts them when it merges them into the text, and hands them over as the request has them.
    """
    model = next(bench.host.parameters()).dtype
    other = torch.bfloat16 if model != torch.bfloat16 else torch.float32
    label = f"precomputed embeddings, ranks gather one type ({other})"

    def attempt() -> Check:
        given = {name: value.to(other) if _is_float(value) else value for name, value in inputs.items()}
        run = bench.manager_run(session)
        types = {one.dtype for one in run.execute(given)}
        if run.declined:
            return Check(label, modality, True, detail="each rank embeds them itself", code="VCG660")
        detail = (
            f"embeddings of {other} come back as {', '.join(map(str, types))}, and ranks without items have {model}"
        )
        return Check(label, modality, types == {model}, detail="" if types == {model} else detail, code="VCG660")

    _attempt(bench, label, modality, "VCG660", attempt, group="precomputed embeddings")


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _several_items(session: Session, modality: str) -> tuple[Item, ...]:
    """Items of the third call, or of the one with the most where that has a single item.

    A manager that cuts a batch of precomputed embeddings hands each part to the model: those of one item are never cut.
    """
    case = session.cases[2]
    if len(case.items) < 2 or case.modality != modality:
        case = max((case for case in session.cases if case.modality == modality), key=lambda case: len(case.items))
    return tuple(case.items)


def check_min_budget_above_max(bench: Bench) -> None:
    """A context shorter than the smallest item must not stop the start-up (catalogue E10), and items go eager.

    Any other failure here has nothing to do with the budgets and gets the code that it has everywhere.
    """
    least = math.ceil(bench.recipe.min_budget * bench.scale)
    context = max(least - 1, 1)
    _, case = next(iter(wanted_cases(bench.recipe.sessions(), bench.modalities)))
    name = f"a context of {context} tokens, minimum budget {least}"
    unordered = _budgets_are_unordered(bench, context)

    def attempt() -> Check:
        inputs = bench.recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(7))
        run = bench.manager_run(None, context)
        want = embed(bench.host, inputs)
        return compare(name, case.modality, run.execute(inputs), want, code="VCG662" if unordered else "VCG650")

    raised = "VCG662" if unordered else "VCG654"
    _attempt(bench, name, case.modality, raised, attempt, group="a context shorter than one item")


def check_long_context(bench: Bench) -> None:
    """A server with a long context must start: the largest graph's positions lie within the model's tables.

    On a GPU an index beyond a table ends the process. Here the graph of `LONG_CONTEXT` tokens is prepared, and its
    forward, which would take minutes, is left out.
    """
    name = f"a context of {LONG_CONTEXT} tokens"
    # Frames take no further patches, so images show what videos would.
    modality, frames = ("image", 0) if "image" in bench.modalities else (bench.modalities[0], None)

    def attempt() -> Check:
        features = torch.zeros(LONG_CONTEXT, bench.host.get_encoder_cudagraph_config().out_hidden_size, device=DEVICE)
        bench.host.encoder_cudagraph_forward = lambda *_, **__: features
        try:
            # A copy keeps what the host has now.
            replace(bench).manager_run(Session(name, (LONG_CONTEXT,), 1, frames, ()), LONG_CONTEXT)
        finally:
            del bench.host.encoder_cudagraph_forward
        return Check(name, modality, True)

    _attempt(bench, name, modality, "VCG654", attempt, group="a long context")


def _budgets_are_unordered(bench: Bench, context: int) -> bool:
    """Whether the host's smallest budget exceeds its largest one; no where it does not say its budgets."""
    configure(bench.config, None, bench.modalities, context)
    try:
        least, most = bench.host.get_encoder_cudagraph_budget_range(bench.config)
    except Exception:
        return False
    return bool(least > most)


def check_frames_above_capacity(bench: Bench) -> None:
    """More frames than the graphs have room for go eager, inside the token budget too (catalogue A14)."""
    case = bench.recipe.many_frames()
    if case is None or case.modality not in bench.modalities:
        return
    session = bench.recipe.sessions()[0]
    key = case_key(session, case)
    inputs = bench.recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(7))

    def attempt() -> Check:
        # Against the changed tree's own eager results; `check_eager_identity` ties those to the pristine tree.
        oracle = {key: embed(bench.host, inputs)}
        inner = replace(bench, checks=[], hits=0, misses=0, inputs={key: inputs}, oracle=oracle)
        run_session(inner, replace(session, cases=(case,)))
        (check,) = inner.checks
        started = not check.name.endswith(_CAPTURE)
        return check if check.passed or not started else replace(check, code="VCG666")

    _attempt(bench, case.name, case.modality, "VCG666", attempt, group="more frames than the capacity")


def check_data_parallel_switch(bench: Bench) -> None:
    """With data parallelism switched on, the manager shards items: the forward must not shard again (catalogue A11).

    An explicit port has no switch of its own. vLLM's configuration leaves data parallelism off where the class says
    nothing of it, whatever its tower could do.
    """
    if bench.counts_units and not getattr(bench.host, "supports_encoder_tp_data", False):
        return
    name = "data parallelism stays outside"
    entered: list[str] = []

    def attempt() -> Check:
        inner = replace(bench, checks=[], hits=0, misses=0)
        run_session(inner, bench.recipe.sessions()[0])
        wrong_before = {(check.name, check.modality) for check in bench.checks if not check.passed}
        failed = [c for c in inner.checks if not c.passed and (c.name, c.modality) not in wrong_before]
        if entered:
            detail = f"entered {', '.join(sorted(set(entered)))} {len(entered)} times"
            return Check(name, "all", False, detail=detail, code="VCG661")
        if failed:
            detail = f"{len(failed)} of {len(inner.checks)} comparisons fail once it is switched on: {failed[0]}"
            return Check(name, "all", False, detail=detail, code="VCG661")
        return Check(name, "all", True, detail=f"{len(inner.checks)} comparisons")

    with _data_parallel(bench.host), _observed_sharding(entered):
        _attempt(bench, name, "all", "VCG661", attempt)


@contextmanager
def _data_parallel(host: nn.Module) -> Iterator[None]:
    """Switch data parallelism on in all modules that ask for it. The stand-in for text layers has every attribute."""
    switched = [module for module in host.modules() if isinstance(getattr(module, "use_data_parallel", None), bool)]
    saved = [module.use_data_parallel for module in switched]
    for module in switched:
        module.use_data_parallel = True
    try:
        yield
    finally:
        for module, value in zip(switched, saved, strict=True):
            module.use_data_parallel = value


def check_shared_layers(bench: Bench, build: Callable[[], tuple[nn.Module, Any]], always: bool = False) -> None:
    """With data parallelism each rank encodes items of its own, so no layer on their way may be split over ranks.

    Ranks would add up rows, or join columns, of each other's items. `build` makes the host as data parallelism does.
    One rank has whole layers, so this asks what vLLM's layers were told. A port that asks them meanwhile for which
    modalities it has graphs is told of two ranks. A model without such layers gets no check, unless `always`.
    """
    if not getattr(bench.host, "supports_encoder_tp_data", False):
        return
    try:
        host, config = build()
    except Exception as error:
        bench.not_run.append(f"layers that data-parallel ranks share: {type(error).__name__}: {error}")
        return
    kinds = {"ColumnParallelLinear", "RowParallelLinear"}
    split = {
        name: module
        for name, module in host.named_modules()
        if kinds & {kind.__name__ for kind in type(module).__mro__} and not module.disable_tp
    }
    name = "data parallelism shares no layer"
    if not split:
        bench.checks += [Check(name, "all", True, detail="no layer is split over ranks")] * always
        return
    ran: list[str] = []
    for layer, module in split.items():
        module.register_forward_pre_hook(lambda *_, layer=layer: ran.append(layer))
    bench.lab.place_model(host)
    said = host.get_encoder_cudagraph_config
    host.get_encoder_cudagraph_config = lambda: _of_two_ranks(split.values(), said)
    inner = replace(bench, host=host, config=config, checks=[], hits=0, misses=0, served={}, say=lambda _: None)
    run_session(inner, fitted(inner, bench.recipe.sessions()[:1], bench.counts_units)[0])
    if not ran or not inner.hits + inner.misses:  # a manager captures graphs of no modality, too, and serves nothing
        bench.checks.append(Check(name, "all", True, detail="no call that the manager serves runs one"))
        return
    names = ", ".join(dict.fromkeys(ran))
    if not bench.in_tree:
        bench.not_run.append(f"data parallelism: ranks share the weights of {names}, so the plugin has no graphs there")
        return
    detail = f"data-parallel ranks have items of their own, and share the weights of {names}"
    bench.checks.append(Check(name, "all", False, detail=detail, code="VCG670"))


def _of_two_ranks(layers: Iterable[Any], asked: Callable[[], Any]) -> Any:
    """The port's answer where two ranks share these layers."""
    for layer in layers:
        layer.tp_size = 2
    try:
        return asked()
    finally:
        for layer in layers:
            layer.tp_size = 1


@contextmanager
def _observed_sharding(entered: list[str]) -> Any:
    """Note every entry into a sharding wrapper, wherever the tree imported it to, and run it on one rank."""
    patched: list[tuple[Any, str, Any]] = []
    for module in list(sys.modules.values()):
        if not of_tree(getattr(module, "__name__", "")):
            continue
        for name in ("run_dp_sharded_vision_model", "run_dp_sharded_mrope_vision_model"):
            original = vars(module).get(name)
            if original is not None:

                def wrapper(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
                    entered.append(_name)
                    return _original(*args, **kwargs)

                patched.append((module, name, original))
                setattr(module, name, wrapper)
    try:
        yield
    finally:
        for module, name, original in patched:
            setattr(module, name, original)


def _attempt(
    bench: Bench, name: str, modality: str, code: str, attempt: Callable[[], Check], *, group: str = ""
) -> None:
    """Append what an optional check finds; what it raises is its result."""
    try:
        check = attempt()
    except Exception as error:
        check = _raised(bench, name, modality, error, code)
    bench.checks.append(replace(check, group=group))
