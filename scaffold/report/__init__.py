"""Diagnostics to text, JSON, GitHub annotations or SARIF: four views of one list.

Rendering is pure. Source lines come from a function that the caller gives, so nothing here opens a file.
"""

from scaffold.report.render import FORMATS, render_diagnostics

__all__ = ["FORMATS", "render_diagnostics"]
