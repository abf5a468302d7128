from __future__ import annotations

import math
import random
import warnings
from statistics import fmean, variance
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from studies.records.design_parts import Prediction
from studies.records.verdict import Verdict
from studies.statistics.samples import hedges_g, mean_interval, spread
from studies.verdicts.calibration import brier
from tests.lazily import lazy
from tests.studies.synthetic import hypothesis, judged

special = lazy("scipy.special")
SHARES = st.lists(st.integers(0, 512).map(lambda n: n / 512), min_size=2, max_size=9)
LOW = [0.50, 0.52, 0.51, 0.49, 0.53]
HIGH = [0.61, 0.64, 0.60, 0.66, 0.63]


def named(prefix: str, values: list[float]) -> dict[str, float]:
    return {f"{prefix}{n}": value for n, value in enumerate(values)}


def verdict(control: list[float], treatment: list[float], alpha: float = 0.05, **changes: Any) -> Verdict:
    return judged(hypothesis(**changes), named("c", control), named("t", treatment), alpha=alpha)


def by_hand(control: list[float], treatment: list[float], alpha: float) -> tuple[float, float, float]:
    """Welch's interval and p from the textbook: Welch 1947, Satterthwaite 1946."""
    a, b = variance(control) / len(control), variance(treatment) / len(treatment)
    df = (a + b) ** 2 / (a**2 / (len(control) - 1) + b**2 / (len(treatment) - 1))
    difference, error = fmean(treatment) - fmean(control), math.sqrt(a + b)
    half = special.stdtrit(df, 1 - alpha / 2) * error
    return difference - half, difference + half, 2 * special.stdtr(df, -abs(difference) / error)


@given(SHARES, SHARES, st.sampled_from([0.01, 0.05, 0.2]))
def test_interval_and_p_are_welchs_as_computed_by_hand(a: list[float], b: list[float], alpha: float) -> None:
    assume(len(set(a)) > 1 or len(set(b)) > 1)
    found, (low, high, p) = verdict(a, b, alpha), by_hand(a, b, alpha)
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(high, abs=1e-9)
    assert found.p == pytest.approx(p, abs=1e-9)
    assert found.level == 1 - alpha
    assert found.estimate == pytest.approx(fmean(b) - fmean(a))


@given(SHARES, SHARES)
def test_the_verdict_is_read_off_the_interval_and_the_direction_alone(a: list[float], b: list[float]) -> None:
    assume(len(set(a)) > 1 or len(set(b)) > 1)
    found = verdict(a, b)
    assert found.low is not None
    assert found.high is not None
    expected = "inconclusive" if found.low <= 0 <= found.high else "supported" if found.low > 0 else "refuted"
    assert found.verdict == expected
    assert (found.verdict == "inconclusive") == (found.p is not None and found.p >= 0.05 - 1e-12)


@given(SHARES, SHARES)
def test_swapping_the_arms_flips_every_sign_and_nothing_else(a: list[float], b: list[float]) -> None:
    there, back = verdict(a, b), verdict(b, a)
    flipped = {"supported": "refuted", "refuted": "supported"}
    assert back.verdict == flipped.get(there.verdict, there.verdict)
    assert there.estimate == pytest.approx(-(back.estimate or 0), abs=1e-12)
    if there.low is not None and back.high is not None:
        assert there.low == pytest.approx(-back.high, abs=1e-9)
        assert there.p == pytest.approx(back.p, abs=1e-9)


@given(SHARES, SHARES)
def test_a_predicted_decrease_is_the_mirror_of_a_predicted_increase(a: list[float], b: list[float]) -> None:
    up, down = verdict(a, b), verdict(a, b, direction="decrease")
    flipped = {"supported": "refuted", "refuted": "supported"}
    assert down.verdict == flipped.get(up.verdict, up.verdict)
    assert (up.low, up.high, up.p) == (down.low, down.high, down.p)


def test_a_clear_effect_is_supported_with_its_numbers() -> None:
    found = verdict(LOW, HIGH)
    assert found.verdict == "supported"
    assert (found.n_control, found.n_treatment) == (5, 5)
    assert found.mean_control == pytest.approx(0.51)
    assert found.sd_treatment == pytest.approx(math.sqrt(variance(HIGH)))
    assert "lies above 0, the predicted side" in found.reason
    assert found.within_prediction is True
    assert found.brier == pytest.approx(0.09)


@pytest.mark.parametrize(("control", "treatment"), [([], HIGH), ([0.5], HIGH), (LOW, [0.6]), ([], [])])
def test_an_arm_with_fewer_than_two_runs_makes_the_verdict_invalid(
    control: list[float], treatment: list[float]
) -> None:
    found = verdict(control, treatment)
    assert found.verdict == "invalid"
    assert "at least 2 valid runs in each arm" in found.reason
    assert (found.low, found.high, found.p, found.brier) == (None, None, None, None)


def test_equal_constants_are_inconclusive_and_different_ones_invalid_because_no_t_test_exists() -> None:
    same, apart = verdict([0.1] * 3, [0.1] * 4), verdict([0.0] * 3, [1.0] * 3)
    assert same.verdict == "inconclusive"
    assert "no difference to test" in same.reason
    assert apart.verdict == "invalid"
    assert apart.estimate == 1.0
    assert "Welch's test does not exist" in apart.reason
    assert (apart.low, apart.p, apart.brier, same.sd_control) == (None, None, None, 0.0)


def test_one_constant_arm_is_no_obstacle() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verdict([0.3] * 4, HIGH).verdict == "supported"


@pytest.mark.parametrize(
    ("control", "treatment", "said"),
    [
        ({"a": math.nan, "b": 1.0}, {"c": 1.0, "d": 2.0}, "must be finite"),
        ({"a": 0.1, "b": 1.0}, {"a": 1.0, "d": 2.0}, "more than once"),
    ],
)
def test_inputs_no_verdict_can_rest_on_are_refused(
    control: dict[str, float], treatment: dict[str, float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        judged(hypothesis(), control, treatment)


def test_the_false_positive_rate_is_what_alpha_says() -> None:
    """1500 studies of two equal arms with unequal spread: about 5 % may find a difference, half of it either way."""
    rng = random.Random(20)
    found = [
        verdict([rng.gauss(0.5, 0.02) for _ in range(5)], [rng.gauss(0.5, 0.05) for _ in range(5)]).verdict
        for _ in range(1500)
    ]
    rate = 1 - found.count("inconclusive") / 1500
    assert 0.033 < rate < 0.067  # 5 % plus or minus three standard errors
    assert 0.010 < found.count("supported") / 1500 < 0.040


def test_a_real_effect_is_found_and_never_called_the_opposite() -> None:
    rng = random.Random(21)
    found = [
        verdict([rng.gauss(0.5, 0.03) for _ in range(5)], [rng.gauss(0.6, 0.03) for _ in range(5)]).verdict
        for _ in range(200)
    ]
    assert found.count("supported") > 180
    assert found.count("refuted") == 0


def test_brier_scores_a_probability_against_what_came() -> None:
    assert brier(1.0, "supported") == 0.0
    assert brier(1.0, "refuted") == 1.0
    assert brier(0.5, "refuted") == 0.25
    assert brier(0.7, "inconclusive") is None
    assert brier(0.7, "invalid") is None


@pytest.mark.parametrize(("estimate_shift", "inside"), [(0.0, True), (0.5, False), (-0.5, False)])
def test_an_estimate_outside_the_predicted_interval_is_said_to_be(estimate_shift: float, inside: bool) -> None:
    prediction = Prediction(low=0.05, high=0.2, probability=0.5)
    treatment = [value + estimate_shift for value in HIGH]
    assert verdict(LOW, treatment, prediction=prediction).within_prediction is inside


def test_the_interval_of_a_mean_is_students() -> None:
    found = mean_interval(LOW)
    assert found is not None
    half = special.stdtrit(4, 0.975) * math.sqrt(variance(LOW) / 5)
    assert [found.low, found.high] == pytest.approx([0.51 - half, 0.51 + half])
    assert mean_interval([0.5]) is None
    assert spread([0.1, 0.1, 0.1]) == 0.0


def test_hedges_g_is_the_difference_in_pooled_deviations_corrected_for_small_samples() -> None:
    pooled = math.sqrt((variance(LOW) + variance(HIGH)) / 2)
    expected = (fmean(HIGH) - fmean(LOW)) / pooled * (1 - 3 / (4 * 8 - 1))
    assert hedges_g(LOW, HIGH) == pytest.approx(expected)
    assert hedges_g([0.5, 0.5], [0.6, 0.6]) is None
    assert hedges_g([0.5], HIGH) is None
