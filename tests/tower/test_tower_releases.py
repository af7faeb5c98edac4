"""The slicer and the split on the towers of real releases."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import cpu_wheel
import pytest
import release_process
from tower_scene import apply_imports, apply_split

from scaffold.diagnostics import DiagnosticError
from scaffold.tower import (
    Kind,
    TowerSlice,
    attention_leaves_rows,
    own_attention_leaves_rows,
    prove_split,
    slice_tower,
    split_tower,
)

MODELS = "vllm/model_executor/models"

#: Pristine towers, and the keys that vLLM's own port chose by hand later, with the kind of each.
PRISTINE: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "qwen3_omni_moe_thinker": (
        "0.33.0",
        "Qwen3Omni_VisionTransformer",
        "x",
        {
            "pos_embeds": "rows",
            "rotary_pos_emb_cos": "rows",
            "rotary_pos_emb_sin": "rows",
            "cu_seqlens": "cumulative",
            "sequence_lengths": "lengths",
            "max_seqlen": "host_bound",
        },
    ),
    "qwen2_5_vl": (
        "0.20.0",
        "Qwen2_5_VisionTransformer",
        "x",
        {
            "rotary_pos_emb_cos": "rows",
            "rotary_pos_emb_sin": "rows",
            "window_index": "permutation",
            "reverse_indices": "permutation",
            "cu_seqlens": "cumulative",
            "cu_window_seqlens": "cumulative",
            "max_seqlen_full": "host_bound",
            "max_seqlen_window": "host_bound",
        },
    ),
    "qwen2_vl": (
        "0.20.0",
        "Qwen2VisionTransformer",
        "x",
        {
            "rotary_pos_emb_cos": "rows",
            "rotary_pos_emb_sin": "rows",
            "cu_seqlens": "cumulative",
            "max_seqlen": "host_bound",
        },
    ),
    "ernie45_vl": (
        "0.26.0",
        "Ernie4_5_VisionTransformer",
        "hidden_states",
        {"rotary_pos_emb": "rows", "cu_seqlens": "cumulative", "max_seqlen": "host_bound"},
    ),
    "glm4_1v": (
        "0.23.0",
        "Glm4vVisionTransformer",
        "x",
        {
            "rotary_pos_emb_cos": "rows",
            "rotary_pos_emb_sin": "rows",
            "cu_seqlens": "cumulative",
            "max_seqlen": "host_bound",
            "adapted_pos_embed": "rows",
        },
    ),
}

#: All releases whose tower is still pristine, besides the ones above.
ALSO_PRISTINE = (
    ("qwen3_omni_moe_thinker", ("0.20.0", "0.26.0")),
    ("qwen2_vl", ("0.21.0",)),
    ("glm4_1v", ("0.20.0", "0.21.0", "0.22.0")),
    ("ernie45_vl", ("0.20.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0")),
)

#: Rows of a padded run.
ROWS = 640
#: The parameters that pad offsets and fix bounds, with the values of a padded run. A window of 2 x 2 merged patches has
#: 16 rows.
CAPACITIES = {"cu_seqlens": ("max_frames_per_batch", 9), "cu_window_seqlens": ("max_window_seqs_per_batch", 80)}
BOUND = ("max_seqlen_override", ROWS)
BOUNDS = {"max_seqlen_full": BOUND, "max_seqlen_window": ("max_seqlen_window_override", 16)}

#: Towers that a release has split already: release, model, class, keys, parameters of the metadata method.
SPLIT = (
    (
        "0.20.0",
        "qwen3_vl",
        "Qwen3_VisionTransformer",
        {"pos_embeds", "rotary_pos_emb_cos", "rotary_pos_emb_sin", "cu_seqlens", "max_seqlen", "sequence_lengths"},
        ("grid_thw_list", "max_batch_size", "max_frames_per_batch", "max_seqlen_override", "device"),
    ),
    (
        "0.22.0",
        "qwen2_vl",
        "Qwen2VisionTransformer",
        {"rotary_pos_emb_cos", "rotary_pos_emb_sin", "cu_seqlens", "max_seqlen"},
        ("grid_thw", "max_batch_size", "max_frames_per_batch", "max_seqlen_override", "device"),
    ),
    (
        "0.33.0",
        "qwen2_5_vl",
        "Qwen2_5_VisionTransformer",
        {
            "rotary_pos_emb_cos",
            "rotary_pos_emb_sin",
            "window_index",
            "reverse_indices",
            "cu_seqlens",
            "cu_window_seqlens",
            "max_seqlen_full",
            "max_seqlen_window",
            "sequence_lengths_full",
            "sequence_lengths_window",
        },
        (
            "grid_thw",
            "max_batch_size",
            "max_frames_per_batch",
            "max_window_seqs_per_batch",
            "max_seqlen_override",
            "max_seqlen_window_override",
            "device",
        ),
    ),
    (
        "0.33.0",
        "ernie45_vl",
        "Ernie4_5_VisionTransformer",
        {"rotary_pos_emb", "cu_seqlens", "max_seqlen"},
        ("grid_thw", "num_pad", "max_batch_size", "max_seqlen_override", "device"),
    ),
)


def _slice(release_tree: Any, model: str, version: str | None = None) -> TowerSlice:
    first, cls, data, _ = PRISTINE[model]
    return slice_tower(release_tree(version or first), f"{MODELS}/{model}.py", cls, data=(data,))


def _kinds(tower: TowerSlice) -> dict[str, str]:
    kinds = {crossing.key: crossing.kind.value for crossing in tower.crossings}
    for child in tower.children:
        kinds |= _kinds(child.slice)
    return kinds


@pytest.mark.trees
@pytest.mark.parametrize("model", PRISTINE)
def test_finds_the_keys_that_were_chosen_by_hand(model: str, release_tree: Any) -> None:
    tower = _slice(release_tree, model)
    assert _kinds(tower) == PRISTINE[model][3]
    assert set(tower.keys) == set(PRISTINE[model][3])
    assert all(crossing.certain for crossing in tower.crossings)


@pytest.mark.trees
@pytest.mark.parametrize(("model", "version"), [(m, v) for m, versions in ALSO_PRISTINE for v in versions])
def test_same_keys_in_every_release_before_the_port(model: str, version: str, release_tree: Any) -> None:
    assert _kinds(_slice(release_tree, model, version)) == PRISTINE[model][3]


@pytest.mark.trees
@pytest.mark.parametrize(("version", "model", "cls", "keys", "parameters"), SPLIT)
def test_recognises_a_tower_that_is_split(
    version: str, model: str, cls: str, keys: set[str], parameters: tuple[str, ...], release_tree: Any
) -> None:
    path, data = f"{MODELS}/{model}.py", "hidden_states" if model == "ernie45_vl" else "x"
    with pytest.raises(DiagnosticError, match="has no parameter `whatever`"):
        slice_tower(release_tree(version), path, cls, data=("whatever",))
    tower = slice_tower(release_tree(version), path, cls, data=(data,))
    assert tower.already_split
    assert set(tower.keys) == keys
    assert {crossing.key for crossing in tower.crossings} == keys
    assert tuple(parameter.name for parameter in tower.method_parameters) == parameters
    with pytest.raises(DiagnosticError, match="split already"):
        split_tower(tower)


@pytest.mark.trees
def test_inherited_metadata_that_is_ignored_is_no_split(release_tree: Any) -> None:
    """GLM-OCR inherits GLM-4.1V's metadata method, has no position embeddings, and drops what it is given."""
    with pytest.raises(DiagnosticError) as caught:
        slice_tower(release_tree("0.33.0"), f"{MODELS}/glm_ocr.py", "GlmOcrVisionTransformer")
    assert caught.value.diagnostics[0].code == "VCG461"
    assert "`Glm4vVisionTransformer`" in (caught.value.diagnostics[0].help or "")


@pytest.mark.trees
@pytest.mark.parametrize("model", PRISTINE)
def test_evidence_and_hazards_point_at_real_lines(model: str, release_tree: Any) -> None:
    tower = _slice(release_tree, model)
    tree = release_tree(PRISTINE[model][0])
    prefix = f"{tree.label.rstrip('/')}/"
    places = [(h.file, h.line, h.text) for h in tower.hazards]
    places += [(e.file, e.line, "") for c in tower.crossings for e in c.evidence]
    assert places
    for file, line, text in places:
        lines = tree.read(file.removeprefix(prefix)).splitlines()
        assert 0 < line <= len(lines)
        assert lines[line - 1].strip() == text or not text


#: model -> (what, text of the line, whether the split takes it out)
HAZARDS = {
    "qwen3_omni_moe_thinker": [
        (".numpy()", "grid_thw_np = grid_thw.cpu().numpy()", True),
        (".item()", "total_items = repeat_cumsum[-1].item()", True),
    ],
    "qwen2_vl": [
        (".tolist()", "grid_thw_list = grid_thw.tolist()", True),
        (".numpy()", "grid_thw = grid_thw.numpy()", True),
        (".to(device) of a host tensor", "cu_seqlens = cu_seqlens.to(self.device, non_blocking=True)", True),
    ],
    "qwen2_5_vl": [("branch on data", "if tensors.isinf().any() or tensors.isnan().any():", False)],
    "glm4_1v": [(".tolist()", "seqlens = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()", True)],
}


@pytest.mark.trees
@pytest.mark.parametrize("model", HAZARDS)
def test_known_hazards_are_listed(model: str, release_tree: Any) -> None:
    found = {(h.what, h.text, h.moved) for h in _slice(release_tree, model).hazards}
    assert [hazard for hazard in HAZARDS[model] if hazard not in found] == []


#: What each tower takes as its grid: a diagnostic can say so before a run shows it.
FORMS = {
    "qwen3_omni_moe_thinker": {"tensor"},
    "qwen2_5_vl": {"list"},
    "qwen2_vl": {"list", "tensor"},
    "ernie45_vl": {"tensor"},
    "glm4_1v": {"list", "tensor"},
}


@pytest.mark.trees
@pytest.mark.parametrize("model", FORMS)
def test_says_what_form_of_grid_a_tower_takes(model: str, release_tree: Any) -> None:
    tower = _slice(release_tree, model)
    grid = next(parameter for parameter in tower.parameters if parameter.name == "grid_thw")
    assert grid.forms == FORMS[model]


#: What towers that were split by hand still do while they are captured: (release, model, class, texts of the lines)
STILL_THERE = (
    (
        "0.22.0",
        "qwen2_vl",
        "Qwen2VisionTransformer",
        {"grid_thw_list = grid_thw if isinstance(grid_thw, list) else grid_thw.tolist()"},
    ),
    ("0.23.0", "qwen2_vl", "Qwen2VisionTransformer", set()),
    ("0.20.0", "qwen3_vl", "Qwen3_VisionTransformer", set()),
)


@pytest.mark.trees
@pytest.mark.parametrize(("version", "model", "cls", "texts"), STILL_THERE)
def test_hazards_of_towers_that_were_split_by_hand(
    version: str, model: str, cls: str, texts: set[str], release_tree: Any
) -> None:
    tower = slice_tower(release_tree(version), f"{MODELS}/{model}.py", cls)
    assert {hazard.text for hazard in tower.hazards if not hazard.moved} == texts


@pytest.mark.trees
def test_bounds_name_the_offsets_that_they_come_from(release_tree: Any) -> None:
    tower = _slice(release_tree, "qwen2_5_vl")
    sources = {crossing.name: crossing.source for crossing in tower.crossings}
    assert sources["max_seqlen_full"] == "cu_seqlens"
    assert sources["max_seqlen_window"] == "cu_window_seqlens"
    taken = [parameter.name for parameter in split_tower(tower).method_parameters]
    assert taken == ["grid_thw", *(name for name, _ in (*CAPACITIES.values(), *BOUNDS.values())), "device"]


@pytest.mark.trees
@pytest.mark.parametrize("model", PRISTINE)
def test_split_is_a_move(model: str, release_tree: Any) -> None:
    tower = _slice(release_tree, model)
    split = split_tower(tower)
    before = release_tree(PRISTINE[model][0]).read(tower.file)
    after = apply_split(before, split, tower.file)
    assert [d.message for d in prove_split(before, after, split)] == []
    moved_text = next(edit.source for edit in split.edits if edit.class_name == tower.class_name)
    assert "max_seqlen_override: int | None = None" in moved_text
    assert all(len(line) <= 84 for line in moved_text.splitlines())  # 88 with the class's indentation


@pytest.mark.trees
@pytest.mark.parametrize("model", PRISTINE)
def test_moved_statements_honour_the_device(model: str, release_tree: Any) -> None:
    """The device of the weights is the default of the parameter, and nothing else reads it."""
    split = split_tower(_slice(release_tree, model))
    metadata = [
        node
        for edit in split.edits
        for node in ast.parse(edit.source).body
        if isinstance(node, ast.FunctionDef) and node.name == "prepare_encoder_metadata"
    ]
    assert metadata
    for method in metadata:
        read = [ast.unparse(node) for node in ast.walk(method) if isinstance(node, ast.Attribute)]
        default = ast.unparse(method.body[1]).removeprefix("if device is None:").strip()
        assert default in ("device = self.device", "device = next(self.parameters()).device")
        assert read.count("self.device") == (default == "device = self.device")


def _mutants(after: str, model: str) -> dict[str, str]:
    """Damaged results: a lost, changed, doubled, swapped statement, an extra one, a change elsewhere."""
    start = after.index("def prepare_encoder_metadata(", after.index(f"class {PRISTINE[model][1]}"))
    head, body = after[:start], after[start:]
    embed = next(line for line in body.splitlines() if ".patch_embed(" in line)
    rotary = next(line for line in body.splitlines() if "rot_pos_emb(" in line or "get_rope_by_thw(" in line)
    return {
        "changed data": head + body.replace(embed, embed + " * 2", 1),
        "doubled data": head + body.replace(embed, f"{embed}\n{embed}", 1),
        "lost data": head + body.replace(embed + "\n", "", 1),
        "changed metadata": head + body.replace(rotary, rotary.replace("(", "(*", 1), 1),
        "changed padding": head + body.replace("cu_seqlens[-1:]", "cu_seqlens[:1]", 1).replace('"edge"', '"wrap"', 1),
        "elsewhere": after + "\nEXTRA = 1\n",
    }


@pytest.mark.trees
@pytest.mark.parametrize("model", PRISTINE)
def test_proof_refuses_damaged_results(model: str, release_tree: Any) -> None:
    tower = _slice(release_tree, model)
    split = split_tower(tower)
    before = release_tree(PRISTINE[model][0]).read(tower.file)
    after = apply_split(before, split, tower.file)
    for name, text in _mutants(after, model).items():
        assert text != after, name
        ast.parse(text)
        codes = {diagnostic.code for diagnostic in prove_split(before, text, split)}
        assert codes & {"VCG640", "VCG642"}, name


@pytest.mark.trees
@pytest.mark.parametrize("version", ["0.20.0", "0.26.0", "0.30.0", "0.31.0", "0.33.0"])
def test_knows_which_releases_zero_fill_attention(version: str, release_tree: Any) -> None:
    assert attention_leaves_rows(release_tree(version)) is (version < "0.31")


@pytest.mark.trees
@pytest.mark.parametrize(("model", "own"), [("mimo_v2_omni", True), ("qwen2_5_vl", False), ("moonvit", False)])
def test_knows_attention_of_a_models_own_that_leaves_rows(model: str, own: bool, release_tree: Any) -> None:
    assert own_attention_leaves_rows(release_tree("0.33.0"), f"vllm/model_executor/models/{model}.py") is own


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(("release", "model"), [(release, model) for model, (release, *_) in PRISTINE.items()])
def test_split_tower_is_bit_identical(release: str, model: str, release_tree: Any) -> None:
    """Eager, with its own metadata, with padded offsets, on padded rows: the same bits as the pristine tower."""
    if not cpu_wheel.is_installed():
        pytest.skip("needs the `cpu` extra")
    tree = release_tree(release)
    tower = _slice(release_tree, model)
    split = split_tower(tower)
    kinds = _kinds(tower)
    offsets, bounds = (
        {key: table[key] for key in kinds if key in table} for table in (CAPACITIES, {**BOUNDS, "max_seqlen": BOUND})
    )
    request = {
        "model": model,
        "text": apply_imports(apply_split(tree.read(tower.file), split, tower.file), split, tower.file),
        "capacities": dict([*offsets.values(), *bounds.values()]),
        "cumulative": [key for key, kind in kinds.items() if kind == Kind.CUMULATIVE],
        "bounds": [key for key, kind in kinds.items() if kind == Kind.HOST_BOUND],
        "per_row": [key for key, kind in kinds.items() if kind in (Kind.ROWS, Kind.PERMUTATION)],
        "rows": ROWS,
    }
    script = Path(__file__).with_name("tower_child.py")
    results = release_process.last_line(release_process.run_script(script, tree.root, json.dumps(request)))["results"]
    assert len(results) >= 4
    for result in results:
        assert result["finite"]
        assert result["spread"] > 0.1  # a tower that outputs a constant would pass any comparison
        assert (result["eager"], result["given"], result["padded"]) == (True, True, True), result
        assert result["keys"] == sorted(tower.keys)
        for key, (_, sequences) in offsets.items():
            plain, padded = result["plain"][key], result["tails"][key]
            assert padded[: len(plain)] == plain
            assert padded[len(plain) :] == [plain[-1]] * (sequences + 1 - len(plain))
        assert result["bounds"] == {key: [bound, "cpu", "torch.int32", 0] for key, (_, bound) in bounds.items()}
    # FlashAttention 3 and poisoned memory: rows of no sequence ruin valid ones. The generated ports cover them.
    assert any(result["tail"] == [False, False] for result in results)
