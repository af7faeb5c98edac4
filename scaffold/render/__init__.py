"""Jinja creates text: new methods, new files, table cells. Nothing else puts data into code."""

from scaffold.render.environment import render_template, template_root
from scaffold.render.signatures import Signatures

__all__ = ["Signatures", "render_template", "template_root"]
