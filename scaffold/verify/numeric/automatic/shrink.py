"""Makes a configuration small: few layers, and widths that differ between vision, language and connector.

The geometry stays: image and patch sizes, merges, windows and pixel limits are tied to each other in ways that no rule
knows, and cost little once the widths are small. A width of one part that another part names (`out_hidden_size` of a
tower is the language model's) follows it, because equal old widths become equal new ones.

Works on what `to_dict` of a configuration gives, and knows neither torch nor vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

Tree = dict[str, Any]

#: Layers of every part, and `(heads, width of a head)` by role. No width is another one times a power of two.
LAYERS = 3
_TINY = {"vision": (2, 32), "text": (3, 32), "root": (3, 32), "connector": (2, 24), "audio": (2, 16)}

_DEPTH = re.compile(
    r"(vision_|encoder_|enc_|text_|num_encoder_|num_decoder_|decoder_)?"
    r"(num_hidden_layers|depth|num_layers|n_layers?|layers|encoder_layers|decoder_layers)"
)
_WIDTH = re.compile(
    r"(.*_)?(hidden_size|hidden_dims?|embed_dim|embedding_dim|emb_dim|d_?model|width|n_embd|n_embed|intermediate_size"
    r"|ffn_dim|mlp_dim|projection_dim|inner_dim|output_dim|input_dim|out_dim|in_dim|dim)"
)
_HEADS = re.compile(r"(encoder_|enc_)?(num_|n_)?(attention_)?heads?")
_KEY_VALUE_HEADS = re.compile(
    r"num_key_value_heads|num_kv_heads|n_kv_heads|num_attention_heads_kv|multi_query_group_num"
)
#: Columns that a tower gives to the language model, where it does not name its own width so: classes' defaults may say
#: another number than the language model's.
_OUTPUT = re.compile(r"out(put)?_hidden_size|hidden_size")
_OWN_WIDTH = ("embed_dim", "hidden_size", "d_model", "width", "hidden_dim", "dim", "n_embd", "n_embed", "enc_dim")
#: A width of its own that text and images are projected to; vLLM wants no smaller one than the text's.
_PROJECTION, _PROJECTED = "projection_dim", 160
#: Channels of the first level of a convolutional tower, of which the others are multiples, and layers of a level. Each
#: level normalises groups of 32 channels.
_CHANNELS, _FEWEST = re.compile("ch|(base_|model_)channels"), 32
_LEVEL = "num_res_blocks"
#: One number or a list of numbers of layers.
_LAYER_NUMBERS = re.compile(
    r".*(_indexes|_indices|_idx|_layer_ids?|_layers_list)|deepstack.*|fullatt.*|(vision_feature|select|vision_select)_layers?"
    r"|intermediate_layer.*"
)


class Level(Enum):
    """How much is changed: where the first does not run, the next one is tried."""

    UNEQUAL = "unequal widths"
    ONE_FACTOR = "widths by one factor"
    WIDTHS = "all layers"
    DEPTH = "depth only"


def is_size(name: str) -> bool:
    """Whether a value of this name says how large a model is, or a part of it that says so."""
    return name == "vision_config" or any(form.fullmatch(name) for form in (_DEPTH, _WIDTH, _HEADS))


def is_channels(name: Any, value: Any) -> bool:
    """Whether a value is the number of channels that those of all levels of a convolutional tower are multiples of."""
    return isinstance(name, str) and _CHANNELS.fullmatch(name) is not None and _is_number(value)


def role_of(path: tuple[str, ...]) -> str:
    """The part of the model that the configuration at this path is of."""
    text = "/".join(path).lower()
    for role, words in (
        ("vision", r"vis|vit|image|siglip|clip|tower|sam"),
        ("audio", r"audio|speech|whisper|sound"),
        ("text", r"text|llm|language|decoder"),
        ("connector", r"qformer|perceiver|project|connector|adapter|resampler"),
    ):
        if re.search(words, text):
            return role
    return "root"


def parts_of(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tree]]:
    """A configuration and those inside it, with their paths."""
    yield path, tree  # type: ignore[misc]
    for key, value in tree.items():
        if isinstance(value, dict) and value and (key.endswith(("_config", "_cfg")) or "model_type" in value):
            yield from parts_of(value, (*path, key))


def shrink(tree: Tree, level: Level = Level.UNEQUAL, keep: frozenset[str] = frozenset()) -> None:
    """Shrink a configuration in place. `keep` are dotted paths that stay."""
    parts = list(parts_of(tree))
    frozen = {path: {key: part[key] for key in part if ".".join((*path, key)) in keep} for path, part in parts}
    if level is not Level.WIDTHS:
        _cut_all_layers([part for _, part in parts])
    if level is not Level.DEPTH:
        _cut_widths(parts, level)
        _cut_channels([part for _, part in parts])
    if level is Level.UNEQUAL:
        _part_projections(parts)
    for path, part in parts:
        part.update(frozen[path])


def _cut_all_layers(parts: list[Tree]) -> None:
    """Cut the layers of every part. A part without layers may number one of another part, by the same name."""
    renumbered: dict[tuple[str, int], int] = {}
    for part in parts:
        numbers = {(name, value) for name, value in part.items() if _is_layer(name, value)}
        if _cut_layers(part):
            renumbered |= {(name, value): part[name] for name, value in numbers}
    for part in (part for part in parts if not any(map(_DEPTH.fullmatch, part))):
        for name, value in part.items():
            if _is_layer(name, value):
                part[name] = renumbered.get((name, value), value)


def _is_layer(name: str, value: Any) -> bool:
    return _is_number(value) and _LAYER_NUMBERS.fullmatch(name) is not None


def _cut_layers(part: Tree) -> bool:
    """Cut the layers of a part; whether it has more than a few."""
    depths = {name: value for name, value in part.items() if _DEPTH.fullmatch(name) and _is_number(value)}
    old = max(depths.values(), default=0)
    for name in depths:
        part[name] = min(part[name], LAYERS)
    if old <= LAYERS:
        return False
    for name, value in part.items():
        if isinstance(value, list) and len(value) == old:
            part[name] = value[:LAYERS]
        elif isinstance(value, dict) and value and all(isinstance(own, dict) for own in value.values()):
            if all(str(number).isdecimal() for number in value):  # what single layers have of their own
                part[name] = {str(_scaled(int(number), old)): own for number, own in value.items()}
        elif _LAYER_NUMBERS.fullmatch(name):
            if _is_number(value):
                part[name] = _scaled(value, old)
            elif isinstance(value, (list, tuple)) and value and all(map(_is_number, value)):
                part[name] = sorted({_scaled(number, old) for number in value}, key=lambda number: number % LAYERS)
    return True


def _scaled(number: int, old: int) -> int:
    """The number of a layer, counted from the front or from the end, among fewer layers."""
    return max(number, -LAYERS) if number < 0 else min(number * LAYERS // old, LAYERS - 1)


def _cut_widths(parts: list[tuple[tuple[str, ...], Tree]], level: Level) -> None:
    own: dict[tuple[str, ...], tuple[str, int, int]] = {}
    known: dict[int, int] = {}
    for path, part in parts:
        heads = next((name for name in part if _HEADS.fullmatch(name) and _is_number(part[name])), None)
        width = next((name for name in _OWN_WIDTH if _is_number(part.get(name))), None)
        if heads is None or width is None:
            continue
        count, size = _TINY[role_of(path)]
        if level is Level.ONE_FACTOR:
            count, size = min(part[heads], 4), 16
        for name in part:
            if _KEY_VALUE_HEADS.fullmatch(name) and _is_number(part[name]):
                part[name] = count if part[name] == part[heads] else 1
        _cut_sections(part, size, part.get("head_dim") or part[width] // part[heads])
        if _is_number(part.get("head_dim")):
            part["head_dim"] = size
        old, part[heads], part[width] = part[width], count, count * size
        known.setdefault(old, count * size)
        own[path] = width, old, count * size
    language = next((new for path, (_, _, new) in own.items() if role_of(path) == "text"), None)
    scaled: dict[int, int] = {}
    fallback = min(known.values()) / max(known) if known else 1 / 32
    for path, part in parts:
        name_of_own, old, new = own.get(path, ("", 0, 0))
        for name, value in part.items():
            if name == name_of_own or not _WIDTH.fullmatch(name) or not _is_number(value) or value < 64:
                continue
            if language and role_of(path) == "vision" and _OUTPUT.fullmatch(name):
                part[name] = new if (name, value) == ("hidden_size", old) else language
            elif value == old:
                part[name] = new
            elif value in known:
                part[name] = known[value]
            elif old and value % old == 0:
                part[name] = value // old * new
            elif name == "input_dim" and role_of(path) in ("audio", "root"):
                pass  # that of a spectrum, which no part makes
            else:
                factor = new / old if old else fallback
                part[name] = scaled.setdefault(value, max(16, round(value * factor / 16) * 16))


def _cut_channels(parts: list[Tree]) -> None:
    for part in parts:
        if any(is_channels(name, value) for name, value in part.items()):
            smaller = {name: min(value, _FEWEST) for name, value in part.items() if is_channels(name, value)}
            part.update({**smaller, **({_LEVEL: 1} if _LEVEL in part else {})})


def _cut_sections(part: Tree, size: int, old: int) -> None:
    """Cut the sections of rotary positions, by which some classes check the width of a head."""
    for rope in (value for value in part.values() if isinstance(value, dict)):
        sections = rope.get("mrope_section")
        if sections and old:
            cut = [section * size // old for section in sections]
            rope["mrope_section"] = [sum(sections) * size // old - sum(cut[1:]), *cut[1:]]


def _part_projections(parts: list[tuple[tuple[str, ...], Tree]]) -> None:
    """A width that text is projected to as well as images, as in CLIP, is not the text's own.

    A model whose text has no projection has the language model's width under this name.
    """
    if any(role_of(path) == "text" and _PROJECTION in part for path, part in parts):
        for _, part in parts:
            if _is_number(part.get(_PROJECTION)):
                part[_PROJECTION] = _PROJECTED


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
