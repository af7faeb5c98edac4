"""Descriptor and protocol in, an ordered list of edits out: pure, nothing is written."""

from scaffold.plan.file_plans import Fact, FilePlan, Plan, Present
from scaffold.plan.leftovers import lost_explanations
from scaffold.plan.planner import plan_changes

__all__ = ["Fact", "FilePlan", "Plan", "Present", "lost_explanations", "plan_changes"]
