"""Writes the digests of release trees that come with the tool: `python -m scaffold.protocol.known_trees 0.34.0 ...`

It fetches a release that the cache does not have, by the digest that the package index gives for its sdist. To make all
digests anew, name all releases with an empty VITCG_CACHE_DIR.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.cache import KNOWN_TREES
from scaffold.protocol.releases import fetch_release
from scaffold.protocol.seal import digest_of


def record_trees(versions: Sequence[str]) -> None:
    """Add the digests of these releases. Raises DiagnosticError."""
    known: dict[str, str] = json.loads(KNOWN_TREES.read_text()) if KNOWN_TREES.exists() else {}
    known |= {version: digest_of(fetch_release(version)) for version in versions}
    ordered = dict(sorted(known.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
    KNOWN_TREES.write_text(json.dumps(ordered, indent=2) + "\n")


if __name__ == "__main__":
    try:
        record_trees(sys.argv[1:])
    except DiagnosticError as error:
        sys.exit(str(error))
