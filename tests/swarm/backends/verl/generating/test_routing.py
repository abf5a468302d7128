"""Sessions stay with their replica, others go to the least busy, and no more is remembered than was said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.verl.generating.routing import Router


def test_a_session_stays_where_it_was_though_others_are_idle() -> None:
    router = Router()
    assert router.choose("a", {0: 3, 1: 0}) == 1
    assert router.choose("a", {0: 0, 1: 9}) == 1


def test_a_session_whose_replica_is_gone_moves_and_stays_there() -> None:
    router = Router()
    assert router.choose("a", {0: 0, 1: 1}) == 0
    assert router.choose("a", {1: 5}) == 1
    assert router.choose("a", {0: 0, 1: 5}) == 1


def test_what_is_of_no_session_goes_to_the_least_busy() -> None:
    router = Router()
    assert [router.choose("", {0: 2, 1: 1, 2: 1}) for _ in range(2)] == [1, 1]
    assert len(router) == 0


def test_the_session_that_asked_longest_ago_is_forgotten_first() -> None:
    router = Router(most=2)
    for session, load in (("a", {0: 0, 1: 1}), ("b", {0: 0, 1: 1}), ("a", {0: 0, 1: 1}), ("c", {0: 0, 1: 1})):
        router.choose(session, load)
    assert len(router) == 2
    assert router.choose("a", {0: 9, 1: 0}) == 0
    assert router.choose("b", {0: 9, 1: 0}) == 1


@given(
    st.lists(st.tuples(st.text("abcde", max_size=1), st.dictionaries(st.integers(0, 3), st.integers(0, 9), min_size=1)))
)
def test_whoever_is_chosen_serves_and_memory_is_bounded(asked: list[tuple[str, dict[int, int]]]) -> None:
    router = Router(most=3)
    for session, load in asked:
        assert router.choose(session, load) in load
        assert len(router) <= 3
