"""Which generations a descriptor can be spoken in without a tree, and why not in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaffold.adapters.towers import TowerAnswer, known_tower

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.plan.views import TreeFacts
    from scaffold.protocol import Generation


def refusal(port: AnyPort, generation: Generation) -> str | None:
    """The reason why there is no stand-alone adapter, None when there is one."""
    from scaffold.plan import methods
    from scaffold.protocol import known_profile

    if methods.refusal(port, known_profile(generation).dialect) is not None:
        return "its layout has no form in this protocol"
    return known_tower(port, generation).reason


def tower_answer(port: AnyPort, generation: Generation) -> tuple[TreeFacts, TowerAnswer]:
    """The facts in every release of a generation that was not refused, and what is done when a model is adapted."""
    answer = known_tower(port, generation)
    assert answer.facts is not None, "the generation was refused"
    return answer.facts, answer
