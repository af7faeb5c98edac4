"""What a model's methods convert pixels to before its encoder gets them, which eager calls of a port do, too."""

from __future__ import annotations

import ast
import textwrap

import pytest

from scaffold.tower import conversion_of_pixels


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("return self.visual(x)", ""),
        (
            "x = x.to(device=self.device, dtype=self.dtype)\nreturn self.visual(x)",
            ".to(device=self.device, dtype=self.dtype)",
        ),
        ("return self.visual(x.type(self.visual.dtype))", ".type(self.visual.dtype)"),
        ("y = torch.cat(x).to(torch.bfloat16)\nreturn self.visual(y, 1)", ".to(torch.bfloat16)"),
        ("x = x.to(torch.float16)\nx = x.to(self.dtype)\nreturn self.visual(x)", ".to(self.dtype)"),
        ("y = self.visual(x)\nx = x.to(self.dtype)\nreturn y", ""),
        ("x = x.to(y.dtype)\nreturn self.visual(x)", ""),
        ("return self.visual(pixels=x)", ""),
        ("return self.audio(x.to(self.dtype))", ""),
        ("return self.visual(x.to(self.dtype)) + self.visual(x)", ""),
    ],
)
def test_what_is_done_to_the_pixels_of_a_call(body: str, made: str) -> None:
    source = f"class Model:\n    def embed(self, x, y):\n{textwrap.indent(body, ' ' * 8)}\n"
    base = "class Base:\n    def embed(self, x, y):\n        return self.visual(x.to(torch.float8))\n"
    owners = [node for node in ast.parse(source + base).body if isinstance(node, ast.ClassDef)]

    assert conversion_of_pixels(owners, {"self.visual"}) == made
