"""The rows of vLLM's documentation that name the models of an architecture."""

from __future__ import annotations

import pytest

from scaffold.protocol.listed import listed_models

pytestmark = pytest.mark.trees


@pytest.mark.parametrize(
    ("architecture", "families"),
    [
        ("BeeForConditionalGeneration", [("Bee-8B",)]),
        ("MuseGlimmerForConditionalGeneration", [("Muse Glimmer",)]),  # the second of two in its row
        ("ColPaliForRetrieval", [("ColPali",)]),  # in a table of models that only pool
        ("Blip2", []),  # part of another's name
        ("InklingForConditionalGeneration", []),
    ],
)
def test_models_of_an_architecture(release_tree, architecture, families):
    tree = release_tree("0.33.0")

    rows = list(listed_models(tree, [architecture]))

    assert [row.families for row in rows] == families
    for row in rows:
        assert tree.read(row.path).splitlines()[row.line - 1] == row.text
        assert f"`{architecture}`" in row.text
