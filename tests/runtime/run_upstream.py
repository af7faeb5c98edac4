"""Run a vLLM release's own unit test of the encoder-graph manager with our manager in its place.

    python tests/runtime/run_upstream.py VERSION-OR-TREE [--gpu] [pytest arguments]

Without `--gpu` the release's source tree is imported on the CPU, and our manager captures with the recording backend;
the copy of the test then says "cpu" where the original says "cuda:0", so that the capture tests run, too. With `--gpu`
the installed vLLM and real graphs are used, and the test file is not changed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

TEST = "tests/v1/cudagraph/test_encoder_cudagraph.py"
#: Needs vLLM's GPU runner fixtures; run it with --gpu.
GPU_ONLY = ("test_eonly_capture_preserves_outputs_across_replay_and_fallback",)

PLUGIN = """
import os
from pathlib import Path

if not os.environ.get("VITCG_GPU"):
    from release_process import prepare_release
    prepare_release(Path(os.environ["VITCG_TREE"]))
import vllm.v1.worker.encoder_cudagraph
from scaffold.runtime.vllm import EncoderCudaGraphManager
vllm.v1.worker.encoder_cudagraph.EncoderCudaGraphManager = EncoderCudaGraphManager
if not os.environ.get("VITCG_GPU"):
    import contextlib
    import torch
    import vllm.platforms
    with contextlib.suppress(ImportError):  # modules that ask for compiled code on a CUDA platform
        import vllm.v1.worker.mm_encoder_model_runner
        import vllm.v1.worker.gpu.mm.encoder_runner
    torch.cuda.graph_pool_handle = lambda: (0, 1)
    platform = vllm.platforms.current_platform
    for name, value in {"is_cuda_alike": True, "is_cuda": True, "is_xpu": False}.items():
        setattr(type(platform), name, lambda self, value=value: value)
    type(platform).graph_pool_handle = lambda self: (0, 1)


if os.environ.get("VITCG_GPU"):
    import tempfile
    import pytest
    import torch

    # What the release's own conftest provides, without its other imports.
    @pytest.fixture
    def dist_init():
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import cleanup_dist_env_and_memory, parallel_state
        with set_current_vllm_config(VllmConfig()):
            store = tempfile.mkdtemp() + "/store"
            parallel_state.init_distributed_environment(1, 0, f"file://{store}", 0, "nccl")
            parallel_state.initialize_model_parallel(1, 1)
            yield
        cleanup_dist_env_and_memory()

    @pytest.fixture
    def workspace_init():
        from vllm.v1.worker.workspace import init_workspace_manager, reset_workspace_manager
        init_workspace_manager(torch.device(0))
        yield
        reset_workspace_manager()


def pytest_collection_modifyitems(config, items):
    import vllm.v1.worker.encoder_cudagraph as module
    assert module.EncoderCudaGraphManager.__module__ == "scaffold.runtime.vllm.manager"
    for item in items:
        used = getattr(item.module, "EncoderCudaGraphManager", None)
        assert used is module.EncoderCudaGraphManager, "the test does not use our manager"
"""


def find_tree(argument: str) -> Path:
    """A tree by path, or by release through the tool's cache."""
    path = Path(argument)
    if (path / TEST).is_file():
        return path
    from scaffold.protocol import resolve_target

    return Path(resolve_target(argument).tree.root)


def run(tree: Path, *, gpu: bool, arguments: list[str]) -> int:
    """Run the test of a tree in this process."""
    text = (tree / TEST).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        if not gpu:
            text = text.replace('"cuda:0"', '"cpu"')
        Path(scratch, "test_upstream_manager.py").write_text(text, encoding="utf-8")
        Path(scratch, "vitcg_upstream_plugin.py").write_text(PLUGIN, encoding="utf-8")
        tests = Path(__file__).resolve().parents[1]
        sys.path[:0] = [scratch, str(tests), str(tests.parent)]
        sys.dont_write_bytecode = True
        os.environ.update({"VITCG_TREE": str(tree), "VITCG_GPU": "1" if gpu else ""})
        deselect = [] if gpu else ["-k", " and ".join(f"not {name}" for name in GPU_ONLY)]
        os.chdir(scratch)
        return pytest.main(["-q", "-p", "vitcg_upstream_plugin", "--noconftest", "-p", "no:cacheprovider",
                            "-c", os.devnull, "--rootdir", scratch, *deselect, *arguments,
                            f"{scratch}/test_upstream_manager.py"])  # fmt: skip


def main() -> int:
    arguments = [a for a in sys.argv[1:] if a != "--gpu"]
    return run(find_tree(arguments[0]), gpu="--gpu" in sys.argv, arguments=arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
