"""Tells managers that their model has new weights.

Plans keep metadata, and metadata may hold weights: positions that a tower interpolates from a learned table. vLLM has
no event for new weights. All ways to change them in a running worker (0.20 to 0.33) lead through one of these methods:

* Loaders, and engines that transfer weights from a trainer, call the model's `load_weights`.
* A transfer into the parameters' own memory ends in the worker's `update_weights` or `finish_weight_update`.
* A reload in the kernels' own format copies in the runner's `reload_weights`.
* A user's own code that changes weights must call the runner's `reset_encoder_cache`: embeddings of old weights
  would stay in vLLM's own cache.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Protocol

_METHODS = {
    "vllm.v1.worker.gpu_worker": ("Worker", ("update_weights", "finish_weight_update")),
    "vllm.v1.worker.gpu_model_runner": ("GPUModelRunner", ("reload_weights", "reset_encoder_cache")),
    "vllm.v1.worker.gpu.model_runner": ("GPUModelRunner", ("reload_weights", "reset_encoder_cache")),
}


class KeepsMetadata(Protocol):
    """A manager that computes metadata once for each size."""

    def forget_metadata(self) -> None:
        """Compute all metadata again from now on."""


_managers: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(manager: KeepsMetadata, model: Any) -> None:
    """Let a manager forget its metadata whenever weights in this process may have changed."""
    _managers.add(manager)
    _tell_after(type(model), "load_weights")
    for module, (owner, names) in _METHODS.items():
        for name in names:
            _tell_after(getattr(sys.modules.get(module), owner, None), name)


def _tell_after(owner: Any, name: str) -> None:
    """Call managers after a method of a class, however the method ends: it may have loaded some weights."""
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "tells_of_weights"):
        return

    @functools.wraps(original)
    def changes_weights(*arguments: Any, **named: Any) -> Any:
        try:
            return original(*arguments, **named)
        finally:
            for manager in list(_managers):
                manager.forget_metadata()

    changes_weights.tells_of_weights = True  # type: ignore[attr-defined]
    setattr(owner, name, changes_weights)
