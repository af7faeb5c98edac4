"""The shared manager: it captures budgets once, replays the batches that fit, and runs the others eager.

This module runs calls. `capture` decides which graphs to capture and when; `plans` keeps the plans of calls.

The contract holds for every adapter:

* Outputs never alias graph memory.
* Padded rows never reach an output.
* A batch that exceeds any capacity runs eager, and the statistics count its reason.
* Zero items never reach the model.
* Captures that fail cost one warning; a larger graph or eager execution serves their sizes.

A call runs by a plan. The manager computes sizes, packing, padding and metadata once for each signature of sizes. For
each batch that a graph serves, the plan holds one function that replays it (`_replay_of`), and nothing else describes a
replay. That function makes four device operations: a copy of pixels, a copy of metadata (none if the graph still holds
them), the replay, a copy of the output. All calls must come from one stream at a time.

Host work before the launch delays the call; the replay hides host work after it. A server does much else between two
images, so this code runs in cold caches, where it takes six times as long as in a loop. Each frame, look-up and call
into torch counts. So `_run` launches first, and counts, checks and cuts afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import is_inference_mode_enabled as in_inference_mode

from scaffold.runtime import packing
from scaffold.runtime.adapter import Around, AxisKeys, EncoderAdapter, GraphKey, Inputs, Item, Limits, OtherCall, Room
from scaffold.runtime.backend import CaptureError, CudaGraphBackend, GraphBackend
from scaffold.runtime.budgets import fitting_budget
from scaffold.runtime.buffers import Arena, buffers_fill, nbytes_of, rows_bytes
from scaffold.runtime.capture import Captured, GraphSet, Want
from scaffold.runtime.crossover import CLEARLY_SLOWER, SLOW_HOST, Crossover, sample_budgets
from scaffold.runtime.options import CaptureReport, Options
from scaffold.runtime.padding import PADDERS
from scaffold.runtime.parallel import Group, run_sharded
from scaffold.runtime.plans import TRIAL_RANGE, CallPlan, PlanCache, Run, Step, Trial
from scaffold.runtime.recording import RecordingBackend
from scaffold.runtime.stats import Stats
from scaffold.runtime.trace import Trace

logger = logging.getLogger("scaffold.runtime")


#: The graph that serves in place of a missing one is at most so many times as large; the smallest graph always may.
MAX_STRETCH = 2.0

#: A subclass of the drop-in replaces the replay of one batch: `(inputs, budget, path, axes) -> output or None`.
ReplayHook = Callable[[Inputs, int, str, AxisKeys], "torch.Tensor | None"]


class AddressChanged(RuntimeError):
    """Debug mode: a tensor that a graph reads has moved since the capture, so the graph reads freed memory."""


def _warn_of(what: str, keys: Mapping[GraphKey, str]) -> None:
    """Log one warning for any number of graphs, with the reason of the first. The report has all reasons."""
    if keys:
        names = [str(key) for key in keys]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        logger.warning("%d encoder graphs %s (%s): %s", len(keys), what, shown, next(iter(keys.values())))


def _improves(key: GraphKey, captured: Captured, plan: CallPlan) -> bool:
    """Whether a new graph may serve a batch of a plan better than the graph that the plan has for it, if any."""
    return any(
        (run.path, run.axes) == (key.path, key.axes)
        and run.tokens <= captured.tokens
        and (run.captured is None or run.captured.tokens > captured.tokens)
        for step in plan.steps
        for run in step.runs
    )


def _clear_behind(arena: Arena, used: int, capacity: int) -> None:
    """Zero the leftovers of a larger call after `used` bytes, up to the `capacity` bytes that a graph reads.

    Clearing only dirty bytes saves a fill of the whole buffer in each call (11 MB for a 1288x728 image).
    """
    if arena.dirty <= used:
        arena.dirty = used
    elif used < capacity:
        assert arena.memory is not None
        arena.memory[used : min(arena.dirty, capacity)].zero_()
        if arena.dirty <= capacity:
            arena.dirty = used


class EncoderGraphManager:
    """Graphs of one encoder.

    `ladders` maps each path to its sorted token budgets; a leading 0 means that a batch may leave the path idle.
    `small` maps a path to further budgets below its ladder. An idle worker captures one of them only when the traffic
    needs it, for at most as many items as the budget has tokens.
    """

    def __init__(
        self,
        adapter: EncoderAdapter,
        device: torch.device,
        dtype: torch.dtype,
        *,
        ladders: Mapping[str, Sequence[int]],
        limits: Limits,
        small: Mapping[str, Sequence[int]] | None = None,
        backend: GraphBackend | None = None,
        options: Options | None = None,
        group: Group | None = None,
        stats: Stats | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.adapter = adapter
        self.device = device
        self.dtype = dtype
        self.limits = limits
        self.options = options or Options()
        self.description = adapter.describe()
        small = small or {}
        self.ladders = {path: sorted({*ladder, *small.get(path, ())}) for path, ladder in ladders.items()}
        missing = set(self.description.paths) - set(self.ladders)
        if missing:
            raise ValueError(f"no budgets for the paths {sorted(missing)}")
        if any(not axis for axis in self.description.axes):
            raise ValueError("a capture axis needs at least one key")
        # On the CPU the recording backend replaces CUDA graphs. It is slower than eager: use it for trials and tests.
        self.backend = backend or (RecordingBackend(device) if device.type == "cpu" else CudaGraphBackend(device))
        self.group = group
        self.stats = stats or Stats()
        self.trace = trace
        self.crossover: dict[str, Crossover] = {path: Crossover() for path in self.ladders}
        self.replay_hook: ReplayHook | None = None
        self._graph_set = GraphSet(adapter, self.backend, self.options, limits, self.ladders, self.description, small)
        self._plans = PlanCache(self.options.plan_entries)
        self._constants: dict[tuple[GraphKey, str], torch.Tensor] = {}
        self._trials = self.options.trials
        self._until_sample = self.options.sample_every
        self._pending: tuple[GraphKey, Any] | None = None
        # A call whose items are spread over ranks is never one plan of this rank.
        alone = group is None or group.size <= 1
        self._quick_signature = getattr(adapter, "quick_signature", None) if alone else None
        self._around: Around | None = getattr(adapter, "around", None)
        #: Whether the model's code around its encoder calls it for each item; None until a batch of several has told.
        self._apart: bool | None = getattr(adapter, "encodes_apart", None) if self._around is not None else False

    # -- capture ------------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> Mapping[GraphKey, Captured]:
        """The captured graphs by key. Budgets between two tiles share a graph."""
        return self._graph_set.graphs

    @property
    def report(self) -> CaptureReport:
        """The graphs that were captured, and the reason for each one that is missing."""
        return self._graph_set.report

    @property
    def pool(self) -> Any:
        """The memory pool of the graphs; None before `capture`."""
        return self._graph_set.pool

    @pool.setter
    def pool(self, pool: Any) -> None:
        self._graph_set.pool = pool

    def keys_to_capture(self) -> list[GraphKey]:
        """Every key that start-up captures, in capture order: the ends of each ladder first, then ever finer steps."""
        return self._graph_set.keys()

    def capture(self, pool: Any = None) -> CaptureReport:
        """Capture every key that fits the caps; never raises for a key that cannot be captured."""
        self.clear()
        report = self._graph_set.capture(pool)
        self._keep_at_most(report.kept_bytes)
        if self.options.calibration_ms > 0:
            self.calibrate(self.options.calibration_ms)
        logger.info("%s", report)
        _warn_of("are left out", report.dropped)
        _warn_of("cannot be captured, and their sizes run eager", report.failed)
        return report

    def capture_when_idle(self, most: int | None = None) -> int:
        """Capture at most `most` graphs that would serve the traffic better. Returns how many were captured.

        Call it while no call waits: a graph takes 20 to 70 ms. The plans of sizes that a new graph may serve better are
        dropped, and the next call of such a size makes a new plan.
        """
        captured = 0
        while most is None or captured < most:
            try:
                key = self._graph_set.capture_next()
            except CaptureError:
                continue
            if key is None:
                break
            captured += 1
            self._plans.forget(unless=lambda plan, key=key: not _improves(key, self.graphs[key], plan))  # type: ignore[misc]
        if self._graph_set.bytes_for_sizes < self._plans.most_bytes:
            self._keep_at_most(self._graph_set.bytes_for_sizes)
        return captured

    def _keep_at_most(self, nbytes: int) -> None:
        """Bound the device memory of what is kept of sizes: metadata in plans, or tables of the adapter."""
        self._plans.keep_at_most(nbytes)
        keep = getattr(self.adapter, "keep_at_most", None)
        if keep is not None:
            keep(nbytes)

    @property
    def wants_graphs(self) -> bool:
        """Whether `capture_when_idle` has anything to do."""
        return self._graph_set.next_key() is not None

    def drop(self, key: GraphKey, why: str) -> None:
        """Drop a graph, and every key that shares it. Their sizes then run on a larger graph, or eager."""
        self._graph_set.drop(key, why)
        self._plans.forget()

    def forget_metadata(self) -> None:
        """Make all plans again, with their metadata: the weights that some metadata hold have changed."""
        self._plans.forget()
        self._constants.clear()

    def is_captured(self) -> bool:
        """Whether `capture` ran since the last `clear`."""
        return self.pool is not None

    def clear(self) -> None:
        """Drop every graph and all static memory."""
        self.forget_metadata()
        self._graph_set.clear()
        self._pending = None

    def calibrate(self, limit_ms: float) -> None:
        """Measure replay times of a few budgets, smallest first, and the eager time of the smallest.

        It stops when `limit_ms` are spent on a path; a curve goes on with its last slope beyond its last sample. The
        eager time is that of the captured forward without a graph: the same kernels, launched by the host.
        """
        for path, ladder in self.ladders.items():
            crossover = self.crossover[path]
            spent = 0.0
            # The first axis keys, which come first in each stage of a capture, stand for all.
            captured = {k.budget: c for k, c in [*self.graphs.items()][::-1] if k.path == path}
            for budget in sample_budgets([b for b in ladder if b in captured], 10):
                # Take at least three samples: the last two give the slope beyond them.
                if spent > limit_ms and len(crossover.replay.points) >= 3:
                    break
                graph, buffers = captured[budget].graph, captured[budget].buffers
                values = buffers.forward_values
                with torch.inference_mode():
                    # All graphs share their buffers: an index that another graph left there may be out of range here.
                    buffers_fill(buffers, self._graph_set.values_of(captured[budget].key))
                    # The very first runs may still load kernels; the curve keeps the smaller time.
                    for _ in range(1 if crossover.replay.points else 2):
                        replay = self.backend.elapsed_ms(graph.replay)
                        crossover.replay.add(captured[budget].tokens, replay)
                        spent += replay
                        if len(crossover.replay.points) == 1:  # the smallest graph shows the cost of launching alone
                            eager = self.backend.elapsed_ms(lambda v=values, p=path: self.adapter.forward(dict(v()), p))  # type: ignore[misc]
                            crossover.launch_ms = min(crossover.launch_ms or eager, eager)
                            spent += eager
        self._plans.forget()

    # -- execution ----------------------------------------------------------------------------------------------

    def execute(self, inputs: Inputs) -> list[torch.Tensor]:
        """One output tensor per item, `[tokens, width]`, in the order of the call. The caller owns them."""
        outputs = self.execute_known(inputs)
        if outputs is not None:
            return outputs
        self.stats.calls += 1
        if not self.adapter.is_raw(inputs):
            outputs = list(self.adapter.embed(inputs))
            self.stats.miss("no-pixels", len(outputs))
            return outputs
        if self.group is not None and self.group.size > 1:
            return self._execute_sharded(inputs, self.group)
        return self.execute_local(inputs)

    def execute_known(self, inputs: Inputs) -> list[torch.Tensor] | None:
        """Run and count a call whose plan is known. None: `execute` must take the longer way."""
        if self._quick_signature is None or self.replay_hook is not None:
            return None
        signature = self._quick_signature(inputs)
        plan = self._plans.get(signature)
        if plan is None or not in_inference_mode():
            return None
        outputs = self._run(plan, inputs)
        self._plans.move_to_end(signature)
        self.stats.calls += 1
        self.stats.plans_reused += 1
        return outputs

    def execute_local(self, inputs: Inputs) -> list[torch.Tensor]:
        """As `execute`, on this rank only."""
        with torch.inference_mode():
            signature = self.adapter.signature(inputs) if self.replay_hook is None else None
            plan = self._plans.get(signature) if signature is not None else None
            if plan is None:
                plan = self._build_plan(inputs, signature)
                self.stats.plans_built += 1
            else:
                self._plans.move_to_end(signature)
                self.stats.plans_reused += 1
            return self._run(plan, inputs)

    def _run(self, plan: CallPlan, inputs: Inputs) -> list[torch.Tensor]:
        """Launch every batch of a plan, then count, check and cut."""
        if self._around is not None and self.replay_hook is None:
            return self._run_around(plan, inputs, self._around)
        adapter = self.adapter
        launched = []
        for step in plan.steps:
            batch = inputs if step.passes else self._batch_of(step, inputs)
            outputs = {}
            for run in step.runs:
                clock = None if run.trial is None else self._next_trial(run, run.trial)
                outputs[run.path] = (
                    self._run_otherwise(run, step, batch) if run.eager or run.replay is None else run.replay(batch)
                )
                if clock is not None:
                    clock.stop()
            launched.append((step, batch, outputs))
        # The device is at work: host time costs nothing from here on.
        results: dict[int, torch.Tensor] = {}
        for step, batch, outputs in launched:
            eager = self._count(step, outputs)
            selected = self._batch_of(step, batch) if step.passes else batch
            adapter.finish(outputs, step.indices, plan.items, results, selected, eager)
        return self._finish(plan, results)

    def _finish(self, plan: CallPlan, results: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        plan.uses += 1
        if plan.uses == self.options.trial_after - 1 and self._trials > 0:
            self._start_trials(plan)
        return [results[i] for i in range(len(plan.items))]

    def _run_around(self, plan: CallPlan, inputs: Inputs, around: Around) -> list[torch.Tensor]:
        """Run the model's own code on every batch of a plan, and a graph where it calls its encoder."""
        results: dict[int, torch.Tensor] = {}
        for step in plan.steps:
            batch = self._batch_of(step, inputs)
            # One trial at a time: the model's code around the encoders is timed with them.
            clock = next((self._next_trial(run, run.trial) for run in step.runs if run.trial is not None), None)
            embeddings = None
            replays = not all(run.eager for run in step.runs)
            if replays:
                if not step.in_parts:
                    with contextlib.suppress(OtherCall):
                        embeddings = around(batch, partial(self._replay_values, step))
                    self._learn_of_parts(step)
                if step.in_parts and self._run_parts(plan, step, batch, results):
                    embeddings = [results[index] for index in step.indices]
            if embeddings is not None or not replays:
                self._count(step, {})
            else:
                reason = next(filter(None, (run.reason for run in step.runs if not run.eager)), "other-call")
                self.stats.miss(reason, len(step.indices))
            if embeddings is None:
                embeddings = self.adapter.embed(batch)
            if clock is not None:
                clock.stop()
            results.update(zip(step.indices, embeddings, strict=True))
        return self._finish(plan, results)

    def _learn_of_parts(self, step: Step) -> None:
        """Note whether each item is a call of the encoder. Then eager has more launches than any plan so far knows."""
        if self._apart is None and len(step.indices) > 1:
            self._apart = step.in_parts
            if self._apart:
                self._plans.forget()

    def _replay_values(
        self, step: Step, path: str, values: Mapping[str, torch.Tensor | None], rows: int, tokens: int
    ) -> torch.Tensor | None:
        """The first `rows` rows of a path's output on these values of its buffers; None where it runs eagerly.

        Raises `OtherCall`, with the reason in the run, where no graph holds them or they are not the whole batch.
        """
        run = next((run for run in step.runs if run.path == path), None)
        step.in_parts = run is not None and tokens < run.tokens
        if run is None or tokens != run.tokens:
            if run is not None:
                run.reason = "other-call"
            raise OtherCall
        if run.eager:
            return None
        assert run.captured is not None
        captured = self._choose(run, values, run.captured.key.budget)
        if captured is None:
            raise OtherCall
        metadata = {
            name: slot.initial if slot.initial is not None else self._constant(captured.key, name)
            for name, slot in captured.buffers.layout.slots.items()
            if values.get(name) is None
        }
        self._write_loose(captured, {**values, **metadata})
        if captured.addresses:
            self._check_addresses(captured)
        self._until_sample -= 1
        if self._until_sample > 0:
            captured.graph.replay()
        else:
            self._sample(captured)
        # A copy: embeddings may be views of it, and the next replay overwrites it.
        return captured.graph.output[:rows].clone()

    def _run_parts(self, plan: CallPlan, step: Step, batch: Inputs, results: dict[int, torch.Tensor]) -> bool:
        """Replay a batch whose parts the model encodes one after the other: recorded first, then one replay a path."""
        outputs = {}
        for run in step.runs:
            output: torch.Tensor | None
            if run.eager or run.captured is None:
                output = self.adapter.eager(batch, run.path)
            else:
                output = self._replay_recorded(run.captured, batch, run.path, run.tokens, len(step.indices))
            if output is None:
                return False
            outputs[run.path] = output
        eager = tuple([run.path for run in step.runs if run.eager])
        self.adapter.finish(outputs, step.indices, plan.items, results, batch, eager)
        return True

    def _batch_of(self, step: Step, inputs: Inputs) -> Inputs:
        adapter = self.adapter
        return adapter.whole(inputs)[0] if step.whole else adapter.select(inputs, step.indices)[0]

    def _count(self, step: Step, outputs: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        """Note one batch in the statistics and the trace. Returns the paths that ran eager."""
        items = len(step.indices)
        if not step.runs:  # the model says that graphs hold nothing of these items
            self.stats.miss("other-call", items)
        eager = []
        for run in step.runs:
            if self.trace is not None and not self._claims_too_much(run, outputs.get(run.path)):
                self.trace.add(run.path, run.tokens)
            if run.lacks is not None:
                want = self._graph_set.wanted.setdefault(run.lacks, Want())
                want.uses += 1
                want.saving += run.saving
            if not run.eager and run.captured is not None:
                self.stats.hit(run.captured.key, items, run.tokens, run.captured.tokens)
            elif run.reason:  # no reason: the hook that replaced the replay counts it
                eager.append(run)
        for position, run in enumerate(eager):
            whole = position == 0 and len(eager) == len(step.runs)
            self.stats.miss(run.reason, items, whole=whole)
        return tuple([run.path for run in eager])

    def _claims_too_much(self, run: Run, output: torch.Tensor | None) -> bool:
        """Whether a model keeps these items out of all graphs by claiming tokens that they do not have."""
        rows = self.adapter.output_rows(run.path, run.tokens) if run.eager else None
        return rows is not None and output is not None and output.shape[0] < rows

    def _run_otherwise(self, run: Run, step: Step, batch: Inputs) -> torch.Tensor:
        """Run a batch eager, or through the hook that replaces the replay."""
        if step.passes:
            batch = self._batch_of(step, batch)
        if self.replay_hook is not None and run.budget:
            output = self.replay_hook(batch, run.budget, run.path, run.axes)
            run.reason = "" if output is not None else "not-captured"
            if output is not None:
                rows = self.adapter.output_rows(run.path, run.tokens)
                return (output if rows is None else output[:rows]).clone()
        return self.adapter.eager(batch, run.path)

    def replay_on(self, key: GraphKey, inputs: Inputs) -> torch.Tensor | None:
        """Run one batch on the graph of `key`, without a plan. None if that graph is missing or too small."""
        items = list(self.adapter.items(inputs))
        captured = self.graphs.get(key)
        tokens = sum(item.tokens_on(key.path) for item in items)
        with torch.inference_mode():
            output = captured and self._replay_recorded(captured, inputs, key.path, tokens, len(items))
        if captured is None or output is None:
            self.stats.miss("not-captured", len(items))
            return None
        self.stats.hit(captured.key, len(items), tokens, captured.tokens)
        return output

    def _replay_recorded(
        self, captured: Captured, inputs: Inputs, path: str, tokens: int, items: int
    ) -> torch.Tensor | None:
        values = self.adapter.replay_values(inputs, self._graph_set.limits_of(captured.key.budget, items), path)
        if captured.buffers.misfit(values) is not None:
            return None
        return self._replay_of(CallPlan([], []), path, tokens, captured, inputs, values)(inputs)

    def _execute_sharded(self, inputs: Inputs, group: Group) -> list[torch.Tensor]:
        items = self.adapter.items(inputs)
        if not items:
            return []
        return run_sharded(
            group,
            costs=[item.cost for item in items],
            tokens=[item.tokens for item in items],
            run=lambda mine: self.execute_local(self.adapter.select(inputs, mine)[0]),
            width=self.description.output_width,
            device=self.device,
            dtype=self.dtype,
        )

    def _start_trials(self, plan: CallPlan) -> None:
        """Compare replay and eager from now on for the sizes near the crossover.

        Predictions are good to a few per cent. A graph gains no more than that for large inputs: their kernels hide the
        launches, and 2 % of padding can cost more than a graph saves.
        """
        for step in plan.steps:
            for run in step.runs:
                if run.captured is None or self._trials <= 0:
                    continue
                ratio = self.crossover[run.path].ratio(run.tokens, run.captured.tokens, run.calls)
                if ratio is None:
                    close = run.captured.tokens != run.tokens
                else:
                    close = TRIAL_RANGE[0] <= ratio <= TRIAL_RANGE[1]
                if close:
                    self._trials -= 1
                    run.trial = Trial()

    def _next_trial(self, run: Run, trial: Trial) -> Any:
        """Note the time of the last call, then decide, or choose replay or eager for this call and return its clock."""
        run.eager, run.reason = False, ""
        if trial.clock is not None:
            ms = trial.clock.ms()
            if ms is None:
                return None  # the device is behind: ask again at the next use
            trial.ms[trial.eager].append(ms)
            trial.clock = None
        verdict = trial.verdict()
        if verdict is not None:
            run.eager, run.trial = verdict, None
        elif not self.backend.idle():
            # Other work on the device would hide the launches of eager, and the trial would prefer eager wrongly.
            return None
        else:
            run.eager = trial.eager = not trial.eager
            trial.clock = self.backend.timer()
        if run.eager:
            run.reason = "crossover"
        return trial.clock

    def _replay_of(
        self,
        plan: CallPlan,
        path: str,
        tokens: int,
        captured: Captured,
        selected: Inputs,
        values: Mapping[str, torch.Tensor | None],
    ) -> Callable[[Inputs], torch.Tensor]:
        """The function that replays a graph for these sizes: copy, replay, copy out.

        `selected` are the inputs of one such batch, and `values` the adapter's buffer values for them. The function
        allocates nothing but the output, never waits for the device, and knows nothing of the model.
        """
        buffers = captured.buffers
        keep = self.adapter.output_rows(path, tokens)
        output = captured.graph.output
        copy_out = (output if keep is None else output[:keep]).clone
        copies = []
        loose: dict[str, torch.Tensor | None] = {}
        for name, view in buffers.data.items():
            value = values[name]
            assert value is not None
            passed = next((k for k, v in selected.items() if v is value), None)
            if passed is None or buffers.specs[name].pad is not None:
                loose[name] = value
                continue
            rows = value.shape[0]
            used = rows_bytes(view, rows)
            copies.append((passed, view[:rows].copy_, buffers.data_arenas[name], used, nbytes_of(view)))
        metadata = {name: values.get(name) for name in buffers.layout.slots}
        for name, value in metadata.items():
            if value is None:
                initial = buffers.layout.slots[name].initial
                metadata[name] = self._constant(captured.key, name) if initial is None else initial
        # Further steps before the launch; hardly any graph has one.
        further: list[Callable[[], object]] = []
        blob: torch.Tensor | None = None
        if loose or not plan.memoised:
            # The adapter computed these values from pixels, so this plan is good for this call only.
            plan.memoised = False
            further.append(partial(self._write_loose, captured, loose | metadata))
        elif buffers.layout.nbytes:
            blob = self.backend.empty(buffers.layout.nbytes)
            buffers.layout.write(blob, metadata, self._graph_set.buffers.staging)
            plan.nbytes += buffers.layout.nbytes
        for name in buffers.owned:
            if (owned := values.get(name)) is not None:
                further.append(partial(self._write_owned, captured, name, owned))
        if captured.addresses:
            further.append(partial(self._check_addresses, captured))
        arena, copy_blob, graph, clear_behind = (
            buffers.metadata_arena,
            buffers.metadata.copy_,
            captured.graph,
            _clear_behind,
        )

        def replay(batch: Inputs) -> torch.Tensor:
            for name, copy_pixels, data_arena, used, capacity in copies:
                copy_pixels(batch[name], True)
                if data_arena.dirty != used:
                    clear_behind(data_arena, used, capacity)
            if blob is not None and arena.holds is not blob:
                copy_blob(blob, True)
                arena.holds = blob
            for prepare in further:
                prepare()
            self._until_sample -= 1
            if self._until_sample > 0:
                graph.replay()
            else:
                self._sample(captured)
            # The next replay overwrites the graph's memory, so we copy the output here. The model's own post-processing
            # may forget to (Step3-VL does, 0.22 to 0.33).
            return copy_out()

        return replay

    def _sample(self, captured: Captured) -> None:
        self._until_sample = self.options.sample_every
        if self._pending is not None:
            key, measured = self._pending
            ms = measured.ms()
            if ms is None:
                captured.graph.replay()
                return
            stats = self.stats.keys.get(key)
            if stats is not None:
                stats.sampled += 1
                stats.sampled_ms += ms
            self._pending = None
        clock = self.backend.timer()
        captured.graph.replay()
        clock.stop()
        self._pending = (captured.key, clock)

    # -- plans --------------------------------------------------------------------------------------------------

    def _build_plan(self, inputs: Inputs, signature: Hashable | None) -> CallPlan:
        self._graph_set.free_room()
        items = list(self.adapter.items(inputs))
        plan = CallPlan(items, [], memoised=signature is not None)
        passes_through = getattr(self.adapter, "passes_through", None)
        for batch in self._pack(items):
            whole = len(batch.indices) == len(items) and batch.indices == tuple(range(len(items)))
            selected, axes = self.adapter.whole(inputs) if whole else self.adapter.select(inputs, batch.indices)
            runs = []
            for path in self.ladders:
                tokens = sum(items[i].tokens_on(path) for i in batch.indices)
                if tokens:
                    run = Run(path, tokens, batch.budgets.get(path), axes)
                    self._plan_run(plan, selected, run, len(batch.indices))
                    runs.append(run)
            passes = whole and passes_through is not None and bool(passes_through(inputs))
            in_parts = bool(self._apart) and len(batch.indices) > 1
            plan.steps.append(Step(batch.indices, passes, whole, runs, in_parts))
        if self._prefers_one_eager_call(plan):
            _, axes = self.adapter.whole(inputs)
            totals = {path: sum(item.tokens_on(path) for item in items) for path in self.ladders}
            reasons = {run.reason for step in plan.steps for run in step.runs if run.eager}
            reason = reasons.pop() if len(reasons) == 1 else "crossover"
            runs = [Run(path, total, None, axes, reason) for path, total in totals.items() if total]
            everything = tuple(range(len(items)))
            plan = CallPlan(items, [Step(everything, False, True, runs)], memoised=plan.memoised)
        if plan.memoised and signature is not None:
            self._plans.remember(signature, plan)
        return plan

    def _prefers_one_eager_call(self, plan: CallPlan) -> bool:
        """Whether the batches of a call are predicted to take longer, one after the other, than all items eager.

        Eager runs all items at once, and a chip that a replay fills gains nothing from a graph (Phi-3-V on an H100:
        four replays of 17 tiles take 72 ms, 68 tiles eager 68).
        """
        if len(plan.steps) < 2 or any(not isinstance(axis[0], Room) for axis in self.description.axes):
            return False
        # Without a graph, an item may have fewer tokens than it claims, so that its rows cannot be told from others'.
        if self._around is None and any(run.captured is None for step in plan.steps for run in step.runs):
            return False
        if all(run.eager for step in plan.steps for run in step.runs):
            return True  # one call has fewer launches than several, and no batch has a graph to wait for
        batches = eager = slow = 0.0
        for path, crossover in self.crossover.items():
            runs = [run for step in plan.steps for run in step.runs if run.path == path]
            times = [
                crossover.eager_at(run.tokens, run.calls)
                if run.eager or run.captured is None
                else crossover.replay.at(run.captured.tokens)
                for run in runs
            ]
            calls = sum(run.calls for run in runs) if self._apart else 1
            tokens = sum(run.tokens for run in runs)
            whole, waiting = (crossover.eager_at(tokens, calls, host) if runs else 0.0 for host in (1.0, SLOW_HOST))
            if whole is None or waiting is None or None in times:
                return False
            batches += sum(filter(None, times))
            eager, slow = eager + whole, slow + waiting
        return batches > max(eager * CLEARLY_SLOWER, slow)

    def _pack(self, items: list[Item]) -> list[packing.Batch]:
        if not items:
            return []
        if self.options.packing == "greedy":
            return packing.pack_greedy(items, self.ladders, self.limits.items)
        # The packer counts costs in tokens, not in measured times. Predictions for untimed budgets once split batches
        # that fit into one replay (3 to 4 % lost), and ranks that decide by their own clocks may disagree.
        return packing.pack_planned(items, self.ladders, self.limits.items)

    def _plan_run(self, plan: CallPlan, selected: Inputs, run: Run, items: int) -> None:
        """Choose how one path of a batch of `items` items runs."""
        path, tokens = run.path, run.tokens
        budget = run.budget
        if budget is None:
            budget = fitting_budget([b for b in self.ladders[path] if b], tokens)
        if budget is None:
            run.reason = "over-budget"
            return
        if self.replay_hook is not None:
            return
        crossover = self.crossover[path]
        values: Mapping[str, torch.Tensor | None] | None = None
        if self._around is None:
            started = time.perf_counter()
            # A model pads to these limits, so that the values of a small batch fit into a graph of few tokens.
            values = self.adapter.replay_values(selected, self._graph_set.limits_of(budget, items), path)
            # An eager call prepares the same metadata before its first kernel. The smallest time has the least noise.
            extra = (time.perf_counter() - started) * 1e3
            crossover.extra_ms = min(crossover.extra_ms or extra, extra)
        captured = run.captured = self._choose(run, values, budget)
        run.calls = items if self._apart else 1
        if captured is not None:
            untold = self._apart is None and items > 1  # only a replay tells how many calls eager has
            run.eager = not untold and crossover.prefers_eager(tokens, captured.tokens, run.calls)
            run.reason = "crossover" if run.eager else ""
            if values is not None:
                run.replay = self._replay_of(plan, path, tokens, captured, selected, values)
        key = GraphKey(path, budget, run.axes)
        if key not in self.graphs:
            run.saving = crossover.saving(tokens, budget, None if captured is None else captured.tokens, run.calls)
            run.lacks = key if run.saving > 0 else None

    def _choose(self, run: Run, values: Mapping[str, torch.Tensor | None] | None, budget: int) -> Captured | None:
        """The smallest captured graph that holds every value, or None with the reason in `run`.

        Without values, the smallest one for these tokens.
        """
        run.reason = "not-captured"
        ladder = self.ladders[run.path]
        stretched = budget * MAX_STRETCH
        for candidate in ladder[ladder.index(budget) :]:
            key = GraphKey(run.path, candidate, run.axes)
            captured = self.graphs.get(key)
            if captured is None:
                if key in self.report.failed:
                    run.reason = "capture-failed"
                elif run.axes and not self._axes_known(run.axes):
                    run.reason = "axis-not-captured"
                    return None
                continue
            if candidate > stretched and candidate > self._graph_set.smallest(run.path):
                break
            misfit = None if values is None else captured.buffers.misfit(values)
            if misfit is None:
                run.reason = ""
                return captured
            run.reason = f"capacity:{misfit}"
        return None

    def _axes_known(self, axes: AxisKeys) -> bool:
        declared = self.description.axes
        return len(axes) == len(declared) and all(a in keys for a, keys in zip(axes, declared, strict=True))

    def _constant(self, key: GraphKey, name: str) -> torch.Tensor:
        """The capture value of a buffer that replays leave alone. The shared arena cannot keep it."""
        value = self._constants.get((key, name))
        if value is None:
            value = self._graph_set.values_of(key)[name]
            assert value is not None
            self._constants[key, name] = value
        return value

    def _write_loose(self, captured: Captured, values: Mapping[str, torch.Tensor | None]) -> None:
        buffers = captured.buffers
        buffers.layout.write(buffers.metadata, values, self._graph_set.buffers.staging)
        buffers.metadata_arena.holds = None
        for name, view in buffers.data.items():
            value = values.get(name)
            if value is None:
                continue
            spec = buffers.specs[name]
            if spec.pad is not None:
                spec.pad(view, value)
            else:
                PADDERS[spec.kind](view, value, buffers.contexts[name])
            arena = buffers.data_arenas[name]
            arena.dirty = max(arena.dirty, nbytes_of(view))

    @staticmethod
    def _write_owned(captured: Captured, name: str, value: torch.Tensor) -> None:
        spec = captured.buffers.specs[name]
        target = captured.buffers.owned[name]
        if spec.pad is not None:
            spec.pad(target, value)
        else:
            PADDERS[spec.kind](target, value, captured.buffers.contexts[name])

    # -- debug mode ---------------------------------------------------------------------------------------------

    def _check_addresses(self, captured: Captured) -> None:
        now = self._graph_set.addresses(captured.buffers)
        for name, address in captured.addresses.items():
            if now.get(name) != address:
                raise AddressChanged(f"{name} of the graph {captured.key} has moved since it was captured")
