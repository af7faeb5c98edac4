"""The stand-in for language models, and the engine's configuration, that every recipe makes a model with."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, TypeGuard

import torch
from torch import nn

from scaffold.verify.numeric.automatic.configuration import (
    MODELS,
    init_trees,
    lineage,
    method_trees,
)
from scaffold.verify.numeric.automatic.refusal import NoRecipe
from scaffold.verify.numeric.automatic.shrink import LAYERS
from scaffold.verify.numeric.cpu_imports import of_tree
from scaffold.verify.numeric.left import loading

#: Larger hosts take minutes, or more memory than a test machine has.
MOST_PARAMETERS = 400_000_000
SOUND = "audio"
#: vLLM's `mm_encoder_tp_mode` of the hosts that are built.
ENCODER_MODE = ContextVar("ENCODER_MODE", default="weights")


class LanguageModel(nn.Module):  # type: ignore[misc]
    """Stands in for the language model: any attribute is another stand-in, and there are no layers.

    Hosts copy numbers of experts from it, and ask its parameters for a device and its configuration for a dtype.
    """

    num_logical_experts = num_physical_experts = num_local_physical_experts = num_moe_layers = 0
    num_routed_experts = num_shared_experts = num_redundant_experts = num_expert_groups = 0
    moe_layers = expert_weights = ()
    #: Columns of its embeddings.
    width = 96

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        config = _config_among([*args, *kwargs.values()])
        if config is not None:
            object.__setattr__(self, "config", _LanguageConfig(config))
        self.packed_modules_mapping: dict[str, Any] = {}
        self.make_empty_intermediate_tensors = None
        self.logits_processor = SimpleNamespace(scale=1.0)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in ("quant_config", "quant_method", "sampler"):
                raise
            made: Any = {"weight": torch.zeros(1, 1), "dtype": torch.float32}.get(name)
            made = LanguageModel() if made is None else made
            object.__setattr__(self, name, made)
            return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and not args[0].is_floating_point():
            return self.embed_input_ids(args[0])  # its table of tokens
        return self

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Some results begin with the embedding of a token."""
        columns = torch.arange(LanguageModel.width, device=input_ids.device)
        return torch.sin(input_ids[..., None] + columns)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Not even itself: whoever walks through a host's modules would find any attribute here."""
        return iter(())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        yield nn.Parameter(torch.zeros(1), requires_grad=False)


class _LanguageConfig(LanguageModel):
    """The configuration that a language model was made with, or its part for text; a stand-in for what none says."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_given", config)

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given")
        for said in () if name.startswith("_") or name == "dtype" else (given, _text_part(given)):
            if (value := getattr(said, name, None)) is not None:
                return value
        return super().__getattr__(name)


def _config_among(given: Sequence[Any]) -> Any:
    """The configuration among the arguments of a language model, or the one that an engine's configuration holds."""
    from transformers import PretrainedConfig

    for value in (*given, *(getattr(getattr(value, "model_config", None), "hf_config", None) for value in given)):
        if isinstance(value, PretrainedConfig):
            return value
    return None


def engine_config(hf_config: Any, host: type, modalities: Sequence[str]) -> Any:
    """A `VllmConfig` of the release around a small configuration. `recipes.base.configure` sets the limits.

    `modalities` are those that the lab wants.
    """
    from vllm.config import get_current_vllm_config

    config = copy.copy(get_current_vllm_config())
    config.model_config = _model_config(hf_config, host, modalities)
    config.quant_config = None
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}  # layers enter their names, once each
    config.scheduler_config = copy.copy(config.scheduler_config)

    def with_hf_config(self: Any, hf_config: Any, architectures: Any = None) -> Any:
        part = copy.copy(self)
        part.model_config = copy.copy(self.model_config)
        part.model_config.hf_config = hf_config
        return part

    type(config).with_hf_config = with_hf_config
    type(config).use_v2_model_runner = False
    return config


def _model_config(hf_config: Any, host: type, modalities: Sequence[str]) -> Any:
    """A `ModelConfig` without its `__init__`, which looks for a checkpoint: every field at its default."""
    from pydantic.fields import FieldInfo
    from vllm.config import ModelConfig

    made = object.__new__(ModelConfig)
    for field in dataclasses.fields(ModelConfig):
        value: Any = None
        if isinstance(field.default, FieldInfo):
            value = None if field.default.is_required() else field.default.get_default(call_default_factory=True)
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(made, field.name, value)
    text = _text_part(hf_config)
    architecture = host.__name__
    if not getattr(hf_config, "architectures", None):
        hf_config.architectures = [architecture]
    facts = _Facts(
        architecture=architecture,
        architectures=[architecture],
        hidden_size=getattr(text, "hidden_size", 96),
        vocab_size=getattr(text, "vocab_size", 1024),
        model_type=getattr(hf_config, "model_type", ""),
        text_model_type=getattr(text, "model_type", ""),
        total_num_hidden_layers=3,
        total_num_attention_heads=3,
        total_num_kv_heads=3,
        head_size=32,
        is_multimodal_model=True,
        quantization_config=None,
    )
    values: dict[str, Any] = {
        "model": "lab", "tokenizer": "lab", "served_model_name": "lab", "hf_config": hf_config, "hf_text_config": text,
        "dtype": torch.get_default_dtype(), "max_model_len": 32768, "trust_remote_code": False, "seed": 0,
        "revision": None, "hf_image_processor_config": {}, "encoder_config": None, "quantization": None,
        "try_get_generation_config": dict,  # the method: it looks for a checkpoint
        "runner_type": "generate", "convert_type": "none",
        "skip_tokenizer_init": False, "generation_config": "vllm", "model_arch_config": facts,
        "multimodal_config": _multimodal_config(host, modalities), "_architecture": architecture,
        "pooler_config": _pooler_config(host),
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _pooler_config(host: type) -> Any:
    """The configuration that an engine gives every pooling model: the pooling types that its class names."""
    from vllm.config import PoolerConfig
    from vllm.model_executor.models import interfaces_base

    made = PoolerConfig()
    for name, default in (("seq_pooling_type", "LAST"), ("tok_pooling_type", "ALL")):
        asked = getattr(interfaces_base, f"get_default_{name}", lambda host, default=default: default)
        if hasattr(made, name):
            setattr(made, name, asked(host))
    return made


class _Facts(SimpleNamespace):
    """The facts that the engine derives from a configuration; False for any other question."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


def _text_part(hf_config: Any) -> Any:
    try:
        return hf_config.get_text_config()
    except Exception:
        return getattr(hf_config, "text_config", None) or getattr(hf_config, "llm_config", hf_config)


def has_sound_alone(host: type) -> bool:
    """Whether a model's processing information names sound, and no other modality."""
    info = getattr(getattr(host, "_processor_factory", None), "info", None)
    with suppress(OSError, TypeError):
        source = inspect.getsource(getattr(info, "get_supported_mm_limits", None))  # type: ignore[arg-type]
        return set(re.findall(r'"(\w+)":', source)) == {SOUND}
    return False


def towers_of(host: type, modalities: Sequence[str]) -> tuple[str, ...]:
    """The modalities whose towers a host is built with, where the lab wants these."""
    if SOUND in modalities:
        return tuple(modalities)
    return (SOUND,) if has_sound_alone(host) else ("image", "video", "vision_chunk")


def _multimodal_config(host: type, modalities: Sequence[str]) -> Any:
    from vllm.config.multimodal import MultiModalConfig

    made = MultiModalConfig()
    # A host leaves out the towers of others.
    limits = dict.fromkeys(towers_of(host, modalities), 8)
    for name, value in {
        "mm_encoder_only": True,  # what belongs to the language model is built on the meta device and replaced
        "mm_device_do_normalize": False,  # an engine switches it off for classes that do not support it
        "enable_mm_embeds": True,
        "mm_encoder_tp_mode": ENCODER_MODE.get(),
        "limits": limits,
        "get_limit_per_prompt": lambda modality: limits.get(modality, 0),
    }.items():
        object.__setattr__(made, name, value)
    return made


def build_host(cls: Any, config: Any, tokenizer: Any, small: bool = True) -> nn.Module:
    """The host, on torch's default device. Raises what its `__init__` raises before its towers stand.

    A `small` one is a test machine's: a tower that is large whatever the configuration says is cut or refused.
    """
    prepare_modules(cls, config, tokenizer)
    if small:
        _make_timm_shallow()
    torch.manual_seed(0)
    host: nn.Module = cls.__new__(cls)
    if not isinstance(host, cls):
        raise TypeError(f"{cls.__name__} makes an object of another class, {type(host).__name__}")
    with loading() as made:
        try:
            host.__init__(vllm_config=config, prefix="")
        except Exception:
            # Some hosts look into their language model at the end. Their towers exist then.
            if not (getattr(host, "_tower_model_names", None) and getattr(host, "_language_model_names", None)):
                raise
    made.keep(host)
    for name, parameter in list(host.named_parameters()):
        if parameter.device.type == "meta":
            owner, _, leaf = name.rpartition(".")
            setattr(host.get_submodule(owner), leaf, nn.Parameter(torch.empty(0), requires_grad=False))
    size = sum(parameter.numel() for parameter in host.parameters())
    if small and size > MOST_PARAMETERS:
        raise MemoryError(f"{size // 10**6} million parameters whatever the configuration says")
    return host


def prepare_modules(cls: Any, config: Any, tokenizer: Any) -> None:
    """Change the modules of a host and of vLLM, so that it is made with its towers alone."""
    _leave_out_the_language_model(cls, tokenizer)
    LanguageModel.width = config.model_config.model_arch_config.hidden_size
    leave_out_bfloat16(cls)
    _name_remote_towers(cls)
    utils = import_module("vllm.model_executor.models.utils")
    utils.StageMissingLayer.parameters = LanguageModel.parameters  # hosts ask their language model for a device


class _Torch(ModuleType):
    """torch, in which bfloat16 is the type of the lab's weights: float32, on a GPU float16."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.bfloat16 = torch.get_default_dtype()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def leave_out_bfloat16(cls: Any) -> None:
    """Models and processors that round to bfloat16 in between, whatever the weights are, run in no other type.

    Called while the host is built: the default type is then that of its weights.
    """
    for base in (*cls.__mro__, *lineage(cls)):
        names = vars(sys.modules[base.__module__])
        if base.__module__.startswith(MODELS) and names.get("torch") is torch:
            names["torch"] = _Torch()


class _AutoModel:
    """transformers' `AutoModel`, which says what it lacks."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def from_config(self, config: Any, **kwargs: Any) -> Any:
        from transformers import PretrainedConfig

        if type(config) is PretrainedConfig:
            raise NoRecipe(
                f"the tower is remote code of the checkpoint: transformers has no model of type {config.model_type!r}",
                "write a recipe that brings a tower (docs/verify.md), and name it with --recipe",
            )
        return self._original.from_config(config, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _name_remote_towers(cls: type) -> None:
    """A configuration without a class is of a tower that comes with its checkpoint."""
    from transformers import AutoModel

    for base in cls.__mro__:
        names = vars(sys.modules[base.__module__])
        if base.__module__.startswith(MODELS) and names.get("AutoModel") is AutoModel:
            names["AutoModel"] = _AutoModel(AutoModel)


def _make_timm_shallow() -> None:
    """A tower that a model names at timm has hundreds of millions of parameters whatever the configuration says."""
    with suppress(ImportError):
        timm: Any = import_module("timm")
        original = getattr(timm.create_model, "of_timm", timm.create_model)

        def create_model(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.startswith("vit_"):
                kwargs["depth"] = LAYERS
            return original(name, *args, **kwargs)

        create_model.of_timm = original  # type: ignore[attr-defined]
        timm.create_model = create_model


def _leave_out_the_language_model(cls: type, tokenizer: Any) -> None:
    """Replace what hosts call to make a language model, wherever a module imported it to."""
    stand_ins: dict[str, Any] = {
        "init_vllm_registered_model": LanguageModel,
        "initialize_model": LanguageModel,
        "cached_tokenizer_from_config": lambda *args, **kwargs: tokenizer,
        "supports_pp": lambda model: True,
    }
    for name, module in list(sys.modules.items()):
        if of_tree(name) and module is not None:  # None: one that cannot be found
            for key in stand_ins.keys() & vars(module).keys():
                setattr(module, key, stand_ins[key])
    trees = list(init_trees(cls))
    named = [(name, names) for tree, names in trees for name in _language_classes(tree)]
    called = {node.func.attr for tree, _ in trees for node in ast.walk(tree) if _is_own_call(node)}
    if not named:  # what `__init__` leaves to a method of its own
        named = [(name, names) for tree, names in method_trees(cls, called) for name in _of_text_config(tree)]
    for name, names in named:
        if isinstance(names.get(name), type) and issubclass(names[name], nn.Module):
            names[name] = LanguageModel


def _is_own_call(node: ast.AST) -> TypeGuard[Any]:
    """Whether a node is a call `self.method(...)`."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self"
    )


def _of_text_config(tree: ast.AST) -> Iterator[str]:
    """Classes that are made with the language model's configuration as a whole, and with no other one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = [ast.unparse(value) for value in (*node.args, *(keyword.value for keyword in node.keywords))]
            if [text.rpartition(".")[2] for text in given if text.endswith("config")][:1] == ["text_config"]:
                yield node.func.id


def _language_classes(tree: ast.AST) -> Iterator[str]:
    """Classes that an `__init__` calls inside `with self._mark_language_model(...)`, or assigns as language model."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            if any("_mark_language_model" in ast.unparse(item.context_expr) for item in node.items):
                calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
                yield from (call.func.id for call in calls if isinstance(call.func, ast.Name))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            targets = {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
            if targets & {"language_model", "llm", "lm_head", "text_model"} and isinstance(node.value.func, ast.Name):
                yield node.value.func.id
