"""The manager that the plugin gives vLLM's runners: no fault of ours, or of an adapter, stops the server.

The runners of all releases run a batch eager when the manager does not support its modality (`supports_modality`), was
not captured (`is_captured`, V2) or gives None for it (`execute`). Every fault ends in one of these, with one warning.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch

from scaffold.runtime.stats import Stats
from scaffold.runtime.trace import write_whole
from scaffold.runtime.vllm import idle, metrics
from scaffold.runtime.vllm.manager import EncoderCudaGraphManager
from scaffold.runtime.vllm.settings import SOUND, read_settings

logger = logging.getLogger("scaffold.runtime.vllm")

#: After so many faults in a row the manager gives the graphs up: each fault costs a plan and a line of the log.
FAULTS = 3
#: For an engine that does not tell when it is idle: the largest share of the time that captures may take, and the
#: number of batches between two captures.
SHARE, BATCHES = 0.01, 2
#: Seconds from a new image to the next writing of the trace and the counters, and between two lines in the log.
SAVE_AFTER, LOG_EVERY = 10.0, 60.0


class ServedManager(EncoderCudaGraphManager):
    """As its base, but a fault makes images run eager instead of raising."""

    token_budgets: list[int] = []  # noqa: RUF012 - what vLLM reads of a manager that could not be set up
    #: The reason why there are no graphs; None while all is well.
    fault: str | None = None
    _faults_in_a_row: int = 0
    _ranks: int = 1
    #: The rank among these, and the number of the data-parallel engine.
    _rank: int = 0
    _engine: int = 0
    #: Whether the tower's layers are spread over the ranks, so that all of them must run the same forward.
    _is_spread: bool = False
    _captured_s: float = 0.0
    _since_capture: int = 0
    _started: float = 0.0
    _writer: threading.Timer | None = None
    _logged: float = 0.0
    _said: str = ""
    _told_of_large_images: bool = False
    _at_end: Finalize | None = None
    #: Whether the settings name files, and they can be written; whether the counters are among vLLM's metrics.
    _writes: bool = False
    _exports: bool = False

    def __init__(self, vllm_config: Any, device: torch.device, dtype: torch.dtype, model: Any) -> None:
        # A setting that means nothing is the operator's to correct, and stops the start.
        settings = read_settings(vllm_config)
        try:
            self._ranks = vllm_config.parallel_config.tensor_parallel_size
            spread = vllm_config.model_config.multimodal_config.mm_encoder_tp_mode != "data"
            self._is_spread = self._ranks > 1 and spread
            super().__init__(vllm_config, device, dtype, model)
        except Exception as error:
            self.vllm_config, self.budget_graphs = vllm_config, {}
            self._exports = settings.prometheus and metrics.place() is not None
            self._give_up("they cannot be set up", error)
            return
        self._name_files()
        self._logged = time.monotonic()
        self._writes = bool(self.settings.record or self.settings.stats)
        # A tower that is spread over the ranks serves each image on all of them: the first rank counts it.
        counts = not (self._is_spread and self._rank)
        self._exports = self.settings.prometheus and counts and metrics.place() is not None

    def supports_modality(self, modality: str) -> bool:
        return self.fault is None and super().supports_modality(modality)

    def is_captured(self) -> bool:
        return self.fault is None and super().is_captured()

    def get_num_graphs_to_capture(self) -> int:
        return 0 if self.fault is not None else super().get_num_graphs_to_capture()

    def capture(self, graph_pool: Any = None) -> None:
        if self.fault is None:
            try:
                super().capture(graph_pool)
            except Exception as error:
                self._go_without(error, graph_pool)
        if self._is_spread:
            self._agree()
        self._started = time.monotonic()
        # In sleep mode the tower's weights may be gone while the worker waits.
        model_config = getattr(getattr(self, "vllm_config", None), "model_config", None)
        if self.fault is None and not getattr(model_config, "enable_sleep_mode", False):
            idle.watch(self)
        self._export()

    @property
    def wants_graphs(self) -> bool:
        return self.fault is None and super().wants_graphs

    def _capture_now_and_then(self) -> None:
        """Capture one graph after a batch, where no loop of this process tells when nothing waits."""
        self._since_capture += 1
        spent = time.monotonic() - self._started
        if self._since_capture <= BATCHES or self._captured_s > SHARE * spent or not self.wants_graphs:
            return
        begin = time.monotonic()
        self.capture_when_idle(1)
        self._captured_s += time.monotonic() - begin
        self._since_capture = 0

    def _go_without(self, error: Exception, graph_pool: Any) -> None:
        self.untune("there are no encoder graphs")
        self.clear()
        if self.use_dp:
            # Another rank may have its graphs. This one must go on sharing its collectives, without graphs.
            self.core.pool = self.graph_pool = graph_pool if graph_pool is not None else object()
            logger.warning("this rank has no encoder graphs, and its images run eager: %s", _words(error))
        else:
            self._give_up("they cannot be captured", error)

    def execute(self, mm_kwargs: dict[str, Any]) -> list[torch.Tensor] | None:  # type: ignore[override]
        """As the base. If that fails, one of several ranks raises; a single rank returns None: vLLM encodes eagerly."""
        if self.fault is not None:
            return None
        try:
            outputs = super().execute(mm_kwargs)
        except Exception as error:
            if self._ranks > 1:
                raise  # the other ranks wait for this one in a collective: going eager here alone would hang them all
            self._faults_in_a_row += 1
            if self.tuned is not None and self.tuned.is_in_place and not self._runs_eager(mm_kwargs):
                # The graphs read the tuned tower's memory, so that they go with it.
                self._give_up("the tuned tower fails", error)
                return None
            if self._faults_in_a_row == 1:
                logger.warning(
                    "encoder graphs failed for a batch, which runs eager (after %d in a row all do): %s",
                    FAULTS, _words(error),
                )  # fmt: skip
                logger.debug("where it happened", exc_info=error)
            if self._faults_in_a_row >= FAULTS:
                self._give_up(f"{FAULTS} batches in a row failed", error, logging.INFO)
            return None
        self._faults_in_a_row = 0
        if not idle.is_seen():
            self._capture_now_and_then()
        if (self._writes or self._exports) and self._writer is None:
            self._save_soon()
        now = time.monotonic()
        if now - self._logged > LOG_EVERY:
            self._logged = now
            self._log_stats()
        return outputs

    def _runs_eager(self, mm_kwargs: dict[str, Any]) -> bool:
        """Whether the model's own code serves a batch, as vLLM is about to let it."""
        try:
            with torch.inference_mode():
                self.model.embed_multimodal(**mm_kwargs)
        except Exception as error:
            logger.debug("eager fails, too", exc_info=error)
            return False
        return True

    def save(self) -> None:
        """Write the trace and the counters to the files that the settings name, and the counters to vLLM's metrics."""
        self._writer = None  # later images need another writing
        self._export()
        if not self._writes:
            return
        try:
            self.save_trace()
            if self.settings.stats:
                write_whole(Path(self.settings.stats), json.dumps(self.get_cumulative_stats(), indent=1) + "\n")
        except Exception as error:
            self.keep_files()
            logger.warning("the trace or the counters cannot be written, and no more are: %s", _words(error))

    def _export(self) -> None:
        """Bring vLLM's metrics up to date."""
        if not self._exports:
            return
        try:
            model = self.vllm_config.model_config.served_model_name
            labels = {"model_name": str(model), "engine": str(self._engine), "rank": str(self._rank)}
            if self.is_of_sound:
                labels["encoder"] = SOUND
            metrics.write(self._core.stats if self._core else Stats(), self.fault is not None, labels)
        except Exception as error:
            self._exports = False
            logger.warning("the counters of encoder graphs are not among vLLM's metrics: %s", _words(error))

    def _save_soon(self) -> None:
        """Write the files once, later, in a thread of its own, or at the end of the process if that comes first.

        No request waits for the disk. The files get the last images too: vLLM may kill a process before it can write at
        its end. A manager without images, such as the one that V1 profiles with, writes nothing.
        """
        if self._at_end is None:
            # Not `atexit`: a process that vLLM forked ends without it. The thread keeps a manager that has something to
            # write; the end of the process must not keep it, nor its model.
            self._at_end = Finalize(None, _save, (weakref.ref(self),), exitpriority=0)
        self._writer = threading.Timer(SAVE_AFTER, self.save)
        self._writer.daemon = True
        self._writer.start()

    def keep_files(self) -> None:
        """Write nothing more, not even at the end of the process."""
        if self._writer is not None:
            self._writer.cancel()
        if self._at_end is not None:
            self._at_end.cancel()
        self._writer = self._at_end = None
        self._writes = False

    def _agree(self) -> None:
        """Keep the graphs that every rank has: a rank that ran eager would wait in other collectives than the rest."""
        mine = None if self.fault is not None else frozenset(self.core.graphs)
        everybodys = self._exchange(mine)
        if self.fault is None and None in everybodys:
            self._give_up("they cannot be captured", RuntimeError("another rank has none"))
        if self.fault is not None:
            self.clear()
            return
        common = frozenset.intersection(*everybodys)
        for key in self.core.graphs.keys() - common:
            self.core.drop(key, "another rank could not capture it")
        if mine != common:
            self._publish_graphs()

    def _exchange(self, value: Any) -> list[Any]:
        """The values of all ranks of the tensor-parallel group, in the order of ranks."""
        from vllm.distributed import get_tp_group

        values: list[Any] = [None] * self._ranks
        torch.distributed.all_gather_object(values, value, group=get_tp_group().cpu_group)
        return values

    def _name_files(self) -> None:
        """Each engine and each rank but the first writes files of its own: `sizes.json`, `sizes.dp1.rank1.json`."""
        # The rank of a dense model's engine is reset to 0, its index is not.
        self._engine = getattr(self.vllm_config.parallel_config, "data_parallel_index", 0)
        if self._ranks > 1:
            from vllm.distributed import get_tensor_model_parallel_rank

            self._rank = get_tensor_model_parallel_rank()
        parts = [f".{name}{number}" for name, number in (("dp", self._engine), ("rank", self._rank)) if number]
        named: dict[str, Any] = {
            name: str(Path(value).with_suffix("".join([*parts, Path(value).suffix])))
            for name in ("record", "stats")
            if (value := getattr(self.settings, name))
        }
        self.settings = replace(self.settings, **named)

    def _log_stats(self) -> None:
        said = words(self.stats)
        if said != self._said:
            logger.info("encoder graphs%s: %s", " of sound" if self.is_of_sound else "", said)
            self._said = said
        if self.stats.reasons["over-budget"] and not self._told_of_large_images:
            self._told_of_large_images = True
            given = self.vllm_config.compilation_config.encoder_cudagraph_token_budgets
            limit = "encoder_cudagraph_token_budgets" if given else "--max-num-batched-tokens or --max-model-len"
            logger.warning(
                "%s of more than %d tokens have no graph and run eager: %s allows no larger ones",
                "sounds" if self.is_of_sound else "images", max(self.token_budgets), limit,
            )  # fmt: skip

    def _give_up(self, what: str, error: Exception, level: int = logging.WARNING) -> None:
        self.fault = f"{what}: {_words(error)}"
        self.untune("there are no encoder graphs")
        self._export()
        items = "sound" if self.is_of_sound else "image"
        logger.log(level, "there are no encoder graphs, and every %s runs eager; %s", items, self.fault)
        logger.debug("where it happened", exc_info=error)


def _save(manager: weakref.ref[ServedManager]) -> None:
    alive = manager()
    if alive is not None and alive._writer is not None:
        alive.save()


def words(stats: Stats) -> str:
    """The counters in one line: items by graph and eager, with reasons, and how much of the computing is padding."""
    computed = sum(key.budget_tokens for key in stats.keys.values())
    asked = sum(key.tokens for key in stats.keys.values())
    waste = f", {1 - asked / computed:.1%} padding" if computed else ""
    reasons = ", ".join(f"{reason} {count}" for reason, count in stats.reasons.most_common())
    return f"{stats.hits} items replayed{waste}, {stats.misses} eager" + (f" ({reasons})" if reasons else "")


def _words(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
