"""Figures carry intervals, and are held to their bars."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab.measurement.scores import Bar, clopper_pearson, counted, mean


def test_the_interval_of_a_share_is_the_textbooks() -> None:
    # Clopper & Pearson for 0 of 59 is the rule that certifies less than 5 % at one-sided 95 %: 1 - 0.05^(1/59).
    assert clopper_pearson(0, 59, level=0.90)[1] == pytest.approx(1 - 0.05 ** (1 / 59))
    assert clopper_pearson(4, 20) == pytest.approx((0.0573340, 0.4366140), abs=1e-6)


def test_nothing_to_count_keeps_no_bar() -> None:
    assert counted("x", 0, 0, Bar("at most", 0.05)).kept is False


def test_a_bar_is_kept_or_missed() -> None:
    assert counted("x", 40, 1000, Bar("at most", 0.05)).kept is True
    assert counted("x", 60, 1000, Bar("at most", 0.05)).kept is False
    assert counted("x", 950, 1000, Bar("between", 0.93, 0.97)).kept is True
    assert counted("x", 980, 1000, Bar("between", 0.93, 0.97)).kept is False
    assert counted("x", 1, 2).kept is None


def test_too_few_are_said_to_be_too_few_unless_even_they_lie_on_one_side_of_the_bar() -> None:
    few = counted("x", 4, 60, Bar("at most", 0.05))
    assert few.small
    assert few.kept is None
    assert "are needed to tell" in few.words()
    assert counted("x", 20, 60, Bar("at most", 0.05)).kept is False
    assert counted("x", 0, 200, Bar("at most", 0.05)).kept is True
    assert Bar("at most", 0.05).needs > 200
    assert counted("x", 3, 3, Bar("at least", 1.0)).kept is True
    assert counted("x", 2, 3, Bar("at least", 1.0)).kept is False


@given(
    value=st.floats(0.01, 0.2), room=st.floats(0.1, 0.8), sense=st.sampled_from(["at most", "at least"]),
)  # fmt: skip
def test_a_bar_needs_as_many_as_bring_the_expected_interval_to_its_side(
    value: float, room: float, sense: Literal["at most", "at least"]
) -> None:
    most = sense == "at most"
    bar = Bar(sense, value if most else 1 - value, likely=room * value if most else 1 - room * value)
    hits = math.ceil(room * value * bar.needs)
    assert clopper_pearson(hits, bar.needs)[1] <= value + 1e-9
    assert bar.holds(bar.expected)


def test_a_mean_carries_students_interval() -> None:
    found = mean("x", [1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)
    assert mean("x", [1.0]).low is None
    assert mean("x", []).value is None


def test_a_figure_of_one_in_twenty_needs_hundreds_of_studies() -> None:
    assert 700 < Bar("at most", 0.05).needs < 1100
    assert Bar("at most", 0.05, likely=0.045).needs > 5000


def test_a_bar_is_said_in_words() -> None:
    assert Bar("at most", 0.05).words(percent=True) == "at most 5 %"
    assert Bar("between", 0.93, 0.97).words(percent=True) == "between 93 % and 97 %"
    assert Bar("at least", 2.5).words(percent=False) == "at least 2.5"
