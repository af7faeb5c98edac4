"""The cut on real classes of vLLM 0.33: the way that is found, the edits, and what is refused."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import changed_ports
import pytest
from cut_models import LLAVA_NEXT, MODELS, PARSED, Model

from scaffold.cut import cut_edits, find_way, prove_cut
from scaffold.cut.result import find_change
from scaffold.descriptor import CutPort, RowsPort, load_descriptor_text
from scaffold.descriptor.load import shipped_path
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.plan.cut import plan_way
from scaffold.protocol import SourceTree, find_model
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MIXIN = "vllm/model_executor/models/encoder_cudagraph_units.py"
#: What else a tree must have for a model class to be found in it.
PROTOCOL_FILES = (
    "vllm/model_executor/models/interfaces.py",
    "vllm/v1/worker/encoder_cudagraph.py",
    "vllm/v1/worker/encoder_cudagraph_defs.py",
)


def port_of(text: str) -> CutPort:
    port = load_descriptor_text(text, "model.yaml")
    assert isinstance(port, CutPort)
    return port


def way_of(tree: SourceTree, text: str) -> Any:
    port = port_of(text)
    return plan_way(port, tree, find_model(tree, port.module, port.class_name))


def problems_of(tree: SourceTree, text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as caught:
        way_of(tree, text)
    return caught.value.diagnostics


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.module)
def test_the_way_is_found_and_proven(model: Model, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    way = way_of(tree, model.text())
    assert {station.function: len(station.sites) for station in way.stations} == model.way
    assert way.sites == sum(model.way.values())

    change, mixin = prepare_port(port_of(model.text()), tree).changed
    assert (mixin.path, mixin.before) == (MIXIN, None)
    assert change.after is not None
    text = change.after.decode()
    assert text.count(" if encode is None") + text.count("\n                if encode is None") >= way.sites
    assert model.encode in text
    assert model.cut in text


@pytest.mark.parametrize(
    "port",
    [
        # The body of `embed_multimodal` moves; the encoder takes a mask; those that are shipped. The last has an entry
        # that `embed_multimodal` calls beside the one that it is.
        *(port_of(model.text()) for model in MODELS if model.module in ("moondream3", "aria")),
        *map(load_port, ("llava_next", "mistral3", "nano_nemotron_vl")),
        # Its loop is a method then: it was refused for taking no name of `forward.unread`.
        changed_ports.port_of("ovis2_5"),
    ],
    ids=lambda port: port.name,
)
def test_a_second_run_finds_nothing_to_do(port: CutPort | RowsPort, release_tree: Any, ported: Any) -> None:
    assert not prepare_port(port, ported(port, prepare_port(port, release_tree(RELEASE)))).changed


def test_a_port_is_completed_on_a_way_that_stands(release_tree: Any, ported: Any) -> None:
    """As after an edit by hand: the methods are back, and those on the way stay as they are."""
    port = port_of(LLAVA_NEXT.text())
    first = prepare_port(port, release_tree(RELEASE))
    tree = ported(port, first)
    change, _ = first.changed
    text = change.after.decode()
    name = "    def get_encoder_cudagraph_config"
    end = text.index("\n    def ", text.index(name))
    edited = tree.with_files({change.path: (text[: text.index(name)] + text[end + 1 :]).encode()})
    [again] = prepare_port(port, edited, replace=True).changed
    assert again.after is not None
    assert ast.dump(ast.parse(again.after)) == ast.dump(ast.parse(text))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Another type, a call that is not handed on, one that is not cut, and one use more.
        ("Callable[[torch.Tensor], torch.Tensor] | None", "Callable[[int], torch.Tensor] | None"),
        ("encode: Callable[[torch.Tensor], torch.Tensor] | None = None", "encode=None"),
        ("(image_input, encode=encode)", "(image_input, encode=None)"),
        ('pixel_values = inputs["pixel_values"]\n', 'pixel_values = encode or inputs["pixel_values"]\n'),
    ],
)
def test_another_way_that_stands_is_refused(before: str, after: str, release_tree: Any, ported: Any) -> None:
    port = port_of(LLAVA_NEXT.text())
    tree = ported(port, prepare_port(port, release_tree(RELEASE)))
    path = "vllm/model_executor/models/llava_next.py"
    text = tree.read(path)
    assert before in text
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port, tree.with_files({path: text.replace(before, after).encode()}))
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG444"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": "self.no_such_method(**inputs)"}, "`self.no_such_method` does not lead to"),
        ({"entry": PARSED.replace("_process_image_input", "compute_logits")}, "`self.compute_logits` does not lead to"),
        ({"call": "self.multi_modal(pixels)"}, "`self._process_image_input` does not lead to"),
        # The call is there, but with the tower as its first argument.
        ({"call": "self._image_pixels_to_features(pixels)"}, "`self._process_image_input` does not lead to"),
        ({"call": "self._image_pixels_to_features(self.other, pixels)"}, "does not lead to"),
        ({"call": "self._image_pixels_to_features(1, pixels)"}, "does not lead to"),
    ],
)
def test_an_encoder_that_is_not_on_the_way_is_refused(change: dict[str, str], message: str, release_tree: Any) -> None:
    problem, *others = problems_of(release_tree(RELEASE), LLAVA_NEXT.text(**change))
    assert (problem.code, message in problem.message) == ("VCG443", True), problem
    assert {other.code for other in others} <= {"VCG447"}


@pytest.mark.parametrize(
    ("change", "place", "hint"),
    [
        (
            {"entry": PARSED.replace("_process_image", "_proces_image")},
            "modalities.image.entry",
            "`_process_image_input`",
        ),
        ({"call": "self._image_pixels_to_feature(self.vision_tower, pixels)"}, "forward.call", "_to_features`"),
        ({"call": "self._image_pixels_to_features(self.vision_towr, pixels)"}, "forward.call", "`vision_tower`"),
    ],
)
def test_a_misspelt_name_on_the_way_has_its_place(
    change: dict[str, str], place: str, hint: str, release_tree: Any
) -> None:
    """The refusal was at the entry, with the advice to write the call as the model does."""
    text = LLAVA_NEXT.text(**change)
    problem, *_ = problems_of(release_tree(RELEASE), text)
    (line,) = [number for number, one in enumerate(text.splitlines(), 1) if next(iter(change.values())) in one]
    assert problem.span is not None
    assert (problem.code, problem.span.line) == ("VCG443", line)
    assert hint in (problem.help or "")


def test_calls_in_another_form_are_left_and_named(release_tree: Any) -> None:
    """Nemotron's tower is called with sizes for images of any resolution, and with frames for videos."""
    text = LLAVA_NEXT.text(
        module="nano_nemotron_vl",
        name="NemotronH_Nano_VL_V2",
        entry="self._process_image_input(self._parse_and_validate_image_input(**inputs))",
        call="self.vision_model(pixels)",
    )
    way = way_of(release_tree(RELEASE), text)
    assert [note.code for note in way.notes] == ["VCG447"]
    assert way.sites == 1


def test_a_subclass_that_overrides_a_method_on_the_way_is_refused(copied_tree: Any) -> None:
    path = "vllm/model_executor/models/llava_next.py"
    tree = copied_tree(RELEASE, path, *PROTOCOL_FILES)
    tree.path(path).write_text(
        tree.read(path)
        + "\n\nclass Heir(LlavaNextForConditionalGeneration):\n"
        + "    def _process_image_pixels(self, inputs):\n        return super()._process_image_pixels(inputs)\n"
    )
    [problem] = problems_of(tree.reread(), LLAVA_NEXT.text())
    assert (problem.code, "Heir overrides" in problem.message) == ("VCG444", True)


def test_a_name_that_is_taken_is_refused(copied_tree: Any) -> None:
    path = "vllm/model_executor/models/llava_next.py"
    tree = copied_tree(RELEASE, path, *PROTOCOL_FILES)
    changed = tree.read(path).replace("num_patches_per_batch", "encode")
    assert changed != tree.read(path)
    tree.path(path).write_text(changed)
    tree = tree.reread()
    with pytest.raises(DiagnosticError) as caught:
        cut_edits(tree, way_of(tree, LLAVA_NEXT.text()))
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG444"]


def test_a_data_parallel_encoder_needs_a_gate(release_tree: Any) -> None:
    """Eagle 2.5 keeps the switch, so that its graphs can be off where items are spread over ranks."""
    text = LLAVA_NEXT.text(
        module="eagle2_5_vl", name="Eagle2_5_VLForConditionalGeneration", call="self.extract_feature(pixels)"
    )
    [problem] = problems_of(release_tree(RELEASE), text)
    assert (problem.code, "data-parallel" in problem.message) == ("VCG445", True)
    assert way_of(release_tree(RELEASE), f"{text}gates: {{modalities: not self.use_data_parallel}}\n").sites == 1


@pytest.mark.parametrize("release", ["0.20.0", "0.21.0"])
def test_releases_that_cut_the_output_themselves_are_refused(release: str, release_tree: Any) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of(LLAVA_NEXT.text()), release_tree(release))
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG442"]


@pytest.mark.parametrize(
    ("release", "inputs"),
    [
        # The manager reads the input key of every batch, so a selection has one.
        (
            "0.22.0",
            ["no_pixels=torch.empty(0)", 'no_pixels = {"no_pixels": torch.empty(0)}', "self._encode_units(buffers)"],
        ),
        ("0.23.0", ["values=units", "output_tokens=units * tokens or largest"]),
        ("0.26.0", ["values=units", "output_tokens=units * tokens or largest"]),
        ("0.27.0", ["values=units", 'path_output_tokens={"default": units * tokens}']),
    ],
)
def test_what_no_graph_serves_is_a_batch_of_its_own_before_named_paths(
    release: str, inputs: list[str], release_tree: Any
) -> None:
    _, mixin = prepare_port(port_of(LLAVA_NEXT.text()), release_tree(release)).changed
    assert mixin.after is not None
    text = mixin.after.decode()
    assert [part for part in inputs if part not in text] == []


def test_an_encoder_with_a_mask_is_called_with_it(release_tree: Any) -> None:
    """Whatever the order of the arguments: what stands in its place gets the pixels first."""
    aria = next(model for model in MODELS if model.module == "aria")
    turned = aria.text(call="self.vision_tower(patch_attention_mask=mask, pixel_values=pixels)")
    way = way_of(release_tree(RELEASE), turned)
    assert [station.units for station in way.stations] == [(("pixel_values", "patch_attention_mask"),)]
    [problem, note] = problems_of(
        release_tree(RELEASE), aria.text(call="self.vision_tower(pixel_values=pixels)", further="")
    )
    assert (problem.code, note.code) == ("VCG443", "VCG447")


# -- what becomes of the entry's result -------------------------------------------------------------------------------

ENTRY = "self.encode_all"


@pytest.mark.parametrize(
    ("body", "change"),
    [
        ("return self.encode_all(x)", None),
        ("y = self.encode_all(x)\nif y is None:\n    return []\nreturn y", None),
        ("y: object = self.encode_all(x)\nif not y or len(y) == 0: return []\nreturn y if x else (y, *y)", None),
        ("y = ()\nfor k in x:\n    z = self.encode_all(k)\n    y += tuple(z)\nreturn y", None),
        ("y = []\nz = self.encode_all(x)\ny.append(z)\ny.extend(self.other(x))\nreturn list(y)", None),
        ("y = []\nreturn y + self.encode_all(x)", None),
        ("return self.encode_all(x) * 2", "self.encode_all(x) * 2"),
        ("y = self.encode_all(x)\nreturn y.flatten(0, 1)", "y.flatten"),
        ("y = self.encode_all(x)\nz = y\nreturn self.norm(z)", "self.norm(z)"),
        ("y = self.encode_all(x)\ny += self.bias\nreturn y", "y += self.bias"),
        ("return self.encode_all(x) + self.bias", "self.encode_all(x) + self.bias"),
        ("y = self.encode_all(x)\nreturn -y", "-y"),
        ("y = self.encode_all(x)\nreturn y[::-1]", "y[::-1]"),
        ("return [z for z in self.encode_all(x)]", "for z in self.encode_all(x)"),
        ("self.last, y = self.encode_all(x)\nreturn y", "self.last, y = self.encode_all(x)"),
        ("return self.other(x)", "def embed_multimodal(self, x):"),
    ],
)
def test_what_becomes_of_the_result_of_an_entry(body: str, change: str | None) -> None:
    text = "def embed_multimodal(self, x):\n" + textwrap.indent(body, "    ")
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    found = find_change(function, ENTRY)
    assert (found is None) == (change is None)
    if found is not None:
        assert change is not None
        assert ast.unparse(found).strip().startswith(change)


@pytest.mark.parametrize(("release", "codes"), [("0.22.0", ["VCG449"]), ("0.33.0", [])])
def test_code_behind_an_entry_is_seen(release: str, codes: list[str], release_tree: Any) -> None:
    """PaliGemma of 0.22 scales in `embed_multimodal` what the entry makes: its port was wrong 44 times over."""
    text = shipped_path("paligemma").read_text().replace("self.embed_multimodal(**inputs)", PARSED)
    found = []
    try:
        way_of(release_tree(release), text)
    except DiagnosticError as error:
        found = [problem.code for problem in error.diagnostics]
    assert found == codes


# -- the proof --------------------------------------------------------------------------------------------------------

BEFORE = '''
class A:
    def run(self, x, *, scale=None):
        return self.encode_it(x, scale=scale)

    def encode_it(self, x, scale):
        """Args:
            x: Units.
        """
        # a comment
        y = self.tower(x, self.layer)
        return [y * s for s in scale]

    def embed_multimodal(self, **kwargs):
        """Text."""
        return self.run(**kwargs)
'''
AFTER = '''
class A:
    def run(self, x, *, scale=None, encode=None):
        return self.encode_it(x, scale=scale, encode=encode)

    def encode_it(self, x, scale, encode=None):
        """Args:
            x: Units.
            encode: Instead.
        """
        # a comment
        y = self.tower(x, self.layer) if encode is None else encode(x)
        return [y * s for s in scale]

    def embed_multimodal(self, **kwargs):
        return self._embed_multimodal(encode=None, **kwargs)

    def _embed_multimodal(self, encode=None, **kwargs):
        """Text."""
        return self.run(**kwargs, encode=encode)
'''
METHODS = frozenset({("A", "run"), ("A", "encode_it"), ("A", "embed_multimodal")})


def test_the_cut_is_proven() -> None:
    assert prove_cut(BEFORE, AFTER, METHODS, "a.py") == ()
    # Several arguments of the encoder may have an entry for each unit.
    with_layer = AFTER.replace("else encode(x)", "else encode(x, self.layer)")
    assert prove_cut(BEFORE, with_layer, METHODS, "a.py") == ()


@pytest.mark.parametrize(
    ("old", "new", "method"),
    [
        ('scale, encode=None):\n        """A', 'scale, encode=1):\n        """A', "encode_it"),
        ("            x: Units.\n", "", "encode_it"),
        ("*, scale=None, encode=None", "*, scale=None, encode=0", "run"),
        ("else encode(x)", "else encode(x, x)", "encode_it"),
        ("else encode(x)", "else encode(y)", "encode_it"),
        ("else encode(x)", "else encode()", "encode_it"),
        ("else encode(x)", "else encode(x, y)", "encode_it"),
        ("else encode(x)", "else encode(x, at=1)", "encode_it"),
        ("else encode(x)", "else decode(x)", "encode_it"),
        ("if encode is None", "if encode is not None", "encode_it"),
        ("if encode is None", "if encode == None", "encode_it"),
        ("if encode is None", "if not encode", "encode_it"),
        ("if encode is None", "if x is None", "encode_it"),
        ("self.tower(x, self.layer) if", "self.tower(x) if", "encode_it"),
        ("self.tower(x, self.layer) if", "(self.tower) if", "encode_it"),
        ("scale=scale, encode=encode)", "scale=scale, encode=None)", "run"),
        ("scale=scale, encode=encode)", "scale=None, encode=encode)", "run"),
        ("y * s for s", "y + s for s", "encode_it"),
        ("y * s for s in scale]", "y * s for s in scale if encode]", "encode_it"),
        ("(self, x, scale, encode=None)", "(self, scale, x, encode=None)", "encode_it"),
        ("return self._embed_multimodal(encode=None, **kwargs)", "return self._embed_multimodal()", "embed_multimodal"),
        ("return self._embed_multimodal(encode=None, **kwargs)", "return self.run(**kwargs)", "embed_multimodal"),
        ('"""Text."""', '"""Other."""', "embed_multimodal"),
        ("def _embed_multimodal", "def _embed_other", "embed_multimodal"),
        ("def embed_multimodal(self, **kwargs)", "def embed_multimodal(self, x=1, **kwargs)", "embed_multimodal"),
        ("    def run(", "    def ran(", "run"),
    ],
)
def test_another_change_is_refused(old: str, new: str, method: str) -> None:
    after = AFTER.replace(old, new, 1)
    assert after != AFTER
    ast.parse(after)
    assert [problem.code for problem in prove_cut(BEFORE, after, METHODS, "a.py") if method in problem.message] == [
        "VCG646"
    ]


@pytest.mark.parametrize(
    ("callee", "codes"),
    [
        ("(self.tower if encode is None else encode)", []),
        ("(self.tower if encode is not None else encode)", ["VCG646"]),
        ("(self.tower if x is None else encode)", ["VCG646"]),
        ("(self.other if encode is None else encode)", ["VCG646"]),
        ("(self.tower if encode is None else decode)", ["VCG646"]),
        ("(encode if encode is None else self.tower)", ["VCG646"]),
        ("(encode or self.tower)", ["VCG646"]),
    ],
)
def test_all_arguments_may_be_handed_over(callee: str, codes: list[str]) -> None:
    after = AFTER.replace("self.tower(x, self.layer) if encode is None else encode(x)", f"{callee}(x, self.layer)")
    assert after != AFTER
    assert [problem.code for problem in prove_cut(BEFORE, after, METHODS, "a.py")] == codes


def test_all_arguments_are_the_same() -> None:
    after = AFTER.replace(
        "self.tower(x, self.layer) if encode is None else encode(x)", "(self.tower if encode is None else encode)(x)"
    )
    assert [problem.code for problem in prove_cut(BEFORE, after, METHODS, "a.py")] == ["VCG646"]


def test_a_method_that_means_two_things_on_the_way_is_refused(copied_tree: Any) -> None:
    """One method encodes by `tower` twice where it is given that, and once where it is given another part."""
    path = "vllm/model_executor/models/twins.py"
    tree = copied_tree(RELEASE)
    tree.path(path).write_text(
        "class Model:\n"
        "    def both(self, part, x):\n        return self.tower(x) + part(x)\n"
        "    def run(self, x):\n        return self.both(self.tower, x) + self.both(self.other, x)\n"
    )
    call = port_of(LLAVA_NEXT.text(call="self.tower(pixels)")).forward.call
    place = port_of(LLAVA_NEXT.text()).span("")
    with pytest.raises(DiagnosticError) as caught:
        find_way(tree.reread(), path, "Model", {"self.run": place}, call, place)
    [problem] = caught.value.diagnostics
    assert (problem.code, "`both`" in problem.message) == ("VCG443", True)


def test_a_plan_made_again_rewrites_no_method_that_is_the_same(release_tree: Any, monkeypatch: Any) -> None:
    """`plan --watch`: half of the time of a plan went into libcst, for methods that had not changed."""
    tree = release_tree(RELEASE)
    text = MODELS[0].text()
    first = cut_edits(tree, way_of(tree, text))

    def parse(source: str) -> None:
        raise AssertionError(f"rewritten again: {source[:40]}")

    monkeypatch.setattr("libcst.parse_module", parse)
    assert cut_edits(tree, way_of(tree, text)) == first
    with pytest.raises(AssertionError, match="rewritten again"):  # another annotation is another text
        cut_edits(tree, way_of(tree, text), "list[torch.Tensor]")
