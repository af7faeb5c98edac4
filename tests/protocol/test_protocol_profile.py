"""The protocol as it is read from every real release, and from trees that were changed by one line."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from failing import failure

from scaffold.protocol import (
    GENERATIONS,
    Dialect,
    Postprocess,
    SourceTree,
    known_profile,
    own_version,
    read_protocol,
    tree_name,
)
from scaffold.protocol import generations as generations_module
from scaffold.protocol.dialect import Paths, PostprocessOutputs
from scaffold.protocol.profile import read_source
from scaffold.protocol.record import record_generation
from scaffold.protocol.signatures import ProtocolShape, canonical_value, compare_shapes

pytestmark = pytest.mark.trees

INTERFACES = "vllm/model_executor/models/interfaces.py"
DEFS = "vllm/v1/worker/encoder_cudagraph_defs.py"
MANAGER = "vllm/v1/worker/encoder_cudagraph.py"

GENERATION_OF = {
    "0.20.0": "v0_20",
    "0.21.0": "v0_20",
    "0.22.0": "v0_22",
    "0.22.1": "v0_22",
    "0.23.0": "v0_23",
    "0.24.0": "v0_24",
    "0.25.0": "v0_24",
    "0.25.1": "v0_24",
    "0.26.0": "v0_24",
    "0.27.0": "v0_27",
    "0.27.1": "v0_27",
    "0.28.0": "v0_27",
    "0.29.0": "v0_27",
    "0.30.0": "v0_30",
    "0.31.0": "v0_30",
    "0.32.0": "v0_30",
    "0.33.0": "v0_30",
}

_V0_20 = Dialect(
    item_specs=False,
    frames_method=True,
    frames_field=False,
    input_key_by_modality=True,
    values=False,
    padding_logics=False,
    path_argument=False,
    paths=Paths.NONE,
    capture_axes=False,
    postprocess=Postprocess.NONE,
    postprocess_outputs=PostprocessOutputs.NONE,
    zero_path_tokens=False,
    modality_called=True,
)
#: Each generation by what it says otherwise than the one before.
_V0_22 = replace(
    _V0_20,
    item_specs=True,
    frames_method=False,
    frames_field=True,
    postprocess=Postprocess.GRAPH_ONLY,
    postprocess_outputs=PostprocessOutputs.SINGLE,
)
_V0_23 = replace(_V0_22, input_key_by_modality=False, values=True, padding_logics=True, modality_called=False)
_V0_24 = replace(_V0_23, path_argument=True, paths=Paths.DUAL, postprocess_outputs=PostprocessOutputs.DUAL)
_V0_27 = replace(
    _V0_24,
    paths=Paths.NAMED,
    postprocess=Postprocess.ALWAYS,
    postprocess_outputs=PostprocessOutputs.BY_PATH,
    zero_path_tokens=True,
)
_V0_30 = replace(_V0_27, capture_axes=True)
DIALECT_OF = {
    "v0_20": _V0_20,
    "v0_22": _V0_22,
    "v0_23": _V0_23,
    "v0_24": _V0_24,
    "v0_27": _V0_27,
    "v0_30": _V0_30,
}


@pytest.mark.parametrize(("version", "generation"), GENERATION_OF.items())
def test_release_speaks_its_generation(release_tree, version: str, generation: str) -> None:
    imported = set(sys.modules)
    profile = read_protocol(release_tree(version))
    assert not {name for name in set(sys.modules) - imported if name.partition(".")[0] in ("vllm", "torch")}
    assert profile.generation.name == generation
    assert profile.fingerprint == profile.generation.fingerprint
    assert profile.dialect == DIALECT_OF[generation]
    assert profile.release == version
    assert profile.interfaces_module == "vllm.model_executor.models.interfaces"
    assert profile.defs_module == "vllm.v1.worker.encoder_cudagraph_defs"
    assert profile.manager_module == "vllm.v1.worker.encoder_cudagraph"


@pytest.mark.parametrize("version", GENERATION_OF)
def test_signature_source_is_the_signature(release_tree, version: str) -> None:
    tree = release_tree(version)
    protocol = next(
        node
        for node in tree.parse(INTERFACES).body
        if isinstance(node, ast.ClassDef) and node.name == "SupportsEncoderCudaGraph"
    )
    written = {node.name: node for node in protocol.body if isinstance(node, ast.FunctionDef)}
    methods = read_protocol(tree).methods
    assert [method.name for method in methods] == list(written)
    for method in methods:
        copy = ast.parse(f"def {method.name}({method.signature_source()}) -> {method.returns}: ...").body[0]
        assert isinstance(copy, ast.FunctionDef)
        assert ast.dump(copy.args) == ast.dump(written[method.name].args), method.name


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [
        ("0.18.0", "VCG413", "vLLM 0.18.0 has no protocol"),
        ("0.19.0", "VCG414", "`vllm.v1.worker.gpu.mm.encoder_cudagraph_defs`, a module that is not in it"),
        ("0.19.1", "VCG414", "`vllm.v1.worker.gpu.mm.encoder_cudagraph_defs`, a module that is not in it"),
    ],
)
def test_release_is_refused(release_tree, version: str, code: str, words: str) -> None:
    diagnostic = failure(read_protocol, release_tree(version), code=code)
    assert words in diagnostic.message
    assert "0.20.0 or newer" in (diagnostic.help or "")
    assert str(diagnostic.span).startswith(f"vllm-{version}/vllm/model_executor/models/interfaces.py:")


def test_methods_without_a_default_must_be_implemented(release_tree) -> None:
    profile = read_protocol(release_tree("0.33.0"))
    assert [method.name for method in profile.methods if method.has_default] == [
        "get_input_modality",
        "postprocess_encoder_output",
    ]
    (fields,) = [entry.fields for entry in profile.dataclasses if entry.name == "EncoderCudaGraphConfig"]
    assert [field.name for field in fields] == [
        "modalities",
        "buffer_keys",
        "out_hidden_size",
        "padding_logics",
        "max_frames_per_video",
        "paths",
        "capture_axes",
    ]


# --- the known generations -------------------------------------------------------------------------------------------


def test_known_generations_cover_the_releases_without_overlap() -> None:
    assert [(item.name, item.first, item.last) for item in GENERATIONS] == [
        ("v0_20", "0.20.0", "0.21.0"),
        ("v0_22", "0.22.0", "0.22.1"),
        ("v0_23", "0.23.0", "0.23.0"),
        ("v0_24", "0.24.0", "0.26.0"),
        ("v0_27", "0.27.0", "0.29.0"),
        ("v0_30", "0.30.0", "0.33.0"),
    ]


def test_recording_into_an_empty_folder_reproduces_the_files(release_tree, tmp_path: Path) -> None:
    for version in (*GENERATION_OF, "0.20.0"):  # which is known then
        record_generation(release_tree(version), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in generations_module.KNOWN.iterdir()
    }


@pytest.mark.parametrize("version", GENERATION_OF)
def test_known_profile_is_what_is_read_from_each_release(release_tree, version: str) -> None:
    """Except the release, line numbers and the spelling of annotations."""
    read = read_protocol(release_tree(version))
    known = known_profile(read.generation)

    shapes = [ProtocolShape(("Protocol",), (), profile.methods, profile.dataclasses) for profile in (known, read)]
    assert compare_shapes(*shapes) == ()
    assert shapes[0].canonical() == shapes[1].canonical()
    for name in ("interfaces_module", "defs_module", "manager_module", "fingerprint", "dialect"):
        assert getattr(known, name) == getattr(read, name), name
    assert (known.release, known.line) == (None, 0)


def test_stored_files_hold_facts_only() -> None:
    for path in generations_module.KNOWN.iterdir():
        facts = json.loads(path.read_text("utf-8"))
        assert set(facts) == {"name", "first", "last", "fingerprint", "shape", "modules", "manager"}
        assert ProtocolShape.from_canonical(facts["shape"]).canonical() == facts["shape"]


def test_stored_files_have_a_method_or_a_field_a_line() -> None:
    for path in generations_module.KNOWN.iterdir():
        text = path.read_text("utf-8")
        shape = json.loads(text)["shape"]
        fields = [field for item in shape["dataclasses"] for field in item["fields"]]
        lines = {line.strip().rstrip(",") for line in text.splitlines()}
        assert {json.dumps(item) for item in (*shape["methods"], *fields)} <= lines


# --- changed protocols -----------------------------------------------------------------------------------------------


def _edit(tree: SourceTree, relpath: str, old: str, new: str) -> SourceTree:
    path = tree.path(relpath)
    text = path.read_text("utf-8")
    assert text.count(old) >= 1, f"{relpath} has no {old!r}"
    path.write_text(text.replace(old, new), "utf-8")
    return tree.reread()


@pytest.mark.parametrize(
    ("version", "relpath", "old", "new", "nearest", "difference"),
    [
        (
            "0.33.0",
            INTERFACES,
            "def encoder_eager_forward(",
            "def encoder_fallback_forward(",
            "v0_30",
            (
                "method `encoder_eager_forward` removed",
                'method `encoder_fallback_forward(self, mm_kwargs: dict[str, Any], path: str = "default") -> '
                "torch.Tensor` added",
            ),
        ),
        (
            "0.33.0",
            INTERFACES,
            "        axis_keys: tuple[Hashable, ...] | None = None,\n    )",
            "        axis_keys: tuple[Hashable, ...] | None = None,\n        *,\n        pool: int = 0,\n    )",
            "v0_30",
            ("method `prepare_encoder_cudagraph_capture_inputs`: parameter `pool: int = 0` added",),
        ),
        (
            "0.22.0",
            INTERFACES,
            "        clone: bool = False,\n        batch_mm_kwargs",
            "        clone: bool = True,\n        batch_mm_kwargs",
            "v0_22",
            ("method `postprocess_encoder_output`: parameter `clone` changed default: `False` -> `True`",),
        ),
        (
            "0.20.0",
            INTERFACES,
            "        token_budget: int,\n        max_batch_size: int,",
            "        max_batch_size: int,\n        token_budget: int,",
            "v0_20",
            (
                "method `prepare_encoder_cudagraph_capture_inputs`: parameters reordered: self, token_budget, "
                "max_batch_size, max_frames_per_batch, device, dtype -> self, max_batch_size, token_budget, "
                "max_frames_per_batch, device, dtype",
            ),
        ),
        (
            "0.24.0",
            INTERFACES,
            ') -> list["EncoderItemSpec"]:',
            ') -> tuple["EncoderItemSpec", ...]:',
            "v0_24",
            (
                "method `get_encoder_cudagraph_item_specs`: return type changed: `list[EncoderItemSpec]` -> "
                '`tuple["EncoderItemSpec", ...]`',
            ),
        ),
        (
            "0.23.0",
            INTERFACES,
            '        """Return the modality of the inputs (default: image-only)."""\n        return "image"',
            '        """Return the modality of the inputs."""\n        ...',
            "v0_23",
            ("method `get_input_modality`: has no default body any more",),
        ),
        (
            "0.33.0",
            DEFS,
            "    max_frames_per_video: int = 1\n",
            "    max_frames_per_video: int = 16\n    stream: bool = False\n",
            "v0_30",
            (
                "`EncoderCudaGraphConfig` field `stream: bool = False` added",
                "`EncoderCudaGraphConfig` field `max_frames_per_video` changed default: `1` -> `16`",
            ),
        ),
        (
            "0.27.0",
            DEFS,
            "@dataclass(frozen=True)\nclass EncoderCudaGraphPathConfig",
            "@dataclass\nclass EncoderCudaGraphPathConfig",
            "v0_27",
            ("data class `EncoderCudaGraphPathConfig` is no longer frozen",),
        ),
    ],
)
def test_changed_protocol_is_refused_with_the_difference(
    copied_tree, version: str, relpath: str, old: str, new: str, nearest: str, difference: tuple[str, ...]
) -> None:
    tree = _edit(copied_tree(version, INTERFACES, DEFS, MANAGER), relpath, old, new)
    diagnostic = failure(read_protocol, tree, code="VCG415")
    assert f"the nearest is {nearest} " in diagnostic.message
    assert sorted(diagnostic.notes) == sorted(difference)
    assert str(diagnostic.span) == f"tree/{INTERFACES}:{read_source(tree).line}:1"


@pytest.mark.parametrize(
    ("relpath", "old", "new"),
    [
        (INTERFACES, '"""Return the modality of the inputs (default: image-only)."""', '"""Other words."""'),
        (INTERFACES, '-> "EncoderCudaGraphConfig": ...', "-> EncoderCudaGraphConfig:  # comment\n        ..."),
        (INTERFACES, 'path: str = "default"', "path: str = 'default'"),
        (DEFS, "    max_frames_per_video: int = 1\n", "    max_frames_per_video: int = 1  # frames\n"),
        (DEFS, "import torch\n", "import torch\n\nOTHER_CONSTANT = 1\n"),
    ],
)
def test_words_and_quotes_do_not_change_the_fingerprint(copied_tree, relpath: str, old: str, new: str) -> None:
    tree = _edit(copied_tree("0.33.0", INTERFACES, DEFS, MANAGER), relpath, old, new)
    assert read_protocol(tree).generation.name == "v0_30"


def test_dialect_follows_the_manager_not_the_release(copied_tree) -> None:
    tree = copied_tree("0.22.0", INTERFACES, DEFS, MANAGER)
    assert read_protocol(tree).dialect.modality_called
    tree = _edit(tree, MANAGER, "self.model.get_input_modality(", "self.config.get_input_modality(")
    assert not read_protocol(tree).dialect.modality_called


@pytest.mark.parametrize("older", GENERATIONS, ids=str)
@pytest.mark.parametrize("newer", GENERATIONS, ids=str)
def test_two_generations_differ_exactly_when_their_names_do(older, newer) -> None:
    assert bool(compare_shapes(older.shape, newer.shape)) == (older.name != newer.name)


def test_difference_between_known_generations_names_what_is_known() -> None:
    shapes = {generation.name: generation.shape for generation in GENERATIONS}
    lines = compare_shapes(shapes["v0_27"], shapes["v0_30"])
    assert set(lines) == {
        "method `prepare_encoder_cudagraph_capture_inputs`: parameter `axis_keys: tuple[Hashable, ...] | None = None` "
        "added",
        "`EncoderCudaGraphConfig` field `capture_axes: tuple[tuple[Hashable, ...], ...] = ()` added",
    }


# --- broken trees ----------------------------------------------------------------------------------------------------


def _raises(tree: SourceTree, code: str) -> str:
    diagnostic = failure(read_protocol, tree, code=code)
    return f"{diagnostic.span} {diagnostic.message}"


def test_missing_interfaces(copied_tree) -> None:
    assert "cannot read `vllm/model_executor/models/interfaces.py`" in _raises(copied_tree("0.33.0"), "VCG410")


def test_syntax_error(copied_tree) -> None:
    tree = copied_tree("0.33.0", INTERFACES, DEFS, MANAGER)
    tree = _edit(tree, INTERFACES, "import numpy as np\n", "<<<<<<< HEAD\n")
    line = tree.read(INTERFACES).splitlines().index("<<<<<<< HEAD") + 1
    assert _raises(tree, "VCG412").startswith(f"tree/{INTERFACES}:{line}:1 ")


def test_not_utf8(copied_tree) -> None:
    tree = copied_tree("0.33.0", INTERFACES, DEFS, MANAGER)
    path = tree.path(DEFS)
    path.write_bytes("# é ".encode() + b"caf\xe9\n" + path.read_bytes())
    assert _raises(tree.reread(), "VCG411").startswith(f"tree/{DEFS}:1:8 ")


def test_missing_definitions(copied_tree) -> None:
    message = _raises(copied_tree("0.33.0", INTERFACES, MANAGER), "VCG414")
    assert "`vllm.v1.worker.encoder_cudagraph_defs`, a module that is not in it" in message


def test_missing_manager(copied_tree) -> None:
    assert "no class `EncoderCudaGraphManager`" in _raises(copied_tree("0.33.0", INTERFACES, DEFS), "VCG416")


def test_definitions_without_data_classes(copied_tree) -> None:
    tree = copied_tree("0.33.0", INTERFACES, DEFS, MANAGER)
    tree.path(DEFS).write_text("X = 1\n", "utf-8")
    assert "has no data classes" in _raises(tree.reread(), "VCG417")


def test_definitions_are_found_where_the_import_points(copied_tree) -> None:
    tree = copied_tree("0.33.0", INTERFACES, DEFS, MANAGER)
    moved = "vllm/v1/worker/gpu/defs.py"
    tree.path(moved).parent.mkdir(parents=True)
    tree.path(DEFS).rename(tree.path(moved))
    tree = _edit(tree, INTERFACES, "vllm.v1.worker.encoder_cudagraph_defs", "vllm.v1.worker.gpu.defs")
    assert read_protocol(tree).defs_module == "vllm.v1.worker.gpu.defs"


def test_moved_protocol_and_manager_are_found(copied_tree) -> None:
    tree = copied_tree("0.33.0", INTERFACES, DEFS, MANAGER)
    text = tree.read(INTERFACES)
    tree.path("vllm/model_executor/models/protocols.py").write_text(text, "utf-8")
    tree.path(INTERFACES).write_text(text.replace("class SupportsEncoderCudaGraph", "class Elsewhere"), "utf-8")
    tree.path(MANAGER).rename(tree.path("vllm/v1/worker/graphs.py"))
    profile = read_protocol(tree.reread())
    assert profile.interfaces_module == "vllm.model_executor.models.protocols"
    assert profile.manager_module == "vllm.v1.worker.graphs"
    assert profile.generation.name == "v0_30"


def test_a_value_is_spelled_alike_under_every_python() -> None:
    """A fingerprint is recorded under one Python and compared under others: 3.10 unparses `lambda :`."""
    assert canonical_value("field( default_factory = lambda :{})") == "field(default_factory=lambda: {})"


# --- the name of a tree -----------------------------------------------------------------------------------------------

#: release of the files, the version that the tree names, what it is called
NAMES = {
    "a release": ("0.33.0", "0.33.0", "vLLM 0.33.0"),
    "a release of a platform": ("0.33.0", "0.33.0+cpu", "vLLM 0.33.0+cpu"),
    "a fork": ("0.33.0", "0.1.0", "a vLLM of its own version 0.1.0, protocol v0_30"),
    "a snapshot of a fork": ("0.33.0", "0.1.0.dev3+gabc", "a vLLM of its own version 0.1.0.dev3+gabc, protocol v0_30"),
    "a fork with higher numbers": ("0.27.0", "1.2.3", "a vLLM of its own version 1.2.3, protocol v0_27"),
    "a snapshot behind a change of the protocol": ("0.30.0", "0.29.1.dev400", "vLLM 0.29.1.dev400"),
    "a snapshot before one": ("0.29.0", "0.30.0.dev1", "vLLM 0.30.0.dev1"),
    "a release to come": ("0.33.0", "0.34.0", "vLLM 0.34.0"),
    "no version": ("0.33.0", None, "vLLM"),
    "no number": ("0.33.0", "dev", "vLLM dev"),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_tree_is_called_what_it_is(case, release_tree):
    release, version, name = NAMES[case]
    tree = replace(release_tree(release), release=version)
    assert tree_name(tree) == name
    assert own_version(tree) == ("" if name.startswith("vLLM") else name)


@pytest.mark.parametrize("release", GENERATION_OF)
def test_no_release_has_a_version_of_its_own(release, release_tree):
    assert tree_name(release_tree(release)) == f"vLLM {release}"
