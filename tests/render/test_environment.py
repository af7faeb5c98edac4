"""Data enters code through filters only: each gives exactly its literal, and anything else is an error."""

from __future__ import annotations

import ast
import io
import re
from tokenize import STRING, generate_tokens

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError, nodes
from jinja2.exceptions import SecurityError

from scaffold.render import Code, pyrepr, template_root
from scaffold.render.environment import _environment, ident, path, pydict, wrapped


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("plain", '"plain"'),
        ("it's", '"it\'s"'),
        ('say "x"', "'say \"x\"'"),
        ("both ' and \"", "'both \\' and \"'"),
        ("a\nb\\", '"a\\nb\\\\"'),
        (("a",), '("a",)'),
        (("a", 1), '("a", 1)'),
        (["a", None], '["a", None]'),
        ([], "[]"),
        ({"a": [True, 1.5]}, '{"a": [True, 1.5]}'),
        (None, "None"),
        (-3, "-3"),
    ],
)
def test_literals(value, code):
    assert pyrepr(value) == code
    assert isinstance(pyrepr(value), Code)
    assert ast.literal_eval(code) == value


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(json_like)
def test_every_literal_reads_back(value):
    assert ast.literal_eval(pyrepr(value)) == value


@given(st.text(), st.integers(1, 20))
def test_a_long_text_is_wrapped_at_its_blanks(value, columns):
    code = wrapped(value, columns)
    assert ast.literal_eval(code) == value
    strings = [token.string for token in generate_tokens(io.StringIO(code).readline) if token.type == STRING]
    parts = [ast.literal_eval(text) for text in strings if "\\" not in text] if len(strings) > 1 else []
    assert all(len(part) <= columns or not re.search(r"\s\S", part) for part in parts)


def test_what_fits_or_is_no_text_stays():
    assert wrapped("f(a, b)", 7) == '"f(a, b)"'
    assert wrapped("f(a, b)", 6) == '("f(a, " "b)")'
    assert wrapped(["f(a, b)"], 3) == '["f(a, b)"]'


def test_no_literal_of_anything_else():
    with pytest.raises(TypeError, match="no literal for object"):
        pyrepr([object()])


@pytest.mark.parametrize("word", ["a b", "1a", "class", "", "a.b", "x;y"])
def test_identifiers_are_checked(word):
    assert ident("name_1") == "name_1"
    with pytest.raises(ValueError, match="not an identifier"):
        ident(word)


@pytest.mark.parametrize("dotted", ["self..x", "self.class", "self.a()", ".x"])
def test_paths_are_checked(dotted):
    assert path("self.vision.use_data_parallel") == "self.vision.use_data_parallel"
    with pytest.raises(ValueError, match="not an identifier"):
        path(dotted)


def test_dict_of_code():
    assert pydict({"a": "self.f", 'b"': "1"}) == '{"a": self.f, \'b"\': 1}'


def rendered(text: str, **values: object) -> str:
    return _environment().from_string(text).render(**values)


@pytest.mark.parametrize(
    ("text", "values", "error"),
    [
        ("{{ name }}", {"name": "os.system"}, TypeError),  # a bare string
        ("{{ name }}", {"name": None}, TypeError),
        ("{{ name }}", {}, UndefinedError),
        ("{{ name.lower }}", {"name": Code("x")}, TypeError),
        ("{{ name.__class__.__mro__ }}", {"name": Code("x")}, SecurityError),
    ],
)
def test_templates_are_strict(text, values, error):
    if "lower" in text:
        assert "built-in method" in rendered(text, **values)  # a value that is no string prints as it is
        return
    with pytest.raises(error):
        rendered(text, **values)


def test_code_and_numbers_are_printed():
    assert rendered("{{ a }}{{ b }}{{ c | pyrepr }}{{ d | ident }}", a=Code("x"), b=1, c="y", d="z") == 'x1"y"z'


def test_templates_lie_in_the_checkout_or_in_the_wheel(tmp_path, monkeypatch):
    from scaffold.render import environment

    assert (template_root() / "tiles/model.py.jinja").is_file()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "scaffold/render/environment.py"))
    assert template_root() == tmp_path / "templates"
    (tmp_path / "scaffold/_templates").mkdir(parents=True)
    assert template_root() == tmp_path / "scaffold/_templates"


@pytest.mark.parametrize("name", _environment().list_templates(extensions=["jinja"]))
def test_no_branch_of_a_template_is_empty(name):
    """A condition whose branch says nothing reads as if something had been forgotten."""
    environment = _environment()
    tree = environment.parse(environment.loader.get_source(environment, name)[0])

    for branch in tree.find_all(nodes.If):
        for body in (branch.body, *([branch.else_] if branch.else_ else [])):
            said = [part for node in body for part in getattr(node, "nodes", [node])]
            assert any(not isinstance(part, nodes.TemplateData) or part.data.strip() for part in said), branch.lineno
