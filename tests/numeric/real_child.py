"""`scaffold.verify.numeric.real` with a CPU in place of the GPU: our manager on its recording backend.

    python tests/numeric/real_child.py

Reads the lines and writes the events of the process that it stands for. The release's own manager needs the GPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from scaffold.verify.numeric import cpu_imports, real
from scaffold.verify.numeric.child import Events, Stages


class Cpu(real.Machine):
    def __init__(self) -> None:
        import torch

        self.device, self.dtype = torch.device("cpu"), torch.float32

    def describe(self) -> str:
        return "a CPU"

    def runs(self) -> dict[str, Any]:
        return {name: run for name, run in super().runs().items() if name == "our manager"}

    def our_manager(self) -> Any:
        import torch

        from scaffold.runtime.recording import RecordingBackend

        class OnCpu(super().our_manager()):  # type: ignore[misc]
            def _make_backend(self) -> Any:
                backend = RecordingBackend(bodies=cpu_imports.PYTHON_OPERATORS)
                torch.cuda.is_current_stream_capturing = lambda: backend.is_capturing
                return backend

        return OnCpu

    def captured(self, manager: Any) -> Any:
        manager.capture((0, 0))
        return manager


def serve(request: dict[str, Any], events: Events, stages: Stages) -> None:
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    with (
        tempfile.TemporaryDirectory() as scratch,
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))),
    ):
        cpu_imports.start_distributed(Path(scratch))
        real.run_request(Cpu(), request, events, stages)


def main() -> int:
    events = Events()
    tree = json.loads(sys.stdin.readline())
    cpu_imports.prepare(Path(tree["root"]), Path(tree["bytecode_cache"]))
    from scaffold.verify.numeric import attention

    cpu_imports.patch_vllm()
    attention.set_tail("fa3")
    real.import_manager()
    request = json.loads(sys.stdin.readline())
    status = Stages(request["role"], events).run(lambda stages: serve(request, events, stages))
    events.send("ended", status=status)
    return status


if __name__ == "__main__":
    sys.exit(main())
