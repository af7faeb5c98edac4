"""The real engine with and without our plugin: `vllm.LLM` of the installed CPU wheel, and its OpenAI server.

Two child processes serve the same prompts from the same model directories: one with vLLM alone, on its own attention;
one with the plugin, where every image runs through a graph of the recording backend. Weights are random and carry an
image to the logits, so that a wrong row of the encoder changes tokens and logprobs.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

import cpu_wheel
import operator_page
import pytest
from model_directory import MODELS, write_model
from serving import ALONE, OURS, environment, needs_vllm, serve

#: What vLLM loads, and what our plugin is told.
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "alone": (ALONE, {}),
    "ours": (OURS, {}),
    "our manager": (OURS, {"VITCG_MODE": "manager"}),
}
#: Of packed patches, tiles, rows and a cut.
DEFAULT = ("qwen2_5_vl", "internvl", "mistral3", "llava_next")
#: Two more of packed patches, and a tower that sees 729 to 3000 patches of an image whatever its size.
SLOW = ("qwen2_vl", "qwen3_vl", "step3_vl")

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """`served(way, models)`: what came out, by model; each way runs once for a group of models."""
    if not cpu_wheel.plugin_is_registered():
        pytest.fail("vLLM does not see the plugin: install this package anew (`make setup`)", pytrace=False)
    folder = tmp_path_factory.mktemp("models")
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def get(way: str, models: tuple[str, ...], ranks: int = 1) -> dict[str, Any]:
        key = (way, models, ranks)
        if key not in known:
            plugins, changes = WAYS[way]
            job = {"models": models, "graphs": way != "alone", "ranks": ranks}
            known[key] = serve("engine_child.py", folder, job, plugins, **changes)
        return known[key]

    return get


def group_of(name: str) -> tuple[str, ...]:
    return SLOW if name in SLOW else DEFAULT


@pytest.fixture(params=[*DEFAULT, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def pair(request: pytest.FixtureRequest, served: Callable[..., dict[str, Any]]) -> tuple[str, Any, Any]:
    """A model, and what it answered alone and with the plugin."""
    name, group = request.param, group_of(request.param)
    return name, served("alone", group)[name], served("ours", group)[name]


def assert_same_answers(alone: Any, ours: Any) -> None:
    # Right runs agree to 5e-6; one wrong row of one item moves a logprob by 1e-3 at least, though often no token.
    assert ours["answers"].keys() == alone["answers"].keys()
    for name, want in alone["answers"].items():
        assert ours["answers"][name]["tokens"] == want["tokens"], name
        assert ours["answers"][name]["logprobs"] == pytest.approx(want["logprobs"], abs=1e-4), name
    assert ours["together"] == alone["together"]


def test_same_tokens_and_logprobs(pair):
    _, alone, ours = pair
    assert_same_answers(alone, ours)


def test_an_image_decides_the_answer(pair):
    """The control: without it, the same tokens would say nothing about the encoder."""
    model, alone, _ = pair
    calls = [("small", "small, other pixels")]
    if MODELS[model].video is not None:
        calls.append(("video", "video, other pixels"))
    for one, other in calls:
        first, second = (alone["answers"][name]["logprobs"][0] for name in (one, other))
        assert abs(first - second) > 5e-3, (one, first, second)


def test_the_plugins_classes_are_in_use(pair):
    model, alone, ours = pair
    assert alone["ranks"][0]["model"] == f"vllm.model_executor.models.{model}:{MODELS[model].architecture}"
    assert alone["ranks"][0]["manager"] is None
    package, _, name = ours["ranks"][0]["model"].partition(":")
    assert (package.partition(".")[0], package.rpartition(".")[2], name) == (
        "vitcg_adapters", model, MODELS[model].architecture,
    )  # fmt: skip
    assert ours["ranks"][0]["manager"].startswith("scaffold.runtime.vllm")


def test_every_image_and_video_ran_through_a_graph(pair):
    _, _, ours = pair
    (rank,) = ours["ranks"]
    stats = rank["stats"]["detail"]
    assert rank["capture"]["failed"] == {}
    assert stats["miss_reasons"] == {}
    # One item or more in each of the calls, once alone and once together with the others.
    assert stats["hits"] >= 2 * len(ours["answers"]) + 2
    assert len([g for g in stats["graphs"].values() if g["replays"]]) >= 2


#: The tunings that act in each model, by what `engine_child.TUNING` says; `list` names them and does nothing. Weights
#: are never touched here: the CPU's own matrix kernels keep them packed.
TUNED = {
    "qwen2_5_vl": ({"fused-activations", "fused-residuals", "inplace-rotary", "small-windows"}, True),
    "qwen2_vl": ({"fused-norms", "inplace-rotary"}, True),
    "qwen3_vl": ({"fused-residuals", "inplace-rotary"}, True),
    "internvl": ({"fused-norms", "fused-residuals", "unsplit-attention"}, False),
    "step3_vl": (set(), False),
    "mistral3": ({"fused-norms", "unsplit-attention"}, True),
    "llava_next": ({"fused-activations", "fused-norms", "fused-residuals", "unsplit-attention"}, True),
}


def test_the_configuration_chooses_and_proves_the_tunings(pair):
    model, _, ours = pair
    (rank,) = ours["ranks"]
    acting, proved = TUNED[model]
    assert {name for name, count in rank["tuned_modules"].items() if count} == acting
    assert set(rank["tuning_errors"]) == (acting if proved else set())
    assert all(error <= 1e-4 for error in rank["tuning_errors"].values())
    assert rank["tuned"] == (bool(acting) and model != "internvl")


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFAULT)
def test_our_manager_serves_vllms_own_implementations(served, name):
    """`VITCG_MODE=manager`: the release's class with the methods that were written by hand, and our manager."""
    alone, ours = (served(way, DEFAULT)[name] for way in ("alone", "our manager"))
    assert_same_answers(alone, ours)
    (rank,) = ours["ranks"]
    assert rank["model"] == alone["ranks"][0]["model"]
    assert rank["manager"].startswith("scaffold.runtime.vllm")
    assert rank["stats"]["detail"]["hits"] > 0


@pytest.mark.slow
def test_two_ranks_share_the_images_through_vllms_own_collectives(served):
    alone, ours = (served(way, ("qwen2_5_vl",), ranks=2)["qwen2_5_vl"] for way in ("alone", "ours"))
    assert_same_answers(alone, ours)
    assert [rank["model"].partition(".")[0] for rank in ours["ranks"]] == ["vitcg_adapters"] * 2
    stats = [rank["stats"]["detail"] for rank in ours["ranks"]]
    assert [s["miss_reasons"] for s in stats] == [{}, {}]
    assert all(s["hits"] > 0 for s in stats), stats


def test_the_server_answers_a_chat_request_with_an_image(tmp_path):
    """The server with an engine process of its own and the plugin. Its log says why nothing is captured on a CPU.

    Not `vllm serve`: the command of the CPU wheel asks for the metadata of a package called `vllm` and ends.
    """
    directory = write_model("qwen2_vl", tmp_path / "model")
    port = operator_page.free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(directory), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--dtype", "float32",
        "--max-model-len", "1024", "--max-num-seqs", "2",
        "--compilation-config", '{"mode": 0, "cudagraph_mm_encoder": true}',
    ]  # fmt: skip
    env = environment(
        tmp_path, f"{ALONE},{cpu_wheel.PLUGIN}", VLLM_ENABLE_V1_MULTIPROCESSING=None, VLLM_LOGGING_LEVEL="INFO"
    )
    server = operator_page.Server(shlex.join(command), port, env, tmp_path, tmp_path / "server.log")
    try:
        model = server.wait(time.monotonic() + 400)
        said = {"logprobs": True, "temperature": 0, "ignore_eos": True}
        one, same, other = (server.chat(model, (84, 84), seed, **said) for seed in (1, 1, 2))
    except operator_page.ServerError as error:
        pytest.fail(f"{error}\n{server.said()[-3000:]}", pytrace=False)
    finally:
        server.stop(20)
    logprobs = [[t["logprob"] for t in a["choices"][0]["logprobs"]["content"]] for a in (one, same, other)]
    assert one["usage"]["completion_tokens"] == 2
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert abs(logprobs[0][0] - logprobs[2][0]) > 5e-3, "the image does not decide the answer"
    assert "cudagraph_mode is NONE: vLLM's V1 model runner captures no encoder graphs" in server.said()
