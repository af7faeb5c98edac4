"""Names that parts of a model have without the tree: what a descriptor never calls, and never hands over.

`validate` knows no tree. It refuses these by name; `plan` looks every path up in the tree.
"""

from __future__ import annotations

import re
from itertools import pairwise

from scaffold.descriptor.expressions import path_names

#: Methods of `torch.nn.Module` (2.13), of configurations of transformers (4 and 5), and of both packages' mixins. A
#: test compares them with the installed packages.
METHODS = frozenset(
    """
    _apply _call_impl _get_backward_hooks _get_backward_pre_hooks _get_name _load_from_state_dict
    _maybe_warn_non_full_backward_hook _named_members _register_load_state_dict_pre_hook _register_state_dict_hook
    _replicate_for_data_parallel _save_to_state_dict _slow_forward _wrapped_call_impl add_module apply bfloat16 buffers
    children compile cpu cuda double eval extra_repr float forward get_buffer get_extra_state get_parameter
    get_submodule half ipu load_state_dict modules mtia named_buffers named_children named_modules named_parameters
    parameters register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train
    type xpu zero_grad

    convert_rope_params_to_dict dict_dtype_to_str dict_torch_dtype_to_str from_dict from_json_file from_pretrained
    get_config_dict get_mtp_config get_text_config is_custom_code is_remote_code nested_rope_parameter_keys push_to_hub
    register_for_auto_class save_pretrained standardize_rope_params to_dict to_diff_dict to_json_file to_json_string
    update update_from_string validate validate_architecture validate_layer_type validate_output_attentions
    validate_rope validate_token_ids

    copy_ data fill_ load_weights numpy set_ storage tofile tolist untyped_storage
    """.split()  # noqa: SIM905
)

#: Objects of a model that are no parts of it: their values may be read, and nothing of them is called.
_NO_PART = re.compile(r"(?:.*_)?(?:config|cfg|args|ctx)|info|tokenizer|(?:image_|video_)?processor")


def is_no_part(name: str) -> bool:
    """Whether an attribute of this name is a configuration, a tokenizer or the like."""
    return _NO_PART.fullmatch(name) is not None


def why_not_called(path: str) -> str | None:
    """The reason why nothing may call a path; None where only the tree can tell."""
    names = path_names(path)[1:]
    outside = next((name for name in names if is_no_part(name)), None)
    if outside is not None:
        return f"`{outside}` is no part of the model: its values may be read, and nothing of it is called"
    return _brought_along(names)


def why_not_passed(path: str) -> str | None:
    """The reason why no call may pass an attribute."""
    names = path_names(path)[1:]
    for outer, name in pairwise(names):
        if is_no_part(outer) and name.startswith("_"):
            return f"`{name}` is private"
    return _brought_along(names)


def _brought_along(names: list[str]) -> str | None:
    found = next((name for name in names if name in METHODS), None)
    return None if found is None else f"`{found}` is a method of torch or of transformers, not of the model"
