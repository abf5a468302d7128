"""What follows from a state is computed once for it, and never taken for another's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from research.text import memoize_last
from studies import StudyState
from tests.studies.synthetic import Synthetic


def test_it_is_computed_once_for_a_state_and_anew_for_an_equal_one(tmp_path: Path) -> None:
    asked: list[StudyState] = []

    @memoize_last
    def topic(state: StudyState) -> str:
        asked.append(state)
        return state.topic

    synthetic = Synthetic(tmp_path)
    synthetic.create()
    first = synthetic.state()
    other = replace(first, topic="another")
    assert [topic(first), topic(first), topic(other), topic(other), topic(first)] == [
        first.topic, first.topic, "another", "another", first.topic,
    ]  # fmt: skip
    assert asked == [first, other, first], "of several states the last one is known"
    assert topic(replace(first)) == first.topic
    assert len(asked) == 4
    synthetic.log.close()
