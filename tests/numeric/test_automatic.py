"""The automatic recipe: right ports pass without any knowledge of their models, and wrong ones do not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from proven import assert_right

from scaffold.descriptor.load import shipped_path
from scaffold.verify.numeric import (
    Automatic,
    NumericOptions,
    NumericReport,
    NumericRequest,
    check_numerics,
)
from scaffold.verify.numeric.recipes import AUTOMATIC
from scaffold.workflow import load_port, numeric_requests, prove_numerics

pytestmark = [pytest.mark.trees, pytest.mark.lab]


@dataclass(frozen=True)
class Wrong:
    """A shipped descriptor with one wrong value, and what the report says about it."""

    descriptor: str
    before: str
    after: str
    code: str
    says: str


WRONG = {
    "a token too many": Wrong(
        "internvl", "tokens: n * k}", "tokens: n * k + 1}", "VCG650", "are cut out wrongly"
    ),
    "the tower's width for the language model's": Wrong(
        "gemma3_mm", "self.config.text_config.hidden_size", "self.config.vision_config.hidden_size",
        "VCG650", "the port says 64, embeddings have 96",
    ),
    "the features flattened in another order": Wrong("internvl", "flatten: true", "flatten: false", "VCG650",
        "are cut out wrongly",
    ),
    "precomputed embeddings that are no input": Wrong(
        "llava_next", ", image_embeds: batched", "", "VCG660", "precomputed embeddings, several items",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_descriptor_is_refused(name: str, release_tree: Any, tmp_path: Path) -> None:
    wrong = WRONG[name]
    path = shipped_path(wrong.descriptor)
    assert path is not None
    text = path.read_text()
    assert text.count(wrong.before) == 1
    changed = tmp_path / path.name
    changed.write_text(text.replace(wrong.before, wrong.after))

    # The calls of the first manager show it.
    [request] = numeric_requests(
        load_port(str(changed)), release_tree("0.33.0"), modalities=("image",), recipe=AUTOMATIC
    )
    report = check_numerics(replace(request, options=replace(request.options, short=True)))

    assert not report.passed
    messages = [f"{found.code} {found.message}" for found in report.diagnostics()]
    assert any(message.startswith(wrong.code) and wrong.says in message for message in messages), messages


def test_what_is_wrong_only_with_other_arguments_is_found(release_tree: Any, tmp_path: Path) -> None:
    """By default an image of Gemma 3 is one tile, so a port that forgets to count them is right until a user crops."""
    path = shipped_path("gemma3_mm")
    assert path is not None
    text = path.read_text()
    assert text.count("tokens: n * k}") == 1
    (tmp_path / path.name).write_text(text.replace("tokens: n * k}", "tokens: k}"))

    report = _proved(str(tmp_path / path.name), release_tree)

    assert {check.group for check in report.checks if not check.passed} == {"other arguments: do_pan_and_scan=True"}
    assert sum(check.passed for check in report.checks) > 30


def test_an_item_that_no_budget_of_a_server_holds_has_no_graphs(release_tree: Any) -> None:
    [request] = numeric_requests(
        load_port("llava_next"), release_tree("0.33.0"), modalities=("image",), recipe=AUTOMATIC
    )
    [(path, text)] = [item for item in request.overlay.items() if "/models/" in item[0]]
    tokens = b"self.config.vision_config.patch_size\n        ) ** 2"
    assert text.count(tokens) == 1
    overlay = {**request.overlay, path: text.replace(tokens, tokens + b" * 1000")}

    report = check_numerics(replace(request, overlay=overlay, options=replace(request.options, short=True)))

    rows, replayed = report.diagnostics()
    assert (rows.code, replayed.code) == ("VCG657", "VCG657")
    assert "rows of a unit failed" in rows.message
    assert re.search(
        r"items were replayed; an item of \d+ embeddings takes \d{5,} tokens of a budget", replayed.message
    )


def _proved(descriptor: str, release_tree: Any, release: str = "0.33.0") -> NumericReport:
    (report,) = prove_numerics(load_port(descriptor), release_tree(release), modalities=("image",), recipe=AUTOMATIC)
    return report


@pytest.mark.parametrize("descriptor", ["internvl", pytest.param("llava_next", marks=pytest.mark.slow), "qwen2_vl"])
def test_a_right_descriptor_passes(descriptor: str, release_tree: Any) -> None:
    report = _proved(descriptor, release_tree)
    assert_right(report, 21)
    assert bool(report.guessed) == (descriptor == "internvl")  # the checkpoints bring its configuration's class
    assert ("guessed configuration" in report.verdict) == bool(report.guessed)


#: What a checkpoint's file says of InternVL, as far as the vision side reads it.
INTERNVL = {
    "architectures": ["InternVLChatModel"],
    "model_type": "internvl_chat",
    "downsample_ratio": 0.5,
    "dynamic_image_size": True,
    "force_image_size": 56,
    "max_dynamic_patch": 4,
    "min_dynamic_patch": 1,
    "ps_version": "v2",
    "select_layer": -1,
    "use_thumbnail": True,
    "vision_config": {
        "hidden_act": "gelu", "hidden_size": 1024, "image_size": 56, "initializer_factor": 1.0,
        "intermediate_size": 4096, "layer_norm_eps": 1e-6, "norm_type": "layer_norm", "num_attention_heads": 16,
        "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14, "qk_normalization": False, "qkv_bias": True,
    },
    "text_config": {"hidden_size": 2048, "model_type": "llama", "num_attention_heads": 16, "num_hidden_layers": 24},
}  # fmt: skip


def test_a_checkpoints_file_leaves_nothing_to_guess(release_tree: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(INTERNVL))
    automatic = Automatic("internvl", "InternVLChatModel", str(file), modalities=("image",))
    report = _as_is(release_tree, automatic)
    assert report.passed, "\n".join(report.lines())
    assert report.guessed == ()


@pytest.mark.parametrize(
    ("automatic", "says", "help_text"),
    [
        (
            Automatic("phi3v", "Phi3VForCausalLM"),
            "models/phi3v.py:103 reads `img_processor`, which the configuration lacks",
            "--set img_processor=VALUE",
        ),
        (
            Automatic("gemma3_mm", "Gemma3ForConditionalGeneration", set={"vision_config": {"imagesize": 56}}),
            "the configuration has no `vision_config.imagesize`",
            "below `verify.set`",
        ),
    ],
    ids=lambda value: value.module if isinstance(value, Automatic) else "",
)
def test_the_first_missing_thing_is_said(automatic: Automatic, says: str, help_text: str, release_tree: Any) -> None:
    report = _as_is(release_tree, automatic)
    assert not report.passed
    assert report.failure is not None
    assert report.failure.code == "VCG668"
    assert says in report.failure.message
    assert help_text in str(report.failure.help)


LLAVA_NEXT = "vllm/model_executor/models/llava_next.py"
KEPT = "        self.config = config\n"
GIVEN = "            return LlavaNextImageEmbeddingInputs("
#: What the constructor reads besides, one line after the other.
READ = ("config.zebra", "config.text_config.zebra", "config.text_config.pad_token_id + 1")
#: What is given of it, and what the check says without the next one.
MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "a key that the class lacks": ({}, "284 reads `zebra`, which the configuration lacks"),
    "a key of a part": ({"zebra": 3}, "285 reads `text_config.zebra`, which the configuration lacks"),
    "a value that is None": (
        {"zebra": 3, "text_config": {"zebra": 3}},
        "286 reads `text_config.pad_token_id`, which is None in",
    ),
}


def _with_llava_next(release_tree: Any, values: dict[str, Any]) -> NumericReport:
    """The short proof of a port in a tree whose pristine file reads more values, and raises for embeddings. It
    is one text for all tests, and the port of this model changes no module that all models import: they share one
    import."""
    tree = release_tree("0.33.0")
    text = tree.read(LLAVA_NEXT)
    lines = "".join(f"        self.zebra = {read}\n" for read in READ)
    for old, new in (
        (f"{KEPT}        self.multimodal_config", f"{KEPT}{lines}        self.multimodal_config"),
        (GIVEN, f"            image_embeds = image_embeds + None\n{GIVEN}"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    changed = {LLAVA_NEXT: text.encode()}
    [request] = numeric_requests(
        load_port("llava_next"), tree.with_files(changed), recipe=AUTOMATIC, modalities=("image",), values=values
    )
    return check_numerics(replace(request, before=changed, options=NumericOptions(short=True, image_embeds=True)))


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_value_is_named_with_the_line_that_reads_it(case: str, release_tree: Any) -> None:
    values, said = MISSING[case]
    report = _with_llava_next(release_tree, values)
    assert report.failure is not None
    assert report.failure.code == "VCG668"
    assert f"models/llava_next.py:{said}" in report.failure.message
    assert "--set " in str(report.failure.help)


def test_values_can_be_given_and_a_model_that_raises_for_embeddings_has_no_result_to_compare_with(
    release_tree: Any,
) -> None:
    report = _with_llava_next(release_tree, {"zebra": 3, "text_config": {"zebra": 3, "pad_token_id": 3}})
    assert report.passed, "\n".join(report.lines())
    [reason] = report.not_run
    assert "precomputed embeddings of images: the pristine model raises for them (TypeError: " in reason


@pytest.mark.slow
def test_a_model_with_a_kernel_for_its_norms_is_built(release_tree: Any) -> None:
    """GLM-5.3-Flash: its package is in the registry, its configuration in transformers, its norms in Triton."""
    report = _as_is(release_tree, Automatic("vllm.models.glm5next.common.model", "Glm5NextForConditionalGeneration"))
    assert report.passed, "\n".join(report.lines())
    assert report.guessed == ()


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.20.0", "0.24.0", "0.30.0"])
def test_every_releases_processors_are_called(release: str, release_tree: Any) -> None:
    report = _proved("qwen2_5_vl", release_tree, release)
    assert report.passed, "\n".join(report.lines())
    assert report.guessed == ()


def _as_is(release_tree: Any, automatic: Automatic, release: str = "0.33.0") -> NumericReport:
    """The release's own implementation, checked against itself."""
    tree = release_tree(release).root
    return check_numerics(NumericRequest(tree, {}, "automatic", ("image",), release, automatic=automatic))
