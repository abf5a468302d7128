from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.checks.training import WINDOW_EPISODES, collapse_rate, detect_collapse, training_curve
from studies.records.procedure import CollapseRule
from studies.records.runs import Conditions, TrainingCurve
from tests.golden import assert_golden
from tests.lazily import lazy
from tests.studies.synthetic import studies

stats = lazy("scipy.stats")
BATCH = 128
RULE = CollapseRule()
SHARES = st.floats(0, 1)


def rows(shares: Sequence[float], batch: float = BATCH) -> list[dict[str, Any]]:
    return [
        {"step": at, "metrics": {"critic/success/mean": share, "batch/episodes": batch}}
        for at, share in enumerate(shares, start=1)
    ]


def judged(shares: Sequence[float], start: float, end: float, **changes: Any) -> str | None:
    return detect_collapse(Conditions(course=training_curve(rows(shares), start, end, 512), **changes), RULE)


def risen(source: random.Random, gain: float, fall: float, steps: int = 40, begun: float = 0.2) -> list[float]:
    """Return a noisy curve that rises by `gain`, and loses the share `fall` of it in its last third."""
    shares = []
    for step in range(steps):
        level = begun + gain * (1 - math.exp(-6 * step / steps))
        lost = fall * gain * max(0.0, min(1.0, (step - 0.65 * steps) / (0.1 * steps)))
        chance = level - lost
        shares.append(sum(source.random() < chance for _ in range(BATCH)) / BATCH)
    return shares


@pytest.mark.parametrize(("gain", "fall", "least", "most"), [
    (0.45, 0.0, 0, 0), (0.1, 0.0, 0, 0.01), (0.0, 0.0, 0, 0.01), (0.45, 0.3, 0, 0.075), (0.45, 0.7, 0.95, 1),
    (0.45, 0.95, 1, 1),
])  # fmt: skip
@studies(20, 200)
def test_trainings_that_lose_most_of_their_gain_are_found_and_those_that_hold_it_are_not(
    gain: float, fall: float, least: float, most: float, studies: int
) -> None:
    source, end = random.Random(f"{gain} {fall}"), 0.2 + gain * (1 - fall)
    found = sum(judged(risen(source, gain, fall), 0.2, end) is not None for _ in range(studies))
    assert least * studies <= found <= most * studies


def test_a_training_that_ends_below_its_beginning_collapsed_however_short_it_was() -> None:
    assert_golden(judged([0.4, 0.1], 0.4, 0.05))
    assert judged([0.4, 0.4], 0.4, 0.35) is None, "within the noise of two evaluations"


def test_a_training_that_the_watchdog_ended_as_it_broke_down_collapsed() -> None:
    assert "kl_blow_up" in str(judged([0.4] * 20, 0.4, 0.4, stopped_by="kl_blow_up"))
    assert judged([0.4] * 20, 0.4, 0.4, stopped_by="server_silent") is None


def test_a_run_of_which_no_course_is_known_is_not_called_collapsed() -> None:
    assert detect_collapse(Conditions(), RULE) is None
    assert judged([], 0.5, 0.5) is None
    assert training_curve([{"step": 1, "metrics": {}}], 0.5, 0.5, 512) == TrainingCurve(start=0.5, end=0.5, plays=512)


@given(st.lists(SHARES, min_size=1, max_size=60), SHARES, SHARES, st.sampled_from([8, 64, 128, 512]))
def test_a_course_is_of_whole_windows_and_its_peak_is_no_lower_than_its_ends(
    shares: list[float], start: float, end: float, batch: int
) -> None:
    found = training_curve(rows(shares, batch), start, end, 512)
    windows = math.ceil(WINDOW_EPISODES / batch)
    assert (found.peak is None) == (len(shares) < 3 * windows)
    if found.peak is not None:
        assert max(found.first, found.last) - 1e-12 <= found.peak <= max(shares) + 1e-12
        assert found.error >= math.sqrt(0.25 / batch / windows) - 1e-12


@given(SHARES, SHARES, SHARES, SHARES, SHARES, st.floats(0.001, 0.2))
def test_a_training_that_never_gained_collapses_only_below_its_beginning(
    start: float, end: float, first: float, last: float, peak: float, error: float
) -> None:
    curve = {"first": first, "peak": max(first, last, peak), "last": last, "error": error}
    known = TrainingCurve(start=start, end=end, plays=512, **curve)
    if known.peak == known.first == known.last and end >= start:
        assert detect_collapse(Conditions(course=known), RULE) is None
    harsher = CollapseRule(lost=0.4, errors=2.0)
    if detect_collapse(Conditions(course=known), RULE) is not None:
        assert detect_collapse(Conditions(course=known), harsher) is not None, "a milder rule finds no more"


@given(st.integers(0, 12), st.integers(0, 12))
def test_the_limits_of_a_rate_are_the_exact_ones(count: int, more: int) -> None:
    of = count + more
    found = collapse_rate("a", count, of)
    if of:
        theirs = stats.binomtest(count, of).proportion_ci(0.95, method="exact")
        assert (found.low, found.high) == (pytest.approx(theirs.low, abs=1e-9), pytest.approx(theirs.high, abs=1e-9))
        one_sided = stats.binomtest(count, of, alternative="less").proportion_ci(0.95, method="exact")
        assert found.upper == pytest.approx(one_sided.high, abs=1e-9)
    else:
        assert (found.low, found.high, found.upper) == (0.0, 1.0, 1.0)
