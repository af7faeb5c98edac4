"""Kernels of a model's metadata are compiled before a request asks for them: with Triton's own compiler, for a Hopper.

Nothing is launched, so no GPU is needed: `warmup` compiles and stops there.
"""

import threading

import pytest
import torch
from helpers import make_manager
from towers import PackedTower

from scaffold.runtime.compiled import Launches, variants_of

triton = pytest.importorskip("triton")


class Hopper:
    """What Triton asks of a driver in order to compile."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def make_kernel(monkeypatch, tmp_path):
    """Kernels of two sizes and a constant, without what an earlier test compiled."""
    import triton_kernels
    from triton.runtime import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where nobody chose
    monkeypatch.setattr(driver, "_active", Hopper())
    return lambda **options: triton.jit(triton_kernels.fill, **options)


def launch(kernel, height, width, memory=None):
    memory = torch.zeros(64) if memory is None else memory
    kernel.run(memory, height, width, 0.5, 3, grid=(1,), warmup=True)


def compiled(kernel):
    return len(kernel.device_caches[0][0])


def test_the_other_kinds_of_its_numbers_are_compiled(make_kernel):
    kernel, launches = make_kernel(), Launches()
    with launches.noted():
        launch(kernel, 2, 32)
        launch(kernel, 2, 64)
    assert compiled(kernel) == 1
    launches.compile_others()
    launches.wait()
    assert compiled(kernel) == 4
    for height, width in ((48, 38), (38, 48), (16, 16), (6, 10)):
        launch(kernel, height, width)
    assert compiled(kernel) == 4  # nothing was left to compile
    launch(kernel, 1 << 33, 2)
    assert compiled(kernel) == 5  # a number of another type does compile: the count can change


def test_a_capture_compiles_them_in_a_thread_beside_it(make_kernel):
    kernel, names = make_kernel(), []

    class Tower(PackedTower):
        def capture_values(self, key, limits):
            launch(kernel, 2, 2 * key.budget)
            return super().capture_values(key, limits)

    original = kernel.warmup
    kernel.warmup = lambda *args, **named: names.append(threading.current_thread().name) or original(*args, **named)
    make_manager(Tower(), [8, 16])
    assert compiled(kernel) == 4
    assert set(names) == {"compile-kernels"}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 4),
        ({"do_not_specialize": ["H"]}, 2),
        ({"do_not_specialize_on_alignment": ["W"]}, 2),
        ({"do_not_specialize": ["H", "W"]}, 0),
    ],
)
def test_what_triton_does_not_look_at_is_left_alone(make_kernel, options, count):
    assert len(variants_of(make_kernel(**options), (torch.float32, 2, 32, 0.5, 3))) == count


def test_unaligned_memory_and_many_numbers_are_left_to_the_request(make_kernel, monkeypatch):
    kernel, launches = make_kernel(), Launches()
    with launches.noted():
        launch(kernel, 2, 32, torch.zeros(64)[1:])
    launches.compile_others()
    launches.wait()
    assert compiled(kernel) == 1
    monkeypatch.setattr("scaffold.runtime.compiled.MOST_NUMBERS", 1)
    assert variants_of(kernel, (torch.float32, 2, 32, 0.5, 3)) == []


def test_a_compiler_that_fails_is_the_requests_affair(make_kernel):
    kernel, launches = make_kernel(), Launches()
    with launches.noted():
        launch(kernel, 2, 32)

    def broken(*args, **named):
        raise RuntimeError("no compiler")

    kernel.warmup = broken
    launches.compile_others()
    launches.wait()
    assert compiled(kernel) == 1
