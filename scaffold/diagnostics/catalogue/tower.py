"""Codes of the tower stage."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = ()
