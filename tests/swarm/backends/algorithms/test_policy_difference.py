"""The guard: three updates in a row above the limit stop a training, and say why."""

from __future__ import annotations

import pytest

from swarm.backends.algorithms.policy_difference import MIN_TOKENS, MismatchGuard
from swarm.backends.protocols import BackendError


def test_the_third_update_in_a_row_above_the_limit_stops_the_training_with_what_was_measured() -> None:
    guard = MismatchGuard(1.1)
    guard.check(1.2, MIN_TOKENS)
    guard.check(1.3, MIN_TOKENS)
    with pytest.raises(BackendError, match=r"is 1\.25, above the job's mismatch_limit of 1\.1 for 3 updates"):
        guard.check(1.25, MIN_TOKENS)


def test_an_update_within_the_limit_begins_anew() -> None:
    guard = MismatchGuard(1.1)
    for error in (1.2, 1.2, 1.1, 1.2, 1.2, 1.0):
        guard.check(error, MIN_TOKENS)
    assert guard.state == 0


def test_an_update_that_cannot_be_judged_neither_counts_nor_excuses() -> None:
    guard = MismatchGuard(1.1)
    for error, tokens in ((1.2, MIN_TOKENS), (0.0, 0), (1.2, MIN_TOKENS), (9.0, MIN_TOKENS - 1), (1.0, MIN_TOKENS - 1)):
        guard.check(error, tokens)
    assert guard.state == 2
    with pytest.raises(BackendError, match="3 updates"):
        guard.check(1.2, MIN_TOKENS)


def test_the_count_goes_on_from_a_saved_one() -> None:
    guard = MismatchGuard(1.1)
    guard.check(1.2, MIN_TOKENS)
    guard.check(1.2, MIN_TOKENS)
    other = MismatchGuard(1.1)
    other.restore(guard.state)
    with pytest.raises(BackendError, match="3 updates"):
        other.check(1.2, MIN_TOKENS)
