"""Valid descriptors of each family, small enough that one edit makes one mistake, and how mistakes are shown."""

from __future__ import annotations

from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.report import render_diagnostics

TILES = """\
schema: 1
model: {module: tiled, class: TiledModel, tower: vision_model}
layout: tiles
modalities:
  image: {pixels: pixel_values_flat, sizes: image_num_patches, embeds: image_embeds}
  video: {pixels: pixel_values_flat_video, sizes: video_num_patches}
sizes: {columns: [n]}
let:
  k: self.num_image_token
  side: self.config.vision_config.image_size
item: {rows: n, tokens: n * k}
pixels: {shape: [3, side, side]}
capture: {rows: b // k}
budget: {min: k}
forward: {call: self.extract_feature(pixels), flatten: true}
data_parallel: {switches: [self.vision_model.use_data_parallel]}
output: {hidden_size: self.config.text_config.hidden_size}
integration:
  test:
    key: tiled
    model: organisation/Tiled-1B
    template: {name: tiled_chat_template, text: "<user>{content}</user>"}
    image_prompt: What is in this image?
    video_prompt: What happens?
    num_video_frames: 8
    runner_kwargs: {trust_remote_code: true}
    core_model: true
  docs: {models: [Tiled]}
  example: tiled_chat
"""

PACKED = """\
schema: 1
model: {module: packed, class: PackedModel, tower: visual}
layout: packed
modalities:
  image: {pixels: pixel_values, sizes: image_grid_thw}
  video: {pixels: pixel_values_videos, sizes: video_grid_thw}
sizes: {columns: [t, h, w]}
let:
  m: self.visual.merge
  window: self.visual.window_size // m
item: {rows: t * h * w, tokens: t * (h // m) * (w // m)}
pixels: {shape: [self.visual.row_size], dtype: self.visual.input_norm.input_dtype}
attention:
  kind: varlen
  backends: [FLASH_ATTN, FLASHINFER]
  sequences:
    full: {unit: frame, offsets: cu_seqlens, max: max_seqlen, lengths: sequence_lengths}
    window: {unit: window, offsets: cu_window, count: "min(b, B + ceil_div(b, window))", longest: window ** 2}
capture: {grid: strip, side_limit: 8192}
metadata: {method: prepare_encoder_metadata, on: tower, grid: list}
buffers:
  rotary_cos: {kind: rows}
  window_index: {kind: permutation}
budget: {min: 64, frames: {info: get_num_frames}}
forward: {call: "self.visual(pixels, None, encoder_metadata=metadata)"}
eager: {call: "self.visual(pixels, sizes)"}
gates: {modalities: not self.pruning}
requires: [{unless: self.limit > 0, message: images are switched off}]
output: {hidden_size: self.visual.out_hidden_size}
tower: {entry: forward, data: x, metadata: [grid_thw]}
"""

PATHS = """\
schema: 1
model: {module: twofold, class: TwofoldModel, tower: vision_model, optout: [OtherModel]}
layout: tiles
modalities:
  image: {pixels: pixel_values, sizes: num_patches, aux: {patch_pixel_values: n}}
sizes: {columns: [n]}
let: {patch: self.config.patch_size}
helpers:
  unit: {args: [size], value: (size // patch) ** 2}
paths:
  global: {count: 1, tokens: unit(728), pixels: pixel_values, shape: [3, 728, 728]}
  local: {count: n, tokens: unit(504), pixels: patch_pixel_values, shape: [3, 504, 504], zero_ok: true}
forward: {call: self.project(self.encode(pixels)), flatten: true}
post: {assemble: [local, global]}
output: {hidden_size: self.config.hidden_size}
"""

AXES = """\
schema: 1
model: {module: ragged, class: RaggedModel, tower: vpm}
layout: ragged
modalities:
  image: {pixels: pixel_values, sizes: tgt_sizes}
sizes: {columns: [h, w]}
let: {queries: self.config.query_num}
item: {rows: h * w, tokens: queries}
attention: {kind: mask}
buffers:
  attention_mask: {kind: mask, from: hook, pad: {fill: 1}}
  positions: {kind: rows, from: hook, pad: {fill: -1}}
axes:
  - {name: grid, keys: [[32, 32], [32, 64]], resolve: axis_resolve, capture: axis_capture}
hooks:
  axis_resolve: {file: axis.py}
  axis_capture: {file: axis.py}
  replay: {file: replay.py}
forward: {call: "self.encode(pixels, metadata)"}
output: {hidden_size: self.config.hidden_size}
"""

DOCUMENTS = {"tiles": TILES, "packed": PACKED, "paths": PATHS, "axes": AXES}


def problems_of(text: str, file: str = "model.yaml") -> tuple[Diagnostic, ...]:
    """What loading reports, warnings of an accepted descriptor included."""
    try:
        return load_descriptor_text(text, file).warnings
    except DiagnosticError as error:
        return error.diagnostics


def report_of(text: str) -> str:
    """The report as a user sees it."""
    return render_diagnostics(problems_of(text), format="text", sources=lambda _: text)
