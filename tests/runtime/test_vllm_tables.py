"""Interpolated positions: the same bits as without the manager, and each size computed once."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from scaffold.runtime.vllm.tables import KeptTables, interpolates

MOST = 1 << 20


class Tower(nn.Module):
    """Learned positions [8, 8, width], as MoonViT has them."""

    def __init__(self, width=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, width, generator=torch.Generator().manual_seed(0)))

    def forward(self, height, width, mode="bicubic"):
        size = (height, width)
        found = functional.interpolate(self.weight.permute(2, 0, 1).unsqueeze(0), size=size, mode=mode)
        return found.squeeze(0).permute(1, 2, 0).flatten(end_dim=1)


@pytest.fixture
def tower():
    return Tower()


@pytest.fixture
def kept(tower):
    return KeptTables(tower, MOST)


@pytest.fixture
def computed(monkeypatch):
    """The sizes that PyTorch's own function computed."""
    sizes, original = [], functional.interpolate

    def interpolate(*arguments, **named):
        sizes.append(named["size"])
        return original(*arguments, **named)

    monkeypatch.setattr(functional, "interpolate", interpolate)
    return sizes


def run(tower, kept, *size, **named):
    with torch.inference_mode(), kept:
        return tower(*size, **named)


def test_each_size_is_computed_once_with_the_same_bits(tower, kept, computed):
    with torch.inference_mode():
        want = {size: tower(*size) for size in ((4, 6), (6, 4))}
        nearest = tower(4, 6, mode="nearest")
    computed.clear()
    for _ in range(3):
        for size, expected in want.items():
            assert torch.equal(run(tower, kept, *size), expected)
    assert torch.equal(run(tower, kept, 4, 6, mode="nearest"), nearest)
    assert computed == [(4, 6), (6, 4), (4, 6)]


def test_a_caller_may_write_into_what_it_gets(tower, kept):
    want = run(tower, kept, 4, 6).clone()
    with torch.inference_mode():
        run(tower, kept, 4, 6).zero_()
    assert torch.equal(run(tower, kept, 4, 6), want)


def test_new_weights_are_interpolated_once_they_are_known(tower, kept, computed):
    before = run(tower, kept, 4, 6)
    tower.weight.data.mul_(2)
    kept.forget()
    torch.testing.assert_close(run(tower, kept, 4, 6), 2 * before)
    tower.weight = nn.Parameter(tower.weight.detach() * 2)  # other memory
    kept.forget()
    torch.testing.assert_close(run(tower, kept, 4, 6), 4 * before)
    assert len(computed) == 3


def test_pixels_and_gradients_and_captures_are_left_alone(tower, kept, computed, monkeypatch):
    pixels = torch.ones(1, 3, 8, 8)
    for _ in range(2):
        with torch.inference_mode(), kept:
            functional.interpolate(pixels, size=(4, 4))
        with kept:
            assert tower(4, 6).requires_grad
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(2):
        run(tower, kept, 4, 6)
    assert len(computed) == 6


def test_the_least_used_go_where_memory_is_full(tower, computed):
    kept = KeptTables(tower, 2 * 4 * 24 * 4)  # two results of 24 positions
    for size in ((4, 6), (6, 4), (4, 6), (3, 8), (4, 6), (6, 4)):
        run(tower, kept, *size)
    assert computed == [(4, 6), (6, 4), (3, 8), (6, 4)]
    kept.most_bytes = 8
    assert run(tower, kept, 8, 4).shape == (32, 4)  # one that has no room at all
    assert run(tower, kept, 8, 4).shape == (32, 4)
    assert computed[-2:] == [(8, 4), (8, 4)]


def test_a_write_into_a_weight_is_seen(tower, kept, computed):
    before = run(tower, kept, 4, 6)
    with torch.no_grad():
        tower.weight.mul_(2)
    torch.testing.assert_close(run(tower, kept, 4, 6), 2 * before)


def test_threads_with_tables_of_their_own_do_not_meet():
    """The second one enters before the first one leaves, and leaves after it."""
    original, towers = functional.interpolate, (Tower(), Tower())
    first, second = (KeptTables(tower, MOST) for tower in towers)
    entered, left = threading.Event(), threading.Event()
    found = {}

    def other():
        with torch.inference_mode(), second:
            found["second"] = towers[1](4, 6)
            entered.set()
            left.wait(60)
            found["again"] = towers[1](4, 6)

    thread = threading.Thread(target=other)
    with torch.inference_mode(), first:
        thread.start()
        assert entered.wait(60)
        towers[0](4, 6)
    left.set()
    thread.join(60)
    assert functional.interpolate is original
    assert torch.equal(found["second"], found["again"])
    assert (len(first._kept), len(second._kept)) == (1, 1)
    assert torch.equal(run(towers[0], first, 4, 6), found["second"])  # neither ends in the other
    assert functional.interpolate is original


def test_a_thread_without_tables_gets_what_pytorch_computes(tower, kept, computed):

    def outside():
        with torch.inference_mode():
            tower(4, 6)

    with kept:
        for _ in range(2):
            thread = threading.Thread(target=outside)
            thread.start()
            thread.join(60)
    assert computed == [(4, 6), (4, 6)]
    assert not kept._kept


def test_another_plugins_function_stays(kept, monkeypatch):
    """It came while a thread was in the tables, and may call what it found there for ever."""
    original = functional.interpolate
    with kept:
        found = functional.interpolate

        def other(*arguments, **named):
            return found(*arguments, **named)

        monkeypatch.setattr(functional, "interpolate", other)
    assert functional.interpolate is other
    pixels = torch.ones(1, 3, 8, 8)
    with kept:
        assert torch.equal(functional.interpolate(pixels, size=(4, 4)), original(pixels, size=(4, 4)))
    assert functional.interpolate is other
    monkeypatch.undo()
    with kept:
        pass
    assert functional.interpolate is original


def test_pytorchs_function_is_back_afterwards(kept):
    original = functional.interpolate
    with kept:
        with kept:
            assert functional.interpolate is not original
        assert functional.interpolate is not original
    with pytest.raises(KeyError), kept:
        raise KeyError
    assert functional.interpolate is original


def test_a_model_interpolates_where_a_file_of_its_classes_calls_it():
    assert interpolates(nn.Sequential(Tower()))
    assert not interpolates(nn.Sequential(nn.Linear(2, 2)))  # torch's own files do, for others
    unread = type("Unread", (nn.Module,), {"__module__": "written_nowhere"})
    assert interpolates(nn.Sequential(unread()))


def test_nothing_is_kept_without_memory(tower, computed):
    kept = KeptTables(tower)
    for _ in range(2):
        run(tower, kept, 4, 6)
    assert len(computed) == 2
    assert not kept._kept
