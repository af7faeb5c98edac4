"""Names, headers and calls come from the tree's protocol: templates hold none of its names outside `signature`."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from scaffold.descriptor import shipped_names
from scaffold.diagnostics import DiagnosticError
from scaffold.plan.methods import refusal, render_methods
from scaffold.plan.views import TreeFacts
from scaffold.protocol import GENERATIONS, Generation, ProtocolProfile, known_profile
from scaffold.protocol.dialect import ManagerFacts, derive_dialect
from scaffold.protocol.profile import _read_method
from scaffold.render import Signatures, template_root
from scaffold.syntax import SourceLines
from scaffold.workflow import load_port

HOOK = "postprocess_encoder_output"


@dataclasses.dataclass(frozen=True, slots=True)
class Renaming:
    """A generation that calls the hook otherwise."""

    name: str
    renamed: dict[str, str]


def signatures_of(declaration: str) -> Signatures:
    """The signatures of a protocol with one method, which calls the hook `finish`."""
    text = f"class P:\n    {declaration} ...\n"
    owner = ast.parse(text).body[0]
    assert isinstance(owner, ast.ClassDef)
    method = owner.body[0]
    assert isinstance(method, ast.FunctionDef)
    profile = known_profile(GENERATIONS[-1])
    changes: dict[str, object] = {
        "methods": (_read_method(method, SourceLines(text)),),
        "generation": Renaming("v9_9", {HOOK: "finish"}),
    }
    return Signatures(dataclasses.replace(profile, **changes))


HEADERS = [
    "def finish(self, a: int, b: str = 'x') -> None:",
    "def finish(self, a, /, b, *, c: int, d: list[str] = []) -> dict[str, int]:",
    "def finish(self, *rest: int, c=1, **more: str):",
    "def finish(self):",
]


@pytest.mark.parametrize("declaration", HEADERS)
def test_header_is_the_declaration(declaration: str) -> None:
    """Every kind of parameter, defaults with their quotes, under the tree's own name."""
    assert signatures_of(declaration).header(HOOK) == declaration


def test_quoted_annotations_lose_their_quotes_and_defaults_do_not() -> None:
    signatures = signatures_of("def finish(self, a: \"torch.Tensor\", path: str = 'x') -> 'Out':")

    assert signatures.header(HOOK) == "def finish(self, a: torch.Tensor, path: str = 'x') -> Out:"


CALLS: list[tuple[str, dict[str, str], str]] = [
    ("def finish(self):", {}, "finish()"),
    ("def finish(self, a, b=1):", {"a": "x"}, "finish(x)"),
    ("def finish(self, a, b=1):", {"b": "y", "a": "x"}, "finish(x, y)"),
    # What this tree does not know is left out, and what stands before a keyword may be missing.
    ("def finish(self, a):", {"a": "x", "later": "z"}, "finish(x)"),
    ("def finish(self, a, b=1, c=2):", {"a": "x", "c": "z"}, "finish(x, c=z)"),
    ("def finish(self, a, *, c):", {"a": "x", "c": "z"}, "finish(x, c=z)"),
    ("def finish(self, a, *rest, **more):", {"a": "x"}, "finish(x)"),
]


@pytest.mark.parametrize(("declaration", "values", "code"), CALLS)
def test_call_has_what_the_tree_takes(declaration: str, values: dict[str, str], code: str) -> None:
    assert signatures_of(declaration).call(HOOK, **values) == code


@pytest.mark.parametrize("declaration", ["def finish(self, a, b):", "def finish(self, a, *, b):"])
def test_call_without_a_demanded_argument_is_refused(declaration: str) -> None:
    with pytest.raises(DiagnosticError, match=r"`finish` of protocol v9_9 demands `b`") as caught:
        signatures_of(declaration).call(HOOK, a="x")
    assert [item.code for item in caught.value.diagnostics] == ["VCG440"]


def test_override_passes_everything_on() -> None:
    signatures = signatures_of("def finish(self, a, b=1, *rest, c, d=2, **more):")

    assert signatures.forward(HOOK) == "finish(a, b, *rest, c=c, d=d, **more)"
    assert (signatures.name(HOOK), signatures.has(HOOK), signatures.has("encoder_eager_forward")) == (
        "finish",
        True,
        False,
    )


def protocol_names() -> set[str]:
    profiles: list[ProtocolProfile] = [known_profile(generation) for generation in GENERATIONS]
    return {method.name for profile in profiles for method in profile.methods}


def test_no_template_writes_a_name_of_the_protocol_itself() -> None:
    """A renamed method would have to be found by hand then. Names stand in `signature.…("name")` only."""
    names, asked = protocol_names(), re.compile(r'signature\.[a-z]+\("([a-z_]+)"')
    found = 0
    for path in sorted(Path(template_root()).rglob("*.jinja")):
        text = path.read_text("utf-8")
        asked_for = asked.findall(text)
        assert set(asked_for) <= names, path
        found += len(asked_for)
        rest = asked.sub("", text)
        assert set(re.findall(r"[A-Za-z_]+", rest)) & names == set(), path
    assert found > 30


@pytest.mark.parametrize("generation", GENERATIONS, ids=str)
def test_any_renamed_method_changes_its_name_and_nothing_else(generation: Generation) -> None:
    """Each method of each generation, in every shipped port: what is derived from the protocol stays as it is."""
    profile = known_profile(generation)
    specs = [spec for spec in map(load_port, shipped_names()) if not refusal(spec, profile.dialect)]

    def rendered(profile: ProtocolProfile) -> dict[str, str]:
        """The methods, those of a mixin included. A longer name may break the lines of a comment elsewhere."""
        made = {spec.name: render_methods(spec, profile, TreeFacts()) for spec in specs}
        texts = {name: one.source + (one.mixin.source if one.mixin else "") for name, one in made.items()}
        return {name: re.sub(r"\n *# ", " ", text) for name, text in texts.items()}

    before = rendered(profile)
    for method in profile.methods:
        new = f"renamed_{method.name}"
        renamed = {method.name: new}
        methods = tuple(
            dataclasses.replace(item, name=new) if item.name == method.name else item for item in profile.methods
        )
        calls = frozenset(renamed.get(name, name) for name in generation.manager.calls)
        changes: dict[str, object] = {
            "methods": methods,
            "generation": Renaming("v9_9", renamed),
            "dialect": derive_dialect(
                dataclasses.replace(generation.shape, methods=methods),
                ManagerFacts(calls, generation.manager.slices_eager),
                renamed,
            ),
        }
        changed = dataclasses.replace(profile, **changes)
        assert changed.dialect == profile.dialect, method.name
        after = rendered(changed)
        assert {name: text.replace(new, method.name) for name, text in after.items()} == before, method.name
        # Nobody says the old name any more, where the method was said at all.
        assert not any(re.search(rf"\b{method.name}\b", text) for text in after.values()), method.name
        assert any(new in text for text in after.values()) == any(method.name in text for text in before.values())
