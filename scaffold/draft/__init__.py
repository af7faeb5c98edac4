"""Drafts a descriptor from a recording of a run, or from a source. It writes what these show, and asks for the rest.

Reads by syntax tree and never imports vLLM: the lab makes recordings. `draft_descriptor` drafts, `interview` also asks;
nothing here writes to the disk.
"""

from scaffold.draft.drafting import (
    Draft,
    NoDraft,
    draft_descriptor,
    draft_recorded,
    inherited_port,
    interview,
    refuse_model,
)
from scaffold.draft.integration import file_name
from scaffold.draft.locate import architectures, locate
from scaffold.draft.sheet import Candidate, Question
from scaffold.draft.shipped import find_shipped
from scaffold.draft.unportable import refuse_release

__all__ = [
    "Candidate",
    "Draft",
    "NoDraft",
    "Question",
    "architectures",
    "draft_descriptor",
    "draft_recorded",
    "file_name",
    "find_shipped",
    "inherited_port",
    "interview",
    "locate",
    "refuse_model",
    "refuse_release",
]
