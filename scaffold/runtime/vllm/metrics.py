"""The counters among vLLM's own metrics: written by the workers, served by whichever process answers `/metrics`.

With several API servers vLLM gives all its processes a folder (`PROMETHEUS_MULTIPROC_DIR`), and each server answers
with the sum of the files there. Our workers write theirs beside vLLM's. A single API server has no such folder: then
the process that the user started names one, and shows the files in it. Needs no torch.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffold.runtime.stats import Stats

VLLMS, OURS = "PROMETHEUS_MULTIPROC_DIR", "VITCG_METRICS_DIR"
PREFIX = "encoder_cudagraph"
#: Counter -> what it counts. Each also has the labels of its manager.
COUNTERS = {
    "items": "Images and videos that came.",
    "hits": "Items that a graph served.",
    "misses": "Items, or paths of them, that ran eager, by reason.",
    "tokens": "Tokens of the batches that graphs served.",
    "computed_tokens": "Tokens that these graphs computed, with padding.",
    "replays": "Replays of a graph.",
    "sampled_replays": "Replays that were timed.",
    "sampled_seconds": "Time of the replays that were timed.",
    "given_up": "1 once the manager gave its graphs up: every image runs eager.",
}

#: Folders of our own, and the age in seconds from which one whose workers are all gone is left over.
_NAME, _LEFT_OVER_AFTER = "vitcg-metrics-", 60.0

_lock = threading.Lock()


def samples(stats: Stats, given_up: bool) -> Iterator[tuple[str, dict[str, str], float]]:
    """Counter, labels of its own, value. Copies come first: another thread counts."""
    keys, reasons = list(stats.keys.items()), list(stats.reasons.items())
    graphs = [graph for _, graph in keys]
    yield "items", {}, stats.hits + stats.misses
    yield "hits", {}, stats.hits
    yield "tokens", {}, sum(graph.tokens for graph in graphs)
    yield "computed_tokens", {}, sum(graph.budget_tokens for graph in graphs)
    yield "sampled_replays", {}, sum(graph.sampled for graph in graphs)
    yield "sampled_seconds", {}, sum(graph.sampled_ms for graph in graphs) / 1e3
    yield "given_up", {}, given_up
    for reason, count in reasons:
        yield "misses", {"reason": reason}, count
    for key, graph in keys:
        axes = ",".join(map(str, key.axes))
        yield "replays", {"path": key.path, "budget": str(key.budget), "axes": axes}, graph.replays


def place() -> Path | None:
    """The folder whose files a server shows; None in a process without a server."""
    named = os.environ.get(VLLMS) or os.environ.get(OURS)
    return Path(named) if named else None


def write(stats: Stats, given_up: bool, labels: Mapping[str, str]) -> None:
    """Put the counters of one manager where this process's server reads them, if there is such a place."""
    folder = place()
    if folder is None:
        return
    from prometheus_client.mmap_dict import mmap_key

    with _lock:
        values = _file(folder / f"counter_vitcg{os.getpid()}.db")
        for name, own, value in samples(stats, given_up):
            family, all_labels = f"{PREFIX}_{name}", {**labels, **own}
            key = mmap_key(family, f"{family}_total", list(all_labels), list(all_labels.values()), COUNTERS[name])
            values.write_value(key, float(value), 0.0)


@functools.cache
def _file(path: Path) -> Any:
    """The file of this process, and the folder of it. A later manager of the process goes on in it.

    Only the first use makes a folder: at the end of an engine in the server's own process it is gone before the engine.
    The process shares a lock of the folder to its end, so that no later server takes it for one that was left.
    """
    from prometheus_client.mmap_dict import MmapedDict

    path.parent.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody gets the other one either
        _lock_folder(path.parent, fcntl.LOCK_SH)
    return MmapedDict(str(path))


def _lock_folder(folder: Path, kind: int) -> int:
    """The open folder, locked until it is closed or every process that has it ended. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise
    return opened


def show_workers() -> None:
    """Let this process's metrics show the counters of the workers that it starts."""
    if place() is not None:  # vLLM does, or the process that started this one
        return
    from prometheus_client import REGISTRY

    temporary = Path(tempfile.gettempdir())
    remove_left_over(temporary)
    folder = temporary / f"{_NAME}{secrets.token_hex(16)}"
    REGISTRY.register(_Files(folder))
    atexit.register(_remove, folder, os.getpid())
    os.environ[OURS] = str(folder)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a process that it forked
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_over(temporary: Path) -> None:
    """Remove this user's folders whose server was killed: no worker has a lock of them any more.

    A process id would not do: containers may share a temporary folder. A worker locks a folder right after it made it.
    """
    for folder in temporary.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError):  # it is another user's, in use, or gone by now
            found = folder.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _LEFT_OVER_AFTER:
                continue
            opened = _lock_folder(folder, fcntl.LOCK_EX)
            try:
                shutil.rmtree(folder)
            finally:
                os.close(opened)


class _Files:
    """The sum of the workers' files. There are none before the first graphs are captured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Any]:
        from prometheus_client.multiprocess import MultiProcessCollector

        files = sorted(map(str, self._folder.glob("*.db")))
        yield from MultiProcessCollector.merge(files) if files else ()
