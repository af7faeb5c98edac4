"""Drafts a descriptor from a model's own source: what can be read is written with its evidence, the rest is asked.

Reads by syntax tree and never imports vLLM. `draft_descriptor` is the only entry; nothing here writes to the disk.
"""

from scaffold.draft.drafting import Draft, draft_descriptor
from scaffold.draft.sheet import Candidate, Question

__all__ = ["Candidate", "Draft", "Question", "draft_descriptor"]
