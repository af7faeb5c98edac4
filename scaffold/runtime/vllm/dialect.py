"""Reads which generation of the encoder-graph protocol a vLLM speaks from its own data classes.

It reads no version numbers: the fields of a fork or a nightly tell what it expects. The generations, by first release:

* 0.20: three size getters, pixels outside the buffers.
* 0.22: item specs, a post-processing hook.
* 0.23: one dictionary of values, padding hooks.
* 0.24: two fixed paths.
* 0.27: named paths; the hook post-processes eager results too.
* 0.30: capture axes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType


@dataclass(frozen=True, slots=True)
class ManagerDialect:
    """The differences between generations, one fact per field."""

    #: `get_encoder_cudagraph_item_specs` instead of three getters (0.22).
    item_specs: bool
    #: `postprocess_encoder_output` exists (0.22).
    post_hook: bool
    #: Capture, replay and forward take one dictionary of values, pixels included (0.23).
    values: bool
    #: `padding_logics` in the configuration (0.23).
    padding_hooks: bool
    #: `path` is an argument (0.24).
    path_argument: bool
    #: `enable_dual_path_graph`: the paths are "global" and "local" (0.24 to 0.26).
    dual_path: bool
    #: `paths` in the configuration; hooks take a dictionary of outputs, and eager results go through them too (0.27).
    named_paths: bool
    #: `capture_axes` (0.30).
    axes: bool
    #: The frame limit comes from the configuration (0.22), not from a method of the model.
    frames_in_config: bool
    #: Budgets are validated (0.22).
    validates_budgets: bool

    @property
    def generation(self) -> str:
        """The first release of this generation."""
        if self.axes:
            return "0.30"
        if self.named_paths:
            return "0.27"
        if self.path_argument:
            return "0.24"
        if self.values:
            return "0.23"
        return "0.22" if self.item_specs else "0.20"


def read_dialect(defs: ModuleType) -> ManagerDialect:
    """The dialect of a `vllm.v1.worker.encoder_cudagraph_defs` module."""
    config = {field.name for field in dataclasses.fields(defs.EncoderCudaGraphConfig)}
    capture = {field.name for field in dataclasses.fields(defs.EncoderCudaGraphCaptureInputs)}
    item_specs = hasattr(defs, "EncoderItemSpec")
    named_paths = "paths" in config
    dual_path = "enable_dual_path_graph" in config
    return ManagerDialect(
        item_specs=item_specs,
        post_hook=item_specs,
        values="values" in capture,
        padding_hooks="padding_logics" in config,
        path_argument=named_paths or dual_path,
        dual_path=dual_path,
        named_paths=named_paths,
        axes="capture_axes" in config,
        frames_in_config="max_frames_per_video" in config,
        validates_budgets=item_specs,
    )


@lru_cache(maxsize=1)
def installed_dialect() -> ManagerDialect:
    """The dialect of the installed vLLM."""
    from vllm.v1.worker import encoder_cudagraph_defs

    return read_dialect(encoder_cudagraph_defs)
