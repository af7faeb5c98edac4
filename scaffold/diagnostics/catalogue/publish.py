"""Codes of the publish stage."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = ()
