"""The two-path layout: what each generation is given, what is refused, and that one graph holds every batch."""

from __future__ import annotations

import ast
import itertools
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest

from scaffold.descriptor import AnyPort, load_descriptor_text
from scaffold.plan.methods import refusal, render_methods
from scaffold.plan.views import TreeFacts
from scaffold.protocol import GENERATIONS, known_profile
from scaffold.workflow import load_port

DOCUMENT = """\
schema: 1
model: {module: twofold, class: TwofoldModel}
layout: paths
modalities:
  image: {sizes: num_patches}
sizes: {columns: [n]}
let: {patch: self.config.patch_size}
helpers:
  square: {args: [size], value: (size // patch) ** 2}
paths:
  global: {count: 1, tokens: square(28), pixels: pixel_values, shape: [3, 28, 28]}
  local: {count: n, tokens: square(14), pixels: patch_pixel_values, shape: [3, 14, 14]}
forward: {call: self.encode(pixels)}
post: {assemble: [local, global]}
output: {hidden_size: self.config.hidden_size}
"""
#: A generation's first release -> what its config says of paths.
CONFIGS = {
    "0.20": 'input_key_by_modality={"image": "pixel_values"}',
    "0.22": 'buffer_keys=["patch_pixel_values", "token_index"]',
    "0.23": 'buffer_keys=["pixel_values", "patch_pixel_values", "token_index"]',
    "0.24": "enable_dual_path_graph=True",
    "0.27": "EncoderCudaGraphPathConfig(min_token_budget=local_tokens, allow_zero_tokens=True)",
    "0.30": "EncoderCudaGraphPathConfig(min_token_budget=local_tokens, allow_zero_tokens=True)",
}


def spec_of(*edits: tuple[str, str]) -> AnyPort:
    text = DOCUMENT
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return load_descriptor_text(text, "model.yaml")


def generation(first: str) -> Any:
    return next(entry for entry in GENERATIONS if entry.first.startswith(first + "."))


def functions(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("first", "said"), CONFIGS.items())
def test_config_of_each_generation(first: str, said: str) -> None:
    profile = known_profile(generation(first))

    source = render_methods(load_port("step3_vl"), profile, TreeFacts()).source

    assert said in " ".join(source.split()).replace("( ", "(")
    assert refusal(load_port("step3_vl"), profile.dialect) is None
    defined = functions(source)
    assert ("postprocess_encoder_output" in defined) == (first >= "0.24")
    assert ("_get_encoder_cudagraph_token_index" in defined) == (first < "0.24")


@pytest.mark.parametrize("first", CONFIGS)
def test_what_the_descriptor_leaves_out_is_not_in_the_code(first: str) -> None:
    """No precomputed embeddings, no data parallelism, no processor, and a forward that is flat already."""
    source = render_methods(spec_of(), known_profile(generation(first)), TreeFacts()).source

    for absent in ("embeds", "patch.object", "cached_property", "flatten"):
        assert absent not in source
    assert "return self.encode(pixel_values)" in source


def test_named_paths_have_any_names() -> None:
    spec = spec_of(("  global:", "  whole:"), ("  local:", "  crops:"), ("[local, global]", "[whole, crops]"))

    source = render_methods(spec, known_profile(generation("0.30")), TreeFacts()).source

    assert "torch.cat([whole_tiles[i], *crops_tiles[start : start + n]])" in source


def test_the_first_question_asks_whether_a_graph_can_hold_the_encoder() -> None:
    spec = spec_of(("output:", "gates: {encoder: self.config.is_plain}\noutput:"))

    source = render_methods(spec, known_profile(generation("0.30")), TreeFacts(in_tree=True)).source

    assert "def supports_encoder_cudagraph(self) -> bool:\n    return self.config.is_plain\n" in source


# -- the arithmetic of the rendered methods, without a tower -----------------------------------------------------------


def instance(first: str) -> Any:
    """The rendered methods as a class; tiles are encoded as one row `(kind, tile, token)` a token."""
    torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
    source = render_methods(spec_of(), known_profile(generation(first)), TreeFacts()).source
    record = SimpleNamespace
    names = {"torch": torch, "EncoderItemSpec": record}
    names |= dict.fromkeys(("EncoderCudaGraphCaptureInputs", "EncoderCudaGraphReplayBuffers"), record)
    exec("from __future__ import annotations\nclass Model:\n" + textwrap.indent(source, "    "), names)
    model: Any = names["Model"]()
    model.config = SimpleNamespace(patch_size=7, hidden_size=2)

    def encode(pixels: Any) -> Any:
        tokens = (pixels.shape[-1] // 7) ** 2
        offsets = torch.arange(tokens) / 100
        return (pixels[:, 0, 0, :1] + offsets).reshape(-1, 1)

    model.encode = encode
    return model


def batch_of(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Global tile i holds -1 - i, local tile j holds j + 1."""
    import torch

    images = torch.arange(-1.0, -1.0 - len(sizes), -1).reshape(-1, 1, 1, 1).expand(-1, 3, 28, 28)
    tiles = torch.arange(1.0, 1.0 + sum(sizes)).reshape(-1, 1, 1, 1).expand(-1, 3, 14, 14)
    return {"pixel_values": images, "patch_pixel_values": tiles, "num_patches": torch.tensor(sizes)}


@pytest.mark.parametrize(("budget", "items"), [(16, 1), (20, 1), (35, 3), (64, 2), (64, 4), (100, 3), (8, 1)])
def test_one_graph_holds_every_batch_inside_its_budget(budget: int, items: int) -> None:
    torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
    model = instance("0.23")
    captured = model.prepare_encoder_cudagraph_capture_inputs(budget, items, 0, "cpu", torch.float32).values
    seen = 0
    for count in range(1, items + 1):
        for sizes in itertools.combinations_with_replacement(range(8), count):
            specs = model.get_encoder_cudagraph_item_specs(batch_of(sizes))
            assert all(type(spec.output_tokens) is int for spec in specs)
            total = sum(spec.output_tokens for spec in specs)
            if total > budget:
                continue
            seen += 1
            buffers = {key: buffer.clone() for key, buffer in captured.items()}
            replay = model.prepare_encoder_cudagraph_replay_buffers(batch_of(sizes), items, 0).values
            for key, value in replay.items():
                assert len(value) <= len(buffers[key]), (sizes, key)
                buffers[key][: len(value)] = value

            output = model.encoder_cudagraph_forward(buffers)

            assert torch.equal(output[:total], model.encoder_eager_forward(batch_of(sizes)))
    assert seen > 0 or budget < 16


@pytest.mark.parametrize("first", ["0.24", "0.30"])
def test_items_of_two_paths_are_copies_in_the_order_of_the_descriptor(first: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
    model, sizes = instance(first), (2, 0, 1)
    batch = batch_of(sizes)
    whole, local = (model.encoder_eager_forward(batch, path) for path in ("global", "local"))
    outputs = (whole,) if first == "0.24" else ({"global": whole, "local": local},)
    more = {"local_output": local} if first == "0.24" else {}
    dest: dict[int, Any] = {}

    model.postprocess_encoder_output(*outputs, [5, 3, 4], [24, 16, 20], dest, False, batch, **more)

    assert [[int(row) for row in dest[index][::4, 0].round()] for index in (5, 3, 4)] == [
        [1, 2, -1, -1, -1, -1],
        [-2, -2, -2, -2],
        [3, -3, -3, -3, -3],
    ]
    before = dest[3].clone()
    whole.zero_()
    assert torch.equal(dest[3], before)


def test_a_release_that_cannot_run_both_paths_eagerly_is_not_asked_to() -> None:
    torch = pytest.importorskip("torch", reason="needs the `cpu` extra")
    model, batch = instance("0.24"), batch_of((2, 0))
    for budget, local in ((16, [8, 0]), (15, [0, 0])):
        model.prepare_encoder_cudagraph_capture_inputs(budget, 1, 0, "cpu", torch.float32, "global")
        specs = model.get_encoder_cudagraph_item_specs(batch)
        assert [spec.local_output_tokens for spec in specs] == local
        assert [spec.output_tokens for spec in specs] == [24, 16]

    dest: dict[int, Any] = {}
    whole = model.encoder_eager_forward(batch, "global")
    model.postprocess_encoder_output(whole, [0, 1], [16, 16], dest, True, batch)
    assert [len(dest[index]) for index in (0, 1)] == [24, 16]
