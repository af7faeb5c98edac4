"""A tree that is read as if it had other files: every way of reading sees them."""

from __future__ import annotations

import pytest

FOLDER = "vllm/model_executor/models"
NEW, OLD = f"{FOLDER}/a_new_model.py", f"{FOLDER}/internvl.py"


@pytest.mark.trees
@pytest.mark.parametrize("was_read", [False, True])
def test_searches_see_the_files_that_a_tree_is_to_have(release_tree, was_read):
    tree = release_tree("0.33.0").reread()
    if was_read:
        assert OLD in tree.containing(FOLDER, ".py", ["InternVLChatModel"])

    changed = tree.with_files({NEW: b"class InternVLChatModel: ...\n", OLD: b"OF_NO_RELEASE = None\n"})

    found = changed.containing(FOLDER, ".py", ["InternVLChatModel"])
    assert NEW in found
    assert OLD not in found
    assert changed.naming(FOLDER, ".py", "OF_NO_RELEASE") == (OLD,)
    assert NEW not in tree.containing(FOLDER, ".py", ["InternVLChatModel"])
