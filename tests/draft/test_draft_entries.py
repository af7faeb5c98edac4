"""What a draft takes from the tree alone: a model's test, its example, its row of the docs, and its gate."""

from __future__ import annotations

import pytest
import yaml

from scaffold.draft.gates import put_gate
from scaffold.draft.integration import draft_integration
from scaffold.draft.locate import locate
from scaffold.draft.sheet import Sheet
from scaffold.watch import Recording

pytestmark = pytest.mark.trees


def drafted(tree, architecture, placeholder="<image>", numbers=(), single=False):
    """The test of a draft that serves images, and its example; each may be missing."""
    entries = integration(tree, architecture, placeholder, numbers, single)
    return entries.get("test"), entries.get("example")


def integration(tree, architecture, placeholder="<image>", numbers=(), single=False):
    sheet, said = Sheet({}), {} if placeholder is None else {"image": placeholder}
    if single:
        sheet.put("explicit.single", True)
    run = Recording("", "", {}, (), (), dict(numbers), said, (), (), {})
    draft_integration(sheet, locate(tree, architecture), ("image",), run)
    return (yaml.safe_load(sheet.text([])) or {}).get("integration", {})


@pytest.mark.parametrize(
    ("architecture", "checkpoint", "placeholder", "example"),
    [
        ("Phi3VForCausalLM", "microsoft/Phi-3-vision-128k-instruct", "<|image_1|>", "phi3_v"),
        ("Ovis2_5", "AIDC-AI/Ovis2.5-2B", "<image>", "ovis2_5"),  # its class serves a model of 30B, too
        ("Ovis2_6_MoeForCausalLM", "AIDC-AI/Ovis2.6-30B-A3B", "<image>", "ovis2_5"),
        ("Ovis", "AIDC-AI/Ovis2-1B", None, "ovis"),  # what stands for an image is in the example's prompt, too
        ("LlavaForConditionalGeneration", "llava-hf/llava-1.5-7b-hf", "<image>", "llava"),  # pixtral_hf loads it, too
        ("InternVLChatModel", "OpenGVLab/InternVL2-1B", "<image>", "internvl_chat"),  # loads another checkpoint
        ("NemotronParseForConditionalGeneration", None, "", None),  # nemotron_parse_35 is another model
    ],
)
def test_entries_are_drafted_from_what_the_tree_says_elsewhere(
    release_tree, architecture, checkpoint, placeholder, example
):
    test, found = drafted(release_tree("0.33.0"), architecture, placeholder)
    assert checkpoint in (None, test["model"])
    assert test["image_prompt"].startswith("\nWhat is in this image?" if placeholder is None else placeholder)
    assert found == example


COMPARED = "tests/models/multimodal/generation/test_common.py"


@pytest.mark.parametrize(
    ("architecture", "placeholder", "before", "template"),
    [
        ("Moondream3ForCausalLM", "<image>", "<|endoftext|>", None),  # its processor wants the first token
        ("QianfanOCRForConditionalGeneration", "<image>", "",
         "<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"),
        ("PaddleOCRVLForConditionalGeneration", "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", "",
         "USER: {content}\nASSISTANT:"),
        # Each image has a number in that test's prompt, and the example has a template.
        ("Phi3VForCausalLM", "<|image_1|>", "", "<|user|>\n{content}<|end|>\n<|assistant|>\n"),
    ],
)  # fmt: skip
def test_a_prompt_is_that_of_vllms_other_generation_test(release_tree, architecture, placeholder, before, template):
    tree = release_tree("0.33.0")
    test, _ = drafted(tree, architecture, placeholder)
    assert test["image_prompt"].split("What")[0].rstrip("\n") == before + placeholder
    assert (test.get("template") or {}).get("text") == template
    if "Phi3" not in architecture:
        without = drafted(tree.with_files({COMPARED: b""}), architecture, placeholder)[0]
        assert without["image_prompt"].startswith(placeholder)
        assert "template" not in without


@pytest.mark.parametrize(
    "changed",
    [
        ('lambda idx: "<|endoftext|><image>"', 'lambda idx: f"<|endoftext|><image>{idx}"'),
        ('lambda idx: "<|endoftext|><image>"', 'lambda idx: "<|endoftext|><picture>"'),
        ('lambda idx: "<|endoftext|><image>"', 'lambda idx: "<image>"'),
        (
            'identity,\n        img_idx_to_prompt=lambda idx: "<|endoftext|><image>"',
            'lambda text: f"{text}{NAME}",\n        img_idx_to_prompt=lambda idx: "<|endoftext|><image>"',
        ),
    ],
    ids=["numbered", "another", "no more", "a name"],
)
def test_a_prompt_of_another_test_that_says_no_more_is_not_taken(release_tree, changed):
    tree = release_tree("0.33.0")
    text = tree.read(COMPARED)
    assert text.count(changed[0]) == 1
    test, _ = drafted(tree.with_files({COMPARED: text.replace(*changed).encode()}), "Moondream3ForCausalLM")
    assert (test["image_prompt"], test.get("template")) == ("<image>What is in this image?", None)


def test_a_prompt_has_something_for_an_item(release_tree):
    """LightOnOCR's method says nothing, and its processor replaces a token: the example's prompt has it."""
    tree, name = release_tree("0.33.0"), "LightOnOCRForConditionalGeneration"
    test, example = drafted(tree, name, "")
    assert "<|image_pad|>" in test["image_prompt"]
    file = "examples/generate/multimodal/vision_language_offline.py"
    text = tree.read(file)
    assert text.count(f'"{example}": run_{example}') == 1
    without = tree.with_files({file: text.replace(f'"{example}": run_{example}', "").encode()})
    # Nothing says it then; and where a processor puts the item in, a prompt needs nothing.
    assert drafted(without, name, "") == (None, None)
    assert drafted(tree, "Blip2ForConditionalGeneration", "")[0]["image_prompt"].strip() == "What is in this image?"


@pytest.mark.parametrize("architecture", ["ColQwen3_5", "CLIPModel", "LlamaNemotronVLModel"])
def test_a_model_that_only_pools_has_no_entry_in_a_test_that_generates(release_tree, architecture):
    assert drafted(release_tree("0.33.0"), architecture) == (None, None)


@pytest.mark.parametrize(
    ("architecture", "placeholder", "entry"),
    [
        ("CLIPModel", "", {"key": "clip", "model": "openai/clip-vit-base-patch32", "task": "embed"}),
        ("ColPaliForRetrieval", "", {"key": "colpali", "model": "vidore/colpali-v1.3-hf", "task": "token_embed"}),
        # Its class says nothing of a placeholder; its test has empty prompts beside images.
        (
            "ColModernVBertForRetrieval",
            None,
            {"key": "colmodernvbert", "model": "ModernVBERT/colmodernvbert-merged", "task": "token_embed"},
        ),
        (
            "LlamaNemotronVLForSequenceClassification",  # its base makes the pooler of another task
            "<image>",
            {
                "key": "nemotron_vl",
                "model": "nvidia/llama-nemotron-rerank-vl-1b-v2",
                "task": "classify",
                "image_prompt": "<image>",
            },
        ),
        (
            "ColUltraVBertForRetrieval",
            "<image>",
            {
                "key": "colultravbert",
                "model": "athrael-soju/ColUltraVBERT",
                "task": "token_embed",
                "image_prompt": "<image>",
                "runner_kwargs": {"revision": "509adbab61b71da0484b20f3baf718e15219d761"},
            },
        ),
    ],
)
def test_a_model_that_only_pools_has_an_entry_of_its_own_test(release_tree, architecture, placeholder, entry):
    found = integration(release_tree("0.33.0"), architecture, placeholder)
    assert found["pooling"] == {**entry, "dummy_arch": architecture}


def test_an_entry_of_a_pooling_model_needs_a_prompt_a_pooler_and_a_checkpoint(release_tree):
    tree, name = release_tree("0.33.0"), "CLIPModel"
    test, model, registry = (
        "tests/models/multimodal/pooling/test_clip.py",
        "vllm/model_executor/models/clip.py",
        "tests/models/registry.py",
    )
    assert "pooling" in integration(tree, name, "")
    for file, before, after in (
        (test, '""', '"a photo"'),
        (test, "images=", "pictures="),
        (model, "DispatchPooler.for_embedding(", "Pooler("),
        (registry, '    "CLIPModel": ', '    "Clip": '),
    ):
        text = tree.read(file)
        assert before in text
        assert "pooling" not in integration(tree.with_files({file: text.replace(before, after).encode()}), name, "")
    numbers = {"self.config.text_config.max_position_embeddings": 77}
    assert integration(tree, name, "", numbers, single=True)["pooling"]["max_model_len"] == 77


def test_a_checkpoint_that_is_not_there_is_no_test(release_tree):
    """MiniMax-M3's was not online yet."""
    tree, registry = release_tree("0.33.0"), "tests/models/registry.py"
    assert drafted(tree, "MiniMaxM3SparseForConditionalGeneration")[0] is None
    assert drafted(tree, "Qwen4ExpForConditionalGeneration")[0] is None
    online = tree.read(registry).replace("is_available_online=False", "is_available_online=True")
    assert drafted(tree.with_files({registry: online.encode()}), "MiniMaxM3SparseForConditionalGeneration")[0]


def test_names_of_examples_may_have_hyphens(release_tree):
    tree, example = release_tree("0.33.0"), "examples/generate/multimodal/vision_language_offline.py"
    text = tree.read(example)
    renamed = text.replace('"llama4": ', '"llama-4": ')
    assert renamed != text
    assert drafted(tree.with_files({example: renamed.encode()}), "Llama4ForConditionalGeneration")[1] == "llama-4"


LAYERS = {"num_hidden_layers": 4, "moe_num_experts": 8, "moe_layer_list": [3], "moe_layers_enum": "3"}
FEW = {"exist_overrides": {"text_config": LAYERS}, "use_original_num_layers": True}


@pytest.mark.parametrize(
    ("architecture", "length", "overrides"),
    [
        ("Blip2ForConditionalGeneration", None, None),
        ("Alpamayo2Super", 8192, None),
        ("BeeForConditionalGeneration", 16384, None),  # its example's: 4096 tokens hold no image of several tiles
        ("PaliGemmaForConditionalGeneration", None, None),  # its example has less than other tests
        # The checkpoint of GLM-4V names a class of text alone: without its own vLLM served that one.
        ("GLM4VForCausalLM", None, {"exist_overrides": {"architectures": ["GLM4VForCausalLM"]}}),
        ("Step5ForConditionalGeneration", 4096, FEW),
    ],
)
def test_a_test_fits_its_machine_and_loads_its_class(architecture, length, overrides, release_tree):
    """Random weights, and the context that vLLM's own tests or example give: a class's default says nothing of one."""
    test, _ = drafted(release_tree("0.33.0"), architecture)
    assert (test["dummy_arch"], test.get("max_model_len")) == (architecture, length)
    assert test.get("dummy_overrides") == overrides


@pytest.mark.parametrize(
    ("numbers", "single", "length"),
    [
        ({"self.config.text_config.max_position_embeddings": 2048}, True, 2048),
        ({"self.config.max_position_embeddings": 2048}, True, 2048),
        ({"self.config.text_config.max_position_embeddings": 8192}, True, None),
        ({"self.config.qformer_config.max_position_embeddings": 512}, True, None),
        # A large image may need more than a class's default, which the checkpoint may exceed.
        ({"self.config.text_config.max_position_embeddings": 2048}, False, None),
    ],
)
def test_a_test_asks_for_no_more_context_than_was_seen(numbers, single, length, release_tree):
    test, _ = drafted(release_tree("0.33.0"), "Blip2ForConditionalGeneration", numbers=numbers, single=single)
    assert (test["model"], test.get("max_model_len")) == ("Salesforce/blip2-opt-2.7b", length)


@pytest.mark.parametrize(
    ("architecture", "single", "budget"),
    [
        ("Blip2ForConditionalGeneration", True, 4096),
        ("Ovis2_5", False, 4096),
        # Its example's 8192 tokens hold two of its largest images, of 13 tiles with 256 tokens.
        ("InternS1ForConditionalGeneration", False, 4096),
        ("Llama4ForConditionalGeneration", False, 4096),  # 10240, half of which is no power of two
        ("BeeForConditionalGeneration", False, 8192),  # 16384, and no budget exceeds the tokens of a step
        ("BagelForConditionalGeneration", True, None),  # 4900 tokens an image: one graph by default
    ],
)
def test_a_test_captures_one_graph(architecture, single, budget, release_tree):
    test, _ = drafted(release_tree("0.33.0"), architecture, single=single)
    assert test.get("compilation_overrides") == (budget and {"encoder_cudagraph_token_budgets": [budget]})


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni"),
        ("Gemma3nForConditionalGeneration", "gemma3n"),
        ("PaddleOCRVLForConditionalGeneration", "paddleocr_vl"),  # Paddle-OCR; the example is called like the file
        ("Gemma4ForConditionalGeneration", "gemma4_mm"),  # vLLM's entry `gemma4` is there
        ("Phi3VForCausalLM", "phi3v"),
    ],
)
def test_a_key_is_as_short_as_those_around_it(architecture, key, release_tree):
    assert drafted(release_tree("0.33.0"), architecture)[0]["key"] == key


def test_a_template_of_the_test_file_serves_where_an_example_of_the_model_writes_it(release_tree):
    """Qwen3-Omni's example puts a system prompt in front, whose text is a variable."""
    tree, pad = release_tree("0.33.0"), "<|vision_start|><|image_pad|><|vision_end|>"
    file, name = "examples/generate/multimodal/qwen3_omni/only_thinker.py", "Qwen3OmniMoeForConditionalGeneration"
    test, _ = drafted(tree, name, pad)
    assert test["template"] == {
        "name": "qwen_vl_chat_template",
        "text": "<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
    }
    assert test["image_prompt"] == f"{pad}What is in this image?"
    # Neither other tokens nor another model's example say anything of its prompt.
    other = tree.read(file).replace("<|im_end|>", "<|end|>")
    assert "template" not in drafted(tree.with_files({file: other.encode()}), name, pad)[0]
    several = f"{tree.read(file)}\nOTHER = 'Qwen/Qwen2-VL-2B-Instruct'\n"
    assert "template" not in drafted(tree.with_files({file: several.encode()}), name, pad)[0]
    assert "template" not in drafted(tree, name, "<|image|>")[0]


@pytest.mark.parametrize(
    ("architecture", "placeholder"), [("InternS1ForConditionalGeneration", "<IMG_CONTEXT>"), ("NVLM_D", "<image>")]
)
def test_a_question_stands_where_the_example_puts_it(architecture, placeholder, release_tree):
    """Their examples give the checkpoint's tokenizer placeholder, line break and question."""
    test, _ = drafted(release_tree("0.33.0"), architecture, placeholder)
    assert (test["image_prompt"], test.get("template")) == (f"{placeholder}\nWhat is in this image?", None)


@pytest.mark.parametrize(
    ("architecture", "models"),
    [
        ("InklingForConditionalGeneration", ["Inkling"]),  # of thinkingmachines/Inkling-NVFP4
        ("DeepseekV41ForCausalLM", ["DeepSeek-V4.1-Flash"]),  # as vLLM's own row says
        ("ClefFlashForJointSchema", None),  # it only pools
    ],
)
def test_a_model_that_no_table_lists_is_called_like_its_checkpoint(architecture, models, release_tree):
    assert integration(release_tree("0.33.0"), architecture).get("docs") == (models and {"models": models})


@pytest.mark.parametrize(
    ("kind", "asked"), [("flat", "and not batched as at"), ("batched", "and not flat_from_sizes as at")]
)
def test_a_condition_under_which_items_are_cut_otherwise_is_asked_for(kind, asked, release_tree):
    """Nano Nemotron cuts tiles, or gets whole images where its tiler is dynamic; an attribute of the model says so."""
    sheet, key = Sheet({}), "pixel_values_flat"
    sheet.put(f"fields.{key}" if kind == "batched" else f"fields.{key}.sizes", kind)
    put_gate(locate(release_tree("0.33.0"), "NemotronH_Nano_VL_V2"), (key,), sheet)
    [question] = sheet.questions
    assert (question.key, asked in question.what) == ("gates.modalities", True), question.what
    assert [one.value for one in question.candidates] == ["not self.dynamic_resolution"] * (kind == "flat")
