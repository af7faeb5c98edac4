"""Descriptor names in generated code: which of them a method spells out, and which are variables of its own."""

from __future__ import annotations

import pytest
from changed_ports import port_of

from scaffold.plan.code import Names

#: `tokens` is long, and made of `side`; `side` is made of `size`, and nothing of `other`.
LETS = {
    "other": "self.config.other",
    "size": "self.config.size",
    "side": "size // 14",
    "tokens": "side * side * self.config.tokens_of_a_patch",
    "k": "tokens",
    "edge": "side",
}


@pytest.mark.parametrize(
    ("minimum", "longest", "variables"),
    [
        ("edge + 1", 60, {}),
        ("k + 1", None, {}),
        ("edge + edge", None, {"edge": "self.config.size // 14"}),
        (
            "k + 1",
            60,
            {
                "size": "self.config.size",
                "side": "size // 14",
                "tokens": "side * side * self.config.tokens_of_a_patch",
                "k": "tokens",
            },
        ),
    ],
)
def test_a_long_name_and_all_that_it_is_made_of_are_variables(minimum, longest, variables):
    port = port_of("internvl", {"let": {**LETS, "patch": "self.patch"}, "budget.min": minimum, "pixels.shape": [3, 8]})

    _, lets = Names.of(port).localised(port.budget.min, longest=longest)

    assert dict(lets) == variables
