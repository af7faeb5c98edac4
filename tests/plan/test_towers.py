"""What a port needs of the tower and of the class beside the methods: fit, gates, configuration, input types."""

from __future__ import annotations

import ast
import dataclasses

import pytest
from changed_ports import document_of, port_of

from scaffold.descriptor import AnyPort, PackedPort
from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.edit.operations import ReplaceMethod
from scaffold.plan.methods import render_methods
from scaffold.plan.towers import TowerPlan, plan_tower, slice_of
from scaffold.protocol import SourceTree, find_model, read_protocol
from scaffold.tower import Parameter
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

QWEN = "vllm/model_executor/models/qwen2_5_vl.py"


@pytest.fixture
def qwen(release_tree):
    """`qwen("0.22.0", (old, new), ...)`: a release with its model file changed so, in memory."""

    def make(release: str, *changes: tuple[str, str]) -> SourceTree:
        tree = release_tree(release)
        text = tree.read(QWEN)
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        return dataclasses.replace(tree, label="tree", _cache={("bytes", QWEN): text.encode()})

    return make


def plan(tree: SourceTree, spec: AnyPort | None = None) -> TowerPlan:
    spec = spec or load_port("qwen2_5_vl")
    return plan_tower(spec, tree, find_model(tree, spec.module, spec.class_name))


def refused(tree: SourceTree, spec: AnyPort | None = None) -> tuple[str, str]:
    with pytest.raises(DiagnosticError) as caught:
        plan(tree, spec)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.exit is Exit.TARGET
    assert diagnostic.span is not None
    assert diagnostic.span.file == f"tree/{QWEN}"
    assert diagnostic.help
    return diagnostic.code, diagnostic.message


def test_pristine_tower_is_split_and_a_split_one_used(release_tree):
    spec = load_port("qwen2_5_vl")
    pristine, ported = plan(release_tree("0.20.0"), spec), plan(release_tree("0.22.0"), spec)

    assert pristine.split is not None
    model = find_model(release_tree("0.20.0"), spec.module, spec.class_name)
    assert slice_of(spec, release_tree("0.20.0"), model).crossings == pristine.split.slice.crossings
    methods = [edit.name for edit in pristine.edits[QWEN] if isinstance(edit, ReplaceMethod)]
    assert "forward" in methods
    assert ported.split is None
    assert "split already, used as it is" in ported.evidence[0].value
    assert f"split: {len(pristine.split.slice.crossings)} values move" in pristine.evidence[0].value
    assert ported.evidence[1].evidence == "prepare_encoder_metadata"


def test_tower_class_is_found_by_its_assignment(qwen):
    spec = load_port("qwen2_5_vl")
    unnamed = port_of("qwen2_5_vl", {"tower.class": None})
    tree = qwen("0.22.0")

    assert plan(tree, unnamed).evidence == plan(tree, spec).evidence
    elsewhere = port_of("qwen2_5_vl", {"tower.class": None, "model.tower": "eyes"})
    assert refused(tree, elsewhere) == (
        "VCG419",
        "Qwen2_5_VLForConditionalGeneration does not assign self.eyes from a class",
    )


@pytest.mark.parametrize(
    ("release", "made"),
    [
        ("0.27.0", "{pixels}"),  # the processor normalises
        ("0.28.0", "self.input_norm({pixels}, self.visual.dtype)"),
        ("0.29.0", "self.input_norm({pixels}, self.visual.dtype)"),
        ("0.30.0", "{pixels}"),  # the tower normalises
    ],
)
def test_pixels_are_made_what_the_model_makes_of_them(qwen, release, made):
    assert plan(qwen(release)).facts.normalised == made


def test_methods_that_make_different_things_of_pixels(qwen):
    tree = qwen(
        "0.28.0",
        (
            "pixel_values = self.input_norm(pixel_values, self.visual.dtype)",
            "pixel_values = self.lighten(pixel_values)",
        ),
    )

    code, message = refused(tree)

    assert code == "VCG429"
    assert "self.input_norm({pixels}, self.visual.dtype), self.lighten({pixels})" in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("max_window_seqs_per_batch", "max_windows"), "its metadata method takes no max_window_seqs_per_batch"),
        (("grid_thw: list[list[int]]", "grid_thw: torch.Tensor"), "as torch.Tensor, not as a list"),
    ],
)
def test_metadata_method_that_does_not_fit(qwen, change, said):
    code, message = refused(qwen("0.22.0", change))

    assert code == "VCG418"
    assert said in message


def test_metadata_that_the_tower_does_not_have(qwen):
    buffers = document_of("qwen2_5_vl")["buffers"]

    code, message = refused(qwen("0.22.0"), port_of("qwen2_5_vl", {"buffers": [*buffers, "pyramid_index"]}))

    assert code == "VCG418"
    assert "it has no metadata named pyramid_index (it has " in message


@pytest.mark.parametrize(
    ("model", "release"),
    [
        ("qwen2_5_vl", "0.20.0"),
        *((model, "0.33.0") for model in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4_1v", "cohere_compass")),
    ],
)
def test_metadata_that_the_descriptor_does_not_name(model, release, release_tree):
    """A metadata method hands out all that it has, so values are right without the name, and the declaration wrong."""
    tree, port = release_tree(release), load_port(model)
    assert isinstance(port, PackedPort)
    plan(tree, port)
    assert port.buffers
    for name in port.buffers:
        without = port_of(model, {"buffers": [other for other in port.buffers if other != name], "tower.names": None})
        with pytest.raises(DiagnosticError) as caught:
            plan(tree, without)
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.code == "VCG418"
        assert f"its metadata have {name}, which the descriptor does not name" in diagnostic.message


def test_metadata_that_only_some_models_have_are_named_too(qwen):
    """Qwen3-Omni's tower adds position embeddings under a condition."""
    stored = 'metadata["window_index"] = window_index\n'
    more = 'metadata["pos_embeds"] = self.pos(grid_thw) if self.has_pos else None\n'
    code, message = refused(qwen("0.22.0", (stored, stored + " " * 8 + more)))

    assert code == "VCG418"
    assert "its metadata have pos_embeds, which the descriptor does not name" in message


def test_a_list_that_the_model_takes_apart_is_no_number(qwen):
    line = "        self.vllm_config = vllm_config\n"
    taken = (line, f"{line}        h, w = self.visual.spatial_merge_size\n")

    assert refused(qwen("0.22.0", taken)) == (
        "VCG419",
        "`self.visual.spatial_merge_size` is a list, not a number: Qwen2_5_VLForConditionalGeneration takes it apart",
    )


@pytest.mark.parametrize(
    ("annotation", "forms"),
    [
        (None, {"list", "tensor"}),
        ("torch.Tensor", {"tensor"}),
        ("list[list[int]]", {"list"}),
        ("Iterable[list[int]]", {"list"}),
        ("torch.Tensor | Sequence[tuple]", {"list", "tensor"}),
    ],
)
def test_forms_of_the_grid(annotation, forms):
    assert Parameter("grid_thw", annotation, None).forms == forms


def test_gate_of_a_feature_that_the_release_does_not_have(qwen):
    """0.22 has pruning, and the gate stays; without it the gate is left out, with a warning at its place."""
    kept = plan(qwen("0.22.0"))
    assert (kept.notes, kept.facts.has_gate) == ((), True)

    left_out = plan(qwen("0.22.0", ("is_multimodal_pruning_enabled", "prunes")))

    (note,) = left_out.notes
    assert (note.code, note.exit, left_out.facts.has_gate) == ("VCG429", 0, False)
    assert "has no self.is_multimodal_pruning_enabled in this tree" in note.message
    assert note.span is not None
    assert note.span.file == "qwen2_5_vl.yaml"
    assert plan(qwen("0.22.0"), port_of("qwen2_5_vl", {"gates": None})).notes == ()


def init_of(tower: TowerPlan) -> ReplaceMethod | None:
    edits = [edit for edit in tower.edits.get(QWEN, ()) if isinstance(edit, ReplaceMethod) and edit.name == "__init__"]
    return edits[0] if edits else None


#: A release whose class does not keep what the processing info is asked with.
DROPPED = (
    "        self.model_config = vllm_config.model_config\n        self.vllm_config = vllm_config\n",
    "",
)
KEEPS_NONE = "{}, or a subclass of it, keeps no configuration to ask for the number of frames"
KEPT_WHOLE = (DROPPED[0], "        self.vllm_config = vllm_config\n")


def test_model_config_is_kept_where_the_class_does_not(qwen):
    """One statement more in `__init__`, after the one that keeps the configuration; nothing else differs."""
    spec = load_port("qwen2_5_vl")
    tree = qwen("0.22.0", DROPPED)

    edit = init_of(plan(tree))

    assert edit is not None
    (after,) = ast.parse(edit.source).body
    owner = next(
        node for node in tree.parse(QWEN).body if isinstance(node, ast.ClassDef) and node.name == spec.class_name
    )
    before = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    assert isinstance(after, ast.FunctionDef)
    texts = [ast.unparse(statement) for statement in after.body]
    where = texts.index("self.model_config = vllm_config.model_config")
    assert texts[where - 1] == "self.config = config"
    assert texts[:where] + texts[where + 1 :] == [ast.unparse(statement) for statement in before.body]
    # A class that keeps it or all of it, or a descriptor that does not ask for it, needs no edit.
    assert init_of(plan(qwen("0.22.0"))) is None
    assert init_of(plan(qwen("0.22.0", KEPT_WHOLE))) is None
    assert init_of(plan(tree, port_of("qwen2_5_vl", {"budget.frames": 32}))) is None


def test_decorated_init_keeps_its_decorator(qwen):
    header = '    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):\n'

    edit = init_of(plan(qwen("0.22.0", DROPPED, (header, f"    @torch.no_grad()\n{header}"))))

    assert edit is not None
    assert edit.source.startswith("@torch.no_grad()\ndef __init__(")


#: A subclass whose `__init__` is its base's, or hands on to it.
HEIR = "\n\nclass Heir(Qwen2_5_VLForConditionalGeneration):\n    {}\n"
HEIRS = {
    "inherits": "pass",
    "hands on": """def __init__(self, *, vllm_config, prefix=""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.more = True""",
}


def with_heir(qwen, body: str, *changes: tuple[str, str]) -> SourceTree:
    tree = qwen("0.22.0", *changes)
    return dataclasses.replace(tree, _cache={("bytes", QWEN): (tree.read(QWEN) + HEIR.format(body)).encode()})


@pytest.mark.parametrize("body", HEIRS.values(), ids=HEIRS)
def test_what_an_inherited_init_sets_counts(qwen, body):
    """GLM-4.5V and GLM-OCR: the tower, the gate and the configuration are the base's."""
    spec = port_of("qwen2_5_vl", {"tower.class": None})
    heir = port_of("qwen2_5_vl", {"tower.class": None, "model.class": "Heir"})

    found = plan(with_heir(qwen, body), heir)
    assert found.evidence == plan(qwen("0.22.0"), spec).evidence
    assert (found.notes, init_of(found)) == ((), None)

    edit = init_of(plan(with_heir(qwen, body, DROPPED), heir))
    assert edit is not None
    assert edit.class_name == "Qwen2_5_VLForConditionalGeneration"
    assert edit == init_of(plan(qwen("0.22.0", DROPPED), spec))


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ("self.config = 1", {"Qwen2_5_VLForConditionalGeneration", "Heir"}),
        ("self.config = 1\n        # why", {"Qwen2_5_VLForConditionalGeneration", "Heir"}),
        ("self.more = 1", set()),  # it keeps nothing beside which to keep it
        ("self.model_config = 1", {"Qwen2_5_VLForConditionalGeneration"}),
    ],
)
def test_a_port_that_asks_for_frames_keeps_the_model_s_configuration(qwen, own, kept):
    """In the `__init__` of the class and in that of each subclass which runs its own; in all of them or in none."""
    body = f'def __init__(self, *, vllm_config, prefix=""):\n        {own}'
    tree = with_heir(qwen, body, DROPPED)
    if not kept:
        code, message = refused(tree)
        assert code == "VCG419"
        assert message.endswith(KEEPS_NONE.format(""))
        return

    found = plan(tree)

    edits = [e for e in found.edits.get(QWEN, ()) if isinstance(e, ReplaceMethod) and e.name == "__init__"]
    assert {edit.class_name for edit in edits} == kept
    assert all("    self.model_config = vllm_config.model_config" in edit.source.splitlines() for edit in edits)


def test_an_init_that_runs_no_other_keeps_no_configuration(qwen):
    heir = port_of("qwen2_5_vl", {"model.class": "Heir"})
    tree = with_heir(qwen, 'def __init__(self, *, vllm_config, prefix=""):\n        self.more = True', DROPPED)

    assert refused(tree, heir) == (
        "VCG419",
        KEEPS_NONE.format("Heir"),
    )


def test_class_without_a_configuration(qwen):
    assert refused(qwen("0.22.0", DROPPED, ("self.config = config\n", "self.cfg = config\n"))) == (
        "VCG419",
        KEEPS_NONE.format("Qwen2_5_VLForConditionalGeneration"),
    )


@pytest.mark.parametrize(
    ("release", "changes", "expected"),
    [
        ("0.22.0", {}, False),  # no input_norm
        ("0.33.0", {}, True),
        ("0.33.0", {"pixels.dtype": None}, False),
        ("0.33.0", {"pixels.dtype": "self.input_dtype"}, False),
        ("0.33.0", {"pixels.dtype": "self.eyes.input_norm.input_dtype"}, False),
        ("0.33.0", {"pixels.dtype": "self.visual.input_norm.of_tomorrow"}, False),
        ("0.33.0", {"pixels.dtype": "self.visual.patch_embed.input_dtype"}, False),
        ("0.33.0", {"pixels.dtype": "self.visual.blocks.input_dtype"}, False),  # made of names of other packages
    ],
)
def test_input_dtype_is_a_fact_of_the_tree(release_tree, release, changes, expected):
    spec = port_of("qwen2_5_vl", changes)

    assert plan(release_tree(release), spec).facts.has_input_dtype is expected


@pytest.mark.parametrize(("release", "zeros"), [("0.22.0", False), ("0.33.0", True)])
def test_rows_that_attention_leaves(release_tree, release, zeros):
    assert plan(release_tree(release)).facts.attention_fills_zeros is zeros


NEMOTRON = "vllm/model_executor/models/nano_nemotron_vl.py"
TAKES = "self, video_input: NanoNemotronVLVideoPixelInputs\n    ) -> tuple"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ((TAKES, TAKES), (("video", "NanoNemotronVLVideoPixelInputs"),)),
        (("-> NanoNemotronVLVideoInputs | None:", "-> NanoNemotronVLVideoPixelInputs | None:"), ()),
        ((TAKES, "self, video_input\n    ) -> tuple"), ()),
        ((TAKES, "self, video_input: NanoNemotronVLVideoInputs\n    ) -> tuple"), ()),
    ],
    ids=["one of two", "the only one", "no annotation", "no class"],
)
def test_parsed_inputs_of_which_an_entry_takes_one_class(release_tree, change, found):
    tree = release_tree("0.33.0")
    text = tree.read(NEMOTRON)
    assert change[0] in text
    changed = {("bytes", NEMOTRON): text.replace(*change).encode()}

    facts = plan(dataclasses.replace(tree, label="tree", _cache=changed), load_port("nano_nemotron_vl")).facts

    assert facts.input_classes == found


def test_a_release_that_pads_no_buffers_keeps_captured_offsets(qwen):
    """In each `__init__` that runs; a class without one keeps them beside its attributes."""
    spec = load_port("qwen2_5_vl")
    tree, dialect = qwen("0.22.0"), read_protocol(qwen("0.22.0")).dialect
    found = plan_tower(spec, tree, find_model(tree, spec.module, spec.class_name), dialect)
    kept = [edit for edit in found.edits[QWEN] if isinstance(edit, ReplaceMethod) and edit.name == "__init__"]
    line = "    self._encoder_cudagraph_offsets: dict[int, dict[str, torch.Tensor]] = {}"
    assert all(line in edit.source.splitlines() for edit in kept)
    assert kept

    assert found.facts.keeps_offsets

    other = qwen("0.22.0", ("self.config = config\n", "self.cfg = config\n"))
    found = plan_tower(spec, other, find_model(other, spec.module, spec.class_name), dialect)
    assert not found.facts.keeps_offsets
    source = render_methods(spec, read_protocol(other), found.facts).source
    assert "def _encoder_cudagraph_offsets(self)" in source

    # That is what an earlier port may have written. A second run leaves it.
    method = "    def _parse_and_validate_image_input("
    earlier = f"    @property\n    def _encoder_cudagraph_offsets(self):\n        return {{}}\n\n{method}"
    again = qwen("0.22.0", (method, earlier))
    assert not plan_tower(spec, again, find_model(again, spec.module, spec.class_name), dialect).facts.keeps_offsets


@pytest.mark.parametrize(("release", "found"), [("0.33.0", 2), ("0.30.0", 0)])
def test_offsets_are_padded_by_functions_beside_the_tower(qwen, release, found):
    """Where rows behind a batch need sequences, these functions give them none."""
    assert len(plan(qwen(release)).facts.padding) == found
    alone = qwen("0.33.0", ("def _pad_flashinfer_cu_seqlens_buffer(", "def _pad_for_flashinfer("))
    assert plan(alone).facts.padding == ()


@pytest.mark.parametrize(("model", "may"), [("qwen3_vl", True), ("qwen2_5_vl", False)])
def test_embeddings_are_asserted_where_there_may_be_none(release_tree, model, may):
    """By the annotation of `embed_multimodal`: elsewhere the assertion is dead."""
    port, tree = load_port(model), release_tree("0.33.0")
    facts = plan_tower(port, tree, find_model(tree, port.module, port.class_name)).facts
    assert facts.embeds_nothing is may
    source = render_methods(port, read_protocol(tree), facts).source
    assert source.count("assert embeddings is not None") == may


@pytest.mark.parametrize(("model", "found"), [("qwen3_vl", 2), ("glm4_1v", 1), ("qwen2_vl", 0)])
def test_a_port_of_another_tower_imports_them_from_qwen2_5_vl(release_tree, model, found):
    """But not a port that Qwen2.5-VL's file imports."""
    port, tree = load_port(model), release_tree("0.33.0")
    padding = plan_tower(port, tree, find_model(tree, port.module, port.class_name)).facts.padding
    assert [module for module, _ in padding] == [".qwen2_5_vl"] * found


@pytest.mark.parametrize(
    ("made", "asserted"),
    [
        ("self.config = config", False),
        ("self.config: object | None = config", True),
        ("self.config: Optional[object] = config", True),
        ("self.config = config if multimodal_config else None", True),
        ("self.config = None if not multimodal_config else config", True),
    ],
)
def test_what_may_be_none_is_asserted_where_a_port_reads_it(made: str, asserted: bool, release_tree) -> None:
    """vLLM's own mypy reads the types of model files."""
    path, tree = "vllm/model_executor/models/internvl.py", release_tree("0.33.0")
    text, own = tree.read(path), "        self.config = config\n"
    assert own in text
    tree = tree.with_files({path: text.replace(own, f"        {made}\n").encode()})
    [change] = [one for one in prepare_port(load_port("internvl"), tree, replace=True).changed if one.path == path]
    assert change.after is not None
    methods = [node for node in ast.walk(ast.parse(change.after)) if isinstance(node, ast.FunctionDef)]
    methods = [node for node in methods if "encoder_cudagraph" in node.name and "self.config." in ast.unparse(node)]
    assert methods
    assert {"assert self.config is not None" in ast.unparse(node.body[0]) for node in methods} == {asserted}


@pytest.mark.parametrize(
    ("model", "home", "class_"),
    [
        # The nearest class that has the method, which those of subclasses of the model derive from, too.
        ("qwen2_5_vl", "qwen2_vl", "Qwen2VLProcessingInfo"),
        ("qwen3_vl", "qwen3_vl", "Qwen3VLProcessingInfo"),
    ],
)
def test_the_class_that_counts_frames(release_tree, model, home, class_):
    facts = plan(release_tree("0.33.0"), load_port(model)).facts

    assert facts.info_class == (f"vllm.model_executor.models.{home}", class_)


def test_the_class_that_counts_frames_is_imported_from_where_the_file_has_it(release_tree):
    """EXAONE 4.5 has it from Qwen2.5-VL's module: one name from two modules is a conflict (VCG433)."""
    changes = {"model": {"module": "exaone4_5", "class": "Exaone4_5_ForConditionalGeneration", "tower": "visual"}}
    facts = plan(release_tree("0.33.0"), port_of("qwen2_5_vl", changes)).facts

    assert facts.info_class == ("vllm.model_executor.models.qwen2_5_vl", "Qwen2VLProcessingInfo")


INFO = "    info=Qwen2_5_VLProcessingInfo,\n"


@pytest.mark.parametrize(
    "changes",
    [
        ((INFO, ""),),
        ((INFO, "    info=make_info,\n"),),
        (
            (INFO, "    info=BaseInfo,\n"),
            ("class Qwen2_5_VLProcessingInfo(", "class BaseInfo:\n    pass\n\n\nclass Qwen("),
        ),
    ],
    ids=["none", "no class", "without the method"],
)
def test_a_processing_info_that_cannot_be_read(qwen, changes):
    assert plan(qwen("0.33.0", *changes)).facts.info_class is None


GIVEN = ("vllm_config.model_config.get_multimodal_config()", "vllm_config.model_config.multimodal_config")


@pytest.mark.parametrize(
    ("release", "changes", "kept"),
    [
        ("0.33.0", (), True),
        ("0.33.0", (GIVEN,), False),
        ("0.33.0", (("self.multimodal_config", "self._inputs"),), False),
    ],
)
def test_the_configuration_of_inputs_is_asked_for_where_mypy_would_not_read_it(qwen, release, changes, kept):
    tree = qwen(release, *changes)
    assert plan(tree).facts.has_multimodal_config is kept
    source = prepare_port(load_port("qwen2_5_vl"), tree, replace=True).plan.methods.source
    assert (".get_multimodal_config()" in source) is not kept
    assert ("self.multimodal_config.get_limit_per_prompt" in source) is kept


def test_no_type_is_asked_for_where_the_tree_checks_none(qwen):
    assert plan(qwen("0.24.0")).facts.has_multimodal_config
