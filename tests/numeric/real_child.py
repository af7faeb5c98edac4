"""`scaffold.verify.numeric.real` with a CPU in place of the GPU: our manager on its recording backend.

    python tests/numeric/real_child.py

Reads the lines and writes the events of the process that it stands for. The release's own manager needs the GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import recorded, vllm_on_cpu

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
        return recorded(super().our_manager())

    def captured(self, manager: Any) -> Any:
        manager.capture((0, 0))
        return manager


def serve(request: dict[str, Any], events: Events, stages: Stages) -> None:
    with vllm_on_cpu():
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
