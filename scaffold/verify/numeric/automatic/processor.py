"""The model's own processor, without a hub: the classes that the release names, made from the configuration.

A checkpoint says which processor it has and with which sizes. Without one, the class is the one that the model asks
for, that transformers lists for the model type, or that the model's module imports; its arguments are its defaults, and
its geometry follows the configuration.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, get_origin

from scaffold.verify.numeric.automatic.configuration import MODELS, PROCESSOR, USUAL, Configuration, lineage
from scaffold.verify.numeric.automatic.guess import guessed_processor
from scaffold.verify.numeric.automatic.refusal import NoRecipe
from scaffold.verify.numeric.cpu_imports import of_tree

_SUFFIXES = {
    "image_processor": "ImageProcessor",
    "video_processor": "VideoProcessor",
    "feature_extractor": "FeatureExtractor",
}


def make_tokenizer() -> Any:
    """Bytes as tokens, and any special token on request: no download, any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()

    class Bytes(PreTrainedTokenizerFast):  # type: ignore[misc]
        def convert_tokens_to_ids(self, tokens: Any) -> Any:
            known = self.get_vocab()
            for token in [tokens] if isinstance(tokens, str) else tokens or []:
                if isinstance(token, str) and token not in known:
                    self.add_tokens([token], special_tokens=True)
            return super().convert_tokens_to_ids(tokens)

        def repair(self, error: BaseException) -> bool:
            """Add the special token that an `AttributeError` missed, such as `image_token` or `image_token_id`."""
            name = getattr(error, "name", None) or ""
            found = re.fullmatch(r"(\w+?)(_token)?(_id)?", name)
            if getattr(error, "obj", None) is not self or found is None or not (found[2] or found[3]):
                return False
            self.teach(name, f"<{found[1]}>", bool(found[3]))
            return True

        def teach(self, name: str, token: str, number: bool = False) -> None:
            """Know a special token, or its number, by this attribute."""
            known = self.convert_tokens_to_ids(token)
            object.__setattr__(self, name, known if number else token)

    made = Bytes(tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    tokens = ("<image>", "<video>", "<|image_pad|>", "<|video_pad|>", "<IMG_CONTEXT>", "<img>", "</img>")
    made.add_tokens([*tokens, "<|vision_start|>", "<|vision_end|>"], special_tokens=True)
    made.max_token_id = 10**6
    made.max_chars_per_token = 16
    made.chat_template = None
    return made


class ProcessorMaker:
    """Makes processors and their parts for one model, in the place of vLLM's loaders."""

    #: Whether one of them took the place of the loaders, for the rest of the process.
    installed: ClassVar[bool] = False

    def __init__(self, host: Any, configuration: Configuration, tokenizer: Any) -> None:
        self._host = host
        self._configuration = configuration
        self._tokenizer = tokenizer
        self._made: dict[tuple[Any, str], Any] = {}
        #: Names of the classes that were made, for readers.
        self.names: list[str] = []
        #: Attributes that were missed of parts: a checkpoint's file may say more than the class of a part has.
        self._said: dict[str, Any] = {}

    def repair(self, error: BaseException) -> bool:
        """Add what an `AttributeError` missed of a part. False where nothing says its value."""
        from transformers.image_processing_base import ImageProcessingMixin

        name = getattr(error, "name", None) or ""
        if getattr(error, "obj", None) is self._tokenizer and name.endswith("_tag"):
            return self._teach_tag(name)
        if not isinstance(getattr(error, "obj", None), ImageProcessingMixin) or name in self._said:
            return False
        value = self._side(name) or self._configuration.find(name) or USUAL.get(name)
        if value is not None:
            self._said[name] = value
            self._configuration.guessed.append(f"{PROCESSOR}'s {name}")
            self._made.clear()
        return value is not None

    def install(self) -> None:
        """Take the place of the loaders of `vllm.transformers_utils.processor`, wherever a module imported them to."""
        from vllm.transformers_utils import processor as loaders

        ProcessorMaker.installed = True
        stand_ins: dict[str, Callable[..., Any]] = dict.fromkeys(
            ("get_processor", "cached_get_processor", "cached_get_processor_without_dynamic_kwargs"),
            self._get_processor,
        )
        for kind in _SUFFIXES:
            for name in (f"get_{kind}", f"cached_get_{kind}", f"cached_{kind}_from_config"):
                stand_ins[name] = self._getter(kind)
        originals = {name: getattr(loaders, name, None) for name in stand_ins}
        for module_name, module in list(sys.modules.items()):
            if of_tree(module_name):
                for name, stand_in in stand_ins.items():
                    found = vars(module).get(name)
                    # A loader may be ours already, of an earlier attempt.
                    if found is not None and (found is originals[name] or hasattr(found, "of_the_lab")):
                        setattr(module, name, stand_in)
        self._install_values()

    def _install_values(self) -> None:
        """Where the file of a checkpoint is read, the values of the part that was made stand in for it."""
        from transformers.image_processing_base import ImageProcessingMixin
        from transformers.video_processing_utils import BaseVideoProcessor

        def values(kind: str, cls: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            made = next((part for whole in self._made.values() if (part := getattr(whole, kind, None))), None)
            made = made or self._getter(kind)()
            # A module may name a class that is not the one of the tower.
            usable = isinstance(made, cls) or cls.__name__.startswith(("Base", "Auto", "ImageProcessingMixin"))
            return (made if usable else self._fitted(self._call(cls, {}))).to_dict(), {}

        image = classmethod(lambda cls, *args, **kwargs: values("image_processor", cls))
        video = classmethod(lambda cls, *args, **kwargs: values("video_processor", cls))
        ImageProcessingMixin.get_image_processor_dict = image
        BaseVideoProcessor.get_video_processor_dict = video

    def _get_processor(
        self,
        name: str,
        *args: Any,
        processor_cls: Any = None,
        revision: Any = None,
        trust_remote_code: bool = False,
        **kwargs: Any,
    ) -> Any:
        cls = processor_cls[0] if isinstance(processor_cls, tuple) else processor_cls
        key = cls, repr(sorted(kwargs.items()))
        if key not in self._made:
            self._made[key] = self._make(cls, kwargs)
        return self._made[key]

    _get_processor.of_the_lab = True  # type: ignore[attr-defined]

    def _getter(self, kind: str) -> Callable[..., Any]:
        def get(
            *args: Any,
            processor_cls_overrides: Any = None,
            revision: Any = None,
            trust_remote_code: bool = False,
            **kwargs: Any,
        ) -> Any:
            cls = processor_cls_overrides or self._part_class(kind, None)
            return self._fitted(self._call(cls, kwargs))

        get.of_the_lab = True  # type: ignore[attr-defined]
        return get

    # -- the whole -----------------------------------------------------------------------------------------------------

    def _make(self, cls: Any, given: dict[str, Any]) -> Any:
        from transformers import ProcessorMixin

        if cls in (None, ProcessorMixin):
            cls = self._processor_class()
        if cls is None:
            return self._guessed()
        self._teach_tokens(cls)
        if cls.__name__ not in self.names:
            self.names.append(cls.__name__)
        if not issubclass(cls, ProcessorMixin):
            return self._call(cls, given)
        made = self._call(cls, {**{name: self._part(name, cls) for name in _attributes(cls)}, **given})
        self._number_tokens(made)
        return made

    def _number_tokens(self, processor: Any) -> None:
        """Give the configuration the numbers that special tokens have here; a checkpoint's tokenizer has the others."""
        config = self._configuration.hf_config
        known = self._tokenizer.get_vocab()
        for name, value in list(vars(config).items()):
            kind, found, _ = name.partition("_token_i")
            said = getattr(processor, f"{kind}_token", None)
            token = said or f"<|{kind}|>"
            # Some count the tokens of a sound in a prompt: the tokenizer learns the token then.
            taught = token in known or (said and kind == "audio")
            if found and isinstance(value, int) and isinstance(token, str) and taught:
                setattr(config, name, self._tokenizer.convert_tokens_to_ids(token))

    def _processor_class(self) -> Any:
        import vllm.transformers_utils.processors as own
        from transformers import ProcessorMixin
        from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

        model_type = getattr(self._configuration.hf_config, "model_type", "") or ""
        name = PROCESSOR_MAPPING_NAMES.get(model_type)
        found = _transformers_class(name if isinstance(name, str) or not name else name[0])
        plain = re.sub(r"[^a-z0-9]", "", model_type.lower())
        for candidate in own.__all__ if found is None and plain else ():
            if re.sub(r"[^a-z0-9]", "", candidate.lower().removesuffix("processor")) == plain:
                found = getattr(own, candidate)
        return found or self._imported(
            lambda key, value: issubclass(value, ProcessorMixin) and value is not ProcessorMixin
        )

    def _guessed(self) -> Any:
        """A stand-in for a processor that the checkpoint brings. Raises NoRecipe where the model says too little."""
        made = guessed_processor(self._host, self._tokenizer, self._fitted, self._side)
        if made is None:
            _remote_code("processor", getattr(self._configuration.hf_config, "model_type", "") or "")
        if PROCESSOR not in self._configuration.guessed:
            self._configuration.guessed.append(PROCESSOR)
            self.names.append("a processor guessed from the model's inputs")
        return made

    def _teach_tokens(self, cls: Any) -> None:
        """Add special tokens that a processor asks its tokenizer for and has no default of: a checkpoint's has them."""
        with suppress(OSError, TypeError):
            for name in re.findall(r'getattr\(tokenizer, "(\w+_token)", None\)', inspect.getsource(cls.__init__)):
                self._tokenizer.teach(name, f"<{name.removesuffix('_token')}>")

    def _teach_tag(self, name: str) -> bool:
        """Add a tag around an image to the tokenizer: what stands for an image in a prompt has both, if it has any."""
        kind, _, which = name.removesuffix("_tag").rpartition("_")
        with suppress(Exception):  # of a modality that the model has not
            tags = re.findall(r"<[^<>]+>", self._host.get_placeholder_str(kind, 1))
            self._tokenizer.teach(name, {"start": tags[0], "end": tags[-1]}.get(which, f"<{kind}_{which}>"))
            return True
        return False

    # -- its parts -----------------------------------------------------------------------------------------------------

    def _part(self, name: str, owner: Any) -> Any:
        if name.endswith("tokenizer"):
            return None if name.startswith("audio") else self._tokenizer
        kind = "feature_extractor" if name == "audio_processor" else name
        cls = self._part_class(kind, owner)
        bins = self._configuration.find("num_mel_bins") if kind == "feature_extractor" else None
        given = {"feature_size": bins} if bins and "feature_size" in inspect.signature(cls.__init__).parameters else {}
        return None if cls is None else self._fitted(self._call(cls, given))

    def _part_class(self, kind: str, owner: Any) -> Any:
        suffix = _SUFFIXES.get(kind, "?")
        found = next(filter(None, self._part_candidates(kind, suffix, owner)), None)
        if found is None and kind in ("image_processor", "video_processor"):
            _remote_code(kind.replace("_", " "), getattr(self._configuration.hf_config, "model_type", ""))
        return found

    def _part_candidates(self, kind: str, suffix: str, owner: Any) -> Iterator[Any]:
        def fits(key: str, value: Any) -> bool:
            return key.endswith(suffix) and not key.startswith(("Base", "Auto")) and isinstance(value, type)

        declared = getattr(owner, f"{kind}_class", None)
        for name in [declared] if isinstance(declared, str) else declared or ():
            if name and not name.startswith("Auto"):
                yield _transformers_class(name)
        for _, part in self._configuration.parts():
            model_type = getattr(part, "model_type", None) or ""
            yield _listed(kind, model_type) or _listed(kind, model_type.removesuffix("_vision_model"))
        if owner is not None:
            yield _transformers_class(owner.__name__.removesuffix("Processor") + suffix)
            names = vars(sys.modules[owner.__module__])
            yield next((v for k, v in names.items() if isinstance(v, type) and fits(k, v)), None)
            folder = re.match(r"transformers\.models\.(\w+)\.", owner.__module__)
            yield _listed(kind, folder[1] if folder else None)
        if kind != "feature_extractor":
            yield self._imported(lambda key, value: fits(key, value) and hasattr(value, "preprocess"))

    def _imported(self, wanted: Callable[[str, Any], bool]) -> Any:
        """A class in the namespace of the host's module, of its bases', or of its processing information's."""
        for cls in (*self._host.__mro__, *lineage(self._host)):
            if cls.__module__.startswith(MODELS) and not cls.__module__.endswith(("interfaces", "interfaces_base")):
                for key, value in vars(sys.modules[cls.__module__]).items():
                    if inspect.isclass(value) and not get_origin(value) and wanted(key, value):
                        return value
        return None

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _call(self, cls: Any, given: dict[str, Any]) -> Any:
        """Make an object; an argument that nobody gives comes from the configuration, by its name."""
        parameters = inspect.signature(cls.__init__).parameters
        whole = hasattr(cls, "attributes") or hasattr(cls, "get_attributes")
        known = {*parameters, *(_attributes(cls) if whole else ())}
        # Arguments of calls come here too; `from_pretrained` drops them.
        takes_any = not whole and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        arguments = {name: value for name, value in given.items() if takes_any or name in known}
        for name, parameter in list(parameters.items())[1:]:
            variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if variable or name in arguments or name == "chat_template":
                continue
            required = parameter.default is parameter.empty
            if not required and not whole:
                continue
            value = self._value(name, required)
            if value is not None:
                arguments[name] = value
        return cls(**arguments)

    def _value(self, name: str, required: bool) -> Any:
        if name == "config":
            return self._configuration.hf_config
        if name == "tokenizer":
            return self._tokenizer
        value = self._configuration.find({"merge_size": "spatial_merge_size"}.get(name, name))
        if value is None and name in ("num_image_tokens", "num_image_token", "image_seq_length", "image_seq_len"):
            value = self._patches()
        if value is None and required and name.endswith("_token"):
            value = f"<{name.removesuffix('_token')}>"
        return value

    def _patches(self) -> int | None:
        """Patches of one image of the tower's own size."""
        image, patch = self._side("image_size"), self._side("patch_size")
        return (image // patch) ** 2 if image and patch else None

    def _side(self, name: str) -> int | None:
        value = getattr(self._configuration.vision(), name, None)
        value = value[0] if isinstance(value, (list, tuple)) and value else value
        return value if isinstance(value, int) else None

    def _fitted(self, part: Any) -> Any:
        """A part of a processor whose geometry is the tower's."""
        for name, value in self._said.items():
            setattr(part, name, value)
        for name, source in (
            ("patch_size", "patch_size"),
            ("merge_size", "merge_kernel_size"),
            ("merge_size", "spatial_merge_size"),
            ("temporal_patch_size", "temporal_patch_size"),
        ):
            side = self._side(source)
            if isinstance(getattr(part, name, None), int) and side:
                setattr(part, name, side)
        image, size, crop = self._side("image_size"), _sides(part, "size"), _sides(part, "crop_size")
        longest = _sides(part, "max_image_size")
        if image and set(size) == {"height", "width"}:
            _resize(part, "size", height=image, width=image)
            if crop:
                _resize(part, "crop_size", height=image, width=image)
        elif image and crop and getattr(part, "do_center_crop", None):
            _resize(part, "crop_size", height=image, width=image)
            _resize(part, "size", shortest_edge=image)
        if image and set(longest) == {"longest_edge"}:
            _resize(part, "max_image_size", longest_edge=image)
            if set(size) == {"longest_edge"}:
                _resize(part, "size", longest_edge=4 * image)
        # The model computes the number of tiles from its own list.
        pinpoints = self._configuration.find("image_grid_pinpoints")
        if pinpoints and getattr(part, "image_grid_pinpoints", None):
            part.image_grid_pinpoints = pinpoints
        if getattr(part, "image_seq_length", 0) is None:
            part.image_seq_length = self._configuration.find("image_seq_length") or self._patches() or 256
        return part


def _remote_code(what: str, model_type: str) -> Any:
    raise NoRecipe(
        f"no {what} class is known for model type {model_type!r}: the checkpoint brings it as remote code",
        "give the checkpoint's folder without its weights: --config FOLDER --trust-remote-code",
    )


def _attributes(cls: Any) -> Any:
    """Names of a processor's parts."""
    return cls.get_attributes() if hasattr(cls, "get_attributes") else cls.attributes


def _transformers_class(name: str | None) -> Any:
    import transformers

    return getattr(transformers, name, None) if name else None


def _listed(kind: str, model_type: str | None) -> Any:
    """The class that transformers lists for a kind of part and a model type."""
    from transformers.models.auto import feature_extraction_auto, image_processing_auto, video_processing_auto

    table = {
        "image_processor": image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES,
        "video_processor": video_processing_auto.VIDEO_PROCESSOR_MAPPING_NAMES,
        "feature_extractor": feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES,
    }.get(kind, {})
    name = table.get(model_type)
    if isinstance(name, dict):
        name = name.get("torchvision") or next(iter(name.values()))
    if isinstance(name, (tuple, list)):
        name = next((entry for entry in reversed(name) if entry), None)
    return _transformers_class(name)


def _sides(part: Any, name: str) -> dict[str, int]:
    size = getattr(part, name, None)
    keys = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
    values = {key: size.get(key) if isinstance(size, dict) else getattr(size, key, None) for key in keys}
    return {key: value for key, value in values.items() if value}


def _resize(part: Any, name: str, **sides: int) -> None:
    old = getattr(part, name)
    setattr(part, name, dict(sides) if isinstance(old, dict) else type(old)(**sides))
