"""The only stage that writes into a target tree: all of a run's file changes, or none of them.

It owns the journal in `<root>/.vitcg-scaffold/`, roll-back, revert and recovery after a kill. It also decides whether
git holds a copy of a file before it overwrites the file. It must not know what the changes mean: bytes in, bytes out.
POSIX only.
"""

from scaffold.publish.dirty import DirtyState, changed_files, require_clean
from scaffold.publish.store import FileRecord, RunRecord
from scaffold.publish.transaction import (
    lost_links,
    publish_changes,
    published_changes,
    recover,
    require_finished,
    revert_last,
)

__all__ = [
    "DirtyState",
    "FileRecord",
    "RunRecord",
    "changed_files",
    "lost_links",
    "publish_changes",
    "published_changes",
    "recover",
    "require_clean",
    "require_finished",
    "revert_last",
]
