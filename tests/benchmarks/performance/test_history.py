"""A figure that is worse than at the last version by more than noise is found, and one that wavers is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from performance import history
from performance.history import Entry

ENTRY = Entry("soak", "kill to serving again, s", "aaa", "2026-01-01", 1.0, 0.3, "lower")
LATER = replace(ENTRY, commit="bbb", date="2026-01-02")


@pytest.mark.parametrize(
    ("better", "value", "worse"),
    [
        ("lower", 1.4, False),
        ("lower", 1.5, True),
        ("higher", 0.6, False),
        ("higher", 0.5, True),
        ("higher", 9.0, False),
    ],
)
def test_worse_is_what_lies_beyond_the_noise_of_both_in_the_wrong_direction(
    better: str, value: float, worse: bool
) -> None:
    before, now = replace(ENTRY, better=better), replace(LATER, better=better, value=value)
    assert history.regressions([before], [now]) == ([(now, before)] if worse else [])


def test_a_count_that_must_be_exact_has_no_noise() -> None:
    before = replace(ENTRY, value=0.0, noise=0.0)
    assert history.is_worse(replace(LATER, value=1.0, noise=0.0), before)


def test_a_figure_is_compared_with_the_last_other_version_alone() -> None:
    old, last, of_another = replace(ENTRY, value=0.1), replace(LATER, value=2.0), replace(ENTRY, figure="another")
    now = replace(ENTRY, commit="ccc", value=2.1)
    assert history.previous([old, last, of_another, now], now) == last
    assert history.previous([of_another], now) is None


def test_what_is_appended_is_read_again_and_a_version_measured_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "history" / "headlines.csv"
    assert history.read(path) == []
    history.append([ENTRY, LATER], path)
    history.append([replace(LATER, value=1.25)], path)
    assert history.read(path) == [ENTRY, replace(LATER, value=1.25)]
