"""Valid descriptors of each family, small enough that one edit makes one mistake, and how mistakes are shown."""

from __future__ import annotations

from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.report import render_diagnostics

TILES = """\
schema: 1
model: {module: tiled, class: TiledModel}
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
  full: {unit: frame, offsets: cu_seqlens, max: max_seqlen, lengths: sequence_lengths}
  window: {unit: window, offsets: cu_window, count: "min(b, B + ceil_div(b, window))", longest: window ** 2}
capture: {side_limit: 8192}
buffers: [rotary_cos, window_index]
budget: {min: 64, frames: {info: get_num_frames}}
forward: {call: "self.visual(pixels, None, encoder_metadata=metadata)"}
eager: {call: "self.visual(pixels, sizes)"}
gates: {modalities: not self.pruning}
output: {hidden_size: self.visual.out_hidden_size}
tower: {entry: forward, data: x, metadata: [grid_thw]}
"""

PATHS = """\
schema: 1
model: {module: twofold, class: TwofoldModel, optout: [OtherModel]}
layout: paths
modalities:
  image: {sizes: num_patches, embeds: image_embeds}
sizes: {columns: [n]}
let: {patch: self.config.patch_size}
helpers:
  unit: {args: [size], value: (size // patch) ** 2}
paths:
  global: {count: 1, tokens: unit(728), pixels: pixel_values, shape: [3, 728, 728]}
  local: {count: n, tokens: unit(504), pixels: patch_pixel_values, shape: [3, 504, 504]}
forward: {call: self.project(self.encode(pixels)), flatten: true}
post: {assemble: [local, global]}
output: {hidden_size: self.config.hidden_size}
"""

CUT = """\
schema: 1
model: {module: cutup, class: CutUp}
layout: cut
modalities:
  image: {pixels: pixel_values, entry: self._process_image_input(self._parse_image_input(**inputs))}
fields:
  pixel_values: {sizes: num_crops}
  num_crops: batched
let: {side: self.config.image_size}
pixels: {shape: [3, side, side]}
forward: {call: self.encoder(pixels), axis: 1, result: [_, features]}
output: {hidden_size: self.config.hidden_size}
"""

ROWS = """\
schema: 1
model: {module: rowed, class: Rowed}
layout: rows
modalities:
  image: {pixels: pixel_values, entry: self._process_image_input(self._parse_image_input(**inputs))}
fields:
  pixel_values: {sizes: image_grid_thw}
  image_grid_thw: batched
let: {p: self.config.patch_size}
item: {shape: [h * w, 3 * p ** 2], values: {image_grid_thw: [1, h, w]}, merge: 2}
forward: {encoder: self.tower.encoder}
output: {hidden_size: self.config.hidden_size}
"""

DOCUMENTS = {"tiles": TILES, "packed": PACKED, "paths": PATHS, "cut": CUT, "rows": ROWS}


def problems_of(text: str, file: str = "model.yaml") -> tuple[Diagnostic, ...]:
    """What loading reports, warnings of an accepted descriptor included."""
    try:
        return load_descriptor_text(text, file).warnings
    except DiagnosticError as error:
        return error.diagnostics


def report_of(text: str) -> str:
    """The report as a user sees it."""
    return render_diagnostics(problems_of(text), format="text", sources=lambda _: text)
