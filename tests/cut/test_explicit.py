"""Explicit ports: the form, the methods that are extracted, what is refused, and the proof that puts them back."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from scaffold.cut import prove_extraction
from scaffold.descriptor import CutPort, load_descriptor_text
from scaffold.descriptor.load import shipped_path
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.edit import PutMethods
from scaffold.protocol import SourceTree
from scaffold.workflow import find_edited, load_port, prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MODELS = "vllm/model_executor/models"
LLAVA_NEXT = f"{MODELS}/llava_next.py"
CLASS = "LlavaNextForConditionalGeneration"
#: The methods that are made of parts of others, and where from.
EXPLICIT = {
    "llava_next": {"_merge_patch_embeddings": "_process_image_input"},
    "paligemma": {},
}
#: Words that no explicit port has: a second way through the model's code, and state beside its `__init__`.
FOREIGN = (
    "encode=",
    "encode: Callable",
    "Mixin",
    "except",
    "raise",
    "inspect",
    "pytree",
    "mock",
    "__dict__",
    "vars(",
    "setattr",
)


def port_of(name: str, *changes: tuple[str, str]) -> CutPort:
    """A shipped descriptor with other text."""
    path = shipped_path(name)
    assert path is not None
    text = path.read_text("utf-8")
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    port = load_descriptor_text(text, f"{name}.yaml")
    assert isinstance(port, CutPort)
    return port


def deepseek(*changes: tuple[str, str]) -> CutPort:
    """DeepSeek-VL2 with an explicit port, which the shipped descriptor leaves out."""
    section = (
        "explicit:\n  call: self.projector(self.vision.forward_features(pixels))\n  after: _merge_patch_embeddings\n"
        "  tokens: ceil_div(side // self.vision_config.patch_size, self.projector_config.downsample_ratio) ** 2\n"
    )
    return port_of("deepseek_vl2", *changes, ("output:", f"{section}output:"))


def ported_text(tree: SourceTree, port: Any) -> str:
    return text_of(prepare_port(port, tree, replace=True))


def text_of(prepared: Any) -> str:
    [change] = [one for one in prepared.package if "/models/" in one.path]
    assert change.after is not None
    return change.after.decode()


def with_code(tree: SourceTree, before: str, after: str) -> SourceTree:
    """The release with other code in LLaVA-NeXT's file."""
    text = tree.read(LLAVA_NEXT)
    assert text.count(before) == 1
    return tree.with_files({LLAVA_NEXT: text.replace(before, after).encode()})


def added_lines(before: str, after: str) -> list[str]:
    old = before.splitlines()
    return [line for line in after.splitlines() if line.strip() and line not in old]


# -- the form ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPLICIT)
def test_a_port_is_one_file_without_a_second_way_through_the_model(name: str, release_tree: Any, planned: Any) -> None:
    prepared = planned(name)
    [change] = [one for one in prepared.package if "/models/" in one.path]
    before, after = release_tree(RELEASE).read(change.path), text_of(prepared)
    added = added_lines(before, after)
    assert len(added) <= 200
    assert [word for word in FOREIGN if word in "\n".join(added)] == []
    methods = {node.name for node in ast.walk(ast.parse(after)) if isinstance(node, ast.FunctionDef)}
    demanded = {method.name for method in prepared.plan.profile.methods if not method.has_default}
    assert demanded - prepared.plan.profile.uncalled <= methods
    assert {fact.evidence.rpartition(": ")[2]: fact.value.rpartition(".")[2] for fact in prepared.plan.facts
            if fact.name == "extracted from"} == EXPLICIT[name]  # fmt: skip


@pytest.mark.parametrize("name", EXPLICIT)
def test_a_second_run_finds_nothing_to_do(name: str, planned: Any, ported: Any) -> None:
    port, prepared = load_port(name), planned(name)
    again = prepare_port(port, ported(port, prepared))
    assert not again.changed
    [methods] = [edit for file in again.plan.files for edit in file.edits if isinstance(edit, PutMethods)]
    assert methods.source == next(
        edit.source for file in prepared.plan.files for edit in file.edits if isinstance(edit, PutMethods)
    )


def test_an_edit_of_an_extracted_method_is_drift(release_tree: Any, planned: Any, ported: Any) -> None:
    """A plan of the ported tree takes the method for the model's own code."""
    port, release = load_port("llava_next"), release_tree(RELEASE)
    tree = ported(port, planned("llava_next"))
    assert find_edited(port, tree, release) is None
    head, name, body = tree.read(LLAVA_NEXT).partition("def _merge_patch_embeddings(")
    assert name
    by_hand = body.replace("if image_sizes is None:", "if not image_sizes:", 1)
    edited = tree.with_files({LLAVA_NEXT: (head + name + by_hand).encode()})
    drift = find_edited(port, edited, release)
    assert not prepare_port(port, edited).changed
    assert drift is not None
    assert drift.message == f"`{CLASS}._merge_patch_embeddings` in the tree is not what llava_next.yaml generates"
    assert drift.notes[0] == "the tree has `if not image_sizes:`"


def test_a_graph_holds_calls_of_the_model_which_keeps_them(release_tree: Any, planned: Any) -> None:
    text, before = text_of(planned("llava_next")), release_tree(RELEASE).read(LLAVA_NEXT)
    begin, end = "    def _process_image_pixels(", "    def _process_image_input("
    assert before[before.index(begin) : before.index(end)] in text
    held = 'self._image_pixels_to_features(self.vision_tower, inputs["pixel_values"])'
    assert f"self.multi_modal_projector(\n            {held}\n        )" in text
    assert "return self._merge_patch_embeddings(image_input, patch_embeddings)" in text
    assert "image_input = self._parse_and_validate_image_input(**batch_mm_kwargs)" in text
    assert "self._merge_patch_embeddings(image_input, features.split(num_patches))" in text
    assert 'features = outputs["default"][: sum(num_patches)]\n' in text


def test_an_axis_that_the_model_takes_away_is_taken_of_what_a_graph_gets(release_tree: Any) -> None:
    path, tree = f"{MODELS}/llava.py", release_tree(RELEASE)
    kept = 'pixel_values = inputs["pixel_values"]\n'
    text = tree.read(path).replace(kept, f"{kept}        pixel_values = pixel_values.flatten(0, -4)\n")
    assert text.count(".flatten(0, -4)") == text.count(kept) > 0
    plan = prepare_port(load_port("llava"), tree.with_files({path: text.encode()}), replace=True).plan
    assert plan.single
    assert 'mm_kwargs["pixel_values"].flatten(0, -4)' in plan.methods.source


def test_a_graph_converts_pixels_as_the_model_does(release_tree: Any) -> None:
    tree, path = release_tree(RELEASE), f"{MODELS}/paligemma.py"
    text = tree.read(path)
    begin = text.index('        if image_input["type"] == "image_embeds":')
    end = text.index("    def embed_multimodal")
    body = (
        "        pixel_values = image_input['data'].to(dtype=self.config.dtype)\n\n"
        "        return self.multi_modal_projector(\n"
        "            self._image_pixels_to_features(self.vision_tower, pixel_values)\n        )\n\n"
    )
    changed = tree.with_files({path: (text[:begin] + body + text[end:]).encode()})
    found = ported_text(changed, load_port("paligemma"))
    assert body in found
    assert 'inputs["pixel_values"].to(dtype=self.config.dtype)' in found


GRID = "batch_mm_kwargs['images_spatial_crop']"
PARSED = "image_input['images_spatial_crop']"
TAKEN = 'images_spatial_crop = kwargs.pop("images_spatial_crop", None)'
SIZES = "mm_kwargs['images_spatial_crop']"
GRIDS = 'images_spatial_crop: Annotated[torch.Tensor, TensorShape("bn", 2)]'
GIVEN = "images_spatial_crop=images_spatial_crop,\n                resolve"


@pytest.mark.parametrize(
    ("before", "after", "handed"),
    [
        (TAKEN, TAKEN, GRID),
        (TAKEN, TAKEN.replace("pop", "get"), GRID),
        # Another value than the input.
        (TAKEN, f"{TAKEN}\n        images_spatial_crop = images_spatial_crop + 0", PARSED),
        (TAKEN, TAKEN.replace("kwargs.", "self.kept."), PARSED),
        (GIVEN, GIVEN.replace("=images_spatial_crop", "=images_spatial_crop + self.kept"), PARSED),
        (GIVEN, GIVEN.replace("=images_spatial_crop", "=own(images_spatial_crop)"), PARSED),
        # What it makes of the input, by what the file of the port imports.
        (GIVEN, GIVEN.replace("=images_spatial_crop", "=images_spatial_crop + 0"), f"{GRID} + 0"),
        (
            GIVEN,
            GIVEN.replace("=images_spatial_crop", "=torch.cat([x for x in images_spatial_crop])"),
            f"torch.cat([x for x in {GRID}])",
        ),
        # A class whose constructor may change what it gets.
        (f"    {GRIDS}", f"    def validate(self) -> None:\n        pass\n\n    {GRIDS}", PARSED),
    ],
)
def test_an_input_that_the_parser_hands_on_is_not_parsed(
    before: str, after: str, handed: str, release_tree: Any
) -> None:
    tree = release_tree(RELEASE)
    path = f"{MODELS}/deepseek_vl2.py"
    text = tree.read(path)
    assert before in text
    found = ported_text(tree.with_files({path: text.replace(before, after).encode()}), deepseek())
    calls = [ast.unparse(node.args[0]) for node in ast.walk(ast.parse(found))
             if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._merge_patch_embeddings"]  # fmt: skip
    assert handed in calls
    assert ("image_input = self._parse_and_validate_image_input(**batch_mm_kwargs)" in found) == (handed == PARSED)


OVIS = """
schema: 1
model: {module: ovis, class: Ovis}
layout: cut
modalities:
  image: {pixels: pixel_values, entry: self._process_image_input(self._parse_and_validate_image_input(**inputs))}
fields: {pixel_values: batched, grids: batched, indicator_tokens: batched}
let: {side: self.config.visual_tokenizer_config.backbone_config.image_size}
pixels: {shape: [3, side, side]}
forward: {call: self.visual_tokenizer(pixels)}
explicit:
  call: self.vte(self.visual_tokenizer(pixels))
  tokens: ceil_div(side // 14, self.config.visual_tokenizer_config.hidden_stride) ** 2
  after: _merge_patch_embeddings
output: {hidden_size: self.config.text_config.hidden_size}
"""
COUNTS = "patches_per_image=[x.shape[0] for x in pixel_values]"


@pytest.mark.parametrize(
    ("counts", "handed"),
    [
        (COUNTS, "num_patches"),
        (COUNTS.replace("x.shape[0]", "x.shape[1]"), "[x.shape[1] for x in batch_mm_kwargs['pixel_values']]"),
        (COUNTS.replace("in pixel_values", "in indicator_tokens"),
         "[x.shape[0] for x in batch_mm_kwargs['indicator_tokens']]"),
    ],
)  # fmt: skip
def test_units_are_counted_once_and_pixels_joined_once(counts: str, handed: str, release_tree: Any) -> None:
    tree, path = release_tree(RELEASE), f"{MODELS}/ovis.py"
    text = tree.read(path)
    assert COUNTS in text
    port = load_descriptor_text(OVIS, "ovis.yaml")
    found = ported_text(tree.with_files({path: text.replace(COUNTS, counts).encode()}), port)
    [call] = [node for node in ast.walk(ast.parse(found))
              if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._merge_patch_embeddings"
              and len(node.args) == 3 and ast.unparse(node.args[2]) == "features"]  # fmt: skip
    indicators = "flatten_bn(batch_mm_kwargs['indicator_tokens'], concat=True)"
    assert [ast.unparse(one) for one in call.args[:2]] == [handed, indicators]


@pytest.mark.parametrize(
    ("field", "counts"),
    [
        ("{sizes: images_spatial_crop, extra: 1}", f"[n + 1 for n in {SIZES}.prod(-1).tolist()]"),
        ("{sizes: images_spatial_crop}", f"{SIZES}.tolist()"),
        ("{sizes: images_spatial_crop, least: 2}", f"[n if n >= 2 else 0 for n in {SIZES}.prod(-1).tolist()]"),
    ],
)
def test_the_numbers_of_patches_are_read_at_once(field: str, counts: str, release_tree: Any) -> None:
    port = deepseek(("{sizes: images_spatial_crop, extra: 1}        #", f"{field}        #"))
    found = ast.parse(ported_text(release_tree(RELEASE), port))
    assert counts in [
        ast.unparse(node.value) for node in ast.walk(found) if isinstance(node, ast.Return) and node.value
    ]


@pytest.mark.parametrize(
    ("gate", "more", "served"),
    [
        ("not self.use_data_parallel", "", '["image"]'),
        ("not self.use_data_parallel", "run_dp_sharded_vision_model", '[] if self.use_data_parallel else ["image"]'),
        ("not self.use_data_parallel", "RowParallelLinear(2, 2)", '[] if self.use_data_parallel else ["image"]'),
        ("not self.use_data_parallel", "RowParallelLinear(2, 2, disable_tp=True)", '["image"]'),
        ("not self.is_off", "", '[] if self.is_off else ["image"]'),
    ],
)
def test_data_parallelism_keeps_graphs_where_ranks_share_no_item_and_no_layer(
    gate: str, more: str, served: str, release_tree: Any
) -> None:
    """The manager hands each rank whole items. A tower that shards by itself would do it again in a capture, and layers
    that ranks share would mix their items."""
    tree, path = release_tree(RELEASE), f"{MODELS}/deepseek_vl2.py"
    kept = "        self.config = config\n"
    text = tree.read(path).replace(kept, f"{kept}        self.use_data_parallel = self.is_off = False\n")
    if more:
        text += f"\n\nclass Projector(nn.Module):\n    part = {more}\n"
    port = deepseek(("layout:", f"gates: {{modalities: {gate}}}\nlayout:"))
    assert f"modalities={served},\n" in ported_text(tree.with_files({path: text.encode()}), port)


def test_inputs_that_all_items_share_reach_the_model(planned: Any) -> None:
    assert "return mm_kwargs | {" in text_of(planned("llava_next"))


@pytest.mark.parametrize("release", ["0.22.0", "0.26.0"])
def test_a_release_whose_items_have_one_number_of_tokens_gets_no_explicit_port(release: str, release_tree: Any) -> None:
    paths = [change.path for change in prepare_port(load_port("llava_next"), release_tree(release)).package]
    assert paths == [LLAVA_NEXT, f"{MODELS}/encoder_cudagraph_units.py"]


def test_without_a_method_for_what_follows_rows_are_the_embeddings(release_tree: Any) -> None:
    """Of an item of several units, one behind the other. LLaVA-NeXT's own code puts newlines between, so it is left."""
    tree = with_code(
        release_tree(RELEASE),
        "        return [\n            self._merge_image_patch_embeddings(\n"
        '                image_sizes[i], patch_features_batch, strategy="spatial_unpad"\n            )\n'
        "            for i, patch_features_batch in enumerate(patch_embeddings)\n        ]",
        "        return patch_embeddings",
    )
    text = tree.read(LLAVA_NEXT).replace("return torch.split(\n", "return tuple(\n").replace(
        "stacked_image_features), num_patches_per_batch", "stacked_image_features)"
    ).replace(
        "return stacked_patch_embeddings.view(\n                b, num_patches, *stacked_patch_embeddings.shape[1:]\n"
        "            )", "return stacked_patch_embeddings"
    )  # fmt: skip
    port = port_of("llava_next", ("  after: _merge_patch_embeddings\n", ""))
    found = ported_text(tree.with_files({LLAVA_NEXT: text.encode()}), port)
    assert "self.multi_modal_projector(" in found[found.index("def encoder_cudagraph_forward(") :]
    assert ").flatten(0, -2)\n" in found[found.index("def encoder_cudagraph_forward(") :]
    assert "def postprocess_encoder_output(" not in found


EAGLE = f"{MODELS}/eagle2_5_vl.py"
PORT = """
schema: 1
model: {module: eagle2_5_vl, class: Eagle2_5_VLForConditionalGeneration}
layout: cut
modalities:
  image: {pixels: pixel_values_flat, entry: self._process_image_input(self._parse_and_validate_image_input(**inputs))}
fields: {pixel_values_flat: {sizes: image_num_patches}, image_num_patches: batched, image_embeds: batched}
let: {side: self.config.vision_config.image_size}
pixels: {shape: [3, side, side]}
forward: {call: self.extract_feature(pixels)}
explicit: {call: self.extract_feature(pixels), tokens: self.num_image_token}
gates: {modalities: not self.use_data_parallel}
output: {hidden_size: self.config.text_config.hidden_size}
"""


@pytest.mark.parametrize("is_converted", [False, True])
def test_a_method_of_the_model_is_enough_where_rows_go_to_items(is_converted: bool, release_tree: Any) -> None:
    """Eagle 2.5's code only cuts the rows of all images into those of each."""
    tree, call = release_tree(RELEASE), 'self.extract_feature(image_input["pixel_values_flat"])'
    text = tree.read(EAGLE)
    assert text.count(call) == 1
    if is_converted:
        text = text.replace(call, f"{call[:-1]}.to(torch.half))")
    port = load_descriptor_text(PORT, "eagle.yaml")
    found = ported_text(tree.with_files({EAGLE: text.encode()}), port)
    pixels = f'inputs["pixel_values_flat"]{".to(torch.half)" * is_converted}'
    assert f"self.extract_feature({pixels}).flatten(0,-2)" in "".join(found.split())
    assert "def postprocess_encoder_output(" not in found
    process = text[text.index("    def _process_image_input(") : text.index("    def embed_multimodal(")]
    assert process in found


WHISPER = """
schema: 1
model: {module: whisper, class: WhisperForConditionalGeneration}
layout: cut
modalities: {audio: {pixels: input_features, entry: self.embed_multimodal(**inputs)}}
fields: {input_features: batched}
pixels: {shape: [self.config.num_mel_bins, 2 * self.config.max_source_positions]}
forward: {call: self.model.get_encoder_outputs(pixels)}
explicit:
  {call: self.model.get_encoder_outputs(pixels), tokens: self.config.max_source_positions, single: true}
output: {hidden_size: self.config.d_model}
"""


def test_a_tuple_of_units_is_what_the_manager_cuts_and_cross_attention_takes_no_context(release_tree: Any) -> None:
    """Whisper's port only adds methods, and its budgets are not bound by the 448 tokens of its decoder."""
    tree, path = release_tree(RELEASE), f"{MODELS}/whisper.py"
    text = tree.read(path)
    found = ported_text(tree, load_descriptor_text(WHISPER, "whisper.yaml"))
    method = text[text.index("    def embed_multimodal(") : text.index("    def embed_input_ids(")]
    assert method in found
    forward = found[found.index("    def encoder_cudagraph_forward(") :]
    assert 'features = self.model.get_encoder_outputs(inputs["input_features"])' in forward
    assert "assert features is not None" in forward, "by its annotation it may be None, and vLLM's mypy asks"
    assert "return features.flatten(0, -2)" in forward
    assert "max_budget = vllm_config.scheduler_config.max_num_batched_tokens\n" in found
    assert "max_model_len" not in found[found.index("def get_encoder_cudagraph_budget_range(") :]

    other = tree.with_files({path: text.replace("enc_output.unbind(dim=0)", "enc_output.unbind(dim=1)").encode()})
    prepared = prepare_port(load_descriptor_text(WHISPER, "whisper.yaml"), other)
    assert [note.code for note in prepared.notes if note.code == "VCG466"]


# -- what is left to the other form, or refused ------------------------------------------------------------------------


def notes_of(tree: SourceTree, port: Any) -> list[Diagnostic]:
    prepared = prepare_port(port, tree)
    assert len(prepared.package) == 2, "the model's file and that of the mixin"
    return [note for note in prepared.notes if note.code == "VCG466"]


CALL = "self._process_image_pixels(image_input)"
ENTRY = "    def _process_image_input("


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        # No statement keeps the result alone.
        (CALL, f"list({CALL})", "no statement before others"),
        ("patch_embeddings = self._", "self.kept = patch_embeddings = self._", "no statement before others"),
        # A name that is taken.
        (ENTRY, f"    def _merge_patch_embeddings(self):\n        pass\n\n{ENTRY}", "a method `_merge_patch_embed"),
    ],
)
def test_code_of_another_form_is_run_again(before: str, after: str, says: str, release_tree: Any) -> None:
    [note] = notes_of(with_code(release_tree(RELEASE), before, after), load_port("llava_next"))
    assert says in note.message


def test_a_result_that_is_changed_is_run_again(release_tree: Any) -> None:
    """PaliGemma of 0.28 scales its embeddings in `embed_multimodal`."""
    [note] = notes_of(release_tree("0.28.0"), load_port("paligemma"))
    assert "`embed_multimodal` changes what it gets of `self._process_image_input`" in note.message
    assert note.span == load_port("paligemma").span("explicit")
    assert note.notes == ("look at vllm-0.28.0/vllm/model_executor/models/paligemma.py:376:1",)


@pytest.mark.parametrize(("rows", "is_kept"), [(".view(-1, 8).unsqueeze(0)", True), (".unsqueeze(0)", False)])
def test_the_rows_of_a_lone_item_are_its_embeddings(rows: str, is_kept: bool, release_tree: Any) -> None:
    """Skywork-R1V returns them as a batch of one item, and splits the rows of several."""
    tree, path = release_tree(RELEASE), f"{MODELS}/paligemma.py"
    text = tree.read(path)
    call = "return self.multi_modal_projector(image_features)\n"
    assert text.count(call) == 1
    lone = f"        if len(pixel_values) == 1:\n            return features{rows}\n        return features\n"
    changed = text.replace(call, f"features = {call.removeprefix('return ')}{lone}")
    prepared = prepare_port(load_port("paligemma"), tree.with_files({path: changed.encode()}))
    said = [note.message.partition(": ")[2] for note in prepared.notes if note.code == "VCG466"]
    assert said == ([] if is_kept else ["`_process_image_input` changes what it gets of `self.multi_modal_projector`"])


#: Of the two branches of LLaVA-NeXT, the one for a list of tensors, with another run of calls.
OTHER_LIST = (
    "self.multi_modal_projector(stacked_image_features)",
    "self.multi_modal_projector(stacked_image_features + 1)",
)
OTHER_BATCH = ("                stacked_image_features\n", "                stacked_image_features + 1\n")


@pytest.mark.parametrize(
    "changes",
    [
        # The tower's result is changed, or read two statements on; a call comes before.
        [OTHER_BATCH, OTHER_LIST],
        [
            (
                "            stacked_patch_embeddings = self",
                "            print(b)\n            stacked_patch_embeddings = self",
            ),
            OTHER_LIST,
        ],
        [OTHER_BATCH, ("return torch.split(\n            self.multi", "return torch.split(self.parts(), self.multi")],
    ],
)
def test_calls_that_are_no_run_are_run_again(changes: list[tuple[str, str]], release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    for before, after in changes:
        tree = tree.with_files({LLAVA_NEXT: with_code(tree, before, after).read(LLAVA_NEXT).encode()})
    [note] = notes_of(tree, load_port("llava_next"))
    assert "not one after the other" in note.message


def test_one_branch_of_several_may_have_other_calls(release_tree: Any) -> None:
    """LLaVA-OneVision projects the images of a list one by one. A graph holds the calls of the other branch."""
    tree, port = with_code(release_tree(RELEASE), *OTHER_LIST), load_port("llava_next")
    text = ported_text(tree, port)
    assert text.count(OTHER_LIST[1]) == 1
    prepared = prepare_port(port, tree)
    written = tree.with_files({change.path: change.after for change in prepared.changed})
    assert prepare_port(port, written).changed == ()


def test_a_result_may_have_the_name_of_what_it_is_made_of(release_tree: Any) -> None:
    tree, path = release_tree(RELEASE), f"{MODELS}/deepseek_vl2.py"
    text = tree.read(path).replace("images_embeds", "images_feature")
    assert "images_feature = self.projector(images_feature)\n" in text
    prepared = prepare_port(deepseek(), tree.with_files({path: text.encode()}), replace=True)
    assert not prepared.plan.reenters


@pytest.mark.parametrize("after", ["", "after: _merge_patch_embeddings, "])
def test_calls_in_a_part_of_the_model_are_run_again(after: str, release_tree: Any) -> None:
    section = f"explicit: {{call: self.vision_embed_tokens.get_img_features(pixels), {after}tokens: 4}}\noutput: {{"
    [note] = notes_of(release_tree(RELEASE), port_of("phi3v", ("output: {", section)))
    assert "not one after the other" in note.message


def test_inputs_reach_what_follows_through_variables_and_arguments(release_tree: Any) -> None:
    tree = with_code(
        release_tree(RELEASE),
        "        patch_embeddings = self._process_image_pixels(image_input)\n\n"
        '        image_sizes = image_input.get("image_sizes")\n',
        '        image_sizes = image_input["image_sizes"]\n'
        "        return self._embed(image_input, sizes=image_sizes)\n\n"
        '    def _embed(self, image_input: "LlavaNextImageInputs", sizes):\n'
        "        patch_embeddings = self._process_image_pixels(image_input)\n        image_sizes = sizes\n",
    )
    text = ported_text(tree, load_port("llava_next"))
    [call] = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and "features.split(num_patches)" in map(ast.unparse, node.args)
    ]
    assert ast.unparse(call) == (
        "self._merge_patch_embeddings(image_input, image_input['image_sizes'], features.split(num_patches))"
    )
    [method] = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "_merge_patch_embeddings"
    ]
    assert ast.unparse(method.args) == (
        "self, image_input: 'LlavaNextImageInputs', sizes: torch.Tensor, patch_embeddings: "
        "torch.Tensor | tuple[torch.Tensor, ...]"
    )


@pytest.mark.parametrize(
    ("scale", "handed"),
    {
        # Sizes that functions of Python compute of parsed inputs, once more.
        'len(image_input["pixel_values"])': "len(image_input['pixel_values'])",
        'list(map(lambda x: x + 1 if x > 1 else 2, image_input["image_sizes"]))': (
            "list(map(lambda x: x + 1 if x > 1 else 2, image_input['image_sizes']))"
        ),
        'image_input.get("image_sizes")': "image_input.get('image_sizes')",
    }.items(),
)
def test_sizes_are_computed_again(scale: str, handed: str, release_tree: Any) -> None:
    tree = with_code(
        release_tree(RELEASE),
        "        patch_embeddings = self._process_image_pixels(image_input)\n",
        f"        scale = {scale}\n        patch_embeddings = self._process_image_pixels(image_input)\n"
        "        patch_embeddings = [scale * part for part in patch_embeddings]\n",
    )
    text = ported_text(tree, load_port("llava_next"))
    calls = [ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert f"self._merge_patch_embeddings(image_input, {handed}, features.split(num_patches))" in calls


@pytest.mark.parametrize(
    ("above", "between", "moved"),
    [
        ("", "", True),
        ("        # As many as there are images.\n", "", False),
        ("", "        assert shapes\n", False),
        ("", "        assert count\n", False),
        ("", "        image_input.update({})\n", False),
    ],
)
def test_a_size_for_what_follows_alone_is_computed_there(
    above: str, between: str, moved: bool, release_tree: Any
) -> None:
    """So it stands in the model's code once. A comment belongs to it, and a variable of it may change on the way."""
    encode = "        patch_embeddings = self._process_image_pixels(image_input)\n"
    tree = with_code(
        release_tree(RELEASE),
        encode,
        f"        shapes = image_input['image_sizes']\n{above}        count = len(shapes)\n\n{between}{encode}"
        "        patch_embeddings = [count * part for part in patch_embeddings]\n",
    )
    nodes = ast.walk(ast.parse(ported_text(tree, load_port("llava_next"))))
    owners = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and "count = len" in ast.unparse(node)}
    assert owners == {"_merge_patch_embeddings" if moved else "_process_image_input"}


@pytest.mark.parametrize(
    "scale",
    [
        'image_input["pixel_values"][0].max()',
        "scale",
        "self.scale()",
        "len(scale_of(image_input))",
        "[part for part in image_input]",
        "list(map(self.scale, image_input))",
        "sum(map(abs, self.parts))",
    ],
)
def test_a_value_that_is_no_input_is_refused_with_its_line(scale: str, release_tree: Any) -> None:
    tree = with_code(
        release_tree(RELEASE),
        "        patch_embeddings = self._process_image_pixels(image_input)\n",
        f"        scale = {scale}\n        patch_embeddings = self._process_image_pixels(image_input)\n"
        "        patch_embeddings = [scale * part for part in patch_embeddings]\n",
    )
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(load_port("llava_next"), tree)
    [problem] = caught.value.diagnostics
    assert (problem.code, "`scale` lives across" in problem.message) == ("VCG465", True)
    assert problem.span is not None
    assert f"scale = {scale}" in tree.read(LLAVA_NEXT).splitlines()[problem.span.line - 1]


# -- the proof ---------------------------------------------------------------------------------------------------------

METHODS = frozenset({(CLASS, "_process_image_input"), (CLASS, "_process_image_pixels")})
LAST = "_merge_patch_embeddings(image_input, patch_embeddings)"
SIZES = '        image_sizes = image_input.get("image_sizes")\n'
GATE = '        if isinstance(image_input, LlavaNextImageEmbeddingInputs):\n            return image_input["data"]\n\n'
MISTAKES = {
    "another order": (LAST, "_merge_patch_embeddings(patch_embeddings, image_input)"),
    "a keyword": (LAST, "_merge_patch_embeddings(image_input, patch_embeddings=patch_embeddings)"),
    "no such method": ("def _merge_patch_embeddings(", "def _merge_patches("),
    "a decorator": ("    def _merge_patch_emb", "    @torch.compile\n    def _merge_patch_emb"),
    "a default": ("patch_embeddings: torch.Tensor | tuple[torch.Tensor, ...],", "patch_embeddings=None,"),
    "a statement is lost": (SIZES, ""),
    "a statement more": (SIZES, f"{SIZES}        patch_embeddings = list(patch_embeddings)\n"),
    "a name of both": (f"        return self.{LAST}", f"        image_sizes = None\n        return self.{LAST}"),
    "a name that it reads first": (
        f"        return self.{LAST}",
        f"        batch_size = None\n        return self.{LAST}",
    ),
    "a gate is lost": (f"{GATE}        patch_embeddings = self._process", "        patch_embeddings = self._process"),
    "a method is lost": ("    def _process_image_input(", "    def _process_input("),
}


def proved(before: str, after: str) -> list[str]:
    found = prove_extraction(before, after, METHODS, "_merge_patch_embeddings", LLAVA_NEXT)
    return [problem.code for problem in found]


def test_a_port_without_mistakes_is_proven(release_tree: Any, planned: Any) -> None:
    text = text_of(planned("llava_next"))
    assert proved(release_tree(RELEASE).read(LLAVA_NEXT), text) == []
    assert proved(text, text) == []  # a second run


@pytest.mark.parametrize(
    ("before", "same"),
    [
        ("n = len(x)\n", True),
        # Something that the function makes reads its own variable later; a variable that is not set at first.
        ("n = len(x)\nx = map(lambda one: one + n, x)\n", False),
        ("n = len(x)\nx = (one + n for one in x)\n", False),
        ("m = n = len(x)\n", False),
    ],
)
def test_a_method_may_set_a_variable_of_the_function_anew(before: str, same: bool) -> None:
    last = "n = 1\nreturn g(x, n)" if "m =" not in before else "m = n\nn = 1\nreturn g(x, n)"
    whole = f"class M:\n    def m(self, x):\n{_indented(before + 'x = f(x)' + chr(10) + last)}"
    split = f"class M:\n    def m(self, x):\n{_indented(before + 'x = f(x)' + chr(10) + 'return self.rest(x)')}"
    split += f"    def rest(self, x):\n{_indented(last)}"
    assert (prove_extraction(whole, split, frozenset({("M", "m")}), "rest", "m.py") == ()) is same


@pytest.mark.parametrize(
    ("size", "between", "same"),
    [
        ("len(x)", "", True),
        ("list(map(lambda one: one + 1, x))", "", True),
        ("len(x)", "x = h(x)\n", False),
        ("len(x)", "print(n)\n", False),
        # What they are sizes of may have another name, too.
        ("len(x)", "z.append(1)\n", False),
        ("len(x)", "z[0] = 1\n", False),
        ("len(x)", "k = 1\n", True),
        ("size(x)", "", False),
        ("x.size", "", False),
        ("x", "", False),
    ],
)
def test_a_statement_that_computes_sizes_may_move_down(size: str, between: str, same: bool) -> None:
    whole = f"class M:\n    def m(self, x, z):\n{_indented(f'n = {size}{chr(10)}{between}y = f(z)')}"
    whole += _indented("return g(y, n)")
    split = f"class M:\n    def m(self, x, z):\n{_indented(f'{between}y = f(z){chr(10)}return self.rest(x, y)')}"
    split += f"    def rest(self, x, y):\n{_indented(f'n = {size}{chr(10)}return g(y, n)')}"
    assert (prove_extraction(whole, split, frozenset({("M", "m")}), "rest", "m.py") == ()) is same


def _indented(body: str) -> str:
    return "".join(f"        {line}\n" for line in body.splitlines())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused(mistake: str, release_tree: Any, planned: Any) -> None:
    text = text_of(planned("llava_next"))
    before, after = MISTAKES[mistake]
    assert text.count(before) == 1
    assert "VCG646" in proved(release_tree(RELEASE).read(LLAVA_NEXT), text.replace(before, after))


@pytest.mark.parametrize(("room", "largest"), [(8, 16), (100, 96), (4096, 4096)])
def test_budgets_are_whole_images(room: int, largest: int, release_tree: Any) -> None:
    """And one image has a graph, whatever there is room for."""
    tokens = "tokens: (side // self.config.vision_config.patch_size) ** 2"
    prepared = prepare_port(port_of("llava", (tokens, "tokens: self.config.tokens")), release_tree(RELEASE))
    [text] = [one.after for one in prepared.package if one.path.endswith("/llava.py") and one.after]
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    [method] = [node for node in nodes if node.name == "get_encoder_cudagraph_budget_range"]
    names: dict[str, Any] = {"VllmConfig": object}
    exec(ast.unparse(method), names)
    limits = SimpleNamespace(max_num_batched_tokens=room), SimpleNamespace(max_model_len=room + 1)
    config = SimpleNamespace(scheduler_config=limits[0], model_config=limits[1])
    model = SimpleNamespace(config=SimpleNamespace(tokens=16))
    assert names[method.name](model, config) == (16, largest)


def test_images_of_few_embeddings_claim_more(release_tree: Any) -> None:
    """vLLM batches at most as many items as the smallest budget has tokens: with one each, all graphs were the same."""
    tokens, tree = "tokens: (side // self.config.vision_config.patch_size) ** 2", release_tree("0.33.0")
    one, few, more = (prepare_port(port_of("llava", (tokens, f"tokens: {number}")), tree) for number in (1, 7, 8))
    source = " ".join(one.plan.methods.source.split())
    assert "_encoder_cudagraph_image_tokens: int = 16" in source
    assert "min(vllm_config.scheduler_config.max_num_seqs, num_tokens)" in source
    assert 'output_tokens=1, path_output_tokens={"default": self._encoder_cudagraph_image_tokens}' in source
    assert "min(max_batch_size, token_budget // self._encoder_cudagraph_image_tokens), 1" in source
    assert "output_tokens=7, path_output_tokens" in " ".join(few.plan.methods.source.split())
    assert "_encoder_cudagraph_image_tokens" not in more.plan.methods.source
    assert "max_budget = max(max_budget // num_tokens, 1) * num_tokens" in more.plan.methods.source


@pytest.mark.parametrize(("more", "same"), [('"""Said of it."""\n', True), ("print(x)\n", False)])
def test_only_a_docstring_is_new_in_a_method_of_the_last_statements(more: str, same: bool) -> None:
    whole = f"class M:\n    def m(self, x):\n{_indented(f'y = f(x){chr(10)}return g(x, y)')}"
    split = f"class M:\n    def m(self, x):\n{_indented(f'y = f(x){chr(10)}return self.rest(x, y)')}"
    split += f"    def rest(self, x, y):\n{_indented(f'{more}return g(x, y)')}"
    assert (prove_extraction(whole, split, frozenset({("M", "m")}), "rest", "m.py") == ()) is same


def test_a_field_that_is_a_tensor_on_the_host_is_indexed(release_tree: Any) -> None:
    """A list of sizes, or one that may be on the GPU, is looked at first."""
    tree = release_tree("0.33.0")
    path, kept = "vllm/model_executor/models/llava_next.py", 'batched("image", keep_on_cpu=True)'
    moved = tree.with_files({path: tree.read(path).replace(kept, 'batched("image")').encode()})
    listed = tree.read(path).replace("image_sizes: Annotated[torch.Tensor |", "image_sizes: Annotated[list[int] |")
    lists = tree.with_files({path: listed.encode()})

    indexed = [
        '"image_sizes": mm_kwargs["image_sizes"][indices]'
        in prepare_port(load_port("llava_next"), one).plan.methods.source
        for one in (tree, moved, lists)
    ]
    assert indexed == [True, False, False]
