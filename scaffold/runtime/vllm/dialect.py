"""Reads which generation of the encoder-graph protocol a vLLM speaks from its own data classes.

It reads no version numbers: the fields of a fork or a nightly tell what it expects. The generations, by first release:

* 0.23: item specs, one dictionary of values, padding hooks, a post-processing hook.
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

    #: `path` is an argument (0.24).
    path_argument: bool
    #: `enable_dual_path_graph`: the paths are "global" and "local" (0.24 to 0.26).
    dual_path: bool
    #: `paths` in the configuration; hooks take a dictionary of outputs, and eager results go through them too (0.27).
    named_paths: bool
    #: `capture_axes` (0.30).
    axes: bool

    @property
    def generation(self) -> str:
        """The first release of this generation."""
        if self.axes:
            return "0.30"
        if self.named_paths:
            return "0.27"
        return "0.24" if self.path_argument else "0.23"


def read_dialect(defs: ModuleType) -> ManagerDialect:
    """The dialect of a `vllm.v1.worker.encoder_cudagraph_defs` module. Raises NotImplementedError for an older one."""
    config = {field.name for field in dataclasses.fields(defs.EncoderCudaGraphConfig)}
    if "padding_logics" not in config:
        raise NotImplementedError("this manager speaks the protocol of vLLM 0.23 and later")
    named_paths = "paths" in config
    dual_path = "enable_dual_path_graph" in config
    return ManagerDialect(
        path_argument=named_paths or dual_path,
        dual_path=dual_path,
        named_paths=named_paths,
        axes="capture_axes" in config,
    )


@lru_cache(maxsize=1)
def installed_dialect() -> ManagerDialect:
    """The dialect of the installed vLLM."""
    from vllm.v1.worker import encoder_cudagraph_defs

    return read_dialect(encoder_cudagraph_defs)
