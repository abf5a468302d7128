"""When a client that died is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.agents.restarts import FIRST_WAIT_S, HEALTHY_S, MOST_IN_VAIN, MOST_WAIT_S, RestartPolicy, why_again
from sandboxes import Exit


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Exit("error", -9), "signal 9"),
        (Exit("error", 3), "failed again and again"),
        (Exit("error", 1), "exit code 1"),
        (Exit("out_of_memory", None), "memory"),
        (Exit("lost", None), "container is gone"),
        (Exit("finished", 0), "before the job was finished"),
    ],
)
def test_each_death_is_a_reason_that_is_said(ended: Exit, said: str) -> None:
    assert said in (why_again(ended) or "")


@pytest.mark.parametrize("ended", [Exit("error", 2), Exit("timeout", None)])
def test_bad_input_and_the_end_of_the_time_are_none(ended: Exit) -> None:
    assert why_again(ended) is None


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 100)), max_size=60))
def test_pauses_are_bounded_and_only_clients_in_vain_are_counted(lives: list[tuple[float, int]]) -> None:
    policy, in_vain = RestartPolicy(), 0
    for lived_s, finished in lives:
        pause, in_vain = policy.pause(lived_s, finished), 0 if finished else in_vain + 1
        if in_vain >= MOST_IN_VAIN:
            assert pause is None
            return
        assert pause is not None
        assert FIRST_WAIT_S <= pause <= MOST_WAIT_S


def test_the_pause_doubles_until_a_client_was_healthy() -> None:
    policy = RestartPolicy()
    assert [policy.pause(1.0, 1) for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    assert policy.pause(HEALTHY_S, 1) == FIRST_WAIT_S
    assert policy.pause(1.0, 1) == FIRST_WAIT_S


def test_clients_that_finish_episodes_are_started_again_for_ever() -> None:
    policy = RestartPolicy()
    assert None not in [policy.pause(0.1, 1) for _ in range(10 * MOST_IN_VAIN)]
