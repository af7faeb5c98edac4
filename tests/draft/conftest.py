"""Drafts of real models, each made once a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from draft_cases import Case, draft

from scaffold.descriptor import AnyPort, load_descriptor_text
from scaffold.draft import Draft

Drafted = Callable[..., Draft]


@pytest.fixture(scope="session")
def drafted(release_tree) -> Drafted:
    """`drafted(case)`: the draft without answers; `drafted(case, answered=True)`: with all of them."""
    made: dict[tuple[str, bool], Draft] = {}

    def get(case: Case, *, answered: bool = False) -> Draft:
        key = (case.id, answered)
        if key not in made:
            made[key] = draft(case, release_tree(case.release), answered=answered)
        return made[key]

    return get


@pytest.fixture(scope="session")
def completed(drafted) -> Callable[[Case], AnyPort]:
    """The port that a draft with all answers describes."""

    def get(case: Case) -> AnyPort:
        found = drafted(case, answered=True)
        return load_descriptor_text(found.text, f"{found.name}.yaml")

    return get
