"""Jinja creates text: new methods, new files, table cells. Nothing else puts data into code."""

from scaffold.render.environment import Code, pyrepr, render_template, template_root
from scaffold.render.signatures import Signatures

__all__ = ["Code", "Signatures", "pyrepr", "render_template", "template_root"]
