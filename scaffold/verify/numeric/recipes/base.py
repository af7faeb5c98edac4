"""What every recipe provides, and the helpers that recipes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

#: One item's size, in the model's own terms: a tile count, or a grid `(t, h, w)` in patches.
Item = Any


@dataclass(frozen=True, slots=True)
class Case:
    """Items of one modality that are encoded by one call.

    An item that fits the largest budget must be replayed and any other goes eager; `may_go_eager` lifts the first half
    where a limit other than the budget is exceeded on purpose.
    """

    name: str
    modality: str
    items: tuple[Item, ...]
    may_go_eager: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """One manager: its budgets in output tokens, its limits, and the calls it serves in order.

    `max_frames` is None for the model's own default (items times the frames of a video) and 0 for "no video".
    """

    name: str
    budgets: tuple[int, ...]
    max_items: int
    max_frames: int | None
    cases: tuple[Case, ...]


class Recipe(ABC):
    """The knowledge about one model. Sizes are tiny; the arithmetic is the release's."""

    #: Module below `vllm.model_executor.models` and class in it.
    module: str
    host_class: str
    modalities: tuple[str, ...] = ("image", "video")
    #: Hidden size of the embeddings that the language model receives.
    hidden_size = 32
    #: The model's own minimum token budget with the recipe's sizes.
    min_budget: int

    def load_class(self) -> type:
        """The release's host class."""
        cls = getattr(import_module(f"vllm.model_executor.models.{self.module}"), self.host_class)
        assert isinstance(cls, type)
        return cls

    @abstractmethod
    def build(self) -> nn.Module:
        """The host with its real tower and projector, without a language model and without real weights."""

    @abstractmethod
    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        """Random multi-modal inputs of these sizes, as the release's runner would hand them over."""

    @abstractmethod
    def tokens(self, modality: str, item: Item) -> int:
        """Output tokens of one item."""

    @abstractmethod
    def sessions(self) -> tuple[Session, ...]:
        """The managers and calls that make up the check. Cases of other modalities than asked are dropped."""

    @abstractmethod
    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        """Precomputed embeddings instead of pixels; None where the model takes none."""

    def on_device(self, key: str) -> bool:
        """Whether the runner puts this input on the GPU. Sizes stay on the host."""
        return "pixel" in key or "embeds" in key

    def frames(self, modality: str, item: Item) -> int:
        """Frames of one item (1 for an image)."""
        return 1


def blank_host(cls: type) -> Any:
    """An instance whose `__init__` did not run: a language model and a tokenizer are not needed."""
    host: Any = object.__new__(cls)
    nn.Module.__init__(host)
    return host


def multimodal_config(modalities: Sequence[str] = ("image", "video")) -> SimpleNamespace:
    """The fields of vLLM's `MultiModalConfig` that hosts and managers read."""
    return SimpleNamespace(
        get_limit_per_prompt=lambda modality: 8 if modality in modalities else 0,
        mm_encoder_tp_mode="weights",
        mm_encoder_attn_dtype=None,
        mm_encoder_attn_backend=None,
        mm_encoder_only=False,
        video_pruning_rate=None,
        is_multimodal_pruning_enabled=lambda: False,
        mm_processor_kwargs=None,
        mm_device_do_normalize=False,
    )


def randomise(host: nn.Module, seed: int) -> None:
    """Give every parameter values of a useful size: matrices keep the variance, biases and norms are not trivial.

    The order of parameters decides the values, so a changed tree loads the pristine tree's values instead.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in host.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.ndim >= 2 and "embed" not in name.rsplit(".", 2)[-1]:
                fan_in = parameter[0].numel()
                noise = noise * (1.5 / fan_in**0.5)
            elif "norm" in name and name.endswith("weight"):
                noise = 1.0 + 0.2 * noise
            else:
                noise = 0.5 * noise
            parameter.copy_(noise.to(parameter.dtype))


def load_recipe(name: str) -> Recipe:
    """The recipe of a model, by the name of vLLM's module."""
    recipe = import_module(f"scaffold.verify.numeric.recipes.{name}").RECIPE
    assert isinstance(recipe, Recipe)
    return recipe
