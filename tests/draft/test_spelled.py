"""What a model's code reads of the configuration decides between several values that are equal in a recording."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scaffold.draft.locate import locate
from scaffold.draft.numbers import put_width
from scaffold.draft.sheet import Sheet
from scaffold.draft.spelled import sides_of_images, widths_read
from scaffold.watch import Leaf, Source

pytestmark = pytest.mark.trees

NEMOTRON, TEXT = "LlamaNemotronVLModel", "self.model_config.hf_text_config.hidden_size"
EAGLE, QWEN = "Eagle2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration"


@pytest.mark.parametrize(
    ("architecture", "read"),
    [
        (NEMOTRON, {TEXT, "self.config.vision_config.hidden_size"}),
        (EAGLE, {"self.config.text_config.hidden_size", "self.config.vision_config.hidden_size"}),
        ("Ovis", {"self.config.hidden_size"}),
        ("WhisperForConditionalGeneration", {"self.config.d_model"}),
    ],
)
def test_the_widths_that_a_model_reads(release_tree: Any, architecture: str, read: set[str]) -> None:
    assert set(widths_read(locate(release_tree("0.33.0"), architecture))) == read


@pytest.mark.parametrize(
    ("architecture", "sides"),
    [
        # The processor cuts images into tiles of this side, whatever the model counts tokens by.
        (EAGLE, ["self.config.force_image_size or self.config.vision_config.image_size"]),
        ("InternVLChatModel", 2 * ["self.config.vision_config.image_size"]),
        (NEMOTRON, 2 * ["self.config.force_image_size"]),
        # The check of the model's inputs says it.
        ("OpenVLAForActionPrediction", ["self.config.image_sizes[0]"]),
        (QWEN, []),
    ],
)
def test_the_side_of_images_that_code_says(release_tree: Any, architecture: str, sides: list[str]) -> None:
    assert list(sides_of_images(locate(release_tree("0.33.0"), architecture), "h")) == sides


@pytest.mark.parametrize(
    ("numbers", "drafted"),
    [
        # The text is the whole configuration, or a part of it.
        ({"self.config.hidden_size": 96}, TEXT),
        ({"self.config.hidden_size": 32, "self.config.text_config.hidden_size": 96}, TEXT),
        ({"self.model_config.hf_text_config.hidden_size": 96, "self.config.hidden_size": 96}, TEXT),
        # Of another width it is not what the model reads.
        ({"self.config.hidden_size": 96, "self.config.text_config.hidden_size": 32}, "self.config.hidden_size"),
    ],
)
def test_the_width_that_a_model_reads_comes_before_others(
    release_tree: Any, numbers: dict[str, int], drafted: str
) -> None:
    sheet, batch = Sheet({}), SimpleNamespace(results=[Leaf("", "Tensor", (4, 96))])
    recording: Any = SimpleNamespace(numbers=numbers, guessed=())

    put_width(locate(release_tree("0.33.0"), NEMOTRON), recording, batch, sheet)  # type: ignore[arg-type]

    assert sheet.value("output.hidden_size") == drafted
    assert not sheet.questions


@pytest.mark.parametrize(
    ("architecture", "numbers", "width"),
    [
        ("PaddleOCRVLForConditionalGeneration", {"self.config.hidden_size": 96}, "self.config.hidden_size"),
        ("PaddleOCRVLForConditionalGeneration", {"self.config.hidden_size": 64}, "self.config.text_config.hidden_size"),
        ("KeyeForConditionalGeneration", {"self.config.hidden_size": 96}, "self.config.text_config.hidden_size"),
    ],
)
def test_the_width_of_a_text_that_a_configuration_may_lack(
    release_tree: Any, architecture: str, numbers: dict[str, int], width: str
) -> None:
    sheet, subject = Sheet({}), locate(release_tree("0.33.0"), architecture)
    known = {**numbers, "self.config.text_config.hidden_size": 96}
    recording: Any = SimpleNamespace(numbers=known, guessed=())
    batch: Any = SimpleNamespace(results=[Leaf("", "Tensor", (4, 96))])
    put_width(subject, recording, batch, sheet)
    assert sheet.value("output.hidden_size") == width


@pytest.mark.parametrize(
    ("part", "own", "width"),
    [
        ("vision_model", 96, "self.config.vision_config.hidden_size"),
        # A tower of another width, or a part of it, or a projector.
        ("vision_model", 64, "self.config.text_config.hidden_size"),
        ("vision_model.head", 96, "self.config.text_config.hidden_size"),
        ("projector", 96, "self.config.text_config.hidden_size"),
    ],
)
def test_the_width_of_a_tower_that_gives_the_embeddings(release_tree: Any, part: str, own: int, width: str) -> None:
    sheet, subject = Sheet({}), locate(release_tree("0.33.0"), "SiglipModel")
    known = {f"self.config.{one}_config.hidden_size": 96 for one in ("text", "vision")}
    recording: Any = SimpleNamespace(numbers=known | {"self.vision_model.config.hidden_size": own}, guessed=())
    leaf = Leaf("", "Tensor", (4, 96), sources=(Source("#0", "view"),))
    batch: Any = SimpleNamespace(results=[leaf], calls=[SimpleNamespace(part=part)])
    put_width(subject, recording, batch, sheet)
    assert sheet.value("output.hidden_size") == width


@pytest.mark.parametrize(
    ("of", "call"), [("#7", 7), ("#12[0]", 12), ("#39last_hidden_state", 39), ("pixel_values[1]", None)]
)
def test_a_source_says_the_number_of_its_call(of: str, call: int | None) -> None:
    """A result may be an object, whose tensors have names."""
    assert Source(of, "same").call == call
