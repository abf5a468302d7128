"""The guard of learner and engine, and which side moved, over made-up log-probs: there is no model here."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from swarm.algorithms.mismatch import MIN_TOKENS, Disputed, MismatchGuard, ReplicaSaid, disputed, distance, side, told
from swarm.algorithms.rows import Row
from swarm.rendering.messages import BackendError
from tests.golden import assert_golden

IDS = torch.arange(6)
PLACES = torch.tensor([1, 2, 4])
TRUTH = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])


def third(ids: Tensor, temperature: float) -> Tensor:
    """The truth at temperature 1, and at another one what the row's own sides are measured at."""
    assert torch.equal(ids, IDS)
    return TRUTH / temperature


def said(engine: float, learner: float, **how: object) -> str:
    truth = TRUTH[PLACES]
    return side([Disputed(IDS, PLACES, truth + engine, truth - learner)], third, 1.0, 1.1, "float32", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "learner", "word"),
    [
        (0.5, 0.01, "The engine moved"), (0.01, 0.5, "The learner moved"), (0.5, 0.5, "Both moved"),
        (0.09, 0.09, "Neither moved"), (float("nan"), 0.0, "The engine moved"), (0.01, 0.01, "The learner moved"),
    ],
)  # fmt: skip
def test_the_side_that_is_far_from_the_third_opinion_moved(engine: float, learner: float, word: str) -> None:
    found = said(engine, learner)
    assert found.startswith(word)
    assert_golden(found)


def test_the_replica_that_is_off_or_serves_an_older_version_is_named() -> None:
    truth, off = TRUTH[PLACES], TRUTH[PLACES] + 0.5
    replicas = {
        0: ReplicaSaid(7, [truth]),
        1: ReplicaSaid(7, [off]),
        2: ReplicaSaid(6, [truth[:2]]),
        3: ReplicaSaid(refused="its process ended"),
    }
    found = said(0.5, 0.0, replicas=lambda rows: replicas, version=7)
    assert_golden(found)
    assert_golden(said(0.5, 0.0, replicas=lambda rows: {0: replicas[0]}, version=7))
    assert "No replica serves" in said(0.5, 0.0, replicas=lambda rows: {}, version=7)


def test_replicas_are_held_to_temperature_1_and_the_sides_to_the_job_s() -> None:
    rows = [Disputed(IDS, PLACES, (TRUTH / 2)[PLACES] + 0.5, (TRUTH / 2)[PLACES])]
    replicas = {0: ReplicaSaid(0, [TRUTH[PLACES]])}
    found = side(rows, third, 2.0, 1.1, "float32", lambda rows: replicas)
    assert "The engine moved" in found
    assert "replica 0 is 1 away now" in found


def test_replicas_are_not_asked_where_the_engine_did_not_move() -> None:
    def never(rows: object) -> dict[int, ReplicaSaid]:
        raise AssertionError

    assert "The learner moved" in said(0.0, 0.5, replicas=never)


def row(gap: float, versions: list[int]) -> tuple[Row, Tensor]:
    rollout = torch.tensor([-1.0, -2.0, -3.0])
    return Row(0, "g", IDS[:5], PLACES, IDS[PLACES + 1], rollout, torch.tensor(versions)), rollout + gap


def test_the_rows_that_differ_most_are_disputed_by_the_tokens_of_the_version_alone() -> None:
    rows = [row(0.1 * number, [3, 3, 2]) for number in range(6)]
    found = disputed([*rows, row(9.0, [2, 2, 2])], version=3)
    assert [round(distance([each.engine], [each.learner]), 3) for each in found] == [1.649, 1.492, 1.35, 1.221]
    assert [each.places.tolist() for each in found] == [[1, 2]] * 4
    assert found[0].ids.tolist() == [0, 1, 2, 3]


def test_what_fails_or_hangs_meanwhile_is_said_behind_the_guard_s_own_words() -> None:
    guard = MismatchGuard(1.1)
    guard.restore(2)

    def failing() -> str:
        raise OSError("the model's folder\nis gone")

    with pytest.raises(BackendError, match=r"not known: OSError: .*gone\.$"):
        guard.check(1.2, MIN_TOKENS, failing)
    held = threading.Event()
    try:
        assert "not known" in told(lambda: str(held.wait(60)), 0.05)
    finally:
        held.set()


def test_the_third_update_in_a_row_above_the_limit_stops_the_training_with_what_was_measured() -> None:
    guard = MismatchGuard(1.1)
    guard.check(1.2, MIN_TOKENS)
    guard.check(1.3, MIN_TOKENS)
    with pytest.raises(BackendError, match=r"1\.25.*mismatch_limit of 1\.1"):
        guard.check(1.25, MIN_TOKENS)


@pytest.mark.parametrize(
    ("updates", "count"),
    [
        ([(error, MIN_TOKENS) for error in (1.2, 1.2, 1.1, 1.2, 1.2, 1.0)], 0),
        ([(1.2, MIN_TOKENS), (0.0, 0), (1.2, MIN_TOKENS), (9.0, MIN_TOKENS - 1), (1.0, MIN_TOKENS - 1)], 2),
    ],
    ids=["one within the limit begins anew", "one that cannot be judged neither counts nor excuses"],
)
def test_updates_above_the_limit_are_counted_and_the_count_goes_on_from_a_saved_one(
    updates: list[tuple[float, int]], count: int
) -> None:
    guard, other = MismatchGuard(1.1), MismatchGuard(1.1)
    for error, tokens in updates:
        guard.check(error, tokens)
    assert guard.state == count
    other.restore(guard.state)
    for each in (guard, other):
        for _ in range(2 - count):
            each.check(1.2, MIN_TOKENS)
        with pytest.raises(BackendError, match="3 updates"):
            each.check(1.2, MIN_TOKENS)
