"""Codes of the descriptor stage."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = ()
