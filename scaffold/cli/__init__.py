"""The command line: one module per command, heavy imports inside the command that needs them."""

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. It ends in SystemExit, also where Ctrl-C comes while Python still imports it."""
    try:
        from scaffold.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        sys.exit(130)
    run(arguments)


__all__ = ["main"]
