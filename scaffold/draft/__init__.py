"""Drafts a descriptor from a recording of a model's run. It writes what the run shows, and asks for the rest.

Reads by syntax tree and never imports vLLM: the lab makes recordings. `draft_descriptor` drafts, `interview` also asks;
nothing here writes to the disk.
"""

from scaffold.draft.drafting import (
    Draft,
    NoDraft,
    draft_descriptor,
    interview,
    refuse_model,
    undrafted,
)
from scaffold.draft.integration import file_name
from scaffold.draft.locate import architectures, locate
from scaffold.draft.ported import find_shipped, inherited_port
from scaffold.draft.sheet import Candidate, Question
from scaffold.draft.unportable import refuse_release

__all__ = [
    "Candidate",
    "Draft",
    "NoDraft",
    "Question",
    "architectures",
    "draft_descriptor",
    "file_name",
    "find_shipped",
    "inherited_port",
    "interview",
    "locate",
    "refuse_model",
    "refuse_release",
    "undrafted",
]
