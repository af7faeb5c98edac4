"""Codes of the proof stage."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = ()
