"""A model's real vision classes at real sizes with random weights, and calls of it: for profiles and benchmarks.

Speed does not depend on the values of weights, so nothing comes from a network. The parts of the automatic recipe
(`scaffold.verify.numeric.automatic`) build the model and its processor, so any model will do that they can build. Its
sizes are those of a checkpoint's `config.json`; with the checkpoint's folder the processor is its own, too. Without
either they are those of a known checkpoint (`sizes/`), or the defaults of the configuration's class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from scaffold.measure import Items
from scaffold.verify.numeric.automatic import inputs as media
from scaffold.verify.numeric.automatic.configuration import (
    Attempt,
    ConfigurationSource,
    find_configuration,
    repaired,
)
from scaffold.verify.numeric.automatic.inputs import Size
from scaffold.verify.numeric.automatic.recipe import AutomaticRecipe
from scaffold.verify.numeric.automatic.refusal import NoRecipe
from scaffold.verify.numeric.automatic.shrink import is_size
from scaffold.verify.numeric.automatic.survey import Failure, Model, make_model
from scaffold.verify.numeric.recipes.base import Session, configure, process_weights
from scaffold.verify.numeric.reports import Automatic

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
CONTEXT = 8192
MAX_ITEMS = 8
#: Known checkpoints' values of a `config.json`, by the name of the descriptor.
KNOWN = Path(__file__).with_name("sizes")


class NoSubject(ValueError):
    """The model cannot be built at real sizes: why, and a way out."""

    def __init__(self, message: str, help_text: str) -> None:
        super().__init__(message)
        self.help = help_text


class Subject:
    """One model: how to build it, and its calls."""

    def __init__(
        self,
        name: str,
        module: str,
        class_name: str,
        modalities: Sequence[str],
        configuration: Path | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.name = name
        known = KNOWN / f"{name}.json"
        file = configuration or (known if known.is_file() else None)
        self._settings = Automatic(
            module,
            class_name,
            config=str(file or ""),
            trust_remote_code=trust_remote_code,
            modalities=tuple(modalities),
        )
        #: The modality of items without frames.
        self._modality = next((modality for modality in modalities if modality != "video"), "image")
        if self._modality == "audio":
            raise NoSubject("sizes of calls are those of images and videos, and its items are sound", _NO_SOUND)
        self._model: Model | None = None
        #: The source of the sizes, for readers.
        self.sizes = ""

    def build(self, device: torch.device = DEVICE, dtype: torch.dtype = DTYPE, videos: bool = False) -> tuple[Any, Any]:
        """The host with random weights, and its configuration; without `videos` no call may have one.

        Raises `NoSubject`.
        """
        cls = AutomaticRecipe(self._settings).load_class()
        try:
            source = find_configuration(cls, self._settings)
        except NoRecipe as error:
            raise NoSubject(str(error), error.help) from error
        if source.cls is None and source.values is None:
            raise NoSubject("nothing says its sizes: no class of its configuration was found", _GIVE)
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with device:
                model = make_model(cls, cls, source, Attempt(level=None))
        except Failure as failure:
            raise _refusal(failure, source) from failure
        finally:
            torch.set_default_dtype(before)
        guessed = model.configuration.guessed
        if sizes := [name for name in guessed if is_size(name.rpartition(".")[2])]:
            raise NoSubject(f"nothing says {', '.join(sizes)}", _GIVE)
        self._model = model
        self.sizes = model.configuration.source + (f", guessed: {', '.join(guessed)}" if guessed else "")
        model.host = model.host.to(device)
        randomise(model.host, device)
        process_weights(model.host)
        modalities = (self._modality, *(["video"] if videos else ()))
        model.answer_processing_info()
        configure(model.config, Session("", (), MAX_ITEMS, None, ()), modalities, CONTEXT)
        try:
            loud = self._rounding() > _LOUD
        except NoSubject:
            raise
        except Exception as error:  # the defaults of a configuration's class may contradict each other
            message = f"it does not run at the sizes of {self.sizes}: {type(error).__name__}: {str(error)[:300]}"
            raise NoSubject(message, _GIVE) from error
        if loud:
            randomise(model.host, device, norms=0.1)
            process_weights(model.host)
        return model.host, model.config

    def _rounding(self) -> float:
        """The change of the output where each pixel changes by at most half a bfloat16 step, relative to its largest
        value. With norms of 1, the 63 layers of Step3-VL, which add up norms, make half of the output of it.
        """
        assert self._model is not None
        call = self.call([(448, 448) if self._modality in self._model.limits else (448, 448, 4)], 0)
        generator = torch.Generator().manual_seed(1)

        def changed(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                step = torch.rand(value.shape, generator=generator).to(value.device) * 2**-8 - 2**-9
                return (value * (1 + step)).to(value.dtype)
            return type(value)(map(changed, value)) if isinstance(value, (list, tuple)) else value

        with torch.inference_mode():
            (before,) = self._model.host.embed_multimodal(**call)
            (after,) = self._model.host.embed_multimodal(**{name: changed(value) for name, value in call.items()})
        return float((after - before).abs().max() / before.abs().max())

    def call(self, sizes: Items, seed: int) -> dict[str, Any]:
        """Inputs of one call with random images or videos, as the release's runner hands them over.

        Raises `NoSubject` where the processor does not take them.
        """
        assert self._model is not None, "the model was not built yet"
        model = self._model
        modality = "video" if has_videos(sizes) else self._modality
        if modality not in model.limits:
            raise NoSubject(f"its processor takes no {modality}s", _OTHER)
        generator = torch.Generator().manual_seed(seed)
        items = model.fitting(modality, [Size(size[0], size[1], sum(size[2:])) for size in sizes])
        random = [media.random_media(item, generator) for item in items]
        try:
            made = repaired(lambda: media.process_requests(model.processor, modality, items, random), *model.menders)
        except Exception as error:
            message = f"its processor does not take {_listed(sizes)}: {type(error).__name__}: {error}"
            raise NoSubject(message, _OTHER) from error
        batches = media.grouped(made, modality)
        if len(batches) != 1:
            raise NoSubject(f"the runner puts {_listed(sizes)} into {len(batches)} batches", _OTHER)
        return model.placed(batches[0], made)

    def sizes_of(self, tokens: int) -> Items:
        """One square image with about so many output tokens. Tokens grow with the area, or not at all."""
        assert self._model is not None, "the model was not built yet"
        found: dict[int, int] = {}
        side = 8 * _STEP
        for _ in range(3):
            found[side] = found.get(side) or self._tokens(side)
            side = _STEP * min(max(1, round(side * math.sqrt(tokens / found[side]) / _STEP)), _MOST_STEPS)
        best = min(found, key=lambda side: abs(found[side] - tokens))
        return [(best, best)]

    def _tokens(self, side: int) -> int:
        assert self._model is not None
        with torch.inference_mode():
            (result,) = self._model.host.embed_multimodal(**self.call([(side, side)], 0))
        return len(result)


#: Sides are multiples of so many pixels, which is two patches of most models; and at most so many of these.
_STEP, _MOST_STEPS = 28, 160
#: Rounding above this would hide a wrong row.
_LOUD = 0.03
_GIVE = "give the checkpoint's own values with --config config.json"
_NO_SOUND = "measure an engine with and without the port: `vllm bench serve` sends audio"
_OTHER = "measure others with --image WIDTHxHEIGHT or --video WIDTHxHEIGHTxFRAMES"


def _refusal(failure: Failure, source: ConfigurationSource) -> NoSubject:
    cause = failure.cause
    if isinstance(cause, NoRecipe):
        return NoSubject(str(cause), cause.help)
    message = f"no {failure.stage} can be made: {type(cause).__name__}: {str(cause)[:300]}"
    return NoSubject(message, "give the config.json of a checkpoint of this model" if source.values else _GIVE)


def has_videos(sizes: Items) -> bool:
    """Whether the items of a call are videos."""
    return len(sizes[0]) > 2


def _listed(sizes: Items) -> str:
    return ", ".join("x".join(map(str, size)) for size in sizes)


def randomise(host: torch.nn.Module, device: torch.device, norms: float = 1.0) -> None:
    """Weights that keep the size of what goes through them, made on the device."""
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in host.named_parameters():
        if parameter.ndim >= 2:
            scale = 1.0 / max(parameter[0].numel(), 1) ** 0.5
            parameter.data.normal_(0, scale, generator=generator)
        elif "bias" in name:
            parameter.data.normal_(0, 0.02, generator=generator)
        else:
            # Norms (`norm1`, `ln_q`) and layer scales: a zero there would hide every error before it.
            parameter.data.fill_(norms)
