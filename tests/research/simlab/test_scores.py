"""Figures carry intervals, and are held to their bars."""

from __future__ import annotations

import pytest

from research.simlab.scores import Bar, clopper_pearson, counted, mean, share


def test_the_interval_of_a_share_is_the_textbooks() -> None:
    # Clopper & Pearson for 0 of 59 is the rule that certifies less than 5 % at one-sided 95 %: 1 - 0.05^(1/59).
    assert clopper_pearson(0, 59, level=0.90)[1] == pytest.approx(1 - 0.05 ** (1 / 59))
    assert clopper_pearson(4, 20) == pytest.approx((0.0573340, 0.4366140), abs=1e-6)


def test_nothing_to_count_keeps_no_bar() -> None:
    assert counted("x", 0, 0, Bar("at most", 0.05)).kept is False


def test_a_bar_is_kept_or_missed() -> None:
    assert share("x", [True] * 4 + [False] * 96, Bar("at most", 0.05)).kept
    assert not share("x", [True] * 6 + [False] * 94, Bar("at most", 0.05)).kept
    assert counted("x", 95, 100, Bar("between", 0.93, 0.97)).kept
    assert not counted("x", 98, 100, Bar("between", 0.93, 0.97)).kept
    assert counted("x", 1, 2).kept is None


def test_a_mean_carries_students_interval() -> None:
    found = mean("x", [1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)
    assert mean("x", [1.0]).low is None
    assert mean("x", []).value is None


def test_a_bar_is_said_in_words() -> None:
    assert Bar("at most", 0.05).words(percent=True) == "at most 5 %"
    assert Bar("between", 0.93, 0.97).words(percent=True) == "between 93 % and 97 %"
    assert Bar("at least", 2.5).words(percent=False) == "at least 2.5"
