"""One padder a kind of buffer; a wrong one shows in the outputs."""

import pytest
import torch
from helpers import assert_equals_eager, make_manager
from towers import PackedTower

from scaffold.runtime import BufferKind, RecordingBackend, padding
from scaffold.runtime import manager as manager_module
from scaffold.runtime.adapter import BufferSpec, EncoderDescription, GraphKey
from scaffold.runtime.buffers import SharedBuffers
from scaffold.runtime.padding import PADDERS, PadContext, cumulative_slots, exceeds

LONG = torch.tensor


def padded(kind, source, capacity, context=PadContext(), dtype=torch.int32):  # noqa: B008
    target = torch.full((capacity,), 99, dtype=dtype)
    PADDERS[kind](target, torch.tensor(source, dtype=dtype), context)
    return target.tolist()


@pytest.mark.parametrize(
    ("kind", "source", "capacity", "context", "expected"),
    [
        (BufferKind.ROWS, [5, 6], 4, PadContext(), [5, 6, 0, 0]),
        (BufferKind.ROWS, [5, 6], 2, PadContext(), [5, 6]),
        (BufferKind.LENGTHS, [5, 6], 3, PadContext(), [5, 6, 0]),
        (BufferKind.PERMUTATION, [1, 0], 5, PadContext(), [1, 0, 2, 3, 4]),
        # without a tail: the last offset, never zero
        (BufferKind.CUMULATIVE, [0, 3, 7], 5, PadContext(), [0, 3, 7, 7, 7]),
        # with a tail: the padded rows are sequences, of at most `longest` rows
        (BufferKind.CUMULATIVE, [0, 3, 7], 5, PadContext(end=12), [0, 3, 7, 12, 12]),
        (BufferKind.CUMULATIVE, [0, 3, 7], 7, PadContext(end=12, longest=2), [0, 3, 7, 9, 11, 12, 12]),
        (BufferKind.CUMULATIVE, [0, 3, 7], 3, PadContext(end=7), [0, 3, 7]),
        # each section by its own last value
        (BufferKind.TWO_SECTION, [0, 8, 0, 2], 8, PadContext(), [0, 8, 8, 8, 0, 2, 2, 2]),
    ],
)
def test_padder(kind, source, capacity, context, expected):
    assert padded(kind, source, capacity, context) == expected


def test_mask_padder_marks_padded_rows_as_not_real():
    target = torch.ones(4, dtype=torch.bool)
    PADDERS[BufferKind.MASK](target, torch.ones(2, dtype=torch.bool), PadContext())
    assert target.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("rows", "longest", "slots"), [(0, 4, 0), (-3, 4, 0), (1, 4, 1), (8, 4, 2), (9, 4, 3), (9, None, 1)]
)
def test_slots_that_a_tail_needs(rows, longest, slots):
    assert cumulative_slots(rows, longest) == slots


@pytest.mark.parametrize(
    ("kind", "captured", "value", "expected"),
    [
        (BufferKind.ROWS, torch.zeros(4, 3), torch.zeros(4, 3), False),
        (BufferKind.ROWS, torch.zeros(4, 3), torch.zeros(5, 3), True),
        (BufferKind.ROWS, torch.zeros(4, 3), torch.zeros(4, 2), True),
        (BufferKind.ROWS, torch.zeros(4, 3), torch.zeros(4), True),
        (BufferKind.TWO_SECTION, torch.zeros(8), torch.zeros(8), False),
        (BufferKind.TWO_SECTION, torch.zeros(8), torch.zeros(10), True),
        (BufferKind.TWO_SECTION, torch.zeros(8), torch.zeros(5), True),
        (BufferKind.BOUND, LONG(7), LONG(7), False),
        (BufferKind.BOUND, LONG(7), LONG(8), True),
    ],
)
def test_what_does_not_fit(kind, captured, value, expected):
    assert exceeds(kind, captured, value) is expected


def copy_only(target, source, context):
    """A padder that forgets the tail."""
    target[: source.shape[0]].copy_(source)


def zero_tail(target, source, context):
    """vLLM's default for every buffer."""
    padding.pad_rows(target, source, context)


def repeat_last(target, source, context):
    """No sequence covers the padded rows. Two sections become one array."""
    padding.pad_cumulative(target, source, PadContext())


def ignore_the_bound(target, source, context):
    """One long tail sequence, though the kernel was launched for short ones."""
    padding.pad_cumulative(target, source, PadContext(end=context.end))


MUTANTS = [
    (BufferKind.ROWS, copy_only),
    (BufferKind.LENGTHS, copy_only),
    (BufferKind.MASK, copy_only),
    (BufferKind.PERMUTATION, copy_only),
    (BufferKind.CUMULATIVE, copy_only),
    (BufferKind.CUMULATIVE, zero_tail),
    (BufferKind.CUMULATIVE, repeat_last),
    (BufferKind.CUMULATIVE, ignore_the_bound),
    (BufferKind.TWO_SECTION, copy_only),
    (BufferKind.TWO_SECTION, zero_tail),
    (BufferKind.TWO_SECTION, repeat_last),
]


class ShortSequences(PackedTower):
    """Captured for sequences of at most 12 rows, so that a long tail needs several."""

    def capture_values(self, key, limits):
        values = super().capture_values(key, limits)
        return {**values, "longest": torch.tensor(min(12, key.budget * 2), dtype=torch.int32)}


def run_traffic(two_section: bool, monkeypatch) -> int:
    """Large, then small, then many: stale values of the first call must not reach the others."""
    tower = ShortSequences(two_section=two_section)
    monkeypatch.setattr(manager_module, "MAX_STRETCH", 100)
    manager = make_manager(tower, [4, 30])
    for seed, grids in enumerate(([(1, 1, 6)] * 4, [(1, 1, 5)], [(1, 2, 2), (1, 1, 3)], [(1, 1, 2)] * 4)):
        assert_equals_eager(manager, tower.call(grids, seed))
    return manager.stats.hits


@pytest.mark.parametrize("two_section", [False, True])
def test_right_padders_pass(two_section, monkeypatch):
    assert run_traffic(two_section, monkeypatch) == 11


@pytest.mark.parametrize(("kind", "mutant"), MUTANTS, ids=lambda v: getattr(v, "value", getattr(v, "__name__", v)))
def test_a_wrong_padder_is_caught(kind, mutant, monkeypatch):
    monkeypatch.setitem(PADDERS, kind, mutant)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        run_traffic(kind is BufferKind.TWO_SECTION, monkeypatch)


def test_an_adapters_own_padder_finds_in_its_target_what_the_capture_put_there():
    def pad(target, source):
        # As the generated adapters do: the last captured offset says how many rows the graph has.
        target[len(source) :] = target[-1].clone()
        target[: len(source)] = source

    specs = {"offsets": BufferSpec(BufferKind.CUMULATIVE, pad=pad)}
    backend = RecordingBackend()
    buffers = SharedBuffers(backend, EncoderDescription(1, ("image",), specs))
    layouts = []
    for rows in (64, 16):
        captured = {"offsets": torch.tensor([0, rows, rows, rows], dtype=torch.int32)}
        layouts.append(buffers.bind(GraphKey("default", rows, ()), captured).layout)
    for rows, layout in zip((64, 16), layouts, strict=True):
        blob = backend.empty(layout.nbytes)
        layout.write(blob, {"offsets": torch.tensor([0, 8], dtype=torch.int32)}, buffers.staging)
        assert layout.view(blob, "offsets").tolist() == [0, 8, rows, rows]
