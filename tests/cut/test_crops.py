"""Whole images and their crops through one chain of encoders: on the real DeepSeek-OCR 1 and 2, and every refusal."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from changed_ports import port_of
from port_mutants import Mutant, planted
from proven import assert_right

from scaffold.adapters.outputs import Source, render_outputs
from scaffold.adapters.proof import prove_adapter
from scaffold.adapters.source import render_adapter
from scaffold.cut import cut_at_load, prove_cut
from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.plan.entries import docs_row
from scaffold.plan.methods import refusal
from scaffold.protocol import GENERATIONS, TableAnchor, known_profile
from scaffold.workflow import prepare_port, prove_numerics

RELEASE = "0.33.0"
#: The last one without upstream's port of DeepSeek-OCR.
PRISTINE = "0.23.0"
MODELS = "vllm/model_executor/models"
TWO_PATHS = TableAnchor("", 0, ("Architecture", "Dual-Path Graph"), (), yes="yes", no="no")
FILE = f"{MODELS}/deepseek_ocr2.py"
CALL = "(self._encode_pixels if encode is None else encode)"
WHOLE, LOCAL = "self.sam_model(image_tensor)", "self.sam_model(patches)"


# -- static -----------------------------------------------------------------------------------------------------------


@pytest.mark.trees
@pytest.mark.parametrize("model", ["deepseek_ocr", "deepseek_ocr2"])
def test_the_statements_become_one_method(model: str, release_tree: Any) -> None:
    port = prepare_port(port_of(model), release_tree(RELEASE), replace=True)
    changed = {change.path: change for change in port.changed}
    change = changed[f"{MODELS}/{model}.py"]
    before, after = ((text or b"").decode() for text in (change.before, change.after))
    entry, _, method = after.partition("    def _encode_pixels(self, image_tensor: torch.Tensor) -> torch.Tensor:\n")
    method = method.partition("    def ")[0]
    assert entry.count(f"features = {CALL}(image_tensor)") == 1
    assert after.count(f"features = {CALL}(patches)") == 1
    assert method.endswith("        features = self.projector(" + method.rpartition("self.projector(")[2])
    assert method.rstrip().endswith("return features")
    # The places of a pristine class: DeepSeek-OCR's own port has them once more.
    assert (WHOLE in before, LOCAL in before, LOCAL in after) == (True, True, False)
    assert [text.count(WHOLE) for text in (entry, method)] == [0, 1]
    assert after.count("encode: Callable[[torch.Tensor], torch.Tensor] | None = None") == 4
    assert '"pixel_values": (3, 1024, 1024),' in after
    assert f"{MODELS}/encoder_cudagraph_paths.py" in changed


@pytest.mark.trees
def test_a_second_port_finds_the_method(release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    done = {change.path: change.after or b"" for change in prepare_port(port_of("deepseek_ocr2"), tree).changed}
    again = prepare_port(port_of("deepseek_ocr2"), tree.with_files(done), replace=True)
    assert [change.path for change in again.changed] == []
    assert again.plan.way is not None
    assert again.plan.way.sites == 2


@pytest.mark.trees
def test_one_call_stays_where_it_is(release_tree: Any) -> None:
    """Without `through`, the encoder's call is replaced in each of its places: that of another chain is no method."""
    port = port_of("deepseek_ocr2").replace(forward=port_of("deepseek_ocr2").forward.replace(through=None))
    changed = {change.path: change for change in prepare_port(port, release_tree(RELEASE)).changed}
    after = (changed[FILE].after or b"").decode()
    assert "self.sam_model(image_tensor) if encode is None else encode(image_tensor)" in after
    assert "self.sam_model(patches) if encode is None else encode(patches)" in after
    assert "return self.sam_model(inputs[" in after
    assert "_encode_pixels" not in after


SAM = "        global_features_1 = self.sam_model(image_tensor)\n"
PROJECTOR = "        features = self.projector(global_features_2)\n"


@pytest.mark.trees
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "self.qwen2_model(local_features)",
            "self.qwen2_model(local_features * 2)",
            "it is not the same as in `DeepseekOCR2ForCausalLM._encode_global_features`",
        ),
        (SAM, f"{SAM}        global_features_1 += 1\n", "a statement between the calls sets no variable"),
        (SAM, f"{SAM}        self.last = global_features_1\n", "a statement between the calls sets no variable"),
        (SAM, SAM.replace("image_tensor)", "image_tensor * 1)"), "the pixels are no variable"),
        (SAM, f"        n = 2\n{SAM}        more = n\n", "it also reads `n`"),
        (SAM, f"        import math as n\n{SAM}        more = n\n", "it also reads `n`"),
        (SAM, f"{SAM}        more = [one for one in global_features_1]\n", "it has variables of its own, or waits"),
        (PROJECTOR, f"{PROJECTOR}        more = global_features_1\n", "`global_features_1` is used outside of it, too"),
        (SAM, f"        global IMAGE_SIZE\n{SAM}", "the method sets variables of others"),
        (
            PROJECTOR,
            f"{PROJECTOR}{SAM}{PROJECTOR}",
            "the encoder runs in another place of the method, too",
        ),
        (
            "    def _encode_global_features(",
            "    def _encode_pixels(self): ...\n\n    def _encode_global_features(",
            "`DeepseekOCR2ForCausalLM` has a method `_encode_pixels` already",
        ),
    ],
)
def test_what_no_method_of_its_own_can_be(old: str, new: str, reason: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    text = tree.read(FILE)
    assert old in text
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("deepseek_ocr2"), tree.with_files({FILE: text.replace(old, new, 1).encode()}))
    problem = caught.value.diagnostics[0]
    assert problem.code == "VCG448"
    assert problem.message.endswith(f" cannot be captured: {reason}")
    assert "deepseek_ocr2.py:" in str(problem.span)


@pytest.mark.trees
def test_a_call_that_no_last_one_follows_is_left(release_tree: Any) -> None:
    """Whole images then run eagerly, in the model's own code around the graphs of crops."""
    tree = release_tree(RELEASE)
    text = tree.read(FILE).replace(PROJECTOR, "        features = self.other(global_features_2)\n")
    port = prepare_port(port_of("deepseek_ocr2"), tree.with_files({FILE: text.encode()}))
    way = port.plan.way
    assert way is not None
    [note] = way.notes
    assert (note.code, way.sites) == ("VCG447", 1)
    assert note.message == f"`{WHOLE}` is not cut: no call of `self.projector` follows in its block"


@pytest.mark.trees
@pytest.mark.parametrize(
    "changes",
    [{"forward.through": "self.other"}, {"forward.call": "self.qwen2_model.model(pixels)"}],
)
def test_a_chain_that_is_not_there_is_refused(changes: dict[str, Any], release_tree: Any) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("deepseek_ocr2", changes), release_tree(RELEASE))
    assert caught.value.diagnostics[0].code == "VCG443"


def test_releases_with_a_hook_for_results_have_it() -> None:
    found = {
        generation.name: refusal(port_of("deepseek_ocr2"), known_profile(generation).dialect)
        for generation in GENERATIONS
    }
    assert {name: problem.code for name, problem in found.items() if problem} == {"v0_20": "VCG442"}


@pytest.mark.trees
@pytest.mark.parametrize(
    ("release", "mixin", "note"),
    [("0.22.0", "units", 1), ("0.24.0", "units", 1), ("0.26.0", "units", 1), ("0.27.0", "paths", 0)],
)
def test_crops_have_graphs_where_ports_name_paths(release: str, mixin: str, note: int, release_tree: Any) -> None:
    port = port_of("deepseek_ocr")
    prepared = prepare_port(port, release_tree(release), replace=True)
    text = {change.path: (change.after or b"").decode() for change in prepared.changed}
    assert f"{MODELS}/encoder_cudagraph_{mixin}.py" in text
    assert ("# No graph holds crops." in text[f"{MODELS}/deepseek_ocr.py"]) == bool(note)
    notes = [problem for problem in prepared.notes if problem.code == "VCG447"]
    assert [problem.message.partition(":")[0] for problem in notes] == ["crops run eagerly"] * note
    assert [problem.span for problem in notes] == [port.span("crops.pixels")] * note
    assert docs_row(prepared.plan.port, TWO_PATHS)[-1] == ("no" if note else "yes")


@pytest.mark.trees
@pytest.mark.parametrize("release", ["0.22.0", "0.26.0"])
def test_a_part_that_waits_for_the_gpu_is_refused(release: str, release_tree: Any) -> None:
    """Before 0.27 the decoder of DeepSeek-OCR 2 makes its mask on the host, token by token."""
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("deepseek_ocr2"), release_tree(release))
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG448"
    assert problem.message == (
        "`(type_ids == 0).nonzero(as_tuple=True)` waits for the GPU in a part of "
        "`DeepseekOCR2ForCausalLM._encode_global_features`, where a graph cannot"
    )
    assert "deepencoder2.py:174" in str(problem.span)


@pytest.mark.trees
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x.sum().item()", "`x.sum().item()` waits for the GPU in a part of `{}`, where a graph cannot"),
        ("x.sum().cpu()", "`x.sum().cpu()` waits for the GPU in a part of `{}`, where a graph cannot"),
        ("torch.unique(x)", "`torch.unique(x)` waits for the GPU in a part of `{}`, where a graph cannot"),
        ("bool(x.sum() > 0)", "`bool() of a tensor` in a part of `{}`: waits for the device and bakes the value"),
        (
            "1 if x.sum() > 0 else 2",
            "`branch on data` in a part of `{}`: the branch taken at capture is the only one replayed",
        ),
        ("x.shape[0]", None),
        ("bool(x.shape[0] > 0)", None),
    ],
)
def test_a_layer_that_no_graph_holds_is_refused(code: str, message: str | None, release_tree: Any) -> None:
    """A function makes the layers of DeepSeek-OCR's first encoder, so no interpretation of the calls gets there."""
    tree = release_tree("0.33.0")
    path = f"{MODELS}/deepencoder.py"
    text, header = tree.read(path), "    def forward(self, x: torch.Tensor) -> torch.Tensor:\n"
    assert text.count(header) > 3
    changed = tree.with_files({path: text.replace(header, f"{header}        _waits = {code}\n").encode()})
    if message is None:
        assert prepare_port(port_of("deepseek_ocr"), changed, replace=True).changed
        return
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("deepseek_ocr"), changed, replace=True)
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG448"
    assert problem.message == message.format("DeepseekOCRForCausalLM._encode_global_features")
    assert "deepencoder.py" in str(problem.span)


def test_the_list_of_adapters_says_what_has_graphs() -> None:
    [page] = [
        file
        for file in render_outputs([Source("deepseek_ocr", port_of("deepseek_ocr"))]).files
        if file.path == "docs/adapters.md"
    ]
    [row] = [line for line in page.text.split("\n") if "`deepseek_ocr`" in line and line.startswith("|")]
    marks = [cell.strip() for cell in row.strip("| ").split("|")[-4:]]
    assert [mark.partition(" ")[2] for mark in marks] == [*["(whole images only)"] * 2, "", ""]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fields.images_crop": "batched"}, "`images_crop` cannot be cut into the crops of each item"),
        ({"crops.pixels": "pixel_values"}, "`pixel_values` cannot be cut into the crops of each item"),
        ({"fields.images_crop.sizes": "other"}, "`other`, the sizes of `images_crop`, is no input"),
    ],
)
def test_crops_lie_behind_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        port_of("deepseek_ocr2", changes)
    problem = caught.value.diagnostics[0]
    assert (problem.code, message in problem.message) == ("VCG343", True)


@pytest.mark.trees
def test_an_adapter_does_the_same_when_a_model_is_made() -> None:
    text, mixin = render_adapter(port_of("deepseek_ocr2"), known_profile(GENERATIONS[-1]))
    assert "call='self.sam_model(pixels)'" in text or 'call="self.sam_model(pixels)"' in text
    assert "through='self.projector'" in text or 'through="self.projector"' in text
    assert mixin is not None
    assert "from .encoder_cudagraph_paths import EncoderPathsMixin" in text


TINY = """\
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = lambda x: x + 1
        self.last = lambda x: x * 3

    def run(self, image, crops):
        return self.whole(image), self.local(crops)

    def whole(self, image):
        one = self.first(image)
        y = self.last(one)
        return -y

    def local(self, crops):
        if not crops:
            return None
        crop = self.first(crops)
        crop = self.last(crop)
        return [crop]
"""


def test_a_running_model_gets_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    (tmp_path / "tiny_chain.py").write_text(TINY)
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = import_module("tiny_chain").Model
    model = cls()
    cut_at_load(model, cls, entries=["self.run"], call="self.first(pixels)", through="self.last")
    assert (model.run(2, 4), model._encode_pixels(5)) == ((-9, [15]), 18)
    assert (model.run(2, 4, encode=lambda x: x), model.run(2, 0, encode=lambda x: x)) == ((-2, [4]), (-2, None))
    assert not hasattr(cls(), "_encode_pixels")
    with pytest.raises(DiagnosticError, match="VCG462"):
        cut_at_load(cls(), cls, entries=["self.run"], call="self.first(pixels)", through="self.other")


# -- the proof --------------------------------------------------------------------------------------------------------


BEFORE = """\
class A:
    def whole(self, image, spare):
        one = self.sam(image)
        two = self.clip(image, one)
        y = self.projector(cat(one, two))
        return self.newline(y)

    def local(self, crops, shape):
        if shape:
            a = self.sam(crops)
            b = self.clip(crops, a)
            a = self.projector(cat(a, b))
            return [a]
"""
AFTER = f"""\
class A:
    def whole(self, image, spare, encode=None):
        y = {CALL}(image)
        return self.newline(y)

    def _encode_pixels(self, image: torch.Tensor) -> torch.Tensor:
        \"\"\"Features.\"\"\"
        one = self.sam(image)
        two = self.clip(image, one)
        y = self.projector(cat(one, two))
        return y

    def local(self, crops, shape, encode=None):
        if shape:
            a = {CALL}(crops)
            return [a]
"""
BOTH = frozenset({("A", "whole"), ("A", "local")})


def test_a_moved_chain_is_proven() -> None:
    assert prove_cut(BEFORE, AFTER, BOTH, "a.py") == ()
    assert prove_cut(AFTER, AFTER, BOTH, "a.py") == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"y = {CALL}(image)", f"y = {CALL}(spare)"),  # other pixels
        (f"a = {CALL}(crops)", f"a = {CALL}(shape)"),
        (f"a = {CALL}(crops)", f"b = {CALL}(crops)"),  # the result lands elsewhere
        (f"a = {CALL}(crops)", f"a = {CALL}(crops, shape)"),
        (f"a = {CALL}(crops)", "a = self._encode_pixels(crops)"),
        (f"            a = {CALL}(crops)\n", ""),
        ("self, image: torch.Tensor)", "self, image: torch.Tensor, more=None)"),
        ("self, image: torch.Tensor)", "own, image: torch.Tensor)"),
        ("    def _encode_pixels", "    @cache\n    def _encode_pixels"),
        ("self.clip(image, one)", "self.clip(one, image)"),  # another statement
        ("self.sam(image)", "self.other(image)"),
        ("cat(one, two)", "cat(two, one)"),
        ("        two = self.clip(image, one)\n", ""),
        ("        return y\n", "        return two\n"),
        ("        return y\n", "        return -y\n"),
        ('"""Features."""\n', '"""Features."""\n        image = image + 1\n'),
        ("    def _encode_pixels", "    def _encode_others"),
    ],
)
def test_another_move_is_refused(old: str, new: str) -> None:
    after = AFTER.replace(old, new, 1)
    assert after != AFTER
    ast.parse(after)
    assert "VCG646" in [problem.code for problem in prove_cut(BEFORE, after, BOTH, "a.py")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return self.newline(y)", "return self.newline(y + two)"),  # a value that is no longer there
        ("return self.newline(y)", "return self.newline(y + one)"),
        ("def whole(self, image, spare", "def whole(self, image, one"),  # of the caller
        (
            "        return self.newline(y)",
            "        def more():\n            return one\n        return self.newline(y)",
        ),
    ],
)
def test_values_that_the_rest_has_may_not_move(before: str, after: str) -> None:
    """The run itself is the same in both."""
    texts = [text.replace(before, after, 1) for text in (BEFORE, AFTER)]
    assert texts != [BEFORE, AFTER]
    assert [problem.code for problem in prove_cut(*texts, BOTH, "a.py")] == ["VCG646"]


@pytest.mark.parametrize(
    "line",
    [
        "two = self.clip(image, spare)",  # a local name, which is a global one in the method
        "two = self.clip(image, lambda: one)",
        "two = [one for one in image]",
        "two += self.clip(image, one)",
        "two, three = self.clip(image, one)",
        "self.two = self.clip(image, one)",
    ],
)
def test_a_statement_that_means_something_else_in_a_method_is_refused(line: str) -> None:
    texts = [text.replace("two = self.clip(image, one)", line, 1) for text in (BEFORE, AFTER)]
    assert "VCG646" in [problem.code for problem in prove_cut(*texts, BOTH, "a.py")]


def test_a_function_inside_has_variables_of_its_own() -> None:
    inner = "        def more(spare):\n            return spare\n"
    moved = inner.replace("return spare", "y = self.sam(image)\n            return y")
    before = BEFORE.replace("        one = self", f"{moved}        one = self", 1)
    after = AFTER.replace(f"        y = {CALL}(image)\n", f"{moved}        y = {CALL}(image)\n", 1)
    assert prove_cut(before, after, BOTH, "a.py") == ()
    other = after.replace("y = self.sam(image)\n            return y", f"y = {CALL}(image)\n            return y")
    assert "VCG646" in [problem.code for problem in prove_cut(before, other, BOTH, "a.py")]


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepseek_ocr", "deepseek_ocr2"])
def test_the_port_equals_the_pristine_tree(model: str, release_tree: Any) -> None:
    """Also where all crops of an image are zeros, which the model leaves out, and in another resolution."""
    [report] = prove_numerics(port_of(model), release_tree(RELEASE), tails=("fa3",))
    assert_right(report, 40, 1)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.25.0", "0.26.0"])
def test_unlimited_ocr_has_graphs_of_whole_images_before_ports_name_paths(release: str, release_tree: Any) -> None:
    tree = release_tree(release)
    text = Path("scaffold/descriptor/shipped/deepseek_ocr.yaml").read_text("utf-8")
    other = {"module: deepseek_ocr, class: DeepseekOCR": "module: unlimited_ocr, class: UnlimitedOCR"}
    for old, new in other.items():
        assert old in text
        text = text.replace(old, new)
    port = load_descriptor_text(text, "unlimited_ocr.yaml")
    [report] = prove_numerics(port, tree, recipe="unlimited_ocr", tails=("fa3",))
    assert_right(report, 20)


@pytest.mark.lab
@pytest.mark.slow
def test_an_adapter_equals_its_release(tmp_path: Path, release_tree: Any) -> None:
    text, mixin = render_adapter(port_of("deepseek_ocr2"), known_profile(GENERATIONS[-1]))
    assert mixin is not None
    (tmp_path / "adapter.py").write_text(text)
    (tmp_path / f"{mixin.module}.py").write_text(mixin.source)
    report = prove_adapter("deepseek_ocr2", tmp_path / "adapter.py", release_tree(RELEASE), tail="fa3")
    assert_right(report, 40)


MUTANTS = (
    Mutant("crops of whole images", 'int(size.prod()) if size.prod() >= 2 else 0', "int(size.prod())", "VCG654"),
    Mutant("no step to the next", "num_given[path] = start + len(units)", "num_given[path] = len(units)", "VCG657"),
    Mutant("units of the other path", "if other == path:", "if other != path:", "VCG650"),
    Mutant("units in another order", "zip(*recorded)", "zip(*recorded[::-1])", "VCG650"),
    Mutant("another side", "(3, 768, 768)", "(3, 640, 640)", "VCG654"),
)  # fmt: skip


test_a_wrong_port_is_rejected = planted(MUTANTS, FILE, RELEASE, "deepseek_ocr2", sampled=False)


#: Mistakes where whole images alone have graphs.
WHOLE_ALONE = (
    Mutant("crops of another side", "(3, 640, 640)", "(3, 512, 512)", "VCG657"),
    Mutant("graphs of another side", "(num_units, 3, 1024, 1024)", "(num_units, 3, 512, 512)", "VCG657"),
    Mutant("crops in the place of whole images", "self._encode_pixels(units)", "encode(units)", "VCG657"),
    Mutant(
        "crops of zeros behind the replay",
        "self._encode_pixels(units)",
        "self._encode_pixels(torch.zeros_like(units))",
        "VCG650",
    ),
    Mutant(
        "whole images in another order",
        "super()._record_encoder_units(mm_kwargs)",
        "{key: value.flip(0) for key, value in super()._record_encoder_units(mm_kwargs).items()}",
        "VCG650",
    ),
)


test_a_wrong_port_of_whole_images_is_rejected = planted(
    WHOLE_ALONE, f"{MODELS}/deepseek_ocr.py", PRISTINE, "deepseek_ocr", sampled=False
)


#: Other values of DeepSeek-OCR's descriptor: sides that no image has, and a smallest grid of crops that is too large.
WRONG = ({"let.image_size": 512}, {"let.base_size": 640}, {"fields.images_crop.least": 3})
CODES = ("VCG657", "VCG657", "VCG654")


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize(("changes", "code"), [*zip(WRONG, CODES, strict=True)], ids=str)
def test_a_wrong_descriptor_is_rejected(changes: dict[str, Any], code: str, release_tree: Any) -> None:
    """Encoders that take any side: a wrong one makes no wrong result, only no replay."""
    [report] = prove_numerics(port_of("deepseek_ocr", changes), release_tree(RELEASE), tails=("fa3",))
    assert code in [problem.code for problem in report.diagnostics()], "\n".join(report.lines())
