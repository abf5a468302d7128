from __future__ import annotations

import random

import pytest

from studies.records.design_parts import Look
from studies.statistics.comparison import Runs, compare
from studies.statistics.looks import spend
from studies.statistics.power import PowerDesign, at_shares, detectable, power, seeds_needed
from tests.lazily import lazy

stats = lazy("scipy.stats")
powers = lazy("statsmodels.stats.power")


def once(seeds: int, alpha: float = 0.05) -> tuple[Look, ...]:
    return (Look(seeds=seeds, alpha=alpha),)


def simulated(shape: PowerDesign, effect: float, studies: int = 1000, seed: int = 5) -> float:
    """Return how often the shipped comparison finds `effect`, in standard deviations, at the last look's level."""
    rng, found = random.Random(seed), 0
    for _ in range(studies):
        arms = _arms(shape, effect, rng)
        result = compare(shape.test, arms[0], arms[1], others=[arm.numbers for arm in arms[2:]])
        found += result is not None and result.interval(1 - shape.level)[0] > 0
    return found / studies


def _arms(shape: PowerDesign, effect: float, rng: random.Random) -> list[Runs]:
    shared = [rng.gauss(0, shape.correlation**0.5) for _ in range(shape.seeds)]
    own = (1 - shape.correlation) ** 0.5
    arms = []
    for arm in range(shape.arms):
        values = [common + rng.gauss(0, own) + (effect if arm == 1 else 0) for common in shared]
        names = [f"{arm}-{n}" for n in range(shape.seeds)]
        arms.append(Runs(dict(zip(names, values, strict=True)), {name: n for n, name in enumerate(names)}))
    return arms


@pytest.mark.parametrize(
    ("shape", "effect"),
    [
        (PowerDesign("welch", once(5)), 2.0),
        (PowerDesign("welch", once(3)), 2.0),
        (PowerDesign("common", once(5), arms=3), 2.0),
        (PowerDesign("common", once(3), arms=5), 2.5),
        (PowerDesign("common", once(5), arms=4), 1.8),
        (PowerDesign("paired", once(5), correlation=0.5), 1.5),
        (PowerDesign("welch", once(10), families=4), 1.5),
    ],
)
def test_power_is_what_the_shipped_test_has(shape: PowerDesign, effect: float) -> None:
    """Within three points and three standard errors of 1000 studies."""
    assert simulated(shape, effect) == pytest.approx(power(shape, effect, 1.0), abs=0.03 + 3 * 0.0158)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_paired_tests_power_is_that_of_statsmodels(seeds: int) -> None:
    shape = PowerDesign("paired", once(seeds), correlation=0.5)
    theirs = powers.TTestPower().power(1.5, seeds, 0.05, alternative="two-sided")
    assert power(shape, 1.5, 1.0) == pytest.approx(theirs, abs=1e-4)


def test_welchs_power_is_below_that_of_the_test_that_knows_the_variances_to_be_equal() -> None:
    for seeds in (3, 5, 10):
        df = 2 * (seeds - 1)
        student = stats.nct.sf(stats.t.ppf(0.975, df), df, 2 / (2 / seeds) ** 0.5)
        assert 0.7 * student < power(PowerDesign("welch", once(seeds)), 2.0, 1.0) < student


def test_the_seeds_that_effects_need_are_those_known_for_welchs_test() -> None:
    assert [seeds_needed(PowerDesign("welch", once(5)), d, 1.0) for d in (1.0, 1.5, 2.0, 3.0)] == [17, 9, 6, 4]
    assert seeds_needed(PowerDesign("welch", once(5)), 0.01, 1.0) is None


def test_the_detectable_effect_has_the_promised_power_and_scales_with_the_noise() -> None:
    shape = PowerDesign("common", spend((3, 6, 10)), arms=3, compared=2)
    smallest = detectable(shape, 0.03)
    assert power(shape, smallest, 0.03) == pytest.approx(0.8, abs=1e-3)
    assert detectable(shape, 0.06) == pytest.approx(2 * smallest, rel=1e-3)


def test_what_makes_a_comparison_see_more_or_less() -> None:
    base = PowerDesign("common", once(5), arms=4)
    seen = power(base, 1.5, 1.0)
    assert (
        power(PowerDesign("common", once(5), arms=3), 1.5, 1.0)
        < seen
        < power(PowerDesign("common", once(6), arms=4), 1.5, 1.0)
    )
    assert power(PowerDesign("common", once(5), compared=3, arms=4), 1.5, 1.0) < seen
    assert power(PowerDesign("common", once(5), families=3, arms=4), 1.5, 1.0) < seen
    assert power(PowerDesign("common", once(5, 0.01), arms=4), 1.5, 1.0) < seen
    assert power(base, 1.5, 1.0, sd_df=5) < power(base, 1.5, 1.0, sd_df=500) == pytest.approx(seen, abs=0.01)
    apart, alike = (PowerDesign("paired", once(5), correlation=r) for r in (0.0, 0.5))
    assert power(apart, 1.5, 1.0) < power(alike, 1.5, 1.0)


def test_more_seeds_keep_the_rhythm_of_the_looks() -> None:
    shape = PowerDesign("welch", spend((3, 6, 10))).with_seeds(20)
    assert [look.seeds for look in shape.looks] == [6, 12, 20]
    assert shape.looks == spend((6, 12, 20), 0.05)
    assert [look.seeds for look in at_shares(3, (0.3, 0.6, 1.0))] == [2, 3]


@pytest.mark.parametrize(("effect", "sd"), [(0, 1), (1, 0), (-1, 1)])
def test_no_noise_and_no_effect_have_no_power(effect: float, sd: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        power(PowerDesign("welch", once(5)), effect, sd)
