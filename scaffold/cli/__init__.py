"""The command line: one module per command, heavy imports inside the command that needs them."""

from scaffold.cli.app import main

__all__ = ["main"]
