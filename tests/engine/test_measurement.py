"""What the engine's measurement concludes from its samples, and what it takes for a difference of answers."""

from __future__ import annotations

import random
import statistics
from types import SimpleNamespace

import engine_commands
import engine_gpu
import engine_statistics
import engine_worker
import operator_page
import pytest
from engine_process import draw_stream
from engine_statistics import FAILS, HOLDS, NOISE, UNKNOWN, compare


def engines(*means: float, turns: int = 40, noise: float = 1.0, seed: int = 0) -> list[list[float]]:
    """Samples of engines around these means, with a drift that all share."""
    generator = random.Random(seed)
    drift = [3 * generator.random() for _ in range(turns)]
    return [[mean + d + generator.gauss(0, noise) for d in drift] for mean in means]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ((20.0, 20.2), (23.0, 23.1), HOLDS),
        ((23.0, 23.2), (20.0, 20.1), FAILS),
        ((20.0, 20.1), (20.0, 20.1), NOISE),
        # Faster in the mean, but one engine of ours is slower than one of theirs: engines differ by more than modes.
        ((18.0, 21.0), (20.0, 22.0), NOISE),
        ((22.0, 19.0), (20.0, 18.0), NOISE),
        # No engine to see by how much engines of one mode differ.
        ((15.0,), (20.0,), UNKNOWN),
    ],
)
def test_a_difference_counts_when_the_interval_and_every_pair_of_engines_agree(ours, theirs, verdict):
    samples = engines(*ours, *theirs)
    assert compare(samples[: len(ours)], samples[len(ours) :]).verdict == verdict


def test_differences_are_taken_within_turns():
    """A drift of 3 ms over the run hides nothing: the interval is as narrow as the noise allows."""
    ours, theirs = engines(20.0, 20.2, noise=0.01)
    found = compare([ours], [theirs])
    assert found.median == pytest.approx(-0.2, abs=0.01)
    assert found.interval[1] - found.interval[0] < 0.02
    assert found.relative == pytest.approx(-0.2 / statistics.median(theirs), rel=0.1)
    assert statistics.pstdev(ours) > 0.5


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = random.Random(1)
    inside = 0
    for seed in range(60):
        low, high = engine_statistics.interval([generator.gauss(5, 1) for _ in range(30)], seed)
        inside += low <= 5 <= high
    assert inside >= 52


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([1.0, 1.1, 1.2], [[2.0, 2.1, 2.2], [1.9, 2.3, 2.4]], HOLDS),
        ([3.0, 3.1, 3.2], [[2.0, 2.1, 2.2], [1.9, 2.3, 2.4]], FAILS),
        # Faster in each turn and by each pair, but of three turns that is no news.
        ([1.0, 1.1, 1.95], [[2.0, 2.1, 2.2], [1.9, 2.3, 2.4]], NOISE),
    ],
)
def test_few_turns_need_samples_that_are_all_apart(ours, theirs, verdict):
    found = compare([ours], theirs)
    assert found.verdict == verdict
    differences = [x - statistics.fmean(others) for x, *others in zip(ours, *theirs, strict=True)]
    assert found.interval == (pytest.approx(min(differences)), pytest.approx(max(differences)))


def test_a_missing_turn_is_refused():
    with pytest.raises(ValueError, match="every turn"):
        compare([[1.0, 2.0]], [[1.0]])


def answer(tokens, *best):
    return {"a #0": {"tokens": list(tokens), "best": list(best)}}


EAGER = answer([7, 8], {7: -1.0, 9: -1.05}, {8: -0.5, 3: -3.0})


@pytest.mark.parametrize(
    ("other", "equal", "ties", "wrong"),
    [
        (EAGER, 1, 0, 0),
        # Eager's own two best are 0.05 apart; what follows another token is another answer.
        (answer([9, 3], {7: -1.02, 9: -1.01}, {3: -1.0, 8: -9.0}), 0, 1, 0),
        (answer([7, 3], {7: -1.0, 9: -1.05}, {3: -0.4, 8: -0.5}), 0, 0, 1),
        (answer([5, 8], {5: -0.1, 7: -1.0}, {8: -0.5}), 0, 0, 1),
        (answer([7, 8], {7: float("nan"), 9: -1.05}, {8: -0.5, 3: -3.0}), 1, 0, 1),
    ],
    ids=["same", "tie", "wrong", "never likely", "not finite"],
)
def test_answers_differ_from_eagers_only_where_eager_could_not_decide(other, equal, ties, wrong):
    found = engine_gpu.check_answers(EAGER, other)
    assert (found["equal"], found["ties"], len(found["wrong"])) == (equal, ties, wrong)


def test_the_stream_is_the_same_for_every_engine():
    stream = draw_stream(200)
    assert stream == draw_stream(200)
    sides = [side for request in stream for size in request for side in size]
    assert (min(sides) >= 126, max(sides) <= 1536) == (True, True)
    assert 20 <= sum(len(request) > 1 for request in stream) <= 60


class Manager:
    """vLLM's own before 0.28, which has no `is_captured`."""

    def __init__(self, graphs) -> None:
        self.budget_graphs = graphs


def test_a_manager_of_any_release_can_be_asked_whether_it_has_graphs():
    assert not engine_worker.is_captured(Manager({}))
    assert engine_worker.is_captured(Manager({"default": {64: object()}}))
    assert engine_worker.is_captured(SimpleNamespace(is_captured=lambda: True))


@pytest.mark.parametrize("results", [[[1.0]], [[], [1.0, 2.0]]], ids=["one call", "V1, a step without images"])
def test_the_encoder_is_timed_where_it_ran(results):
    runner = SimpleNamespace(_execute_mm_encoder=lambda scheduled: results.pop(0))
    probe = engine_worker.Probe()
    probe.model_runner = runner
    probe.time_encoder(True)
    while results:
        runner._execute_mm_encoder(None)
    assert probe.time_encoder(False) > 0
    # And as before afterwards.
    assert "spent_ms" not in vars(runner)


def test_an_encoder_that_did_not_run_has_no_time():
    probe = engine_worker.Probe()
    probe.model_runner = SimpleNamespace(_execute_mm_encoder=lambda scheduled: [])
    probe.time_encoder(True)
    probe.model_runner._execute_mm_encoder(None)
    with pytest.raises(RuntimeError, match="did not run"):
        probe.time_encoder(False)


def test_the_gpu_script_expects_of_each_server_what_its_line_says():
    expected = {
        command: tuple(engine_commands.expected(command, captures=True).values())
        for command in operator_page.serve_commands()
    }
    other = {command: found for command, found in expected.items() if found != (True, True)}
    assert [(command.split("=")[0], found) for command, found in other.items()] == [
        ("VITCG_DISABLE", (False, False)), ("VITCG_MODE", (False, True)), ("VITCG_MODELS", (False, False)),
    ]  # fmt: skip
    assert len(expected) > len(other) + 2
