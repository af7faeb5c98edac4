"""What switches encoder graphs off in silence, and what the log says of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from scaffold.plugin import no_graphs_in_v2, reasons_for_eager

ENCODER_ONLY = {"is_mm_encoder_only": True, "v2": True}


def config(*, graphs=True, images=True, eager=False, mode="FULL", v2=False, stages=1, is_mm_encoder_only=False):
    multimodal = SimpleNamespace(mm_encoder_only=is_mm_encoder_only) if images else None
    return SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mm_encoder=graphs, cudagraph_mode=SimpleNamespace(name=mode)),
        model_config=SimpleNamespace(multimodal_config=multimodal, enforce_eager=eager),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        use_v2_model_runner=v2,
        is_mm_encoder_only=is_mm_encoder_only,
    )


@pytest.mark.parametrize(
    ("release", "options", "said"),
    [
        ((0, 33), {}, []),
        ((0, 33), {"graphs": False, "eager": True}, []),
        ((0, 33), {"images": False, "eager": True}, []),
        ((0, 33), {"eager": True}, ["--enforce-eager: "]),
        ((0, 33), {"mode": "NONE"}, ["cudagraph_mode is NONE: "]),
        ((0, 33), {"mode": "NONE", "v2": True}, []),
        ((0, 27), {"v2": True}, [no_graphs_in_v2()]),
        ((0, 27), {}, []),
        ((0, 28), {"v2": True}, []),
        ((0, 30), ENCODER_ONLY, ["vLLM captures no encoder graphs in an encoder-only instance before 0.31"]),
        ((0, 31), ENCODER_ONLY, []),
        ((0, 33), {"stages": 2}, ["pipeline parallelism: "]),
        ((0, 33), {"stages": 2, "v2": True}, []),
        ((0, 33), {"stages": 2, "mode": "NONE"}, ["cudagraph_mode is NONE: ", "pipeline parallelism: "]),
    ],
)
def test_every_silent_switch_is_named(release, options, said):
    reasons = reasons_for_eager(config(**options), release)

    assert len(reasons) == len(said)
    assert all(reason.startswith(start) for reason, start in zip(reasons, said, strict=True))
