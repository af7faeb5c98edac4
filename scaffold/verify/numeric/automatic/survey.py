"""Finds the way to build a model, judges whether its results can tell right from wrong, and measures its items.

A proof against an oracle that ignores its pixels would pass anything. So no recipe is made unless the pristine model's
results are finite and vary, are the same for an item alone and in a batch, differ between items, and change with every
quadrant of the pixels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

import torch

from scaffold.verify.numeric.automatic import inputs
from scaffold.verify.numeric.automatic.arguments import other_arguments
from scaffold.verify.numeric.automatic.configuration import (
    Attempt,
    Configuration,
    ConfigurationSource,
    missing_value,
    repaired,
)
from scaffold.verify.numeric.automatic.inputs import Size
from scaffold.verify.numeric.automatic.processor import ProcessorMaker, make_tokenizer
from scaffold.verify.numeric.automatic.refusal import NoRecipe
from scaffold.verify.numeric.host import build_host, engine_config
from scaffold.verify.numeric.recipes.base import process_weights, randomise

#: Largest difference between an item alone and in a batch, relative to its largest value: the order of additions, in
#: float32 and in half of that.
SAME, SAME_IN_HALF = 1e-4, 0.02
#: Smallest change that a quadrant of pixels must make.
DEPENDS = 1e-3

#: Sizes to try: even and odd sides, squares, wide and tall, from smaller than a patch to several tiles.
_IMAGES = (
    (224, 224), (100, 64), (61, 173), (320, 96), (17, 9), (32, 32), (56, 56), (96, 320), (150, 30), (30, 150),
    (333, 251), (336, 336), (448, 448), (500, 100), (100, 500), (640, 427), (427, 640), (511, 512), (900, 300),
    (300, 900), (896, 896), (1280, 720), (720, 1280), (1500, 250), (250, 1500),
)  # fmt: skip
#: Shown to a processor with other arguments: wide, of a usual shape, and small.
_PROBES = ((900, 300), (640, 427), (100, 64))
_VIDEOS = ((100, 64, 4), (112, 112, 8), (64, 96, 2), (224, 224, 3), (160, 320, 6), (61, 173, 5))
#: Samples at 16 kHz, without a height: from less than a second to several chunks of 30 s.
_AUDIOS = (
    (32_000, 0), (8_000, 0), (20_321, 0), (47_999, 0), (80_000, 0), (160_000, 0), (480_000, 0), (481_000, 0),
    (1_000_000, 0),
)  # fmt: skip
#: Samples of a second.
_SECOND = 16_000
#: The sizes of each modality, and those that are shown to a processor with other arguments; a video's for any other.
_TRIED = {"image": (_IMAGES, _PROBES), "audio": (_AUDIOS, _AUDIOS[:3])}
#: Larger items make a proof take minutes. An item may have several times as many numbers as the smallest one.
_MOST_TOKENS, _MOST_NUMBERS, _MOST_TIMES = 2000, 1_300_000, 6
#: Sizes that are kept of a modality, and arguments of its processor that are tried.
_MOST_SIZES, _MOST_ARGUMENTS = 9, 24


_WRITE = "write a recipe for this model (docs/verify.md), and name it with --recipe"


class NothingEmbedded(NoRecipe):
    """The model returned nothing for inputs, as it does where it finds none that it knows."""


class NoMatrices(NoRecipe):
    """The model returned something else than one matrix for each item."""


@dataclass
class Model:
    """A tiny model with its processor, made in one way."""

    configuration: Configuration
    config: Any
    host: Any
    processor: Any
    limits: dict[str, Any]
    classes: list[str]
    menders: tuple[Any, ...]

    def fitting(self, modality: str, sizes: Sequence[Size]) -> list[Size]:
        """The sizes, each with a request of its own where the model takes one item a request."""
        return [replace(size, own=size.own or self.limits[modality] == 1) for size in sizes]

    def answer_processing_info(self) -> None:
        """Let vLLM's registry answer with this model's, without a checkpoint: ports ask it for frames of videos."""
        from vllm.multimodal import MULTIMODAL_REGISTRY

        info = self.processor.info
        MULTIMODAL_REGISTRY.get_processing_info = lambda *args, **kwargs: info

    def embed(self, items: Sequence[Any], modality: str) -> list[torch.Tensor]:
        """The model's own answer, one tensor per item."""
        found: list[torch.Tensor] = []
        with torch.inference_mode():
            for kwargs in inputs.grouped(items, modality):
                found += list(self.host.embed_multimodal(**self.placed(kwargs, items)))
        if not found:
            raise NothingEmbedded(f"`embed_multimodal` gave no results for {len(items)} items", _WRITE)
        wrong = [value for value in found if not isinstance(value, torch.Tensor) or value.ndim != 2]
        if wrong or len(found) != len(items):
            raise NoMatrices(
                f"`embed_multimodal` gave {len(found)} results for {len(items)} items, {len(wrong)} of them no matrix",
                _WRITE,
            )
        return found

    def placed(self, kwargs: dict[str, Any], items: Sequence[Any]) -> dict[str, Any]:
        """The inputs where the runner puts them: copies, because models may write to them."""
        sample = next(self.host.parameters())
        on_host = inputs.kept_on_host(items)

        def place(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.clone().to(sample.device, sample.dtype if value.is_floating_point() else value.dtype)
            return type(value)(map(place, value)) if isinstance(value, (list, tuple)) else value

        return {key: value if key in on_host else place(value) for key, value in kwargs.items()}


@dataclass(frozen=True)
class Measured:
    """A size and the output tokens of its item."""

    size: Size
    tokens: int


@dataclass(frozen=True)
class Changed:
    """Sizes once more, with one other argument of the processor."""

    arguments: dict[str, Any]
    measured: list[Measured]


@dataclass(frozen=True)
class Ready:
    """How a model takes precomputed embeddings: of items of `equal` sizes alone, `listed` or as one tensor.

    Where the processor has a field for them and nobody found out how, `problem` is the reason.
    """

    equal: bool = False
    listed: bool = False
    problem: str = ""

    def items(
        self, model: Model, modality: str, sizes: Sequence[Size], generator: torch.Generator
    ) -> tuple[list[Any], list[torch.Tensor]]:
        """Items with random embeddings in the place of pixels, and these; none where the processor has no field."""
        from vllm.multimodal.inputs import MultiModalKwargsItems

        name, items, rows = f"{modality}_embeds", [], []
        for size in [sizes[0]] * len(sizes) if self.equal else sizes:
            media = [inputs.random_media(size, generator)]
            (result,) = model.embed(inputs.process(model.processor, modality, media), modality)
            rows.append(torch.randn(*result.shape, generator=generator))
            parsed = model.processor.info.parse_mm_data({modality: media}, validate=False)
            made = dict(inputs.applied(model.processor, parsed, {}))
            made = {key: value for key, value in made.items() if not key.startswith("pixel_values")}
            made[name] = rows[-1:] if self.listed else rows[-1]
            fields = model.processor._get_mm_fields_config(made, {})
            if name not in fields:
                return [], []
            items += MultiModalKwargsItems.from_hf_inputs(made, fields)[modality]
        return items, rows


@dataclass
class Facts:
    """The findings of a survey: enough to build the same model, and to choose calls, without another survey."""

    attempt: int
    measured: dict[str, list[Measured]] = field(default_factory=dict)
    changed: dict[str, Changed] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)
    no_embeds: dict[str, str] = field(default_factory=dict)
    on_host: list[str] = field(default_factory=list)
    basis: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Facts:

        def read(entries: list[dict[str, Any]]) -> list[Measured]:
            return [Measured(Size(**entry["size"]), entry["tokens"]) for entry in entries]

        measured = {modality: read(entries) for modality, entries in data["measured"].items()}
        changed = {
            modality: Changed(entry["arguments"], read(entry["measured"]))
            for modality, entry in data["changed"].items()
        }
        ready = {modality: Ready(**entry) for modality, entry in data["ready"].items()}
        return cls(**{**data, "measured": measured, "changed": changed, "ready": ready})


class Failure(Exception):
    """An attempt failed at this stage; a later stage is the better attempt."""

    STAGES = ("configuration", "model", "processor", "inputs", "oracle")

    def __init__(self, stage: str, cause: Exception) -> None:
        super().__init__(str(cause))
        self.depth = self.STAGES.index(stage)
        self.stage = stage
        self.cause = cause
        #: The configuration in use, where there was one.
        self.configuration: Configuration | None = None


def make_model(
    host: type, cls: type, source: ConfigurationSource, attempt: Attempt, guessed: Sequence[str] = ()
) -> Model:
    """The model in one of the ways of `source`, with random weights still to come. Raises `Failure`.

    `cls` is `host` or a subclass of it. `guessed` is what a survey had to add to the configuration. The model's tensors
    are on torch's default device, its processor's on the host.
    """
    from vllm.config import set_current_vllm_config
    from vllm.multimodal.processing import InputProcessingContext

    stage = "configuration"
    configuration: Configuration | None = None
    try:
        configuration = source.make(attempt)
        configuration.add_guessed(guessed)
        checkpoint = source.checkpoint
        if checkpoint is not None and ProcessorMaker.installed:
            raise NoRecipe("this process makes processors itself", "load that of a checkpoint in another process")
        tokenizer = checkpoint.tokenizer() if checkpoint else make_tokenizer()
        stage = "model"
        names: list[str] = []
        menders: tuple[Any, ...] = (configuration,)
        if checkpoint is None:
            maker = ProcessorMaker(host, configuration, tokenizer)
            maker.install()
            names, menders = maker.names, (configuration, tokenizer, maker)

        def build() -> tuple[Any, Any]:
            config = engine_config(configuration.hf_config, host, source.settings.modalities)
            if checkpoint is not None:
                checkpoint.name_in(config.model_config)
            with set_current_vllm_config(config):
                return config, build_host(cls, config, tokenizer, small=attempt.level is not None)

        config, built = repaired(build, *menders)
        configuration.add_read(host)
        stage = "processor"
        factory = host._processor_factory  # type: ignore[attr-defined]

        def make_processor() -> tuple[Any, dict[str, Any]]:
            info = factory.info(InputProcessingContext(config.model_config, tokenizer))
            if checkpoint is not None:
                names.append(type(checkpoint.loaded("processor", info.get_hf_processor)).__name__)
            limits = dict(info.get_supported_mm_limits())
            return factory.processor(info, factory.dummy_inputs(info)), limits

        with torch.device("cpu"):
            processor, limits = repaired(make_processor, *menders)
    except Exception as error:
        failure = Failure(stage, error)
        failure.configuration = configuration
        raise failure from error
    return Model(
        configuration,
        config,
        built.eval().requires_grad_(False),
        processor,
        limits,
        names,
        menders,
    )


def survey(
    make: Callable[[Attempt], Model], source: ConfigurationSource, tell: Callable[[str], None] = lambda text: None
) -> Facts:
    """The first way that gives a sound oracle. Raises `NoRecipe`. `tell` is told of each way."""
    worst: Failure | None = None
    attempts = source.attempts()
    for number, attempt in enumerate(attempts):
        tell(f"makes a tiny model and its items, way {number + 1} of {len(attempts)}")
        try:
            model = make(attempt)
            try:
                with torch.device("cpu"):
                    return _survey(number, str(attempt), model, source.settings)
            except Failure as failure:
                failure.configuration = model.configuration
                raise
        except Failure as failure:
            # A guess in the place of a class says nothing that a person can mend.
            if worst is None or (failure.depth > worst.depth and not (attempt.empty and source.cls)):
                worst = failure
    assert worst is not None
    raise _no_recipe(worst, source) from worst.cause


def _no_recipe(failure: Failure, source: ConfigurationSource) -> NoRecipe:
    cause: BaseException = failure.cause
    if isinstance(cause, NoRecipe):
        return cause
    deep: BaseException | None = cause
    while deep is not None and not isinstance(deep, ImportError):
        deep = deep.__cause__ or deep.__context__
    if deep is not None:
        named = re.search(r"pip install ([\w-]+)|requires the ([\w-]+) library", str(deep))
        name = named[1] or named[2] if named else deep.name or str(deep)
        return NoRecipe(f"the {failure.stage} needs the package {name}", f"run `pip install {name}`")
    said = cause.__cause__ if cause.__cause__ and str(cause).startswith("Failed to apply") else cause
    what = f"no {failure.stage} could be made: {type(said).__name__}: {str(said)[:300]}"
    if failure.stage == "oracle":
        what = f"the model's results cannot tell right from wrong: {cause}"
    read = failure.configuration and missing_value(failure.configuration, cause)
    if read and failure.configuration:
        known = ", ".join(failure.configuration.compared(read.path.rpartition(".")[2]))
        give = f"give the value{f' (the code knows {known})' if known else ''}, as --set {read.path}=VALUE"
        return NoRecipe(f"{what}; {read}", f"{give} or below `verify.set`, or the checkpoint's with --config")
    if source.values is None:
        where = f"class: {source.how}" if source.cls else "made from guesses"
        give = "give the checkpoint's values with --config config.json, or its folder with --config FOLDER"
        if failure.stage in ("processor", "inputs"):
            give = (
                "give the checkpoint's processor, in its folder without the weights: --config FOLDER, and with remote "
                "code --trust-remote-code"
            )
        return NoRecipe(f"{what} (its configuration, {where})", give)
    return NoRecipe(what, _WRITE)


def _survey(number: int, attempt: str, model: Model, settings: Any) -> Facts:
    from vllm.config import set_current_vllm_config

    facts = Facts(number)
    randomise(model.host, 0)
    process_weights(model.host)
    failures: dict[str, Failure] = {}
    with set_current_vllm_config(model.config):
        for modality in _offered(model, settings.modalities) or _offered(model, ("audio",)):
            try:
                facts.measured[modality] = _measured(model, modality, settings.images, facts)
            except Failure as failure:
                failures[modality] = failure
                facts.missing[modality] = f"{failure.stage}: {type(failure.cause).__name__}: {failure}"
                continue
            changed = _changed(model, modality, facts.measured[modality])
            if changed is not None:
                facts.changed[modality] = changed
            ready = _ready(model, modality, facts.measured[modality], facts)
            if ready is not None:
                facts.ready[modality] = ready
    if not facts.measured:
        raise next(
            iter(failures.values()), Failure("inputs", ValueError("the processor offers none of the modalities"))
        )
    facts.guessed = model.configuration.guessed
    facts.basis = [*_basis(model, facts, attempt), *facts.basis]
    return facts


def _offered(model: Model, modalities: Sequence[str]) -> list[str]:
    return [modality for modality in modalities if modality in model.limits]


def _basis(model: Model, facts: Facts, attempt: str) -> Iterable[str]:
    yield f"{model.configuration.source}{f', {attempt}' if attempt else ''}; {model.configuration.widths()}"
    layers = model.configuration.find("num_hidden_layers") or model.configuration.find("depth")
    sizes = "; ".join(
        f"{len(found)} {modality} size{'s' * (len(found) != 1)}, {found[0].tokens} to {found[-1].tokens} tokens"
        for modality, found in facts.measured.items()
    )
    yield f"{', '.join(model.classes) or 'the processor'}; {layers} layers; {sizes}"
    for modality, reason in facts.missing.items():
        yield f"{modality}s: none could be made ({reason[:200]})"
    for modality in facts.measured:
        again = facts.changed.get(modality)
        yield (
            f"{modality}s once more with {listed(again.arguments)}"
            if again
            else (f"{modality}s: no argument of the processor that was tried changes their shapes")
        )
    yield f"guessed: {', '.join(facts.guessed) if facts.guessed else 'nothing'}"


def _measured(model: Model, modality: str, images: Sequence[Sequence[int]], facts: Facts) -> list[Measured]:
    """The result of `_measure`. Some models take no videos of different lengths in one batch: those get equal ones.

    Others pad a sound below a second, which is one chunk, to a chunk of its batch: those get longer ones.
    """
    asked = images if modality == "image" else ()
    sizes: Sequence[Sequence[int]] = _TRIED[modality][0] if modality in _TRIED else _VIDEOS
    try:
        return _measure(model, modality, (*asked, *sizes), asked, facts)
    except Failure as failure:
        if failure.stage != "oracle" or modality == "image":
            raise
        if modality == "audio":
            fitting = [size for size in sizes if size[0] >= _SECOND]
            what = f"{_SECOND} samples or more"
        else:
            fitting = [[*size[:2], sizes[0][2]] for size in sizes]
            what = f"{sizes[0][2]} frames"
        found = _measure(model, modality, fitting, (), facts)
        facts.basis.append(f"{modality}s of {what} alone: of different lengths, {failure}")
        return found


def _measure(
    model: Model, modality: str, sizes: Sequence[Sequence[int]], images: Sequence[Sequence[int]], facts: Facts
) -> list[Measured]:
    """Sizes of one modality that take different ways, smallest first, after the oracle was judged on them.

    `images` are those of `sizes` that a user asked for.
    """
    generator = torch.Generator().manual_seed(1)
    candidates = [_size(size) for size in sizes]
    found: dict[str, tuple[Size, Any]] = {}
    refused: Exception | None = None
    for size in candidates:
        media = inputs.random_media(size, generator)
        try:
            (item,) = repaired(partial(inputs.process, model.processor, modality, [media]), *model.menders)
        except Exception as error:  # a ratio above the processor's limit, or a processor that does not work
            refused = refused or error
            continue
        if not found:
            _judge(model, modality, [size, *candidates[1:3]])
        found.setdefault(inputs.signature(item), (size, item))
    if not found:
        assert refused is not None
        raise Failure("inputs", refused)
    asked = {_size(size) for size in images}
    cheap = sorted(found.values(), key=lambda entry: inputs.volume(entry[1]))
    most = max(_MOST_NUMBERS, _MOST_TIMES * inputs.volume(cheap[0][1]))
    cheap = [entry for entry in cheap if inputs.volume(entry[1]) <= most or entry[0] in asked]
    facts.on_host = sorted(set(facts.on_host) | inputs.kept_on_host(item for _, item in cheap))
    try:
        measured = []
        for size, item in cheap:
            (result,) = model.embed([item], modality)
            measured.append(Measured(size, len(result)))
    except Exception as error:
        raise Failure("oracle", error) from error
    most = max(_MOST_TOKENS, 2 * min(entry.tokens for entry in measured))
    return _chosen([entry for entry in measured if entry.tokens <= most or entry.size in asked], asked)


def _size(numbers: Sequence[int]) -> Size:
    width, height, frames = (*numbers, 0)[:3]
    return Size(width, height, frames)


def _chosen(measured: list[Measured], asked: set[Size]) -> list[Measured]:
    """At most `_MOST_SIZES`: the extremes, each number of tokens while there is room, then other shapes of one."""
    ordered = sorted(measured, key=lambda entry: entry.tokens)
    distinct = list({entry.tokens: entry for entry in reversed(ordered)}.values())[::-1]
    others = [entry for entry in ordered if entry not in distinct]
    room = max(_MOST_SIZES - min(len(others), 3), 2)
    if len(distinct) > room:
        picked = {round(index * (len(distinct) - 1) / (room - 1)) for index in range(room)}
        distinct = [entry for index, entry in enumerate(distinct) if index in picked or entry.size in asked]
    extra = others[:: max(len(others) // 3, 1)][:3]
    return sorted([*distinct, *extra], key=lambda entry: (entry.tokens, entry.size))


def listed(arguments: Mapping[str, Any]) -> str:
    """Arguments as a call gives them."""
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _changed(model: Model, modality: str, measured: Sequence[Measured]) -> Changed | None:
    """Some sizes with the first other argument that changes the shapes of one, and that the model takes."""
    generator = torch.Generator().manual_seed(4)
    usual = [entry.size for entry in (measured[0], measured[len(measured) // 2])]
    plain = inputs.process_requests(
        model.processor, modality, [replace(size, own=True) for size in usual],
        [inputs.random_media(size, generator) for size in usual],
    )  # fmt: skip
    probes = [replace(_size(size), changed=True) for size in _TRIED.get(modality, ((), _VIDEOS[:3]))[1]]
    media = [inputs.random_media(size, generator) for size in probes]
    with suppress(Exception):  # a processor that does not say what its arguments are, or does not take a size
        before = [inputs.signature(inputs.process(model.processor, modality, [medium])[0]) for medium in media]
        pixels = probes[0].width * probes[0].height
        for arguments in islice(other_arguments(model.processor, modality, pixels), _MOST_ARGUMENTS):
            with suppress(Exception):  # it does not take this value, or the model not what it makes of it
                items = [inputs.process(model.processor, modality, [medium], arguments)[0] for medium in media]
                if before != [inputs.signature(item) for item in items]:
                    found = _affordable(model, modality, probes, items, plain)
                    if found:
                        return Changed(dict(arguments), found)
    return None


def _affordable(
    model: Model, modality: str, sizes: Sequence[Size], items: Sequence[Any], others: Sequence[Any]
) -> list[Measured]:
    """The sizes whose items are no larger than those of other calls, and that share a batch with `others`."""
    most = max(_MOST_NUMBERS, _MOST_TIMES * inputs.volume(others[0]))
    kept = [(size, item) for size, item in zip(sizes, items, strict=True) if inputs.volume(item) <= most]
    batch = [*(item for _, item in kept), *others]
    if not kept or len(inputs.grouped(batch, modality)) != 1:
        return []
    results = model.embed(batch, modality)[: len(kept)]
    if not all(map(_varies, results)):
        return []
    return [Measured(size, len(result)) for (size, _), result in zip(kept, results, strict=True)]


def _varies(result: torch.Tensor) -> bool:
    return bool(result.isfinite().all()) and float(result.std()) >= DEPENDS


def _judge(model: Model, modality: str, sizes: Sequence[Size]) -> None:
    """Raises `Failure` where the model's results could not tell a right port from a wrong one."""
    try:
        _compare(model, modality, sizes)
    except Exception as error:
        raise Failure("oracle", error) from error


def _compare(model: Model, modality: str, sizes: Sequence[Size]) -> None:
    generator = torch.Generator().manual_seed(2)
    sizes = model.fitting(modality, sizes)
    media = [inputs.random_media(size, generator) for size in sizes]
    items = inputs.process_requests(model.processor, modality, sizes, media)
    together = model.embed(items, modality)
    text = model.config.model_config.hf_text_config
    width = getattr(text, "hidden_size", None)
    # Text that is projected, as CLIP's, may have a width of its own: images have that of the projection.
    widths = [one for one in (width, getattr(text, "projection_dim", None)) if one]
    for result in together:
        if width and all(result.shape[-1] % one for one in widths):
            raise ValueError(f"they have {result.shape[-1]} columns, and the language model's embeddings have {width}")
        if not bool(result.isfinite().all()):
            raise ValueError("they are not finite")
        if float(result.std()) < DEPENDS:
            raise ValueError("they are constant")
    for item, result in zip(items, together, strict=True):
        (alone,) = model.embed([item], modality)
        same = SAME if result.dtype is torch.float32 else SAME_IN_HALF
        if alone.shape != result.shape or _difference(alone, result) > same:
            raise ValueError("an item alone has other embeddings than in a batch")
    for left, right in pairwise(together):
        rows = min(len(left), len(right))
        if _difference(left[:rows], right[:rows]) < DEPENDS:
            raise ValueError("different items have the same embeddings")
    medium = media[0]
    (before,) = model.embed(inputs.process(model.processor, modality, [medium]), modality)
    for quadrant in range(4):
        changed = inputs.process(model.processor, modality, [inputs.negative(medium, quadrant)])
        (after,) = model.embed(changed, modality)
        if after.shape == before.shape and _difference(before, after) < DEPENDS:
            raise ValueError(f"they do not depend on quadrant {quadrant + 1} of the pixels")


def _difference(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().max() / left.abs().max().clamp(min=1e-9))


def _ready(model: Model, modality: str, measured: Sequence[Measured], facts: Facts) -> Ready | None:
    """How the model takes precomputed embeddings of several items; None, with the reason in `facts`, if it takes none.

    Its processor has no field for them, the model says so itself, or it raises for them in every way: such a model has
    no result to compare with. Whatever else fails is a problem.
    """
    name, generator = f"{modality}_embeds", torch.Generator().manual_seed(3)
    sizes = [entry.size for entry in measured]
    mixed = [sizes[len(sizes) // 2], sizes[0], sizes[-1], sizes[len(sizes) // 3]]
    refused, raised, problem, mixed_up = "", "", "", ""
    answered = False
    projected: Ready | None = None
    for way in (Ready(), Ready(listed=True), Ready(equal=True), Ready(equal=True, listed=True)):
        items: list[Any] = []
        try:
            items, rows = way.items(model, modality, mixed, generator)
            if not items:
                facts.no_embeds[modality] = f"the processor has no field `{name}`"
                return None
            got = model.embed(items, modality)
            answered = True
            one_batch = len(inputs.grouped(items, modality)) == 1
            given = [row.to(one.device, one.dtype) for row, one in zip(rows, got, strict=False)]
            if one_batch and len(got) == len(rows) and all(map(torch.equal, got, given)):
                if way.equal and mixed_up:
                    facts.basis.append(f"precomputed embeddings of {modality}s of one size: of several, {mixed_up}")
                return way
            if one_batch and [one.shape for one in got] == [one.shape for one in rows]:
                others, _ = way.items(model, modality, mixed, generator)
                if not any(map(torch.equal, got, model.embed(others, modality))) and all(map(_varies, got)):
                    projected = projected or way
            problem = "it does not give them back as they are, in one batch"
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:150]}"
            if items and (_refuses(error) or _mixes_up(model, modality, items, error)):
                refused = said
            problem = said if items or not problem else problem
            raised = said if items else raised
            mixed_up = mixed_up if way.equal or not items else said
    if projected is not None:  # a model may project what it is given: its own result is the oracle
        return projected
    if refused:
        facts.no_embeds[modality] = f"the model refuses them ({refused})"
        return None
    if raised and not answered:
        facts.no_embeds[modality] = f"the pristine model raises for them ({raised})"
        return None
    return Ready(problem=problem)


def _mixes_up(model: Model, modality: str, items: Sequence[Any], error: Exception) -> bool:
    """Whether a model gives the rows of precomputed embeddings in the place of items, for a single item, too.

    Such a model cannot be served with them, so nothing tells what a port has to return.
    """
    if isinstance(error, NoMatrices):
        try:
            model.embed(items[:1], modality)
        except NoMatrices:
            return True
    return False


def _refuses(error: Exception) -> bool:
    """Whether a model says that it takes no precomputed embeddings: it asks for pixels, asserts, or returns nothing."""
    said = "Required field" in str(error) or "not supported" in str(error)
    return said or isinstance(error, (AssertionError, NotImplementedError, NothingEmbedded))
