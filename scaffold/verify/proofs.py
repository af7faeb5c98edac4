"""The last result of `verify` for a port in a tree, kept in the user's cache folder: `pr` tells it, and runs nothing.

A result is kept under a name that says what was proven, so that another descriptor, another port or another tree finds
none.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaffold.files import read_regular
from scaffold.protocol.cache import cache_root
from scaffold.protocol.seal import digest_of
from scaffold.verify.numeric.model import NumericReport

_PACKAGE = "vllm/"


def identify_proof(model: str, root: Path, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """A hash of the package's Python files before a port, and of those that the port of `model` changed.

    `root` is a tree; of the paths in `before` it may hold another content. An empty one is a file that was not there.
    """

    def of_package(files: Mapping[str, bytes]) -> dict[str, bytes]:
        return {path.removeprefix(_PACKAGE): data for path, data in files.items() if path.startswith(_PACKAGE)}

    changed = sorted((path, hashlib.sha256(data).hexdigest()) for path, data in of_package(after).items())
    replaced = {path: data or None for path, data in of_package(before).items()}
    state = digest_of(root / _PACKAGE, ".py", replaced=replaced)
    return hashlib.sha256(json.dumps([model, state, changed]).encode()).hexdigest()


def keep_reports(identity: str, reports: Sequence[NumericReport]) -> None:
    """Put the reports in the place of an earlier result, as `verify --json` prints them. Raises OSError."""
    folder = cache_root() / "proofs"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as draft:
        json.dump([report.document() for report in reports], draft)
    Path(draft.name).replace(folder / f"{identity}.json")


def find_reports(identity: str) -> tuple[NumericReport, ...]:
    """The last result for that port in that tree; none if there is none that can be read."""
    try:
        found = json.loads(read_regular(cache_root() / "proofs" / f"{identity}.json"))
        return tuple(NumericReport.from_document(document) for document in found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
