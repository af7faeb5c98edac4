"""What a port writes outside the model file: the test's entry, the docs row, the example's name; table by table."""

from __future__ import annotations

import ast
import dataclasses
import io
import tokenize
from collections.abc import Mapping
from typing import Any

import pytest
from changed_ports import port_of
from hypothesis import given
from hypothesis import strategies as st

from scaffold.descriptor.load import load_descriptor_text, shipped_names
from scaffold.descriptor.sections import Template, TestEntry
from scaffold.diagnostics import Severity
from scaffold.edit import apply_edits
from scaffold.edit.operations import AddDictEntry, AddImport, AddListEntry, AddTableRow, Edit, PutFunction
from scaffold.plan import entries
from scaffold.plan.entries import chat_template, docs_row, plan_docs, plan_entries, plan_examples, plan_tests, wrapped
from scaffold.plan.planner import plan_changes
from scaffold.protocol import RegistryAnchor, find_docs_table, find_example_list, find_test_registry, read_protocol
from scaffold.workflow import load_port, prepare_port

LONG = "<|vision_start|><|image_pad|><|vision_end|>What is in this image? Describe it in two sentences, please."


def entry_with(**fields: Any) -> TestEntry:
    return TestEntry(**{"key": "m", "model": "org/m", **fields})


@given(st.text(alphabet=st.sampled_from("ab <>|\"'\\{}\n"), max_size=300))
def test_wrapped_literal_is_the_text(text):
    code = wrapped(text)

    assert ast.literal_eval(f"({code})") == text
    longest = max(map(len, text.replace(">", "> ").split(" ")), default=0)
    assert all(len(ast.literal_eval(part)) <= max(66, longest + 1) for part in _literals(code))


def _literals(code: str) -> list[str]:
    """The parts of an implicitly joined literal, by Python's own tokenizer."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type == tokenize.STRING]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("short", '"short"'),
        ("", '""'),
        (
            LONG,
            '"<|vision_start|><|image_pad|><|vision_end|>What is in this image? "'
            ' "Describe it in two sentences, please."',
        ),
    ],
)
def test_wrapped(text, code):
    assert wrapped(text) == code


@pytest.mark.parametrize(
    "text",
    [
        "{content}",
        "<|user|>\n{content}<|end|>\n<|assistant|>\n",
        "a {brace} {content} \"quoted\" 'both' {{}}",
        "You are a very long system prompt that goes on and on, far beyond one line of code. {content} And {more}.",
        "no slot at all",
        r"a\x00b{content}c\N{BULLET}",
        "{{content}}",
    ],
)
def test_chat_template_wraps_a_prompt(text):
    source = chat_template(Template(name="wrap", text=text))

    namespace: dict[str, Any] = {}
    exec(source, namespace)
    assert namespace["wrap"]("PROMPT {x}") == text.replace("{content}", "PROMPT {x}")


def keywords(source: str) -> Mapping[str, str]:
    call = ast.parse(source.strip(), mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords}


@pytest.mark.trees
@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({}, {}),
        ({"image_prompt": "Hi"}, {"image_prompt": "'Hi'"}),
        ({"image_prompt": "Hi", "template": Template(name="wrap", text="{content}")}, {"image_prompt": "wrap('Hi')"}),
        (
            {"num_video_frames": 8, "needs_video_metadata": False},
            {"num_video_frames": "8", "needs_video_metadata": "False"},
        ),
        ({"runner_kwargs": {"trust_remote_code": True}}, {"vllm_runner_kwargs": "{'trust_remote_code': True}"}),
        (
            {"dummy_arch": "Arch", "dummy_overrides": {"num_layers": 2}},
            {
                "vllm_runner_kwargs": "{'load_format': 'dummy', 'hf_overrides': "
                "partial(dummy_hf_overrides, model_arch='Arch', num_layers=2)}"
            },
        ),
        ({"compilation_overrides": {"a": [1]}}, {"compilation_config_overrides": "{'a': [1]}"}),
        ({"core_model": True}, {"marks": "[pytest.mark.core_model]"}),
        ({"skip": True}, {"skip": "True"}),
        ({"skip": "no weights"}, {"marks": "[pytest.mark.skip(reason='no weights')]"}),
        (
            {"skip": "no weights", "core_model": True},
            {"marks": "[pytest.mark.core_model, pytest.mark.skip(reason='no weights')]"},
        ),
    ],
)
def test_entry_of_the_newest_release(release_tree, changes, added):
    registry = find_test_registry(release_tree("0.33.0"))
    assert registry is not None

    entry = keywords(
        entries.test_entry(entry_with(**changes), ["image", "video"], registry, compared=False, cuda_only=False)
    )

    assert entry == {"model": "'org/m'", **added}
    of_images = keywords(
        entries.test_entry(entry_with(**changes), ["image"], registry, compared=False, cuda_only=False)
    )
    assert of_images == {"modalities": "['image']", **entry}


@pytest.mark.trees
def test_entry_leaves_out_what_the_release_does_not_know(release_tree):
    old, new = (find_test_registry(release_tree(release)) for release in ("0.20.0", "0.33.0"))
    assert old is not None
    assert new is not None
    test = entry_with(compilation_overrides={"a": 1}, dtype="half")

    def written(registry: RegistryAnchor) -> set[str]:
        return set(keywords(entries.test_entry(test, ["image", "video"], registry, compared=False, cuda_only=False)))

    every = {"model", "dtype", "compilation_config_overrides"}
    assert written(old) == every & {field.name for field in old.entry_fields}
    assert written(new) == every


@pytest.mark.trees
@pytest.mark.parametrize("skip", [True, "no weights"])
def test_an_entry_is_skipped_in_every_release(release_tree, skip):
    old = find_test_registry(release_tree("0.20.0"))
    assert old is not None
    mark = "pytest.mark.skip" + ("(reason='no weights')" if skip == "no weights" else "")
    entry = entries.test_entry(entry_with(skip=skip), ["image", "video"], old, compared=False, cuda_only=False)

    assert keywords(entry)["marks"] == f"[{mark}]"


@pytest.mark.trees
@pytest.mark.parametrize("model", ["step3_vl", "gemma3_mm"])
def test_budgets_are_capped_in_every_release(release_tree, model):
    """Graphs for all tokens of a context do not fit beside a model of this size."""
    (test,) = load_port(model).tests
    (budget,) = test.compilation_overrides["encoder_cudagraph_token_budgets"]
    for release in ("0.20.0", "0.21.0", "0.22.0", "0.33.0"):
        registry = find_test_registry(release_tree(release))
        assert registry is not None
        entry = keywords(entries.test_entry(test, ["image"], registry, compared=False, cuda_only=False))
        asked = ast.literal_eval(entry.get("compilation_config_overrides", "{}"))
        capped = asked.get("encoder_cudagraph_token_budgets") == [budget]
        assert capped or f"'max_num_batched_tokens': {budget}" in entry["vllm_runner_kwargs"], release


@pytest.mark.trees
def test_edits_of_the_test_file(release_tree):
    """A template goes in once, imports where the entry needs them, and a tested model is left alone."""
    registry = find_test_registry(release_tree("0.22.0"))
    assert registry is not None

    def edits(anchor: RegistryAnchor, **fields: object) -> tuple[Edit, ...]:
        test = {"key": "m", "model": "org/m", "image_prompt": "a", "video_prompt": "b", **fields}
        return plan_tests(port_of("internvl", {"integration.test": test}), anchor).edits

    def kinds(**fields: object) -> list[str]:
        return [type(edit).__name__ for edit in edits(registry, **fields)]

    assert kinds() == ["AddDictEntry"]
    assert kinds(template={"name": "new_template", "text": "{content}"}) == ["PutFunction", "AddDictEntry"]
    known, *_ = registry.functions
    assert kinds(template={"name": known, "text": "{content}"}) == ["AddDictEntry"]
    # Another name for a template that the file has: the file's own is called.
    chat = "<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    [entry] = edits(registry, template={"name": "new_template", "text": chat})
    assert isinstance(entry, AddDictEntry)
    assert "image_prompt=qwen_vl_chat_template(" in entry.source
    assert kinds(dummy_arch="A") == ["AddImport"] * (
        ("partial" not in registry.imports) + ("dummy_hf_overrides" not in registry.imports)
    ) + ["AddDictEntry"]
    assert kinds(key=registry.entries[0].key) == []
    assert kinds(model=registry.entries[0].model) == []
    wanted = dataclasses.replace(registry, imports=("partial", "dummy_hf_overrides"))
    assert [type(edit) for edit in edits(wanted, dummy_arch="A")] == [AddDictEntry]
    bare = edits(dataclasses.replace(registry, imports=()), dummy_arch="A")
    assert bare[:2] == (AddImport("functools", "partial"), AddImport("...utils", "dummy_hf_overrides"))
    assert PutFunction not in map(type, bare)


@pytest.mark.trees
def test_docs_row(release_tree):
    table = find_docs_table(release_tree("0.33.0"))
    assert table is not None
    table = dataclasses.replace(table, columns=(*table.columns, "A column of tomorrow"), rows=())
    spec = load_port("internvl")
    image = port_of("internvl", {"modalities.video": None, "integration.test": None})
    names = ", ".join(f"`{name}`" for name in spec.docs_models)

    assert table.columns[:2] == ("Architecture", "Models")
    assert docs_row(spec, table) == ("`InternVLChatModel`", names, table.yes, table.yes, table.no, "")
    assert docs_row(image, table) == ("`InternVLChatModel`", names, table.yes, table.no, table.no, "")
    assert docs_row(load_port("step3_vl"), table)[2:] == (table.yes, table.no, table.yes, "")
    (edit,) = plan_docs(spec, table).edits
    assert edit == AddTableRow(table.columns, "`InternVLChatModel`", docs_row(spec, table))


@pytest.mark.trees
def test_docs_row_that_is_there_is_left_alone(release_tree):
    table = find_docs_table(release_tree("0.33.0"))
    assert table is not None

    assert plan_docs(load_port("internvl"), table).edits == ()


@pytest.mark.trees
@pytest.mark.parametrize(
    ("release", "model", "changes", "listed"),
    [
        ("0.33.0", "paligemma", {}, ["PaliGemmaForConditionalGeneration", "ColPaliForRetrieval"]),
        ("0.33.0", "paligemma", {"model.optout": ["ColPaliModel"]}, ["PaliGemmaForConditionalGeneration"]),
        # Its class is a base of the one that the registry has under the same name.
        ("0.22.0", "minicpmv", {}, ["MiniCPMV", "MiniCPMO"]),
        # GLM-OCR has a tower of its own, which a capture would not fit.
        (
            "0.22.0",
            "glm4_1v",
            {"model.optout": None},
            ["Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"],
        ),
        # JinaVL is in vLLM's documentation under the name of another class.
        ("0.20.0", "qwen2_vl", {}, ["Qwen2VLForConditionalGeneration", "Tarsier2ForConditionalGeneration"]),
        # The registry has the class under two names.
        (
            "0.33.0",
            "nano_nemotron_vl",
            {},
            ["NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"],
        ),
        # vLLM's own port is inherited already: whether the table has those classes is its maintainers' choice.
        ("0.33.0", "qwen3_vl", {}, []),
    ],
)
def test_classes_that_inherit_the_port_have_rows_where_vllm_names_their_models(
    release_tree, release, model, changes, listed
):
    tree = release_tree(release)
    profile = read_protocol(tree)

    plan = plan_changes(port_of(model, changes), tree, profile, replace=release == "0.33.0" and model == "qwen3_vl")

    (docs,) = (file for file in plan.files if file.path.endswith("cuda_graphs_multimodal.md"))
    rows = [edit for edit in docs.edits if isinstance(edit, AddTableRow)]
    assert [row.row_key.strip("`") for row in rows] == listed
    assert len({row.cells[2:] for row in rows}) == bool(rows)  # what an heir serves is what the port serves
    assert all(row.cells[1].startswith("`") for row in rows)


@pytest.mark.trees
def test_a_second_run_plans_no_row_of_an_heir(release_tree):
    tree, port = release_tree("0.33.0"), load_port("paligemma")
    prepared = prepare_port(port, tree)
    ported = tree.with_files({file.path: file.after for file in prepared.changed})

    plan = plan_changes(port, ported, read_protocol(ported))

    assert [file.path for file in plan.files if file.edits and file.path.endswith(".md")] == []
    text = ported.read("docs/design/cuda_graphs_multimodal.md")
    assert "| `ColPaliForRetrieval` | `ColPali` | ✅︎ | ❌︎ | ❌︎ |\n" in text


@pytest.mark.trees
def test_example_that_the_release_does_not_have(release_tree):
    tree = release_tree("0.22.0")
    examples = find_example_list(tree)
    assert examples is not None
    port = port_of("internvl", {"integration.example": ["internvl_chat", "of_tomorrow"]})

    assert plan_examples(port, examples).edits == (AddListEntry(examples.variable, "internvl_chat"),)
    (note,) = plan_entries(port, tree).notes
    assert (note.code, note.exit) == ("VCG427", 0)
    assert "no example named 'of_tomorrow'" in note.message


@pytest.mark.trees
def test_an_example_that_runs_eagerly_gets_no_entry(release_tree):
    """No graph is captured with `enforce_eager=True`. From 0.24 on vLLM lists GLM-4.1V all the same."""
    tree = release_tree("0.23.0")
    port = port_of("glm4_1v", {"integration.example": ["glm4v", "internvl_chat", "glm4_1v"]})

    found = plan_entries(port, tree)

    (plan,) = (file for file in found.files if file.path.startswith("examples/"))
    assert [edit.value for edit in plan.edits] == ["internvl_chat"]
    (note, other) = found.notes
    assert (note.code, note.severity) == ("VCG427", Severity.INFO)
    assert "'glm4v' sets `enforce_eager=True`" in note.message
    assert "'glm4_1v' sets `enforce_eager=True`" in other.message
    assert note.span is not None
    assert tree.read(plan.path).splitlines()[note.span.line - 1].strip() == "enforce_eager=True,"
    assert plan_entries(load_port("glm4_1v"), release_tree("0.33.0")).notes == ()


@pytest.mark.trees
@pytest.mark.parametrize(
    ("model", "above", "below"),
    [
        ("llava", "Llama4ForConditionalGeneration", "Qwen2VLForConditionalGeneration"),
        ("paligemma", "Llama4ForConditionalGeneration", "Qwen2VLForConditionalGeneration"),
    ],
)
def test_docs_row_takes_the_place_that_the_table_has_for_it(release_tree, model, above, below):
    """vLLM's table is in order but for three rows: the last two are those of MiniCPM-V."""
    tree, port = release_tree("0.33.0"), load_port(model)
    table = find_docs_table(tree)
    assert table is not None
    edits = plan_docs(port, table).edits

    lines = apply_edits(tree.read(table.path), edits, path=table.path).text.splitlines()

    (place,) = [number for number, line in enumerate(lines) if f"`{port.class_name}`" in line]
    assert [lines[place - 1].split("`")[1], lines[place + 1].split("`")[1]] == [above, below]


@pytest.mark.trees
def test_places_without_an_entry_are_named_with_the_way_to_add_it(release_tree):
    def said(changes: dict[str, object]) -> list[str]:
        found = plan_entries(port_of("internvl", changes), release_tree("0.22.0")).notes
        assert all(note.help and note.severity is Severity.WARNING for note in found)
        return [note.message.removeprefix("the port has no ").partition(":")[0] for note in found]

    everything = ["test entry", "row in the docs table", "name in the example's list"]
    assert said({}) == []
    assert said({"integration": None}) == everything
    assert said({"integration.test": None}) == everything[:1]
    assert said({"integration.docs": None, "integration.example": None}) == everything[1:]


@pytest.mark.trees
@pytest.mark.parametrize("model", shipped_names())
def test_entries_are_as_good_as_those_around_them(release_tree, model):
    """Most entries of 0.33 carry `core_model`, and those with random weights or one budget say why."""
    port, registry = load_port(model), find_test_registry(release_tree("0.33.0"))
    assert registry is not None
    around = {entry.key: "marks" in entry.keywords for entry in registry.entries}
    for test in port.tests:
        source = entries.test_entry(test, list(port.modalities), registry, compared=True, cuda_only=False)
        assert "None" not in source
        assert ("pytest.mark.core_model" in source) is around.get(test.key, True)
        assert source.count("# Random weights, so that the test") == (test.dummy_arch is not None)
        budgets = test.compilation_overrides.get("encoder_cudagraph_token_budgets", ())
        assert source.count("# One budget for two of the test images") == (len(budgets) == 1)
        of_videos = entries.test_entry(test, ["video"], registry, compared=False, cuda_only=False)
        assert of_videos.count("# One budget that covers the test videos") == (len(budgets) == 1)


@pytest.mark.trees
def test_a_port_of_sound_has_no_place_there(release_tree):
    """vLLM's test, table and example know images and videos, so nothing is missing without them."""
    text = """
        schema: 1
        model: {module: whisper, class: WhisperForConditionalGeneration}
        layout: cut
        modalities: {audio: {pixels: input_features, entry: self.embed_multimodal(**inputs)}}
        fields: {input_features: batched}
        pixels: {shape: [80, 3000]}
        forward: {call: self.model.get_encoder_outputs(pixels)}
        output: {hidden_size: self.config.d_model}
    """
    found = plan_entries(load_descriptor_text(text, "sound.yaml"), release_tree("0.33.0"))
    assert (found.files, found.notes) == ((), ())
