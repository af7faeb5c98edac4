"""Codes of the target stage."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = ()
