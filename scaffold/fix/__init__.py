"""The smallest proven repair of a port that a tree has already, in the code's own names.

`fix_port` runs the checks of the lab on the tree's own port, tries the rules (`rules`) that answer a failing check, and
keeps those that a second run proves (`proof`), without what vLLM has an open pull request for. `Proven.remaining` says
what each check that still fails means. Nothing here writes.
"""

from scaffold.fix.description import describe_fix, fix_title
from scaffold.fix.fixing import Fix, fix_port
from scaffold.fix.remaining import Kind
from scaffold.fix.repair import apply_repairs
from scaffold.fix.rules import find_repairs

__all__ = [
    "Fix",
    "Kind",
    "apply_repairs",
    "describe_fix",
    "find_repairs",
    "fix_port",
    "fix_title",
]
