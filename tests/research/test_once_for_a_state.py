"""What follows from a state is computed once for it, and never taken for another's."""

from __future__ import annotations

from types import SimpleNamespace

from research.text import memoize_last


def test_it_is_computed_once_for_a_state_and_anew_for_an_equal_one() -> None:
    asked: list[SimpleNamespace] = []

    @memoize_last
    def topic(state: SimpleNamespace) -> str:
        asked.append(state)
        return state.topic

    first, other, equal = (SimpleNamespace(topic=text) for text in ("one", "another", "one"))
    assert [topic(state) for state in (first, first, other, other, first)] == [
        "one",
        "one",
        "another",
        "another",
        "one",
    ]
    assert asked == [first, other, first], "of several states the last one is known"
    assert (topic(equal), len(asked)) == ("one", 4)
