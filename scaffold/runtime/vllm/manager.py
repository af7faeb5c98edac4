"""The drop-in for vLLM's `EncoderCudaGraphManager`: its constructor, public methods and contract, for 0.23 to 0.33.

Subclasses and tests replace single steps by name (`_get_item_specs`, `_select_items`, `_run_budget_graph`) and make
objects without `__init__`. So the manager creates state beyond vLLM's own attributes on first use, and every step stays
a method.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scaffold.runtime.adapter import AxisKeys, GraphKey, Limits, Room, holds_pixels
from scaffold.runtime.backend import GraphBackend
from scaffold.runtime.budgets import fitting_budget, octave_ladder, powers_of_two, start_ladder
from scaffold.runtime.capture import IDLE_STEPS
from scaffold.runtime.manager import EncoderGraphManager
from scaffold.runtime.options import Options
from scaffold.runtime.selfcheck import check_graphs, random_pixels
from scaffold.runtime.stats import Stats
from scaffold.runtime.trace import Trace
from scaffold.runtime.tuning import Proof, Tuned, moved, read_choice, tune, tuning_of
from scaffold.runtime.vllm import weights
from scaffold.runtime.vllm.dialect import ManagerDialect, installed_dialect
from scaffold.runtime.vllm.model import VllmAdapter, inherits, observe, own_axes, sync_allowed
from scaffold.runtime.vllm.refusal import Refusal, refusal_of, shards_items
from scaffold.runtime.vllm.settings import SOUND, Settings, read_settings

logger = logging.getLogger("scaffold.runtime.vllm")

#: The proof of the tunings runs on the smallest budget, and on the smallest one of at least so many tokens. With four
#: rows each, these are as many rows as FP8 needs (`tuning.fp8.LEAST_ROWS`).
PROOF_TOKENS = 512

#: The encoder takes whole images, larger ones than the tokens that the scheduler batches, too. So the largest budget is
#: that of the largest image, but not more than so many times those tokens: the memory of all graphs grows with it. Nor
#: is it more than `LARGEST_TOKENS`. Kernels of larger images hide their launches, and a graph gains little: 0.98 of
#: eager at 2691 tokens of Qwen2.5-VL on an H200. With vLLM's 2048 on smaller GPUs, a 1920x1080 image has a graph.
MOST_ABOVE, LARGEST_TOKENS = 1.5, 4096


def _in_words(ladders: Mapping[str, Sequence[int]]) -> str:
    """Ladders in short, such as `default 64 to 8192 (225)`: one may have hundreds of budgets."""
    ends = {path: [budget for budget in ladder if budget] for path, ladder in ladders.items()}
    words = [f"{path} {b[0]} to {b[-1]} ({len(b)})" if b else f"{path} (none)" for path, b in ends.items()]
    return ", ".join(words)


class VllmGroup:
    """vLLM's tensor-parallel group, through its own distributed layer."""

    def __init__(self) -> None:
        from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

        self.rank = get_tensor_model_parallel_rank()
        self.size = get_tensor_model_parallel_world_size()

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        from vllm.distributed import tensor_model_parallel_all_gather

        return tensor_model_parallel_all_gather(tensor, dim=0)


def largest_item(vllm_config: Any, modality: str = "image") -> int:
    """Tokens of the largest image or sound that the processor makes and the context holds; 0 where vLLM cannot say."""
    try:
        from vllm.multimodal import MULTIMODAL_REGISTRY
        from vllm.multimodal.encoder_budget import MultiModalBudget

        most = MultiModalBudget(vllm_config, MULTIMODAL_REGISTRY).mm_max_toks_per_item[modality]
        return min(int(most), int(vllm_config.model_config.max_model_len))
    except Exception as error:  # a processor's own code
        logger.debug("the processor does not say how large an item of %s gets", modality, exc_info=error)
        return 0


class EncoderCudaGraphManager:
    """Budget graphs of a vision encoder, with the interface of vLLM's class of the same name."""

    # Defaults of objects made without `__init__`. They pack exactly as vLLM does.
    settings: Settings = Settings(options=Options(packing="greedy", calibration_ms=0, trials=0, start_steps=None))
    options: Options = settings.options
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    max_batch_size: int = 1
    max_frames_per_batch: int = 0
    #: vLLM's largest budget, where ours is larger.
    largest_of_vllm: int | None = None
    use_dp: bool = False
    graph_pool: Any = None
    log_stats_interval: int = 100
    path_token_budgets: dict[str, list[int]] | None = None
    _capture_axes: tuple[tuple[Hashable, ...], ...] = ()
    _core: EncoderGraphManager | None = None
    #: The tunings of the tower; None before the first capture.
    tuned: Tuned | None = None
    #: The reason why no graph can serve this model; None if there is none.
    refused: Refusal | None = None
    _base_hits: int = 0
    _base_misses: int = 0

    def __init__(self, vllm_config: Any, device: torch.device, dtype: torch.dtype, model: Any) -> None:
        self.vllm_config = vllm_config
        self.device = device
        self.dtype = dtype
        self.model = model
        self.settings = read_settings(vllm_config)
        self.use_dp = shards_items(vllm_config)
        if self.use_dp:
            observe(model)
        self.config = model.get_encoder_cudagraph_config()
        dialect = self._dialect
        self._capture_axes = tuple(tuple(axis) for axis in getattr(self.config, "capture_axes", ()))
        if any(len(axis) == 0 for axis in self._capture_axes):
            raise ValueError("Encoder cudagraph capture axes must be non-empty.")
        self._choose_budgets(vllm_config.compilation_config)
        multimodal = vllm_config.model_config.multimodal_config
        assert multimodal is not None
        self._choose_frames(vllm_config.compilation_config, multimodal)
        self.budget_graphs: dict[Any, Any] = {}
        self.graph_pool = None
        self._choose_paths(dialect)
        self.options = self._choose_options(vllm_config)
        logger.info(
            "encoder graphs%s: budgets %s, at most %d items and %d frames a replay",
            " of sound" if self.is_of_sound else "", _in_words(self._ladders()), self.max_batch_size,
            self.max_frames_per_batch,
        )  # fmt: skip
        logger.debug("encoder graphs: %s", self._ladders())

    # -- construction

    @property
    def is_of_sound(self) -> bool:
        """Whether its items are sounds, and no images or videos."""
        config = getattr(self, "config", None)  # vLLM's own unit tests make a manager with budgets alone
        return config is not None and list(config.modalities) == [SOUND]

    @property
    def _dialect(self) -> ManagerDialect:
        return installed_dialect()

    def _choose_budgets(self, compilation: Any) -> None:
        """As in vLLM, a batch has at most as many items as the smallest budget has tokens: each item needs one."""
        user_budgets = compilation.encoder_cudagraph_token_budgets
        user_items = compilation.encoder_cudagraph_max_vision_items_per_batch
        if user_budgets and user_items > 0:
            self.token_budgets = sorted(user_budgets)
            self.max_batch_size = user_items
            smallest = self.token_budgets[0]
            if user_items > smallest:
                raise ValueError(
                    f"encoder_cudagraph_max_vision_items_per_batch ({user_items}) must be <= smallest token budget "
                    f"({smallest}): a captured item needs at least one token. Raise the smallest budget or lower the "
                    "number of items."
                )
            return
        low, high = self.model.get_encoder_cudagraph_budget_range(self.vllm_config)
        if low <= 0 or high <= 0:
            raise ValueError(
                f"Invalid encoder cudagraph budget range: min_budget={low}, max_budget={high}. Both must be positive."
            )
        if low > high:
            raise ValueError(f"Invalid encoder cudagraph budget range: min_budget={low} > max_budget={high}.")
        most = min(int(high * MOST_ABOVE), LARGEST_TOKENS)
        top = max(high, min(largest_item(self.vllm_config, SOUND if self.is_of_sound else "image"), most))
        top = top if most > high else high
        self.largest_of_vllm = high if top > high and not user_budgets else None
        if user_items > 0:
            self.token_budgets = self.settings.ladder(min(max(low, user_items), high), top)
            self.max_batch_size = min(user_items, self.token_budgets[0])
            return
        self.token_budgets = sorted(user_budgets) if user_budgets else self.settings.ladder(low, top)
        self.max_batch_size = max(min(high // low, self.token_budgets[0]), 1)

    def _choose_frames(self, compilation: Any, multimodal: Any) -> None:
        user_frames = compilation.encoder_cudagraph_max_frames_per_batch
        if multimodal.get_limit_per_prompt("video") == 0:
            self.max_frames_per_batch = 0
        elif user_frames is not None:
            self.max_frames_per_batch = user_frames
        else:
            self.max_frames_per_batch = self.max_batch_size * self.config.max_frames_per_video

    def _choose_paths(self, dialect: ManagerDialect) -> None:
        top = self.token_budgets[-1]
        if dialect.named_paths:
            if not self.config.paths:
                raise ValueError("Encoder CUDA graph config must define at least one path")
            ladders = {}
            for path, spec in self.config.paths.items():
                low = spec.min_token_budget
                if low is not None and low <= 0:
                    raise ValueError(f"Invalid minimum budget {low} for encoder CUDA graph path {path!r}")
                ladder = list(self.token_budgets) if low is None else self._path_ladder(path, low, top)
                ladders[path] = [0, *ladder] if spec.allow_zero_tokens else ladder
            self.path_token_budgets = ladders
        elif dialect.dual_path and self.config.enable_dual_path_graph:
            self.global_token_budgets = self._path_ladder("global", self.config.global_token_per_image, top)
            self.local_token_budgets = [0, *self._path_ladder("local", self.config.local_token_per_patch, top)]

    def _path_ladder(self, path: str, low: int, top: int) -> list[int]:
        """Budgets of one path. Where none fits, it runs eager; vLLM refuses to start, or captures useless graphs."""
        if low <= top:
            return self.settings.ladder(low, top, path)
        logger.warning("the encoder path %r needs budgets from %d and the largest is %d: it runs eager", path, low, top)
        return []

    def _choose_options(self, vllm_config: Any) -> Options:
        options = replace(self.settings.options, paid_above=self.largest_of_vllm)
        if vllm_config.compilation_config.encoder_cudagraph_token_budgets:
            options = replace(options, start_steps=None)  # the user named the graphs to capture
        if vllm_config.parallel_config.tensor_parallel_size > 1 and not self.use_dp:
            # The graphs hold the tower's own collectives. All ranks must capture together, inside vLLM's
            # `graph_capture`, and must decide alike. The clocks of different ranks would not.
            options = replace(options.without_clocks(IDLE_STEPS), compact=False, retry=False)
        if self.settings.reproducible:
            options = options.without_clocks(IDLE_STEPS)
        if inherits(self.model, "encoder_eager_forward"):
            # The model's own code makes such results behind the clock of a trial, which would take eager for instant.
            options = replace(options, calibration_ms=0.0, trials=0)
        return options

    def _ladders(self) -> dict[str, list[int]]:
        """Budgets of every path, whatever attribute this generation keeps them in."""
        if self.path_token_budgets is not None:
            return self.path_token_budgets
        if "global_token_budgets" in self.__dict__:
            return {"global": self.global_token_budgets, "local": self.local_token_budgets}
        return {"default": self.token_budgets}

    def _small(self, adapter: VllmAdapter) -> dict[str, list[int]]:
        """Budgets below those that the model names, for smaller images: a 56x56 icon has 4 tokens, the least budget 64.

        Empty if the user named the budgets, and for models whose tokens come by the tile.
        """
        compilation = getattr(getattr(self, "vllm_config", None), "compilation_config", None)
        if compilation is None or compilation.encoder_cudagraph_token_budgets:
            return {}
        small = {}
        for path, ladder in self._ladders().items():
            low = next((budget for budget in ladder if budget), 1)
            if low > 1 and adapter.packs_rows(path, low, self._limits()):
                small[path] = octave_ladder(1, low - 1, self.settings.steps)
        return small

    def _limits(self) -> Limits:
        return Limits(self.max_batch_size, self.max_frames_per_batch)

    @property
    def axes(self) -> tuple[tuple[Hashable, ...], ...]:
        """The model's own capture axes, and `Room` after them where images have graphs of their own beside videos'."""
        config = getattr(self, "config", None)  # vLLM's own unit tests make a manager with budgets alone
        rooms = self.max_frames_per_batch and config is not None and {"image", "video"} <= set(config.modalities)
        return (*self._capture_axes, *((tuple(Room),) if rooms else ()))

    @staticmethod
    def _generate_budgets(min_budget: int, max_budget: int) -> list[int]:
        """vLLM's budgets: powers of two. The default ladder is finer (`Settings.ladder`)."""
        return powers_of_two(min_budget, max_budget)

    @property
    def core(self) -> EncoderGraphManager:
        """The manager that does the work."""
        if self._core is None:
            adapter = VllmAdapter(self, self._dialect)
            self._core = EncoderGraphManager(
                adapter,
                torch.device(self.device),
                self.dtype,
                ladders=self._ladders(),
                small=self._small(adapter),
                limits=self._limits(),
                backend=self._make_backend(),
                options=self.options,
                group=VllmGroup() if self.use_dp else None,
                trace=Trace() if self.settings.record else None,
            )
        return self._core

    def _make_backend(self) -> GraphBackend | None:
        """The backend of the core. None: the core chooses one for its device."""
        return None

    # -- public contract

    def supports_modality(self, modality: str) -> bool:
        """Whether `execute` takes inputs of this modality."""
        return modality in self.config.modalities

    def is_captured(self) -> bool:
        """Whether there are graphs to replay."""
        return self.graph_pool is not None

    def forget_metadata(self) -> None:
        """Compute again what was made of weights: call it after a change of them that vLLM does not make."""
        if self.tuned is not None:
            self.tuned.read_weights()
        if self._core is not None:
            self._core.forget_metadata()
            self._core.adapter.tables.forget()  # type: ignore[attr-defined]  # a `VllmAdapter`

    def clear(self) -> None:
        """Release graphs, buffers and the pool."""
        if self._core is not None:
            self._core.clear()
        for graphs in self.budget_graphs.values():
            if isinstance(graphs, dict):
                graphs.clear()
        if not all(isinstance(graphs, dict) for graphs in self.budget_graphs.values()):
            self.budget_graphs.clear()
        self.graph_pool = None

    def get_num_graphs_to_capture(self) -> int:
        """Graphs that `capture` will try, for progress and memory profiling."""
        config = getattr(self, "config", None)  # vLLM's own unit tests make a manager with budgets alone
        if config is not None and not config.modalities:
            return 0
        combinations = math.prod(len(axis) for axis in self.axes)
        ladders = [[budget for budget in ladder if budget] for ladder in self._ladders().values()]
        return sum(len(start_ladder(ladder, self.options.start_steps)) * combinations for ladder in ladders)

    def capture(self, graph_pool: Any = None) -> None:
        """Capture every path, budget and axis combination. Never raises for a key that cannot be captured."""
        core = self.core
        weights.watch(self, self.model)
        self.refused = refusal_of(getattr(self, "vllm_config", None), self.model, self.config.modalities)
        if self.tuned is None and (self.refused is None or self.refused.tunable):
            # Eager calls run the same tuned modules, so a replay and an eager call differ by rounding only.
            choice = read_choice(self.settings.tuning)
            self.tuned = tune(self.model, choice, self._proof(), sound=self.is_of_sound)
        if self.refused is not None:
            items = "sound" if self.is_of_sound else "image"
            logger.warning("there are no encoder graphs, and every %s runs eager: %s", items, self.refused.why)
            core.pool = self.graph_pool = graph_pool if graph_pool is not None else core.backend.new_pool()
            return
        core.capture(graph_pool)
        core.adapter.warm_up(alone=self._is_alone())  # type: ignore[attr-defined]  # a `VllmAdapter`
        pool = core.pool
        if not core.graphs:
            self.untune("no graph could be captured")
        self.graph_pool = core.pool = pool
        if self.settings.self_check:
            self._check()
        core.backend.trim()  # vLLM's profile would count what torch keeps of the runs since the last capture
        self._publish_graphs()

    def _is_alone(self) -> bool:
        """Whether the tower waits for no other rank."""
        config = getattr(self, "vllm_config", None)
        return config is None or config.parallel_config.tensor_parallel_size == 1

    def untune(self, why: str) -> None:
        """Make the model as vLLM made it, and drop the graphs of the tuned tower."""
        tuned = tuning_of(getattr(self, "model", None))
        if tuned is not None and tuned.is_in_place:
            self.clear()
            tuned.undo()
            logger.info("the tunings of the tower are taken back: %s", why)

    def _proof(self) -> Proof | None:
        """The forward that proves the tunings: random pixels, a small and a large budget of each path. None if the
        setting is off.
        """
        if not self.settings.tuning_check:
            return None
        core = self.core
        calls: list[tuple[str, dict[str, Any], dict[str, torch.Tensor]]] = []

        def make_calls() -> None:
            small: dict[str, GraphKey] = {}
            large: dict[str, GraphKey] = {}
            # More room changes no value, and less of it is what images get.
            keys = [key for key in core.keys_to_capture() if Room.FRAMES not in key.axes]
            for key in sorted(keys, key=lambda key: key.budget, reverse=True):
                small[key.path] = key
                if key.path not in large or key.budget >= PROOF_TOKENS:
                    large[key.path] = key
            calls.extend(map(make_call, dict.fromkeys((*small.values(), *large.values()))))

        def make_call(key: GraphKey) -> tuple[str, dict[str, Any], dict[str, torch.Tensor]]:
            values = dict(core.adapter.capture_values(key, core.limits))
            # All ranks that share a tower use the same seed, so that they judge the same outputs.
            seed = torch.Generator(self.device).manual_seed(0)
            moves = {name: value for name, value in values.items() if value is not None and holds_pixels(value)}
            # A port that captures the rows of a loop gets no pixels: all that it gets is moved.
            data = [name for name in moves if core.description.buffer(name).is_data] or list(moves)
            pixels = {name: random_pixels(moves[name], seed) for name in data}
            return key.path, values, pixels

        def prove(step: float) -> list[torch.Tensor]:
            if not calls:
                make_calls()
            return [
                core.adapter.forward({**values, **{name: moved(p, step) for name, p in pixels.items()}}, path)
                for path, values, pixels in calls
            ]

        return prove

    def _check(self) -> None:
        for finding in check_graphs(self.core):
            if not finding.ok:
                logger.warning("encoder graph %s differs from eager and is dropped: %s", finding.key, finding.detail)
                self.core.drop(finding.key, "differs from eager in the self-check")

    def _publish_graphs(self) -> None:
        """Fill `budget_graphs` in the form of this generation."""
        flat = not self._dialect.path_argument
        for path in self._ladders():
            if not flat:
                self.budget_graphs.setdefault(path, {}).clear()
        for key, captured in self.core.graphs.items():
            axes = own_axes(key.axes)  # both rooms of a budget are one entry, as in vLLM
            name = (key.budget, axes) if axes else key.budget
            (self.budget_graphs if flat else self.budget_graphs[key.path])[name] = captured

    def capture_when_idle(self, most: int | None = None) -> int:
        """Capture at most `most` graphs that would serve the traffic better. Returns how many were captured."""
        captured = self._core.capture_when_idle(most) if self._core is not None else 0
        if captured:
            self._publish_graphs()
        return captured

    @property
    def wants_graphs(self) -> bool:
        """Whether `capture_when_idle` has anything to do."""
        return self._core is not None and self._core.wants_graphs

    def execute(self, mm_kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """One tensor per item, in order. None of them aliases graph memory."""
        core = self._core or self.core
        if self.refused is not None:
            return self._without_graphs(core, mm_kwargs, self.refused.reason)
        self._set_hook(core)
        outputs = core.execute_known(mm_kwargs)
        if outputs is not None:
            return outputs
        if not core.adapter.is_raw(mm_kwargs) or self.use_dp:
            return core.execute(mm_kwargs)
        return self._execute_local(mm_kwargs)

    def _without_graphs(self, core: EncoderGraphManager, mm_kwargs: dict[str, Any], reason: str) -> list[torch.Tensor]:
        """The model's own eager embedding of the whole batch, in its order."""
        with torch.inference_mode():
            outputs = list(self.model.embed_multimodal(**mm_kwargs))
        core.stats.calls += 1
        core.stats.miss(reason, len(outputs))
        return outputs

    def _execute_local(self, mm_kwargs: dict[str, Any]) -> list[torch.Tensor]:
        core = self.core
        self._set_hook(core)
        core.stats.calls += 1
        return core.execute_local(mm_kwargs)

    def _set_hook(self, core: EncoderGraphManager) -> None:
        """Replay through `_run_budget_graph` if a subclass or a test has its own."""
        replaced = (
            "_run_budget_graph" in self.__dict__
            or type(self)._run_budget_graph is not EncoderCudaGraphManager._run_budget_graph
        )
        core.replay_hook = self._replay_by_name if replaced else None

    def _replay_by_name(self, inputs: Any, budget: int, path: str, axes: AxisKeys) -> torch.Tensor | None:
        keywords: dict[str, Any] = {}
        if self._dialect.path_argument:
            keywords["path"] = path
        if self._dialect.axes:
            keywords["axis_keys"] = own_axes(axes)
        return self._run_budget_graph(inputs, budget, **keywords)

    # -- steps that a subclass or a test may replace by name

    def _get_item_specs(self, mm_kwargs: dict[str, Any]) -> Any:
        with sync_allowed():
            return self.model.get_encoder_cudagraph_item_specs(mm_kwargs)

    def _get_per_item_out_tokens(self, mm_kwargs: dict[str, Any]) -> list[int]:
        return [item.tokens for item in self.core.adapter.items(mm_kwargs)]

    def _select_items(self, mm_kwargs: dict[str, Any], indices: list[int]) -> tuple[dict[str, Any], AxisKeys]:
        with sync_allowed():
            selected = self.model.select_encoder_cudagraph_items(mm_kwargs, indices)
        if not self._capture_axes:
            return selected, ()
        from vllm.v1.worker.encoder_cudagraph_defs import ENCODER_CUDAGRAPH_AXIS_KEYS_KWARG

        keys = tuple(selected.pop(ENCODER_CUDAGRAPH_AXIS_KEYS_KWARG, ()))
        if len(keys) != len(self._capture_axes):
            raise ValueError(
                f"Model returned {len(keys)} capture axis keys, expected {len(self._capture_axes)} "
                "(one per axis of capture_axes)."
            )
        return selected, keys

    def _find_smallest_fitting_budget_given_tokens(
        self, total_tokens: int, budgets: list[int] | None = None
    ) -> int | None:
        return fitting_budget(self.token_budgets if budgets is None else budgets, total_tokens)

    def _run_budget_graph(
        self, mm_kwargs: dict[str, Any], token_budget: int, *_: Any, path: str = "default", axis_keys: AxisKeys = ()
    ) -> torch.Tensor | None:
        """Replay one batch on one budget. Returns the whole padded output, or None if there is no such graph."""
        axes = (*axis_keys, *self.core.adapter.rooms_of(mm_kwargs))  # type: ignore[attr-defined]  # a `VllmAdapter`
        return self.core.replay_on(GraphKey(path, token_budget, axes), mm_kwargs)

    # -- statistics

    @property
    def stats(self) -> Stats:
        """Counters with reasons, waste and replay times."""
        return self.core.stats

    @property
    def graph_hits(self) -> int:
        """Items served by graphs."""
        return self._base_hits + (self._core.stats.hits if self._core is not None else 0)

    @graph_hits.setter
    def graph_hits(self, value: int) -> None:
        self._base_hits = value - (self._core.stats.hits if self._core is not None else 0)

    @property
    def graph_misses(self) -> int:
        """Items that ran eager."""
        return self._base_misses + (self._core.stats.misses if self._core is not None else 0)

    @graph_misses.setter
    def graph_misses(self, value: int) -> None:
        self._base_misses = value - (self._core.stats.misses if self._core is not None else 0)

    def get_cumulative_stats(self) -> dict[str, Any]:
        """vLLM's five numbers, and ours under `detail`."""
        hits, misses = self.graph_hits, self.graph_misses
        graphs = [len(g) if isinstance(g, dict) else 1 for g in self.budget_graphs.values()]
        return {
            "graph_hits": hits,
            "graph_misses": misses,
            "hit_rate": hits / (hits + misses) if hits + misses else 0.0,
            "num_budgets": sum(graphs),
            "token_budgets": self.token_budgets,
            "detail": self._core.stats.as_dict() if self._core is not None else {},
        }

    def save_trace(self) -> None:
        """Write the recorded sizes to the file that `record` names."""
        if self.settings.record and self._core is not None and self._core.trace is not None:
            self._core.trace.save(Path(self.settings.record))
