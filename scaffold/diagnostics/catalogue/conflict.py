"""Codes of the conflict stage."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = ()
