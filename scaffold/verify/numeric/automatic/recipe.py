"""The automatic recipe behind the interface of all recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.automatic import inputs
from scaffold.verify.numeric.automatic.configuration import find_configuration, repaired
from scaffold.verify.numeric.automatic.inputs import Size
from scaffold.verify.numeric.automatic.refusal import NoRecipe
from scaffold.verify.numeric.automatic.survey import (
    Changed,
    Facts,
    Measured,
    Model,
    listed,
    make_model,
    survey,
)
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session
from scaffold.verify.numeric.recipes.calls import in_turn

#: A graph of the largest budget holds this many of the smallest item, in tokens, where that is cheap.
_AMPLE, _CHEAP = 16, 512


class AutomaticRecipe(Recipe):
    """A model of which only the module and the class are known. An item is a `Size`.

    The process that has the pristine model surveys it when it builds it; the one with the changed model is told the
    facts before it builds.
    """

    learns = True

    def __init__(self, settings: Any) -> None:
        self.module = settings.module
        self.host_class = settings.host_class
        self._settings = settings
        self._facts: Facts | None = None
        self._model: Model | None = None

    # -- facts ---------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return self._known.to_json()

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._learn(Facts.from_json(dict(facts)))

    def _learn(self, facts: Facts) -> None:
        self._facts = facts
        self.modalities = tuple(facts.measured)
        self.min_budget = min(found[0].tokens for found in facts.measured.values())
        self.missing, self.basis, self.guessed = facts.missing, facts.basis, facts.guessed
        self.no_embeds = facts.no_embeds

    @property
    def _known(self) -> Facts:
        assert self._facts is not None, "the model was not built yet"
        return self._facts

    # -- the model -----------------------------------------------------------------------------------------------------

    def build(self, host_class: str | None = None) -> tuple[nn.Module, Any]:
        host = self.load_class()
        if not hasattr(host, "_processor_factory"):
            raise NoRecipe(f"{self.host_class} has no multi-modal processor", "name the class that the registry names")
        source = find_configuration(host, self._settings)
        if self._facts is None:
            self._learn(survey(lambda attempt: make_model(host, host, source, attempt), source, self.tell))
        attempt = source.attempts()[self._known.attempt]
        self._model = make_model(host, host, source, attempt, self._known.guessed)
        if host_class is not None:
            self.adapt(self._model.host, host_class, self._model.config)
        with torch.device("cpu"):
            self._run_processor_once()
        self._model.answer_processing_info()
        return self._model.host, self._model.config

    def _run_processor_once(self) -> None:
        """Add what a processor's first call misses of its tokenizer, as the survey did with its own."""
        assert self._model is not None
        for modality, found in self._known.measured.items():
            media = inputs.random_media(found[0].size, torch.Generator().manual_seed(0))
            step = partial(inputs.process, self._model.processor, modality, [media])
            repaired(step, *self._model.menders)

    def model_config(self) -> Any:
        assert self._model is not None
        return self._model.configuration.hf_config

    # -- inputs --------------------------------------------------------------------------------------------------------

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        assert self._model is not None
        media = [inputs.random_media(size, generator) for size in items]
        changed = self._known.changed.get(modality)
        made = inputs.process_requests(
            self._model.processor,
            modality,
            self._model.fitting(modality, items),
            media,
            changed.arguments if changed else {},
        )
        batches = inputs.grouped(made, modality)
        if len(batches) != 1:
            raise NoRecipe(
                f"the runner puts {len(made)} {modality}s into {len(batches)} batches",
                "write a recipe for this model (docs/verify.md), and name it with --recipe",
            )
        return batches[0]

    def sizes(self, modality: str) -> list[Item]:
        return [entry.size for entry in self._known.measured[modality]]

    def fields(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._model is not None
        fields: Mapping[str, Any] = self._model.processor._get_mm_fields_config(inputs, {})
        return fields

    def on_host(self, inputs: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(self._known.on_host)

    def tokens(self, modality: str, item: Item) -> int:
        return next(found.tokens for found in self._all(modality) if found.size.key == item.key)

    def frames(self, items: Sequence[Size]) -> int:
        return sum(size.frames for size in items)

    def _all(self, modality: str) -> list[Measured]:
        changed = self._known.changed.get(modality)
        return [*self._known.measured[modality], *(changed.measured if changed else ())]

    def _first(self, modality: str, found: list[Measured]) -> list[Case]:
        usual, changed = self._known.measured[modality], self._known.changed.get(modality)
        return [*_first_calls(modality, usual), *(_changed_calls(modality, usual, changed) if changed else ())]

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        assert self._model is not None
        ready = self._known.ready.get(modality)
        if ready is None:
            return None
        if ready.problem:
            raise NoRecipe(f"the processor has a field for {modality} embeddings; none could be made: {ready.problem}",
                           "write a recipe for this model (docs/verify.md), and name it with --recipe")  # fmt: skip
        made, _ = ready.items(self._model, modality, [replace(size, changed=False) for size in items], generator)
        (batch,) = inputs.grouped(made, modality)
        return batch

    # -- calls ---------------------------------------------------------------------------------------------------------

    def sessions(self) -> tuple[Session, ...]:
        measured = self._known.measured
        known = {modality: self._all(modality) for modality in measured}
        counts = sorted({found.tokens for entries in measured.values() for found in entries})
        low, top = counts[0], counts[-1]
        most = max(found.tokens for entries in known.values() for found in entries)
        ample = max(most, min(_AMPLE * low, _CHEAP))
        middle = counts[len(counts) // 2]
        items = min(4, low)
        ladder = tuple(sorted({max(low, items), max(middle, items), ample}))
        # The largest item goes eager, if there are several numbers of tokens; the budget is no multiple of anything.
        short = max(counts[-2] if len(counts) > 1 else 2 * low, items) + (1 if top > counts[-2:][0] + 1 else 0)
        first = _session(f"budgets {_listed(ladder)}; {items} items", ladder, items, known, self._first)
        second = _session(f"budgets {_listed((low, short))}; {items} items", (max(low, items), short), items, measured,
                          _second_calls)  # fmt: skip
        third = _session(f"budget {ample}; {min(8, low)} items", (ample,), min(8, low), measured, _counts)
        frames = [size.frames for session in (first, second, third) for case in session.cases for size in case.items]
        longest = max(frames, default=0)
        # The user allows the frames of all items together, those of one item, and says nothing.
        return (
            replace(first, max_frames=items * longest),
            replace(second, max_frames=longest),
            replace(third, max_frames=None if longest else 0),
        )


def _listed(budgets: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(budgets))))


def _changed_calls(modality: str, found: list[Measured], changed: Changed) -> list[Case]:
    """Requests with other arguments, alone and among others: the runner puts both into one batch."""
    sizes = [entry.size for entry in changed.measured]
    others = [_own(found[index].size) for index in (0, len(found) // 2)]
    name = f"other arguments: {listed(changed.arguments)}"
    mixed = (sizes[-1], others[-1], sizes[0], others[0])
    return [
        Case(f"{name}, {which}", modality, tuple(items), group=name)
        for which, items in (("alone", sizes), ("among others", mixed))
    ]


def _session(
    name: str, budgets: tuple[int, ...], items: int, measured: Mapping[str, list[Measured]], calls: Any
) -> Session:
    """One manager; images and videos in turn."""
    cases = in_turn(*(calls(modality, entries) for modality, entries in measured.items()))
    largest = max(budgets)
    tokens = {(modality, found.size.key): found.tokens for modality, entries in measured.items() for found in entries}

    def strict(case: Case) -> bool:
        # Units that are captured may have several times the tokens that an item has in the end.
        return max(tokens[case.modality, size.key] for size in case.items) * _AMPLE <= largest

    cases = tuple(replace(case, may_go_eager=not strict(case)) for case in cases)
    return Session(name, tuple(sorted(set(budgets))), items, None, cases)


def _first_calls(modality: str, found: list[Measured]) -> list[Case]:
    sizes = [entry.size for entry in found]
    low, top, middle = sizes[0], sizes[-1], sizes[len(sizes) // 2]
    mixed = (middle, low, top, sizes[len(sizes) // 3])
    each = [Case(f"a size alone: {size}", modality, (size,), group="each size alone") for size in sizes]
    return [
        *each[::-1],
        Case("one small item after large ones", modality, (low,)),
        Case("mixed sizes", modality, mixed),
        Case("mixed sizes, reversed", modality, mixed[::-1]),
        Case("mixed sizes, a request each", modality, tuple(map(_own, mixed))),
        Case("more items than one batch", modality, (low,) * 7),
        Case("every size, smallest first", modality, tuple(map(_own, sizes))),
    ]


def _second_calls(modality: str, found: list[Measured]) -> list[Case]:
    sizes = [entry.size for entry in found]
    low, top, next_lower = sizes[0], sizes[-1], sizes[max(len(sizes) - 2, 0)]
    return [
        Case("the largest item", modality, (top,)),
        Case("the largest among others", modality, (low, top, next_lower, low)),
        Case("the largest among others, a request each", modality, tuple(map(_own, (next_lower, top, low, top)))),
        Case("the next lower", modality, (next_lower,)),
        Case("every size, largest first", modality, tuple(map(_own, sizes[::-1]))),
        Case("a small item at the end", modality, (low,)),
    ]


def _counts(modality: str, found: list[Measured]) -> list[Case]:
    low = [entry.size for entry in found[:2]]
    return [
        Case(f"{count} items", modality, tuple(low[index % len(low)] for index in range(count)), group="1 to 8 items")
        for count in (1, 2, 3, 5, 8)
    ]


def _own(size: Size) -> Size:
    return replace(size, own=True)
