"""The base class of every recipe, and the helpers that recipes share."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import MappingProxyType, SimpleNamespace
from typing import Any, get_origin
from unittest import mock

import torch
from torch import nn

from scaffold.tower import adapt
from scaffold.verify.numeric.automatic.processor import make_tokenizer
from scaffold.verify.numeric.cpu_imports import of_tree
from scaffold.verify.numeric.host import engine_config, prepare_modules
from scaffold.verify.numeric.left import loading

#: Tiny sizes of a tower and of a language model, by the names that most classes of configurations have for them.
TOWER = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 3}
TEXT = {"intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99}

#: One item's size, in the model's own terms: a tile count, or a grid `(t, h, w)` in patches.
Item = Any


@dataclass(frozen=True, slots=True)
class Case:
    """Items of one modality that one call encodes.

    An item that fits the largest budget must be replayed and any other goes eager; `may_go_eager` lifts the first half
    where a limit other than the budget is exceeded on purpose. Cases of one `group` (their name, where there is none)
    are one line of the report; `source` says where the sizes of an edge are from.
    """

    name: str
    modality: str
    items: tuple[Item, ...]
    may_go_eager: bool = False
    group: str = ""
    source: str = ""


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

    #: Module, whole or below `vllm.model_executor.models`, and class in it: a literal, which is read in the source, too
    #: (`recipes.classes_of`).
    module: str
    host_class: str
    #: The class that has the port, where that is a base of what `host_class` makes.
    port_class = ""
    modalities: tuple[str, ...] = ("image", "video")
    #: Hidden size of the embeddings that the language model receives.
    hidden_size = 32
    #: The model's own minimum token budget with the recipe's sizes.
    min_budget: int
    #: Rows of an item's precomputed embeddings, where a model takes those of all items as one tensor.
    embeds_rows = 0
    #: The processing information's answer for the frames of the longest video.
    video_frames = 6
    #: Whether the recipe finds things out while it builds the pristine model: `facts`, for `recall` in other processes.
    learns = False
    #: Names of the modules of the host and its bases, and what takes their place while the host is made: tiny towers,
    #: and language models that nothing in the host's code tells.
    stand_ins: Mapping[str, Any] = MappingProxyType({})
    #: Modalities that an automatic recipe makes no inputs of, with the reason; its basis; values that nothing says.
    missing: Mapping[str, str] = MappingProxyType({})
    #: Modalities of which the model takes no precomputed embeddings, with the reason.
    no_embeds: Mapping[str, str] = MappingProxyType({})
    basis: Sequence[str] = ()
    guessed: Sequence[str] = ()
    #: Is told what a long build does now.
    tell: Callable[[str], None] = staticmethod(lambda text: None)

    def facts(self) -> dict[str, Any]:
        """The findings of `build` about the pristine model, as plain values."""
        return {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Take the facts of another process, before `build`."""
        raise NotImplementedError(f"{type(self).__name__} learns nothing")

    def load_class(self, host: str | None = None) -> type[nn.Module]:
        """The release's host class, or the subclass `host` (`module:class`) of it."""
        own = self.module if of_tree(self.module) else f"vllm.model_executor.models.{self.module}"
        module, _, name = (host or f"{own}:{self.host_class}").partition(":")
        cls: type[nn.Module] = getattr(import_module(module), name)
        return cls

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        """The host, made by its own `__init__` and adapted to a subclass `module:class` if one is given, and the
        configuration it was given.

        Only the language model, the tokenizer and the processor are stand-ins.
        """
        from vllm.config import set_current_vllm_config

        cls = self.load_class()
        config = engine_config(self.model_config(), cls, self.modalities)
        multimodal = config.model_config.multimodal_config
        multimodal.mm_encoder_only = multimodal.enable_mm_embeds = False  # an engine's defaults
        stand_ins = self.stand_ins
        with ExitStack() as replaced, set_current_vllm_config(config):
            for module in {sys.modules[base.__module__] for base in cls.__mro__}:
                for name in stand_ins.keys() & vars(module).keys():
                    replaced.enter_context(mock.patch.object(module, name, stand_ins[name]))
            prepare_modules(cls, config, make_tokenizer())
            with loading() as made:
                host = cls(vllm_config=config, prefix="")
        made.keep(host)
        if host_class is not None:
            self.adapt(host, host_class, config)
        _answer_processing_info(cls, config, self.video_frames)
        return host, config

    def adapt(self, host: nn.Module, host_class: str, config: Any) -> None:
        """Let a host be of an adapter `module:class`, and keep its configuration, as the plugin does."""
        adapt(host, self.load_class(host_class))
        if getattr(host, "model_config", host) is None:
            host.model_config = config.model_config

    @abstractmethod
    def model_config(self) -> Any:
        """The model's configuration, of its real class where there is one."""

    @cached_property
    def hf_config(self) -> Any:
        """`model_config()`, made once: it takes 20 ms, and every call asks it. A host gets one of its own."""
        return self.model_config()

    @abstractmethod
    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        """Random multi-modal inputs of these sizes, as the release's runner would hand them over."""

    @abstractmethod
    def tokens(self, modality: str, item: Item) -> int:
        """Output tokens of one item."""

    @abstractmethod
    def sessions(self) -> tuple[Session, ...]:
        """The managers and calls that make up the check. Cases of other modalities than asked are dropped."""

    def edge_sessions(self) -> tuple[Session, ...]:
        """More of them at the edges of what the release's processor makes (`scaffold.verify.numeric.edges`).

        Called after the host class was loaded.
        """
        return ()

    def frames(self, items: Sequence[Item]) -> int:
        """Frames of these items together, by which a release's own limit may exclude them; 0 if it never does."""
        return 0

    def many_frames(self) -> Case | None:
        """Videos with more frames in one batch than `sessions()[0]` has room for, inside its token budget."""
        return None

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        """Precomputed embeddings instead of pixels; None where the model takes none."""
        if not self.embeds_rows:
            return None
        embeds = torch.randn(len(items), self.embeds_rows, self.hidden_size, generator=generator)
        return {f"{modality}_embeds": embeds}

    def sizes(self, modality: str) -> list[Item]:
        """The different items of the calls of a modality."""
        cases = (case for session in self.sessions() for case in session.cases if case.modality == modality)
        return list(dict.fromkeys(item for case in cases for item in case.items))

    def on_host(self, inputs: Mapping[str, Any]) -> frozenset[str]:
        """Names of the inputs that the runner leaves on the host; it moves all others to the GPU, sizes too.

        The release's own processor says so, with `keep_on_cpu` for a field: of InternVL's numbers of tiles since 0.22,
        of Step3-VL's since 0.28, of ERNIE-4.5-VL's grids since 0.30. Names that it does not know never reach a model.
        """
        fields = self.fields(inputs)
        return frozenset(name for name in inputs if name not in fields or fields[name].field.keep_on_cpu)

    def fields(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The processor's configuration of each input that it knows: how it is cut into items."""
        made = self.load_class()._processor_factory.processor
        processor = object.__new__(get_origin(made) or made)
        processor.info = SimpleNamespace(get_hf_config=lambda: self.hf_config, ctx_video_token="<video>")
        try:
            fields: Mapping[str, Any] = processor._get_mm_fields_config(inputs, {})
        except Exception as error:
            raise RuntimeError(
                f"{type(processor).__name__}._get_mm_fields_config does not say which inputs it keeps on the host "
                f"({type(error).__name__}: {error}): let the recipe's `on_host(inputs)` return their names, "
                "and its `fields(inputs)` those that the processor knows"
            ) from error
        return fields


def _answer_processing_info(cls: Any, config: SimpleNamespace, frames: int) -> None:
    """Let `MULTIMODAL_REGISTRY.get_processing_info` answer without a processor or a tokenizer."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    if not isinstance(cls._processor_factory.info, type):
        return  # A function makes it, and asks for more than there is; no model of this kind asks for frames.
    info: Any = object.__new__(cls._processor_factory.info)
    info.ctx = SimpleNamespace(
        model_config=config.model_config,
        get_hf_config=lambda *args, **kwargs: config.model_config.hf_config,
        get_mm_config=lambda: config.model_config.multimodal_config,
    )
    info.get_num_frames_with_most_features = lambda *args, **kwargs: frames
    MULTIMODAL_REGISTRY.get_processing_info = lambda *args, **kwargs: info


def configure(config: SimpleNamespace, session: Session | None, modalities: Sequence[str], context: int = 4096) -> None:
    """Set budgets and limits for one manager; without a session every limit is left to the manager.

    The host keeps a reference to the same configuration, as it does in an engine.
    """
    config.compilation_config.encoder_cudagraph_token_budgets = list(session.budgets) if session else []
    config.compilation_config.encoder_cudagraph_max_vision_items_per_batch = session.max_items if session else 0
    config.compilation_config.encoder_cudagraph_max_frames_per_batch = session.max_frames if session else None
    config.model_config.max_model_len = config.scheduler_config.max_num_batched_tokens = context
    limits = config.model_config.multimodal_config.limits
    limits.clear()
    no_video = session is not None and session.max_frames == 0
    limits.update({modality: 8 for modality in modalities if not (no_video and modality == "video")})


def stacked(items: Sequence[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
    """As vLLM batches an input: one tensor where all items are of one shape."""
    return torch.stack(list(items)) if len({item.shape for item in items}) == 1 else list(items)


def randomise(host: nn.Module, seed: int = 0) -> None:
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


def process_weights(host: nn.Module) -> None:
    """Do what the loader does after weights are there; it also picks the CPU's matrix product."""
    for module in host.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(module)
