"""A benchmark's tiny mode in a process that has imported a release: `python run_tiny.py TREE SCRIPT [options]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> int:
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "benchmarks")]
    import tiny
    from release_process import prepare_release

    os.environ["VITCG_TINY_TREE"] = sys.argv[1]
    prepare_release(Path(sys.argv[1]))
    return tiny.run(sys.argv[2], sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
