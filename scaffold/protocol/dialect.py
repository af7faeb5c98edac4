"""The dialect of a protocol generation: the differences that a generator has to know, and no others.

A `Dialect` follows from a tree's signatures and its manager's code, never from a release number. So a backport or a
fork gets the dialect of its own signatures. The release facts in the docstrings come from the sdists of 0.20 to 0.33.

The functions know a method by its oldest name. `renamed` maps that name to the one in the tree.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from scaffold.protocol.signatures import ProtocolShape
from scaffold.syntax import statements

CONFIG = "EncoderCudaGraphConfig"
CAPTURE = "EncoderCudaGraphCaptureInputs"
ITEM = "EncoderItemSpec"
_SAME_NAMES: Mapping[str, str] = {}


class Paths(str, Enum):
    """How many independently captured encoder paths a model may have."""

    NONE = "none"  # 0.20 to 0.23: one graph per budget
    DUAL = "dual"  # 0.24 to 0.26: global and local, by three fields of the config
    NAMED = "named"  # 0.27 on: `EncoderCudaGraphConfig.paths`, any number, each with its own budgets


class Postprocess(str, Enum):
    """Which results the manager hands to `postprocess_encoder_output`."""

    NONE = "none"  # 0.20, 0.21: there is no hook, the manager slices both kinds of result itself
    GRAPH_ONLY = "graph_only"  # 0.22 to 0.26: eager results must be final embeddings, the manager slices them
    ALWAYS = "always"  # 0.27 on: eager results come in the same form as graph results and pass through the hook


class PostprocessOutputs(str, Enum):
    """How the raw result reaches the hook."""

    NONE = "none"  # 0.20, 0.21: no hook
    SINGLE = "single"  # 0.22, 0.23: `output`
    DUAL = "dual"  # 0.24 to 0.26: `output` (global path) and `local_output`
    BY_PATH = "by_path"  # 0.27 on: `outputs`, a dict by path name; "default" for one path


@dataclass(frozen=True, slots=True)
class ManagerFacts:
    """The facts that only the manager's code tells. `calls` are the model's methods that it calls."""

    calls: frozenset[str]
    slices_eager: bool


@dataclass(frozen=True, slots=True)
class Dialect:
    """One form of the protocol, as a generator must write it."""

    #: `get_encoder_cudagraph_item_specs` (0.22 on); False: num_items, per_item_output_tokens and
    #: per_item_input_sizes are three methods (0.20, 0.21).
    item_specs: bool
    #: The manager calls `get_max_frames_per_video` (0.20, 0.21). Later releases keep the method but never call it.
    frames_method: bool
    #: `EncoderCudaGraphConfig.max_frames_per_video` (0.22 on).
    frames_field: bool
    #: `EncoderCudaGraphConfig.input_key_by_modality` names the pixel tensor (0.20 to 0.22); from 0.23 on the pixels
    #: are an ordinary buffer.
    input_key_by_modality: bool
    #: Capture and replay return one `values` dict that includes the pixels (0.23 on); False: `mm_kwargs` and
    #: `buffers`, the pixels in `mm_kwargs` (0.20 to 0.22).
    values: bool
    #: `EncoderCudaGraphConfig.padding_logics`: a copy function for each buffer (0.23 on). Without it the manager
    #: zeroes a buffer and copies the front.
    padding_logics: bool
    #: Capture, replay, forward and eager take `path` (0.24 on).
    path_argument: bool
    paths: Paths
    #: `EncoderCudaGraphConfig.capture_axes` and the `axis_keys` parameter of capture (0.30 on).
    capture_axes: bool
    postprocess: Postprocess
    postprocess_outputs: PostprocessOutputs
    #: An item may have no tokens on the default path, by `EncoderItemSpec.path_output_tokens` (0.27 on).
    zero_path_tokens: bool
    #: The manager calls `get_input_modality` (0.20 to 0.22). From 0.23 on it has a default and is never called.
    modality_called: bool


def derive_dialect(shape: ProtocolShape, manager: ManagerFacts, renamed: Mapping[str, str] = _SAME_NAMES) -> Dialect:
    """Read the dialect from the signatures, the fields, and the manager's calls."""

    def has_method(name: str) -> bool:
        return shape.method(renamed.get(name, name)) is not None

    def calls(name: str) -> bool:
        return renamed.get(name, name) in manager.calls

    def has_field(dataclass_name: str, field: str) -> bool:
        dataclass = shape.dataclass(dataclass_name)
        return dataclass is not None and dataclass.field(field) is not None

    def has_parameter(method_name: str, parameter: str) -> bool:
        method = shape.method(renamed.get(method_name, method_name))
        return method is not None and method.parameter(parameter) is not None

    hook = "postprocess_encoder_output"
    return Dialect(
        item_specs=has_method("get_encoder_cudagraph_item_specs"),
        frames_method=calls("get_max_frames_per_video"),
        frames_field=has_field(CONFIG, "max_frames_per_video"),
        input_key_by_modality=has_field(CONFIG, "input_key_by_modality"),
        values=has_field(CAPTURE, "values"),
        padding_logics=has_field(CONFIG, "padding_logics"),
        path_argument=has_parameter("encoder_cudagraph_forward", "path"),
        paths=(
            Paths.NAMED
            if has_field(CONFIG, "paths")
            else Paths.DUAL
            if has_field(CONFIG, "enable_dual_path_graph")
            else Paths.NONE
        ),
        capture_axes=has_field(CONFIG, "capture_axes"),
        postprocess=(
            Postprocess.NONE
            if not has_method(hook)
            else Postprocess.GRAPH_ONLY
            if manager.slices_eager
            else Postprocess.ALWAYS
        ),
        postprocess_outputs=(
            PostprocessOutputs.NONE
            if not has_method(hook)
            else PostprocessOutputs.BY_PATH
            if has_parameter(hook, "outputs")
            else PostprocessOutputs.DUAL
            if has_parameter(hook, "local_output")
            else PostprocessOutputs.SINGLE
        ),
        zero_path_tokens=has_field(ITEM, "path_output_tokens"),
        modality_called=calls("get_input_modality"),
    )


def inspect_manager(module: ast.Module, renamed: Mapping[str, str] = _SAME_NAMES) -> ManagerFacts:
    """Which methods of `self.model` the manager calls, and whether it slices eager results without the hook.

    It does when one function both runs the model eagerly and calls `scatter_output_slices`.
    """
    eager = renamed.get("encoder_eager_forward", "encoder_eager_forward")
    calls: set[str] = set()
    slices_eager = False
    for function in statements(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        called: set[str] = set()
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute):
                called.add(node.func.attr)
                owner = node.func.value
                if isinstance(owner, ast.Attribute) and owner.attr == "model":
                    calls.add(node.func.attr)
            elif isinstance(node.func, ast.Name):
                called.add(node.func.id)
        if eager in called and called & {"scatter_output_slices", "_scatter_output_slices"}:
            slices_eager = True
    return ManagerFacts(frozenset(calls), slices_eager)
