"""Descriptor and protocol in, an ordered list of edits out: pure, nothing is written."""

from scaffold.plan.model import Fact, FilePlan, Plan
from scaffold.plan.planner import plan_changes

__all__ = ["Fact", "FilePlan", "Plan", "plan_changes"]
