from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.design import trend_weights
from studies.records.procedure import InterimAnalysis
from studies.statistics.comparison import contrast, error_of, is_equivalent, two_one_sided, welch
from studies.statistics.power import PowerDesign, power
from tests.lazily import lazy
from tests.studies.synthetic import studies

stats = lazy("scipy.stats")
CROSSED = (1.0, -1.0, -1.0, 1.0)
VALUES = st.lists(st.floats(-5, 5).map(lambda value: round(value, 3)), min_size=2, max_size=6)


@given(VALUES, VALUES)
def test_welchs_test_is_the_contrast_of_two_arms(a: list[float], b: list[float]) -> None:
    found = contrast([a, b], (-1, 1))
    if len(set(a)) == len(set(b)) == 1:
        assert found is None
        return
    other = welch(a, b)
    for name in ("estimate", "error", "df", "p"):
        assert math.isclose(getattr(found, name), getattr(other, name), rel_tol=1e-9, abs_tol=1e-12)
    assert (found.n_control, found.n_treatment) == (len(a), len(b))


@given(st.lists(VALUES, min_size=4, max_size=4), st.floats(-3, 3), st.floats(-3, 3))
def test_an_interaction_does_not_see_what_either_field_does_by_itself(
    arms: list[list[float]], first: float, second: float
) -> None:
    found = contrast(arms, CROSSED)
    shifts = (0.0, first, second, first + second)
    moved = contrast([[v + by for v in values] for values, by in zip(arms, shifts, strict=True)], CROSSED)
    if found is None or moved is None:
        assert found is moved
        return
    assert math.isclose(found.estimate, moved.estimate, abs_tol=1e-9)
    assert math.isclose(found.error, moved.error, rel_tol=1e-6, abs_tol=1e-9)


def test_degrees_of_freedom_are_satterthwaites() -> None:
    """Worked by hand: v = (2, 0.5, 0.5, 8) / 3 has df = 2 * 11^2 / (4 + 0.25 + 0.25 + 64)."""
    spreads = (2.0, 0.5, 0.5, 8.0)
    arms = [[-math.sqrt(v), 0.0, math.sqrt(v)] for v in spreads]
    found = contrast(arms, CROSSED)
    assert math.isclose(found.error**2, 11 / 3)
    assert math.isclose(found.df, 2 * 11**2 / (4 + 0.25 + 0.25 + 64))


@pytest.mark.parametrize(("arms", "told"), [([[1.0, 2.0]] * 3, "weight"), ([[1.0]] * 4, "2 values")])
def test_what_is_no_contrast_is_refused(arms: list[list[float]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        contrast(arms, CROSSED)


def normal(rng: random.Random, means: Sequence[float], spreads: Sequence[float], seeds: int) -> list[list[float]]:
    return [[rng.gauss(mean, sd) for _ in range(seeds)] for mean, sd in zip(means, spreads, strict=True)]


@pytest.mark.parametrize("spreads", [(1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 4.0), (0.3, 1.0, 2.0, 0.3)])
@pytest.mark.parametrize("seeds", [3, 5])
@studies(100, 4000)
def test_the_level_holds_at_few_runs_and_unlike_noise(spreads: tuple[float, ...], seeds: int, studies: int) -> None:
    """At a true rate of 5.5 % more claims than this come up once in a thousand times."""
    rng = random.Random(11)
    claims = sum(contrast(normal(rng, [0] * 4, spreads, seeds), CROSSED).p <= 0.05 for _ in range(studies))
    assert stats.binom.ppf(0.001, studies, 0.02) <= claims <= stats.binom.ppf(0.999, studies, 0.055)


@studies(100, 4000)
def test_equivalence_holds_its_level_at_the_margin(studies: int) -> None:
    rng = random.Random(12)  # the truth is on the margin
    found = [contrast(normal(rng, (0, 0, 0, 3), [1] * 4, 5), CROSSED) for _ in range(studies)]
    wrong = sum(is_equivalent(two_one_sided(each, 3.0, 0.05)) for each in found)
    assert (studies >= 1000) <= wrong <= stats.binom.ppf(0.999, studies, 0.055)


@pytest.mark.parametrize("weights", [CROSSED, (-1.0, 1.0), trend_weights([1, 2, 4, 8]), trend_weights([0, 1, 10])])
@pytest.mark.parametrize("seeds", [3, 6])
@studies(100, 2000)
def test_power_is_what_is_seen(weights: tuple[float, ...], seeds: int, studies: int) -> None:
    rng, effect = random.Random(13), 3 * error_of(weights, seeds)
    means = [effect / math.fsum(each * each for each in weights) * weight for weight in weights]
    found = [contrast(normal(rng, means, [1] * len(weights), seeds), weights) for _ in range(studies)]
    seen = sum(each.p <= 0.05 and each.estimate > 0 for each in found) / studies
    shape = PowerDesign("contrast", (InterimAnalysis(seeds=seeds, alpha=0.05),), arms=len(weights), weights=weights)
    assert abs(seen - power(shape, effect, 1.0)) < 3.1 * 0.5 / studies**0.5


@given(st.lists(st.floats(0.001, 100), min_size=3, max_size=5, unique=True), st.floats(-2, 2))
def test_a_straight_line_rises_by_what_its_trend_says(values: list[float], slope: float) -> None:
    values.sort()
    weights = trend_weights(values)
    assert math.isclose(math.fsum(weights), 0, abs_tol=1e-9)
    line = [slope * math.log(value) for value in values]
    rise = math.fsum(weight * y for weight, y in zip(weights, line, strict=True))
    assert math.isclose(rise, line[-1] - line[0], abs_tol=1e-6)


def test_a_ladder_from_zero_is_told_by_its_ranks() -> None:
    assert trend_weights([0.0, 0.01, 0.1]) == pytest.approx((-1, 0, 1))
    assert trend_weights([1, 2, 4, 8]) == pytest.approx((-0.9, -0.3, 0.3, 0.9))
